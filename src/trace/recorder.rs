//! The recorder: a ring of events for each thread, and the code that reads the rings.
//!
//! # Who may touch what
//!
//! * The writing end of a ring: its owning thread, in a thread-local; see `per_thread.rs`.
//! * The reading ends and the histories not yet taken: the holder of the lock.
//!
//! A writing thread waits for no lock and allocates nothing, except that its first event creates its ring, which the
//! next reader finds among the arrivals, or takes over that of a thread that has ended: so there are as many rings as
//! there have been threads at a time, until the next reading frees most of those that are idle. If the ring is full, or
//! there is no memory for one, the event is only counted.
//!
//! The names of variables and the list of engines have locks of their own, held for moments.
//!
//! The start of a function is not written by itself if the next event on its thread is the end of the operation: one
//! event then holds both. Until then, a reader finds the start beside the ring.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use rtrb::{Consumer, RingBuffer};

use raddle_trace::{
    OpId, OpStats, Outcome, Trace, VarId,
    recording::{
        self, AccessWord, EngineInfo, Event, Export, History, MAX_ACCESSES, PlaceWord, PushHead, RingSlot, Short,
        VarNames, What,
    },
};

use super::{
    per_thread,
    writers::{IdleRings, RingShared, Writer},
};
use crate::{
    scheduler::priority_of,
    sync::{Mutex, MutexGuard, arrivals::Arrivals, lock, process::ProcessMark, try_lock},
    system::clock::TraceClock,
    values::Name,
};

/// The default number of slots in a ring: 2 MiB per thread. Not tuned: enough for some 16,000 operations on each
/// thread.
const SLOTS: usize = 1 << 16;

/// The minimum number of slots in a ring.
const MIN_SLOTS: usize = 16;

/// The maximum number of slots in a ring: 1 GiB per thread.
const MAX_SLOTS: usize = 1 << 25;

/// The number of slots of each ring that a profile reads at a time, so that what is to be written takes a few megabytes
/// even if the rings are full. Not tuned.
const EXPORTED_SLOTS: usize = 1 << 13;

/// The number of idle rings that a reading keeps. Not tuned: as many as threads may come and go between two readings of
/// a profile.
const IDLE_RINGS: usize = 8;

/// The number of bits of an operation's number that identify the ring of the thread that pushed it; the bits above hold
/// the time. A recorder's engines are expected to have fewer threads at a time than these bits can distinguish.
const THREAD_BITS: u32 = 12;
const MAX_THREADS: usize = 1 << THREAD_BITS;

/// The number shared by all threads that arrive when every other number is taken. Their events are lost.
const NO_NUMBER: u16 = (MAX_THREADS - 1) as u16;

/// The minimum time between two searches by a profile for operations whose ends were lost. Not tuned, but should not be
/// small: a search visits every record.
const SEARCH_INTERVAL: Duration = Duration::from_millis(200);

/// An engine as seen by its recorder.
pub(crate) trait RecordedEngine: Send + Sync {
    /// Calls `found` with each pending operation.
    fn each_pending(&self, found: &mut dyn FnMut(OpId));
}

/// The time in an operation's number is in units of `1 << TICKS_BITS` ticks, which is less time than a push takes.
const TICKS_BITS: u32 = 4;

