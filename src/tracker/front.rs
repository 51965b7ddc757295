//! Where the unlinking of a variable's completed readers begins.

use crate::{
    memory::epoch::{Atomic, Guard, Shared, unprotected},
    sync::{
        Ordering,
        Ordering::Relaxed,
        edge::{self, acquire, release, removed, step},
    },
};

/// The tag of a front that a thread has taken.
const TAKEN: usize = 1;

/// A variable's *front*: an access from which completed readers behind it are [unlinked](super::unlink), or none. One
/// thread at a time may take it; the others do not wait for it.
///
/// An access that may become the front notes that before it is done. Whoever ends its share first
/// [removes](Self::remove) it. A thread that finds it here has therefore been pinned since before its retirement.
#[derive(Debug)]
pub(super) struct Front<A>(Atomic<A>);

impl<A> Front<A> {
    pub(super) fn new() -> Self {
        Self(Atomic::null())
    }

    /// Takes the front, unless another thread has it.
    pub(super) fn take(&self) -> bool {
        self.change(acquire(edge::front::TAKEN), |front| {
            let is_free = front.tag() != TAKEN || removed(step::FRONT_HAS_ONE_USER);
            is_free.then(|| front.with_tag(TAKEN))
        })
    }

    /// Returns the access at the front. The calling thread has taken the front.
    pub(super) fn get<'g>(&self, guard: &'g Guard) -> Option<&'g A> {
        // Relaxed: acquired when the front was taken. Meanwhile, other threads only remove the access.
        let front = self.0.load(Relaxed, guard).with_tag(0);
        // SAFETY: whoever ends the access's share removes it first, so it was not retired before this thread was
        // pinned.
        unsafe { front.as_ref() }
    }

    /// Makes `access` the front. The calling thread has taken the front.
    pub(super) fn set(&self, access: &A) {
        // Relaxed: published when the front is given back.
        self.change(Relaxed, |_| Some(Shared::from(std::ptr::from_ref(access)).with_tag(TAKEN)));
    }

    /// Gives the front back.
    pub(super) fn give_back(&self) {
        self.change(release(edge::front::GIVEN_BACK), |front| Some(front.with_tag(0)));
    }

    /// Removes `access` if it is the front.
    #[cold]
    pub(super) fn remove(&self, access: &A) {
        // Relaxed: if the access is the front, the caller has acquired that (edge `front`), or has set it itself.
        self.change(Relaxed, |front| {
            let is_front = std::ptr::eq(front.as_raw(), access) && !removed(step::FRONT_IS_LEFT);
            is_front.then(|| Shared::null().with_tag(front.tag()))
        });
    }

    /// Changes the word as `change` says, unless it returns `None`. Returns whether the word was changed.
    fn change(&self, order: Ordering, change: impl Fn(Shared<'_, A>) -> Option<Shared<'_, A>>) -> bool {
        loop {
            // Relaxed: only the expected value of the exchange.
            let front = self.0.load(Relaxed, unprotected());
            let Some(new) = change(front) else { return false };
            if self.0.compare_exchange(front, new, order, Relaxed, unprotected()).is_ok() {
                return true;
            }
        }
    }
}
