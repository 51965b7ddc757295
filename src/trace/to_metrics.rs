//! An observer that reports to the crate `metrics`.

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

use metrics::{counter, gauge, histogram};

use raddle_trace::{OpId, Outcome};

use super::observer::{ObservedOp, Observer};

/// An observer that reports an engine's operations to the crate [`metrics`](https://docs.rs/metrics).
///
/// | metric | kind | labels |
/// |---|---|---|
/// | `raddle_operations_total` | counter of operations that have ended | `operation`: the name; `outcome`: `succeeded`, `failed` or `skipped` |
/// | `raddle_operations_pending` | gauge of operations that were pushed and have not ended | |
/// | `raddle_operation_wait_seconds` | histogram of the time from the push to the start | `operation`; `priority` |
/// | `raddle_operation_run_seconds` | histogram of the time from the start until the function returned | `operation`; `worker`, such as `cpu 0`: see [`ObservedOp::place_name`] |
///
/// The engine's own operations, such as waits, are not reported. Each name is a label, so a program should use few
/// names. Priorities that the engine treats as equal share one label. The recorder of `metrics` is called inside an
/// [`Observer`], so it must neither push to an engine nor wait for one.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // The program first installs an exporter, such as the one in `metrics-exporter-prometheus`.
/// let engine = raddle::Engine::builder().workers(1).observer(raddle::trace::MetricsObserver::new()).build()?;
/// engine.op("load").push((), |()| {})?;
/// engine.wait_for_all()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct MetricsObserver {
    _private: (),
}

impl MetricsObserver {
    /// Returns an observer, for [`EngineBuilder::observer`](crate::EngineBuilder::observer).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

thread_local! {
    /// When the functions running on this thread were called.
    static RUNNING: RefCell<Vec<(OpId, Instant)>> = const { RefCell::new(Vec::new()) };
}

/// Removes an operation's function from those running on this thread and returns how long it has run. Returns `None` if
/// the function is not running on this thread.
fn leave(op: OpId) -> Option<Duration> {
    let started = RUNNING.try_with(|running| {
        let mut running = running.borrow_mut();
        let place = running.iter().rposition(|(id, _)| *id == op)?;
        Some(running.remove(place).1)
    });
    started.ok().flatten().map(|started| started.elapsed())
}

fn record_run(op: &ObservedOp<'_>) {
    if let Some(time) = leave(op.id) {
        let (name, worker) = (op.name.to_owned(), op.place_name());
        histogram!("raddle_operation_run_seconds", "operation" => name, "worker" => worker).record(time);
    }
}

impl Observer for MetricsObserver {
    fn pushed(&self, op: &ObservedOp<'_>) {
        if !op.internal {
            gauge!("raddle_operations_pending").increment(1);
        }
    }

    fn started(&self, op: &ObservedOp<'_>) {
        if !op.internal {
            let (name, priority) = (op.name.to_owned(), op.priority.to_string());
            histogram!("raddle_operation_wait_seconds", "operation" => name, "priority" => priority).record(op.age());
            let _ = RUNNING.try_with(|running| running.borrow_mut().push((op.id, Instant::now())));
        }
    }

    fn returned(&self, op: &ObservedOp<'_>) {
        record_run(op);
    }

    fn ended(&self, op: &ObservedOp<'_>, outcome: Outcome) {
        if op.internal {
            return;
        }
        record_run(op);
        let outcome = match outcome {
            Outcome::Succeeded => "succeeded",
            Outcome::Failed => "failed",
            _ => "skipped",
        };
        counter!("raddle_operations_total", "operation" => op.name.to_owned(), "outcome" => outcome).increment(1);
        gauge!("raddle_operations_pending").decrement(1);
    }
}
