//! Runs the fuzz target `schedule` on its committed corpus and on inputs generated from seeds. Without one of several
//! steps of the library, such an input must fail.
#![cfg(raddle_shuttle)]

use std::{fs, path::Path, time::Instant};

use raddle_loom_tests::{check, kills, schedule};

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

#[test]
fn without_each_of_several_steps_a_random_schedule_fails() {
    check(&[KILLS], |_| false);
}

kills! {
    random_schedules_find_no_failure {
        "step::HELP_BEFORE_APPEND": "never became ready",
        "step::REREAD_REGISTERED": "max_steps",
        "step::TAIL_PAST_RETIRED": "use after reclamation",
        "step::RETIRE": "use after reclamation",
        "step::LEAVE_NOTIFIES": "deadlock",
        "step::SEARCH_AGAIN_BEFORE_PARK": "deadlock",
        "step::JOIN_ONLY_THE_LAST": "a wait has ended before",
    }
}
