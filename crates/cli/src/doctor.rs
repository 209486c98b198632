//! `ostler doctor`: what an install needs, one thing a line, each with its fix. What is found is judged by pure functions;
//! a look-up that failed is never well: it "could not be checked". Nothing is changed by it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use aws_sdk_ec2::types::Filter;
use ostler_core::config::{Market, Registration, Settings};
use ostler_core::ports::{Clock, Configuration, ec2_architecture};
use ostler_core::reconciler::Deliveries;
use ostler_core::setup::app::allows;
use ostler_core::time::Timestamp;
use ostler_github::{AppSeen, HookSeen, InstallationSeen};
use serde::Serialize;
use serde_json::json;

use crate::exit::Exit;
use crate::look::{Deployed, Lookout, Stacks, at_once, list, text};
use crate::output::{Mark, Output};
use crate::shell::Shell;
use crate::story::{span, words};
use crate::wire::{QUOTAS, SSM};

/// GitHub refuses a JWT of the future, and one that has expired; ours are dated back by a minute. Lambda's clocks are
/// AWS's, so this is about the machine that the doctor runs on.
const CLOCK_WARN: Duration = Duration::from_secs(10);
const CLOCK_FAIL: Duration = Duration::from_secs(60);

/// Installations below this share of their quota, in per cent, are short of it.
const SHORT_OF_QUOTA: u64 = 10;

/// EC2's quotas of vCPUs for the families A, C, D, H, I, M, R, T, Z (Service Quotas, service `ec2`).
const ON_DEMAND_QUOTA: &str = "L-1216C47A";
const SPOT_QUOTA: &str = "L-34B43A08";

/// Share of a quota in use, in per cent, from which on it is nearly used up.
const NEARLY_ALL: f64 = 80.0;

/// How a thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Somebody should look; or it could not be checked.
    Warn,
    /// Jobs are not served because of it, or soon will not be.
    Fail,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub what: String,
    /// How it is.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    fn ok(what: &str, found: impl Into<String>) -> Self {
        Self { what: what.into(), verdict: Verdict::Ok, found: found.into(), fix: None }
    }

    fn warn(what: &str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            verdict: Verdict::Warn,
            found: found.into(),
            fix: Some(fix.into()),
        }
    }

    fn fail(what: &str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fail, ..Self::warn(what, found, fix) }
    }

    /// A look-up that failed proves nothing.
    fn unknown(what: &str, why: &str) -> Self {
        let fix = "Give the credentials that the doctor runs with the permission, or the service time; then run it again.";
        Self::warn(what, format!("could not be checked: {}", words(why)), fix)
    }
}

/// Judges what was found, if it was.
fn judged<T>(
    what: &str,
    found: Result<T, String>,
    judge: impl FnOnce(&T) -> Vec<Finding>,
) -> Vec<Finding> {
    match found {
        Ok(found) => judge(&found),
        Err(why) => vec![Finding::unknown(what, &why)],
    }
}

/// The parameters, as the functions read them.
pub fn secrets(settings: &Settings) -> Vec<Finding> {
    let set = |name: &str, there: bool, fix: &str| match there {
        true => Finding::ok(name, "is set"),
        false => Finding::fail(name, "is not set, or can't be read as what it should be", fix),
    };
    let secret = settings.webhook_secrets.iter().any(|secret| !secret.expose().is_empty());
    let mut findings = vec![
        set(
            "control/app",
            settings.app.is_some(),
            "Run the set-up, or correct it: `ostler config check` says what is wrong.",
        ),
        set(
            "control/app-private-key",
            settings.app_private_key.is_some(),
            "Run the set-up, or put the App's key there (make secrets).",
        ),
        set(
            "control/webhook-secret",
            secret,
            "Run the set-up, or put the webhook's secret there (make secrets).",
        ),
        set(
            "control/name-key",
            settings.name_key.is_some(),
            "Run the set-up (make secrets). It is made once, and never changed.",
        ),
    ];
    findings.push(match (settings.tiers.given, settings.tiers.problems.as_slice()) {
        (false, _) => Finding::fail(
            "control/tiers",
            "is not set",
            "Write your tiers there: every job is answered 503 until then.",
        ),
        (true, []) => Finding::ok("control/tiers", "all tiers are valid"),
        (true, problems) => {
            let found =
                problems.iter().map(|problem| words(problem)).collect::<Vec<_>>().join("; ");
            Finding::fail(
                "control/tiers",
                found,
                "Correct it: `ostler config check` says where. An invalid tier serves no job.",
            )
        }
    });
    findings
}

