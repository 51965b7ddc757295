//! Names of operations and tokens.

use std::ffi::c_char;

use raddle::Name;

use crate::status::{Refusal, Result, guarded, raddle_status, str_of};

/// The name of an operation or token: two words, to be made once by `raddle_intern` and used in any number of pushes.
/// All zeros: no name. `text` ends with a NUL, which `length` does not count.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct raddle_name {
    /// The text, with a NUL behind it.
    pub text: *const c_char,
    /// Its length in bytes.
    pub length: usize,
}

impl raddle_name {
    /// # Safety
    /// 1. The name is all zeros or came from `raddle_intern`.
    pub(crate) unsafe fn get(self) -> Result<&'static str> {
        if self.text.is_null() {
            return Ok("");
        }
        // SAFETY: (1): the text is one that is never freed.
        let bytes = unsafe { std::slice::from_raw_parts(self.text.cast::<u8>(), self.length) };
        if cfg!(debug_assertions) && std::str::from_utf8(bytes).is_err() {
            return Err(Refusal::invalid("a name did not come from `raddle_intern`"));
        }
        // SAFETY: (1): the text was UTF-8 when it was interned.
        Ok(unsafe { std::str::from_utf8_unchecked(bytes) })
    }
}

/// Makes a name from `text`, a C string in UTF-8, which is copied. Equal texts have one copy, which is never freed: use
/// a bounded number of texts, and keep the name rather than intern it for each push.
///
/// Returns `RADDLE_STATUS_OK`; or `RADDLE_STATUS_INVALID` if the text is null or not UTF-8, or `name` is null.
///
/// Threads: any. In operations: permitted. After a fork: permitted; names of the parent stay valid.
///
/// # Safety
/// 1. `text` is null or a C string. `name` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_intern(text: *const c_char, name: *mut raddle_name) -> raddle_status {
    guarded(|| {
        crate::handles::require_place(name)?;
        // SAFETY: (1).
        let text = unsafe { str_of(text) }?;
        let interned = Name::interned(&format!("{text}\0"));
        let kept = interned.as_static().unwrap_or_default();
        let interned = raddle_name { text: kept.as_ptr().cast(), length: kept.len().saturating_sub(1) };
        // SAFETY: (1); it is not null.
        unsafe { name.write(interned) };
        Ok(())
    })
}
