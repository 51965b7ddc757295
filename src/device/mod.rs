//! The devices that operations run on, and what the engine asks of one.
//!
//! A device with memory of its own is behind a [`Driver`](driver::Driver), and each of its lanes has one [`Stream`](driver::Stream), a queue of
//! commands that the device works off by itself. There are two: [`simulated`], which needs no hardware, and `cuda`, in
//! builds with that feature.
//!
//! # Who may touch what
//!
//! | what | who |
//! |---|---|
//! | a driver | any thread, at any time |
//! | a stream | one thread at a time: that of its lane; in the naive engine, and for streams that a program has imported, whoever runs an operation that uses it |
//! | a block, and the memory in it | whoever has taken it from the pool, until it is given back; while commands on it are under way, the device |
//!
//! # Order
//!
//! Commands of one stream take effect in the order in which they were issued. Commands of two streams have an order
//! only where one waits for an event that the other has recorded. The host sees what commands have done once
//! [`Stream::passed`](driver::Stream::passed) has given the number of a mark made after them.
//!
//! # Edges
//!
//! | edge | release side | acquire side | hands over |
//! |---|---|---|---|
//! | `mark` | the device, when it gets to a mark | [`Stream::passed`](driver::Stream::passed) | what the commands before the mark have written |
//! | `event` | the device, when it gets to a recorded event | the device, in a stream that waits for it | the same, to commands behind the wait |
//!
//! # After a loss
//!
//! An error that [is one](crate::DeviceError::is_lost) is given for good: from then on every call of every stream of the
//! device gives it, and allocations are refused. When [`Driver::abandon`](driver::Driver::abandon) has returned, the device touches no memory any
//! more (see `cuda` for what is not known of hardware). Blocks can still be given back.

pub(crate) mod callback;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub(crate) mod driver;
pub(crate) mod gpus;
pub(crate) mod memory;
mod pool;
pub mod simulated;
pub(crate) mod stream;
pub(crate) mod timeline;
