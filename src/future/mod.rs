//! Operations that are held by futures and guards instead of functions.
//!
//! This layer owns the operations behind `Engine::with` and `Engine::acquire` ([`acquiring`]), the shares by which
//! guards hold an operation ([`held`]), and the operations whose functions are futures ([`future_task`]).
//!
//! It is above `engine`, whose operations it uses like a program. Only `api` names it.

pub(crate) mod acquiring;
pub(crate) mod future_task;
pub(crate) mod held;
