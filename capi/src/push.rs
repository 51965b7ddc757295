//! Operations: descriptions, pushes, and what their functions receive.

use std::{
    cell::{Cell, OnceCell, RefCell},
    ffi::{CStr, c_char, c_void},
    ptr::null_mut,
    time::{Duration, Instant},
};

use raddle::{
    Cancelled, Completion, Deferral, Engine, Group, OpBuilder, OpContext, OpHandle, Operator, Property, PushError,
    chosen::With, cx, deferral, error::BoxError,
};

use crate::{
    engine::{Held, raddle_callback, raddle_engine},
    failure::{Given, Payload, raddle_failure, report},
    group::raddle_group,
    handles::{self, limit, require_place, sized},
    name::raddle_name,
    status::{Refusal, Result, guarded, guarded_or, raddle_status},
    token::raddle_token,
    wait::{Then, raddle_done},
};

/// The function of an operation: receives its data and, for this call only, its context. Returns 0 if it succeeds;
/// otherwise, the operation fails with this code. It must neither throw nor jump out.
pub type raddle_function = Option<unsafe extern "C" fn(data: *mut c_void, context: *mut raddle_context) -> i32>;

/// Flags of `raddle_op`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub enum raddle_flags {
    /// The operation may end later than its function, which then asks for `raddle_context_completion`. Its data and its
    /// argument are dropped as soon as the function has returned, so what goes on must have its own.
    Async = 1,
    /// It runs although a token that it names has failed. That token stays failed even if it succeeds.
    RunAlways = 2,
    /// Like `RADDLE_FLAGS_RUN_ALWAYS`, and it is never cancelled. For clean-ups.
    Cleanup = 4,
    /// If it is ready in its push, it runs there.
    Eager = 8,
    /// If a limit leaves no room, its push returns `RADDLE_STATUS_FULL` instead of waiting.
    IfRoom = 16,
    /// It runs in the lane of prioritized operations.
    Prioritized = 32,
}

/// An operation to push. All zeros except `size` and `function` is an operation without tokens. A push reads it, and
/// keeps nothing of it but the function and its data. `RADDLE_OP` sets the size.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct raddle_op {
    /// `sizeof(raddle_op)`.
    pub size: usize,
    /// The name in failures, dumps and traces; all zeros: `unnamed`.
    pub name: raddle_name,
    /// What it does. Must not be null.
    pub function: raddle_function,
    /// For the function, on whatever thread that runs.
    pub data: *mut c_void,
    /// Called once with `data`, on any thread, once the function has returned or will not be called, also if the push
    /// is refused; null: nothing. It may push, but must not wait for this operation.
    pub drop: raddle_callback,
    /// The tokens that it reads.
    pub reads: *const raddle_token,
    /// How many there are.
    pub read_count: usize,
    /// The tokens that it mutates.
    pub writes: *const raddle_token,
    /// How many there are.
    pub write_count: usize,
    /// The tokens that it mutates whatever they were before: if it succeeds, their failures are cleared, and count as
    /// reported.
    pub overwrites: *const raddle_token,
    /// How many there are.
    pub overwrite_count: usize,
    /// The group to which it belongs, of the same engine; all zeros: none.
    pub group: raddle_group,
    /// Ready operations of higher priority run first; 0 is the default.
    pub priority: i32,
    /// A union of `raddle_flags`.
    pub flags: u32,
    /// The nanoseconds from now after which it fails unless it has started; 0: no deadline. Negative: it has passed.
    /// The failure comes in its turn, behind the operations before it.
    pub deadline_ns: i64,
    /// The tokens that it mutates in no particular order among its neighbours that do the same.
    pub commutes: *const raddle_token,
    /// How many there are.
    pub commute_count: usize,
}

const KNOWN: u32 = 63;

fn has(flags: u32, flag: raddle_flags) -> bool {
    flags & flag as u32 != 0
}

/// What a running operation's function may ask for. Valid during the call, on its thread.
#[allow(missing_debug_implementations, reason = "C knows only its address")]
pub struct raddle_context<'a> {
    context: &'a OpContext<'a>,
    argument: *mut c_void,
    deferral: Cell<Option<Deferral<'a>>>,
    failure: RefCell<Option<Given>>,
    engine: OnceCell<raddle_engine>,
}