/// What the App must be allowed: name at GitHub, level, and for what.
fn needed(registration: Registration) -> [(&'static str, &'static str, &'static str); 3] {
    let runners = match registration {
        Registration::Organization => {
            ("organization_self_hosted_runners", "write", "runners of the organisation")
        }
        Registration::Repository => ("administration", "write", "runners of repositories"),
    };
    [("actions", "read", "jobs and their events"), ("metadata", "read", "everything"), runners]
}

/// The App's permissions and events.
pub fn app(registration: Registration, app: &AppSeen) -> Vec<Finding> {
    let missing: Vec<_> = needed(registration)
        .into_iter()
        .filter(|(name, level, _)| !allows(&app.permissions, name, level))
        .map(|(name, level, why)| format!("{name}: {level} (for {why})"))
        .collect();
    let mut findings = vec![match missing.is_empty() {
        true => Finding::ok("App permissions", format!("{} may do what it must", words(&app.slug))),
        false => Finding::fail(
            "App permissions",
            format!("missing: {}", missing.join(", ")),
            "Grant them in the App's settings at GitHub, and have each installation's owner accept them.",
        ),
    }];
    if !allows(&app.permissions, "deployments", "read") {
        let fix = "Grant Deployments: read-only, or live with a runner for each job that waits for an approval.";
        findings.push(Finding::warn("App permissions", "missing: deployments: read", fix));
    }
    if allows(&app.permissions, "actions", "read") && !allows(&app.permissions, "actions", "write")
    {
        let fix =
            "Grant Actions: read and write, or run jobs again by hand that lost their machine.";
        findings.push(Finding::warn("App permissions", "missing: actions: write", fix));
    }
    let events: Vec<&str> = app.events.iter().map(String::as_str).collect();
    findings.push(match events.contains(&"workflow_job") {
        false => Finding::fail(
            "App events",
            "the App does not subscribe to workflow_job: no job is heard of",
            "Subscribe to \"Workflow job\" in the App's settings.",
        ),
        true if events.len() > 1 => Finding::warn(
            "App events",
            format!("the App subscribes to more than workflow_job: {}", words(&events.join(", "))),
            "Unsubscribe from the others: each is a delivery that nobody uses.",
        ),
        true => Finding::ok("App events", "workflow_job"),
    });
    findings
}

/// Where the App is installed, and what was accepted there.
pub fn installations(registration: Registration, all: &[InstallationSeen]) -> Vec<Finding> {
    const WHAT: &str = "App installations";
    if all.is_empty() {
        let fix = "Install it on the organisation or account whose jobs it shall serve.";
        return vec![Finding::fail(WHAT, "the App is installed nowhere", fix)];
    }
    let mut findings = Vec::new();
    for InstallationSeen { login, permissions, suspended } in all {
        let login = words(login);
        if *suspended {
            findings.push(Finding::warn(
                WHAT,
                format!("{login} has suspended it"),
                "Have its owner unsuspend it, or uninstall it.",
            ));
            continue;
        }
        let missing: Vec<_> = needed(registration)
            .into_iter()
            .filter(|(name, level, _)| !allows(permissions, name, level))
            .map(|(name, level, _)| format!("{name}: {level}"))
            .collect();
        if !missing.is_empty() {
            let found = format!("{login} has not accepted {}", missing.join(", "));
            findings.push(Finding::fail(
                WHAT,
                found,
                format!("Have the owner of {login} accept the App's new permissions."),
            ));
        }
    }
    if findings.is_empty() {
        findings.push(Finding::ok(WHAT, format!("{} accept what it needs", all.len())));
    }
    findings
}

/// The App's webhook, against the function's address.
pub fn hook(hook: &HookSeen, url: Option<&str>) -> Vec<Finding> {
    const WHAT: &str = "Webhook settings";
    let plain = |url: &str| url.trim_end_matches('/').to_lowercase();
    let mut findings = vec![match (&hook.url, url) {
        (None, _) => Finding::fail(
            WHAT,
            "the App has no webhook address",
            "Enter the stack's output WebhookUrl in the App's settings, and set it active.",
        ),
        (Some(at), Some(own)) if plain(at) != plain(own) => Finding::fail(
            WHAT,
            format!("GitHub posts to {}, and the function is at {own}", words(at)),
            "Enter the function's address in the App's settings.",
        ),
        (Some(at), Some(_)) => {
            Finding::ok(WHAT, format!("GitHub posts to the function, {}", words(at)))
        }
        (Some(at), None) => Finding::warn(
            WHAT,
            format!("GitHub posts to {}; the function has no address of its own", words(at)),
            "Right with a front end of yours, as an HTTP API; else deploy the control stack anew.",
        ),
    }];
    if hook.is_insecure() {
        findings.push(Finding::warn(
            WHAT,
            "GitHub does not verify the certificate",
            "Enable SSL verification in the App's settings.",
        ));
    }
    if hook.secret.as_deref().is_none_or(str::is_empty) {
        findings.push(Finding::fail(
            WHAT,
            "the App has no webhook secret: every delivery is refused",
            "Enter the secret of control/webhook-secret in the App's settings.",
        ));
    }
    if hook.content_type.as_deref().is_some_and(|kind| !matches!(kind, "json" | "form")) {
        findings.push(Finding::fail(
            WHAT,
            "an unknown content type",
            "Set it to application/json.",
        ));
    }
    findings
}

/// What the last deliveries came to: how many, how many failed, and how long ago the last was.
pub fn deliveries(shown: usize, failed: usize, last: Option<Duration>) -> Vec<Finding> {
    const WHAT: &str = "Deliveries";
    vec![match last {
        None => Finding::warn(
            WHAT,
            "GitHub shows none",
            "Nobody may have worked. Otherwise: is the webhook active in the App's settings, and the App installed?",
        ),
        Some(ago) if failed == 0 => Finding::ok(
            WHAT,
            format!("none of the last {shown} failed; the last was {} ago", span(ago)),
        ),
        Some(_) if failed * 2 > shown => Finding::fail(
            WHAT,
            format!("{failed} of the last {shown} failed"),
            "The App's settings, Advanced, Recent deliveries, tell the answers; the webhook's log says why.",
        ),
        Some(_) => Finding::warn(
            WHAT,
            format!("{failed} of the last {shown} failed"),
            "Single ones are sent again by the reconciler; if they go on, see the webhook's log.",
        ),
    }]
}

/// What the webhook answered to a request without a signature.
pub fn reachability(url: &str, status: Result<u16, String>) -> Vec<Finding> {
    const WHAT: &str = "Webhook reachability";
    vec![match status {
        Ok(401) => Finding::ok(WHAT, format!("{url} answers, and refuses what is not signed")),
        Ok(503) => Finding::fail(
            WHAT,
            format!("{url} answers 503: it is not configured, or AWS fails it"),
            "See the lines on control/…, and the webhook's log.",
        ),
        Ok(403) => Finding::fail(
            WHAT,
            format!("{url} answers 403: nobody may call it"),
            "Deploy the control stack anew: it grants both InvokeFunctionUrl and InvokeFunction.",
        ),
        Ok(status) if (200..300).contains(&status) => Finding::fail(
            WHAT,
            format!("{url} answers {status} to what is not signed"),
            "That is not Ostler's webhook: correct the address.",
        ),
        Ok(status) => {
            Finding::fail(WHAT, format!("{url} answers {status}"), "See the webhook's log.")
        }
        Err(why) => Finding::fail(
            WHAT,
            format!("{url} can't be reached from here: {}", words(&why)),
            "If this machine may call it, look at name, certificate and front end.",
        ),
    }]
}

/// An image as EC2 shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSeen {
    /// `available`, …
    pub state: String,
    /// `x86_64`, `arm64`.
    pub architecture: String,
}

