//! Services of the process and the operating system: clocks, cores, panics, stacks, and checks of the machine.

pub(crate) mod clock;
pub(crate) mod doctor;
pub(crate) mod panics;
pub(crate) mod stack;
pub(crate) mod topology;
