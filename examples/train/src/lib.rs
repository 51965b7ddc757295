//! A small tensor library on raddle, and a net trained with it. The last column shows what each module's part is in the
//! engine.
//!
//! | module | holds | in the engine |
//! |---|---|---|
//! | [`storage`] | pooled memory | a variable for each piece; the drop of its value returns the piece to a pool |
//! | [`runtime`] | a device, with random generators and temporary space | variables that operations mutate |
//! | [`array`](mod@array) | arrays whose operations are lazy | one push for each operation, except copies between host and GPU |
//! | [`task`] | the description of an operation on arrays | the accesses of a push, and slices for its function |
//! | `cuda`, with the feature `cuda` | products by cuBLAS, and copies | operations that issue work on a stream |
//! | [`operator`] | layers with gradients | no variables: a description |
//! | [`simple`] | functions of one or two values | no variables: descriptions of a few lines each |
//! | [`symbol`] | graphs without values | nothing |
//! | [`executor`] | graphs bound to arrays, in planned memory | operators of the engine, created once and pushed often |
//! | [`tape`] | gradients without a graph | one push for each operation |
//! | `gradient` | the backward pass of graphs and tapes | nothing |
//! | [`data`] | batches that are made in advance | operations that fill a ring of slots |
//! | [`net`], [`training`] | the net, and its training | a step is pushed as a whole, with priorities and a token for failures |
//! | `exchange`, with the feature `mpi` | sums across processes | futures, and a thread that polls collectives |
//! | [`report`] | reports on a training run | the overlap of operations, measured in a trace |
//!
//! Arrays live in host memory, on a simulated GPU or, with the feature `cuda`, on a CUDA device. A CUDA device only
//! copies and multiplies arrays: calls for other operations return [`Error::Unavailable`].
#![warn(unreachable_pub)]

pub mod array;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod data;
pub mod error;
#[cfg(feature = "mpi")]
pub mod exchange;
pub mod executor;
mod gradient;
pub mod kernels;
pub mod net;
pub mod operator;
mod plan;
pub mod random;
pub mod report;
pub mod runtime;
pub mod simple;
pub mod storage;
pub mod symbol;
pub mod tape;
pub mod task;
pub mod training;

/// The idea behind each module, with programs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod ideas {}

pub use array::Array;
pub use error::{Error, Misfit};
pub use executor::{Arrays, Executor, Gradients};
pub use operator::{Operator, Signature};
pub use runtime::Runtime;
pub use symbol::Symbol;
pub use tape::Tape;
pub use task::{Mode, Out, Task, View, Views};

/// The sizes of an array's axes.
pub type Shape = Vec<usize>;

/// Returns the number of values in an array of this shape, or `usize::MAX` if the number is larger.
pub fn volume(shape: &[usize]) -> usize {
    if shape.contains(&0) { 0 } else { shape.iter().copied().fold(1, usize::saturating_mul) }
}
