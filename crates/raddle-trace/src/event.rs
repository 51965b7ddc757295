//! Events, and their layout in a ring.
//!
//! A ring holds *slots* of four words, so threads write an event with one or a few stores of half a cache line.
//!
//! | event | slots | words, four in each slot |
//! |---|---|---|
//! | a brief push, of at most one access | 1 | head, operation, location, the access |
//! | a brief push, of two to five accesses | 2 | head, operation, location, an access; the other accesses |
//! | any other push | 2 or more | head, time, operation, location; two words of the name, the first two accesses; in each further slot, four accesses |
//! | the arrival of another thread | 1 | head, time, two words of the thread's name |
//! | a call that ended its operation | 1 | head, time of the end, operation, time of the start |
//! | any other | 1 | head, time, operation, data specific to the kind |
//!
//! The head holds the kind in its lowest byte and data specific to the kind above it. That of a *brief* push, whose
//! operation has at most five accesses, no name and nothing else that makes it take the general way, holds the time as
//! a distance from the time in the operation's number.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    hash::{BuildHasherDefault, Hasher},
    panic::Location,
};

use crate::name::Name;

/// The unit of a ring.
pub type RingSlot = [u64; 4];

/// The identity of an operation in the traces of one recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(#[doc(hidden)] pub u64);

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// Maps and sets of operations and variables. Their numbers come from the recorder or from a log, so no more than
/// mixing is needed.
pub type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;
/// See [`IdMap`].
pub type IdSet<K> = HashSet<K, BuildHasherDefault<NumberHasher>>;

/// The hasher of one number or address, for tables whose keys no outside party chooses.
#[derive(Debug, Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, number: u64) {
        // The factor is odd and otherwise arbitrary. A table uses both the highest and the lowest bits.
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
}

/// The identity of a variable in the traces of one recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VarId(#[doc(hidden)] pub u64);

/// The number of bits of a [`VarId`] that identify the variable; the bits above identify the engine.
const VARIABLE_BITS: u32 = 44;

impl VarId {
    #[doc(hidden)]
    #[inline]
    pub fn new(engine: u16, variable: u64) -> Self {
        Self(u64::from(engine) << VARIABLE_BITS | variable & ((1 << VARIABLE_BITS) - 1))
    }
}

impl fmt::Display for VarId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0 & ((1 << VARIABLE_BITS) - 1))
    }
}

/// How an operation uses a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessMode {
    /// Reads the variable.
    Read,
    /// Mutates the variable.
    Write,
    /// Mutates the variable regardless of its state.
    Overwrite,
    /// Mutates the variable, in no particular order among operations that do the same.
    Commute,
}

impl AccessMode {
    /// Returns whether the operation mutates the variable.
    #[must_use]
    pub fn is_write(self) -> bool {
        self != Self::Read
    }
}

/// An access of a recorded operation, packed into a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessWord(u64);

impl AccessWord {
    /// Packs an access.
    #[inline]
    pub fn new(variable: VarId, mode: AccessMode) -> Self {
        Self(variable.0 << 2 | mode as u64)
    }

    pub(crate) fn parts(self) -> (VarId, AccessMode) {
        let mode = match self.0 & 3 {
            0 => AccessMode::Read,
            1 => AccessMode::Write,
            2 => AccessMode::Overwrite,
            _ => AccessMode::Commute,
        };
        (VarId(self.0 >> 2), mode)
    }
}

/// Where a function runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// On a worker of an engine.
    Worker {
        /// The number of the engine in the trace.
        engine: u16,
        /// The number of the worker's lane.
        lane: u8,
        /// The number of the worker in its lane.
        worker: u16,
    },
    /// On the thread of a GPU lane.
    Gpu {
        /// The number of the engine in the trace.
        engine: u16,
        /// The lane's number among all of the engine's GPU lanes.
        lane: u8,
    },
    /// On the thread with this number in the trace, which has no worker.
    Thread(u16),
}

