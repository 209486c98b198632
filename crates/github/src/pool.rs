//! Several Apps as one. Each has its own hourly quota, so each call, or each piece of work that belongs
//! together, goes by the App that has most of it left.
//!
//! What must hold: the choice comes before everything that is kept (tokens, connections), so nothing kept
//! pins work to an App that is used up; a JWT, the token that it bought and the calls with that token are
//! of one App; an App that GitHub has told to wait is not called before its time, whatever else is asked.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::Method;
use ostler_core::apps::AppCredential;
use ostler_core::ports::Clock;
use ostler_core::time::Timestamp;
use ostler_core::{Error, Result};

use crate::app::{App, Users, Whose};
use crate::reply::LONGEST_LIMIT;
use crate::transport::{Carried, Lost, Reply, Transport};

/// How long an App that was refused or limited is passed over while there is another one.
const COOLDOWN: Duration = Duration::from_secs(60);

/// Points that an App may spend at once and in a minute, by each process. GitHub takes 900 a minute for one
/// endpoint, 1 for a GET and 5 for what changes something (docs.github.com, "About secondary rate limits");
/// two processes of the janitor's confirmation, or two of any other kind, stay below that together.
const BURST: f64 = 100.0;
const POINTS_A_MINUTE: f64 = 400.0;

/// What GitHub counts by itself, each with a quota of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Nearly all.
    Core,
    /// Registrations of runners.
    Registration,
}

impl Resource {
    /// Of a call, by its path.
    pub fn of(path: &str) -> Self {
        if path.ends_with("/generate-jitconfig") { Self::Registration } else { Self::Core }
    }

    const fn index(self) -> usize {
        match self {
            Self::Core => 0,
            Self::Registration => 1,
        }
    }
}

/// An App's rate limit with one owner as GitHub said it last. GHES says nothing by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Calls an hour.
    pub limit: u64,
    /// Calls left.
    pub remaining: u64,
    /// When the count begins anew.
    pub reset: Timestamp,
}

impl Quota {
    /// As an answer tells it. A count that does not begin anew for hours is a mistake somewhere, and must not
    /// stop an App until the process ends.
    fn of(reply: &Reply, now: Timestamp) -> Option<Self> {
        let reset = i64::try_from(reply.number("x-ratelimit-reset")?).ok()?;
        Some(Self {
            limit: reply.number("x-ratelimit-limit")?,
            remaining: reply.number("x-ratelimit-remaining")?,
            reset: Timestamp::from_seconds(reset).min(now + LONGEST_LIMIT),
        })
    }
}

/// The App that was chosen for a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen(usize);

/// One or more Apps at one GitHub.
pub struct Pool<C> {
    members: Vec<Member<C>>,
    pub clock: Arc<C>,
    /// What is known of owners, whichever App has asked.
    pub users: Arc<Users>,
    /// Share of a quota, in per cent, that is left to more important work.
    reserve: u64,
    /// Where equals begin: not every process is to take the same App.
    start: usize,
}

struct Member<C> {
    app: App<C>,
    id: u64,
    standing: Mutex<Standing>,
}

/// What an App has left.
#[derive(Default)]
struct Standing {
    /// With each owner, in lower case: GitHub counts the calls of each installation by themselves
    /// (docs.github.com, "Rate limits for GitHub Apps"), so one that is used up costs the others nothing.
    owners: HashMap<String, Allowance>,
    /// GitHub has said "not before" to the App as a whole.
    limited_until: Timestamp,
    /// Others are preferred until then, whoever's the work is.
    cooling_until: Timestamp,
    bucket: Bucket,
}

/// What an App has left with one owner.
#[derive(Clone, Copy, Default)]
struct Allowance {
    quotas: [Option<Quota>; 2],
    /// GitHub has said "not before".
    limited_until: [Timestamp; 2],
    /// Others are preferred until then.
    cooling_until: Timestamp,
}

impl Allowance {
    /// The quota as far as it still counts: after its reset nothing is known.
    fn quota(&self, resource: Resource, now: Timestamp) -> Option<Quota> {
        self.quotas[resource.index()].filter(|quota| quota.reset > now)
    }
}

impl Standing {
    fn with(&self, owner: &str) -> Allowance {
        self.owners.get(&owner.to_lowercase()).copied().unwrap_or_default()
    }

