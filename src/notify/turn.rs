//! Turns: operations that commute on a variable use it one after the other, in no promised order.
//!
//! An operation whose accesses are satisfied takes the [`VarTurn`]s of all variables on which it commutes. When it
//! ends, it leaves each of them to the operation that has waited there longest.
//!
//! # States
//!
//! The word of a turn:
//!
//! | value | meaning | next |
//! |---|---|---|
//! | null | the turn is free | `HELD`, by [`VarTurn::take`] |
//! | `HELD` | an operation has the turn, or a thread that passes it on | null or a record, by `leave` and `arrive` |
//! | the record of an operation | the same, and operations have *arrived*: this one last, each linked to the one before | `HELD`, by `leave`, which *lists* them in `waiters` |
//!
//! An operation that finds the turn of one of its variables taken gives back those that it has taken, so that others
//! may take them, and arrives at that one. Whoever leaves this turn leaves it to the operation, which then tries to
//! take its others. An operation that has given way [`MAX_GIVEN_WAY`] times *keeps*: it takes its turns in the order of
//! the variables' ids, and keeps those that it has while it waits for the next.
//!
//! # Who may touch what
//!
//! * An operation that has not arrived, or to which a turn was left: the thread that owns it. That is a thread that
//!   made it ready or leaves a turn.
//! * The links of operations that have arrived or are listed: read under the lock of `waiters`, changed by the owner
//!   before it arrives, and by the thread that lists or takes them out, which has the lock and the turn.
//! * `is_listed`: the thread that takes the turn, or has it.
//! * `holder`: changed by the same thread. Only compared.
//! * The memory of a turn: in use as long as an operation that commutes on the variable is not done.
//!
//! # No deadlock, and how often an operation is overtaken
//!
//! An operation that does not keep has no turn while it waits. One that keeps waits only for turns of variables with
//! larger ids than those whose turns it has. So a chain of operations that wait for each other's turns ends at one that
//! has all of them. It runs and leaves them.
//!
//! A turn with waiters is left to the one that has waited there longest, and is not free in between. So an operation
//! that waits for a turn is overtaken there at most by those before it, and it waits anew at most [`MAX_GIVEN_WAY`]
//! times, and then once for each of its variables.
//!
//! # Progress
//!
//! An operation takes a turn or arrives without a lock. Only the thread that leaves a turn for which others wait takes
//! the lock, of which there is one such thread at a time, and those that look for cycles of waits, which only try. A
//! thread that stops in the middle of this delays the operations that commute on the same variables, as if one of them
//! ran on that thread. It delays no other push.
//!
//! # Edges
//!
//! [`turn`](crate::sync::edge::turn). Within the list, the lock hands over the operations.

use std::ptr;

use smallvec::{SmallVec, smallvec};

use crate::{
    sync::{
        Mutex,
        Ordering::Relaxed,
        atomic::{AtomicBool, AtomicPtr},
        edge::{self, acquire, release, removed, step},
        lock, try_lock,
    },
    testing::pause::{self, Point},
    tracker::{Access, Op, OpRef, ReadyList},
};

/// How often an operation gives back turns because it lacks one. Not tuned. In models, rarely.
const MAX_GIVEN_WAY: u8 = if cfg!(any(raddle_loom, raddle_shuttle)) { 2 } else { 32 };

/// In the word of a turn that is taken, if no operation has arrived.
const HELD: usize = 1;

/// A task of operations that may commute.
pub trait TakesTurns: Sized {
    /// Returns the turn of the access's variable, if the access commutes.
    fn turn(access: &Access<Self>) -> Option<&VarTurn<Self>>;

    /// Returns how often the operation has given way. Called by the thread that owns the operation.
    fn given_way(op: &Op<Self>) -> u8;

    /// Changes how often the operation has given way. Called by the thread that owns the operation.
    fn set_given_way(op: &Op<Self>, times: u8);

    /// Notes that the operation has its turns, or will have once one is left to it. Called by the thread that owns the
    /// operation.
    fn note_turns(op: &Op<Self>);
}

/// The turn of a variable on which operations commute.
#[derive(Debug)]
#[repr(C)]
pub struct VarTurn<T> {
    word: AtomicPtr<Op<T>>,
    queue: TurnQueue<T>,
}

/// What only those use that have the turn. On a cache line of its own, apart from the word, which others change.
#[derive(Debug)]
#[repr(align(64))]
struct TurnQueue<T> {
    /// The operation that has the turn, or null if none has it or a thread passes it on.
    holder: AtomicPtr<Op<T>>,
    /// Whether `waiters` is not empty.
    is_listed: AtomicBool,
    /// Those that were found to have arrived, in this order.
    waiters: Mutex<ReadyList<T>>,
}

