//! `Shuffler`: holds an engine's ready operations and draws them in random order.
//!
//! An engine that shuffles puts the ready operations that it may reorder here instead of into its lanes. A thread draws
//! them one by one and sends each to its lane. With several workers, these draw as well.
//!
//! # Who may touch what
//!
//! * `state`: under its lock. No foreign code runs there.
//! * `drawing`: locked by a drawing thread until the drawn operation is in its lane, and by the thread that ends the
//!   engine. A waiter may take and complete the drawn operation before it is in its lane. Without this lock, the engine
//!   could then end during the draw.
//!
//! There are no edges: the locks and the lanes hand over the operations.
//!
//! # The draw
//!
//! With one worker, the operations are sorted by their numbers, and a random number decides which one is drawn. A draw
//! therefore depends on the seed, on how many random numbers were used before, and on which operations are ready, but
//! not on the order in which they became ready.

use std::time::{Duration, Instant};

use crate::{
    notify::waiters::OutsideWaits,
    sync::{Condvar, Mutex, lock},
    tracker::OpRef,
};

/// If a program has neither pushed nor ended a wait for this long, it is assumed to be waiting for something unknown to
/// the engine. Not tuned: the time is longer than a thread usually stays descheduled, and too short for a person to
/// notice.
const QUIET: Duration = Duration::from_millis(50);

/// Holds an engine's ready operations until they are drawn.
pub struct Shuffler<T> {
    seed: u64,
    has_one_worker: bool,
    state: Mutex<ShufflerState<T>>,
    changed: Condvar,
    /// Held during a draw and during [`end`](Self::end).
    drawing: Mutex<()>,
}

struct ShufflerState<T> {
    /// Sorted if there is one worker.
    ready: Vec<(u64, OpRef<T>)>,
    random: Random,
    /// The number of draws so far.
    draws: u64,
    /// Whether an operation was drawn but is not yet in its lane.
    is_drawing: bool,
    /// When a thread outside the engine last pushed or ended a wait.
    last_active: Option<Instant>,
    has_ended: bool,
}

impl<T> Shuffler<T> {
    pub fn new(seed: u64, has_one_worker: bool) -> Self {
        let state = ShufflerState {
            ready: Vec::new(),
            random: Random(seed),
            draws: 0,
            is_drawing: false,
            last_active: None,
            has_ended: false,
        };
        Self { seed, has_one_worker, state: Mutex::new(state), changed: Condvar::new(), drawing: Mutex::new(()) }
    }

    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether the engine's first lane has only one worker.
    pub fn has_one_worker(&self) -> bool {
        self.has_one_worker
    }

    /// Adds a ready operation with its unique number.
    pub fn put(&self, number: u64, op: OpRef<T>) {
        let mut state = lock(&self.state);
        let ready = &mut state.ready;
        let at = if self.has_one_worker { ready.partition_point(|(other, _)| *other <= number) } else { ready.len() };
        ready.insert(at, (number, op));
        drop(state);
        self.changed.notify_all();
    }

    /// Returns the number of draws so far, or `None` if the shuffler holds operations or a draw is under way. If two
    /// calls return the same number, the shuffler held no operation between them.
    pub fn draws_if_empty(&self) -> Option<u64> {
        let state = lock(&self.state);
        (state.ready.is_empty() && !state.is_drawing).then_some(state.draws)
    }

    /// Waits until an operation is ready. Returns `false` if the engine has ended.
    pub fn wait(&self) -> bool {
        let mut state = lock(&self.state);
        while state.ready.is_empty() && !state.has_ended {
            state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        !state.has_ended
    }

    /// Takes a ready operation at random, if there is one, and calls `schedule` with it. [`end`](Self::end) waits until
    /// `schedule` has returned.
    pub fn draw(&self, schedule: impl FnOnce(OpRef<T>)) {
        let _drawing = lock(&self.drawing);
        if let Some(op) = self.take() {
            schedule(op);
            lock(&self.state).is_drawing = false;
        }
    }

    fn take(&self) -> Option<OpRef<T>> {
        let mut state = lock(&self.state);
        let ShufflerState { ready, random, draws, is_drawing, .. } = &mut *state;
        if ready.is_empty() {
            return None;
        }
        let drawn = random.below(ready.len() as u64) as usize;
        *draws += 1;
        *is_drawing = true;
        Some(if self.has_one_worker { ready.remove(drawn) } else { ready.swap_remove(drawn) }.1)
    }

    /// Returns `true` once in `times` calls on average.
    pub fn is_one_in(&self, times: u64) -> bool {
        lock(&self.state).random.below(times) == 0
    }

    /// Returns a random duration below `limit`.
    pub fn delay(&self, limit: Duration) -> Duration {
        Duration::from_nanos(lock(&self.state).random.below(limit.as_nanos() as u64))
    }

    /// Records that a thread outside the engine is pushing or has ended a wait. The thread must still be listed as
    /// waiting for the engine if it has ended a wait.
    pub fn note_active(&self) {
        lock(&self.state).last_active = Some(Instant::now());
    }

    /// Whether the program seems to have pushed all that it can for now: no thread outside the engine is in a wait that
    /// is over, and either a thread outside it is still waiting, or none has pushed or ended a wait for a while.
    /// `outside` describes the waits of these threads before this call.
    pub fn is_program_still(&self, outside: OutsideWaits) -> bool {
        match outside {
            OutsideWaits::SomeOver => false,
            OutsideWaits::Wait => true,
            OutsideWaits::None => lock(&self.state).last_active.is_none_or(|last| last.elapsed() >= QUIET),
        }
    }

    /// Ends all calls to [`wait`](Self::wait). Returns the remaining entries, whose operations waiters have taken.
    #[must_use = "each entry has a share in its operation's record"]
    pub fn end(&self) -> impl Iterator<Item = OpRef<T>> + use<T> {
        let _drawing = lock(&self.drawing);
        let mut state = lock(&self.state);
        state.has_ended = true;
        self.changed.notify_all();
        std::mem::take(&mut state.ready).into_iter().map(|(_, entry)| entry)
    }
}

impl<T> std::fmt::Debug for Shuffler<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shuffler").field("ready", &lock(&self.state).ready.len()).finish_non_exhaustive()
    }
}

/// The generator `SplitMix64`, by Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
/// Every seed is as good as any other.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`, which must be at least 1. The bias is too small to matter.
    fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }
}

#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
mod tests;
