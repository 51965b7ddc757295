//! What holds operations together: families, scopes, and limits on how many operations are pending.
//!
//! This room owns the end of a parent with its children ([`family`]) and of a scope with its operations ([`scoped`]),
//! and the pushes that wait for room ([`room`]). The group itself, in which members are counted, is part of an
//! operation's limits (`op`).
//!
//! It may name `wait`, `context`, `op` and the file [`engine::core`](crate::engine::core).

pub(crate) mod family;
pub(crate) mod room;
pub(crate) mod scoped;
