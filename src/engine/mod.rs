//! The engine: operations are pushed, dispatched, run and completed, and an engine is shut down, stopped and forked.
//!
//! This room owns the order of these steps, and [`core`], the engine behind its handles. It may name every room except
//! `future`, which it serves like a program.
//!
//! The methods of `Core` are what the rooms below may ask of the engine, so they may name `core` and no other file of
//! this room. They are implemented in the file of the step that they begin, such as [`push`]. What only this room and
//! the layers above it call is a function, such as [`shutdown::begin`].

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