impl Drop for raddle_context<'_> {
    fn drop(&mut self) {
        if let Some(mut engine) = self.engine.take() {
            // SAFETY: `raddle_context_engine` made the handle, and its documentation forbids its use from now on.
            let _ = unsafe { handles::take::<Held>(&raw mut engine.address) };
        }
    }
}

/// A C function with its data.
#[derive(Debug)]
struct Job {
    function: unsafe extern "C" fn(*mut c_void, *mut raddle_context) -> i32,
    data: Payload,
}

impl Job {
    fn run(
        &self,
        context: &OpContext<'_>,
        argument: *mut c_void,
        deferral: Option<Deferral<'_>>,
    ) -> std::result::Result<(), BoxError> {
        let mut context = raddle_context {
            context,
            argument,
            deferral: Cell::new(deferral),
            failure: RefCell::new(None),
            engine: OnceCell::new(),
        };
        // SAFETY: the contract of `raddle_push` and `raddle_operator_new`: the function may be called with its data on
        // any thread. The context lives during the call.
        let code = unsafe { (self.function)(self.data.get(), (&raw mut context).cast()) };
        if code == 0 {
            return Ok(());
        }
        let given = context.failure.take().filter(|given| given.code == code);
        let given = given.unwrap_or_else(|| Given {
            code,
            message: String::new(),
            // SAFETY: there is no function.
            payload: unsafe { Payload::new(null_mut(), None) },
        });
        Err(given.into())
    }
}

/// A described operation, and what its push must not lose if it is refused.
struct Described<'o> {
    op: &'o raddle_op,
    job: Job,
}

impl<'o> Described<'o> {
    /// Reads `op`, of which `whole` is a copy if it has an older size.
    ///
    /// # Safety
    /// 1. `op` is null, or a `raddle_op` of the size that it states, whose function and `drop` may be called with its
    ///    data as it says, and that does not change during `'o`.
    unsafe fn read(op: *const raddle_op, whole: &'o mut Option<raddle_op>) -> Result<Self> {
        // SAFETY: (1). All of it may be 0.
        let op = unsafe { sized(op, whole) }?;
        // SAFETY: (1).
        let data = unsafe { Payload::new(op.data, op.drop) };
        let Some(function) = op.function else { return Err(Refusal::invalid("`function` is null")) };
        if op.flags & !KNOWN != 0 {
            return Err(Refusal::invalid("`flags` contains what is not a `raddle_flags`"));
        }
        Ok(Self { op, job: Job { function, data } })
    }

