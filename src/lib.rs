//! A dependency engine: a program pushes operations and names the variables each reads and mutates; the engine runs
//! conflicting ones in push order and everything else in parallel, on pinned work-stealing workers.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = raddle::Engine::builder().build()?;
//! let image = engine.var(vec![1u8, 2, 3, 4]);
//! let (bright, sum) = (engine.var(Vec::new()), engine.var(0u32));
//!
//! engine.op("load").push(image.write(), |image| image.extend([5, 6]))?;
//! // These two read what `load` wrote; they run side by side.
//! engine.op("brighten").push((image.read(), bright.write()), |(image, bright)| {
//!     *bright = image.iter().map(|pixel| pixel * 10).collect();
//! })?;
//! engine.op("sum").push((image.read(), sum.write()), |(image, sum)| {
//!     *sum = image.iter().map(|&pixel| u32::from(pixel)).sum();
//! })?;
//! // This one waits for both.
//! let report = engine.op("report").submit((bright.read(), sum.read()), |(bright, sum)| {
//!     format!("{bright:?} from {sum}")
//! })?;
//! assert_eq!(report.wait()?, "[10, 20, 30, 40, 50, 60] from 21");
//! # Ok(())
//! # }
//! ```
//!
//! # What is promised
//!
//! * Two operations that name the same variable, at least one to mutate it, run one after the other, in push order.
//! * Any number of threads may push at once, operations included. A push is atomic over all its variables: there is one
//!   order of all pushes that every variable agrees with, and it respects each thread's own order and real time. No set
//!   of pushes can deadlock. The algorithm of a push is lock-free; the README says what is outside of it.
//! * What an operation wrote is visible to every operation that comes after it by a variable, and to whoever waited for it.
//! * An operation that fails, by an error, a panic or a lost [`Completion`], makes the variables it mutates *failed*;
//!   operations that name a failed variable are skipped and pass the same [`OpError`] on, until [`Engine::clear_error`] or
//!   an operation that overwrites it. Every wait for such a variable returns the error.
//! * Every function pushed runs once or is dropped once.
//!
//! # Levels
//!
//! [`Var`] and [`OpBuilder::push`] give operations references to values, checked by the compiler. [`Token`],
//! [`OpBuilder::push_sync`] and [`OpBuilder::push_async`] order operations over things outside the engine. Both may be
//! mixed in one operation. [`Operator`]s are operations made once and pushed often. [`OpBuilder::on`] and
//! [`OpBuilder::launch`] are for operations of GPUs, over [`DeviceVec`] and [`PinnedVec`]; the guide has a
//! [chapter](guide::gpus) on them.

mod builder;
mod completion;
mod context;
mod core;
mod device;
mod engine;
mod error;
mod failures;
mod fork;
mod gpu;
mod handle;
mod kind;
mod name;
mod op_builder;
mod operator;
mod outcome;
mod panics;
mod progress;
mod property;
mod roll;
mod scheduler;
mod spares;
mod stack;
mod sync;
mod tally;
mod task;
mod threads;
mod topology;
mod tracker;
mod trouble;
mod typed;
mod variable;
mod waits;
mod wakers;

pub use builder::Builder;
pub use completion::Completion;
pub use context::RunContext;
/// The crate that [`CudaGpu`] is made of, in the version that it takes.
#[cfg(feature = "cuda")]
pub use cudarc;
#[cfg(feature = "cuda")]
pub use device::CudaGpu;
pub use device::{
    Context, DeviceError, DeviceVec, GpuDriver, PinnedVec,
    simulated::{self, SimulatedGpu, SimulatedStream},
};
pub use engine::{Engine, Shutdown};
pub use error::{BoxError, BuildError, Cause, OpError, PushError, ShutdownError, WaitError};
pub use gpu::{GpuStream, ImportedStream};
pub use handle::{OpHandle, VarWait};
pub use kind::{EngineKind, Placement};
pub use name::Name;
pub use op_builder::{OpBuilder, Report};
pub use operator::Operator;
pub use property::Property;
pub use scheduler::IdlePolicy;
pub use threads::unpinned;
pub use typed::{Accesses, Read, Var, Write};
pub use variable::Token;

/// Topics that are too long for the documentation of one item.
#[cfg(any(doc, doctest))]
pub mod guide {
    #[doc = include_str!("guide/gpus.md")]
    pub mod gpus {}
}

/// The program in the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// What the models of `loom-tests` look at, and what stops threads in `tests/faults.rs`. Exists only in their builds.
#[cfg(any(raddle_loom, raddle_shuttle, raddle_pause))]
#[doc(hidden)]
#[allow(missing_docs)]
pub mod internals {
    #[cfg(raddle_pause)]
    pub use crate::sync::pause::{Point, Stop, passings};
    #[cfg(any(raddle_loom, raddle_shuttle))]
    pub use crate::{
        fork::Slots,
        outcome::{Outcome, Waiter},
        progress::Progress,
        scheduler::{DEFAULT_BAND, Injector, Lane, LaneOptions, Sleep, Worker, band_of},
        spares::Spares,
        sync::{
            epoch::Flavour,
            weaken::{Step, remove},
        },
        tally::{Tally, Ticket, Waited},
        tracker::{Hold, Mode, Node, Op, OpRef, Pushed, ReadyList, Stack, Stalled, VarQueue, complete, end, push},
    };
    #[cfg(raddle_loom)]
    pub use crate::{
        gpu::marks::{Marks, Recorded, Timeline},
        trouble::{Trouble, Turns},
    };
}
