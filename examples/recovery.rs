//! Failures and recovery: the effect of a failure on variables, and two ways of making failed variables usable again.
//!
//! ```text
//! cargo run --example recovery
//! ```
//!
//! The example causes two failures, an error and a panic. First, `parse` fails, and so does the variable that it
//! writes. `scale` reads that variable, so it is skipped, and the variable that it writes fails with the same error.
//! `count` uses neither of these variables, so it runs. Later, an operation that overwrites both variables clears this
//! error. After the panic in `index`, `clear_error` keeps the value that the function left.

use std::error::Error;
use std::num::ParseIntError;

use raddle::{Engine, OpError, WaitError};

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::builder().build()?;
    let text = engine.var("12 apples");
    let (number, scaled, words) = (engine.var(1), engine.var(10), engine.var(0));

    // The function passed to `try_push` may return any error. An error fails the variables that the operation writes.
    let parse = || {
        engine.op("parse").try_push((text.read(), number.write()), |(text, number)| {
            *number = text.parse::<i32>()?;
            Ok(())
        })
    };
    let scale = || engine.op("scale").push((number.read(), scaled.write()), |(number, scaled)| *scaled = 10 * number);
    parse()?;
    scale()?;
    engine.op("count").push((text.read(), words.write()), |(text, words)| *words = text.split(' ').count())?;

    // A wait for either variable returns the same failure, which names the failed operation and the cause.
    let error = failure(engine.wait_for_var(&number));
    println!("{error}");
    assert_eq!(error.name(), "parse");
    assert!(error.downcast_ref::<ParseIntError>().is_some());
    assert!(failure(engine.get(&scaled)).ptr_eq(&error));
    assert_eq!(engine.get(&words)?, 2);

    // An operation marked `run_always` is not skipped when a variable has failed, but does not clear the error.
    let seen = engine.op("log").run_always().submit(scaled.read(), |scaled| *scaled)?;
    assert_eq!(seen.wait()?, 10);

    // An operation that overwrites variables runs despite their failures and, if it succeeds, clears their errors. With
    // plain `write` accesses, it would be skipped.
    engine
        .op("default")
        .push((number.overwrite(), scaled.overwrite()), |(number, scaled)| (*number, *scaled) = (0, 0))?;
    println!("after `overwrite`: {} and {}", engine.get(&number)?, engine.get(&scaled)?);
    assert_eq!((engine.get(&number)?, engine.get(&scaled)?), (0, 0));

    // With valid input, the same operations succeed.
    engine.op("edit").push(text.write(), |text| *text = "12")?;
    parse()?;
    scale()?;
    assert_eq!(engine.get(&scaled)?, 120);

    // A panic is also a failure. `clear_error` makes the variable usable with its current value.
    engine.op("index").push(number.write(), |number| {
        *number = 7;
        panic!("this panic is part of the example");
    })?;
    println!("{}", failure(engine.wait_for_var(&number)));
    engine.clear_error(&number)?;
    println!("after `clear_error`: {}", engine.get(&number)?);
    assert_eq!(engine.get(&number)?, 7);
    Ok(())
}

/// Extracts the failure from a wait's result; panics on any other result.
fn failure<T>(result: Result<T, WaitError>) -> OpError {
    match result {
        Err(WaitError::Failed(error)) => error,
        _ => panic!("the operation should have failed"),
    }
}