    /// Calls `push` with the builder for the operation.
    ///
    /// # Safety
    /// 1. The engine was not freed, nor what the operation names.
    #[inline]
    unsafe fn with_builder<R>(
        self,
        engine: raddle_engine,
        push: impl FnOnce(OpBuilder<'_>, Job) -> std::result::Result<R, PushError>,
    ) -> Result<R> {
        let Self { op, job } = self;
        // SAFETY: (1).
        let name = unsafe { op.name.get() }?;
        // Without a name, it would be called by its place, which is here for all.
        let name = if name.is_empty() { "unnamed" } else { name };
        // SAFETY: (1).
        let reads = unsafe { raddle_token::each(op.reads, op.read_count) }?;
        // SAFETY: (1).
        let writes = unsafe { raddle_token::each(op.writes, op.write_count) }?;
        // SAFETY: (1).
        let overwrites = unsafe { raddle_token::each(op.overwrites, op.overwrite_count) }?;
        let has_options = op.priority != 0 || op.deadline_ns != 0 || op.flags & !(raddle_flags::Async as u32) != 0;
        if has_options || !op.group.address.is_null() || !overwrites.is_empty() || op.commute_count > 0 {
            // SAFETY: (1).
            let commutes = unsafe { raddle_token::each(op.commutes, op.commute_count) }?;
            // SAFETY: (1).
            let builder = unsafe { described(op, engine, name) }?;
            let mut builder = builder.reads(reads).writes(writes).overwrites(overwrites);
            if !commutes.is_empty() {
                builder = builder.commutes(commutes);
            }
            return Ok(push(builder, job)?);
        }
        // The shortest way: of a builder that may have options, there are copies in memory.
        // SAFETY: (1).
        let engine: &Engine = unsafe { engine.get() }?;
        Ok(push(engine.op(name).reads(reads).writes(writes), job)?)
    }
}

/// Returns a builder for `op` without its tokens.
///
/// # Safety
/// 1. The engine was not freed, nor what the operation names.
#[cold]
unsafe fn described<'o>(op: &'o raddle_op, engine: raddle_engine, name: &'static str) -> Result<OpBuilder<'o>> {
    let mut builder = if op.group.address.is_null() {
        // SAFETY: (1).
        let engine: &Engine = unsafe { engine.get() }?;
        engine.op(name)
    } else {
        // SAFETY: (1).
        let group: &Group = unsafe { handles::get(op.group.address) }?;
        // SAFETY: (1).
        if *group.engine() != *unsafe { engine.get() }? {
            return Err(Refusal(raddle_status::Foreign, "the group belongs to another engine".into()));
        }
        group.op(name)
    };
    if op.priority != 0 {
        builder = builder.priority(op.priority);
    }
    if op.deadline_ns != 0 {
        let from_now = Duration::from_nanos(op.deadline_ns.max(0).unsigned_abs());
        if let Some(deadline) = Instant::now().checked_add(from_now) {
            builder = builder.deadline(deadline);
        }
    }
    if has(op.flags, raddle_flags::RunAlways) {
        builder = builder.run_always();
    }
    if has(op.flags, raddle_flags::Cleanup) {
        builder = builder.cleanup();
    }
    if has(op.flags, raddle_flags::Eager) {
        builder = builder.eager();
    }
    if has(op.flags, raddle_flags::Prioritized) {
        builder = builder.property(Property::CpuPrioritized);
    }
    if has(op.flags, raddle_flags::IfRoom) {
        builder = builder.if_room()?;
    }
    Ok(builder)
}

/// Pushes an operation: it runs once everything before it in the queues of its tokens permits it, on a thread of the
/// engine. Up to 16 tokens, nothing is allocated. If one of its tokens has failed by then, its function is not called,
/// and the tokens that it mutates fail, as they do if the function fails.
///
/// Does not wait, unless a limit holds it back (`max_pending`). Until there is room, the calling thread then runs other
/// operations, so it must hold no lock that one of them takes. If none is ready or running, for instance because all
/// wait for completions, the push passes the limit.
///
/// Returns `RADDLE_STATUS_OK`; otherwise, the function will not be called, and `drop` was: `RADDLE_STATUS_INVALID`,
/// `RADDLE_STATUS_DELETED` for a token, `RADDLE_STATUS_FOREIGN` for a token or the group, `RADDLE_STATUS_SHUT_DOWN`,
/// `RADDLE_STATUS_FULL` with `RADDLE_FLAGS_IF_ROOM` or while the engine is stopped, `RADDLE_STATUS_UNFIT`.
///
/// Threads: any, also at the same time; all tokens agree on one order of pushes. In operations: permitted, also while
/// the engine drains. After a fork: `RADDLE_STATUS_FORKED`.
///
/// # Safety
/// 1. The engine was not freed, nor what the operation names. `op` is null or a `raddle_op` of the size that it states.
/// 2. The function may be called with `data`, and then `drop`, on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_push(engine: raddle_engine, op: *const raddle_op) -> raddle_status {
    guarded(|| {
        let mut whole = None;
        // SAFETY: (1) and (2).
        let described = unsafe { Described::read(op, &mut whole) }?;
        let is_async = has(described.op.flags, raddle_flags::Async);
        let push = |builder: OpBuilder<'_>, job: Job| {
            if is_async {
                builder.try_push((cx(), deferral()), move |(context, deferral)| {
                    job.run(context, null_mut(), Some(deferral))
                })
            } else {
                builder.try_push(cx(), move |context| job.run(context, null_mut(), None))
            }
        };
        // SAFETY: (1).
        unsafe { described.with_builder(engine, push) }
    })
}

// --------------------------------------------------------------------------------------------------------- context ----

/// The context behind a pointer that a function received.
///
/// # Safety
/// 1. `context` is null, or that of the function that is running on this thread.
unsafe fn context_at<'a>(context: *mut raddle_context<'a>) -> Result<&'a raddle_context<'a>> {
    // SAFETY: (1): the context lives during the function's call.
    unsafe { context.as_ref() }.ok_or_else(|| Refusal::invalid("a context is null"))
}

