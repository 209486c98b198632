//! Use case: a delivery from GitHub. Verify, select, start; report jobs that have started; note jobs that
//! were cancelled before they ran.
//!
//! Invariants: nothing happens before the signature is verified. A delivery that can't be used is never
//! answered 5xx (it would come back for days); one that could not be handled for the moment always is, so
//! that GitHub shows it as failed and it can be delivered again.

mod payload;
mod request;
mod selection;
mod signature;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tracing::{error, info, warn};

pub use payload::Payload;
pub use request::{Answer, MAX_BODY, Request};
pub use signature::{sign, verify};

use crate::config::{AppSettings, PublicRepositories, Settings, not_set};
use crate::debts::{Debts, Payment};
use crate::error::{Error, Result};
use crate::labels::SELF_HOSTED;
use crate::names::is_plausible;
use crate::ports::{
    AcceptContext, Clock, Configuration, Forge, JobRecord, Ledger, Removal, ReportQueue, Telemetry,
    WebhookContext,
};
use crate::reach::reached;
use crate::report::Report;
use crate::secret::Secret;
use crate::supply::JobKey;
use selection::Choice;

/// A cancellation is needed as long as the job's launch may still be retried: GitHub keeps a job queued
/// for 24 h and cancels it up to 48 h later; the ledger's other job items live as long.
const CANCELLATION_KEPT: Duration = Duration::from_secs(4 * 86_400);

/// Why a queued job got no runner: the metric `JobRefused` by `Reason`, and the words of the answer.
#[derive(Clone, Copy)]
enum Refused {
    NotSelfHosted,
    NoTier,
    NotAllowed,
    Public,
    Selector,
}

impl Refused {
    const fn told(self) -> (&'static str, &'static str) {
        match self {
            Self::NotSelfHosted => ("NotSelfHosted", "the job does not ask for self-hosted"),
            Self::NoTier => ("NoTier", "no tier has all of the job's labels"),
            Self::NotAllowed => ("NotAllowed", "the repository is not on the allow list"),
            Self::Public => ("Public", "the repository is public"),
            Self::Selector => ("Selector", "the provider selector chose none"),
        }
    }
}

/// Handles one Lambda event and answers in the shape of the front end that sent it.
pub async fn handle<C: WebhookContext>(context: &C, event: &Value) -> Value {
    let request = match Request::read(event) {
        Ok(request) => request,
        Err((answer, response)) => {
            reached("webhook: a request that can't be read");
            warn!(status = answer.status, "a request could not be read");
            return response;
        }
    };
    let answer = receive(context, &request).await;
    if answer.status >= 500 {
        context.telemetry().count("WebhookUnavailable", None, 1.0);
    }
    request.respond(&answer)
}

async fn receive<C: WebhookContext>(context: &C, request: &Request) -> Answer {
    let settings = match authenticate(context, request).await {
        Ok(settings) => settings,
        Err(answer) => return answer,
    };
    context.telemetry().count("DeliveryReceived", None, 1.0);
    let delivery = request.header("x-github-delivery").unwrap_or_default();
    match request.header("x-github-event") {
        None => {
            reached("webhook: no event is named");
            return Answer::new(400, "The header X-GitHub-Event is missing.");
        }
        Some("ping") => {
            reached("webhook: ping");
            return Answer::new(200, "pong");
        }
        Some("workflow_job") => {}
        Some(other) => {
            reached("webhook: another event");
            let kind = if is_plausible(other) { other } else { "other" };
            info!(event = kind, delivery, "ignored an event that is not workflow_job");
            context.telemetry().count("EventIgnored", Some(("Event", kind)), 1.0);
            return Answer::new(200, "Ignored: only workflow_job events are used.");
        }
    }
    let payload = match read_body(request) {
        Ok(payload) => payload,
        Err(answer) => {
            reached("webhook: a body that can't be used");
            warn!(
                status = answer.status,
                delivery,
                reason = answer.body,
                "a delivery can't be used"
            );
            context.telemetry().count("DeliveryUnusable", None, 1.0);
            return answer;
        }
    };
    act(context, &settings, &payload).await.unwrap_or_else(|failure| {
        reached("webhook: could not be handled");
        error!(delivery, job = payload.id.0, %failure, "a delivery could not be handled");
        if matches!(failure, Error::Permanent(_)) {
            context.telemetry().count("ConfigurationError", None, 1.0);
        }
        Answer::new(503, "The delivery could not be handled for the moment; please redeliver it.")
    })
}

