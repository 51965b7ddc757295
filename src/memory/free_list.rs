//! The stacks of the [pool](super::pool)'s free batches and of its lists of retired records: Treiber stacks (IBM RJ
//! 5118, 1986). Free batches are popped one at a time; retired lists are retired all at once.
//!
//! # Edges
//!
//! [`batch`](crate::sync::edge::batch).
//!
//! `head` is changed only by read-modify-writes, so each change continues the release sequences of earlier pushes.
//!
//! # Progress
//!
//! The stack is lock-free.
//!
//! # Why there is no ABA problem
//!
//! A popped node is pushed again or freed only after it has been retired and the epoch has passed. So while a popping
//! thread is pinned, a head that it read cannot leave the stack and return. Where all nodes are taken at once, no
//! thread looks for the node behind the head, so a head may return.

use std::ptr::{NonNull, null_mut};

use crate::{
    memory::epoch,
    sync::{
        Ordering::Relaxed,
        atomic::AtomicPtr,
        edge::{self, acquire, release},
    },
};

/// An element of a [`BatchStack`].
pub trait Node: Sized {
    /// Returns the word that links the node to the next one in the stack. It must always be an atomic pointer: a slow
    /// pop may still read it after the node has been put to use again.
    ///
    /// # Safety
    /// 1. `node` is not freed while the reference is used.
    unsafe fn next<'n>(node: NonNull<Self>) -> &'n AtomicPtr<Self>;
}

/// A lock-free stack of nodes that no thread uses, except for their words. Nodes are either [popped](Self::pop) or
/// [all retired](Self::retire_all), not both.
#[derive(Debug)]
pub struct BatchStack<N> {
    pub(crate) head: AtomicPtr<N>,
}

impl<N> Default for BatchStack<N> {
    fn default() -> Self {
        Self { head: AtomicPtr::new(null_mut()) }
    }
}

impl<N: Node> BatchStack<N> {
    /// Pushes `node`.
    ///
    /// # Safety
    /// 1. No other thread uses `node`, except for its word.
    /// 2. If `node` was popped from this stack before, it has been retired since then, and the epoch has passed.
    /// 3. `node` is not freed while it is in the stack.
    pub unsafe fn push(&self, node: NonNull<N>) {
        // SAFETY: by (1) only this thread could free the node, and the node enters the stack only after the last use of
        // the reference.
        let next = unsafe { N::next(node) };
        // Relaxed: only the expected value of the CAS.
        let mut head = self.head.load(Relaxed);
        loop {
            // Relaxed: published by the CAS.
            next.store(head, Relaxed);
            // Relaxed on failure: only a new expected value.
            match self.head.compare_exchange_weak(head, node.as_ptr(), release(edge::batch::PUSH), Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Pops a node, which only the caller then uses, except for the node's word. The node must not be freed or pushed
    /// again before it has been retired and the epoch has passed.
    pub fn pop(&self) -> Option<NonNull<N>> {
        // The pin prevents the ABA problem; see the head of this module.
        let _guard = epoch::pin();
        let mut head = self.head.load(acquire(edge::batch::POP));
        loop {
            let node = NonNull::new(head)?;
            // SAFETY: this thread is pinned, and a node that was in the stack at some moment since the pin is not freed
            // before the guard is dropped.
            let word = unsafe { N::next(node) };
            // Relaxed: acquired with the head. If the node has been popped, the CAS fails.
            let next = word.load(Relaxed);
            // Relaxed: if the CAS succeeds, the head has been in the stack since it was loaded, and that load acquired
            // the node's contents.
            match self.head.compare_exchange_weak(head, next, Relaxed, acquire(edge::batch::RETRY)) {
                Ok(_) => {
                    // The word must keep no pointer to a node that may be freed. The next node is not freed before the
                    // guard is dropped.
                    // Relaxed: a slow pop may read either value, since its CAS fails.
                    word.store(null_mut(), Relaxed);
                    return Some(node);
                }
                Err(now) => head = now,
            }
        }
    }

    /// Takes all nodes, and passes each to `reclaim` once the epoch has passed for what was unlinked before the node
    /// was pushed.
    ///
    /// # Safety
    /// 1. `reclaim` may run on any thread.
    /// 2. Everything that `reclaim` refers to lives until it has run, and so does each node until it is passed on.
    pub unsafe fn retire_all(&self, reclaim: impl Fn(NonNull<N>)) {
        let guard = epoch::pin();
        // Every change of the head is a read-modify-write, so this one acquires all pushes.
        let mut nodes = self.head.swap(null_mut(), acquire(edge::batch::ALL));
        if nodes.is_null() {
            return;
        }
        let each = move || {
            while let Some(node) = NonNull::new(nodes) {
                // SAFETY: (2).
                let word = unsafe { N::next(node) };
                // Relaxed: acquired with the head.
                nodes = word.load(Relaxed);
                // The word must keep no pointer to a node that may be freed.
                // Relaxed: the closure owns the node.
                word.store(null_mut(), Relaxed);
                reclaim(node);
            }
        };
        // SAFETY: (1) and (2).
        unsafe { guard.retire(each) };
        // Nothing may wait in the bag of this thread, which may rest from now on.
        guard.flush();
    }

    /// Pushes `node` once the epoch has passed, as the pool does. For models.
    ///
    /// # Safety
    /// 1. No other thread uses `node`, except for its word.
    /// 2. `node` is not freed before the stack is dropped.
    #[cfg(any(raddle_loom, raddle_shuttle))]
    pub unsafe fn push_after_epoch(self: &std::sync::Arc<Self>, node: NonNull<N>)
    where
        N: 'static,
    {
        let stack = std::sync::Arc::clone(self);
        // SAFETY: (1) is guaranteed by this function's (1), (2) by the epoch, which has passed when the closure runs,
        // and (3) by this function's (2).
        let push = move || unsafe { stack.push(node) };
        // SAFETY: all threads of a model run on one OS thread, and the closure owns what it uses.
        unsafe { epoch::pin().retire(push) };
    }
}
