//! The dependency tracker: which operation may run, decided without locks, threads or a scheduler.
//!
//! Each variable is a queue of *accesses* in push order; each operation owns one access per variable that it names,
//! sorted by the variables' ids. [`push`] appends an operation's accesses to all its queues as one atomic step;
//! [`complete`] marks them done and says which operations became ready by it. The caller runs what is ready.
//!
//! # States
//!
//! An access's word is a pointer to the next access of its variable, tagged with flags that are set once and never
//! cleared:
//!
//! | flag | set when | set by |
//! |---|---|---|
//! | `READ_OK` | every earlier writer of the variable is done | whoever completed that, or the operation's own pusher |
//! | `WRITE_OK` | every earlier access of the variable is done | the same |
//! | `DONE` | the access's own operation is done | [`complete`] |
//! | next ≠ null | a later access stands behind this one | one of the threads that insert it |
//! | `LINKED_…` | together with the next: the flags that the next access was entitled to at that moment | the same |
//!
//! A reader is *satisfied* by `READ_OK`, a writer by `WRITE_OK`; so is a wait, which hands `READ_OK` on like a reader. An
//! operation is *ready* when all its accesses are satisfied and its push has nothing left to do with it. An access with
//! `WRITE_OK`, `DONE` and a next is *spent*: it is retired. The record of an operation lives until all its accesses are
//! retired and nobody holds it; who takes the last of these shares gives it back. Most operations have one access and, at
//! their end, one holder, who then leaves the record to the access ([`end`]): whoever finds that spent gives the record
//! back and counts nothing.
//!
//! Each flag reaches an access by exactly one way: it was entitled to it when it was linked (its pusher sets it, or a helper
//! leaves it as a hint which the pusher turns into the flag), or its predecessor got the entitlement later, and whoever
//! completed that hands it on. Only `READ_OK` may be offered again, where it changes nothing. That is why a completion may
//! walk down a queue without a guard: what it is about to give its `WRITE_OK` cannot have it yet.
//!
//! Operations of devices are done here when they are issued; what the device still has to do is noted elsewhere.
//!
//! # Who may touch what
//!
//! * `VarQueue::tail`: loaded and moved forward by anybody who is pinned to the epoch; it never moves back.
//! * `Access::word`: linked once by anybody who inserts; flags by the rules above.
//! * `Access::hints`: flags that the access was entitled to when it was linked, left by helpers for the pusher.
//! * `Op::wait`: each satisfaction takes one off, and the last step of a push over several variables one more; who reaches
//!   zero, or would, owns the ready operation.
//! * `Op::registered`: the number of accesses known to be in their queues; moved up one by one by helpers, and set by the
//!   pusher when all are in.
//! * The number of accesses, where they are, and what else an operation is made with: written before the first is linked,
//!   never changed.
//! * The task: the pusher until the first access is in, then whoever runs the operation.
//!
//! # Edges
//!
//! | edge | release side | acquire side | hands over |
//! |---|---|---|---|
//! | `link` | CAS of the predecessor's word in `insert` | loads of the word, `fetch_or` in `add_flags` | the new access and its operation |
//! | `swing` | CAS of `tail` | loads of `tail` in `insert` and `is_idle` | the access, its hints, and the writes behind what it was entitled to when it was linked |
//! | `register` | CAS of `registered` in `advance`, the pusher's swap or store | load in `is_past` | that the access is in and the tail is past its predecessor |
//! | `complete` | `fetch_or` of flags in `add_flags` | the same, further down the queue; loads of the word in `insert` and `is_idle` | the writes of finished operations |
//! | `ready` | `fetch_sub` of `wait` | the one that reaches zero, or the load that finds only the caller's part left | the writes of all predecessors |
//! | `retire` | `fetch_sub` of `live` | the same, and the load that finds only the caller's shares left | that nobody uses the record but pinned helpers |
//!
//! What an access was entitled to when it was linked, its linker had acquired, and hands over with the access by `link`
//! and `swing`. So the hints and flags that say it afterwards (`leave_hints`, `grant`) need no edge of their own.
//!
//! # Why a push is atomic
//!
//! Nobody appends behind an operation that is not yet in all its queues: `insert` first helps it to the end. So if A
//! stands before B in any queue, A was in all its queues before B was in that one, and the order in which operations
//! become fully registered is one total order that every queue agrees with. It respects each thread's program order and
//! real time, because a push returns only after its operation is fully registered. No cycle can exist in it, hence no
//! deadlock. Pushes of a single access help as well, or they would break this; to be helped they never need, since they
//! are in all their queues once they are in one.
//!
//! An access is never inserted twice: `insert` reads `registered` after the tail and its word. If the access was already
//! in when the word was read, it is not the last one (that was checked), so something was linked behind it, which
//! happened only after its operation was fully registered, and the read of `registered` sees that. If it came in after
//! the word was read, the word has changed and the CAS fails. The access of an operation that has only one is inserted by
//! nobody but its pusher, who need not ask any of this. No word or tail comes back to an old value while somebody
//! who read it is pinned, since records are reused only after the epoch; an idle variable keeps its last access for the
//! same reason.
//!
//! # Progress
//!
//! `push` is lock-free. Helping goes only to operations that are stuck at a strictly larger variable id, so it ends. A
//! thread that stands still anywhere inside `push` delays nothing but what comes after its own operation: helpers leave
//! entitlements as hints and never take over a step that only one thread may do; the two exclusive duties of a pusher,
//! turning hints into flags and the last decrement of `wait`, concern its own operation, and a push of one access has
//! neither. `complete` takes a number of steps bounded by the accesses it finishes plus the queue entries its completion
//! reaches; it is a loop, never a recursion.
//!
//! # Deleted variables
//!
//! A variable is closed before its deletion is pushed. Whoever inserts behind the deletion has read the tail after that,
//! so it sees the closed flag and marks the operation *rejected* in the same word that counts its registrations. A
//! rejected operation takes its place in the other queues, does nothing there, and its push reports the deletion.
//!
//! # Source
//!
//! The queue is Michael and Scott's (PODC 1996) with the last element kept in place of a dummy node; helping a
//! half-done multi-queue operation before passing it follows Harris, Fraser and Pratt's multi-word CAS (DISC 2002).

