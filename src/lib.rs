//! A dependency engine: a program pushes operations and names the variables that each one reads and mutates. The engine
//! runs conflicting operations in push order. All others may run in parallel, on work-stealing workers, which are
//! pinned to cores by default.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = raddle::Engine::builder().build()?;
//! let image = engine.var(vec![1u8, 2, 3, 4]);
//! let (bright, sum) = (engine.var(Vec::new()), engine.var(0u32));
//!
//! engine.op("load").push(image.write(), |image| image.extend([5, 6]))?;
//! // These two read what `load` wrote, and may run in parallel.
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
//! # Guarantees
//!
//! * Two operations that name the same variable run one after the other, in push order, if at least one of them mutates
//!   it.
//! * Any number of threads may push concurrently, even inside operations. A push is atomic over all its variables: all
//!   variables agree on a single order of pushes, consistent with real time and with each thread's own push order. No
//!   set of pushes can deadlock. The push algorithm is lock-free; the [guide](guide::promises) lists the exceptions.
//! * An operation's writes are visible to every operation that must run after it and to every thread that has waited
//!   for it.
//! * An operation that fails, for example with an error, a panic or a lost [`Completion`], marks the variables that it
//!   mutates as *failed*. Later operations that name a failed variable are skipped by default and propagate the same
//!   [`OpError`], until [`Engine::clear_error`] clears the failure or an operation overwrites the variable. Every wait
//!   for a failed variable returns the error.
//! * Each pushed function either runs once or is dropped once without running.
//!
//! # Overview
//!
//! With [`Var`]s, operations receive references to values, and the compiler checks how the references are used.
//! [`Token`]s order operations on things outside the engine. An operation may name variables of both kinds. If an
//! operation declares [`cx()`], its function receives the operation's [`OpContext`]. The documentation of [`OpBuilder`]
//! has a table of all push methods. An [`Operator`] is created once and may be pushed any number of times.
//! [`OpBuilder::on`] selects a GPU, and with [`stream()`] the function receives a stream there. GPU operations may use
//! [values in device memory](gpu::DeviceVec). The guide has a [chapter](guide::gpus) on GPUs.
//!
//! The names that most programs use are at the root. The others are in modules: [`trace`] for seeing what an engine
//! does, [`replay`] for doing it again, [`gpu`] for devices, [`error`] for the parts of errors, [`access`] for the
//! types of declarations, and [`system`] for the machine.

#[cfg(not(target_has_atomic = "64"))]
compile_error!("raddle needs atomic operations on 64 bits, which this target does not have");
#[cfg(all(feature = "cuda", not(target_pointer_width = "64")))]
compile_error!("the feature `cuda` needs a 64-bit target, as the CUDA driver does");

mod api;
mod context;
mod device;
mod engine;
pub mod error;
mod future;
pub mod gpu;
mod group;
mod memory;
mod notify;
mod observe;
mod op;
mod scheduler;
mod sync;
pub mod system;
mod testing;
mod threads;
pub mod trace;
mod tracker;
mod values;
mod wait;

pub use api::{
    accesses::{Accesses, cx, each, stream},
    acquire::Acquire,
    builder::EngineBuilder,
    cancelled::Cancelled,
    completion::{Completion, completion},
    deferral::{Deferral, deferral},
    engine::{Engine, Shutdown, WeakEngine},
    future_context::FutureContext,
    group::{CancelOnDrop, Group},
    guarded::{Guarded, GuardedMut, GuardedRef},
    guards::{ReadGuard, WriteGuard},
    handle::{OpHandle, VarWait},
    op_builder::OpBuilder,
    op_context::OpContext,
    operator::{Admitted, Conflated, Operator},
    panic_hook::install_panic_hook,
    parts::{Line, Part, Parts, Plane, ReadPart, ReadPartGuard, Tiles, WritePart, WritePartGuard},
    published::Published,
    resource::Resource,
    scope::{Scope, ScopedHandle},
    scoped_var::{ScopedRead, ScopedVar, ScopedWrite},
    tile::{TileMut, TileRef},
    token::Token,
    var::{Commute, Read, Var, Write},
};
pub use context::worker_thread::unpinned;
#[doc(no_inline)]
pub use error::{OpError, PushError, WaitError};
#[doc(inline)]
pub use raddle_trace::Name;
pub use scheduler::IdlePolicy;
pub use values::{device::Device, kind::EngineKind, property::Property};
pub use wait::blocking;

#[cfg(feature = "derive")]
pub use raddle_derive::Accesses;

/// What operations declare: the types behind [`Accesses`].
///
/// A program seldom names these types. [`Accesses`] itself, [`cx`], [`stream`](crate::stream()),
/// [`completion`](crate::completion()), [`deferral`](crate::deferral()) and [`each`] are at the crate's root.
pub mod access {
    pub use crate::api::accesses::{AccessRefs, Cx, OnStream, Refs, ScopedAccesses};
    #[doc(no_inline)]
    pub use crate::api::accesses::{Accesses, cx, each};
    pub use crate::api::{completion::Completes, deferral::Defers};
}

pub mod chosen {
    //! The variables of an [operator](crate::OpBuilder::operator_on) that are chosen at each push.
    //!
    //! ```
    //! # fn main() -> Result<(), Box<dyn std::error::Error>> {
    //! # let engine = raddle::Engine::builder().workers(1).build()?;
    //! use raddle::chosen;
    //!
    //! let (names, counts) = (["a", "b"].map(|name| engine.var(name)), [0, 0].map(|count| engine.var(count)));
    //! let choice = (chosen::read::<&str>(), chosen::write::<usize>());
    //! let add = engine.op("add").operator_on(choice, (), |(name, count), (), by: usize| *count += name.len() * by)?;
    //! add.push_on((&names[0], &counts[1]), 3)?;
    //! assert_eq!(engine.get(&counts[1])?, 3);
    //! # Ok(())
    //! # }
    //! ```
    pub use crate::api::{
        chosen::{
            Chosen, ChosenRead, ChosenToken, ChosenWrite, commute, commutes, overwrite, overwrites, read, reads, write,
            writes,
        },
        operator::{Newest, On, Parameters, With},
    };
}

