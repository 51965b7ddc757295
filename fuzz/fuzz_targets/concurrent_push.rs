//! Programs of several threads, whose results one order must explain.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| raddle_testkit::harness::concurrent_push::concurrent_push(data));