    fn with_mut(&mut self, owner: &str) -> &mut Allowance {
        self.owners.entry(owner.to_lowercase()).or_default()
    }

    /// Until when it may not be called; `None` if it may.
    fn limited(
        &self,
        owner: &str,
        resource: Resource,
        reserve: u64,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let own = self.with(owner);
        let mut until = self.limited_until.max(own.limited_until[resource.index()]);
        if let Some(quota) = own.quota(resource, now)
            && quota.remaining.saturating_mul(100) < quota.limit.saturating_mul(reserve)
        {
            until = until.max(quota.reset);
        }
        (until > now).then_some(until)
    }

    /// Until when others are preferred.
    fn cooling(&self, owner: &str) -> Timestamp {
        self.cooling_until.max(self.with(owner).cooling_until)
    }

    /// What an answer tells.
    fn note(&mut self, owner: &str, reply: &Reply, resource: Resource, now: Timestamp) {
        let (quota, limit) = (Quota::of(reply, now), reply.limit(now));
        let own = self.with_mut(owner);
        if quota.is_some() {
            own.quotas[resource.index()] = quota;
        }
        let used_up = quota.filter(|quota| quota.remaining == 0 && quota.reset > now);
        match (limit, used_up) {
            // The reset is in whole seconds.
            (_, Some(quota)) => {
                let until = limit.map_or(quota.reset + Duration::from_secs(1), |wait| now + wait);
                own.limited_until[resource.index()] = until;
                own.cooling_until = now + COOLDOWN;
            }
            // A secondary limit is for the App as a whole.
            (Some(wait), None) => {
                self.limited_until = now + wait;
                self.cooling_until = now + COOLDOWN;
            }
            // Not admitted there, though it could sign in: a permission that nobody has accepted yet. Its quota
            // stays full by that, and it would be chosen again and again.
            (None, None) if matches!(reply.status, 401 | 403) => {
                own.cooling_until = now + COOLDOWN;
            }
            (None, None) => {}
        }
    }
}

/// A token bucket.
#[derive(Clone, Copy)]
struct Bucket {
    points: f64,
    filled: Timestamp,
}

impl Default for Bucket {
    fn default() -> Self {
        Self { points: BURST, filled: Timestamp::default() }
    }
}

impl Bucket {
    /// Takes points, on credit if need be, and says how long to wait before they are used.
    fn take(&mut self, points: f64, now: Timestamp) -> Duration {
        let passed = now.since(self.filled).as_secs_f64();
        self.points = (self.points + passed * POINTS_A_MINUTE / 60.0).min(BURST) - points;
        self.filled = self.filled.max(now);
        Duration::from_secs_f64((-self.points).max(0.0) * 60.0 / POINTS_A_MINUTE)
    }
}

impl<C: Clock> Pool<C> {
    /// Apps at the GitHub with that API address; the first is the one whose webhooks come. Nothing is sent
    /// or opened yet.
    pub fn new(api: &str, apps: &[AppCredential], clock: C) -> Result<Self> {
        let (clock, users) = (Arc::new(clock), Arc::<Users>::default());
        let transport = Arc::new(Transport::new(api.to_owned()));
        let mut members: Vec<Member<C>> = Vec::new();
        for credential in apps {
            if members.iter().any(|member| member.id == credential.id) {
                // Twice the same App has no more quota, and would be called by the one when the other may not.
                tracing::warn!(app = credential.id, "an App that is listed twice counts once");
                continue;
            }
            let of = (Arc::clone(&transport), Arc::clone(&users), Arc::clone(&clock));
            match App::new(credential, of) {
                Ok(app) => {
                    members.push(Member { app, id: credential.id, standing: Mutex::default() });
                }
                // The first is what everything hangs on; without another one work goes on.
                Err(error) if members.is_empty() => return Err(error),
                Err(error) => {
                    tracing::warn!(app = credential.id, %error, "an additional App is left out")
                }
            }
        }
        let random =
            RandomState::new().hash_one(0) % u64::try_from(members.len().max(1)).unwrap_or(1);
        let start = usize::try_from(random).unwrap_or_default();
        Ok(Self { members, clock, users, reserve: 0, start })
    }