/// The settings under which the request is authentic, or the answer to one that is not.
async fn authenticate<C: WebhookContext>(
    context: &C,
    request: &Request,
) -> std::result::Result<Arc<Settings>, Answer> {
    let unavailable = |failure: Error| {
        reached("webhook: the configuration can't be read");
        error!(%failure, "the configuration can't be read");
        Answer::new(503, "The configuration can't be read for the moment.")
    };
    let mut settings = context.configuration().settings().await.map_err(unavailable)?;
    let signature = request.header("x-hub-signature-256");
    let signed = |settings: &Settings| verify(signature, &request.body, &settings.webhook_secrets);
    if !signed(&settings) {
        reached("webhook: the secret is read anew");
        // The secret may have been set or rotated since it was read.
        settings = context.configuration().reread().await.map_err(unavailable)?;
    }
    if settings.webhook_secrets.iter().all(|secret: &Secret| secret.expose().is_empty()) {
        reached("webhook: no secret is set");
        return Err(Answer::new(503, "not configured"));
    }
    if !signed(&settings) {
        reached("webhook: a wrong signature");
        let (bytes, present) = (request.body.len(), signature.is_some());
        warn!(bytes, present, "a signature does not match");
        context.telemetry().count("SignatureRefused", None, 1.0);
        return Err(Answer::new(401, "The signature does not match."));
    }
    Ok(settings)
}

/// The payload in a request whose signature was verified, or the answer to one that can't be used.
pub fn read_body(request: &Request) -> std::result::Result<Payload, Answer> {
    let content = request.header("content-type").unwrap_or("application/json").to_lowercase();
    let media = content.split(';').next().unwrap_or_default().trim();
    let unwrapped;
    let body = match media {
        "application/json" => &request.body,
        "application/x-www-form-urlencoded" => {
            reached("webhook: a form");
            unwrapped = payload::form_field(&request.body, "payload").ok_or_else(|| {
                Answer::new(200, "Ignored: the form has no readable field payload.")
            })?;
            &unwrapped
        }
        _ => {
            reached("webhook: of another media type");
            return Err(Answer::new(
                415,
                "Set the webhook's \"Content type\" to application/json in its settings at GitHub.",
            ));
        }
    };
    // One character that is no UTF-8, in a title or a message, must not cost the job.
    let text = String::from_utf8_lossy(body);
    let value: Value = serde_json::from_str(text.trim_start_matches('\u{feff}'))
        .map_err(|_| Answer::new(200, "Ignored: the body is not JSON."))?;
    Payload::read(&value)
        .map_err(|missing| Answer::new(200, format!("Ignored: {missing}.")))
        .map(|payload| Payload { raw: Arc::new(value), ..payload })
}

async fn act<C: WebhookContext>(
    context: &C,
    settings: &Settings,
    payload: &Payload,
) -> Result<Answer> {
    match payload.action.as_str() {
        "queued" => queued(context, settings, payload).await,
        "in_progress" => in_progress(context, settings, payload).await,
        "completed" => completed(context, settings, payload).await,
        _ => {
            reached("webhook: another action");
            Ok(Answer::new(200, "Ignored: nothing starts at this action."))
        }
    }
}

async fn queued<C: WebhookContext>(
    context: &C,
    settings: &Settings,
    payload: &Payload,
) -> Result<Answer> {
    accept(context, settings, &Debts::new(context, settings)?, payload).await
}

