//! Variables: the cells to which handles refer, and references to cells that a handle keeps alive.
//!
//! # States
//!
//! 1. *Open*: operations can be pushed. The variable has handles.
//! 2. *Closed*: the variable was deleted, its last handle was dropped, or its family or scope is ending. The queue
//!    accepts only those of the engine's own operations that drop the value, free the cell, or wait for the variable.
//! 3. *Empty* ([`VarCell::empty`]): the value was dropped.
//! 4. *Freed* ([`VarCell::free`]): the last operation on it has completed. Pinned threads may still read the queue and
//!    the name; the memory is freed once they are unpinned.
//!
//! # Who may touch what
//!
//! * The queue: any thread, as the tracker permits.
//! * `handles`: the owners of handles.
//! * The value: operations that hold the variable, as their accesses permit.
//! * The snapshot of a published value: stored by operations that hold the variable for writing, before they complete;
//!   read by any thread.
//! * `version`: stored by operations that hold the variable for writing, and by GPU lanes; read by any thread.
//! * `place`: as `version`, except that GPU lanes do not store it, and that only operations that hold the variable read
//!   it.
//! * `emptied`: operations that hold the variable for writing; a hint for all others.
//! * `name`: set once, by any owner of a handle; read by any thread.
//! * `commuting`: set once, by a push of an operation that commutes; used by such operations, and by pinned threads
//!   that find one. What is in it of failures: the operation that has the turn.
//! * `fault` and `waits`: see [`Fault`] and [`JoinableWaits`].
//!
//! # Edges
//!
//! [`version`](crate::sync::edge::version), [`handles`](crate::sync::edge::handles), [`turn`](crate::sync::edge::turn).

use std::{
    alloc::{self, Layout},
    any::type_name,
    marker::PhantomData,
    mem::{ManuallyDrop, MaybeUninit, offset_of},
    panic::Location,
    ptr::{self, NonNull},
    sync::{Arc, OnceLock},
};

use crate::{
    engine::core::Core,
    error::{deadlock::Awaited, op::OpError, push_error::RefusedAccess},
    memory::{epoch, latest::Latest},
    notify::turn::{TakesTurns, VarTurn},
    op::{
        commuting::Commutes,
        fault::Fault,
        task::{Task, flag},
        waits::JoinableWaits,
    },
    sync::{
        Ordering::Relaxed,
        atomic::{AtomicBool, AtomicPtr, AtomicU64},
        cell::{UnsafeCell, begin_uninit},
        edge::{self, acquire, acquire_all, release},
    },
    tracker::{Access, Mode, Op, Standing, VarQueue},
    values::Name,
};

/// One variable. Its queue decides which operations may use the other fields. The fields used by pushes share no cache
/// line with those written by workers.
#[repr(C)]
pub(crate) struct VarCell {
    queue: VarQueue<Task>,
    core: ManuallyDrop<Arc<Core>>,
    /// The number of handles. It has 64 bits on every platform, so it cannot wrap even if handles are leaked.
    handles: AtomicU64,
    value: &'static ValueInfo,
    name: OnceLock<Name>,
    waits: JoinableWaits,
    state: VarState,
}

// The cell occupies three cache lines: a fourth would cause more cache misses in programs with many variables.
#[cfg(all(target_os = "linux", target_pointer_width = "64", not(any(raddle_loom, raddle_shuttle))))]
const _: () = assert!(size_of::<VarCell>() == 192);

/// The fields that operations change when they complete or are issued on a device.
#[repr(align(64))]
struct VarState {
    /// The number of successful mutations.
    version: AtomicU64,
    /// The state that an operation must check before it runs.
    fault: Fault<OpError>,
    /// Whether the value was dropped.
    emptied: AtomicBool,
    /// The number of mutations that have started or were skipped, on an engine with a log.
    place: AtomicU64,
    /// From a box, or null if no operation has commuted on the variable.
    commuting: AtomicPtr<Commuting>,
    /// The number of bytes in front of the cell that were [allocated](allocate) with it.
    slack: u8,
}

