//! Instances: for each one that EC2 launches, the very user data it would run, as a group of processes on
//! this computer.
//!
//! What a machine has and a process lacks stands as shims in front of the `PATH`: the network (instance
//! metadata, two AWS services, GitHub), systemd, users, the power switch, and a clock that runs in world
//! time. `OSTLER_ROOT` keeps each machine's files apart. The scripts cannot tell the difference in anything
//! that Ostler relies on; what a job may do beyond that (root, containers, a second network) is not played.

mod imds;
pub mod release;

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use axum::Router;
use ostler_core::time::Timestamp;
use rand::Rng;
use rand::distr::Alphanumeric;

use crate::ec2::{BootRequest, InstanceHost};
use crate::time::WorldClock;

pub use release::runner_release;

/// Role credentials in a machine last as long as EC2's do, six hours.
const CREDENTIALS_SECONDS: i64 = 6 * 3600;

/// Where user data and the tools it calls are looked for behind the shims.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// In front of the `PATH` of every machine. `reboot` is `poweroff` by another name.
const SHIMS: [(&str, &str); 10] = [
    ("curl", include_str!("shims/curl")),
    ("date", include_str!("shims/date")),
    ("sleep", include_str!("shims/sleep")),
    ("systemctl", include_str!("shims/systemctl")),
    ("poweroff", include_str!("shims/poweroff")),
    ("reboot", include_str!("shims/poweroff")),
    ("runuser", include_str!("shims/runuser")),
    ("id", include_str!("shims/id")),
    ("useradd", include_str!("shims/useradd")),
    ("chown", include_str!("shims/chown")),
];

/// Kills every group that it was told of, once nobody is left to tell it more: machines must not outlive
/// the world, however that ends.
const LIFELINE: &str = r#"trap '' INT TERM HUP
while read -r sign group; do
  case $sign in +) groups[group]=1 ;; -) unset "groups[group]" ;; esac
done
for group in "${!groups[@]}"; do kill -KILL -- "-$group" 2>/dev/null; done"#;

/// What a [`Host`] needs to know.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// The world's clock.
    pub clock: WorldClock,
    /// `http://127.0.0.1:<port>`, where AWS, instance metadata and the power switch answer.
    pub edge_url: String,
    /// `http://127.0.0.1:<port>` of the GitHub server.
    pub github_url: String,
    /// Machines' disks and consoles are kept below it.
    pub state_dir: PathBuf,
    /// The one region whose services can be reached.
    pub region: String,
}

/// What an instance signs its requests with.
#[derive(Clone)]
pub struct Credentials {
    /// `instance-<instance id>`.
    pub access_key_id: String,
    /// Random for each machine.
    pub secret: String,
    /// Random for each machine.
    pub session_token: String,
    /// What policies call `${aws:userid}`: `<role id>:<instance id>`.
    pub user_id: String,
    /// When they stop working.
    pub expires_at: Timestamp,
}

/// Called with the id of an instance whose machine has powered itself off.
pub type PowerOff = Arc<dyn Fn(String) + Send + Sync>;

/// Runs machines.
pub struct Host {
    me: Weak<Host>,
    config: HostConfig,
    /// The real curl, behind the shim.
    curl: PathBuf,
    machines: Mutex<HashMap<String, Machine>>,
    lifeline: Mutex<Lifeline>,
    on_poweroff: OnceLock<PowerOff>,
}

struct Machine {
    tags: BTreeMap<String, String>,
    credentials: Option<Credentials>,
    /// IMDSv2's session token. One for the machine's life: nothing here depends on when it ends.
    token: String,
    /// When EC2 will take it, once that is known.
    spot_notice: Option<Timestamp>,
    /// Tells a delayed start whether it is still wanted.
    boots: u32,
    /// The leader of the group. Not waited for before the group is killed, so that its number stays ours.
    leader: Option<Child>,
}

struct Lifeline {
    child: Child,
    groups: Option<ChildStdin>,
}

