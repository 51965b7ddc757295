//! Asynchronous operations, and what happens when operations fail.
//!
//! ```text
//! cargo run --example async_and_failures
//! ```
//!
//! The program prints what it sees and asserts it at the same time. It shows
//!
//! * an operation that is completed by another thread and meanwhile keeps no
//!   worker busy;
//! * operations that fail: by a result, by a panic, by asynchronous I/O that
//!   does not work out, and by a completion that gets lost;
//! * that the operations depending on a failed one are skipped, that all
//!   others run, and that whoever waits gets the original error;
//! * how a failed variable is brought back to life: `clear_error` and
//!   `overwrite`;
//! * waiting with a time limit.

#![forbid(unsafe_code)]

use std::error::Error;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use std::{env, fs, io, panic, process, thread};

use raddle::{Cause, Engine, OpError, WaitError};

fn main() -> Result<(), Box<dyn Error>> {
    announce_panics();

    reading_a_file()?;
    a_missing_file()?;
    an_error()?;
    a_panic()?;
    a_lost_completion()?;
    recovery()?;
    waiting_with_a_limit()?;

    println!("\nAll of this was as expected.");
    Ok(())
}

/// An asynchronous operation starts something and returns. The variables that
/// it names stay reserved until its `Completion` is completed, which any
/// thread may do at any time.
fn reading_a_file() -> Result<(), Box<dyn Error>> {
    println!("# An asynchronous read");
    let path = env::temp_dir().join(format!("raddle-example-{}.txt", process::id()));
    fs::write(&path, "3 1 4 1 5")?;

    // There is a single worker, so that the read would stop everything if it
    // kept the worker busy.
    let engine = Engine::builder().workers(1).build()?;

    // A token is a variable without a value. It may stand for anything, here
    // for the text that the mutex holds. The mutex is there for the compiler;
    // the engine sees to it that nobody ever has to wait for it.
    let loaded = engine.token();
    let text = Arc::new(Mutex::new(String::new()));

    let (go, going) = mpsc::channel();
    engine.op("load").writes([&loaded]).push_async((), {
        let (text, path) = (Arc::clone(&text), path.clone());
        move |(), done| {
            thread::spawn(move || {
                // The disk is slow: it does not answer before the computation
                // below has run, on the only worker there is.
                let content = going.recv().map_err(io::Error::other).and_then(|sum: u64| {
                    println!("  the disk answers after the computation of {sum}");
                    fs::read_to_string(path)
                });
                match content {
                    Ok(content) => {
                        *text.lock().expect("nobody panics while holding it") = content;
                        done.complete();
                    }
                    Err(error) => done.fail(error),
                }
            });
        }
    })?;

    // This one reads the token, and so it waits for the disk.
    let numbers = engine.var(Vec::new());
    engine.op("parse").reads([&loaded]).try_push(numbers.write(), move |numbers| {
        let text = text.lock().expect("nobody panics while holding it");
        for word in text.split_whitespace() {
            numbers.push(word.parse::<u32>()?);
        }
        Ok(())
    })?;

    // This one has nothing to do with the file and runs at once.
    let sum = engine.var(0_u64);
    engine.op("compute").push(sum.write(), move |sum| {
        *sum = (1..=1000).sum();
        // The send fails only if the disk has gone, which nobody can help.
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

/// If the I/O does not work out, the operation is failed with the error, and
/// this very error arrives at the one who waits.
fn a_missing_file() -> Result<(), Box<dyn Error>> {
    println!("\n# An asynchronous read that fails");
    let engine = Engine::builder().build()?;
    let loaded = engine.token();

    engine.op("load").writes([&loaded]).push_async((), |(), done| {
        thread::spawn(move || match fs::read("/no/such/file") {
            Ok(_) => done.complete(),
            Err(error) => done.fail(error),
        });
    })?;
    let length = engine.op("length").reads([&loaded]).submit((), |()| unreachable!("there is no file"))?;

    let error = failure::<()>(length.wait());
    println!("  {error}");
    let Cause::Error(cause) = error.cause() else {
        panic!("the cause is an error");
    };
    let cause = cause.downcast_ref::<io::Error>().expect("an I/O error");
    assert_eq!(cause.kind(), io::ErrorKind::NotFound);
    Ok(())
}

/// An operation may return a `Result`. If it is an error, everything that
/// builds upon the variables it should have written is skipped.
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

    // There are many ways to wait for a variable or a result, and all of them
    // give the same answer: not that `report` was skipped, but why.
    let error = failure(report.wait());
    println!("  {error}");
    assert_eq!(error.name(), "parse the width");
    assert!(matches!(error.cause(), Cause::Error(_)));
    for other in [failure(engine.wait_for_var(&width)), failure(engine.wait_for_var(&area)), failure(engine.get(&area))]
    {
        assert!(other.ptr_eq(&error), "{other} instead");
    }

    // Only a wait for everything has nothing to add: it returns what nobody
    // has been told of yet.
    engine.wait_for_all()?;

    // `multiply` was skipped. What came before it, and what has nothing to do
    // with the width, was not.
    assert!(!ran.load(Ordering::Relaxed));
    assert_eq!(double.wait()?, 0);
    assert_eq!(engine.get(&colour)?, "red");
    println!("  `multiply` and `report` were skipped, everything else ran");
    Ok(())
}

/// A panic ends the operation, not the worker, and counts as a failure.
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

    // The only worker is still there.
    let alive = engine.op("still alive").submit((), |()| true)?;
    assert!(alive.wait()?);
    println!("  the worker is still there");
    Ok(())
}

/// A completion that is dropped without being used, perhaps because the
/// thread that had it died, fails the operation. Nobody waits for ever.
fn a_lost_completion() -> Result<(), Box<dyn Error>> {
    println!("\n# A completion that gets lost");
    let engine = Engine::builder().build()?;
    let answer = engine.token();

    engine.op("ask").writes([&answer]).push_async((), |(), done| {
        thread::spawn(move || {
            let _never_used = done;
            // The thread forgets about it and ends.
        });
    })?;
    let error = failure(engine.wait_for_var(&answer));
    println!("  {error}");
    assert!(matches!(error.cause(), Cause::LostCompletion));
    Ok(())
}

/// A variable stays failed until somebody decides what to do about it.
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

    // `clear_error` takes the value as the failed operation left it.
    withdraw_too_much()?;
    let error = failure(engine.get(&balance));
    println!("  {error}");
    engine.clear_error(&balance)?;
    println!("  after clear_error the balance is {}", engine.get(&balance)?);
    assert_eq!(engine.get(&balance)?, 70);

    // An ordinary write builds upon what is there. It is skipped, and the
    // variable stays failed.
    withdraw_too_much()?;
    engine.op("deposit").push(balance.write(), |balance| *balance += 1000)?;
    assert_eq!(failure(engine.get(&balance)).name(), "withdraw");

    // An `overwrite` promises to replace the value whatever it is. It runs,
    // and the variable is sound again, without any waiting in between.
    engine.op("reset").push(balance.overwrite(), |balance| *balance = 100)?;
    println!("  after an overwrite the balance is {}", engine.get(&balance)?);
    assert_eq!(engine.get(&balance)?, 100);
    Ok(())
}

