//! Children: each stage of a frame is an operation, whose children process the frame's tiles.
//!
//! ```text
//! cargo run --release --example children
//! ```
//!
//! A stage declares all tiles of its frame, and each of its children declares at most one of them. A stage is complete
//! when its last child is complete, so the stages of one frame run in sequence, while the tiles of one stage, and the
//! stages of different frames, may be processed in parallel. The last stage needs the frame's brightest pixel, which
//! its children find and pass on in variables that the stage creates for them. No thread waits for a stage or a tile.

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
        level(&engine, &frame)?;
        let tiles = each(frame.iter().map(|tile| tile.read()));
        shown.push(engine.op("show").submit(tiles, |tiles| tiles.iter().map(|tile| tile[0]).sum::<f32>())?);
    }
    for frame in shown {
        // All pixels of a frame are equal, so each is the brightest.
        assert!((frame.wait()? - TILES as f32).abs() < 1e-3);
    }
    println!("{FRAMES} frames of {TILES} tiles in {:.1?}", start.elapsed());
    Ok(())
}

/// Pushes a stage: an operation that writes all the frame's tiles, with one child per tile.
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

/// Pushes a stage that divides each pixel by the frame's brightest one.
fn level(engine: &Engine, frame: &[Tile]) -> Result<(), PushError> {
    let inside = frame.to_vec();
    let tiles = each(frame.iter().map(|tile| tile.write()));
    engine.op("level").with_children().try_push((cx(), tiles), move |(cx, _)| {
        // Only this stage's children can name these variables, whose values are dropped before the stage is complete.
        let in_tiles = inside.iter().map(|_| cx.child_var(0.0_f32)).collect::<Result<Vec<_>, _>>()?;
        let brightest = cx.child_var(0.0_f32)?;
        for (tile, in_tile) in inside.iter().zip(&in_tiles) {
            cx.child("look").push((tile.read(), in_tile.write()), |(tile, in_tile)| {
                *in_tile = tile.iter().copied().fold(0.0, f32::max);
            })?;
        }
        let in_tiles = each(in_tiles.iter().map(|in_tile| in_tile.read()));
        cx.child("compare").push((in_tiles, brightest.write()), |(in_tiles, brightest)| {
            *brightest = in_tiles.into_iter().copied().fold(0.0, f32::max);
        })?;
        for tile in &inside {
            cx.child("divide").push((tile.write(), brightest.read()), |(tile, brightest)| {
                tile.iter_mut().for_each(|pixel| *pixel /= brightest);
            })?;
        }
        Ok(())
    })
}
