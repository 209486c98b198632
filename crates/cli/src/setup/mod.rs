//! `ostler setup`: makes the GitHub App and stores what it signs in with.

mod serve;

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use ostler_aws::SetupParameters;
use ostler_core::Error;
use ostler_core::config::Registration;
use ostler_core::secret::Secret;
use ostler_core::setup::app::{Account, Created, MAX_NAME, Plan};
use ostler_core::setup::page::{Look, Made, Stage};
use ostler_core::setup::parameters::{Found, Put};
use ostler_core::setup::session::{Session, Wish};
use ostler_core::setup::{self, Registry};
use ostler_github::AppRegistry;
use serde::Serialize;
use serde_json::json;

use self::serve::{Server, listen};
use crate::exit::Exit;
use crate::look::clock;
use crate::output::{Mark, Output};
use crate::shell::Shell;
use crate::tool::Tool;

/// GitHub's code is good for an hour (docs.github.com, "Registering a GitHub App from a manifest"), and nobody
/// sits longer before a page.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Between two looks whether the App is installed.
const LOOK: Duration = Duration::from_secs(3);

/// How often the code is traded, where nothing came back, and the pause between. A code that was spent by the first
/// is refused to the second, which does no harm.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_secs(2);

/// Makes the GitHub App, and stores its id, key and webhook secret where the functions read them.
///
/// It serves a page on this machine, and prints its address. From there one click at GitHub makes the App. Needs the
/// control stack's webhook, and AWS credentials that may read and write the parameters.
#[derive(clap::Args)]
pub struct Setup {
    /// The organisation whose jobs are served; you must be an owner of it
    #[arg(long, value_name = "LOGIN", required_unless_present = "personal", value_parser = Account::organization)]
    organization: Option<Account>,
    /// Instead of an organisation, the account of whoever is signed in at GitHub
    #[arg(long, conflicts_with = "organization")]
    personal: bool,
    /// GitHub's address: https://NAME.ghe.com, or that of a GitHub Enterprise Server
    #[arg(long, value_name = "URL", default_value = "https://github.com")]
    github_url: String,
    /// The App's name, unique at that GitHub; you can still change it there
    #[arg(long, value_parser = app_name)]
    name: Option<String>,
    /// With whom runners are registered; `repository` for a personal account
    #[arg(long, value_enum)]
    registration: Option<With>,
    /// The control stack, whose output WebhookUrl is where GitHub is to post
    #[arg(long, default_value = "ostler")]
    stack: String,
    /// The webhook's address, instead of the stack's
    #[arg(long, value_name = "URL", value_parser = webhook_url)]
    webhook_url: Option<String>,
    /// The page's port on 127.0.0.1; any free one if left out
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Ends once all is stored, without waiting until the App is installed
    #[arg(long)]
    no_wait: bool,
    /// Replaces the App that is set up already, without asking
    #[arg(long)]
    yes: bool,
}

/// With whom runners are registered.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum With {
    /// The organisation, in the tier's runner group
    Organization,
    /// Each job's repository
    Repository,
}

/// What is said at the end, for scripts.
#[derive(Serialize)]
struct Answer {
    app_id: u64,
    name: String,
    owner: String,
    install_url: String,
    installed_with: Option<String>,
    written: Vec<String>,
    missing_permissions: Vec<String>,
}

fn app_name(name: &str) -> Result<String, String> {
    match name.trim() {
        "" => Err("a name has at least one character".into()),
        name if name.chars().count() > MAX_NAME => {
            Err(format!("GitHub takes names of at most {MAX_NAME} characters"))
        }
        name => Ok(name.to_owned()),
    }
}

/// GitHub posts to HTTPS; the local world alone has no certificate.
fn webhook_url(url: &str) -> Result<String, String> {
    let parsed: hyper::Uri = url.parse().map_err(|_| "it is no address")?;
    let host = parsed.host().unwrap_or_default();
    let local = parsed.scheme_str() == Some("http") && ["127.0.0.1", "localhost"].contains(&host);
    if host.is_empty() || !(parsed.scheme_str() == Some("https") || local) {
        return Err(
            "it must begin with https://: it is the output WebhookUrl of the control stack".into(),
        );
    }
    Ok(url.to_owned())
}

