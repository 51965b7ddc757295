//! Waits: with a time limit, and by callback.

use std::{
    ffi::c_void,
    future::Future,
    mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use raddle::{Engine, WaitError};

use crate::{
    engine::{Shared, raddle_callback, raddle_engine},
    failure::{raddle_failure, report},
    handles::limit,
    status::{Refusal, Result, guarded, raddle_status},
    token::raddle_token,
};

/// What a wait for a token waits for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub enum raddle_mode {
    /// All operations on the token that were pushed before the call.
    All = 0,
    /// Those that mutate it: then it may be read.
    Writers = 1,
}

/// Receives the end of a wait: what the waiting call would have returned, and the failure, which is null unless the
/// status is `RADDLE_STATUS_FAILED`, and which is freed when the function returns.
pub type raddle_done = Option<unsafe extern "C" fn(data: *mut c_void, status: raddle_status, failure: raddle_failure)>;

/// A C function that receives the end of a wait, with its data.
#[derive(Debug)]
pub(crate) struct Then {
    function: unsafe extern "C" fn(*mut c_void, raddle_status, raddle_failure),
    data: Shared,
}

type Wait = Pin<Box<dyn Future<Output = std::result::Result<(), WaitError>> + Send>>;

/// A wait by callback. The thread that wakes it polls it.
struct Waiting(Mutex<Phase>);

enum Phase {
    /// The next thread to wake it polls.
    Idle(Wait, Then),
    /// A thread polls; it polls again if it was woken meanwhile. A waker may be called inside a poll, so the lock is
    /// not held there. Also once the wait is over.
    Polling { again: bool },
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        self.poll();
    }
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Phase> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll(self: &Arc<Self>) {
        let phase = mem::replace(&mut *self.lock(), Phase::Polling { again: true });
        let Phase::Idle(mut wait, then) = phase else { return };
        let waker = Waker::from(Arc::clone(self));
        loop {
            // The next poll follows all wake-ups before this.
            *self.lock() = Phase::Polling { again: false };
            if let Poll::Ready(result) = wait.as_mut().poll(&mut Context::from_waker(&waker)) {
                drop(wait);
                return then.call(result);
            }
            let mut phase = self.lock();
            if matches!(*phase, Phase::Polling { again: false }) {
                *phase = Phase::Idle(wait, then);
                return;
            }
        }
    }
}

impl Then {
    /// # Safety
    /// 1. `function` may be called once with `data`, on any thread.
    pub(crate) unsafe fn new(function: raddle_done, data: *mut c_void) -> Result<Self> {
        let function = function.ok_or_else(|| Refusal::invalid("a function is null"))?;
        Ok(Self { function, data: Shared(data) })
    }

    /// Calls the function once `wait` is over.
    pub(crate) fn after(self, wait: impl Future<Output = std::result::Result<(), WaitError>> + Send + 'static) {
        Arc::new(Waiting(Mutex::new(Phase::Idle(Box::pin(wait), self)))).poll();
    }

    fn call(self, result: std::result::Result<(), WaitError>) {
        let mut failure = raddle_failure::NONE;
        // SAFETY: `failure` may be written to.
        let status = guarded(|| unsafe { report(result, &raw mut failure) });
        // SAFETY: (1) of `new`; this is the only call.
        unsafe { (self.function)(self.data.get(), status, failure) };
        // SAFETY: the function may not use the failure any more, nor free it.
        unsafe { crate::failure::raddle_failure_free(&raw mut failure) };
    }
}

/// Returns whether a wait is for all operations, from a `raddle_mode`.
fn for_all(mode: i32) -> Result<bool> {
    const WRITERS: i32 = raddle_mode::Writers as i32;
    match mode {
        0 => Ok(true),
        WRITERS => Ok(false),
        _ => Err(Refusal::invalid("`mode` is not a `raddle_mode`")),
    }
}

