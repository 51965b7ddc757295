//! Pushes operations: inserts their accesses into the queues, and helps pushes that are in the way.

use super::{
    access::{Access, Arity, Mode, WRITE_OK, grantable_at_link, linked, tagged},
    op_record::{ONE, Op, OpRef, Rejection},
    queue::VarQueue,
};
use crate::{
    memory::epoch::{self, Guard, Shared},
    sync::{
        Ordering::Relaxed,
        edge::{self, acquire, acquire_release, release, removed, step},
    },
    testing::pause::{self, Point},
};

/// The result of [`push`].
#[derive(Debug)]
#[must_use]
pub struct PushResult<T> {
    /// The operation, if it is ready. Otherwise, a later [`complete`](super::complete()) reports it as ready.
    pub ready: Option<OpRef<T>>,
    /// Whether one of the operation's variables was already deleted. If so, the operation must do nothing when it runs.
    pub rejected: bool,
}

/// Appends `op` to the queues of all its variables in one atomic step.
#[inline]
pub fn push<T>(op: OpRef<T>) -> PushResult<T> {
    let guard = epoch::pin();
    pause::at(Point::PushPinned);
    finish_push::<true, T>(op, 0, 0, &guard)
}

/// [Pushes](push) an operation that does not commute. Compiled without what others need.
#[inline]
pub fn push_ordered<T>(op: OpRef<T>) -> PushResult<T> {
    let guard = epoch::pin();
    pause::at(Point::PushPinned);
    finish_push::<false, T>(op, 0, 0, &guard)
}

/// [Pushes](push) an operation with one access. Compiled without the steps for several accesses. `COMMUTES` says
/// whether it commutes.
#[inline(always)]
pub fn push_sole<const COMMUTES: bool, T>(op: OpRef<T>) -> PushResult<T> {
    let guard = epoch::pin();
    pause::at(Point::PushPinned);
    let own: &Op<T> = &op;
    match own.sole_access() {
        Some(access) => {
            let (ready, rejected) = finish_sole_push::<COMMUTES, T>(own, access, 0, 0, &guard);
            pause::at(Point::PushOver);
            PushResult { ready: ready.then_some(op), rejected }
        }
        None => unreachable!("the operation has one access"),
    }
}

/// Pushes `op`. The calling thread has already inserted the first `inserted` accesses, of which `satisfied` are
/// satisfied. Here and below, `COMMUTES` says whether an access of the operation may commute.
#[inline]
pub(super) fn finish_push<const COMMUTES: bool, T>(
    op: OpRef<T>,
    inserted: usize,
    satisfied: u32,
    guard: &Guard,
) -> PushResult<T> {
    let own: &Op<T> = &op;
    let (ready, rejected) = match own.sole_access() {
        Some(access) => finish_sole_push::<COMMUTES, T>(own, access, inserted, satisfied, guard),
        None => finish_push_of_several::<COMMUTES, T>(own, inserted, satisfied, guard),
    };
    pause::at(Point::PushOver);
    // If the operation is not ready, its accesses own it: the completion that satisfies the last one takes it over.
    PushResult { ready: ready.then_some(op), rejected }
}

/// [Finishes](finish_push) the push of an operation with one access. Returns whether the operation is ready, and
/// whether it was rejected.
#[inline(always)]
fn finish_sole_push<const COMMUTES: bool, T>(
    own: &Op<T>,
    access: &Access<T>,
    inserted: usize,
    mut satisfied: u32,
    guard: &Guard,
) -> (bool, bool) {
    if inserted == 0 {
        let _ = append::<COMMUTES, T>(own, access, ONE, Inserter::SolePusher, &mut satisfied, guard);
    }
    pause::at(Point::PushBeforeRegistered);
    let rejected = own.end_registration(Arity::One);
    pause::at(Point::PushBeforeDecrement);
    // If the access is not satisfied, nothing is left to do: the completion that satisfies it makes the operation
    // ready, and the operation may already have run.
    (satisfied == 1, rejected)
}

/// [Finishes](finish_push) the push of an operation that does not have exactly one access. Returns whether the
/// operation is ready, and whether it was rejected.
#[inline(always)]
fn finish_push_of_several<const COMMUTES: bool, T>(
    own: &Op<T>,
    inserted: usize,
    satisfied: u32,
    guard: &Guard,
) -> (bool, bool) {
    match own.accesses_in_record() {
        Some(accesses) => push_accesses::<COMMUTES, T>(own, accesses[inserted..].iter(), inserted, satisfied, guard),
        None => finish_push_apart(own, inserted, satisfied, guard),
    }
}

