//! The log of an engine: what each thread writes about the operations that it starts, and how it reaches memory or a
//! file.
//!
//! # Who may touch what
//!
//! * The writing end of a ring: its owning thread, in a [thread-local](per_thread). What the thread writes at once is
//!   read at once.
//! * The reading ends: the holder of the lock on the state.
//! * The tables, of operators and of variables: under a lock of their own, which no push or run takes.
//!
//! A writing thread waits for no lock. If its ring is full, it leaves the ring to the reader and makes another one, so
//! nothing is lost. If the file takes what was written more slowly than threads write, the log ends at
//! [`MOST_UNWRITTEN`] bytes; if a thread cannot write, it never writes again, so that what it has written remains a
//! beginning.
//!
//! # Starts
//!
//! What a thread writes as an operation starts is kept until the thread writes something else, or the function has
//! returned, since it is known only then whether the operation is a run of a logged operator, whose argument belongs to
//! it. A run is written before its function is called.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    fmt,
    io::{self, BufWriter, Write},
    panic::Location,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
        mpsc::RecvTimeoutError,
    },
    thread::LocalKey,
    time::Duration,
};

use raddle_trace::{AccessMode, OpId};
use rtrb::{Consumer, Producer, RingBuffer};

use super::{
    log_entries::{self, LogEntries},
    per_thread::{self, Ends, Nearest, WritingEnd},
    profile_file::UnblockedFile,
};
use crate::{
    sync::{Mutex, arrivals::Arrivals, lock, mpsc, process::ProcessMark},
    system::panics,
    values::Name,
};

/// The size of a ring in bytes. Not tuned: enough for some 3,000 operations.
const RING: usize = 1 << 16;

/// The most bytes of rings that a file has not taken yet. Not tuned.
const MOST_UNWRITTEN: usize = 256 << 20;

/// The time between two readings of the rings for a file. Not tuned.
const INTERVAL: Duration = Duration::from_millis(5);

/// The number of sites that a thread remembers, a power of two. Not tuned: more than most threads push from. A site
/// that has been forgotten is written again.
const SITES: usize = 256;

/// A log of the operations that an engine runs: their places in the one order of pushes, the arguments of those of
/// [logged operators](crate::Operator::logged), and how they ended. From its entries, a
/// [`Replay`](crate::replay::Replay) pushes the operations again in the same order.
///
/// An engine receives a log when it is [built](crate::EngineBuilder::log), and a log belongs to one engine. Clones are
/// handles to the same log. Each thread writes without waiting for another, when it starts an operation. The
/// [guide](crate::guide::replay) says what is logged, and what a replay needs.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::{Engine, replay::{Log, Replay}};
///
/// let log = Log::new();
/// let engine = Engine::builder().workers(2).log(&log).build()?;
/// let level = engine.var(0.0f64).named("level");
/// let mix = engine.op("mix").operator_with(level.write(), |level, by: f64| *level = (*level + by) / 3.0)?;
/// let mix = mix.logged(|by, bytes| bytes.extend(by.to_le_bytes()));
/// std::thread::scope(|threads| {
///     for thread in 0..2 {
///         let mix = &mix;
///         threads.spawn(move || (0..100).try_for_each(|step| mix.push(f64::from(100 * thread + step))));
///     }
/// });
/// engine.wait_for_all()?;
/// let (recorded, entries) = (engine.get(&level)?, log.entries()?);
///
/// let engine = Engine::builder().workers(1).build()?;
/// let level = engine.var(0.0f64).named("level");
/// let mix = engine.op("mix").operator_with(level.write(), |level, by: f64| *level = (*level + by) / 3.0)?;
/// let mut replay = Replay::new(&engine, entries);
/// replay.operator(&mix, |bytes| Ok(f64::from_le_bytes(bytes.try_into()?)));
/// replay.run()?;
/// assert_eq!(engine.get(&level)?.to_bits(), recorded.to_bits());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Log(Arc<LogShared>);

/// The state shared by a log's clones.
struct LogShared {
    /// Identifies the log in this process.
    number: u64,
    process: ProcessMark,
    /// The number of streams so far.
    streams: AtomicU32,
    arrivals: Arrivals<LogRing>,
    /// The bytes of the rings that have not been read to their ends.
    unread: AtomicUsize,
    /// Whether an engine has the log.
    in_use: AtomicBool,
    /// The number of operators.
    operators: AtomicU32,
    /// What the tables have that was not collected yet.
    tables: Mutex<Vec<u8>>,
    state: Mutex<LogState>,
    /// The file, if the log goes to one.
    file: Option<LogFile>,
}

