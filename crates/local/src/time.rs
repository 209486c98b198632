//! One clock for the whole local world: real time, stretched by a factor.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ostler_core::time::Timestamp;

/// World time = `epoch + (real now - epoch) * scale`, so that hours play in seconds and every component
/// (functions, state machine, queues, EC2, GitHub) agrees on the hour.
#[derive(Clone, Copy, Debug)]
pub struct WorldClock {
    /// Real instant at which world time equals real time, seconds since 1970.
    epoch_seconds: f64,
    /// World seconds per real second, at least 1.
    scale: f64,
}

impl WorldClock {
    /// A clock that starts now. `scale` is in world seconds per real second; values below 1 count as 1.
    pub fn starting_now(scale: f64) -> Self {
        Self { epoch_seconds: real_seconds(), scale: scale.max(1.0) }
    }

    /// The value of `OSTLER_CLOCK` that gives a process this clock.
    pub fn variable(&self) -> String {
        format!("{}@{}", self.epoch_seconds, self.scale)
    }

    /// World seconds per real second.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// World time now.
    pub fn now(&self) -> Timestamp {
        let seconds = self.epoch_seconds + (real_seconds() - self.epoch_seconds) * self.scale;
        #[allow(
            clippy::cast_possible_truncation,
            reason = "milliseconds fit i64 for 292 million years"
        )]
        Timestamp::from_millis((seconds * 1000.0) as i64)
    }

    /// The real time that `world` takes to pass.
    pub fn real(&self, world: Duration) -> Duration {
        world.div_f64(self.scale)
    }

    /// Waits until `world` has passed in world time.
    pub async fn sleep(&self, world: Duration) {
        tokio::time::sleep(self.real(world)).await;
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "the one place where the local world reads the real clock"
)]
fn real_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
