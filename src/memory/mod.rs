//! Memory for operations: epochs, the record pool with its caches and batches, and the registry of records.

pub(crate) mod epoch;
pub(crate) mod free_list;
pub(crate) mod pool;
pub(crate) mod records;
pub(crate) mod registry;
