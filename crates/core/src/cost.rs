//! What a machine costs, by a dated list of prices in the repository. An estimate: prices differ by region, spot's
//! by the hour, and volumes, addresses and traffic come on top.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::time::Timestamp;

/// On-demand Linux prices in one region, and what share of them spot is taken to cost. AWS prices the sizes of a
/// family in proportion (aws.amazon.com, "EC2 On-Demand Pricing"), so that one price tells those of all sizes.
const PRICES: &str = include_str!("prices.json");

/// The least that is charged of a machine, in seconds (aws.amazon.com, "EC2 On-Demand Pricing": by the second, with a
/// minimum of 60).
const LEAST_SECONDS: f64 = 60.0;

/// What was bought, and since when it is paid for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bought {
    /// `m7i.large`.
    pub instance_type: String,
    /// On the spot market.
    pub spot: bool,
    /// When it was launched.
    pub since: Timestamp,
}

/// The list.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// The day of which they are.
    pub as_of: String,
    /// The region of which they are.
    pub region: String,
    /// What spot costs of on-demand: AWS says up to 90 % less, and a third to a half is what is usual.
    spot_share: f64,
    /// By family: of the size `large`, in USD an hour.
    usd_per_hour_of_large: BTreeMap<String, f64>,
}

impl Prices {
    /// Those of the repository, read once; `None` never, which a test shows.
    pub fn listed() -> Option<&'static Self> {
        static LISTED: LazyLock<Option<Prices>> =
            LazyLock::new(|| serde_json::from_str(PRICES).ok());
        LISTED.as_ref()
    }

    /// USD an hour of a type; `None` if the list does not have it.
    pub fn hourly(&self, instance_type: &str, spot: bool) -> Option<f64> {
        let (family, size) = instance_type.split_once('.')?;
        let large = self.usd_per_hour_of_large.get(family)?;
        let share = if spot { self.spot_share } else { 1.0 };
        Some(large * larges(size)? * share)
    }

    /// USD of a machine until then.
    pub fn of(&self, bought: &Bought, until: Timestamp) -> Option<f64> {
        let hours = until.since(bought.since).as_secs_f64().max(LEAST_SECONDS) / 3600.0;
        Some(self.hourly(&bought.instance_type, bought.spot)? * hours)
    }
}

/// USD of a machine until then, by the repository's list.
pub fn of(bought: &Bought, until: Timestamp) -> Option<f64> {
    Prices::listed()?.of(bought, until)
}

/// How many times `large` a size is. Bare metal has prices of its own.
fn larges(size: &str) -> Option<f64> {
    Some(match size {
        "nano" => 0.0625,
        "micro" => 0.125,
        "small" => 0.25,
        "medium" => 0.5,
        "large" => 1.0,
        "xlarge" => 2.0,
        more => {
            let times: u8 = more.strip_suffix("xlarge")?.parse().ok()?;
            2.0 * f64::from(times)
        }
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn bought(instance_type: &str, spot: bool) -> Bought {
        let since = Timestamp::from_seconds(1_764_504_000);
        Bought { instance_type: instance_type.into(), spot, since }
    }

    fn after(seconds: u64, of: &Bought) -> f64 {
        super::of(of, of.since + Duration::from_secs(seconds)).unwrap()
    }

    #[test]
    fn the_list_is_dated_and_its_prices_are_plausible() {
        let prices = Prices::listed().unwrap();
        assert!(Timestamp::parse(&format!("{}T00:00:00Z", prices.as_of)).is_some());
        assert!(prices.region.split('-').count() >= 3);
        assert!((0.1..1.0).contains(&prices.spot_share));
        assert!(prices.usd_per_hour_of_large.len() > 30);
        for (family, usd) in &prices.usd_per_hour_of_large {
            assert!((0.05..0.25).contains(usd), "{family}: two cores an hour for {usd} USD");
        }
    }

    #[test]
    fn a_machine_costs_by_the_second_by_its_size_and_by_its_market() {
        let large = bought("m7i.large", false);
        assert!((after(3600, &large) - 0.1008).abs() < 1e-12);
        assert!((after(1800, &large) - 0.0504).abs() < 1e-12);
        assert!((after(3600, &bought("m7i.4xlarge", false)) - 0.8064).abs() < 1e-12);
        assert!((after(3600, &bought("t4g.nano", false)) - 0.0042).abs() < 1e-12);
        assert!(after(3600, &bought("m7i.large", true)) < after(3600, &large));
        assert_eq!(after(1, &large), after(60, &large), "a minute at least");
        assert!(after(61, &large) > after(60, &large));
    }

    #[test]
    fn what_the_list_does_not_have_costs_nothing_that_we_know() {
        for odd in ["x9z.large", "m7i.metal-24xl", "m7i", "", "m7i.300xlarge", "m7i.-2xlarge", "."]
        {
            let of = bought(odd, false);
            assert_eq!(super::of(&of, of.since), None, "{odd}");
        }
    }
}
