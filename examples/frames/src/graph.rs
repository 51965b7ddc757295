//! The graph of operations: the variables that each operation reads and writes.
//!
//! ```text
//! camera ─► raw ─► denoise ─► clean ─► luma ─┬─► gradient ─┐
//!                                            └─► corners ──┴─► annotate ─► encode ─► deliver
//!                                            └─► detail 1, detail 2, ... ─► statistics
//! ```
//!
//! The code that pushes a frame needs no waits, locks or counters. An operation declares the variables that it reads
//! and writes, and the engine derives the rest: that a frame's gradient and corners may be computed concurrently, that
//! frames in different slots of the ring are independent, and that an operation may overwrite an image in a slot only
//! after the last operation that reads the previous frame's image, whether that operation is a stage or part of the
//! statistics.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Instant;

use image::{GrayImage, RgbImage};
use raddle::{Engine, OpBuilder, OpHandle, PushError, Var, WaitError};

use crate::camera::Camera;
use crate::filters::{self, Gradient, Position, Statistics};

/// The variables of one frame in flight. Later frames reuse them.
struct Slot {
    raw: Var<RgbImage>,
    clean: Var<RgbImage>,
    luma: Var<GrayImage>,
    gradient: Var<Gradient>,
    corners: Var<Vec<Position>>,
    picture: Var<RgbImage>,
    encoded: Var<Vec<u8>>,
    details: Vec<Var<f64>>,
}

/// The result of a frame's last operation.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    /// When the frame was delivered, after it had been encoded.
    pub at: Instant,
    /// A hash of the encoded frame's bytes.
    pub digest: u64,
}

/// A frame whose operations have been pushed.
pub struct Pending {
    pub frame: u64,
    pub delivery: OpHandle<Delivery>,
    pub statistics: Option<OpHandle<Statistics>>,
}

/// The shape of the graph.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The number of slots in the ring.
    pub in_flight: usize,
    /// The number of detail sizes examined by the statistics; 0 means no statistics.
    pub scales: usize,
    /// Whether operations have different priorities.
    pub priorities: bool,
}

/// The variables accessed by the operations of all frames.
pub struct Graph<'e> {
    engine: &'e Engine,
    camera: Var<Camera>,
    ring: Vec<Slot>,
    priorities: bool,
}