/// A tier's image: what it names, which image that is, and what EC2 says of it.
pub fn image(
    tier: &str,
    wanted: &str,
    named: &str,
    id: Option<&str>,
    seen: Option<&ImageSeen>,
) -> Finding {
    let what = format!("Image of {tier}");
    let Some(id) = id else {
        let found = format!("the parameter {named} is not there");
        return Finding::fail(&what, found, "Put the image's id into it, or correct the tier.");
    };
    match seen {
        None => Finding::fail(
            &what,
            format!("{id} is not there, or not shared with this account"),
            "Name another image, or share it.",
        ),
        Some(seen) if seen.state != "available" => Finding::fail(
            &what,
            format!("{id} is {}", words(&seen.state)),
            "Wait until it is available, or name another.",
        ),
        Some(seen) if seen.architecture != wanted => Finding::fail(
            &what,
            format!(
                "{id} is for {}, and the tier's machines are {wanted}",
                words(&seen.architecture)
            ),
            "Correct the tier's architecture or its image.",
        ),
        Some(_) => Finding::ok(&what, format!("{id} is available")),
    }
}

/// A quota of vCPUs: how many are allowed, how many are in use, and whether a tier needs it.
pub fn quota(market: &str, code: &str, needed: bool, limit: f64, used: f64) -> Finding {
    let what = format!("EC2 quota, {market}");
    let found = format!("{used:.0} of {limit:.0} vCPUs are in use");
    let fix = format!("Ask AWS for more (Service Quotas, EC2, {code}).");
    match needed {
        false => Finding::ok(&what, format!("{found}; no tier needs it")),
        true if limit < 1.0 => Finding::fail(&what, "none is allowed", fix),
        true if used >= limit => Finding::fail(&what, format!("{found}: launches wait"), fix),
        true if used * 100.0 >= limit * NEARLY_ALL => Finding::warn(&what, found, fix),
        true => Finding::ok(&what, found),
    }
}

