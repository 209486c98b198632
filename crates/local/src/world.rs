//! The whole local world: moto, the edge, a GitHub server and instances, started and ended together.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Stdio;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::Method;
use ostler_core::job::JobId;
use ostler_core::names::NameKey;
use ostler_sim::github::Scope;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;
use tokio::process::Command;

use crate::aws::{self, REGION};
use crate::deploy::events;
use crate::ec2::{self, Ec2Plane};
use crate::edge::{Edge, InstanceIdentity, InstancePlane};
use crate::github::{GitHub, GitHubConfig, refused};
use crate::instances;
use crate::lambda_host::zip_of;
use crate::moto::{Moto, default_venv};
use crate::process;
use crate::time::WorldClock;

/// A deployment by the AWS CLI takes 2 to 5 s of real time here.
const DEPLOY_TIMEOUT: Duration = Duration::from_secs(300);
/// `aws cloudformation deploy` sends a template of this size or more through S3.
/// Source: CloudFormation quotas, "Template body size in a request".
const TEMPLATE_BYTES_MAX: u64 = 51_200;
/// The functions: `ostler-<name>` is the binary, `<name>.zip` the code.
const FUNCTIONS: [&str; 3] = ["webhook", "orchestrator", "stolen-runner"];
/// The one that has a stack to itself.
const REAPER: &str = "reaper";
/// Those of the recovery stack.
const RECOVERY: [&str; 2] = ["reconciler", "instance-events"];
/// The install's name.
const OWNER: &str = "local";
/// The one that needs none of the others.
const JANITOR: &str = "registration-janitor";
/// Where the functions' zips and large templates go.
const BUCKET: &str = "ostler-code";
/// The stacks' names.
const NETWORK_STACK: &str = "ostler-network";
/// The control plane's stack; functions and log groups are named by it.
pub const CONTROL_STACK: &str = "ostler";
/// What other accounts' runners need there, and what the control plane's account needs for them.
pub const RUNNERS_STACK: &str = "ostler-runners";
const ACCOUNTS_STACK: &str = "ostler-accounts";
/// The reaper's stack, and its function.
pub const REAPER_STACK: &str = "ostler-reaper";
/// The stack of the install's own registration janitor, and its function.
const JANITOR_STACK: &str = "ostler-janitor";
/// Between two of its scans, in minutes and in seconds: the demo is over in half an hour.
const JANITOR_SCHEDULE: (&str, &str) = ("rate(10 minutes)", "600");
/// What names of runners are made with.
const NAME_KEY_PARAMETER: &str = "/ostler/control/name-key";
/// The recovery stack; its functions are named by it.
pub const RECOVERY_STACK: &str = "ostler-recovery";
/// Images of the world: SSM parameter, AMI id, architecture.
const IMAGES: [(&str, &str, &str); 2] = [
    ("/ostler/images/ubuntu-x64", "ami-00000000000000064", "x86_64"),
    ("/ostler/images/ubuntu-arm64", "ami-000000000000a4664", "arm64"),
];

/// How a world is made.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// Logs, code and machines' disks are kept here.
    pub state_dir: PathBuf,
    /// World seconds per real second.
    pub scale: f64,
    /// Virtual environment with moto and the AWS CLI.
    pub venv: PathBuf,
    /// Where the functions' binaries are, `ostler-webhook` and the others.
    pub bin_dir: PathBuf,
    /// Where the functions' zips are, `webhook.zip` and the others, to be deployed instead.
    pub zips: Option<PathBuf>,
    /// The repository's root, for its templates.
    pub root: PathBuf,
    /// All chance comes from it.
    pub seed: u64,
    /// Port of the edge; 0 for any.
    pub port: u16,
}

impl WorldConfig {
    /// As [`WorldConfig::new`], of a folder that is emptied first.
    pub fn fresh(state_dir: &Path) -> anyhow::Result<Self> {
        if state_dir.exists() {
            std::fs::remove_dir_all(state_dir)
                .with_context(|| format!("empty {}", state_dir.display()))?;
        }
        Ok(Self::new(state_dir))
    }

