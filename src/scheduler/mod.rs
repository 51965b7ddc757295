//! The scheduler, which decides when a ready operation runs and on which worker. All that it knows about an operation
//! is its band.
//!
//! A [`Lane`] is a set of workers that share one [`Injector`](injector::Injector). Operations pushed from outside enter
//! through the injector. Operations that become ready on a worker of their lane go to that worker: the first that a
//! completion makes ready usually goes into the worker's slot, and the others go into its deque, from which other
//! workers can steal them. Operations for which the deque has no room, or whose band is not the default, go into the
//! injector instead of the deque. `README.md` beside this file describes sleeping, waking and fairness.

pub(crate) mod activity;
mod injector;
mod lane;
mod loans;
mod priority;
mod sleep;
#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
mod testing;
mod worker;

#[cfg(any(raddle_loom, raddle_shuttle))]
pub use injector::Injector;
pub use lane::{Lane, LaneOptions};
pub use loans::LentPlace;
#[cfg(any(raddle_loom, raddle_shuttle))]
pub use loans::{Loans, Stay};
pub use priority::{DEFAULT_BAND, band_of, priority_of};
pub use sleep::IdlePolicy;
#[cfg(any(raddle_loom, raddle_shuttle))]
pub use sleep::{ParkKind, SearchState, Sleep};
pub use worker::{LONGEST_STAY, Worker};
