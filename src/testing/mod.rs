//! Switches and pauses that tests put into protocols; nothing in ordinary builds.

pub(crate) mod pause;
pub(crate) mod weaken;