/// Where a subnet's route to everywhere leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WayOut {
    /// An internet gateway.
    Internet,
    /// A NAT gateway, a transit gateway, an appliance.
    Through(String),
    /// Nowhere.
    None,
}

/// The way of a subnet's machines to GitHub and AWS; whether they get public addresses, where the launch template says so.
pub fn egress(subnet: &str, way: &WayOut, public: Option<bool>) -> Finding {
    let what = format!("Egress of {subnet}");
    match (way, public) {
        (WayOut::Internet, Some(false)) => Finding::fail(
            &what,
            "its way out is an internet gateway, and machines get no public address",
            "Deploy with PublicIp=true, or use subnets that have a NAT gateway.",
        ),
        (WayOut::Internet, _) => Finding::ok(&what, "an internet gateway"),
        (WayOut::Through(target), Some(true)) => Finding::warn(
            &what,
            format!("by {target}, and machines get public addresses that they don't use"),
            "Deploy with PublicIp=false: each address costs.",
        ),
        (WayOut::Through(target), _) => Finding::ok(&what, format!("by {target}")),
        (WayOut::None, _) => Finding::fail(
            &what,
            "no route leads out: machines can't reach GitHub",
            "Add a route to 0.0.0.0/0, or use other subnets.",
        ),
    }
}

/// The difference between this machine's clock and a service's.
pub fn clock(own: Timestamp, theirs: Timestamp) -> Finding {
    const WHAT: &str = "Clock";
    let off = own.since(theirs).max(theirs.since(own));
    let found = format!("this machine's and AWS's differ by {}", span(off));
    let fix =
        "Set this machine's clock (NTP): signatures of AWS and GitHub are judged by the time.";
    match off {
        off if off > CLOCK_FAIL => Finding::fail(WHAT, found, fix),
        off if off > CLOCK_WARN => Finding::warn(WHAT, found, fix),
        _ => Finding::ok(WHAT, found),
    }
}

/// GitHub's quota with an owner.
pub fn github_quota(owner: &str, quota: Option<(u64, u64)>) -> Finding {
    let what = format!("GitHub quota with {}", words(owner));
    match quota {
        None => Finding::ok(&what, "the server has no limit"),
        Some((limit, left)) if left * 100 < limit * SHORT_OF_QUOTA => Finding::warn(
            &what,
            format!("{left} of {limit} calls are left this hour"),
            "Add an App (control/apps): quotas add up.",
        ),
        Some((limit, left)) => {
            Finding::ok(&what, format!("{left} of {limit} calls are left this hour"))
        }
    }
}

/// A function: whether it is there, and what Lambda says of it.
pub fn function(name: &str, optional: Option<&str>, state: Option<&str>) -> Finding {
    let what = format!("Function {name}");
    match (state, optional) {
        (None, Some(without)) => Finding::warn(
            &what,
            format!("is not there: {without}"),
            "Deploy its stack, or name it by its flag.",
        ),
        (None, None) => {
            Finding::fail(&what, "is not there", "Deploy the control stack, or name it by --stack.")
        }
        (Some("Active" | "Inactive"), _) => Finding::ok(&what, "is there"),
        (Some(state), _) => Finding::fail(
            &what,
            format!("is {}", words(state)),
            "Deploy its stack anew; Lambda's console says why.",
        ),
    }
}

