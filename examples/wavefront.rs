//! Dynamic programming over tiles: the edit distance of two sequences, computed as a wavefront.
//!
//! ```text
//! cargo run --release --example wavefront
//! ```
//!
//! Look at the push in `tiled`. A tile of the table needs the lower edge of the tile above and the right edge of the
//! tile to its left. Each row of tiles has a variable for the right edge of its latest tile, each column of tiles has
//! one for the lower edge of its latest tile, and each tile reads and replaces both edges. From these accesses, the
//! engine finds the wavefront: the tiles of a diagonal may be computed in parallel, and no tile waits for a whole
//! diagonal.

use std::error::Error;

use raddle::Engine;

/// The number of rows, and of columns, in a tile.
const SIDE: usize = 128;
const TILES: usize = 12;

/// Computes a part of the table. On entry, `left` is the column to the left of the part, and `top` is the row above it,
/// beginning with the corner. On return, `left` is the part's last column, and `top` is its last row, beginning with
/// the value to the left of that row.
fn compute(a: &[u8], b: &[u8], left: &mut [usize], top: &mut [usize]) {
    for (a, left) in a.iter().zip(left) {
        let mut diagonal = std::mem::replace(&mut top[0], *left);
        for (j, b) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = top[j + 1];
            top[j + 1] = replaced.min(diagonal + 1).min(top[j] + 1);
        }
        *left = top[b.len()];
    }
}

fn naive(a: &[u8], b: &[u8]) -> usize {
    let (mut left, mut top): (Vec<_>, Vec<_>) = ((1..=a.len()).collect(), (0..=b.len()).collect());
    compute(a, b, &mut left, &mut top);
    top[b.len()]
}

fn tiled(a: &'static [u8], b: &'static [u8]) -> Result<usize, Box<dyn Error>> {
    let engine = Engine::builder().build()?;
    let edge = |tile: usize, from: usize| engine.var((tile * SIDE + from..=(tile + 1) * SIDE).collect::<Vec<_>>());
    let left: Vec<_> = (0..TILES).map(|tile| edge(tile, 1)).collect();
    let top: Vec<_> = (0..TILES).map(|tile| edge(tile, 0)).collect();

    for (a, left) in a.chunks(SIDE).zip(&left) {
        for (b, top) in b.chunks(SIDE).zip(&top) {
            engine.op("tile").push((left.write(), top.write()), |(left, top)| compute(a, b, left, top))?;
        }
    }
    Ok(engine.get(&top[TILES - 1])?[SIDE])
}

/// Returns a sequence of bases that depends only on the seed.
fn sequence(mut seed: u64) -> &'static [u8] {
    let mut base = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        b"ACGT"[(seed >> 62) as usize]
    };
    (0..SIDE * TILES).map(|_| base()).collect::<Vec<_>>().leak()
}

fn main() -> Result<(), Box<dyn Error>> {
    let (a, b) = (sequence(1), sequence(2));
    let distance = tiled(a, b)?;
    println!("the edit distance of two sequences of {} bases is {distance}", a.len());
    assert_eq!(distance, naive(a, b));
    assert_eq!(naive(b"kitten", b"sitting"), 3);
    Ok(())
}
