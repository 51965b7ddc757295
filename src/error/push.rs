//! Why a push was refused.

use std::{error::Error, fmt};

use crate::values::{device::Device, property::Property};

pub(crate) const FORKED: &str = "the engine is that of a process which has forked this one; make another engine";

/// Why a push was refused. The operation will never run, and changes nothing.
///
/// A push that loses a race against a deletion may find that out when it already has its place in the queues of other
/// variables. There it stays, as an operation that does nothing, until everything before it is done; its function is
/// dropped then.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PushError {
    /// A variable belongs to another engine.
    ForeignVariable,
    /// A variable was already deleted.
    DeletedVariable,
    /// A typed operation names one variable twice and mutates it, which would alias a `&mut`.
    AliasedVariable,
    /// The engine is shutting down, or has. During a drain, operations may still push.
    ShutDown,
    /// The context names a device that this engine does not have.
    NoSuchDevice(Device),
    /// The thread that serves the device could not be started.
    DeviceUnavailable(Device),
    /// The function of a device operation pushes on a naive engine that is not its own: that would have to run the
    /// operation at once, and nothing may run inside such a function. Push it elsewhere, or on another kind of engine.
    InDeviceFunction,
    /// The property says where an operation of the CPU runs, and means nothing on a device.
    NotOfDevice(Property),
    /// [`OpBuilder::eager`](crate::OpBuilder::eager) starts an operation on the pushing thread, and operations of a
    /// device start on its lane's thread.
    EagerOnDevice,
    /// The call is for operations of a device, and [`OpBuilder::on`](crate::OpBuilder::on) was not given one.
    NotOnDevice,
    /// The engine was made before this process was forked from the one that has its threads. Make another one.
    Forked,
}

impl fmt::Display for PushError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ForeignVariable => {
                f.write_str("a variable belongs to another engine; push on the engine that made it")
            }
            Self::DeletedVariable => f.write_str("a variable was already deleted; push before deleting it"),
            Self::AliasedVariable => {
                f.write_str("the operation names a variable twice and mutates it; name it once, as written")
            }
            Self::ShutDown => f.write_str("the engine is shut down or shutting down"),
            Self::NoSuchDevice(context) => {
                write!(f, "this engine has no device {context}; give it one with `EngineBuilder::gpu`")
            }
            Self::DeviceUnavailable(context) => {
                write!(f, "the thread that serves {context} could not be started; see the log")
            }
            Self::InDeviceFunction => {
                f.write_str("the function of a device operation cannot push on another engine that is naive")
            }
            Self::NotOfDevice(property) => {
                write!(f, "the property {property:?} means nothing on a device; use another, or none")
            }
            Self::EagerOnDevice => f.write_str(
                "an operation of a device starts on its lane's thread, and cannot start inside the push; leave out `eager`",
            ),
            Self::NotOnDevice => f.write_str("the operation is for a device; name one with `on`"),
            Self::Forked => f.write_str(FORKED),
        }
    }
}

impl Error for PushError {}
