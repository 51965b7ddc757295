//! The engine's contract, rule by rule: pushes, properties, priorities, waits, failures, deletions and shutdowns.

#![forbid(unsafe_code)]

use raddle_testkit as common;

use std::{
    collections::{HashSet, VecDeque},
    error::Error,
    fmt::Debug,
    future::Future,
    hash::{DefaultHasher, Hash, Hasher},
    panic::panic_any,
    pin::Pin,
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
    Drops, Gate, Journal, KINDS, MOMENT, Meeting, PATIENCE, THREADED, block_on, child_succeeds, engine, eventually,
    failure, hold, is_child, lock, occupy, on_kinds, poll_once, watched,
};
use raddle::{
    Completion, Device, Engine, EngineKind, Name, OpContext, OpError, OpHandle, Operator, PushError, Shutdown, Token,
    Var, VarWait, WaitError, completion, each,
    error::{Cause, NoAccess, ShutdownError},
    system::Placement,
};

/// Pushes a named operation that uses tokens and fails.
fn push_failing(engine: &Engine, name: &'static str, reads: &[&Token], writes: &[&Token]) {
    engine
        .op(name)
        .reads(reads.iter().copied())
        .writes(writes.iter().copied())
        .push_sync(move |_| Err::<(), _>(format!("{name} went wrong")))
        .expect("the engine should be open");
}

/// Waits for a message from an operation.
#[track_caller]
fn receive<T>(receiver: &mpsc::Receiver<T>) -> T {
    receiver.recv_timeout(PATIENCE).expect("the operation should send a message in time")
}

mod engines;
mod failures;
mod kinds_of_operation;
mod lifetime;
mod passed;
mod priority;
mod properties;
mod push;
mod push_order;
mod scheduling;
mod waiting;