/// An HTTP date: `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, 5.6.7).
fn http_date(text: &str) -> Option<Timestamp> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let parts: Vec<&str> = text.split_whitespace().collect();
    let [_, day, month, year, time, "GMT"] = parts.as_slice() else { return None };
    let month = MONTHS.iter().position(|it| it == month)? + 1;
    Timestamp::parse(&format!("{year}-{month:02}-{day:0>2}T{time}Z"))
}

/// Looks at everything, a few things at a time.
pub async fn examine(lookout: &Lookout) -> Vec<Finding> {
    let deployed = match lookout.deployed().await {
        Ok(deployed) => deployed,
        Err(why) => {
            return vec![Finding::fail(
                "Control stack",
                words(&why),
                "Correct --stack, --region or the credentials, or deploy the stack.",
            )];
        }
    };
    let configuration = lookout.configuration(&deployed.prefix);
    let settings = configuration.settings().await.map_err(|error| error.to_string());
    let (functions, github, webhook, images, quotas, network, clock) = tokio::join!(
        functions(lookout),
        at_github(lookout, &configuration, settings.as_deref().ok()),
        reach(lookout),
        images(lookout, settings.as_deref().ok()),
        quotas(lookout, settings.as_deref().ok()),
        network(lookout, &deployed),
        clocks(lookout),
    );
    let mut findings = functions;
    findings.extend(judged("Parameters", settings, |settings| secrets(settings)));
    for more in [github, webhook, images, quotas, network, clock] {
        findings.extend(more);
    }
    findings
}

async fn functions(lookout: &Lookout) -> Vec<Finding> {
    let Stacks { stack, recovery_stack, reaper_stack, .. } = &lookout.stacks;
    let all = [
        (format!("{stack}-webhook"), None),
        (format!("{stack}-orchestrator"), None),
        (format!("{stack}-stolen-runner"), None),
        (format!("{recovery_stack}-reconciler"), Some("jobs whose event is lost wait for ever")),
        (
            format!("{recovery_stack}-instance-events"),
            Some("lost machines are found minutes later"),
        ),
        (reaper_stack.clone(), Some("nothing ends machines if all else fails")),
    ];
    at_once(all.iter().map(async |(name, optional)| {
        let asked = lookout.lambda.get_function_configuration().function_name(name).send().await;
        match asked {
            Ok(found) => {
                let state = found.state().map(|state| state.as_str()).unwrap_or("Active");
                function(name, *optional, Some(state))
            }
            Err(error)
                if error
                    .as_service_error()
                    .is_some_and(|it| it.is_resource_not_found_exception()) =>
            {
                function(name, *optional, None)
            }
            Err(error) => {
                let why = ostler_aws::sdk_error("look for it", error).to_string();
                Finding::unknown(&format!("Function {name}"), &why)
            }
        }
    }))
    .await
}

async fn at_github(
    lookout: &Lookout,
    configuration: &std::rc::Rc<ostler_aws::SsmConfiguration<ostler_lambda::SystemClock>>,
    settings: Option<&Settings>,
) -> Vec<Finding> {
    let forge = lookout.forge(configuration);
    let registration =
        settings.and_then(|settings| settings.app.as_ref()).map(|app| app.registration);
    let registration = registration.unwrap_or(Registration::Organization);
    let text = |error: ostler_core::Error| error.to_string();
    let (seen, its_hook, page, installed, url) = tokio::join!(
        forge.app(),
        forge.hook(),
        forge.page(None),
        forge.installations(),
        own_url(lookout),
    );
    let mut findings =
        judged("App permissions", seen.map_err(text), |seen| app(registration, seen));
    let its_hook = its_hook.map_err(text).and_then(|its_hook| Ok((its_hook, url?)));
    findings.extend(judged("Webhook settings", its_hook, |(its, url)| hook(its, url.as_deref())));
    findings.extend(judged("Deliveries", page.map_err(text), |page| {
        let now = lookout.clock.now();
        let last = page.entries.iter().map(|entry| now.since(entry.at)).min();
        let failed = page.entries.iter().filter(|entry| !entry.ok).count();
        deliveries(page.entries.len(), failed, last)
    }));
    let owners: Vec<String> = installed
        .iter()
        .flatten()
        .filter(|it| !it.suspended)
        .map(|it| it.login.clone())
        .take(5)
        .collect();
    findings.extend(judged("App installations", installed.map_err(text), |all| {
        installations(registration, all)
    }));
    let quotas = at_once(owners.iter().map(async |owner| match forge.quota_with(owner).await {
        Ok(quota) => github_quota(owner, quota.map(|quota| (quota.limit, quota.remaining))),
        Err(error) => {
            Finding::unknown(&format!("GitHub quota with {}", words(owner)), &error.to_string())
        }
    }));
    findings.extend(quotas.await);
    findings
}