/// A variable and its value.
#[repr(C)]
struct TypedCell<T> {
    cell: VarCell,
    value: UnsafeCell<MaybeUninit<T>>,
}

/// The memory that holds a variable's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueMemory {
    /// In host memory. A CPU operation may use the value only once all earlier device operations on the variable are
    /// complete.
    Host,
    /// As `Host`, in a device's pool.
    Pinned,
    /// In a device's pool, in the memory of the device.
    Device,
    /// Elsewhere, or nowhere: the cell contains only a handle to the value, or there is no value.
    Elsewhere,
}

impl ValueMemory {
    /// Returns where a value of type `T` is that the program gives: a zero-sized one occupies no memory.
    pub(crate) const fn of<T>() -> Self {
        if size_of::<T>() == 0 { Self::Elsewhere } else { Self::Host }
    }
}

/// The facts about the value that untyped code needs.
struct ValueInfo {
    layout: Layout,
    needs_drop: bool,
    memory: ValueMemory,
    type_name: fn() -> &'static str,
    /// # Safety
    /// 1. The cell was made with this info, and the caller holds the variable for writing.
    /// 2. This is called once.
    drop_value: unsafe fn(NonNull<VarCell>),
    /// [`VarCell::publish`], for a variable that publishes its value.
    ///
    /// # Safety
    /// 1. The cell was made with this info, and the caller holds the variable for writing.
    publish: Option<unsafe fn(NonNull<VarCell>)>,
}

/// The value of a variable that publishes it, and the place of the snapshot, which handles share.
#[repr(C)]
struct PublishedValue<T> {
    value: T,
    snapshot: Arc<Latest<T>>,
}

// SAFETY: the value is used only by operations that hold the variable, in the tracker's order, and the failure is used
// as `Fault` requires. The constructor requires `T: Send`, and shared reads require `T: Sync`.
unsafe impl Send for VarCell {}
// SAFETY: as for `Send`.
unsafe impl Sync for VarCell {}

impl ValueInfo {
    const fn of<T>(memory: ValueMemory) -> Self {
        Self {
            layout: Layout::new::<TypedCell<T>>(),
            needs_drop: std::mem::needs_drop::<T>(),
            memory,
            type_name: type_name::<T>,
            drop_value: |cell| {
                // SAFETY: (1) of `drop_value`.
                let value = unsafe { value_ptr::<T>(cell) };
                // SAFETY: (1) and (2) of `drop_value`.
                unsafe { value.drop_in_place() };
            },
            publish: None,
        }
    }

    const fn of_published<T: Clone>(memory: ValueMemory) -> Self {
        // All other code takes the value for a `T`.
        assert!(offset_of!(TypedCell<PublishedValue<T>>, value) == offset_of!(TypedCell<T>, value));
        Self {
            type_name: type_name::<T>,
            publish: Some(|cell| {
                // SAFETY: (1) of `publish`: the cell was made for a value of this type, and no other operation uses it.
                let PublishedValue { value, snapshot } = unsafe { &*value_ptr::<PublishedValue<T>>(cell) };
                snapshot.replace(value.clone());
            }),
            ..Self::of::<PublishedValue<T>>(memory)
        }
    }
}

/// A reference to a variable that a handle keeps alive for `'h`.
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
        // SAFETY: (1) of `new`: the handle keeps the variable alive.
        unsafe { self.cell.as_ref() }
    }
}