/// A recorder of what an engine does: each push, start and end of an operation, and more; see [`Trace`].
///
/// An engine receives a recorder when it is [built](crate::EngineBuilder::recorder). Several engines may share one.
/// Clones are handles to the same recorder.
///
/// Each thread writes to its own ring and never waits for another thread; its first event allocates the ring, or takes
/// over that of a thread that has ended. Events that do not fit into a full ring are lost; the trace states [how
/// many](Trace::lost). So are those of a thread for whose ring there is no memory, and, once 256 MiB of operations that
/// have ended wait for the program to take them, operations that end later. A long-running program should take the
/// trace periodically, or let [`EngineBuilder::profile`](crate::EngineBuilder::profile) write it to a file.
///
/// Times are read from the processor's time stamp counter, unless Linux has found it to be unusable. If the counter is
/// set back, as some machines do when they are suspended, the recorder's clock stands still until the counter has
/// reached its old value. A new recorder has a new clock.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::{Engine, trace::Recorder};
///
/// let recorder = Recorder::new();
/// let engine = Engine::builder().workers(2).recorder(&recorder).build()?;
/// let image = engine.var(vec![0u8; 64]).named("image");
/// engine.op("load").push(image.write(), |image| image.fill(7))?;
/// engine.op("sum").push(image.read(), |image| assert_eq!(image.iter().map(|&pixel| u32::from(pixel)).sum::<u32>(), 448))?;
/// engine.wait_for_all()?;
///
/// let trace = recorder.take();
/// let sum = trace.ops().iter().find(|op| op.name == "sum".into()).unwrap();
/// println!("`sum` waited for {:?} and ran for {:?}", sum.waited().unwrap(), sum.ran());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Recorder {
    shared: Arc<RecorderShared>,
}

/// The state shared by a recorder's clones.
struct RecorderShared {
    /// The number by which threads find their rings.
    number: u64,
    /// The process whose threads may hold the locks.
    process: ProcessMark,
    slots: usize,
    clock: TraceClock,
    /// The number of rings that have received a new number.
    numbers: AtomicUsize,
    idle: Arc<Mutex<IdleRings>>,
    /// The threads whose first events came after the last reading.
    arrivals: Arrivals<Arrival>,
    state: Mutex<RecorderState>,
    /// Locked after `state`, if at the same time. No engine is dropped under the lock.
    engines: Mutex<Vec<(u16, Weak<dyn RecordedEngine>)>>,
    /// Locked after `state`, if at the same time.
    names: Mutex<VarNames>,
    /// The number of the last operation pushed by a thread without a number.
    last_op: AtomicU64,
    /// The number of events on threads that are ending and no longer have a ring.
    unheard: AtomicU64,
}

impl fmt::Debug for RecorderShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecorderShared")
            .field("number", &self.number)
            .field("slots", &self.slots)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct RecorderState {
    rings: Vec<Ring>,
    history: History,
    /// Events that were read but may have come after others not yet read.
    held: Vec<(u16, Event)>,
    /// When the last search for operations whose ends were lost began.
    searched: Option<Instant>,
}

/// The reading end of a ring.
#[derive(Debug)]
struct Ring {
    slots: Consumer<RingSlot>,
    number: u16,
    shared: Arc<RingShared>,
}

/// A thread that has made its ring.
#[derive(Debug)]
struct Arrival {
    name: Option<String>,
    ring: Ring,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder {
    /// Returns a recorder with 2 MiB for each thread: enough for some 16,000 operations pushed and run by the thread.
    #[must_use]
    pub fn new() -> Self {
        Self::with_slots(SLOTS)
    }

    /// Returns a recorder with room for `bytes` of events on each thread, of which 1 GiB is the maximum. A thread for
    /// which there is less memory gets a smaller ring.
    ///
    /// A push takes 64 bytes, and 32 more for every four accesses beyond the first two. Without a name, a property, a
    /// handle and a group, it takes 32 bytes with one access and 64 bytes with two to four, provided that the engine
    /// has workers, and neither GPUs, a limit nor observers, and does not shuffle. The other events of an operation
    /// take 32 bytes each. Most operations have one or two: one if they become ready after their push, and one for the
    /// run, from the call of the function until the end. A function adds one event if it pushes or ends another
    /// operation, two if it returns before its operation ends, and, if it waits, one and two more for each wait.
    ///
    /// ```
    /// let recorder = raddle::trace::Recorder::with_capacity(64 << 20); // for long runs
    /// # drop(recorder);
    /// ```
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self::with_slots((bytes / size_of::<RingSlot>()).clamp(MIN_SLOTS, MAX_SLOTS))
    }