/// Returns a handle to the engine that runs the operation, for use until its function returns, and not to be freed.
/// Null if the context is.
///
/// Threads: that of the function. In operations: only there. After a fork: permitted, and its calls are refused.
///
/// # Safety
/// 1. The context is that of the running function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_context_engine(context: *mut raddle_context<'_>) -> raddle_engine {
    guarded_or(raddle_engine { address: null_mut() }, || {
        // SAFETY: (1).
        let context = unsafe { context_at(context) }?;
        let held = || Held::new(context.context.engine(), None);
        Ok(*context.engine.get_or_init(|| raddle_engine { address: handles::boxed(held()) }))
    })
}

/// Returns the argument that the operator's push has passed; null if there is none. It is freed after the call.
///
/// Threads: that of the function. In operations: only there. After a fork: permitted.
///
/// # Safety
/// 1. The context is that of the running function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_context_argument(context: *mut raddle_context<'_>) -> *mut c_void {
    // SAFETY: (1).
    guarded_or(null_mut(), || Ok(unsafe { context_at(context) }?.argument))
}

/// Returns whether the operation should stop: it was cancelled through its handle after it had started, its group was
/// cancelled, its deadline has passed, or a shutdown is cancelling operations.
///
/// Threads: that of the function. In operations: only there. After a fork: permitted.
///
/// # Safety
/// 1. The context is that of the running function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_context_is_cancelled(context: *mut raddle_context<'_>) -> bool {
    // SAFETY: (1).
    guarded_or(false, || Ok(unsafe { context_at(context) }?.context.is_cancelled()))
}

/// What calls a function when an operation is cancelled.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct raddle_listener {
    /// Private.
    pub address: *mut c_void,
}

/// Has `function` called with `data` once the operation should stop, as `raddle_context_is_cancelled` says: on the
/// thread that cancels it, or here if it was cancelled before. So an asynchronous operation can end what it waits for. `function` must not block. Stores at `listener` what ends this, for `raddle_listener_free`.
/// `drop`, unless null, is called with `data` after the last use of it. Allocates.
///
/// Returns `RADDLE_STATUS_OK`, or `RADDLE_STATUS_INVALID`.
///
/// Threads: that of the function. In operations: only there. After a fork: `function` is not called.
///
/// # Safety
/// 1. The context is that of the running function. `listener` is null or may be written to.
/// 2. `function` may be called once with `data`, and then `drop`, on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_context_on_cancel(
    context: *mut raddle_context<'_>,
    function: raddle_callback,
    data: *mut c_void,
    drop: raddle_callback,
    listener: *mut raddle_listener,
) -> raddle_status {
    // SAFETY: (2).
    let data = unsafe { Payload::new(data, drop) };
    guarded(|| {
        require_place(listener)?;
        let Some(function) = function else { return Err(Refusal::invalid("`function` is null")) };
        // SAFETY: (1).
        let cancelled = unsafe { context_at(context) }?.context.cancelled();
        // SAFETY: (2).
        let listening = cancelled.call(move || unsafe { function(data.get()) });
        // SAFETY: (1); it is not null.
        unsafe { listener.write(raddle_listener { address: handles::boxed(listening) }) };
        Ok(())
    })
}

/// Gives the listener up and stores null there. Null is permitted. Its function is not called any more, but a call that
/// has begun goes on.
///
/// Returns `RADDLE_STATUS_OK`; with debug assertions, `RADDLE_STATUS_INVALID` if it was used.
///
/// Threads: any one. In operations: permitted, also in its function. After a fork: does nothing.
///
/// # Safety
/// 1. `listener` is null or points to a listener that only this call uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_listener_free(listener: *mut raddle_listener) -> raddle_status {
    // SAFETY: (1): the listener is its address.
    guarded(|| unsafe { handles::take::<Cancelled>(listener.cast()) }.map(drop))
}

/// Says with what the function fails if it returns `code`, and returns `code`, which must not be 0:
/// `return raddle_context_fail(context, 5, "disk full", NULL, NULL);`. `message` is copied, and may be null; what is
/// not UTF-8 in it is replaced. `drop`,
/// unless null, is called with `payload` after the last use of the failure.
///
/// Threads: that of the function. In operations: only there. After a fork: permitted.
///
/// # Safety
/// 1. The context is that of the running function. `message` is null or a C string.
/// 2. `payload` may be used on any thread, and `drop` called once with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_context_fail(
    context: *mut raddle_context<'_>,
    code: i32,
    message: *const c_char,
    payload: *mut c_void,
    drop: raddle_callback,
) -> i32 {
    // SAFETY: (1) and (2).
    let given = unsafe { given(code, message, payload, drop) };
    guarded_or(code, || {
        // SAFETY: (1).
        unsafe { context_at(context) }?.failure.replace(Some(given));
        Ok(code)
    })
}

