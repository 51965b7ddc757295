//! Observers: program code that an engine calls while operations are pushed and run.

use std::{panic::Location, time::Duration};

use super::{
    event::{OpId, Outcome},
    recorder::Recorder,
};

/// Program code that an engine calls at each step of an operation, on the thread that takes the step. See
/// [`EngineBuilder::observer`](crate::EngineBuilder::observer).
///
/// The calls are made immediately, between the steps of the engine, so they should be quick. An observer must neither
/// push nor wait: such calls return errors. A panic is logged and has no other effect. Calls for one operation come in
/// the order of these methods, except that `returned` may come after `ended`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
/// use raddle::{Engine, ObservedOp, Observer, Outcome};
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

    /// Called when the operation has become ready, and is about to enter a lane. Not called for operations that run
    /// inside their push.
    fn ready(&self, op: &ObservedOp<'_>) {
        let _ = op;
    }

    /// Called when the function of the operation is about to be called by this thread.
    fn started(&self, op: &ObservedOp<'_>) {
        let _ = op;
    }

    /// Called when the function has returned, on the thread that called it, if the operation does not end at that
    /// point: it is asynchronous, has children, or was issued to a GPU. The operation may have ended already.
    fn returned(&self, op: &ObservedOp<'_>) {
        let _ = op;
    }

    /// Called when the operation ends: operations behind it may run once this returns. A skipped operation ends without
    /// having started.
    fn ended(&self, op: &ObservedOp<'_>, outcome: Outcome) {
        let _ = (op, outcome);
    }
}

/// An operation, as an [`Observer`] sees it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ObservedOp<'a> {
    /// Identifies the operation within its engine, and in traces of the engine's recorder.
    pub id: OpId,
    /// The operation's name, which is empty if it has none.
    pub name: &'a str,
    /// Where the operation was pushed.
    pub location: &'static Location<'static>,
    /// Whether the operation is one of the engine's own, such as a wait, a deletion, or the poll of a future.
    pub internal: bool,
    pub(crate) recorder: &'a Recorder,
}

impl ObservedOp<'_> {
    /// Returns the time since the operation was pushed. The first call for an engine may take 10 ms, to measure the
    /// rate of the clock.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.recorder.age(self.id)
    }
}
