//! A model of raddle's tracker (push, help, complete, unlink and retire) with one action for each atomic access that
//! these make in `src/tracker`, explored by [stateright](https://www.stateright.rs).
//!
//! The models for loom and shuttle run the library's own code: those for loom with few operations, and those for
//! shuttle in a sample of all schedules. This model is a separate implementation of the algorithm described in
//! `src/tracker/mod.rs`, small enough to be explored with four threads. [`Step`] lists the actions, and [`Rule`] the
//! rules of the algorithm that can be removed. A change to the tracker's steps must be made here as well.
//!
//! # What it covers
//!
//! Threads push operations over up to three variables, helping each other. In the tracker, any thread may run a ready
//! operation; here, a separate thread completes each operation at any time after it is ready, so completions run
//! concurrently with each other and with all pushes. Once a record is retired, only threads that were pinned at that
//! time and have not unpinned since may use it; any other use is an error.
//!
//! In some programs, one more thread unlinks completed readers, once or twice. It may begin at any time, at any access
//! that is in a queue and not spent then. In the tracker, each variable's front decides which thread unlinks, and at
//! which completed reader it begins; the front itself is not part of the model.
//!
//! The model has no deletions, and only the thread that runs an operation holds its record. The model's memory is
//! sequentially consistent; loom checks the orderings.
//!
//! # What is checked
//!
//! The properties of [`Tracker`] are checked in each state of each execution:
//!
//! - *linearizable*: an operation's last access is linked during the operation's push, and all queues hold the
//!   operations in the order of these links. In smaller programs, this order is also compared with the times at which
//!   pushes began and returned;
//! - *no deadlock*: in a final state, all operations are complete, and all records except the last in each queue are
//!   retired;
//! - *no livelock*: every execution ends, since no cycle of states exists;
//! - *nothing retired early*: no thread uses a reclaimed record, and no record is retired twice, or reachable after it
//!   is retired, from a tail or from an access that is not spent;
//! - *every operation runs once*, after the operations for which it must wait, and waits for no others;
//! - in smaller programs, a push returns even if all other threads stall at any point, and a thread that stalls inside
//!   a push delays only its own operations and those behind the one being pushed.
//!
//! # Reduction
//!
//! Some steps are taken as soon as a thread reaches them, because their order relative to other threads' steps is
//! irrelevant: a load of a value that no longer changes, a CAS that can only fail, or a step whose earliest time is the
//! worst case, such as the retirement of a record. For some small programs, a test compares the final states of all
//! executions with and without this reduction.

mod complete;
mod model;
mod program;
mod push;
mod state;
mod step;
mod unlink;
mod weaken;

pub use model::{Action, Tracker};
pub use program::{Mode, Program, Shape};
pub use state::{State, Wrong};
pub use step::Step;
pub use weaken::Rule;
