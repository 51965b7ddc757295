//! The dependency tracker, which decides which operations may run. It has no locks, threads or scheduler.
//!
//! Each variable has a queue of *accesses* in push order. Each operation owns one access for each variable that it
//! uses, and keeps its accesses sorted by the variables' ids. [`push()`] appends an operation's accesses to the queues
//! of all its variables in one atomic step; [`complete()`] marks them done and reports the operations that became
//! ready. The caller runs the ready operations.
//!
//! # States
//!
//! An access's word is a pointer to the next access of its variable, tagged with flags that, once set, are never
//! cleared:
//!
//! | flag | meaning | set by |
//! |---|---|---|
//! | `READ_OK` | every earlier access of the variable is done that this one may not run beside | the completion that made this true, or the operation's own pusher |
//! | `WRITE_OK` | every earlier access of the variable is done | the same |
//! | `DONE` | the access's own operation is done | [`complete()`] |
//! | next ≠ null | a later access is linked behind this one | the thread that links that access |
//! | `LINKED_…` | the flags that were grantable to the next access when it was linked | the same |
//!
//! The flags *grantable* to an access follow from its predecessor: `READ_OK` and `WRITE_OK` if the predecessor has
//! `WRITE_OK` and `DONE`; only `READ_OK` if the predecessor has `READ_OK` and [passes it on](access::Mode::passes_to);
//! otherwise none.
//!
//! A reader is *satisfied* by `READ_OK`, a writer by `WRITE_OK`. A wait is satisfied by `WRITE_OK`, like a writer, but
//! grants `READ_OK`, like a reader. An access that commutes is satisfied by `READ_OK`, too. It passes that on to others
//! that commute, but not to readers and waits, nor they to it. So consecutive ones, a *run*, are satisfied together,
//! once what is before them is done; that their operations exclude each other is left to [turns](crate::notify::turn).
//! In what follows, what is said of readers holds for these accesses as well. An operation is *ready* when all its
//! accesses are satisfied and, if it has several, its push is over. An access with `WRITE_OK`, `DONE` and a next access
//! is *spent*. Its share of the operation's record, or of its [block](apart) of accesses, then ends. Each holder of a
//! record ([`Hold`]) also has a share, and the thread that ends the last share retires the record. Most operations have
//! a single access and, when they end, a single holder. This holder makes the access responsible for the record
//! ([`end`]). The thread that finds that access spent then retires the record without counting shares.
//!
//! `READ_OK` and `WRITE_OK` reach an access by one of two routes. A flag that was grantable when the access was linked
//! is set by the operation's pusher, or *deferred* by another thread and adopted by the pusher. A flag that became
//! grantable later is propagated by the completion that made it grantable. A second grant of a flag has no effect. A
//! completion propagates `WRITE_OK` only to an access that does not receive it by the other route, so it may walk down
//! a queue without a guard: an access whose `WRITE_OK` the completion is about to set does not yet have that flag, and
//! so cannot be spent.
//!
//! To the tracker, a device operation is done once it has been issued; the device's outstanding work is recorded
//! elsewhere.
//!
//! # Worked example
//!
//! Operation A reads x. B reads x and writes y. C writes x and reads y. `x0` and `y0` are the variables' initial
//! accesses. `R`, `W` and `D` are `READ_OK`, `WRITE_OK` and `DONE`; `r` and `w` on an arrow are `LINKED_READ_OK` and
//! `LINKED_WRITE_OK`; an access in brackets is spent. The column `wait` shows the counts of A, B and C. The unit tests
//! `the_worked_example_…` take these steps and check each line.
//!
//! ```text
//! step              queue of x                                   queue of y                       wait   ready
//! new               x0 RWD                                       y0 RWD                           1 3 3
//! A: push           [x0 RWD] -rw> A RW                           y0 RWD                           1 3 3  A
//! B: insert in x    [x0 RWD] -rw> A RW -r> B R                   y0 RWD                           1 3 3
//! B: insert in y    [x0 RWD] -rw> A RW -r> B R                   [y0 RWD] -rw> B RW               1 3 3  B
//! C: insert in x    [x0 RWD] -rw> A RW -r> B R -r> C R           [y0 RWD] -rw> B RW               1 3 3
//! C: insert in y    [x0 RWD] -rw> A RW -r> B R -r> C R           [y0 RWD] -rw> B RW -> C          1 3 2
//! ```
//!
//! A and B run in parallel. Their pushes found every access satisfied, so they left `wait` unchanged. C waits for both:
//! for `WRITE_OK` in x and `READ_OK` in y; its push has subtracted its own part from `wait`.
//!
//! Now A and B complete on two threads, B's thread first:
//!
//! ```text
//! B: complete in x  [x0 RWD] -rw> A RW -r> B RD -r> C R          [y0 RWD] -rw> B RW -> C          1 3 2
//! A: complete in x  [x0 RWD] -rw> [A RWD] -r> [B RWD] -r> C RW   [y0 RWD] -rw> B RW -> C          1 3 1
//! B: complete in y  [x0 RWD] -rw> [A RWD] -r> [B RWD] -r> C RW   [y0 RWD] -rw> [B RWD] -> C RW    1 3 1  C
//! ```
//!
//! B's access to x lacks `WRITE_OK`, so B's thread stops there. `DONE` spends A's access, so A's thread propagates
//! `READ_OK` and `WRITE_OK` to B's access, which spends that access too. A's thread then ends B's share, satisfies C's
//! access to x, and subtracts one from C's `wait`. B's thread then satisfies C's access to y and finds 1 in `wait`: C
//! is ready.
//!
//! If A's thread goes first, it stops at B's access, because `WRITE_OK` without `DONE` grants nothing new. B's thread
//! then spends that access and continues with C's:
//!
//! ```text
//! A: complete in x  [x0 RWD] -rw> [A RWD] -r> B RW -r> C R       [y0 RWD] -rw> B RW -> C          1 3 2
//! B: complete in x  [x0 RWD] -rw> [A RWD] -r> [B RWD] -r> C RW   [y0 RWD] -rw> B RW -> C          1 3 1
//! B: complete in y  [x0 RWD] -rw> [A RWD] -r> [B RWD] -r> C RW   [y0 RWD] -rw> [B RWD] -> C RW    1 3 1  C
//! ```
//!
//! Each thread sets its flags with a `fetch_or` on the word of B's access, so only the second thread sees both
//! `WRITE_OK` and `DONE` there and continues.
//!
//! Had B's pusher stopped after its first step, C's pusher would have helped B, deferring (`~`) B's flags in y. For the
//! accesses behind B's, deferred flags count as set, and B's pusher adopts them when it continues:
//!
//! ```text
//! B: insert in x    [x0 RWD] -rw> A RW -r> B R                   y0 RWD                           1 3 3
//! C: help B         [x0 RWD] -rw> A RW -r> B R                   [y0 RWD] -rw> B ~RW              1 3 3
//! C: push           [x0 RWD] -rw> A RW -r> B R -r> C R           [y0 RWD] -rw> B ~RW -> C         1 3 2
//! B: adopt          [x0 RWD] -rw> A RW -r> B R -r> C R           [y0 RWD] -rw> B RW~RW -> C       1 3 2  B
//! ```
//!
//! # Who may touch what
//!
//! * `VarQueue::tail`: dereferenced only by pinned threads; moved only forward, by these threads and by completions.
//! * `Access::word`: linked once, by the thread that inserts the next access, and again by a thread that
//!   [unlinks](unlink) the next access; its flags are set by the rules above.
//! * `VarQueue::front`: says who may unlink accesses, and where to begin.
//! * `Access::deferred`: flags that were grantable to the access when it was linked, left for the pusher by helpers and
//!   by threads that move the tail to the access.
//! * `Op::wait`: a completion subtracts one for each access that it satisfies; the last step of a push over several
//!   variables subtracts one, plus one for each access that the pusher has found satisfied. A pusher that has found all
//!   of them satisfied subtracts nothing and owns the ready operation. Otherwise, the thread that brings the count to
//!   zero, or finds that its own step would, becomes the owner of the ready operation.
//! * `Op::unregistered`: the number of accesses not known to be in their queues; decremented by a thread that finds the
//!   next access at the tail of its queue, and set to zero by the pusher when all are in. The same word contains the
//!   flag `REJECTED` (see *Deleted variables*).
//! * An operation's number of accesses, their places, and its other parameters: written before the first access is
//!   linked, and never changed.
//! * The task: used only by the pusher until the first access is linked. After that, its users' rules apply; the
//!   tracker only drops it.
//!
//! # Edges
//!
//! [`link`](crate::sync::edge::link), [`swing`](crate::sync::edge::swing), [`register`](crate::sync::edge::register),
//! [`complete`](crate::sync::edge::complete), [`front`](crate::sync::edge::front),
//! [`ready`](crate::sync::edge::ready), [`retire`](crate::sync::edge::retire).
//!
//! A thread that links an access has acquired the writes published with the flags that it found grantable. The thread
//! hands these writes over with the access, by `link` and `swing`, so flags set or deferred afterwards (`grant`,
//! `defer_flags`) need no edge of their own.
//!
//! # Why a push is atomic
//!
//! No access is appended behind an operation that is not yet in all its queues: `insert` first helps that operation's
//! push to finish. So if A precedes B in any queue, A was in all its queues before B entered that one. Operations
//! therefore become fully registered in one total order, with which every queue agrees. This order respects each
//! thread's program order and real time, because a push returns only after its operation is fully registered. The order
//! has no cycle, so there is no deadlock. Pushes of a single access must help too; otherwise, they would break this
//! order. They never need help, because a single-access operation is in all its queues once that access is linked.
//!
//! An access is never inserted twice: `insert` reads the tail, then the word of the access there, and then
//! `unregistered` of the operation whose access it is to insert. Suppose that the access to insert was already in its
//! queue when the word was read. As `insert` has checked, a different access was at the tail, with nothing linked
//! behind it. So another access had been linked behind the access to insert, which happens only once the operation of
//! the access to insert is fully registered, and the read of `unregistered` sees this. If the access was linked after
//! the word was read, the word has changed and the CAS fails. Other threads insert accesses of an operation only once
//! its first access is linked, so only the pusher inserts that access, and needs none of these checks for it. No word
//! or tail returns to an old value while a thread that has read that value is pinned, since records are reused only
//! after the epoch has passed, and an idle variable keeps its last access.
//!
//! # Progress
//!
//! `push` is lock-free. An operation that blocks a push at one variable can itself be stuck only at a variable with a
//! larger id, so helping terminates. A thread that stalls anywhere inside `push` delays only its own operation and
//! those behind it: helpers defer flags and never take over a step that only one thread may take. The two steps that
//! only the pusher may take, the adoption of deferred flags and the push's decrement of `wait`, concern only its own
//! operation, and a push of one access takes neither. The number of steps that `complete` takes is bounded by the
//! number of accesses that it marks done plus the number that its flags reach; it loops and never recurses.
//!
//! `loom-tests/algorithm` models these steps and those of `unlink`, and explores every execution of small programs:
//! each execution ends with every operation complete.
//!
//! # Deleted variables
//!
//! A variable is closed before its deletion is pushed. A thread that inserts an access behind the deletion reads the
//! tail after the deletion was pushed, so the thread sees the closed flag. Unless closed variables accept the operation
//! of this access, the thread marks the operation *rejected*, in the word that counts the operation's registrations. A
//! rejected operation takes its place in all its queues and does nothing when it runs; its push reports the deletion.
//!
//! # Source
//!
//! The queue is Michael and Scott's (PODC 1996) with the last element kept in place of a dummy node; helping a
//! half-done multi-queue operation before passing it follows Harris, Fraser and Pratt's multi-word CAS (DISC 2002).

mod access;
mod apart;
mod blocked;
mod followers;
mod front;
mod insert;
mod look;
mod op_record;
mod propagate;
mod queue;
mod queued;
mod take;
#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
mod tests;
mod unlink;

pub use access::{Access, Mode};
pub use blocked::{Ahead, walk_blocked};
pub use followers::followers;
#[cfg(any(raddle_loom, raddle_shuttle))]
pub use insert::{PushResult, Stalled};
pub use insert::{push, push_ordered, push_sole};
pub use look::{Standing, Successors};
pub use op_record::{Hold, INLINE_ACCESSES, Op, OpRef, ReadyList, Room, TASK_ROOM, each_marked};
pub use propagate::{complete, end, end_with};
pub use queue::VarQueue;
#[cfg(any(raddle_loom, raddle_shuttle))]
pub use unlink::complete_unlinking;