/// # Safety
/// 1. `message` is null or a C string.
/// 2. `payload` may be used on any thread, and `drop` called once with it.
unsafe fn given(code: i32, message: *const c_char, payload: *mut c_void, drop: raddle_callback) -> Given {
    // SAFETY: (2).
    let payload = unsafe { Payload::new(payload, drop) };
    // SAFETY: (1).
    let message = (!message.is_null()).then(|| unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned());
    Given { code, message: message.unwrap_or_default(), payload }
}

// ------------------------------------------------------------------------------------------------------ completion ----

/// What ends an operation with `RADDLE_FLAGS_ASYNC`: four words, to be used once. All zeros: none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct raddle_completion {
    /// Private.
    pub words: [*mut c_void; 3],
    /// Private.
    pub number: usize,
}

impl raddle_completion {
    const NONE: Self = Self { words: [null_mut(); 3], number: 0 };

    fn new(completion: Completion) -> Self {
        let number = handles::number::<Completion>();
        handles::list::<Completion>(number);
        Self { words: completion.into_raw(), number }
    }

    /// # Safety
    /// 1. The completion is all zeros, or came from `new` and was not taken.
    unsafe fn take(self) -> Result<Completion> {
        if self.words == Self::NONE.words {
            return Err(Refusal::invalid("a completion is null"));
        }
        handles::unlist::<Completion>(self.number)?;
        // SAFETY: (1): the words are those of a completion.
        Ok(unsafe { Completion::from_raw(self.words) })
    }
}

/// Returns the completion of an operation with `RADDLE_FLAGS_ASYNC`, once: afterwards, and for other operations, all
/// zeros. The operation then ends when the completion is used. If the function does not ask for it, the operation ends
/// when the function returns, which costs less. If a function that has asked returns something other than 0, the
/// operation fails with that, once the completion was used.
///
/// Threads: that of the function. In operations: only there. After a fork: permitted.
///
/// # Safety
/// 1. The context is that of the running function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_context_completion(context: *mut raddle_context<'_>) -> raddle_completion {
    guarded_or(raddle_completion::NONE, || {
        // SAFETY: (1).
        let deferral = unsafe { context_at(context) }?.deferral.take();
        Ok(deferral.map_or(raddle_completion::NONE, |deferral| raddle_completion::new(deferral.defer())))
    })
}

/// Ends the operation: it has succeeded. What this thread has written before is visible to the operations behind it.
///
/// Returns `RADDLE_STATUS_OK`, or `RADDLE_STATUS_INVALID` if the completion is all zeros.
///
/// Threads: any one, also foreign to the engine. In operations: permitted. After a fork: has no effect.
///
/// # Safety
/// 1. The completion is all zeros or was not used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_completion_complete(completion: raddle_completion) -> raddle_status {
    guarded(|| {
        // SAFETY: (1).
        unsafe { completion.take() }?.complete();
        Ok(())
    })
}

/// Ends the operation: it has failed, with `code`, which must not be 0, a `message`, which is copied and may be null,
/// and a `payload`, with which `drop`, unless null, is called after the last use of the failure.
///
/// Returns `RADDLE_STATUS_OK`, or `RADDLE_STATUS_INVALID` if the completion is all zeros.
///
/// Threads: any one, also foreign to the engine. In operations: permitted. After a fork: has no effect.
///
/// # Safety
/// 1. The completion is all zeros or was not used. `message` is null or a C string.
/// 2. `payload` may be used on any thread, and `drop` called once with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_completion_fail(
    completion: raddle_completion,
    code: i32,
    message: *const c_char,
    payload: *mut c_void,
    drop: raddle_callback,
) -> raddle_status {
    // SAFETY: (1) and (2).
    let given = unsafe { given(code, message, payload, drop) };
    guarded(|| {
        // SAFETY: (1).
        unsafe { completion.take() }?.fail(given);
        Ok(())
    })
}

// ----------------------------------------------------------------------------------------------------------- handle ----

