//! The graph of operations: the variables that each operation reads and writes.
//!
//! ```text
//! capture ─► input ═► copy in ═► raw ─┬─► smooth ─► smoothed ─┬─► tone ─► toned ═► copy out ═► output ─► deliver
//!                                     └───────────────────────┘
//! ```
//!
//! No code here waits, records an event or checks whether a buffer is free. The chunks take the slots of a ring in
//! turn, and the engine derives the rest: that a chunk may be copied in while the kernels process its predecessor and
//! the chunk before that is copied out; that `capture` must not write to memory that the device still copies from; that
//! `deliver` must wait for the device; and that `tone` need not wait for the device, since its stream runs it in order
//! after `smooth`.

use std::{sync::Arc, time::Duration, time::Instant};

use raddle::{
    Device, Engine, OpHandle, PushError, Var,
    error::{BoxError, DeviceError},
    gpu::{DeviceVec, GpuStream, PinnedVec},
    stream,
};

use crate::kernels;

/// The engine's only GPU.
pub const GPU: Device = Device::Gpu(0);

/// The data of a chunk, and its expected result.
#[derive(Debug)]
pub struct Scene {
    pub raw: Vec<u8>,
    pub expected: Vec<u8>,
}

/// The kernels, for either kind of device.
#[derive(Debug)]
pub enum Kernels {
    /// Closures that each take this long on the simulated device.
    Simulated(Duration),
    #[cfg(feature = "cuda")]
    Cuda(kernels::cuda::Kernels),
}

impl Kernels {
    fn smooth(
        &self,
        stream: &mut GpuStream,
        raw: &DeviceVec<u8>,
        smoothed: &mut DeviceVec<u8>,
    ) -> Result<(), BoxError> {
        match self {
            Self::Simulated(time) => simulated(stream, |gpu| {
                gpu.launch(*time, (raw, smoothed), |(raw, smoothed)| kernels::smooth(raw, smoothed))
            }),
            #[cfg(feature = "cuda")]
            Self::Cuda(kernels) => Ok(kernels.smooth(stream, raw, smoothed)?),
        }
    }

    fn tone(
        &self,
        stream: &mut GpuStream,
        raw: &DeviceVec<u8>,
        smoothed: &DeviceVec<u8>,
        toned: &mut DeviceVec<u8>,
    ) -> Result<(), BoxError> {
        match self {
            Self::Simulated(time) => simulated(stream, |gpu| {
                gpu.launch(*time, (raw, smoothed, toned), |(raw, smoothed, toned)| kernels::tone(raw, smoothed, toned))
            }),
            #[cfg(feature = "cuda")]
            Self::Cuda(kernels) => Ok(kernels.tone(stream, raw, smoothed, toned)?),
        }
    }
}

fn simulated(
    stream: &mut GpuStream,
    launch: impl FnOnce(&mut raddle::gpu::SimulatedStream<'_>) -> Result<(), DeviceError>,
) -> Result<(), BoxError> {
    let mut gpu = stream.simulated().expect("the engine's only GPU should be a simulated one");
    Ok(launch(&mut gpu)?)
}

/// A slot of the ring: the buffers that a chunk passes through.
struct Slot {
    input: Var<PinnedVec<u8>>,
    raw: Var<DeviceVec<u8>>,
    smoothed: Var<DeviceVec<u8>>,
    toned: Var<DeviceVec<u8>>,
    output: Var<PinnedVec<u8>>,
}

/// The result of a chunk's last operation.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    pub at: Instant,
    pub correct: bool,
}

/// A chunk whose operations have been pushed.
#[derive(Debug)]
pub struct Pending {
    /// When the chunk was captured.
    pub captured: OpHandle<Instant>,
    pub delivery: OpHandle<Delivery>,
}

/// The variables accessed by the operations of all chunks.
pub struct Pipeline<'e> {
    engine: &'e Engine,
    kernels: Arc<Kernels>,
    scenes: Arc<[Scene]>,
    ring: Vec<Slot>,
}

impl<'e> Pipeline<'e> {
    /// Allocates the buffers of `buffers` slots without pushing any operations.
    pub fn new(
        engine: &'e Engine,
        kernels: Kernels,
        scenes: Arc<[Scene]>,
        buffers: usize,
    ) -> Result<Self, DeviceError> {
        let bytes = scenes[0].raw.len();
        let slot = |_| {
            Ok(Slot {
                input: engine.pinned_var(GPU, bytes)?,
                raw: engine.device_var(GPU, bytes)?,
                smoothed: engine.device_var(GPU, bytes)?,
                toned: engine.device_var(GPU, bytes)?,
                output: engine.pinned_var(GPU, bytes)?,
            })
        };
        let ring = (0..buffers).map(slot).collect::<Result<_, DeviceError>>()?;
        Ok(Self { engine, kernels: Arc::new(kernels), scenes, ring })
    }

