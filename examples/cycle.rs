//! A wait that could never end, and the error that it returns instead.
//!
//! ```text
//! cargo run --example cycle
//! ```
//!
//! Look at `close`, which holds `books` while it waits for `audit`. But `audit` was pushed later and names `books`, so
//! it cannot start before `close` has ended. The wait returns an error that names both operations and where they were
//! pushed. The same happens if the two are connected through other operations. The remedy is to wait for an operation
//! that was pushed before, or to declare what the function needs as an access.

use std::error::Error;
use std::time::Instant;

use raddle::{Engine, PushError, WaitError, cx};

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::builder().workers(2).build()?;
    let (books, report) = (engine.var(vec![3, 4]), engine.var(0));

    let (same, sum) = (books.clone(), report.clone());
    let close = engine.op("close").submit((books.write(), cx()), move |(books, cx)| {
        let engine = cx.engine();
        let audit = engine.op("audit").submit((same.read(), sum.write()), |(books, sum)| *sum = books.iter().sum())?;
        let start = Instant::now();
        let waited: Result<(), _> = audit.wait();
        books.push(5); // the function continues, and `audit` runs when it has ended
        Ok::<_, PushError>((waited, start.elapsed()))
    })?;
    let (waited, took) = close.wait()??;
    let Err(WaitError::WouldDeadlock(deadlock)) = waited else { panic!("the wait was not refused: {waited:?}") };
    println!("after {took:?}: {deadlock}");
    assert_eq!((deadlock.waiting(), deadlock.awaited()), (Some("close"), Some("audit")));
    assert_eq!(engine.get(&report)?, 12);

    // Pushed in the other order, the operations work: what is awaited does not stand behind the waiting one.
    let audit = engine.op("audit").submit(books.read(), |books| books.len())?;
    let close = engine.op("close").try_submit(books.write(), move |books| {
        books.push(6);
        Ok(audit.wait()?)
    })?;
    assert_eq!(close.wait()?, 3);
    engine.wait_for_all()?;
    Ok(())
}
