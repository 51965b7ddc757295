//! Fork and join: operations that push parts of their work as further operations, wait for these and combine the
//! results.
//!
//! ```text
//! cargo run --release --example fork_join
//! ```
//!
//! The example is a merge sort: an operation with more than `FEW` numbers halves them, submits an operation for each
//! half, and merges the results. A wait for a half whose operation has not started normally runs this operation on the
//! waiting thread; a wait for a half that another thread is sorting blocks.

use std::error::Error;

use raddle::{Engine, OpHandle, PushError};

/// An operation with at most this many numbers sorts them without pushing other operations.
const FEW: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::builder().build()?;
    let numbers: Vec<u64> = (0..500_000).map(|n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20).collect();
    let mut expected = numbers.clone();

    let start = std::time::Instant::now();
    let sorted = sort(&engine, numbers)?.wait()?;
    println!("{} numbers sorted in {:.1?}", sorted.len(), start.elapsed());

    expected.sort_unstable();
    assert_eq!(sorted, expected);
    Ok(())
}

/// Pushes an operation that sorts the numbers. The operation's function captures a downgraded handle, so that it does
/// not keep the engine open.
fn sort(engine: &Engine, mut numbers: Vec<u64>) -> Result<OpHandle<Vec<u64>>, PushError> {
    let inside = engine.downgrade();
    engine.op("sort").try_submit((), move |()| {
        if numbers.len() <= FEW {
            numbers.sort_unstable();
            return Ok(numbers);
        }
        let right = numbers.split_off(numbers.len() / 2);
        let (left, right) = (sort(&inside, numbers)?, sort(&inside, right)?);
        Ok(merge(&left.wait()?, &right.wait()?))
    })
}

fn merge<'a>(mut left: &'a [u64], mut right: &'a [u64]) -> Vec<u64> {
    let mut merged = Vec::with_capacity(left.len() + right.len());
    while let (Some(&a), Some(&b)) = (left.first(), right.first()) {
        let from = if a <= b { &mut left } else { &mut right };
        merged.push(from[0]);
        *from = &from[1..];
    }
    merged.extend(left);
    merged.extend(right);
    merged
}
