//! Engines shut down while in use.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| raddle_testkit::harness::lifecycle::lifecycle(data));
