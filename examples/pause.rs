//! A pause: an engine whose threads end and are started again, with work pending.
//!
//! ```text
//! cargo run --example pause
//! ```
//!
//! Look at what happens between `stop` and `start`. The engine has no threads and runs nothing, so the program could
//! fork, change the machine's clock or save its state. Pushes are accepted, and what was pushed runs after the start,
//! in push order.

use std::error::Error;
use std::time::Duration;

use raddle::{Engine, EngineKind};

const ROUNDS: u64 = 5;
const DAYS: u64 = 100;

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::builder().workers(2).build()?;
    let (balance, interest) = (engine.var(1_000_000u64), engine.var(0u64));
    let push_days = || {
        (0..DAYS).try_for_each(|_| {
            engine
                .op("interest")
                .push((balance.read(), interest.write()), |(balance, sum)| *sum += balance / 10_000)?;
            engine.op("deposit").push(balance.write(), |balance| *balance += 100)
        })
    };
    for round in 1..=ROUNDS {
        push_days()?;

        // Waits for running functions, and keeps the operations that have not started.
        engine.stop(Some(Duration::from_secs(60)))?;
        let before = (balance.version(), interest.version());
        push_days()?;
        let (days, pending) = (balance.version(), engine.pending());
        println!("round {round}: {days} days are over, {pending} operations are pending");
        // The naive engine has no threads to stop.
        if engine.kind() != EngineKind::Naive {
            assert_eq!((balance.version(), interest.version()), before, "a stopped engine ran an operation");
            assert!(pending >= 2 * DAYS);
        }

        engine.start()?;
        engine.wait_for_all()?;
        assert_eq!(balance.version(), 2 * DAYS * round);
    }

    let expected = (0..2 * DAYS * ROUNDS).map(|day| (1_000_000 + 100 * day) / 10_000).sum::<u64>();
    assert_eq!((engine.get(&balance)?, engine.get(&interest)?), (1_000_000 + 2 * DAYS * ROUNDS * 100, expected));
    Ok(())
}
