//! What an operation knows of those that cannot complete before it: the [parent](super::family) of a child, and the
//! operations around a [scope](super::scope).

use std::{any::Any, ptr::NonNull};

use crate::engine::cancellable::Place;

/// A family, for its parent and its children; or a scope, for its operations.
pub(crate) trait Kin: Send + Sync {
    /// Calls `look` with the queue of each variable that the parent holds, or the operations around the scope, and so on
    /// outwards. The pointers are to be compared only.
    fn each_held(&self, look: &mut dyn FnMut(NonNull<()>));
    /// Calls `look` with the parent, or with the operations around the scope, and so on outwards.
    fn each_parent(&self, look: &mut dyn FnMut(NonNull<()>));
    /// The frame in which the scope was opened, if that was on the calling thread, to be compared only. This frame and those
    /// around it are known by the two calls before.
    fn known_from(&self) -> Option<*const ()>;
    /// Whether a child with this place waits for the function of the parent to return.
    fn holds_back(&self, place: &Place) -> bool;
    fn as_any(&self) -> &dyn Any;
}
