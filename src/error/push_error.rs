//! Why a push was refused.

use std::{error::Error, fmt, panic::Location};

use raddle_trace::recording::Plain;

use crate::values::{Name, device::Device, property::Property};

pub(crate) const FORKED: &str = "the engine belongs to the parent of this forked process; build another engine here";

/// Why a push was refused. The operation never runs and has no effect.
///
/// A push that races with a deletion may be refused late, when the operation is already in other variables' queues. The
/// operation stays there, without effect, until the operations before it are complete. Its function is then dropped.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::{PushError, error::NoAccess};
///
/// let engine = raddle::Engine::builder().workers(1).build()?;
/// let disk = engine.token().named("disk");
/// engine.delete_variable(&disk, |_| ())?;
/// let Err(error) = engine.op("late").writes([&disk]).push((), |()| {}) else { panic!("the push should be refused") };
/// assert!(matches!(error, PushError::Variable(NoAccess::Deleted, _)));
/// let message = error.to_string();
/// assert!(message.starts_with("operation `late` pushed at "));
/// assert!(message.ends_with(" names variable `disk`, which was deleted before; push before deleting it"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PushError {
    /// The operation may not access one of its variables.
    Variable(NoAccess, RefusedAccess),
    /// The operation's description does not fit the call, or is contradictory.
    Unfit(Misfit),
    /// A child was pushed, or a variable for children was created, through a [`FutureContext`](crate::FutureContext)
    /// after the future had ended and its guards had been dropped. The children have started, and no more can be added.
    ParentEnded,
    /// The engine is shut down or shutting down. While the engine drains, its operations may still push.
    ShutDown,
    /// There is no room: the number of pending operations has reached the limit of the engine or a group. Returned by
    /// [`OpBuilder::if_room`](crate::OpBuilder::if_room), while the program still owns the operation's function, and by
    /// a push that would wait for room while the engine is [stopped](crate::Engine::stop).
    Full,
    /// The engine has no such device.
    NoSuchDevice(Device),
    /// The thread serving the device could not be started.
    DeviceUnavailable(Device),
    /// The function of a device operation pushed on a naive engine other than its own. That engine would run the pushed
    /// operation inside the push, but no operation may run inside a device operation's function. Push elsewhere, or on
    /// another kind of engine.
    InDeviceFunction,
    /// An [`Observer`](crate::trace::Observer) pushed on an engine with observers. The observer runs between the
    /// engine's steps, and its own operations would be observed in turn. Send its observations to another thread and
    /// push there.
    InObserver,
    /// This is a forked child of the process that built the engine and has none of the engine's threads. Build another
    /// engine in the child.
    Forked,
}

impl fmt::Display for PushError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Variable(reason, access) => return write!(f, "{access}{}", reason.message()),
            Self::Unfit(misfit) => return misfit.fmt(f),
            Self::ParentEnded => "the parent's work has ended; push its children before then",
            Self::ShutDown => "the engine is shut down or shutting down; push before the shutdown",
            Self::Full => {
                "the pending operations have reached the limit of the engine or of a group; try again later, or wait for room"
            }
            Self::NoSuchDevice(device) => {
                return write!(f, "this engine has no device {device}; add one with `EngineBuilder::gpu`");
            }
            Self::DeviceUnavailable(device) => {
                return write!(f, "the thread for {device} could not be started; see the log for the cause");
            }
            Self::InDeviceFunction => {
                "the function of a device operation cannot push on another engine that is naive; push from a CPU operation"
            }
            Self::InObserver => "an observer cannot push; send what it has seen to another thread, and push there",
            Self::Forked => FORKED,
        })
    }
}

impl Error for PushError {}

/// Why an operation may not access a variable, in [`PushError::Variable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoAccess {
    /// The variable belongs to another engine.
    Foreign,
    /// The variable was deleted before the push.
    Deleted,
    /// The operation's typed accesses name the variable twice and mutate it, which would alias a `&mut`.
    Aliased,
    /// An operation around the [scope](crate::Engine::scope) holds the variable until the scope ends, so operations in
    /// the scope must not name it. [Lend](crate::Scope::lend) the value to the scope instead.
    HeldAroundScope,
    /// A [child](crate::OpContext::child) names a variable that its parent does not hold, or mutates one that its
    /// parent only reads. The child would have to wait for its parent, which waits for its children.
    NotHeld,
    /// The variable was created for an operation's children, by [`OpContext::child_var`](crate::OpContext::child_var)
    /// or [`child_token`](crate::OpContext::child_token). Only these children can name it, along with the children of
    /// any child that names it.
    OfFamily,
}

impl NoAccess {
    /// Returns the end of a message that begins with the [`RefusedAccess`].
    fn message(self) -> &'static str {
        match self {
            Self::Foreign => ", which belongs to another engine; push on the engine that created it",
            Self::Deleted => ", which was deleted before; push before deleting it",
            Self::Aliased => " twice and mutates it; declare it once, with `write`",
            Self::HeldAroundScope => {
                ", which the operation around the scope holds; lend the value to the scope with `Scope::lend`"
            }
            Self::NotHeld => ", which its parent does not hold, or only reads; declare it on the parent as well",
            Self::OfFamily => ", which belongs to the children of another operation; name it in these children only",
        }
    }
}