/// A wait with a time limit gives up waiting. It does not give up the
/// operation, which can be waited for again.
fn waiting_with_a_limit() -> Result<(), Box<dyn Error>> {
    println!("\n# Waiting with a time limit");
    let engine = Engine::builder().build()?;
    let reply = engine.token();

    let (ring, bell) = mpsc::channel::<()>();
    engine.op("call").writes([&reply]).push_async((), |(), done| {
        thread::spawn(move || match bell.recv() {
            Ok(()) => done.complete(),
            Err(error) => done.fail(error),
        });
    })?;

    let patience = Duration::from_millis(50);
    let result = engine.wait_for_var_timeout(&reply, patience);
    println!("  no reply within {patience:?}");
    assert!(matches!(result, Err(WaitError::TimedOut)), "{result:?}");

    ring.send(())?;
    engine.wait_for_var(&reply)?;
    println!("  now there is one");
    Ok(())
}

/// The failure that a wait ended with. All others in this program would be a
/// mistake.
fn failure<T: Debug>(result: Result<T, WaitError>) -> OpError {
    match result {
        Err(WaitError::Failed(error)) => error,
        other => panic!("an operation should have failed, but there is {other:?}"),
    }
}

/// Keeps panics that this program causes on purpose from looking like an
/// accident: those on a worker are announced in one line. A panic on the main
/// thread would be a failed assertion and is reported as always.
fn announce_panics() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if thread::current().name() == Some("main") {
            usual(info);
        } else {
            let message = info.payload_as_str().unwrap_or("no message");
            println!("  (a panic that this example wants: {message})");
        }
    }));
}