struct LogFile {
    path: PathBuf,
    /// Until the engine is built.
    file: Mutex<Option<UnblockedFile>>,
    /// The sender, whose drop tells the thread to write the rest and end.
    stop: Mutex<Option<mpsc::Sender<()>>>,
    /// Why the file is incomplete, if so.
    error: OnceLock<String>,
}

#[derive(Default)]
struct LogState {
    rings: Vec<LogRing>,
    /// What was collected, by stream, and has not been written to a file.
    collected: BTreeMap<u32, Vec<u8>>,
    tables: Vec<u8>,
}

/// The reading end of a ring.
struct LogRing {
    stream: u32,
    bytes: Consumer<u8>,
}

impl fmt::Debug for LogShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogShared").field("path", &self.file.as_ref().map(|file| &file.path)).finish_non_exhaustive()
    }
}

impl Default for Log {
    fn default() -> Self {
        Self::new()
    }
}

impl Log {
    /// Creates a log in memory. It grows until its last handle and its engine are dropped.
    #[must_use]
    pub fn new() -> Self {
        Self::with_file(None)
    }

    /// Creates a log in the file at `path`, which is overwritten if it exists. A thread of the engine writes to it
    /// every few milliseconds, so the entries of the last moments are missing if the process is killed; what is there
    /// can be read. The file is complete when the engine has ended: a program should drop its engine or shut it down
    /// before exiting.
    ///
    /// If the file cannot be written later, for instance because the disk is full, or if 256 MiB wait to be written,
    /// the log ends, an error is logged, and [`shutdown`](crate::Engine::shutdown) returns
    /// [`ShutdownError::Log`](crate::error::ShutdownError::Log). The operations go on.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{Engine, replay::{Log, LogEntries}};
    ///
    /// let path = std::env::temp_dir().join("raddle_log_example");
    /// let engine = Engine::builder().workers(1).log(&Log::file(&path)?).build()?;
    /// let total = engine.var(0);
    /// let add = engine.op("add").operator_with(total.write(), |total, by: u8| *total += u32::from(by))?;
    /// let add = add.logged(|by, bytes| bytes.push(*by));
    /// add.push(7)?;
    /// drop((total, add, engine));
    ///
    /// let entries = LogEntries::read(&path)?;
    /// assert!(entries.is_complete());
    /// assert_eq!(entries.iter().next().map(|entry| entry.argument()), Some(&[7][..]));
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns an error if the file cannot be created, or is a pipe without a reader.
    pub fn file(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        let file = Mutex::new(Some(UnblockedFile::create(&path)?));
        Ok(Self::with_file(Some(LogFile { path, file, stop: Mutex::new(None), error: OnceLock::new() })))
    }

    fn with_file(file: Option<LogFile>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: the numbers need only be distinct.
        let number = NEXT.fetch_add(1, Relaxed);
        Self(Arc::new(LogShared {
            number,
            process: ProcessMark::current(),
            streams: AtomicU32::new(0),
            arrivals: Arrivals::default(),
            unread: AtomicUsize::new(0),
            in_use: AtomicBool::new(false),
            operators: AtomicU32::new(0),
            tables: Mutex::default(),
            state: Mutex::default(),
            file,
        }))
    }

    /// Returns the entries of all operations that had ended before this call. Of those that start or run meanwhile, it
    /// returns some, but none without those before it in the order.
    ///
    /// # Errors
    /// Returns the errors of [`LogEntries::read`] if the log goes to a file, from which this reads, and an error in a
    /// forked child.
    pub fn entries(&self) -> io::Result<LogEntries> {
        let shared = &*self.0;
        if shared.process.is_foreign() {
            return Err(io::Error::other("this process was forked after the log was created"));
        }
        if let Some(file) = &shared.file {
            return LogEntries::read(&file.path);
        }
        let mut state = lock(&shared.state);
        shared.collect(&mut state);
        Ok(LogEntries::parse(&state.tables, state.collected.values().map(Vec::as_slice), true))
    }

