//! The engine's own operations on whole variables, which clear a failure, delete a value or free a cell.

use std::{
    panic::{Location, resume_unwind},
    ptr::NonNull,
    sync::Arc,
};

use crate::{
    engine::core::Core,
    error::{
        op::OpError,
        push_error::{NoAccess, PushError},
    },
    op::{
        frame::Call,
        job::{FnJob, Sink, without_sink},
        kin::KinShare,
        limits::Limits,
        no_wait::{self, NoWait},
        spec::{CLEAR_ERROR, Entry, RefKind, Spec},
        task::{ErasedJob, Remainder, Task, flag},
        variable::{ValueMemory, VarCell, VarRef},
    },
    system::panics,
    tracker::{Mode, OpRef},
};

/// The name of the internal operations that drop the values of variables without handles.
pub(crate) const DROP: &str = "drop";

/// Clears the failure of a variable, in push order.
pub(crate) fn clear_error(
    core: &Arc<Core>,
    var: VarRef<'_>,
    location: &'static Location<'static>,
) -> Result<(), PushError> {
    let spec = Spec::internal(CLEAR_ERROR, 0, flag::INLINE | flag::NO_SKIP | flag::SILENT);
    let entry = Entry { cell: var.ptr(), mode: Mode::Write, refs: RefKind::None };
    // The failure is dropped in the epilogue, since its drop may run program code.
    let clear = |call: &Call<'_>, cleared: &mut Option<OpError>| {
        for access in call.op().accesses() {
            // SAFETY: the operation holds the variable for writing, and the device operations before it are
            // complete.
            *cleared = unsafe { VarCell::of(access).set_failure(None) };
        }
        cleared.iter().for_each(OpError::mark_reported);
        Ok(())
    };
    core.push(&spec, location, &mut [entry], ErasedJob::new(FnJob::with(None, clear)))
}

/// Deletes a variable after the pending operations on it, and then calls `f`.
pub(crate) fn delete_variable(
    core: &Arc<Core>,
    var: VarRef<'_>,
    location: &'static Location<'static>,
    f: impl FnOnce(&Call<'_>) + Send + 'static,
) -> Result<(), PushError> {
    core.live()?;
    // A deletion has the highest priority, since it frees memory.
    let flags = flag::EAGER | flag::NO_SKIP | flag::SILENT;
    let spec = Spec::internal("delete_variable", i32::MAX, flags).passing_closed();
    let entry = Entry { cell: var.ptr(), mode: Mode::Overwrite, refs: RefKind::None };
    let closed = core.check_variable(var.cell(), &spec.name, location).and_then(|()| {
        let deleted = || PushError::Variable(NoAccess::Deleted, var.cell().refused_access(&spec.name, location));
        var.cell().queue().close().then_some(()).ok_or_else(deleted)
    });
    if let Err(error) = closed {
        // `?` is not used, for the reason given in `push`.
        drop(f);
        return Err(error);
    }
    let delete = move |call: &Call<'_>| {
        let empty = || {
            for access in call.op().accesses() {
                // SAFETY: the operation holds the variable for writing, and a closed variable accepts no further
                // operation that uses the value.
                unsafe { VarCell::of(access).empty() };
            }
        };
        // A panic in the value's drop must not keep `f` from being called.
        no_wait::without_waits(NoWait::Deletion, || {
            let emptied = panics::catch(empty);
            match (emptied, panics::catch(|| f(call))) {
                (Ok(()), Ok(())) => {}
                (Err(payload), Ok(())) | (Ok(()), Err(payload)) => resume_unwind(payload),
                (Err(first), Err(second)) => {
                    // Both panics are reported.
                    call.core().record_failure(&call.op().task().failed_by_panic(first));
                    resume_unwind(second);
                }
            }
        });
        Ok(())
    };
    let job = freeing(core, var.cell(), ErasedJob::new(without_sink(delete)));
    core.push_sorted(&spec, spec.priority, location, &[entry], job)
}

/// Counts an operation that drops the variable's value among those that return memory to a device's pool, if it is one.
fn freeing(core: &Core, var: &VarCell, mut job: ErasedJob) -> ErasedJob {
    if let Some(group) = core.freeing().filter(|_| var.is_pooled()) {
        let mut limits = Limits::new(None, None, None);
        limits.join(group);
        job.limit(limits);
    }
    job
}