mod access;
mod op;
mod queue;
#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
mod tests;

pub use access::{Access, Mode};
pub use op::{Hold, INLINE_ACCESSES, Op, OpRef, ReadyList};
pub use queue::VarQueue;

use crate::{
    memory::epoch::{self, Atomic, Guard, Shared},
    sync::Ordering::{AcqRel, Acquire, Relaxed, Release},
    testing::{
        pause::{self, Point},
        weaken::{Step, removed},
    },
};
use std::ptr::NonNull;

use access::{DONE, READ_OK, WRITE_OK, entitled_at_link, linked, passed_on};

/// What [`push`] found out.
#[derive(Debug)]
#[must_use]
pub struct Pushed<T> {
    /// The operation, if it may run now. Otherwise some [`complete`] will report it.
    pub ready: Option<OpRef<T>>,
    /// A variable was already deleted; the operation must do nothing when it runs.
    pub rejected: bool,
}

/// Appends `op` to the queues of all its variables in one atomic step.
#[inline]
pub fn push<T>(op: OpRef<T>) -> Pushed<T> {
    let guard = epoch::pin();
    pause::at(Point::PushPinned);
    finish_push(op, 0, 0, &guard)
}

/// Pushes `op`, of which the calling thread has already inserted `inserted` accesses, `satisfied` of them satisfied.
#[inline]
fn finish_push<T>(op: OpRef<T>, inserted: usize, mut satisfied: u32, guard: &Guard) -> Pushed<T> {
    let own: &Op<T> = &op;
    let (ready, rejected);
    if let Some(access) = own.sole_access() {
        if inserted == 0 {
            append(own, access, Inserter::OnlyPusher, &mut satisfied, guard);
        }
        pause::at(Point::PushBeforeRegistered);
        rejected = own.end_registration(1);
        pause::at(Point::PushBeforeDecrement);
        // Otherwise nothing was left to do since the access is in: who satisfies it may long have run the operation.
        ready = satisfied == 1;
    } else {
        let accesses = own.accesses();
        let count = accesses.len() as u32;
        let mut helped = false;
        for access in &accesses[inserted..] {
            helped |= append(own, access, Inserter::Pusher, &mut satisfied, guard);
        }
        pause::at(Point::PushBeforeRegistered);
        rejected = own.end_registration(count);
        pause::at(Point::PushBeforeHints);
        // What this thread has linked itself has got its flags then.
        if helped {
            for access in accesses {
                satisfied += access.adopt_hints();
            }
        }
        pause::at(Point::PushBeforeDecrement);
        // If all of them were this thread's to count, nobody else takes anything off `wait`.
        ready = satisfied == count || {
            // AcqRel (edge `ready`): releases the task to whoever runs it, acquires what predecessors released.
            own.wait.fetch_sub(satisfied + 1, AcqRel) == satisfied + 1
        };
    }
    pause::at(Point::PushOver);
    // If it is not ready, the right is with its accesses.
    Pushed { ready: ready.then_some(op), rejected }
}

