//! One worker: its deque, its slot, and how it finds the next operation.

use std::{
    cell::Cell,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    injector::Rest,
    lane::Lane,
    priority::DEFAULT_BAND,
    sleep::{IdlePolicy, ParkKind, SearchState, Sleep},
};
use crate::{
    sync::{
        deque::{self, Steal, Stealer},
        hint,
    },
    testing::{
        pause::{self, Point},
        weaken::{Step, removed},
    },
    tracker::OpRef,
};

/// Operations of its own that a worker runs before others get their turn (`README.md`, Fairness). Picked; not tuned.
const MAX_RUN: u32 = 32;

/// Rounds of turns between two visits of a worker to another one's deque. Picked: a visit costs both of them a cache line,
/// and only what lies in the deque of a worker that does not come to it needs one.
const ROUNDS_PER_VISIT: u32 = 8;

/// Operations that a worker takes from the injector at once. Picked: what one look costs is small against their cost, and
/// others can still steal them.
const MAX_BATCH: usize = if cfg!(raddle_loom) { 2 } else { 32 };

/// Operations in a deque at most: as many as crossbeam-deque has room for from the beginning. To grow, and to shrink
/// again, it would pin crossbeam's default collector in the midst of a push or a pop, and that runs what other crates have
/// left there: a panic of theirs would lose the operation that is on its way.
const DEQUE_CAPACITY: usize = 64;

/// Rounds of looking between two looks at the clock.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
const ROUNDS_PER_CLOCK: u32 = 8;

/// A worker that has not looked for so long, although it does nothing else, shares its core with another thread. It does not
/// go on: that thread may be the one that makes the work, and notifiers count on this one.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
const CONTENDED: Duration = Duration::from_micros(20);

/// Time per look, of all workers of the lane, up to which one of them naps. Picked.
const MAX_FIND_INTERVAL: Duration = Duration::from_micros(25);

/// Pauses between two rounds of looking, before the first look at the clock and after it. Picked: some 100 ns at first, so
/// that a searcher does not keep taking the lines away that a pusher and a busy worker write. Who has found nothing by then
/// is beside pushers that have time in between, and finds what they push sooner.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
const PAUSES_PER_ROUND: [u32; 2] = [8, 2];

/// Who gets an operation run next when a worker has run `MAX_RUN` of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// The default band of the injector.
    Injector,
    /// Another worker's deque, in some rounds.
    Visit,
    /// The worker's own deque, and so the next round.
    Own,
}

/// One worker of a lane. Exactly one thread at a time carries it; it may move to another while none of its methods runs.
pub struct Worker<T> {
    lane: Arc<Lane<T>>,
    index: usize,
    deque: deque::Worker<OpRef<T>>,
    /// The first successor of the operation that ran last.
    slot: Cell<Option<OpRef<T>>>,
    /// Something was put into the deque since others were last notified.
    unnotified: Cell<bool>,
    /// Operations of its own, from slot and deque, that the worker may still run before it is the others' turn.
    budget: Cell<u32>,
    /// What more it may run in a row of those in its slot that are urgent, when it is others' turn who are not.
    urgent_budget: Cell<u32>,
    /// What was left when the deque was served last in this round; `MAX_RUN` if it was not.
    served_at: Cell<u32>,
    /// Whose turn it is when `left` is zero.
    turn: Cell<Turn>,
    /// Rounds of turns so far.
    rounds: Cell<u32>,
    /// Where the next sweep of stealing begins.
    victim: Cell<usize>,
    /// The looks of the lane's workers, and when they were so many.
    sample: Cell<(Instant, usize)>,
}

impl<T> std::fmt::Debug for Worker<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("lane", &self.lane.name()).field("index", &self.index).finish_non_exhaustive()
    }
}

impl<T> Worker<T> {
    /// Worker number `index` of `lane`, which must have been made with `deque`'s stealer in that place.
    pub(super) fn new(lane: Arc<Lane<T>>, index: usize, deque: deque::Worker<OpRef<T>>) -> Self {
        Self {
            lane,
            index,
            deque,
            slot: Cell::new(None),
            unnotified: Cell::new(false),
            budget: Cell::new(MAX_RUN),
            urgent_budget: Cell::new(0),
            served_at: Cell::new(MAX_RUN),
            turn: Cell::new(Turn::Injector),
            rounds: Cell::new(0),
            victim: Cell::new(index + 1),
            sample: Cell::new((Instant::now(), 0)),
        }
    }

    /// The worker's lane.
    pub fn lane(&self) -> &Arc<Lane<T>> {
        &self.lane
    }

