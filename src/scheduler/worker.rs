//! A worker: its deque, its slot, and its search for the next operation.

use std::{
    cell::Cell,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    injector::Rest,
    lane::Lane,
    loans::Stay,
    priority::{DEFAULT_BAND, HIGHEST_BAND},
    sleep::{IdlePolicy, ParkKind, SearchState, Sleep},
};
use crate::{
    sync::{
        deque::{Deque, Steal, Stealer},
        edge::{engine_step, removed, step},
        hint,
    },
    system::{Placement, pin::Pin},
    testing::pause::{self, Point},
    tracker::OpRef,
};

/// How many of its own operations a worker runs before other operations get their turn (`README.md`, Fairness). Not
/// tuned.
const MAX_RUN: u32 = 32;

/// A worker visits another worker's deque once in this many rounds. Not tuned: a visit costs both workers a cache miss,
/// and is needed only if the other worker does not return to its deque.
const ROUNDS_PER_VISIT: u32 = 8;

/// The maximum number of operations that a worker takes from the injector in one pop. Not tuned: a pop is cheap
/// compared with running that many operations, and other workers can still steal all but the first.
const MAX_BATCH: usize = if cfg!(raddle_loom) { 2 } else { 32 };

/// The maximum number of operations in a deque: the initial capacity of crossbeam-deque. Growing and shrinking would
/// pin the thread in crossbeam's default collector in the middle of a push or a pop. Pinning there may run destructors
/// deferred by other crates: if one panicked, the operation in transit would be lost.
const DEQUE_CAPACITY: usize = 64;

/// A full deque is searched for stale entries if waiters on its worker may have left at least this many there. Not
/// tuned: a quarter of the deque, so a search pays for itself.
const MANY_STALE: u32 = 16;

/// The longest time that a worker stays idle because its place is lent. Not tuned: longer than most functions take, but
/// too short to bother a user. The limit is needed because the function running in its place may be waiting for what
/// the worker found. A function that queues for a worker uses the same limit.
pub const LONGEST_STAY: Duration = Duration::from_millis(100);

/// The number of search rounds between two readings of the clock. Measured, like the constants below: see "Constants of
/// timed parks and searches" in `benches/README.md`.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
const ROUNDS_PER_CLOCK: u32 = 8;

/// If this much time passes between two readings of the clock, a searching worker is assumed to share its core with
/// another thread. Except under [`IdlePolicy::Spin`], the worker then stops searching, since notifiers rely on it and
/// the other thread may be the one that pushes work.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
const CONTENDED: Duration = Duration::from_micros(20);

/// The numbers of pauses between two search rounds: before the first reading of the clock, and after it. Some 100 ns at
/// first, so that a searcher does not keep taking cache lines away from a pusher and a busy worker that write them. If
/// nothing has been found by then, the pushers probably pause between pushes, and a searcher that pauses less finds
/// their operations sooner.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
const PAUSES_PER_ROUND: [u32; 2] = [8, 2];

/// The source of a worker's next operation once its `budget` is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// The default band of the injector.
    Injector,
    /// Another worker's deque, in some rounds.
    Visit,
    /// The worker's own deque, which begins the next round.
    Own,
}

/// A worker of a lane. It is run by at most one thread at a time, and may move to another thread while none of its
/// methods is running.
pub struct Worker<T> {
    lane: Arc<Lane<T>>,
    index: usize,
    deque: Deque<OpRef<T>>,
    /// The first operation made ready by the completion of this worker's last operation.
    slot: Cell<Option<OpRef<T>>>,
    /// Whether operations have been pushed to the deque since the last notification.
    unnotified: Cell<bool>,
    /// The number of its own operations, from slot and deque, that the worker may still run before other operations get
    /// their turn.
    budget: Cell<u32>,
    /// Once `budget` is zero: the number of urgent operations from the slot that the worker may still run while equally
    /// urgent ones wait.
    urgent_budget: Cell<u32>,
    /// The budget when the deque was last served in this round, or `MAX_RUN` if it has not been served.
    served_at: Cell<u32>,
    /// Whose turn it is when `budget` is zero.
    turn: Cell<Turn>,
    /// The number of rounds begun so far.
    rounds: Cell<u32>,
    /// The number of queue entries that waiters on this worker have made stale by taking their operations since the
    /// deque was last searched.
    stale: Cell<u32>,
    /// Whether the worker has just stayed idle for [`LONGEST_STAY`]. If so, the worker runs the next operation that it
    /// finds.
    has_stayed: Cell<bool>,
    /// The worker at which the next stealing sweep begins.
    victim: Cell<usize>,
    /// The time and value of the last sample of the lane's `find` count.
    sample: Cell<(Instant, usize)>,
    /// The core of the worker, if it has one.
    pin: Option<Pin>,
}

