//! What a program does wrong, or at the worst moment, has a defined result: nothing is lost and nothing hangs.

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
    BuildError, Cause, Completion, Engine, EngineKind, IdlePolicy, OpError, PushError, Shutdown, ShutdownError, Token,
    Var, WaitError,
};

/// Waits for an answer of an operation.
#[track_caller]
fn receive<T>(receiver: &mpsc::Receiver<T>) -> T {
    receiver.recv_timeout(PATIENCE).expect("an operation answers in time")
}

/// A panic without the report of it.
fn quiet_panic(message: &'static str) -> ! {
    resume_unwind(Box::new(message))
}

fn panicked_with(error: &OpError, message: &str) -> bool {
    matches!(error.cause(), Cause::Panic(Some(own)) if own == message)
}

// ================================================================================== variables that are not ====

mod variables;

// ============================================================================================ builders ====

mod building;

// ============================================================================================== panics ====

mod panics;

// ================================================================================= the end of an engine ====

mod ends;

// =============================================================================================== waits ====

mod waits;