/// The order of pushes as data: logs of what an engine runs, and replays of them.
///
/// A [`Log`](replay::Log) records the runs of operators with their arguments and their places in the one order of
/// pushes, in memory or in a file. A [`Replay`](replay::Replay) pushes them again, in the same order, on an engine of
/// any kind. The [guide](crate::guide::replay) has a chapter on replays.
pub mod replay {
    pub use crate::{
        api::replay::{Replay, ReplayError},
        trace::{
            log::Log,
            log_entries::{LogEntries, LogEntry, LoggedAccess},
        },
    };
}

/// Items used by the expansion of `#[derive(Accesses)]`. Programs must not use them directly.
#[cfg(feature = "derive")]
#[doc(hidden)]
pub mod __derive {
    pub use crate::api::accesses::sealed::{Derived, Kind, List, Share};
}

/// The guide: a page for each topic that is too long for the documentation of a single item. The repository's
/// `examples/train` is a tensor library on variables, whose README shows the idea behind each of its parts.
#[cfg(any(doc, doctest))]
pub mod guide {
    #[doc = include_str!("guide/first_steps.md")]
    pub mod first_steps {}
    #[doc = include_str!("guide/typed_variables.md")]
    pub mod typed_variables {}
    #[doc = include_str!("guide/operators.md")]
    pub mod operators {}
    #[doc = include_str!("guide/pushing_from_operations.md")]
    pub mod pushing_from_operations {}
    #[doc = include_str!("guide/children.md")]
    pub mod children {}
    #[doc = include_str!("guide/scopes.md")]
    pub mod scopes {}
    #[doc = include_str!("guide/tokio_service.md")]
    pub mod tokio_service {}
    #[doc = include_str!("guide/asynchronous.md")]
    pub mod asynchronous {}
    #[doc = include_str!("guide/bounding_work.md")]
    pub mod bounding_work {}
    #[doc = include_str!("guide/resources.md")]
    pub mod resources {}
    #[doc = include_str!("guide/commuting.md")]
    pub mod commuting {}
    #[doc = include_str!("guide/failures.md")]
    pub mod failures {}
    #[doc = include_str!("guide/cancellation.md")]
    pub mod cancellation {}
    #[doc = include_str!("guide/life_cycle.md")]
    pub mod life_cycle {}
    #[doc = include_str!("guide/on_your_machine.md")]
    pub mod on_your_machine {}
    #[doc = include_str!("guide/latency.md")]
    pub mod latency {}
    #[doc = include_str!("guide/gpus.md")]
    pub mod gpus {}
    #[doc = include_str!("guide/seeing.md")]
    pub mod seeing {}
    #[doc = include_str!("guide/hangs.md")]
    pub mod hangs {}
    #[doc = include_str!("guide/replay.md")]
    pub mod replay {}
    #[doc = include_str!("guide/slow.md")]
    pub mod slow {}
    #[doc = include_str!("guide/promises.md")]
    pub mod promises {}
    #[doc = include_str!("guide/verification.md")]
    pub mod verification {}
    #[doc = include_str!("guide/coming_from.md")]
    pub mod coming_from {}
    #[doc = include_str!("guide/from_c.md")]
    pub mod from_c {}
}

/// Tests the program in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Items for the models in `loom-tests` and the tests in `testkit/tests/faults.rs`. The module exists only in builds
/// for these models and tests.
#[cfg(any(raddle_loom, raddle_shuttle, raddle_pause))]
#[doc(hidden)]
#[allow(missing_docs)]
pub mod internals {
    #[cfg(raddle_shuttle)]
    pub use crate::sync::announced;
    #[cfg(raddle_pause)]
    pub use crate::testing::pause::{Point, Stop, passings};
    #[cfg(any(raddle_loom, raddle_shuttle))]
    pub use crate::{
        device::timeline::{DeviceUses, RecordedPoint, Timeline},
        engine::fork::Slots,
        error::failures::Failures,
        memory::{
            epoch::{Flavour, pin},
            free_list::{BatchStack, Node},
            latest::Latest,
            marks::mark,
            records::PooledRecord,
            slabs::Slabs,
        },
        notify::{
            async_state::AsyncState,
            claim::{Cancel, Claim},
            family_count::FamilyCount,
            oneshot::{Oneshot, Waiter},
            pending::{PendingOps, Ticket, WaitEnd},
            poll_state::PollState,
            stock::{Admission, Need, Stock, join},
            stop_signal::{Listening, Signals, StopListener},
            turn::{TakesTurns, VarTurn, leave_turns, take_turns},
            wakers::WakerKey,
        },
        op::{
            cancellable::{Cancellable, Function},
            conflation::{Conflation, Entering, Offered, RunValue},
            fault::{Fault, FaultLock},
        },
        scheduler::{
            DEFAULT_BAND, Injector, Lane, LaneOptions, LentPlace, Loans, ParkKind, SearchState, Sleep, Stay, Worker,
            band_of,
        },
        sync::{arrivals::Arrivals, edge},
        threads::{Aside, Laid, SpareThreads, Stopped},
        tracker::{
            Access, Hold, Mode, Op, OpRef, PushResult, ReadyList, Stalled, Successors, VarQueue, complete,
            complete_unlinking, end, followers, push, walk_blocked,
        },
    };
}
