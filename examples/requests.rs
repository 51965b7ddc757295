//! Abandoned requests: groups, time limits, and functions that check whether they should stop.
//!
//! ```text
//! cargo run --release --example requests
//! ```
//!
//! Each request is a group of operations. A client that has no answer after 20 ms cancels its request: operations of
//! the request that have not started never start, and a running search stops early. Other requests are unaffected.

use std::{
    error::Error,
    time::{Duration, Instant},
};

use raddle::{Engine, EngineKind, Var, WaitError, cx};

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