    /// The worker's number in its lane.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Takes an operation that became ready between two operations of this worker. The first one is run next. Others
    /// are told of further ones when this worker looks for the next operation, or [shares](Self::share) what it has.
    #[inline]
    pub fn push_next(&self, op: OpRef<T>) {
        if self.lane.injector().highest().is_some_and(|highest| highest > op.band) {
            return self.enqueue(op);
        }
        match self.slot.take() {
            None => self.slot.set(Some(op)),
            first => {
                self.slot.set(first);
                self.enqueue(op);
            }
        }
    }

    /// Takes an operation that became ready while another runs on this worker. It goes where others can take it, since
    /// nobody knows how long that will take.
    pub fn push_local(&self, op: OpRef<T>) {
        self.enqueue(op);
        self.notify();
    }

    /// Puts what only this worker could take where others can.
    pub fn share_slot(&self) {
        if let Some(op) = self.slot.take() {
            self.enqueue(op);
        }
        self.notify();
    }

    /// Queues an operation. Of what is put into the deque others are still to be [notified](Self::notify).
    #[inline(never)]
    fn enqueue(&self, op: OpRef<T>) {
        if op.band == DEFAULT_BAND && self.deque.len() < DEQUE_CAPACITY {
            self.deque.push(op);
            self.unnotified.set(true);
        } else {
            self.lane.inject(op);
        }
    }

    /// Sees to it that another worker looks for what was queued, once for all of it.
    #[inline]
    fn notify(&self) {
        if self.unnotified.get() {
            self.notify_now();
        }
    }

    #[inline(never)]
    fn notify_now(&self) {
        self.unnotified.set(false);
        self.lane.sleep().notify();
    }

    /// The next operation to run, if there is one now.
    pub fn try_next(&self) -> Option<OpRef<T>> {
        self.find()
    }

    /// The next operation to run; waits for one. `None`: the lane has ended.
    #[inline]
    pub fn next(&self) -> Option<OpRef<T>> {
        match self.find() {
            Some(op) => Some(op),
            None => self.search(),
        }
    }

    /// The next operation, from the highest band on; among equals by turns.
    #[inline]
    fn find(&self) -> Option<OpRef<T>> {
        self.notify();
        self.lane.sleep().count_find(self.index);
        let slot = self.slot.take();
        let is_next = |op: &OpRef<T>| {
            self.budget.get() > 0 && self.lane.injector().highest().is_none_or(|highest| highest <= op.band)
        };
        if slot.as_ref().is_some_and(is_next) {
            self.budget.set(self.budget.get() - 1);
            return slot;
        }
        self.find_queued(slot)
    }

    /// As [`find`](Self::find), when what was in the slot is not simply next. Short, since what is in the deque most often
    /// is.
    #[inline(never)]
    fn find_queued(&self, slot: Option<OpRef<T>>) -> Option<OpRef<T>> {
        if slot.is_none()
            && self.budget.get() > 0
            && !self.lane.injector().is_urgent()
            && let Some(op) = self.deque.pop()
        {
            self.count_served();
            return Some(op);
        }
        self.find_by_turns(slot)
    }

    /// As [`find_queued`](Self::find_queued), for all other cases.
    #[inline(never)]
    fn find_by_turns(&self, slot: Option<OpRef<T>>) -> Option<OpRef<T>> {
        let highest = self.lane.injector().highest();
        if let Some(op) = slot {
            if highest <= Some(op.band) && self.may_run_slot(op.band, highest) {
                return Some(op);
            }
            self.push_local(op);
        }
        if highest > Some(DEFAULT_BAND)
            && let Some(op) = self.pop_bands(|band| band > DEFAULT_BAND)
        {
            if self.budget.get() == 0 {
                self.skip_turns();
            }
            self.urgent_budget.set(MAX_RUN - self.budget.get());
            return Some(op);
        }
        if self.budget.get() == 0
            && let Some(op) = self.take_turns()
        {
            return Some(op);
        }
        let op = self
            .deque
            .pop()
            .or_else(|| self.pop_injector(DEFAULT_BAND, MAX_BATCH))
            .or_else(|| self.steal())
            .or_else(|| self.pop_bands(|_| true))?;
        self.count_served();
        Some(op)
    }

    /// Counts an operation that is not from the slot.
    #[inline]
    fn count_served(&self) {
        let budget = self.budget.get() - 1;
        self.budget.set(budget);
        self.served_at.set(budget);
    }

