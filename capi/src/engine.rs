//! Engines and their options.

use std::{
    ffi::{c_char, c_void},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use raddle::{Engine, EngineKind, IdlePolicy, Shutdown, WeakEngine};

use crate::{
    handles::{self, limit, require_place, sized},
    observe::raddle_recorder,
    status::{Refusal, Result, give_text, guarded, guarded_or, raddle_status, str_of, without_places},
};

/// An engine. Copies are the same handle, and one `raddle_engine_free` ends it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct raddle_engine {
    /// Private.
    pub address: *mut c_void,
}

/// What an engine's handle refers to.
#[derive(Debug)]
pub(crate) struct Held {
    /// Used by all calls, so that operations may use the handle while `raddle_engine_free` drains the engine.
    engine: WeakEngine,
    /// Keeps the engine open.
    open: Mutex<Option<Engine>>,
}

impl Held {
    pub(crate) fn new(engine: WeakEngine, open: Option<Engine>) -> Self {
        Self { engine, open: Mutex::new(open) }
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }
}

impl raddle_engine {
    pub(crate) fn open(engine: Engine) -> Self {
        Self { address: handles::boxed(Held::new(engine.downgrade(), Some(engine))) }
    }

    /// # Safety
    /// 1. (1) of [`handles::get`] holds for the address.
    pub(crate) unsafe fn get<'a>(self) -> Result<&'a Engine> {
        // SAFETY: (1).
        Ok(unsafe { handles::get::<Held>(self.address) }?.engine())
    }
}

/// The kinds of engine, for `raddle_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub enum raddle_engine_kind {
    /// What the environment variable `RADDLE_ENGINE` says, or `PerDevice`.
    Default = 0,
    /// Runs each operation inside its push.
    Naive = 1,
    /// All devices share one set of workers.
    Pooled = 2,
    /// Each device has its own workers.
    PerDevice = 3,
}

/// A choice, for `raddle_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub enum raddle_choice {
    /// As the documentation of the option says.
    Default = 0,
    /// Yes.
    Yes = 1,
    /// No.
    No = 2,
}

/// A function with its data.
pub type raddle_callback = Option<unsafe extern "C" fn(data: *mut c_void)>;

/// How an engine is built. All zeros except `size` is a default engine.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct raddle_options {
    /// `sizeof(raddle_options)`.
    pub size: usize,
    /// A `raddle_engine_kind`.
    pub kind: i32,
    /// A `raddle_choice`: whether workers are pinned to cores. By default, they are if the engine has the machine.
    pub pin: i32,
    /// The number of workers; 0: one for each core that the process may use.
    pub workers: usize,
    /// The number of workers of the lane for prioritized operations; 0: one.
    pub prioritized_workers: usize,
    /// The size of the threads' stacks in bytes; 0: the default.
    pub stack_size: usize,
    /// The number of pending operations from which on pushes from outside operations are held back; 0: none.
    pub max_pending: usize,
    /// How long a worker searches before it sleeps, in nanoseconds; 0: the default, negative: it sleeps at once.
    pub spin_ns: i64,
    /// The file for a profile, in UTF-8; null: none.
    pub profile: *const c_char,
    /// What records the engine's events; all zeros: nothing.
    pub recorder: raddle_recorder,
    /// Called on each thread of the engine before anything else runs there; null: nothing.
    pub thread_start: raddle_callback,
    /// Called on each thread of the engine as the last thing before its thread-locals are destroyed; null: nothing.
    pub thread_end: raddle_callback,
    /// For both functions. It must stay valid until the process ends, and be usable by all threads.
    pub thread_data: *mut c_void,
}

