//! Traces, and the check of the machine.

use std::{
    ffi::{c_char, c_void},
    fs::File,
    io::{BufWriter, Write},
};

use raddle::trace::Recorder;

use crate::{
    handles::{self, require_place},
    status::{Refusal, give_text, guarded, raddle_status, str_of},
};

/// What records the events of the engines that are built with it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct raddle_recorder {
    /// Private.
    pub address: *mut c_void,
}

/// Stores a new recorder at `recorder`, for `raddle_options`.
///
/// Returns `RADDLE_STATUS_OK`.
///
/// Threads: any. In operations: permitted. After a fork: permitted; engines of the child need recorders of the child.
///
/// # Safety
/// 1. `recorder` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_recorder_new(recorder: *mut raddle_recorder) -> raddle_status {
    guarded(|| {
        require_place(recorder)?;
        let made = raddle_recorder { address: handles::boxed(Recorder::new()) };
        // SAFETY: (1); it is not null.
        unsafe { recorder.write(made) };
        Ok(())
    })
}

/// Takes what was recorded since the last call and writes it to the file `path`, in UTF-8, as a trace for Perfetto.
///
/// Returns `RADDLE_STATUS_OK`; `RADDLE_STATUS_FILE` if the file cannot be written.
///
/// Threads: any. In operations: permitted; it reads and writes much. After a fork: the trace is empty.
///
/// # Safety
/// 1. The recorder was not freed. `path` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_recorder_write(recorder: raddle_recorder, path: *const c_char) -> raddle_status {
    guarded(|| {
        // SAFETY: (1).
        let recorder = unsafe { handles::get::<Recorder>(recorder.address) }?;
        // SAFETY: (1).
        let path = unsafe { str_of(path) }?;
        let trace = recorder.take();
        let written = File::create(path).map(BufWriter::new).and_then(|mut file| {
            trace.write_perfetto(&mut file)?;
            file.flush()
        });
        written.map_err(|error| Refusal(raddle_status::File, format!("{path} cannot be written: {error}")))
    })
}

/// Frees a recorder and stores null there. Engines that use it go on recording, but their events can no longer
/// be written. Null is permitted.
///
/// Returns `RADDLE_STATUS_OK`.
///
/// Threads: any one. In operations: permitted. After a fork: permitted.
///
/// # Safety
/// 1. `recorder` is null or points to a handle that is null or not freed, and that no other thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_recorder_free(recorder: *mut raddle_recorder) -> raddle_status {
    // SAFETY: (1): the handle is its address.
    guarded(|| unsafe { handles::take::<Recorder>(recorder.cast()) }.map(drop))
}

/// Stores at `text` what was found out about this machine and its settings, with advice, for `raddle_text_free`. Takes
/// some tens of milliseconds.
///
/// Returns `RADDLE_STATUS_OK`.
///
/// Threads: any. In operations: permitted; it sleeps. After a fork: permitted.
///
/// # Safety
/// 1. `text` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_doctor(text: *mut *mut c_char) -> raddle_status {
    // SAFETY: (1).
    guarded(|| unsafe { give_text(&raddle::system::doctor().to_string(), text) })
}
