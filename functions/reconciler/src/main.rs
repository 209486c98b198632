//! The reconciler: no job waits for ever. The use case is `ostler_core::reconciler`.

use std::process::ExitCode;
use std::rc::Rc;

use ostler_aws::{DynamoLedger, LambdaSelector, Patience, SsmConfiguration, StepFunctions};
use ostler_core::Result;
use ostler_core::ports::{AcceptContext, Clock, Configuration, Context, Telemetry};
use ostler_core::reconciler::{Reconciled, ReconcilerContext, reconcile};
use ostler_github::ConfiguredGitHub;
use ostler_lambda::{Emf, Environment, Invocation, SystemClock};
use serde_json::Value;

/// The parameters that it reads, after the prefix: no webhook secret.
const PARAMETERS: [&str; 5] =
    ["control/tiers", "control/app", "control/apps", "control/app-private-key", "control/name-key"];

struct Reconciler {
    clock: SystemClock,
    telemetry: Emf<SystemClock>,
    configuration: Rc<SsmConfiguration<SystemClock>>,
    forge: ConfiguredGitHub<SsmConfiguration<SystemClock>, SystemClock>,
    ledger: DynamoLedger<SystemClock>,
    executions: StepFunctions,
    selector: LambdaSelector,
}

impl Context for Reconciler {
    type Ledger = DynamoLedger<SystemClock>;
    type Executions = StepFunctions;
    type Forge = ConfiguredGitHub<SsmConfiguration<SystemClock>, SystemClock>;
    fn ledger(&self) -> &Self::Ledger {
        &self.ledger
    }
    fn executions(&self) -> &Self::Executions {
        &self.executions
    }
    fn forge(&self) -> &Self::Forge {
        &self.forge
    }
    fn clock(&self) -> &impl Clock {
        &self.clock
    }
    fn telemetry(&self) -> &impl Telemetry {
        &self.telemetry
    }
}

impl AcceptContext for Reconciler {
    type Selector = LambdaSelector;
    fn selector(&self) -> &Self::Selector {
        &self.selector
    }
}

impl ReconcilerContext for Reconciler {
    type Agenda = DynamoLedger<SystemClock>;
    type Backlog = ConfiguredGitHub<SsmConfiguration<SystemClock>, SystemClock>;
    type Gate = DynamoLedger<SystemClock>;
    fn agenda(&self) -> &Self::Agenda {
        &self.ledger
    }
    fn backlog(&self) -> &Self::Backlog {
        &self.forge
    }
    fn gate(&self) -> &Self::Gate {
        &self.ledger
    }
}

async fn start(mut environment: Environment) -> Result<Reconciler> {
    let clock = environment.clock();
    let prefix = environment.text("OSTLER_PREFIX");
    let machine = environment.text("OSTLER_STATE_MACHINE_ARN");
    let ledger = environment.text("OSTLER_LEDGER_TABLE");
    environment.check()?;
    let aws = ostler_aws::sdk_config(Patience::STEP).await;
    // The age of what a process keeps is counted in its own, real time, whatever the world's clock says.
    let configuration =
        Rc::new(SsmConfiguration::new(&aws, &prefix, &PARAMETERS, SystemClock::REAL));
    Ok(Reconciler {
        clock,
        telemetry: Emf::new(clock),
        forge: ConfiguredGitHub::new(Rc::clone(&configuration), clock),
        configuration,
        ledger: DynamoLedger::new(&aws, &ledger, clock),
        executions: StepFunctions::new(&aws, &machine)?,
        selector: LambdaSelector::new(&aws),
    })
}

/// What the event says does not matter: each run looks at everything.
async fn handle(reconciler: &Reconciler, _: Value, invocation: &Invocation) -> Result<Reconciled> {
    let settings = reconciler.configuration.settings().await?;
    let done = reconcile(reconciler, &settings, || invocation.deadline.allows_new_work()).await;
    for (app, left) in reconciler.forge.quotas() {
        #[allow(clippy::cast_precision_loss, reason = "quotas are some thousands")]
        reconciler.telemetry.count("GitHubQuotaLeft", Some(("App", &app.to_string())), left as f64);
    }
    done
}

fn main() -> ExitCode {
    ostler_lambda::run(start, handle)
}
