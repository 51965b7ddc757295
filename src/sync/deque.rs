//! Work-stealing deques: crossbeam-deque, or under loom a model of its contract.

#[cfg(not(raddle_loom))]
pub(crate) use crossbeam_deque::{Steal, Stealer, Worker};

#[cfg(raddle_loom)]
pub(crate) use model::{Steal, Stealer, Worker};

/// The contract of crossbeam-deque that the scheduler relies on: an element pushed is taken once, by the owner or by one
/// stealer, and `steal` may fail for no reason (`Retry`) while somebody else is at the deque.
#[cfg(raddle_loom)]
mod model {
    use std::{collections::VecDeque, sync::Arc};

    use loom::sync::Mutex;

    pub(crate) use crossbeam_deque::Steal;

    #[derive(Debug)]
    pub(crate) struct Worker<T>(Arc<Mutex<VecDeque<T>>>);
    #[derive(Debug)]
    pub(crate) struct Stealer<T>(Arc<Mutex<VecDeque<T>>>);

    impl<T> Worker<T> {
        pub(crate) fn new_fifo() -> Self {
            Self(Arc::new(Mutex::new(VecDeque::new())))
        }

        pub(crate) fn stealer(&self) -> Stealer<T> {
            Stealer(Arc::clone(&self.0))
        }

        pub(crate) fn push(&self, element: T) {
            self.0.lock().unwrap().push_back(element);
        }

        pub(crate) fn pop(&self) -> Option<T> {
            self.0.lock().unwrap().pop_front()
        }

        pub(crate) fn is_empty(&self) -> bool {
            self.0.lock().unwrap().is_empty()
        }
    }

    impl<T> Stealer<T> {
        pub(crate) fn is_empty(&self) -> bool {
            self.0.lock().unwrap().is_empty()
        }

        /// Takes one element for the caller. The real one moves more of them to `_destination`, which changes who
        /// holds an element but not how often it is taken.
        pub(crate) fn steal_batch_and_pop(&self, _destination: &Worker<T>) -> Steal<T> {
            match self.0.try_lock() {
                Ok(mut queue) => queue.pop_front().map_or(Steal::Empty, Steal::Success),
                Err(_) => Steal::Retry,
            }
        }
    }
}