    /// Gives the log to an engine that is being built. Returns `false` if another engine has the log, or if it belongs
    /// to another process.
    pub(crate) fn claim(&self) -> bool {
        // Relaxed: only one engine finds `false`.
        !self.0.process.is_foreign() && !self.0.in_use.swap(true, Relaxed)
    }

    /// Takes the log back from an engine that could not be built, unless the log has begun to be written.
    pub(crate) fn release(&self) {
        if self.0.file.as_ref().is_none_or(|to| lock(&to.file).is_some()) {
            // Relaxed: the log has no entries, so there is nothing to hand over.
            self.0.in_use.store(false, Relaxed);
        }
    }

    /// Starts the thread that writes the file, if there is one, of a log that was [claimed](Self::claim).
    pub(crate) fn begin(
        &self,
        spawn: impl FnOnce(String, Box<dyn FnOnce() + Send>) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(to) = &self.0.file else { return Ok(()) };
        let Some(file) = lock(&to.file).take() else { return Ok(()) };
        let (sender, receiver) = mpsc::channel();
        *lock(&to.stop) = Some(sender);
        let log = self.clone();
        let write = move || {
            if let (Err(error), Some(to)) = (log.0.write(file, &receiver), &log.0.file) {
                let error = to.error.get_or_init(|| error.to_string());
                panics::log!(Error, "raddle: the log {} could not be written: {error}", to.path.display());
            }
        };
        spawn("raddle-log".to_owned(), Box::new(write))
    }

    /// Tells the thread to write the rest of the log and end. Does not wait for it.
    pub(crate) fn end(&self) {
        self.0.file.iter().for_each(|file| drop(lock(&file.stop).take()));
    }

    /// Returns the path of the file, and why it could not be written, if so.
    pub(crate) fn error(&self) -> Option<(&Path, &str)> {
        let file = self.0.file.as_ref()?;
        Some((&file.path, file.error.get()?))
    }

    /// Adds an operator to the tables, with its own variables in the order in which it declares them. Returns its
    /// number.
    pub(crate) fn add_operator(&self, name: &Name, variables: impl ExactSizeIterator<Item = u64>) -> u32 {
        // Relaxed: the numbers need only be distinct.
        let number = self.0.operators.fetch_add(1, Relaxed);
        log_entries::write_operator(&mut lock(&self.0.tables), number, name.as_str(), variables);
        number
    }

    /// Adds the name of a variable to the tables.
    pub(crate) fn name_variable(&self, variable: u64, name: &Name) {
        log_entries::write_variable(&mut lock(&self.0.tables), variable, name.as_str());
    }

    /// Logs that the operation `parent`, or one that is unknown, is pushing the operation `op`.
    pub(crate) fn push_inside(&self, op: OpId, parent: Option<OpId>) {
        self.with_writer(|writer| {
            writer.flush(&self.0);
            writer.put_made(&self.0, |bytes| log_entries::write_inside(bytes, op, parent));
        });
    }

    /// Logs that an operation starts or is skipped.
    #[inline]
    pub(crate) fn start(&self, head: &StartHead<'_>, accesses: impl ExactSizeIterator<Item = LoggedPlace>) {
        self.with_writer(|writer| writer.start(&self.0, head, accesses));
    }

    /// Logs that the operation that this thread has just started is a run of the operator `operator`.
    #[inline]
    pub(crate) fn run(&self, operator: u32, chosen: &[u64], encode: impl FnOnce(&mut Vec<u8>)) {
        // The encoding is program code, which may write to another log, so no writing end is in use meanwhile. If it
        // panics or starts an operation here, the start is written without its argument.
        let mut argument = self.with_writer(|writer| writer.made.take()).unwrap_or_default();
        argument.clear();
        encode(&mut argument);
        self.with_writer(|writer| writer.run(&self.0, operator, chosen, argument));
    }

    /// Logs that an operation that has started fails.
    #[cold]
    pub(crate) fn fail(&self, op: OpId) {
        self.with_writer(|writer| {
            writer.flush(&self.0);
            writer.put_made(&self.0, |bytes| log_entries::write_failure(bytes, op));
        });
    }

    /// Writes what this thread has kept. Called once a function has returned.
    #[inline]
    pub(crate) fn flush(&self) {
        self.with_writer(|writer| writer.flush(&self.0));
    }

