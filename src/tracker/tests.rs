//! Tests of the tracker on one thread, step by step. Many leave a push or a completion half done, and check how the
//! next call handles it.

use std::{
    ops::Deref,
    ptr::NonNull,
    sync::{Arc, Weak},
    thread,
};

use super::{
    Access, Hold,
    Mode::{self, Await, Commute, Overwrite, Read, Write},
    Op, OpRef, ReadyList, VarQueue,
    access::{Arity, DONE, READ_OK, WRITE_OK, grantable_at_link, linked, newly_grantable},
    followers::{MAX_FOLLOWERS, followers},
    insert::{Inserter, Insertion, PushResult, help, insert},
    look::{MAX_SUCCESSORS, Successors},
    op_record::{Rejection, Room, WIDE_ACCESSES, size_for},
    propagate::{Spent, complete, complete_access},
    unlink::{complete_unlinking, pick_none},
};
use crate::{
    memory::{
        epoch::{self, Guard, Shared},
        pool::{Record, RecordSize},
    },
    sync::Ordering::Relaxed,
};

/// A task whose reference count shows when it is dropped.
type Task = Arc<()>;

/// A variable that is freed when dropped; all operations on it must be complete by then.
struct Var(NonNull<VarQueue<Task>>);

impl Var {
    fn new(id: u64) -> Self {
        let queue = NonNull::from(Box::leak(Box::new(VarQueue::with_owner(id, 8))));
        // SAFETY: no other thread knows the queue, and it does not move.
        unsafe { VarQueue::init(queue) };
        Self(queue)
    }

    fn queue(&self) -> &VarQueue<Task> {
        // SAFETY: the queue is freed when `self` is dropped, or later.
        unsafe { self.0.as_ref() }
    }

    fn tail(&self) -> *const Access<Task> {
        // Relaxed: there is only one thread.
        self.queue().tail.load(Relaxed, epoch::unprotected()).as_raw()
    }

    /// Links `access` behind the variable's last access and stops there, as a pusher may, leaving the tail behind and
    /// no flags deferred.
    fn link(&self, access: &Access<Task>) {
        let guard = epoch::pin();
        // SAFETY: the tail is never null, and there is no other thread to retire it.
        let tail = unsafe { self.queue().tail.load(Relaxed, &guard).deref() };
        let word = tail.word.load(Relaxed, &guard);
        assert!(word.is_null(), "an access is linked behind the tail");
        let grantable = tail.grantable(word.tag(), access.mode() == Commute);
        let link = Shared::from(std::ptr::from_ref(access)).with_tag(word.tag() | linked(grantable));
        tail.word.store(link, Relaxed);
    }
}

impl Drop for Var {
    fn drop(&mut self) {
        if !thread::panicking() {
            let queue = self.0;
            // SAFETY: `new` leaked the box.
            let free = move || drop(unsafe { Box::from_raw(queue.as_ptr()) });
            // SAFETY: each test completes everything that it pushed, and this is called once.
            unsafe { VarQueue::dispose(queue, free) };
        }
    }
}

/// The address of an operation. The test owns the operation whenever the tracker does not.
#[derive(Clone, Copy)]
struct Known(NonNull<Op<Task>>);

impl Known {
    fn as_ptr(self) -> *mut Op<Task> {
        self.0.as_ptr()
    }

    /// Takes ownership from the test, which must have it: the operation has not yet been pushed, or is ready.
    fn owned(self) -> OpRef<Task> {
        // SAFETY: the test owns the operation, as this call states.
        unsafe { OpRef::from_ptr(self.0) }
    }

    fn access(&self, index: usize) -> &Access<Task> {
        self.accesses().nth(index).expect("the operation should have this access")
    }
}

impl Deref for Known {
    type Target = Op<Task>;

    fn deref(&self) -> &Op<Task> {
        // SAFETY: the tests use no record that may have been reclaimed.
        unsafe { self.0.as_ref() }
    }
}

fn operation_with_task(passes_closed: bool, accesses: &[(&Var, Mode)]) -> (Known, Weak<()>) {
    let task = Arc::new(());
    let alive = Arc::downgrade(&task);
    // SAFETY: the place has room for a task.
    let init = move |place: *mut Task| unsafe { place.write(task) };
    let accesses: Vec<_> = accesses.iter().map(|(var, mode)| (var.0, *mode)).collect();
    // SAFETY: the tests keep their variables; `init` initialises the task; a `Vec` yields as many items as its length
    // states.
    (Known(unsafe { OpRef::new_with(init, Room::default(), 0, passes_closed, accesses.into_iter()) }.into_ptr()), alive)
}

fn operation(accesses: &[(&Var, Mode)]) -> Known {
    operation_with_task(false, accesses).0
}

/// Pushes `op`; returns whether it is ready and whether it is rejected.
fn push(op: Known) -> [bool; 2] {
    outcome(op, super::push(op.owned()))
}

/// Destructures the result of a push of `op`. The test becomes the owner if the operation is ready.
fn outcome(op: Known, pushed: PushResult<Task>) -> [bool; 2] {
    let PushResult { ready, rejected } = pushed;
    let is_ready = ready.is_some();
    ready.into_iter().for_each(|ready| assert_eq!(ready.into_ptr(), op.0));
    [is_ready, rejected]
}

const READY: [bool; 2] = [true, false];
const REJECTED: [bool; 2] = [false, true];

/// Creates and pushes an operation; returns it and whether it is ready.
fn pushed(accesses: &[(&Var, Mode)]) -> (Known, bool) {
    let op = operation(accesses);
    let [is_ready, rejected] = push(op);
    assert!(!rejected);
    (op, is_ready)
}