/// The handle to a submitted operation, to wait for it or cancel it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct raddle_handle {
    /// Private.
    pub address: *mut c_void,
}

impl raddle_handle {
    /// Takes the operation's handle at `handle`, and stores null there.
    ///
    /// # Safety
    /// 1. `handle` is null or points to a handle that is null or not freed, and that only this call uses.
    unsafe fn take(handle: *mut Self) -> Result<Box<OpHandle<()>>> {
        // SAFETY: (1): the handle is its address.
        let taken = unsafe { handles::take(handle.cast()) }?;
        taken.ok_or_else(|| Refusal::invalid("a handle is null"))
    }
}

/// Pushes an operation like `raddle_push`, and stores a handle to it at `handle`, for `raddle_handle_free` or a wait.
/// Allocates.
///
/// Returns what `raddle_push` returns.
///
/// Threads: any. In operations: permitted. After a fork: `RADDLE_STATUS_FORKED`.
///
/// # Safety
/// 1. As for `raddle_push`. `handle` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_submit(
    engine: raddle_engine,
    op: *const raddle_op,
    handle: *mut raddle_handle,
) -> raddle_status {
    guarded(|| {
        let mut whole = None;
        // SAFETY: (1).
        let described = unsafe { Described::read(op, &mut whole) }?;
        require_place(handle)?;
        let is_async = has(described.op.flags, raddle_flags::Async);
        let push = |builder: OpBuilder<'_>, job: Job| {
            if is_async {
                builder.try_submit((cx(), deferral()), move |(context, deferral)| {
                    job.run(context, null_mut(), Some(deferral))
                })
            } else {
                builder.try_submit(cx(), move |context| job.run(context, null_mut(), None))
            }
        };
        // SAFETY: (1).
        let submitted = unsafe { described.with_builder(engine, push) }?;
        // SAFETY: (1); it is not null.
        unsafe { handle.write(raddle_handle { address: handles::boxed(submitted) }) };
        Ok(())
    })
}

/// Waits until the operation has ended, for at most `timeout_ns` nanoseconds; negative: no limit. Unless the time limit
/// passes, the handle is used up: null is stored there.
///
/// Returns `RADDLE_STATUS_OK`; `RADDLE_STATUS_FAILED`, with the failure stored at `failure` unless that is null;
/// `RADDLE_STATUS_TIMED_OUT`; or why it cannot wait here.
///
/// Threads: any one. In operations: permitted, but `RADDLE_STATUS_WOULD_DEADLOCK` if the operation waits for this one.
/// After a fork: `RADDLE_STATUS_FORKED`.
///
/// # Safety
/// 1. `handle` is null or points to a handle that only this call uses. `failure` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_handle_wait(
    handle: *mut raddle_handle,
    timeout_ns: i64,
    failure: *mut raddle_failure,
) -> raddle_status {
    guarded(|| {
        // SAFETY: (1).
        let mut waiting = unsafe { raddle_handle::take(handle) }?;
        // The longest limit is as good as none.
        let result = waiting.wait_timeout(limit(timeout_ns).unwrap_or(Duration::MAX));
        if matches!(result, Err(raddle::WaitError::TimedOut)) {
            // SAFETY: (1); it is not null.
            unsafe { handle.write(raddle_handle { address: handles::listed(waiting) }) };
        }
        // SAFETY: (1).
        unsafe { report(result, failure) }
    })
}

/// Calls `function` with `data` once the operation has ended: before this returns, or on a thread that ends it. Uses
/// the handle up.
///
/// Returns `RADDLE_STATUS_OK`; otherwise, `function` is not called.
///
/// Threads: any one. In operations: permitted. After a fork: calls `function` with `RADDLE_STATUS_FORKED`.
///
/// # Safety
/// 1. `handle` is null or points to a handle that only this call uses.
/// 2. `function` may be called once with `data`, on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_handle_then(
    handle: *mut raddle_handle,
    function: raddle_done,
    data: *mut c_void,
) -> raddle_status {
    guarded(|| {
        // SAFETY: (2).
        let then = unsafe { Then::new(function, data) }?;
        // SAFETY: (1).
        then.after(*unsafe { raddle_handle::take(handle) }?);
        Ok(())
    })
}

