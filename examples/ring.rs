//! A ring of frame buffers: any number of frames can pass through it, with at most `SLOTS` of them in flight.
//!
//! ```text
//! cargo run --release --example ring
//! ```
//!
//! Look at `slot.overwrite()`. Frame 3 is rendered into the buffer that frame 0 used, so its `render` operation starts
//! only once the last operation that reads frame 0 is complete. This order alone bounds the memory for frames and the
//! number of frames in flight, without a semaphore or a channel. The line with `wait_for_var` bounds something else:
//! how far the pushing loop runs ahead of the workers.

use std::error::Error;
use std::f64::consts::TAU;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use raddle::Engine;

const SLOTS: usize = 3;
const FRAMES: usize = 48;
const SIDE: usize = 96;

/// Draws a Julia set whose constant depends on the frame.
fn render(frame: usize, image: &mut Vec<bool>) {
    let (im, re) = (frame as f64 / FRAMES as f64 * TAU).sin_cos();
    image.clear();
    image.extend((0..SIDE * SIDE).map(|pixel| {
        let (mut x, mut y) = ((pixel % SIDE) as f64 / 32.0 - 1.5, (pixel / SIDE) as f64 / 32.0 - 1.5);
        (0..60).all(|_| {
            (x, y) = (x * x - y * y + 0.3 * re - 0.4, 2.0 * x * y + 0.3 * im);
            x * x + y * y < 4.0
        })
    }));
}

/// Returns the number of pixels in the set.
fn measure(image: &[bool]) -> usize {
    image.iter().filter(|&&inside| inside).count()
}

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::builder().build()?;
    let ring: Vec<_> = (0..SLOTS).map(|_| engine.var(Vec::new())).collect();
    let areas = engine.var(Vec::new());

    // These counters only observe the engine: the current and the largest number of frames in flight.
    let (in_flight, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));

    for frame in 0..FRAMES {
        let slot = &ring[frame % SLOTS];
        // Waits until the buffer's previous frame has been measured, so at most 2 * SLOTS of this loop's operations are
        // incomplete. Without this line, the result and the memory for frames would be the same.
        engine.wait_for_var(slot)?;

        let (started, peak) = (Arc::clone(&in_flight), Arc::clone(&most));
        engine.op("render").push(slot.overwrite(), move |image| {
            peak.fetch_max(started.fetch_add(1, Relaxed) + 1, Relaxed);
            render(frame, image);
        })?;
        let ended = Arc::clone(&in_flight);
        engine.op("measure").push((slot.read(), areas.write()), move |(image, areas)| {
            areas.push(measure(image));
            ended.fetch_sub(1, Relaxed);
        })?;
    }

    let areas = engine.get(&areas)?;
    let most = most.load(Relaxed);
    println!("{FRAMES} frames through {SLOTS} buffers, at most {most} in flight; areas {:?}...", &areas[..4]);
    assert!((1..=SLOTS).contains(&most));
    let mut image = Vec::new();
    for (frame, area) in areas.into_iter().enumerate() {
        render(frame, &mut image);
        assert_eq!(area, measure(&image), "frame {frame}");
    }
    Ok(())
}
