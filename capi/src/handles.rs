//! What C holds for things of this library, and how misuse is noticed.
//!
//! A handle is a struct of one to four words that C copies as it likes. Most are the address of a box. A token is the
//! address of its variable, and a completion is the words of its Rust value, so that neither a push nor a completion
//! allocates. A call that ends a handle through its address also stores null there. Every call notices null.
//!
//! Builds with debug assertions list all handles and also refuse those that were used, freed or never made: by their
//! address, and by a number for completions, whose words are soon those of another operation. Not noticed are a freed
//! handle whose address another has by then, and anything in a forked child, where the list's lock may be held forever.

use std::{
    any::type_name,
    collections::HashMap,
    ffi::c_void,
    sync::{Mutex, OnceLock, PoisonError},
};

use crate::status::{Refusal, Result};

/// The handles of this process: how many there are of each type with each key.
static LIVE: Mutex<Option<HashMap<(&str, usize), usize>>> = Mutex::new(None);

/// Calls `f` with the number of handles to a `T` with this key, or returns `None` if handles are not listed.
fn with_count<T, R>(key: usize, f: impl FnOnce(&mut usize) -> R) -> Option<R> {
    static PROCESS: OnceLock<u32> = OnceLock::new();
    // The lock would hide races from ThreadSanitizer.
    let is_listed = cfg!(debug_assertions) && !cfg!(raddle_tsan);
    if !is_listed || *PROCESS.get_or_init(std::process::id) != std::process::id() {
        return None;
    }
    let mut live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
    let live = live.get_or_insert_default();
    let count = live.entry((type_name::<T>(), key)).or_default();
    let result = f(count);
    if *count == 0 {
        live.remove(&(type_name::<T>(), key));
    }
    Some(result)
}

/// Lists a handle to a `T`.
pub(crate) fn list<T>(key: usize) {
    with_count::<T, _>(key, |count| *count += 1);
}

fn refuse_unless<T>(is_listed: Option<bool>) -> Result {
    if is_listed != Some(false) {
        return Ok(());
    }
    let path = type_name::<T>().split('<').next().unwrap_or_default();
    let name = path.rsplit("::").next().unwrap_or_default();
    Err(Refusal::invalid(&format!("the handle ({name}) was used, freed or never made")))
}

/// Returns an error if handles are listed, and no handle to a `T` has this key.
pub(crate) fn check<T>(key: usize) -> Result {
    refuse_unless::<T>(with_count::<T, _>(key, |count| *count > 0))
}

/// Like `check`, but also strikes the handle from the list.
pub(crate) fn unlist<T>(key: usize) -> Result {
    refuse_unless::<T>(with_count::<T, _>(key, |count| {
        let is_listed = *count > 0;
        *count -= usize::from(is_listed);
        is_listed
    }))
}

/// Returns a new number for a handle that has no address of its own: 0 if handles are not listed.
pub(crate) fn number<T>() -> usize {
    let count = with_count::<T, _>(0, |count| {
        *count += 1;
        *count
    });
    count.unwrap_or(0)
}

/// Returns the address of a box with `value`, listed.
pub(crate) fn boxed<T>(value: T) -> *mut c_void {
    listed(Box::new(value))
}

/// Returns the address of a box, listed.
pub(crate) fn listed<T>(value: Box<T>) -> *mut c_void {
    let address = Box::into_raw(value).cast::<c_void>();
    list::<T>(address.addr());
    address
}

/// Returns the value whose box has this address.
///
/// # Safety
/// 1. `address` is null, or came from `boxed::<T>` and is neither taken yet nor during `'a`. With debug assertions, any
///    address is permitted, within the limits given in the head of this module.
pub(crate) unsafe fn get<'a, T>(address: *mut c_void) -> Result<&'a T> {
    if address.is_null() {
        return Err(Refusal::invalid("a handle is null"));
    }
    check::<T>(address.addr())?;
    // SAFETY: (1).
    Ok(unsafe { &*address.cast::<T>() })
}

/// Takes the box that has the address at `address`, and stores null there. Returns `None` if one of the two is null.
///
/// # Safety
/// 1. `address` is null, or valid for reads and writes of an address for which (1) of [`get`] holds.
pub(crate) unsafe fn take<T>(address: *mut *mut c_void) -> Result<Option<Box<T>>> {
    // SAFETY: (1).
    let Some(place) = (unsafe { address.as_mut() }) else { return Ok(None) };
    if place.is_null() {
        return Ok(None);
    }
    unlist::<T>(place.addr())?;
    let address = std::mem::replace(place, std::ptr::null_mut()).cast::<T>();
    // SAFETY: (1).
    Ok(Some(unsafe { Box::from_raw(address) }))
}

/// Returns an error if `out`, where a result is to be stored, is null.
pub(crate) fn require_place<T>(out: *mut T) -> Result {
    if out.is_null() { Err(Refusal::invalid("the place for a result is null")) } else { Ok(()) }
}

/// Returns the `count` items at `items`; none if it is null and `count` is 0.
///
/// # Safety
/// 1. `items` is null, or `count` items lie there that do not change during `'a`.
pub(crate) unsafe fn slice_of<'a, T>(items: *const T, count: usize) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if items.is_null() {
        return Err(Refusal::invalid("an array is null, but its length is not 0"));
    }
    // SAFETY: (1).
    Ok(unsafe { std::slice::from_raw_parts(items, count) })
}

/// The struct at `given`, which begins with its size in bytes and may be shorter than this library's: its caller was
/// compiled with an older header. Then, it is copied to `whole`, and what it lacks is 0.
///
/// # Safety
/// 1. `given` is null, or a `T` or a shorter beginning of one, that starts with its size, a `usize`, and lies there
///    unchanged while the result is used.
/// 2. A `T` may be all zeros.
pub(crate) unsafe fn sized<T: Copy>(given: *const T, whole: &mut Option<T>) -> Result<&T> {
    if given.is_null() {
        return Err(Refusal::invalid("a struct is null"));
    }
    // SAFETY: (1): the struct begins with its size.
    let size = unsafe { given.cast::<usize>().read() };
    if size == size_of::<T>() {
        // SAFETY: (1): the struct has this size.
        return Ok(unsafe { &*given });
    }
    if !(size_of::<usize>()..size_of::<T>()).contains(&size) {
        return Err(Refusal::invalid("a struct's `size` is not its size, or that of a later version"));
    }
    // SAFETY: (2).
    let whole = whole.insert(unsafe { std::mem::zeroed() });
    // SAFETY: (1): the struct has `size` bytes, fewer than `whole`, which is another one.
    unsafe { std::ptr::copy_nonoverlapping(given.cast::<u8>(), std::ptr::from_mut(whole).cast(), size) };
    Ok(whole)
}

/// A time limit in nanoseconds: none if it is negative.
pub(crate) fn limit(timeout_ns: i64) -> Option<std::time::Duration> {
    u64::try_from(timeout_ns).ok().map(std::time::Duration::from_nanos)
}
