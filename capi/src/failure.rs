//! Failures of operations: with what a C function fails, and what waits report.

use std::{
    error::Error,
    ffi::{CString, c_char, c_void},
    fmt,
};

use raddle::{OpError, WaitError, error::Cause};

use crate::{
    engine::{Shared, raddle_callback},
    handles,
    status::{Refusal, c_string, guarded, guarded_or, raddle_status},
};

/// An operation's failure, as a call has reported it. To be freed with `raddle_failure_free`, unless a callback
/// received it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct raddle_failure {
    /// Private.
    pub address: *mut c_void,
}

/// How an operation failed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub enum raddle_cause {
    /// There is no failure.
    None = 0,
    /// Its function returned something other than 0, or `raddle_completion_fail` was called.
    Code = 1,
    /// Its completion was dropped unused.
    LostCompletion = 2,
    /// It was cancelled.
    Cancelled = 3,
    /// Its deadline passed.
    DeadlinePassed = 4,
    /// Something else: it was not an operation of C, or a device failed.
    Other = 5,
}

/// With what an operation of C fails.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) code: i32,
    pub(crate) message: String,
    pub(crate) payload: Payload,
}

/// Something of the program's, freed by its function.
#[derive(Debug)]
pub(crate) struct Payload(Shared, raddle_callback);

impl Payload {
    /// # Safety
    /// 1. `drop`, unless null, may be called once with `data`, on any thread.
    pub(crate) unsafe fn new(data: *mut c_void, drop: raddle_callback) -> Self {
        Self(Shared(data), drop)
    }

    pub(crate) fn get(&self) -> *mut c_void {
        self.0.get()
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        if let Some(drop) = self.1 {
            // SAFETY: (1) of `new`; this is the only call.
            unsafe { drop(self.0.get()) };
        }
    }
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.message {
            "" => write!(f, "code {}", self.code),
            message => write!(f, "{message} (code {})", self.code),
        }
    }
}

impl Error for Given {}

/// What a failure's handle refers to.
#[derive(Debug)]
struct Reported {
    error: OpError,
    message: CString,
    operation: CString,
}

impl Reported {
    fn given(&self) -> Option<&Given> {
        self.error.downcast_ref()
    }
}

/// Returns what is said of a failure.
pub(crate) fn describe(error: &OpError) -> String {
    let what = if error.is_skipped() { "an operation was skipped, since " } else { "" };
    let root = error.root();
    match root.name() {
        "" => format!("{what}an operation failed: {}", root.cause()),
        name => format!("{what}operation `{name}` failed: {}", root.cause()),
    }
}

impl raddle_failure {
    pub(crate) const NONE: Self = Self { address: std::ptr::null_mut() };

    pub(crate) fn new(error: OpError) -> Self {
        let (message, operation) = (c_string(&describe(&error)), c_string(error.root().name()));
        Self { address: handles::boxed(Reported { error, message, operation }) }
    }
}

/// Returns the refusal for the result of a wait. Stores a failure's handle at `out`, or null if there is none.
///
/// # Safety
/// 1. `out` is null or may be written to.
pub(crate) unsafe fn report<T>(result: Result<T, WaitError>, out: *mut raddle_failure) -> Result<T, Refusal> {
    let mut failure = raddle_failure::NONE;
    let result = result.map_err(|error| match error {
        WaitError::Failed(error) => {
            let refusal = Refusal(raddle_status::Failed, describe(&error));
            if !out.is_null() {
                failure = raddle_failure::new(error);
            }
            refusal
        }
        error => error.into(),
    });
    if !out.is_null() {
        // SAFETY: (1); it is not null.
        unsafe { out.write(failure) };
    }
    result
}

/// Returns the code with which the operation failed; 0 if it failed otherwise, or the handle is null.
///
/// Threads: any. In operations: permitted. After a fork: permitted.
///
/// # Safety
/// 1. The failure is null or not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_failure_code(failure: raddle_failure) -> i32 {
    // SAFETY: (1).
    let code = || Ok(unsafe { handles::get::<Reported>(failure.address) }?.given().map_or(0, |given| given.code));
    guarded_or(0, code)
}