/// Inserts the first access of `op` as its pusher, then stops. Returns the number of satisfied accesses.
fn begun(op: Known, guard: &Guard) -> u32 {
    let mut satisfied = 0;
    let (first, left) = (op.access(0), op.left_at(0));
    let insertion = insert::<true, _>(&op, first, left, Inserter::FirstPusher, &mut satisfied, guard);
    assert!(matches!(insertion, Insertion::Linked));
    satisfied
}

/// Inserts an access of `op` as a helper.
fn helped(op: Known, index: u32, guard: &Guard) -> Insertion<'_, Task> {
    let record = &*op;
    let access = op.access(index as usize);
    insert::<true, _>(record, access, record.left_at(index), Inserter::Helper, &mut 0, guard)
}

/// Continues a [begun] push.
fn finish_push(op: Known, satisfied: u32, guard: &Guard) -> [bool; 2] {
    outcome(op, super::insert::finish_push::<true, _>(op.owned(), 1, satisfied, guard))
}

/// Completes `op` and returns the operations that this made ready, in order.
fn end(op: Known) -> Vec<*mut Op<Task>> {
    end_by(op, complete)
}

/// Does the same as [`end`], and unlinks completed readers.
fn end_unlinking(op: Known) -> Vec<*mut Op<Task>> {
    end_by(op, complete_unlinking)
}

fn end_by(op: Known, complete: fn(OpRef<Task>, &mut ReadyList<Task>) -> Hold<Task>) -> Vec<*mut Op<Task>> {
    let mut list = ReadyList::default();
    assert!(list.is_empty());
    drop(complete(op.owned(), &mut list));
    let is_empty = list.is_empty();
    let mut ready = Vec::new();
    while let Some(op) = list.pop() {
        ready.push(op.into_ptr().as_ptr());
    }
    assert_eq!(is_empty, ready.is_empty());
    assert!(list.is_empty());
    ready
}

#[test]
fn newly_grantable_flags_are_the_difference_that_a_flag_makes() {
    let comes_in_order = |flags: &usize| flags & WRITE_OK == 0 || flags & READ_OK != 0;
    for mode in [Read, Await, Commute] {
        let grantable = |flags: usize| {
            if mode == Commute { mode.grantable::<true>(flags) } else { mode.grantable::<false>(flags) }
        };
        for was in (0..8).filter(comes_in_order) {
            for now in (0..8).filter(comes_in_order).filter(|now| now & was == was && now & DONE == was & DONE) {
                let difference = grantable(now) & !grantable(was);
                assert_eq!(newly_grantable(now & !was, was), difference, "{mode:?} from {was} to {now}");
            }
        }
    }
}

#[test]
fn a_mode_is_satisfied_by_its_flag_and_grants_what_it_does_not_exclude() {
    for flags in 0..8 {
        let (read_ok, write_ok) = (flags & READ_OK != 0, flags & WRITE_OK != 0);
        let spent = write_ok && flags & DONE != 0;
        for mode in [Read, Await, Write, Overwrite, Commute] {
            let (is_shared, excludes) = (mode == Read || mode == Commute, mode == Write || mode == Overwrite);
            assert_eq!(mode.is_write(), excludes || mode == Commute);
            assert_eq!((mode.is_exclusive(), mode.is_shared()), (excludes, is_shared));
            assert_eq!(mode.is_satisfied_by(flags), if is_shared { read_ok } else { write_ok }, "{mode:?} {flags}");
            let grantable = |passes| match () {
                () if spent => READ_OK | WRITE_OK,
                () if read_ok && passes => READ_OK,
                () => 0,
            };
            assert_eq!(mode.grantable::<false>(flags), grantable(!mode.is_write()), "{mode:?} {flags}");
            assert_eq!(mode.grantable::<true>(flags), grantable(mode == Commute), "{mode:?} {flags}");
        }
    }
}

#[test]
fn a_link_records_the_flags_that_were_grantable() {
    for flags in 0..8 {
        let grantable = flags & (READ_OK | WRITE_OK);
        assert_eq!(linked(flags) & (READ_OK | WRITE_OK | DONE), 0, "the tag of the link overlaps the flags");
        for others in 0..8 {
            assert_eq!(grantable_at_link(linked(flags) | others), grantable, "{flags} {others}");
        }
    }
}

#[test]
fn readers_run_side_by_side_and_writers_alone_and_each_record_is_retired() {
    let var = Var::new(1);
    let modes = [Write, Read, Read, Overwrite, Await, Read];
    let (ops, tasks): (Vec<_>, Vec<_>) =
        modes.map(|mode| operation_with_task(false, &[(&var, mode)])).into_iter().unzip();
    let ready: Vec<_> = ops.iter().map(|&op| push(op)[0]).collect();
    assert_eq!(ready, [true, false, false, false, false, false]);
    let [_, first, second, overwrite, wait, last] = std::array::from_fn(|index| ops[index].as_ptr());
    assert_eq!(end(ops[0]), [first, second]);
    assert_eq!(end(ops[2]), []);
    assert_eq!(end(ops[1]), [overwrite]);
    assert_eq!(end(ops[3]), [wait, last]);
    assert_eq!(end(ops[5]), []);
    assert_eq!(end(ops[4]), []);
    let kept: Vec<_> = tasks.iter().map(|task| task.strong_count()).collect();
    assert_eq!(kept, [0, 0, 0, 0, 0, 1], "the records kept are not just that of the last access");
    drop(var);
    assert_eq!(tasks[5].strong_count(), 0);
}

