//! The devices on which operations run, and the engine's interface to them.
//!
//! Each device with memory of its own is represented by a [`Driver`](driver::Driver). Each of the device's lanes has a
//! [`Stream`](driver::Stream): a queue of commands that the device executes without the host. There are two drivers:
//! [`simulated`], which needs no hardware, and `cuda`, in builds with the feature `cuda`.
//!
//! What a program may use of this folder is in [`gpu`](crate::gpu). The folder is not a crate of its own, for two
//! reasons. Its drivers use `sync`, which models replace, so `sync` would have to be a crate as well. And the engine
//! uses some fifty items that no program may see, such as [`Stream::copy`](driver::Stream::copy), whose safety
//! conditions only the engine can meet.
//!
//! # Who may touch what
//!
//! | what | who |
//! |---|---|
//! | a driver | any thread, at any time |
//! | a stream | one thread at a time: the thread of its lane; in the naive engine, and for imported streams, the thread that runs an operation using the stream |
//! | a block, and the memory in it | the owner that took the block from the pool, until the block is returned; the device, while commands that use the memory are in flight |
//!
//! # Order
//!
//! Commands of one stream take effect in the order in which they were issued. The device orders commands of two streams
//! only if one stream waits for an event recorded in the other. The host sees what commands have written once
//! [`Stream::passed`](driver::Stream::passed) has returned the number of a mark behind them.
//!
//! # Edges
//!
//! [`mark`](crate::sync::edge::mark), [`event`](crate::sync::edge::event).
//!
//! # After a loss
//!
//! After an error that [is a loss](crate::error::DeviceError::is_lost), later commands and queries on all streams of
//! the device return a loss, and so do allocations. Once [`Driver::abandon`](driver::Driver::abandon) has returned, no
//! block that the device may still touch is reused. Blocks can still be returned to the pool. The head of `cuda` states
//! what a lost GPU may still do.

mod block_pool;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub(crate) mod driver;
pub(crate) mod gpus;
pub(crate) mod memory;
pub(crate) mod running_kernel;
pub mod simulated;
pub(crate) mod stream;
pub(crate) mod timeline;