    /// At 60 times the speed of real time, with this repository's templates and binaries.
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        Self {
            state_dir: state_dir.into(),
            scale: 60.0,
            venv: default_venv(),
            bin_dir: root.join("target/debug"),
            zips: None,
            root,
            seed: 1,
            port: 0,
        }
    }
}

/// A running world. Its processes end with [`World::down`], and with this process whatever happens.
pub struct World {
    /// The world's time.
    pub clock: WorldClock,
    /// The AWS endpoint.
    pub edge: Arc<Edge>,
    /// EC2's data plane.
    pub ec2: Arc<Ec2Plane>,
    /// Machines under instances.
    pub instances: Arc<instances::Host>,
    /// GitHub.
    pub github: Arc<GitHub>,
    /// EC2 of other accounts.
    elsewhere: Arc<RwLock<Vec<Arc<Ec2Plane>>>>,
    config: WorldConfig,
    moto: Moto,
    webhook_secret: String,
    name_key: String,
    release_sha256: String,
    bucket: tokio::sync::OnceCell<()>,
}

/// Instances without anything in them.
struct NoMachines;

impl ec2::InstanceHost for NoMachines {
    fn boot(&self, _: ec2::BootRequest) {}
    fn terminate(&self, _: &str) {}
}

impl InstancePlane for Ec2Plane {
    fn serves(&self, action: &str) -> bool {
        Ec2Plane::serves(action)
    }

    fn serve<'a>(
        &'a self,
        parameters: &'a BTreeMap<String, String>,
    ) -> Pin<Box<dyn Future<Output = ec2::Answer> + Send + 'a>> {
        Box::pin(self.serve(parameters))
    }

    fn templates_changed(&self) {
        self.forget_templates();
    }
}

