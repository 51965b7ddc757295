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
//! `WRITE_OK`, `DONE` and a next is *spent*: it is retired.
//!
//! Each flag reaches an access by exactly one way: it was entitled to it when it was linked (its pusher sets it, or a helper
//! leaves it as a hint which the pusher turns into the flag), or its predecessor got the entitlement later, and whoever
//! completed that hands it on. That is why a completion may walk down a queue without a guard: what it is about to give
//! its `WRITE_OK` cannot have it yet.
//!
//! A second level of readiness (issued before completed, for devices) has room in the access: one tag bit and a third of
//! its cache line are free.
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
//! * `Op::task`: the pusher until its first access is in, then whoever runs the operation.
//!
//! # Edges
//!
//! | edge | release side | acquire side | hands over |
//! |---|---|---|---|
//! | `link` | CAS of the predecessor's word in `insert` | loads of the word, `fetch_or` in `finish` | the new access and its operation |
//! | `swing` | CAS of `tail` | load of `tail` in `insert` | the access and the hints it carries |
//! | `register` | CAS of `registered`, the pusher's swap or store | its loads | that the access is in and the tail is past its predecessor |
//! | `complete` | `fetch_or` of flags in `finish` | the same, further down the queue; the linking CAS | the writes of finished operations |
//! | `ready` | `fetch_sub` of `wait` | the one that reaches zero, or the load that finds only the caller's part left | the writes of all predecessors |
//! | `retire` | `fetch_sub` of `live` | the same | that nobody uses the record but pinned helpers |
//!
//! # Why a push is atomic
//!
//! Nobody appends behind an operation that is not yet in all its queues: `insert` first helps it to the end. So if A
//! stands before B in any queue, A was in all its queues before B was in that one, and the order in which operations
//! become fully registered is one total order that every queue agrees with. It respects each thread's program order and
//! real time, because a push returns only after its operation is fully registered. No cycle can exist in it, hence no
//! deadlock. Pushes of a single access help as well, or they would break this.
//!
//! An access is never inserted twice: `insert` reads `registered` after the tail and its word. If the access was already
//! in when the word was read, it is not the last one (that was checked), so something was linked behind it, which
//! happened only after its operation was fully registered, and the read of `registered` sees that. If it came in after
//! the word was read, the word has changed and the CAS fails. No word or tail comes back to an old value while somebody
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
mod pool;
mod queue;
#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
mod tests;

pub use access::{Access, Mode};
pub use op::{INLINE_ACCESSES, Op, OpRef, ReadyList};
pub use queue::VarQueue;

use crate::sync::{
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    epoch::{self, Guard, Shared},
    pause::{self, Point},
    weaken::{Step, removed},
};
use access::{DONE, READ_OK, WRITE_OK, entitled_at_link, linked};

/// What [`push`] found out.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Pushed {
    /// The operation may run now, and it is the caller's duty to see to it. Otherwise some [`complete`] will report it,
    /// and the caller may not touch it any more.
    pub ready: bool,
    /// A variable was already deleted; the operation must do nothing when it runs.
    pub rejected: bool,
}

/// Appends `op` to the queues of all its variables in one atomic step.
pub fn push<T>(op: OpRef<T>) -> Pushed {
    let guard = epoch::pin();
    pause::at(Point::PushPinned);
    finish_push(op, 0, 0, &guard)
}

/// Pushes `op`, of which the calling thread has already inserted `inserted` accesses, `satisfied` of them satisfied.
fn finish_push<T>(op: OpRef<T>, inserted: usize, mut satisfied: u32, guard: &Guard) -> Pushed {
    let own = op.op();
    for access in &own.accesses()[inserted..] {
        while let Some(other) = insert(own, access, true, &mut satisfied, guard) {
            pause::at(Point::HelpBegins);
            help(other, guard);
            pause::at(Point::HelpEnds);
        }
    }
    pause::at(Point::PushBeforeRegistered);
    let rejected = own.end_registration();
    let count = own.accesses().len() as u32;
    if count > 1 {
        pause::at(Point::PushBeforeHints);
        for access in own.accesses() {
            satisfied += access.adopt_hints();
        }
    }
    pause::at(Point::PushBeforeDecrement);
    let ready = if satisfied == count {
        // All of them were this thread's to count, so that nobody else takes anything off `wait`.
        true
    } else if count > 1 {
        // AcqRel (edge `ready`): releases the task to whoever runs it, acquires what predecessors released.
        own.wait.fetch_sub(satisfied + 1, AcqRel) == satisfied + 1
    } else {
        // Nothing was left to do since the access is in: who satisfies it may long have run the operation.
        false
    };
    pause::at(Point::PushOver);
    Pushed { ready, rejected }
}

/// A pusher that stands still in the midst of a push, so that models can start from there.
#[cfg(any(raddle_loom, raddle_shuttle))]
#[derive(Debug)]
pub struct Stalled<T> {
    op: OpRef<T>,
    inserted: usize,
    satisfied: u32,
    guard: Guard,
}

#[cfg(any(raddle_loom, raddle_shuttle))]
impl<T> Stalled<T> {
    /// Inserts the first `accesses` accesses of `op`, which nobody disturbs, and stands still.
    pub fn after(accesses: usize, op: OpRef<T>) -> Self {
        let (guard, mut satisfied) = (epoch::pin(), 0);
        for access in &op.op().accesses()[..accesses] {
            let other = insert(op.op(), access, true, &mut satisfied, &guard);
            assert!(other.is_none(), "somebody else stands still there");
        }
        Self { op, inserted: accesses, satisfied, guard }
    }

    /// Goes on with the push.
    pub fn finish(self) -> Pushed {
        finish_push(self.op, self.inserted, self.satisfied, &self.guard)
    }
}

