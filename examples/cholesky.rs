//! A tiled Cholesky factorisation: a graph of operations, pushed by three nested loops.
//!
//! ```text
//! cargo run --release --example cholesky
//! ```
//!
//! Look at the loops in `main`: they push the operations in textbook order, and each operation declares its tiles. The
//! engine finds the operations that can run in parallel, and may start the next column while updates from the current
//! one are still running.

use std::error::Error;

use raddle::Engine;

const SIDE: usize = 24; // rows in a tile
const TILES: usize = 8; // rows of tiles
const N: usize = SIDE * TILES;

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Replaces an `n` by `n` matrix A with the lower triangular matrix L for which A = L Lᵀ.
fn factor(a: &mut [f64], n: usize) {
    for j in 0..n {
        (0..j).for_each(|i| a[i * n + j] = 0.0);
        for i in j..n {
            let rest = a[i * n + j] - dot(&a[i * n..][..j], &a[j * n..][..j]);
            a[i * n + j] = if i == j { rest.sqrt() } else { rest / a[j * n + j] };
        }
    }
}

/// Replaces X with X L⁻ᵀ.
fn solve(l: &[f64], x: &mut [f64]) {
    for row in x.chunks_exact_mut(SIDE) {
        for j in 0..SIDE {
            row[j] = (row[j] - dot(&row[..j], &l[j * SIDE..][..j])) / l[j * SIDE + j];
        }
    }
}

/// Subtracts A Bᵀ from C.
fn update(a: &[f64], b: &[f64], c: &mut [f64]) {
    for (e, c) in c.iter_mut().enumerate() {
        *c -= dot(&a[e / SIDE * SIDE..][..SIDE], &b[e % SIDE * SIDE..][..SIDE]);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    // The dominant diagonal makes the symmetric matrix positive definite.
    let element = |i: usize, j: usize| if i == j { N as f64 } else { 1.0 / i.abs_diff(j) as f64 };
    let cut = |i, j| (0..SIDE * SIDE).map(|e| element(i * SIDE + e / SIDE, j * SIDE + e % SIDE)).collect();
    let engine = Engine::builder().build()?;
    let tile: Vec<Vec<_>> = (0..TILES).map(|i| (0..=i).map(|j| engine.var::<Vec<_>>(cut(i, j))).collect()).collect();

    for k in 0..TILES {
        engine.op("factor").push(tile[k][k].write(), |a| factor(a, SIDE))?;
        for i in k + 1..TILES {
            engine.op("solve").push((tile[k][k].read(), tile[i][k].write()), |(l, x)| solve(l, x))?;
            for j in k + 1..=i {
                let accesses = (tile[i][k].read(), tile[j][k].read(), tile[i][j].write());
                engine.op("update").push(accesses, |(a, b, c)| update(a, b, c))?;
            }
        }
    }

    let mut naive: Vec<_> = (0..N * N).map(|e| element(e / N, e % N)).collect();
    factor(&mut naive, N);
    let mut error = 0.0_f64;
    for (i, j) in (0..TILES).flat_map(|i| (0..=i).map(move |j| (i, j))) {
        for (row, expected) in engine.get(&tile[i][j])?.chunks(SIDE).zip(naive[i * SIDE * N..].chunks(N)) {
            row.iter().zip(&expected[j * SIDE..]).for_each(|(a, b)| error = error.max((a - b).abs()));
        }
    }
    println!("{N} by {N} matrix, {TILES} by {TILES} tiles: the result is within {error:.1e} of the naive one");
    assert!(error < 1e-9);
    Ok(())
}