/// Waits for operations on the token that were pushed before, of a `raddle_mode`, for at most `timeout_ns` nanoseconds;
/// negative: no limit.
///
/// Returns `RADDLE_STATUS_OK`; `RADDLE_STATUS_FAILED` if the token has failed, with the failure stored at `failure`
/// unless that is null; `RADDLE_STATUS_TIMED_OUT`; `RADDLE_STATUS_FOREIGN`; or why it cannot wait here.
///
/// Threads: any. In operations: permitted, but `RADDLE_STATUS_WOULD_DEADLOCK` if an operation awaited waits for this
/// one, and `RADDLE_STATUS_NOT_HERE` in functions that must not wait. After a fork: `RADDLE_STATUS_FORKED`.
///
/// # Safety
/// 1. Neither the engine nor the token was freed. `failure` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_wait(
    engine: raddle_engine,
    token: raddle_token,
    mode: i32,
    timeout_ns: i64,
    failure: *mut raddle_failure,
) -> raddle_status {
    guarded(|| {
        // SAFETY: (1).
        let (engine, token) = (unsafe { engine.get() }?, unsafe { token.get() }?);
        let result = match (for_all(mode)?, limit(timeout_ns)) {
            (true, None) => engine.wait_for_var(&*token),
            (true, Some(limit)) => engine.wait_for_var_timeout(&*token, limit),
            (false, None) => engine.wait_to_read(&*token),
            (false, Some(limit)) => engine.wait_to_read_timeout(&*token, limit),
        };
        // SAFETY: (1).
        unsafe { report(result, failure) }
    })
}

/// Calls `function` with `data` once what `raddle_wait` would wait for has ended: before this returns, or on a thread
/// that ends it.
///
/// Returns `RADDLE_STATUS_OK`; otherwise, `function` is not called.
///
/// Threads: any. In operations: permitted, but calls it with `RADDLE_STATUS_WOULD_DEADLOCK` for a token that the
/// operation names. After a fork: calls `function` with `RADDLE_STATUS_FORKED`; a wait that the parent has begun calls
/// nothing in the child.
///
/// # Safety
/// 1. Neither the engine nor the token was freed.
/// 2. `function` may be called once with `data`, on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_wait_then(
    engine: raddle_engine,
    token: raddle_token,
    mode: i32,
    function: raddle_done,
    data: *mut c_void,
) -> raddle_status {
    guarded(|| {
        // SAFETY: (2).
        let then = unsafe { Then::new(function, data) }?;
        // SAFETY: (1).
        let (engine, token) = (unsafe { engine.get() }?, unsafe { token.get() }?);
        then.after(if for_all(mode)? {
            engine.wait_for_var_async(&*token)
        } else {
            engine.wait_to_read_async(&*token)
        });
        Ok(())
    })
}

/// Waits for `subject` without a limit or, unless `timeout_ns` is negative, with one, and [reports](report) the result.
///
/// # Safety
/// 1. (1) of [`report`] holds for `failure`.
pub(crate) unsafe fn wait_within<T>(
    timeout_ns: i64,
    subject: &T,
    without: fn(&T) -> std::result::Result<(), WaitError>,
    within: fn(&T, Duration) -> std::result::Result<(), WaitError>,
    failure: *mut raddle_failure,
) -> Result<()> {
    let result = limit(timeout_ns).map_or_else(|| without(subject), |limit| within(subject, limit));
    // SAFETY: (1).
    unsafe { report(result, failure) }
}

/// Waits until all operations that were pushed before have ended, for at most `timeout_ns` nanoseconds; negative: no
/// limit. Later pushes do not prolong it.
///
/// Returns `RADDLE_STATUS_OK`; `RADDLE_STATUS_FAILED` if there is an unreported failure, the earliest of which is then
/// reported, and stored at `failure` unless that is null; `RADDLE_STATUS_TIMED_OUT`.
///
/// Threads: any. In operations of the engine: `RADDLE_STATUS_WOULD_DEADLOCK`. After a fork: `RADDLE_STATUS_FORKED`.
///
/// # Safety
/// 1. The engine was not freed. `failure` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_wait_all(
    engine: raddle_engine,
    timeout_ns: i64,
    failure: *mut raddle_failure,
) -> raddle_status {
    guarded(|| {
        // SAFETY: (1).
        let engine = unsafe { engine.get() }?;
        // SAFETY: (1).
        unsafe { wait_within(timeout_ns, engine, Engine::wait_for_all, Engine::wait_for_all_timeout, failure) }
    })
}

