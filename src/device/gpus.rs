//! An engine's GPUs and their lanes, as seen by all threads. The layer `gpu` serves the lanes.

use std::{collections::VecDeque, sync::Arc};

use super::{
    driver::{Driver, GpuDriver, StreamRole},
    stream::GpuStream,
    timeline::{LANES_PER_GPU, Timeline},
};
use crate::{
    error::device_error::DeviceError,
    scheduler::{IdlePolicy, Lane, LaneOptions, Worker},
    sync::{Mutex, OnceLock, atomic::AtomicBool, lock},
    system::panics,
    tracker::OpRef,
    values::{device::Device, kind::EngineKind},
};

/// The number of the first GPU lane among an engine's lanes. These have numbers of type `u8`, the CPU's lanes first.
/// Where only GPU lanes are meant, they are counted from zero, in a `usize`: see [`gpu_lane`] and [`lane_number`].
pub(crate) const FIRST_LANE: u8 = 4;

/// The maximum number of GPUs in an engine.
pub(crate) const MAX_GPUS: usize = (u8::MAX as usize - FIRST_LANE as usize) / LANES_PER_GPU;

/// Returns the number among the GPU lanes of the engine's lane `lane`, unless that is a lane of the CPU.
pub(crate) fn gpu_lane(lane: u8) -> Option<usize> {
    lane.checked_sub(FIRST_LANE).map(usize::from)
}

/// Returns the number among the engine's lanes of GPU lane `gpu_lane`.
pub(crate) fn lane_number(gpu_lane: usize) -> u8 {
    // The number fits: there are at most `MAX_GPUS` GPUs.
    FIRST_LANE + gpu_lane as u8
}

/// The GPUs of an engine.
pub(crate) struct Gpus<T> {
    pub(crate) gpus: Box<[Gpu]>,
    lanes: Box<[GpuLane<T>]>,
    /// Whether the lanes' threads are pinned to the cores near their devices.
    pub(crate) pins: bool,
    /// The number of lanes of each GPU. In the naive engine, it is 1: there are no lanes, but each GPU takes up one
    /// lane number.
    pub(crate) lanes_each: usize,
}

/// One GPU.
pub(crate) struct Gpu {
    pub(crate) driver: Arc<dyn Driver>,
    /// Why the GPU is lost, if it is.
    lost: OnceLock<DeviceError>,
    /// The naive engine's streams that no operation is using.
    idle: Mutex<Vec<GpuStream>>,
}

/// One GPU lane.
pub(crate) struct GpuLane<T> {
    pub(crate) lane: Arc<Lane<T>>,
    pub(crate) gpu: usize,
    pub(crate) role: StreamRole,
    pub(crate) timeline: Timeline,
    /// Whether a push has taken `worker` for the lane's thread. Readers use this as a hint.
    pub(crate) started: AtomicBool,
    /// The lane's worker, until the first push to the lane takes it.
    pub(crate) worker: Mutex<Option<Box<Worker<T>>>>,
    /// While no thread serves the lane after a recall: the lane's stream, and the operations to be issued next.
    pub(crate) kept: Mutex<Option<(GpuStream, VecDeque<OpRef<T>>)>>,
}

/// The role and the name of each lane of a GPU in an engine of the kind [`PerDevice`](EngineKind::PerDevice).
/// `gpu::route` knows the lanes by their positions.
const LANE_ROLES: [(StreamRole, &str); LANES_PER_GPU] = [
    (StreamRole::CopyIn, "copy-in"),
    (StreamRole::CopyOut, "copy-out"),
    (StreamRole::Compute, "compute"),
    (StreamRole::Urgent, "urgent"),
];