/// Who inserts an access. `insert` is compiled for each.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inserter {
    /// The pusher of an operation with one access. Nobody helps such an operation.
    OnlyPusher,
    /// The pusher of an operation with several.
    Pusher,
    /// Another thread.
    Helper,
}

/// What came of an insertion.
enum Insertion<'g, T> {
    /// The caller has linked the access.
    Linked,
    /// Another thread had linked it before.
    WasIn,
    /// This operation is to be helped first.
    Behind(&'g Op<T>),
}

/// Gets an access of an operation of the calling thread's into its queue, helping others first where they stand in the
/// way; whether another thread has linked it.
#[inline(always)]
fn append<T>(own: &Op<T>, access: &Access<T>, by: Inserter, satisfied: &mut u32, guard: &Guard) -> bool {
    loop {
        match insert(own, access, by, satisfied, guard) {
            Insertion::Linked => return false,
            Insertion::WasIn => return true,
            Insertion::Behind(other) => {
                pause::at(Point::HelpBegins);
                help(other, guard);
                pause::at(Point::HelpEnds);
            }
        }
    }
}

/// A pusher that stands still in the midst of a push, so that models can start from there.
#[cfg(any(raddle_loom, raddle_shuttle))]
#[derive(Debug)]
pub struct Stalled<T> {
    op: OpRef<T>,
    inserted: usize,
    satisfied: u32,
    /// What the tail of the last inserted access's variable still is, if it was not moved.
    tail: *const Access<T>,
    guard: Guard,
}

#[cfg(any(raddle_loom, raddle_shuttle))]
impl<T> Stalled<T> {
    fn inserter(op: &OpRef<T>) -> Inserter {
        if op.sole_access().is_some() { Inserter::OnlyPusher } else { Inserter::Pusher }
    }

    /// Inserts the first `accesses` accesses of `op`, which nobody disturbs, and stands still.
    pub fn after(accesses: usize, op: OpRef<T>) -> Self {
        let (guard, mut satisfied) = (epoch::pin(), 0);
        for access in &op.accesses()[..accesses] {
            let insertion = insert(&op, access, Self::inserter(&op), &mut satisfied, &guard);
            assert!(matches!(insertion, Insertion::Linked), "somebody else stands still there");
        }
        Self { op, inserted: accesses, satisfied, tail: std::ptr::null(), guard }
    }

    /// Inserts all accesses of `op`, which nobody disturbs, the last one `by` somebody who stands still before the tail is
    /// moved. Something else is pending there. Gives what the tail still is as well.
    fn before_last_swing(op: OpRef<T>, by: Inserter) -> (Self, *const Access<T>) {
        let mut stalled = Self::after(op.accesses().len() - 1, op);
        let last = stalled.op.accesses().last().expect("the operation names a variable");
        // Relaxed: nobody disturbs.
        let tail = last.queue().tail.load(Relaxed, &stalled.guard).as_raw();
        let insertion = insert(&stalled.op, last, by, &mut stalled.satisfied, &stalled.guard);
        assert!(matches!(insertion, Insertion::Linked), "somebody else stands still there");
        // Relaxed: as above.
        last.queue().tail.store(Shared::from(tail), Relaxed);
        (stalled, tail)
    }

    /// Inserts all accesses of `op`, which nobody disturbs, and stands still before it moves the last tail. Something
    /// else is pending there.
    pub fn before_swing(op: OpRef<T>) -> Self {
        let by = Self::inserter(&op);
        let (stalled, tail) = Self::before_last_swing(op, by);
        Self { inserted: stalled.inserted + 1, tail, ..stalled }
    }

    /// Inserts all accesses of `op` but the last one, which a helper inserts that stands still before it moves the tail.
    /// Something else is pending there.
    pub fn beside_a_helper(op: OpRef<T>) -> Self {
        Self::before_last_swing(op, Inserter::Helper).0
    }