#[test]
fn a_variable_with_a_pending_reader_is_idle_only_for_readers() {
    let var = Var::new(1);
    let idle = || [Read, Write].map(|mode| var.queue().is_idle(mode));
    assert_eq!(idle(), [true, true]);
    let (reader, _) = pushed(&[(&var, Read)]);
    assert_eq!(idle(), [true, false]);
    end(reader);
    assert_eq!(idle(), [true, true]);
    let (writer, _) = pushed(&[(&var, Write)]);
    assert_eq!(idle(), [false, false]);
    end(writer);
    assert_eq!(idle(), [true, true]);
}

#[test]
fn a_push_behind_a_half_done_push_helps_it_to_finish() {
    let (a, b) = (Var::new(1), Var::new(2));
    let guard = epoch::pin();
    let half = operation(&[(&a, Write), (&b, Write)]);
    let satisfied = begun(half, &guard);
    assert!(!half.is_registered());
    let (behind, ready) = pushed(&[(&a, Write)]);
    assert!(!ready);
    assert!(half.is_registered(), "the half-done push was not finished by a helper");
    let (reader, ready) = pushed(&[(&b, Read)]);
    assert!(!ready);
    assert_eq!(finish_push(half, satisfied, &guard), READY);
    assert_eq!(end(half), [behind.as_ptr(), reader.as_ptr()]);
    assert_eq!(end(reader), []);
    assert_eq!(end(behind), []);
}

#[test]
fn a_helped_writer_waits_for_the_readers_before_it() {
    let (a, b) = (Var::new(1), Var::new(2));
    let guard = epoch::pin();
    let (reader, _) = pushed(&[(&b, Read)]);
    let half = operation(&[(&a, Write), (&b, Write)]);
    let satisfied = begun(half, &guard);
    let (behind, _) = pushed(&[(&a, Write)]);
    assert_eq!(finish_push(half, satisfied, &guard), [false, false]);
    assert_eq!(end(reader), [half.as_ptr()]);
    assert_eq!(end(half), [behind.as_ptr()]);
    assert_eq!(end(behind), []);
}

#[test]
fn a_writer_of_several_variables_waits_for_the_readers_before_it() {
    let (a, b) = (Var::new(1), Var::new(2));
    let (reader, _) = pushed(&[(&b, Read)]);
    let (writer, ready) = pushed(&[(&a, Write), (&b, Write)]);
    assert!(!ready);
    assert_eq!(end(reader), [writer.as_ptr()]);
    assert_eq!(end(writer), []);
}

#[test]
fn a_helped_reader_does_not_delay_the_readers_behind_it() {
    let (a, b) = (Var::new(1), Var::new(2));
    let guard = epoch::pin();
    let half = operation(&[(&a, Write), (&b, Read)]);
    let satisfied = begun(half, &guard);
    let (behind, _) = pushed(&[(&a, Write)]);
    let (before, ready) = pushed(&[(&b, Read)]);
    assert!(ready, "the deferred flag of its predecessor was ignored");
    assert_eq!(finish_push(half, satisfied, &guard), READY);
    let (after, ready) = pushed(&[(&b, Read)]);
    assert!(ready);
    assert_eq!(end(half), [behind.as_ptr()]);
    for op in [after, before, behind] {
        assert_eq!(end(op), []);
    }
}

#[test]
fn a_reader_behind_a_helped_reader_is_granted_its_flags_and_deferred_flags() {
    let (a, b) = (Var::new(1), Var::new(2));
    let guard = epoch::pin();
    let half = operation(&[(&a, Write), (&b, Read)]);
    let satisfied = begun(half, &guard);
    let (behind, _) = pushed(&[(&a, Write)]);
    assert_eq!(finish_push(half, satisfied, &guard), READY);
    let (reader, ready) = pushed(&[(&b, Read)]);
    assert!(ready);
    assert_eq!(end(reader), []);
    assert_eq!(end(half), [behind.as_ptr()]);
    assert_eq!(end(behind), []);
}

#[test]
fn a_push_that_finds_the_tail_behind_moves_it_and_defers_flags() {
    let (a, b) = (Var::new(1), Var::new(2));
    let guard = epoch::pin();
    let half = operation(&[(&a, Write), (&b, Read)]);
    let satisfied = begun(half, &guard);
    b.link(half.access(1));
    let (behind, ready) = pushed(&[(&b, Read)]);
    assert!(ready, "the deferred flag of its predecessor was ignored");
    assert!(half.is_registered());
    assert_eq!(b.tail(), std::ptr::from_ref(behind.access(0)));
    assert_eq!(finish_push(half, satisfied, &guard), READY);
    assert_eq!(end(behind), []);
    assert_eq!(end(half), []);
}

#[test]
fn a_linked_access_is_not_inserted_again() {
    let (a, b) = (Var::new(1), Var::new(2));
    let guard = epoch::pin();
    let (first, _) = pushed(&[(&a, Write), (&b, Write)]);
    let (second, _) = pushed(&[(&b, Write)]);
    assert!(matches!(helped(first, 1, &guard), Insertion::AlreadyLinked));
    let last = second.access(0);
    assert_eq!(b.tail(), std::ptr::from_ref(last));
    // Relaxed: there is only one thread.
    assert!(last.word.load(Relaxed, &guard).is_null());
    assert_eq!(end(first), [second.as_ptr()]);
    assert_eq!(end(second), []);
}

#[test]
fn an_access_that_a_helper_inserts_is_counted_by_the_next_insertion() {
    let (a, b) = (Var::new(1), Var::new(2));
    let guard = epoch::pin();
    let half = operation(&[(&a, Write), (&b, Write)]);
    let satisfied = begun(half, &guard);
    assert!(matches!(helped(half, 0, &guard), Insertion::AlreadyLinked));
    assert_eq!(half.next_unregistered().map(|access| access.index), Some(1));
    assert!(matches!(helped(half, 1, &guard), Insertion::Linked));
    assert_eq!(half.next_unregistered().map(|access| access.index), Some(1));
    assert!(matches!(helped(half, 1, &guard), Insertion::AlreadyLinked));
    assert!(half.next_unregistered().is_none());
    assert_eq!(finish_push(half, satisfied, &guard), READY);
    assert_eq!(end(half), []);
}

