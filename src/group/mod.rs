//! What holds operations together: families, scopes, and limits on how many operations are pending.
//!
//! This layer owns the end of a parent with its children ([`family`]) and of a scope with its operations ([`scoped`]),
//! and the pushes that wait for room ([`room`]). The group itself, in which members are counted and cancelled, is in
//! the layer of operations, which refer to it: [`op::group_core`](crate::op::group_core). A program's handle to it is
//! [`Group`](crate::Group), in `api`.
//!
//! It may name `wait`, `context`, `op` and the file [`engine::core`](crate::engine::core).

pub(crate) mod family;
pub(crate) mod room;
pub(crate) mod scoped;