/// Sees that a queued job has a runner: one is started (202), or the job has one, or is to have none. For the
/// webhook and for the reconciler, which finds jobs whose event never came.
pub async fn accept<C: AcceptContext>(
    context: &C,
    settings: &Settings,
    debts: &Debts<'_, C>,
    payload: &Payload,
) -> Result<Answer> {
    let app = settings.app.as_ref().ok_or_else(|| not_set("control/app"))?;
    let choice = match choose(context, settings, app, payload).await? {
        Ok(choice) => choice,
        Err(refused) => {
            match refused {
                Refused::NotSelfHosted => reached("webhook: refused, not self-hosted"),
                Refused::NoTier => reached("webhook: refused, no tier"),
                Refused::NotAllowed => reached("webhook: refused, not on the list"),
                Refused::Public => reached("webhook: refused, public"),
                Refused::Selector => reached("webhook: refused by the selector"),
            }
            let (reason, words) = refused.told();
            info!(job = payload.id.0, url = payload.url, reason, "no runner is started");
            context.telemetry().count("JobRefused", Some(("Reason", reason)), 1.0);
            return Ok(Answer::new(200, format!("No runner is started: {words}.")));
        }
    };
    if waits_for_approval(context, payload).await {
        reached("webhook: the deployment waits");
        info!(job = payload.id.0, "no runner is started: the job's deployment waits for approval");
        return Ok(Answer::new(200, "No runner is started: the deployment waits for approval."));
    }
    let input = payload.input(&choice.tier.name, &choice.labels, choice.tier.max_idle.as_secs());
    let name = debts.names().base_name(&input.repo, payload.id);
    if debts.start(&name, &input).await? {
        reached("webhook: started");
        info!(
            runner = name,
            job = payload.id.0,
            url = payload.url,
            tier = input.provider,
            "started"
        );
        context.telemetry().count("JobAccepted", Some(("Tier", &input.provider)), 1.0);
        return Ok(Answer::new(202, name));
    }
    // The name was used before: a repeated delivery, or the job was queued anew.
    let payment = match debts.supplied(&input, None).await? {
        true => Payment::Supplied,
        false => debts.pay(&input, None, true).await?,
    };
    Ok(match payment {
        Payment::Started(name) => {
            reached("webhook: started again");
            Answer::new(202, name)
        }
        Payment::Supplied => {
            reached("webhook: repeated, and supplied");
            Answer::new(200, "already started")
        }
        Payment::NotQueued => {
            reached("webhook: repeated, and not queued");
            Answer::new(200, "already started")
        }
        Payment::Capped => {
            reached("webhook: repeated, and used up");
            Answer::new(200, "already started; its replacements are used up")
        }
    })
}

/// The tier for the job, or why it gets none.
async fn choose<'a, C: AcceptContext>(
    context: &C,
    settings: &'a Settings,
    app: &AppSettings,
    payload: &Payload,
) -> Result<std::result::Result<Choice<'a>, Refused>> {
    let self_hosted = payload.labels.has(SELF_HOSTED);
    if app.require_self_hosted && !self_hosted {
        return Ok(Err(Refused::NotSelfHosted));
    }
    if !app.repositories.allows(&payload.repository.to_string()) {
        return Ok(Err(Refused::NotAllowed));
    }
    if payload.public && app.repositories.public == PublicRepositories::Refuse {
        return Ok(Err(Refused::Public));
    }
    let matching = settings.tiers.select(&payload.labels);
    if let Some(function) = &app.selector {
        reached("webhook: the selector is asked");
        let chosen = selection::ask(context, function, settings, matching, payload).await;
        return chosen
            .inspect_err(|_| {
                reached("webhook: the selector failed");
                context.telemetry().count("SelectorFailed", None, 1.0);
            })
            .map(|choice| choice.ok_or(Refused::Selector));
    }
    match matching {
        Some(tier) => Ok(Ok(Choice { tier, labels: tier.labels.clone() })),
        None if self_hosted && !settings.tiers.given => {
            reached("webhook: no tiers are set");
            Err(not_set("control/tiers"))
        }
        None if self_hosted && !settings.tiers.problems.is_empty() => {
            reached("webhook: perhaps for a tier that is invalid");
            let problems = settings.tiers.problems.join("; ");
            Err(Error::Permanent(format!(
                "no valid tier matches, and some are invalid: {problems}"
            )))
        }
        None => Ok(Err(Refused::NoTier)),
    }
}

/// A job behind an environment is queued a second time once it is approved; the first time nothing starts.
/// If the question fails, the runner is started: it ends as idle at worst.
async fn waits_for_approval<C: AcceptContext>(context: &C, payload: &Payload) -> bool {
    let Some(deployment) = payload.deployment else { return false };
    match context.forge().deployment_waits(&payload.repository, deployment).await {
        Ok(waits) => waits,
        Err(failure) => {
            reached("webhook: whether the deployment waits is not known");
            warn!(job = payload.id.0, %failure, "the deployment's status can't be read: starting");
            false
        }
    }
}

