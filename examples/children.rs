//! Children: each frame of a pipeline is processed in tiles, by children of one operation per stage.
//!
//! ```text
//! cargo run --release --example children
//! ```
//!
//! A stage declares the tiles of its frame, and each of its children declares one tile. A stage is complete when its
//! last tile is, so the stages of one frame follow each other, while the tiles of a stage, and the stages of different
//! frames, run in parallel. No thread waits for a stage or a tile.

use std::error::Error;

use raddle::{Engine, PushError, Var, cx, each};

const FRAMES: usize = 24;
const TILES: usize = 8;
const PIXELS: usize = 1 << 14;

type Tile = Var<Vec<f32>>;

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::builder().build()?;
    let start = std::time::Instant::now();
    let mut shown = Vec::new();
    for number in 0..FRAMES {
        let frame: Vec<Tile> = (0..TILES).map(|_| engine.var(vec![number as f32; PIXELS])).collect();
        stage(&engine, "sharpen", &frame, |pixel| pixel * 1.5 + 1.0)?;
        stage(&engine, "darken", &frame, f32::sqrt)?;
        let tiles = each(frame.iter().map(|tile| tile.read()));
        shown.push(engine.op("show").submit(tiles, |tiles| tiles.iter().map(|tile| tile[0]).sum::<f32>())?);
    }
    for (number, frame) in shown.into_iter().enumerate() {
        let expected = TILES as f32 * (number as f32 * 1.5 + 1.0).sqrt();
        assert!((frame.wait()? - expected).abs() < 1e-3);
    }
    println!("{FRAMES} frames of {TILES} tiles in {:.1?}", start.elapsed());
    Ok(())
}

/// Pushes a stage: an operation over all tiles of the frame, with a child for each of them.
fn stage(engine: &Engine, name: &'static str, frame: &[Tile], f: fn(f32) -> f32) -> Result<(), PushError> {
    let inside = frame.to_vec();
    let tiles = each(frame.iter().map(|tile| tile.write()));
    engine.op(name).with_children().try_push((cx(), tiles), move |(cx, _)| {
        for tile in &inside {
            cx.child("tile").push(tile.write(), move |tile| tile.iter_mut().for_each(|pixel| *pixel = f(*pixel)))?;
        }
        Ok(())
    })
}