impl VarCell {
    /// Creates a variable with one handle.
    pub(crate) fn with_value<T: Send + 'static>(core: &Arc<Core>, value: T, memory: ValueMemory) -> NonNull<Self> {
        // SAFETY: (1): the value is valid forever.
        unsafe { Self::with_borrowing_value(core, value, memory) }
    }

    /// Creates a variable with one handle, for the family that `owner` identifies. Pushes from outside the family that
    /// name this variable are refused, as are those that name another engine's variable.
    pub(crate) fn of_family<T: Send + 'static>(core: &Arc<Core>, owner: usize, value: T) -> NonNull<Self> {
        // SAFETY: (1): the value is valid forever.
        unsafe { Self::owned_by(core, owner, value, ValueMemory::of::<T>()) }
    }

    /// Creates a variable with one handle, for a value that may borrow.
    ///
    /// # Safety
    /// 1. The variable is [emptied](Self::empty) while its value is still valid.
    pub(crate) unsafe fn with_borrowing_value<T: Send>(
        core: &Arc<Core>,
        value: T,
        memory: ValueMemory,
    ) -> NonNull<Self> {
        // SAFETY: (1).
        unsafe { Self::owned_by(core, core.tag(), value, memory) }
    }

    /// # Safety
    /// 1. The variable is [emptied](Self::empty) while its value is still valid.
    unsafe fn owned_by<T: Send>(core: &Arc<Core>, owner: usize, value: T, memory: ValueMemory) -> NonNull<Self> {
        // SAFETY: (1): the value is written below. (2): (1).
        let cell = unsafe { Self::begin::<T>(core, owner, memory) };
        // SAFETY: (1): the cell is made for a value of this type.
        let place = unsafe { value_ptr::<T>(cell) };
        // SAFETY: the place is that of a `T`, and no other thread knows it yet.
        unsafe { place.write(value) };
        cell
    }

    /// Creates a variable with one handle, for whose value the caller has a [place](value_ptr). So a large value need
    /// not be passed through several functions, each of which copies it to its stack frame without optimization.
    ///
    /// # Safety
    /// 1. The caller writes the value before the variable is used.
    /// 2. The variable is [emptied](Self::empty) while its value is still valid.
    pub(crate) unsafe fn begin<T: Send>(core: &Arc<Core>, owner: usize, memory: ValueMemory) -> NonNull<Self> {
        let info = match memory {
            ValueMemory::Host => const { &ValueInfo::of::<T>(ValueMemory::Host) },
            ValueMemory::Pinned => const { &ValueInfo::of::<T>(ValueMemory::Pinned) },
            ValueMemory::Device => const { &ValueInfo::of::<T>(ValueMemory::Device) },
            ValueMemory::Elsewhere => const { &ValueInfo::of::<T>(ValueMemory::Elsewhere) },
        };
        // SAFETY: (1) and (2).
        unsafe { Self::begin_with::<T>(core, owner, info) }
    }

    /// Creates a variable with one handle that publishes its value in `snapshot`, which has the value.
    pub(crate) fn published<T>(core: &Arc<Core>, snapshot: Arc<Latest<T>>) -> NonNull<Self>
    where
        T: Clone + Send + Sync + 'static,
    {
        let info = const { &ValueInfo::of_published::<T>(ValueMemory::of::<T>()) };
        let value = PublishedValue { value: T::clone(&snapshot.load()), snapshot };
        // SAFETY: (1): the value is written below. (2): the value is valid forever.
        let cell = unsafe { Self::begin_with::<PublishedValue<T>>(core, core.tag(), info) };
        // SAFETY: (1): the cell is made for a value of this type.
        let place = unsafe { value_ptr::<PublishedValue<T>>(cell) };
        // SAFETY: the place is that of such a value, and no other thread knows it yet.
        unsafe { place.write(value) };
        // SAFETY: the cell was just made.
        unsafe { cell.as_ref() }.fault().always_check();
        cell
    }

    /// # Safety
    /// 1. `info` is for values of type `T`, and the caller writes the value before the variable is used.
    /// 2. The variable is [emptied](Self::empty) while its value is still valid.
    unsafe fn begin_with<T: Send>(core: &Arc<Core>, owner: usize, info: &'static ValueInfo) -> NonNull<Self> {
        let (place, slack) = allocate(info.layout);
        let new = VarCell {
            queue: VarQueue::with_owner(core.next_id(), owner),
            core: ManuallyDrop::new(Arc::clone(core)),
            handles: AtomicU64::new(1),
            value: info,
            name: OnceLock::new(),
            waits: JoinableWaits::default(),
            state: VarState {
                version: AtomicU64::new(0),
                fault: Fault::default(),
                emptied: AtomicBool::new(false),
                place: AtomicU64::new(0),
                commuting: AtomicPtr::new(ptr::null_mut()),
                slack,
            },
        };
        let cell = place.cast::<VarCell>();
        // SAFETY: the place has the layout of the typed cell, which begins with the cell, and is unused.
        unsafe { cell.write(new) };
        // SAFETY: the place has the layout of the typed cell.
        unsafe { begin_uninit(&raw mut (*place.cast::<TypedCell<T>>().as_ptr()).value) };
        // SAFETY: the cell does not move, and no other thread knows it yet.
        unsafe { VarQueue::init(VarCell::queue_ptr(cell)) };
        cell
    }

    /// Names the variable, unless it already has a name.
    pub(crate) fn set_name(&self, name: Name) {
        // The first name is kept: clones of a handle may also try to name the variable.
        let name = self.name.get_or_init(|| name);
        self.core.record_name(self.queue.id(), name);
    }

    /// Returns the name of the variable.
    pub(crate) fn name(&self) -> Option<&Name> {
        self.name.get()
    }

    /// Describes an operation's access to this variable, for an error.
    #[cold]
    pub(crate) fn refused_access(&self, operation: &Name, location: &'static Location<'static>) -> RefusedAccess {
        let name = self.name().cloned().unwrap_or_default();
        RefusedAccess::new((operation.clone(), location), name, self.queue.id(), (self.value.type_name)())
    }

    /// Describes this variable, for the error of a wait.
    pub(crate) fn awaited(&self) -> Awaited {
        let unnamed = || Name::from(format!("#{}", self.queue.id()));
        Awaited::Variable(self.name().cloned().unwrap_or_else(unnamed))
    }

    /// Counts another handle. The caller already has one.
    pub(crate) fn add_handle(&self) {
        // Relaxed: the caller's handle keeps the count above zero.
        self.handles.fetch_add(1, Relaxed);
    }

    /// Removes a handle. Returns whether it was the last one.
    #[must_use = "the caller must free the variable if this was its last handle"]
    pub(crate) fn remove_handle(&self) -> bool {
        let last = self.handles.fetch_sub(1, release(edge::handles::DROPPED)) == 1;
        if last {
            acquire_all(edge::handles::LAST, &self.handles);
        }
        last
    }

    /// Returns the variable of an access.
    #[inline]
    pub(crate) fn of(access: &Access<Task>) -> &Self {
        // SAFETY: the pointer of the access comes from `queue_ptr`, which casts a pointer to a whole cell. The cell
        // outlives its accesses.
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

    /// Returns the number of successful mutations.
    pub(crate) fn version(&self) -> u64 {
        self.state.version.load(acquire(edge::version::READ))
    }

    /// Counts a mutation.
    ///
    /// # Safety
    /// 1. The caller holds the variable for writing.
    #[inline]
    pub(crate) unsafe fn mutated(&self) {
        // Relaxed: (1), so the queue has handed over the last store.
        let before = self.state.version.load(Relaxed);
        self.state.version.store(before + 1, release(edge::version::MUTATED));
    }

    /// Returns the number of mutations that have started or were skipped, if the engine has a log.
    ///
    /// The caller holds the variable, or the answer may be of any time.
    pub(crate) fn place(&self) -> u64 {
        // Relaxed: the queue has handed over the last store to an operation that holds the variable.
        self.state.place.load(Relaxed)
    }

    /// Returns the place of an access that starts or is skipped, and counts it if it is a mutation.
    ///
    /// # Safety
    /// 1. The caller holds the variable, for writing if `is_mutation`.
    pub(crate) unsafe fn take_place(&self, is_mutation: bool) -> u64 {
        let place = self.place();
        if is_mutation {
            // Relaxed: (1), so no other thread uses the count before the queue has handed it over.
            self.state.place.store(place + 1, Relaxed);
        }
        place
    }

    /// Returns what operations that commute on the variable share. Made at the first call, which is that of a push.
    pub(crate) fn commuting(&self) -> &Commuting {
        let mut commuting = self.state.commuting.load(acquire(edge::turn::FOUND));
        if commuting.is_null() {
            let made = Box::into_raw(Box::default());
            let (order, found) = (release(edge::turn::MADE), acquire(edge::turn::FOUND));
            commuting = match self.state.commuting.compare_exchange(ptr::null_mut(), made, order, found) {
                Ok(_) => made,
                Err(other) => {
                    // SAFETY: the pointer is from a box, and no other thread knows it.
                    drop(unsafe { Box::from_raw(made) });
                    other
                }
            };
        }
        // SAFETY: the pointer is from a box, which is dropped with the variable's memory.
        unsafe { &*commuting }
    }

    /// Whether the variable publishes its value.
    pub(crate) fn is_published(&self) -> bool {
        self.value.publish.is_some()
    }

    /// Publishes a copy of the value, if the variable is one that does, and drops the last copy unless it is in use.
    /// This runs program code.
    ///
    /// # Safety
    /// 1. The caller holds the variable for writing, and the value was not dropped.
    pub(crate) unsafe fn publish(&self) {
        if let Some(publish) = self.value.publish {
            // SAFETY: (1).
            unsafe { publish(NonNull::from(self)) };
        }
    }

    #[inline]
    pub(crate) fn fault(&self) -> &Fault<OpError> {
        &self.state.fault
    }

    /// Returns the variable's failure, unless the program has cleared that everywhere.
    ///
    /// # Safety
    /// 1. As for [`Fault::failure`].
    pub(crate) unsafe fn failure(&self) -> Option<OpError> {
        // SAFETY: (1).
        unsafe { self.fault().failure() }.filter(|failure| !failure.is_cleared())
    }

    /// [`failure`](Self::failure) for any thread. Returns `None` in a forked child, where another thread may have held
    /// the lock.
    pub(crate) fn look_at_failure(&self) -> Option<OpError> {
        if self.core.is_forked() {
            return None;
        }
        // SAFETY: (1): `set_failure` below takes this lock.
        unsafe { self.fault().look(&self.core.looks) }.filter(|failure| !failure.is_cleared())
    }

    /// Sets or clears the failure and returns the previous one, whose drop may run program code.
    ///
    /// # Safety
    /// 1. As for [`Fault::set_failure`].
    pub(crate) unsafe fn set_failure(&self, failure: Option<OpError>) -> Option<OpError> {
        // SAFETY: (1): (1). (2): `look_at_failure` takes this lock.
        unsafe { self.fault().set_failure(failure, &self.core.looks) }
    }

    /// Returns the waits that later waits can join.
    pub(crate) fn waits(&self) -> &JoinableWaits {
        &self.waits
    }

    /// Whether the value needs a drop. The answer is exact for an operation that holds the variable for writing, and a
    /// hint to other callers.
    pub(crate) fn needs_drop(&self) -> bool {
        // Relaxed: if an operation that holds the variable for writing calls this, the queue has handed over the last
        // change of the flag. Other callers use the answer only to decide whether an operation must be pushed for the
        // drop, or where the drop runs.
        self.value.needs_drop && !self.state.emptied.load(Relaxed)
    }

    /// Whether the variable has a value in host memory.
    pub(crate) fn is_host_value(&self) -> bool {
        matches!(self.value.memory, ValueMemory::Host | ValueMemory::Pinned)
    }

    /// Whether the value's memory belongs to a device's pool.
    pub(crate) fn is_pooled(&self) -> bool {
        matches!(self.value.memory, ValueMemory::Pinned | ValueMemory::Device)
    }

    /// Counts a mutation by a GPU operation. Several lanes may do so concurrently.
    pub(crate) fn mutated_on_device(&self) {
        self.state.version.fetch_add(1, release(edge::version::ON_DEVICE));
    }

    /// Drops the value unless it was already dropped.
    ///
    /// # Safety
    /// 1. The caller holds the variable for writing.
    /// 2. No later operation uses the value.
    pub(crate) unsafe fn empty(&self) {
        // Relaxed: (1), so the queue has handed over the last change.
        if !self.state.emptied.swap(true, Relaxed) {
            // SAFETY: (1) and (2); only one caller swaps in the first `true`.
            unsafe { (self.value.drop_value)(NonNull::from(self)) };
        }
    }
}

