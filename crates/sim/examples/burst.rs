//! One burst, as `make bench-peer` plays several: `cargo run --profile sim -p ostler-sim --example burst -- JOBS APPS`.

use std::time::Duration;

use ostler_sim::ec2::{Options, Span, Throttle};
use ostler_sim::measure::burst::{Burst, play};
use ostler_sim::measure::peer;

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse().unwrap_or(1));
    let (jobs, apps) = (numbers.next().unwrap_or(500), numbers.next().unwrap_or(1));
    let burst = Burst {
        jobs,
        over: Duration::from_secs(10),
        apps,
        tiers: jobs.div_ceil(50),
        latency: Span { least: Duration::from_millis(10), most: Duration::from_millis(60) },
        boot: Options::default().boot,
        ec2: Throttle::default(),
        seed: 1,
    };
    println!("{}", serde_json::json!({"ostler": play(&burst), "peer": peer::play(&burst)}));
}
