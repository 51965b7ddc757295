//! What calls return: a status and, on the calling thread, a message.

use std::{
    any::Any,
    cell::RefCell,
    ffi::{CStr, CString, c_char},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
};

use crate::handles::require_place;
use raddle::{
    PushError, WaitError,
    error::{BuildError, Misfit, NoAccess, ShutdownError},
};

/// What a call returns. After any status but `RADDLE_STATUS_OK`, `raddle_last_message` explains it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum raddle_status {
    /// The call did what it says.
    Ok = 0,
    /// An operation failed, and the call reports its failure.
    Failed = 1,
    /// The time limit passed. What was waited for continues.
    TimedOut = 2,
    /// The wait could never end, for example one for the calling operation itself.
    WouldDeadlock = 3,
    /// A deletion must not wait, and an operation must not stop its engine or shut it down.
    NotHere = 4,
    /// Too many operations wait inside their functions.
    TooManyWaiting = 5,
    /// The engine is shut down or shutting down.
    ShutDown = 6,
    /// A limit on pending operations leaves no room, and the push was not to wait, or the engine is stopped.
    Full = 7,
    /// A token was deleted before.
    Deleted = 8,
    /// A token belongs to another engine.
    Foreign = 9,
    /// The engine has not what the operation asks for.
    Unfit = 10,
    /// The engine was built before this process was forked. Build another one here.
    Forked = 11,
    /// An argument is invalid: null where that is not permitted, a handle that was used, or a text that is not UTF-8.
    Invalid = 12,
    /// The system refused a thread, or threads had not ended at the time limit.
    Threads = 13,
    /// A file could not be written.
    File = 14,
    /// raddle panicked, which is a bug.
    Panicked = 15,
}

/// A status other than `Ok`, with its message.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) raddle_status, pub(crate) String);

pub(crate) type Result<T = ()> = std::result::Result<T, Refusal>;

impl Refusal {
    pub(crate) fn invalid(message: &str) -> Self {
        Self(raddle_status::Invalid, message.to_owned())
    }

    fn new(status: raddle_status, error: impl fmt::Display) -> Self {
        Self(status, without_places(&error.to_string()))
    }
}

impl From<PushError> for Refusal {
    fn from(error: PushError) -> Self {
        let status = match &error {
            PushError::Variable(NoAccess::Foreign, _) => raddle_status::Foreign,
            PushError::Variable(NoAccess::Deleted, _) => raddle_status::Deleted,
            PushError::ShutDown => raddle_status::ShutDown,
            PushError::Full => raddle_status::Full,
            PushError::Forked => raddle_status::Forked,
            PushError::InDeviceFunction | PushError::InObserver => raddle_status::NotHere,
            PushError::Unfit(Misfit::NotAParent) => raddle_status::Invalid,
            _ => raddle_status::Unfit,
        };
        Self::new(status, error)
    }
}

impl From<WaitError> for Refusal {
    fn from(error: WaitError) -> Self {
        let status = match error {
            WaitError::Refused(error) => return error.into(),
            WaitError::Failed(_) => raddle_status::Failed,
            WaitError::TimedOut => raddle_status::TimedOut,
            WaitError::WouldDeadlock(_) => raddle_status::WouldDeadlock,
            WaitError::TooManyWaiting => raddle_status::TooManyWaiting,
            WaitError::ValueTaken => raddle_status::Invalid,
            _ => raddle_status::NotHere,
        };
        Self::new(status, error)
    }
}

impl From<BuildError> for Refusal {
    fn from(error: BuildError) -> Self {
        let status = match error {
            BuildError::Thread(_) => raddle_status::Threads,
            BuildError::Profile(..) => raddle_status::File,
            BuildError::ForkedRecorder => raddle_status::Forked,
            _ => raddle_status::Invalid,
        };
        Self::new(status, error)
    }
}

