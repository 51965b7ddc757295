//! Memory of operations: epochs, the pool of records, and the stack that keeps its batches.

pub(crate) mod epoch;
pub(crate) mod free_list;
pub(crate) mod pool;