    #[inline(always)]
    fn with_writer<R>(&self, f: impl FnOnce(&LogWriter) -> R) -> Option<R> {
        // SAFETY: (1): the log's rings are dropped with it, except those that their threads have left, and no thread
        // leaves a ring inside `f`, unless it then uses it no more. (2): `f` is one of this file's.
        unsafe { per_thread::with(self.0.number, || self.0.new_writer(), f) }
    }
}

/// What an operation's entry says beside its accesses.
pub(crate) struct StartHead<'a> {
    pub(crate) id: OpId,
    pub(crate) name: &'a Name,
    pub(crate) location: &'static Location<'static>,
    /// Whether the operation is one of the engine's that clears the failure of a variable.
    pub(crate) clears: bool,
    pub(crate) is_skipped: bool,
}

/// An access and its place: the number of mutations of the variable that come before it.
#[derive(Clone, Copy)]
pub(crate) struct LoggedPlace {
    pub(crate) variable: u64,
    pub(crate) mode: AccessMode,
    pub(crate) place: u64,
}

impl LogShared {
    /// Collects what each ring has, which is a whole number of records, and the tables.
    fn collect(&self, state: &mut LogState) {
        let LogState { rings, collected, tables } = state;
        // A ring arrives after the one before it in its stream was written to its end.
        rings.extend(self.arrivals.take());
        rings.retain_mut(|ring| {
            // Asked first, so that what is read next is all there will be.
            let is_over = ring.bytes.is_abandoned();
            let available = ring.bytes.slots();
            if let Ok(chunk) = ring.bytes.read_chunk(available) {
                let (first, second) = chunk.as_slices();
                if available > 0 {
                    collected.entry(ring.stream).or_default().extend(first.iter().chain(second));
                }
                chunk.commit_all();
            }
            if is_over {
                // Relaxed: only a count.
                self.unread.fetch_sub(ring.bytes.buffer().capacity(), Relaxed);
            }
            !is_over
        });
        // Read last, so that nothing collected refers to what is missing.
        tables.append(&mut lock(&self.tables));
    }

    /// Writes the log to the file until the sender of `stop` is dropped.
    fn write(&self, file: UnblockedFile, stop: &mpsc::Receiver<()>) -> io::Result<()> {
        let mut file = BufWriter::new(file);
        file.write_all(log_entries::MAGIC)?;
        loop {
            let is_last = matches!(stop.recv_timeout(INTERVAL), Err(RecvTimeoutError::Disconnected));
            let mut state = lock(&self.state);
            self.collect(&mut state);
            let (streams, tables) = (std::mem::take(&mut state.collected), std::mem::take(&mut state.tables));
            drop(state);
            // Written first, so that nothing written refers to what is missing.
            if !tables.is_empty() {
                log_entries::write_block(&mut file, log_entries::TABLES, &tables)?;
            }
            for (stream, bytes) in streams {
                log_entries::write_block(&mut file, stream, &bytes)?;
            }
            if let Some(error) = self.file.as_ref().and_then(|file| file.error.get()) {
                file.flush()?;
                return Err(io::Error::other(error.clone()));
            }
            if is_last {
                log_entries::write_block(&mut file, log_entries::END, &[])?;
                return file.flush();
            }
            // Keeps the file up to date, in case the program is killed.
            file.flush()?;
        }
    }

    /// Makes the calling thread's writing end.
    #[cold]
    #[inline(never)]
    fn new_writer(&self) -> LogWriter {
        // Relaxed: the numbers need only be distinct.
        let stream = self.streams.fetch_add(1, Relaxed);
        let sites = std::iter::repeat_with(|| (0, 0, 0)).take(SITES).collect();
        LogWriter {
            stream,
            ring: RefCell::new(self.new_ring(stream, 0)),
            started: RefCell::default(),
            sites: RefCell::new(sites),
            site_count: Cell::new(0),
            made: RefCell::default(),
        }
    }

    /// Makes a ring in which there is room for `bytes`, unless the log has ended.
    #[cold]
    #[inline(never)]
    fn new_ring(&self, stream: u32, bytes: usize) -> Option<Producer<u8>> {
        let capacity = bytes.max(RING);
        // Relaxed: only a count.
        let unread = self.unread.fetch_add(capacity, Relaxed) + capacity;
        if let Some(file) = &self.file {
            if unread > MOST_UNWRITTEN {
                file.error.get_or_init(|| "operations were logged faster than the file could be written".to_owned());
            }
            if file.error.get().is_some() {
                return None;
            }
        }
        let (producer, consumer) = RingBuffer::new(capacity);
        self.arrivals.add(LogRing { stream, bytes: consumer });
        Some(producer)
    }
}