async fn in_progress<C: WebhookContext>(
    context: &C,
    settings: &Settings,
    payload: &Payload,
) -> Result<Answer> {
    let (Some(runner), Some(run)) = (payload.plausible_runner(), payload.run) else {
        reached("webhook: begun on no runner that could be ours");
        return Ok(Answer::new(200, "Ignored: not on a runner that could be ours."));
    };
    let report = Report {
        runner_name: runner.to_owned(),
        repo: payload.repository.to_string(),
        workflow_id: run,
        job_id: Some(payload.id),
        job_labels: Some(payload.labels.to_string()),
    };
    context.reports().send(&report).await?;
    reached("webhook: reported");
    let ours = settings.name_key.as_ref().is_some_and(|key| key.made(runner));
    if ours && let (Some(waited), Some(tier)) = (payload.waited(), tier_of(settings, payload)) {
        context.telemetry().count("QueueSeconds", Some(("Tier", tier)), waited.as_secs_f64());
    }
    Ok(Answer::new(200, "reported"))
}

/// The tier that a job's labels choose. A selector may have chosen another one, which only the job's execution
/// tells; a metric is not worth asking for it.
fn tier_of<'a>(settings: &'a Settings, payload: &Payload) -> Option<&'a str> {
    settings.tiers.select(&payload.labels).map(|tier| tier.name.as_str())
}

/// A job that is over and never had a runner was cancelled while it waited: its launch, if one is under
/// way, reads that in the ledger. Skipped jobs were never queued.
async fn completed<C: WebhookContext>(
    context: &C,
    settings: &Settings,
    payload: &Payload,
) -> Result<Answer> {
    let skipped = payload.conclusion.as_deref() == Some("skipped");
    if payload.runner.is_some() || skipped || !settings.may_serve(&payload.labels) {
        reached("webhook: completed, and nothing to do");
        return Ok(Answer::new(200, "nothing to do"));
    }
    let now = context.clock().now();
    let record = context.ledger().cancel_job(payload.id, now, now + CANCELLATION_KEPT).await?;
    reached("webhook: noted as cancelled");
    context.telemetry().count("JobCancelled", None, 1.0);
    if record.runner_name.is_some()
        && let Err(failure) = end_booting(context, settings, payload, record).await
    {
        // It ends as idle: its checks find out.
        reached("webhook: the runner of a cancelled job is left to its checks");
        warn!(job = payload.id.0, %failure, "the runner of a cancelled job could not be looked after");
    }
    Ok(Answer::new(200, "noted as cancelled"))
}

/// Takes the registration of a runner away that nobody needs any more and that was never connected: its
/// machine ends by that. One that is connected may have been given another job, and GitHub's busy flag lags:
/// its checks see that its job is over, and look twice.
async fn end_booting<C: WebhookContext>(
    context: &C,
    settings: &Settings,
    payload: &Payload,
    record: JobRecord,
) -> Result<()> {
    let place = settings.place(payload.repository.clone())?;
    let debts = Debts::new(context, settings)?;
    let job = JobKey { id: payload.id, repo: Some(payload.repository.name.clone()) };
    let Some(runner) = debts.supplier(&job, record).await? else {
        reached("webhook: cancelled, and nobody stands in for it");
        return Ok(());
    };
    // Without an id it is not registered: its next step reads that the job was cancelled.
    let Some(id) = debts.record(&runner).await?.runner_id else {
        reached("webhook: cancelled, and not registered yet");
        return Ok(());
    };
    let booting = |found: &crate::ports::Registered| !found.online && !found.busy;
    if context.forge().runner(&place, id).await?.as_ref().is_some_and(booting)
        && context.forge().remove_runner(&place, id).await? == Removal::Removed
    {
        reached("webhook: a booting runner is not needed any more");
        info!(runner, job = payload.id.0, "not needed any more: its registration was removed");
        context.telemetry().count("CancelledRunnerEnded", None, 1.0);
    }
    Ok(())
}
