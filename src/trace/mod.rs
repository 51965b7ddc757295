//! Traces: what is recorded while operations are pushed and run, and how it is used afterwards.
//!
//! The [`recorder`] collects [events](event) in a ring for each thread. Each operation's [`history`] is assembled from
//! these later, on the thread that requests it. Dumps and watchdogs need no recorder: they
//! examine what is pending.

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
mod writers;
