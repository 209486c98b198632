//! The moto server behind the edge: a Python process that ends with this one.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};

use crate::process;
use crate::time::WorldClock;

/// Importing all of moto takes 2 to 4 s, more on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(90);

/// Our own launcher, which mends moto; written out at start so that an installed binary needs no sources.
const LAUNCHER: &str = include_str!("launcher.py");

/// A running moto server.
pub struct Moto {
    child: Child,
    /// The launcher ends when this closes.
    _alive: ChildStdin,
    url: String,
}

impl Moto {
    /// Starts moto with the Python of a virtual environment. `edge_port` is where its Step Functions
    /// calls functions. Its output goes to `moto.log` in `state_dir`.
    pub async fn start(
        venv: &Path,
        state_dir: &Path,
        edge_port: u16,
        clock: WorldClock,
    ) -> anyhow::Result<Self> {
        let python = venv.join("bin/python");
        if !python.exists() {
            bail!(
                "{} is missing: run `make setup`, or name a virtual environment in OSTLER_VENV",
                python.display()
            );
        }
        let script = state_dir.join("moto_launcher.py");
        std::fs::write(&script, LAUNCHER).with_context(|| format!("write {}", script.display()))?;
        let log = state_dir.join("moto.log");
        let errors =
            std::fs::File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let mut command = Command::new(&python);
        command
            .arg("-u")
            .arg(&script)
            .env("MOTO_PORT", edge_port.to_string())
            .env("OSTLER_CLOCK", clock.variable())
            .env("AWS_DEFAULT_REGION", crate::aws::REGION)
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env("PYTHONWARNINGS", "ignore")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::from(errors));
        let mut child = process::tie(&mut command)
            .spawn()
            .with_context(|| format!("start moto with {}", python.display()))?;
        let (Some(alive), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("moto's process has no standard input and output");
        };
        let mut lines = BufReader::new(stdout).lines();
        let first = tokio::time::timeout(START_TIMEOUT, lines.next_line())
            .await
            .with_context(|| {
                format!(
                    "moto did not start in {} s; see {}",
                    START_TIMEOUT.as_secs(),
                    log.display()
                )
            })?
            .context("read moto's first line")?;
        let Some(port) = first.and_then(|line| line.trim().parse::<u16>().ok()) else {
            bail!(
                "moto ended at once; see {} (is `pip install moto[server,all]` done?)",
                log.display()
            );
        };
        // What it prints later has no reader; an unread pipe would block it one day.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self { child, _alive: alive, url: format!("http://127.0.0.1:{port}") })
    }

    /// Its address, without a slash at the end.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Ends it.
    pub async fn stop(mut self) {
        process::kill_group(&self.child);
        let _ = self.child.wait().await;
    }
}

/// The virtual environment with moto and the AWS CLI: `OSTLER_VENV`, else `.venv` at the repository's root.
pub fn default_venv() -> PathBuf {
    std::env::var_os("OSTLER_VENV")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv"), PathBuf::from)
}
