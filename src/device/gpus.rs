//! The GPUs of an engine and their lanes, as everybody sees them; who serves a lane is above.

use std::sync::Arc;

use super::{
    driver::{Driver, GpuDriver, Role},
    stream::GpuStream,
    timeline::{LANES_PER_GPU, Timeline},
};
use crate::{
    error::device::DeviceError,
    scheduler::{IdlePolicy, Lane, LaneOptions, Worker},
    sync::{Mutex, OnceLock, atomic::AtomicBool, lock},
    system::panics,
    tracker::OpRef,
    values::{device::Device, kind::EngineKind},
};

/// The number of the first lane of a device, among those of an engine.
pub(crate) const FIRST_LANE: u8 = 4;

/// GPUs of one engine at most.
pub(crate) const MAX_GPUS: usize = (u8::MAX as usize - FIRST_LANE as usize) / LANES_PER_GPU;

/// The GPUs of an engine.
pub(crate) struct Gpus<T> {
    pub(crate) gpus: Box<[Gpu]>,
    lanes: Box<[GpuLane<T>]>,
    /// Whether the lanes' threads stay near their devices.
    pub(crate) pins: bool,
    /// Lanes of each GPU, one in the naive engine, where no thread serves it.
    pub(crate) lanes_each: usize,
}

/// One GPU.
pub(crate) struct Gpu {
    pub(crate) driver: Arc<dyn Driver>,
    /// It does nothing any more, since this happened.
    lost: OnceLock<DeviceError>,
    /// The naive engine's streams that nobody uses now.
    idle: Mutex<Vec<GpuStream>>,
}

/// One lane of a GPU.
pub(crate) struct GpuLane<T> {
    pub(crate) lane: Arc<Lane<T>>,
    pub(crate) gpu: usize,
    pub(crate) role: Role,
    pub(crate) timeline: Timeline,
    /// Whether the lane's thread is started, for pushers that only look.
    pub(crate) started: AtomicBool,
    /// Until the lane's thread is started.
    pub(crate) worker: Mutex<Option<Box<Worker<T>>>>,
}

/// What each lane of a GPU is for, and its name.
const ROLES: [(Role, &str); LANES_PER_GPU] =
    [(Role::CopyIn, "copy-in"), (Role::CopyOut, "copy-out"), (Role::Compute, "compute"), (Role::Urgent, "urgent")];

impl<T> Gpus<T> {
    pub(crate) fn new(drivers: Vec<GpuDriver>, kind: EngineKind, idle: IdlePolicy, pins: bool) -> Self {
        let roles: &[(Role, &'static str)] = match kind {
            EngineKind::Naive => &[],
            EngineKind::Pooled => &[(Role::All, "gpu")],
            EngineKind::PerDevice => &ROLES,
        };
        let lanes = (0..drivers.len()).flat_map(|gpu| roles.iter().map(move |&(role, name)| (gpu, role, name)));
        let lanes = lanes
            .map(|(gpu, role, name)| {
                let (lane, workers) = Lane::new(LaneOptions { name, workers: 1, idle });
                let worker = Mutex::new(workers.into_iter().next().map(Box::new));
                GpuLane { lane, gpu, role, timeline: Timeline::default(), started: AtomicBool::new(false), worker }
            })
            .collect();
        let gpus = drivers
            .into_iter()
            .map(|driver| Gpu { driver: driver.0, lost: OnceLock::new(), idle: Mutex::new(Vec::new()) })
            .collect();
        Self { gpus, lanes, pins, lanes_each: roles.len().max(1) }
    }

    /// The GPU that a context names.
    pub(crate) fn gpu(&self, context: Device) -> Option<&Gpu> {
        match context {
            Device::Cpu => None,
            Device::Gpu(number) => self.gpus.get(number as usize),
        }
    }

    /// The lanes of all GPUs.
    pub(crate) fn lanes(&self) -> &[GpuLane<T>] {
        &self.lanes
    }

    /// The device that operations of `lane` run on.
    pub(crate) fn context_of(&self, lane: u8) -> Device {
        match lane.checked_sub(FIRST_LANE) {
            Some(number) => Device::Gpu(u32::from(number) / self.lanes_each as u32),
            None => Device::Cpu,
        }
    }

    /// Whether the engine has none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// Gives `op` to its own lane, which has this number among those of the engine.
    pub(crate) fn schedule(&self, lane: u8, op: OpRef<T>) {
        self.lanes[usize::from(lane - FIRST_LANE)].lane.inject(op);
    }

    /// Sends `op` to a lane of a device that it waits for. There it is looked at before what is to be issued, since it has
    /// nothing to do with that.
    pub(crate) fn send(&self, number: usize, op: OpRef<T>) {
        self.lanes[number].lane.inject_first(op);
    }

    /// What has made an end of `gpu`.
    pub(crate) fn lost(&self, gpu: Device) -> Option<&DeviceError> {
        self.gpu(gpu).and_then(|gpu| gpu.lost.get())
    }

    /// Lets the threads of all lanes end. To be called when nothing is pending.
    pub(crate) fn end(&self) {
        self.lanes.iter().for_each(|lane| lane.lane.end());
    }

    /// As [`Lane::end_in_child`].
    pub(crate) fn end_in_child(&self) {
        self.lanes.iter().for_each(|lane| lane.lane.end_in_child());
    }
}

impl Gpu {
    /// Notes that the GPU does nothing any more; gives the loss that everybody is told of.
    pub(crate) fn lose(&self, error: &DeviceError) -> DeviceError {
        // Before whoever sees the loss gives memory back. Everybody who finds it waits there, for what it has issued itself.
        self.driver.abandon(error);
        let loss = error.clone().into_loss();
        if self.lost.set(loss.clone()).is_ok() {
            panics::log!(Error, "raddle: {} is lost: {error}", self.driver.name());
        }
        self.lost.get().cloned().unwrap_or(loss)
    }

    /// A stream for the naive engine, to be given to [`put_back`](Self::put_back).
    pub(crate) fn take_stream(&self, context: Device) -> GpuStream {
        let idle = lock(&self.idle).pop();
        idle.unwrap_or_else(|| match self.driver.open(Role::All) {
            Ok(stream) => GpuStream::new(stream, context),
            Err(error) => GpuStream::dead(self.lose(&error), context),
        })
    }

    pub(crate) fn put_back(&self, stream: GpuStream) {
        lock(&self.idle).push(stream);
    }
}