/// What operations that commute on a variable share. Those without another access in between are a *run*: if some of
/// them fail, the variable has the failure of the one pushed first, which the others ignore.
#[derive(Default)]
pub(crate) struct Commuting {
    pub(crate) turn: VarTurn<Task>,
    /// Larger than the number of each operation that has been pushed.
    numbers: AtomicU64,
    /// The number of the operation whose failure the variable has, if it is of the last run.
    failed: AtomicU64,
}

impl Commuting {
    /// Returns a number for an operation that is about to be pushed. It is larger than those of the operations whose
    /// pushes have returned.
    pub(crate) fn next_number(&self) -> u64 {
        // Relaxed, like the change below: whoever knows of a push that has returned sees what it has done here.
        self.numbers.fetch_add(1, Relaxed)
    }

    /// Notes that an operation about to be pushed has this number.
    pub(crate) fn note_number(&self, number: u64) {
        self.numbers.fetch_max(number + 1, Relaxed);
    }

    /// Whether the operation with this number was pushed before the one whose failure the variable has.
    pub(crate) fn is_before_failed(&self, number: u64) -> bool {
        // Relaxed: the turn hands it over.
        number < self.failed.load(Relaxed)
    }

    /// Notes that the variable has the failure of the operation with this number.
    pub(crate) fn note_failed(&self, number: u64) {
        // Relaxed: the turn hands it over.
        self.failed.store(number, Relaxed);
    }
}

