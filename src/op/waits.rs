//! The last waits for a variable, which later waits can join. However many threads wait for a variable that makes no
//! progress, they add at most one operation per kind of wait to its queue, as long as no other operation is pushed on
//! the variable.
//!
//! A wait is an operation in the queue of the variable which sets a [`Oneshot`]. The variable remembers
//! the last wait of each [kind](WaitFor) from before the wait's push until its start. The wait's record is held during
//! that time.
//!
//! # Which wait may be joined
//!
//! A new wait joins the remembered wait of its kind if no access is linked behind that wait's access, except the access
//! of the remembered wait of the other kind. Joining is equivalent to pushing a new wait at that moment:
//!
//! * Operations pushed before the call to [`join`](JoinableWaits::join) precede the remembered wait. If one were behind
//!   that wait, its access would have been linked by the end of its push, before the call, and the word of the wait's
//!   access would show the link.
//! * No operation between the remembered wait and the position of a new one mutates: at most the other wait is there,
//!   and it depends only on operations ahead of both. A new wait would therefore end together with the remembered one
//!   and see the same failure, since only an operation that mutates sets or clears a failure. A deletion also mutates.
//! * Operations pushed after the call are behind the remembered wait, because that wait is already in its queue
//!   ([registered]). A wait whose push is still in progress is not joined, since it might end up behind an operation
//!   that the caller pushes next.
//!
//! A ready wait is joined only while GPUs have operations in flight on which a new wait would also depend. Otherwise, a
//! new wait would be ready immediately, whereas the remembered one may belong to a thread that is not running.
//!
//! # Who may touch what
//!
//! * Everything: under the lock. A thread holding the lock runs no program code and takes no other lock.
//! * The wait calls [`forget`](JoinableWaits::forget) when it starts. At that time, it holds the variable, so the
//!   variable exists and the remembered record is never stale. A forgotten wait has not set its oneshot, so no error is
//!   dropped with it.
//!
//! [registered]: crate::tracker::Op::is_registered

use std::{ptr::NonNull, sync::Arc};

use crate::{
    notify::oneshot::Oneshot,
    op::task::Task,
    sync::{Mutex, lock},
    tracker::{Hold, Mode, Op},
};

/// Which pending operations a wait for a variable covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitFor {
    /// Operations that mutate the variable. Once they are complete, the variable may be read.
    Writers,
    /// All operations on the variable.
    All,
}

impl WaitFor {
    /// Returns the mode of an access that waits for these operations.
    pub(crate) fn mode(self) -> Mode {
        match self {
            Self::Writers => Mode::Read,
            Self::All => Mode::Await,
        }
    }
}

/// The waits for a variable that later waits can join.
#[derive(Debug, Default)]
pub(crate) struct JoinableWaits(Mutex<Option<Box<Last>>>);

#[derive(Debug, Default)]
struct Last {
    writers: Option<Wait>,
    all: Option<Wait>,
}

impl Last {
    /// Returns the wait of this kind and the wait of the other kind.
    fn of(&mut self, kind: WaitFor) -> (&mut Option<Wait>, &mut Option<Wait>) {
        match kind {
            WaitFor::Writers => (&mut self.writers, &mut self.all),
            WaitFor::All => (&mut self.all, &mut self.writers),
        }
    }
}

/// A remembered wait, whose operation has not started yet.
#[derive(Debug)]
struct Wait {
    op: Hold<Task>,
    oneshot: Arc<Oneshot<()>>,
}

/// A wait for a variable, once it has begun.
pub(crate) struct Begun {
    pub(crate) oneshot: Arc<Oneshot<()>>,
    /// The task of the wait's operation. The pointer is only compared.
    pub(crate) task: NonNull<()>,
}

impl Begun {
    pub(crate) fn new(op: &Op<Task>, oneshot: Arc<Oneshot<()>>) -> Self {
        Self { oneshot, task: NonNull::from(op.task()).cast() }
    }
}

impl JoinableWaits {
    /// Returns the last wait of a kind if a new wait can join it. `on_device` says whether GPUs have operations in
    /// flight on which a new wait would depend.
    pub(crate) fn join(&self, kind: WaitFor, on_device: bool) -> Option<Begun> {
        let mut last = lock(&self.0);
        let (own, other) = last.as_mut()?.of(kind);
        let own = own.as_ref()?;
        let access = own.op.accesses().next()?;
        let other = other.as_ref().and_then(|other| other.op.accesses().next());
        access.stands_for_the_next(other, on_device).then(|| Begun::new(&own.op, Arc::clone(&own.oneshot)))
    }

    /// Remembers a wait that the caller is about to push, in place of the last one of its kind.
    pub(crate) fn remember(&self, kind: WaitFor, op: Hold<Task>, oneshot: Arc<Oneshot<()>>) {
        let wait = Wait { op, oneshot };
        let replaced = lock(&self.0).get_or_insert_default().of(kind).0.replace(wait);
        drop(replaced);
    }

    /// Forgets a wait that is starting.
    pub(crate) fn forget(&self, op: &Op<Task>) {
        let mut last = lock(&self.0);
        let forgotten = last.as_mut().and_then(|last| {
            let Last { writers, all } = &mut **last;
            let is_it = |wait: &mut Wait| std::ptr::eq(&raw const *wait.op, op);
            writers.take_if(is_it).or_else(|| all.take_if(is_it))
        });
        drop(last);
        drop(forgotten);
    }
}
