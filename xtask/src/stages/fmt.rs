//! The format of the sources.

use crate::tools::{Result, cargo, has, skip};

pub fn run() -> Result {
    if !has("fmt") {
        skip("rustfmt is not installed");
        return Ok(());
    }
    cargo("fmt --all --check").run()?;
    cargo("fmt --manifest-path fuzz/Cargo.toml --check").run()
}