impl TakesTurns for Task {
    fn turn(access: &Access<Self>) -> Option<&VarTurn<Self>> {
        (access.mode() == Mode::Commute).then(|| &VarCell::of(access).commuting().turn)
    }

    fn given_way(op: &Op<Self>) -> u8 {
        op.task().commutes().map_or(0, Commutes::given_way)
    }

    fn set_given_way(op: &Op<Self>, times: u8) {
        op.task().commutes().into_iter().for_each(|commutes| commutes.set_given_way(times));
    }

    fn note_turns(op: &Op<Self>) {
        op.task().note_turns();
    }
}

/// Returns the state of an access of `op` as seen from outside: one that commutes holds its variable once it has the
/// turn.
pub(crate) fn standing(op: &Op<Task>, access: &Access<Task>) -> Standing {
    match access.standing() {
        // The variable of an access that is done may be gone.
        Standing::Holds if Task::turn(access).is_some_and(|turn| !turn.is_held_by(op)) => Standing::Waits,
        standing => standing,
    }
}

/// Returns the layout of the allocation for a cell with `layout`. An allocator may need several times longer for the
/// alignment of a cell than for this one, so the allocation has room to align the cell in it.
fn loose(layout: Layout) -> Layout {
    const ALIGN: usize = 16;
    if layout.align() > align_of::<VarCell>() {
        return layout;
    }
    let size = layout.size() + (layout.align() - ALIGN);
    Layout::from_size_align(size, ALIGN).expect("a value must be smaller than the address space")
}