/// Calls `function` with `data` once what `raddle_wait_all` would wait for has ended: before this returns, or on a
/// thread that ends it.
///
/// Returns `RADDLE_STATUS_OK`; otherwise, `function` is not called.
///
/// Threads: any. In operations of the engine: calls it with `RADDLE_STATUS_WOULD_DEADLOCK`. After a fork: calls it with
/// `RADDLE_STATUS_FORKED`; a wait that the parent has begun calls nothing in the child.
///
/// # Safety
/// 1. The engine was not freed.
/// 2. `function` may be called once with `data`, on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_wait_all_then(
    engine: raddle_engine,
    function: raddle_done,
    data: *mut c_void,
) -> raddle_status {
    guarded(|| {
        // SAFETY: (2).
        let then = unsafe { Then::new(function, data) }?;
        // SAFETY: (1).
        then.after(unsafe { engine.get() }?.wait_for_all_async());
        Ok(())
    })
}

/// Waits until no operation is pending, not even one that was pushed during the call, for at most `timeout_ns`
/// nanoseconds; negative: no limit. A thread that keeps pushing prolongs it.
///
/// Returns what `raddle_wait_all` returns.
///
/// Threads: any. In operations of the engine: `RADDLE_STATUS_WOULD_DEADLOCK`. After a fork: `RADDLE_STATUS_FORKED`.
///
/// # Safety
/// 1. The engine was not freed. `failure` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_wait_idle(
    engine: raddle_engine,
    timeout_ns: i64,
    failure: *mut raddle_failure,
) -> raddle_status {
    guarded(|| {
        // SAFETY: (1).
        let engine = unsafe { engine.get() }?;
        // SAFETY: (1).
        unsafe { wait_within(timeout_ns, engine, Engine::wait_until_idle, Engine::wait_until_idle_timeout, failure) }
    })
}

/// Calls `function` with `data` once what `raddle_wait_idle` would wait for has ended: before this returns, or on a
/// thread that ends it.
///
/// Returns `RADDLE_STATUS_OK`; otherwise, `function` is not called.
///
/// Threads: any. In operations of the engine: calls it with `RADDLE_STATUS_WOULD_DEADLOCK`. After a fork: calls it with
/// `RADDLE_STATUS_FORKED`; a wait that the parent has begun calls nothing in the child.
///
/// # Safety
/// 1. The engine was not freed.
/// 2. `function` may be called once with `data`, on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_wait_idle_then(
    engine: raddle_engine,
    function: raddle_done,
    data: *mut c_void,
) -> raddle_status {
    guarded(|| {
        // SAFETY: (2).
        let then = unsafe { Then::new(function, data) }?;
        // SAFETY: (1).
        then.after(unsafe { engine.get() }?.wait_until_idle_async());
        Ok(())
    })
}

/// Calls `function` with `data`, during which the calling thread may use all cores of its engine. What the function
/// starts, such as the threads of OpenMP, inherits these instead of the one core of a pinned worker.
///
/// Returns `RADDLE_STATUS_OK`, or `RADDLE_STATUS_INVALID` if the function is null.
///
/// Threads: any. In operations: meant for them; elsewhere, it only calls the function. After a fork: only calls it.
///
/// # Safety
/// 1. `function` may be called with `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_unpinned(function: raddle_callback, data: *mut c_void) -> raddle_status {
    guarded(|| {
        let function = function.ok_or_else(|| Refusal::invalid("a function is null"))?;
        // SAFETY: (1).
        raddle::unpinned(|| unsafe { function(data) });
        Ok(())
    })
}

/// Calls `function` with `data`, in which an operation blocks on something foreign to the engine: its worker runs
/// others meanwhile.
///
/// Returns `RADDLE_STATUS_OK`, or `RADDLE_STATUS_INVALID` if the function is null.
///
/// Threads: any. In operations: meant for them; elsewhere, it only calls the function. After a fork: only calls it.
///
/// # Safety
/// 1. `function` may be called with `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_blocking(function: raddle_callback, data: *mut c_void) -> raddle_status {
    guarded(|| {
        let function = function.ok_or_else(|| Refusal::invalid("a function is null"))?;
        // SAFETY: (1).
        raddle::blocking(|| unsafe { function(data) });
        Ok(())
    })
}
