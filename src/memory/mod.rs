//! Memory for operations: epochs, the record pool with its caches and batches, the slabs in which records lie, and their marks.

pub(crate) mod epoch;
pub(crate) mod free_list;
pub(crate) mod marks;
pub(crate) mod pool;
pub(crate) mod records;
pub(crate) mod slabs;