impl Host {
    /// Lays out the state directory. Fails if that, `bash` or `curl` can't be had.
    pub fn new(config: HostConfig) -> io::Result<Arc<Self>> {
        let shims = config.state_dir.join("shims");
        fs::create_dir_all(&shims)?;
        for (name, text) in SHIMS {
            write_executable(&shims.join(name), text.as_bytes())?;
        }
        let mut child = Command::new("bash")
            .args(["-c", LIFELINE, "ostler-lifeline"])
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let groups = child.stdin.take();
        let curl = find("curl")?;
        Ok(Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            curl,
            config,
            machines: Mutex::default(),
            lifeline: Mutex::new(Lifeline { child, groups }),
            on_poweroff: OnceLock::new(),
        }))
    }

    /// Instance metadata and the power switch, to be nested under `/_instance`.
    pub fn router(self: &Arc<Self>) -> Router {
        imds::router(Arc::clone(self))
    }

    /// Sets who learns of machines that power themselves off. Only the first call counts.
    pub fn on_poweroff(&self, callback: PowerOff) {
        let _ = self.on_poweroff.set(callback);
    }

    /// What the instance signs with; `None` if there is no such machine, or it has no role.
    pub fn credentials(&self, instance_id: &str) -> Option<Credentials> {
        self.machines().get(instance_id)?.credentials.clone()
    }

    /// What the machine has printed so far, over all its boots.
    pub fn console(&self, instance_id: &str) -> String {
        let console = fs::read(self.home(instance_id).join("console.log")).unwrap_or_default();
        String::from_utf8_lossy(&console).into_owned()
    }

    /// The machine's disk: what `OSTLER_ROOT` is to its scripts.
    pub fn root(&self, instance_id: &str) -> PathBuf {
        self.home(instance_id).join("root")
    }

    /// Whether any process of the machine could still run.
    pub fn is_on(&self, instance_id: &str) -> bool {
        self.machines().get(instance_id).is_some_and(|machine| machine.leader.is_some())
    }

    /// Restarts a machine, its disk kept, as a job with the right to can.
    pub fn reboot(&self, instance_id: &str) {
        let Some(leader) = self.take_power(instance_id) else { return };
        self.bury(leader);
        let boots = self.machines().get(instance_id).map_or(0, |machine| machine.boots);
        if let Err(error) = self.start(instance_id, boots, None) {
            tracing::error!(instance_id, %error, "machine did not come back from its reboot");
        }
    }

    /// The machine's own `poweroff`: its processes are gone, its disk is left to EC2.
    fn powered_off(&self, instance_id: &str) {
        if let Some(leader) = self.take_power(instance_id) {
            self.bury(leader);
        }
        if let Some(callback) = self.on_poweroff.get() {
            callback(instance_id.to_owned());
        }
    }

    fn home(&self, instance_id: &str) -> PathBuf {
        self.config.state_dir.join(instance_id)
    }

    fn machines(&self) -> MutexGuard<'_, HashMap<String, Machine>> {
        self.machines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills everything in the machine, and cancels a start that is still to come. Gives what to bury.
    fn take_power(&self, instance_id: &str) -> Option<Child> {
        let mut machines = self.machines();
        let machine = machines.get_mut(instance_id)?;
        machine.boots += 1;
        let leader = machine.leader.take()?;
        kill_group(&leader);
        Some(leader)
    }

    /// Waits for a killed leader, which frees its number. Blocks, though not for long.
    fn bury(&self, mut leader: Child) {
        self.tell_lifeline('-', leader.id());
        let _ = leader.wait();
    }

    /// Does what blocks behind the caller's back where there is a runtime to do it.
    fn later(&self, work: impl FnOnce(&Self) + Send + 'static) {
        match (tokio::runtime::Handle::try_current(), self.me.upgrade()) {
            (Ok(runtime), Some(me)) => drop(runtime.spawn_blocking(move || work(&me))),
            _ => work(self),
        }
    }

    fn tell_lifeline(&self, sign: char, group: u32) {
        let mut lifeline = self.lifeline.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(groups) = &mut lifeline.groups
            && let Err(error) = writeln!(groups, "{sign} {group}")
        {
            tracing::warn!(%error, "machines may outlive the local world");
        }
    }

    /// Boots: with user data as cloud-init does the first time, without it what systemd has enabled.
    /// Nothing happens if the machine has been ended or started since `boots` was read.
    fn start(&self, instance_id: &str, boots: u32, user_data: Option<&[u8]>) -> io::Result<()> {
        let root = self.root(instance_id);
        // A boot finds an empty /run.
        let _ = fs::remove_dir_all(root.join("run"));
        let mut command = Command::new("bash");
        if let Some(text) = user_data {
            let scripts = root.join("var/lib/cloud/instance/scripts");
            fs::create_dir_all(&scripts)?;
            let script = scripts.join("part-001");
            write_executable(&script, text)?;
            command.arg(script);
        } else {
            command.args(["-c", "exec systemctl boot"]);
        }
        let console = console(&self.home(instance_id))?;
        let shims = self.config.state_dir.join("shims");
        command
            .env_clear()
            .env("PATH", format!("{}:{SYSTEM_PATH}", shims.display()))
            .env("HOME", "/root")
            .env("OSTLER_ROOT", &root)
            .env("OSTLER_CLOCK", self.config.clock.variable())
            .env("OSTLER_LOCAL_INSTANCE", instance_id)
            .env("OSTLER_LOCAL_EDGE", &self.config.edge_url)
            .env("OSTLER_LOCAL_GITHUB", &self.config.github_url)
            .env("OSTLER_LOCAL_REGION", &self.config.region)
            .env("OSTLER_LOCAL_CURL", &self.curl)
            .current_dir(&root)
            .stdin(Stdio::null())
            .stdout(console.try_clone()?)
            .stderr(console)
            .process_group(0);
        let mut machines = self.machines();
        let Some(machine) = machines.get_mut(instance_id).filter(|machine| machine.boots == boots)
        else {
            return Ok(());
        };
        let leader = command.spawn()?;
        self.tell_lifeline('+', leader.id());
        machine.leader = Some(leader);
        Ok(())
    }

    fn start_as_asked(&self, boot: &BootRequest, boots: u32) {
        let id = &boot.instance_id;
        let started = if !boot.first_boot {
            self.start(id, boots, None)
        } else if boot.user_data.starts_with(b"#!/bin/bash\n") {
            self.start(id, boots, Some(&boot.user_data))
        } else {
            // As cloud-init: what is no script is not run, and the machine idles.
            console(&self.home(id)).and_then(|mut to| writeln!(to, "user data is no bash script"))
        };
        if let Err(error) = started {
            tracing::error!(instance_id = %id, %error, "machine does not start");
        }
    }
}

