//! The process and the machine: where workers run, and what the machine permits an engine to do.
//!
//! [`doctor`](doctor()) examines the machine with the functions that an engine uses, so it sees the same clock and
//! cores.

pub(crate) mod clock;
pub(crate) mod core_claims;
pub(crate) mod core_set;
mod doctor;
pub(crate) mod pages;
pub(crate) mod panics;
pub(crate) mod pin;
pub(crate) mod signals;
pub(crate) mod stack;
pub(crate) mod stderr;
pub(crate) mod topology;

pub use doctor::{Diagnosis, Finding, doctor};
pub use topology::Placement;