/// Allocates a place with `layout`. Returns it, and how far behind the start of its allocation it lies.
#[inline]
fn allocate(layout: Layout) -> (NonNull<u8>, u8) {
    let loose = loose(layout);
    // SAFETY: a cell is not empty.
    let Some(start) = NonNull::new(unsafe { alloc::alloc(loose) }) else { alloc::handle_alloc_error(loose) };
    let slack = start.as_ptr().align_offset(layout.align());
    // SAFETY: the allocation is larger than the place by as much as it may have to be moved.
    (unsafe { start.add(slack) }, slack as u8)
}

/// Returns a pointer to the value of a typed cell.
///
/// # Safety
/// 1. `cell` was made for a value of this type `T`.
pub(crate) unsafe fn value_ptr<T>(cell: NonNull<VarCell>) -> *mut T {
    let typed = cell.cast::<TypedCell<T>>();
    // SAFETY: (1): the cell has this type.
    let value = unsafe { &typed.as_ref().value };
    value.with_mut(|value| value.cast())
}

impl VarCell {
    /// Frees the variable without dropping its value.
    ///
    /// # Safety
    /// 1. The last operation ever pushed on the variable has run, and its accesses are done: the caller has run it, or
    ///    has found the variable idle for mutations, with no GPU operations in flight and without a failure.
    /// 2. The variable is no longer used, except that pinned threads may read its queue and its name.
    pub(crate) unsafe fn free(cell: NonNull<Self>) {
        // The fields are accessed through pointers, since a pinned thread may still read the queue and the name.
        // SAFETY: the cell lives until `dispose` below has run `free`.
        let core = unsafe { &raw const (*cell.as_ptr()).core };
        // SAFETY: the field is not used after this (2).
        let core = ManuallyDrop::into_inner(unsafe { core.read() });
        // SAFETY: the cell lives until `dispose` below has run `free`.
        let (name, queue) = unsafe { (&(*cell.as_ptr()).name, &(*cell.as_ptr()).queue) };
        if name.get().is_some() {
            core.record_freed(queue.id());
        }
        // SAFETY: the cell lives until `dispose` below has run `free`.
        let fault = unsafe { &raw const (*cell.as_ptr()).state.fault };
        // SAFETY: (1) and (2): no operation uses the field any more, on a device or not.
        drop(unsafe { fault.read() });
        // SAFETY: the cell lives until `dispose` below has run `free`.
        let waits = unsafe { &raw const (*cell.as_ptr()).waits };
        // SAFETY: (2), and every wait for the variable has started.
        drop(unsafe { waits.read() });
        // Relaxed: (1) and (2): no operation is pushed on the variable any more.
        // SAFETY: the cell lives until `dispose` below has run `free`.
        let commuting = unsafe { &(*cell.as_ptr()).state.commuting }.load(Relaxed);
        // Captures no more than a deferred function can hold without an allocation.
        let free = move || {
            // SAFETY: no thread uses the cell any more, and the fields are constant.
            let (layout, slack) = unsafe { (cell.as_ref().value.layout, cell.as_ref().state.slack) };
            // SAFETY: (2): no thread has changed the field, and it is dropped only once.
            drop(unsafe { (&raw const (*cell.as_ptr()).name).read() });
            if !commuting.is_null() {
                // SAFETY: the pointer is from a box, and the box is dropped only once.
                drop(unsafe { Box::from_raw(commuting) });
            }
            // SAFETY: the allocation starts so far in front of the cell.
            let start = unsafe { cell.cast::<u8>().sub(usize::from(slack)) };
            // SAFETY: the cell was allocated with this layout, and what its fields own was dropped or moved out: the
            // value, the name, the fault, the waits and the core.
            unsafe { alloc::dealloc(start.as_ptr(), loose(layout)) };
        };
        // SAFETY: the cell lives until `dispose` below has run `free`, and the field is constant.
        let value = unsafe { (&raw const (*cell.as_ptr()).value).read() };
        // SAFETY: (1) and (2) are what `dispose` requires.
        unsafe { VarQueue::dispose(VarCell::queue_ptr(cell), free) };
        epoch::retired(value.layout.size());
        drop(core);
    }
}

/// Returns the failure because of which an operation is skipped: that of a variable which it does not overwrite. An
/// operation that commutes ignores the failures of its run.
///
/// # Safety
/// 1. The failures of the operation's variables may be read.
pub(crate) unsafe fn failure_before(op: &Op<Task>) -> Option<OpError> {
    if op.task().has(flag::NO_SKIP) {
        return None;
    }
    op.accesses().find_map(|access| {
        let cell = VarCell::of(access);
        let counts = match access.mode() {
            Mode::Overwrite => false,
            Mode::Commute => !cell.fault().is_of_run(),
            _ => true,
        };
        // SAFETY: (1).
        if counts { unsafe { cell.failure() } } else { None }
    })
}
