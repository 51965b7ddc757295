//! Operations that wait for each other, including in cycles.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| raddle_testkit::harness::waits::waits(data));