impl<T> Gpus<T> {
    pub(crate) fn new(drivers: Vec<GpuDriver>, kind: EngineKind, idle: IdlePolicy, pins: bool) -> Self {
        let roles: &[(StreamRole, &'static str)] = match kind {
            EngineKind::Naive => &[],
            EngineKind::Pooled => &[(StreamRole::All, "gpu")],
            EngineKind::PerDevice => &LANE_ROLES,
        };
        let lanes = (0..drivers.len()).flat_map(|gpu| roles.iter().map(move |&(role, name)| (gpu, role, name)));
        let lanes = lanes
            .map(|(gpu, role, name)| {
                let (lane, workers) = Lane::new(LaneOptions { name, workers: 1, idle });
                let worker = Mutex::new(workers.into_iter().next().map(Box::new));
                GpuLane {
                    lane,
                    gpu,
                    role,
                    timeline: Timeline::default(),
                    started: AtomicBool::new(false),
                    worker,
                    kept: Mutex::new(None),
                }
            })
            .collect();
        let gpus = drivers
            .into_iter()
            .map(|driver| Gpu { driver: driver.0, lost: OnceLock::new(), idle: Mutex::new(Vec::new()) })
            .collect();
        Self { gpus, lanes, pins, lanes_each: roles.len().max(1) }
    }

    /// Returns the GPU identified by `device`.
    pub(crate) fn gpu(&self, device: Device) -> Option<&Gpu> {
        match device {
            Device::Cpu => None,
            Device::Gpu(number) => self.gpus.get(number as usize),
        }
    }

    /// Returns the lanes of all GPUs.
    pub(crate) fn lanes(&self) -> &[GpuLane<T>] {
        &self.lanes
    }

    /// Returns the number, among the engine's lanes, of the GPU lane whose worker is `worker`.
    pub(crate) fn lane_of(&self, worker: &Worker<T>) -> Option<u8> {
        self.lanes.iter().position(|lane| Arc::ptr_eq(&lane.lane, worker.lane())).map(lane_number)
    }

    /// Returns the device on which operations of the engine's lane `lane` run.
    pub(crate) fn device_of(&self, lane: u8) -> Device {
        gpu_lane(lane).map_or(Device::Cpu, |gpu_lane| Device::Gpu((gpu_lane / self.lanes_each) as u32))
    }

    /// Returns whether the engine has no GPU.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// Schedules `op` on its own lane, GPU lane `gpu_lane`.
    pub(crate) fn schedule(&self, gpu_lane: usize, op: OpRef<T>) {
        self.lanes[gpu_lane].lane.inject(op);
    }

    /// Sends `op` to GPU lane `gpu_lane`, which has issued operations for which `op` waits. The lane takes `op` ahead
    /// of the unissued operations in lower priority bands, none of which `op` depends on.
    pub(crate) fn send(&self, gpu_lane: usize, op: OpRef<T>) {
        self.lanes[gpu_lane].lane.inject_first(op);
    }

    /// Returns why `gpu` is lost, if it is.
    pub(crate) fn lost(&self, gpu: Device) -> Option<&DeviceError> {
        self.gpu(gpu).and_then(|gpu| gpu.lost.get())
    }

    /// Recalls the workers of all lanes so that they can be laid aside.
    pub(crate) fn recall(&self) {
        self.lanes.iter().for_each(|lane| lane.lane.recall());
    }

    /// Undoes a [recall](Self::recall).
    pub(crate) fn resume(&self) {
        self.lanes.iter().for_each(|lane| lane.lane.resume());
    }

    /// Tells the threads of all lanes to end. No operation may be pending.
    pub(crate) fn end(&self) {
        self.lanes.iter().for_each(|lane| lane.lane.end());
    }

    /// Calls [`Lane::end_in_child`] for all lanes.
    pub(crate) fn end_in_child(&self) {
        self.lanes.iter().for_each(|lane| lane.lane.end_in_child());
    }
}

impl Gpu {
    /// Records that the GPU is lost, and returns the error for all later operations.
    pub(crate) fn lose(&self, error: &DeviceError) -> DeviceError {
        // The device is given up before `lost` is set, since a thread that sees the loss may free memory. Every caller
        // gives the device up, even after another thread has done so, since the caller may have issued commands in the
        // meantime.
        self.driver.abandon(error);
        let loss = error.clone().into_loss();
        if self.lost.set(loss.clone()).is_ok() {
            panics::log!(Error, "raddle: {} is lost: {error}", self.driver.name());
        }
        self.lost.get().cloned().unwrap_or(loss)
    }

    /// Takes a stream for the naive engine. The stream must be [returned](Self::return_stream).
    pub(crate) fn take_stream(&self, device: Device) -> GpuStream {
        let idle = lock(&self.idle).pop();
        idle.map(|stream| self.adopt(stream)).unwrap_or_else(|| self.open(StreamRole::All, device))
    }

    /// Opens a stream. If that fails, the GPU is lost and the returned stream is dead.
    pub(crate) fn open(&self, role: StreamRole, device: Device) -> GpuStream {
        match self.driver.open(role) {
            Ok(stream) => GpuStream::new(stream, device),
            Err(error) => GpuStream::dead(self.lose(&error), device),
        }
    }

    /// Prepares the calling thread for a stream that another thread may have used. If that fails, the GPU is lost and
    /// the returned stream is dead.
    pub(crate) fn adopt(&self, mut stream: GpuStream) -> GpuStream {
        match stream.inner().adopt() {
            Ok(()) => stream,
            Err(error) => GpuStream::dead(self.lose(&error), stream.device()),
        }
    }

    pub(crate) fn return_stream(&self, stream: GpuStream) {
        lock(&self.idle).push(stream);
    }
}
