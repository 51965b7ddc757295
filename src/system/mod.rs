//! Services of the process and the operating system: stacks, cores, panics.

pub(crate) mod panics;
pub(crate) mod stack;
pub(crate) mod topology;
