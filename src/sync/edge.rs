//! Every edge of raddle: the points at which one thread hands something to another, and what it hands over.
//!
//! An edge has a release side and an acquire side. Each side is a step of the protocol, mostly one place in the
//! sources, and takes its ordering from here: `release(edge::batch::PUSH)` is [`Ordering::Release`]. A fence is both
//! sides at once. A relaxed access hands nothing over; its comment says why that suffices. The module [`step`] lists
//! the steps of protocols that are not orderings, such as a second look at a queue.
//!
//! In an ordinary build, all of this is constant. In a build for models, the environment variable `RADDLE_WEAKENED`
//! names one side or step, such as `batch::PUSH`, and the process runs without it: the ordering is relaxed, the fence
//! or the step is left out. `loom-tests` runs models with each of them weakened, and requires that they fail. A side
//! that no model covers is declared with the reason.

use super::{
    Ordering,
    atomic::{AtomicU64, fence},
};

/// The release side of an edge.
#[derive(Clone, Copy)]
pub(crate) struct ReleaseSide(Switch);

/// The acquire side of an edge.
#[derive(Clone, Copy)]
pub(crate) struct AcquireSide(Switch);

/// A sequentially consistent fence: both sides of an edge.
#[derive(Clone, Copy)]
pub(crate) struct Fence(Switch);

/// A step of a protocol.
#[derive(Clone, Copy)]
pub(crate) struct Step(Switch);

