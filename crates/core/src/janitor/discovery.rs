//! Discovery: all registrations are listed from the first page on, and what seems to be left behind is
//! queued before the next page is read. Nothing is remembered from scan to scan, so pages that fail, and
//! pages that shift while others delete, cost a registration nothing but a turn.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Value, json};
use tracing::{info, warn};

use super::candidate::{Candidate, kept};
use super::config::{Config, Part};
use super::ports::{Confirmations, Context, Listed, MAX_SENT, Registration, Registrations};
use super::provider::{Provider, complete};
use super::{Counts, Kept, MAX_PAGE_FAILURES, MAX_PAGES, PAGE};
use crate::error::{Error, Result};
use crate::ports::Clock;

/// Why a scan ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Every list was read to its end, or given up.
    Completed,
    /// No time to begin anything.
    Deadline,
    /// As many candidates as one scan may have.
    CandidateLimit,
}

impl Stop {
    const fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Deadline => "deadline",
            Self::CandidateLimit => "candidate-limit",
        }
    }
}

/// Scans once. An error only if no page at all could be read; whatever else fails is counted, and the next
/// scan tries again.
pub(super) async fn discover<C: Context>(
    context: &C,
    config: &Config,
    may_begin: &impl Fn() -> bool,
) -> Result<Value> {
    let mut scan = Scan::new(context, config);
    let mut stop = Stop::Completed;
    for part in config.scope.parts() {
        if let Some(early) = scan.read(&part, may_begin).await {
            stop = early;
            break;
        }
    }
    scan.finish(stop)
}

struct Scan<'a, C> {
    context: &'a C,
    config: &'a Config,
    fingerprint: String,
    pages_scanned: u64,
    page_failures: u64,
    abandoned: u64,
    seen: u64,
    queued: u64,
    dry_run_candidates: u64,
    candidate_failures: u64,
    /// Registrations of which it was found that nothing is behind them.
    absent: u64,
    kept: BTreeMap<Kept, u64>,
    /// Pages shift while a list is read: what was a candidate on one page may come again on the next.
    candidates: HashSet<i64>,
    failures: BTreeMap<&'static str, u64>,
    /// Of a page that could not be read last.
    error: Option<Error>,
}

impl<'a, C: Context> Scan<'a, C> {
    fn new(context: &'a C, config: &'a Config) -> Self {
        Self {
            context,
            config,
            fingerprint: config.fingerprint(context.provider()),
            pages_scanned: 0,
            page_failures: 0,
            abandoned: 0,
            seen: 0,
            queued: 0,
            dry_run_candidates: 0,
            candidate_failures: 0,
            absent: 0,
            kept: BTreeMap::new(),
            candidates: HashSet::new(),
            failures: BTreeMap::new(),
            error: None,
        }
    }

    /// Reads one list to its end. A page that fails is left out and not asked for again; the third in a
    /// row ends the list.
    async fn read(&mut self, part: &Part, may_begin: &impl Fn() -> bool) -> Option<Stop> {
        let mut in_a_row = 0;
        for page in 1..=MAX_PAGES {
            if let Some(stop) = self.stop(may_begin) {
                return Some(stop);
            }
            match self.page(part, page).await {
                Ok(listed) => {
                    in_a_row = 0;
                    self.pages_scanned += 1;
                    if let Some(stop) = self.take(part, &listed.registrations, may_begin).await {
                        return Some(stop);
                    }
                    if listed.entries < PAGE {
                        return None;
                    }
                }
                Err(error) => {
                    in_a_row += 1;
                    self.page_failures += 1;
                    *self.failures.entry("Page").or_default() += 1;
                    warn!(%part, page, %error, "a page of registrations could not be read");
                    self.error = Some(error);
                    if in_a_row == MAX_PAGE_FAILURES {
                        self.abandoned += 1;
                        return None;
                    }
                }
            }
        }
        self.abandoned += 1;
        warn!(%part, "a list without end was left");
        None
    }

    async fn page(&self, part: &Part, page: u32) -> Result<Listed> {
        let registrations = self.context.registrations();
        let session = registrations.session(part).await?;
        registrations.page(&session, part, page).await
    }

    /// Whether anything new is to be begun.
    fn stop(&self, may_begin: &impl Fn() -> bool) -> Option<Stop> {
        match (may_begin(), self.room()) {
            (false, _) => Some(Stop::Deadline),
            (true, 0) => Some(Stop::CandidateLimit),
            (true, _) => None,
        }
    }

    /// How many candidates there may still be. What is kept and what fails counts for nothing.
    fn room(&self) -> usize {
        let used = self.queued + self.dry_run_candidates;
        self.config.max_candidates.saturating_sub(usize::try_from(used).unwrap_or(usize::MAX))
    }

