//! How many operations are pending, counted without a hot counter, so that a wait can cover exactly what was pushed before it.
//!
//! # States
//!
//! Operations are counted by *generation*. Exactly one generation is *current*: pushes enter it. A wait for all opens a
//! free generation in its place and *closes* the old one; a closed generation drains and is free again. Each generation has
//! two words per shard, and threads are spread over the shards:
//!
//! | word | meaning | bit 0 |
//! |---|---|---|
//! | `entered` | operations that entered through this shard, times two; changed by CAS | closed: an entry is refused and tries the current generation |
//! | `left` | operations that left through this shard, times two | armed: whoever leaves also takes one off `rest` |
//!
//! Closing sets bit 0 of every word by one read-modify-write each, which returns the exact count at that moment. So
//! `rest`, which starts at zero and gets the difference of the sums, reaches zero exactly once, when the last operation
//! leaves; whoever brings it there tells the waiters.
//!
//! # Edges
//!
//! | edge | release side | acquire side | hands over |
//! |---|---|---|---|
//! | `leave` | `fetch_add` of `left`, `fetch_sub` of `rest` | arming `fetch_or`, the `rest` operation that reaches zero | what the operations did |
//! | `open` | stores of `entered` and of `current` | CAS and loads in `enter` | the words of the new generation; what was done before it was opened |
//! | `close` | closing `fetch_or` of `entered` | load of `entered` that finds it closed | the generation that took its place |
//!
//! Whoever closes a generation holds the lock, which the last one to leave it takes afterwards. So what was acquired by
//! arming is handed on with the lock, and closing releases nothing into `left` or `rest`.
//!
//! # Progress
//!
//! `enter` and `leave` are lock-free; `leave` takes a lock only when it was the last of a closed generation. An entry
//! is refused only if a wait closed its generation meanwhile, and repeated if another thread of its shard was faster. With more than [`GENERATIONS`] - 1 generations draining at once
//! a wait cannot close the current one at once and may take in pushes made until one of them is done.

use std::{task::Waker, time::Instant};

use crossbeam_utils::CachePadded;

use crate::sync::{
    Condvar, Mutex,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    atomic::{AtomicU64, AtomicUsize},
    fork::Birth,
    lock,
    pause::{self, Point},
    thread, wait_until, wake_all,
    weaken::{Step, removed},
};

/// Generations, the current one included.
const GENERATIONS: usize = if cfg!(any(raddle_loom, raddle_shuttle)) { 2 } else { 64 };

const FLAG: u64 = 1;
const ONE: u64 = 2;

/// `rest` counts from here, so that it may go below its start while it is being computed.
const ZERO: u64 = 1 << 63;

#[derive(Debug)]
struct Shard {
    entered: CachePadded<[AtomicU64; GENERATIONS]>,
    left: CachePadded<[AtomicU64; GENERATIONS]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Free,
    Current,
    Draining,
}

#[derive(Debug)]
struct Generation {
    phase: Phase,
    /// How often it has drained.
    lap: u64,
}

/// What is changed under the lock.
#[derive(Debug)]
struct State {
    generations: [Generation; GENERATIONS],
    /// Futures to wake when a generation drains.
    wakers: Vec<Waker>,
}

/// What a wait covers: generations, and the laps that were not over when it began.
#[derive(Debug)]
pub struct Mark {
    draining: Vec<(usize, u64)>,
    /// Something has entered the generation that the mark has opened.
    entered_since: bool,
}

/// The count of pending operations.
#[derive(Debug)]
pub struct Tally {
    current: CachePadded<AtomicUsize>,
    shards: Box<[Shard]>,
    rest: [AtomicU64; GENERATIONS],
    state: Mutex<State>,
    drained: Condvar,
    /// In a forked child the lock may be held for ever.
    birth: Birth,
}

/// The generation that an operation entered.
#[derive(Clone, Copy, Debug)]
pub struct Ticket(u32);

impl Mark {
    fn is_over(&self, state: &State) -> bool {
        self.draining.iter().all(|&(index, lap)| state.generations[index].lap != lap)
    }
}

impl Tally {
    /// A count spread over `shards` shards, or as many more as make a power of two.
    pub fn new(shards: usize) -> Self {
        let word = |generation: usize| {
            // All but the current generation are closed.
            AtomicU64::new(if generation == 0 { 0 } else { FLAG })
        };
        Self {
            current: CachePadded::new(AtomicUsize::new(0)),
            shards: (0..shards.next_power_of_two())
                .map(|_| Shard {
                    entered: CachePadded::new(std::array::from_fn(word)),
                    left: CachePadded::new(std::array::from_fn(word)),
                })
                .collect(),
            rest: std::array::from_fn(|_| AtomicU64::new(ZERO)),
            state: Mutex::new(State {
                generations: std::array::from_fn(|generation| Generation {
                    phase: if generation == 0 { Phase::Current } else { Phase::Free },
                    lap: 0,
                }),
                wakers: Vec::new(),
            }),
            drained: Condvar::new(),
            birth: Birth::now(),
        }
    }

    /// The shard that the calling thread uses.
    #[inline]
    fn shard(&self) -> &Shard {
        // The length is a power of two: no division.
        &self.shards[thread::number() & (self.shards.len() - 1)]
    }

    /// Counts an operation in. What was done before the current generation was opened is visible after it.
    #[inline]
    pub fn enter(&self) -> Ticket {
        let shard = self.shard();
        loop {
            // Acquire (edge `open`).
            let generation = self.current.load(Acquire);
            let word = &shard.entered[generation % GENERATIONS];
            // Acquire (edge `close`): a flag seen here carries the generation that took this one's place to the next
            // load of `current`.
            let count = word.load(Acquire);
            pause::at(Point::TallyBeforeEnter);
            // By CAS and not by addition, so that an entry that is refused leaves no trace: the generation may be opened and
            // closed again before it could take one back.
            // Acquire (edge `open`): the word may have been closed, opened and counted up to the same again since the
            // load. It releases nothing: what was done before is handed over by `leave`.
            if count & FLAG == 0 && word.compare_exchange(count, count + ONE, Acquire, Relaxed).is_ok() {
                pause::at(Point::TallyEntered);
                return Ticket(generation as u32);
            }
        }
    }