/// With whom runners are registered: as the operator says, or has said before.
fn registration(
    wanted: Option<With>,
    account: &Account,
    found: &Found,
) -> anyhow::Result<Registration> {
    match (wanted, account) {
        (Some(With::Organization), Account::Personal) => bail!(
            "a personal account has no runners of its own: they are registered with its repositories"
        ),
        (Some(With::Organization), _) => Ok(Registration::Organization),
        (Some(With::Repository), _) | (None, Account::Personal) => Ok(Registration::Repository),
        (None, Account::Organization(_)) => {
            Ok(found.app().map_or_else(|| account.registration(), |app| app.registration))
        }
    }
}

/// The webhook of a control stack.
async fn stack_output(tool: &Tool, stack: &str) -> anyhow::Result<String> {
    let input = json!({"StackName": stack});
    let answer = tool.call("cloudformation", "describe-stacks", &input).await.with_context(|| {
        format!("look up the webhook of stack {stack}: deploy it first, or give --stack or --webhook-url")
    })?;
    let outputs = answer["Stacks"][0]["Outputs"].as_array().cloned().unwrap_or_default();
    let found = outputs.iter().find(|output| output["OutputKey"] == "WebhookUrl");
    let url = found.and_then(|output| output["OutputValue"].as_str()).unwrap_or_default();
    webhook_url(url).map_err(|why| anyhow!("the output WebhookUrl of stack {stack}: {why}"))
}

/// 32 random bytes in hexadecimal.
fn chance() -> Secret {
    Secret::new(format!("{:032x}{:032x}", rand::random::<u128>(), rand::random::<u128>()))
}

/// Runs the command.
pub async fn run(shell: &Shell, setup: Setup) -> anyhow::Result<Exit> {
    let output = &shell.output;
    let registry = AppRegistry::new(&setup.github_url, clock()?)?;
    let account = setup.organization.unwrap_or(Account::Personal);
    let aws = shell.aws().await;
    let region = aws.region().map(ToString::to_string);
    let region = region.context("no AWS region: set AWS_REGION, or give --region")?;
    let parameters = SetupParameters::new(&aws, &shell.prefix);
    let looked = setup::look(&parameters);
    let found = output.progress("Reading the parameters", None, looked).await?;
    let registration = registration(setup.registration, &account, &found)?;
    // What would fail late is refused early: after the click there is an App.
    found
        .settings(0, registry.web(), registration)
        .map_err(|why| anyhow!("{}/{why}", shell.prefix))?;
    let replaced = found.replaced();
    if !replaced.is_empty() && !output.confirm(&question(shell, &found), setup.yes)? {
        return Ok(Exit::Declined);
    }
    let webhook_url = match setup.webhook_url {
        Some(url) => url,
        None => {
            let tool = shell.tool();
            let asked = stack_output(&tool, &setup.stack);
            output.progress("Looking up the webhook", None, asked).await?
        }
    };
    let plan = Plan {
        name: setup.name.unwrap_or_else(|| account.default_name(chance().expose())),
        account,
        github: registry.web().to_owned(),
        webhook_url,
        registration,
    };
    let (listener, host) = listen(setup.port).await?;
    let mut work =
        Work { shell, registry, parameters, found, plan, written: vec![], code: None, app: None };
    let first = work.found.before(chance());
    work.write(&first).await?;
    let look = Look { plan: work.plan.clone(), prefix: shell.prefix.clone(), region, replaced };
    let session = Session::new(look, host.clone(), chance);
    greet(output, &work.plan, &session.opening_url(), &host);
    let mut server = Server::start(listener, session);
    let ended = tokio::select! {
        done = with_page(&mut work, &mut server, setup.no_wait) => done,
        () = tokio::time::sleep(PATIENCE) => Err(anyhow!("nobody finished within an hour")),
        _ = tokio::signal::ctrl_c() => Err(anyhow!("interrupted")),
    };
    match ended {
        Ok(Ended::Cancelled) => {
            server.end(Stage::Cancelled).await;
            output.line("Cancelled. Nothing was made at GitHub.");
            Ok(Exit::Declined)
        }
        Ok(Ended::Done { made, with }) => {
            let stage = match with.clone() {
                Some(with) => Stage::Installed { made: made.clone(), with },
                None => Stage::Stored { made: made.clone(), watched: false },
            };
            server.end(stage).await;
            work.finish(&made, with);
            Ok(Exit::Done)
        }
        Err(error) => {
            let error = work.explain(error);
            server.end(Stage::Failed { why: format!("{error:#}"), again: false }).await;
            Err(error)
        }
    }
}

