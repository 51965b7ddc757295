//! Runs models under shuttle.

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

/// The number of schedules in a batch: the run of one scheduler with one seed. The first schedule of a `pct` batch
/// measures the model's length for the others.
const BATCH: usize = 50;

/// The depth of PCT (probabilistic concurrency testing), one more than the number of preemptions in a schedule. If a
/// bug needs no more preemptions than that, PCT finds it with at least a known probability.
const DEPTH: usize = 3;

/// Runs `f` in about `schedules` schedules, half of them random and half chosen by PCT, starting from the seed
/// `RADDLE_SHUTTLE_SEED` (default: 1). `RADDLE_SHUTTLE_FACTOR` multiplies the number of schedules. With
/// `RADDLE_SHUTTLE_REPLAY=random:SEED` or `pct:SEED`, runs only the batch with that scheduler and seed. If a schedule
/// fails, prints the command that replays its batch.
///
/// # Panics
/// If `f` panics or hangs in a schedule, or if one of these variables has an invalid value.
#[track_caller]
pub fn explore(schedules: usize, f: impl Fn() + Send + Sync + 'static) {
    let (at, start) = (Location::caller(), Instant::now());
    let f: Arc<dyn Fn() + Send + Sync> = Arc::new(f);
    if let Ok(replay) = env::var("RADDLE_SHUTTLE_REPLAY") {
        let (scheduler, seed) =
            replay.split_once(':').expect("RADDLE_SHUTTLE_REPLAY must be `random:SEED` or `pct:SEED`");
        batch(scheduler, seed.parse().expect("the seed must be a number"), &f);
        return;
    }
    let number = |name, default| {
        env::var(name).map_or(default, |value| value.parse().expect("RADDLE_SHUTTLE_SEED and _FACTOR must be numbers"))
    };
    let first: u64 = number("RADDLE_SHUTTLE_SEED", 1);
    let batches = (schedules as u64 * number("RADDLE_SHUTTLE_FACTOR", 1)).div_ceil(2 * BATCH as u64);
    for seed in first..first + batches {
        batch("random", seed, &f);
        batch("pct", seed, &f);
    }
    let (file, seconds) = (at.file().rsplit('/').next().unwrap_or_default(), start.elapsed().as_secs_f64());
    println!("{file}:{}: {} schedules, first seed {first}, {seconds:.2} s", at.line(), 2 * batches * BATCH as u64);
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
        other => panic!("unknown scheduler `{other}`; use `random` or `pct`"),
    });
    if let Err(payload) = catch_unwind(run) {
        let test = std::thread::current().name().unwrap_or_default().to_owned();
        eprintln!(
            "a schedule of {scheduler}:{seed} failed; to replay its batch, run\n    \
             RADDLE_SHUTTLE_REPLAY={scheduler}:{seed} RUSTFLAGS=\"--cfg raddle_shuttle\" cargo test \
             -p raddle-loom-tests --profile shuttle --test shuttle {test} -- --include-ignored"
        );
        resume_unwind(payload);
    }
}
