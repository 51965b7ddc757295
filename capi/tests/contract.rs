//! What `raddle.h` says of its functions, called as C would call them.

#![allow(clippy::undocumented_unsafe_blocks, reason = "each call keeps the contract of its function, or tests misuse")]

use std::{
    ffi::{CStr, c_char, c_void},
    mem,
    ptr::{null, null_mut},
    sync::{
        Mutex,
        atomic::{
            AtomicI64, AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
        mpsc,
    },
    thread,
};

use raddle_capi::*;

const SECOND: i64 = 1_000_000_000;

fn zeroed<T>() -> T {
    // The structs of C may be all zeros.
    unsafe { mem::zeroed() }
}

fn engine() -> raddle_engine {
    let mut engine = zeroed();
    let options = raddle_options { size: size_of::<raddle_options>(), workers: 2, pin: 2, ..zeroed() };
    assert_eq!(unsafe { raddle_engine_new(&raw const options, &raw mut engine) }, raddle_status::Ok);
    engine
}

fn token(engine: raddle_engine) -> raddle_token {
    let mut token = zeroed();
    assert_eq!(unsafe { raddle_token_new(engine, zeroed(), &raw mut token) }, raddle_status::Ok);
    token
}

fn message() -> String {
    unsafe { CStr::from_ptr(raddle_last_message()) }.to_string_lossy().into_owned()
}

type Function = unsafe extern "C" fn(*mut c_void, *mut raddle_context) -> i32;

fn op(function: Function, data: *mut c_void, writes: &[raddle_token]) -> raddle_op {
    let (writes, write_count) = (writes.as_ptr(), writes.len());
    raddle_op { size: size_of::<raddle_op>(), function: Some(function), data, writes, write_count, ..zeroed() }
}

fn push(engine: raddle_engine, op: &raddle_op) -> raddle_status {
    unsafe { raddle_push(engine, op) }
}

fn wait(engine: raddle_engine, token: raddle_token) -> raddle_status {
    unsafe { raddle_wait(engine, token, 0, 60 * SECOND, null_mut()) }
}

fn free(mut engine: raddle_engine) {
    assert_eq!(unsafe { raddle_engine_free(&raw mut engine) }, raddle_status::Ok);
    assert!(engine.address.is_null());
}

#[test]
fn operations_commute_on_tokens() {
    let (engine, sum) = (engine(), AtomicU64::new(0));
    let tokens = [token(engine), token(engine)];
    let commuting = raddle_op { commutes: tokens.as_ptr(), commute_count: 2, ..op(add, data(&sum), &[]) };
    (0..10).for_each(|_| assert_eq!(push(engine, &commuting), raddle_status::Ok));
    assert_eq!(wait(engine, tokens[1]), raddle_status::Ok);
    assert_eq!(sum.load(Relaxed), 10);

    let mut operator = zeroed();
    assert_eq!(unsafe { raddle_operator_new(engine, &raw const commuting, &raw mut operator) }, raddle_status::Ok);
    (0..10).for_each(|_| assert_eq!(unsafe { raddle_operator_push(operator, null_mut(), None) }, raddle_status::Ok));
    assert_eq!(unsafe { raddle_operator_free(&raw mut operator) }, raddle_status::Ok);
    assert_eq!(wait(engine, tokens[0]), raddle_status::Ok);
    assert_eq!((sum.load(Relaxed), unsafe { raddle_token_version(tokens[0]) }), (20, 20));

    let nowhere = raddle_op { commutes: null(), ..commuting };
    assert_eq!(push(engine, &nowhere), raddle_status::Invalid);
}

/// Adds 1 to the `AtomicU64` at `data`, or what the operator's push has passed.
unsafe extern "C" fn add(data: *mut c_void, context: *mut raddle_context) -> i32 {
    let argument = unsafe { raddle_context_argument(context) }.cast::<u64>();
    let more = unsafe { argument.as_ref() }.copied().unwrap_or(1);
    unsafe { &*data.cast::<AtomicU64>() }.fetch_add(more, Relaxed);
    0
}

unsafe extern "C" fn count(data: *mut c_void) {
    unsafe { &*data.cast::<AtomicUsize>() }.fetch_add(1, SeqCst);
}

fn data<T>(of: &T) -> *mut c_void {
    std::ptr::from_ref(of).cast_mut().cast()
}

#[test]
fn null_is_refused_and_may_be_freed() {
    let engine = engine();
    let (none, zero): (raddle_engine, AtomicU64) = (zeroed(), AtomicU64::new(0));
    assert_eq!(push(none, &op(add, data(&zero), &[])), raddle_status::Invalid);
    assert_eq!(message(), "a handle is null");
    assert_eq!(push(engine, &op(add, data(&zero), &[zeroed()])), raddle_status::Invalid);
    assert_eq!(message(), "a token is null");
    assert_eq!(unsafe { raddle_push(engine, null()) }, raddle_status::Invalid);
    assert_eq!(push(engine, &raddle_op { function: None, ..op(add, null_mut(), &[]) }), raddle_status::Invalid);
    assert_eq!(push(engine, &raddle_op { flags: 1 << 20, ..op(add, null_mut(), &[]) }), raddle_status::Invalid);
    assert_eq!(unsafe { raddle_completion_complete(zeroed()) }, raddle_status::Invalid);
    assert_eq!(unsafe { raddle_intern(c"\xff".as_ptr(), &mut zeroed()) }, raddle_status::Invalid);
    assert_eq!(unsafe { raddle_handle_wait(&mut zeroed(), -1, null_mut()) }, raddle_status::Invalid);
    assert_eq!(unsafe { raddle_wait(engine, zeroed(), 0, -1, null_mut()) }, raddle_status::Invalid);
    for freed in unsafe {
        [
            raddle_engine_free(&mut zeroed()),
            raddle_token_free(null_mut()),
            raddle_handle_free(&mut zeroed()),
            raddle_operator_free(&mut zeroed()),
            raddle_group_free(&mut zeroed()),
            raddle_failure_free(&mut zeroed()),
            raddle_recorder_free(&mut zeroed()),
        ]
    } {
        assert_eq!(freed, raddle_status::Ok);
    }
    free(engine);
}

#[test]
#[cfg(debug_assertions)]
fn used_and_foreign_handles_are_refused_in_debug_builds() {
    unsafe extern "C" fn complete_twice(data: *mut c_void, context: *mut raddle_context) -> i32 {
        let completion = unsafe { raddle_context_completion(context) };
        assert_eq!(unsafe { raddle_completion_complete(completion) }, raddle_status::Ok);
        if unsafe { raddle_completion_complete(completion) } == raddle_status::Invalid {
            unsafe { count(data) };
        }
        0
    }
    let (first, second) = (engine(), engine());
    let (mut owned, foreign) = (token(first), token(second));
    let refused = AtomicUsize::new(0);
    let twice = raddle_op { flags: raddle_flags::Async as u32, ..op(complete_twice, data(&refused), &[owned]) };
    assert_eq!(push(first, &twice), raddle_status::Ok);
    // A wait for the token may end before the function does.
    assert_eq!(unsafe { raddle_wait_all(first, -1, null_mut()) }, raddle_status::Ok);
    assert_eq!(refused.load(SeqCst), 1);
    assert_eq!(push(first, &op(add, null_mut(), &[foreign])), raddle_status::Foreign);
    let copy = owned;
    assert_eq!(unsafe { raddle_token_free(&raw mut owned) }, raddle_status::Ok);
    assert_eq!(push(first, &op(add, null_mut(), &[copy])), raddle_status::Invalid);
    assert_eq!(message(), "the handle (Token) was used, freed or never made");
    let mut operator = zeroed();
    let description = op(add, null_mut(), &[]);
    assert_eq!(unsafe { raddle_operator_new(first, &raw const description, &raw mut operator) }, raddle_status::Ok);
    let copy = operator;
    assert_eq!(unsafe { raddle_operator_free(&raw mut operator) }, raddle_status::Ok);
    assert_eq!(unsafe { raddle_operator_push(copy, null_mut(), None) }, raddle_status::Invalid);
    assert_eq!(message(), "the handle (Operator) was used, freed or never made");
    free(first);
    assert_eq!(push(first, &op(add, null_mut(), &[])), raddle_status::Invalid);
    free(second);
}

/// A struct of an older header is shorter; one of a later header is refused.
#[test]
fn structs_of_other_sizes() {
    let engine = engine();
    let (sum, dropped) = (AtomicU64::new(0), AtomicUsize::new(0));
    let short = raddle_op { size: mem::offset_of!(raddle_op, group), flags: 1 << 20, ..op(add, data(&sum), &[]) };
    assert_eq!(push(engine, &short), raddle_status::Ok);
    let long = raddle_op { size: size_of::<raddle_op>() + 8, drop: Some(count), ..op(add, data(&dropped), &[]) };
    assert_eq!(push(engine, &long), raddle_status::Invalid);
    assert_eq!(unsafe { raddle_wait_all(engine, -1, null_mut()) }, raddle_status::Ok);
    let mut stats = raddle_stats { size: mem::offset_of!(raddle_stats, ended), parks: 77, ..zeroed() };
    assert_eq!(unsafe { raddle_engine_stats(engine, &raw mut stats, null_mut()) }, raddle_status::Ok);
    assert_eq!((sum.load(Relaxed), stats.pushed > 0, stats.ended, stats.parks), (1, true, 0, 77));
    free(engine);
}

#[test]
fn what_a_push_is_given_is_dropped_once_whether_it_runs_or_not() {
    unsafe extern "C" fn nothing(_: *mut c_void, _: *mut raddle_context) -> i32 {
        0
    }
    let (engine, dropped) = (engine(), AtomicUsize::new(0));
    let mut deleted = token(engine);
    let copy = deleted;
    let one = |writes: &[raddle_token]| raddle_op { drop: Some(count), ..op(nothing, data(&dropped), writes) };
    assert_eq!(push(engine, &one(&[deleted])), raddle_status::Ok);
    assert_eq!(
        unsafe { raddle_token_delete(engine, &raw mut deleted, Some(count), data(&dropped)) },
        raddle_status::Ok
    );
    assert_eq!(unsafe { raddle_wait_all(engine, -1, null_mut()) }, raddle_status::Ok);
    assert_eq!(dropped.load(SeqCst), 2);
    if cfg!(debug_assertions) {
        assert_eq!(push(engine, &one(&[copy])), raddle_status::Invalid);
        assert_eq!(dropped.load(SeqCst), 3);
    }
    let before = dropped.load(SeqCst);
    assert_eq!(unsafe { raddle_engine_shutdown(engine, false, -1) }, raddle_status::Ok);
    assert_eq!(push(engine, &one(&[])), raddle_status::ShutDown);
    assert_eq!(dropped.load(SeqCst), before + 1);
    free(engine);
}

#[test]
fn operators_take_arguments() {
    unsafe extern "C" fn free_number(number: *mut c_void) {
        drop(unsafe { Box::from_raw(number.cast::<u64>()) });
    }
    let (engine, sum, dropped) = (engine(), AtomicU64::new(0), AtomicUsize::new(0));
    let total = token(engine);
    let mut operator = zeroed();
    let description = op(add, data(&sum), &[total]);
    assert_eq!(unsafe { raddle_operator_new(engine, &raw const description, &raw mut operator) }, raddle_status::Ok);
    for number in 1..=100_u64 {
        let number = Box::into_raw(Box::new(number)).cast();
        assert_eq!(unsafe { raddle_operator_push(operator, number, Some(free_number)) }, raddle_status::Ok);
    }
    assert_eq!(wait(engine, total), raddle_status::Ok);
    assert_eq!((sum.load(Relaxed), unsafe { raddle_token_version(total) }), (5050, 100));
    let counted = raddle_op { drop: Some(count), data: data(&dropped), ..description };
    let mut second = zeroed();
    assert_eq!(unsafe { raddle_operator_new(engine, &raw const counted, &raw mut second) }, raddle_status::Ok);
    unsafe { raddle_operator_free(&raw mut second) };
    unsafe { raddle_operator_free(&raw mut operator) };
    free(engine);
    assert_eq!(dropped.load(SeqCst), 1);
}

#[test]
fn failures_carry_a_code_a_message_and_a_payload() {
    unsafe extern "C" fn fail(data: *mut c_void, context: *mut raddle_context) -> i32 {
        unsafe { raddle_context_fail(context, 7, c"no paper".as_ptr(), data, Some(count)) }
    }
    let (engine, freed) = (engine(), AtomicUsize::new(0));
    let printer = token(engine);
    let mut print = zeroed();
    assert_eq!(unsafe { raddle_intern(c"print".as_ptr(), &raw mut print) }, raddle_status::Ok);
    assert_eq!(push(engine, &raddle_op { name: print, ..op(fail, data(&freed), &[printer]) }), raddle_status::Ok);
    assert_eq!(push(engine, &op(add, null_mut(), &[printer])), raddle_status::Ok); // skipped
    let mut failure = zeroed();
    let waited = unsafe { raddle_wait(engine, printer, 0, -1, &raw mut failure) };
    assert_eq!(waited, raddle_status::Failed);
    assert_eq!(message(), "operation `print` failed: no paper (code 7)");
    let text = |text: *const c_char| unsafe { CStr::from_ptr(text) }.to_str().unwrap();
    unsafe {
        assert_eq!(text(raddle_failure_message(failure)), message());
        assert_eq!(text(raddle_failure_operation(failure)), "print");
        assert_eq!((raddle_failure_code(failure), raddle_failure_cause(failure)), (7, raddle_cause::Code as i32));
        assert_eq!(raddle_failure_payload(failure), data(&freed));
        assert_eq!(raddle_failure_free(&raw mut failure), raddle_status::Ok);
        assert_eq!(freed.load(SeqCst), 0); // the token still has it
        assert_eq!(raddle_token_clear_failure(engine, printer), raddle_status::Ok);
    }
    let sum = AtomicU64::new(0);
    assert_eq!(push(engine, &op(add, data(&sum), &[printer])), raddle_status::Ok);
    assert_eq!(wait(engine, printer), raddle_status::Ok);
    free(engine);
    assert_eq!((sum.load(Relaxed), freed.load(SeqCst)), (1, 1));
}

#[test]
fn a_failure_is_looked_at_and_cleared_everywhere() {
    unsafe extern "C" fn fail(_: *mut c_void, _: *mut raddle_context) -> i32 {
        5
    }
    let (engine, sum) = (engine(), AtomicU64::new(0));
    let tokens = [token(engine), token(engine)];
    assert_eq!(push(engine, &op(fail, null_mut(), &tokens)), raddle_status::Ok);
    unsafe {
        assert_eq!(raddle_wait_idle(engine, -1, null_mut()), raddle_status::Failed);
        assert_eq!(raddle_wait_idle(engine, 60 * SECOND, null_mut()), raddle_status::Ok);
        let mut failure = raddle_token_failure(tokens[0]);
        assert_eq!(raddle_failure_code(failure), 5);
        assert_eq!(raddle_failure_clear_everywhere(failure), raddle_status::Ok);
        assert_eq!(raddle_failure_free(&raw mut failure), raddle_status::Ok);
        assert_eq!(raddle_failure_clear_everywhere(failure), raddle_status::Invalid);
        assert!(raddle_token_failure(tokens[1]).address.is_null() && raddle_token_failure(zeroed()).address.is_null());
        assert_eq!(raddle_unpinned(Some(count), data(&AtomicUsize::new(0))), raddle_status::Ok);
    }
    assert_eq!(push(engine, &op(add, data(&sum), &tokens)), raddle_status::Ok);
    assert_eq!(wait(engine, tokens[1]), raddle_status::Ok);
    free(engine);
    assert_eq!(sum.load(Relaxed), 1);
}

/// A function that does not ask for its operation's completion ends the operation, well or not.
#[test]
fn operations_end_with_functions_that_ask_for_no_completion() {
    unsafe extern "C" fn succeed(_: *mut c_void, _: *mut raddle_context) -> i32 {
        0
    }
    unsafe extern "C" fn refuse(_: *mut c_void, _: *mut raddle_context) -> i32 {
        9
    }
    let engine = engine();
    for (function, status, code) in
        [(succeed as Function, raddle_status::Ok, 0), (refuse as Function, raddle_status::Failed, 9)]
    {
        let disk = token(engine);
        let pushed = raddle_op { flags: raddle_flags::Async as u32, ..op(function, null_mut(), &[disk]) };
        assert_eq!(push(engine, &pushed), raddle_status::Ok);
        let mut failure = zeroed();
        assert_eq!(unsafe { raddle_wait(engine, disk, 1, -1, &raw mut failure) }, status);
        assert_eq!(unsafe { raddle_failure_code(failure) }, code);
        assert_eq!(unsafe { raddle_token_version(disk) }, u64::from(code == 0));
        unsafe { raddle_failure_free(&raw mut failure) };
    }
    free(engine);
}

/// The first of the two statuses that a callback sends.
static SENT: Mutex<Option<mpsc::Sender<(raddle_status, i32)>>> = Mutex::new(None);

unsafe extern "C" fn send(_: *mut c_void, status: raddle_status, failure: raddle_failure) {
    let code = unsafe { raddle_failure_code(failure) };
    SENT.lock().unwrap().as_ref().unwrap().send((status, code)).unwrap();
}

/// Whether `receive` has started.
static RECEIVES: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn receive(data: *mut c_void, _: *mut raddle_context) -> i32 {
    RECEIVES.store(1, SeqCst);
    unsafe { &*data.cast::<Mutex<mpsc::Receiver<i32>>>() }.lock().unwrap().recv().unwrap_or(-1)
}

#[test]
fn waits_by_callback_handles_and_groups() {
    let engine = engine();
    let (sender, receiver) = mpsc::channel();
    *SENT.lock().unwrap() = Some(sender);
    let (release, held) = mpsc::channel::<i32>();
    let held = Mutex::new(held);
    let (door, mut group, mut handle, mut second) = (token(engine), zeroed(), zeroed(), zeroed());
    unsafe {
        assert_eq!(raddle_group_new(engine, zeroed(), 0, &raw mut group), raddle_status::Ok);
        let first = raddle_op { group, ..op(receive, data(&held), &[door]) };
        assert_eq!(raddle_submit(engine, &raw const first, &raw mut handle), raddle_status::Ok);
        let later = raddle_op { group, ..op(add, null_mut(), &[door]) };
        assert_eq!(raddle_submit(engine, &raw const later, &raw mut second), raddle_status::Ok);
        assert_eq!(raddle_wait(engine, door, 0, 1, null_mut()), raddle_status::TimedOut);
        assert_eq!(raddle_handle_wait(&raw mut handle, 0, null_mut()), raddle_status::TimedOut);
        assert_eq!(raddle_group_pending(group), 2);
        assert_eq!(raddle_wait_then(engine, door, 0, Some(send), null_mut()), raddle_status::Ok);
        assert_eq!(raddle_group_then(group, Some(send), null_mut()), raddle_status::Ok);
        assert!(receiver.try_recv().is_err());
        while RECEIVES.load(SeqCst) == 0 {
            thread::yield_now();
        }
        assert!(raddle_handle_cancel(second, true) && !raddle_handle_cancel(handle, true));
        let mut text = null_mut();
        assert_eq!(raddle_engine_dump(engine, &raw mut text), raddle_status::Ok);
        assert!(!CStr::from_ptr(text).to_str().unwrap().contains(".rs:"), "{:?}", CStr::from_ptr(text));
        raddle_text_free(text);
        release.send(3).unwrap();
        assert_eq!(raddle_handle_then(&raw mut handle, Some(send), null_mut()), raddle_status::Ok);
        assert!(handle.address.is_null());
        let all: Vec<_> = (0..3).map(|_| receiver.recv().unwrap()).collect();
        assert_eq!(all, [(raddle_status::Failed, 3); 3]);
        assert_eq!(raddle_group_cancel(group, false), raddle_status::Ok);
        raddle_group_free(&raw mut group);
        raddle_handle_free(&raw mut second);
        assert_eq!(raddle_token_clear_failure(engine, door), raddle_status::Ok);
        assert_eq!(raddle_wait_all_then(engine, Some(send), null_mut()), raddle_status::Ok);
        assert_eq!(receiver.recv().unwrap().0, raddle_status::Ok);
        assert_eq!(raddle_wait_idle_then(engine, Some(send), null_mut()), raddle_status::Ok);
    }
    assert_eq!(receiver.recv().unwrap().0, raddle_status::Ok);
    free(engine);
}

#[test]
fn an_asynchronous_operation_is_told_that_it_was_cancelled() {
    struct Served {
        told: Mutex<Option<mpsc::Sender<(raddle_completion, raddle_listener)>>>,
        completion: raddle_completion,
        listener: raddle_listener,
    }
    /// Ends the operation from the thread that cancels it.
    unsafe extern "C" fn stop(data: *mut c_void) {
        let served = unsafe { &*data.cast::<Served>() };
        let sender = served.told.lock().unwrap().take().expect("it is told once");
        sender.send((served.completion, served.listener)).unwrap();
    }
    unsafe extern "C" fn serve(data: *mut c_void, context: *mut raddle_context) -> i32 {
        let served = unsafe { &mut *data.cast::<Served>() };
        served.completion = unsafe { raddle_context_completion(context) };
        let listen = |function, listener| unsafe {
            raddle_context_on_cancel(context, function, data, Some(count_drops), listener)
        };
        assert_eq!(listen(None, &raw mut served.listener), raddle_status::Invalid);
        assert_eq!(listen(Some(stop), null_mut()), raddle_status::Invalid);
        // Nothing is called for a listener that was freed.
        let mut freed = zeroed();
        assert_eq!(listen(Some(stop), &raw mut freed), raddle_status::Ok);
        assert_eq!(unsafe { raddle_listener_free(&raw mut freed) }, raddle_status::Ok);
        assert!(freed.address.is_null());
        assert_eq!(listen(Some(stop), &raw mut served.listener), raddle_status::Ok);
        0
    }
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn count_drops(_: *mut c_void) {
        DROPS.fetch_add(1, SeqCst);
    }
    let (engine, other) = (engine(), engine());
    let (sender, told) = mpsc::channel();
    let mut served = Served { told: Mutex::new(Some(sender)), completion: zeroed(), listener: zeroed() };
    let (door, mut group) = (token(engine), zeroed());
    assert_eq!(unsafe { raddle_group_new(engine, zeroed(), 0, &raw mut group) }, raddle_status::Ok);
    let serves = op(serve, (&raw mut served).cast(), &[door]);
    let serves = raddle_op { group, flags: raddle_flags::Async as u32, ..serves };
    // The group belongs to the engine.
    assert_eq!(push(other, &serves), raddle_status::Foreign);
    assert_eq!(message(), "the group belongs to another engine");
    assert_eq!(push(engine, &serves), raddle_status::Ok);
    assert_eq!(unsafe { raddle_wait(engine, door, 0, SECOND / 100, null_mut()) }, raddle_status::TimedOut);
    assert!(told.try_recv().is_err());
    assert_eq!(unsafe { raddle_group_cancel(group, true) }, raddle_status::Ok);
    let (completion, mut listener) = told.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
    assert_eq!(unsafe { raddle_listener_free(&raw mut listener) }, raddle_status::Ok);
    assert_eq!(unsafe { raddle_completion_complete(completion) }, raddle_status::Ok);
    assert_eq!(wait(engine, door), raddle_status::Ok);
    assert_eq!(DROPS.load(SeqCst), 4, "also of the calls that were refused");
    unsafe { raddle_group_free(&raw mut group) };
    free(engine);
    free(other);
}

#[test]
fn operations_push_and_learn_where_they_cannot_wait() {
    unsafe extern "C" fn outer(data: *mut c_void, context: *mut raddle_context) -> i32 {
        let engine = unsafe { raddle_context_engine(context) };
        let inner = op(add, data, &[]);
        let mut handle = zeroed();
        assert_eq!(unsafe { raddle_submit(engine, &raw const inner, &raw mut handle) }, raddle_status::Ok);
        assert_eq!(unsafe { raddle_handle_wait(&raw mut handle, -1, null_mut()) }, raddle_status::Ok);
        assert_eq!(unsafe { raddle_wait_all(engine, -1, null_mut()) }, raddle_status::WouldDeadlock);
        assert_eq!(unsafe { raddle_engine_stop(engine, -1) }, raddle_status::NotHere);
        assert!(!unsafe { raddle_context_is_cancelled(context) });
        0
    }
    let (engine, sum) = (engine(), AtomicU64::new(0));
    assert_eq!(push(engine, &op(outer, data(&sum), &[])), raddle_status::Ok);
    free(engine); // drains
    assert_eq!(sum.load(Relaxed), 1);
}

#[test]
fn engines_stop_start_and_call_their_threads_functions() {
    static THREADS: AtomicI64 = AtomicI64::new(0);
    static STARTED: AtomicI64 = AtomicI64::new(0);
    unsafe extern "C" fn start(_: *mut c_void) {
        THREADS.fetch_add(1, SeqCst);
        STARTED.fetch_add(1, SeqCst);
    }
    unsafe extern "C" fn end(_: *mut c_void) {
        THREADS.fetch_sub(1, SeqCst);
    }
    let mut engine = zeroed();
    let options = raddle_options {
        size: size_of::<raddle_options>(),
        kind: raddle_engine_kind::Pooled as i32,
        workers: 1,
        thread_start: Some(start),
        thread_end: Some(end),
        ..zeroed()
    };
    assert_eq!(unsafe { raddle_engine_new(&raw const options, &raw mut engine) }, raddle_status::Ok);
    let (sum, lane) = (AtomicU64::new(0), token(engine));
    assert_eq!(unsafe { raddle_engine_stop(engine, -1) }, raddle_status::Ok);
    assert_eq!(push(engine, &op(add, data(&sum), &[lane])), raddle_status::Ok);
    assert_eq!((unsafe { raddle_engine_pending(engine) }, THREADS.load(SeqCst)), (1, 0));
    assert_eq!(unsafe { raddle_engine_start(engine) }, raddle_status::Ok);
    assert_eq!(wait(engine, lane), raddle_status::Ok);
    assert_eq!(unsafe { raddle_engine_shutdown(engine, true, 60 * SECOND) }, raddle_status::Ok);
    assert_eq!((sum.load(Relaxed), THREADS.load(SeqCst)), (1, 0));
    assert!(STARTED.load(SeqCst) >= 4, "two threads start twice");
    free(engine);
    let wrong = raddle_options { kind: 9, ..options };
    assert_eq!(unsafe { raddle_engine_new(&raw const wrong, &raw mut engine) }, raddle_status::Invalid);
    assert_eq!(message(), "`kind` is not a `raddle_engine_kind`");
}

#[test]
fn traces_and_the_machine() {
    let (mut recorder, mut engine) = (zeroed(), zeroed());
    let path = std::env::temp_dir().join(format!("raddle-capi-{}.pftrace", std::process::id()));
    let c_path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    unsafe {
        assert_eq!(raddle_recorder_new(&raw mut recorder), raddle_status::Ok);
        let options = raddle_options { size: size_of::<raddle_options>(), workers: 1, recorder, ..zeroed() };
        assert_eq!(raddle_engine_new(&raw const options, &raw mut engine), raddle_status::Ok);
        let sum = AtomicU64::new(0);
        assert_eq!(push(engine, &op(add, data(&sum), &[])), raddle_status::Ok);
        assert_eq!(raddle_wait_all(engine, -1, null_mut()), raddle_status::Ok);
        assert_eq!(raddle_recorder_write(recorder, c_path.as_ptr()), raddle_status::Ok);
        assert!(std::fs::metadata(&path).unwrap().len() > 0);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(raddle_recorder_write(recorder, c"/no/such/folder".as_ptr()), raddle_status::File);
        free(engine);
        assert_eq!(raddle_recorder_free(&raw mut recorder), raddle_status::Ok);
        let mut text = null_mut();
        assert_eq!(raddle_doctor(&raw mut text), raddle_status::Ok);
        assert!(!CStr::from_ptr(text).is_empty());
        raddle_text_free(text);
    }
}

/// Each thread has its own message.
#[test]
fn messages_belong_to_threads() {
    assert_eq!(push(zeroed(), &op(add, null_mut(), &[])), raddle_status::Invalid);
    thread::spawn(|| assert_eq!(message(), "")).join().unwrap();
    assert_eq!(message(), "a handle is null");
}

#[test]
#[cfg(target_os = "linux")]
fn a_forked_child_is_refused_and_builds_its_own_engine() {
    let engine = engine();
    let mut lane = token(engine);
    let sum = AtomicU64::new(0);
    assert_eq!(push(engine, &op(add, data(&sum), &[lane])), raddle_status::Ok);
    assert_eq!(wait(engine, lane), raddle_status::Ok);
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut own = zeroed();
        let options = raddle_options { size: size_of::<raddle_options>(), workers: 1, ..zeroed() };
        let checks = unsafe {
            [
                push(engine, &op(add, data(&sum), &[lane])) == raddle_status::Forked,
                wait(engine, lane) == raddle_status::Forked,
                raddle_engine_stop(engine, -1) == raddle_status::Forked,
                raddle_token_free(&raw mut lane) == raddle_status::Ok,
                raddle_engine_free(&mut { engine }) == raddle_status::Ok,
                raddle_engine_new(&raw const options, &raw mut own) == raddle_status::Ok,
                push(own, &op(add, data(&sum), &[])) == raddle_status::Ok,
                raddle_wait_all(own, -1, null_mut()) == raddle_status::Ok,
            ]
        };
        let failed = checks.iter().position(|&check| !check);
        unsafe { libc::_exit(failed.map_or(0, |at| 1 + at as i32)) };
    }
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "check {} of the child failed", (status >> 8) - 1);
    free(engine);
}
