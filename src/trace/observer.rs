//! Observers: program code that an engine calls while operations are pushed and run.

use std::{fmt, panic::Location, time::Duration};

use raddle_trace::{AccessMode, OpId, Outcome, Place, VarId};

use super::recorder::Recorder;
use crate::values::{Name, device::Device};

/// Program code that an engine calls at each step of an operation, on the thread that takes the step. See
/// [`EngineBuilder::observer`](crate::EngineBuilder::observer).
///
/// The calls are made immediately, between the engine's steps, so they should be quick. An observer must neither wait
/// nor push to an engine with observers: such calls return errors. An engine without observers accepts its pushes, but
/// holds them back if it is full. A panic is logged and has no other effect. Calls for one operation occur in the order
/// of these methods, except that `returned` may come after `ended`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
/// use raddle::{Engine, trace::{ObservedOp, Observer, Outcome}};
///
/// static FAILED: AtomicU64 = AtomicU64::new(0);
///
/// struct Failures;
/// impl Observer for Failures {
///     fn ended(&self, op: &ObservedOp<'_>, outcome: Outcome) {
///         if outcome == Outcome::Failed {
///             println!("{} from {} failed", op.name, op.location);
///             FAILED.fetch_add(1, Relaxed);
///         }
///     }
/// }
///
/// let engine = Engine::builder().workers(1).observer(Failures).build()?;
/// let value = engine.var(0);
/// engine.op("parse").try_push(value.write(), |value| Ok(*value = "x".parse()?))?;
/// assert!(engine.wait_for_all().is_err());
/// assert_eq!(FAILED.load(Relaxed), 1);
/// # Ok(())
/// # }
/// ```
pub trait Observer: Send + Sync + 'static {
    /// Called when the operation is about to be pushed by this thread.
    fn pushed(&self, op: &ObservedOp<'_>) {
        let _ = op;
    }

    /// Called when the operation has become ready and is about to enter a lane. Not called for operations that run
    /// inside their push.
    fn ready(&self, op: &ObservedOp<'_>) {
        let _ = op;
    }

    /// Called when this thread is about to call the operation's function.
    fn started(&self, op: &ObservedOp<'_>) {
        let _ = op;
    }

    /// Called when the function has returned, on the thread that called it, if the operation does not end then, because
    /// it is asynchronous, has children, or was issued to a GPU. The operation may already have ended.
    fn returned(&self, op: &ObservedOp<'_>) {
        let _ = op;
    }

    /// Called when the operation ends: operations behind it may run once this returns. A skipped operation ends without
    /// having started.
    fn ended(&self, op: &ObservedOp<'_>, outcome: Outcome) {
        let _ = (op, outcome);
    }
}

/// An operation as seen by an [`Observer`]. Information that is not in a field is looked up on request.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct ObservedOp<'a> {
    /// Identifies the operation within its engine and in traces of the engine's recorder.
    pub id: OpId,
    /// The operation's name, which is empty if it has none.
    pub name: &'a str,
    /// Where the operation was pushed.
    pub location: &'static Location<'static>,
    /// Whether the operation is one of the engine's own, such as a wait, a deletion, or the poll of a future.
    pub internal: bool,
    /// The priority closest to 0 among those that the engine treats as equal to the operation's.
    pub priority: i32,
    /// The device on which the operation runs.
    pub device: Device,
    pub(crate) recorder: &'a Recorder,
    pub(crate) details: &'a dyn OpDetails,
}

/// What an engine looks up about an operation for an [`ObservedOp`].
pub(crate) trait OpDetails {
    /// Returns the name of the operation's lane.
    fn lane(&self) -> String;

    /// Returns where the calling thread runs operations of this lane.
    fn place(&self) -> Place;

    /// Returns a name for [`place`](Self::place).
    fn place_name(&self) -> String;

    /// Returns the variables that the operation declares and has not released.
    fn accesses(&self) -> Vec<ObservedAccess>;
}

/// A variable declared by an operation, as seen by an [`Observer`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ObservedAccess {
    /// Identifies the variable within its engine and in traces of the engine's recorder.
    pub variable: VarId,
    /// The variable's name, which is empty if it has none.
    pub name: Name,
    /// How the operation uses the variable.
    pub mode: AccessMode,
    /// The access's place in the one order of pushes: the number of mutations of the variable that were pushed before
    /// the operation, not counting those of the engine itself. Operations that other operations have pushed count, too.
    /// It is known from the [start](Observer::started) of the operation on, if the engine has a
    /// [log](crate::EngineBuilder::log).
    pub place: Option<u64>,
}

impl ObservedOp<'_> {
    /// Returns the time since the operation was pushed. The first call for an engine may take 10 ms, to measure the
    /// clock's rate.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.recorder.age(self.id)
    }

    /// Returns the name of the operation's lane, such as `cpu` or `gpu(0) compute`, or `none` on the naive engine,
    /// which has no lanes.
    #[must_use]
    pub fn lane(&self) -> String {
        self.details.lane()
    }

    /// Returns where the calling thread takes this step of the operation: on a worker of the engine, on the thread of a
    /// GPU lane, or on another thread. In [`started`](Observer::started), this is where the function runs.
    ///
    /// Another thread is identified by the number of its ring in the engine's recorder. It has this number in the
    /// recorder's traces, too, unless it has taken over the ring of a thread that has ended.
    #[must_use]
    pub fn place(&self) -> Place {
        self.details.place()
    }

    /// Returns a name for the [place](Self::place): `cpu 0` for the first worker of the lane `cpu`, the name of a GPU
    /// lane, or the name of another thread, which is empty if the thread has none.
    #[must_use]
    pub fn place_name(&self) -> String {
        self.details.place_name()
    }

    /// Returns the variables that the operation reads and mutates, each once. They determine its dependencies: on each
    /// variable, an operation that reads waits for the last earlier operation that mutates, and one that mutates also
    /// waits for all readers since then.
    ///
    /// The list is complete when the operation is [pushed](Observer::pushed) and when its function
    /// [starts](Observer::started). It omits variables that the operation has released: a GPU operation releases its
    /// variables when it is issued; any other operation releases them as soon as it has [ended](Observer::ended).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{Engine, trace::{ObservedOp, Observer}};
    ///
    /// struct Edges;
    /// impl Observer for Edges {
    ///     fn pushed(&self, op: &ObservedOp<'_>) {
    ///         for access in op.accesses() {
    ///             println!("{} (priority {}): {:?} of {}", op.name, op.priority, access.mode, access.name.as_str());
    ///         }
    ///     }
    /// }
    ///
    /// let engine = Engine::builder().workers(1).observer(Edges).build()?;
    /// let image = engine.var(0).named("image");
    /// engine.op("load").priority(5).push(image.write(), |image| *image = 7)?; // load (priority 5): Write of image
    /// engine.wait_for_all()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn accesses(&self) -> Vec<ObservedAccess> {
        self.details.accesses()
    }
}

impl fmt::Debug for ObservedOp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObservedOp")
            .field("id", &self.id)
            .field("name", &self.name)
            .field("location", &self.location)
            .field("internal", &self.internal)
            .field("priority", &self.priority)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}
