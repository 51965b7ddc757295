//! Three producers that can outrun the workers, and a limit on pending operations that keeps memory use low.
//!
//! ```text
//! cargo run --release --example full_engine
//! ```
//!
//! Look at the three pushes. An archive needs every quote, so its producer waits for room: while the engine is full,
//! `push` runs ready operations on the producer's thread, or sleeps if there are none. A trader must not wait, so it
//! uses `if_room` and skips quotes for which there is no room. A task shares its thread with other tasks, so it awaits
//! room with `when_room`.

use std::error::Error;
use std::thread;

use raddle::{Engine, PushError, Var};

const LIMIT: usize = 256;
const QUOTES: u64 = 20_000;

/// Mixes a quote into the sum, as a stand-in for real work.
fn digest(sum: &mut u64, quote: u64) {
    *sum = (0..200).fold(*sum ^ quote, |hash, _| hash.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23));
}

/// Pushes an operation for every quote, waiting for room if necessary.
fn archive(engine: &Engine, sums: &[Var<u64>]) -> Result<(), PushError> {
    for quote in 0..QUOTES {
        let sum = &sums[quote as usize % sums.len()];
        engine.op("archive").push(sum.write(), move |sum| digest(sum, quote))?;
    }
    Ok(())
}

/// Pushes an operation for each quote for which there is room, and returns the number of quotes skipped.
fn trade(engine: &Engine, sum: &Var<u64>) -> Result<u64, PushError> {
    let mut left_out = 0;
    for quote in 0..QUOTES {
        match engine.op("trade").if_room() {
            Ok(op) => op.push(sum.write(), move |sum| digest(sum, quote))?,
            Err(PushError::Full) => left_out += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(left_out)
}

/// For the first tenth of the quotes, pushes an operation for each quote, awaiting room before each push.
async fn publish(engine: &Engine, sum: &Var<u64>) -> Result<(), PushError> {
    for quote in 0..QUOTES / 10 {
        engine.op("publish").when_room().await?.push(sum.write(), move |sum| digest(sum, quote))?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::builder().max_pending(LIMIT).build()?;
    let sums: Vec<_> = (0..8).map(|_| engine.var(0)).collect();
    let (traded, published) = (engine.var(0), engine.var(0));

    let left_out = thread::scope(|scope| {
        let archive = scope.spawn(|| archive(&engine, &sums));
        let publish = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime should be built");
            runtime.block_on(publish(&engine, &published))
        });
        let left_out = trade(&engine, &traded)?;
        archive.join().expect("the thread should not panic")?;
        publish.join().expect("the thread should not panic")?;
        Ok::<_, PushError>(left_out)
    })?;
    engine.wait_for_all()?;

    assert_eq!(sums.iter().map(|sum| sum.version()).sum::<u64>(), QUOTES);
    assert_eq!(traded.version() + left_out, QUOTES);
    assert_eq!(published.version(), QUOTES / 10);
    println!("every quote was archived, and a tenth of them published; the trader skipped {left_out} of {QUOTES}");
    Ok(())
}
