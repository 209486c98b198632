//! The reaper over EC2 as it is: what a sweep ends, what it keeps, and what becomes of both when calls fail.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests, whose failure is the test's"
)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ostler_core::error::Error;
use ostler_core::ports::Clock as _;
use ostler_core::reaper::{Rules, Swept, sweep};
use ostler_core::time::Timestamp;
use ostler_sim::ec2::{
    Allocation, FleetRequest, InstanceAttribute, LaunchFault, Market, Options, Override, Tags,
};
use ostler_sim::world::{BEGINNING, IMAGE, OWNER, Plan, Strike, World};

const HOUR: Duration = Duration::from_secs(3600);

fn rules() -> Rules {
    Rules {
        owner_tag: "ostler:owner".into(),
        owner: OWNER.into(),
        state_tag: "ostler:state".into(),
        kept_states: vec!["ready".into(), "warming".into()],
        until_tag: "ostler:until".into(),
        max_age: 12 * HOUR,
    }
}

/// Machines in a region, and sweeps over them.
struct Yard {
    world: World,
    launches: u32,
}

impl Yard {
    fn new() -> Self {
        Self { world: World::new(1), launches: 0 }
    }

    fn launch_tagged(&mut self, market: Market, tags: &[(&str, &str)]) -> String {
        self.launches += 1;
        let mut state = self.world.state();
        let template = match market {
            Market::Spot => Arc::clone(&state.fleet.spot),
            Market::OnDemand => Arc::clone(&state.fleet.on_demand),
        };
        let request = FleetRequest {
            client_token: Some(format!("launch-{}", self.launches)),
            template,
            overrides: vec![Override {
                instance_type: Some("m7i.large".into()),
                subnet: Some("subnet-a".into()),
                image: Some(IMAGE.into()),
                ..Override::default()
            }],
            market,
            capacity: 1,
            allocation: Allocation::Listed,
            tags: tags.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect::<Tags>(),
        };
        let now = state.now;
        let answer = state.ec2.create_fleet(now, &request).unwrap();
        answer.instances[0].ids[0].clone()
    }

    /// A used machine of this owner, launched now.
    fn launch(&mut self) -> String {
        self.launch_tagged(Market::OnDemand, &[("ostler:owner", OWNER), ("ostler:state", "used")])
    }

    /// The same on the spot market, with a persistent request.
    fn launch_persistent(&mut self) -> String {
        let tags = [("ostler:owner", OWNER), ("ostler:state", "used")];
        let id = self.launch_tagged(Market::Spot, &tags);
        self.world.state().ec2.make_persistent(&id);
        id
    }

    fn stop(&self, id: &str) {
        let mut state = self.world.state();
        let now = state.now;
        state.ec2.stop_instances(now, &[id.to_owned()]).unwrap();
    }

    fn pass(&self, time: Duration) {
        self.world.pass(time);
    }

    fn sweep(&self) -> Result<Swept, Error> {
        self.sweep_with(false, || true).expect("it was cut off")
    }

    fn sweep_with(
        &self,
        dry_run: bool,
        may_begin: impl Fn() -> bool,
    ) -> Option<Result<Swept, Error>> {
        let (world, rules) = (&self.world, rules());
        world.run("reaper", sweep(world, world, world, &rules, dry_run, may_begin))
    }

    /// Ids of the machines that have not ended.
    fn living(&self) -> BTreeSet<String> {
        let state = self.world.state();
        let living = state.ec2.instances().filter(|it| !it.state(state.now).is_over());
        living.map(|it| it.id.clone()).collect()
    }

    fn lives(&self, id: &str) -> bool {
        self.living().contains(id)
    }

    fn count(&self, call: &str) -> usize {
        self.world.count("reaper", call)
    }
}

