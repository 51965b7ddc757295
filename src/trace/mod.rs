//! Seeing what an engine does: recorded traces, statistics, dumps of what is pending, watchdogs and observers.
//!
//! | to see | use |
//! |---|---|
//! | everything that has happened, operation by operation | a [`Recorder`], which returns a [`Trace`] |
//! | whether conflicting operations ran in push order | [`Trace::check_order`] |
//! | counts and times, by name | [`Stats`], from [`Engine::stats`](crate::Engine::stats) |
//! | what is pending, and what each operation waits for | a [`Dump`], from [`Engine::dump`](crate::Engine::dump) |
//! | what takes too long | a [`Watchdog`] |
//! | each step, as it is taken | an [`Observer`] |
//!
//! The guide has chapters on [seeing what happened](crate::guide::seeing) and on [hangs](crate::guide::hangs).

pub(crate) mod dump;
pub(crate) mod log;
pub(crate) mod log_entries;
pub(crate) mod observer;
mod per_thread;
pub(crate) mod profile;
mod profile_file;
pub(crate) mod recorder;
pub(crate) mod stats;
#[cfg(test)]
mod tests;
#[cfg(feature = "metrics")]
pub(crate) mod to_metrics;
#[cfg(feature = "tracing")]
pub(crate) mod to_tracing;
pub(crate) mod watchdog;
mod writers;

pub use dump::{Dump, OpState, PendingAccess, PendingOp, PendingUnits, PendingVar, ThreadWait, WaitKind};
pub use observer::{ObservedAccess, ObservedOp, Observer};
#[doc(inline)]
pub use raddle_trace::{
    AccessMode, CriticalStep, OpId, OpStats, OrderReport, OrderViolation, Outcome, Place, Run, Times, Trace, TracedOp,
    VarId,
};
pub use recorder::Recorder;
pub use stats::{LaneStats, Stats, WorkerStats};
#[cfg(feature = "metrics")]
pub use to_metrics::MetricsObserver;
#[cfg(feature = "tracing")]
pub use to_tracing::TracingObserver;
pub use watchdog::{Problem, Watchdog, WatchdogReport};
