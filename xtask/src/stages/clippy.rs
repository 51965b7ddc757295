//! Lints, in every build of the library.

use crate::tools::{Result, cargo, has, skip};

pub fn run() -> Result {
    if !has("clippy") {
        skip("clippy is not installed");
        return Ok(());
    }
    cargo("clippy --workspace --all-targets --features cuda,derive,metrics,tracing -- -D warnings").run()?;
    cargo("clippy -- -D warnings").run()?;
    // raddle's own tests and examples are not built for the models.
    for (folder, flags) in [("loom", super::models::LOOM), ("shuttle", super::models::SHUTTLE)] {
        cargo("clippy --package raddle --lib -- -D warnings").flags(folder, flags).run()?;
        cargo("clippy --package raddle-loom-tests --all-targets -- -D warnings").flags(folder, flags).run()?;
    }
    cargo("clippy --package raddle-testkit --all-targets -- -D warnings").flags("pause", "--cfg raddle_pause").run()
}
