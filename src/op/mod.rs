//! One operation's life: its arguments, record, job, limits and outcome, and the frame in which its function runs.
//!
//! This layer owns what an operation consists of ([`task`], [`job`], [`limits`], [`cancellable`]), what a push is given
//! ([`spec`]), what several pushes share ([`conflation`]), and the variables that operations name ([`variable`]). Its
//! files say what may be done with these things and in which states. When it is done is decided in the layers above.
//!
//! It is the lowest of the engine's layers, so it may name none of the others, except the file
//! [`engine::core`](crate::engine::core): an operation's code receives the engine, and a variable keeps its engine
//! alive. A method of `Core` is thus all that this layer may call above itself.

pub(crate) mod cancellable;
pub(crate) mod commuting;
pub(crate) mod conflation;
pub(crate) mod fault;
pub(crate) mod frame;
pub(crate) mod group_core;
pub(crate) mod job;
pub(crate) mod kin;
pub(crate) mod limits;
pub(crate) mod no_wait;
pub(crate) mod spec;
pub(crate) mod task;
pub(crate) mod units;
pub(crate) mod variable;
pub(crate) mod variables;
pub(crate) mod waits;
