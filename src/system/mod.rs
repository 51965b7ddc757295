//! The process and the machine: where workers run, and what the machine permits an engine to do.

pub(crate) mod clock;
mod doctor;
pub(crate) mod panics;
pub(crate) mod stack;
pub(crate) mod topology;

pub use doctor::{Diagnosis, Finding, doctor};
pub use topology::Placement;