/// Builds an engine and stores its handle at `engine`. `options` may be null.
///
/// Returns `RADDLE_STATUS_OK`; `RADDLE_STATUS_INVALID`, `RADDLE_STATUS_THREADS` or `RADDLE_STATUS_FILE` if an option
/// is wrong, a thread could not be started, or the profile cannot be written.
///
/// Threads: any. In operations: permitted. After a fork: builds an engine of the child.
///
/// # Safety
/// 1. `options` is null, or a `raddle_options` of the size that it states, whose texts, recorder and functions are
///    valid. `engine` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_engine_new(
    options: *const raddle_options,
    engine: *mut raddle_engine,
) -> raddle_status {
    guarded(|| {
        require_place(engine)?;
        let mut builder = Engine::builder();
        if !options.is_null() {
            let mut whole = None;
            // SAFETY: (1). All options may be 0.
            let options = unsafe { sized(options, &mut whole) }?;
            // SAFETY: (1).
            builder = unsafe { configure(builder, options) }?;
        }
        let built = raddle_engine::open(builder.build()?);
        // SAFETY: (1); it is not null.
        unsafe { engine.write(built) };
        Ok(())
    })
}

/// # Safety
/// 1. What the options refer to is valid.
unsafe fn configure(mut builder: raddle::EngineBuilder, options: &raddle_options) -> Result<raddle::EngineBuilder> {
    const NAIVE: i32 = raddle_engine_kind::Naive as i32;
    const POOLED: i32 = raddle_engine_kind::Pooled as i32;
    const PER_DEVICE: i32 = raddle_engine_kind::PerDevice as i32;
    const YES: i32 = raddle_choice::Yes as i32;
    const NO: i32 = raddle_choice::No as i32;
    builder = match options.kind {
        0 => builder,
        NAIVE => builder.kind(EngineKind::Naive),
        POOLED => builder.kind(EngineKind::Pooled),
        PER_DEVICE => builder.kind(EngineKind::PerDevice),
        _ => return Err(Refusal::invalid("`kind` is not a `raddle_engine_kind`")),
    };
    builder = match options.pin {
        0 => builder,
        YES => builder.pin(true),
        NO => builder.pin(false),
        _ => return Err(Refusal::invalid("`pin` is not a `raddle_choice`")),
    };
    let set = |number: usize| Some(number).filter(|&number| number > 0);
    if let Some(workers) = set(options.workers) {
        builder = builder.workers(workers);
    }
    if let Some(workers) = set(options.prioritized_workers) {
        builder = builder.prioritized_workers(workers);
    }
    if let Some(bytes) = set(options.stack_size) {
        builder = builder.stack_size(bytes);
    }
    if let Some(most) = set(options.max_pending) {
        builder = builder.max_pending(most);
    }
    match options.spin_ns {
        0 => {}
        ..0 => builder = builder.idle(IdlePolicy::Park),
        spin => builder = builder.idle(IdlePolicy::SpinThenPark(Duration::from_nanos(spin.unsigned_abs()))),
    }
    if !options.profile.is_null() {
        // SAFETY: (1).
        builder = builder.profile(unsafe { str_of(options.profile) }?);
    }
    if !options.recorder.address.is_null() {
        // SAFETY: (1).
        builder = builder.recorder(unsafe { handles::get(options.recorder.address) }?);
    }
    let hook = |function: raddle_callback| {
        let data = Shared(options.thread_data);
        // SAFETY: (1): the function may be called with its data on any thread until the process ends.
        function.map(|function| move || unsafe { function(data.get()) })
    };
    if let Some(start) = hook(options.thread_start) {
        builder = builder.on_thread_start(start);
    }
    if let Some(end) = hook(options.thread_end) {
        builder = builder.on_thread_end(end);
    }
    Ok(builder)
}

/// Data of a C function, which its contract permits on any thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared(pub(crate) *mut c_void);

impl Shared {
    /// Returns the pointer. A method, so that closures capture the whole.
    pub(crate) fn get(self) -> *mut c_void {
        self.0
    }
}

// SAFETY: the pointer is only passed to functions that C promises may be called with it on any thread.
unsafe impl Send for Shared {}
// SAFETY: as for `Send`.
unsafe impl Sync for Shared {}

