//! The public interface: engines, builders, handles and variables.

pub(crate) mod accesses;
pub(crate) mod acquire;
pub(crate) mod builder;
pub(crate) mod cancelled;
pub(crate) mod chosen;
pub(crate) mod completion;
pub(crate) mod deferral;
pub(crate) mod engine;
pub(crate) mod future_context;
pub(crate) mod group;
pub(crate) mod guarded;
pub(crate) mod guards;
pub(crate) mod handle;
mod large;
pub(crate) mod op_builder;
pub(crate) mod op_context;
pub(crate) mod operator;
pub(crate) mod panic_hook;
pub(crate) mod published;
pub(crate) mod replay;
pub(crate) mod resource;
pub(crate) mod scope;
pub(crate) mod scoped_var;
pub(crate) mod token;
pub(crate) mod values;
pub(crate) mod var;