/// Returns how the operation failed, a `raddle_cause`; `RADDLE_CAUSE_NONE` if the handle is null.
///
/// Threads: any. In operations: permitted. After a fork: permitted.
///
/// # Safety
/// 1. The failure is null or not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_failure_cause(failure: raddle_failure) -> i32 {
    guarded_or(raddle_cause::None as i32, || {
        // SAFETY: (1).
        let reported = unsafe { handles::get::<Reported>(failure.address) }?;
        let cause = match reported.error.root().cause() {
            _ if reported.given().is_some() => raddle_cause::Code,
            Cause::LostCompletion => raddle_cause::LostCompletion,
            Cause::Cancelled => raddle_cause::Cancelled,
            Cause::DeadlinePassed => raddle_cause::DeadlinePassed,
            _ => raddle_cause::Other,
        };
        Ok(cause as i32)
    })
}

/// Returns what failed and why, in UTF-8, valid until the failure is freed; null if the handle is null.
///
/// Threads: any. In operations: permitted. After a fork: permitted.
///
/// # Safety
/// 1. The failure is null or not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_failure_message(failure: raddle_failure) -> *const c_char {
    // SAFETY: (1).
    let message = || Ok(unsafe { handles::get::<Reported>(failure.address) }?.message.as_ptr());
    guarded_or(std::ptr::null(), message)
}

/// Returns the name of the operation that failed first, valid until the failure is freed; null if the handle is null.
///
/// Threads: any. In operations: permitted. After a fork: permitted.
///
/// # Safety
/// 1. The failure is null or not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_failure_operation(failure: raddle_failure) -> *const c_char {
    // SAFETY: (1).
    let operation = || Ok(unsafe { handles::get::<Reported>(failure.address) }?.operation.as_ptr());
    guarded_or(std::ptr::null(), operation)
}

/// Returns the payload with which the operation failed, valid until the failure is freed; null if there is none.
/// Every report of the failure shares it, also on several threads at once.
///
/// Threads: any. In operations: permitted. After a fork: permitted.
///
/// # Safety
/// 1. The failure is null or not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_failure_payload(failure: raddle_failure) -> *mut c_void {
    guarded_or(std::ptr::null_mut(), || {
        // SAFETY: (1).
        let reported = unsafe { handles::get::<Reported>(failure.address) }?;
        Ok(reported.given().map_or(std::ptr::null_mut(), |given| given.payload.get()))
    })
}

/// Clears the failure on all tokens that it has reached or is yet to reach, and counts it as reported. Not ordered with
/// pushes: an operation pushed later is not skipped because of it, and one pushed earlier may be. To clear one token in
/// push order, use `raddle_token_clear_failure`. The handle stays valid.
///
/// Returns `RADDLE_STATUS_OK`, or `RADDLE_STATUS_INVALID` if the handle is null.
///
/// Threads: any. In operations: permitted. After a fork: permitted.
///
/// # Safety
/// 1. The failure is null or not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_failure_clear_everywhere(failure: raddle_failure) -> raddle_status {
    guarded(|| {
        // SAFETY: (1).
        unsafe { handles::get::<Reported>(failure.address) }?.error.clear_everywhere();
        Ok(())
    })
}

/// Frees a failure and stores null there. Null is permitted. The payload is freed with the last use of the failure,
/// which may be a token that is still failed.
///
/// Returns `RADDLE_STATUS_OK`.
///
/// Threads: any one. In operations: permitted. After a fork: permitted.
///
/// # Safety
/// 1. `failure` is null or points to a handle that is null or not freed, and that no other thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_failure_free(failure: *mut raddle_failure) -> raddle_status {
    // SAFETY: (1): the handle is its address.
    guarded(|| unsafe { handles::take::<Reported>(failure.cast()) }.map(drop))
}