/// Gets another thread's operation into its remaining queues, or one that stands in its way, or does nothing more if that
/// is done: the caller looks again.
#[cold]
fn help<'g, T>(mut target: &'g Op<T>, guard: &'g Guard) {
    while let Some(access) = target.next_unregistered() {
        if let Some(other) = insert(target, access, false, &mut 0, guard) {
            target = other;
        }
    }
}

/// Appends `access` to its variable's queue unless it is in already; `Some` is an operation to help first.
fn insert<'g, T>(
    target: &Op<T>,
    access: &Access<T>,
    own: bool,
    satisfied: &mut u32,
    guard: &'g Guard,
) -> Option<&'g Op<T>> {
    let queue = access.queue();
    // Nobody knows of an operation none of whose accesses is linked, so its pusher may still set the flags by a store.
    let unseen = own && access.index == 0;
    loop {
        // Acquire (edge `swing`): the access at the tail and its hints.
        let tail_word = queue.tail.load(Acquire, guard);
        if std::ptr::eq(tail_word.as_raw(), access) {
            target.advance(access.index);
            return None;
        }
        // SAFETY: the tail is never null, and what it held while this thread is pinned is not reclaimed (edge `retire`).
        let tail = unsafe { tail_word.deref() };
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
            && let Some(other) = tail.op().filter(|other| !other.is_registered())
        {
            return Some(other);
        }
        if !removed(Step::RereadRegistered) && target.is_past(access.index) {
            return None;
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
        // AcqRel (edges `link`, `complete`): publishes the access, and acquires the writes behind the flags it is given.
        if tail.word.compare_exchange(word, link, AcqRel, Relaxed, guard).is_err() {
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
        if !own {
            pause::at(Point::HelpBeforeAdvance);
            target.advance(access.index);
        }
        pause::at(Point::PushBeforeRetire);
        if entitled & WRITE_OK != 0 {
            // This link was the last of the three things that make the predecessor spent.
            tail.retire();
        }
        return None;
    }
}

/// Moves the tail of `queue` from `tail` on to the access that `word` links, leaving there what it is entitled to.
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

/// Asks for what [`complete`] is going to write, as far as it is known already.
#[inline]
pub fn prefetch<T>(op: OpRef<T>) {
    for access in op.op().accesses() {
        access.prefetch_next();
    }
}

/// Marks every access of `op` done and adds the operations that become ready by it to `ready`. Gives the number of accesses
/// that were spent by that: the caller [gives up](OpRef::release) as many shares of the record beside its own.
///
/// To be called once, by whoever ran the operation; it needs no guard, since every access it touches is kept by a step
/// that it has not taken yet.
#[must_use]
pub fn complete<T>(op: OpRef<T>, ready: &mut ReadyList<T>) -> u32 {
    let end = |access| {
        pause::at(Point::CompleteBeforeAccess);
        u32::from(finish(access, ready))
    };
    op.op().accesses().iter().map(end).sum()
}

/// Marks `access` done and carries what follows from it down the queue; whether it was spent by that.
fn finish<T>(access: &Access<T>, ready: &mut ReadyList<T>) -> bool {
    let mut own_spent = false;
    let mut at = access;
    let mut add = DONE;
    // The duties towards the access before `at`, put off until `at` has its flags, because each of them may be what
    // keeps `at` alive: its operation's decrement (it cannot be done before), or its retirement.
    let mut satisfied: Option<&Access<T>> = None;
    let mut spent: Option<&Access<T>> = None;
    loop {
        let order = if removed(Step::CompletionReleases) { Relaxed } else { AcqRel };
        // Before the step: where that leaves this thread no duty towards `at`, the access may end and its record be reused.
        let mode = at.mode();
        pause::at(Point::CompleteBeforeFlags);
        // AcqRel (edges `complete`, `link`): releases this operation's writes and those it has acquired, acquires those
        // that earlier flags stand for and the next access.
        let old = at.word.fetch_or(add, order, epoch::unprotected());
        pause::at(Point::CompleteFlagged);
        if let Some(before) = spent.take() {
            if std::ptr::eq(before, access) {
                own_spent = true;
            } else {
                pause::at(Point::CompleteBeforeRetire);
                before.retire();
            }
        }
        let (was, now) = (old.tag(), old.tag() | add);
        let newly_satisfied = !mode.is_satisfied_by(was) && mode.is_satisfied_by(now);
        let gained = mode.entitlement(now) & !mode.entitlement(was);
        let stop = gained == 0 || old.is_null() || (gained == READ_OK && removed(Step::ReadersPassOn));
        // An access that only hands `READ_OK` through, a wait, is not what keeps the next one alive: that is still the
        // reader before it.
        if (newly_satisfied || stop)
            && let Some(before) = satisfied.take()
        {
            pause::at(Point::CompleteBeforeSatisfy);
            before.satisfy(ready);
        }
        if newly_satisfied {
            satisfied = Some(at);
        }
        if stop {
            if let Some(at) = satisfied {
                pause::at(Point::CompleteBeforeSatisfy);
                at.satisfy(ready);
            }
            return own_spent;
        }
        // SAFETY: the next access cannot be spent before it has `WRITE_OK`, which comes through `at`: either this
        // thread brings it below, or `at`, or a reader before it, is not done yet because its operation waits for the
        // decrement put off above.
        let next = unsafe { old.deref() };
        next.check();
        if gained & WRITE_OK != 0 {
            pass(at, next, old.tag());
            spent = Some(at);
            add = READ_OK | WRITE_OK;
        } else {
            add = READ_OK;
        }
        at = next;
    }
}

/// Makes sure that the tail is past `access`, whose next is `next` by a word with `tag`, so that it can be retired.
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
