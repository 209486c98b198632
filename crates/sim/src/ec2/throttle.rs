//! Request rates: token buckets, one per action (EC2 Developer Guide, "Request throttling").

use std::collections::BTreeMap;

use ostler_core::time::Timestamp;

use super::{Ec2, Fault};

/// A bucket's size and how fast it fills.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Requests that may come at once.
    pub burst: f64,
    /// Requests a second in the long run.
    pub per_second: f64,
}

/// The account's rates. AWS shows an account's own only on request; these are the documented classes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throttle {
    /// Calls that read, each action by itself.
    pub read: Rate,
    /// Calls that read with neither ids, filters nor page size.
    pub read_all: Rate,
    /// Calls that change something, each action by itself.
    pub change: Rate,
    /// Instances launched. Documented for RunInstances; that instant fleets draw on it, and answer with
    /// `RequestLimitExceeded` inside a 200, is seen in aws/karpenter-provider-aws#8936.
    pub launch: Rate,
}

impl Default for Throttle {
    fn default() -> Self {
        Self {
            read: Rate { burst: 100.0, per_second: 20.0 },
            read_all: Rate { burst: 50.0, per_second: 10.0 },
            change: Rate { burst: 50.0, per_second: 5.0 },
            launch: Rate { burst: 1000.0, per_second: 2.0 },
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Read,
    ReadAll,
    Change,
    Launch,
}

#[derive(Default)]
pub(super) struct Buckets {
    tokens: BTreeMap<&'static str, (f64, Timestamp)>,
    refused: BTreeMap<&'static str, u64>,
}

impl Ec2 {
    /// How often each action was refused for its rate; `launch` counts machines.
    pub fn throttled(&self) -> &BTreeMap<&'static str, u64> {
        &self.buckets.refused
    }

    /// Takes one token of the action's bucket, or fails as EC2 does.
    pub(super) fn admit(
        &mut self,
        now: Timestamp,
        action: &'static str,
        kind: Kind,
    ) -> Result<(), Fault> {
        let Some(throttle) = self.options.throttle else { return Ok(()) };
        let rate = match kind {
            Kind::Read => throttle.read,
            Kind::ReadAll => throttle.read_all,
            Kind::Change => throttle.change,
            Kind::Launch => throttle.launch,
        };
        let (tokens, filled) = self.buckets.tokens.entry(action).or_insert((rate.burst, now));
        *tokens = (*tokens + now.since(*filled).as_secs_f64() * rate.per_second).min(rate.burst);
        *filled = now;
        if *tokens < 1.0 {
            *self.buckets.refused.entry(action).or_default() += 1;
            return Err(Fault::new("RequestLimitExceeded", "Request limit exceeded."));
        }
        *tokens -= 1.0;
        Ok(())
    }
}
