//! Runs the fuzz targets on their committed corpora and on inputs generated from seeds; see `harness`.

#![forbid(unsafe_code)]

use raddle_testkit::harness::replay;

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
