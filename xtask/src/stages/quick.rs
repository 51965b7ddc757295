//! Some of the checks, for work in progress.

use crate::tools::{Result, cargo};

pub fn run() -> Result {
    super::fmt::run()?;
    cargo("clippy --all-targets -- -D warnings").run()?;
    cargo("test --lib").run()?;
    cargo("test --test contract -- semantics:: ordering::").run()?;
    cargo("test --doc accesses").run()?;
    cargo("test --package raddle-testkit --test layers").run()?;
    super::models::loom_test("--test models -- delete:: variable::").run()
}
