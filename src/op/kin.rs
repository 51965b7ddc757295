//! What an operation knows about the operations that cannot complete before it: the [parent](crate::group::family) of a
//! child, and the operations around a [scope](crate::group::scoped).

use std::{any::Any, ptr::NonNull, sync::Arc};

use crate::{notify::waiters::Nested, op::cancellable::WaitersPlace};

/// A family as seen by its parent and children, or a scope as seen by its operations.
pub(crate) trait Kin: Send + Sync {
    /// Calls `look` with the queue of each variable held by the parent or by the operations around the scope, and by
    /// those further out. The pointers are only compared.
    fn each_held(&self, look: &mut dyn FnMut(NonNull<()>));
    /// Calls `look` with the parent or with the operations around the scope, and with those further out. Depths start
    /// at 0.
    fn each_parent(&self, look: &mut dyn FnMut(Nested));
    /// Returns the frame in which the scope was opened, if it was opened on the calling thread. The pointer is only
    /// compared. `each_held` and `each_parent` cover that frame and the frames around it.
    fn known_from(&self) -> Option<*const ()>;
    /// Whether a child with this place waits for the parent's work to end.
    fn keeps_out(&self, place: &WaitersPlace) -> bool;
    /// Records that the parent is a future, whose work ends once the future has ended and its guards have been dropped.
    /// Called in the parent's function; never called for a scope.
    fn begin_future(&self);
    /// Drops a share of the family. Does nothing for a scope, which has no shares.
    fn leave(&self);
    fn as_any(&self) -> &dyn Any;
}

/// A share of a family, or a reference to a scope. The parent does not complete before the share is dropped.
pub(crate) struct KinShare(Arc<dyn Kin>);

impl KinShare {
    /// Wraps a share that the caller has counted.
    pub(crate) fn new(kin: Arc<dyn Kin>) -> Self {
        Self(kin)
    }

    pub(crate) fn kin(&self) -> &Arc<dyn Kin> {
        &self.0
    }
}

impl Drop for KinShare {
    fn drop(&mut self) {
        self.0.leave();
    }
}
