//! Misuse and ill-timed calls have defined results: nothing is lost and nothing hangs.

#![forbid(unsafe_code)]

use raddle_testkit as common;
use raddle_testkit::logger;

use std::{
    cell::RefCell,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use common::shapes::*;
use common::{
    Drops, Gate, KINDS, MOMENT, PATIENCE, PanicsOnDrop, THREADED, engine, eventually, failure, hold, lock, on_kinds,
    watched,
};
use logger::log_to;
use raddle::{
    Completion, Engine, EngineKind, IdlePolicy, OpError, PushError, Shutdown, Token, Var, WaitError, WeakEngine,
    chosen,
    error::{BuildError, Cause, NoAccess, ShutdownError},
};

/// Waits for a message from an operation.
#[track_caller]
fn receive<T>(receiver: &mpsc::Receiver<T>) -> T {
    receiver.recv_timeout(PATIENCE).expect("an operation should send a message")
}

/// Panics without invoking the panic hook.
fn quiet_panic(message: &'static str) -> ! {
    resume_unwind(Box::new(message))
}

fn panicked_with(error: &OpError, message: &str) -> bool {
    matches!(error.cause(), Cause::Panic(Some(own)) if own == message)
}

mod building;
mod ends;
mod panics;
mod variables;
mod waits;
