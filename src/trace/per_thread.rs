//! Writing ends that each thread has for itself, one for each owner, and how a thread finds its own.
//!
//! # Who may touch what
//!
//! The list of a thread's ends, and the pointer to the one used last: only the thread.

use std::{
    cell::{Cell, RefCell},
    ptr,
    thread::LocalKey,
};

/// A writing end of which each thread has one for each owner: a recorder or a log.
pub(super) trait WritingEnd: Sized + 'static {
    /// The calling thread's ends of this type.
    fn ends() -> &'static LocalKey<Ends<Self>>;
    /// The end that the calling thread has used last, and its owner. A thread local of its own, since it needs no drop.
    fn nearest() -> &'static LocalKey<Nearest<Self>>;
    /// Whether the end may be removed: its owner is gone, or takes nothing any more.
    fn is_abandoned(&self) -> bool;
    /// Called instead of a drop as the thread ends.
    fn retire(self);
}

/// The ends of a thread with the numbers of their owners, each in its own allocation, so that adding or removing one
/// moves no other.
pub(super) struct Ends<W: WritingEnd>(RefCell<Vec<Box<(u64, W)>>>);

impl<W: WritingEnd> Ends<W> {
    pub(super) const fn new() -> Self {
        Self(RefCell::new(Vec::new()))
    }
}

impl<W: WritingEnd> Drop for Ends<W> {
    fn drop(&mut self) {
        W::nearest().set((NO_OWNER, ptr::null()));
        self.0.get_mut().drain(..).for_each(|end| end.1.retire());
    }
}

/// The number of an owner, and the thread's end for it.
pub(super) type Nearest<W> = Cell<(u64, *const (u64, W))>;

/// Returns what a thread has used last if it has used nothing.
pub(super) const fn no_nearest<W>() -> Nearest<W> {
    Cell::new((NO_OWNER, ptr::null()))
}

/// In place of the number of an owner: there is none.
const NO_OWNER: u64 = u64::MAX;

/// Calls `f` with the calling thread's end for the owner with this number, made by `make` if necessary. Returns `None`
/// if the thread is ending and has no ends any more.
///
/// # Safety
/// 1. The owner keeps what [`WritingEnd::is_abandoned`] asks for until this returns.
/// 2. `f` runs no program code and does not call this function, which may remove ends.
#[inline(always)]
pub(super) unsafe fn with<W: WritingEnd, R>(
    owner: u64,
    make: impl FnOnce() -> W,
    f: impl FnOnce(&W) -> R,
) -> Option<R> {
    let (nearest, mut end) = W::nearest().get();
    if nearest != owner {
        end = find(owner, make)?;
    }
    // SAFETY: the end is in its own allocation, which the thread's `Ends` own. An end is removed only by `find`, if it
    // is abandoned, which (1) and (2) exclude inside `f`, and by the drop of the `Ends`, which are not dropped inside
    // `f` and then make this function find nothing.
    Some(f(unsafe { &(*end).1 }))
}

/// Returns the thread's end, made by `make` if necessary, and remembers it as the one used last.
#[cold]
#[inline(never)]
fn find<W: WritingEnd>(owner: u64, make: impl FnOnce() -> W) -> Option<*const (u64, W)> {
    let find = |ends: &Ends<W>| {
        let known = |ends: &[Box<(u64, W)>]| {
            let end = ends.iter().find(|end| end.0 == owner)?;
            Some(ptr::from_ref::<(u64, W)>(end))
        };
        let found = known(&ends.0.borrow());
        let end = found.unwrap_or_else(|| {
            let end = Box::new((owner, make()));
            let mut ends = ends.0.borrow_mut();
            ends.retain(|end| !end.1.is_abandoned());
            ends.push(end);
            ends.last().map_or(ptr::null(), |end| ptr::from_ref::<(u64, W)>(end))
        });
        W::nearest().set((owner, end));
        end
    };
    W::ends().try_with(find).ok()
}