    /// Goes on with the push.
    pub fn finish(self) -> Pushed<T> {
        if let Some(last) = self.op.accesses().last().filter(|_| !self.tail.is_null()) {
            let (tail, access) = (Shared::from(self.tail), Shared::from(std::ptr::from_ref(last)));
            // Release (edge `swing`), as in `insert`.
            let _ = last.queue().tail.compare_exchange(tail, access, Release, Relaxed, &self.guard);
        }
        finish_push(self.op, self.inserted, self.satisfied, &self.guard)
    }
}

/// Gets another thread's operation into its remaining queues, or one that stands in its way, or does nothing more if that
/// is done: the caller looks again.
#[cold]
fn help<'g, T>(mut target: &'g Op<T>, guard: &'g Guard) {
    while let Some(access) = target.next_unregistered() {
        if let Insertion::Behind(other) = insert(target, access, Inserter::Helper, &mut 0, guard) {
            target = other;
        }
    }
}

/// Appends `access` to its variable's queue unless it is in already or an operation stands in the way.
#[inline(always)]
fn insert<'g, T>(
    target: &Op<T>,
    access: &Access<T>,
    by: Inserter,
    satisfied: &mut u32,
    guard: &'g Guard,
) -> Insertion<'g, T> {
    let queue = access.queue();
    let own = by != Inserter::Helper;
    let alone = by == Inserter::OnlyPusher;
    // Nobody knows of an operation none of whose accesses is linked, so its pusher may still set the flags by a store.
    let unseen = alone || own && access.index == 0;
    loop {
        // Acquire (edge `swing`): the access at the tail and its hints.
        let tail_word = queue.tail.load(Acquire, guard);
        // SAFETY: the tail is never null, and what it held while this thread is pinned is not reclaimed (edge `retire`).
        let tail = unsafe { tail_word.deref() };
        if !alone && std::ptr::eq(tail, access) {
            if !own {
                pause::at(Point::HelpBeforeAdvance);
            }
            target.advance(access.index);
            return Insertion::WasIn;
        }
        tail.check();
        pause::at(Point::PushReadTail);
        // Acquire (edges `link`, `complete`): the next access, the writes behind the flags; and it keeps the read of
        // `registered` below after this one.
        let word = tail.word.load(Acquire, guard);
        if !word.is_null() {
            swing(queue, tail, word, guard);
            continue;
        }
        pause::at(Point::PushReadWord);
        if !removed(Step::HelpBeforeAppend)
            && !tail.sole
            && let Some(other) = tail.op().filter(|other| !other.is_registered())
        {
            return Insertion::Behind(other);
        }
        if !alone && !removed(Step::RereadRegistered) && target.is_past(access.index) {
            return Insertion::WasIn;
        }
        // Relaxed: who inserts behind the deletion has acquired the tail that came after the store.
        if queue.closed.load(Relaxed) && !target.passes_closed && !target.reject(access.index) {
            continue;
        }
        pause::at(Point::PushReadRegistered);
        let entitled = tail.entitlement(word.tag());
        if unseen {
            // Relaxed: published by the linking CAS.
            access.word.store(Shared::null().with_tag(entitled), Relaxed);
        }
        let link = Shared::from(std::ptr::from_ref(access)).with_tag(word.tag() | linked(entitled));
        pause::at(Point::PushBeforeLink);
        // Release (edge `link`): publishes the access. The writes behind the flags it is given were acquired by the
        // load: the word has not changed since, and who sets a flag again (`grant`) has nothing new to release.
        if tail.word.compare_exchange(word, link, Release, Relaxed, guard).is_err() {
            continue;
        }
        pause::at(Point::PushLinked);
        if !own {
            access.leave_hints(entitled);
        } else if unseen {
            *satisfied += u32::from(access.mode().is_satisfied_by(entitled));
        } else {
            *satisfied += access.grant(entitled);
        }
        pause::at(Point::PushBeforeSwing);
        // Release (edge `swing`). Failure means that somebody else has moved it.
        let _ =
            queue.tail.compare_exchange(tail_word, Shared::from(std::ptr::from_ref(access)), Release, Relaxed, guard);
        pause::at(Point::PushBeforeRetire);
        if entitled & WRITE_OK != 0 {
            // This link was the last of the three things that make the predecessor spent.
            // SAFETY: it is spent, the tail is past it, and one thread links behind it.
            unsafe { tail.share().retire() };
        }
        return Insertion::Linked;
    }
}

