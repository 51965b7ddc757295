//! Operations that are held by futures and guards instead of functions.
//!
//! This room owns the operations behind `Engine::with` and `Engine::acquire` ([`acquiring`]), the shares by which
//! guards hold an operation ([`held`]), and the operations whose functions are futures ([`future_task`]).
//!
//! It is the highest of the rooms and may name all others. Only `api` names it.

pub(crate) mod acquiring;
pub(crate) mod future_task;
pub(crate) mod held;
