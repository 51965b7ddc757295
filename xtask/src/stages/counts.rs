//! The instructions of a push and of a run.

use crate::tools::{Result, cargo, install, is_linux_x86, skip};

pub fn run() -> Result {
    if !is_linux_x86() {
        skip("instructions are counted on Linux on x86-64 only");
    } else if !install("/usr/bin/valgrind", "valgrind") {
        skip("valgrind is neither installed nor installable: no instructions were counted");
    } else {
        cargo("bench --package raddle-benches --no-default-features --bench counts -- --check").run()?;
    }
    Ok(())
}