/// Moves the tail of `queue` from `tail` on to the access that `word` links, leaving there what it is entitled to.
#[cold]
fn swing<T>(queue: &VarQueue<T>, tail: &Access<T>, word: Shared<'_, Access<T>>, guard: &Guard) {
    // SAFETY: the next access is retired only after the tail has passed it; the tail was at its predecessor after this
    // thread pinned, so it is not reclaimed.
    let next = unsafe { word.deref() };
    next.check();
    pause::at(Point::HelpBeforeHints);
    // Not what `tail` could give now: flags that it got after the link are handed on by whoever set them.
    next.leave_hints(entitled_at_link(word.tag()));
    pause::at(Point::HelpBeforeSwing);
    // Release (edge `swing`): hands over the hints and the access. Failure means that somebody else has moved it.
    let _ =
        queue.tail.compare_exchange(Shared::from(std::ptr::from_ref(tail)), word.with_tag(0), Release, Relaxed, guard);
}

/// Marks every access of `op` done and adds the operations that become ready by it to `ready`. Gives what keeps the record
/// from then on: a share of its own, and those of the accesses that were spent by this.
///
/// It needs no guard, since every access it touches is kept by a step that it has not taken yet.
pub fn complete<T>(op: OpRef<T>, ready: &mut ReadyList<T>) -> Hold<T> {
    let mut spent = 0;
    for access in op.accesses() {
        pause::at(Point::CompleteBeforeAccess);
        spent += u32::from(finish(NonNull::from(access), ready));
    }
    op.completed(spent)
}

/// [Completes](complete) `op` and gives up its record, for a caller that has nothing left to do with it.
#[inline(always)]
pub fn end<T>(op: OpRef<T>, ready: &mut ReadyList<T>) {
    match op.leave_to_access() {
        Ok((access, record)) => {
            pause::at(Point::CompleteBeforeAccess);
            if finish(NonNull::from(access), ready) {
                pause::at(Point::CompleteBeforeRetire);
                op::give_back(record);
            }
        }
        Err(op) => end_several(op, ready),
    }
}

/// As [`end`], for an operation with several accesses, or that somebody else holds as well.
#[inline(never)]
fn end_several<T>(op: OpRef<T>, ready: &mut ReadyList<T>) {
    let hold = complete(op, ready);
    pause::at(Point::CompleteBeforeRetire);
    drop(hold);
}

/// Marks `access` done and carries what follows from it down the queue; whether it was spent by that.
///
/// Here and below, what may end on the way is not passed as a reference, which would have to stay valid to the end.
#[inline(always)]
fn finish<T>(access: NonNull<Access<T>>, ready: &mut ReadyList<T>) -> bool {
    // SAFETY: the access is not spent before it is done.
    let access = unsafe { access.as_ref() };
    let word = add_flags(&access.word, DONE);
    if word.tag() & WRITE_OK == 0 || word.is_null() {
        // A reader with others before it, or the last access of its queue: whoever ends that goes on from there.
        return false;
    }
    // SAFETY: the next access cannot be spent before it has `WRITE_OK`, which this thread brings it.
    let next = unsafe { word.deref() };
    next.check();
    pass(access, next, word.tag());
    hand_on(NonNull::from(next), ready);
    true
}

/// Adds flags to an access's word on behalf of a completion; gives what it was. Where this leaves the thread no duty
/// towards the access, that may end here and its record be reused.
#[inline]
fn add_flags<'g, T>(word: &Atomic<Access<T>>, flags: usize) -> Shared<'g, Access<T>> {
    let order = if removed(Step::CompletionReleases) { Relaxed } else { AcqRel };
    pause::at(Point::CompleteBeforeFlags);
    // AcqRel (edges `complete`, `link`): releases this operation's writes and those it has acquired, acquires those that
    // earlier flags stand for and the next access.
    let old = word.fetch_or(flags, order, epoch::unprotected());
    pause::at(Point::CompleteFlagged);
    old
}

