//! The threads of an engine.

pub(crate) mod pool;
mod spares;
mod thread_list;

#[cfg(any(raddle_loom, raddle_shuttle))]
pub use spares::SpareThreads;
