//! The writing ends of rings.
//!
//! # Who may touch what
//!
//! * A writer's cells: only the thread, which [finds](per_thread) it among its own.
//! * [`RingShared`]: the thread stores, and the reader of the ring loads. These are counts and snapshots for
//!   diagnostics, which own nothing. A reader that finds a call then reads this ring, and so finds what the thread
//!   wrote before the call. The operation's push may be in a ring that was read before; it is found nevertheless, since
//!   the call is ignored unless it came before that reading.

use std::{
    cell::{Cell, RefCell},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::LocalKey,
};

use rtrb::{Producer, chunks::ChunkError};

use super::per_thread::{self, Ends, Nearest, WritingEnd};
use crate::sync::{
    Mutex,
    edge::{self, acquire, release},
    try_lock,
};
use raddle_trace::{
    Name, OpId, Outcome, Place,
    recording::{self, PlaceWord, RingSlot, Short},
};

/// What a ring's two ends share beside the ring.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct RingShared {
    /// The number of events that did not fit since the reader last read it.
    pub(super) lost: AtomicU64,
    running: LastCall,
    /// Whether no thread writes any more.
    is_over: AtomicBool,
}

/// The function that the thread has called last, in case its start is not yet in the ring.
///
/// The words are stored and loaded one by one, so a reader may find words of two calls. The last word depends on all
/// others, and shows this.
#[derive(Debug, Default)]
struct LastCall {
    op: AtomicU64,
    from: AtomicU64,
    place: AtomicU64,
    check: AtomicU64,
}

/// The number of times that a reader tries to find words of one call.
const TRIES: usize = 100;

