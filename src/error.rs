//! What can go wrong, told so that the caller knows what to do.

use std::{
    error::Error,
    fmt,
    mem::ManuallyDrop,
    panic::Location,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use crate::{
    device::{Context, DeviceError},
    failures::{Failures, Place},
    name::Name,
    panics::{self, Payload},
    property::Property,
};

/// The error type that operations return.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Why an operation failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Cause {
    /// Its function panicked; the message, where the payload was a string.
    Panic(Option<String>),
    /// Its function, or its [`Completion`](crate::Completion), reported an error.
    Error(BoxError),
    /// Its [`Completion`](crate::Completion) was dropped unused.
    LostCompletion,
    /// It had not started when the engine was shut down with [`Shutdown::Cancel`](crate::Shutdown::Cancel).
    Cancelled,
    /// Its device failed: while it was under way there, or before.
    Device(DeviceError),
}

impl Cause {
    /// Of the function of a device operation, which may have passed an error of the device on.
    pub(crate) fn of_device(self) -> Self {
        match self {
            Self::Error(error) => DeviceError::found_in(error).map_or_else(Self::Error, Self::Device),
            cause => cause,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panic(Some(message)) => write!(f, "it panicked: {message}"),
            Self::Panic(None) => f.write_str("it panicked with a payload that is no string"),
            Self::Error(error) => write!(f, "{error}"),
            Self::LostCompletion => f.write_str("its completion was dropped unused"),
            Self::Cancelled => f.write_str("it was cancelled by the engine's shutdown before it started"),
            Self::Device(error) => write!(f, "{error}"),
        }
    }
}

#[derive(Debug)]
struct Failure {
    name: Name,
    location: &'static Location<'static>,
    /// Dropped by `drop` below.
    cause: ManuallyDrop<Cause>,
    /// What a panic carried, if that is no string: the program's, and dropped with its error. In a mutex, since it need not
    /// be `Sync`.
    payload: ManuallyDrop<Mutex<Option<Payload>>>,
    sequence: u64,
    /// Somebody outside the engine has been given it, or has cleared it where it had got to. Set under the lock of the
    /// `Failures` that it was added to.
    known: AtomicBool,
    /// Where it is kept or counted until it is known.
    added: OnceLock<(Weak<Failures>, Place)>,
}

impl Drop for Failure {
    fn drop(&mut self) {
        // These are the program's, and so is what their drops do; the last clone may go anywhere in the engine.
        // SAFETY: the field is dropped once, here.
        let drop_cause = || unsafe { ManuallyDrop::drop(&mut self.cause) };
        if let Err(payload) = panics::catch(drop_cause) {
            panics::log!(Error, "raddle: the drop of an operation's error panicked");
            panics::discard(payload);
        }
        // SAFETY: as above.
        let payload = unsafe { ManuallyDrop::take(&mut self.payload) };
        let payload = payload.into_inner().unwrap_or_else(PoisonError::into_inner);
        payload.into_iter().for_each(panics::discard);
    }
}

/// An operation's failure. It is cheap to clone; the failed operation's variables, the operations skipped because of it and
/// every waiter share one.
#[derive(Clone)]
pub struct OpError(Arc<Failure>);

impl OpError {
    pub(crate) fn new(
        name: &Name,
        location: &'static Location<'static>,
        cause: Cause,
        payload: Option<Payload>,
    ) -> Self {
        static SEQUENCE: AtomicU64 = AtomicU64::new(0);
        Self(Arc::new(Failure {
            name: name.clone(),
            location,
            cause: ManuallyDrop::new(cause),
            payload: ManuallyDrop::new(Mutex::new(payload)),
            // Relaxed: only distinct numbers are needed, rising as far as anybody can tell.
            sequence: SEQUENCE.fetch_add(1, Relaxed),
            known: AtomicBool::new(false),
            added: OnceLock::new(),
        }))
    }