impl InstanceHost for Host {
    fn boot(&self, boot: BootRequest) {
        let id = &boot.instance_id;
        let now = self.config.clock.now();
        let boots = {
            let mut machines = self.machines();
            let machine = machines.entry(id.clone()).or_insert_with(|| Machine {
                tags: BTreeMap::new(),
                credentials: None,
                token: random(56),
                spot_notice: None,
                boots: 0,
                leader: None,
            });
            if !boot.role_id.is_empty() {
                machine.credentials = Some(Credentials {
                    access_key_id: format!("instance-{id}"),
                    secret: random(40),
                    session_token: random(400),
                    user_id: format!("{}:{id}", boot.role_id),
                    expires_at: Timestamp::from_seconds(now.seconds() + CREDENTIALS_SECONDS),
                });
            }
            machine.tags.clone_from(&boot.tags);
            machine.boots += 1;
            machine.boots
        };
        if boot.dead {
            return;
        }
        let host = Weak::clone(&self.me);
        let delay = self.config.clock.real(boot.boot_delay);
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            if let Some(host) = host.upgrade() {
                let start = move || host.start_as_asked(&boot, boots);
                let _ = tokio::task::spawn_blocking(start).await;
            }
        });
    }

    fn terminate(&self, instance_id: &str) {
        let leader = self.take_power(instance_id);
        self.machines().remove(instance_id);
        let root = self.root(instance_id);
        self.later(move |host| {
            if let Some(leader) = leader {
                host.bury(leader);
            }
            if root.exists()
                && let Err(error) = fs::remove_dir_all(&root)
            {
                tracing::warn!(disk = %root.display(), %error, "the disk of an ended machine is left behind");
            }
        });
    }

    fn stop(&self, instance_id: &str) {
        if let Some(leader) = self.take_power(instance_id) {
            self.later(move |host| host.bury(leader));
        }
    }

    fn spot_notice(&self, instance_id: &str, at: Timestamp) {
        if let Some(machine) = self.machines().get_mut(instance_id) {
            machine.spot_notice = Some(at);
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let ids: Vec<String> = self.machines().keys().cloned().collect();
        for id in ids {
            self.terminate(&id);
        }
        let lifeline = self.lifeline.get_mut().unwrap_or_else(PoisonError::into_inner);
        lifeline.groups = None;
        let _ = lifeline.child.wait();
    }
}

fn console(home: &Path) -> io::Result<File> {
    fs::create_dir_all(home)?;
    OpenOptions::new().create(true).append(true).open(home.join("console.log"))
}

fn write_executable(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::write(path, bytes)?;
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

fn find(program: &str) -> io::Result<PathBuf> {
    SYSTEM_PATH
        .split(':')
        .map(|folder| Path::new(folder).join(program))
        .find(|path| path.is_file())
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("{program} is not installed in {SYSTEM_PATH}"),
            )
        })
}

fn random(length: usize) -> String {
    rand::rng().sample_iter(Alphanumeric).take(length).map(char::from).collect()
}

#[allow(unsafe_code, reason = "the standard library signals single processes only")]
fn kill_group(leader: &Child) {
    if let Ok(group) = i32::try_from(leader.id()) {
        // SAFETY: a plain system call. The leader has not been waited for, so the group is still its own.
        unsafe { libc::kill(-group, libc::SIGKILL) };
    }
}
