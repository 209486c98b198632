//! Instance events: what EC2 tells of runners' machines. The use case is `ostler_core::instances`.

use std::process::ExitCode;
use std::rc::Rc;

use ostler_aws::{Accounts, DynamoLedger, Patience, SdkConfig, SsmConfiguration, StepFunctions};
use ostler_core::account::Account;
use ostler_core::config::Settings;
use ostler_core::instances::{
    Handled, InstanceContext, InstanceEvent, Origin, Whose, batch, handle as handle_one,
};
use ostler_core::ports::{Clock, Configuration, Context, Telemetry};
use ostler_core::{Error, Result};
use ostler_fleet::Ec2Launched;
use ostler_github::ConfiguredGitHub;
use ostler_lambda::{Emf, Environment, Invocation, SystemClock};
use serde_json::Value;
use tracing::warn;

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
    owner: String,
    origin: Origin,
    home: Rc<Ec2Launched>,
    elsewhere: Accounts<Ec2Launched>,
}

impl InstanceEvents {
    /// Handles an event with the eyes that see its machine.
    async fn one(
        &self,
        settings: &Settings,
        event: &InstanceEvent,
        receives: u32,
    ) -> Result<Handled> {
        let (account, launched) = match event.whose(&self.origin, settings) {
            Whose::Home => (None, Rc::clone(&self.home)),
            Whose::Elsewhere(account) => {
                let role = account.for_events().ok_or_else(|| {
                    Error::Permanent(format!("account {} has no role for events", account.id()))
                })?;
                let make = |aws: &SdkConfig| Ok(Ec2Launched::new(aws, &self.owner));
                (Some(account), self.elsewhere.get(&role, make).await?)
            }
            Whose::Nobodys => {
                warn!(instance = event.instance, origin = ?event.origin, "no tier's account");
                self.telemetry.count("InstanceEventUnusable", None, 1.0);
                return Ok(Handled::Done);
            }
        };
        handle_one(&Here { events: self, account, launched }, settings, event, receives).await
    }
}

/// The function, in one account.
struct Here<'a> {
    events: &'a InstanceEvents,
    account: Option<&'a Account>,
    launched: Rc<Ec2Launched>,
}

impl Context for Here<'_> {
    type Ledger = DynamoLedger<SystemClock>;
    type Executions = StepFunctions;
    type Forge = ConfiguredGitHub<SsmConfiguration<SystemClock>, SystemClock>;
    fn ledger(&self) -> &Self::Ledger {
        &self.events.ledger
    }
    fn executions(&self) -> &Self::Executions {
        &self.events.executions
    }
    fn forge(&self) -> &Self::Forge {
        &self.events.forge
    }
    fn clock(&self) -> &impl Clock {
        &self.events.clock
    }
    fn telemetry(&self) -> &impl Telemetry {
        &self.events.telemetry
    }
}

impl InstanceContext for Here<'_> {
    type Launched = Ec2Launched;
    type Gate = DynamoLedger<SystemClock>;
    type Interrupted = DynamoLedger<SystemClock>;
    fn launched(&self) -> &Self::Launched {
        &self.launched
    }
    fn gate(&self) -> &Self::Gate {
        &self.events.ledger
    }
    fn account(&self) -> Option<&Account> {
        self.account
    }
    fn interrupted(&self) -> &Self::Interrupted {
        &self.events.ledger
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
        origin: origin(&machine)?,
        home: Rc::new(Ec2Launched::new(&aws, &owner)),
        elsewhere: Accounts::new(&aws, "ostler-instance-events"),
        owner,
    })
}

/// Where the control plane is, as its state machine's ARN says.
fn origin(machine_arn: &str) -> Result<Origin> {
    let mut parts = machine_arn.split(':').skip(3).map(str::to_owned);
    match (parts.next(), parts.next()) {
        (Some(region), Some(account)) => Ok(Origin { account, region }),
        _ => Err(Error::Permanent(format!("'{machine_arn}' is not the ARN of a state machine"))),
    }
}

async fn handle(events: &InstanceEvents, event: Value, invocation: &Invocation) -> Result<Value> {
    let settings = events.configuration.settings().await?;
    let one = async |event, receives| events.one(&settings, &event, receives).await;
    batch(&event, &events.telemetry, || invocation.deadline.allows_new_work(), one).await
}

fn main() -> ExitCode {
    ostler_lambda::run(start, handle)
}