#[test]
fn a_completion_advances_the_tail_past_the_accesses_that_it_spends() {
    let (a, b) = (Var::new(1), Var::new(2));
    let guard = epoch::pin();
    let (first, task) = operation_with_task(false, &[(&a, Write)]);
    assert_eq!(push(first), READY);
    let half = operation(&[(&a, Read), (&b, Read)]);
    a.link(half.access(0));
    assert_eq!(end(first), []);
    assert_eq!(a.tail(), std::ptr::from_ref(half.access(0)));
    assert_eq!(task.strong_count(), 0);
    // When the access was linked, no flag was grantable, so none was deferred; the completion set `READ_OK` in the
    // word.
    let (reader, ready) = pushed(&[(&a, Read)]);
    assert!(ready);
    assert_eq!(finish_push(half, 0, &guard), READY, "the access that the completion has satisfied was not counted");
    assert_eq!(end(half), []);
    assert_eq!(end(reader), []);
}

/// Pushes `N` readers of `var`. Returns them, and for each whether its record is in use.
fn readers<const N: usize>(var: &Var) -> ([Known; N], [Weak<()>; N]) {
    let readers = [(); N].map(|()| operation_with_task(false, &[(var, Read)]));
    readers.iter().for_each(|&(reader, _)| assert_eq!(push(reader), READY));
    (readers.each_ref().map(|reader| reader.0), readers.map(|reader| reader.1))
}

fn in_use<const N: usize>(records: &[Weak<()>; N]) -> [bool; N] {
    records.each_ref().map(|record| record.upgrade().is_some())
}

#[test]
fn readers_that_complete_in_order_behind_another_are_unlinked() {
    pick_none();
    let x = Var::new(1);
    let ([first, front, b, c, last], records) = readers(&x);
    let (writer, _) = pushed(&[(&x, Write)]);
    assert_eq!(end_unlinking(front), []);
    assert_eq!((end(b), end(c)), (vec![], vec![]));
    assert_eq!(in_use(&records), [true; 5]);
    assert_eq!(end_unlinking(last), []);
    // What was unlinked from the front was little, so the last reader is the front now, and stays.
    assert_eq!(in_use(&records), [true, true, false, false, true]);
    assert_eq!(end(first), [writer.as_ptr()]);
    assert_eq!(in_use(&records), [false; 5]);
    assert_eq!(end(writer), []);
}

#[test]
fn readers_that_complete_in_reverse_order_behind_another_are_unlinked() {
    pick_none();
    let x = Var::new(1);
    let ([first, a, b, front, last], records) = readers(&x);
    assert_eq!(end(last), []);
    assert_eq!(end_unlinking(front), []);
    assert_eq!(in_use(&records), [true; 5], "the last access of a variable was unlinked");
    assert_eq!(end(b), []);
    let (writer, _) = pushed(&[(&x, Write)]);
    assert_eq!(end_unlinking(a), []);
    assert_eq!(in_use(&records), [true, true, false, false, false]);
    assert_eq!(end(first), [writer.as_ptr()]);
    assert_eq!(in_use(&records), [false; 5]);
    assert_eq!(end(writer), []);
}

/// A completion that has set flags in the one that is not done may be on its way to the one behind it.
#[test]
fn the_first_reader_behind_one_that_is_not_done_stays() {
    pick_none();
    let x = Var::new(1);
    let ([first, front, running, a, b, last], records) = readers(&x);
    assert_eq!(end_unlinking(front), []);
    assert_eq!((end(a), end(b)), (vec![], vec![]));
    assert_eq!(end_unlinking(last), []);
    assert_eq!(in_use(&records), [true, true, true, true, false, true]);
    assert_eq!((end(running), end(first)), (vec![], vec![]));
    assert_eq!(in_use(&records), [false, false, false, false, false, true]);
}

#[test]
fn the_front_is_the_first_picked_reader_until_it_is_spent_or_unlinked() {
    pick_none();
    let x = Var::new(1);
    let ([first, front, second], _) = readers(&x);
    let at_front = || x.queue().front.get(&epoch::pin()).map(std::ptr::from_ref);
    assert_eq!(at_front(), None);
    assert_eq!(end_unlinking(front), []);
    assert_eq!(at_front(), Some(std::ptr::from_ref(front.access(0))));
    let (many, _) = readers::<8>(&x);
    let at = |index: usize| Some(std::ptr::from_ref(many[index].access(0)));
    assert_eq!((end(many[0]), end(many[1])), (vec![], vec![]));
    assert_eq!(end_unlinking(many[2]), []);
    assert_eq!(at_front(), Some(std::ptr::from_ref(front.access(0))));
    assert_eq!((end(first), end(second)), (vec![], vec![]));
    assert_eq!(at_front(), None, "the front is spent");
    // It has nothing before it, so it strands none.
    assert_eq!(end_unlinking(many[3]), []);
    assert_eq!(at_front(), None);
    assert_eq!(end_unlinking(many[6]), []);
    assert_eq!(at_front(), at(6));
    assert_eq!(end_unlinking(many[5]), []);
    assert_eq!(at_front(), at(5), "the front is unlinked");
    assert_eq!((end(many[4]), end(many[7])), (vec![], vec![]));
    assert_eq!(at_front(), None);
    assert_eq!(push(operation(&[(&x, Read)])), READY);
}

