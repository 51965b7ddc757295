//! A buffer between operations and the program: reading, replacing and taking values without an operation of one's own.
//!
//! ```text
//! cargo run --example values
//! ```
//!
//! Look at the calls on the engine that name one variable. Each takes its place in the variable's queue, like an
//! operation: `take` sees every line logged before it, and none of those logged later. Look at `rotate.submit()` too: a
//! run of an operator can have a handle.

use std::error::Error;
use std::time::Duration;

use raddle::{Engine, EngineKind, WaitError};

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::builder().build()?;
    let lines = engine.var(Vec::new());
    let log = |line: &'static str| engine.op("log").push(lines.write(), move |lines| lines.push(line));

    log("warp")?;
    log("weft")?;
    let first = engine.take(&lines)?; // leaves an empty vector
    log("heddle")?;
    let second = engine.replace(&lines, vec!["shuttle"])?;
    println!("taken: {first:?}; replaced: {second:?}");
    assert_eq!((first, second), (vec!["warp", "weft"], vec!["heddle"]));

    // `set` returns immediately. `with` looks at the value without cloning it.
    engine.set(&lines, vec!["reed"])?;
    log("pedal")?;
    assert_eq!(engine.with(&lines, |lines| lines.join(" and "))?, "reed and pedal");

    // Each run of the operator has its own handle, which returns the error of that run.
    let rotate = engine.op("rotate").try_operator(lines.write(), |lines| {
        let first = (!lines.is_empty()).then(|| lines.remove(0));
        lines.push(first.ok_or("nothing to rotate")?);
        Ok(())
    })?;
    rotate.submit()?.wait()?;
    assert_eq!(engine.take(&lines)?, ["pedal", "reed"]);
    let Err(error) = rotate.submit()?.wait() else { panic!("a rotation of nothing succeeded") };
    println!("{error}");
    engine.set(&lines, Vec::new())?; // clears the failure as well

    // `get_timeout` gives up after a while; what it waited for continues.
    engine.op("slow").push(lines.write(), |lines| {
        std::thread::sleep(Duration::from_millis(100));
        lines.push("late");
    })?;
    match engine.get_timeout(&lines, Duration::from_millis(1)) {
        Err(WaitError::TimedOut) => println!("not yet"),
        // The naive engine has run the operation inside the push.
        lines => assert_eq!((lines?, engine.kind()), (vec!["late"], EngineKind::Naive)),
    }
    assert_eq!(engine.get(&lines)?, ["late"]);
    engine.wait_for_all()?;
    Ok(())
}
