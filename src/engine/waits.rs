//! The last waits for a variable, so that others can join them: waits for a variable that stands still add nothing to it,
//! however many there are and whatever becomes of them.
//!
//! A wait is an operation in the variable's queue (`WaitJob`) that tells an [`Oneshot`]. The variable remembers the last one of
//! each kind, *for reading* and *for all*, from before its push until it begins. Meanwhile its record is held.
//!
//! # Who may join
//!
//! A new wait joins the remembered one of its kind if nothing stands behind that but possibly the remembered one of the
//! other kind. This is the same as a push at that moment:
//!
//! * What was pushed before the call stands in front of the remembered wait. Had it come behind, the word that is looked at
//!   would say so: it was linked before, or at, the end of that push, which is before the call.
//! * Between the remembered wait and the place of a new one there is nothing that mutates: at most the other wait, which
//!   waits for nothing that is not in front of both. So both end with the same operations, and see the same failure: to
//!   set or to clear one takes an operation that mutates. A deletion is one as well.
//! * What is pushed after the call comes behind, because the remembered wait is in its queue ([registered]). A wait that is
//!   still being pushed is not joined: it could end up behind what the caller is going to push.
//!
//! A wait that the tracker has let go is joined only while devices have to complete something first, for which a new one
//! would have to wait as well. Otherwise a new one would be ready at once, and the remembered one may be in the hands of a
//! thread that stands still.
//!
//! # Who may touch what
//!
//! All under the lock, which nobody holds while he does anything else. [`forget`](Waits::forget) is called by the
//! operation when it begins, while it holds the variable, so the variable is there; the record that is remembered is never
//! a stale one. What is forgotten has set no oneshot, so no error is dropped with it.
//!
//! [registered]: crate::tracker::Op::is_registered

use std::sync::Arc;

use crate::{
    engine::task::Task,
    notify::oneshot::Oneshot,
    sync::{Mutex, lock},
    tracker::{Hold, Op},
};

/// The waits for a variable that others can join.
#[derive(Debug, Default)]
pub(crate) struct Waits(Mutex<Option<Box<Last>>>);

#[derive(Debug, Default)]
struct Last {
    for_reading: Option<Wait>,
    for_all: Option<Wait>,
}

impl Last {
    /// The wait of a kind, and that of the other.
    fn of(&mut self, for_reading: bool) -> (&mut Option<Wait>, &mut Option<Wait>) {
        if for_reading {
            (&mut self.for_reading, &mut self.for_all)
        } else {
            (&mut self.for_all, &mut self.for_reading)
        }
    }
}

/// A wait that has not begun.
#[derive(Debug)]
struct Wait {
    op: Hold<Task>,
    oneshot: Arc<Oneshot<()>>,
}

impl Waits {
    /// The oneshot of the last wait, if a new one can join it; `on_device` says whether devices have yet to complete something
    /// that a new one would wait for.
    pub(crate) fn join(&self, for_reading: bool, on_device: bool) -> Option<Arc<Oneshot<()>>> {
        let mut last = lock(&self.0);
        let (own, other) = last.as_mut()?.of(for_reading);
        let own = own.as_ref()?;
        let access = own.op.accesses().first()?;
        let other = other.as_ref().and_then(|other| other.op.accesses().first());
        access.stands_for_the_next(other, on_device).then(|| Arc::clone(&own.oneshot))
    }

    /// Remembers a wait that the caller is going to push, in place of the last one of its kind.
    pub(crate) fn remember(&self, for_reading: bool, op: Hold<Task>, oneshot: Arc<Oneshot<()>>) {
        let wait = Wait { op, oneshot };
        let replaced = lock(&self.0).get_or_insert_default().of(for_reading).0.replace(wait);
        drop(replaced);
    }

    /// Forgets a wait that begins.
    pub(crate) fn forget(&self, op: &Op<Task>) {
        let mut last = lock(&self.0);
        let forgotten = last.as_mut().and_then(|last| {
            let Last { for_reading, for_all } = &mut **last;
            let is_it = |wait: &mut Wait| std::ptr::eq(&raw const *wait.op, op);
            for_reading.take_if(is_it).or_else(|| for_all.take_if(is_it))
        });
        drop(last);
        drop(forgotten);
    }
}
