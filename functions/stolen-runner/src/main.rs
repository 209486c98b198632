//! The stolen-runner handler: which runner took which job, and who waits because of it. The use case is
//! `ostler_core::stolen`.

use std::process::ExitCode;
use std::rc::Rc;

use ostler_aws::{DynamoLedger, Patience, SqsReports, SsmConfiguration, StepFunctions};
use ostler_core::ports::{Clock, Context, ReportContext, Telemetry};
use ostler_core::{Result, stolen};
use ostler_github::ConfiguredGitHub;
use ostler_lambda::{Emf, Environment, Invocation, SystemClock};
use serde_json::Value;

/// The parameters that it reads, after the prefix: no webhook secret.
const PARAMETERS: [&str; 5] =
    ["control/tiers", "control/app", "control/apps", "control/app-private-key", "control/name-key"];

struct StolenRunner {
    clock: SystemClock,
    telemetry: Emf<SystemClock>,
    configuration: Rc<SsmConfiguration<SystemClock>>,
    forge: ConfiguredGitHub<SsmConfiguration<SystemClock>, SystemClock>,
    ledger: DynamoLedger<SystemClock>,
    executions: StepFunctions,
    reports: SqsReports,
}

impl Context for StolenRunner {
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

impl ReportContext for StolenRunner {
    type Configuration = SsmConfiguration<SystemClock>;
    type Reports = SqsReports;
    fn configuration(&self) -> &Self::Configuration {
        &self.configuration
    }
    fn reports(&self) -> &Self::Reports {
        &self.reports
    }
}

async fn start(mut environment: Environment) -> Result<StolenRunner> {
    let clock = environment.clock();
    let prefix = environment.text("OSTLER_PREFIX");
    let machine = environment.text("OSTLER_STATE_MACHINE_ARN");
    let ledger = environment.text("OSTLER_LEDGER_TABLE");
    let queue = environment.text("OSTLER_REPORT_QUEUE_URL");
    environment.check()?;
    let aws = ostler_aws::sdk_config(Patience::STEP).await;
    // The age of what a process keeps is counted in its own, real time, whatever the world's clock says.
    let configuration =
        Rc::new(SsmConfiguration::new(&aws, &prefix, &PARAMETERS, SystemClock::REAL));
    Ok(StolenRunner {
        clock,
        telemetry: Emf::new(clock),
        forge: ConfiguredGitHub::new(Rc::clone(&configuration), clock),
        configuration,
        ledger: DynamoLedger::new(&aws, &ledger, clock),
        executions: StepFunctions::new(&aws, &machine)?,
        reports: SqsReports::new(&aws, &queue),
    })
}

async fn handle(handler: &StolenRunner, event: Value, invocation: &Invocation) -> Result<Value> {
    stolen::handle(handler, &event, || invocation.deadline.allows_new_work()).await
}

fn main() -> ExitCode {
    ostler_lambda::run(start, handle)
}