    /// Pushes all operations of one chunk. On an engine with workers, returns without waiting for them.
    ///
    /// All results are declared with `overwrite` rather than `write`: the data of the slot's previous chunk are not
    /// used, and that chunk's failure does not fail this chunk.
    pub fn push(&self, chunk: usize) -> Result<Pending, PushError> {
        let captured = self.capture(chunk)?;
        self.copy_in(chunk)?;
        self.compute(chunk)?;
        self.copy_out(chunk)?;
        Ok(Pending { captured, delivery: self.deliver(chunk)? })
    }

    // The steps are separate functions, so that each can be timed alone.

    pub fn capture(&self, chunk: usize) -> Result<OpHandle<Instant>, PushError> {
        let (slot, scenes) = (self.slot(chunk), Arc::clone(&self.scenes));
        self.engine.op("capture").submit(slot.input.overwrite(), move |input| {
            input.copy_from_slice(&scenes[chunk % scenes.len()].raw);
            Instant::now()
        })
    }

    pub fn copy_in(&self, chunk: usize) -> Result<(), PushError> {
        let slot = self.slot(chunk);
        self.engine.op("copy in").on(GPU).copy_to_device(&slot.input, &slot.raw)
    }

    pub fn compute(&self, chunk: usize) -> Result<(), PushError> {
        let slot = self.slot(chunk);
        let kernels = Arc::clone(&self.kernels);
        let accesses = (slot.raw.read(), slot.smoothed.overwrite());
        self.engine
            .op("smooth")
            .on(GPU)
            .try_push((accesses, stream()), move |((raw, smoothed), stream)| kernels.smooth(stream, raw, smoothed))?;
        let kernels = Arc::clone(&self.kernels);
        let accesses = (slot.raw.read(), slot.smoothed.read(), slot.toned.overwrite());
        self.engine.op("tone").on(GPU).try_push((accesses, stream()), move |((raw, smoothed, toned), stream)| {
            kernels.tone(stream, raw, smoothed, toned)
        })
    }

    pub fn copy_out(&self, chunk: usize) -> Result<(), PushError> {
        let slot = self.slot(chunk);
        self.engine.op("copy out").on(GPU).copy_from_device(&slot.toned, &slot.output)
    }

    pub fn deliver(&self, chunk: usize) -> Result<OpHandle<Delivery>, PushError> {
        let (slot, scenes) = (self.slot(chunk), Arc::clone(&self.scenes));
        self.engine.op("deliver").submit(slot.output.read(), move |output| {
            let at = Instant::now();
            Delivery { at, correct: **output == *scenes[chunk % scenes.len()].expected }
        })
    }

    fn slot(&self, chunk: usize) -> &Slot {
        &self.ring[chunk % self.ring.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::WIDTH;
    use raddle::{
        EngineKind,
        gpu::{SimulatedGpu, simulated::Clock},
    };

    const KINDS: [EngineKind; 3] = [EngineKind::Naive, EngineKind::Pooled, EngineKind::PerDevice];

    /// Returns different chunks of four rows each.
    fn scenes() -> Vec<Scene> {
        let raw = |n: usize| (0..4 * WIDTH).map(|i| (i * (n + 3) / 2 + n * 40) as u8).collect::<Vec<_>>();
        (0..5).map(raw).map(|raw| Scene { expected: kernels::reference(&raw), raw }).collect()
    }

    fn deliveries(kind: EngineKind, gpu: &SimulatedGpu, scenes: Vec<Scene>, chunks: usize) -> Vec<Option<bool>> {
        let engine = Engine::builder().kind(kind).workers(2).pin(false).gpu(gpu.clone()).build().unwrap();
        let kernels = Kernels::Simulated(Duration::from_micros(5));
        let pipeline = Pipeline::new(&engine, kernels, scenes.into(), 2).unwrap();
        // All chunks are pushed without waiting: the engine orders those that share a slot.
        let pending: Vec<_> = (0..chunks).map(|chunk| pipeline.push(chunk).unwrap()).collect();
        pending.into_iter().map(|pending| pending.delivery.wait().ok().map(|delivery| delivery.correct)).collect()
    }

    #[test]
    fn every_engine_delivers_the_expected_bytes() {
        for kind in KINDS {
            for seed in 0..4 {
                let gpu = SimulatedGpu::builder().clock(Clock::Instantly).seed(seed).build();
                assert_eq!(deliveries(kind, &gpu, scenes(), 24), [Some(true); 24], "{kind} {seed}");
            }
        }
    }

    #[test]
    fn a_byte_that_differs_is_detected() {
        let mut scenes = scenes();
        scenes[3].expected[WIDTH + 1] ^= 1;
        let found = deliveries(EngineKind::PerDevice, &SimulatedGpu::default(), scenes, 10);
        let wrong: Vec<_> = (0..10).filter(|&chunk| found[chunk] == Some(false)).collect();
        assert_eq!(wrong, [3, 8]);
    }

    #[test]
    fn a_device_that_is_lost_halfway_fails_the_rest_without_a_hang() {
        for kind in KINDS {
            let gpu = SimulatedGpu::default();
            // A chunk has two copies and two kernels.
            gpu.fail_at(4 * 6);
            let found = deliveries(kind, &gpu, scenes(), 12);
            assert!(found.contains(&None), "{kind} {found:?}");
            assert!(!found.contains(&Some(false)), "{kind} {found:?}");
        }
    }
}
