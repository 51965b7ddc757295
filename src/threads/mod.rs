//! The threads of an engine, and the lists that manage them.

pub(crate) mod aside;
pub(crate) mod pool;
pub(crate) mod shuffler;
mod spares;
mod thread_list;

#[cfg(any(raddle_loom, raddle_shuttle))]
pub use {
    aside::{Aside, Laid, Stopped},
    spares::SpareThreads,
};