/// Tells `at` that nothing before it is pending, and carries what follows from that down the queue.
#[inline]
fn hand_on<T>(at: NonNull<Access<T>>, ready: &mut ReadyList<T>) {
    // SAFETY: the access cannot be spent before it has `WRITE_OK`, which this thread brings it.
    let mut at = unsafe { at.as_ref() };
    let mut add = READ_OK | WRITE_OK;
    // The duty towards the operation of an access before `at`, put off until `at` has its flags, because it may be what
    // keeps `at` alive: that operation cannot be done before.
    let mut satisfied: Option<NonNull<Op<T>>> = None;
    loop {
        let mode = at.mode();
        // Before the step, which may be the end of it.
        let op = at.op_ptr();
        let old = add_flags(&at.word, add);
        let new = add & !old.tag();
        let newly_satisfied = mode.is_satisfied_by(new);
        // A writer that was not satisfied is not done, and keeps whatever comes after it waiting.
        let gained = if mode.is_write() { 0 } else { passed_on(new, old.tag()) };
        let stop = gained == 0 || old.is_null() || (gained == READ_OK && removed(Step::ReadersPassOn));
        // An access that only hands `READ_OK` through, a wait, is not what keeps the next one alive: that is still the
        // reader before it.
        if (newly_satisfied || stop)
            && let Some(before) = satisfied.take()
        {
            pause::at(Point::CompleteBeforeSatisfy);
            // SAFETY: this thread has satisfied its access, and comes here once for it.
            unsafe { OpRef::satisfy(before, ready) };
        }
        if newly_satisfied {
            satisfied = op;
        }
        if stop {
            if let Some(op) = satisfied {
                pause::at(Point::CompleteBeforeSatisfy);
                // SAFETY: as above.
                unsafe { OpRef::satisfy(op, ready) };
            }
            return;
        }
        // SAFETY: the next access cannot be spent before it has `WRITE_OK`, which comes through `at`: either this
        // thread brings it below, or `at`, or a reader before it, is not done yet because its operation waits for the
        // decrement put off above.
        let next = unsafe { old.deref() };
        next.check();
        if gained & WRITE_OK != 0 {
            pass(at, next, old.tag());
            pause::at(Point::CompleteBeforeRetire);
            // SAFETY: it is spent, and the tail is past it; the flag came by this thread.
            unsafe { at.share().retire() };
            add = READ_OK | WRITE_OK;
        } else {
            add = READ_OK;
        }
        at = next;
    }
}

/// Accesses behind one of `op` that [`followers`] looks at. Picked; more readers than that are rarely known so early.
const MAX_FOLLOWERS: usize = 16;

/// Shows `look` the operations, and their accesses, that are known to come after `op`, which has not been completed: in each
/// queue the readers behind it and the next writer, or only that writer behind a reader. A few at most, and only those
/// that are linked now.
///
/// None of them can run before `op` is complete, so their tasks are as they were pushed.
pub fn followers<T>(op: &Op<T>, mut look: impl FnMut(&Op<T>, &Access<T>)) {
    for own in op.accesses() {
        let mut at = own;
        for _ in 0..MAX_FOLLOWERS {
            // Acquire (edge `link`): the next access and its operation.
            let word = at.word.load(Acquire, epoch::unprotected());
            if word.is_null() {
                break;
            }
            // SAFETY: behind an access of an operation that is not complete none is spent, so none is retired.
            at = unsafe { word.deref() };
            at.check();
            if (own.mode().is_write() || at.mode() != Mode::Read)
                && let Some(op) = at.op()
            {
                look(op, at);
            }
            if at.mode().is_write() {
                break;
            }
        }
    }
}

/// Makes sure that the tail is past `access`, whose next is `next` by a word with `tag`, so that it can be retired.
#[inline]
fn pass<T>(access: &Access<T>, next: &Access<T>, tag: usize) {
    if removed(Step::TailPastRetired) {
        return;
    }
    // An operation that is registered has moved the tail past its predecessors (edge `register`).
    if next.op().is_some_and(Op::is_registered) {
        return;
    }
    // As whoever moves the tail: a reader that is linked behind `next` goes by its hints.
    next.leave_hints(entitled_at_link(tag));
    pause::at(Point::CompleteBeforePass);
    // Release (edge `swing`). Failure means that it is past:
    // it was at `access` when `next` was linked, and this thread has acquired that link.
    let _ = access.queue().tail.compare_exchange(
        Shared::from(std::ptr::from_ref(access)),
        Shared::from(std::ptr::from_ref(next)),
        Release,
        Relaxed,
        epoch::unprotected(),
    );
}