    /// The same, leaving a share of every quota, in per cent, to others.
    pub fn leaving(self, reserve: u64) -> Self {
        Self { reserve, ..self }
    }

    #[cfg(test)]
    pub fn starting_with(self, start: usize) -> Self {
        Self { start, ..self }
    }

    #[cfg(test)]
    pub fn start(&self) -> usize {
        self.start
    }

    #[cfg(test)]
    pub fn over(mut self, transport: Transport) -> Self {
        let transport = Arc::new(transport);
        self.members.iter_mut().for_each(|it| it.app.transport = Arc::clone(&transport));
        self
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Whether GitHub has refused an App's own signature: its key may have been rotated.
    pub fn key_refused(&self) -> bool {
        self.members.iter().any(|member| member.app.is_refused())
    }

    /// The quota of each App that GitHub has told one of, by its id: with the owner where least is left.
    pub fn quotas(&self) -> Vec<(u64, Quota)> {
        let now = self.now();
        let least = |standing: &Standing| {
            let known = standing.owners.values().filter_map(|own| own.quotas[0]);
            known.min_by_key(|quota| (quota.reset <= now, quota.remaining))
        };
        let quota = |member: &Member<C>| Some((member.id, least(&member.standing())?));
        self.members.iter().filter_map(quota).collect()
    }

    /// Chooses the App with the most quota left and signs in with the owner; if that fails, another one,
    /// each at most once. The error is the last one's.
    pub async fn choose(&self, whose: Whose<'_>, resource: Resource) -> Result<Chosen> {
        let mut tried = vec![false; self.members.len()];
        let mut last = None;
        while let Some(index) = self.pick(whose.owner, resource, &tried) {
            tried[index] = true;
            let member = &self.members[index];
            match member.app.sign_in(self.seen_by(index, whose)).await {
                Ok(()) => return Ok(Chosen(index)),
                Err(error) => {
                    tracing::warn!(app = member.id, %error, "an App can't sign in");
                    let now = self.now();
                    let mut standing = member.standing();
                    standing.with_mut(whose.owner).cooling_until = now + COOLDOWN;
                    if let Error::Later { after, .. } = &error {
                        standing.limited_until = now + *after;
                        standing.cooling_until = now + COOLDOWN;
                    }
                    last = Some(error);
                }
            }
        }
        Err(last.unwrap_or_else(|| self.all_limited(whose.owner, resource)))
    }

    /// The best of those that were not tried yet and may be called: not cooling down before cooling down,
    /// then the most calls left (what is not known counts as without limit), then the next in turn.
    fn pick(&self, owner: &str, resource: Resource, tried: &[bool]) -> Option<usize> {
        let (now, count) = (self.now(), self.members.len());
        (0..count)
            .map(|step| (self.start + step) % count)
            .enumerate()
            .filter(|(_, index)| !tried[*index])
            .filter_map(|(step, index)| {
                let standing = self.members[index].standing();
                if standing.limited(owner, resource, self.reserve, now).is_some() {
                    return None;
                }
                let quota = standing.with(owner).quota(resource, now);
                let left = quota.map_or(u64::MAX, |quota| quota.remaining);
                Some(((standing.cooling(owner) <= now, left, Reverse(step)), index))
            })
            .max_by_key(|(rank, _)| *rank)
            .map(|(_, index)| index)
    }

    fn all_limited(&self, owner: &str, resource: Resource) -> Error {
        let now = self.now();
        let until = self
            .members
            .iter()
            .filter_map(|member| member.standing().limited(owner, resource, self.reserve, now))
            .min()
            .unwrap_or(now);
        let reason = match self.reserve {
            0 => format!("GitHub's rate limit with {owner} is used up for every App"),
            share => {
                format!(
                    "less than {share} % of GitHub's rate limit with {owner} is left for every App"
                )
            }
        };
        Error::Later { after: until.since(now).max(Duration::from_secs(1)), reason }
    }

    /// The installation that an event names is the first App's; others look theirs up.
    fn seen_by<'a>(&self, index: usize, whose: Whose<'a>) -> Whose<'a> {
        let installation = whose.installation.filter(|_| index == 0);
        Whose { installation, ..whose }
    }

    /// Sends a request by the App that was chosen, at the pace that GitHub wants, and notes what the answer
    /// says of the limits.
    pub async fn send(
        &self,
        Chosen(index): Chosen,
        whose: Whose<'_>,
        method: &Method,
        path: &str,
        carried: Carried<'_>,
    ) -> Result<std::result::Result<Reply, Lost>> {
        let member = &self.members[index];
        let points = if method == Method::GET { 1.0 } else { 5.0 };
        let wait = member.standing().bucket.take(points, self.now());
        if !wait.is_zero() {
            tokio::time::sleep(self.clock.real(wait)).await;
        }
        let sent = member.app.call(self.seen_by(index, whose), method, path, carried).await;
        if let Ok(Ok(reply)) = &sent {
            member.standing().note(whose.owner, reply, Resource::of(path), self.now());
        }
        sent
    }

    /// One call, by the best App. One that is limited has done nothing, so it goes by another App at once,
    /// if there is one.
    pub async fn call(
        &self,
        whose: Whose<'_>,
        method: &Method,
        path: &str,
        carried: Carried<'_>,
    ) -> Result<std::result::Result<Reply, Lost>> {
        let resource = Resource::of(path);
        let mut others = self.members.len();
        loop {
            let chosen = self.choose(whose, resource).await?;
            let sent = self.send(chosen, whose, method, path, carried).await?;
            others = others.saturating_sub(1);
            let limited = sent.as_ref().is_ok_and(|reply| reply.limit(self.now()).is_some());
            let none_tried = vec![false; self.members.len()];
            if !limited || others == 0 || self.pick(whose.owner, resource, &none_tried).is_none() {
                return Ok(sent);
            }
        }
    }

    /// As [`Self::call`] for a GET: without an answer nothing is known, and it may be asked again.
    pub async fn get(&self, whose: Whose<'_>, path: &str) -> Result<Reply> {
        let sent = self.call(whose, &Method::GET, path, Carried::Nothing).await?;
        sent.map_err(|Lost(why)| Error::Transient(why))
    }

    /// One call about what belongs to the first App itself: it is the one whose webhooks come.
    pub async fn as_first_app(&self, method: Method, path: &str) -> Result<Reply> {
        let now = self.now();
        let Some(first) = self.members.first() else {
            return Err(Error::Permanent("there is no App".into()));
        };
        let reply = first.app.as_app(method, path).await?;
        match reply.limit(now) {
            Some(after) => {
                Err(Error::Later { after, reason: format!("{path}: {}", reply.words()) })
            }
            None => Ok(reply),
        }
    }

    /// Whether an App is installed for that very repository; `false` only if GitHub says so to each.
    pub async fn installed(&self, whose: Whose<'_>) -> Result<bool> {
        let mut failure = None;
        for member in &self.members {
            match member.app.installed(whose).await {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(false), Err)
    }
}

