//! The webhook: GitHub's deliveries in, executions out. The use case is `ostler_core::webhook`.

use std::process::ExitCode;
use std::rc::Rc;

use ostler_aws::{
    DynamoLedger, LambdaSelector, Patience, SqsReports, SsmConfiguration, StepFunctions,
};
use ostler_core::ports::{AcceptContext, Clock, Context, ReportContext, Telemetry};
use ostler_core::{Result, webhook};
use ostler_github::ConfiguredGitHub;
use ostler_lambda::{Emf, Environment, Invocation, SystemClock};
use serde_json::Value;

/// The parameters that the webhook reads, after the prefix.
const PARAMETERS: [&str; 7] = [
    "control/tiers",
    "control/app",
    "control/apps",
    "control/app-private-key",
    "control/webhook-secret",
    "control/webhook-secret-previous",
    "control/name-key",
];

struct Webhook {
    clock: SystemClock,
    telemetry: Emf<SystemClock>,
    configuration: Rc<SsmConfiguration<SystemClock>>,
    forge: ConfiguredGitHub<SsmConfiguration<SystemClock>, SystemClock>,
    ledger: DynamoLedger<SystemClock>,
    executions: StepFunctions,
    reports: SqsReports,
    selector: LambdaSelector,
}

impl Context for Webhook {
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

impl ReportContext for Webhook {
    type Configuration = SsmConfiguration<SystemClock>;
    type Reports = SqsReports;
    fn configuration(&self) -> &Self::Configuration {
        &self.configuration
    }
    fn reports(&self) -> &Self::Reports {
        &self.reports
    }
}

impl AcceptContext for Webhook {
    type Selector = LambdaSelector;
    fn selector(&self) -> &Self::Selector {
        &self.selector
    }
}

async fn start(mut environment: Environment) -> Result<Webhook> {
    let clock = environment.clock();
    let prefix = environment.text("OSTLER_PREFIX");
    let machine = environment.text("OSTLER_STATE_MACHINE_ARN");
    let ledger = environment.text("OSTLER_LEDGER_TABLE");
    let queue = environment.text("OSTLER_REPORT_QUEUE_URL");
    environment.check()?;
    let aws = ostler_aws::sdk_config(Patience::CALLER_WAITS).await;
    // The age of what a process keeps is counted in its own, real time, whatever the world's clock says.
    let configuration =
        Rc::new(SsmConfiguration::new(&aws, &prefix, &PARAMETERS, SystemClock::REAL));
    Ok(Webhook {
        clock,
        telemetry: Emf::new(clock),
        forge: ConfiguredGitHub::new(Rc::clone(&configuration), clock),
        configuration,
        ledger: DynamoLedger::new(&aws, &ledger, clock),
        executions: StepFunctions::new(&aws, &machine)?,
        reports: SqsReports::new(&aws, &queue),
        selector: LambdaSelector::new(&aws),
    })
}

async fn handle(webhook: &Webhook, event: Value, _: &Invocation) -> Result<Value> {
    Ok(webhook::handle(webhook, &event).await)
}

fn main() -> ExitCode {
    ostler_lambda::run(start, handle)
}
