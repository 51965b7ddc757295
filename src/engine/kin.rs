//! What the code of a parent, and that of a child, knows of their [family](super::family).

use std::{any::Any, ptr::NonNull};

use crate::engine::cancellable::Place;

/// The family of a parent, or of a child.
pub(crate) trait Kin: Send + Sync {
    /// Calls `look` with the queue of each variable that the parent holds, itself or through its own parents. The pointers
    /// are to be compared only.
    fn each_held(&self, look: &mut dyn FnMut(NonNull<()>));
    /// Calls `look` with the parent, and with its own parents.
    fn each_parent(&self, look: &mut dyn FnMut(NonNull<()>));
    /// Whether a child with this place waits for the function of the parent to return.
    fn holds_back(&self, place: &Place) -> bool;
    fn as_any(&self) -> &dyn Any;
}
