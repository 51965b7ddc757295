//! Multithreaded programs whose results must be explained by a single order.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| raddle_testkit::harness::concurrent_push::concurrent_push(data));
