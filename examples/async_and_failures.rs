//! Asynchronous operations and the propagation of failures.
//!
//! ```text
//! cargo run --example async_and_failures
//! ```
//!
//! The program prints the results, and asserts that they are as expected. It shows
//!
//! * an operation that another thread completes and that occupies no worker in the meantime;
//! * operations that fail through a returned error, a panic, failed asynchronous I/O, or a dropped completion;
//! * the propagation of a failure: operations that depend on a failed one are skipped, all others run, and waits for
//!   the skipped operations return the original error;
//! * two ways of making a failed variable usable again: `clear_error` and `overwrite`;
//! * waiting with a time limit.

#![forbid(unsafe_code)]

use std::error::Error;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use std::{env, fs, io, panic, process, thread};

use raddle::{Engine, OpError, WaitError, completion, error::Cause};

fn main() -> Result<(), Box<dyn Error>> {
    announce_panics();

    reading_a_file()?;
    a_missing_file()?;
    an_error()?;
    a_panic()?;
    a_lost_completion()?;
    recovery()?;
    waiting_with_a_limit()?;

    println!("\nAll results were as expected.");
    Ok(())
}

/// An asynchronous operation's function starts work and returns. The operation keeps its variables until its
/// `Completion` is used, by any thread at any time.
fn reading_a_file() -> Result<(), Box<dyn Error>> {
    println!("# An asynchronous read");
    let path = env::temp_dir().join(format!("raddle-example-{}.txt", process::id()));
    fs::write(&path, "3 1 4 1 5")?;

    // The engine has a single worker: if the read occupied this worker, the program would hang.
    let engine = Engine::builder().workers(1).build()?;

    // A token is a variable without a value. It can represent anything; here, it represents the text in the mutex. The
    // mutex only satisfies the compiler: it is never contended, since the engine orders the accesses.
    let loaded = engine.token();
    let text = Arc::new(Mutex::new(String::new()));

    let (go, going) = mpsc::channel();
    engine.op("load").writes([&loaded]).push(completion(), {
        let (text, path) = (Arc::clone(&text), path.clone());
        move |done| {
            thread::spawn(move || {
                // The disk is slow: the thread reads the file only after `compute`, which needs the only worker, has
                // run.
                let content = going.recv().map_err(io::Error::other).and_then(|sum: u64| {
                    println!("  the disk answers after the computation of {sum}");
                    fs::read_to_string(path)
                });
                match content {
                    Ok(content) => {
                        *text.lock().expect("no thread should panic while holding the lock") = content;
                        done.complete();
                    }
                    Err(error) => done.fail(error),
                }
            });
        }
    })?;

    // `parse` reads the token, so it runs only after `load` is complete.
    let numbers = engine.var(Vec::new());
    engine.op("parse").reads([&loaded]).try_push(numbers.write(), move |numbers| {
        let text = text.lock().expect("no thread should panic while holding the lock");
        for word in text.split_whitespace() {
            numbers.push(word.parse::<u32>()?);
        }
        Ok(())
    })?;

    // `compute` does not depend on the file, so it does not wait for `load`.
    let sum = engine.var(0_u64);
    engine.op("compute").push(sum.write(), move |sum| {
        *sum = (1..=1000).sum();
        // The send fails only if the reading thread has ended, in which case there is nothing to do.
        let _ = go.send(*sum);
    })?;

    let numbers = engine.get(&numbers);
    fs::remove_file(&path)?;
    let numbers = numbers?;
    println!("  the numbers in the file are {numbers:?}");
    assert_eq!(numbers, [3, 1, 4, 1, 5]);
    assert_eq!(engine.get(&sum)?, 500_500);
    Ok(())
}

/// If the I/O fails, the thread fails the operation through its completion, and waits for dependent operations return
/// the same error.
fn a_missing_file() -> Result<(), Box<dyn Error>> {
    println!("\n# An asynchronous read that fails");
    let engine = Engine::builder().build()?;
    let loaded = engine.token();

    engine.op("load").writes([&loaded]).push(completion(), |done| {
        thread::spawn(move || match fs::read("/no/such/file") {
            Ok(_) => done.complete(),
            Err(error) => done.fail(error),
        });
    })?;
    let length = engine.op("length").reads([&loaded]).submit((), |()| unreachable!("there is no file"))?;

    let error = failure::<()>(length.wait());
    println!("  {error}");
    let Cause::Error(cause) = error.cause() else {
        panic!("expected an error as the cause");
    };
    let cause = cause.downcast_ref::<io::Error>().expect("an I/O error");
    assert_eq!(cause.kind(), io::ErrorKind::NotFound);
    Ok(())
}

