//! Engines of every kind, and numbers to test with.

#![allow(dead_code, reason = "each test uses a part of this module")]

use std::sync::Arc;

use raddle::{
    Device, Engine, EngineBuilder, EngineKind,
    gpu::{SimulatedGpu, simulated::Clock},
};
use raddle_train::{Runtime, random::Random};

/// The places where tests run: the kind of engine, the number of workers and the device.
pub const PLACES: [(EngineKind, usize, Device); 7] = [
    (EngineKind::Naive, 1, Device::Cpu),
    (EngineKind::Pooled, 2, Device::Cpu),
    (EngineKind::PerDevice, 1, Device::Cpu),
    (EngineKind::PerDevice, 2, Device::Cpu),
    (EngineKind::PerDevice, 4, Device::Cpu),
    (EngineKind::Naive, 1, Device::Gpu(0)),
    (EngineKind::PerDevice, 2, Device::Gpu(0)),
];

/// Returns an engine for a place.
pub fn engine(place: (EngineKind, usize, Device)) -> Engine {
    builder(place).build().expect("an engine")
}

pub fn builder((kind, workers, _): (EngineKind, usize, Device)) -> EngineBuilder {
    let gpu = SimulatedGpu::builder().clock(Clock::Instantly).seed(3).build();
    Engine::builder().kind(kind).workers(workers).gpu(gpu)
}

/// Calls a test at each place. Checks afterwards that no operation has failed.
pub fn everywhere(test: impl Fn(&Arc<Runtime>)) {
    for place in PLACES {
        eprintln!("{place:?}");
        let engine = engine(place);
        test(&Runtime::new(&engine, place.2, 7));
        engine.wait_for_all().expect("no operation should fail");
    }
}

/// Returns numbers a tenth apart, in random order. If `count` is even, all of them are at least 0.05 away from zero, up
/// to rounding: some functions have kinks there.
pub fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    let mut numbers: Vec<f32> = (0..count).map(|i| (i as f32 - count as f32 / 2.0) * 0.1 + 0.05).collect();
    (1..count).for_each(|i| numbers.swap(i, random.below(i + 1)));
    numbers
}

/// Returns the bits of numbers.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