    /// Whether what was in the slot, of `band`, is next although it is the others' turn: nothing in the injector is more
    /// urgent, and nobody who is as urgent has to wait for longer than a run.
    #[inline(never)]
    fn may_run_slot(&self, band: u8, highest: Option<u8>) -> bool {
        let equals_wait = highest == Some(band);
        if !equals_wait && self.skip_turns() {
            self.budget.set(self.budget.get() - 1);
            return true;
        }
        if band <= DEFAULT_BAND || equals_wait && self.urgent_budget.get() == 0 {
            return false;
        }
        if equals_wait {
            self.urgent_budget.set(self.urgent_budget.get() - 1);
        }
        true
    }

    /// Goes through the turns of the others, up to an operation. Without one, the worker's own deque is next.
    #[inline(never)]
    fn take_turns(&self) -> Option<OpRef<T>> {
        if self.turn.get() == Turn::Injector {
            self.turn.set(Turn::Visit);
            let max = if self.deque.is_empty() { MAX_BATCH } else { 1 };
            if let Some(op) = self.pop_injector(DEFAULT_BAND, max) {
                return Some(op);
            }
        }
        if self.turn.get() == Turn::Visit {
            self.turn.set(Turn::Own);
            if let Some(Steal::Success(op)) = self.visit_target().map(Stealer::steal) {
                return Some(op);
            }
        }
        self.begin_round();
        None
    }

    /// Begins the next round at once if nobody waits for a turn in this one, the deque having been served; says whether it
    /// does. The next round ends when the deque must be served again.
    fn skip_turns(&self) -> bool {
        let unserved = if self.deque.is_empty() { 0 } else { self.served_at.get() };
        let skips = unserved < MAX_RUN
            && self.turn.get() == Turn::Injector
            && self.lane.injector().is_default_empty()
            && self.visit_target().is_none_or(Stealer::is_empty);
        if skips {
            self.begin_round();
            self.budget.set(MAX_RUN - unserved);
        }
        skips
    }

    fn begin_round(&self) {
        self.turn.set(Turn::Injector);
        self.rounds.set(self.rounds.get().wrapping_add(1));
        self.budget.set(MAX_RUN);
        self.urgent_budget.set(0);
        self.served_at.set(MAX_RUN);
    }

    /// Whose deque the worker visits in this round: now and then another's, each in its turn.
    fn visit_target(&self) -> Option<&Stealer<OpRef<T>>> {
        let (round, stealers) = (self.rounds.get(), self.lane.stealers());
        if stealers.len() < 2 || !round.is_multiple_of(ROUNDS_PER_VISIT) {
            return None;
        }
        let step = (round / ROUNDS_PER_VISIT) as usize % (stealers.len() - 1);
        Some(&stealers[(self.index + 1 + step) % stealers.len()])
    }

    /// Takes from the highest band that `wanted` allows.
    fn pop_bands(&self, wanted: impl Fn(u8) -> bool) -> Option<OpRef<T>> {
        while let Some(band) = self.lane.injector().highest().filter(|&band| wanted(band)) {
            if let Some(op) = self.pop_injector(band, 1) {
                return Some(op);
            }
        }
        None
    }

    /// Takes at most `max` operations from a band of the injector. All but the first go into the deque, which must have room.
    #[inline(never)]
    fn pop_injector(&self, band: u8, max: usize) -> Option<OpRef<T>> {
        let (mut chain, rest) = self.lane.injector().pop(band, max)?;
        let op = chain.next();
        let shared = rest == Rest::Published || chain.has_more();
        chain.for_each(|op| self.deque.push(op));
        if shared {
            self.lane.sleep().notify();
        }
        op
    }

    /// Takes from another worker's deque, round the lane once per attempt.
    fn steal(&self) -> Option<OpRef<T>> {
        let stealers = self.lane.stealers();
        let count = stealers.len();
        if count < 2 {
            return None;
        }
        loop {
            let mut retry = false;
            let start = self.victim.get();
            for offset in 0..count {
                let victim = (start + offset) % count;
                if victim == self.index {
                    continue;
                }
                pause::at(Point::StealBegins);
                match stealers[victim].steal_batch_and_pop(&self.deque) {
                    Steal::Success(op) => {
                        pause::at(Point::StealTaken);
                        self.victim.set(victim);
                        if !self.deque.is_empty() {
                            self.lane.sleep().notify();
                        }
                        return Some(op);
                    }
                    Steal::Retry => retry = true,
                    Steal::Empty => {}
                }
            }
            self.victim.set((start + 1) % count);
            if !retry {
                return None;
            }
            hint::spin_loop();
        }
    }

