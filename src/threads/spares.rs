//! Threads without a worker, each of which waits for one for a while.
//!
//! # States of a seat
//!
//! | state | who changes it | what becomes of its thread |
//! |---|---|---|
//! | in the list | the thread that sits there put it in | it waits |
//! | taken by `offer` | whoever has a worker to give | it gets that worker, also if its time is up meanwhile |
//! | taken by `end` | whoever ends the engine | it ends |
//! | taken by its thread, whose time is up | that thread | it ends |
//!
//! A seat is taken out of the list under the lock, by one of these three. So a worker is offered to a thread that will have
//! it or to nobody, and a thread that gives up has been offered none. The seat that was last put in is taken first: where
//! few threads are enough, the others grow old.
//!
//! # Edges
//!
//! The worker, and all that its thread did with it, is handed over by the lock of the seat.
//!
//! # Progress
//!
//! Locks that are held for a few steps each, and around nothing foreign.

use std::{mem, sync::Arc, time::Instant};

use crate::{
    sync::{Condvar, Mutex, lock, wait_until},
    testing::weaken::{Step, removed},
};

/// What a thread that waits has been given.
enum Given<W> {
    Nothing,
    Worker(W),
    /// There will be no more workers.
    End,
}

struct Seat<W> {
    given: Mutex<Given<W>>,
    changed: Condvar,
}

struct State<W> {
    seats: Vec<Arc<Seat<W>>>,
    ended: bool,
}

/// Threads without a worker `W`.
pub struct SpareThreads<W>(Mutex<State<W>>);

impl<W> std::fmt::Debug for SpareThreads<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpareThreads").field("seats", &lock(&self.0).seats.len()).finish_non_exhaustive()
    }
}

impl<W> Default for SpareThreads<W> {
    fn default() -> Self {
        Self(Mutex::new(State { seats: Vec::new(), ended: false }))
    }
}

impl<W> SpareThreads<W> {
    /// Gives `worker` to a thread that waits for one, or back if none does.
    ///
    /// # Errors
    /// No thread waits.
    pub fn offer(&self, worker: W) -> Result<(), W> {
        let seat = lock(&self.0).seats.pop();
        match seat {
            Some(seat) => {
                seat.give(Given::Worker(worker));
                Ok(())
            }
            None => Err(worker),
        }
    }

    /// Waits for a worker. `None`: the engine has ended, or the time was up. In models the time, if there is one, is up at
    /// once.
    pub fn wait(&self, until: Option<Instant>) -> Option<W> {
        let seat = Arc::new(Seat { given: Mutex::new(Given::Nothing), changed: Condvar::new() });
        {
            let mut state = lock(&self.0);
            if state.ended {
                return None;
            }
            state.seats.push(Arc::clone(&seat));
        }
        match seat.wait(until) {
            Given::Worker(worker) => return Some(worker),
            Given::End => return None,
            Given::Nothing => {}
        }
        if self.leave(&seat) {
            return None;
        }
        // Somebody has taken the seat, and is about to give something.
        match seat.wait(None) {
            Given::Worker(worker) => Some(worker),
            Given::Nothing | Given::End => None,
        }
    }

    /// Takes `seat`, of the calling thread, out of the list; `false` if somebody else has.
    fn leave(&self, seat: &Arc<Seat<W>>) -> bool {
        let mut state = lock(&self.0);
        let place = state.seats.iter().position(|other| Arc::ptr_eq(other, seat));
        if let Some(place) = place {
            state.seats.remove(place);
        }
        place.is_some() || removed(Step::SparesCheckAgain)
    }

    /// Tells all that wait, and whoever comes later, that there will be no more workers.
    pub fn end(&self) {
        let seats = {
            let mut state = lock(&self.0);
            state.ended = true;
            mem::take(&mut state.seats)
        };
        for seat in seats {
            seat.give(Given::End);
        }
    }

    /// Whether [`end`](Self::end) was called.
    pub fn have_ended(&self) -> bool {
        lock(&self.0).ended
    }
}

impl<W> Seat<W> {
    fn give(&self, what: Given<W>) {
        *lock(&self.given) = what;
        self.changed.notify_one();
    }

    /// Takes what is given; nothing only if the time is up.
    fn wait(&self, until: Option<Instant>) -> Given<W> {
        let mut given = lock(&self.given);
        loop {
            match mem::replace(&mut *given, Given::Nothing) {
                Given::Nothing => {}
                something => return something,
            }
            if cfg!(any(raddle_loom, raddle_shuttle)) && until.is_some() {
                return Given::Nothing;
            }
            match wait_until(&self.changed, given, until) {
                Ok(again) => given = again,
                Err(_) => return Given::Nothing,
            }
        }
    }
}

#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
mod tests {
    use std::{sync::Barrier, thread, time::Duration};

    use super::*;

    #[test]
    fn two_workers_offered_at_once_are_both_taken() {
        for _ in 0..1000 {
            let (spares, start) = (SpareThreads::default(), Barrier::new(3));
            let taken: usize = thread::scope(|scope| {
                let waits = [(); 2].map(|()| scope.spawn(|| spares.wait(None).expect("a worker")));
                while lock(&spares.0).seats.len() < 2 {
                    thread::yield_now();
                }
                for worker in [1, 2] {
                    let (spares, start) = (&spares, &start);
                    scope.spawn(move || {
                        start.wait();
                        spares.offer(worker).expect("two threads wait");
                    });
                }
                start.wait();
                waits.map(|wait| wait.join().expect("it has a worker")).iter().sum()
            });
            assert_eq!(taken, 3);
        }
    }

    #[test]
    fn a_worker_offered_to_who_gives_up_is_taken_or_given_back() {
        let mut taken = 0;
        for round in 0..2000 {
            let (spares, start) = (SpareThreads::default(), Barrier::new(2));
            thread::scope(|scope| {
                let wait = scope.spawn(|| {
                    start.wait();
                    spares.wait(Some(Instant::now() + Duration::from_micros(round % 50)))
                });
                start.wait();
                let offered = spares.offer(()).is_ok();
                assert_eq!(wait.join().expect("it ends").is_some(), offered);
                taken += u32::from(offered);
            });
            assert!(lock(&spares.0).seats.is_empty());
        }
        println!("{taken} of 2000 were taken");
    }

    /// So that those whom nobody needs grow old.
    #[test]
    fn who_sat_down_last_is_offered_a_worker_first() {
        let spares = SpareThreads::default();
        thread::scope(|scope| {
            let waits: Vec<_> = (1..=3)
                .map(|count| {
                    let wait = scope.spawn(|| spares.wait(None));
                    while lock(&spares.0).seats.len() < count {
                        thread::yield_now();
                    }
                    wait
                })
                .collect();
            for worker in [3, 2, 1] {
                spares.offer(worker).expect("a thread waits");
            }
            let taken: Vec<_> = waits.into_iter().map(|wait| wait.join().expect("it has a worker")).collect();
            assert_eq!(taken, [Some(1), Some(2), Some(3)]);
        });
    }

    #[test]
    fn the_end_is_told_to_those_who_wait_and_to_those_who_come() {
        let spares = SpareThreads::<()>::default();
        thread::scope(|scope| {
            let wait = scope.spawn(|| spares.wait(None));
            while lock(&spares.0).seats.is_empty() {
                thread::yield_now();
            }
            spares.end();
            assert!(wait.join().expect("it ends").is_none());
        });
        assert!(spares.wait(None).is_none());
        assert!(spares.have_ended());
        assert!(spares.offer(()).is_err());
    }
}
