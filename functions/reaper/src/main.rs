//! The reaper: ends instances past their time. The use case is `ostler_core::reaper`. It needs EC2 and the
//! owner's tag, and nothing else, so that it works when nothing else does.

use std::process::ExitCode;
use std::time::Duration;

use ostler_aws::Patience;
use ostler_core::Result;
use ostler_core::reaper::{Rules, Swept, sweep};
use ostler_fleet::Ec2Machines;
use ostler_lambda::{Emf, Environment, Invocation, SystemClock};
use serde_json::Value;

/// The limit's bounds, as in the template: what is shorter would end ordinary jobs, and a month is longer
/// than anything.
const MAX_AGE_MINUTES: std::ops::RangeInclusive<u64> = 10..=43_200;

struct Reaper {
    clock: SystemClock,
    telemetry: Emf<SystemClock>,
    machines: Ec2Machines,
    rules: Rules,
    dry_run: bool,
}

async fn start(mut environment: Environment) -> Result<Reaper> {
    let clock = environment.clock();
    let rules = Rules {
        owner_tag: environment.text("OSTLER_OWNER_TAG"),
        owner: environment.text("OSTLER_OWNER"),
        state_tag: environment.text("OSTLER_STATE_TAG"),
        kept_states: environment.optional_list("OSTLER_KEPT_STATES"),
        until_tag: environment.text("OSTLER_UNTIL_TAG"),
        max_age: Duration::from_secs(
            environment.number("OSTLER_MAX_AGE_MINUTES", MAX_AGE_MINUTES) * 60,
        ),
    };
    let dry_run = environment.flag("OSTLER_DRY_RUN");
    environment.check()?;
    let aws = ostler_aws::sdk_config(Patience::STEP).await;
    Ok(Reaper {
        clock,
        telemetry: Emf::new(clock),
        machines: Ec2Machines::new(&aws, &rules.owner_tag, &rules.owner),
        rules,
        dry_run,
    })
}

/// What the event says does not matter: each sweep looks at everything.
async fn handle(reaper: &Reaper, _: Value, invocation: &Invocation) -> Result<Swept> {
    let Reaper { clock, telemetry, machines, rules, dry_run } = reaper;
    let may_begin = || invocation.deadline.allows_new_work();
    sweep(machines, clock, telemetry, rules, *dry_run, may_begin).await
}

fn main() -> ExitCode {
    ostler_lambda::run(start, handle)
}
