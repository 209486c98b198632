//! The way in: rate limits, faults on request, and the count of calls.

use std::collections::BTreeMap;
use std::time::Duration;

use ostler_core::time::Timestamp;

use super::access::Caller;
use super::{ApiError, GitHub, endpoint};

/// Primary limits count per this (docs).
const HOUR: Duration = Duration::from_secs(3600);
/// Secondary limits count points per this (docs).
const MINUTE: Duration = Duration::from_secs(60);

/// Rate limits of github.com.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimits {
    /// Calls of an installation in an hour (docs: 5,000 at least).
    pub primary_per_hour: u32,
    /// Runner registrations in an hour, counted apart
    /// (`github-aws-runners/terraform-aws-github-runner#5137`: 10,000).
    pub registrations_per_hour: u32,
    /// Points in a minute on one endpoint: 1 for a read, 5 for a write (docs: 900).
    pub points_per_minute: u32,
    /// Installation tokens in an hour (docs: 2,000).
    pub tokens_per_hour: u32,
    /// What exhausted limits answer: 403 or 429, both happen (docs).
    pub status: u16,
    /// Whether a secondary limit tells `retry-after`; it need not (docs).
    pub tells_retry_after: bool,
}

impl Default for RateLimits {
    fn default() -> Self {
        Self {
            primary_per_hour: 5_000,
            registrations_per_hour: 10_000,
            points_per_minute: 900,
            tokens_per_hour: 2_000,
            status: 403,
            tells_retry_after: true,
        }
    }
}

/// What goes wrong with a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is refused and does nothing.
    Refuse(ApiError),
    /// It is done, but the caller gets this status instead of the answer, or none at all (0).
    Lost(u16),
    /// It is done this much later.
    Slow(Duration),
}

/// A fault to inject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// HTTP method, or `*`.
    pub method: String,
    /// Path template as in [`endpoint`], or `*`.
    pub template: String,
    /// How many calls pass before it strikes.
    pub skip: u32,
    /// How many calls it strikes.
    pub times: u32,
    /// What happens.
    pub fault: Fault,
}

/// Leave to make a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// `x-ratelimit-*` for the answer; none where there are no limits.
    pub headers: Vec<(String, String)>,
    /// Wait this long first.
    pub delay: Duration,
    /// Do it, but answer with this status instead (0: hang up).
    pub lost: Option<u16>,
}

/// Why a call in memory gave nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// GitHub's answer.
    Api(ApiError),
    /// No usable answer, though the call was done: status, or 0 for none.
    Lost(u16),
}

#[derive(Default)]
pub(super) struct Limits {
    /// Window and use by limit.
    buckets: BTreeMap<(String, &'static str), Bucket>,
    /// By `METHOD template`.
    calls: BTreeMap<String, u64>,
    faults: Vec<FaultRule>,
    struck: Struck,
}

/// How often faults have struck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Struck {
    /// A call was refused, other than by a limit.
    pub refused: u64,
    /// A call was refused by a limit.
    pub limited: u64,
    /// An answer was lost.
    pub lost: u64,
}

#[derive(Clone, Copy, Default)]
struct Bucket {
    opened: Timestamp,
    used: u32,
}

impl Bucket {
    fn current(self, now: Timestamp, window: Duration) -> Self {
        if now.since(self.opened) < window { self } else { Self { opened: now, used: 0 } }
    }
}

impl GitHub {
    /// Has a rule applied to the calls that follow.
    pub fn add_fault(&mut self, rule: FaultRule) {
        self.limits.faults.push(rule);
    }

    /// Forgets all rules.
    pub fn clear_faults(&mut self) {
        self.limits.faults.clear();
    }

    /// How often faults have struck so far.
    pub fn struck(&self) -> Struck {
        self.limits.struck
    }

    /// How often each `METHOD template` was called, refused calls included.
    pub fn calls(&self) -> &BTreeMap<String, u64> {
        &self.limits.calls
    }

    /// Uses up an installation's primary limit until its window ends.
    pub fn exhaust(&mut self, now: Timestamp, installation: u64, resource: &'static str) {
        self.advance(now);
        let key = (bucket_name(&Caller::Installation(installation)), resource);
        let bucket = self.limits.buckets.entry(key).or_default();
        *bucket = Bucket { used: u32::MAX, ..bucket.current(self.now, HOUR) };
    }

    /// What comes before every call: it is counted, struck by a fault if one is due, and charged to the
    /// caller's limits.
    pub fn admit(
        &mut self,
        now: Timestamp,
        caller: &Caller,
        method: &str,
        template: &str,
    ) -> Result<Admission, ApiError> {
        self.advance(now);
        if !self.options.brief {
            *self.limits.calls.entry(format!("{method} {template}")).or_default() += 1;
        }
        let mut admission = Admission::default();
        match self.due_fault(method, template) {
            Some(Fault::Refuse(error)) => {
                let limit = error.headers.iter().any(|(name, _)| name == "retry-after");
                *(if limit {
                    &mut self.limits.struck.limited
                } else {
                    &mut self.limits.struck.refused
                }) += 1;
                return Err(error);
            }
            Some(Fault::Lost(status)) => {
                self.limits.struck.lost += 1;
                admission.lost = Some(status);
            }
            Some(Fault::Slow(delay)) => admission.delay = delay,
            None => {}
        }
        if let Some(limits) = self.options.rate_limits {
            let charged = self
                .charge_secondary(&limits, caller, method, template)
                .and_then(|()| self.charge_primary(&limits, caller, template));
            if charged.is_err() {
                self.limits.struck.limited += 1;
            }
            admission.headers = charged?;
        }
        Ok(admission)
    }