#[cold]
#[inline(never)]
fn finish_push_apart<T>(own: &Op<T>, inserted: usize, satisfied: u32, guard: &Guard) -> (bool, bool) {
    push_accesses::<true, T>(own, own.accesses_from(inserted), inserted, satisfied, guard)
}

/// [Finishes](finish_push_of_several) the push of an operation, of which `accesses` are the accesses behind the first
/// `inserted`.
#[inline(always)]
fn push_accesses<'a, const COMMUTES: bool, T: 'a>(
    own: &Op<T>,
    mut accesses: impl Iterator<Item = &'a Access<T>>,
    inserted: usize,
    mut satisfied: u32,
    guard: &Guard,
) -> (bool, bool) {
    let mut left = own.left_at(inserted as u32);
    if inserted == 0 {
        if let Some(first) = accesses.next() {
            let _ = append::<COMMUTES, T>(own, first, left, Inserter::FirstPusher, &mut satisfied, guard);
            left -= ONE;
        }
    }
    for access in accesses {
        if append::<COMMUTES, T>(own, access, left, Inserter::Pusher, &mut satisfied, guard) == LinkedBy::Helper {
            return finish_helped_push(own, left - ONE, satisfied, guard);
        }
        left -= ONE;
    }
    end_push(own, satisfied, LinkedBy::Pusher)
}

/// [Finishes](finish_push_of_several) the push of an operation of which a helper has linked an access. The accesses
/// that remain to be inserted are those counted in `left`.
#[cold]
#[inline(never)]
fn finish_helped_push<T>(own: &Op<T>, mut left: u32, mut satisfied: u32, guard: &Guard) -> (bool, bool) {
    for access in own.accesses_from((own.access_count() - left / ONE) as usize) {
        let _ = append::<true, T>(own, access, left, Inserter::Pusher, &mut satisfied, guard);
        left -= ONE;
    }
    end_push(own, satisfied, LinkedBy::Helper)
}

/// Ends the push of an operation whose accesses are all in their queues, some of them linked by a helper if `linked_by`
/// says so. Returns whether the operation is ready, and whether it was rejected.
#[inline(always)]
fn end_push<T>(own: &Op<T>, mut satisfied: u32, linked_by: LinkedBy) -> (bool, bool) {
    pause::at(Point::PushBeforeRegistered);
    let rejected = own.end_registration(Arity::Several);
    pause::at(Point::PushBeforeHints);
    // Accesses linked by this thread itself already have their flags.
    if linked_by == LinkedBy::Helper {
        for access in own.accesses() {
            satisfied += if removed(step::DEFERRED_ADOPTED) { 0 } else { access.adopt_deferred() };
        }
    }
    pause::at(Point::PushBeforeDecrement);
    // If this thread counted every access as satisfied, no other thread decrements `wait`.
    let ready = satisfied == own.access_count() || {
        let order = acquire_release(edge::ready::LAST_IN_PUSH, edge::ready::PUSHED);
        own.wait.fetch_sub(satisfied + 1, order) == satisfied + 1
    };
    (ready, rejected)
}

/// The thread that inserts an access. `insert` is compiled separately for each variant.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Inserter {
    /// The pusher of an operation with one access. Such an operation is never helped.
    SolePusher,
    /// The pusher of an operation with several accesses, for the first of them.
    FirstPusher,
    /// The pusher of an operation with several accesses, for one of the others.
    Pusher,
    /// Another thread.
    Helper,
}

/// The result of an insertion.
#[must_use]
pub(super) enum Insertion<'g, T> {
    /// The caller has linked the access.
    Linked,
    /// The access had already been linked by another thread.
    AlreadyLinked,
    /// The caller must help this operation first.
    Behind(&'g Op<T>),
}

/// The thread that linked an access of the caller's operation.
#[derive(Clone, Copy, PartialEq, Eq)]
#[must_use]
enum LinkedBy {
    /// The calling thread, which also set the access's flags.
    Pusher,
    /// A helper, which deferred the access's flags.
    Helper,
}

/// Inserts an access of the calling thread's own operation, after helping the operations that are in the way.
#[inline(always)]
fn append<const COMMUTES: bool, T>(
    own: &Op<T>,
    access: &Access<T>,
    left: u32,
    by: Inserter,
    satisfied: &mut u32,
    guard: &Guard,
) -> LinkedBy {
    loop {
        match insert::<COMMUTES, T>(own, access, left, by, satisfied, guard) {
            Insertion::Linked => return LinkedBy::Pusher,
            Insertion::AlreadyLinked => return LinkedBy::Helper,
            Insertion::Behind(other) => {
                pause::at(Point::HelpBegins);
                if !removed(step::HELPS) {
                    help(other, guard);
                }
                pause::at(Point::HelpEnds);
            }
        }
    }
}

