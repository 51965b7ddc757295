//! How operations are pushed and run, how threads wait for them, and how an engine shuts down.

pub(crate) mod acquire;
pub(crate) mod cancellable;
mod complete;
pub(crate) mod core;
mod dispatch;
mod disposition;
pub(crate) mod ending;
mod epilogue;
pub(crate) mod fault;
pub(crate) mod fork;
pub(crate) mod frame;
pub(crate) mod group;
pub(crate) mod limited_job;
pub(crate) mod push;
pub(crate) mod ready_loop;
pub(crate) mod result_job;
pub(crate) mod right;
mod run;
mod shutdown;
pub(crate) mod spec;
pub(crate) mod task;
pub(crate) mod variable;
mod variables;
mod wait;
pub(crate) mod waits;
pub(crate) mod worker_thread;
pub(crate) mod workers;