    /// A call in memory, for tests of the domain: [`GitHub::admit`], then `call`. A delay counts for
    /// nothing here.
    pub fn call<T>(
        &mut self,
        now: Timestamp,
        caller: &Caller,
        method: &str,
        template: &str,
        call: impl FnOnce(&mut Self) -> Result<T, ApiError>,
    ) -> Result<T, CallError> {
        let admission = self.admit(now, caller, method, template).map_err(CallError::Api)?;
        let answer = call(self).map_err(CallError::Api);
        match admission.lost {
            Some(status) => Err(CallError::Lost(status)),
            None => answer,
        }
    }

    /// Limit, use and end of the window of one resource, as `GET /rate_limit` tells. `None` where limits
    /// are off (GHES answers 404 then).
    pub fn quota(&self, caller: &Caller, resource: &'static str) -> Option<(u32, u32, Timestamp)> {
        let limits = self.options.rate_limits?;
        let bucket = self.limits.buckets.get(&(bucket_name(caller), resource)).copied();
        let bucket = bucket.unwrap_or_default().current(self.now, HOUR);
        let limit = resource_limit(&limits, resource);
        Some((limit, bucket.used.min(limit), bucket.opened + HOUR))
    }

    fn due_fault(&mut self, method: &str, template: &str) -> Option<Fault> {
        let matches = |pattern: &str, text: &str| pattern == "*" || pattern == text;
        let mut due = None;
        for rule in &mut self.limits.faults {
            if !matches(&rule.method, method) || !matches(&rule.template, template) {
                continue;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
            } else if rule.times > 0 && due.is_none() {
                rule.times -= 1;
                due = Some(rule.fault.clone());
            }
        }
        self.limits.faults.retain(|rule| rule.times > 0);
        due
    }

    fn charge_primary(
        &mut self,
        limits: &RateLimits,
        caller: &Caller,
        template: &str,
    ) -> Result<Vec<(String, String)>, ApiError> {
        let resource = resource(template);
        let limit = resource_limit(limits, resource);
        let now = self.now;
        let key = (bucket_name(caller), resource);
        let bucket = self.limits.buckets.entry(key).or_default();
        *bucket = bucket.current(now, HOUR);
        let refused = bucket.used >= limit;
        bucket.used = bucket.used.saturating_add(1);
        let used = bucket.used.min(limit);
        let headers = [
            ("limit", limit.to_string()),
            ("remaining", (limit - used).to_string()),
            ("used", used.to_string()),
            ("reset", (bucket.opened + HOUR).seconds().to_string()),
            ("resource", resource.to_string()),
        ];
        let headers = headers.map(|(name, value)| (format!("x-ratelimit-{name}"), value)).to_vec();
        if !refused {
            return Ok(headers);
        }
        let whose = match caller {
            Caller::Installation(id) => format!("installation ID {id}"),
            Caller::App | Caller::Personal => "user ID 583231".into(),
        };
        let message = format!("API rate limit exceeded for {whose}.");
        Err(ApiError { headers, ..ApiError::new(limits.status, message) })
    }

    fn charge_secondary(
        &mut self,
        limits: &RateLimits,
        caller: &Caller,
        method: &str,
        template: &str,
    ) -> Result<(), ApiError> {
        let now = self.now;
        let points = if matches!(method, "GET" | "HEAD" | "OPTIONS") { 1 } else { 5 };
        let who = bucket_name(caller);
        let mut charges = vec![(
            (format!("{who} {template}"), "points"),
            MINUTE,
            points,
            limits.points_per_minute,
        )];
        if template == endpoint::ACCESS_TOKENS {
            charges.push(((who, "tokens"), HOUR, 1, limits.tokens_per_hour));
        }
        for (key, window, points, limit) in charges {
            let bucket = self.limits.buckets.entry(key).or_default();
            *bucket = bucket.current(now, window);
            bucket.used = bucket.used.saturating_add(points);
            if bucket.used > limit {
                let left = window.saturating_sub(now.since(bucket.opened)).as_secs().max(1);
                let mut error = ApiError::new(
                    limits.status,
                    "You have exceeded a secondary rate limit. Please wait a few minutes before you \
                     try again.",
                );
                if limits.tells_retry_after {
                    error.headers.push(("retry-after".into(), left.to_string()));
                }
                return Err(error);
            }
        }
        Ok(())
    }
}

/// The resource that an endpoint is counted as, in GitHub's words.
fn resource(template: &str) -> &'static str {
    match template {
        endpoint::ORG_JIT | endpoint::REPO_JIT => "actions_runner_registration",
        _ => "core",
    }
}

fn resource_limit(limits: &RateLimits, resource: &str) -> u32 {
    match resource {
        "actions_runner_registration" => limits.registrations_per_hour,
        _ => limits.primary_per_hour,
    }
}

fn bucket_name(caller: &Caller) -> String {
    match caller {
        Caller::App => "app".into(),
        Caller::Installation(id) => format!("installation {id}"),
        Caller::Personal => "personal".into(),
    }
}