/// A stalled push, as a starting point for models.
#[cfg(any(raddle_loom, raddle_shuttle))]
#[derive(Debug)]
pub struct Stalled<T> {
    op: OpRef<T>,
    inserted: usize,
    satisfied: u32,
    /// The tail of the last inserted access's variable if the tail has yet to be moved; otherwise null.
    tail: *const Access<T>,
    guard: Guard,
}

#[cfg(any(raddle_loom, raddle_shuttle))]
impl<T> Stalled<T> {
    fn inserter(op: &OpRef<T>, access: &Access<T>) -> Inserter {
        match access.index {
            _ if op.sole_access().is_some() => Inserter::SolePusher,
            0 => Inserter::FirstPusher,
            _ => Inserter::Pusher,
        }
    }

    /// Inserts the first `accesses` accesses of `op` without interference, then stalls.
    pub fn after(accesses: usize, op: OpRef<T>) -> Self {
        let (guard, mut satisfied) = (epoch::pin(), 0);
        for access in op.accesses().take(accesses) {
            let left = op.left_at(access.index);
            let insertion = insert::<true, T>(&op, access, left, Self::inserter(&op, access), &mut satisfied, &guard);
            assert!(matches!(insertion, Insertion::Linked), "another push is stalled on this variable");
        }
        Self { op, inserted: accesses, satisfied, tail: std::ptr::null(), guard }
    }

    /// Inserts all accesses of `op` without interference. The last one is inserted by `by`, which stalls before moving
    /// the tail. Another operation must be pending on the last variable. Also returns the unmoved tail.
    fn before_last_swing(op: OpRef<T>, by: Inserter) -> (Self, *const Access<T>) {
        let mut stalled = Self::after(op.access_count() as usize - 1, op);
        let last = stalled.op.accesses().last().expect("the operation has an access");
        // Relaxed: no other thread uses the queue.
        let tail = last.queue().tail.load(Relaxed, &stalled.guard).as_raw();
        let insertion = insert::<true, T>(&stalled.op, last, ONE, by, &mut stalled.satisfied, &stalled.guard);
        assert!(matches!(insertion, Insertion::Linked), "another push is stalled on this variable");
        // Relaxed: no other thread uses the queue.
        last.queue().tail.store(Shared::from(tail), Relaxed);
        (stalled, tail)
    }

    /// Inserts all accesses of `op` without interference, then stalls before moving the last tail. Another operation
    /// must be pending on the last variable.
    pub fn before_swing(op: OpRef<T>) -> Self {
        let by = Self::inserter(&op, op.accesses().last().expect("the operation has an access"));
        let (stalled, tail) = Self::before_last_swing(op, by);
        Self { inserted: stalled.inserted + 1, tail, ..stalled }
    }

    /// Inserts all accesses of `op` without interference. A helper inserts the last one and stalls before moving the
    /// tail. Another operation must be pending on the last variable.
    pub fn beside_a_helper(op: OpRef<T>) -> Self {
        Self::before_last_swing(op, Inserter::Helper).0
    }

    /// Continues the push.
    pub fn finish(self) -> PushResult<T> {
        if let Some(last) = self.op.accesses().last().filter(|_| !self.tail.is_null()) {
            let (tail, access) = (Shared::from(self.tail), Shared::from(std::ptr::from_ref(last)));
            let order = release(edge::swing::INSERTED);
            let _ = last.queue().tail.compare_exchange(tail, access, order, Relaxed, &self.guard);
        }
        finish_push::<true, T>(self.op, self.inserted, self.satisfied, &self.guard)
    }
}

/// Inserts the remaining accesses of another thread's operation, or of an operation in its way. Returns as soon
/// as one of the helped operations is registered; the caller then retries its own insertion.
#[cold]
pub(super) fn help<'g, T>(mut target: &'g Op<T>, guard: &'g Guard) {
    while let Some(access) = target.next_unregistered() {
        let left = target.left_at(access.index);
        if let Insertion::Behind(other) = insert::<true, T>(target, access, left, Inserter::Helper, &mut 0, guard) {
            target = other;
        }
    }
}

