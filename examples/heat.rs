//! Heat that spreads in a plate: an array cut into tiles, computed in steps without a barrier between them.
//!
//! ```text
//! cargo run --release --example heat
//! ```
//!
//! Look at the push in `steps`. An operation mutates a tile of the new plate, and reads the elements of the old one that
//! it needs: the tile and its *halo*, one row and column more on each side. The engine finds which operations of the
//! step before they touch, so a tile of step 9 may be computed while others are still in step 8. No tile waits for a
//! whole step. At the end, one operation reads the plate as a whole.

use std::{error::Error, time::Instant};

use raddle::{Engine, EngineKind, TileMut, TileRef};

/// The number of rows, and of columns, of the plate.
const SIDE: usize = 512;
/// The number of rows, and of columns, of a tile.
const TILE: usize = 64;
const STEPS: usize = 200;

/// Computes a tile whose first element is in row and column `at` of `old`, which is smaller at the plate's edges.
fn spread(old: TileRef<'_, f32>, mut new: TileMut<'_, f32>, at: [usize; 2]) {
    for (row, new) in new.iter_mut().enumerate() {
        let row = row + at[0];
        let [above, own, below] = [row.saturating_sub(1), row, (row + 1).min(old.rows() - 1)].map(|row| old.row(row));
        for (column, new) in new.iter_mut().enumerate() {
            let column = column + at[1];
            let (left, right) = (own[column.saturating_sub(1)], own[(column + 1).min(own.len() - 1)]);
            *new = 0.6 * own[column] + 0.1 * (above[column] + below[column] + left + right);
        }
    }
}

fn steps(engine: &Engine, plate: &[f32], tile: usize) -> Result<Vec<f32>, Box<dyn Error>> {
    let mut old = engine.tiles(plate.to_vec(), SIDE, [tile; 2])?;
    let mut new = engine.tiles(plate.to_vec(), SIDE, [tile; 2])?;
    for _ in 0..STEPS {
        for tile in new.iter() {
            let halo = old.region(tile.rows(), tile.columns())?.grown([1, 1]);
            let at = [tile.rows().start - halo.rows().start, tile.columns().start - halo.columns().start];
            engine.op("spread").push((halo.read(), tile.write()), move |(old, new)| spread(old, new, at))?;
        }
        (old, new) = (new, old);
    }
    let copy = engine.op("copy").submit(old.all().read(), |plate| plate.iter().flatten().copied().collect())?;
    Ok(copy.wait()?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let plate: Vec<f32> = (0..SIDE * SIDE).map(|at| if at % 7919 == 0 { 1000.0 } else { 0.0 }).collect();
    let start = Instant::now();
    // Runs each operation in its push.
    let serial = Engine::builder().kind(EngineKind::Naive).build()?;
    let expected = steps(&serial, &plate, SIDE)?;
    let (one_thread, start) = (start.elapsed(), Instant::now());
    let elements = steps(&Engine::builder().build()?, &plate, TILE)?;
    let tiled = start.elapsed();
    assert!(elements == expected, "the tiles give other elements");
    println!("{STEPS} steps of a plate of {SIDE}²: {tiled:.1?} in tiles of {TILE}², {one_thread:.1?} on one thread");
    Ok(())
}
