//! Plain values that every layer may use.

pub(crate) mod device;
pub(crate) mod kind;
pub(crate) mod property;

pub(crate) use raddle_trace::Name;