impl LastCall {
    /// Returns the last word of a call, which is not zero except by chance.
    #[inline]
    fn check(op: u64, from: u64, place: u64) -> u64 {
        // The factors are odd and otherwise arbitrary, so that different words rarely have the same sum.
        (op ^ 0x9e37_79b9_7f4a_7c15)
            .wrapping_mul(0xbf58_476d_1ce4_e5b9)
            .wrapping_add(from.wrapping_mul(0x94d0_49bb_1331_11eb))
            .wrapping_add(place.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    #[inline]
    fn set(&self, op: OpId, from: u64, PlaceWord(place): PlaceWord) {
        // Relaxed: published by the store below, and a reader detects words of different calls.
        self.op.store(op.0, Relaxed);
        self.from.store(from, Relaxed);
        self.place.store(place, Relaxed);
        self.check.store(Self::check(op.0, from, place), release(edge::running::BEGUN));
    }

    /// Makes readers find no call, since its start is in the ring or lost.
    fn clear(&self) {
        self.check.store(0, release(edge::running::WRITTEN));
    }

    /// Returns the time and the place of the call, as the thread has stored them.
    #[inline]
    fn own(&self) -> (u64, PlaceWord) {
        // Relaxed: only this thread stores these words.
        (self.from.load(Relaxed), PlaceWord(self.place.load(Relaxed)))
    }
}

impl RingShared {
    /// Returns the operation whose function the thread has called last, when, and where. The function may have returned
    /// since. Returns `None` if there is no such call, if the start is in the ring, if the thread calls functions so
    /// quickly that none is found, or if it was interrupted while it stored one.
    pub(super) fn running(&self) -> Option<(OpId, u64, Place)> {
        for _ in 0..TRIES {
            let check = self.running.check.load(acquire(edge::running::FOUND));
            if check == 0 {
                return None;
            }
            // Relaxed: words of later calls are detected.
            let [op, from, place] =
                [&self.running.op, &self.running.from, &self.running.place].map(|word| word.load(Relaxed));
            if check == LastCall::check(op, from, place) {
                return Some((OpId(op), from, Place::from_word(PlaceWord(place))));
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Returns the number of the last operation whose function the thread has called.
    pub(super) fn last_started(&self) -> u64 {
        // Relaxed: only whether it has changed.
        self.running.op.load(Relaxed)
    }

    /// Returns whether no thread writes any more. If so, the ring holds all that was written.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(acquire(edge::written::SEEN))
    }
}

/// The writing end of a ring.
pub(super) struct Writer {
    slots: RefCell<Producer<RingSlot>>,
    /// The number of the ring, by which the history knows the thread.
    pub(super) ring: u16,
    /// The time of the last event.
    pub(super) last: Cell<u64>,
    /// The number of the last operation pushed by this thread.
    pub(super) last_op: Cell<u64>,
    /// The operation whose function was called last, if no event was written since.
    open: Cell<OpId>,
    shared: Arc<RingShared>,
    idle: Arc<Mutex<IdleRings>>,
}

/// In place of an operation: there is none.
const NO_OP: OpId = OpId(0);

/// In place of an operation: the ring does not yet say that this thread has arrived.
const ARRIVAL: OpId = OpId(1);

/// The rings of threads that have ended, for the threads that come after them.
///
/// Locked only for moments, and only by attempts where a thread must not wait, or may be that of a forked child.
#[derive(Default)]
pub(super) struct IdleRings {
    rings: Vec<IdleRing>,
    /// The numbers of rings that are gone.
    pub(super) numbers: Vec<u16>,
}

/// The writing end of a ring without a thread. The ring may hold events that were not read.
struct IdleRing {
    slots: Producer<RingSlot>,
    ring: u16,
    last_op: u64,
    shared: Arc<RingShared>,
}

impl IdleRings {
    /// Takes a ring for the thread that calls this, whose arrival it will say.
    pub(super) fn take(&mut self, idle: &Arc<Mutex<Self>>) -> Option<Writer> {
        let IdleRing { slots, ring, last_op, shared } = self.rings.pop()?;
        let writer = Writer::new(ring, slots, shared, Arc::clone(idle));
        writer.last_op.set(last_op);
        writer.open.set(ARRIVAL);
        Some(writer)
    }

    /// Gives up all but `count` rings, which end once they are read.
    pub(super) fn shrink_to(&mut self, count: usize) {
        for ring in self.rings.drain(..self.rings.len().saturating_sub(count)) {
            ring.shared.end();
        }
    }
}

impl Writer {
    pub(super) fn new(
        ring: u16,
        slots: Producer<RingSlot>,
        shared: Arc<RingShared>,
        idle: Arc<Mutex<IdleRings>>,
    ) -> Self {
        let (last, last_op, open) = (Cell::new(0), Cell::new(0), Cell::new(NO_OP));
        Self { slots: RefCell::new(slots), ring, last, last_op, open, shared, idle }
    }

    /// Records that the function of `op` is called. The event is written when the thread records another one, together
    /// with the end if that is the next.
    #[inline(always)]
    pub(super) fn start(&self, now: u64, op: OpId, place: PlaceWord) {
        if !self.flush() {
            return self.lose(1);
        }
        self.shared.running.set(op, now, place);
        self.open.set(op);
    }

    /// Notes that the function of `op` is called, on an engine that keeps no events.
    #[inline]
    pub(super) fn note_start(&self, op: OpId) {
        // Relaxed: read only by `last_started`.
        self.shared.running.op.store(op.0, Relaxed);
    }

    /// Records that `op` ends, after its function has returned if it was called.
    #[inline(always)]
    pub(super) fn end(&self, now: u64, op: OpId, outcome: Outcome) {
        if self.open.get() != op {
            return self.put(now, op, Short::Ended(outcome));
        }
        self.open.set(NO_OP);
        let (from, place) = self.shared.running.own();
        if !self.write(recording::ran(now, op, outcome, from, place)) {
            self.shared.running.clear();
            self.lose(2);
        }
    }

    /// Writes an event.
    #[inline(always)]
    pub(super) fn put(&self, ticks: u64, op: OpId, event: Short) {
        if !self.flush() {
            return self.lose(1);
        }
        self.put_slot(recording::short(ticks, op, event));
    }

    /// Writes an event that takes one slot.
    #[inline(always)]
    pub(super) fn put_slot(&self, slot: RingSlot) {
        if !self.write(slot) {
            self.lose(1);
        }
    }

    /// Writes an event that takes two slots.
    #[inline(always)]
    pub(super) fn put_pair(&self, pair: [RingSlot; 2]) {
        if !self.slots.try_borrow_mut().is_ok_and(|mut slots| slots.push_entire_slice(&pair).is_ok()) {
            self.lose(1);
        }
    }

    /// Writes an event that takes two or more slots. `slots` is not called if they do not fit.
    #[inline]
    pub(super) fn put_slots<S: Iterator<Item = RingSlot>>(&self, count: usize, slots: impl FnOnce() -> S) {
        let Ok(mut producer) = self.slots.try_borrow_mut() else { return self.lose(1) };
        match producer.write_chunk_uninit(count) {
            Ok(chunk) => _ = chunk.fill_from_iter(slots()),
            Err(ChunkError::TooFewSlots(_)) => self.lose(1),
        }
    }

    /// Before another event, writes the start of the last function, or that this thread has arrived, if it is not yet
    /// written. Returns `false` if the arrival does not fit.
    #[inline]
    pub(super) fn flush(&self) -> bool {
        self.open.get() == NO_OP || self.write_first()
    }

    #[cold]
    #[inline(never)]
    fn write_first(&self) -> bool {
        let op = self.open.replace(NO_OP);
        if op == ARRIVAL {
            let has_room = self.slots.try_borrow().is_ok_and(|slots| slots.slots() > 0);
            if has_room {
                let thread = std::thread::current();
                let name = thread.name().map_or(Name::EMPTY, |name| Name::from(name.to_owned()));
                self.put_slot(recording::arrived(self.last.get(), name));
            } else {
                self.open.set(ARRIVAL);
            }
            return has_room;
        }
        let (from, place) = self.shared.running.own();
        self.put_slot(recording::short(from, op, Short::Started(Place::from_word(place))));
        self.shared.running.clear();
        true
    }

    /// Returns whether the slot fits.
    #[inline(always)]
    fn write(&self, slot: RingSlot) -> bool {
        self.slots.try_borrow_mut().is_ok_and(|mut slots| slots.push(slot).is_ok())
    }

    /// Counts events that are not written.
    #[cold]
    pub(super) fn lose(&self, events: u64) {
        // Relaxed: only a count.
        self.shared.lost.fetch_add(events, Relaxed);
    }
}

impl RingShared {
    /// Records that no thread writes any more.
    fn end(&self) {
        self.is_over.store(true, release(edge::written::LAST));
    }
}

thread_local! {
    static WRITERS: Ends<Writer> = const { Ends::new() };
    static NEAREST: Nearest<Writer> = const { per_thread::no_nearest() };
}

impl WritingEnd for Writer {
    fn ends() -> &'static LocalKey<Ends<Self>> {
        &WRITERS
    }

    #[inline(always)]
    fn nearest() -> &'static LocalKey<Nearest<Self>> {
        &NEAREST
    }

    fn is_abandoned(&self) -> bool {
        self.slots.try_borrow().is_ok_and(|slots| slots.is_abandoned())
    }

    /// Leaves the ring to another thread. If another one is looking for a ring, this one ends once it is read.
    fn retire(self) {
        // The arrival of a thread that has written nothing is left out. If the recorder is gone, nothing would free the
        // thread's name.
        if self.open.get() != ARRIVAL {
            self.flush();
        }
        let Self { slots, ring, last_op, shared, idle, .. } = self;
        let slots = slots.into_inner();
        match try_lock(&idle) {
            Some(mut idle) if slots.buffer().capacity() > 0 => {
                idle.rings.push(IdleRing { slots, ring, last_op: last_op.get(), shared });
            }
            _ => shared.end(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_different_calls_are_detected() {
        let shared = RingShared::default();
        assert!(shared.running().is_none());
        let place = Place::Worker { engine: 3, lane: 1, worker: 7 };
        shared.running.set(OpId(5 << 12), 99, place.to_word());
        assert_eq!(shared.running(), Some((OpId(5 << 12), 99, place)));
        let LastCall { op, from, place: at, .. } = &shared.running;
        for (word, bit) in [op, from, at].into_iter().flat_map(|word| (0..u64::BITS).map(move |bit| (word, bit))) {
            // Relaxed: the test has one thread.
            let flip = || word.fetch_xor(1 << bit, Relaxed);
            assert!((flip(), shared.running(), flip()).1.is_none(), "bit {bit}");
        }
        assert!(shared.running().is_some());
        shared.running.clear();
        assert!(shared.running().is_none());
    }
}
