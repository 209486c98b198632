//! The orchestrator: one binary for the steps of a runner's life. The use cases are `ostler_core::runner`.

use std::process::ExitCode;
use std::rc::Rc;

use ostler_aws::{DynamoHandoff, DynamoLedger, Patience, SsmConfiguration, StepFunctions};
use ostler_core::Result;
use ostler_core::ports::{Clock, Configuration, Context, RunnerContext, Telemetry};
use ostler_core::runner::{self, RunState, StepEvent};
use ostler_fleet::Ec2Fleet;
use ostler_github::ConfiguredGitHub;
use ostler_lambda::{Emf, Environment, Invocation, SystemClock};
use serde_json::Value;

/// The parameters that the orchestrator reads, after the prefix: no webhook secret.
const PARAMETERS: [&str; 5] =
    ["control/tiers", "control/app", "control/apps", "control/app-private-key", "control/name-key"];

struct Orchestrator {
    clock: SystemClock,
    telemetry: Emf<SystemClock>,
    configuration: Rc<SsmConfiguration<SystemClock>>,
    forge: ConfiguredGitHub<SsmConfiguration<SystemClock>, SystemClock>,
    ledger: DynamoLedger<SystemClock>,
    executions: StepFunctions,
    fleet: Ec2Fleet<SystemClock>,
    handoff: DynamoHandoff,
}

impl Context for Orchestrator {
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

impl RunnerContext for Orchestrator {
    type Fleet = Ec2Fleet<SystemClock>;
    type Handoff = DynamoHandoff;
    fn fleet(&self) -> &Self::Fleet {
        &self.fleet
    }
    fn handoff(&self) -> &Self::Handoff {
        &self.handoff
    }
}

async fn start(mut environment: Environment) -> Result<Orchestrator> {
    let clock = environment.clock();
    let prefix = environment.text("OSTLER_PREFIX");
    let machine = environment.text("OSTLER_STATE_MACHINE_ARN");
    let ledger = environment.text("OSTLER_LEDGER_TABLE");
    let handoff = environment.text("OSTLER_HANDOFF_TABLE");
    let role = environment.text("OSTLER_RUNNER_ROLE_ID");
    let fleet = ostler_fleet::FleetSettings {
        owner: environment.text("OSTLER_OWNER"),
        subnets: environment.list("OSTLER_SUBNET_IDS"),
        on_demand_template: environment.text("OSTLER_TEMPLATE_ON_DEMAND"),
        spot_template: environment.text("OSTLER_TEMPLATE_SPOT"),
    };
    environment.check()?;
    let aws = ostler_aws::sdk_config(Patience::STEP).await;
    // The age of what a process keeps is counted in its own, real time, whatever the world's clock says.
    let configuration =
        Rc::new(SsmConfiguration::new(&aws, &prefix, &PARAMETERS, SystemClock::REAL));
    Ok(Orchestrator {
        clock,
        telemetry: Emf::new(clock),
        forge: ConfiguredGitHub::new(Rc::clone(&configuration), clock),
        configuration,
        ledger: DynamoLedger::new(&aws, &ledger, clock),
        executions: StepFunctions::new(&aws, &machine)?,
        fleet: Ec2Fleet::new(&aws, fleet, SystemClock::REAL)?,
        handoff: DynamoHandoff::new(&aws, &handoff, &role),
    })
}

async fn handle(orchestrator: &Orchestrator, event: Value, _: &Invocation) -> Result<RunState> {
    let event = StepEvent::read(&event)?;
    let settings = orchestrator.configuration.settings().await?;
    runner::run(orchestrator, &settings, &event).await
}

fn main() -> ExitCode {
    ostler_lambda::run(start, handle)
}
