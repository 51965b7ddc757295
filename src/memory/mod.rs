//! Memory for operations: epochs, the pool of records, and the stack of its free batches.

pub(crate) mod epoch;
pub(crate) mod free_list;
pub(crate) mod pool;
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(crate) mod registry;
