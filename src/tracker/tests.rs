//! The tracker by hand, on one thread: what one thread leaves half done, and what the others make of it.

use std::{
    ops::Deref,
    ptr::NonNull,
    sync::{Arc, Weak},
    thread,
};

use super::{
    Mode::{Await, Overwrite, Read, Write},
    *,
};

/// Counts itself, to show when an operation's record is given up.
type Task = Arc<()>;

/// A variable that is given back at the end. Then all that was pushed on it must be done.
struct Var(NonNull<VarQueue<Task>>);

impl Var {
    fn new(id: u64) -> Self {
        let queue = NonNull::from(Box::leak(Box::new(VarQueue::with_owner(id, 7))));
        // SAFETY: nobody else knows the queue, and it stays where it is.
        unsafe { VarQueue::init(queue) };
        Self(queue)
    }

    fn queue(&self) -> &VarQueue<Task> {
        // SAFETY: it is freed after `self`.
        unsafe { self.0.as_ref() }
    }

    fn tail(&self) -> *const Access<Task> {
        // Relaxed: there is one thread.
        self.queue().tail.load(Relaxed, epoch::unprotected()).as_raw()
    }

    /// Links `access` as the variable's next one and stops there, as a thread may: the tail stays behind, and the hints are
    /// not left.
    fn link(&self, access: &Access<Task>) {
        let guard = epoch::pin();
        // SAFETY: the tail is never null, and not reclaimed: nothing is done beside this.
        let tail = unsafe { self.queue().tail.load(Relaxed, &guard).deref() };
        let word = tail.word.load(Relaxed, &guard);
        assert!(word.is_null(), "something stands behind the tail");
        let link = Shared::from(std::ptr::from_ref(access)).with_tag(word.tag() | linked(tail.entitlement(word.tag())));
        tail.word.store(link, Relaxed);
    }
}

impl Drop for Var {
    fn drop(&mut self) {
        if !thread::panicking() {
            let queue = self.0;
            // SAFETY: `new` has leaked the box.
            let free = move || drop(unsafe { Box::from_raw(queue.as_ptr()) });
            // SAFETY: each test ends what it has pushed, and this comes once.
            unsafe { VarQueue::dispose(queue, free) };
        }
    }
}

/// An operation by its address. The test has the right to it as well, but while the tracker has that.
#[derive(Clone, Copy)]
struct Known(NonNull<Op<Task>>);

impl Known {
    fn as_ptr(self) -> *mut Op<Task> {
        self.0.as_ptr()
    }

    /// The right, where it is the test's: the operation was not pushed yet, or has turned out to be ready.
    fn right(self) -> OpRef<Task> {
        // SAFETY: the test has the right, as it says by this.
        unsafe { OpRef::from_ptr(self.0) }
    }
}

impl Deref for Known {
    type Target = Op<Task>;

    fn deref(&self) -> &Op<Task> {
        // SAFETY: the tests look at no record that was given up.
        unsafe { self.0.as_ref() }
    }
}

fn operation_that(passes_closed: bool, accesses: &[(&Var, Mode)]) -> (Known, Weak<()>) {
    let task = Arc::new(());
    let alive = Arc::downgrade(&task);
    // SAFETY: the place is for a task.
    let init = move |place: *mut Task| unsafe { place.write(task) };
    let accesses: Vec<_> = accesses.iter().map(|(var, mode)| (var.0, *mode)).collect();
    // SAFETY: the tests keep their variables; `init` makes a task; a `Vec` knows its length.
    (Known(unsafe { OpRef::new_with(init, 0, passes_closed, accesses.into_iter()) }.into_ptr()), alive)
}

fn operation(accesses: &[(&Var, Mode)]) -> Known {
    operation_that(false, accesses).0
}

/// Pushes `op`; whether it is ready and whether it is rejected.
fn push(op: Known) -> [bool; 2] {
    oneshot(op, super::push(op.right()))
}

