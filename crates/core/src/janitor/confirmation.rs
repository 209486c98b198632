//! Confirmation: the second observation of what discovery queued, and the deletion of what has not changed.
//!
//! For each record, in this order: is the message valid, is it time, is this a dry run; does what is behind
//! the registration exist (asked for the whole batch at once); what does GitHub say of it now, and is it
//! still in its group; then it is deleted. A step that fails has the record come again.

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use tracing::{debug, info, warn};

use super::candidate::{Body, Candidate, Verdict};
use super::config::{Config, Part, Scope};
use super::ports::{Context, Registration, Registrations};
use super::provider::{Provider, complete};
use super::{Counts, Kept, MAX_PAGES, PAGE};
use crate::error::{Error, Result};
use crate::ports::{Clock, Removal};
use crate::stolen::shown;

/// Confirms a batch. Answers the ids of the records that are to come again.
pub(super) async fn confirm<C: Context>(
    context: &C,
    config: &Config,
    records: &[Value],
    may_begin: &impl Fn() -> bool,
) -> Result<Vec<String>> {
    let mut batch = Batch {
        context,
        config,
        fingerprint: config.fingerprint(context.provider()),
        counts: Counts(context),
        may_begin,
        failed: Vec::new(),
        members: HashMap::new(),
        refused: HashSet::new(),
    };
    let mut pending = Vec::new();
    for record in records {
        let id = record["messageId"].as_str().ok_or_else(|| {
            Error::Permanent("a record without messageId: expected records of an SQS queue".into())
        })?;
        if let Some(candidate) = batch.admit(id, record["body"].as_str().unwrap_or_default()) {
            pending.push((id, candidate));
        }
    }
    for (id, candidate) in batch.absent(pending).await {
        batch.settle(id, &candidate).await;
    }
    Ok(batch.failed)
}

/// What became of one candidate's second look.
enum Outcome {
    Deleted,
    /// Somebody else has removed it.
    Gone,
    Kept(Kept),
    /// There was no time to begin the next step.
    NoTime,
}

struct Batch<'a, C, F> {
    context: &'a C,
    config: &'a Config,
    fingerprint: String,
    counts: Counts<'a, C>,
    may_begin: &'a F,
    failed: Vec<String>,
    /// Members of groups, as far as they were read for this batch.
    members: HashMap<Part, Members>,
    /// Lists where the App is not admitted: the others of the batch would be refused as well. Not owners: a
    /// repository that is archived takes no deletions, and must not cost the owner's others theirs.
    refused: HashSet<Part>,
}

/// A group's members, read page by page, as far as somebody had to look.
#[derive(Default)]
struct Members {
    ids: HashSet<i64>,
    pages: u32,
    complete: bool,
}

