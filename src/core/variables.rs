//! What is done to a variable as a whole: its failure cleared, its value deleted, its cell freed.

use std::{
    panic::{Location, resume_unwind},
    ptr::NonNull,
    sync::Arc,
};

use super::{Core, Spec};
use crate::{
    context::{self, Kept, RunContext},
    error::{Cause, OpError, PushError},
    panics,
    task::{Aftermath, Entry, Plain, Refs, Work, flag},
    tracker::Mode,
    variable::{Free, Token, VarCell},
};

impl Core {
    /// Clears the failure of a variable, in the order of pushes.
    pub(crate) fn clear_error(
        self: &Arc<Self>,
        token: &Token,
        location: &'static Location<'static>,
    ) -> Result<(), PushError> {
        let mut spec = Spec::internal("clear_error", 0, flag::INLINE | flag::NO_SKIP | flag::SILENT);
        let entry = Entry { cell: token.ptr(), mode: Mode::Write, refs: Refs::None };
        self.push(&mut spec, location, &mut [entry], Clear(None))
    }

    /// Deletes a variable after everything pending on it; then runs `f`.
    pub(crate) fn delete_variable(
        self: &Arc<Self>,
        token: &Token,
        location: &'static Location<'static>,
        f: impl FnOnce(&RunContext<'_>) + Send + 'static,
    ) -> Result<(), PushError> {
        if self.is_forked() {
            return Err(PushError::Forked);
        }
        let entry = Entry { cell: token.ptr(), mode: Mode::Overwrite, refs: Refs::None };
        self.admit(token.cell().queue())?;
        if !token.cell().queue().close() {
            return Err(PushError::DeletedVariable);
        }
        // Before everything else: it gives memory back.
        let flags = flag::EAGER | flag::NO_SKIP | flag::SILENT | flag::PASSES_CLOSED;
        let spec = Spec::internal("delete_variable", i32::MAX, flags);
        let delete = move |cx: &RunContext<'_>| {
            let empty = || {
                for access in cx.op().accesses() {
                    // SAFETY: the operation holds the variable for writing, and a closed variable takes no other operation.
                    unsafe { VarCell::of(access).empty() };
                }
            };
            // What the value's drop does must not keep the clean-up from running.
            context::keep(Kept::InDeletion, || {
                let emptied = panics::catch(empty);
                match (emptied, panics::catch(|| f(cx))) {
                    (Ok(()), Ok(())) => {}
                    (Err(payload), Ok(())) | (Ok(()), Err(payload)) => resume_unwind(payload),
                    (Err(first), Err(second)) => {
                        // Both are told.
                        cx.op().task().failed_by_panic(first).keep(&cx.core().failures);
                        resume_unwind(second);
                    }
                }
            });
            Ok(())
        };
        self.push_normalised(&spec, spec.priority, location, &[entry], Plain::new(delete))
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
        let pushed = core.push_normalised(&spec, spec.priority, location, &[entry], Free::new(cell));
        debug_assert!(pushed.is_ok(), "internal operations are not refused: {pushed:?}");
    }
}

/// Clears the failure of a variable.
struct Clear(Option<OpError>);

impl Work for Clear {
    const REPORTS: bool = true;

    fn start(&mut self, cx: &RunContext<'_>) -> Result<(), Cause> {
        for access in cx.op().accesses() {
            // SAFETY: the operation runs, names the variable as written, and comes after what is complete on devices.
            self.0 = unsafe { VarCell::of(access).trouble().set_failure(None) };
        }
        self.0.iter().for_each(OpError::settle);
        Ok(())
    }

    fn discard(&mut self) {}

    /// The failure is the program's, and may be dropped here.
    fn report(&mut self, _result: Result<(), &OpError>) -> Aftermath {
        Aftermath::of_failure(self.0.take())
    }
}
