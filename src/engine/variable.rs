//! Variables: the cells behind the handles, and the untyped handle.

use std::{alloc::Layout, marker::PhantomData, mem::ManuallyDrop, ptr::NonNull, sync::Arc};

use crate::{
    engine::{core::Core, fault::Fault, task::Task, waits::Waits},
    error::op::OpError,
    sync::{
        Ordering::{Acquire, Relaxed, Release},
        acquire,
        atomic::{AtomicBool, AtomicU64},
        cell::UnsafeCell,
    },
    tracker::{Access, VarQueue},
};

/// One variable. Its queue decides who may touch the rest. What pushers use lies apart from what workers write.
#[repr(C)]
pub(crate) struct VarCell {
    queue: VarQueue<Task>,
    core: ManuallyDrop<Arc<Core>>,
    /// Handles. 64 bits on every machine, so that even forgotten handles cannot make it wrap.
    handles: AtomicU64,
    value: ValueInfo,
    waits: Waits,
    state: State,
}

// Three lines: with a fourth, programs of many variables miss the caches more often.
#[cfg(all(target_os = "linux", target_pointer_width = "64", not(any(raddle_loom, raddle_shuttle))))]
const _: () = assert!(size_of::<VarCell>() == 192);

/// What operations change when they end, or when they are issued on a device.
#[repr(align(64))]
struct State {
    /// Mutations that ran to completion. Stored by whoever holds the variable for writing.
    version: AtomicU64,
    /// What an operation must look at before it runs.
    fault: Fault<OpError>,
    /// The value was dropped by a deletion. Used by whoever holds the variable for writing.
    emptied: AtomicBool,
}

/// A variable and its value.
#[repr(C)]
struct TypedCell<T> {
    cell: VarCell,
    value: UnsafeCell<ManuallyDrop<T>>,
}

/// What the untyped code needs to know of the value.
#[derive(Clone, Copy)]
struct ValueInfo {
    layout: Layout,
    needs_drop: bool,
    /// The value is in the host's memory, where only operations may look that come after what devices do with it.
    on_host: bool,
    /// # Safety
    /// 1. The cell was made with this info, and the caller holds the variable for writing.
    /// 2. Called once.
    drop_value: unsafe fn(NonNull<VarCell>),
}

// SAFETY: the value is used only by operations that hold the variable, as the tracker orders them, and the failure as
// `Fault` demands; the constructor demands `T: Send`, and shared reads `T: Sync`.
unsafe impl Send for VarCell {}
// SAFETY: as above.
unsafe impl Sync for VarCell {}

/// A variable that somebody has a handle of.
#[derive(Clone, Copy)]
pub(crate) struct VarRef<'h> {
    cell: NonNull<VarCell>,
    handle: PhantomData<&'h VarCell>,
}

impl<'h> VarRef<'h> {
    /// # Safety
    /// 1. The variable has a handle for `'h`.
    pub(crate) unsafe fn new(cell: NonNull<VarCell>) -> Self {
        Self { cell, handle: PhantomData }
    }

    pub(crate) fn ptr(self) -> NonNull<VarCell> {
        self.cell
    }

    pub(crate) fn cell(self) -> &'h VarCell {
        // SAFETY: (1) of `new`.
        unsafe { self.cell.as_ref() }
    }
}

