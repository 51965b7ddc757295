//! Pauses that tests use inside protocols; they compile to nothing in ordinary builds.

pub(crate) mod pause;
