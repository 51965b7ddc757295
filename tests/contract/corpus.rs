//! Runs the fuzz targets on their committed corpora and on inputs generated from seeds; see `harness`.
//!
//! The corpora are in `fuzz/corpus`, which the published package omits.

#![forbid(unsafe_code)]

use raddle_testkit::{self as common, harness};

use std::{fs, path::Path};

use common::program::{Random, Source};
use harness::TARGETS;

fn replay(target: &str) {
    let (_, run) = TARGETS.into_iter().find(|(name, _)| *name == target).expect("the target should exist");
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let mut inputs = 0;
    if fuzz.join("Cargo.toml").exists() {
        for entry in fs::read_dir(fuzz.join("corpus").join(target)).expect("each target should have a corpus") {
            run(&fs::read(entry.expect("the folder should be readable").path()).expect("the input should be readable"));
            inputs += 1;
        }
        assert!(inputs > 10, "the corpus of {target} has only {inputs} inputs");
    }
    for seed in 0..80 {
        let mut random = Random::new(seed);
        let input: Vec<u8> = (0..1 + random.below(600)).map(|_| random.below(256) as u8).collect();
        run(&input);
    }
}

#[test]
fn the_push_corpus_finds_no_failure() {
    replay("push");
}

#[test]
fn the_concurrent_push_corpus_finds_no_failure() {
    replay("concurrent_push");
}

#[test]
fn the_typed_corpus_finds_no_failure() {
    replay("typed");
}

#[test]
fn the_lifecycle_corpus_finds_no_failure() {
    replay("lifecycle");
}

#[test]
fn the_waits_corpus_finds_no_failure() {
    replay("waits");
}