impl VarCell {
    /// A new variable with a value, which is in the host's memory or is the handle of something that is not. It has one
    /// handle.
    pub(crate) fn with_value<T: Send + 'static>(core: &Arc<Core>, value: T, on_host: bool) -> NonNull<Self> {
        let info = ValueInfo {
            layout: Layout::new::<TypedCell<T>>(),
            needs_drop: std::mem::needs_drop::<T>(),
            on_host,
            drop_value: |cell| {
                // SAFETY: (1) of `drop_value`.
                let value = unsafe { value_ptr::<T>(cell) };
                // SAFETY: (1) and (2) of `drop_value`.
                unsafe { value.drop_in_place() };
            },
        };
        let cell = Box::new(TypedCell {
            cell: VarCell {
                queue: VarQueue::with_owner(core.next_id(), core.tag()),
                core: ManuallyDrop::new(Arc::clone(core)),
                handles: AtomicU64::new(1),
                value: info,
                waits: Waits::default(),
                state: State { version: AtomicU64::new(0), fault: Fault::default(), emptied: AtomicBool::new(false) },
            },
            value: UnsafeCell::new(ManuallyDrop::new(value)),
        });
        let cell = NonNull::from(Box::leak(cell)).cast::<VarCell>();
        // SAFETY: the box never moves, and nobody knows it yet.
        unsafe { VarQueue::init(VarCell::queue_ptr(cell)) };
        cell
    }

    /// Counts a handle, for somebody who has one.
    pub(crate) fn add_handle(&self) {
        // Relaxed: the handle at hand keeps the count above zero.
        self.handles.fetch_add(1, Relaxed);
    }

    /// Takes a handle off; whether it was the last one.
    #[must_use = "the variable is to be freed by whoever removes its last handle"]
    pub(crate) fn remove_handle(&self) -> bool {
        // Release: this handle's uses come before the deletion.
        let last = self.handles.fetch_sub(1, Release) == 1;
        if last {
            // Acquire: joins the other handles' uses.
            acquire(&self.handles);
        }
        last
    }

    /// The variable of an access.
    #[inline]
    pub(crate) fn of(access: &Access<Task>) -> &Self {
        // SAFETY: the access's pointer comes from `queue_ptr`, by which it was cast from one to a whole cell, which outlives
        // the access.
        unsafe { access.queue_ptr().cast::<Self>().as_ref() }
    }

    pub(crate) fn queue_ptr(cell: NonNull<Self>) -> NonNull<VarQueue<Task>> {
        cell.cast()
    }

    #[inline]
    pub(crate) fn queue(&self) -> &VarQueue<Task> {
        &self.queue
    }

    #[inline]
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    pub(crate) fn version(&self) -> u64 {
        // Acquire: the mutations counted are visible; pairs with `mutated`.
        self.state.version.load(Acquire)
    }

    /// Counts a mutation.
    ///
    /// # Safety
    /// 1. The caller holds the variable for writing.
    #[inline]
    pub(crate) unsafe fn mutated(&self) {
        // Relaxed: (1), the last store came through the queue. Release: pairs with `version`.
        self.state.version.store(self.state.version.load(Relaxed) + 1, Release);
    }

    #[inline]
    pub(crate) fn fault(&self) -> &Fault<OpError> {
        &self.state.fault
    }

    /// The waits that others can join.
    pub(crate) fn waits(&self) -> &Waits {
        &self.waits
    }

    pub(crate) fn needs_drop(&self) -> bool {
        // Relaxed: exact for whoever holds the variable for writing; for others a hint where the drop may run.
        self.value.needs_drop && !self.state.emptied.load(Relaxed)
    }

    /// Whether the variable has a value in the host's memory.
    pub(crate) fn is_host_value(&self) -> bool {
        self.value.on_host
    }

    /// As [`mutated`](Self::mutated), by lanes of which several may have operations on the variable on their way.
    pub(crate) fn mutated_on_device(&self) {
        // Release: pairs with `version`.
        self.state.version.fetch_add(1, Release);
    }

    /// Drops the value unless that was done.
    ///
    /// # Safety
    /// 1. The caller holds the variable for writing.
    /// 2. No operation that uses the value comes after.
    pub(crate) unsafe fn empty(&self) {
        // Relaxed: (1).
        if !self.state.emptied.swap(true, Relaxed) {
            // SAFETY: (1) and (2); the swap makes it once.
            unsafe { (self.value.drop_value)(NonNull::from(self)) };
        }
    }
}

/// The value of a typed cell.
///
/// # Safety
/// 1. `cell` was made by [`VarCell::with_value`] with this `T`.
pub(crate) unsafe fn value_ptr<T>(cell: NonNull<VarCell>) -> *mut T {
    let typed = cell.cast::<TypedCell<T>>();
    // SAFETY: (1).
    let value = unsafe { &typed.as_ref().value };
    value.with_mut(|value| value.cast())
}

impl VarCell {
    /// Frees the variable, but for its value.
    ///
    /// # Safety
    /// 1. The caller is the last operation ever pushed on the variable, and its accesses are done.
    /// 2. Nobody uses the variable afterwards but helpers that are pinned, which look at the queue.
    pub(super) unsafe fn free(cell: NonNull<Self>) {
        // By pointers to the fields: a helper that is pinned may still look at the queue.
        // SAFETY: the cell lives until `dispose` below has run `free`.
        let layout = unsafe { &raw const (*cell.as_ptr()).value.layout };
        // SAFETY: as above.
        let layout = unsafe { layout.read() };
        // SAFETY: as above.
        let core = unsafe { &raw const (*cell.as_ptr()).core };
        // SAFETY: as above; nobody uses the field after this (2).
        let core = ManuallyDrop::into_inner(unsafe { core.read() });
        // SAFETY: as above.
        let fault = unsafe { &raw const (*cell.as_ptr()).state.fault };
        // SAFETY: as above; what devices had to do with the variable was complete before this operation began.
        drop(unsafe { fault.read() });
        // SAFETY: as above.
        let waits = unsafe { &raw const (*cell.as_ptr()).waits };
        // SAFETY: as above; every wait has begun, and no other will.
        drop(unsafe { waits.read() });
        let free = move || {
            // SAFETY: the cell was boxed with this layout; what it owned was dropped: the value, the failure,
            // the waits and the core.
            unsafe { std::alloc::dealloc(cell.as_ptr().cast(), layout) };
        };
        // SAFETY: (1).
        unsafe { VarQueue::dispose(VarCell::queue_ptr(cell), free) };
        drop(core);
    }
}