    /// The name of the operation that failed; empty if it was given none.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name.as_str()
    }

    /// Where the operation was pushed.
    #[must_use]
    pub fn location(&self) -> &'static Location<'static> {
        self.0.location
    }

    /// Why it failed.
    #[must_use]
    pub fn cause(&self) -> &Cause {
        &self.0.cause
    }

    /// Whether `other` is the same failure, not merely an equal one.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether a shutdown has cancelled the operation.
    pub(crate) fn is_cancellation(&self) -> bool {
        matches!(self.cause(), Cause::Cancelled)
    }

    /// Rises with the time of the failure.
    pub(crate) fn sequence(&self) -> u64 {
        self.0.sequence
    }

    /// Adds it to `failures` until it is known. Called before anybody outside the engine can be given it.
    pub(crate) fn keep(&self, failures: &Arc<Failures>) {
        // Once: those that are skipped because of it have the same failure. They find it on a variable, where it is put
        // only after this; so no thread waits here for another.
        self.0.added.get_or_init(|| (Arc::downgrade(failures), failures.add(self)));
    }

    /// Notes that it is known; whether it was not. Called by the `Failures` that it was added to, under the lock.
    pub(crate) fn note_known(&self) -> bool {
        // Relaxed: all that write it hold the lock, which orders them; for the reader without it see `settle`.
        !self.0.known.swap(true, Relaxed)
    }

    /// Notes that somebody has been given the failure, or has cleared it: nobody else need be told of his own accord.
    pub(crate) fn settle(&self) {
        // Relaxed: whoever reads the `true` of `note_known` here, and takes the lock of `Failures` later, takes it
        // after the thread that wrote it under the lock; otherwise the write would come after this read. So it finds
        // the failure neither kept nor counted, even if that thread is not done yet.
        if self.0.known.load(Relaxed) {
            return;
        }
        // A failure that stands for many was never added.
        if let Some((failures, place)) = self.0.added.get()
            && let Some(failures) = failures.upgrade()
        {
            failures.settle(self, *place);
        }
    }
}

impl fmt::Debug for OpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpError")
            .field("name", &self.name())
            .field("location", &format_args!("{}", self.location()))
            .field("cause", self.cause())
            .finish()
    }
}

impl OpError {
    /// The loss of a device, if the operation failed because of one.
    pub(crate) fn loss(&self) -> Option<&DeviceError> {
        match self.cause() {
            Cause::Device(error) if error.is_lost() => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for OpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, location, cause) = (self.name(), self.location(), self.cause());
        if name.is_empty() {
            write!(f, "the operation pushed at {location} failed: {cause}")
        } else {
            write!(f, "operation `{name}` pushed at {location} failed: {cause}")
        }
    }
}

impl Error for OpError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self.cause() {
            Cause::Error(error) => Some(&**error),
            Cause::Device(error) => Some(error),
            _ => None,
        }
    }
}

pub(crate) const FORKED: &str = "the engine is that of a process which has forked this one; make another engine";

/// Why a push was refused. The operation will never run, and changes nothing.
///
/// A push that loses a race against a deletion may find that out when it already has its place in the queues of other
/// variables. There it stays, as an operation that does nothing, until everything before it is done; its function is
/// dropped then.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PushError {
    /// A variable belongs to another engine.
    ForeignVariable,
    /// A variable was already deleted.
    DeletedVariable,
    /// A typed operation names one variable twice and mutates it, which would alias a `&mut`.
    AliasedVariable,
    /// The engine is shutting down, or has. During a drain, operations may still push.
    ShutDown,
    /// The context names a device that this engine does not have.
    NoSuchDevice(Context),
    /// The thread that serves the device could not be started.
    DeviceUnavailable(Context),
    /// The function of a device operation pushes on a naive engine that is not its own: that would have to run the operation
    /// at once, and nothing may run inside such a function. Push it elsewhere, or on another kind of engine.
    InDeviceFunction,
    /// The property says where an operation of the CPU runs, and means nothing on a device.
    NotOfDevice(Property),
    /// The call is for operations of a device, and [`OpBuilder::on`](crate::OpBuilder::on) was not given one.
    NotOnDevice,
    /// The engine was made before this process was forked from the one that has its threads. Make another one.
    Forked,
}

impl fmt::Display for PushError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ForeignVariable => {
                f.write_str("a variable belongs to another engine; push on the engine that made it")
            }
            Self::DeletedVariable => f.write_str("a variable was already deleted; push before deleting it"),
            Self::AliasedVariable => {
                f.write_str("the operation names a variable twice and mutates it; name it once, as written")
            }
            Self::ShutDown => f.write_str("the engine is shut down or shutting down"),
            Self::NoSuchDevice(context) => {
                write!(f, "this engine has no device {context}; give it one with `Builder::gpu`")
            }
            Self::DeviceUnavailable(context) => {
                write!(f, "the thread that serves {context} could not be started; see the log")
            }
            Self::InDeviceFunction => {
                f.write_str("the function of a device operation cannot push on another engine that is naive")
            }
            Self::NotOfDevice(property) => {
                write!(f, "the property {property:?} means nothing on a device; use another, or none")
            }
            Self::NotOnDevice => f.write_str("the operation is for a device; name one with `on`"),
            Self::Forked => f.write_str(FORKED),
        }
    }
}