impl World {
    /// Starts everything; nothing is deployed yet. The error says what could not be started.
    pub async fn up(config: WorldConfig) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&config.state_dir)
            .with_context(|| format!("make {}", config.state_dir.display()))?;
        // Children run elsewhere, so relative paths would mean other places to them.
        let state_dir = config.state_dir.canonicalize().context("the state folder's path")?;
        let config = WorldConfig { state_dir: state_dir.clone(), ..config };
        let clock = WorldClock::starting_now(config.scale);
        let listener = TcpListener::bind(("127.0.0.1", config.port))
            .await
            .with_context(|| format!("listen on port {} for the edge", config.port))?;
        let port = listener.local_addr().context("the edge's address")?.port();
        let webhook_secret = random_hex();
        let (release, release_sha256) = instances::runner_release();
        let github = GitHubConfig {
            release: Some(release.into()),
            ..GitHubConfig::new(clock, &webhook_secret, config.seed)
        };
        let (moto, github) = tokio::try_join!(
            Moto::start(&config.venv, &state_dir, port, clock),
            GitHub::start(github)
        )?;
        let edge = Edge::start(listener, moto.url(), clock, &state_dir, config.seed)?;
        let instances = instances::Host::new(instances::HostConfig {
            clock,
            edge_url: edge.url().to_owned(),
            github_url: github.url().to_owned(),
            state_dir: state_dir.join("instances"),
            region: REGION.to_owned(),
        })
        .context("prepare the machines under instances")?;
        let host: Arc<dyn ec2::InstanceHost> = Arc::clone(&instances) as _;
        let ec2 = Ec2Plane::new(clock, moto.url().to_owned(), host);
        for (_, id, architecture) in IMAGES {
            ec2.register_plain_image(id, architecture, "/dev/sda1");
        }
        let plane = Arc::downgrade(&ec2);
        let elsewhere: Arc<RwLock<Vec<Arc<Ec2Plane>>>> = Arc::default();
        let others = Arc::downgrade(&elsewhere);
        instances.on_poweroff(Arc::new(move |instance_id: String| {
            let (plane, others) = (plane.clone(), others.clone());
            tokio::spawn(async move {
                let others = others.upgrade();
                let others =
                    others.map(|all| all.read().unwrap_or_else(PoisonError::into_inner).clone());
                // Only one of them has it.
                for plane in plane.upgrade().into_iter().chain(others.into_iter().flatten()) {
                    plane.powered_off(&instance_id).await;
                }
            });
        }));
        let keys = Arc::downgrade(&instances);
        edge.set_instance_keys(Arc::new(move |access_key_id: &str| {
            let host = keys.upgrade()?;
            let credentials = host.credentials(access_key_id.strip_prefix("instance-")?)?;
            Some(InstanceIdentity {
                secret: credentials.secret,
                session_token: credentials.session_token,
                user_id: credentials.user_id,
            })
        }));
        edge.set_instance_plane(Arc::clone(&ec2) as _);
        tell_of_instances(&edge, &ec2, aws::ACCOUNT);
        edge.nest("/_instance", instances.router());
        Ok(Self {
            clock,
            edge,
            ec2,
            instances,
            github,
            elsewhere,
            config,
            moto,
            webhook_secret,
            name_key: random_hex(),
            release_sha256,
            bucket: tokio::sync::OnceCell::new(),
        })
    }

    /// Ends everything.
    pub async fn down(self) {
        self.github.stop();
        for view in self.ec2.instances() {
            ec2::InstanceHost::terminate(&*self.instances, &view.instance_id);
        }
        self.edge.stop().await;
        self.moto.stop().await;
    }

    /// What must never be seen in a log, a tag or an execution: a name for each, and the secret.
    pub fn secrets(&self) -> Vec<(&'static str, String)> {
        let key = self.github.app_private_key_pem();
        // One line of the key's body is enough to know it by, however the rest is wrapped.
        let line = key.lines().filter(|line| !line.starts_with("-----")).nth(1).unwrap_or(key);
        vec![
            ("the webhook secret", self.webhook_secret.clone()),
            ("the name key", self.name_key.clone()),
            ("the App's private key", line.to_owned()),
        ]
    }

    /// The repository's root.
    pub fn root(&self) -> &Path {
        &self.config.root
    }

    /// What GitHub signs its deliveries with.
    pub fn webhook_secret(&self) -> &str {
        &self.webhook_secret
    }

    /// Where all processes of the world write.
    pub fn log_dir(&self) -> PathBuf {
        self.config.state_dir.clone()
    }

    /// An output of a deployed stack.
    pub fn output(&self, name: &str) -> anyhow::Result<String> {
        let deployments = self.edge.deployments();
        deployments.output(name).with_context(|| format!("no deployed stack has an output {name}"))
    }

    /// Adds another account, with the same images, and gives its EC2. The operator there is `operator-<account>`.
    pub fn add_account(&self, account: &str) -> Arc<Ec2Plane> {
        let mut others = self.elsewhere.write().unwrap_or_else(PoisonError::into_inner);
        let seed = self.config.seed + 1 + u64::try_from(others.len()).unwrap_or(0);
        let host: Arc<dyn ec2::InstanceHost> = Arc::clone(&self.instances) as _;
        let moto = self.edge.moto().in_account(Some(account));
        let plane = Ec2Plane::elsewhere(self.clock, moto, host, seed);
        for (_, id, architecture) in IMAGES {
            plane.register_plain_image(id, architecture, "/dev/sda1");
        }
        tell_of_instances(&self.edge, &plane, account);
        others.push(Arc::clone(&plane));
        self.edge.add_account(account, Arc::clone(&plane) as _);
        plane
    }

    /// SSM parameters of the images, and the stacks of a network and of `infra/byoc-role.yaml`, in an account that was
    /// added: its runners' home. Gives what a tier's `account` is.
    pub async fn install_in(&self, account: &str, external_id: &str) -> anyhow::Result<Value> {
        let root = &self.config.root;
        let moto = self.edge.moto().in_account(Some(account));
        for (name, id, _) in IMAGES {
            let input = json!({"Name": name, "Type": "String", "Value": id, "Overwrite": true});
            moto.json("ssm", "AmazonSSM.PutParameter", &input).await?;
        }
        let there = Some(account);
        self.deploy_in(there, NETWORK_STACK, &root.join("infra/network.yaml"), &[]).await?;
        let output = |stack: &str, name: &str| {
            let found = self.edge.deployments().output_of(there, stack, name);
            found.with_context(|| format!("stack {stack} in {account} has no output {name}"))
        };
        let of_network =
            |name: &str| output(NETWORK_STACK, name).map(|value| (name.to_owned(), value));
        let mut parameters = vec![
            of_network("VpcId")?,
            of_network("SubnetIds")?,
            of_network("RunnerSecurityGroupId")?,
            ("TrustedRoleName".to_owned(), self.output("OrchestratorRoleName")?),
        ];
        let more = [
            ("TrustedAccountId", aws::ACCOUNT),
            ("ExternalId", external_id),
            ("Owner", OWNER),
            ("RunnerSha256X64", &self.release_sha256),
            ("RunnerSha256Arm64", &self.release_sha256),
        ];
        parameters.extend(more.map(|(name, value)| (name.to_owned(), value.to_owned())));
        // Of a recovery stack that hears of other accounts.
        for name in ["EventBusArn", "TrustedEventRoleName"] {
            let value = self.edge.deployments().output_of(None, RECOVERY_STACK, name);
            parameters.extend(value.map(|value| (name.to_owned(), value)));
        }
        let parameters: Vec<_> =
            parameters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let template = root.join("infra/byoc-role.yaml");
        self.deploy_in(there, RUNNERS_STACK, &template, &parameters).await?;
        serde_json::from_str(&output(RUNNERS_STACK, "Account")?).context("the output Account")
    }

    /// Lets the control plane assume these roles of another account: `infra/accounts.yaml`.
    pub async fn let_assume(&self, account: &str, roles: &str) -> anyhow::Result<()> {
        let (role, function) =
            (self.output("OrchestratorRoleName")?, self.output("StolenRunnerFunctionArn")?);
        let parameters = [
            ("OrchestratorRoleName", role.as_str()),
            ("StolenRunnerFunctionArn", &function),
            ("RunnerAccountIds", account),
            ("RunnerRoleArns", roles),
            ("CodeBucket", BUCKET),
        ];
        let template = self.config.root.join("infra/accounts.yaml");
        self.deploy(ACCOUNTS_STACK, &template, &parameters).await
    }

    /// Has the recovery stack hear of instances in another account, which then has to be installed again.
    pub async fn hear_of(&self, account: &str) -> anyhow::Result<()> {
        let deployments = self.edge.deployments();
        let role = deployments.output_of(Some(account), RUNNERS_STACK, "EventRoleArns");
        let mut parameters = vec![("RunnerAccountIds", account)];
        parameters.extend(role.as_deref().map(|role| ("EventRoleArns", role)));
        self.deploy_recovery(&parameters).await
    }

    /// Environment variables for AWS tools, as the operator.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT_URL", self.edge.url().to_owned()),
            ("AWS_ACCESS_KEY_ID", "operator".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "local".to_owned()),
            ("AWS_REGION", REGION.to_owned()),
            ("AWS_DEFAULT_REGION", REGION.to_owned()),
        ]
    }

    /// Runs `aws cloudformation deploy`, and makes what moto does not. `parameters` are name and value.
    pub async fn deploy(
        &self,
        stack: &str,
        template: &Path,
        parameters: &[(&str, &str)],
    ) -> anyhow::Result<()> {
        self.deploy_in(None, stack, template, parameters).await
    }

    async fn deploy_in(
        &self,
        account: Option<&str>,
        stack: &str,
        template: &Path,
        parameters: &[(&str, &str)],
    ) -> anyhow::Result<()> {
        let size = std::fs::metadata(template)
            .with_context(|| format!("read {}", template.display()))?
            .len();
        let mut command = Command::new(self.config.venv.join("bin/aws"));
        command
            .args([
                "cloudformation",
                "deploy",
                "--no-fail-on-empty-changeset",
                "--stack-name",
                stack,
            ])
            .arg("--template-file")
            .arg(template)
            .args(["--capabilities", "CAPABILITY_IAM"])
            .envs(self.variables())
            .envs(account.map(|id| ("AWS_ACCESS_KEY_ID", format!("operator-{id}"))))
            .env("AWS_CONFIG_FILE", "/dev/null")
            .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env("AWS_PAGER", "")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if size >= TEMPLATE_BYTES_MAX {
            self.bucket().await?;
            command.args(["--s3-bucket", BUCKET]);
        }
        if !parameters.is_empty() {
            command.arg("--parameter-overrides");
            command.args(parameters.iter().map(|(name, value)| format!("{name}={value}")));
        }
        let output = tokio::time::timeout(DEPLOY_TIMEOUT, process::tie(&mut command).output())
            .await
            .with_context(|| {
                format!("stack {stack} was not deployed in {} s", DEPLOY_TIMEOUT.as_secs())
            })?
            .with_context(|| {
                format!("run {}/bin/aws: is `make setup` done?", self.config.venv.display())
            })?;
        // AWS makes an empty change set, which the CLI knows; moto refuses to make one.
        let unchanged =
            String::from_utf8_lossy(&output.stderr).contains("No updates are to be performed");
        if !output.status.success() && !unchanged {
            bail!(
                "stack {stack} could not be deployed: {}{} (moto's own words are in {})",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr),
                self.config.state_dir.join("moto.log").display()
            );
        }
        self.edge.deployments().sync().await.map_err(anyhow::Error::msg)
    }

    /// Sets the parameters and deploys network and control plane: an install in which nothing works by a schedule.
    pub async fn install_control(&self, tiers: &Value) -> anyhow::Result<()> {
        self.put_parameters(tiers).await?;
        self.deploy_stacks(&[]).await
    }

    /// Sets the parameters and deploys all stacks with the functions' binaries: a working install.
    pub async fn install(&self, tiers: &Value) -> anyhow::Result<()> {
        self.put_parameters(tiers).await?;
        tokio::try_join!(self.deploy_stacks(&[]), self.deploy_reaper(&[]))?;
        self.deploy_recovery(&[]).await?;
        let machine = self.output("StateMachineArn")?;
        let (schedule, seconds) = JANITOR_SCHEDULE;
        let own = [
            ("Provider", "ostler"),
            ("StateMachineArn", machine.as_str()),
            ("NameKeyParameter", NAME_KEY_PARAMETER),
            ("Organization", "acme"),
            ("RunnerGroupIds", "1"),
            ("Regions", REGION),
            ("DryRun", "false"),
            ("ScheduleExpression", schedule),
            ("SchedulePeriodSeconds", seconds),
        ];
        self.deploy_janitor(JANITOR_STACK, &own).await
    }

    /// Deploys the recovery stack, which belongs to the control plane's. `more` are parameters beside those that it needs.
    pub async fn deploy_recovery(&self, more: &[(&str, &str)]) -> anyhow::Result<()> {
        let code = self.put_code(&RECOVERY).await?;
        let (ledger, machine) = (self.output("LedgerTableName")?, self.output("StateMachineArn")?);
        let mut parameters = vec![
            ("Owner", OWNER),
            ("LedgerTableName", ledger.as_str()),
            ("StateMachineArn", &machine),
            ("CodeBucket", BUCKET),
            ("CodePrefix", &code),
            ("Architecture", "x86_64"),
        ];
        parameters.extend(more);
        self.deploy(RECOVERY_STACK, &self.config.root.join("infra/recovery.yaml"), &parameters)
            .await
    }

    /// Deploys the reaper's stack. `more` are parameters beside those that it needs, or in their place.
    pub async fn deploy_reaper(&self, more: &[(&str, &str)]) -> anyhow::Result<()> {
        let code = self.put_code(&[REAPER]).await?;
        let mut parameters = BTreeMap::from([
            ("Owner", OWNER),
            ("CodeBucket", BUCKET),
            ("CodePrefix", &code),
            ("Architecture", "x86_64"),
        ]);
        parameters.extend(more.iter().copied());
        let parameters: Vec<_> = parameters.into_iter().collect();
        self.deploy(REAPER_STACK, &self.config.root.join("infra/reaper.yaml"), &parameters).await
    }

    /// Deploys network and control plane with the functions' binaries, and has GitHub post to them. `more` are
    /// parameters of the control plane's stack beside those that it needs; those of earlier deployments
    /// stay, as `aws cloudformation deploy` has it.
    pub async fn deploy_stacks(&self, more: &[(&str, &str)]) -> anyhow::Result<()> {
        let root = &self.config.root;
        let network = root.join("infra/network.yaml");
        let (code, ()) =
            tokio::try_join!(self.put_code(&FUNCTIONS), self.deploy(NETWORK_STACK, &network, &[]))?;
        let (vpc, subnets, group) = (
            self.output("VpcId")?,
            self.output("SubnetIds")?,
            self.output("RunnerSecurityGroupId")?,
        );
        let mut parameters = vec![
            ("Owner", OWNER),
            ("VpcId", &vpc),
            ("SubnetIds", &subnets),
            ("RunnerSecurityGroupId", &group),
            ("CodeBucket", BUCKET),
            ("CodePrefix", &code),
            ("Architecture", "x86_64"),
            ("RunnerSha256X64", &self.release_sha256),
            ("RunnerSha256Arm64", &self.release_sha256),
        ];
        parameters.extend(more);
        self.deploy(CONTROL_STACK, &root.join("infra/control.yaml"), &parameters).await?;
        self.github.set_webhook_target(Some(&self.output("WebhookUrl")?));
        Ok(())
    }

    /// Deploys a registration janitor alone, with the world's App and GitHub. `parameters` say for whose
    /// registrations; see `infra/registration-janitor.yaml`. Its function has the stack's name.
    pub async fn deploy_janitor(
        &self,
        stack: &str,
        parameters: &[(&str, &str)],
    ) -> anyhow::Result<()> {
        let code = self.put_code(&[JANITOR]).await?;
        let api = format!("{}/api/v3", self.github.url());
        let mut all = BTreeMap::from([
            ("AppIdParameter", "/ostler/control/app"),
            ("AppKeyParameter", "/ostler/control/app-private-key"),
            ("GhesApiUrl", &api),
            ("CodeBucket", BUCKET),
            ("CodePrefix", &code),
            ("Architecture", "x86_64"),
        ]);
        all.extend(parameters.iter().copied());
        let all: Vec<_> = all.into_iter().collect();
        let template = self.config.root.join("infra/registration-janitor.yaml");
        self.deploy(stack, &template, &all).await
    }

    /// Registers a runner of ours that never was, as if all that should have removed it had failed. Answers its name.
    pub fn leave_behind(&self) -> anyhow::Result<String> {
        let key = NameKey::new(&self.name_key).context("the name key is empty")?;
        let name = key.base_name("widgets", JobId(1));
        let (scope, labels) = (Scope::Organization("acme".into()), ["self-hosted".to_owned()]);
        self.github
            .with_model(|model, now| model.generate_jit(now, &scope, &name, Some(1), &labels))
            .map_err(refused)?;
        Ok(name)
    }

    /// Another region, with an EC2 of its own: instances that nothing runs on, for whoever asks about them.
    pub fn add_region(&self, name: &str, options: ostler_sim::ec2::Options) -> Arc<Ec2Plane> {
        let host: Arc<dyn ec2::InstanceHost> = Arc::new(NoMachines);
        let moto = self.moto.url().to_owned();
        // Or the regions would have the same instances.
        let seed = name
            .bytes()
            .fold(self.config.seed, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
        let plane = Ec2Plane::with_options(self.clock, moto, host, options, seed);
        self.edge.set_region(name, Arc::clone(&plane) as _);
        plane
    }

    /// Puts these functions' zips to S3 and gives the prefix of their keys.
    async fn put_code(&self, functions: &[&'static str]) -> anyhow::Result<String> {
        self.bucket().await?;
        let mut hash = Sha256::new();
        let mut zips = Vec::new();
        for &name in functions {
            let (path, made_by) = match &self.config.zips {
                Some(zips) => (zips.join(format!("{name}.zip")), "make build"),
                None => {
                    (self.config.bin_dir.join(format!("ostler-{name}")), "cargo build --workspace")
                }
            };
            let zipped = self.config.zips.is_some();
            let zip = tokio::task::spawn_blocking(move || {
                let code = std::fs::read(&path)
                    .with_context(|| format!("read {}: run `{made_by}` first", path.display()))?;
                if zipped { Ok(code) } else { zip_of(&code).map_err(anyhow::Error::msg) }
            });
            let zip = Bytes::from(zip.await.context("zip a function")??);
            hash.update(&zip);
            zips.push((name, zip));
        }
        let prefix: String =
            hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let prefix = format!("{prefix}/");
        for (name, zip) in zips {
            let path = format!("/{BUCKET}/{prefix}{name}.zip");
            self.edge
                .moto()
                .send("s3", Method::PUT, &path, &[], zip)
                .await
                .with_context(|| format!("put {name}.zip to S3"))?;
        }
        Ok(prefix)
    }

    async fn bucket(&self) -> anyhow::Result<()> {
        let make = || async {
            let made = self
                .edge
                .moto()
                .send("s3", Method::PUT, &format!("/{BUCKET}"), &[], Bytes::new())
                .await;
            made.map(|_| ()).with_context(|| format!("make the bucket {BUCKET}"))
        };
        self.bucket.get_or_try_init(make).await.map(|_| ())
    }

    /// What a set-up and an operator put into SSM: App, tiers, secrets, images.
    pub async fn put_parameters(&self, tiers: &Value) -> anyhow::Result<()> {
        let app = json!({
            "app_id": self.github.app_id(),
            "github_url": self.github.url(),
            "registration": "organization",
        });
        let key = self.github.app_private_key_pem().to_owned();
        for (name, kind, value) in [
            ("/ostler/control/app", "String", app.to_string()),
            ("/ostler/control/app-private-key", "SecureString", key),
            ("/ostler/control/webhook-secret", "SecureString", self.webhook_secret.clone()),
            (NAME_KEY_PARAMETER, "SecureString", self.name_key.clone()),
        ] {
            self.put_parameter(name, kind, &value).await?;
        }
        self.put_tiers(tiers).await
    }

    /// What of it a set-up leaves to the operator: tiers and images.
    pub async fn put_tiers(&self, tiers: &Value) -> anyhow::Result<()> {
        self.put_parameter("/ostler/control/tiers", "String", &tiers.to_string()).await?;
        for (name, id, _) in IMAGES {
            self.put_parameter(name, "String", id).await?;
        }
        Ok(())
    }

    /// Creates or changes an SSM parameter. `kind` is `String` or `SecureString`.
    pub async fn put_parameter(&self, name: &str, kind: &str, value: &str) -> anyhow::Result<()> {
        let input = json!({"Name": name, "Type": kind, "Value": value, "Overwrite": true, "Tier": "Intelligent-Tiering"});
        let answer = self.edge.moto().json("ssm", "AmazonSSM.PutParameter", &input).await;
        answer.map(|_| ()).with_context(|| format!("put the parameter {name}"))
    }
}

/// Puts what happens to an account's instances on its bus, as EC2 does.
fn tell_of_instances(edge: &Edge, plane: &Ec2Plane, account: &str) {
    let (deployments, account) = (Arc::downgrade(edge.deployments()), account.to_owned());
    plane.listen(Box::new(move |event| {
        let (Some(deployments), Some(event)) =
            (deployments.upgrade(), events::instance_event(&account, event))
        else {
            return;
        };
        let elsewhere = Some(account.as_str()).filter(|id| *id != aws::ACCOUNT);
        deployments.put_event(elsewhere, "default", &event);
    }));
}

/// 32 random bytes in hexadecimal.
fn random_hex() -> String {
    format!("{:032x}{:032x}", rand::random::<u128>(), rand::random::<u128>())
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("edge", &self.edge.url()).finish_non_exhaustive()
    }
}

/// Reads an answer of the edge or the GitHub server's admin side; used by the command line from another
/// process than the world's.
pub async fn get_json(base: &str, path: &str) -> anyhow::Result<Value> {
    let client = aws::Client::new(base, "operator");
    let answer = client
        .send("local", Method::GET, path, &[], Bytes::new())
        .await
        .with_context(|| format!("ask {base}{path}: is `ostler-local up` running?"))?;
    serde_json::from_slice(answer.body())
        .with_context(|| format!("{base}{path} did not answer JSON"))
}

/// Sends JSON likewise.
pub async fn post_json(base: &str, path: &str, body: &Value) -> anyhow::Result<Value> {
    let client = aws::Client::new(base, "operator");
    let headers = [("content-type", "application/json")];
    let answer = client
        .send("local", Method::POST, path, &headers, body.to_string())
        .await
        .with_context(|| format!("post to {base}{path}"))?;
    Ok(serde_json::from_slice(answer.body()).unwrap_or(Value::Null))
}