impl From<ShutdownError> for Refusal {
    fn from(error: ShutdownError) -> Self {
        let status = match error {
            ShutdownError::TimedOut => raddle_status::TimedOut,
            ShutdownError::ThreadsLeft(_) => raddle_status::Threads,
            ShutdownError::Forked => raddle_status::Forked,
            ShutdownError::Profile(..) => raddle_status::File,
            _ => raddle_status::NotHere,
        };
        Self::new(status, error)
    }
}

/// Returns `text` without the places of pushes from C, which are lines of this crate.
pub(crate) fn without_places(text: &str) -> String {
    fn behind_place(part: &str) -> Option<&str> {
        let is_digit = |c: char| c.is_ascii_digit();
        let file = part.strip_prefix(file!().strip_suffix("status.rs")?)?;
        let (_, line) = file.split_once(".rs:").filter(|(name, _)| !name.contains([' ', '/']))?;
        Some(line.trim_start_matches(is_digit).strip_prefix(':')?.trim_start_matches(is_digit))
    }
    let mut parts = text.split(" pushed at ");
    let mut cleaned = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match behind_place(part) {
            Some(rest) => cleaned += rest,
            None => cleaned.extend([" pushed at ", part]),
        }
    }
    cleaned
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Converts `text`, without its NULs, which a C string cannot contain.
pub(crate) fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_else(|_| CString::new(text.replace('\0', "")).unwrap_or_default())
}

/// Keeps `message` as the last one of this thread.
fn note(message: &str) {
    // A thread that is ending has no message.
    let _ = LAST.try_with(|last| last.replace(c_string(message)));
}

/// Calls `f`, and catches its panics.
pub(crate) fn guarded(f: impl FnOnce() -> Result) -> raddle_status {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(())) => raddle_status::Ok,
        Ok(Err(Refusal(status, message))) => {
            note(&message);
            status
        }
        Err(payload) => {
            note(&message_of(&*payload));
            // The drop of a payload may panic.
            std::mem::forget(payload);
            raddle_status::Panicked
        }
    }
}

/// Calls `f`, which has a result rather than a status; returns `otherwise` if it panics or refuses.
pub(crate) fn guarded_or<T>(otherwise: T, f: impl FnOnce() -> Result<T>) -> T {
    let mut result = otherwise;
    let _ = guarded(|| {
        result = f()?;
        Ok(())
    });
    result
}

fn message_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    format!("raddle panicked: {}", text.unwrap_or("the payload is not a string"))
}

/// Returns the version of the library: `RADDLE_VERSION` of its header.
///
/// Threads: any. In operations: permitted. After a fork: permitted.
#[unsafe(no_mangle)]
pub extern "C" fn raddle_version() -> u32 {
    crate::RADDLE_VERSION
}

/// Returns why the last call on this thread that did not succeed did not: a text that is valid until the next such call
/// on this thread, and empty if there was none. Never null.
///
/// Threads: any; each has its own message. In operations: permitted, but a wait inside an operation may run others,
/// which change the message. After a fork: permitted.
#[unsafe(no_mangle)]
pub extern "C" fn raddle_last_message() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Frees a text that a call has returned. Null is permitted.
///
/// Threads: any. In operations: permitted. After a fork: permitted.
///
/// # Safety
/// 1. `text` is null or was returned by a function that says so, and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_text_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: (1): the text came from `give_text`.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// Stores `text` at `out`, for `raddle_text_free`.
///
/// # Safety
/// 1. `out` is null or valid for a write.
pub(crate) unsafe fn give_text(text: &str, out: *mut *mut c_char) -> Result {
    require_place(out)?;
    // SAFETY: (1); it is not null.
    unsafe { out.write(c_string(text).into_raw()) };
    Ok(())
}

/// Returns the C string `text` as a string.
///
/// # Safety
/// 1. `text` is null or a C string that is valid and unchanged during `'a`.
pub(crate) unsafe fn str_of<'a>(text: *const c_char) -> Result<&'a str> {
    if text.is_null() {
        return Err(Refusal::invalid("a text is null"));
    }
    // SAFETY: (1).
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Refusal::invalid("a text is not UTF-8"))
}