/// Stores at `engine` a handle to the process's own engine, which is built with the first handle and never ends.
///
/// Returns `RADDLE_STATUS_OK`, or what `raddle_engine_new` returns without options.
///
/// Threads: any. In operations: permitted. After a fork: the child has its own.
///
/// # Safety
/// 1. `engine` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_engine_global(engine: *mut raddle_engine) -> raddle_status {
    guarded(|| {
        require_place(engine)?;
        let global = raddle_engine::open(Engine::global()?.clone());
        // SAFETY: (1); it is not null.
        unsafe { engine.write(global) };
        Ok(())
    })
}

/// Drains the engine and ends its threads: operations run and may push more; then frees the handle and stores null
/// there. Null is permitted. Unreported failures are logged.
///
/// Returns `RADDLE_STATUS_OK`, or `RADDLE_STATUS_INVALID` if the handle was freed.
///
/// Threads: any one, once; no other call may use the handle then, except inside operations until this returns. In
/// operations: the engine ends in the background, so what runs there must no longer use the handle. After a fork: ends
/// nothing, returns at once.
///
/// # Safety
/// 1. `engine` is null or points to a handle that is null or not freed, and that no other thread uses, except
///    operations of the engine during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_engine_free(engine: *mut raddle_engine) -> raddle_status {
    guarded(|| {
        // SAFETY: (1).
        let Some(place) = (unsafe { engine.as_mut() }).filter(|place| !place.address.is_null()) else { return Ok(()) };
        // SAFETY: (1).
        let held = unsafe { handles::get::<Held>(place.address) }?;
        // Operations may use the handle until this has returned.
        let open = held.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(open);
        // SAFETY: (1).
        drop(unsafe { handles::take::<Held>(&raw mut place.address) }?);
        Ok(())
    })
}

/// Refuses pushes, waits until nothing is pending, and ends the threads. With `cancel`, operations that have not
/// started fail; otherwise, they run. `timeout_ns` limits the call in nanoseconds; negative: no limit. The handle stays
/// valid.
///
/// Returns `RADDLE_STATUS_OK`; `RADDLE_STATUS_TIMED_OUT` or `RADDLE_STATUS_THREADS` if operations or threads had not
/// ended by then, so that another call may wait again; `RADDLE_STATUS_FILE` if the engine has ended, but not its
/// profile.
///
/// Threads: any. In operations of the engine: `RADDLE_STATUS_NOT_HERE`, and it ends in the background. After a fork:
/// `RADDLE_STATUS_FORKED`.
///
/// # Safety
/// 1. The handle was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_engine_shutdown(engine: raddle_engine, cancel: bool, timeout_ns: i64) -> raddle_status {
    guarded(|| {
        let how = if cancel { Shutdown::Cancel } else { Shutdown::Drain };
        // SAFETY: (1).
        Ok(unsafe { engine.get() }?.shutdown(how, limit(timeout_ns))?)
    })
}

/// Begins what `raddle_engine_shutdown` does with `cancel`, and returns at once.
///
/// Returns `RADDLE_STATUS_OK`.
///
/// Threads: any. In operations: permitted. After a fork: has no effect.
///
/// # Safety
/// 1. The handle was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_engine_notify_shutdown(engine: raddle_engine) -> raddle_status {
    guarded(|| {
        // SAFETY: (1).
        unsafe { engine.get() }?.notify_shutdown();
        Ok(())
    })
}

/// Ends the threads and keeps what is pending, until `raddle_engine_start`. Waits for functions that run, for at most
/// `timeout_ns` nanoseconds; negative: no limit.
///
/// Returns `RADDLE_STATUS_OK`; `RADDLE_STATUS_TIMED_OUT` if functions still run, so the engine goes on; or
/// `RADDLE_STATUS_THREADS` if it is stopped, but threads have not ended.
///
/// Threads: any. In operations of the engine: `RADDLE_STATUS_NOT_HERE`. After a fork: `RADDLE_STATUS_FORKED`.
///
/// # Safety
/// 1. The handle was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_engine_stop(engine: raddle_engine, timeout_ns: i64) -> raddle_status {
    // SAFETY: (1).
    guarded(|| Ok(unsafe { engine.get() }?.stop(limit(timeout_ns))?))
}

