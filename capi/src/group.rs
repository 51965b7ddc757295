//! Groups of operations.

use std::ffi::c_void;

use raddle::Group;

use crate::{
    engine::raddle_engine,
    failure::raddle_failure,
    handles::{self, require_place},
    status::{guarded, guarded_or, raddle_status},
    wait::{Then, raddle_done, wait_within},
};

/// A group of operations, to wait for them or cancel them together: the `group` of a `raddle_op`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct raddle_group {
    /// Private.
    pub address: *mut c_void,
}

/// Stores a new group at `group`: of the engine, or inside its group `parent` unless that is null. From `max_pending`
/// pending operations on, `raddle_push` outside operations is held back; 0: no limit.
///
/// Returns `RADDLE_STATUS_OK`, or `RADDLE_STATUS_INVALID`.
///
/// Threads: any. In operations: permitted. After a fork: the group is of no use, as its engine.
///
/// # Safety
/// 1. Neither the engine nor the parent was freed. `group` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_group_new(
    engine: raddle_engine,
    parent: raddle_group,
    max_pending: usize,
    group: *mut raddle_group,
) -> raddle_status {
    guarded(|| {
        require_place(group)?;
        let mut made = if parent.address.is_null() {
            // SAFETY: (1).
            unsafe { engine.get() }?.group()
        } else {
            // SAFETY: (1).
            unsafe { handles::get::<Group>(parent.address) }?.group()
        };
        if max_pending > 0 {
            made = made.max_pending(max_pending);
        }
        // SAFETY: (1); it is not null.
        unsafe { group.write(raddle_group { address: handles::boxed(made) }) };
        Ok(())
    })
}

/// Waits until the group's operations that were pushed before have ended, for at most `timeout_ns` nanoseconds;
/// negative: no limit.
///
/// Returns `RADDLE_STATUS_OK`; `RADDLE_STATUS_FAILED` if one of them failed, with the failure of the earliest stored at
/// `failure` unless that is null, each once; `RADDLE_STATUS_TIMED_OUT`.
///
/// Threads: any. In operations of the group: `RADDLE_STATUS_WOULD_DEADLOCK`. After a fork: `RADDLE_STATUS_FORKED`.
///
/// # Safety
/// 1. The group was not freed. `failure` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_group_wait(
    group: raddle_group,
    timeout_ns: i64,
    failure: *mut raddle_failure,
) -> raddle_status {
    guarded(|| {
        // SAFETY: (1).
        let group = unsafe { handles::get::<Group>(group.address) }?;
        // SAFETY: (1).
        unsafe { wait_within(timeout_ns, group, Group::wait, Group::wait_timeout, failure) }
    })
}

/// Calls `function` with `data` once what `raddle_group_wait` would wait for has ended: before this returns, or on a
/// thread that ends it.
///
/// Returns `RADDLE_STATUS_OK`; otherwise, `function` is not called.
///
/// Threads: any. In operations of the group: calls it with `RADDLE_STATUS_WOULD_DEADLOCK`. After a fork: calls it with
/// `RADDLE_STATUS_FORKED`; a wait that the parent has begun calls nothing in the child.
///
/// # Safety
/// 1. The group was not freed.
/// 2. `function` may be called once with `data`, on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_group_then(
    group: raddle_group,
    function: raddle_done,
    data: *mut c_void,
) -> raddle_status {
    guarded(|| {
        // SAFETY: (2).
        let then = unsafe { Then::new(function, data) }?;
        // SAFETY: (1).
        then.after(unsafe { handles::get::<Group>(group.address) }?.wait_async());
        Ok(())
    })
}

/// Cancels what the group's operations have not started, also in groups inside it, and refuses to start others. In
/// those that run, `raddle_context_is_cancelled` returns true. With `quietly`, tokens do not fail. Each operation, also
/// one that is pushed later, ends in its turn, behind the operations before it.
///
/// Returns `RADDLE_STATUS_OK`.
///
/// Threads: any. In operations: permitted. After a fork: has no effect.
///
/// # Safety
/// 1. The group was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_group_cancel(group: raddle_group, quietly: bool) -> raddle_status {
    guarded(|| {
        // SAFETY: (1).
        let group = unsafe { handles::get::<Group>(group.address) }?;
        if quietly {
            group.cancel_quietly();
        } else {
            group.cancel();
        }
        Ok(())
    })
}

/// Returns the number of the group's pending operations; 0 if the handle is null.
///
/// Threads: any. In operations: permitted. After a fork: 0.
///
/// # Safety
/// 1. The group was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_group_pending(group: raddle_group) -> u64 {
    // SAFETY: (1).
    guarded_or(0, || Ok(unsafe { handles::get::<Group>(group.address) }?.pending()))
}

/// Frees a group's handle and stores null there. Null is permitted. Its operations run as before.
///
/// Returns `RADDLE_STATUS_OK`.
///
/// Threads: any one. In operations: permitted. After a fork: permitted.
///
/// # Safety
/// 1. `group` is null or points to a handle that is null or not freed, and that no other thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_group_free(group: *mut raddle_group) -> raddle_status {
    // SAFETY: (1): the handle is its address.
    guarded(|| unsafe { handles::take::<Group>(group.cast()) }.map(drop))
}
