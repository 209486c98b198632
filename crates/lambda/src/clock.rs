//! The only place of the functions that reads the real clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ostler_core::ports::Clock;
use ostler_core::time::Timestamp;

/// Real time, or in the local world the time of that world:
/// `epoch + (real now - epoch) * scale`, from `OSTLER_CLOCK=<epoch seconds>@<scale>`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SystemClock {
    /// Epoch (seconds since 1970) and scale (world seconds per real second); `None` for real time.
    world: Option<(f64, f64)>,
}

impl SystemClock {
    /// Real time.
    pub const REAL: Self = Self { world: None };

    /// From the values of `OSTLER_CLOCK` and `AWS_ENDPOINT_URL`. A stretched clock is for the local world
    /// alone: in an AWS account it would make every limit and time-out wrong, so it is refused unless the
    /// endpoint is on loopback.
    pub fn from_variables(clock: Option<&str>, endpoint: Option<&str>) -> Result<Self, String> {
        let Some(clock) = clock.filter(|text| !text.is_empty()) else { return Ok(Self::REAL) };
        if !endpoint.is_some_and(is_loopback) {
            return Err(
                "OSTLER_CLOCK is for the local world alone and needs AWS_ENDPOINT_URL on loopback \
                        (127.0.0.0/8, ::1 or localhost); remove OSTLER_CLOCK"
                    .into(),
            );
        }
        let numbers = clock
            .split_once('@')
            .and_then(|(epoch, scale)| {
                Some((epoch.parse::<f64>().ok()?, scale.parse::<f64>().ok()?))
            })
            .filter(|(epoch, scale)| {
                epoch.is_finite() && *epoch >= 0.0 && (0.001..=1e6).contains(scale)
            });
        match numbers {
            Some(world) => Ok(Self { world: Some(world) }),
            None => Err(format!("OSTLER_CLOCK '{clock}' must be <epoch seconds>@<scale>")),
        }
    }

    fn at(self, real: Duration) -> Timestamp {
        let Some((epoch, scale)) = self.world else {
            return Timestamp::from_millis(i64::try_from(real.as_millis()).unwrap_or(i64::MAX));
        };
        #[allow(clippy::cast_possible_truncation, reason = "a cast of f64 to i64 saturates")]
        Timestamp::from_millis(((epoch + (real.as_secs_f64() - epoch) * scale) * 1000.0) as i64)
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        self.at(since_1970())
    }

    fn real(&self, span: Duration) -> Duration {
        self.world.map_or(span, |(_, scale)| span.div_f64(scale))
    }
}

/// Real time since 1970: deadlines of invocations are real whatever the world's clock says.
#[allow(
    clippy::disallowed_methods,
    reason = "the one place of the functions that reads the real clock"
)]
pub(crate) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Whether an address is on this machine, by its text alone: no name is looked up.
fn is_loopback(address: &str) -> bool {
    let Some((_, rest)) = address.split_once("://") else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return false;
    }
    let host = match authority.strip_prefix('[') {
        Some(v6) => v6.split_once(']').map_or("", |(host, _)| host),
        None => authority.rsplit_once(':').map_or(authority, |(host, _)| host),
    };
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: Option<&str> = Some("http://127.0.0.1:5555");

    #[test]
    fn world_time_is_stretched_real_time() {
        let clock = SystemClock::from_variables(Some("1000.5@60"), LOCAL).unwrap();
        assert_eq!(clock.at(Duration::from_millis(1_000_500)), Timestamp::from_millis(1_000_500));
        assert_eq!(clock.at(Duration::from_millis(1_001_500)), Timestamp::from_millis(1_060_500));
        assert_eq!(clock.real(Duration::from_secs(60)), Duration::from_secs(1));
        assert_eq!(SystemClock::REAL.real(Duration::from_secs(60)), Duration::from_secs(60));
        assert_eq!(SystemClock::REAL.at(Duration::from_secs(7)), Timestamp::from_seconds(7));
        assert!(SystemClock::REAL.now() > Timestamp::parse("2026-01-01T00:00:00Z").unwrap());
    }

    #[test]
    fn a_stretched_clock_needs_an_endpoint_on_loopback() {
        for endpoint in
            ["http://127.0.0.1:5555", "http://127.9.9.9/x", "http://localhost", "http://[::1]:1"]
        {
            assert!(
                SystemClock::from_variables(Some("1@60"), Some(endpoint)).is_ok(),
                "{endpoint}"
            );
        }
        for endpoint in [
            None,
            Some(""),
            Some("127.0.0.1:5555"),
            Some("https://dynamodb.eu-west-1.amazonaws.com"),
            Some("http://127.0.0.1.example.com"),
            Some("http://localhost.example.com:80"),
            Some("http://example.com/127.0.0.1"),
            Some("http://localhost:1@example.com"),
            Some("http://[::2]:1"),
        ] {
            let refused = SystemClock::from_variables(Some("1@60"), endpoint).unwrap_err();
            assert!(refused.contains("remove OSTLER_CLOCK"), "{endpoint:?}");
        }
    }

    #[test]
    fn without_the_variable_time_is_real() {
        for none in [None, Some("")] {
            assert_eq!(SystemClock::from_variables(none, None), Ok(SystemClock::REAL));
        }
    }

    #[test]
    fn a_clock_that_cannot_be_read_is_refused() {
        for bad in ["1", "@", "1@0", "1@-5", "x@60", "1@inf", "NaN@1", "-1@2", "1@1e9"] {
            assert!(SystemClock::from_variables(Some(bad), LOCAL).is_err(), "{bad}");
        }
    }
}
