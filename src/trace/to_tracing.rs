//! An observer that reports to the crate `tracing`.

use std::cell::RefCell;

use tracing::{Level, span::EnteredSpan};

use raddle_trace::{OpId, Outcome};

use super::observer::{ObservedOp, Observer};

/// An observer that reports an engine's operations to the crate [`tracing`](https://docs.rs/tracing).
///
/// While an operation's function runs, its thread is in a span `operation` with the fields `name`, `pushed_at`,
/// `worker` (such as `cpu 0`, see [`ObservedOp::place_name`]) and `priority`, so the function's events and spans belong
/// to the operation. The end of an operation is an event with the fields `name` and `pushed_at`. Its level is `DEBUG`
/// if the operation succeeded, `WARN` if it failed, and `INFO` if it was skipped. A push is an event of the level
/// `TRACE` with two more fields, `lane` and `priority`. The target of all these is `raddle`.
///
/// The engine's own operations, such as waits, are not reported. The subscriber is called inside an [`Observer`], so it
/// must neither push to an engine nor wait for one.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = raddle::Engine::builder().workers(1).observer(raddle::trace::TracingObserver::new()).build()?;
/// engine.op("load").push((), |()| tracing::info!("loading"))?; // in the span `operation{name="load" worker="cpu 0" …}`
/// engine.wait_for_all()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct TracingObserver {
    _private: (),
}

impl TracingObserver {
    /// Returns an observer, for [`EngineBuilder::observer`](crate::EngineBuilder::observer).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

const TARGET: &str = "raddle";

thread_local! {
    /// The spans of the operations whose functions are running on this thread.
    static RUNNING: RefCell<Vec<(OpId, EnteredSpan)>> = const { RefCell::new(Vec::new()) };
}

/// Leaves an operation's span if its function is running on this thread.
fn leave(op: OpId) {
    let left = RUNNING.try_with(|running| {
        let mut running = running.borrow_mut();
        let place = running.iter().rposition(|(id, _)| *id == op)?;
        Some(running.remove(place))
    });
    // Dropped after the borrow of the list has ended, since the drop calls the subscriber.
    drop(left);
}

impl Observer for TracingObserver {
    fn pushed(&self, op: &ObservedOp<'_>) {
        if !op.internal {
            tracing::event!(
                target: TARGET,
                Level::TRACE,
                name = op.name,
                pushed_at = %op.location,
                lane = op.lane(),
                priority = op.priority,
                "pushed"
            );
        }
    }

    fn started(&self, op: &ObservedOp<'_>) {
        if op.internal {
            return;
        }
        let span = tracing::info_span!(
            target: TARGET,
            "operation",
            name = op.name,
            pushed_at = %op.location,
            worker = op.place_name(),
            priority = op.priority,
        );
        let span = span.entered();
        // If the thread is ending and its thread-locals are gone, the span is left immediately.
        let _ = RUNNING.try_with(|running| running.borrow_mut().push((op.id, span)));
    }

    fn returned(&self, op: &ObservedOp<'_>) {
        leave(op.id);
    }

    fn ended(&self, op: &ObservedOp<'_>, outcome: Outcome) {
        if op.internal {
            return;
        }
        match outcome {
            Outcome::Succeeded => {
                tracing::event!(target: TARGET, Level::DEBUG, name = op.name, pushed_at = %op.location, "succeeded");
            }
            Outcome::Failed => {
                tracing::event!(target: TARGET, Level::WARN, name = op.name, pushed_at = %op.location, "failed");
            }
            _ => {
                tracing::event!(target: TARGET, Level::INFO, name = op.name, pushed_at = %op.location, "skipped");
            }
        }
        leave(op.id);
    }
}
