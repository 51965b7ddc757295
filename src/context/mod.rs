//! What the calling thread is doing for engines: its worker, its ready loops, and where it is counted as running.
//!
//! This layer owns the state of one thread. Only that thread touches it, except where a file says otherwise. It answers
//! questions such as "which worker does this thread have?", and gives a worker up or takes it back.
//!
//! It may name `op` and the file [`engine::core`](crate::engine::core). It runs no operation: it hands deferred
//! operations to callers, or calls a method of `Core`.

pub(crate) mod bounds;
pub(crate) mod core_ref;
pub(crate) mod ready_loop;
pub(crate) mod running;
pub(crate) mod worker_thread;
