//! The engine: operations are pushed, dispatched, run and completed, and an engine is shut down, stopped and forked.
//!
//! This layer owns the order of these steps, and [`core`], the engine behind its handles. It may name every lower
//! layer.
//!
//! The methods of `Core` are what some lower layers may ask of the engine (`observe`, `group`, `wait`, `context` and
//! `op`), so these may name `core` and no other file here. The methods are implemented in the file of the step that
//! they begin, such as [`push`]. What only this layer and those above it call is a function, such as
//! [`shutdown::begin`].

pub(crate) mod admission;
pub(crate) mod at_exit;
pub(crate) mod core;
mod dispatch;
pub(crate) mod fork;
pub(crate) mod keeps_open;
pub(crate) mod on_device;
pub(crate) mod push;
pub(crate) mod run;
pub(crate) mod run_async;
pub(crate) mod shuffle;
pub(crate) mod shutdown;
pub(crate) mod stop;
pub(crate) mod workers;