#[test]
fn an_operation_whose_predecessor_completes_during_its_push_is_ready_for_its_pusher() {
    let (a, b) = (Var::new(1), Var::new(2));
    let guard = epoch::pin();
    let (first, _) = pushed(&[(&a, Write)]);
    let second = operation(&[(&a, Write), (&b, Write)]);
    let satisfied = begun(second, &guard);
    assert_eq!(satisfied, 0);
    assert_eq!(end(first), [], "an operation was ready before its push was over");
    assert_eq!(finish_push(second, satisfied, &guard), READY);
    assert_eq!(end(second), []);
}

#[test]
fn an_operation_behind_a_deletion_is_rejected_and_does_not_delay_others() {
    let (a, b) = (Var::new(1), Var::new(2));
    assert!(!a.queue().is_closed());
    assert!(a.queue().close());
    assert!(!a.queue().close());
    assert!(a.queue().is_closed());
    let (deletion, _) = operation_with_task(true, &[(&a, Write)]);
    assert_eq!(push(deletion), READY);
    assert!(!deletion.is_rejected());
    let late = operation(&[(&a, Write), (&b, Write)]);
    assert_eq!(push(late), REJECTED);
    assert!(late.is_rejected());
    let (behind, ready) = pushed(&[(&b, Write)]);
    assert!(!ready);
    assert_eq!(end(deletion), [late.as_ptr()]);
    assert_eq!(end(late), [behind.as_ptr()]);
    assert_eq!(end(behind), []);
}

#[test]
fn an_operation_that_a_helper_rejects_takes_its_place_in_the_other_queues() {
    let [a, b, c, d] = [1, 2, 3, 4].map(Var::new);
    let guard = epoch::pin();
    b.queue().close();
    let (deletion, _) = operation_with_task(true, &[(&b, Write)]);
    assert_eq!(push(deletion), READY);
    let half = operation(&[(&a, Write), (&b, Write), (&c, Write), (&d, Write)]);
    let satisfied = begun(half, &guard);
    let (behind, _) = pushed(&[(&a, Write)]);
    assert!(half.is_registered() && half.is_rejected());
    let (last, ready) = pushed(&[(&d, Write)]);
    assert!(!ready);
    assert_eq!(finish_push(half, satisfied, &guard), REJECTED);
    assert_eq!(end(deletion), [half.as_ptr()]);
    assert_eq!(end(half), [behind.as_ptr(), last.as_ptr()]);
    assert_eq!(end(behind), []);
    assert_eq!(end(last), []);
}

#[test]
fn registrations_are_counted_one_by_one_and_a_linked_access_is_not_rejected() {
    let (a, b) = (Var::new(1), Var::new(2));
    let op = operation(&[(&a, Read), (&b, Read)]);
    let record = &*op;
    let next = || record.next_unregistered().map(|access| access.index);
    let left = |index| record.left_at(index);
    let past = || [0, 1].map(|index| record.is_past(left(index)));
    record.register(left(1));
    assert_eq!((next(), past(), record.is_registered()), (Some(0), [false, false], false));
    record.register(left(0));
    assert_eq!((next(), past(), record.is_registered()), (Some(1), [true, false], false));
    record.register(left(0));
    assert_eq!(next(), Some(1));
    assert_eq!(record.reject(left(0)), Rejection::AlreadyLinked);
    assert!(!record.is_rejected());
    assert_eq!(record.reject(left(1)), Rejection::Rejected);
    assert!(record.is_rejected());
    assert_eq!(record.reject(left(1)), Rejection::Rejected);
    assert_eq!(record.reject(left(0)), Rejection::AlreadyLinked);
    assert_eq!((next(), past(), record.is_registered()), (Some(1), [true, false], false));
    record.register(left(1));
    assert_eq!((next(), past(), record.is_registered()), (None, [true, true], true));
    assert!(record.is_rejected());
    assert_eq!(record.reject(left(1)), Rejection::AlreadyLinked);
    assert!(record.end_registration(Arity::Several));
    assert_eq!((next(), record.is_registered(), record.is_rejected()), (None, true, true));
    // The operation was never in a queue, so this test owns all its shares.
    drop(op.owned().completed(2));
}

#[test]
fn an_operation_without_variables_is_registered_and_ready() {
    let op = operation(&[]);
    assert!(op.is_registered());
    assert_eq!(push(op), READY);
    assert_eq!(end(op), []);
}

#[test]
fn a_task_is_dropped_with_the_last_holder_of_its_record() {
    let (op, task) = operation_with_task(false, &[]);
    assert_eq!(push(op), READY);
    let hold = op.owned().hold();
    assert_eq!(end(op), []);
    assert_eq!(task.strong_count(), 1);
    drop(hold);
    assert_eq!(task.strong_count(), 0);
}

#[test]
fn a_record_keeps_any_number_of_accesses_in_order_and_its_task() {
    for count in (1..=WIDE_ACCESSES + 1).chain([40]) {
        let vars: Vec<_> = (0..count).map(|id| Var::new(id as u64)).collect();
        let accesses: Vec<_> = vars.iter().map(|var| (var, Write)).collect();
        let (first, task) = operation_with_task(false, &accesses);
        assert_eq!(push(first), READY);
        let (second, ready) = pushed(&accesses);
        assert!(!ready);
        for (index, (access, var)) in first.accesses().zip(&vars).enumerate() {
            assert_eq!((access.index as usize, access.mode(), access.queue().id()), (index, Write, index as u64));
            assert_eq!((access.queue_ptr(), access.queue().owner()), (var.0, 8));
        }
        assert_eq!(first.accesses().count(), count);
        let size = size_for(count, size_of::<Task>(), 0);
        assert_eq!(first.record_size(), size);
        // SAFETY: the test owns the operation.
        assert_eq!(unsafe { Arc::as_ptr(&*first.task_ptr()) }, task.as_ptr());
        assert_eq!(end(first), [second.as_ptr()]);
        assert_eq!(task.strong_count(), 0);
        assert_eq!(end(second), []);
    }
}

