//! What is done to a variable as a whole: its failure cleared, its value deleted, its cell freed.

use std::{
    panic::{Location, resume_unwind},
    ptr::NonNull,
    sync::Arc,
};

use crate::{
    engine::{
        core::Core,
        frame::{self, Call, NoWait},
        spec::{Entry, Refs, Spec},
        task::{Cleanup, FnJob, Job, flag},
        variable::{VarCell, VarRef},
    },
    error::{
        op::{Cause, OpError},
        push::PushError,
    },
    system::panics,
    tracker::Mode,
};

impl Core {
    /// Clears the failure of a variable, in the order of pushes.
    pub(crate) fn clear_error(
        self: &Arc<Self>,
        var: VarRef<'_>,
        location: &'static Location<'static>,
    ) -> Result<(), PushError> {
        let mut spec = Spec::internal("clear_error", 0, flag::INLINE | flag::NO_SKIP | flag::SILENT);
        let entry = Entry { cell: var.ptr(), mode: Mode::Write, refs: Refs::None };
        self.push(&mut spec, location, &mut [entry], ClearJob(None))
    }

    /// Deletes a variable after everything pending on it; then runs `f`.
    pub(crate) fn delete_variable(
        self: &Arc<Self>,
        var: VarRef<'_>,
        location: &'static Location<'static>,
        f: impl FnOnce(&Call<'_>) + Send + 'static,
    ) -> Result<(), PushError> {
        if self.is_forked() {
            return Err(PushError::Forked);
        }
        let entry = Entry { cell: var.ptr(), mode: Mode::Overwrite, refs: Refs::None };
        self.check_variable(var.cell().queue())?;
        if !var.cell().queue().close() {
            return Err(PushError::DeletedVariable);
        }
        // Before everything else: it gives memory back.
        let flags = flag::EAGER | flag::NO_SKIP | flag::SILENT | flag::PASSES_CLOSED;
        let spec = Spec::internal("delete_variable", i32::MAX, flags);
        let delete = move |cx: &Call<'_>| {
            let empty = || {
                for access in cx.op().accesses() {
                    // SAFETY: the operation holds the variable for writing, and a closed variable takes no other operation.
                    unsafe { VarCell::of(access).empty() };
                }
            };
            // What the value's drop does must not keep the clean-up from running.
            frame::without_waits(NoWait::InDeletion, || {
                let emptied = panics::catch(empty);
                match (emptied, panics::catch(|| f(cx))) {
                    (Ok(()), Ok(())) => {}
                    (Err(payload), Ok(())) | (Ok(()), Err(payload)) => resume_unwind(payload),
                    (Err(first), Err(second)) => {
                        // Both are told.
                        cx.op().task().failed_by_panic(first).record(&cx.core().failures);
                        resume_unwind(second);
                    }
                }
            });
            Ok(())
        };
        self.push_sorted(&spec, spec.priority, location, &[entry], FnJob::new(delete))
    }

    /// Frees a variable whose last handle is gone, after everything pending on it.
    pub(crate) fn free_variable(cell: NonNull<VarCell>, location: &'static Location<'static>) {
        // SAFETY: the cell lives until the operation pushed here has ended.
        let (core, queue, needs_drop) = unsafe {
            let cell = cell.as_ref();
            (Arc::clone(cell.core()), cell.queue(), cell.needs_drop())
        };
        if core.is_forked() {
            return;
        }
        queue.close();
        // The value is the user's, and its drop runs on a worker; otherwise there is nothing to run.
        let at_once = if needs_drop { 0 } else { flag::INLINE };
        let flags = at_once | flag::NO_SKIP | flag::SILENT | flag::PASSES_CLOSED;
        let spec = Spec::internal("drop", i32::MAX, flags);
        let entry = Entry { cell, mode: Mode::Overwrite, refs: Refs::None };
        let pushed = core.push_sorted(&spec, spec.priority, location, &[entry], FreeJob::new(cell));
        debug_assert!(pushed.is_ok(), "internal operations are not refused: {pushed:?}");
    }
}

/// Clears the failure of a variable.
struct ClearJob(Option<OpError>);

impl Job for ClearJob {
    const REPORTS: bool = true;

    fn start(&mut self, cx: &Call<'_>) -> Result<(), Cause> {
        for access in cx.op().accesses() {
            // SAFETY: the operation runs, names the variable as written, and comes after what is complete on devices.
            self.0 = unsafe { VarCell::of(access).fault().set_failure(None) };
        }
        self.0.iter().for_each(OpError::mark_reported);
        Ok(())
    }

    fn discard(&mut self) {}

    /// The failure is the program's, and may be dropped here.
    fn report(&mut self, _result: Result<(), &OpError>) -> Cleanup {
        Cleanup::of_failure(self.0.take())
    }
}

/// The last operation on a variable, pushed when its last handle is gone: drops the value and then the cell.
pub(crate) struct FreeJob {
    cell: NonNull<VarCell>,
    failure: Option<OpError>,
}

impl FreeJob {
    pub(crate) fn new(cell: NonNull<VarCell>) -> Self {
        Self { cell, failure: None }
    }
}

// SAFETY: the operation holds the variable for writing, and nobody else will.
unsafe impl Send for FreeJob {}

impl Job for FreeJob {
    const REPORTS: bool = true;

    fn start(&mut self, _cx: &Call<'_>) -> Result<(), Cause> {
        // SAFETY: the cell is freed by `report`, after this.
        let cell = unsafe { self.cell.as_ref() };
        // SAFETY: this operation holds the variable for writing, and comes after what is complete on devices.
        self.failure = unsafe { cell.fault().set_failure(None) };
        // SAFETY: as above, and it is the last one.
        frame::without_waits(NoWait::InDeletion, || unsafe { cell.empty() });
        Ok(())
    }

    fn discard(&mut self) {}

    fn report(&mut self, _result: Result<(), &OpError>) -> Cleanup {
        // SAFETY: this operation was the last one ever pushed on the variable and its accesses are done.
        unsafe { VarCell::free(self.cell) };
        Cleanup::of_failure(self.failure.take())
    }
}
