//! Work-stealing deques: crossbeam-deque or, in models, a model of its contract.

#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(crate) use crossbeam_deque::{Steal, Stealer, Worker as Deque};

#[cfg(any(raddle_loom, raddle_shuttle))]
pub(crate) use model::{Deque, Steal, Stealer};

/// A model of the part of crossbeam-deque's contract that the scheduler relies on: a pushed element is taken at most
/// once, by the owner or by one stealer, and the taker sees everything done before the push. `is_empty` may return
/// `true` for a deque that is no longer empty, and `steal` may fail (`Retry`) if it loses a race against another
/// thread.
#[cfg(any(raddle_loom, raddle_shuttle))]
mod model {
    use std::{
        collections::VecDeque,
        sync::{Arc, Mutex},
    };

    use crate::sync::{
        Ordering::{AcqRel, Acquire, Release},
        atomic::AtomicUsize,
    };

    pub(crate) use crossbeam_deque::Steal;

    /// A deque. A call that adds or removes elements changes `len` first and then the queue. The queue is under a `std`
    /// mutex, which is never held across a switch point of the model checker and so never blocks. loom's mutex could
    /// park the thread and thereby consume an unpark token meant for the worker.
    #[derive(Debug)]
    struct DequeInner<T> {
        len: AtomicUsize,
        queue: Mutex<VecDeque<T>>,
    }

    impl<T> DequeInner<T> {
        fn is_empty(&self) -> bool {
            // Acquire: pairs with `push`.
            self.len.load(Acquire) == 0
        }

        /// Takes one element and `batch(n)` of the `n` elements behind it.
        fn take(&self, batch: impl Fn(usize) -> usize) -> Steal<(T, Vec<T>)> {
            // Acquire: pairs with `push`.
            let len = self.len.load(Acquire);
            if len == 0 {
                return Steal::Empty;
            }
            let more = batch(len - 1);
            // AcqRel: pairs with `push`, and continues the release sequence of the pushes for the next taker.
            if self.len.compare_exchange(len, len - 1 - more, AcqRel, Acquire).is_err() {
                return Steal::Retry;
            }
            let mut queue = self.queue.lock().unwrap();
            let first = queue.pop_front().expect("the element was counted");
            Steal::Success((first, queue.drain(..more).collect()))
        }
    }

    #[derive(Debug)]
    pub(crate) struct Deque<T>(Arc<DequeInner<T>>);
    #[derive(Debug)]
    pub(crate) struct Stealer<T>(Arc<DequeInner<T>>);

    impl<T> Deque<T> {
        pub(crate) fn new_fifo() -> Self {
            Self(Arc::new(DequeInner { len: AtomicUsize::new(0), queue: Mutex::default() }))
        }

        pub(crate) fn stealer(&self) -> Stealer<T> {
            Stealer(Arc::clone(&self.0))
        }

        pub(crate) fn push(&self, element: T) {
            // Release: hands over what was done before. A read-modify-write, since stealers change the word too.
            self.0.len.fetch_add(1, Release);
            self.0.queue.lock().unwrap().push_back(element);
        }

        pub(crate) fn pop(&self) -> Option<T> {
            loop {
                match self.0.take(|_| 0) {
                    Steal::Success((element, _)) => return Some(element),
                    Steal::Empty => return None,
                    Steal::Retry => {}
                }
            }
        }

        pub(crate) fn is_empty(&self) -> bool {
            self.0.is_empty()
        }

        pub(crate) fn len(&self) -> usize {
            // Acquire: pairs with `push`.
            self.0.len.load(Acquire)
        }
    }

    impl<T> Stealer<T> {
        pub(crate) fn is_empty(&self) -> bool {
            self.0.is_empty()
        }

        /// Takes one element.
        pub(crate) fn steal(&self) -> Steal<T> {
            match self.0.take(|_| 0) {
                Steal::Success((element, _)) => Steal::Success(element),
                Steal::Empty => Steal::Empty,
                Steal::Retry => Steal::Retry,
            }
        }

        /// Takes one element for the caller and moves half of the others to `destination`, as crossbeam-deque does. No
        /// other thread can see an element between its removal here and its arrival there.
        pub(crate) fn steal_batch_and_pop(&self, destination: &Deque<T>) -> Steal<T> {
            match self.0.take(|others| others / 2) {
                Steal::Success((element, others)) => {
                    others.into_iter().for_each(|other| destination.push(other));
                    Steal::Success(element)
                }
                Steal::Empty => Steal::Empty,
                Steal::Retry => Steal::Retry,
            }
        }
    }
}
