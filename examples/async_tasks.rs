//! Tokio tasks that share values with operations: accounts are variables, transfers are tasks, and the audit is an
//! operation.
//!
//! ```text
//! cargo run --release --example async_tasks
//! ```
//!
//! Look at `transfer`: it acquires both accounts in one call and keeps the guards across an await. Tasks on one thread
//! and operations on the workers access the same variables, in one common order, without a lock. Look at `audit` too:
//! it is an operation whose function returns a future. The operation holds all accounts while it waits for an auditor,
//! but occupies no worker.

use raddle::{Engine, Var, WaitError, cx, error::BoxError};
use tokio::{runtime, sync::oneshot, task::yield_now};

const ACCOUNTS: usize = 4;
const TRANSFERS: usize = 200;
const START: i64 = 100;

/// Moves `amount`, or the whole balance if that is less. Returns the amount moved.
async fn transfer(engine: Engine, from: Var<i64>, to: Var<i64>, amount: i64) -> Result<i64, WaitError> {
    let (mut from, mut to) = engine.acquire((from.write(), to.write())).await?;
    let moved = amount.min(*from);
    *from -= moved;
    yield_now().await; // other tasks may run here, but none sees that the amount is missing
    *to += moved;
    Ok(moved)
}

async fn serve(engine: &Engine, accounts: &[Var<i64>]) -> Result<(), BoxError> {
    // The operation `audit` waits for an auditor outside the engine.
    let (asks, question) = oneshot::channel();
    let (answers, answer) = oneshot::channel();
    let reads: Vec<_> = accounts.iter().map(|account| account.read()).collect();
    let audit = engine.op("audit").try_submit_future((cx(), reads), move |(engine, accounts)| async move {
        let sum: i64 = accounts.iter().map(|account| **account).sum();
        asks.send(sum).map_err(|_| "the auditor is gone")?;
        let is_right: bool = answer.await?;
        let report = engine.op("report").submit((), move |()| format!("{sum} is right: {is_right}"))?;
        Ok(report.await?)
    })?;

    let tasks = (0..TRANSFERS).map(|n| {
        let (from, to) = (&accounts[n % ACCOUNTS], &accounts[(n * n + n + 1) % ACCOUNTS]);
        let (from, to) = if from == to { (from, &accounts[(n + 1) % ACCOUNTS]) } else { (from, to) };
        tokio::spawn(transfer(engine.clone(), from.clone(), to.clone(), (n % 50) as i64))
    });
    let tasks: Vec<_> = tasks.collect();

    // The transfers wait for the audit, which was pushed first.
    answers.send(question.await? == START * ACCOUNTS as i64).map_err(|_| "the audit is gone")?;
    println!("the audit: {}", audit.await?);
    let mut moved = 0;
    for task in tasks {
        moved += task.await??;
    }
    println!("{TRANSFERS} transfers moved {moved}");
    Ok(())
}

fn main() -> Result<(), BoxError> {
    let engine = Engine::builder().build()?;
    let accounts: Vec<_> = (0..ACCOUNTS).map(|_| engine.var(START)).collect();
    runtime::Builder::new_current_thread().build()?.block_on(async {
        serve(&engine, &accounts).await?;
        let mut sum = 0;
        for account in &accounts {
            sum += engine.get_async(account).await?;
        }
        assert_eq!(sum, START * ACCOUNTS as i64);
        engine.shutdown_async(raddle::Shutdown::Drain).await?;
        Ok::<_, BoxError>(())
    })
}
