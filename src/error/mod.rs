//! Error types.

pub(crate) mod build;
pub(crate) mod device;
pub(crate) mod failures;
pub(crate) mod op;
pub(crate) mod push;
pub(crate) mod wait;