impl<C> Member<C> {
    fn standing(&self) -> MutexGuard<'_, Standing> {
        // No panic leaves it half-written.
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_a_burst_and_then_its_rate() {
        let mut now = Timestamp::from_seconds(1_000_000);
        let mut bucket = Bucket::default();
        let waits: Vec<_> = (0..100).map(|_| bucket.take(1.0, now)).collect();
        assert!(waits.iter().all(Duration::is_zero));
        assert_eq!(bucket.take(1.0, now), Duration::from_millis(150));
        assert_eq!(
            bucket.take(5.0, now),
            Duration::from_millis(900),
            "and whoever comes next, later"
        );
        now = now + Duration::from_millis(900);
        assert_eq!(bucket.take(1.0, now), Duration::from_millis(150));
        // A minute at full speed is what a minute may have, and never more than GitHub takes of two.
        let mut spent = 0;
        let end = now + Duration::from_secs(60);
        while now < end {
            now = now + bucket.take(1.0, now);
            spent += 1;
        }
        assert!((395..=405).contains(&spent), "{spent}");
        const { assert!(BURST + POINTS_A_MINUTE <= 900.0 / 1.8) };
        now = now + Duration::from_secs(3600);
        assert_eq!((0..100).map(|_| bucket.take(1.0, now)).sum::<Duration>(), Duration::ZERO);
        assert!(!bucket.take(1.0, now).is_zero(), "an idle hour saves up no more than a burst");
    }
}
