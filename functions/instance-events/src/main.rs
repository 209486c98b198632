//! Instance events: what EC2 tells of runners' machines. The use case is `ostler_core::instances`.

use std::process::ExitCode;
use std::rc::Rc;

use ostler_aws::{DynamoLedger, Patience, SsmConfiguration, StepFunctions};
use ostler_core::Result;
use ostler_core::instances::{InstanceContext, batch, handle as handle_one};
use ostler_core::ports::{Clock, Configuration, Context, Telemetry};
use ostler_fleet::Ec2Launched;
use ostler_github::ConfiguredGitHub;
use ostler_lambda::{Emf, Environment, Invocation, SystemClock};
use serde_json::Value;

/// The parameters that it reads, after the prefix: no webhook secret.
const PARAMETERS: [&str; 5] =
    ["control/tiers", "control/app", "control/apps", "control/app-private-key", "control/name-key"];

struct InstanceEvents {
    clock: SystemClock,
    telemetry: Emf<SystemClock>,
    configuration: Rc<SsmConfiguration<SystemClock>>,
    forge: ConfiguredGitHub<SsmConfiguration<SystemClock>, SystemClock>,
    ledger: DynamoLedger<SystemClock>,
    executions: StepFunctions,
    launched: Ec2Launched,
}

impl Context for InstanceEvents {
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

impl InstanceContext for InstanceEvents {
    type Launched = Ec2Launched;
    type Gate = DynamoLedger<SystemClock>;
    type Interrupted = DynamoLedger<SystemClock>;
    fn launched(&self) -> &Self::Launched {
        &self.launched
    }
    fn gate(&self) -> &Self::Gate {
        &self.ledger
    }
    fn interrupted(&self) -> &Self::Interrupted {
        &self.ledger
    }
}

async fn start(mut environment: Environment) -> Result<InstanceEvents> {
    let clock = environment.clock();
    let prefix = environment.text("OSTLER_PREFIX");
    let machine = environment.text("OSTLER_STATE_MACHINE_ARN");
    let ledger = environment.text("OSTLER_LEDGER_TABLE");
    let owner = environment.text("OSTLER_OWNER");
    environment.check()?;
    let aws = ostler_aws::sdk_config(Patience::STEP).await;
    // The age of what a process keeps is counted in its own, real time, whatever the world's clock says.
    let configuration =
        Rc::new(SsmConfiguration::new(&aws, &prefix, &PARAMETERS, SystemClock::REAL));
    Ok(InstanceEvents {
        clock,
        telemetry: Emf::new(clock),
        forge: ConfiguredGitHub::new(Rc::clone(&configuration), clock),
        configuration,
        ledger: DynamoLedger::new(&aws, &ledger, clock),
        executions: StepFunctions::new(&aws, &machine)?,
        launched: Ec2Launched::new(&aws, &owner),
    })
}

async fn handle(events: &InstanceEvents, event: Value, invocation: &Invocation) -> Result<Value> {
    let settings = events.configuration.settings().await?;
    let one = async |event, receives| handle_one(events, &settings, &event, receives).await;
    batch(&event, &events.telemetry, || invocation.deadline.allows_new_work(), one).await
}

fn main() -> ExitCode {
    ostler_lambda::run(start, handle)
}
