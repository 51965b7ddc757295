//! The tests of ordinary builds, of the build with pauses, and the soak test.

use std::env;

use crate::tools::{Result, cargo, require};

pub fn run() -> Result {
    cargo("test").run()?;
    cargo("test --package raddle-train --package frames --package gpu_pipeline").run()?;
    cargo("test --package raddle-capi").run()?;
    // Builds with debug assertions list their handles, which allocates.
    cargo("test --profile bench --package raddle-capi --test allocations").run()?;
    cargo("test --features derive,metrics,tracing --test features").run()?;
    cargo("test --features derive,metrics,tracing --doc -- accesses to_").run()
}

pub fn faults() -> Result {
    let test = || cargo("test --package raddle-testkit --test faults").flags("pause", "--cfg raddle_pause");
    // Without the flag, the file would contain no tests, and the stage would pass.
    let list = test().args(["--", "--list"]).output()?;
    require(list.contains("every_point_belongs_to_a_test: test"), "the tests were built without pauses")?;
    test().run()?;
    // Optimized, since each instruction costs time.
    cargo("test --profile bench --package raddle-testkit --test stepped").run()
}

pub fn soak() -> Result {
    let seconds = env::var("RADDLE_SOAK_SECONDS").unwrap_or_else(|_| "20".into());
    cargo("test --test soak -- --nocapture").env("RADDLE_SOAK_SECONDS", seconds).run()
}