    fn with_slots(slots: usize) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: the numbers need only be distinct.
        let number = NEXT.fetch_add(1, Relaxed);
        Self {
            shared: Arc::new(RecorderShared {
                number,
                process: ProcessMark::current(),
                slots,
                clock: TraceClock::new(),
                numbers: AtomicUsize::new(0),
                idle: Arc::default(),
                arrivals: Arrivals::default(),
                state: Mutex::default(),
                engines: Mutex::default(),
                names: Mutex::default(),
                last_op: AtomicU64::new(0),
                unheard: AtomicU64::new(0),
            }),
        }
    }

    /// Takes the trace of everything since the last call or the recorder's creation. Operations that are not
    /// [over](raddle_trace::TracedOp::is_over) appear in this trace with their events so far, and in full in a later
    /// trace.
    ///
    /// This may be called at any time, even while operations run. The first call on a recorder younger than 10 ms
    /// sleeps until the recorder is that old, to measure the rate of the processor's clock.
    ///
    /// In a forked child, the trace of its parent's recorder is empty.
    #[must_use]
    pub fn take(&self) -> Trace {
        if self.is_foreign() {
            return History::default().take(|_| true);
        }
        let mut state = self.read(Duration::ZERO);
        state.history.is_kept = true;
        let mut trace = state.history.take(self.is_open());
        drop(state);
        lock(&self.shared.names).complete(&mut trace);
        trace
    }

    /// Reads the rings, and forgets operations whose ends were lost unless that was done less than `interval` ago.
    fn read(&self, interval: Duration) -> MutexGuard<'_, RecorderState> {
        self.read_some(interval, usize::MAX).0
    }

    /// Like [`read`](Self::read), but reads about `limit` slots of each ring at most. Also returns whether more were
    /// there.
    fn read_some(&self, interval: Duration, limit: usize) -> (MutexGuard<'_, RecorderState>, bool) {
        let pending = self.pending_after_losses(interval);
        let mut state = lock(&self.shared.state);
        let has_more = state.read(&self.shared, limit);
        if let Some((pending, searched)) = pending {
            state.history.forget_others(&pending, searched);
        }
        state.history.forget_variables(&[]);
        (state, has_more)
    }

    /// Returns a function that returns whether the engine with a number still exists.
    fn is_open(&self) -> impl Fn(u16) -> bool + use<> {
        let mut engines = lock(&self.shared.engines);
        engines.retain(|(_, engine)| engine.strong_count() > 0);
        let open: HashSet<u16> = engines.iter().map(|(number, _)| *number).collect();
        move |number| open.contains(&number)
    }

    /// Whether this is a forked child of the process that made the recorder. The child must not take its locks.
    pub(crate) fn is_foreign(&self) -> bool {
        self.shared.process.is_foreign()
    }

    /// If events were lost, searches the recorder's engines for pending operations and returns these with the time of
    /// the search: operations whose ends were lost would otherwise appear to be pending forever. Does nothing if the
    /// last search began less than `interval` ago.
    fn pending_after_losses(&self, interval: Duration) -> Option<(HashSet<OpId>, Duration)> {
        let mut state = lock(&self.shared.state);
        let is_due = state.searched.is_none_or(|searched| searched.elapsed() >= interval);
        if !state.history.has_losses || !is_due {
            return None;
        }
        state.searched = Some(Instant::now());
        drop(state);
        // An engine whose last reference is dropped here does not find the lock held.
        let engines: Vec<Arc<dyn RecordedEngine>> =
            lock(&self.shared.engines).iter().filter_map(|(_, engine)| engine.upgrade()).collect();
        let now = self.shared.clock.time(self.shared.clock.now());
        let mut pending = HashSet::new();
        engines.iter().for_each(|engine| engine.each_pending(&mut |op| _ = pending.insert(op)));
        Some((pending, now))
    }

    /// Starts keeping recorded operations until [`export`](Self::export) returns them. Each call must be followed by
    /// one to [`end_export`](Self::end_export).
    pub(super) fn begin_export(&self) {
        lock(&self.shared.state).history.begin_export();
    }

    /// Stops keeping recorded operations for [`export`](Self::export), unless another profile is being written.
    pub(super) fn end_export(&self) {
        lock(&self.shared.state).history.end_export();
    }

    /// Returns what a profile has to write next, and whether there is more by now.
    pub(super) fn export(&self) -> (Export, bool) {
        let (mut state, has_more) = self.read_some(SEARCH_INTERVAL, EXPORTED_SLOTS);
        let mut export = state.history.export(self.is_open());
        drop(state);
        lock(&self.shared.names).complete(&mut export.trace);
        (export, has_more)
    }

    /// Returns the operations that are not over, for the end of a profile.
    pub(super) fn unfinished(&self) -> Trace {
        let mut trace = lock(&self.shared.state).history.unfinished();
        lock(&self.shared.names).complete(&mut trace);
        trace
    }

    /// Returns the statistics of all operations that have ended since the recorder's creation, and the number of events
    /// lost since then.
    pub(crate) fn stats(&self) -> (Vec<OpStats>, u64) {
        let state = self.read(SEARCH_INTERVAL);
        (state.history.stats.sorted(), state.history.all_lost)
    }

    /// Returns the operations whose functions are running, and where.
    pub(crate) fn running(&self) -> HashMap<OpId, String> {
        self.read(SEARCH_INTERVAL).history.running()
    }

    /// Returns a number that changes whenever a function is called, except by chance.
    pub(crate) fn starts(&self) -> u64 {
        let mut state = lock(&self.shared.state);
        state.take_arrivals(&self.shared);
        let started = state.rings.iter().map(|ring| ring.shared.last_started());
        // The factor is odd and otherwise arbitrary, so that a change of several numbers rarely leaves the sum.
        started.fold(0, |sum, op| sum.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(op))
    }

    /// Returns the time since an operation was pushed.
    pub(crate) fn age(&self, op: OpId) -> Duration {
        self.shared.clock.time(self.shared.clock.now().saturating_sub(ticks_of(op)))
    }

    /// Makes the recorder keep operations for the program to take, even while a profile is written.
    pub(crate) fn keep(&self) {
        lock(&self.shared.state).history.is_kept = true;
    }

    /// Adds an engine, whose events carry its number.
    pub(crate) fn add_engine(&self, info: EngineInfo, engine: Weak<dyn RecordedEngine>) {
        let (number, is_open) = (info.number, self.is_open());
        lock(&self.shared.state).history.add_engine(info, is_open);
        lock(&self.shared.engines).push((number, engine));
    }

    /// Records the name of a variable.
    pub(crate) fn name_variable(&self, variable: VarId, name: Name) {
        lock(&self.shared.names).add(variable, name);
    }

    /// Records that a variable with a name is freed.
    pub(crate) fn free_variable(&self, variable: VarId) {
        lock(&self.shared.names).free(variable);
    }

    /// Records that the calling thread is about to push an operation and returns a number for the operation.
    pub(crate) fn push(
        &self,
        head: &PushHead,
        name: &Name,
        accesses: impl ExactSizeIterator<Item = AccessWord>,
    ) -> OpId {
        let pushed = self.write(|writer, now| {
            let op = writer.begin_push(&self.shared, now);
            if accesses.len() <= MAX_ACCESSES {
                let count = recording::slots_of_push(accesses.len());
                writer.put_slots(count, || recording::push(now, op, head, name.clone(), accesses));
            } else {
                writer.lose(1);
            }
            op
        });
        pushed.unwrap_or_else(|| self.op_without_writer())
    }

    /// [`push`](Self::push) for an operation with up to [`BRIEF_ACCESSES`](recording::BRIEF_ACCESSES) accesses.
    #[inline]
    pub(crate) fn push_few<const N: usize>(
        &self,
        head: &PushHead,
        name: &'static str,
        accesses: [AccessWord; N],
    ) -> OpId {
        let pushed = self.write(|writer, now| {
            let op = writer.begin_push(&self.shared, now);
            match recording::brief_push(now, (op, ticks_of(op)), head, name, &accesses) {
                Some((slot, _)) if N <= 1 && name.is_empty() => writer.put_slot(slot),
                Some((first, second)) => writer.put_pair([first, second]),
                None => {
                    let slots = || recording::push(now, op, head, Name::from(name), accesses.iter().copied());
                    writer.put_slots(recording::slots_of_push(N), slots);
                }
            }
            op
        });
        pushed.unwrap_or_else(|| self.op_without_writer())
    }

    /// Returns a number for an operation that the calling thread is about to push.
    pub(crate) fn next_op(&self) -> OpId {
        self.write(|writer, now| writer.next_op(&self.shared, now)).unwrap_or_else(|| self.op_without_writer())
    }

    /// [`next_op`](Self::next_op) without a time.
    pub(crate) fn next_number(&self) -> OpId {
        self.with_writer(|writer| writer.next_op(&self.shared, 0)).unwrap_or_else(|| self.shared.next_op(0))
    }

    /// Returns a number for an operation pushed by a thread that is ending.
    #[cold]
    fn op_without_writer(&self) -> OpId {
        self.shared.next_op(self.shared.clock.now())
    }

    /// Records that the function of an operation is called on this thread.
    #[inline]
    pub(crate) fn start(&self, op: OpId, place: PlaceWord) {
        self.write(|writer, now| writer.start(now, op, place));
    }

    /// Notes that the function of an operation is called on this thread, on an engine that keeps no events.
    pub(crate) fn note_start(&self, op: OpId) {
        self.with_writer(|writer| writer.note_start(op));
    }

    /// Records that an operation ends on this thread, after its function has returned if it was called.
    #[inline]
    pub(crate) fn end(&self, op: OpId, outcome: Outcome) {
        self.write(|writer, now| writer.end(now, op, outcome));
    }

    /// Records that an operation ends, whose function may still run on some thread.
    #[cold]
    #[inline(never)]
    pub(crate) fn end_early(&self, op: OpId, outcome: Outcome) {
        self.note(op, Short::EndedEarly(outcome));
    }

    /// Records another event, at the current time.
    #[inline]
    pub(crate) fn note(&self, op: OpId, event: Short) {
        self.write(|writer, now| writer.put(now, op, event));
    }

    /// Records an event that the last event on this thread caused, at the time of that event.
    #[inline]
    pub(crate) fn note_with_last(&self, op: OpId, event: Short) {
        self.with_writer(|writer| writer.put(writer.last.get(), op, event));
    }

    /// Returns the number of the calling thread.
    #[inline]
    pub(crate) fn thread(&self) -> u16 {
        self.with_writer(|writer| writer.ring).unwrap_or(0)
    }

    /// Calls `f` with the writer of the calling thread and the current time, which the writer keeps.
    #[inline(always)]
    fn write<R>(&self, f: impl FnOnce(&Writer, u64) -> R) -> Option<R> {
        self.with_writer(|writer| {
            let now = self.shared.clock.now();
            writer.last.set(now);
            f(writer, now)
        })
    }

    /// Calls `f` with the writer of the calling thread.
    #[inline(always)]
    fn with_writer<R>(&self, f: impl FnOnce(&Writer) -> R) -> Option<R> {
        // SAFETY: (1): this recorder's rings are dropped with it, except those whose writers are gone.
        let written = unsafe { per_thread::with(self.shared.number, || self.new_writer(), f) };
        if written.is_none() {
            self.lose_unheard();
        }
        written
    }

    /// Counts an event of a thread that is ending.
    #[cold]
    fn lose_unheard(&self) {
        // Relaxed: only a count.
        self.shared.unheard.fetch_add(1, Relaxed);
    }

    /// Makes the calling thread's writer.
    #[cold]
    #[inline(never)]
    fn new_writer(&self) -> Writer {
        let shared = &*self.shared;
        let mut number = None;
        if let Some(mut idle) = try_lock(&shared.idle) {
            if let Some(writer) = idle.take(&shared.idle) {
                return writer;
            }
            number = idle.numbers.pop();
        }
        let number = number.or_else(|| shared.new_number());
        // A ring without a number has no slots, so all its events are counted as lost.
        let (slots, consumer) = RingBuffer::new(number.map_or(0, |_| slots_that_fit(shared.slots)));
        let number = number.unwrap_or(NO_NUMBER);
        let ring_shared = Arc::new(RingShared::default());
        let ring = Ring { slots: consumer, number, shared: Arc::clone(&ring_shared) };
        let name = std::thread::current().name().map(str::to_owned);
        shared.arrivals.add(Arrival { name, ring });
        Writer::new(number, slots, ring_shared, Arc::clone(&shared.idle))
    }
}