impl<'e> Graph<'e> {
    /// Creates the variables without pushing any operations.
    pub fn new(engine: &'e Engine, camera: Camera, plan: Plan) -> Graph<'e> {
        let slot = || Slot {
            raw: engine.var(RgbImage::default()),
            clean: engine.var(RgbImage::default()),
            luma: engine.var(GrayImage::default()),
            gradient: engine.var(Gradient::default()),
            corners: engine.var(Vec::new()),
            picture: engine.var(RgbImage::default()),
            encoded: engine.var(Vec::new()),
            details: (0..plan.scales).map(|_| engine.var(0.0)).collect(),
        };
        Graph {
            engine,
            camera: engine.var(camera),
            ring: (0..plan.in_flight).map(|_| slot()).collect(),
            priorities: plan.priorities,
        }
    }

    /// Pushes all operations of one frame. On an engine with workers, returns without waiting for them.
    ///
    /// If the plan has priorities, a later stage has a higher one, so that the workers prefer finishing a frame to
    /// starting the next, and the statistics have the lowest priority. A running operation is not interrupted, so the
    /// statistics are computed by many short operations instead of one long one.
    ///
    /// All results are declared with `overwrite` rather than `write`: the images of the slot's previous frame are not
    /// used, and that frame's failure does not fail this frame.
    pub fn push_frame(&self, frame: u64) -> Result<Pending, PushError> {
        let slot = &self.ring[self.slot_of(frame)];
        let stage = |name, priority| self.stage(name, priority);

        let (camera, raw) = (self.camera.read(), slot.raw.overwrite());
        stage("camera", 1).try_push((camera, raw), move |(camera, raw)| {
            *raw = camera.capture(frame)?;
            Ok(())
        })?;
        let (raw, clean) = (slot.raw.read(), slot.clean.overwrite());
        stage("denoise", 2).push((raw, clean), |(raw, clean)| {
            *clean = filters::denoise(raw);
        })?;
        let (clean, luma) = (slot.clean.read(), slot.luma.overwrite());
        stage("luma", 3).push((clean, luma), |(clean, luma)| {
            *luma = filters::luma(clean);
        })?;
        let (luma, gradient) = (slot.luma.read(), slot.gradient.overwrite());
        stage("gradient", 4).push((luma, gradient), |(luma, gradient)| {
            *gradient = filters::gradient(luma);
        })?;
        let (luma, corners) = (slot.luma.read(), slot.corners.overwrite());
        stage("corners", 4).push((luma, corners), |(luma, corners)| {
            *corners = filters::corners(luma);
        })?;
        let (clean, gradient) = (slot.clean.read(), slot.gradient.read());
        let (corners, picture) = (slot.corners.read(), slot.picture.overwrite());
        stage("annotate", 5).push((clean, gradient, corners, picture), |(clean, gradient, corners, picture)| {
            *picture = filters::annotate(clean, gradient, corners);
        })?;
        let (picture, encoded) = (slot.picture.read(), slot.encoded.overwrite());
        stage("encode", 6).try_push((picture, encoded), |(picture, encoded)| {
            filters::encode(picture, encoded)?;
            Ok(())
        })?;
        let encoded = slot.encoded.read();
        let delivery =
            stage("deliver", 7).submit(encoded, |encoded| Delivery { at: Instant::now(), digest: digest(encoded) })?;

        Ok(Pending { frame, delivery, statistics: self.push_statistics(slot)? })
    }

    /// Pushes the operations that compute the statistics about the frame in `slot`, if they are wanted.
    fn push_statistics(&self, slot: &Slot) -> Result<Option<OpHandle<Statistics>>, PushError> {
        if slot.details.is_empty() {
            return Ok(None);
        }
        let stage = |name| self.stage(name, -1);

        for (radius, detail) in (1..).zip(&slot.details) {
            let (luma, detail) = (slot.luma.read(), detail.overwrite());
            stage("detail").push((luma, detail), move |(luma, detail)| {
                *detail = filters::detail(luma, radius);
            })?;
        }
        let (raw, clean, luma) = (slot.raw.read(), slot.clean.read(), slot.luma.read());
        // The function receives the list of accesses as a list of references.
        let details: Vec<_> = slot.details.iter().map(Var::read).collect();
        let statistics = stage("statistics").submit((raw, clean, luma, details), |(raw, clean, luma, details)| {
            Statistics::new(raw, clean, luma, details.into_iter().copied().collect())
        })?;
        Ok(Some(statistics))
    }

    /// Returns a frame as captured and as annotated. Must be called before another frame is pushed to the slot.
    pub fn before_and_after(&self, frame: u64) -> Result<(RgbImage, RgbImage), WaitError> {
        let slot = &self.ring[self.slot_of(frame)];
        Ok((self.engine.get(&slot.raw)?, self.engine.get(&slot.picture)?))
    }

    /// Returns the builder of an operation, which has the given priority if the plan has priorities.
    fn stage(&self, name: &'static str, priority: i32) -> OpBuilder<'_> {
        let priority = if self.priorities { priority } else { 0 };
        self.engine.op(name).priority(priority)
    }

    /// Returns a frame's slot; frames take the slots of the ring in turn.
    fn slot_of(&self, frame: u64) -> usize {
        (frame % self.ring.len() as u64) as usize
    }
}

fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::camera::Size;
    use image::Rgb;
    use raddle::EngineKind;

    const FRAMES: u64 = 12;

    fn camera(lose_every: u64) -> Camera {
        let photo = RgbImage::from_fn(48, 40, |x, y| Rgb([(x * x) as u8, (x * y) as u8, (y * y) as u8]));
        let size = Size { width: 32, height: 24 };
        Camera::new(photo, size, lose_every).unwrap()
    }

    /// Returns a frame's expected digest and statistics, computed without the engine, or `None` if the frame is lost.
    fn expected(camera: &Camera, frame: u64) -> Option<(u64, Statistics)> {
        let raw = camera.capture(frame).ok()?;
        let clean = filters::denoise(&raw);
        let luma = filters::luma(&clean);
        let (gradient, corners) = (filters::gradient(&luma), filters::corners(&luma));
        let mut encoded = Vec::new();
        filters::encode(&filters::annotate(&clean, &gradient, &corners), &mut encoded).unwrap();
        let details = vec![filters::detail(&luma, 1), filters::detail(&luma, 2)];
        let statistics = Statistics::new(&raw, &clean, &luma, details);
        Some((digest(&encoded), statistics))
    }

    fn delivered(kind: EngineKind, lose_every: u64) -> Vec<Option<(u64, Statistics)>> {
        let engine = Engine::builder().workers(3).kind(kind).build().unwrap();
        let plan = Plan { in_flight: 2, scales: 2, priorities: true };
        let graph = Graph::new(&engine, camera(lose_every), plan);
        // All frames are pushed without waiting: the engine orders those that share a slot.
        let pending: Vec<Pending> = (0..FRAMES).map(|frame| graph.push_frame(frame).unwrap()).collect();
        pending
            .into_iter()
            .map(|pending| {
                let delivery = pending.delivery.wait().ok()?;
                let statistics = pending.statistics.unwrap().wait().ok()?;
                Some((delivery.digest, statistics))
            })
            .collect()
    }

    #[test]
    fn every_engine_delivers_what_the_filters_return_in_sequence() {
        let camera = camera(0);
        let expected: Vec<_> = (0..FRAMES).map(|n| expected(&camera, n)).collect();
        assert!(expected.iter().all(Option::is_some));
        for kind in [EngineKind::Naive, EngineKind::Pooled, EngineKind::PerDevice] {
            assert_eq!(delivered(kind, 0), expected, "{kind:?}");
        }
    }

    #[test]
    fn a_lost_frame_does_not_spoil_the_ones_that_follow_in_its_slot() {
        let camera = camera(3);
        let expected: Vec<_> = (0..FRAMES).map(|n| expected(&camera, n)).collect();
        assert_eq!(expected.iter().filter(|e| e.is_none()).count(), 4);
        for kind in [EngineKind::Naive, EngineKind::Pooled, EngineKind::PerDevice] {
            assert_eq!(delivered(kind, 3), expected, "{kind:?}");
        }
    }
}
