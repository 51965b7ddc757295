//! Small programs whose schedules are chosen by bytes.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| raddle_loom_tests::schedule(data));