/// What a push of `op` has found out, which gives the right back to the test if the operation is ready.
fn oneshot(op: Known, pushed: Pushed<Task>) -> [bool; 2] {
    let Pushed { ready, rejected } = pushed;
    let is_ready = ready.is_some();
    ready.into_iter().for_each(|ready| assert_eq!(ready.into_ptr(), op.0));
    [is_ready, rejected]
}

const READY: [bool; 2] = [true, false];
const REJECTED: [bool; 2] = [false, true];

/// Makes and pushes an operation, and says whether it is ready.
fn pushed(accesses: &[(&Var, Mode)]) -> (Known, bool) {
    let op = operation(accesses);
    let [is_ready, rejected] = push(op);
    assert!(!rejected);
    (op, is_ready)
}

/// Inserts the first access of `op`, as its pusher, which stands still then. Gives what it has counted.
fn begun(op: Known, guard: &Guard) -> u32 {
    let mut satisfied = 0;
    assert!(matches!(insert(&op, &op.accesses()[0], Inserter::Pusher, &mut satisfied, guard), Insertion::Linked));
    satisfied
}

/// Goes on with a push that was [begun].
fn finish_push(op: Known, satisfied: u32, guard: &Guard) -> [bool; 2] {
    oneshot(op, super::finish_push(op.right(), 1, satisfied, guard))
}