/// The webhook's function URL; `None` if it has none.
async fn own_url(lookout: &Lookout) -> Result<Option<String>, String> {
    let function = format!("{}-webhook", lookout.stacks.stack);
    match lookout.lambda.get_function_url_config().function_name(&function).send().await {
        Ok(found) => Ok(Some(found.function_url().to_owned())),
        Err(error)
            if error.as_service_error().is_some_and(|it| it.is_resource_not_found_exception()) =>
        {
            Ok(None)
        }
        Err(error) => {
            Err(ostler_aws::sdk_error("look for the webhook's address", error).to_string())
        }
    }
}

async fn reach(lookout: &Lookout) -> Vec<Finding> {
    let url = match own_url(lookout).await {
        Ok(Some(url)) => url,
        Ok(None) => {
            return vec![Finding::warn(
                "Webhook reachability",
                "the function has no address of its own to try",
                "Try your front end by hand.",
            )];
        }
        Err(why) => return vec![Finding::unknown("Webhook reachability", &why)],
    };
    let headers = [
        ("content-type", "application/json"),
        ("x-github-event", "ping"),
        ("user-agent", "ostler-doctor"),
    ];
    let answer = lookout.wire.post(&url, &headers, "{}").await;
    reachability(&url, answer.map(|answer| answer.status))
}

async fn images(lookout: &Lookout, settings: Option<&Settings>) -> Vec<Finding> {
    let Some(settings) = settings else { return Vec::new() };
    // Those in other accounts are not for these credentials to look at.
    let tiers = settings.tiers.iter().filter(|tier| tier.account.is_none());
    let wanted: Vec<(&str, &str, &str)> = tiers
        .flat_map(|tier| {
            let architecture = ec2_architecture(tier.architecture);
            tier.images.iter().map(move |image| (tier.name.as_str(), architecture, image.as_str()))
        })
        .collect();
    at_once(wanted.into_iter().map(async |(tier, architecture, named)| {
        let what = format!("Image of {tier}");
        let id = match named.starts_with("ami-") {
            true => Ok(Some(named.to_owned())),
            false => parameter(lookout, named).await,
        };
        let id = match id {
            Ok(id) => id,
            Err(why) => return Finding::unknown(&what, &why),
        };
        let seen = match &id {
            None => Ok(None),
            Some(id) => image_seen(lookout, id).await,
        };
        match seen {
            Ok(seen) => image(tier, architecture, named, id.as_deref(), seen.as_ref()),
            Err(why) => Finding::unknown(&what, &why),
        }
    }))
    .await
}

async fn parameter(lookout: &Lookout, name: &str) -> Result<Option<String>, String> {
    let answer = lookout.wire.ask(SSM, "GetParameters", &json!({"Names": [name]})).await?;
    Ok(list(&answer["Parameters"]).first().and_then(|parameter| text(&parameter["Value"])))
}

async fn image_seen(lookout: &Lookout, id: &str) -> Result<Option<ImageSeen>, String> {
    // By a filter, because an id that is not there is an error of the call otherwise.
    let filter = Filter::builder().name("image-id").values(id).build();
    let answer = lookout.ec2.describe_images().filters(filter).send().await;
    let answer = answer
        .map_err(|error| ostler_aws::sdk_error(&format!("look for {id}"), error).to_string())?;
    Ok(answer.images().first().map(|image| ImageSeen {
        state: image.state().map(|state| state.as_str().to_owned()).unwrap_or_default(),
        architecture: image.architecture().map(|it| it.as_str().to_owned()).unwrap_or_default(),
    }))
}

