//! A share of one processor, as a Lambda function of less than 1,769 MB has it: a quota in a control group.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// In each such period a process may run for its share of it, ms. Lambda does not say which period it uses; with a
/// longer one short events would never feel the quota.
const PERIOD_MS: f64 = 20.0;
/// Where control groups are (cgroups(7)); the second is of version 1.
const ROOTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/cpu"];

/// A control group of its own, removed in the end.
#[derive(Debug)]
pub struct CpuShare {
    group: PathBuf,
    procs: PathBuf,
}

impl CpuShare {
    /// `share` of one processor, above 0. The error says why there is none: mostly, that this needs root.
    pub fn new(share: f64) -> anyhow::Result<Self> {
        let unified = Path::new(ROOTS[0]).join("cgroup.controllers").exists();
        let root = Path::new(ROOTS[usize::from(!unified)]);
        let group = root.join(format!("ostler-bench-{}", std::process::id()));
        let write = |folder: &Path, file: &str, text: String| {
            let path = folder.join(file);
            std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))
        };
        if !group.exists() {
            std::fs::create_dir(&group).with_context(|| format!("make {}", group.display()))?;
        }
        // From here on it is removed on every way out.
        let share_of = Self { procs: group.join("cgroup.procs"), group };
        let quota = format!("{:.0}", PERIOD_MS * 1000.0 * share);
        let period = format!("{:.0}", PERIOD_MS * 1000.0);
        if unified {
            write(root, "cgroup.subtree_control", "+cpu".to_owned())?;
            write(&share_of.group, "cpu.max", format!("{quota} {period}"))?;
        } else {
            write(&share_of.group, "cpu.cfs_period_us", period)?;
            write(&share_of.group, "cpu.cfs_quota_us", quota)?;
        }
        Ok(share_of)
    }

    /// The file that a process joins by.
    pub fn procs(&self) -> &Path {
        &self.procs
    }
}

impl Drop for CpuShare {
    fn drop(&mut self) {
        // Processes still in it keep it; the next share of this run uses it again.
        let _ = std::fs::remove_dir(&self.group);
    }
}