/// What is asked before an App is replaced.
fn question(shell: &Shell, found: &Found) -> String {
    let names: Vec<_> = found.replaced().iter().map(|name| shell.parameter(name)).collect();
    let which = found.app().map(|app| format!(" (App {})", app.app_id)).unwrap_or_default();
    format!("An App is set up already{which}. A new one replaces {}. Go on?", names.join(", "))
}

fn greet(output: &Output, plan: &Plan, url: &str, host: &str) {
    let port = host.rsplit(':').next().unwrap_or_default();
    output.line(&format!("A GitHub App for {} at {}.", plan.account.in_words(), plan.host()));
    output.line("Open this link in a browser on this machine; it opens one browser, once:");
    output.line(&format!("\n  {}\n", output.paint(Mark::Strong, url)));
    output.line(&output.paint(
        Mark::Dim,
        &format!(
            "(From another machine: ssh -L {port}:127.0.0.1:{port} THIS-MACHINE. Ctrl-C ends it.)"
        ),
    ));
}

/// How it ended.
enum Ended {
    Cancelled,
    Done { made: Made, with: Option<String> },
}

/// Does what the page asks for, until there is nothing left to do.
async fn with_page<R: Registry>(
    work: &mut Work<'_, R>,
    server: &mut Server,
    no_wait: bool,
) -> anyhow::Result<Ended> {
    loop {
        match server.wish().await {
            Wish::Cancel => return Ok(Ended::Cancelled),
            Wish::Convert(code) => work.code = Some(code),
            Wish::Again => {}
        }
        let app = match work.store().await {
            Ok(app) => app,
            // Nothing mends that.
            Err(error @ Error::Permanent(_)) if work.app.is_none() => return Err(error.into()),
            Err(error) => {
                work.say(&format!("{error}"), Mark::Fail);
                work.say("Mend the cause and press «Try again» on the page.", Mark::Dim);
                server.show(Stage::Failed { why: error.to_string(), again: true });
                continue;
            }
        };
        let made = Made::of(&app, &work.plan);
        for lacking in &made.shortfall {
            work.say(&format!("The App lacks a permission: {lacking}"), Mark::Warn);
        }
        if no_wait {
            return Ok(Ended::Done { made, with: None });
        }
        server.show(Stage::Stored { made: made.clone(), watched: true });
        work.say(&format!("Now install it: {}", made.install_url), Mark::Strong);
        let with = work.wait_until_installed(&app).await;
        return Ok(Ended::Done { made, with: Some(with) });
    }
}

/// What is done, and what of it already is.
struct Work<'a, R> {
    shell: &'a Shell,
    registry: R,
    parameters: SetupParameters,
    found: Found,
    plan: Plan,
    written: Vec<String>,
    code: Option<Secret>,
    app: Option<Created>,
}

