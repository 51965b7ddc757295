//! A plug-in with its own engine: a library that a host loads, calls and unloads.
//!
//! ```text
//! cargo build --release --example plugin
//! ```
//!
//! A library must not be unloaded while threads run its code, so `plugin_sum` shuts its engine down before it returns.
//! A global engine would not work, since it lives as long as the process. The memory that engines keep for reuse, here
//! a few hundred kilobytes, stays allocated when the library is unloaded.

use std::time::Duration;

use raddle::{Engine, Shutdown};

/// Returns the sum of the numbers below `count`, computed by operations, or -1 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_sum(count: u32) -> i64 {
    sum(count).unwrap_or(-1)
}

fn sum(count: u32) -> Option<i64> {
    let engine = Engine::builder().workers(2).pin(false).build().ok()?;
    let total = engine.var(0i64);
    for number in 0..count {
        engine.op("add").push(total.write(), move |total| *total += i64::from(number)).ok()?;
    }
    let result = engine.get(&total).ok()?;
    drop(total);
    engine.shutdown(Shutdown::Drain, Some(Duration::from_secs(60))).ok()?;
    Some(result)
}