#[test]
fn debug_output_shows_the_flags_and_the_counts() {
    let (a, b) = (Var::new(1), Var::new(2));
    let access = |op: Known| format!("{:?}", op.access(0));
    let (reader, _) = pushed(&[(&a, Read)]);
    assert_eq!(
        access(reader),
        "Access { mode: Read, read_ok: true, write_ok: true, done: false, has_next: false, .. }"
    );
    let (second, _) = pushed(&[(&a, Read)]);
    assert_eq!(access(reader), "Access { mode: Read, read_ok: true, write_ok: true, done: false, has_next: true, .. }");
    assert_eq!(
        access(second),
        "Access { mode: Read, read_ok: true, write_ok: false, done: false, has_next: false, .. }"
    );
    let (writer, _) = pushed(&[(&a, Write), (&b, Write)]);
    assert_eq!(
        access(writer),
        "Access { mode: Write, read_ok: true, write_ok: false, done: false, has_next: false, .. }"
    );
    let (last, _) = pushed(&[(&a, Write)]);
    assert_eq!(
        access(last),
        "Access { mode: Write, read_ok: false, write_ok: false, done: false, has_next: false, .. }"
    );
    let text = format!("{:?}", *writer);
    assert!(text.starts_with("Op { wait: 1, registered: 2, live: 3, accesses: [Access {"), "{text}");
    assert_eq!(format!("{:?}", a.queue()), "VarQueue { id: 1, closed: false, .. }");
    assert_eq!(format!("{:?}", reader.owned()), format!("OpRef({:?})", reader.as_ptr()));
    assert_eq!(end(second), []);
    assert_eq!(access(second), "Access { mode: Read, read_ok: true, write_ok: false, done: true, has_next: true, .. }");
    assert_eq!(end(reader), [writer.as_ptr()]);
    assert_eq!(end(writer), [last.as_ptr()]);
    assert_eq!(end(last), []);
    assert_eq!(access(last), "Access { mode: Write, read_ok: true, write_ok: true, done: true, has_next: false, .. }");
    let half = operation(&[(&a, Read), (&b, Read)]);
    half.register(half.left_at(0));
    let text = format!("{:?}", *half);
    assert!(text.starts_with("Op { wait: 3, registered: 1, live: 3, accesses: [Access {"), "{text}");
    // The operation was never in a queue, so this test owns all its shares.
    drop(half.owned().completed(2));
}

#[test]
fn followers_are_the_conflicting_accesses_up_to_the_next_writer_of_each_variable() {
    let (a, b) = (Var::new(1), Var::new(2));
    let seen = |op: Known| {
        let mut seen = Vec::new();
        followers(&op, |op, access| seen.push((std::ptr::from_ref(op).cast_mut(), access.queue().id(), access.mode())));
        seen
    };
    let (first, _) = pushed(&[(&a, Write), (&b, Read)]);
    assert!(seen(first).is_empty(), "an operation has a follower although nothing was pushed behind it");
    let (reader, _) = pushed(&[(&a, Read), (&b, Read)]);
    let (wait, _) = pushed(&[(&a, Await)]);
    let (writer, _) = pushed(&[(&a, Write), (&b, Overwrite)]);
    let (late, _) = pushed(&[(&a, Read)]);
    assert_eq!(
        seen(first),
        [
            (reader.as_ptr(), 1, Read),
            (wait.as_ptr(), 1, Await),
            (writer.as_ptr(), 1, Write),
            // `first` and `reader` both read the other variable, so only the writer waits there.
            (writer.as_ptr(), 2, Overwrite),
        ],
    );
    assert_eq!(seen(writer), [(late.as_ptr(), 1, Read)]);
    for op in [first, reader, wait, writer, late] {
        end(op);
    }
}

#[test]
fn followers_are_limited_and_skip_completed_readers() {
    let var = Var::new(1);
    let (first, _) = pushed(&[(&var, Read)]);
    // A reader beside the first one may complete before it.
    let (beside, ready) = pushed(&[(&var, Read)]);
    assert!(ready);
    end(beside);
    let (writer, _) = pushed(&[(&var, Write)]);
    let mut seen = Vec::new();
    followers(&first, |op, access| seen.push((std::ptr::from_ref(op).cast_mut(), access.mode())));
    assert_eq!(seen, [(writer.as_ptr(), Write)]);
    let mut readers: Vec<_> = (0..2 * MAX_FOLLOWERS).map(|_| pushed(&[(&var, Read)]).0).collect();
    let mut count = 0;
    followers(&writer, |_, access| {
        assert_eq!(access.mode(), Read);
        count += 1;
    });
    assert_eq!(count, MAX_FOLLOWERS);
    readers.splice(0..0, [first, writer]);
    for op in readers {
        end(op);
    }
}

/// Returns the operations known to wait for the first access of `op`.
fn waiting_for(op: Known, successors: &mut Successors<'_, Task>) -> Vec<*mut Op<Task>> {
    let mut seen = Vec::new();
    successors.each(op.access(0), |op| seen.push(std::ptr::from_ref(op).cast_mut()));
    seen
}

