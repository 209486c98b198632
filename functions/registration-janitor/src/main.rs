//! The registration janitor: registrations that were left behind at GitHub. The use case is
//! `ostler_core::janitor`; this needs nothing else of Ostler.

use std::cell::{OnceCell, RefCell};
use std::process::ExitCode;
use std::rc::Rc;

use aws_config::{Region, SdkConfig};
use ostler_aws::{CredentialNames, Patience, SqsConfirmations, SsmCredentials, StepFunctions};
use ostler_core::apps::Credentials;
use ostler_core::janitor::{
    self, Bundled, Config, Context, Ec2InstanceIds, OstlerRunners, ProviderConfig,
};
use ostler_core::ports::{Clock, Telemetry};
use ostler_core::{Error, Result};
use ostler_fleet::Ec2Inventory;
use ostler_github::JanitorGitHub;
use ostler_lambda::{Emf, Environment, Invocation, SystemClock};
use serde_json::Value;

type Provider = Bundled<Ec2Inventory, StepFunctions>;

/// What all invocations share.
struct Process {
    name: String,
    clock: SystemClock,
    telemetry: Emf<SystemClock>,
    /// Refused at every invocation rather than at the start, so that it is an error of the function that
    /// alarms see.
    config: Result<Config>,
    aws: SdkConfig,
    credentials: SsmCredentials<SystemClock>,
    confirmations: SqsConfirmations,
    github: RefCell<Option<Rc<JanitorGitHub<SystemClock>>>>,
    provider: OnceCell<Provider>,
}

impl Process {
    fn github(
        &self,
        config: &Config,
        credentials: &Credentials,
    ) -> Result<Rc<JanitorGitHub<SystemClock>>> {
        let mut kept = self.github.borrow_mut();
        let api = &config.github_api;
        if let Some(github) = kept.as_ref().filter(|github| github.is_for(api, credentials)) {
            return Ok(Rc::clone(github));
        }
        let made = Rc::new(JanitorGitHub::new(api, credentials, self.clock)?);
        *kept = Some(Rc::clone(&made));
        Ok(made)
    }

    fn key_refused(&self) -> bool {
        self.github.borrow().as_ref().is_some_and(|github| github.key_refused())
    }

    fn provider(&self, config: &Config, credentials: &Credentials) -> Result<&Provider> {
        if let Some(provider) = self.provider.get() {
            return Ok(provider);
        }
        let regions = config.provider.regions();
        let inventory = Ec2Inventory::new(&self.aws, regions);
        let made = match &config.provider {
            ProviderConfig::Ec2InstanceId { prefix, .. } => {
                Bundled::Ec2InstanceIds(Ec2InstanceIds::new(prefix, regions, inventory))
            }
            ProviderConfig::Ostler { state_machine_arn: machine, .. } => {
                let missing = || Error::Permanent("the name key was not read".into());
                let key = credentials.name_key.clone().ok_or_else(missing)?;
                let region = machine.split(':').nth(3).unwrap_or_default().to_owned();
                let there = self.aws.to_builder().region(Region::new(region)).build();
                let executions = StepFunctions::new(&there, machine)?;
                Bundled::Ostler(OstlerRunners::new(key, regions, machine, inventory, executions))
            }
        };
        Ok(self.provider.get_or_init(|| made))
    }
}

/// One invocation's janitor.
struct Round<'a> {
    process: &'a Process,
    github: Rc<JanitorGitHub<SystemClock>>,
    provider: &'a Provider,
}

impl Context for Round<'_> {
    type Registrations = JanitorGitHub<SystemClock>;
    type Confirmations = SqsConfirmations;
    type Provider = Provider;
    fn name(&self) -> &str {
        &self.process.name
    }
    fn registrations(&self) -> &Self::Registrations {
        &self.github
    }
    fn confirmations(&self) -> &Self::Confirmations {
        &self.process.confirmations
    }
    fn provider(&self) -> &Self::Provider {
        self.provider
    }
    fn clock(&self) -> &impl Clock {
        &self.process.clock
    }
    fn telemetry(&self) -> &impl Telemetry {
        &self.process.telemetry
    }
}

async fn start(mut environment: Environment) -> Result<Process> {
    let clock = environment.clock();
    let name = environment.text("AWS_LAMBDA_FUNCTION_NAME");
    let config = Config::parse(environment.optional("REGISTRATION_JANITOR_CONFIG").as_deref());
    let queue = environment.text("REGISTRATION_JANITOR_QUEUE_URL");
    let name_key = match config.as_ref().map(|config| &config.provider) {
        Ok(ProviderConfig::Ostler { name_key_parameter, .. }) => Some(name_key_parameter.clone()),
        _ => None,
    };
    let names = CredentialNames {
        app_id: environment.text("PARAMETER_GITHUB_APP_ID_NAME"),
        app_key: environment.text("PARAMETER_GITHUB_APP_KEY_BASE64_NAME"),
        manifest: environment.optional("PARAMETER_GITHUB_APPS_MANIFEST_NAME"),
        name_key,
    };
    environment.check()?;
    let aws = ostler_aws::sdk_config(Patience::STEP).await;
    Ok(Process {
        name,
        clock,
        telemetry: Emf::new(clock),
        config,
        // The age of what a process keeps is counted in its own, real time, whatever the world's clock says.
        credentials: SsmCredentials::new(&aws, names, SystemClock::REAL),
        confirmations: SqsConfirmations::new(&aws, &queue),
        aws,
        github: RefCell::new(None),
        provider: OnceCell::new(),
    })
}

async fn handle(process: &Process, event: Value, invocation: &Invocation) -> Result<Value> {
    let config = process.config.as_ref().map_err(Clone::clone)?;
    let credentials = process.credentials.load(process.key_refused()).await?;
    let github = process.github(config, &credentials)?;
    let provider = process.provider(config, &credentials)?;
    let round = Round { process, github, provider };
    janitor::handle(&round, config, &event, || invocation.deadline.allows_new_work()).await
}

fn main() -> ExitCode {
    ostler_lambda::run(start, handle)
}