/// A [`Place`], packed into a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceWord(pub u64);

/// A place takes 42 bits of its word.
const ON_WORKER: u64 = 1 << 40;
const ON_GPU: u64 = 1 << 41;

impl Place {
    #[doc(hidden)]
    #[inline]
    pub fn to_word(self) -> PlaceWord {
        PlaceWord(match self {
            Self::Worker { engine, lane, worker } => {
                ON_WORKER | u64::from(engine) << 24 | u64::from(lane) << 16 | u64::from(worker)
            }
            Self::Gpu { engine, lane } => ON_GPU | u64::from(engine) << 24 | u64::from(lane) << 16,
            Self::Thread(thread) => u64::from(thread),
        })
    }

    #[doc(hidden)]
    #[inline]
    pub fn from_word(PlaceWord(word): PlaceWord) -> Self {
        let (engine, lane, low) = ((word >> 24) as u16, (word >> 16) as u8, word as u16);
        if word & ON_WORKER != 0 {
            Self::Worker { engine, lane, worker: low }
        } else if word & ON_GPU != 0 {
            Self::Gpu { engine, lane }
        } else {
            Self::Thread(low)
        }
    }
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The operation succeeded.
    Succeeded,
    /// The operation failed and was not skipped.
    Failed,
    /// The operation was skipped, for instance because a variable that it declares had failed, or because it was
    /// cancelled.
    Skipped,
}

/// The data recorded with a push.
#[derive(Clone, Debug)]
pub struct PushEvent {
    /// The operation's name.
    pub name: Name,
    /// Where the operation was pushed.
    pub location: &'static Location<'static>,
    /// The priority closest to 0 among those that the engine treats as equal to the operation's.
    pub priority: i32,
    /// The number of the engine.
    pub engine: u16,
    /// The number of the lane.
    pub lane: u8,
    /// Whether the operation is one of the engine's own.
    pub internal: bool,
    /// The variables that the operation declares.
    pub accesses: Vec<(VarId, AccessMode)>,
}

/// An event as read from a ring.
#[derive(Debug)]
pub struct Event {
    /// When, in units of the recorder's clock.
    pub ticks: u64,
    /// The operation.
    pub op: OpId,
    /// What happened to it.
    pub what: What,
}

/// What happened to an operation.
#[derive(Debug)]
pub enum What {
    /// The operation is pushed.
    Pushed(Box<PushEvent>),
    /// The operation, which was not ready when pushed, has become ready.
    Ready,
    /// The operation's function is called.
    Started(Place),
    /// The operation's function has returned. Recorded only if this does not end the operation.
    Returned,
    /// The operation has ended.
    Ended(Outcome),
    /// The operation's function was called at the time `from`, and has returned, which ended the operation.
    Ran {
        /// Where the function was called.
        place: Place,
        /// When the function was called.
        from: u64,
        /// How the operation ended.
        outcome: Outcome,
    },
    /// The operation's function was found running: it was called at this time. Not read from a ring.
    Runs(Place),
    /// The operation has ended, but its function may still run on some thread. If so, [`Returned`](Self::Returned)
    /// follows.
    EndedEarly(Outcome),
    /// The function on the thread waits, so the thread hands over its worker. The event does not identify the
    /// function's operation.
    Waits,
    /// The function on the thread continues.
    GoesOn(Place),
    /// From here on, another thread with this name writes to the ring, after the end of the thread before.
    Arrived(Name),
}

/// The parts of a push that fit into words.
#[derive(Clone, Copy, Debug)]
pub struct PushHead {
    /// Where the operation was pushed.
    pub location: &'static Location<'static>,
    /// A number for the operation's priority.
    pub priority: u8,
    /// The number of the engine.
    pub engine: u16,
    /// The number of the lane.
    pub lane: u8,
    /// Whether the operation is one of the engine's own.
    pub internal: bool,
}

