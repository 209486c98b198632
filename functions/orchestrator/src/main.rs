//! The orchestrator: one binary for the steps of a runner's life. The use cases are `ostler_core::runner`.

use std::process::ExitCode;
use std::rc::Rc;

use ostler_aws::{
    Accounts, DynamoHandoff, DynamoLedger, Patience, SdkConfig, SsmConfiguration, StepFunctions,
};
use ostler_core::Result;
use ostler_core::account::Account;
use ostler_core::ports::{Clock, Configuration, Context, RunnerContext, Telemetry};
use ostler_core::runner::{self, RunState, StepEvent};
use ostler_fleet::{Ec2Fleet, FleetSettings};
use ostler_github::ConfiguredGitHub;
use ostler_lambda::{Emf, Environment, Invocation, SystemClock};
use serde_json::Value;

/// The parameters that the orchestrator reads, after the prefix: no webhook secret.
const PARAMETERS: [&str; 5] =
    ["control/tiers", "control/app", "control/apps", "control/app-private-key", "control/name-key"];

/// What there is for runners in one account.
struct Runners {
    fleet: Ec2Fleet<SystemClock>,
    handoff: DynamoHandoff,
}

struct Orchestrator {
    clock: SystemClock,
    telemetry: Emf<SystemClock>,
    configuration: Rc<SsmConfiguration<SystemClock>>,
    forge: ConfiguredGitHub<SsmConfiguration<SystemClock>, SystemClock>,
    ledger: DynamoLedger<SystemClock>,
    executions: StepFunctions,
    owner: String,
    home: Rc<Runners>,
    elsewhere: Accounts<Runners>,
}

impl Orchestrator {
    /// Where a runner's machine is or will be.
    async fn at(&self, account: Option<&Account>) -> Result<Here<'_>> {
        let runners = match account {
            None => Rc::clone(&self.home),
            Some(account) => {
                let make = |aws: &SdkConfig| {
                    let account = account.clone();
                    let fleet = FleetSettings {
                        owner: self.owner.clone(),
                        subnets: account.subnets,
                        on_demand_template: account.template_on_demand,
                        spot_template: account.template_spot,
                    };
                    runners(aws, fleet, &account.handoff_table, &account.runner_role_id)
                };
                self.elsewhere.get(account, make).await?
            }
        };
        Ok(Here { orchestrator: self, runners })
    }
}

fn runners(aws: &SdkConfig, fleet: FleetSettings, table: &str, role: &str) -> Result<Runners> {
    Ok(Runners {
        // The age of what a process keeps is counted in its own, real time, whatever the world's clock says.
        fleet: Ec2Fleet::new(aws, fleet, SystemClock::REAL)?,
        handoff: DynamoHandoff::new(aws, table, role),
    })
}

/// The orchestrator, in one account.
struct Here<'a> {
    orchestrator: &'a Orchestrator,
    runners: Rc<Runners>,
}

impl Context for Here<'_> {
    type Ledger = DynamoLedger<SystemClock>;
    type Executions = StepFunctions;
    type Forge = ConfiguredGitHub<SsmConfiguration<SystemClock>, SystemClock>;
    fn ledger(&self) -> &Self::Ledger {
        &self.orchestrator.ledger
    }
    fn executions(&self) -> &Self::Executions {
        &self.orchestrator.executions
    }
    fn forge(&self) -> &Self::Forge {
        &self.orchestrator.forge
    }
    fn clock(&self) -> &impl Clock {
        &self.orchestrator.clock
    }
    fn telemetry(&self) -> &impl Telemetry {
        &self.orchestrator.telemetry
    }
}

impl RunnerContext for Here<'_> {
    type Fleet = Ec2Fleet<SystemClock>;
    type Handoff = DynamoHandoff;
    type Gate = DynamoLedger<SystemClock>;
    fn fleet(&self) -> &Self::Fleet {
        &self.runners.fleet
    }
    fn handoff(&self) -> &Self::Handoff {
        &self.runners.handoff
    }
    fn gate(&self) -> &Self::Gate {
        &self.orchestrator.ledger
    }
}

async fn start(mut environment: Environment) -> Result<Orchestrator> {
    let clock = environment.clock();
    let prefix = environment.text("OSTLER_PREFIX");
    let machine = environment.text("OSTLER_STATE_MACHINE_ARN");
    let ledger = environment.text("OSTLER_LEDGER_TABLE");
    let handoff = environment.text("OSTLER_HANDOFF_TABLE");
    let role = environment.text("OSTLER_RUNNER_ROLE_ID");
    let owner = environment.text("OSTLER_OWNER");
    let fleet = FleetSettings {
        owner: owner.clone(),
        subnets: environment.list("OSTLER_SUBNET_IDS"),
        on_demand_template: environment.text("OSTLER_TEMPLATE_ON_DEMAND"),
        spot_template: environment.text("OSTLER_TEMPLATE_SPOT"),
    };
    environment.check()?;
    let aws = ostler_aws::sdk_config(Patience::STEP).await;
    let configuration =
        Rc::new(SsmConfiguration::new(&aws, &prefix, &PARAMETERS, SystemClock::REAL));
    Ok(Orchestrator {
        clock,
        telemetry: Emf::new(clock),
        forge: ConfiguredGitHub::new(Rc::clone(&configuration), clock),
        configuration,
        ledger: DynamoLedger::new(&aws, &ledger, clock),
        executions: StepFunctions::new(&aws, &machine)?,
        home: Rc::new(runners(&aws, fleet, &handoff, &role)?),
        elsewhere: Accounts::new(&aws, "ostler-orchestrator"),
        owner,
    })
}

async fn handle(orchestrator: &Orchestrator, event: Value, _: &Invocation) -> Result<RunState> {
    let event = StepEvent::read(&event)?;
    let settings = orchestrator.configuration.settings().await?;
    let here = orchestrator.at(event.account(&settings)).await;
    let here = runner::waited_for(&orchestrator.telemetry, &event, here)?;
    runner::run(&here, &settings, &event).await
}

fn main() -> ExitCode {
    ostler_lambda::run(start, handle)
}