impl<T> Default for VarTurn<T> {
    fn default() -> Self {
        let (word, holder) = (AtomicPtr::new(ptr::null_mut()), AtomicPtr::new(ptr::null_mut()));
        Self { word, queue: TurnQueue { holder, is_listed: AtomicBool::new(false), waiters: Mutex::default() } }
    }
}

fn held<T>() -> *mut Op<T> {
    ptr::without_provenance_mut(HELD)
}

/// Returns the operation that has arrived last, or null.
fn arrived<T>(word: *mut Op<T>) -> *mut Op<T> {
    if word == held() { ptr::null_mut() } else { word }
}

impl<T> VarTurn<T> {
    /// Takes the turn for `op`, if it is free.
    fn take(&self, op: &Op<T>) -> bool {
        let order = acquire(edge::turn::TAKEN);
        let is_free = self.word.compare_exchange(ptr::null_mut(), held(), order, Relaxed).is_ok();
        if is_free {
            self.hold(op);
        }
        is_free
    }

    /// Notes that `op` has the turn.
    fn hold(&self, op: &Op<T>) {
        // Relaxed: only compared, by walks that are repeated.
        self.queue.holder.store(ptr::from_ref(op).cast_mut(), Relaxed);
    }

    /// Lets an operation wait for the turn. If the turn is free, returns the operation.
    fn arrive(&self, op: OpRef<T>) -> Result<(), OpRef<T>> {
        loop {
            // Relaxed: the expected value of the exchange. What the pointer leads to is not used.
            let word = self.word.load(Relaxed);
            if word.is_null() && !removed(step::ARRIVES_AT_HELD) {
                return Err(op);
            }
            // Relaxed: published by the exchange.
            op.link.store(arrived(word), Relaxed);
            pause::at(Point::TurnBeforeArrival);
            if self.word.compare_exchange(word, op.as_ptr(), release(edge::turn::ARRIVED), Relaxed).is_ok() {
                // The list owns the operation.
                let _ = op.into_ptr();
                return Ok(());
            }
        }
    }

    /// Takes the turn for `op`, or lets it wait for it. Returns the operation if it has the turn.
    fn take_or_arrive(&self, mut op: OpRef<T>) -> Option<OpRef<T>> {
        // Most often, another operation has the turn.
        loop {
            op = self.arrive(op).err()?;
            if self.take(&op) {
                return Some(op);
            }
        }
    }

    /// Leaves the turn, which the caller has, to the operation that has waited longest. If none waits, frees the turn.
    fn leave(&self) -> Option<OpRef<T>> {
        let TurnQueue { holder, is_listed, waiters } = &self.queue;
        // Relaxed: as in `hold`.
        holder.store(ptr::null_mut(), Relaxed);
        // Relaxed, like the store below: the turn hands it over.
        let is_free = !is_listed.load(Relaxed) && {
            let order = release(edge::turn::LEFT);
            self.word.compare_exchange(held(), ptr::null_mut(), order, Relaxed).is_ok()
        };
        if is_free {
            return None;
        }
        let mut waiters = lock(waiters);
        if waiters.is_empty() {
            pause::at(Point::TurnBeforeListing);
            let word = self.word.swap(held(), acquire(edge::turn::LISTED));
            // SAFETY: (1): the operations that have arrived belong to this thread now, since only a thread that has the
            // turn takes them out.
            unsafe { waiters.append_reversed(arrived(word)) };
        }
        let op = waiters.pop();
        if !removed(step::LISTED_IS_NOTED) {
            // Relaxed: as above.
            is_listed.store(!waiters.is_empty(), Relaxed);
        }
        waiters.prefetch();
        debug_assert!(op.is_some(), "an operation is listed, or has arrived");
        op.inspect(|op| self.hold(op))
    }

    /// Calls `look` with up to `max` operations that wait for the turn, if `op` has it. Finds none while another thread
    /// has the lock.
    pub fn each_waiting_for(&self, op: &Op<T>, max: usize, look: impl FnMut(&Op<T>)) {
        let Some(waiters) = try_lock(&self.queue.waiters).filter(|_| self.is_held_by(op)) else { return };
        let word = self.word.load(acquire(edge::turn::LOOKED_AT));
        // SAFETY: (1): those that have arrived are not taken out while this thread has the lock.
        let arrived = unsafe { ReadyList::linked_from(arrived(word)) };
        waiters.iter().chain(arrived).take(max).for_each(look);
    }

