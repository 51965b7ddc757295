//! Shared code for the models of `raddle`: functions that run models and verify what the models need, a world of
//! variables and operations for the models of the tracker, and pending operations for the models of waits.
//!
//! The models themselves are in `tests/models`, one module for each protocol. They run the library's own types under
//! loom, with `RUSTFLAGS="--cfg raddle_loom --cfg crossbeam_loom"`; without these flags, `tests/models` is empty, and
//! of `shim_is_live` only one test is left.
//!
//! # What the models need
//!
//! Beside its models, each module declares the sides of edges and the steps of protocols without which they fail
//! ([`kills!`]). One test runs each of these models without that side or step ([`check`]), and requires that every
//! declaration of the library is needed by a model. To run one of them:
//!
//! ```text
//! RADDLE_WEAKENED=link::LINKED cargo loom --test models -- complete::a_writer_hands_over_to_a_writer
//! ```
//!
//! # Bounds
//!
//! A model states how many preemptions loom may use in one interleaving; with `COMPLETE`, loom explores every
//! interleaving. The environment variables `LOOM_MAX_*` are ignored, because an external bound could make a passing run
//! prove less than the model states.
//!
//! # shuttle
//!
//! `tests/shuttle.rs` has larger models, up to whole engines. They need only `--cfg raddle_shuttle` and run under
//! [shuttle](https://github.com/awslabs/shuttle), which tries random schedules. So each model states a number of
//! schedules instead of a bound.

#[cfg(any(raddle_loom, raddle_shuttle))]
pub mod checker;
#[cfg(raddle_shuttle)]
mod exhaustive;
#[cfg(any(raddle_loom, raddle_shuttle))]
mod kills;
#[cfg(any(raddle_loom, raddle_shuttle))]
mod pending;
#[cfg(raddle_shuttle)]
mod schedule;
#[cfg(raddle_shuttle)]
mod schedules;
#[cfg(any(raddle_loom, raddle_shuttle))]
#[path = "../../testkit/src/shapes.rs"]
#[allow(missing_docs)]
pub mod shapes;
#[cfg(raddle_shuttle)]
mod steps;
#[cfg(any(raddle_loom, raddle_shuttle))]
mod world;

/// Completes and drops an operation without variables.
#[cfg(any(raddle_loom, raddle_shuttle))]
pub fn end_alone<T>(op: raddle::internals::OpRef<T>) {
    let mut ready = raddle::internals::ReadyList::default();
    raddle::internals::end(op, &mut ready);
    assert!(ready.is_empty(), "an operation was behind one that uses no variable");
}

#[cfg(raddle_shuttle)]
pub use exhaustive::{COMPLETE, model};
#[cfg(any(raddle_loom, raddle_shuttle))]
pub use kills::{Kill, check};
#[cfg(raddle_loom)]
pub use model::{COMPLETE, model};
#[cfg(any(raddle_loom, raddle_shuttle))]
pub use pending::{Count, Place, leave, listen_beside_cancellation, pending, push_async};
#[cfg(raddle_shuttle)]
pub use schedule::schedule;
#[cfg(raddle_shuttle)]
pub use schedules::explore;
#[cfg(any(raddle_loom, raddle_shuttle))]
pub use world::{StalledPush, Task, World};

#[cfg(raddle_loom)]
mod model {
    use std::{
        panic::Location,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::Relaxed},
        },
        time::Instant,
    };

    use raddle::internals::Flavour;

    /// Explores every interleaving.
    pub const COMPLETE: Option<usize> = None;

    /// The number of steps per interleaving after which a model counts as not terminating.
    const MAX_BRANCHES: usize = 5_000;

    /// Runs `f` in every interleaving with at most `bound` preemptions, with the reclamation `flavour`. Returns the
    /// number of interleavings.
    ///
    /// # Panics
    /// If `f` fails in an interleaving or has only one interleaving.
    #[track_caller]
    pub fn model(bound: impl Into<Option<usize>>, flavour: Flavour, f: impl Fn() + Send + Sync + 'static) -> usize {
        let (bound, at, start) = (bound.into(), Location::caller(), Instant::now());
        let interleavings = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&interleavings);
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = bound;
        builder.max_branches = MAX_BRANCHES;
        builder.max_permutations = None;
        builder.max_duration = None;
        builder.checkpoint_file = None;
        builder.check(move || {
            count.fetch_add(1, Relaxed);
            flavour.begin();
            f();
        });
        let interleavings = interleavings.load(Relaxed);
        let bound = bound.map_or("none".to_owned(), |bound| bound.to_string());
        let (file, seconds) = (at.file().rsplit('/').next().unwrap_or_default(), start.elapsed().as_secs_f64());
        println!("{file}:{}: {interleavings} interleavings, bound {bound}, {flavour:?}, {seconds:.2} s", at.line());
        assert!(interleavings > 1, "the model has only one interleaving, so it explores nothing");
        interleavings
    }
}