/// A thread's writing end.
struct LogWriter {
    stream: u32,
    /// The ring, or `None` once the log has ended.
    ring: RefCell<Option<Producer<u8>>>,
    /// The start that is kept, or nothing.
    started: RefCell<Vec<u8>>,
    /// Sites that were written: the addresses of a location and of a name, and the site's number.
    sites: RefCell<Box<[(usize, usize, u64)]>>,
    site_count: Cell<u64>,
    /// Where a record is made, kept for its memory.
    made: RefCell<Vec<u8>>,
}

thread_local! {
    static WRITERS: Ends<LogWriter> = const { Ends::new() };
    static NEAREST: Nearest<LogWriter> = const { per_thread::no_nearest() };
}

impl WritingEnd for LogWriter {
    fn ends() -> &'static LocalKey<Ends<Self>> {
        &WRITERS
    }

    #[inline(always)]
    fn nearest() -> &'static LocalKey<Nearest<Self>> {
        &NEAREST
    }

    fn is_abandoned(&self) -> bool {
        self.ring.try_borrow().is_ok_and(|ring| ring.as_ref().is_none_or(Producer::is_abandoned))
    }

    /// A start that is kept belongs to a function that has not returned, whose operation cannot end before it has.
    fn retire(self) {}
}

impl LogWriter {
    #[inline]
    fn start(&self, shared: &LogShared, head: &StartHead<'_>, accesses: impl ExactSizeIterator<Item = LoggedPlace>) {
        self.flush(shared);
        let site = self.site(shared, head);
        log_entries::write_start(&mut self.started.borrow_mut(), head, site, accesses);
    }

    /// Writes the start that is kept, if one is, as that of a run. Keeps the memory of `argument`.
    fn run(&self, shared: &LogShared, operator: u32, chosen: &[u64], argument: Vec<u8>) {
        let mut started = self.started.borrow_mut();
        if !started.is_empty() {
            log_entries::write_run(&mut started, operator, chosen, &argument);
            self.put(shared, &started);
            started.clear();
        }
        self.made.replace(argument);
    }

    /// Writes the start that is kept, if one is.
    #[inline]
    fn flush(&self, shared: &LogShared) {
        let mut started = self.started.borrow_mut();
        if !started.is_empty() {
            self.put(shared, &started);
            started.clear();
        }
    }

    /// Returns the number of the site where an operation was pushed, which is written first if it was forgotten.
    fn site(&self, shared: &LogShared, head: &StartHead<'_>) -> u64 {
        let (location, name) = (std::ptr::from_ref(head.location).addr(), head.name.as_str());
        let at = (location >> 3 ^ name.as_ptr().addr()) & (SITES - 1);
        let found = self.sites.borrow()[at];
        if found.0 == location && found.1 == name.as_ptr().addr() {
            return found.2;
        }
        let number = self.site_count.get() + 1;
        if self.put_made(shared, |bytes| log_entries::write_site(bytes, name, head.location)) {
            self.site_count.set(number);
            self.sites.borrow_mut()[at] = (location, name.as_ptr().addr(), number);
        }
        number
    }

    /// Writes the record that `make` makes. Returns whether the log has not ended.
    fn put_made(&self, shared: &LogShared, make: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut bytes = self.made.borrow_mut();
        bytes.clear();
        make(&mut bytes);
        self.put(shared, &bytes)
    }

    /// Writes a record. Returns whether the log has not ended.
    #[inline]
    fn put(&self, shared: &LogShared, record: &[u8]) -> bool {
        let mut ring = self.ring.borrow_mut();
        if ring.as_mut().is_some_and(|ring| ring.push_entire_slice(record).is_err()) {
            *ring = shared.new_ring(self.stream, record.len());
            if let Some(ring) = &mut *ring {
                let put = ring.push_entire_slice(record);
                debug_assert!(put.is_ok(), "the new ring has room");
            }
        }
        ring.is_some()
    }
}