    /// Whether `op` has the turn. A snapshot, unless the caller owns the operation.
    pub fn is_held_by(&self, op: &Op<T>) -> bool {
        // Relaxed: only compared.
        ptr::eq(self.queue.holder.load(Relaxed), op)
    }
}

/// Operations to each of which a turn was left, with that turn.
type LeftTo<T> = SmallVec<[(OpRef<T>, *const VarTurn<T>); 2]>;

/// Takes the turns of a ready operation, or lets it wait for one. Returns it if it has all its turns. Otherwise, adds
/// to `ready` other operations that have theirs, as a consequence: those to which it has left turns.
///
/// The thread that calls this owns `op`.
pub fn take_turns<T: TakesTurns>(op: OpRef<T>, ready: &mut ReadyList<T>) -> Option<OpRef<T>> {
    let mut left = LeftTo::new();
    let op = seek(op, ptr::null(), &mut left);
    go_on(left, ready);
    op
}

/// Leaves the turns of an operation that ends. Adds to `ready` those that have all theirs, as a consequence.
pub fn leave_turns<T: TakesTurns>(op: &Op<T>, ready: &mut ReadyList<T>) {
    op.each_access(|access| {
        let Some(turn) = T::turn(access) else { return };
        match turn.leave() {
            Some(op) if op.access_count() == 1 => ready.push(op),
            Some(op) => go_on(smallvec![(op, ptr::from_ref(turn))], ready),
            None => {}
        }
    });
}

/// Lets operations to each of which a turn was left take their others. Adds to `ready` those that have all theirs, as a
/// consequence.
fn go_on<T: TakesTurns>(mut left: LeftTo<T>, ready: &mut ReadyList<T>) {
    while let Some((op, turn)) = left.pop() {
        seek(op, turn, &mut left).into_iter().for_each(|op| ready.push(op));
    }
}

/// [`take_turns`] for an operation with one access.
#[inline]
pub fn take_sole_turn<T: TakesTurns>(op: OpRef<T>) -> Option<OpRef<T>> {
    // Noted now, since this thread has just used the operation, unlike the one that will leave the turn to it.
    T::note_turns(&op);
    let turn = op.accesses().find_map(T::turn).map(ptr::from_ref)?;
    // SAFETY: the operation, which is not done, commutes on this variable, so its turn is in use.
    unsafe { &*turn }.take_or_arrive(op)
}

/// Takes the turns that an operation lacks, or lets it wait for one. `got` is a turn that was left to it, or null.
/// Returns the operation if it has all its turns. Adds to `left` those to which turns were left.
fn seek<T: TakesTurns>(op: OpRef<T>, got: *const VarTurn<T>, left: &mut LeftTo<T>) -> Option<OpRef<T>> {
    match (op.access_count(), got.is_null()) {
        (1, true) => take_sole_turn(op),
        (1, false) => Some(op),
        _ => seek_several(op, got, left),
    }
}

/// Does the same as [`seek`], for an operation with several accesses.
fn seek_several<T: TakesTurns>(mut op: OpRef<T>, got: *const VarTurn<T>, left: &mut LeftTo<T>) -> Option<OpRef<T>> {
    let turns: SmallVec<[*const VarTurn<T>; 4]> = op.accesses().filter_map(T::turn).map(ptr::from_ref).collect();
    // SAFETY: the operation, which is not done, commutes on these variables, so their turns are in use.
    let turn = |at: usize| unsafe { &*turns[at] };
    let mut got = turns.iter().position(|&turn| ptr::eq(turn, got));
    let mut given_way = T::given_way(&op);
    while given_way < MAX_GIVEN_WAY {
        let Some(lacking) = (0..turns.len()).find(|&at| Some(at) != got && !turn(at).take(&op)) else {
            T::note_turns(&op);
            return Some(op);
        };
        pause::at(Point::TurnBeforeGivingWay);
        for at in (0..lacking).chain(got.filter(|&at| at > lacking)) {
            if removed(step::WAITS_WITHOUT_TURNS) {
                break;
            }
            left.extend(turn(at).leave().map(|op| (op, turns[at])));
        }
        got = None;
        given_way += 1;
        T::set_given_way(&op, given_way);
        if given_way == MAX_GIVEN_WAY {
            // From now on, it waits only with all turns before the one for which it waits.
            break;
        }
        match turn(lacking).arrive(op) {
            Ok(()) => return None,
            Err(same) => op = same,
        }
    }
    for at in got.map_or(0, |at| at + 1)..turns.len() {
        op = turn(at).take_or_arrive(op)?;
    }
    T::note_turns(&op);
    Some(op)
}