fn kept(reasons: &[(&'static str, usize)]) -> Swept {
    Swept { kept: reasons.iter().copied().collect(), ..Swept::default() }
}

#[test]
fn r50_the_age_counts_from_the_latest_start() {
    let mut yard = Yard::new();
    let id = yard.launch();
    yard.pass(11 * HOUR);
    yard.stop(&id);
    yard.pass(10 * HOUR);
    {
        let mut state = yard.world.state();
        let now = state.now;
        state.ec2.start_instances(now, std::slice::from_ref(&id)).unwrap();
    }
    yard.pass(12 * HOUR);
    assert_eq!(yard.sweep().unwrap(), kept(&[("Young", 1)]));
    assert!(yard.lives(&id));
    yard.pass(Duration::from_secs(1));
    assert_eq!(yard.sweep().unwrap(), Swept { ended: 1, ..Swept::default() });
    assert!(!yard.lives(&id));
}

#[test]
fn r51_r52_a_sweep_ends_what_runs_or_was_used_and_keeps_the_pool() {
    let mut yard = Yard::new();
    let owned = |state| [("ostler:owner", OWNER), ("ostler:state", state)];
    let ready = yard.launch_tagged(Market::OnDemand, &owned("ready"));
    let warming = yard.launch_tagged(Market::OnDemand, &owned("warming"));
    let used = yard.launch();
    let untold = yard.launch_tagged(Market::OnDemand, &[("ostler:owner", OWNER)]);
    let forgotten = yard.launch_tagged(Market::OnDemand, &owned("ready"));
    let working = yard.launch();
    for stopped in [&ready, &warming, &used, &untold] {
        yard.stop(stopped);
    }
    yard.pass(100 * HOUR);
    let young = yard.launch();
    let swept = yard.sweep().unwrap();
    assert_eq!(swept, Swept { ended: 4, ..kept(&[("Pool", 2), ("Young", 1)]) });
    assert_eq!(yard.living(), [ready, warming, young].into());
    for ended in [used, untold, forgotten, working] {
        assert!(!yard.lives(&ended));
    }
    assert_eq!(yard.world.metric("ReaperEnded"), 4.0);
    assert_eq!(yard.world.metric_by("ReaperKept", "Pool"), 2.0);
    assert_eq!(yard.world.metric_by("ReaperKept", "Young"), 1.0);
    assert_eq!(yard.world.metric("ReaperFailed") + yard.world.metric("ReaperLeft"), 0.0);
}

#[test]
fn r50_machines_of_others_are_left_alone() {
    let mut yard = Yard::new();
    let foreign = yard.launch_tagged(Market::OnDemand, &[("ostler:owner", "someone-else")]);
    let untagged = yard.launch_tagged(Market::OnDemand, &[]);
    yard.pass(1000 * HOUR);
    assert_eq!(yard.sweep().unwrap(), Swept::default());
    assert_eq!(yard.living(), [foreign, untagged].into());
    assert_eq!(yard.count("Machines."), yard.count("Machines.list"), "nothing else is asked");
}

#[test]
fn re_06_re_07_re_08_re_13_a_machine_that_nothing_else_ends_is_ended() {
    // Whatever became of job, execution and runner: the machine's start and tags decide.
    let mut yard = Yard::new();
    yard.world.state().ec2.plan_launches([LaunchFault::Dead, LaunchFault::None]);
    let dead = yard.launch();
    let frozen = yard.launch();
    yard.pass(12 * HOUR + Duration::from_secs(1));
    assert_eq!(yard.sweep().unwrap().ended, 2);
    assert!(!yard.lives(&dead) && !yard.lives(&frozen));
}

#[test]
fn re_14_a_machine_that_stays_pending_is_ended() {
    let mut yard = Yard::new();
    yard.world.state().ec2.plan_launches([LaunchFault::StuckPending]);
    let stuck = yard.launch();
    yard.pass(12 * HOUR);
    assert_eq!(yard.sweep().unwrap(), kept(&[("Young", 1)]));
    yard.pass(HOUR);
    assert_eq!(yard.sweep().unwrap().ended, 1);
    assert!(!yard.lives(&stuck));
}

#[test]
fn re_09_a_pool_machine_that_is_stopping_is_as_good_as_stopped() {
    let mut yard = Yard::new();
    yard.world.state().ec2.options().stopping = ostler_sim::ec2::Span::seconds(600, 600);
    let tags = [("ostler:owner", OWNER), ("ostler:state", "warming")];
    let warming = yard.launch_tagged(Market::OnDemand, &tags);
    let used = yard.launch();
    yard.pass(13 * HOUR);
    yard.stop(&warming);
    yard.stop(&used);
    assert_eq!(yard.sweep().unwrap(), Swept { ended: 1, ..kept(&[("Pool", 1)]) });
    assert_eq!(yard.living(), [warming].into());
}

#[test]
fn cl_10_used_machines_left_stopped_do_not_pile_up() {
    let mut yard = Yard::new();
    for _ in 0..30 {
        let id = yard.launch();
        yard.stop(&id);
        yard.pass(HOUR);
        yard.sweep().unwrap();
        assert!(yard.living().len() <= 13, "at most those of the last twelve hours");
    }
}

#[test]
fn re_12_all_pages_are_read_though_some_are_short_or_empty() {
    let mut yard = Yard::new();
    yard.world.state().ec2.options().short_pages = true;
    for _ in 0..40 {
        yard.launch();
    }
    yard.pass(13 * HOUR);
    assert_eq!(yard.sweep().unwrap().ended, 40);
    assert!(yard.living().is_empty());
    assert!(yard.count("Machines.list") > 8, "pages of five at most");
}

#[test]
fn r54_a_list_that_does_not_end_fails_the_run_and_what_was_read_of_it_is_swept() {
    let mut yard = Yard::new();
    yard.world.state().ec2.options().short_pages = true;
    for _ in 0..1100 {
        yard.launch();
    }
    yard.pass(13 * HOUR);
    let failure = yard.sweep().unwrap_err().to_string();
    assert!(failure.contains("more than 200 pages") && failure.contains("0 failed"), "{failure}");
    assert_eq!(yard.count("Machines.list"), 200);
    let living = yard.living().len();
    assert!(living > 0 && living < 1000, "{living}");
    while yard.sweep().is_err() {
        assert!(yard.living().len() < living, "each goes on");
    }
    assert!(yard.living().is_empty());
}

#[test]
fn r54_re_02_one_machine_that_can_not_be_ended_spoils_nothing_but_the_runs_success() {
    let mut yard = Yard::new();
    let ids: Vec<_> = (0..3).map(|_| yard.launch()).collect();
    {
        let mut state = yard.world.state();
        let now = state.now;
        state.ec2.modify_instance(now, &ids[0], InstanceAttribute::Protected(true)).unwrap();
    }
    yard.pass(13 * HOUR);
    let failure = yard.sweep().unwrap_err();
    assert!(matches!(failure, Error::Transient(_)), "the next sweep tries again: {failure:?}");
    let text = failure.to_string();
    assert!(text.contains("2 machines ended, 1 failed, 0 left"), "{text}");
    assert!(text.contains("OperationNotPermitted") && text.contains(&ids[0]), "{text}");
    assert_eq!(yard.living(), [ids[0].clone()].into());
    assert_eq!(yard.world.metric("ReaperEnded"), 2.0);
    assert_eq!(yard.world.metric("ReaperFailed"), 1.0);
    assert_eq!(yard.count("Machines.terminate"), 3, "a call for each");
}

#[test]
fn r53_a_persistent_request_is_cancelled_first_so_that_nothing_comes_after() {
    let mut yard = Yard::new();
    let running = yard.launch_persistent();
    let stopped = yard.launch_persistent();
    yard.stop(&stopped);
    yard.pass(13 * HOUR);
    assert_eq!(yard.sweep().unwrap(), Swept { ended: 2, ..Swept::default() });
    assert!(!yard.lives(&running) && !yard.lives(&stopped));
    yard.pass(HOUR);
    assert!(yard.living().is_empty(), "no other was started in their place");
}

#[test]
fn r53_a_one_time_request_needs_no_cancel() {
    let mut yard = Yard::new();
    let id = yard.launch_tagged(Market::Spot, &[("ostler:owner", OWNER)]);
    yard.pass(13 * HOUR);
    assert_eq!(yard.sweep().unwrap().ended, 1);
    assert!(!yard.lives(&id));
    assert_eq!(yard.count("Machines.cancel_spot_request"), 0);
}

#[test]
fn r53_a_request_that_is_cancelled_already_is_not_cancelled_again() {
    let mut yard = Yard::new();
    let id = yard.launch_persistent();
    {
        let mut state = yard.world.state();
        let now = state.now;
        let request = state.ec2.instance(&id).unwrap().spot.as_ref().unwrap().id.clone();
        state.ec2.cancel_spot_requests(now, &[request]).unwrap();
    }
    yard.pass(13 * HOUR);
    assert_eq!(yard.sweep().unwrap().ended, 1);
    assert_eq!(yard.count("Machines.cancel_spot_request"), 0);
    assert!(yard.living().is_empty());
}

#[test]
fn r53_a_spot_request_that_cannot_be_cancelled_keeps_the_instance() {
    for (call, strikes) in [
        ("Machines.spot_request", Plan::next("Machines.spot_request", 1, Strike::Before)),
        (
            "Machines.cancel_spot_request",
            Plan::next("Machines.cancel_spot_request", 1, Strike::Before),
        ),
    ] {
        let mut yard = Yard::new();
        let id = yard.launch_persistent();
        yard.pass(13 * HOUR);
        yard.world.state().plan = strikes;
        let text = yard.sweep().unwrap_err().to_string();
        assert!(text.contains("1 failed") && text.contains(call), "{text}");
        assert_eq!(yard.living(), [id].into(), "{call} failed");
        assert_eq!(yard.count("Machines.terminate"), 0);
        assert_eq!(yard.sweep().unwrap().ended, 1, "the next sweep ends it");
        yard.pass(HOUR);
        assert!(yard.living().is_empty());
    }
}

#[test]
fn r55_a_dry_run_ends_and_cancels_nothing() {
    let mut yard = Yard::new();
    let plain = yard.launch();
    let spot = yard.launch_persistent();
    yard.pass(13 * HOUR);
    let young = yard.launch();
    let swept = yard.sweep_with(true, || true).unwrap().unwrap();
    assert_eq!(swept, kept(&[("DryRun", 2), ("Young", 1)]));
    assert_eq!(yard.living(), [plain, spot, young].into());
    let changing = ["Machines.terminate", "Machines.cancel_spot_request"];
    assert_eq!(changing.map(|call| yard.count(call)), [0, 0]);
}

#[test]
fn a_machine_that_was_saved_during_the_sweep_lives() {
    // Between list and end: started again, given longer, or taken out of the owner's hands.
    let saves: [fn(&World, &str); 3] = [
        |world, id| {
            let mut state = world.state();
            let now = state.now;
            state.ec2.stop_instances(now, &[id.to_owned()]).unwrap();
            state.ec2.start_instances(now, &[id.to_owned()]).unwrap();
        },
        |world, id| tag(world, id, "ostler:until", &(world.now() + HOUR).to_string()),
        |world, id| tag(world, id, "ostler:owner", "someone-else"),
    ];
    for (number, save) in saves.into_iter().enumerate() {
        let mut yard = Yard::new();
        let id = yard.launch();
        yard.pass(13 * HOUR);
        let swept = yard
            .sweep_with(false, || {
                save(&yard.world, &id);
                true
            })
            .unwrap()
            .unwrap();
        assert_eq!(swept.ended, 0, "way {number}");
        assert_eq!(yard.living(), [id].into(), "way {number}");
    }
}

fn tag(world: &World, id: &str, key: &str, value: &str) {
    let now = world.now();
    let tags = [(key.to_owned(), value.to_owned())];
    world.state().ec2.create_tags(now, &[id.to_owned()], &tags).unwrap();
}

#[test]
fn re_15_a_machine_that_is_gone_when_its_turn_comes_is_no_failure() {
    for hours in [0, 2] {
        let mut yard = Yard::new();
        let id = yard.launch();
        yard.pass(13 * HOUR);
        let swept = yard
            .sweep_with(false, || {
                let mut state = yard.world.state();
                let now = state.now;
                state.ec2.terminate_instances(now, std::slice::from_ref(&id)).unwrap();
                // An hour later EC2 does not know it any more.
                state.now = now + hours * HOUR;
                true
            })
            .unwrap()
            .unwrap();
        assert_eq!(swept, Swept { ended: 1, ..Swept::default() }, "{hours} hours later");
        assert_eq!(yard.count("Machines.terminate"), 0);
    }
}

#[test]
fn r54_a_page_that_fails_leaves_the_rest_to_the_next_sweep_and_fails_the_run() {
    let mut yard = Yard::new();
    for _ in 0..12 {
        yard.launch();
    }
    yard.pass(13 * HOUR);
    yard.world.state().plan = Plan::nth("Machines.list", 2, Strike::Before);
    let text = yard.sweep().unwrap_err().to_string();
    assert!(
        text.contains("5 machines ended, 0 failed") && text.contains("Machines.list"),
        "{text}"
    );
    assert_eq!(yard.living().len(), 7);
    assert_eq!(yard.sweep().unwrap().ended, 7);
}

#[test]
fn what_there_is_no_time_for_is_left_and_told_and_the_longest_over_come_first() {
    let mut yard = Yard::new();
    let first = yard.launch();
    yard.pass(HOUR);
    let second = yard.launch();
    let tags = [("ostler:owner", OWNER), ("ostler:until", &(BEGINNING + 40 * HOUR).to_string())];
    let given_longer = yard.launch_tagged(Market::OnDemand, &tags);
    yard.pass(50 * HOUR);
    let turns = std::cell::Cell::new(0);
    let may_begin = || {
        turns.set(turns.get() + 1);
        turns.get() <= 1
    };
    let text = yard.sweep_with(false, may_begin).unwrap().unwrap_err().to_string();
    assert!(text.contains("1 machines ended, 0 failed, 2 left"), "{text}");
    assert_eq!(yard.living(), [second.clone(), given_longer.clone()].into());
    assert!(!yard.lives(&first));
    assert_eq!(yard.world.metric("ReaperLeft"), 2.0);
    turns.set(0);
    yard.sweep_with(false, may_begin).unwrap().unwrap_err();
    assert_eq!(yard.living(), [given_longer].into(), "{second} was over first");
}

/// A region in which everything that a sweep can meet is there at once.
fn everything() -> (Yard, BTreeSet<String>) {
    let mut yard = Yard::new();
    let tags = [("ostler:owner", OWNER), ("ostler:state", "ready")];
    let pool = yard.launch_tagged(Market::OnDemand, &tags);
    yard.stop(&pool);
    let foreign = yard.launch_tagged(Market::OnDemand, &[("ostler:owner", "someone-else")]);
    for _ in 0..3 {
        yard.launch();
        let stopped = yard.launch();
        yard.stop(&stopped);
        yard.launch_persistent();
        let stopped = yard.launch_persistent();
        yard.stop(&stopped);
    }
    yard.launch_tagged(Market::Spot, &[("ostler:owner", OWNER)]);
    yard.pass(13 * HOUR);
    let young = yard.launch();
    let spot = yard.launch_persistent();
    (yard, [pool, foreign, young, spot].into())
}

#[test]
fn every_call_may_fail_or_be_cut_off_and_the_next_sweep_does_the_rest() {
    let (yard, _) = everything();
    yard.sweep().unwrap();
    let calls: Vec<_> = yard.world.state().calls.iter().map(|call| call.name).collect();
    assert!(calls.len() > 30, "{} calls", calls.len());
    for (number, name) in (1..).zip(&calls) {
        for strike in Strike::ALL {
            let (yard, staying) = everything();
            yard.world.state().plan = Plan::call(number, strike);
            let failed = yard.sweep_with(false, || true);
            let told = !strike.is_failure() || failed.as_ref().is_none_or(Result::is_err);
            assert!(told, "call {number} ({name}) {strike:?} went unnoticed: {failed:?}");
            assert!(staying.is_subset(&yard.living()), "call {number} ({name}) {strike:?}");
            yard.pass(15 * Duration::from_secs(60));
            yard.sweep().unwrap();
            yard.pass(HOUR);
            assert_eq!(yard.living(), staying, "call {number} ({name}) {strike:?}");
        }
    }
}

#[test]
fn a_sweep_repeated_or_beside_another_does_nothing_more() {
    let (yard, staying) = everything();
    let ended = yard.sweep().unwrap().ended;
    let again = yard.sweep().unwrap();
    assert_eq!((ended, again.ended), (13, 0));
    // The other sweep ends all that this one has listed, before this one's first turn.
    let (yard, _) = everything();
    let other = std::cell::Cell::new(false);
    let swept = yard.sweep_with(false, || {
        if !other.replace(true) {
            yard.sweep().unwrap();
        }
        true
    });
    assert_eq!(swept.unwrap().unwrap().ended, 13, "gone is as good as ended");
    assert_eq!(yard.living(), staying);
}

#[test]
fn ordinary_days_with_lag_and_throttling_end_nothing_young_and_leave_nothing_old() {
    for seed in 0..20 {
        let mut yard = Yard { world: World::new(seed), launches: 0 };
        *yard.world.state().ec2.options() = Options::default();
        let mut launched: Vec<(Timestamp, String)> = Vec::new();
        for round in 0..96 {
            if round % 3 == 0 && launched.len() < 25 {
                let id = if round % 2 == 0 { yard.launch() } else { yard.launch_persistent() };
                launched.push((yard.world.now(), id));
            }
            yard.pass(Duration::from_secs(900));
            // Throttling is a failure that the next sweep makes good.
            let _ = yard.sweep();
            let (now, living) = (yard.world.now(), yard.living());
            for (at, id) in &launched {
                let age = now.since(*at);
                let (young, old) = (age <= 12 * HOUR, age > 13 * HOUR);
                assert!(!young || living.contains(id), "seed {seed}: {id} was ended at {age:?}");
                assert!(!old || !living.contains(id), "seed {seed}: {id} lives at {age:?}");
            }
        }
        yard.pass(13 * HOUR);
        let _ = yard.sweep();
        yard.pass(HOUR);
        let _ = yard.sweep();
        assert!(yard.living().is_empty(), "seed {seed}: {:?}", yard.living());
    }
}