impl<R: Registry> Work<'_, R> {
    fn say(&self, text: &str, mark: Mark) {
        self.shell.output.line(&self.shell.output.paint(mark, text));
    }

    async fn write(&mut self, puts: &[Put]) -> ostler_core::Result<()> {
        let (shell, written) = (self.shell, &mut self.written);
        setup::write(&self.parameters, puts, |put, done| {
            let name = shell.parameter(put.name);
            let what = if done { "written" } else { "kept" };
            shell.output.line(&format!("{name}: {what}"));
            if done {
                written.push(name);
            }
        })
        .await
    }

    /// Trades the code, unless that is done, and writes the parameters. Can be repeated.
    async fn store(&mut self) -> ostler_core::Result<Created> {
        let app = match self.app.clone() {
            Some(app) => app,
            None => {
                let app = self.convert().await?;
                self.say(&format!("The App {} (id {}) is made", app.name, app.id), Mark::Ok);
                self.app = Some(app.clone());
                app
            }
        };
        let settings = self
            .found
            .settings(app.id, &self.plan.github, self.plan.registration)
            .map_err(Error::Permanent)?;
        let puts = self.found.after(&app, settings);
        self.write(&puts).await?;
        Ok(app)
    }

    async fn convert(&self) -> ostler_core::Result<Created> {
        let code = self.code.as_ref().map_or("", Secret::expose);
        let mut left = TRIES;
        loop {
            left -= 1;
            let traded = self.registry.convert(code);
            match self.shell.output.progress("Fetching the App's keys", None, traded).await {
                Err(Error::Transient(_)) if left > 0 => tokio::time::sleep(PAUSE).await,
                done => return done,
            }
        }
    }

    /// A look that failed proves nothing: the next one may succeed.
    async fn wait_until_installed(&self, app: &Created) -> String {
        let look = async {
            let mut told = false;
            loop {
                match self.registry.installed(app).await {
                    Ok(logins) => {
                        if let Some(login) = logins.into_iter().next() {
                            return login;
                        }
                    }
                    Err(error) if !told => {
                        told = true;
                        self.say(&format!("{error}; it is tried again"), Mark::Warn);
                    }
                    Err(_) => {}
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        self.shell.output.progress("Waiting until the App is installed", None, look).await
    }

    /// What is left behind by an end before the end.
    fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        let stored = self.written.iter().any(|name| name.ends_with("control/app"));
        match &self.app {
            None => error.context("no App was set up"),
            Some(app) if stored => error.context(format!(
                "all is stored, but nobody saw that the App is installed: {}",
                app.install_url()
            )),
            Some(app) => error.context(format!(
                "the App {} (id {}) is at GitHub and its keys are not stored: delete it at {}, and begin anew",
                app.name, app.id, app.page
            )),
        }
    }

    /// The last words.
    fn finish(&self, made: &Made, with: Option<String>) {
        let output = &self.shell.output;
        output.json(&Answer {
            app_id: made.id,
            name: made.name.clone(),
            owner: self.app.as_ref().map(|app| app.owner.clone()).unwrap_or_default(),
            install_url: made.install_url.clone(),
            installed_with: with.clone(),
            written: self.written.clone(),
            missing_permissions: made.shortfall.clone(),
        });
        let mut next = Vec::new();
        match with {
            Some(with) => {
                self.say(&format!("Installed with {with}. Ostler is connected."), Mark::Ok)
            }
            None => next.push(format!("Install the App: {}", made.install_url)),
        }
        if self.found.lacks_tiers() {
            let tiers = self.shell.parameter("control/tiers");
            next.push(format!(
                "Write the tiers, and store them as {tiers}: until then the webhook answers 503"
            ));
        }
        next.push("Push a job, and see it run".to_owned());
        output.line("Next:");
        for (index, step) in next.iter().enumerate() {
            output.line(&format!("  {}. {step}", index + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_must_be_one_that_github_can_reach() {
        for good in ["https://x.lambda-url.eu-west-1.on.aws/", "http://127.0.0.1:5555/_url/x/"] {
            assert_eq!(webhook_url(good).unwrap(), good);
        }
        for bad in ["", "x", "http://example.com/", "ftp://example.com", "https://"] {
            assert!(webhook_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_is_one_that_github_takes() {
        assert_eq!(app_name(" ostler ").unwrap(), "ostler");
        assert!(app_name("").is_err() && app_name(&"x".repeat(35)).is_err());
    }

    #[test]
    fn runners_stay_registered_where_they_were_unless_the_operator_says_otherwise() {
        let acme = Account::organization("acme").unwrap();
        let mut found = Found::default();
        let of =
            |wanted, account: &Account, found: &Found| registration(wanted, account, found).ok();
        assert_eq!(of(None, &acme, &found), Some(Registration::Organization));
        assert_eq!(of(None, &Account::Personal, &found), Some(Registration::Repository));
        assert_eq!(of(Some(With::Organization), &Account::Personal, &found), None);
        let settings = r#"{"app_id": 1, "registration": "repository"}"#;
        found.texts.insert("control/app".into(), Secret::new(settings));
        assert_eq!(of(None, &acme, &found), Some(Registration::Repository));
        assert_eq!(of(Some(With::Organization), &acme, &found), Some(Registration::Organization));
    }

    #[test]
    fn chance_never_repeats_itself() {
        let (one, other) = (chance(), chance());
        assert_ne!(one, other);
        assert_eq!(one.expose().len(), 64);
    }
}