impl Error for PushError {}

/// Why a wait gave no result.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum WaitError {
    /// An operation failed.
    Failed(OpError),
    /// The time was up. What was waited for goes on.
    TimedOut,
    /// The calling operation itself would have to end first; or the caller is code that ran by chance on a worker that was
    /// looking for work, such as what another crate has deferred in crossbeam-epoch's default collector.
    WouldDeadlock,
    /// Too many operations wait inside their functions at once to give their worker's work to another thread; let
    /// operations name what they need as variables instead of waiting for it.
    TooManyWaiting,
    /// The caller is the function of a device operation, whose thread must not wait: it is what the device's other
    /// operations go on by. Let operations name what they need as variables.
    OnDevice,
    /// The caller is a deletion: the function of [`Engine::delete_variable`](crate::Engine::delete_variable), or the drop of
    /// what a variable or an operator owned. Push an operation that waits, or wait elsewhere.
    InDeletion,
    /// What was to be waited for could not be pushed.
    Refused(PushError),
    /// The value was taken by an earlier wait on the same handle.
    ValueTaken,
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => error.fmt(f),
            Self::TimedOut => f.write_str("the time to wait was up"),
            Self::WouldDeadlock => f.write_str("the wait needs the end of the operation that waits"),
            Self::TooManyWaiting => f.write_str("too many operations wait inside their functions at once"),
            Self::OnDevice => f.write_str("the function of a device operation cannot wait"),
            Self::InDeletion => f.write_str("a deletion cannot wait; push an operation that does"),
            Self::Refused(error) => error.fmt(f),
            Self::ValueTaken => f.write_str("the operation's value was already taken"),
        }
    }
}

impl Error for WaitError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Failed(error) => Some(error),
            Self::Refused(error) => Some(error),
            _ => None,
        }
    }
}

impl From<OpError> for WaitError {
    fn from(error: OpError) -> Self {
        error.settle();
        Self::Failed(error)
    }
}

impl From<PushError> for WaitError {
    fn from(error: PushError) -> Self {
        Self::Refused(error)
    }
}

/// Why an engine could not be built.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// Zero workers were asked for.
    NoWorkers,
    /// More workers were asked for than the given maximum.
    TooManyWorkers(usize),
    /// `RADDLE_ENGINE` names no kind of engine.
    UnknownEngine(String),
    /// A thread could not be started.
    Thread(std::io::Error),
    /// More GPUs were given than the given maximum.
    TooManyGpus(usize),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoWorkers => f.write_str("an engine needs at least one worker in each lane"),
            Self::TooManyWorkers(max) => write!(f, "an engine has at most {max} workers in a lane"),
            Self::UnknownEngine(value) => {
                write!(f, "RADDLE_ENGINE is `{value}`; it may be `Naive`, `Pooled` or `PerDevice`")
            }
            Self::TooManyGpus(max) => write!(f, "an engine has at most {max} GPUs"),
            Self::Thread(error) => write!(f, "a worker thread could not be started: {error}"),
        }
    }
}

impl Error for BuildError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Thread(error) => Some(error),
            _ => None,
        }
    }
}

/// Why a shutdown did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShutdownError {
    /// The deadline passed while operations were pending. The shutdown goes on by itself; calling it again waits again.
    TimedOut,
    /// It was called inside an operation, which it would have to wait for, in a logger that the engine calls, or in a
    /// destructor of a thread-local of one of its threads. The shutdown goes on by itself.
    InsideOperation,
    /// Nothing was pending any more, but threads of the engine had not ended at the deadline. These are their names. They
    /// are in code of the program, such as the function of an asynchronous operation that goes on after its completion, a
    /// destructor of a thread-local, or a logger; or there was no time for them to end. They keep what they use, and
    /// end when that code returns. Calling it again waits again; dropping the engine does not wait for them.
    ThreadsLeft(Vec<String>),
    /// The engine was made before this process was forked from the one that has its threads. There is nothing to shut down.
    Forked,
}

impl fmt::Display for ShutdownError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut => f.write_str("operations were still pending at the deadline of the shutdown"),
            Self::Forked => f.write_str(FORKED),
            Self::InsideOperation => {
                f.write_str("a shutdown inside an operation cannot wait for that operation; it goes on by itself")
            }
            Self::ThreadsLeft(names) => {
                write!(
                    f,
                    "nothing is pending, but threads had not ended at the deadline of the shutdown: {}",
                    names.join(", ")
                )
            }
        }
    }
}

impl Error for ShutdownError {}
