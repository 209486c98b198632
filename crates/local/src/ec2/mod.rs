//! EC2 as the local world serves it: the Query protocol in front of `ostler_sim::ec2`, with launch
//! templates and instance profiles read from moto, and instances booted through [`InstanceHost`].

use std::collections::BTreeMap;
use std::time::Duration;

use ostler_core::time::Timestamp;

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