/// Appends `access`, with this value of [`left_at`](Op::left_at), to its variable's queue, unless it is already there
/// or a half-pushed operation is in the way.
#[inline(always)]
pub(super) fn insert<'g, const COMMUTES: bool, T>(
    target: &Op<T>,
    access: &Access<T>,
    left: u32,
    by: Inserter,
    satisfied: &mut u32,
    guard: &'g Guard,
) -> Insertion<'g, T> {
    let queue = access.queue();
    let own = by != Inserter::Helper;
    // Until one of its accesses is linked, only its pusher can insert an operation. No other thread can therefore have
    // linked this access, and the pusher may set flags with a store.
    let unseen = matches!(by, Inserter::SolePusher | Inserter::FirstPusher);
    loop {
        let tail_word = queue.tail.load(acquire(edge::swing::TAIL), guard);
        // SAFETY: the tail is never null, and an access to which it has pointed while this thread was pinned is not
        // reclaimed (edge `retire`).
        let tail = unsafe { tail_word.deref() };
        if !unseen && std::ptr::eq(tail, access) {
            if !own {
                pause::at(Point::HelpBeforeAdvance);
            }
            if !removed(step::REGISTERED_AT_TAIL) {
                target.register(left);
            }
            return Insertion::AlreadyLinked;
        }
        tail.check();
        pause::at(Point::PushReadTail);
        // Also acquires the writes published with the flags (edge `complete`), and keeps the load of `unregistered`
        // below after this load.
        let word = tail.word.load(acquire(edge::link::TAIL), guard);
        if !word.is_null() {
            swing(queue, tail, word, guard);
            continue;
        }
        pause::at(Point::PushReadWord);
        if !removed(step::HELP_BEFORE_APPEND) && !tail.is_sole() {
            // SAFETY: a variable's initial access counts as a sole one.
            let other = unsafe { tail.own_op() };
            if !other.is_registered() {
                return Insertion::Behind(other);
            }
        }
        if !unseen && !removed(step::REREAD_REGISTERED) && target.is_past(left) {
            return Insertion::AlreadyLinked;
        }
        if queue.is_closed()
            && !removed(step::CLOSED_CHECKED)
            && !target.queued.passes_closed()
            && target.reject(left) == Rejection::AlreadyLinked
        {
            continue;
        }
        pause::at(Point::PushReadRegistered);
        let grantable = tail.grantable(word.tag(), COMMUTES && access.mode() == Mode::Commute);
        if unseen {
            // Relaxed: published by the linking CAS.
            access.word.store(Shared::null().with_tag(grantable), Relaxed);
        }
        let link = tagged(access, word.tag() | linked(grantable));
        pause::at(Point::PushBeforeLink);
        // The load acquired the writes published with the flags that the access is granted: the word has not changed
        // since, and a flag set twice (`grant`) has nothing new to release.
        if tail.word.compare_exchange(word, link, release(edge::link::LINKED), Relaxed, guard).is_err() {
            continue;
        }
        pause::at(Point::PushLinked);
        if !own {
            if !removed(step::HELPER_DEFERS) {
                access.defer_flags(grantable);
            }
        } else if unseen {
            *satisfied += u32::from(access.mode().is_satisfied_by(grantable));
        } else if grantable != 0 {
            *satisfied += access.grant(grantable);
        }
        pause::at(Point::PushBeforeSwing);
        // Fails if another thread has moved the tail.
        let order = release(edge::swing::INSERTED);
        let _ = queue.tail.compare_exchange(tail_word, tagged(access, 0), order, Relaxed, guard);
        pause::at(Point::PushBeforeRetire);
        if grantable & WRITE_OK != 0 {
            // The predecessor had `WRITE_OK` and `DONE`, and now has a next access.
            // SAFETY: it is therefore spent, the tail is past it, and only one thread links behind it.
            unsafe { tail.share().end() };
        }
        return Insertion::Linked;
    }
}

/// Moves the tail of `queue` from `tail` on to the access that `word` links, after deferring that access's flags.
#[cold]
fn swing<T>(queue: &VarQueue<T>, tail: &Access<T>, word: Shared<'_, Access<T>>, guard: &Guard) {
    // SAFETY: the next access's share ends only after the tail has passed it; the tail was at its predecessor after
    // this thread was pinned, so the next access is not reclaimed.
    let next = unsafe { word.deref() };
    next.check();
    pause::at(Point::HelpBeforeHints);
    // These are not the flags that `tail` can grant now: a completion that sets flags after the link propagates them
    // itself.
    if !removed(step::SWING_DEFERS) {
        next.defer_flags(grantable_at_link(word.tag()));
    }
    pause::at(Point::HelpBeforeSwing);
    // Fails if another thread has moved the tail.
    let (tail, order) = (Shared::from(std::ptr::from_ref(tail)), release(edge::swing::HELPED));
    let _ = queue.tail.compare_exchange(tail, word.with_tag(0), order, Relaxed, guard);
}