async fn quotas(lookout: &Lookout, settings: Option<&Settings>) -> Vec<Finding> {
    let used = vcpus(lookout).await;
    let needs = |spot: bool| {
        settings.is_some_and(|settings| {
            settings.tiers.iter().filter(|tier| tier.account.is_none()).any(|tier| {
                match tier.market {
                    Market::OnDemand => !spot,
                    Market::Spot => spot,
                    Market::SpotThenOnDemand => true,
                }
            })
        })
    };
    let both = [("on-demand", ON_DEMAND_QUOTA, false), ("spot", SPOT_QUOTA, true)];
    at_once(both.into_iter().map(async |(market, code, spot)| {
        let input = json!({"ServiceCode": "ec2", "QuotaCode": code});
        let answer = lookout.wire.ask(QUOTAS, "GetServiceQuota", &input).await;
        let limit = answer.map_err(String::from).and_then(|answer| {
            answer["Quota"]["Value"]
                .as_f64()
                .ok_or_else(|| "Service Quotas says no value".to_owned())
        });
        match (&limit, &used) {
            (Ok(limit), Ok(used)) => {
                quota(market, code, needs(spot), *limit, used[usize::from(spot)])
            }
            (Err(why), _) | (_, Err(why)) => Finding::unknown(&format!("EC2 quota, {market}"), why),
        }
    }))
    .await
}

/// vCPUs of all machines of the account that run, on-demand and spot.
async fn vcpus(lookout: &Lookout) -> Result<[f64; 2], String> {
    let filter =
        Filter::builder().name("instance-state-name").values("pending").values("running").build();
    let (mut used, mut next) = ([0.0, 0.0], None);
    // A thousand a page: more than this have quotas that are looked after otherwise.
    for _ in 0..20 {
        let request = lookout.ec2.describe_instances().filters(filter.clone()).max_results(1000);
        let answer = request.set_next_token(next).send().await;
        let answer =
            answer.map_err(|error| ostler_aws::sdk_error("list instances", error).to_string())?;
        for instance in answer.reservations().iter().flat_map(|it| it.instances()) {
            let spot = instance.instance_lifecycle().is_some_and(|it| it.as_str() == "spot");
            let options = instance.cpu_options();
            let number = |of: Option<i32>| f64::from(of.unwrap_or(1));
            let cpus =
                options.map_or(1.0, |it| number(it.core_count()) * number(it.threads_per_core()));
            used[usize::from(spot)] += cpus;
        }
        next = answer.next_token;
        if next.is_none() {
            return Ok(used);
        }
    }
    Err("there are too many instances to count".into())
}

async fn network(lookout: &Lookout, deployed: &Deployed) -> Vec<Finding> {
    let (tables, public) =
        tokio::join!(routes(lookout, deployed), public_addresses(lookout, deployed));
    let tables = match tables {
        Ok(tables) => tables,
        Err(why) => return vec![Finding::unknown("Egress", &why)],
    };
    let mut findings: Vec<Finding> = deployed
        .subnets
        .iter()
        .map(|subnet| match tables.get(subnet) {
            Some(way) => egress(subnet, way, public.as_ref().ok().copied().flatten()),
            None => Finding::fail(
                &format!("Egress of {subnet}"),
                "the subnet is not there",
                "Deploy the control stack with subnets that are.",
            ),
        })
        .collect();
    if let Err(why) = public {
        findings.push(Finding::unknown("Public addresses", &why));
    }
    findings
}

