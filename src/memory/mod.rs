//! Memory for operations: epochs, the record pool with its caches and batches, the slabs in which records lie, their
//! marks, and the keeper, which gives free records back. Also the last values of variables that publish them.

pub(crate) mod epoch;
pub(crate) mod free_list;
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(crate) mod keeper;
pub(crate) mod latest;
pub(crate) mod marks;
pub(crate) mod pool;
pub(crate) mod records;
pub(crate) mod slabs;
