//! A tokio service with a pool of buffers: requests are tasks, and their computations are operations.
//!
//! ```text
//! cargo run --release --example service
//! ```
//!
//! Look at `count_primes`: a push does not block, and the handle to an operation is a future, so tokio's only thread
//! serves all requests while the workers compute. Each request overwrites its buffer, so a buffer has one user at a
//! time, without a lock or a list of free buffers. A failed request does not spoil its buffer, because the next request
//! that uses the buffer overwrites it. Some clients leave before they have an answer. What their requests have pushed
//! is cancelled as their futures are dropped, and leaves no failure behind.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use raddle::{Engine, Var, error::BoxError};
use tokio::runtime;

const BUFFERS: usize = 4;
const LIMIT: usize = 200_000;

/// Requests and the expected answers. The last request is above the limit, so it fails.
const REQUESTS: [(usize, Option<usize>); 3] = [(10, Some(4)), (100_000, Some(9_592)), (1_000_000, None)];

struct Service {
    engine: Engine,
    buffers: Vec<Var<Vec<bool>>>,
    requests: AtomicUsize,
}

impl Service {
    /// Returns the number of primes below `n`, or an error if `n` is above the limit.
    async fn count_primes(&self, n: usize) -> Result<usize, BoxError> {
        let buffer = &self.buffers[self.requests.fetch_add(1, Relaxed) % BUFFERS];
        let request = self.engine.group().cancel_on_drop();
        let count = request.op("count primes").try_submit(buffer.overwrite(), move |composite| {
            if n > LIMIT {
                return Err(format!("{n} is above the limit of {LIMIT}").into());
            }
            composite.clear();
            composite.resize(n, false);
            Ok(sieve(composite))
        })?;
        Ok(count.await?)
    }
}

/// Marks the composite numbers and returns the number of primes.
fn sieve(composite: &mut [bool]) -> usize {
    let mut primes = 0;
    for n in 2..composite.len() {
        if !composite[n] {
            primes += 1;
            composite.iter_mut().skip(n * n).step_by(n).for_each(|multiple| *multiple = true);
        }
    }
    primes
}

async fn serve(service: Arc<Service>) -> Result<(), Box<dyn Error>> {
    let mut tasks = Vec::new();
    for (client, (n, expected)) in REQUESTS.into_iter().cycle().take(100).enumerate() {
        let service = Arc::clone(&service);
        let task = tokio::spawn(async move { service.count_primes(n).await.ok() });
        if client % 10 == 4 {
            tokio::task::yield_now().await; // the request is pushed, and then the client leaves
            task.abort();
        } else {
            tasks.push((task, expected));
        }
    }
    for (task, expected) in tasks {
        assert_eq!(task.await?, expected);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::builder().build()?;
    let buffers = (0..BUFFERS).map(|_| engine.var(Vec::new())).collect();
    let service = Arc::new(Service { engine, buffers, requests: AtomicUsize::new(0) });
    runtime::Builder::new_current_thread().build()?.block_on(serve(Arc::clone(&service)))?;
    service.engine.wait_for_all()?; // succeeds: every failure was returned to a client, or its client has left
    println!("one thread served {} requests with {BUFFERS} buffers", service.requests.load(Relaxed));
    Ok(())
}