#[test]
fn operations_waiting_for_an_access_are_the_conflicting_ones_up_to_the_next_writer() {
    let var = Var::new(1);
    let guard = epoch::pin();
    let ops = [Write, Read, Read, Await, Read, Write, Read].map(|mode| pushed(&[(&var, mode)]).0);
    let [first, reader, also_reads, wait, second, writer, late] = ops;
    let ends = [wait, writer].map(Known::as_ptr);
    let expected = [
        (first, &[reader, also_reads, wait, second, writer].map(Known::as_ptr)[..]),
        (reader, &ends),
        (also_reads, &ends),
        (wait, &ends[1..]),
        (second, &ends[1..]),
        (writer, &[late.as_ptr()]),
        (late, &[]),
    ];
    // Nothing depends on what has been looked at before.
    let mut successors = Successors::new(&guard);
    for (op, waiting) in expected.into_iter().chain(expected.into_iter().rev()) {
        assert_eq!(waiting_for(op, &mut successors), waiting);
        assert_eq!(waiting_for(op, &mut Successors::new(&guard)), waiting);
    }
    for op in ops {
        end(op);
    }
}

#[test]
fn an_operation_pushed_between_two_looks_is_seen_by_the_second() {
    let var = Var::new(1);
    let guard = epoch::pin();
    let mut successors = Successors::new(&guard);
    let mut seen = |op| waiting_for(op, &mut successors);
    let [first, second] = [(); 2].map(|()| pushed(&[(&var, Read)]).0);
    assert_eq!([second, first].map(&mut seen), [[]; 2]);
    let third = pushed(&[(&var, Read)]).0;
    assert_eq!([second, first].map(&mut seen), [[]; 2]);
    let writer = pushed(&[(&var, Write)]).0;
    assert_eq!([first, third, second, first].map(&mut seen), [[writer.as_ptr()]; 4]);
    for op in [first, second, third, writer] {
        end(op);
    }
}

#[test]
fn operations_waiting_for_a_reader_are_limited_and_those_for_a_writer_are_not() {
    let var = Var::new(1);
    let guard = epoch::pin();
    let [writer, reader] = [Write, Read].map(|mode| pushed(&[(&var, mode)]).0);
    let waits: Vec<_> = (0..2 * MAX_SUCCESSORS).map(|_| pushed(&[(&var, Await)]).0).collect();
    for (op, expected) in [(writer, 1 + waits.len()), (reader, MAX_SUCCESSORS)] {
        assert_eq!(waiting_for(op, &mut Successors::new(&guard)).len(), expected);
    }
    for op in [writer, reader].into_iter().chain(waits) {
        end(op);
    }
}

#[test]
fn an_operation_that_was_looked_at_in_its_queue_can_be_taken_or_popped() {
    for is_taken in [true, false] {
        let (op, task) = operation_with_task(false, &[]);
        assert_eq!(push(op), READY);
        let entry = op.owned();
        entry.publish(|| true);
        let (entry, seen) = entry.look_at_entry(OpRef::as_ptr).expect("no waiter has taken the operation");
        assert_eq!(seen, op.as_ptr());
        // SAFETY: the operation was published, and has not started.
        let take = || unsafe { OpRef::take(|| Some(op.0)) };
        let taken = if is_taken { take() } else { None };
        let popped = entry.pop_entry();
        assert_eq!((taken.is_some(), popped.is_some()), (is_taken, !is_taken));
        assert_eq!(end(op), []);
        assert_eq!(task.strong_count(), 0, "the entry has kept its share of the record");
    }
}

#[test]
fn records_are_no_larger_than_their_accesses_and_tasks_need() {
    use RecordSize::{Medium, Normal, Small, Wide};
    let cases = [
        ((1, 64), Small),
        ((1, 65), Medium),
        ((1, 129), Normal),
        ((2, 32), Small),
        ((2, 96), Medium),
        ((3, 64), Medium),
        ((3, 65), Normal),
        ((4, 160), Normal),
        ((5, 8), Wide),
        ((16, 160), Wide),
        ((17, 8), Normal),
        ((0, 8), Normal),
    ];
    for ((accesses, room), size) in cases {
        assert_eq!(size_for(accesses, room - 8, 8), size, "{accesses} accesses, a task of {room} bytes");
    }
}

/// The variables and operations of the worked example in the head of `tracker`.
struct Example {
    ops: [(&'static str, Known); 3],
    tasks: [Weak<()>; 3],
    // Dropped last, in this order: while the guard exists, the drawn spent accesses stay readable.
    guard: Guard,
    vars: [Var; 2],
}

impl Example {
    fn new() -> Self {
        let (guard, x, y) = (epoch::pin(), Var::new(1), Var::new(2));
        let (a, task_a) = operation_with_task(false, &[(&x, Read)]);
        let (b, task_b) = operation_with_task(false, &[(&x, Read), (&y, Write)]);
        let (c, task_c) = operation_with_task(false, &[(&x, Write), (&y, Read)]);
        let ops = [("A", a), ("B", b), ("C", c)];
        Self { ops, tasks: [task_a, task_b, task_c], guard, vars: [x, y] }
    }

    /// Draws the queue beginning with a variable's access `first`.
    fn queue(&self, name: &'static str, first: *const Access<Task>) -> String {
        let (mut text, mut name, mut at) = (String::new(), name, first);
        loop {
            // SAFETY: no access is reclaimed while the guard exists, and the variable owns the first one.
            let access = unsafe { &*at };
            // Relaxed: there is only one thread.
            let (word, deferred) = (access.word.load(Relaxed, &self.guard), access.deferred());
            let letters = |flags: usize, letters: [(usize, char); 3]| -> String {
                letters.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, letter)| letter).collect()
            };
            const FLAGS: [(usize, char); 3] = [(READ_OK, 'R'), (WRITE_OK, 'W'), (DONE, 'D')];
            let mut flags = letters(word.tag(), FLAGS);
            if deferred != 0 {
                flags = format!("{flags}~{}", letters(deferred, FLAGS));
            }
            let drawn = format!("{name} {flags}").trim_end().to_owned();
            let is_spent = word.tag() & (WRITE_OK | DONE) == WRITE_OK | DONE && !word.is_null();
            text += &if is_spent { format!("[{drawn}]") } else { drawn };
            if word.is_null() {
                return text;
            }
            let link = letters(grantable_at_link(word.tag()), [(READ_OK, 'r'), (WRITE_OK, 'w'), (0, ' ')]);
            text += &format!(" -{link}> ");
            at = word.as_raw();
            // SAFETY: no access is reclaimed while the guard exists.
            let op = unsafe { &*at }.op_ptr();
            name = self.ops.iter().find(|(_, known)| Some(known.0) == op).expect("an operation of the example").0;
        }
    }

