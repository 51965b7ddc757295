//! raddle's tracker as a model: push, help, complete and retire, with one action for each atomic access of
//! `src/tracker`, which [stateright](https://www.stateright.rs) explores.
//!
//! The models under loom and shuttle run the library's own code, with a few operations. This one is written anew, from
//! the head of `src/tracker/mod.rs`, so that four threads fit: [`Step`] names its actions as that head and the functions
//! do, and [`Rule`] names the rules of the algorithm, each of which can be removed. A change of the tracker's steps must
//! be made here as well.
//!
//! # What it has
//!
//! Threads push operations over up to three variables, and help each other. Any thread may run a ready operation: here a
//! separate thread completes each, as soon as it is ready or later, so operations end beside each other and beside all
//! pushes. A retired record is reclaimed when all threads are unpinned that were pinned then; any use of it by another
//! thread is an error.
//!
//! It has no deletions and no holders of records other than the thread that runs the operation. Its memory is
//! sequentially consistent; the orderings are checked by loom.
//!
//! # What is checked
//!
//! In each state of each execution, by the properties of [`Tracker`]:
//!
//! - *linearizable*: the moment at which the last access of an operation is linked lies within its push, and all queues
//!   have the operations in the order of these moments. In smaller programs the order of the queues is also compared with
//!   the times at which pushes began and returned;
//! - *no deadlock*: where nothing can happen any more, all operations are complete, and all records are retired except
//!   those that are last in a queue;
//! - *no livelock*: every execution ends, since there is no cycle of states;
//! - *nothing retired early*: no thread uses a reclaimed record, none is retired twice, and none can be reached from a
//!   tail after it was retired;
//! - *every operation runs once*, after the operations that it must wait for, and waits for no others;
//! - in smaller programs, a push returns even if all other threads stand still anywhere, and a thread that stands still
//!   inside a push delays only operations that come after its own.
//!
//! # Reduction
//!
//! Some steps are taken as soon as a thread has come to them, because their place among the steps of others does not
//! matter: loads of what does not change any more, a CAS that can only fail, a step for which early is the worst time,
//! such as the one that retires a record. A test compares the ends of all executions with and without that.

mod complete;
mod model;
mod program;
mod push;
mod state;
mod step;
mod weaken;

pub use model::{Action, Tracker};
pub use program::{Mode, Program, Shape};
pub use state::{State, Wrong};
pub use step::Step;
pub use weaken::Rule;
