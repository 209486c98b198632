//! Random histories in great number: drawn from seeds, played with the real use cases and the real definition,
//! judged by the invariants. What breaks one is shrunk and can be replayed by its seed.

mod play;
mod reach;
mod scenario;
mod scenes;
mod shrink;
mod tally;
mod trouble;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use play::{Played, play, story};
pub use reach::{BRANCHES, EXEMPT};
pub use scenario::{JobPlot, Kind, Loss, Outage, Part, PartId, Profile, Scenario};
pub use shrink::shrink;
pub use tally::Tally;
pub use trouble::{Deed, Mistake, Quirk, Refusal, Stranger};

/// What to play.
#[derive(Clone, Copy, Debug)]
pub struct Campaign {
    /// The first seed; the others follow.
    pub seed: u64,
    /// Jobs of each history.
    pub jobs: usize,
    /// Troubles; `None`: each profile in turn.
    pub profile: Option<Profile>,
    /// Threads.
    pub threads: usize,
}

/// A history that broke something.
#[derive(Clone, Debug)]
pub struct Broken {
    /// Its seed.
    pub seed: u64,
    /// Its profile.
    pub profile: Profile,
    /// What did not hold.
    pub violations: Vec<String>,
}

impl Campaign {
    /// The profile of a seed.
    pub fn profile_of(&self, seed: u64) -> Profile {
        // Scenes are short, and there are many: one history in four.
        if seed.is_multiple_of(4) {
            return self.profile.unwrap_or(Profile::Scenes);
        }
        let turn = usize::try_from(seed % Profile::EACH.len() as u64).unwrap_or_default();
        self.profile.unwrap_or(Profile::EACH[turn])
    }

    /// Plays histories until `over` says so, which is told the number of those played, or until one has broken
    /// something.
    pub fn run(&self, over: impl Fn(u64) -> bool + Sync) -> (Tally, Option<Broken>) {
        reach::count();
        let next = AtomicU64::new(self.seed);
        let stop = AtomicBool::new(false);
        let result = Mutex::new((Tally::default(), None::<Broken>));
        std::thread::scope(|scope| {
            for _ in 0..self.threads.max(1) {
                scope.spawn(|| {
                    let mut tally = Tally::default();
                    while !stop.load(Ordering::Relaxed) {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if over(seed - self.seed) {
                            break;
                        }
                        let profile = self.profile_of(seed);
                        let scenario = Scenario::draw(seed, self.jobs, profile);
                        let played = play(&scenario);
                        tally.add(profile, &scenario, &played.history);
                        if !played.violations.is_empty() {
                            stop.store(true, Ordering::Relaxed);
                            let broken = Broken { seed, profile, violations: played.violations };
                            let mut result = lock(&result);
                            // Of several threads' the first seed, so that the outcome depends less on their race.
                            if result.1.as_ref().is_none_or(|other| seed < other.seed) {
                                result.1 = Some(broken);
                            }
                        }
                    }
                    tally.reached(reach::take());
                    lock(&result).0.merge(tally);
                });
            }
        });
        result.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A thread that panicked leaves counts that are too small, and its panic is seen by the scope.
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