/// By subnet, where its route to everywhere leads: by its own route table, or the VPC's main one.
async fn routes(
    lookout: &Lookout,
    deployed: &Deployed,
) -> Result<BTreeMap<String, WayOut>, String> {
    let told = |what: &str, error: String| format!("{what}: {error}");
    let subnets =
        Filter::builder().name("subnet-id").set_values(Some(deployed.subnets.clone())).build();
    let subnets = lookout.ec2.describe_subnets().filters(subnets).send().await;
    let subnets = subnets.map_err(|error| {
        told("subnets", ostler_aws::sdk_error("look for subnets", error).to_string())
    })?;
    let of_vpc: BTreeMap<&str, &str> =
        subnets.subnets().iter().filter_map(|it| Some((it.subnet_id()?, it.vpc_id()?))).collect();
    let vpcs: BTreeSet<&str> = of_vpc.values().copied().collect();
    let filter = Filter::builder()
        .name("vpc-id")
        .set_values(Some(vpcs.into_iter().map(str::to_owned).collect()))
        .build();
    let tables = lookout.ec2.describe_route_tables().filters(filter).send().await;
    let tables = tables.map_err(|error| {
        told("route tables", ostler_aws::sdk_error("look for route tables", error).to_string())
    })?;
    let way = |table: &aws_sdk_ec2::types::RouteTable| {
        let out =
            table.routes().iter().find(|route| route.destination_cidr_block() == Some("0.0.0.0/0"));
        let Some(out) = out else { return WayOut::None };
        let target = out.gateway_id().or(out.nat_gateway_id()).or(out.transit_gateway_id());
        let target = target.or(out.network_interface_id()).or(out.instance_id());
        match target {
            Some(gateway) if gateway.starts_with("igw-") => WayOut::Internet,
            Some(other) => WayOut::Through(other.to_owned()),
            None => WayOut::None,
        }
    };
    let own = |subnet: &str| {
        tables
            .route_tables()
            .iter()
            .find(|table| table.associations().iter().any(|it| it.subnet_id() == Some(subnet)))
    };
    let main = |vpc: &str| {
        tables.route_tables().iter().find(|table| {
            table.vpc_id() == Some(vpc)
                && table.associations().iter().any(|it| it.main() == Some(true))
        })
    };
    let ways = of_vpc.iter().map(|(subnet, vpc)| {
        let table = own(subnet).or_else(|| main(vpc));
        ((*subnet).to_owned(), table.map_or(WayOut::None, way))
    });
    Ok(ways.collect())
}

/// Whether machines get public addresses, by the launch template; `None` where it leaves that to the subnet.
async fn public_addresses(lookout: &Lookout, deployed: &Deployed) -> Result<Option<bool>, String> {
    let Some((id, version)) = deployed.templates.first().and_then(|it| it.split_once(':')) else {
        return Ok(None);
    };
    let asked =
        lookout.ec2.describe_launch_template_versions().launch_template_id(id).versions(version);
    let answer = asked.send().await;
    let answer = answer
        .map_err(|error| ostler_aws::sdk_error("look at the launch template", error).to_string())?;
    let data = answer.launch_template_versions().first().and_then(|it| it.launch_template_data());
    Ok(data.and_then(|data| data.network_interfaces().first()?.associate_public_ip_address()))
}

async fn clocks(lookout: &Lookout) -> Vec<Finding> {
    let asked = lookout
        .wire
        .ask_dated(SSM, "GetParameters", &json!({"Names": ["/ostler-doctor/none"]}))
        .await;
    // Also in the local world, whose time is another: AWS judges by the real one.
    let own = ostler_lambda::SystemClock::REAL.now();
    match asked {
        Err(trouble) => vec![Finding::unknown("Clock", &trouble.text)],
        Ok((_, date)) => match date.as_deref().and_then(http_date) {
            Some(theirs) => vec![clock(own, theirs)],
            None => vec![Finding::unknown("Clock", "AWS's answer has no date")],
        },
    }
}

/// Runs the command.
pub async fn run(shell: &Shell, stacks: Stacks) -> anyhow::Result<Exit> {
    let lookout = Lookout::new(shell.aws().await, stacks)?;
    let findings = shell.output.progress("Examining", None, examine(&lookout)).await;
    let worst = findings.iter().map(|finding| finding.verdict).max();
    shell.output.answer(&findings, || show(&shell.output, &findings));
    Ok(if worst == Some(Verdict::Fail) { Exit::Faults } else { Exit::Done })
}

fn show(output: &Output, findings: &[Finding]) -> String {
    let mut lines = Vec::new();
    for Finding { what, verdict, found, fix } in findings {
        let (mark, word) = match verdict {
            Verdict::Ok => (Mark::Ok, "OK  "),
            Verdict::Warn => (Mark::Warn, "WARN"),
            Verdict::Fail => (Mark::Fail, "FAIL"),
        };
        lines.push(format!("{}  {what}: {found}", output.paint(mark, word)));
        if let Some(fix) = fix {
            lines.push(format!("      {fix}"));
        }
    }
    let count = |of: Verdict| findings.iter().filter(|it| it.verdict == of).count();
    let (ok, warn, fail) = (count(Verdict::Ok), count(Verdict::Warn), count(Verdict::Fail));
    lines.push(format!("\n{ok} well, {warn} to look at, {fail} broken"));
    lines.join("\n")
}

#[cfg(test)]
mod tests;
