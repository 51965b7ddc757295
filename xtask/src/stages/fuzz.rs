//! The fuzz targets.

use std::{env, fs, path::Path};

use crate::tools::{Cmd, Result, cargo, empty_folder, has_nightly, read, skip, target};

const TARGETS: [&str; 6] = ["push", "concurrent_push", "typed", "lifecycle", "waits", "schedule"];

/// Starts a subcommand of cargo-fuzz. The target `schedule` has its own build, which `fuzz/README.md` explains.
fn fuzz(subcommand: &str, target_name: &str) -> Cmd {
    let tools = target("tools/bin");
    let path = env::join_paths([tools].into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap_or_default())));
    let fuzz = cargo("+nightly fuzz").arg(subcommand).env("PATH", path.unwrap_or_default());
    if target_name != "schedule" {
        return fuzz.env("ASAN_OPTIONS", "detect_leaks=0");
    }
    let flags = format!("{} {}", env::var("RUSTFLAGS").unwrap_or_default(), super::models::SHUTTLE);
    fuzz.args("-O -s none --no-trace-compares --features schedule".split(' '))
        .env("RUSTFLAGS", flags.trim())
        .env("RUSTC_WRAPPER", Path::new("fuzz/only_raddle").canonicalize().unwrap_or_default())
        .env("CARGO_TARGET_DIR", target("fuzz-schedule"))
}

/// Returns whether there is a fuzzer. Installs cargo-fuzz into the folder of builds if it is missing.
fn is_available() -> bool {
    let is_there = || fuzz("--version", "").capture().0;
    let install = || cargo("install --locked --version 0.13.2 cargo-fuzz --root").arg(target("tools")).run().is_ok();
    has_nightly() && (is_there() || install())
}

pub fn build() -> Result {
    if is_available() {
        fuzz("build", "").run()?;
        fuzz("build", "schedule").arg("schedule").run()?;
    }
    Ok(())
}

pub fn run() -> Result {
    if !is_available() {
        skip("there is no nightly toolchain with cargo-fuzz: the corpora were replayed, and nothing was fuzzed");
        cargo("test --test contract -- corpus::").run()?;
        return super::models::shuttle_test("--test schedule").run();
    }
    build()?;
    let seconds = env::var("RADDLE_FUZZ_SECONDS").unwrap_or_else(|_| "12".into());
    let logs = empty_folder("fuzz")?;
    let mut running = Vec::new();
    // All targets run in parallel: each has more threads than there are cores anyway. New inputs go to the first
    // folder, so the checkout does not change. The targets find leaks by counting drops.
    for name in TARGETS {
        let corpus = empty_folder(&format!("corpus-{name}"))?;
        let log = fs::File::create(logs.join(name)).map_err(|error| error.to_string())?;
        let mut run = fuzz("run", name).arg(name).arg(corpus).arg(format!("fuzz/corpus/{name}"));
        run = run.args("-- -detect_leaks=0 -max_len=1024 -len_control=0 -print_final_stats=1".split(' '));
        run = run.arg(format!("-max_total_time={seconds}"));
        if name == "schedule" {
            run = run.args(["-entropic=0", "-use_counters=0"]);
        }
        running.push((name, run.log_to(log)?.spawn()?));
    }
    let mut failed = Vec::new();
    for (name, mut run) in running {
        let succeeds = run.wait().is_ok_and(|status| status.success());
        let text = read(logs.join(name)).unwrap_or_else(|error| error);
        let done: Vec<_> = text.lines().filter(|line| line.starts_with("Done") || line.contains("DONE")).collect();
        println!("{name}: {}", if succeeds { done.join(" ") } else { text.clone() });
        if !succeeds {
            failed.push(name);
        }
    }
    crate::tools::require(failed.is_empty(), format!("{failed:?}"))
}
