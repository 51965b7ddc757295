//! Runs the fuzz target `schedule` on its committed corpus and on inputs generated from seeds. Without one of several
//! steps of the library, such an input must fail.
#![cfg(raddle_shuttle)]

use std::{fs, path::Path, time::Instant};

use raddle::internals::Step;
use raddle_loom_tests::{must_fail, schedule, without};

/// Returns the input number `seed`: at most 120 bytes from a generator of pseudo-random numbers (`SplitMix64`).
fn input(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    };
    (0..next() % 120).map(|_| next() as u8).collect()
}

#[test]
fn the_schedule_corpus_finds_no_failure() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/schedule");
    let mut inputs = 0;
    for entry in fs::read_dir(corpus).expect("each target has a corpus") {
        schedule(&fs::read(entry.expect("the folder can be read").path()).expect("the input can be read"));
        inputs += 1;
    }
    assert!(inputs > 10, "the corpus has only {inputs} inputs");
}

/// Runs 40,000 inputs, or the number in `RADDLE_SCHEDULES`.
#[test]
fn random_schedules_find_no_failure() {
    let inputs = std::env::var("RADDLE_SCHEDULES").map_or(40_000, |inputs| inputs.parse().expect("a number"));
    let start = Instant::now();
    (0..inputs).for_each(|seed| schedule(&input(seed)));
    println!("{inputs} inputs, {:.0} per second", inputs as f64 / start.elapsed().as_secs_f64());
}

macro_rules! twins {
    ($($twin:ident, $claim:ident: without $step:ident, $needle:literal;)+) => {$(
        #[test]
        #[ignore = "fails by design; run by the test below"]
        fn $twin() {
            without(Step::$step, || (0..40_000).for_each(|seed| schedule(&input(seed))));
        }

        #[test]
        fn $claim() {
            must_fail!($twin, $needle);
        }
    )+};
}

twins! {
    without_help, without_help_an_input_fails: without HelpBeforeAppend, "never became ready";
    without_the_second_read, without_the_second_read_an_input_fails: without RereadRegistered, "max_steps";
    with_the_tail_left_behind, with_the_tail_left_behind_an_input_fails: without TailPastRetired, "use after reclamation";
    without_the_epoch, without_the_epoch_an_input_fails: without ReclaimAfterEpoch, "use after reclamation";
    without_the_notification, without_the_notification_an_input_fails: without LeaveNotifies, "deadlock";
    without_the_second_search, without_the_second_search_an_input_fails: without SearchAgainBeforePark, "deadlock";
    joining_any_wait, joining_any_wait_an_input_fails: without JoinOnlyTheLast, "a wait has ended before";
}
