//! EC2 as the local world serves it: the Query protocol in front of [`ostler_sim::ec2`], with launch
//! templates, instance profiles and subnets read from moto, where CloudFormation makes them, and
//! instances booted through [`InstanceHost`]. What moto has of instances is never asked.

mod parameters;
mod plane;
mod templates;
#[cfg(test)]
mod tests;
mod write;

use std::collections::BTreeMap;
use std::time::Duration;

use ostler_core::time::Timestamp;
use serde::{Deserialize, Serialize};

pub use plane::{Ec2Plane, Listener};

/// Runs and ends the machines under instances. Both calls return at once; the work goes on behind.
pub trait InstanceHost: Send + Sync {
    /// Starts a machine. Called once when an instance is launched, and again when a stopped one is
    /// started: its disk is kept, and cloud-init does not run the user data a second time.
    fn boot(&self, boot: BootRequest);

    /// Takes the power from a machine, as terminate and a spot interruption do. Ending one that has
    /// ended, or was never booted, does nothing.
    fn terminate(&self, instance_id: &str);

    /// Asks a machine to shut down, keeping its disk. Hosts without disks may end it.
    fn stop(&self, instance_id: &str) {
        self.terminate(instance_id);
    }

    /// EC2 will take the machine at that time (`spot/instance-action` of the metadata service).
    fn spot_notice(&self, _instance_id: &str, _at: Timestamp) {}
}

/// What a machine is told at its start.
#[derive(Clone, Debug)]
pub struct BootRequest {
    /// `i-` and 17 hexadecimal digits.
    pub instance_id: String,
    /// The user data of the launch template, base64 taken off.
    pub user_data: Vec<u8>,
    /// The instance's tags: the template's and the request's, merged.
    pub tags: BTreeMap<String, String>,
    /// Region of the request, e.g. `us-east-1`.
    pub region: String,
    /// Unique id of the role in the instance profile (`AROA…`); empty if there is no profile.
    pub role_id: String,
    /// `x86_64` or `arm64`, as the image says.
    pub architecture: String,
    /// World time between the launch and the first line of the user data.
    pub boot_delay: Duration,
    /// EC2 shows such an instance as running, but nothing in it ever starts.
    pub dead: bool,
    /// `false` if the instance was stopped before and is started again.
    pub first_boot: bool,
}

/// An answer of the Query protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// XML, `text/xml;charset=UTF-8`.
    pub body: String,
}

/// An instance as tests and the status command see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceView {
    /// `i-` and 17 hexadecimal digits.
    pub instance_id: String,
    /// `pending`, `running`, `stopping`, `stopped`, `shutting-down` or `terminated`.
    pub state: String,
    /// Why it stopped or ended: EC2's `StateReason.Code`; empty while it runs.
    pub state_reason: String,
    /// E.g. `m7i.large`.
    pub instance_type: String,
    /// Whether it was bought on the spot market.
    pub spot: bool,
    /// When it was launched, or last started.
    pub launched_at: Timestamp,
    /// When it ended; `None` until then.
    pub ended_at: Option<Timestamp>,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
}

/// What the world is told to do to instances; also the JSON of the edge's admin interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Ec2Fault {
    /// Launches that match are refused, inside a 200.
    Refuse {
        /// EC2's code, e.g. `InsufficientInstanceCapacity`.
        code: String,
        /// EC2's sentence; one is made up if there is none.
        message: Option<String>,
        /// `spot` or `on-demand`; any if there is none, as below.
        market: Option<MarketName>,
        /// E.g. `m7i.large`.
        instance_type: Option<String>,
        /// E.g. `us-east-1a`.
        zone: Option<String>,
        /// `subnet-…`.
        subnet: Option<String>,
        /// For how many CreateFleet calls that meet it; for ever if there is none.
        times: Option<u32>,
    },
    /// At most so many instances at a time in each pool that matches.
    Capacity {
        /// So many.
        instances: u32,
        /// See [`Ec2Fault::Refuse`].
        market: Option<MarketName>,
        /// See [`Ec2Fault::Refuse`].
        instance_type: Option<String>,
        /// See [`Ec2Fault::Refuse`].
        zone: Option<String>,
    },
    /// vCPUs that may run at a time, by market; no limit where there is none.
    Quota {
        /// On demand.
        on_demand: Option<u32>,
        /// Spot.
        spot: Option<u32>,
    },
    /// The next launches go wrong.
    Launches {
        /// How.
        fate: Fate,
        /// How many; one if there is none.
        times: Option<usize>,
        /// World seconds to the user data, for [`Fate::Slow`].
        seconds: Option<u64>,
    },
    /// A spot instance gets its two minutes' notice.
    Interrupt {
        /// `i-…`.
        instance: String,
    },
    /// Ends all rules, shortages and quotas.
    Clear,
}

/// How an instance is bought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MarketName {
    /// `on-demand`.
    OnDemand,
    /// `spot`.
    Spot,
}

/// What goes wrong with a launch that succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// Runs, and nothing in it starts.
    Dead,
    /// Starts late.
    Slow,
    /// Stays pending.
    Stuck,
    /// Shuts down at once: `Client.InternalError`.
    Dies,
}