/// Frees a variable whose last handle was dropped, after the pending operations on it.
pub(crate) fn free_variable(cell: NonNull<VarCell>, location: &'static Location<'static>) {
    // SAFETY: the cell is valid until it is freed below, or by the operation pushed here.
    let var = unsafe { cell.as_ref() };
    if var.core().is_forked() {
        return;
    }
    let needs_drop = var.needs_drop();
    // The fault is read once the queue has handed over the effects of the last operation.
    if !needs_drop && var.queue().is_idle(Mode::Write) && !var.fault().needs_check() {
        // SAFETY: (1): the last operation is complete, on devices too, and there is no handle to push another one with;
        // (2): only handles lead to the variable.
        return unsafe { VarCell::free(cell) };
    }
    let core = Arc::clone(var.core());
    var.queue().close();
    // Dropping the value runs program code, so the value is dropped on a worker. If it needs no drop, no program
    // code runs.
    let inline = if needs_drop { 0 } else { flag::INLINE };
    let flags = inline | flag::NO_SKIP | flag::SILENT;
    let spec = Spec::internal(DROP, i32::MAX, flags).passing_closed();
    let entry = Entry { cell, mode: Mode::Overwrite, refs: RefKind::None };
    let free = move |_: &Call<'_>, freed: &mut Freed| {
        // SAFETY: `report` frees the cell, after this call.
        let cell = unsafe { freed.cell.as_ref() };
        // SAFETY: the operation holds the variable for writing, and the device operations before it are complete.
        freed.failure = unsafe { cell.set_failure(None) };
        // SAFETY: the operation holds the variable for writing and is the last one on it.
        no_wait::without_waits(NoWait::Deletion, || unsafe { cell.empty() });
        Ok(())
    };
    let job = freeing(&core, var, ErasedJob::new(FnJob::with(Freed { cell, failure: None }, free)));
    let pushed = core.push_sorted(&spec, spec.priority, location, &[entry], job);
    debug_assert!(pushed.is_ok(), "internal operations are not refused: {pushed:?}");
}

/// Closes a variable of a family. After the pending operations on it, drops its value and then `share`. If the
/// value needs no drop, drops `share` immediately. Calls `dispatch` with the operation that drops the value, if
/// that operation is ready.
///
/// # Safety
/// 1. The variable has a handle until `share` is dropped.
/// 2. No further operation that uses the value enters the variable's queue.
pub(crate) unsafe fn empty_variable(
    core: &Arc<Core>,
    cell: NonNull<VarCell>,
    share: KinShare,
    dispatch: &mut dyn FnMut(OpRef<Task>),
) {
    // SAFETY: (1).
    let var = unsafe { cell.as_ref() };
    var.queue().close();
    if !var.needs_drop() {
        return drop(share);
    }
    let spec = Spec::internal(DROP, i32::MAX, flag::NO_SKIP | flag::SILENT).passing_closed();
    let entry = Entry { cell, mode: Mode::Overwrite, refs: RefKind::None };
    // The share is dropped in the epilogue, since the end of the family may run program code.
    let empty = |call: &Call<'_>, _: &mut Option<KinShare>| {
        for access in call.op().accesses() {
            // SAFETY: (1): the operation holds the variable for writing. (2): the caller guarantees this.
            no_wait::without_waits(NoWait::Deletion, || unsafe { VarCell::of(access).empty() });
        }
        Ok(())
    };
    let job = ErasedJob::new(FnJob::with(Some(share), empty));
    let created = core.create(&spec, spec.priority, Location::caller(), &[entry], job);
    debug_assert!(created.is_ok(), "internal operations are not refused");
    let pushed = created.map(|op| core.enqueue_with(op, dispatch));
    debug_assert!(matches!(pushed, Ok(Ok(()))), "internal operations are not refused");
}

/// A handle, owned by the engine, to a variable.
#[derive(Debug)]
pub(crate) struct OwnedVar(NonNull<VarCell>);

// SAFETY: this is a handle to the variable, and a `VarCell` is `Send` and `Sync`.
unsafe impl Send for OwnedVar {}
// SAFETY: as for `Send`.
unsafe impl Sync for OwnedVar {}

impl OwnedVar {
    /// Takes over a handle to a variable.
    ///
    /// # Safety
    /// 1. The caller has a handle to the variable and does not use that handle again.
    pub(crate) unsafe fn new(cell: NonNull<VarCell>) -> Self {
        Self(cell)
    }

    /// Creates a variable that represents `other`.
    pub(crate) fn standing_for(other: &VarCell) -> Self {
        let memory = if other.is_host_value() { ValueMemory::Host } else { ValueMemory::Elsewhere };
        let var = Self(VarCell::with_value(other.core(), (), memory));
        other.name().iter().for_each(|&name| var.cell().set_name(name.clone()));
        var
    }

    pub(crate) fn ptr(&self) -> NonNull<VarCell> {
        self.0
    }

    pub(crate) fn cell(&self) -> &VarCell {
        // SAFETY: this is a handle to the variable.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for OwnedVar {
    #[track_caller]
    fn drop(&mut self) {
        if self.cell().remove_handle() {
            free_variable(self.0, Location::caller());
        }
    }
}

/// A variable whose last operation drops the value and then frees the cell, and the failure that it had.
struct Freed {
    cell: NonNull<VarCell>,
    failure: Option<OpError>,
}

// SAFETY: the operation holds the variable for writing and is the last one on it.
unsafe impl Send for Freed {}

impl Sink for Freed {
    fn report(&mut self, result: Result<(), &OpError>) -> Remainder {
        // SAFETY: this operation is the last one ever pushed on the variable, and its accesses are done.
        unsafe { VarCell::free(self.cell) };
        self.failure.report(result)
    }
}