    /// Looks for work until there is some or the lane ends, asleep if the idle policy says so.
    #[cold]
    fn search(&self) -> Option<OpRef<T>> {
        let sleep = self.lane.sleep();
        let mut state = if sleep.try_start_search() { SearchState::Searching } else { SearchState::Inactive };
        let guard = SearchGuard { sleep, worker: self.index, state: Cell::new(SearchState::Inactive) };
        let mut was_timed = false;
        loop {
            guard.state.set(state);
            pause::at(Point::SleepSearching);
            // A worker beside whoever makes the work would only keep that from making more.
            let contended = self.lane.idle() != IdlePolicy::Spin && sleep.is_contended(self.index);
            if state == SearchState::Searching
                && let Some(op) = if contended || was_timed { self.find() } else { self.spin() }
            {
                return self.finish_search(op);
            }
            if self.lane.has_ended() {
                if state == SearchState::Searching {
                    let _ = sleep.stop_search();
                }
                return None;
            }
            let park = if contended && self.is_lane_busy() { ParkKind::Timed } else { ParkKind::Untimed };
            sleep.announce(self.index, state, park);
            guard.state.set(SearchState::Announced);
            pause::at(Point::SleepAnnounced);
            if !removed(Step::SearchAgainBeforePark) {
                // After the announcement: what was pushed by a notifier that saw no sleeper is seen here.
                if let Some(op) = self.find() {
                    // A notifier may have counted on this worker while it was announced.
                    sleep.retract(self.index);
                    return self.finish_search(op);
                }
                if self.lane.has_ended() {
                    sleep.retract(self.index);
                    let _ = sleep.stop_search();
                    return None;
                }
            }
            pause::at(Point::SleepBeforePark);
            match park {
                ParkKind::Timed => sleep.park_timed(self.index),
                ParkKind::Untimed => sleep.park(self.index),
            }
            (state, was_timed) = (SearchState::Searching, park == ParkKind::Timed);
        }
    }

    /// Whether the workers of the lane have looked for operations often of late, so that what is made next need not wait
    /// for long.
    fn is_lane_busy(&self) -> bool {
        let (now, finds) = (Instant::now(), self.lane.sleep().finds());
        let (then, before) = self.sample.replace((now, finds));
        let count = u32::try_from(finds.wrapping_sub(before)).unwrap_or(u32::MAX);
        // Models have no clock.
        cfg!(any(raddle_loom, raddle_shuttle)) || now - then <= MAX_FIND_INTERVAL.saturating_mul(count)
    }

    /// Ends a search that has found `op`. The last searcher to find something wakes another if there is more, because
    /// notifiers relied on it.
    fn finish_search(&self, op: OpRef<T>) -> Option<OpRef<T>> {
        if self.lane.sleep().stop_search() && self.lane.has_work() {
            self.lane.sleep().notify();
        }
        Some(op)
    }

    #[cfg(not(any(raddle_loom, raddle_shuttle)))]
    fn spin(&self) -> Option<OpRef<T>> {
        let patience = match self.lane.idle() {
            IdlePolicy::Park => return self.find(),
            IdlePolicy::SpinThenPark(patience) => Some(patience),
            IdlePolicy::Spin => None,
        };
        let start = Instant::now();
        let mut last = start;
        let [mut pauses, later] = PAUSES_PER_ROUND;
        loop {
            for _ in 0..ROUNDS_PER_CLOCK {
                if self.lane.has_work()
                    && let Some(op) = self.find()
                {
                    return Some(op);
                }
                (0..pauses).for_each(|_| hint::spin_loop());
            }
            pauses = later;
            let now = Instant::now();
            let is_over = |patience| now - start >= patience || now - last >= CONTENDED;
            if self.lane.has_ended() || patience.is_some_and(is_over) {
                return self.find();
            }
            last = now;
        }
    }

    /// Models do not spin: a look before the announcement is one more step without a new oneshot.
    #[cfg(any(raddle_loom, raddle_shuttle))]
    fn spin(&self) -> Option<OpRef<T>> {
        let _ = (self.lane.idle(), hint::spin_loop as fn(), IdlePolicy::Spin);
        self.find()
    }
}

/// A search for work. If it is broken off by a panic, of code that another crate has left where crossbeam-deque comes by,
/// nobody may go on counting on it.
struct SearchGuard<'s> {
    sleep: &'s Sleep,
    worker: usize,
    state: Cell<SearchState>,
}

impl Drop for SearchGuard<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        match self.state.get() {
            SearchState::Inactive => return,
            SearchState::Searching => {}
            SearchState::Announced => self.sleep.retract(self.worker),
        }
        // If it was the last one, its worker looks again all the same: it goes on.
        let _ = self.sleep.stop_search();
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        debug_assert!(
            self.slot.get_mut().is_none() && self.deque.is_empty(),
            "operations are left in worker {} of lane {}",
            self.index,
            self.lane.name(),
        );
    }
}

#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
mod tests;