impl<C: Context, F: Fn() -> bool> Batch<'_, C, F> {
    fn fail(&mut self, id: &str, kind: &str) {
        self.failed.push(id.to_owned());
        self.counts.failed(kind, 1);
    }

    /// Judges a record by what it says. `None` if that was all.
    fn admit(&mut self, id: &str, body: &str) -> Option<Candidate> {
        let organization = match &self.config.scope {
            Scope::Organization { name, .. } => Some(name.as_str()),
            Scope::Repositories(_) => None,
        };
        let candidate = match Candidate::read(body, organization) {
            Ok(Body::Candidate(candidate)) => candidate,
            Ok(Body::NoCandidate(why)) => {
                warn!(message_id = id, why = shown(&why), "discarded: no message of a candidate");
                self.counts.kept(Kept::Unusable, 1);
                return None;
            }
            Err(error) => {
                warn!(message_id = id, %error, "a message that is no JSON");
                self.fail(id, "Record");
                return None;
            }
        };
        let now = self.context.clock().now();
        // Not checked yet: it may be anybody's text.
        let runner = shown(&candidate.runner_name);
        match candidate.judge(self.config, &self.fingerprint, self.context.provider(), now) {
            Verdict::Look => return Some(candidate),
            Verdict::DryRun => {
                let body = candidate.message();
                info!(message_id = id, candidate = body, "dry run: would be looked at again");
                self.counts.kept(Kept::DryRun, 1);
            }
            Verdict::TooEarly(by) => {
                let seconds = by.as_secs_f64();
                warn!(message_id = id, runner, seconds, "delivered too early");
                self.fail(id, "TooEarly");
            }
            Verdict::Discard(Kept::Expired) => {
                debug!(message_id = id, runner, "expired");
                self.counts.kept(Kept::Expired, 1);
            }
            Verdict::Discard(why) => {
                let (observed, reason) = (candidate.observed_at, why.name());
                warn!(message_id = id, runner, %observed, reason, "discarded");
                self.counts.kept(why, 1);
            }
        }
        None
    }

    /// Of all candidates those with nothing behind them.
    async fn absent<'r>(
        &mut self,
        pending: Vec<(&'r str, Candidate)>,
    ) -> Vec<(&'r str, Candidate)> {
        let mut absent = Vec::new();
        if pending.is_empty() {
            return absent;
        }
        if !(self.may_begin)() {
            for (id, _) in pending {
                self.fail(id, "Deadline");
            }
            return absent;
        }
        let resources: Vec<_> =
            pending.iter().map(|(_, candidate)| candidate.resource.clone()).collect();
        let exist = self.context.provider().exist(&resources).await;
        for ((id, candidate), exists) in pending.into_iter().zip(complete(resources.len(), exist)) {
            let runner = &candidate.runner_name;
            match exists {
                Ok(false) => absent.push((id, candidate)),
                Ok(true) => {
                    info!(runner, reason = Kept::Exists.name(), "kept");
                    self.counts.kept(Kept::Exists, 1);
                }
                Err(error) => {
                    warn!(message_id = id, runner, %error, "what is behind a registration is not known: kept for now");
                    self.fail(id, "LookUp");
                }
            }
        }
        absent
    }

    /// Takes one candidate to its end.
    async fn settle(&mut self, id: &str, candidate: &Candidate) {
        let (runner, part) = (&candidate.runner_name, &candidate.part);
        if self.refused.contains(part) {
            self.fail(id, "GitHub");
            return;
        }
        match self.look(candidate).await {
            Ok(Outcome::Deleted) => {
                info!(%part, runner, id = candidate.runner_id, "deleted");
                self.counts.add("RegistrationDeleted", None, 1);
            }
            Ok(Outcome::Gone) => {
                info!(%part, runner, "was gone already");
                self.counts.add("RegistrationGone", None, 1);
            }
            Ok(Outcome::Kept(why)) => {
                info!(%part, runner, reason = why.name(), "kept");
                self.counts.kept(why, 1);
            }
            Ok(Outcome::NoTime) => self.fail(id, "Deadline"),
            Err(error) => {
                // What no repetition mends is told of once, and not asked for each of the others.
                if matches!(error, Error::Permanent(_)) {
                    self.refused.insert(part.clone());
                }
                warn!(message_id = id, %part, runner, %error, "not confirmed; it comes again");
                self.fail(id, "GitHub");
            }
        }
    }

    /// The second observation of GitHub, and the deletion.
    async fn look(&mut self, candidate: &Candidate) -> Result<Outcome> {
        let registrations = self.context.registrations();
        let part = &candidate.part;
        if !(self.may_begin)() {
            return Ok(Outcome::NoTime);
        }
        let session = registrations.session(part).await?;
        let mut membership_known = false;
        loop {
            if !(self.may_begin)() {
                return Ok(Outcome::NoTime);
            }
            let now = registrations.registration(&session, part, candidate.runner_id).await?;
            let Some(now) = now else { return Ok(Outcome::Gone) };
            if let Some(why) = candidate.kept(&now) {
                return Ok(Outcome::Kept(why));
            }
            match group(part, &now) {
                Some(false) => return Ok(Outcome::Kept(Kept::Moved)),
                Some(true) => break,
                None if membership_known => break,
                None => {}
            }
            // GitHub does not say in which group it is, so the group's members are listed. That takes its
            // time, and the last look has to be fresh.
            match self.is_member(&session, candidate).await? {
                None => return Ok(Outcome::NoTime),
                Some(false) => return Ok(Outcome::Kept(Kept::Moved)),
                Some(true) => membership_known = true,
            }
        }
        if !(self.may_begin)() {
            return Ok(Outcome::NoTime);
        }
        Ok(match registrations.remove(&session, part, candidate.runner_id).await? {
            Removal::Removed => Outcome::Deleted,
            Removal::Gone => Outcome::Gone,
            // A job has come in the last moment: it is alive after all.
            Removal::Busy => Outcome::Kept(Kept::Busy),
        })
    }

    /// Whether the group has the candidate, by its members: page by page until it is found. They are read
    /// once for the batch. `None` if there is no time.
    async fn is_member(
        &mut self,
        session: &<C::Registrations as Registrations>::Session,
        candidate: &Candidate,
    ) -> Result<Option<bool>> {
        let registrations = self.context.registrations();
        let members = self.members.entry(candidate.part.clone()).or_default();
        loop {
            if members.ids.contains(&candidate.runner_id) {
                return Ok(Some(true));
            }
            if members.complete {
                return Ok(Some(false));
            }
            if !(self.may_begin)() {
                return Ok(None);
            }
            if members.pages == MAX_PAGES {
                return Err(Error::Transient(format!("{}: a list without end", candidate.part)));
            }
            let listed = registrations.page(session, &candidate.part, members.pages + 1).await?;
            members.pages += 1;
            members.complete = listed.entries < PAGE;
            members.ids.extend(listed.registrations.iter().map(|each| each.id));
        }
    }
}

/// Whether a registration is in the list in which it was found; `None` if its own record does not say. The
/// address by which a repository's is looked up says it.
fn group(part: &Part, now: &Registration) -> Option<bool> {
    match part {
        Part::Group { id, .. } => now.group.map(|group| group == *id),
        Part::Repository(_) => Some(true),
    }
}
