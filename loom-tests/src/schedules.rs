//! How a model is run under shuttle.

use std::{
    env,
    panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind},
    sync::Arc,
    time::Instant,
};

use raddle::internals::Flavour;
use shuttle::{
    Config, FailurePersistence, Runner,
    scheduler::{PctScheduler, RandomScheduler},
};

/// Schedules that one seed stands for. The second and later ones of a `pct` batch know how long the model is.
const BATCH: usize = 50;

/// Preemptions in a schedule of PCT: bugs that need no more of them are found with a probability that is known.
const DEPTH: usize = 3;

/// Runs `f` in about `schedules` schedules, half of them random and half by PCT, from the seed `RADDLE_SHUTTLE_SEED` on
/// (default: 1). `RADDLE_SHUTTLE_FACTOR` multiplies their number. With `RADDLE_SHUTTLE_REPLAY=random:SEED` or `pct:SEED`,
/// only that batch is run. What fails says what to replay.
///
/// # Panics
/// If `f` panics or hangs in a schedule.
#[track_caller]
pub fn explore(schedules: usize, f: impl Fn() + Send + Sync + 'static) {
    let (at, start) = (Location::caller(), Instant::now());
    let f: Arc<dyn Fn() + Send + Sync> = Arc::new(f);
    if let Ok(replay) = env::var("RADDLE_SHUTTLE_REPLAY") {
        let (scheduler, seed) = replay.split_once(':').expect("RADDLE_SHUTTLE_REPLAY is `random:SEED` or `pct:SEED`");
        batch(scheduler, seed.parse().expect("a seed is a number"), &f);
        return;
    }
    let number = |name, default| env::var(name).map_or(default, |value| value.parse().expect("a number"));
    let first: u64 = number("RADDLE_SHUTTLE_SEED", 1);
    let batches = (schedules as u64 * number("RADDLE_SHUTTLE_FACTOR", 1)).div_ceil(2 * BATCH as u64);
    for seed in first..first + batches {
        batch("random", seed, &f);
        batch("pct", seed, &f);
    }
    let (file, seconds) = (at.file().rsplit('/').next().unwrap_or_default(), start.elapsed().as_secs_f64());
    println!("{file}:{}: {} schedules from seed {first} on, {seconds:.2} s", at.line(), 2 * batches * BATCH as u64);
}

fn batch(scheduler: &str, seed: u64, f: &Arc<dyn Fn() + Send + Sync>) {
    let mut config = Config::new();
    config.stack_size = 0x4_0000;
    config.failure_persistence = FailurePersistence::None;
    config.silence_warnings = true;
    let f = Arc::clone(f);
    let model = move || {
        Flavour::Contract.begin();
        f();
    };
    let run = AssertUnwindSafe(|| match scheduler {
        "random" => Runner::new(RandomScheduler::new_from_seed(seed, BATCH), config).run(model),
        "pct" => Runner::new(PctScheduler::new_from_seed(seed, DEPTH, BATCH), config).run(model),
        other => panic!("there is no scheduler {other}"),
    });
    if let Err(payload) = catch_unwind(run) {
        let test = std::thread::current().name().unwrap_or_default().to_owned();
        eprintln!(
            "failed in a schedule of {scheduler}:{seed}; again with\n    \
             RADDLE_SHUTTLE_REPLAY={scheduler}:{seed} RUSTFLAGS=\"--cfg raddle_shuttle\" cargo test \
             -p raddle-loom-tests --profile loom --test shuttle {test} -- --include-ignored"
        );
        resume_unwind(payload);
    }
}
