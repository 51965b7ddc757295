//! What an operation knows about the operations that cannot complete before it: the [parent](crate::group::family) of a
//! child, and the operations around a [scope](crate::group::scoped).
//!
//! Families and scopes may be nested to any depth, so the functions that go outwards do not recurse.

use std::{any::Any, ptr::NonNull, sync::Arc};

use smallvec::SmallVec;

use crate::{notify::waiters::Nested, op::cancellable::WaitersPlace};

/// An operation, and the family or scope to which it belongs.
pub(crate) type Around = (NonNull<()>, Option<Arc<dyn Kin>>);

/// A family as seen by its parent and children, or a scope as seen by its operations.
pub(crate) trait Kin: Send + Sync {
    /// Calls `look` with the queue of each variable held by the parent or by the operations around the scope, and
    /// `further` with the families and scopes to which these operations belong. The pointers are only compared.
    fn each_held_here(&self, look: &mut dyn FnMut(NonNull<()>), further: &mut dyn FnMut(Arc<dyn Kin>));
    /// Calls `look` with the parent, or with each of the operations around the scope, if it is not complete.
    fn each_around(&self, look: &mut dyn FnMut(Around));
    /// Returns the frame in which the scope was opened, if it was opened on the calling thread. The pointer is only
    /// compared. What is known of that frame and of the frames around it is known of the scope.
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

impl dyn Kin {
    /// Calls `look` with the queue of each variable held by the parent or by the operations around the scope, and by
    /// those further out. The pointers are only compared.
    pub(crate) fn each_held(&self, look: &mut dyn FnMut(NonNull<()>)) {
        let mut further = SmallVec::<[Arc<dyn Kin>; 2]>::new();
        self.each_held_here(look, &mut |kin| further.push(kin));
        while let Some(kin) = further.pop() {
            kin.each_held_here(look, &mut |kin| further.push(kin));
        }
    }

    /// Calls `look` with the parent or with the operations around the scope, and with those further out. Depths start
    /// at 1.
    pub(crate) fn each_parent(&self, look: &mut dyn FnMut(Nested)) {
        let mut further = SmallVec::<[(usize, Around); 2]>::new();
        let add = |further: &mut SmallVec<[(usize, Around); 2]>, kin: &Self, depth| {
            let from = further.len();
            kin.each_around(&mut |around| further.push((depth, around)));
            further[from..].reverse();
        };
        add(&mut further, self, 1);
        // What is around an operation follows it, before the next operation around the same scope.
        while let Some((depth, (op, kin))) = further.pop() {
            look(Nested { op, depth });
            kin.iter().for_each(|kin| add(&mut further, &**kin, depth + 1));
        }
    }
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
