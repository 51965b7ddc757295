//! The stack that the [pool](super::pool) keeps its batches in: a Treiber stack (IBM RJ 5118, 1986).
//!
//! # Edges
//!
//! | edge | release side | acquire side | hands over |
//! |---|---|---|---|
//! | `batch` | CAS of `push` | load and failed CAS of `pop` | the node with what belongs to it, and its word |
//!
//! All changes of `head` are read-modify-writes, so each carries on what the pushes before it release.
//!
//! # Progress
//!
//! Lock-free.
//!
//! # Why there is no ABA problem
//!
//! A node that was popped is pushed again, or freed, only after it has been retired and the epoch has passed. So while
//! a popping thread is pinned, a head that it has read cannot leave the stack and come back.

use std::ptr::{NonNull, null_mut};

use crate::{
    memory::epoch,
    sync::{
        Ordering::{Acquire, Relaxed, Release},
        atomic::AtomicPtr,
    },
};

/// What can be in a stack.
pub trait Node: Sized {
    /// The word that belongs to the stack for good: who is slow to pop may still read it when the node is in use again.
    ///
    /// # Safety
    /// 1. `node` is not freed while the reference is used.
    unsafe fn next<'n>(node: NonNull<Self>) -> &'n AtomicPtr<Self>;
}

/// Nodes that nobody uses.
#[derive(Debug)]
pub struct Stack<N> {
    pub(crate) head: AtomicPtr<N>,
}

impl<N> Default for Stack<N> {
    fn default() -> Self {
        Self { head: AtomicPtr::new(null_mut()) }
    }
}

impl<N: Node> Stack<N> {
    /// Puts `node` in.
    ///
    /// # Safety
    /// 1. The node is the caller's alone, but for its word.
    /// 2. If it was popped before, the epoch has passed since.
    /// 3. It is not freed while it is in the stack.
    pub unsafe fn push(&self, node: NonNull<N>) {
        // SAFETY: (1), and the node is in the stack only after this function's last use of it.
        let next = unsafe { N::next(node) };
        // Relaxed: a guess for the CAS.
        let mut head = self.head.load(Relaxed);
        loop {
            // Relaxed: published by the CAS.
            next.store(head, Relaxed);
            // Release (edge `batch`). Relaxed on failure: only a new guess.
            match self.head.compare_exchange_weak(head, node.as_ptr(), Release, Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes a node, which is the caller's from now on. It may be freed, or pushed again, once it has been retired.
    pub fn pop(&self) -> Option<NonNull<N>> {
        // See the module's head.
        let _guard = epoch::pin();
        // Acquire (edge `batch`).
        let mut head = self.head.load(Acquire);
        loop {
            let node = NonNull::new(head)?;
            // SAFETY: what was in the stack while this thread is pinned is not freed.
            let next = unsafe { N::next(node) };
            // Relaxed: acquired with the head. If the node was popped meanwhile, the CAS fails.
            let next = next.load(Relaxed);
            // Relaxed: the head has been in the stack since it was read, so what it hands over was acquired then.
            // Acquire (edge `batch`) on failure: it is the next head.
            match self.head.compare_exchange_weak(head, next, Relaxed, Acquire) {
                Ok(_) => return Some(node),
                Err(now) => head = now,
            }
        }
    }

    /// Has `node` pushed once the epoch has passed, as the pool does; for models.
    ///
    /// # Safety
    /// 1. The node is the caller's alone, but for its word.
    /// 2. It is not freed before the stack.
    #[cfg(any(raddle_loom, raddle_shuttle))]
    pub unsafe fn give_back(self: &std::sync::Arc<Self>, node: NonNull<N>)
    where
        N: 'static,
    {
        let stack = std::sync::Arc::clone(self);
        // SAFETY: (1) and (2) are the same here, and the closure runs after the epoch.
        let push = move || unsafe { stack.push(node) };
        // SAFETY: the closure owns what it uses.
        unsafe { epoch::pin().retire(push) };
    }
}
