//! Single-threaded programs over tokens, run on two engines and compared with a model.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| raddle_testkit::harness::serial::push(data));
