//! What an operation knows about those that cannot complete before it: the [parent](super::family) of a child, and the
//! operations around a [scope](super::scope).

use std::{any::Any, ptr::NonNull};

use crate::engine::cancellable::Place;

/// A family, for its parent and its children; or a scope, for its operations.
pub(crate) trait Kin: Send + Sync {
    /// Calls `look` with the queue of each variable that the parent, or an operation around the scope, holds, and so on
    /// outwards. The pointers are only compared.
    fn each_held(&self, look: &mut dyn FnMut(NonNull<()>));
    /// Calls `look` with the parent, or with the operations around the scope, and so on outwards.
    fn each_parent(&self, look: &mut dyn FnMut(NonNull<()>));
    /// Returns the frame in which the scope was opened, if that was on the calling thread. The pointer is only
    /// compared. `each_held` and `each_parent` cover that frame and those around it.
    fn known_from(&self) -> Option<*const ()>;
    /// Whether a child with this place waits for the function of the parent to return.
    fn holds_back(&self, place: &Place) -> bool;
    fn as_any(&self) -> &dyn Any;
}
