//! Abandoned requests: groups, time limits, deadlines, cancelled handles, and functions that check whether they should
//! stop.
//!
//! ```text
//! cargo run --release --example requests
//! ```
//!
//! Each request is a group of operations. A client that has no answer after 20 ms cancels its request: operations of
//! the request that have not started never start, and a running search stops early. Other requests are unaffected.
//! `refresh` shows three operations that turn out not to be needed: one misses its deadline, one is cancelled through
//! its handle, and the failure of the third is ignored.

use std::{
    error::Error,
    time::{Duration, Instant},
};

use raddle::{Engine, EngineKind, Var, WaitError, cx, error::Cause};

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::builder().build()?;
    let mut answered = 0;
    for (client, effort) in [("quick", Duration::from_millis(1)), ("slow", Duration::from_millis(500))] {
        let answer = engine.var(0u64);
        match request(&engine, &answer, effort) {
            Ok(()) => {
                answered += 1;
                println!("{client}: {} steps", engine.get(&answer)?);
            }
            Err(error) => println!("{client}: {error}"),
        }
    }
    // The naive engine runs the search inside the push, so each client waits for its whole search.
    assert_eq!(answered, if engine.kind() == EngineKind::Naive { 2 } else { 1 });
    engine.wait_for_all()?; // succeeds: a cancelled request's failures have been returned to its client
    refresh(&engine)
}

/// Three operations behind a slow one, of which none is needed in the end.
fn refresh(engine: &Engine) -> Result<(), Box<dyn Error>> {
    let (frame, screen) = (engine.var(0), engine.var(0));
    let due = Instant::now() + Duration::from_millis(10);
    engine.op("render").push(frame.write(), |frame| {
        std::thread::sleep(Duration::from_millis(50));
        *frame = 1;
    })?;
    let late = engine.op("draw").deadline(due).submit((frame.read(), screen.write()), |(frame, screen)| {
        *screen = *frame;
    })?;
    let unwanted = engine.op("draw again").submit(frame.read(), |frame| *frame)?;
    let was_cancelled = unwanted.cancel(); // before its turn, so it never starts
    let ignored = engine.op("notify").try_submit((), |()| -> Result<(), _> { Err("no listener".into()) })?;
    ignored.ignore(); // its failure is nobody's concern

    let (drawn, unwanted) = (late.wait(), unwanted.wait());
    for error in [drawn.as_ref().err(), unwanted.as_ref().err()].into_iter().flatten() {
        println!("{error}");
    }
    assert!(matches!(drawn, Err(WaitError::Failed(error)) if matches!(error.cause(), Cause::DeadlinePassed)));
    assert!(engine.wait_for_var(&screen).is_err(), "the wait succeeded although the drawing came too late");
    match unwanted {
        Err(WaitError::Failed(error)) => assert!(was_cancelled && matches!(error.cause(), Cause::Cancelled)),
        // The naive engine has run the operation inside its push.
        frame => assert_eq!((frame?, was_cancelled, engine.kind()), (1, false, EngineKind::Naive)),
    }
    assert_eq!(engine.get(&frame)?, 1);
    engine.wait_for_all()?; // every failure was returned or ignored
    Ok(())
}

/// Pushes a request that searches for the duration `effort` and then prints the number of steps. Waits for the request,
/// but cancels it after 20 ms. Returns the request's failure, if any.
fn request(engine: &Engine, answer: &Var<u64>, effort: Duration) -> Result<(), WaitError> {
    let request = engine.group();
    request.op("search").try_push((cx(), answer.write()), move |(cx, steps)| {
        let start = Instant::now();
        while start.elapsed() < effort {
            if cx.is_cancelled() {
                return Err("the client has gone".into());
            }
            *steps += 1;
        }
        Ok(())
    })?;
    request.op("report").push(answer.read(), |steps| println!("found after {steps} steps"))?;
    match request.wait_timeout(Duration::from_millis(20)) {
        Err(WaitError::TimedOut) => {
            request.cancel();
            request.wait() // returns soon, normally with the failure of the search
        }
        result => result,
    }
}