/// Cancels the operation. If its function has started, it runs to its end, but `raddle_context_is_cancelled` returns
/// true there, and this returns false. With `quietly`, tokens do not fail. Its data is dropped here.
///
/// Returns whether this call has cancelled it.
///
/// Threads: any one. In operations: permitted. After a fork: false.
///
/// # Safety
/// 1. The handle was not freed, nor used up by a wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_handle_cancel(handle: raddle_handle, quietly: bool) -> bool {
    guarded_or(false, || {
        // SAFETY: (1).
        let handle: &OpHandle<()> = unsafe { handles::get(handle.address) }?;
        Ok(if quietly { handle.cancel_quietly() } else { handle.cancel() })
    })
}

/// Gives the handle up and stores null there. Null is permitted. The operation runs anyway.
///
/// Returns `RADDLE_STATUS_OK`; with debug assertions, `RADDLE_STATUS_INVALID` if it was used.
///
/// Threads: any one. In operations: permitted. After a fork: does nothing.
///
/// # Safety
/// 1. `handle` is null or points to a handle that only this call uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_handle_free(handle: *mut raddle_handle) -> raddle_status {
    // SAFETY: (1): the handle is its address.
    guarded(|| unsafe { handles::take::<OpHandle<()>>(handle.cast()) }.map(drop))
}

// --------------------------------------------------------------------------------------------------------- operator ----

/// An operation that was described once, to be pushed often, each time with an argument. Copies are the same handle.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct raddle_operator {
    /// Private.
    pub address: *mut c_void,
}

type COperator = Operator<With<Payload>>;

/// Makes an operator and stores it at `made`. Its function may run several times at once, unless it mutates a token.
/// `drop` is called with `data` after the last run, once the operator is freed.
///
/// Returns what `raddle_push` returns.
///
/// Threads: any. In operations: permitted. After a fork: `RADDLE_STATUS_FORKED`.
///
/// # Safety
/// 1. As for `raddle_push`, but the function may be called any number of times, also at once. `made` is null or may be
///    written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_operator_new(
    engine: raddle_engine,
    op: *const raddle_op,
    made: *mut raddle_operator,
) -> raddle_status {
    guarded(|| {
        let mut whole = None;
        // SAFETY: (1).
        let described = unsafe { Described::read(op, &mut whole) }?;
        require_place(made)?;
        let is_async = has(described.op.flags, raddle_flags::Async);
        let make = |builder: OpBuilder<'_>, job: Job| {
            if is_async {
                builder.try_operator_with((cx(), deferral()), move |(context, deferral), argument: Payload| {
                    job.run(context, argument.get(), Some(deferral))
                })
            } else {
                builder
                    .try_operator_with(cx(), move |context, argument: Payload| job.run(context, argument.get(), None))
            }
        };
        // SAFETY: (1).
        let operator: COperator = unsafe { described.with_builder(engine, make) }?;
        // SAFETY: (1); it is not null.
        unsafe { made.write(raddle_operator { address: handles::boxed(operator) }) };
        Ok(())
    })
}

/// Pushes a run of the operator. `drop`, unless null, is called once with `argument`, after the run or instead of it,
/// also if the push is refused. For operators of up to 16 tokens without a group, a deadline or flags, nothing is
/// allocated.
///
/// Returns what `raddle_push` returns.
///
/// Threads: any, also at the same time. In operations: permitted. After a fork: `RADDLE_STATUS_FORKED`.
///
/// # Safety
/// 1. The operator was not freed.
/// 2. `argument` may be used on any thread, and `drop` called once with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_operator_push(
    of: raddle_operator,
    argument: *mut c_void,
    drop: raddle_callback,
) -> raddle_status {
    // SAFETY: (2).
    let argument = unsafe { Payload::new(argument, drop) };
    // SAFETY: (1).
    guarded(|| Ok(unsafe { handles::get::<COperator>(of.address) }?.push(argument)?))
}

/// Frees an operator and stores null there. Null is permitted. Runs that were pushed still run.
///
/// Returns `RADDLE_STATUS_OK`.
///
/// Threads: any one. In operations: permitted. After a fork: does nothing.
///
/// # Safety
/// 1. `of` is null or points to a handle that is null or not freed, and that no other thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raddle_operator_free(of: *mut raddle_operator) -> raddle_status {
    // SAFETY: (1): the handle is its address.
    guarded(|| unsafe { handles::take::<COperator>(of.cast()) }.map(drop))
}
