//! What an engine tells about itself: events for its recorder and observers, dumps, and a watchdog's reports.
//!
//! This layer owns an engine's recorder and observers ([`recording`]) and the calls to them ([`record`]), and it lists
//! what is pending ([`snapshot`]). It changes no operation, and an engine without a recording skips it.
//!
//! It may name every layer below `engine`, and the file [`engine::core`](crate::engine::core).

pub(crate) mod record;
pub(crate) mod recording;
pub(crate) mod snapshot;
mod watch;
