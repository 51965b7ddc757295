//! Scopes: operations that borrow local variables, here an image and the buffers for its blurred copy.
//!
//! ```text
//! cargo run --release --example scopes
//! ```
//!
//! The example blurs an image in two passes. Each pass reads one buffer and writes another, row by row, in operations
//! that borrow rows of both buffers. An operation of the second pass needs two or three rows from the first pass, and
//! may start when those rows are done.

use std::error::Error;

use raddle::{Engine, each};

const WIDTH: usize = 1920;
const HEIGHT: usize = 1080;

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::builder().build()?;
    let image: Vec<u8> = (0..WIDTH * HEIGHT).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 24) as u8).collect();

    let start = std::time::Instant::now();
    let blurred = blur(&engine, &image)?;
    println!("{WIDTH} x {HEIGHT} pixels blurred in {:.1?}", start.elapsed());

    let (before, after) = (roughness(&image), roughness(&blurred));
    println!("neighbours differ by {before:.1} on average before the blur, and by {after:.1} after it");
    assert!(after < before / 2.0);
    Ok(())
}

/// Returns a copy of the image in which each pixel is the mean of the three by three pixels around it, or of fewer at
/// the image's edges.
fn blur(engine: &Engine, image: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let (mut across, mut down) = (vec![0; image.len()], vec![0; image.len()]);
    engine.try_scope(|s| {
        let across: Vec<_> = across.chunks_mut(WIDTH).map(|row| s.lend(row)).collect();
        for (source, row) in image.chunks(WIDTH).zip(&across) {
            s.op("across").push(row.write(), move |row| {
                for (x, pixel) in row.iter_mut().enumerate() {
                    *pixel = mean(&source[x.saturating_sub(1)..WIDTH.min(x + 2)]);
                }
            })?;
        }
        for (y, target) in down.chunks_mut(WIDTH).enumerate() {
            let near = &across[y.saturating_sub(1)..HEIGHT.min(y + 2)];
            s.op("down").push(each(near.iter().map(|row| row.read())), move |rows| {
                for (x, pixel) in target.iter_mut().enumerate() {
                    let column = rows.iter().map(|row| u32::from(row[x]));
                    *pixel = (column.sum::<u32>() / rows.len() as u32) as u8;
                }
            })?;
        }
        Ok(())
    })?;
    Ok(down)
}

fn mean(pixels: &[u8]) -> u8 {
    (pixels.iter().map(|&pixel| u32::from(pixel)).sum::<u32>() / pixels.len() as u32) as u8
}

/// Returns the mean absolute difference between pixels that are adjacent in memory.
fn roughness(image: &[u8]) -> f64 {
    let differences = image.windows(2).map(|pair| f64::from(pair[0].abs_diff(pair[1])));
    differences.sum::<f64>() / (image.len() - 1) as f64
}
