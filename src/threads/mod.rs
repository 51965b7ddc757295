//! An engine's threads: their workers, and how the threads start, wait and end.

pub(crate) mod aside;
pub(crate) mod shuffler;
mod spares;
pub(crate) mod thread_list;
pub(crate) mod thread_pool;

#[cfg(any(raddle_loom, raddle_shuttle))]
pub use {
    aside::{Aside, Laid, Stopped},
    spares::SpareThreads,
};