/// What does not fit in an operation's description, in [`PushError::Unfit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misfit {
    /// A child was pushed, or a variable for children was created, inside an operation that was pushed without
    /// [`OpBuilder::with_children`](crate::OpBuilder::with_children).
    NotAParent,
    /// [`OpBuilder::with_children`](crate::OpBuilder::with_children) was called for a device operation, which releases
    /// its variables once its work has been issued, too early for children. Alternatively, an operator was created as a
    /// child, although it could then be pushed after its parent has ended.
    Family,
    /// The property selects a CPU lane, but the operation is for a device.
    NotOfDevice(Property),
    /// [`OpBuilder::eager`](crate::OpBuilder::eager) starts an operation on the pushing thread, but device operations
    /// start on their lane's thread.
    EagerOnDevice,
    /// The call is for CPU operations, whose futures are polled by workers, but a device was passed to
    /// [`OpBuilder::on`](crate::OpBuilder::on).
    FutureOnDevice,
    /// The call is for device operations, but no device was passed to [`OpBuilder::on`](crate::OpBuilder::on).
    NotOnDevice,
    /// [`OpBuilder::uses`](crate::OpBuilder::uses) names a resource of another engine.
    ForeignResource,
    /// [`OpBuilder::uses`](crate::OpBuilder::uses) names more units than there are: the resource, or the parent of a
    /// child, has `units`.
    TooManyUnits {
        /// The units that the operation needs.
        needed: u64,
        /// The units that there are.
        units: u64,
    },
    /// A [child](crate::OpContext::child) names a resource that its parent does not use. The units of a child come out
    /// of its parent's.
    UnitsNotHeld,
    /// [`OpBuilder::operator_newest`](crate::OpBuilder::operator_newest) was called for the newest 0 values.
    NewestOfNone,
    /// A device operation commutes on a variable. It releases its variables once its work has been issued, too early
    /// for the next operation that commutes there.
    CommutesOnDevice,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAParent => "the operation was pushed without `with_children`; add it to the description",
            Self::Family => {
                "only CPU operations can have children, and an operator cannot be a child; use another method to push it"
            }
            Self::NotOfDevice(property) => {
                return write!(
                    f,
                    "the property {property:?} selects a CPU lane; for a device operation, omit it or choose another"
                );
            }
            Self::EagerOnDevice => "a device operation starts on its lane's thread, not inside the push; omit `eager`",
            Self::FutureOnDevice => {
                "an operation that is a future runs on the CPU; omit `on`, and await what it launches on the device"
            }
            Self::NotOnDevice => "the call is for device operations; choose a device with `on`",
            Self::ForeignResource => "the operation uses a resource of another engine; create one on its own engine",
            Self::TooManyUnits { needed, units } => {
                return write!(f, "the operation uses {needed} units of a resource, but there are only {units}");
            }
            Self::UnitsNotHeld => "a child uses a resource that its parent does not use; use it on the parent as well",
            Self::NewestOfNone => "an operator cannot keep the newest 0 values; let it keep at least 1",
            Self::CommutesOnDevice => {
                "only CPU operations commute; declare that the device operation writes the variable"
            }
        })
    }
}

/// An operation that was refused because of one of its variables, and that variable.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::{PushError, error::NoAccess};
///
/// let engine = raddle::Engine::builder().workers(1).build()?;
/// let total = engine.var(0u32).named("total");
/// let refused = engine.op("add").push((total.read(), total.write()), |(step, total)| *total += step);
/// let Err(PushError::Variable(NoAccess::Aliased, access)) = refused else { panic!("the references would alias a `&mut`") };
/// assert_eq!((access.operation(), access.variable()), ("add", "total"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedAccess(Box<AccessDetails>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct AccessDetails {
    operation: Name,
    location: &'static Location<'static>,
    variable: Name,
    id: u64,
    type_name: &'static str,
}

impl RefusedAccess {
    /// Creates the description of a refused access. `id` and `type_name` describe an unnamed variable.
    #[cold]
    pub(crate) fn new(
        (operation, location): (Name, &'static Location<'static>),
        variable: Name,
        id: u64,
        type_name: &'static str,
    ) -> Self {
        Self(Box::new(AccessDetails { operation, location, variable, id, type_name }))
    }

    /// Returns the operation's name, or an empty string if it has none.
    #[must_use]
    pub fn operation(&self) -> &str {
        self.0.operation.as_str()
    }

    /// Returns the source location of the push or other call that was refused because of the variable.
    #[must_use]
    pub fn location(&self) -> &'static Location<'static> {
        self.0.location
    }

    /// Returns the variable's name, or an empty string if it has none.
    #[must_use]
    pub fn variable(&self) -> &str {
        self.0.variable.as_str()
    }
}

/// Names the operation and the variable. An unnamed variable appears with its type and the number from its `Debug`
/// output.
impl fmt::Display for RefusedAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let location = self.location();
        match self.operation() {
            "" => write!(f, "the operation pushed at {location}")?,
            name => write!(f, "operation `{}` pushed at {location}", Plain(name))?,
        }
        match self.variable() {
            "" => write!(f, " names variable {} of type `{}`", self.0.id, self.0.type_name),
            name => write!(f, " names variable `{}`", Plain(name)),
        }
    }
}
