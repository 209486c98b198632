//! What the system says of this machine and of a process, and which versions are measured.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::Serialize;

/// Crates whose versions matter to a function's size, start and memory.
const TOLD_OF: [&str; 9] = [
    "aws-config",
    "aws-sdk-dynamodb",
    "aws-sdk-ec2",
    "aws-sdk-sfn",
    "aws-sdk-sqs",
    "aws-sdk-ssm",
    "lambda_runtime",
    "octocrab",
    "tokio",
];

/// The machine that figures were taken on.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Model of its processors.
    pub cpu: String,
    /// How many of them.
    pub cores: usize,
    /// Share of their time that other work took just before the measurement, 0 to 1 (Linux).
    pub busy: Option<f64>,
}

/// How long other work is watched.
const WATCHED: Duration = Duration::from_secs(1);
/// Share of two processors that can go to other work without making times worthless.
const BUSY: f64 = 0.15;

impl Machine {
    /// This one, while nothing of the measurement runs.
    pub async fn this() -> Self {
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let before = times();
        tokio::time::sleep(WATCHED).await;
        Self {
            cpu: field(&cpu, "model name").unwrap_or(std::env::consts::ARCH).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            busy: before.zip(times()).and_then(|(before, after)| busy(before, after)),
        }
    }

    /// Whether other work wanted the processors: then times say little.
    pub fn is_busy(&self) -> bool {
        self.busy.is_some_and(|busy| busy > BUSY)
    }
}

/// Time of all processors since the start, and their idle time in it (proc(5), `/proc/stat`).
fn times() -> Option<(u64, u64)> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let times: Vec<u64> = line.split_whitespace().filter_map(|time| time.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; guests' time is in user's.
    Some((times.iter().take(8).sum(), times.get(3)? + times.get(4)?))
}

/// Share of the time between two readings that was not idle.
#[allow(clippy::cast_precision_loss, reason = "some hundred ticks")]
fn busy(before: (u64, u64), after: (u64, u64)) -> Option<f64> {
    let all = after.0.checked_sub(before.0).filter(|all| *all > 0)?;
    Some(1.0 - after.1.saturating_sub(before.1) as f64 / all as f64)
}

/// Resident memory of a process, and the most that it ever had, in bytes (`VmRSS`, `VmHWM`; Linux).
pub fn memory_of(process: u32) -> Option<(u64, u64)> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let bytes = |name: &str| {
        let kib = field(&status, name)?.strip_suffix("kB")?.trim();
        kib.parse::<u64>().ok().map(|kib| kib * 1024)
    };
    Some((bytes("VmRSS")?, bytes("VmHWM")?))
}

/// Has a process's peak counted from now (proc(5), `clear_refs`; Linux 4.0). Whether that could be done.
pub fn forget_peak_of(process: u32) -> bool {
    std::fs::write(format!("/proc/{process}/clear_refs"), "5").is_ok()
}

/// Time that the threads of a process have run so far (proc(5), `schedstat`; Linux).
pub fn cpu_time_of(process: u32) -> Option<Duration> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let mut sum = Duration::ZERO;
    for task in tasks.flatten() {
        // A thread that has just ended has nothing to read.
        let Ok(text) = std::fs::read_to_string(task.path().join("schedstat")) else { continue };
        sum += Duration::from_nanos(text.split_whitespace().next()?.parse().ok()?);
    }
    Some(sum)
}

/// Versions of what is measured: of the crates that matter, the compiler and the commit.
pub fn versions(root: &Path) -> BTreeMap<String, String> {
    let lock = std::fs::read_to_string(root.join("Cargo.lock")).unwrap_or_default();
    let mut versions = locked(&lock);
    versions.insert("ostler".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    let told = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).current_dir(root).output().ok()?;
        let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
        Some(text.trim().to_owned())
    };
    if let Some(rustc) = told("rustc", &["--version"])
        && let Some(version) = rustc.split_whitespace().nth(1)
    {
        versions.insert("rustc".to_owned(), version.to_owned());
    }
    // Not there in a tree without history.
    if let Some(commit) = told("git", &["describe", "--always", "--dirty"]) {
        versions.insert("commit".to_owned(), commit);
    }
    versions
}

/// The crates told of in a lock file.
fn locked(lock: &str) -> BTreeMap<String, String> {
    let quoted = |line: &str, key: &str| {
        line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"').map(str::to_owned)
    };
    let mut versions = BTreeMap::new();
    let mut lines = lock.lines();
    while let Some(line) = lines.next() {
        if let Some(name) = quoted(line, "name").filter(|name| TOLD_OF.contains(&name.as_str()))
            && let Some(version) = lines.next().and_then(|line| quoted(line, "version"))
        {
            versions.insert(name, version);
        }
    }
    versions
}

/// The value of `name: value` in a file of /proc.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crates_that_matter_are_found_in_the_lock_file() {
        let lock = "[[package]]\nname = \"tokio\"\nversion = \"1.54.1\"\n\n[[package]]\n\
                    name = \"tokio-util\"\nversion = \"0.7.0\"\n";
        assert_eq!(locked(lock), BTreeMap::from([("tokio".to_owned(), "1.54.1".to_owned())]));
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let all = versions(&root);
        for name in TOLD_OF.iter().chain(&["ostler"]) {
            assert!(all.contains_key(*name), "{name} is not in Cargo.lock");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_is_known_by_its_memory_and_the_time_that_it_ran() {
        let own = std::process::id();
        let (resident, peak) = memory_of(own).unwrap();
        assert!(resident > 0 && peak >= resident);
        assert!(cpu_time_of(own).unwrap() > Duration::ZERO);
        assert_eq!(memory_of(u32::MAX), None);
    }

    #[test]
    fn a_busy_machine_is_told_of() {
        assert_eq!(busy((100, 50), (300, 200)), Some(0.25));
        assert_eq!(busy((100, 50), (100, 50)), None);
        let machine = |busy| Machine { cpu: String::new(), cores: 2, busy };
        assert!(machine(Some(0.25)).is_busy());
        assert!(!machine(Some(0.02)).is_busy() && !machine(None).is_busy());
    }
}