/// Returns the number of slots of a ring that leaves memory for others: `slots`, or, if there is little address space,
/// half as many or less.
fn slots_that_fit(mut slots: usize) -> usize {
    /// The number of slots for which there must be memory, so that a quarter of it may be used. Not tuned: 64 MiB.
    const ROOM: usize = 1 << 21;
    let fits = |slots: usize| Vec::<RingSlot>::new().try_reserve_exact((4 * slots).max(ROOM)).is_ok();
    while slots >= MIN_SLOTS && !fits(slots) {
        slots /= 2;
    }
    if slots < MIN_SLOTS { 0 } else { slots }
}

/// Returns the time at which an operation was pushed, rounded down.
fn ticks_of(op: OpId) -> u64 {
    (op.0 >> THREAD_BITS) << TICKS_BITS
}

/// Returns the maximum number of threads that a recorder distinguishes.
const fn max_threads() -> usize {
    NO_NUMBER as usize
}

/// Returns the lowest number of an operation pushed at time `now`, which is that of an operation pushed by thread 0.
fn first_op_at(now: u64) -> u64 {
    (now >> TICKS_BITS) << THREAD_BITS
}

impl RecorderShared {
    /// Returns a number that no ring has had, if one is left.
    fn new_number(&self) -> Option<u16> {
        let next = |number: usize| (number < max_threads()).then_some(number + 1);
        // Relaxed: the numbers need only be distinct.
        let number = self.numbers.fetch_update(Relaxed, Relaxed, next).ok()?;
        u16::try_from(number).ok()
    }