impl<T> std::fmt::Debug for Worker<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("lane", &self.lane.name()).field("index", &self.index).finish_non_exhaustive()
    }
}

impl<T> Worker<T> {
    /// Creates worker number `index` of `lane`. The lane's stealer at that index must be the stealer of `deque`.
    pub(super) fn new(lane: Arc<Lane<T>>, index: usize, deque: Deque<OpRef<T>>) -> Self {
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
            stale: Cell::new(0),
            has_stayed: Cell::new(false),
            victim: Cell::new(index + 1),
            sample: Cell::new((Instant::now(), 0)),
            pin: None,
        }
    }

    /// Gives the worker a core of its own.
    pub(crate) fn set_pin(&mut self, pin: Pin) {
        self.pin = Some(pin);
    }

    /// Returns the worker's own core, if it has one.
    pub(crate) fn pin(&self) -> Option<&Pin> {
        self.pin.as_ref()
    }

    /// Looks at the worker's core if there has been no look for a while.
    fn look(&self, look: impl FnOnce(&Pin) -> Option<Placement>) {
        if let Some(placement) = self.pin.as_ref().and_then(look) {
            self.lane.sleep().set_core(self.index, placement.core());
        }
    }

    /// Returns the worker's lane.
    pub fn lane(&self) -> &Arc<Lane<T>> {
        &self.lane
    }

    /// Returns the worker's number in its lane.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Pushes an operation that became ready between two operations of this worker. The first such operation goes into
    /// the slot, unless a more urgent one waits in the injector, and runs next unless another operation gets its turn.
    /// The worker notifies others of the operations in its deque when it looks for its next operation, or
    /// [shares](Self::share_slot) its slot.
    #[inline]
    pub fn push_next(&self, op: OpRef<T>) {
        if let Err(op) = self.put_in_slot(op) {
            self.enqueue(op);
        }
    }

    /// The first part of [`push_next`](Self::push_next), which does not use the deque. Returns the operation if it does
    /// not go into the slot; the caller must then [enqueue](Self::enqueue) it.
    #[inline]
    pub fn put_in_slot(&self, op: OpRef<T>) -> Result<(), OpRef<T>> {
        if self.lane.injector().highest().is_some_and(|highest| highest > op.band) {
            return Err(op);
        }
        match self.slot.take() {
            None => {
                self.slot.set(Some(op));
                Ok(())
            }
            first => {
                self.slot.set(first);
                Err(op)
            }
        }
    }

    /// Pushes an operation that became ready while another is running on this worker. The new operation is placed where
    /// other workers can take it, since the running operation may take arbitrarily long.
    pub fn push_local(&self, op: OpRef<T>) {
        self.enqueue(op);
        self.notify();
    }

    /// Makes the operation in the slot available to other workers, and notifies them.
    pub fn share_slot(&self) {
        if let Some(op) = self.slot.take() {
            self.enqueue(op);
        }
        if !removed(step::SHARED_SLOT_NOTIFIES) {
            self.notify();
        }
    }

    /// Pushes an operation into the deque, or into the injector if the deque is full or the band is not the default. If
    /// the operation goes into the deque, the caller must [notify](Self::notify) others.
    #[inline(never)]
    pub fn enqueue(&self, op: OpRef<T>) {
        if op.band == DEFAULT_BAND && self.deque.len() < DEQUE_CAPACITY {
            self.deque.push(op);
            self.unnotified.set(true);
        } else {
            self.enqueue_elsewhere(op);
        }
    }

    /// Continues [`enqueue`](Self::enqueue) if the deque is full or the band is not the default.
    #[cold]
    #[inline(never)]
    fn enqueue_elsewhere(&self, op: OpRef<T>) {
        if op.band == DEFAULT_BAND && self.drop_stale() {
            self.deque.push(op);
            self.unnotified.set(true);
        } else {
            self.lane.inject(op);
        }
    }

    /// Takes the first operation in the deque for which `wanted` returns `true`. The others keep their order, and stale
    /// entries are dropped.
    pub fn take(&self, mut wanted: impl FnMut(&OpRef<T>) -> bool) -> Option<OpRef<T>> {
        self.stale.set(0);
        let mut taken = None;
        for _ in 0..self.deque.len() {
            let Some(entry) = self.deque.pop() else { break };
            let Some((op, is_wanted)) = entry.look_at_entry(|op| taken.is_none() && wanted(op)) else { continue };
            if is_wanted {
                taken = Some(op);
            } else {
                self.deque.push(op);
                self.unnotified.set(true);
            }
        }
        if !removed(step::PUT_BACK_NOTIFIES) {
            self.notify();
        }
        taken
    }

    /// Counts an operation that a waiter on this worker runs.
    pub fn note_helped(&self) {
        self.lane.activity(self.index).helped.add_one();
    }

    /// Records that a waiter on this worker has taken an operation from its queue entry.
    pub fn note_stale(&self) {
        self.stale.set(self.stale.get().saturating_add(1));
    }

    /// Drops the stale entries of the full deque if there may be many. Returns whether there is now room.
    fn drop_stale(&self) -> bool {
        if self.stale.get() < MANY_STALE {
            return false;
        }
        let none = self.take(|_| false);
        debug_assert!(none.is_none(), "no operation is wanted");
        self.deque.len() < DEQUE_CAPACITY
    }

    /// Notifies other workers once for all operations pushed to the deque since the last notification.
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

    /// Returns the next operation, if one is available now.
    pub fn try_next(&self) -> Option<OpRef<T>> {
        self.find()
    }

    /// Waits for the next operation and returns it. Returns `None` if the lane has ended, or if the worker was
    /// [recalled](Lane::recall), even if the recall has since been undone.
    #[inline]
    pub fn next(&self) -> Option<OpRef<T>> {
        match self.next_in_slot() {
            Ok(op) => Some(op),
            Err(slot) => self.next_queued(slot),
        }
    }

    /// The first part of [`next`](Self::next), which does not use the deque: returns the operation in the slot if it is
    /// the next one. Otherwise, the caller must continue with [`next_queued`](Self::next_queued), to which it passes
    /// the error.
    #[inline]
    pub fn next_in_slot(&self) -> Result<OpRef<T>, Option<OpRef<T>>> {
        if !removed(step::SUCCESSORS_NOTIFY) {
            self.notify();
        }
        self.lane.sleep().count_find(self.index);
        let slot = self.slot.take();
        let is_next = |op: &OpRef<T>| {
            self.budget.get() > 0 && self.lane.injector().highest().is_none_or(|highest| highest <= op.band)
        };
        match slot {
            Some(op) if is_next(&op) => {
                self.budget.set(self.budget.get() - 1);
                Ok(op)
            }
            slot => Err(slot),
        }
    }

    /// The second part of [`next`](Self::next).
    #[inline]
    pub fn next_queued(&self, slot: Option<OpRef<T>>) -> Option<OpRef<T>> {
        match self.find_queued(slot) {
            Some(op) => Some(op),
            None => self.search(),
        }
    }

    /// Returns the next operation, if one is available. With the exceptions in `README.md` (Fairness), it is of the
    /// highest non-empty band, in which equals take turns.
    #[inline]
    fn find(&self) -> Option<OpRef<T>> {
        match self.next_in_slot() {
            Ok(op) => Some(op),
            Err(slot) => self.find_queued(slot),
        }
    }

    /// Continues [`find`](Self::find), which has not returned the operation in the slot. The next operation is then
    /// usually in the deque, so this function is kept short.
    #[inline(never)]
    fn find_queued(&self, slot: Option<OpRef<T>>) -> Option<OpRef<T>> {
        if slot.is_none() && self.budget.get() > 0 && !self.lane.injector().is_urgent() {
            if let Some(op) = self.deque.pop() {
                self.count_served();
                return Some(op);
            }
        }
        self.find_by_turns(slot)
    }

    /// Continues [`find_queued`](Self::find_queued) in the remaining cases.
    #[inline(never)]
    fn find_by_turns(&self, slot: Option<OpRef<T>>) -> Option<OpRef<T>> {
        let highest = self.lane.injector().highest();
        if let Some(op) = slot {
            if highest <= Some(op.band) && self.may_run_slot(op.band, highest) {
                return Some(op);
            }
            self.push_local(op);
        }
        if highest > Some(DEFAULT_BAND) {
            if let Some(op) = self.pop_bands(|band| band > DEFAULT_BAND) {
                if self.budget.get() == 0 {
                    self.skip_turns();
                }
                self.urgent_budget.set(MAX_RUN - self.budget.get());
                return Some(op);
            }
        }
        if self.budget.get() == 0 {
            if let Some(op) = self.take_turns() {
                return Some(op);
            }
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

    /// Counts an operation that did not come from the slot against the budget, and records the budget that is left.
    #[inline]
    fn count_served(&self) {
        let budget = self.budget.get() - 1;
        self.budget.set(budget);
        self.served_at.set(budget);
    }

    /// Whether an operation of `band` in the slot runs next although other operations are due their turn: none of these
    /// waits, or the operation is urgent and no equally urgent one has to wait longer than a run. If so, counts the
    /// operation. The caller has checked that nothing in the injector is more urgent.
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

    /// Takes an operation from the injector or from another worker's deque, whichever turn is due. If the remaining
    /// turns yield none, begins the next round, which starts with the worker's own deque.
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

    /// Begins the next round and returns `true` if no turn of this round has been taken, no operation is waiting for
    /// one, and the deque is empty or has been served. The next round ends when the deque must be served again.
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
        self.look(Pin::look_in_round);
        self.turn.set(Turn::Injector);
        self.rounds.set(self.rounds.get().wrapping_add(1));
        self.budget.set(MAX_RUN);
        self.urgent_budget.set(0);
        self.served_at.set(MAX_RUN);
    }

    /// Returns the deque of the worker that this one visits in this round, if any. The other workers are visited in
    /// turn.
    fn visit_target(&self) -> Option<&Stealer<OpRef<T>>> {
        let (round, stealers) = (self.rounds.get(), self.lane.stealers());
        if stealers.len() < 2 || round % ROUNDS_PER_VISIT != 0 {
            return None;
        }
        let step = (round / ROUNDS_PER_VISIT) as usize % (stealers.len() - 1);
        Some(&stealers[(self.index + 1 + step) % stealers.len()])
    }

    /// Takes an operation of the band [`HIGHEST_BAND`] from the injector, leaving the lane's operations in other bands
    /// where they are.
    pub(crate) fn take_first(&self) -> Option<OpRef<T>> {
        self.pop_bands(|band| band == HIGHEST_BAND)
    }

    /// Pops from the highest non-empty band of the injector other than the default, as long as `wanted` returns `true`
    /// for that band.
    fn pop_bands(&self, wanted: impl Fn(u8) -> bool) -> Option<OpRef<T>> {
        while let Some(band) = self.lane.injector().highest().filter(|&band| wanted(band)) {
            if let Some(op) = self.pop_injector(band, 1) {
                return Some(op);
            }
        }
        None
    }

    /// Pops at most `max` operations from a band of the injector. All but the first go into the deque, which must have
    /// room for them.
    #[inline(never)]
    fn pop_injector(&self, band: u8, max: usize) -> Option<OpRef<T>> {
        let (mut chain, rest) = self.lane.injector().pop(band, max)?;
        let op = chain.next();
        let shared = rest == Rest::Published || chain.has_more();
        chain.for_each(|op| self.deque.push(op));
        if shared && !removed(engine_step::BATCH_NOTIFIES) {
            self.lane.sleep().notify();
        }
        op
    }

    /// Steals from another worker's deque. Sweeps the lane until it has stolen something or has found every other deque
    /// empty.
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
                        self.lane.activity(self.index).steals.add_one();
                        if !self.deque.is_empty() && !removed(step::STEAL_NOTIFIES) {
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

    /// Calls [`find`](Self::find) again in a search, after recording that the worker is no longer idle.
    fn find_again(&self) -> Option<OpRef<T>> {
        self.lane.sleep().note_busy(self.index);
        self.find()
    }

    /// Searches until it finds an operation, the lane ends or its workers are recalled. Sleeps in between if the idle
    /// policy permits.
    #[cold]
    fn search(&self) -> Option<OpRef<T>> {
        self.look(Pin::look);
        let sleep = self.lane.sleep();
        let begin = |guard: &SearchGuard<'_>| {
            guard.state.set(SearchState::Inactive);
            if sleep.try_start_search() { SearchState::Searching } else { SearchState::Inactive }
        };
        let guard = SearchGuard { sleep, worker: self.index, state: Cell::new(SearchState::Inactive) };
        let mut state = begin(&guard);
        let mut was_timed = false;
        loop {
            sleep.note_idle(self.index);
            guard.state.set(state);
            pause::at(Point::SleepSearching);
            // On the core of a waiting or pushing thread, spinning would only keep that thread from producing work.
            let may_yield = self.lane.idle() != IdlePolicy::Spin;
            let beside = may_yield && sleep.skips_search();
            // A waiter pushes so seldom that the wake-ups cost less than the timer of a timed park.
            let contended = may_yield && !beside && sleep.is_contended(self.index);
            if state == SearchState::Searching {
                let found = if beside || contended || was_timed { self.find_again() } else { self.spin() };
                if let Some(op) = found {
                    match self.finish_search(op) {
                        None => {
                            state = begin(&guard);
                            continue;
                        }
                        op => return op,
                    }
                }
                sleep.note_idle(self.index);
            }
            if self.lane.ends_searches() {
                if state == SearchState::Searching {
                    let _ = sleep.stop_search();
                }
                // If the lane has ended, no operation is left, but there may be entries whose operations were taken by
                // waiters.
                return self.find_again();
            }
            let park = if contended && self.is_lane_busy() { ParkKind::Timed } else { ParkKind::Untimed };
            let wakes = sleep.wakes_of(self.index);
            sleep.announce(self.index, state, park);
            guard.state.set(SearchState::Announced);
            pause::at(Point::SleepAnnounced);
            if !removed(step::SEARCH_AGAIN_BEFORE_PARK) {
                // This search comes after the announcement: a notifier that saw no sleeper had already made its work
                // visible, so this search sees the work.
                if let Some(op) = self.find_again() {
                    // A notifier may have counted on this worker while it was announced.
                    sleep.retract(self.index);
                    match self.finish_search(op) {
                        None => {
                            state = begin(&guard);
                            continue;
                        }
                        op => return op,
                    }
                }
                sleep.note_idle(self.index);
                if self.lane.ends_searches() && !removed(step::END_CHECKED_AGAIN) {
                    sleep.retract(self.index);
                    let _ = sleep.stop_search();
                    // A recalled worker may be given a thread again, whose first call to `find` is not in a search.
                    sleep.note_busy(self.index);
                    return None;
                }
            }
            pause::at(Point::SleepBeforePark);
            self.lane.activity(self.index).parks.add_one();
            match park {
                ParkKind::Timed => sleep.park_timed(self.index, wakes),
                ParkKind::Untimed => sleep.park(self.index, wakes),
            }
            (state, was_timed) = (SearchState::Searching, park == ParkKind::Timed);
        }
    }

    /// Whether the lane's workers have called `find` often since the previous call of this function.
    fn is_lane_busy(&self) -> bool {
        let (now, finds) = (Instant::now(), self.lane.sleep().finds());
        let (then, before) = self.sample.replace((now, finds));
        // Models have no clock.
        cfg!(any(raddle_loom, raddle_shuttle)) || Sleep::are_many(finds.wrapping_sub(before), now - then)
    }

    /// Ends a search that found `op`. The last searcher wakes another worker if there is more work, because notifiers
    /// relied on it. Returns `None` if the worker stayed idle because its place was lent, and must search again.
    fn finish_search(&self, op: OpRef<T>) -> Option<OpRef<T>> {
        let is_last = self.lane.sleep().stop_search() && !removed(step::LAST_SEARCHER_CHECKS);
        if is_last && self.lane.has_work() {
            self.lane.sleep().notify();
        }
        let has_stayed = self.has_stayed.replace(false);
        if self.lane.loans().are_any() && !has_stayed { self.stay_idle(op) } else { Some(op) }
    }

    /// Continues [`finish_search`](Self::finish_search) if places are lent.
    #[cold]
    fn stay_idle(&self, op: OpRef<T>) -> Option<OpRef<T>> {
        let op = Cell::new(Some(op));
        let put_back = || {
            // The operation goes into the deque, whatever its band: an operation enters an injector only once.
            op.take().into_iter().for_each(|op| self.deque.push(op));
            self.lane.sleep().notify();
        };
        let deadline = Instant::now() + LONGEST_STAY;
        let stay = self.lane.loans().stay_idle(self.lane.sleep(), self.index, Some(deadline), put_back);
        self.has_stayed.set(stay == Stay::TimedOut);
        op.take()
    }

    /// Stays idle, between two operations, while functions continue in the places of workers of which too few are idle.
    pub fn give_way(&self) {
        let deadline = Instant::now() + LONGEST_STAY;
        let _ = self.lane.loans().give_way(self.lane.sleep(), self.index, Some(deadline));
    }

    #[cfg(not(any(raddle_loom, raddle_shuttle)))]
    fn spin(&self) -> Option<OpRef<T>> {
        let limit = match self.lane.idle() {
            IdlePolicy::Park => return self.find_again(),
            IdlePolicy::SpinThenPark(limit) => Some(limit),
            IdlePolicy::Spin => None,
        };
        let start = Instant::now();
        let mut last = start;
        let [mut pauses, later] = PAUSES_PER_ROUND;
        loop {
            for _ in 0..ROUNDS_PER_CLOCK {
                if self.lane.has_work() {
                    if let Some(op) = self.find_again() {
                        return Some(op);
                    }
                    self.lane.sleep().note_idle(self.index);
                }
                (0..pauses).for_each(|_| hint::spin_loop());
            }
            pauses = later;
            let now = Instant::now();
            let is_over =
                |limit| now - start >= limit || now - last >= CONTENDED || self.lane.sleep().is_beside_waiter();
            if self.lane.ends_searches() || limit.is_some_and(is_over) {
                return self.find_again();
            }
            last = now;
        }
    }

    /// Searches once, since models do not spin: more searches before the announcement would add steps but no
    /// interleaving that matters.
    #[cfg(any(raddle_loom, raddle_shuttle))]
    fn spin(&self) -> Option<OpRef<T>> {
        let _ = (self.lane.idle(), hint::spin_loop as fn(), IdlePolicy::Spin);
        self.find_again()
    }
}

/// Ends a search that unwinds, so notifiers no longer rely on it. A destructor deferred by another crate may panic
/// inside crossbeam-deque.
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
        // The last searcher need not check for work here: the worker continues after the panic and searches again.
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
