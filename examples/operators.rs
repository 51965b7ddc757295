//! Operators: operations created once and pushed often, here the steps of a simulation.
//!
//! ```text
//! cargo run --release --example operators
//! ```
//!
//! Look at `operator` and `push`. Creating an operator sorts its variables and stores its function; each push only adds
//! one more run to the variables' queues, which is cheaper than pushing a new operation. Like other operations, runs
//! are ordered by their variables, so all steps can be pushed in advance, and distant blocks may be several steps
//! apart.

use std::error::Error;

use raddle::Engine;

const BLOCKS: usize = 8;
const SIDE: usize = 64;
const STEPS: usize = 500;

/// Computes one step of the heat equation on a ring. `next` receives the new state of the cells from `start` on.
fn diffuse(cell: impl Fn(usize) -> f64, start: usize, next: &mut [f64]) {
    for (i, next) in (start..).zip(next) {
        *next = cell(i) + 0.25 * (cell(i - 1) - 2.0 * cell(i) + cell(i + 1));
    }
}

fn initial(i: usize) -> f64 {
    if i < SIDE { 100.0 } else { 0.0 }
}

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::builder().build()?;

    // Two states of the ring: even steps read the first and write the second; odd steps do the opposite.
    let block = |block| engine.var((0..SIDE).map(|i| initial(block * SIDE + i)).collect::<Vec<_>>());
    let states = [0, 1].map(|_| (0..BLOCKS).map(block).collect::<Vec<_>>());

    let mut steps = [Vec::new(), Vec::new()];
    for (parity, step) in steps.iter_mut().enumerate() {
        let (from, to) = (&states[parity], &states[1 - parity]);
        for block in 0..BLOCKS {
            let (left, right) = (&from[(block + BLOCKS - 1) % BLOCKS], &from[(block + 1) % BLOCKS]);
            let accesses = ([left.read(), from[block].read(), right.read()], to[block].overwrite());
            step.push(engine.op("diffuse").operator(accesses, |(from, to)| {
                diffuse(|i| from[i / SIDE][i % SIDE], SIDE, to);
            })?);
        }
    }

    for step in 0..STEPS {
        for operator in &steps[step % 2] {
            operator.push()?;
        }
    }

    // Computes the same steps without the engine.
    let ring = BLOCKS * SIDE;
    let mut cells: Vec<_> = (0..ring).map(initial).collect();
    for _ in 0..STEPS {
        let old = cells.clone();
        diffuse(|i| old[i % ring], ring, &mut cells);
    }

    let mut total = 0.0;
    for (block, expected) in states[STEPS % 2].iter().zip(cells.chunks(SIDE)) {
        let block = engine.get(block)?;
        assert_eq!(block, expected);
        total += block.iter().sum::<f64>();
    }
    println!("{} runs of {} operators; the total heat is {total:.6}", STEPS * BLOCKS, 2 * BLOCKS);
    assert!((total - 100.0 * SIDE as f64).abs() < 1e-6);
    Ok(())
}
