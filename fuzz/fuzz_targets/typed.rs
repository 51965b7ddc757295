//! Programs of one thread, over typed variables, on two engines and a model.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| raddle_testkit::harness::serial::typed(data));
