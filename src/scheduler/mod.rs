//! Who runs a ready operation, where and when; knows operations only as things with a band.
//!
//! A [`Lane`] is a set of workers with one [`Injector`](injector::Injector). Operations pushed from outside enter
//! through the injector, as do those with a priority unless the completing worker can run them next; those that become ready by a completion go to the completing worker: the first to its slot, the
//! others to its deque, where the other workers steal them. See `README.md` beside this file for who sleeps, who wakes
//! whom, and whose turn it is.

mod injector;
mod lane;
mod priority;
mod sleep;
#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
mod testing;
mod worker;

#[cfg(any(raddle_loom, raddle_shuttle))]
pub use injector::Injector;
pub use lane::{Lane, LaneOptions};
pub use priority::{DEFAULT_BAND, band_of};
pub use sleep::IdlePolicy;
#[cfg(any(raddle_loom, raddle_shuttle))]
pub use sleep::{ParkKind, SearchState, Sleep};
pub use worker::Worker;