    /// Counts an operation out; what it did is visible to whoever sees the count without it.
    #[inline]
    pub fn leave(&self, ticket: Ticket) {
        let generation = ticket.0 as usize;
        let shard = self.shard();
        pause::at(Point::TallyBeforeLeave);
        // Release (edge `leave`). It needs nothing from whoever armed the word.
        let before = shard.left[generation % GENERATIONS].fetch_add(ONE, Release);
        pause::at(Point::TallyLeft);
        // AcqRel (edge `leave`).
        if before & FLAG != 0 && self.rest[generation % GENERATIONS].fetch_sub(1, AcqRel) == ZERO + 1 {
            self.finish(generation);
        }
    }

    #[cold]
    fn finish(&self, generation: usize) {
        if self.birth.is_foreign() {
            return;
        }
        let mut state = lock(&self.state);
        Self::free(&mut state.generations[generation]);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        if removed(Step::LeaveNotifies) {
            return;
        }
        self.drained.notify_all();
        wake_all(wakers);
    }

    fn free(generation: &mut Generation) {
        debug_assert_eq!(generation.phase, Phase::Draining);
        generation.phase = Phase::Free;
        generation.lap += 1;
    }

    /// Waits until every operation that entered before the call has left. `None`: the time was up. `Some(true)`: nothing
    /// at all was pending at some moment of the call.
    pub fn wait(&self, deadline: Option<Instant>) -> Option<bool> {
        let mut state = lock(&self.state);
        let mut idle = true;
        let mark = loop {
            if let Some(mark) = self.mark(&mut state) {
                break mark;
            }
            idle = false;
            state = wait_until(&self.drained, state, deadline).ok()?;
        };
        idle &= !mark.entered_since;
        while !mark.is_over(&state) {
            idle = false;
            state = wait_until(&self.drained, state, deadline).ok()?;
        }
        Some(idle)
    }

    /// Begins a wait that is to be polled; `None` if no generation is free, which is to be tried again when polled.
    pub fn begin(&self) -> Option<Mark> {
        self.mark(&mut lock(&self.state))
    }

    /// Whether what `mark` covers has left; otherwise `waker` will be woken.
    pub fn poll(&self, mark: &mut Option<Mark>, waker: &Waker) -> bool {
        let mut state = lock(&self.state);
        if mark.is_none() {
            *mark = self.mark(&mut state);
        }
        if mark.as_ref().is_some_and(|mark| mark.is_over(&state)) {
            return true;
        }
        if !state.wakers.iter().any(|known| known.will_wake(waker)) {
            state.wakers.push(waker.clone());
        }
        false
    }

    /// Closes the current generation, if another can take its place, and notes what is draining.
    fn mark(&self, state: &mut State) -> Option<Mark> {
        let generations = &mut state.generations;
        let next = generations.iter().position(|generation| generation.phase == Phase::Free)?;
        let entered_since = self.rotate(generations, next);
        let draining = generations
            .iter()
            .enumerate()
            .filter(|(_, generation)| generation.phase == Phase::Draining)
            .map(|(index, generation)| (index, generation.lap));
        Some(Mark { draining: draining.collect(), entered_since })
    }

    /// Makes `next`, which is free, the current generation, and closes the one before; gives whether `next` has been entered
    /// by the end of that.
    fn rotate(&self, generations: &mut [Generation; GENERATIONS], next: usize) -> bool {
        // Relaxed: only changed under the lock.
        let old = self.current.load(Relaxed);
        // Relaxed: nobody leaves a free generation; published by the stores below.
        self.rest[next].store(ZERO, Relaxed);
        for shard in &self.shards {
            // Relaxed: as above.
            shard.left[next].store(0, Relaxed);
        }
        // After all of `left`: from here on a thread that has read an old `current` may enter, and leave by any shard.
        for shard in &self.shards {
            // Release (edge `open`): the words above.
            shard.entered[next].store(0, Release);
        }
        generations[next].phase = Phase::Current;
        // Release (edge `open`).
        self.current.store(next, Release);

        // `left` first: everything that leaves after its shard was armed takes one off `rest`, so it does not matter how
        // many more enter or leave meanwhile. Acquire (edge `leave`): what those who left did, their entries included,
        // so that the sum below counts them.
        let arm = |shard: &Shard| shard.left[old].fetch_or(FLAG, Acquire) / ONE;
        let left: u64 = self.shards.iter().map(arm).sum();
        // Release (edge `close`). An entry comes before this in the word's order and is counted, or its CAS fails.
        let close = |shard: &Shard| shard.entered[old].fetch_or(FLAG, Release) / ONE;
        let entered: u64 = self.shards.iter().map(close).sum();
        let pending = entered - left;
        generations[old].phase = Phase::Draining;
        // Acquire (edge `leave`). The last one out sees `ZERO + 1` only if it comes after this addition, and then takes
        // the lock after this thread.
        if self.rest[old].fetch_add(pending, Acquire).wrapping_add(pending) == ZERO {
            Self::free(&mut generations[old]);
        }
        // Relaxed: an operation that entered `next` before another left `old` is seen here if that one was not counted
        // any more, since the read-modify-writes above have acquired its leaving (edge `leave`).
        self.shards.iter().any(|shard| shard.entered[next].load(Relaxed) != 0)
    }
}