/// A kind of event that takes one slot.
#[derive(Clone, Copy, Debug)]
pub enum Short {
    /// See [`What::Ready`].
    Ready,
    /// See [`What::Started`].
    Started(Place),
    /// See [`What::Returned`].
    Returned,
    /// See [`What::Ended`].
    Ended(Outcome),
    /// See [`What::EndedEarly`].
    EndedEarly(Outcome),
    /// See [`What::Waits`].
    Waits,
    /// See [`What::GoesOn`].
    GoesOn(Place),
}

/// The position, in the head of a brief push, of the lowest bit of its time; the bits below are the number of accesses.
const DISTANCE_AT: u32 = COUNT_AT + 3;

/// The maximum number of accesses of a brief push.
pub const BRIEF_ACCESSES: usize = 5;

/// The position, in the head of a [`What::Ran`], of the lowest bit of the place.
const PLACE_AT: u32 = 16;

/// The position, in a push's head, of the lowest bit of the number of accesses.
const COUNT_AT: u32 = 41;

/// The maximum number of accesses recorded per push.
pub const MAX_ACCESSES: usize = (1 << (u64::BITS - COUNT_AT)) - 1;

mod kind {
    pub(super) const PUSHED: u8 = 1;
    pub(super) const READY: u8 = 2;
    pub(super) const STARTED: u8 = 3;
    pub(super) const RETURNED: u8 = 4;
    pub(super) const ENDED: u8 = 5;
    pub(super) const WAITS: u8 = 6;
    pub(super) const GOES_ON: u8 = 7;
    pub(super) const ENDED_EARLY: u8 = 8;
    pub(super) const PUSHED_BRIEFLY: u8 = 9;
    pub(super) const RAN: u8 = 10;
    pub(super) const ARRIVED: u8 = 11;
}

/// Returns the slot of an event.
#[inline]
pub fn short(ticks: u64, op: OpId, event: Short) -> RingSlot {
    let (kind, word) = match event {
        Short::Ready => (kind::READY, 0),
        Short::Started(place) => (kind::STARTED, place.to_word().0),
        Short::Returned => (kind::RETURNED, 0),
        Short::Ended(outcome) => (kind::ENDED, outcome as u64),
        Short::EndedEarly(outcome) => (kind::ENDED_EARLY, outcome as u64),
        Short::Waits => (kind::WAITS, 0),
        Short::GoesOn(place) => (kind::GOES_ON, place.to_word().0),
    };
    [u64::from(kind), ticks, op.0, word]
}

/// Returns the slot of a call that ended its operation.
#[inline]
pub fn ran(ticks: u64, op: OpId, outcome: Outcome, from: u64, place: PlaceWord) -> RingSlot {
    [u64::from(kind::RAN) | (outcome as u64) << 8 | place.0 << PLACE_AT, ticks, op.0, from]
}

/// Returns the slot that says that another thread writes from here on. The words own its name until [`read`] turns them
/// back into a name.
pub fn arrived(ticks: u64, name: Name) -> RingSlot {
    let [start, len] = name.into_words();
    [u64::from(kind::ARRIVED), ticks, start as u64, len as u64]
}

/// Returns the slots of a brief push, if `name` and the accesses fit into two slots, and the time into the first. The
/// second slot is not needed without a name and with at most one access. `op_ticks` is the time in the operation's
/// number.
#[inline(always)]
pub fn brief_push<const N: usize>(
    ticks: u64,
    (op, op_ticks): (OpId, u64),
    head: &PushHead,
    name: &'static str,
    accesses: &[AccessWord; N],
) -> Option<(RingSlot, RingSlot)> {
    let word = |at: usize| accesses.get(at).map_or(0, |word| word.0);
    let location = address_of(head.location);
    if !name.is_empty() {
        // This is the ordinary form of a push.
        let packed = head.packed(kind::PUSHED) | (N as u64) << COUNT_AT;
        let [start, len] = [name.as_ptr() as u64, name.len() as u64];
        return (N <= 2).then_some(([packed, ticks, op.0, location], [start, len, word(0), word(1)]));
    }
    let distance = ticks.wrapping_sub(op_ticks) as i64;
    let fits = distance << DISTANCE_AT >> DISTANCE_AT == distance;
    let packed = head.packed(kind::PUSHED_BRIEFLY) | (N as u64) << COUNT_AT | (distance as u64) << DISTANCE_AT;
    (N <= BRIEF_ACCESSES && fits).then_some(([packed, op.0, location, word(0)], [word(1), word(2), word(3), word(4)]))
}

