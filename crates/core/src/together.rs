//! Work side by side, on one thread: all of it driven together, and what only one may do at a time.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Poll, Waker};

/// Drives all work side by side. Gives the results in the order of the work.
pub async fn all<F: Future>(work: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut work: Vec<Pin<Box<F>>> = work.into_iter().map(Box::pin).collect();
    let mut results: Vec<Option<F::Output>> = work.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (work, result) in work.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(done) = work.as_mut().poll(context)
            {
                *result = Some(done);
            }
        }
        if results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}

/// What is being done at the moment: each thing by one at a time.
pub struct Turns<K: PartialEq>(RefCell<State<K>>);

struct State<K> {
    taken: Vec<K>,
    waiting: Vec<Waker>,
}

/// Until it is dropped, nobody else does the same.
pub struct Turn<'a, K: PartialEq> {
    turns: &'a Turns<K>,
    what: K,
}

impl<K: PartialEq> Default for Turns<K> {
    /// Nothing is being done.
    fn default() -> Self {
        Self(RefCell::new(State { taken: Vec::new(), waiting: Vec::new() }))
    }
}

impl<K: PartialEq + Clone> Turns<K> {
    /// Waits while somebody else does it, then takes the turn. Says whether it had to wait: then it may have
    /// been done.
    pub async fn take(&self, what: &K) -> (Turn<'_, K>, bool) {
        let mut waited = false;
        poll_fn(|context| {
            let mut state = self.0.borrow_mut();
            if state.taken.contains(what) {
                waited = true;
                state.waiting.push(context.waker().clone());
                return Poll::Pending;
            }
            state.taken.push(what.clone());
            Poll::Ready(())
        })
        .await;
        (Turn { turns: self, what: what.clone() }, waited)
    }
}

impl<K: PartialEq> Drop for Turn<'_, K> {
    fn drop(&mut self) {
        let mut state = self.turns.0.borrow_mut();
        state.taken.retain(|taken| *taken != self.what);
        state.waiting.drain(..).for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Wake};

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Drives a future as an executor does: it is polled again only if it was woken.
    fn run<T>(future: impl Future<Output = T>) -> T {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return done;
            }
            assert!(woken.0.swap(false, Ordering::Relaxed), "it sleeps for ever");
        }
    }

    /// Lets the others go on.
    async fn others() {
        let mut first = true;
        poll_fn(|context| match std::mem::take(&mut first) {
            true => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            false => Poll::Ready(()),
        })
        .await;
    }

    #[test]
    fn all_work_is_done_together_and_answers_in_its_order() {
        let log = RefCell::new(Vec::new());
        let work = |name: char, steps: usize| {
            let log = &log;
            async move {
                for _ in 0..steps {
                    log.borrow_mut().push(name);
                    others().await;
                }
                name
            }
        };
        assert_eq!(run(all([work('a', 3), work('b', 1), work('c', 2)])), ['a', 'b', 'c']);
        assert_eq!(log.borrow().iter().collect::<String>(), "abcaca");
        assert_eq!(run(all(Vec::<std::future::Ready<()>>::new())), []);
    }

    #[test]
    fn the_same_is_done_by_one_at_a_time_and_something_else_meanwhile() {
        let turns = Turns::default();
        let log = RefCell::new(Vec::new());
        let work = |name: char, what: u8| {
            let (turns, log) = (&turns, &log);
            async move {
                let (_turn, waited) = turns.take(&what).await;
                log.borrow_mut().push((name, "begins"));
                others().await;
                log.borrow_mut().push((name, "ends"));
                waited
            }
        };
        let waited = run(all([work('a', 1), work('b', 1), work('c', 2), work('d', 1)]));
        assert_eq!(waited, [false, true, false, true]);
        let begun = |name| log.borrow().iter().position(|it| *it == (name, "begins")).unwrap();
        let ended = |name| log.borrow().iter().position(|it| *it == (name, "ends")).unwrap();
        assert!(ended('a') < begun('b') && ended('b') < begun('d'), "{log:?}");
        assert!(begun('c') < ended('a'), "{log:?}");
    }

    #[test]
    fn who_gives_up_leaves_the_turn_to_the_next() {
        let turns = Turns::default();
        let mut first = Box::pin(async {
            let _turn = turns.take(&1).await;
            std::future::pending::<()>().await;
        });
        assert!(first.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(first);
        assert!(!run(turns.take(&1)).1);
    }
}