    /// Returns a number for an operation of a thread without a number.
    #[cold]
    fn next_op(&self, now: u64) -> OpId {
        let first = first_op_at(now);
        let next = |last: u64| (last + MAX_THREADS as u64).max(first);
        // Relaxed: the numbers need only be distinct.
        let last = self.last_op.fetch_update(Relaxed, Relaxed, |last| Some(next(last))).unwrap_or_default();
        OpId(next(last) | u64::from(NO_NUMBER))
    }
}

impl Writer {
    /// Prepares for the event of a push and returns a number for the operation.
    #[inline(always)]
    fn begin_push(&self, shared: &RecorderShared, now: u64) -> OpId {
        let op = self.next_op(shared, now);
        // What the function pushes comes after its start, even if the clock shows the same time.
        self.flush();
        op
    }

    /// Returns a number for the next operation, with the time of its push.
    #[inline]
    fn next_op(&self, shared: &RecorderShared, now: u64) -> OpId {
        if self.ring == NO_NUMBER {
            return shared.next_op(now);
        }
        let time = first_op_at(now);
        let next = (self.last_op.get() & !(MAX_THREADS as u64 - 1)) + MAX_THREADS as u64;
        let op = time.max(next) | u64::from(self.ring);
        self.last_op.set(op);
        OpId(op)
    }
}