/// Starts the threads of a stopped engine again.
///
/// Returns `RADDLE_STATUS_OK`, or `RADDLE_STATUS_THREADS` if one could not be started; another call tries again.
///
/// Threads: any. In operations: permitted. After a fork: has no effect.
///
/// # Safety
/// 1. The handle was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_engine_start(engine: raddle_engine) -> raddle_status {
    // SAFETY: (1).
    guarded(|| Ok(unsafe { engine.get() }?.start()?))
}

/// Returns the number of pending operations, the engine's own included; 0 if the handle is invalid.
///
/// Threads: any. In operations: permitted; the calling one is pending. After a fork: 0.
///
/// # Safety
/// 1. The handle was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_engine_pending(engine: raddle_engine) -> u64 {
    // SAFETY: (1).
    guarded_or(0, || Ok(unsafe { engine.get() }?.pending()))
}

/// Stores at `text` a description of what is pending and what it waits for, for `raddle_text_free`.
///
/// Returns `RADDLE_STATUS_OK`.
///
/// Threads: any. In operations: permitted. After a fork: describes an engine with nothing pending.
///
/// # Safety
/// 1. The handle was not freed. `text` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_engine_dump(engine: raddle_engine, text: *mut *mut c_char) -> raddle_status {
    guarded(|| {
        // SAFETY: (1).
        let dump = unsafe { engine.get() }?.dump();
        // SAFETY: (1).
        unsafe { give_text(&without_places(&dump.to_string()), text) }
    })
}

/// What an engine has counted since it was built.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct raddle_stats {
    /// `sizeof(raddle_stats)`, set by the caller.
    pub size: usize,
    /// Operations pushed, the engine's own included, such as waits and deletions.
    pub pushed: u64,
    /// Those of them that have ended.
    pub ended: u64,
    /// Those of them that are pending.
    pub pending: u64,
    /// Those that are ready and wait for a worker.
    pub ready: u64,
    /// How often one worker took operations from another.
    pub steals: u64,
    /// How often a worker slept because there was nothing to run.
    pub parks: u64,
}

/// Stores the engine's counts at `stats`, and, unless `text` is null, tables with more there, for `raddle_text_free`.
///
/// Returns `RADDLE_STATUS_OK`; or `RADDLE_STATUS_INVALID` if `stats` is null or its `size` is not that of the struct.
///
/// Threads: any. In operations: permitted. After a fork: the counts are 0.
///
/// # Safety
/// 1. The handle was not freed. `stats` is null or a struct of the size that it states. `text` is null or may be
///    written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_engine_stats(
    engine: raddle_engine,
    stats: *mut raddle_stats,
    text: *mut *mut c_char,
) -> raddle_status {
    guarded(|| {
        let mut whole = None;
        // SAFETY: (1). All counts may be 0.
        let size = unsafe { sized(stats, &mut whole) }?.size;
        // SAFETY: (1).
        let counted = unsafe { engine.get() }?.stats();
        let workers = || counted.lanes.iter().flat_map(|lane| &lane.workers);
        let whole = raddle_stats {
            size,
            pushed: counted.pushed,
            ended: counted.ended,
            pending: counted.pending,
            ready: counted.lanes.iter().map(|lane| lane.ready as u64).sum(),
            steals: workers().map(|worker| worker.steals).sum(),
            parks: workers().map(|worker| worker.parks).sum(),
        };
        // SAFETY: (1): as many bytes as the struct states, which is at most the size of `whole`.
        unsafe { std::ptr::copy_nonoverlapping((&raw const whole).cast::<u8>(), stats.cast(), size) };
        if text.is_null() {
            return Ok(());
        }
        // SAFETY: (1).
        unsafe { give_text(&counted.to_string(), text) }
    })
}