/// The release side of an edge, in a device or in code of another crate.
#[derive(Clone, Copy)]
pub(crate) struct ForeignRelease(#[allow(dead_code, reason = "only declared")] Switch);

/// The ordering of a store, or of a change that takes nothing over.
#[inline(always)]
pub(crate) fn release(side: ReleaseSide) -> Ordering {
    if side.0.is_off() { Ordering::Relaxed } else { Ordering::Release }
}

/// The ordering of a load, or of a change that hands nothing over.
#[inline(always)]
pub(crate) fn acquire(side: AcquireSide) -> Ordering {
    if side.0.is_off() { Ordering::Relaxed } else { Ordering::Acquire }
}

/// The ordering of a change that hands something over and takes something over.
#[inline(always)]
pub(crate) fn acquire_release(taken: AcquireSide, handed: ReleaseSide) -> Ordering {
    match (taken.0.is_off(), handed.0.is_off()) {
        (false, false) => Ordering::AcqRel,
        (true, false) => Ordering::Release,
        (false, true) => Ordering::Acquire,
        (true, true) => Ordering::Relaxed,
    }
}

/// Acquires what happened before each releasing change of `counter`, up to the last change that the caller has made or
/// seen; the caller must have made or seen one. This is a fence, so only a caller that needs the ordering pays for it.
#[inline(always)]
pub(crate) fn acquire_all(side: AcquireSide, counter: &AtomicU64) {
    if side.0.is_off() {
        return;
    }
    // ThreadSanitizer does not follow fences. Every change of the counter is a read-modify-write and continues the
    // earlier ones, so an acquire load does the same.
    #[cfg(raddle_tsan)]
    counter.load(Ordering::Acquire);
    #[cfg(not(raddle_tsan))]
    {
        let _ = counter;
        fence(Ordering::Acquire);
    }
}

/// Executes a sequentially consistent fence.
#[inline(always)]
pub(crate) fn full_fence(side: Fence) {
    if !side.0.is_off() {
        fence(Ordering::SeqCst);
    }
}

/// Returns whether to leave out a step, which only a model does.
#[inline(always)]
pub(crate) fn removed(step: Step) -> bool {
    step.0.is_off()
}

/// Whether a process leaves out one side or step. In an ordinary build, it never does.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
#[derive(Clone, Copy)]
struct Switch;

#[cfg(not(any(raddle_loom, raddle_shuttle)))]
impl Switch {
    const fn new(_name: &'static str) -> Self {
        Self
    }

    #[inline(always)]
    const fn is_off(self) -> bool {
        false
    }
}

#[cfg(any(raddle_loom, raddle_shuttle))]
#[derive(Clone, Copy)]
struct Switch(&'static str);

#[cfg(any(raddle_loom, raddle_shuttle))]
impl Switch {
    const fn new(name: &'static str) -> Self {
        Self(name)
    }

    fn is_off(self) -> bool {
        static OFF: std::sync::LazyLock<Option<String>> =
            std::sync::LazyLock::new(|| std::env::var("RADDLE_WEAKENED").ok());
        OFF.as_deref() == Some(self.0)
    }
}

/// A declared side or step, for the tests that weaken it.
#[cfg(any(raddle_loom, raddle_shuttle))]
#[derive(Clone, Copy, Debug)]
pub struct Declaration {
    /// Its name, such as `batch::PUSH`.
    pub name: &'static str,
    /// Whether it is a step. If not, it is a side of an edge.
    pub is_step: bool,
    /// Why no model covers it.
    pub unmodelled: Option<&'static str>,
}

/// Whether an edge has both sides.
const fn has_both_sides(kinds: &[&str]) -> bool {
    let (mut releases, mut acquires, mut fences, mut steps, mut at) = (0, 0, 0, 0, 0);
    while at < kinds.len() {
        match kinds[at].as_bytes()[0] {
            b'A' => acquires += 1,
            b'S' => steps += 1,
            b'F' if kinds[at].len() == "Fence".len() => fences += 1,
            _ => releases += 1,
        }
        at += 1;
    }
    steps == kinds.len() || releases + fences > 0 && acquires + fences > 0 && kinds.len() > 1
}

macro_rules! edges {
    ($(
        $(#[doc = $what:literal])+
        $edge:ident {
            $($(#[doc = $place:literal])+ $kind:ident $side:ident $(unmodelled $reason:literal)?;)+
        }
    )+) => {
        $(
            $(#[doc = $what])+
            #[allow(dead_code, reason = "some builds lack the places of some sides")]
            pub(crate) mod $edge {
                use super::*;
                const _: () = assert!(has_both_sides(&[$(stringify!($kind)),+]), "an edge lacks a side");
                $(
                    $(#[doc = $place])+
                    pub(crate) const $side: $kind =
                        $kind(Switch::new(concat!(stringify!($edge), "::", stringify!($side))));
                )+
            }
        )+

        /// Every side of every edge, and every step.
        #[cfg(any(raddle_loom, raddle_shuttle))]
        pub const ALL: &[Declaration] = &[$($(Declaration {
            name: concat!(stringify!($edge), "::", stringify!($side)),
            is_step: matches!(stringify!($kind).as_bytes()[0], b'S'),
            unmodelled: edges!(@reason $($reason)?),
        },)+)+];
    };
    (@reason) => { None };
    (@reason $reason:literal) => { Some($reason) };
}

edges! {
    /// Tracker: a linked access, and its operation.
    link {
        /// `insert`: the exchange that links an access behind its predecessor.
        ReleaseSide LINKED;
        /// `unlink_behind`: the exchange that links an access past an unlinked one, whose operation's writes it also
        /// hands over.
        ReleaseSide UNLINKED;
        /// `insert`: the word of the access at the tail.
        AcquireSide TAIL;
        /// `unlink_behind`: the word of an access behind which others may be unlinked.
        AcquireSide UNLINKING;
        /// `add_flags`: the change that finds the next access.
        AcquireSide FLAGGED;
        /// `followers`: the word of each access behind an operation.
        AcquireSide FOLLOWERS;
        /// `Successors`: the word of each access behind one that is looked at.
        AcquireSide LOOKED_AT;
    }

    /// Tracker: the access at a tail, its deferred flags, and the writes published with the flags that were grantable
    /// when it was linked.
    swing {
        /// `insert`: the pusher or a helper moves the tail to the access that it has linked.
        ReleaseSide INSERTED;
        /// `swing`: a thread moves the tail on for another one.
        ReleaseSide HELPED;
        /// `advance_tail`: a completion moves the tail past an access that will be retired.
        ReleaseSide PASSED;
        /// `insert`: the tail.
        AcquireSide TAIL;
        /// `VarQueue::is_idle`: the tail.
        AcquireSide IDLE;
    }

    /// Tracker: the fact that an access is in its queue, and that the tail is past its predecessor.
    register {
        /// `Op::register`: the pusher or a helper counts an access.
        ReleaseSide COUNTED;
        /// The end of a push with one access.
        ReleaseSide SOLE;
        /// The end of a push with several accesses.
        ReleaseSide SEVERAL;
        /// `Op::is_past`: whether the access is counted.
        AcquireSide PAST;
    }

    /// Tracker: the writes of finished operations.
    complete {
        /// `add_flags`: the flags of an access, which also takes over what earlier operations have published.
        ReleaseSide FLAGGED;
        /// `Access::is_idle`: the word of the last access.
        AcquireSide IDLE;
        /// `unlink_behind`: the word of an access that may be unlinked.
        AcquireSide UNLINKING;
    }

    /// Tracker: the access from which completed readers are unlinked.
    front {
        /// `Front::give_back`.
        ReleaseSide GIVEN_BACK;
        /// `become_front`: for the thread that spends the access, which acquires the word of the access.
        ReleaseSide SET;
        /// `Front::take`.
        AcquireSide TAKEN;
    }

    /// Tracker: the writes of all predecessors of an operation that is ready.
    ready {
        /// A satisfied access is subtracted from what its operation waits for.
        ReleaseSide SATISFIED;
        /// The end of the push is subtracted.
        ReleaseSide PUSHED;
        /// A satisfaction that finds only its own part left.
        AcquireSide ALONE;
        /// A satisfaction that is the last one.
        AcquireSide LAST;
        /// The end of a push that is the last one.
        AcquireSide LAST_IN_PUSH;
    }

    /// Tracker: the fact that only pinned helpers still use a record.
    retire {
        /// A share of a record ends.
        ReleaseSide ENDED;
        /// A thread finds that only its own shares are left.
        AcquireSide ALONE;
        /// A thread has ended the last share.
        AcquireSide LAST;
        /// `OpRef::hold`: a share is added by a store if no other thread has one.
        AcquireSide HELD;
        /// The operation is left to its only access if no other thread holds it.
        AcquireSide UNHELD;
        /// `end_holder_apart`: a holder's share of a record ends.
        ReleaseSide HOLDER_ENDED;
        /// `end_holder_apart`: the last holder has ended its share.
        AcquireSide LEFT;
    }

    /// Tracker: a block of accesses, and the blocks' share of the record.
    blocks {
        /// `AccessBlock::end_share`: a share of a block ends.
        ReleaseSide ENDED;
        /// `AccessBlock::end_share`: a thread has ended the last share.
        AcquireSide LAST;
        /// `Apart::count_retired`: a block has been retired.
        ReleaseSide RETIRED;
        /// `Apart::count_retired`: a thread has retired the last block.
        AcquireSide NONE_LEFT;
    }

    /// Tracker: an operation that a worker has looked at and put back into its queue.
    look {
        /// `Queued::put_back`.
        ReleaseSide PUT_BACK;
        /// `Queued::take`.
        AcquireSide TAKEN;
    }

    /// An operation in a queue, and the writes before it, for a waiter that looks for it through its handle.
    publish {
        /// `WaitersPlace::publish`.
        ReleaseSide PUBLISHED;
        /// `Cancellable::claim_ready`.
        AcquireSide CLAIMED;
    }

    /// Memory: a list of free or retired records, its contents, and its word. If the records are retired, also the fact
    /// that no thread that is pinned from now on can reach them.
    batch {
        /// `BatchStack::push`.
        ReleaseSide PUSH;
        /// `BatchStack::pop`: the head.
        AcquireSide POP;
        /// `BatchStack::pop`: the head that another thread has stored meanwhile.
        AcquireSide RETRY;
        /// `BatchStack::retire_all`.
        AcquireSide ALL;
    }

    /// Memory: a record as it was when it was marked.
    marked {
        /// `marks::mark`.
        ReleaseSide MARKED;
        /// `Slabs::each_marked`.
        AcquireSide FOUND;
    }

    /// Memory: a new slab.
    slab {
        /// `Slabs::add`.
        ReleaseSide LISTED;
        /// `Slabs::newest`.
        AcquireSide REACHED;
    }

    /// Memory: a spare record, and what its users did with it.
    spare {
        /// `Slabs::give_back`.
        ReleaseSide GIVEN;
        /// `Slabs::take_from`.
        AcquireSide TAKEN;
        /// `Slabs::free_if_spare`: a slab that has only spare records.
        AcquireSide ALL;
        /// `Slabs::vacate`.
        AcquireSide VACATED;
    }

    /// A value added to a list of arrivals.
    arrival {
        /// `Arrivals::add`.
        ReleaseSide ADDED;
        /// `Arrivals::take`.
        AcquireSide TAKEN;
    }

    /// Memory: the last value of a sequence, and the fact that no reader looks at a replaced one.
    latest {
        /// `Latest::replace`: the exchange of the pointer.
        ReleaseSide STORED;
        /// `Latest::load`: the pointer.
        AcquireSide LOADED;
        /// `Latest::load`: a reader that has its share is no longer counted.
        ReleaseSide SHARED unmodelled "loom changes counts of shares in the order of its schedule";
        /// `Latest::replace`: the number of readers.
        AcquireSide NO_READER unmodelled "loom changes counts of shares in the order of its schedule";
        /// `Latest::load`, after the reader is counted, and before the pointer is loaded again.
        Fence READ;
        /// `Latest::replace`, after the exchange.
        Fence REPLACE;
    }

    /// A value that each process makes for itself.
    made {
        /// `PerProcess::make`: the exchange.
        ReleaseSide MADE unmodelled "models have no statics";
        /// `PerProcess::get`.
        AcquireSide GOT unmodelled "models have no statics";
        /// `PerProcess::make`: the value of a thread that was faster.
        AcquireSide LOST unmodelled "models have no statics";
    }

    /// Scheduler: an operation in an injector.
    inject {
        /// The exchange that puts an operation into the inbox.
        ReleaseSide INBOX;
        /// The exchange that publishes the rest of a chain.
        ReleaseSide CHAIN;
        /// A popper takes the inbox.
        AcquireSide TAKEN;
        /// A popper reads the first operation of the chain.
        AcquireSide FIRST;
        /// A popper reads the first operation again, since another one was faster.
        AcquireSide RETRY;
    }

    /// Scheduler: the fact that a band of an injector is not empty.
    mask {
        /// A push sets the bit of its band.
        ReleaseSide SET;
        /// A popper clears the bit before it checks the band again.
        AcquireSide CLEARED;
    }

    /// Scheduler: either a notifier sees that a worker is about to sleep, or the worker sees the notifier's work
    /// (`scheduler/README.md`).
    sleep {
        /// `NotifyFence`: `Sleep::notify`, after work became visible.
        Fence NOTIFY;
        /// `NotifyFence`: `Sleep::wake_all`, after the end of the lane became visible.
        Fence NOTIFY_ALL;
        /// `SleepFence`: `Sleep::announce`, before the last search.
        Fence ANNOUNCE;
        /// `SearchFence`: `Sleep::stop_search`, before the last searcher checks for more work.
        Fence STOP_SEARCH;
        /// `Sleep::stop_search`: the retraction of a worker, for a notifier whose fence comes after that of the
        /// searcher that stops last.
        ReleaseSide SEARCH_OVER;
    }

    /// Scheduler: the handle of the thread that runs a worker.
    thread {
        /// `Sleep::set_thread`.
        ReleaseSide SET;
        /// `Sleep::thread_of`.
        AcquireSide NOTIFIED;
    }

    /// Scheduler: what was done before a lane ended.
    ended {
        /// `Lane::end`.
        ReleaseSide END;
        /// `Lane::has_ended`.
        AcquireSide SEEN;
    }

    /// Scheduler: either a function that borrows a place sees that a worker is busy, or the worker sees the loan.
    lent {
        /// `Loans::borrow`, before it looks for an idle worker.
        Fence BORROW;
        /// `Loans::stay_idle`, before a worker counts as busy again.
        Fence STAY;
    }

    /// Scheduler: the queues are checked before the counts of finds.
    idle {
        /// `Lane::idle_since`.
        Fence SNAPSHOT unmodelled "a guess: pops release nothing, so it may miss an operation even with the fence";
        /// A worker counts its find before it takes an operation away, which is an exchange.
        ForeignRelease FOUND unmodelled "the exchanges of crossbeam-deque";
    }

    /// Count of pending operations: what the operations did.
    leave {
        /// An operation is counted out.
        ReleaseSide LEFT;
        /// An operation is counted out of a closed generation.
        ReleaseSide REST;
        /// The same, if a thread waits for room.
        ReleaseSide REST_WATCHED;
        /// A generation is armed.
        AcquireSide ARMED;
        /// The thread that closes a generation finds that nothing is left in it.
        AcquireSide COMPUTED;
        /// The last operation of a closed generation leaves.
        AcquireSide LAST;
        /// The same, if a thread waits for room.
        AcquireSide LAST_WATCHED;
        /// A count of what is pending.
        AcquireSide COUNTED;
    }

    /// Count of pending operations: the words of a new generation, and what happened before it was opened.
    open {
        /// The count of entries.
        ReleaseSide ENTERED;
        /// The number of the current generation.
        ReleaseSide CURRENT;
        /// `PendingOps::enter`: the number.
        AcquireSide ENTER;
        /// `PendingOps::enter_chunk`: the number.
        AcquireSide ENTER_CHUNK;
        /// An operation is counted in.
        AcquireSide COUNTED;
    }

    /// Count of pending operations: the generation that took the place of a closed one.
    close {
        /// The change that closes a generation.
        ReleaseSide CLOSED;
        /// An entry that finds its generation closed.
        AcquireSide FOUND;
    }

    /// Asynchronous operations: the error of the function, and the resolution.
    resolve {
        /// `AsyncState::fail`: the function's error.
        ReleaseSide FAILED;
        /// `AsyncState::resolve`: the resolution.
        ReleaseSide RESOLVED;
        /// `AsyncState::resolve`: the function's error.
        AcquireSide FAILURE;
        /// `AsyncState::fail`: the resolution.
        AcquireSide RESOLUTION;
        /// `AsyncState::is_resolved`: the resolution.
        AcquireSide SEEN;
    }

    /// Families: what was done in the other parts of a parent's work.
    part {
        /// A part ends.
        ReleaseSide ENDED;
        /// The last part ends.
        AcquireSide LAST;
    }

    /// Families: what the children did.
    child {
        /// A child ends.
        ReleaseSide ENDED;
        /// The last share of the family ends.
        AcquireSide LAST;
    }

    /// Futures: the future between two polls, and what a thread did before it woke the future.
    poll {
        /// `PollState::wake`.
        ReleaseSide WAKE;
        /// `PollState::pause`: the end of a poll.
        ReleaseSide PAUSE;
        /// `PollState::finish`: the end of the last poll.
        ReleaseSide END;
        /// `PollState::begin`.
        AcquireSide BEGIN;
        /// `PollState::look`: the owner of the last waker.
        AcquireSide LOOK;
    }

    /// Guards: the uses of the variables through all guards of an operation.
    guards {
        /// A guard is dropped.
        ReleaseSide DROPPED;
        /// The last guard is dropped.
        AcquireSide LAST;
    }

    /// Variables: the effects of the counted mutations.
    version {
        /// `VarCell::mutated`.
        ReleaseSide MUTATED;
        /// `VarCell::mutated_on_device`.
        ReleaseSide ON_DEVICE;
        /// `VarCell::version`.
        AcquireSide READ;
    }

    /// Variables: their uses through all handles.
    handles {
        /// A handle is dropped.
        ReleaseSide DROPPED;
        /// The last handle is dropped.
        AcquireSide LAST;
    }

    /// Engines: their uses through all handles, so that none of these sees the phase of the shutdown.
    open_handles {
        /// A handle is dropped.
        ReleaseSide DROPPED unmodelled "without it, a store from the future is loaded, which models do not explore";
        /// The last handle is dropped.
        AcquireSide LAST unmodelled "without it, a store from the future is loaded, which models do not explore";
    }

    /// Cancellation: the drop of a cancelled operation's function.
    cleared {
        /// `Cancellable::clear`.
        ReleaseSide CLEARED;
        /// `Cancellable::abandon`.
        AcquireSide ABANDONED;
    }

    /// Conflation: the value that a run receives.
    newest {
        /// `ValueCell::replace`: another value.
        ReleaseSide REPLACED;
        /// `ValueCell::take`.
        AcquireSide TAKEN;
    }

    /// Conflation: the places of the runs that have entered, before which no run lands whose push begins later.
    entered {
        /// `Entering::count`.
        ReleaseSide ENDED;
        /// `Conflation::begin`.
        AcquireSide BEGUN;
    }

    /// Forks: an engine in the list of all engines.
    slot {
        /// `Slots::add`: a slot that is used again.
        ReleaseSide REUSED;
        /// `Slots::add`: a new slot.
        ReleaseSide NEW;
        /// `Slots::slots`: the list.
        AcquireSide LIST;
        /// `Slots::each`: a slot.
        AcquireSide EACH;
    }

    /// Forks: the registration of the handler.
    handler {
        /// The handler is registered.
        ReleaseSide REGISTERED unmodelled "models have no statics";
        /// Whether it is.
        AcquireSide FOUND unmodelled "models have no statics";
    }

    /// GPU lanes: what the device wrote, and what the lane recorded about the operations.
    passed {
        /// `Timeline::complete`.
        ReleaseSide COMPLETE;
        /// `Timeline::is_complete`.
        AcquireSide SEEN;
    }

    /// Simulated GPUs: what the commands before an event did.
    event {
        /// The device reaches the event.
        ReleaseSide REACHED;
        /// A stream or a lane sees that it has.
        AcquireSide SEEN;
    }

    /// CUDA: what the commands before a mark have written.
    mark {
        /// The device's own fence before it writes a mark.
        ForeignRelease WRITTEN unmodelled "a device, which models do not have";
        /// The word to which a stream writes its marks.
        AcquireSide PASSED unmodelled "a device, which models do not have";
        /// The same, at the end of the stream.
        AcquireSide LAST unmodelled "a device, which models do not have";
    }

    /// Recorder: the call that a thread is in.
    running {
        /// A call begins.
        ReleaseSide BEGUN unmodelled "no model has a recorder";
        /// Its start is in the ring, or lost.
        ReleaseSide WRITTEN unmodelled "no model has a recorder";
        /// A reader looks for the call.
        AcquireSide FOUND unmodelled "no model has a recorder";
    }

    /// Recorder: the last events of a thread.
    written {
        /// The thread's writer is dropped.
        ReleaseSide LAST unmodelled "no model has a recorder";
        /// A reader finds that the writer is gone.
        AcquireSide SEEN unmodelled "no model has a recorder";
    }

    /// Commuting operations: what the operations before have done to the variable, and the operations that wait.
    turn {
        /// `VarTurn::leave`: the turn becomes free.
        ReleaseSide LEFT;
        /// `VarTurn::arrive`: an operation waits, with the turns that it keeps.
        ReleaseSide ARRIVED;
        /// `VarTurn::take`: the turn was free.
        AcquireSide TAKEN;
        /// `VarTurn::leave`: the operations that have arrived are listed.
        AcquireSide LISTED;
        /// `VarTurn::each_waiting_for`: those that have arrived.
        AcquireSide LOOKED_AT;
        /// `VarCell::commuting`: a variable's turn is made.
        ReleaseSide MADE unmodelled "as for a `OnceLock`, for which the variable has no room";
        /// `VarCell::commuting`: it was made before.
        AcquireSide FOUND unmodelled "as for a `OnceLock`, for which the variable has no room";
    }

    /// Steps whose models have two or three threads.
    step {
        /// `epoch::pin`: a thread is pinned while it uses what other threads may retire.
        Step PIN;
        /// `Guard::retire`: a retired object is reclaimed only after the epoch has passed.
        Step RETIRE;
        /// `tracker::insert` appends an access behind another operation only once that operation is in all its queues.
        Step HELP_BEFORE_APPEND;
        /// `tracker::insert` reads `unregistered` again after it has read the tail and the word of the access there.
        Step REREAD_REGISTERED;
        /// A completion moves the tail past an access before the access is retired.
        Step TAIL_PAST_RETIRED;
        /// `apart::leave` marks the accesses as gone before it retires them.
        Step LEFT_BEFORE_RETIRED;
        /// An access is unlinked only from behind one that is done.
        Step UNLINK_BEHIND_DONE;
        /// Only one thread at a time unlinks accesses of a variable.
        Step FRONT_HAS_ONE_USER;
        /// An access is removed from its queue's front before it is retired.
        Step FRONT_IS_LEFT;
        /// `become_front` removes an access that was spent before.
        Step FRONT_IS_CHECKED;
        /// An access that commutes passes `READ_OK` on only to others that commute, and one that reads does not pass it
        /// on to these (`Mode::passes_to`).
        Step RUNS_END;
        /// `VarTurn::arrive`: an operation waits only for a turn that is taken.
        Step ARRIVES_AT_HELD;
        /// `VarTurn::leave` notes that operations are listed.
        Step LISTED_IS_NOTED;
        /// An operation that waits for a turn has given back its others, until it keeps them in order (`turn::seek`).
        Step WAITS_WITHOUT_TURNS;
        /// A completion that grants `READ_OK` to a reader also grants it to the next reader.
        Step READERS_PASS_ON;
        /// The record in which a list of retired records is begun is free (`records::put_on_next`).
        Step LISTS_ARE_FREE;
        /// The record of an empty list that cannot be taken itself is retired (`Cache::take_list`).
        Step LISTS_ARE_RETIRED;
        /// `Worker::search` searches once more after it has announced itself.
        Step SEARCH_AGAIN_BEFORE_PARK;
        /// GPU lanes take turns reading and changing the failures of variables, and so do threads that look
        /// (`FaultLock`).
        Step LANES_TAKE_TURNS;
        /// Work issued on an included stream comes after work issued earlier on the lane's stream.
        Step INCLUDED_COMES_AFTER;
        /// Work issued on the lane's stream comes after work issued earlier on an included one.
        Step INCLUDED_COMES_BEFORE;
        /// An operation enters a lane of several workers only once (asserted in `Lane::inject`).
        Step ENTERS_ONCE;
        /// A timed park ends without a wake-up.
        Step TIMED_PARK_ENDS;
        /// `Sleep::retract` clears the bit that marks the worker's park as timed.
        Step RETRACT_TIMED_PARK;
        /// A dropped `Completion` completes its operation.
        Step DROP_COMPLETES;
        /// A `Completion` that has no gate and is dropped without a panic completes its operation immediately, even
        /// inside the operation's own function (`frame::leave_lost`).
        Step DROP_ENDS_AT_ONCE;
        /// A spare thread that has timed out checks whether it has meanwhile been offered a worker.
        Step SPARES_CHECK_AGAIN;
        /// The background end of an engine checks again once the operations that were pending have been counted out
        /// (`PendingOps::poll_idle`).
        Step END_CHECKS_AGAIN;
        /// When the last operation of a closed generation leaves, the threads and futures whose waits are over are
        /// notified (`PendingOps::finish`).
        Step LEAVE_NOTIFIES;
        /// A function that waits while the engine stops takes the workers that are aside, so that they run again
        /// (`Aside::function_waits`).
        Step WAITS_TAKE_UP;
        /// The return of a lent place wakes the workers that stay idle for it (`Loans::give_back`).
        Step GIVE_BACK_NOTIFIES;
        /// The end of a scope waits again if operations have entered meanwhile (`PendingOps::wait_until_idle`).
        Step IDLE_WAITS_AGAIN;
        /// `Access::stands_for_the_next` checks whether an access is behind the wait that would be joined.
        Step JOIN_ONLY_THE_LAST;
        /// `Access::stands_for_the_next` checks whether the wait that would be joined is in its queue.
        Step JOIN_WHAT_IS_IN;
        /// `PollState::pause` sees the wakes that occurred during the poll.
        Step PAUSE_SEES_WAKES;
        /// `PollState::wake` queues no poll while one is under way.
        Step ONE_POLL_AT_A_TIME;
        /// `Claim::cancel` does not cancel an operation that has started.
        Step CLAIM_ONCE;
        /// The turn of a cancelled operation and the end of its scope agree on which of them counts it out
        /// (`Claim::settle`).
        Step SETTLE_ONCE;
        /// A waiter takes an operation only from an entry that no worker has popped (`OpRef::take`).
        Step TAKE_QUEUED;
        /// No waiter takes an operation from an entry while a worker inspects the operation (`OpRef::look_at_entry`).
        Step LOOK_POPS;
        /// A parent's work holds a share of the family until the children have entered their queues
        /// (`FamilyCount::new`).
        Step WORK_HAS_A_SHARE;
        /// Children are released only when every part of their parent's work has ended (`FamilyCount::end_part`).
        Step EVERY_PART_COUNTS;
        /// No child is pushed once its parent's work has ended (`FamilyCount::admit`).
        Step ADMIT_WHILE_WORKING;
        /// A thread or future that waits for room watches the count before it counts again (`PendingOps::watch`).
        Step WATCH_FOR_ROOM;
        /// A wait for room that ends lets the next one check (`PendingOps::end_room`).
        Step PASS_ROOM_ON;
        /// A scope counts out a cancelled operation only once its function has been dropped (`Cancellable::abandon`).
        Step DROP_BEFORE_END;
        /// An operation is counted in the groups around its own (`Group::enter`).
        Step COUNT_IN_EVERY_GROUP;
        /// A call that ignores a group's failures does not overtake one on its way outwards (`GroupCore::keep`).
        Step FAILURES_STAY_IN_TURN;
        /// `tracker::push` helps the operation in its way instead of waiting for that operation's pusher.
        Step HELPS;
        /// `tracker::insert`: a helper defers the flags of the access that it has linked.
        Step HELPER_DEFERS;
        /// `tracker::swing`: a thread that moves the tail for another one defers the flags of the access there.
        Step SWING_DEFERS;
        /// `advance_tail`: a completion that moves the tail defers the flags of the access there.
        Step COMPLETION_DEFERS;
        /// `end_push`: the pusher adopts deferred flags.
        Step DEFERRED_ADOPTED;
        /// `tracker::insert`: a thread that finds an access at the tail counts it as registered.
        Step REGISTERED_AT_TAIL;
        /// `propagate_from_reader`: a satisfaction is counted only once the next access has its flags.
        Step SATISFIED_LATE;
        /// `tracker::insert` looks whether the variable is closed.
        Step CLOSED_CHECKED;
        /// `OpRef::hold`: a share is added by a store only if no other thread has one.
        Step ALONE_WHEN_SHARING;
        /// An operation is left to its only access only if no other thread holds it.
        Step ALONE_WHEN_LEFT;
        /// A popper that clears the bit of a band looks at the band once more.
        Step BAND_CHECKED_AGAIN;
        /// A popper that publishes the rest of a chain sets the bit of its band.
        Step REST_MARKED;
        /// `Worker::search`: a worker that has announced itself looks again whether its lane ends.
        Step END_CHECKED_AGAIN;
        /// `Worker::search`: the last searcher looks whether there is more work.
        Step LAST_SEARCHER_CHECKS;
        /// `Worker::steal`: a worker that has stolen several operations notifies another worker.
        Step STEAL_NOTIFIES;
        /// `Worker::next_in_slot`: a worker notifies another one of successors before it runs the first.
        Step SUCCESSORS_NOTIFY;
        /// `Worker::share_slot`: a worker that shares its slot notifies another worker.
        Step SHARED_SLOT_NOTIFIES;
        /// `Worker::take`: a waiter that puts entries back notifies a worker.
        Step PUT_BACK_NOTIFIES;
        /// `PendingOps::enter`: a closed generation takes no entries.
        Step CLOSED_REFUSES;
        /// `PendingOps`: a new generation is watched if one waits for room.
        Step NEXT_WATCHED;
        /// A future that waits for room counts again once the watch has begun.
        Step WATCH_LOOKS_AGAIN;
        /// `Oneshot::set` wakes the threads that wait for the result.
        Step RESULT_WAKES_THREADS;
        /// A push that has been counted looks at the phase of the engine.
        Step PHASE_REFUSES;
        /// A future that has registered to wait for room looks whether the engine is still open.
        Step ROOM_LOOKS_FOR_SHUTDOWN;
        /// `Aside`: a worker is not laid aside while a function waits.
        Step WAITING_KEEPS_WORKERS;
        /// `Aside`: a start ends the wait of a stop.
        Step START_ENDS_STOP;
        /// `Claim::start`: a cancelled operation does not start.
        Step CANCELLED_DOES_NOT_START;
        /// `Stock::enter` decides under the lock whether there are units.
        Step UNITS_LOOK_UNDER_LOCK;
        /// `Stock::enter` asks under the lock whether the operation was cancelled.
        Step UNITS_LOOK_FOR_CANCEL;
        /// `Cancellable::claim_ready`: a waiter claims the operation that it takes.
        Step TAKE_CLAIMS;
        /// `StopSignal::listen`: a listener that comes after the signal was given learns that it comes too late.
        Step SIGNAL_STAYS_GIVEN;
        /// `StopSource::signal`: the signal of what was cancelled before is given.
        Step LATE_SIGNAL_IS_GIVEN;
        /// `Listed::renew`: a run is not listed any longer once another run has entered that may lie behind it.
        Step LATER_RUNS_VOID;
        /// `Cancellable::forgo`: the value of a cancelled run is closed before anyone can see the cancellation.
        Step FORGO_BEFORE_TELLING;
    }

    /// Steps whose models have whole engines.
    engine_step {
        /// `Worker::pop_injector`: a worker that takes a batch notifies another worker.
        Step BATCH_NOTIFIES;
        /// A CPU operation waits for no device once it has entered its lane (`Core::schedule_beside_gpus`).
        Step END_WAITING_FOR_DEVICES;
        /// Operations that became ready are scheduled before the program is notified (`Core::defer_epilogue`,
        /// `run::execute_plainly_with`).
        Step SCHEDULE_THEN_NOTIFY;
        /// The thread of a GPU lane wakes futures itself once the engine is closed (`Core::wake`).
        Step WAKE_HERE_ONCE_CLOSED;
        /// A shutdown closes the engine when nothing is pending, and waits again (`Core::drain`).
        Step CLOSE_AND_WAIT_AGAIN;
        /// A worker records that it is no longer idle before it looks for work again (`Sleep::note_busy`).
        Step NOTE_BUSY;
    }
}