    /// Asserts that the head of the module `tracker` contains the line showing the state after `step`.
    fn is_as_drawn(&self, step: &str, firsts: [*const Access<Task>; 2], ready: &[*mut Op<Task>]) {
        let [x, y] = [self.queue("x0", firsts[0]), self.queue("y0", firsts[1])];
        // Relaxed: there is only one thread.
        let wait = self.ops.map(|(_, op)| op.wait.load(Relaxed).to_string()).join(" ");
        let ready: String =
            self.ops.iter().filter(|(_, op)| ready.contains(&op.as_ptr())).map(|(name, _)| *name).collect();
        let line = format!("//! {step:<17} {x:<44} {y:<32} {wait}  {ready}");
        let line = line.trim_end();
        let is_drawn = include_str!("mod.rs").lines().any(|drawn| drawn == line);
        assert!(is_drawn, "the head of the module `tracker` does not show this step:\n{line}");
    }
}

#[test]
fn an_operation_is_pushed_behind_an_appended_list() {
    let ops = [(); 4].map(|()| operation(&[]));
    let (mut list, mut other) = (ReadyList::default(), ReadyList::default());
    list.push(ops[0].owned());
    other.push(ops[1].owned());
    other.push(ops[2].owned());
    list.append(&mut other);
    assert!(other.is_empty());
    list.append(&mut other);
    list.push(ops[3].owned());
    for expected in ops {
        let op = list.pop().expect("the operation is lost");
        assert_eq!(op.as_ptr(), expected.as_ptr());
        drop(complete(op, &mut other));
    }
    assert!(list.is_empty() && other.is_empty());
}

/// Completes the access of `op` at `index`; returns whether it is spent and what became ready.
fn completed_access(op: Known, index: usize) -> (Spent, Vec<*mut Op<Task>>) {
    let mut list = ReadyList::default();
    let spent = complete_access(NonNull::from(op.access(index)), &mut list);
    (spent, std::iter::from_fn(|| list.pop()).map(|op| op.into_ptr().as_ptr()).collect())
}

#[test]
fn the_worked_example_happens_as_drawn() {
    for b_completes_first in [true, false] {
        let example = Example::new();
        let firsts = [0, 1].map(|index| example.vars[index].tail());
        let [a, b, c] = example.ops.map(|(_, op)| op);
        let drawn = |step, ready: &[_]| example.is_as_drawn(step, firsts, ready);
        drawn("new", &[]);
        assert_eq!(push(a), READY);
        drawn("A: push", &[a.as_ptr()]);
        let satisfied = begun(b, &example.guard);
        drawn("B: insert in x", &[]);
        assert_eq!(finish_push(b, satisfied, &example.guard), READY);
        drawn("B: insert in y", &[b.as_ptr()]);
        let satisfied = begun(c, &example.guard);
        drawn("C: insert in x", &[]);
        assert_eq!(finish_push(c, satisfied, &example.guard), [false, false]);
        drawn("C: insert in y", &[]);

        if b_completes_first {
            assert_eq!(completed_access(b, 0), (Spent::NotYet, vec![]));
            drawn("B: complete in x", &[]);
            assert_eq!(end(a), []);
            drawn("A: complete in x", &[]);
        } else {
            assert_eq!(end(a), []);
            drawn("A: complete in x", &[]);
            assert_eq!(completed_access(b, 0), (Spent::Yes, vec![]));
            drawn("B: complete in x", &[]);
        }
        assert_eq!(completed_access(b, 1), (Spent::Yes, vec![c.as_ptr()]));
        drawn("B: complete in y", &[c.as_ptr()]);
        drop(b.owned().completed(if b_completes_first { 1 } else { 2 }));
        assert_eq!(end(c), []);
        let kept = example.tasks.each_ref().map(Weak::strong_count);
        assert_eq!(kept, [0, 0, 1], "the records kept are not just that of the last operation");
    }
}

#[test]
fn the_worked_example_with_a_helper_happens_as_drawn() {
    let example = Example::new();
    let firsts = [0, 1].map(|index| example.vars[index].tail());
    let [a, b, c] = example.ops.map(|(_, op)| op);
    let drawn = |step, ready: &[_]| example.is_as_drawn(step, firsts, ready);
    assert_eq!(push(a), READY);
    let satisfied = begun(b, &example.guard);
    drawn("B: insert in x", &[]);
    help(&b, &example.guard);
    drawn("C: help B", &[]);
    assert_eq!(push(c), [false, false]);
    drawn("C: push", &[]);
    assert_eq!(finish_push(b, satisfied, &example.guard), READY);
    drawn("B: adopt", &[b.as_ptr()]);
    assert_eq!(end(a), []);
    assert_eq!(end(b), [c.as_ptr()]);
    assert_eq!(end(c), []);
}
