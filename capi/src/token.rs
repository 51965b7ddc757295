//! Tokens: variables that order operations on what C owns.

use std::{ffi::c_void, mem::ManuallyDrop, ptr::NonNull};

use raddle::{Name, Token};

use crate::{
    engine::{raddle_callback, raddle_engine},
    failure::{Payload, raddle_failure},
    handles::{self, require_place},
    name::raddle_name,
    status::{Refusal, Result, guarded, guarded_or, raddle_status},
};

/// A token: operations that name the same one run in push order if one of them mutates it. One word; copies are the
/// same handle, and one `raddle_token_free` or `raddle_token_delete` ends it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct raddle_token {
    /// Private.
    pub address: *mut c_void,
}

impl raddle_token {
    fn new(token: Token) -> Self {
        let address = token.into_raw().as_ptr();
        handles::list::<Token>(address.addr());
        Self { address }
    }

    fn check(self) -> Result<NonNull<c_void>> {
        let address = NonNull::new(self.address).ok_or_else(|| Refusal::invalid("a token is null"))?;
        handles::check::<Token>(address.addr().get())?;
        Ok(address)
    }

    /// # Safety
    /// 1. The token is null or, while the result is used, not freed. With debug assertions, it may also be used or
    ///    never made.
    pub(crate) unsafe fn get(self) -> Result<ManuallyDrop<Token>> {
        // SAFETY: (1): the token came from `new`. It is not dropped here.
        Ok(ManuallyDrop::new(unsafe { Token::from_raw(self.check()?) }))
    }

    /// Returns the `count` tokens at `tokens`.
    ///
    /// # Safety
    /// 1. `tokens` is null, or (1) of [`get`](Self::get) holds for `count` tokens there, which do not change during
    ///    `'a`.
    pub(crate) unsafe fn each<'a>(tokens: *const Self, count: usize) -> Result<&'a [Token]> {
        // SAFETY: (1).
        let tokens = unsafe { handles::slice_of(tokens, count) }?;
        for token in tokens {
            token.check()?;
        }
        // SAFETY: (1). A `Token` is its address, like a `raddle_token`, and none of these is null.
        unsafe { handles::slice_of(std::ptr::from_ref(tokens).cast(), count) }
    }

    /// Takes the token at `place`, unless there is none, and stores null there.
    ///
    /// # Safety
    /// 1. `place` is null or points to a token for which (1) of [`get`](Self::get) holds.
    unsafe fn take(place: *mut Self) -> Result<Option<Token>> {
        // SAFETY: (1).
        let Some(place) = (unsafe { place.as_mut() }) else { return Ok(None) };
        let Some(address) = NonNull::new(place.address) else { return Ok(None) };
        handles::unlist::<Token>(address.addr().get())?;
        place.address = std::ptr::null_mut();
        // SAFETY: (1): the token came from `new`, and is not used any more.
        Ok(Some(unsafe { Token::from_raw(address) }))
    }
}

/// Stores a new token of the engine at `token`. `name` may be all zeros.
///
/// Returns `RADDLE_STATUS_OK`, or `RADDLE_STATUS_INVALID`.
///
/// Threads: any. In operations: permitted. After a fork: the token is of no use, as its engine.
///
/// # Safety
/// 1. The engine was not freed, the name is all zeros or interned, and `token` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_token_new(
    engine: raddle_engine,
    name: raddle_name,
    token: *mut raddle_token,
) -> raddle_status {
    guarded(|| {
        require_place(token)?;
        // SAFETY: (1).
        let mut made = unsafe { engine.get() }?.token();
        // SAFETY: (1).
        let name = unsafe { name.get() }?;
        if !name.is_empty() {
            made = made.named(Name::from(name));
        }
        // SAFETY: (1); it is not null.
        unsafe { token.write(raddle_token::new(made)) };
        Ok(())
    })
}

/// Gives the token up and stores null there. Null is permitted. Operations that name it still run.
///
/// Returns `RADDLE_STATUS_OK`; with debug assertions, `RADDLE_STATUS_INVALID` if the handle was used.
///
/// Threads: any one. In operations: permitted. After a fork: does nothing.
///
/// # Safety
/// 1. `token` is null or points to a handle that is null or not freed, and that no other thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_token_free(token: *mut raddle_token) -> raddle_status {
    // SAFETY: (1).
    guarded(|| unsafe { raddle_token::take(token) }.map(drop))
}

/// Deletes the token: pushes that name it are refused from now on, and `function`, unless null, is called with `data`
/// once all earlier operations on it have ended, failed or not. It must not wait, but may push. Stores null at `token`.
///
/// Returns `RADDLE_STATUS_OK`; `RADDLE_STATUS_DELETED` if another copy of the token was deleted before; or what a push
/// returns. Unless it returns `RADDLE_STATUS_OK`, `function` is called before it returns.
///
/// Threads: any one. In operations: permitted. After a fork: `RADDLE_STATUS_FORKED`.
///
/// # Safety
/// 1. The engine was not freed. `token` points to a handle that is not freed, and that no other thread uses.
/// 2. `function` may be called once with `data`, on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_token_delete(
    engine: raddle_engine,
    token: *mut raddle_token,
    function: raddle_callback,
    data: *mut c_void,
) -> raddle_status {
    // SAFETY: (2).
    let payload = unsafe { Payload::new(data, function) };
    guarded(|| {
        // SAFETY: (1).
        let engine = unsafe { engine.get() }?;
        // SAFETY: (1).
        let Some(taken) = unsafe { raddle_token::take(token) }? else {
            return Err(Refusal::invalid("a token is null"));
        };
        Ok(engine.delete_variable(&taken, move |_| drop(payload))?)
    })
}

/// Returns how many operations that mutate the token have succeeded; 0 if the handle is null.
///
/// Threads: any. In operations: permitted. After a fork: permitted.
///
/// # Safety
/// 1. The token was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_token_version(token: raddle_token) -> u64 {
    // SAFETY: (1).
    guarded_or(0, || Ok(unsafe { token.get() }?.version()))
}

/// Returns the failure that the token has now, without a wait, for `raddle_failure_free`; null if it has none, or the
/// handle is null. A pending operation may change it at any time. The failure does not count as reported.
///
/// Threads: any. In operations: permitted. After a fork: null.
///
/// # Safety
/// 1. The token was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_token_failure(token: raddle_token) -> raddle_failure {
    // SAFETY: (1).
    let failure = || Ok(unsafe { token.get() }?.failure().map_or(raddle_failure::NONE, raddle_failure::new));
    guarded_or(raddle_failure::NONE, failure)
}

/// Clears the token's failure, in push order: operations pushed later run again. The failure counts as reported.
///
/// Returns `RADDLE_STATUS_OK`, or what a push returns.
///
/// Threads: any. In operations: permitted. After a fork: `RADDLE_STATUS_FORKED`.
///
/// # Safety
/// 1. Neither the engine nor the token was freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_token_clear_failure(engine: raddle_engine, token: raddle_token) -> raddle_status {
    guarded(|| {
        // SAFETY: (1).
        let (engine, token) = (unsafe { engine.get() }?, unsafe { token.get() }?);
        Ok(engine.clear_error(&*token)?)
    })
}