#[inline]
fn address_of(location: &'static Location<'static>) -> u64 {
    std::ptr::from_ref(location).expose_provenance() as u64
}

impl PushHead {
    #[inline]
    fn packed(&self, kind: u8) -> u64 {
        u64::from(kind)
            | u64::from(self.priority) << 8
            | u64::from(self.engine) << 16
            | u64::from(self.lane) << 32
            | u64::from(self.internal) << 40
    }
}

/// Returns the number of slots of a push with `accesses` accesses.
#[inline]
pub fn slots_of_push(accesses: usize) -> usize {
    2 + accesses.saturating_sub(2).div_ceil(4)
}

#[inline]
fn next_word(accesses: &mut impl Iterator<Item = AccessWord>) -> u64 {
    accesses.next().map_or(0, |word| word.0)
}

/// Returns the slots of a push. The words own the name until [`read`] turns them back into a name.
#[inline]
pub fn push(
    ticks: u64,
    op: OpId,
    head: &PushHead,
    name: Name,
    mut accesses: impl ExactSizeIterator<Item = AccessWord>,
) -> impl Iterator<Item = RingSlot> {
    let count = accesses.len();
    let packed = head.packed(kind::PUSHED) | (count as u64) << COUNT_AT;
    let first = [packed, ticks, op.0, address_of(head.location)];
    let [start, len] = name.into_words();
    let second = [start as u64, len as u64, next_word(&mut accesses), next_word(&mut accesses)];
    let mut next = move || next_word(&mut accesses);
    let more = (2..slots_of_push(count)).map(move |_| [next(), next(), next(), next()]);
    [first, second].into_iter().chain(more)
}

/// Reads the next event from the slots of a ring. `ticks_of` returns the time in an operation's number, and
/// `priority_of` the priority for the number recorded with a push.
///
/// # Safety
/// 1. `next` yields the slots made by [`push`], [`brief_push`], [`ran`], [`arrived`] and [`short`], in order, each only
///    once.
pub unsafe fn read(
    mut next: impl FnMut() -> Option<RingSlot>,
    ticks_of: impl Fn(OpId) -> u64,
    priority_of: impl Fn(u8) -> i32,
) -> Option<Event> {
    let slot = next()?;
    let [head, ticks, op, word] = slot;
    let priority = || priority_of((head >> 8) as u8);
    let outcome = |word: u64| match word {
        0 => Outcome::Succeeded,
        1 => Outcome::Failed,
        _ => Outcome::Skipped,
    };
    let what = match head as u8 {
        kind::READY => What::Ready,
        kind::STARTED => What::Started(Place::from_word(PlaceWord(word))),
        kind::RETURNED => What::Returned,
        kind::ENDED => What::Ended(outcome(word)),
        kind::ENDED_EARLY => What::EndedEarly(outcome(word)),
        kind::WAITS => What::Waits,
        kind::GOES_ON => What::GoesOn(Place::from_word(PlaceWord(word))),
        kind::RAN => {
            let place = Place::from_word(PlaceWord(head >> PLACE_AT));
            What::Ran { place, from: word, outcome: outcome(head >> 8 & 0xff) }
        }
        kind::ARRIVED => {
            // SAFETY: (1): `arrived` has stored the words of a name, which are read once.
            What::Arrived(unsafe { Name::from_words([op as usize, word as usize]) })
        }
        kind::PUSHED_BRIEFLY => {
            let [_, op, location, access] = slot;
            let op = OpId(op);
            let ticks = ticks_of(op).wrapping_add_signed(head as i64 >> DISTANCE_AT);
            let count = (head >> COUNT_AT) as usize & ((1 << (DISTANCE_AT - COUNT_AT)) - 1);
            let more = if count > 1 { next()? } else { [0; 4] };
            let accesses = [access].into_iter().chain(more).take(count);
            // SAFETY: by (1), `brief_push` has stored the address of a static location.
            let pushed = unsafe { PushEvent::read(head, priority(), location, Name::EMPTY, accesses) };
            return Some(Event { ticks, op, what: What::Pushed(Box::new(pushed)) });
        }
        _ => {
            let second = next()?;
            let count = (head >> COUNT_AT) as usize;
            let mut words = Vec::with_capacity(4 * slots_of_push(count));
            words.extend_from_slice(&second[2..]);
            for _ in 2..slots_of_push(count) {
                words.extend(next()?);
            }
            words.truncate(count);
            // SAFETY: (1): `push` has stored the words of a name, which are read once.
            let name = unsafe { Name::from_words([second[0] as usize, second[1] as usize]) };
            // SAFETY: by (1), `push` has stored the address of a static location.
            let pushed = unsafe { PushEvent::read(head, priority(), word, name, words.into_iter()) };
            What::Pushed(Box::new(pushed))
        }
    };
    Some(Event { ticks, op: OpId(op), what })
}