impl RecorderState {
    /// Adds the threads that have arrived since the last call.
    fn take_arrivals(&mut self, shared: &RecorderShared) {
        for Arrival { name, ring } in shared.arrivals.take() {
            if ring.number != NO_NUMBER {
                self.history.add_thread(ring.number, name.as_deref());
            }
            self.rings.push(ring);
        }
    }

    /// Reads all rings and adds their events to the histories. Reads about `limit` slots of each ring at most, and
    /// returns whether more were there.
    fn read(&mut self, shared: &RecorderShared, limit: usize) -> bool {
        let clock = &shared.clock;
        // The rings are read one after the other, so an event may be found although an earlier one, in a ring that had
        // already been read, was not. Both are later than `until`, unless a thread was delayed between reading the
        // clock and writing its event. Events later than `until` are therefore held for the next reading.
        let mut until = clock.now();
        // A thread that arrives after this reads the clock later, so its events are later than `until`.
        self.take_arrivals(shared);
        // Relaxed: only a count.
        let (mut events, mut lost) = (std::mem::take(&mut self.held), shared.unheard.swap(0, Relaxed));
        let (mut ended, mut read_until) = (Vec::new(), until);
        self.rings.retain_mut(|ring| {
            // Checked before the ring is read: a thread that has ended writes no more.
            let is_over = ring.shared.is_over();
            let thread = ring.number;
            // Looked at before the ring is read: if the call has ended by now, the ring holds it, or held it before.
            let running = ring.shared.running().filter(|&(_, ticks, _)| ticks <= until);
            let mut last = 0;
            let is_empty = ring.read(limit, |mut event| {
                last = event.ticks;
                match event.what {
                    // The event has the time at which the end of the operation's predecessor was recorded. The
                    // operation may have been pushed later.
                    What::Ready => event.ticks = event.ticks.max(ticks_of(event.op) + (1 << TICKS_BITS)),
                    What::Ran { place, from, outcome } => {
                        events.push((thread, Event { ticks: from, op: event.op, what: What::Started(place) }));
                        event.what = What::Ended(outcome);
                    }
                    _ => {}
                }
                events.push((thread, event));
            });
            if !is_empty {
                // What came later in other rings waits for the rest of this one.
                read_until = read_until.min(last);
                return true;
            }
            // After the events of the ring, of which those with the same time came earlier.
            if let Some((op, ticks, place)) = running {
                events.push((thread, Event { ticks, op, what: What::Runs(place) }));
            }
            // Relaxed: only a count.
            lost += ring.shared.lost.swap(0, Relaxed);
            if is_over {
                ended.push(thread);
            }
            !is_over
        });
        if lost > 0 {
            self.history.lose(lost);
        }
        let has_more = read_until < until;
        until = read_until;
        // The sort is stable: events of one thread, which may have the same time, stay in their order.
        events.sort_by_key(|(_, event)| event.ticks);
        self.held = events.split_off(events.partition_point(|(_, event)| event.ticks <= until));
        for (thread, event) in events {
            let time = clock.time(event.ticks);
            self.history.add(thread, time, event);
        }
        let mut idle = lock(&shared.idle);
        idle.shrink_to(IDLE_RINGS);
        for number in ended.into_iter().filter(|&number| number != NO_NUMBER) {
            self.history.end_thread(number);
            idle.numbers.push(number);
        }
        has_more
    }
}

impl Ring {
    /// Calls `f` with each event in the ring, but not with those behind `limit` slots. Returns whether it has read all.
    fn read(&mut self, limit: usize, mut f: impl FnMut(Event)) -> bool {
        // Reads only what is there now, so that a busy thread cannot keep the reader in this loop.
        let available = self.slots.slots();
        let Ok(chunk) = self.slots.read_chunk(available) else { return true };
        let mut slots = chunk.into_iter();
        while available - slots.len() < limit {
            // SAFETY: (1): the writer puts only whole events into the ring, and each slot is read once.
            let Some(event) = (unsafe { recording::read(|| slots.next(), ticks_of, priority_of) }) else { break };
            f(event);
        }
        slots.len() == 0
    }
}

impl Drop for RecorderShared {
    /// Reads the remaining events, since names in the rings own memory.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        let arrived = self.arrivals.take().into_iter().map(|arrival| arrival.ring);
        state.rings.drain(..).chain(arrived).for_each(|mut ring| _ = ring.read(usize::MAX, drop));
    }
}

#[cfg(test)]
mod tests;
