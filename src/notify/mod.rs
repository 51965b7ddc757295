//! What waiters and the code that completes operations share: counts, results, state machines, and lists of waiting
//! threads and futures.

pub(crate) mod async_state;
pub(crate) mod claim;
pub(crate) mod deadlines;
pub(crate) mod family_count;
pub(crate) mod oneshot;
pub(crate) mod pending;
pub(crate) mod poll_state;
pub(crate) mod stock;
pub(crate) mod stop_signal;
pub(crate) mod turn;
pub(crate) mod waiters;
pub(crate) mod wakers;