impl PushEvent {
    /// Reads the data of a push from its words.
    ///
    /// # Safety
    /// 1. `location` is the address of a static location, from [`address_of`].
    unsafe fn read(head: u64, priority: i32, location: u64, name: Name, accesses: impl Iterator<Item = u64>) -> Self {
        let location: *const Location<'static> = std::ptr::with_exposed_provenance(location as usize);
        Self {
            // SAFETY: (1).
            location: unsafe { &*location },
            name,
            priority,
            engine: (head >> 16) as u16,
            lane: (head >> 32) as u8,
            internal: head >> 40 & 1 != 0,
            accesses: accesses.map(|word| AccessWord(word).parts()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODES: [AccessMode; 4] = [AccessMode::Read, AccessMode::Write, AccessMode::Overwrite, AccessMode::Commute];

    #[test]
    fn a_push_is_read_as_it_was_written() {
        for count in 0..20 {
            for name in [Name::EMPTY, Name::from("static"), Name::from(format!("made at run time {count}"))] {
                let accesses: Vec<_> = (0..count)
                    .map(|number| {
                        let mode = MODES[number as usize % MODES.len()];
                        (VarId::new(7, number), mode)
                    })
                    .collect();
                let head = PushHead {
                    location: Location::caller(),
                    priority: 33,
                    engine: 500,
                    lane: 9,
                    internal: count % 2 == 0,
                };
                let words = accesses.iter().map(|&(variable, mode)| AccessWord::new(variable, mode));
                let mut slots: Vec<RingSlot> = push(123, OpId(u64::MAX), &head, name.clone(), words).collect();
                assert_eq!(slots.len(), slots_of_push(accesses.len()));
                slots.push(short(124, OpId(1), Short::Ready));
                let mut slots = slots.into_iter();
                // SAFETY: (1): they are the slots of a push and of another event.
                let event = unsafe { read(|| slots.next(), |_| 0, i32::from) }.expect("there should be an event");
                assert_eq!((event.ticks, event.op), (123, OpId(u64::MAX)));
                let What::Pushed(pushed) = event.what else { panic!("not a push: {event:?}") };
                assert_eq!((pushed.name, pushed.location), (name, head.location));
                assert_eq!((pushed.priority, pushed.engine, pushed.lane), (33, 500, 9));
                assert_eq!((pushed.internal, pushed.accesses), (head.internal, accesses));
                // SAFETY: (1): the remaining slots belong to the other event.
                let event = unsafe { read(|| slots.next(), |_| 0, i32::from) }.expect("there should be another event");
                assert!(matches!(event.what, What::Ready) && slots.next().is_none());
            }
        }
    }

    /// Checks a brief push, or that there is none.
    fn check_brief<const N: usize>(name: &'static str, distance: i64, is_brief: bool) {
        let ticks = 5_000_u64.wrapping_add_signed(distance);
        let accesses: [_; N] = std::array::from_fn(|at| (VarId::new(7, at as u64 + 1), MODES[at % MODES.len()]));
        let words = accesses.map(|(variable, mode)| AccessWord::new(variable, mode));
        let head = PushHead { location: Location::caller(), priority: 33, engine: 500, lane: 9, internal: N % 2 == 0 };
        let slots = brief_push(ticks, (OpId(77), 5_000), &head, name, &words);
        assert_eq!(slots.is_some(), is_brief, "{N} accesses, `{name}`, {distance}");
        let Some((first, second)) = slots else { return };
        let count = if name.is_empty() && N <= 1 { 1 } else { 2 };
        let mut slots = [first, second].into_iter().take(count);
        // SAFETY: (1): they are the slots of a push.
        let event = unsafe { read(|| slots.next(), |_| 5_000, i32::from) }.expect("an event should be read");
        assert!(slots.next().is_none(), "a slot was not read");
        assert_eq!((event.ticks, event.op), (ticks, OpId(77)));
        let What::Pushed(pushed) = event.what else { panic!("not a push: {event:?}") };
        assert_eq!((pushed.name.as_str(), pushed.location), (name, head.location));
        assert_eq!((pushed.priority, pushed.engine, pushed.lane), (33, 500, 9));
        assert_eq!((pushed.internal, pushed.accesses), (head.internal, accesses.to_vec()));
    }

    #[test]
    fn a_brief_push_is_read_as_it_was_written() {
        // Before, at and after the time in the operation's number.
        for distance in [-1_000, 0, 15] {
            for name in ["", "static"] {
                check_brief::<0>(name, distance, true);
                check_brief::<1>(name, distance, true);
                check_brief::<2>(name, distance, true);
                check_brief::<3>(name, distance, name.is_empty());
                check_brief::<4>(name, distance, name.is_empty());
                check_brief::<5>(name, distance, name.is_empty());
                check_brief::<6>(name, distance, false);
            }
        }
        // Too far from it for the head.
        check_brief::<1>("", 1 << 21, false);
        check_brief::<1>("", (1 << 19) - 1, true);
        check_brief::<1>("", 1 << 19, false);
    }

    #[test]
    fn a_place_is_read_as_it_was_written() {
        let places = [
            Place::Worker { engine: u16::MAX, lane: 3, worker: 1023 },
            Place::Gpu { engine: 1, lane: 200 },
            Place::Thread(u16::MAX),
        ];
        for place in places {
            let mut slots = [short(1, OpId(2), Short::Started(place))].into_iter();
            // SAFETY: (1): it is the slot of an event.
            let event = unsafe { read(|| slots.next(), |_| 0, i32::from) }.expect("there should be an event");
            assert!(matches!(event.what, What::Started(read) if read == place), "{event:?}");
            let mut slots = [ran(9, OpId(2), Outcome::Skipped, 5, place.to_word())].into_iter();
            // SAFETY: (1): it is the slot of an event.
            let event = unsafe { read(|| slots.next(), |_| 0, i32::from) }.expect("there should be an event");
            assert_eq!((event.ticks, event.op), (9, OpId(2)));
            let What::Ran { place: read, from: 5, outcome: Outcome::Skipped } = event.what else {
                panic!("another event: {event:?}")
            };
            assert_eq!(read, place);
        }
    }
}
