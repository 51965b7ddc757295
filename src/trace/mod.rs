//! Traces: what is recorded while operations are pushed and run, and what can be made of it afterwards.
//!
//! The [`recorder`] collects [events](event) in a ring for each thread. The [`history`] of each operation is put
//! together from these later, on the thread that asks for it.

mod chrome;
pub(crate) mod dump;
pub(crate) mod event;
mod export;
mod graph;
pub(crate) mod history;
pub(crate) mod observer;
pub(crate) mod order;
mod perfetto;
pub(crate) mod profile;
pub(crate) mod recorder;
pub(crate) mod report;
pub(crate) mod stats;
#[cfg(feature = "metrics")]
pub(crate) mod to_metrics;
#[cfg(feature = "tracing")]
pub(crate) mod to_tracing;
pub(crate) mod watchdog;