/// Ends `op` and gives what became ready by it, in that order.
fn end(op: Known) -> Vec<*mut Op<Task>> {
    let mut list = ReadyList::default();
    assert!(list.is_empty());
    drop(complete(op.right(), &mut list));
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
fn what_is_passed_on_is_the_difference_that_a_flag_makes_to_the_entitlement() {
    let comes_in_order = |flags: &usize| flags & WRITE_OK == 0 || flags & READ_OK != 0;
    for mode in [Read, Await] {
        for was in (0..8).filter(comes_in_order) {
            for now in (0..8).filter(comes_in_order).filter(|now| now & was == was && now & DONE == was & DONE) {
                let difference = mode.entitlement(now) & !mode.entitlement(was);
                assert_eq!(passed_on(now & !was, was), difference, "{mode:?} from {was} to {now}");
            }
        }
    }
}

#[test]
fn a_mode_is_satisfied_by_its_flag_and_hands_on_what_it_does_not_exclude() {
    for flags in 0..8 {
        let (read_ok, write_ok) = (flags & READ_OK != 0, flags & WRITE_OK != 0);
        let spent = write_ok && flags & DONE != 0;
        for mode in [Read, Await, Write, Overwrite] {
            let writes = mode == Write || mode == Overwrite;
            assert_eq!(mode.is_write(), writes);
            assert_eq!(mode.is_satisfied_by(flags), if mode == Read { read_ok } else { write_ok }, "{mode:?} {flags}");
            let handed_on = match () {
                () if spent => READ_OK | WRITE_OK,
                () if read_ok && !writes => READ_OK,
                () => 0,
            };
            assert_eq!(mode.entitlement(flags), handed_on, "{mode:?} {flags}");
        }
    }
}

#[test]
fn a_link_says_what_the_next_access_was_entitled_to() {
    for flags in 0..8 {
        let entitled = flags & (READ_OK | WRITE_OK);
        assert_eq!(linked(flags) & (READ_OK | WRITE_OK | DONE), 0, "it lies beside the flags");
        for others in 0..8 {
            assert_eq!(entitled_at_link(linked(flags) | others), entitled, "{flags} {others}");
        }
    }
}

#[test]
fn readers_run_side_by_side_and_writers_alone_and_each_record_is_given_up() {
    let var = Var::new(1);
    let modes = [Write, Read, Read, Overwrite, Await, Read];
    let (ops, tasks): (Vec<_>, Vec<_>) = modes.map(|mode| operation_that(false, &[(&var, mode)])).into_iter().unzip();
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
    assert_eq!(kept, [0, 0, 0, 0, 0, 1], "all but the last access of the variable are given up");
    drop(var);
    assert_eq!(tasks[5].strong_count(), 0);
}

#[test]
fn a_variable_is_idle_for_a_reader_beside_readers_and_for_a_writer_alone() {
    let var = Var::new(1);
    let idle = || [true, false].map(|for_reading| var.queue().is_idle(for_reading));
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
fn who_comes_behind_a_half_done_push_helps_it_to_the_end() {
    let (a, b) = (Var::new(1), Var::new(2));
    let guard = epoch::pin();
    let half = operation(&[(&a, Write), (&b, Write)]);
    let satisfied = begun(half, &guard);
    assert!(!half.is_registered());
    let (behind, ready) = pushed(&[(&a, Write)]);
    assert!(!ready);
    assert!(half.is_registered(), "its pusher need not come back");
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
fn a_writer_of_several_waits_for_the_readers_before_it() {
    let (a, b) = (Var::new(1), Var::new(2));
    let (reader, _) = pushed(&[(&b, Read)]);
    let (writer, ready) = pushed(&[(&a, Write), (&b, Write)]);
    assert!(!ready);
    assert_eq!(end(reader), [writer.as_ptr()]);
    assert_eq!(end(writer), []);
}

#[test]
fn a_helped_reader_lets_readers_behind_it_go() {
    let (a, b) = (Var::new(1), Var::new(2));
    let guard = epoch::pin();
    let half = operation(&[(&a, Write), (&b, Read)]);
    let satisfied = begun(half, &guard);
    let (behind, _) = pushed(&[(&a, Write)]);
    let (before, ready) = pushed(&[(&b, Read)]);
    assert!(ready, "by the hint of its predecessor");
    assert_eq!(finish_push(half, satisfied, &guard), READY);
    let (after, ready) = pushed(&[(&b, Read)]);
    assert!(ready);
    assert_eq!(end(half), [behind.as_ptr()]);
    for op in [after, before, behind] {
        assert_eq!(end(op), []);
    }
}

#[test]
fn a_reader_behind_a_helped_reader_goes_by_its_flags_and_hints() {
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
fn who_finds_a_link_without_its_tail_moves_that_and_leaves_the_hints() {
    let (a, b) = (Var::new(1), Var::new(2));
    let guard = epoch::pin();
    let half = operation(&[(&a, Write), (&b, Read)]);
    let satisfied = begun(half, &guard);
    b.link(&half.accesses()[1]);
    let (behind, ready) = pushed(&[(&b, Read)]);
    assert!(ready, "by the hint of its predecessor");
    assert!(half.is_registered());
    assert_eq!(b.tail(), std::ptr::from_ref(&behind.accesses()[0]));
    assert_eq!(finish_push(half, satisfied, &guard), READY);
    assert_eq!(end(behind), []);
    assert_eq!(end(half), []);
}

#[test]
fn an_access_that_is_in_is_not_inserted_again() {
    let (a, b) = (Var::new(1), Var::new(2));
    let guard = epoch::pin();
    let (first, _) = pushed(&[(&a, Write), (&b, Write)]);
    let (second, _) = pushed(&[(&b, Write)]);
    assert!(matches!(insert(&first, &first.accesses()[1], Inserter::Helper, &mut 0, &guard), Insertion::WasIn));
    let last = &second.accesses()[0];
    assert_eq!(b.tail(), std::ptr::from_ref(last));
    // Relaxed: there is one thread.
    assert!(last.word.load(Relaxed, &guard).is_null());
    assert_eq!(end(first), [second.as_ptr()]);
    assert_eq!(end(second), []);
}

#[test]
fn what_a_helper_has_inserted_is_counted_by_the_next_look() {
    let (a, b) = (Var::new(1), Var::new(2));
    let guard = epoch::pin();
    let half = operation(&[(&a, Write), (&b, Write)]);
    let satisfied = begun(half, &guard);
    assert!(matches!(insert(&half, &half.accesses()[0], Inserter::Helper, &mut 0, &guard), Insertion::WasIn));
    assert_eq!(half.next_unregistered().map(|access| access.index), Some(1));
    let last = &half.accesses()[1];
    assert!(matches!(insert(&half, last, Inserter::Helper, &mut 0, &guard), Insertion::Linked));
    assert_eq!(half.next_unregistered().map(|access| access.index), Some(1));
    assert!(matches!(insert(&half, last, Inserter::Helper, &mut 0, &guard), Insertion::WasIn));
    assert!(half.next_unregistered().is_none());
    assert_eq!(finish_push(half, satisfied, &guard), READY);
    assert_eq!(end(half), []);
}

#[test]
fn a_completion_takes_the_tail_past_what_it_ends() {
    let (a, b) = (Var::new(1), Var::new(2));
    let guard = epoch::pin();
    let (first, task) = operation_that(false, &[(&a, Write)]);
    assert_eq!(push(first), READY);
    let half = operation(&[(&a, Read), (&b, Read)]);
    a.link(&half.accesses()[0]);
    assert_eq!(end(first), []);
    assert_eq!(a.tail(), std::ptr::from_ref(&half.accesses()[0]));
    assert_eq!(task.strong_count(), 0);
    // Another reader goes by the hints, which say what was so at the link: nothing. The completion has it in the word.
    let (reader, ready) = pushed(&[(&a, Read)]);
    assert!(ready);
    assert_eq!(finish_push(half, 0, &guard), READY, "its first access was satisfied by the completion");
    assert_eq!(end(half), []);
    assert_eq!(end(reader), []);
}

#[test]
fn an_operation_whose_predecessor_ends_during_its_push_is_its_pushers() {
    let (a, b) = (Var::new(1), Var::new(2));
    let guard = epoch::pin();
    let (first, _) = pushed(&[(&a, Write)]);
    let second = operation(&[(&a, Write), (&b, Write)]);
    let satisfied = begun(second, &guard);
    assert_eq!(satisfied, 0);
    assert_eq!(end(first), [], "the push goes on");
    assert_eq!(finish_push(second, satisfied, &guard), READY);
    assert_eq!(end(second), []);
}

#[test]
fn who_comes_behind_a_deletion_is_rejected_and_lets_the_others_go() {
    let (a, b) = (Var::new(1), Var::new(2));
    assert!(!a.queue().is_closed());
    assert!(a.queue().close());
    assert!(!a.queue().close());
    assert!(a.queue().is_closed());
    let (deletion, _) = operation_that(true, &[(&a, Write)]);
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
fn an_operation_that_a_helper_rejects_takes_its_other_places() {
    let [a, b, c, d] = [1, 2, 3, 4].map(Var::new);
    let guard = epoch::pin();
    b.queue().close();
    let (deletion, _) = operation_that(true, &[(&b, Write)]);
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
fn registrations_are_counted_one_by_one_and_a_rejection_only_before_its_access() {
    let (a, b) = (Var::new(1), Var::new(2));
    let op = operation(&[(&a, Read), (&b, Read)]);
    let record = &*op;
    let next = || record.next_unregistered().map(|access| access.index);
    let past = || [0, 1].map(|index| record.is_past(index));
    record.advance(1);
    assert_eq!((next(), past(), record.is_registered()), (Some(0), [false, false], false));
    record.advance(0);
    assert_eq!((next(), past(), record.is_registered()), (Some(1), [true, false], false));
    record.advance(0);
    assert_eq!(next(), Some(1));
    assert!(!record.reject(0));
    assert!(!record.is_rejected());
    assert!(record.reject(1));
    assert!(record.is_rejected());
    assert!(record.reject(1), "again");
    assert!(!record.reject(0), "it is in all the same");
    assert_eq!((next(), past(), record.is_registered()), (Some(1), [true, false], false));
    record.advance(1);
    assert_eq!((next(), past(), record.is_registered()), (None, [true, true], true));
    assert!(record.is_rejected());
    assert!(!record.reject(1));
    assert!(record.end_registration(2));
    assert_eq!((next(), record.is_registered(), record.is_rejected()), (None, true, true));
    // It was never in a queue: its shares are this test's.
    drop(op.right().completed(2));
}

#[test]
fn an_operation_without_variables_is_registered_and_ready() {
    let op = operation(&[]);
    assert!(op.is_registered());
    assert_eq!(push(op), READY);
    assert_eq!(end(op), []);
}

#[test]
fn a_record_ends_with_its_last_holder() {
    let (op, task) = operation_that(false, &[]);
    assert_eq!(push(op), READY);
    let hold = op.right().hold();
    assert_eq!(end(op), []);
    assert_eq!(task.strong_count(), 1);
    drop(hold);
    assert_eq!(task.strong_count(), 0);
}

#[test]
fn as_many_accesses_as_there_are_keep_their_order_and_their_variables_and_the_task() {
    for count in (1..=INLINE_ACCESSES + 1).chain([40]) {
        let vars: Vec<_> = (0..count).map(|id| Var::new(id as u64)).collect();
        let accesses: Vec<_> = vars.iter().map(|var| (var, Write)).collect();
        let (first, task) = operation_that(false, &accesses);
        assert_eq!(push(first), READY);
        let (second, ready) = pushed(&accesses);
        assert!(!ready);
        for (index, (access, var)) in first.accesses().iter().zip(&vars).enumerate() {
            assert_eq!((access.index as usize, access.mode(), access.queue().id()), (index, Write, index as u64));
            assert_eq!((access.queue_ptr(), access.queue().owner()), (var.0, 7));
        }
        assert_eq!(first.accesses().len(), count);
        // SAFETY: the operation is this test's.
        assert_eq!(unsafe { Arc::as_ptr(&*first.task_ptr()) }, task.as_ptr());
        assert_eq!(end(first), [second.as_ptr()]);
        assert_eq!(task.strong_count(), 0);
        assert_eq!(end(second), []);
    }
}

#[test]
fn debug_output_names_the_flags_and_the_counts() {
    let (a, b) = (Var::new(1), Var::new(2));
    let access = |op: Known| format!("{:?}", op.accesses()[0]);
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
    assert_eq!(format!("{:?}", reader.right()), format!("OpRef({:?})", reader.as_ptr()));
    assert_eq!(end(second), []);
    assert_eq!(access(second), "Access { mode: Read, read_ok: true, write_ok: false, done: true, has_next: true, .. }");
    assert_eq!(end(reader), [writer.as_ptr()]);
    assert_eq!(end(writer), [last.as_ptr()]);
    assert_eq!(end(last), []);
    assert_eq!(access(last), "Access { mode: Write, read_ok: true, write_ok: true, done: true, has_next: false, .. }");
}

#[test]
fn followers_are_what_conflicts_up_to_the_next_writer_of_each_variable() {
    let (a, b) = (Var::new(1), Var::new(2));
    let seen = |op: Known| {
        let mut seen = Vec::new();
        followers(&op, |op, access| seen.push((std::ptr::from_ref(op).cast_mut(), access.queue().id(), access.mode())));
        seen
    };
    let (first, _) = pushed(&[(&a, Write), (&b, Read)]);
    assert!(seen(first).is_empty(), "nothing stands behind it yet");
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
            // Of the other variable both are readers, so that only the writer counts.
            (writer.as_ptr(), 2, Overwrite),
        ],
    );
    assert_eq!(seen(writer), [(late.as_ptr(), 1, Read)]);
    for op in [first, reader, wait, writer, late] {
        end(op);
    }
}

#[test]
fn followers_end_after_a_few_and_may_have_ended_themselves() {
    let var = Var::new(1);
    let (first, _) = pushed(&[(&var, Read)]);
    // A reader beside the first one may be done before it.
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

#[test]
#[cfg_attr(raddle_unpooled, ignore = "every record comes from the heap")]
fn records_of_the_pool_hold_tasks_that_fit_behind_the_accesses() {
    use crate::memory::pool::fits;
    assert!(fits::<Op<u64>>());
    assert!(fits::<Op<[u64; 8]>>());
    assert!(fits::<Op<[u64; 20]>>());
    assert!(!fits::<Op<[u64; 21]>>(), "the record is too long");
}
