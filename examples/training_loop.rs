//! A training loop whose result has the same bits with any number of workers.
//!
//! ```text
//! cargo run --release --example training_loop
//! ```
//!
//! Look at `sample`: the random generator is a variable, so the operations that draw from it run in push order, and
//! each shard receives the same examples in every run. `step` applies the gradients in the order in which it declares
//! them, not in the order in which they were computed. A step's gradients may be computed in parallel.

use std::error::Error;

use raddle::Engine;

const SHARDS: usize = 4;
const STEPS: usize = 200;
const TRUTH: [f64; 3] = [1.5, -2.0, 0.25];

/// A linear congruential generator.
struct Random(u64);

impl Random {
    /// Returns a number between -1 and 1.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }

    /// Returns inputs and their noisy output.
    fn example(&mut self) -> ([f64; 3], f64) {
        let x = [self.next(), self.next(), 1.0];
        (x, dot(&x, &TRUTH) + 0.05 * self.next())
    }
}

fn dot(a: &[f64; 3], b: &[f64; 3]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn train(workers: usize) -> Result<[f64; 3], Box<dyn Error>> {
    let engine = Engine::builder().workers(workers).build()?;
    let random = engine.var(Random(42));
    let weights = engine.var([0.0; 3]);
    let batches: Vec<_> = (0..SHARDS).map(|_| engine.var(Vec::new())).collect();
    let gradients: Vec<_> = (0..SHARDS).map(|_| engine.var([0.0; 3])).collect();

    for _ in 0..STEPS {
        for (batch, gradient) in batches.iter().zip(&gradients) {
            engine.op("sample").push((random.write(), batch.overwrite()), |(random, batch)| {
                *batch = (0..32).map(|_| random.example()).collect();
            })?;
            let accesses = (weights.read(), batch.read(), gradient.overwrite());
            engine.op("gradient").push(accesses, |(weights, batch, gradient)| {
                *gradient = [0.0; 3];
                for (x, y) in batch {
                    let error = dot(x, weights) - y;
                    gradient.iter_mut().zip(x).for_each(|(g, x)| *g += error * x / batch.len() as f64);
                }
            })?;
        }
        let gradients: Vec<_> = gradients.iter().map(|gradient| gradient.read()).collect();
        engine.op("step").push((gradients, weights.write()), |(gradients, weights)| {
            for gradient in gradients {
                weights.iter_mut().zip(gradient).for_each(|(w, g)| *w -= 0.3 / SHARDS as f64 * g);
            }
        })?;
    }
    // Samples do not depend on the weights, so a step's samples may be drawn before the previous step updates the
    // weights.
    Ok(engine.get(&weights)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let results = [train(1)?, train(2)?, train(4)?];
    println!("weights with 1, 2 and 4 workers: {results:.4?}; the truth is {TRUTH:?}");
    assert!(results.iter().all(|weights| weights.map(f64::to_bits) == results[0].map(f64::to_bits)));
    assert!(results[0].iter().zip(TRUTH).all(|(weight, truth)| (weight - truth).abs() < 0.02));
    Ok(())
}