    /// Goes through a page: which are candidates by what GitHub says, what is behind those, and into the
    /// queue with those that have nothing.
    async fn take(
        &mut self,
        part: &Part,
        registrations: &[Registration],
        may_begin: &impl Fn() -> bool,
    ) -> Option<Stop> {
        let provider = self.context.provider();
        let mut found = Vec::new();
        for registration in registrations {
            self.seen += 1;
            match (provider.resource(&registration.name), kept(registration)) {
                (None, _) => self.keep(Kept::Foreign),
                (Some(_), Some(why)) => self.keep(why),
                (Some(resource), None) => {
                    if !self.candidates.contains(&registration.id) {
                        found.push((registration, resource));
                    }
                }
            }
        }
        if found.is_empty() {
            return None;
        }
        if let Some(stop) = self.stop(may_begin) {
            return Some(stop);
        }
        let resources: Vec<_> = found.iter().map(|(_, resource)| resource.clone()).collect();
        let exist = complete(resources.len(), provider.exist(&resources).await);
        let observed_at = self.context.clock().now();
        let (mut absent, mut unknown) = (Vec::new(), None);
        for ((registration, resource), exists) in found.into_iter().zip(exist) {
            match exists {
                Ok(true) => self.keep(Kept::Exists),
                Ok(false) => absent.push(Candidate {
                    runner_id: registration.id,
                    runner_name: registration.name.clone(),
                    resource,
                    part: part.clone(),
                    observed_at,
                    scope: self.fingerprint.clone(),
                }),
                Err(error) => {
                    let (_, number) = unknown.get_or_insert((error, 0_u64));
                    *number += 1;
                }
            }
        }
        // One line for a page: a region that does not answer strikes all of it.
        if let Some((error, registrations)) = unknown {
            warn!(%part, registrations, %error, "what is behind registrations is not known: they are kept");
            self.fail("LookUp", registrations);
        }
        self.absent += count(absent.len());
        let mut rest = absent.as_slice();
        while !rest.is_empty() {
            if let Some(stop) = self.stop(may_begin) {
                return Some(stop);
            }
            let batch;
            (batch, rest) = rest.split_at(rest.len().min(MAX_SENT).min(self.room()));
            self.queue(batch).await;
        }
        None
    }

    async fn queue(&mut self, batch: &[Candidate]) {
        if self.config.dry_run {
            for candidate in batch {
                // Not "message", which is the line's own text.
                let body = candidate.message();
                info!(part = %candidate.part, runner = candidate.runner_name, candidate = body, "dry run: would be queued");
                self.candidates.insert(candidate.runner_id);
            }
            self.dry_run_candidates += count(batch.len());
            return;
        }
        let refused = match self.context.confirmations().send(batch).await {
            Ok(refused) => refused.into_iter().collect::<HashSet<_>>(),
            Err(error) => {
                warn!(%error, candidates = batch.len(), "candidates could not be queued");
                (0..batch.len()).collect()
            }
        };
        for (place, candidate) in batch.iter().enumerate() {
            if refused.contains(&place) {
                self.fail("Queue", 1);
                continue;
            }
            info!(part = %candidate.part, runner = candidate.runner_name, id = candidate.runner_id, "queued");
            self.candidates.insert(candidate.runner_id);
            self.queued += 1;
        }
    }

    fn keep(&mut self, why: Kept) {
        *self.kept.entry(why).or_default() += 1;
    }

    fn fail(&mut self, kind: &'static str, number: u64) {
        self.candidate_failures += number;
        *self.failures.entry(kind).or_default() += number;
    }

    /// Logs and counts what was done, however it ended.
    fn finish(self, stop: Stop) -> Result<Value> {
        let existing = self.kept.get(&Kept::Exists).copied().unwrap_or_default();
        info!(
            "pagesScanned" = self.pages_scanned,
            "candidatesQueued" = self.queued,
            "dryRunCandidates" = self.dry_run_candidates,
            "existingResources" = existing,
            "pageFailures" = self.page_failures,
            "candidateFailures" = self.candidate_failures,
            "stopReason" = stop.name(),
            "dryRun" = self.config.dry_run,
            "registrationsSeen" = self.seen,
            "abandonedLists" = self.abandoned,
            "scanned"
        );
        let counts = Counts(self.context);
        counts.add("RegistrationsSeen", None, self.seen);
        counts.add("RegistrationCandidates", None, self.queued + self.dry_run_candidates);
        for (why, number) in &self.kept {
            counts.kept(*why, *number);
        }
        for (kind, number) in &self.failures {
            counts.failed(kind, *number);
        }
        // A janitor that can't look everywhere finds nothing to be gone, however well it reads lists: one region
        // that does not answer is enough, and others may still say of this and that that it is there.
        let blind = self.failures.contains_key("LookUp") && self.absent == 0;
        // The same of one whose queue takes nothing.
        let mute = self.failures.contains_key("Queue") && self.queued == 0;
        if stop == Stop::Completed && self.abandoned == 0 && !blind && !mute {
            counts.add("ScanCompleted", None, 1);
        }
        match self.error {
            Some(error) if self.pages_scanned == 0 => Err(error),
            _ => Ok(json!({
                "pagesScanned": self.pages_scanned,
                "candidatesQueued": self.queued,
                "dryRunCandidates": self.dry_run_candidates,
                "existingResources": existing,
                "pageFailures": self.page_failures,
                "candidateFailures": self.candidate_failures,
                "stopReason": stop.name(),
                "dryRun": self.config.dry_run,
            })),
        }
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
