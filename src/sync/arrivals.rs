//! A list to which any thread adds values and from which one thread at a time takes all of them.
//!
//! # Who may touch what
//!
//! * The head: any thread, by exchanges.
//! * A node: the thread that adds it, until the exchange; then the thread that takes it. No thread follows a pointer to
//!   a node that another one may take, so a node needs no further protection.
//!
//! # Edges
//!
//! [`arrival`](crate::sync::edge::arrival).

use std::ptr::null_mut;

use super::{
    Ordering::Relaxed,
    atomic::AtomicPtr,
    edge::{self, acquire, release},
};

/// The list. Adding and taking are lock-free.
#[derive(Debug)]
pub struct Arrivals<T> {
    head: AtomicPtr<Arrived<T>>,
}

#[derive(Debug)]
struct Arrived<T> {
    value: T,
    /// The node added before, or null.
    before: *mut Self,
}

// SAFETY: a value is reachable only for the thread that takes it, so values only move between threads.
unsafe impl<T: Send> Send for Arrivals<T> {}
// SAFETY: the same: a shared list only lets values move.
unsafe impl<T: Send> Sync for Arrivals<T> {}

impl<T> Default for Arrivals<T> {
    fn default() -> Self {
        Self { head: AtomicPtr::new(null_mut()) }
    }
}

impl<T> Arrivals<T> {
    /// Adds a value.
    pub fn add(&self, value: T) {
        let node = Box::into_raw(Box::new(Arrived { value, before: null_mut() }));
        // A node may get the address of one that was in the list when the head was read.
        node.expose_provenance();
        // Relaxed: only the expected value of the exchange.
        let mut head = self.head.load(Relaxed);
        loop {
            // SAFETY: the node is not in the list yet, so it is this thread's.
            unsafe { (*node).before = head };
            // Relaxed on failure: only a new expected value.
            match self.head.compare_exchange_weak(head, node, release(edge::arrival::ADDED), Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes all values, in the order in which they were added.
    pub fn take(&self) -> Vec<T> {
        let mut values = Vec::new();
        // Every change of the head is an exchange, so this one acquires all additions since the last take.
        let mut next = self.head.swap(null_mut(), acquire(edge::arrival::TAKEN));
        while !next.is_null() {
            // SAFETY: the node came from a box, and the exchange has made it this thread's.
            let node = *unsafe { Box::from_raw(std::ptr::with_exposed_provenance_mut::<Arrived<T>>(next.addr())) };
            values.push(node.value);
            next = node.before;
        }
        values.reverse();
        values
    }
}

impl<T> Drop for Arrivals<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}