/// An operation's function may return a `Result`. An error fails the variables mutated by the operation, and dependent
/// operations are skipped.
fn an_error() -> Result<(), Box<dyn Error>> {
    println!("\n# An operation that returns an error");
    let engine = Engine::builder().workers(2).build()?;
    let width = engine.var(0_u32);
    let area = engine.var(0_u32);
    let colour = engine.var("none");
    let ran = Arc::new(AtomicBool::new(false));

    engine.op("parse the width").try_push(width.write(), |width| {
        *width = "12 apples".parse()?;
        Ok(())
    })?;
    let double = engine.op("double the area").submit(area.read(), |area| 2 * area)?;
    engine.op("multiply").push((width.read(), area.write()), {
        let ran = Arc::clone(&ran);
        move |(width, area)| {
            ran.store(true, Ordering::Relaxed);
            *area = *width * 5;
        }
    })?;
    let report = engine.op("report").submit(area.read(), |area| format!("{area} square metres"))?;
    engine.op("paint").push(colour.write(), |colour| *colour = "red")?;

    // Every wait for a failed variable or for the result of `report` returns the same error: the failure that caused
    // `report` to be skipped, not the skip itself.
    let error = failure(report.wait());
    println!("  {error}");
    assert_eq!(error.name(), "parse the width");
    assert!(matches!(error.cause(), Cause::Error(_)));
    for other in [failure(engine.wait_for_var(&width)), failure(engine.wait_for_var(&area)), failure(engine.get(&area))]
    {
        assert!(other.ptr_eq(&error), "expected the first error, got {other}");
    }

    // A wait for all operations succeeds, since it returns only failures that no other wait has returned.
    engine.wait_for_all()?;

    // `multiply` was skipped. The operations before it and those independent of the width ran.
    assert!(!ran.load(Ordering::Relaxed));
    assert_eq!(double.wait()?, 0);
    assert_eq!(engine.get(&colour)?, "red");
    println!("  `multiply` and `report` were skipped; everything else ran");
    Ok(())
}

/// A panic fails the operation; the worker continues.
fn a_panic() -> Result<(), Box<dyn Error>> {
    println!("\n# An operation that panics");
    let engine = Engine::builder().workers(1).build()?;
    let items = engine.var(vec![1, 2, 3]);

    engine.op("look up").push(items.write(), |items| {
        items.push(4);
        let index = items.len() + 6;
        items[0] = items[index];
    })?;
    let error = failure(engine.get(&items));
    println!("  {error}");
    assert!(matches!(error.cause(), Cause::Panic(_)));
    assert!(error.to_string().contains("the index is 10"));

    // The only worker still runs operations.
    let alive = engine.op("still alive").submit((), |()| true)?;
    assert!(alive.wait()?);
    println!("  the worker still runs operations");
    Ok(())
}

/// Dropping an unused completion, for example because the thread that owns it ends, fails the operation, so no wait
/// hangs.
fn a_lost_completion() -> Result<(), Box<dyn Error>> {
    println!("\n# A completion that is dropped");
    let engine = Engine::builder().build()?;
    let answer = engine.token();

    engine.op("ask").writes([&answer]).push(completion(), |done| {
        thread::spawn(move || {
            let _never_used = done;
            // The thread ends and drops the completion.
        });
    })?;
    let error = failure(engine.wait_for_var(&answer));
    println!("  {error}");
    assert!(matches!(error.cause(), Cause::LostCompletion));
    Ok(())
}

/// A variable stays failed until the program clears its error or overwrites its value.
fn recovery() -> Result<(), Box<dyn Error>> {
    println!("\n# Recovery");
    let engine = Engine::builder().build()?;
    let balance = engine.var(100);
    let withdraw_too_much = || {
        engine.op("withdraw").try_push(balance.write(), |balance| {
            *balance -= 30;
            Err("the bank is closed".into())
        })
    };

    // `clear_error` keeps the value left by the failed operation.
    withdraw_too_much()?;
    let error = failure(engine.get(&balance));
    println!("  {error}");
    engine.clear_error(&balance)?;
    println!("  after clear_error the balance is {}", engine.get(&balance)?);
    assert_eq!(engine.get(&balance)?, 70);

    // An ordinary `write` depends on the current value, so the operation is skipped, and the variable stays failed.
    withdraw_too_much()?;
    engine.op("deposit").push(balance.write(), |balance| *balance += 1000)?;
    assert_eq!(failure(engine.get(&balance)).name(), "withdraw");

    // An `overwrite` declares that the operation replaces the value without reading it, so the operation runs and, if
    // it succeeds, clears the error.
    engine.op("reset").push(balance.overwrite(), |balance| *balance = 100)?;
    println!("  after an overwrite the balance is {}", engine.get(&balance)?);
    assert_eq!(engine.get(&balance)?, 100);
    Ok(())
}

/// A wait with a time limit may time out. In that case, the operation continues, and the program can wait again.
fn waiting_with_a_limit() -> Result<(), Box<dyn Error>> {
    println!("\n# Waiting with a time limit");
    let engine = Engine::builder().build()?;
    let reply = engine.token();

    let (ring, bell) = mpsc::channel::<()>();
    engine.op("call").writes([&reply]).push(completion(), |done| {
        thread::spawn(move || match bell.recv() {
            Ok(()) => done.complete(),
            Err(error) => done.fail(error),
        });
    })?;

    let limit = Duration::from_millis(50);
    let result = engine.wait_for_var_timeout(&reply, limit);
    println!("  no reply within {limit:?}");
    assert!(matches!(result, Err(WaitError::TimedOut)), "{result:?}");

    ring.send(())?;
    engine.wait_for_var(&reply)?;
    println!("  the reply has arrived");
    Ok(())
}

/// Extracts the failure from a wait's result; panics on any other result.
fn failure<T: Debug>(result: Result<T, WaitError>) -> OpError {
    match result {
        Err(WaitError::Failed(error)) => error,
        other => panic!("expected a failed operation, got {other:?}"),
    }
}

/// Prints one line for each panic on a thread other than the main one: such panics are intended. A panic on the main
/// thread, such as a failed assertion, goes to the default hook.
fn announce_panics() {
    let default = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if thread::current().name() == Some("main") {
            default(info);
        } else {
            let message = info.payload_as_str().unwrap_or("no message");
            println!("  (a panic that this example causes on purpose: {message})");
        }
    }));
}
