//! Prints what this machine provides to a latency-sensitive program, and where an engine's workers run.
//!
//! ```text
//! cargo run --release --example doctor
//! ```

use std::error::Error;

use raddle::{Engine, system::Placement};

fn main() -> Result<(), Box<dyn Error>> {
    print!("{}", raddle::system::doctor());

    let engine = Engine::builder().build()?;
    println!("\nAn engine of the kind {} with the default settings:", engine.kind());
    for (worker, placement) in engine.placements().iter().enumerate() {
        match placement {
            Placement::Pinned(core) => println!("  worker {worker} is pinned to core {core}"),
            Placement::Unpinned => println!("  worker {worker} is not pinned"),
            Placement::Refused(core) => println!("! worker {worker} was refused core {core}"),
            other => println!("  worker {worker}: {other:?}"),
        }
    }
    if engine.placements().is_empty() {
        println!("  it has no workers");
    }
    Ok(())
}
