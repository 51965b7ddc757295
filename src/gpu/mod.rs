//! The GPUs of an engine: their lanes, each with a thread and a stream of its own, and how operations of the CPU and of
//! devices come after one another.
//!
//! A device operation that is ready goes to its lane, whose thread calls its function with the lane's stream and passes
//! its variables on at once ([`issuer`]). What the device still has to do is noted on the variables ([`marks`]). An
//! operation that must not run before that is done, because it is the CPU's, another device's, or uses a value in the
//! host's memory, is *sent* to the lane that it waits for; that lane watches its stream, and sends it back.

use std::sync::Arc;

use crate::{
    context,
    core::Core,
    device::{Context, DeviceError, Driver, GpuDriver, Role},
    error::PushError,
    kind::EngineKind,
    panics,
    property::Property,
    scheduler::{IdlePolicy, Lane, LaneOptions, Worker},
    sync::{Mutex, OnceLock, Ordering::Relaxed, atomic::AtomicBool, lock},
    task::Task,
    tracker::OpRef,
    trouble::Turns,
};

mod issuer;
pub(crate) mod marks;
mod stream;

pub use stream::{GpuStream, ImportedStream};

use marks::{LANES_PER_GPU, Timeline};

/// The number of the first lane of a device, among those of an engine.
pub(crate) const FIRST_LANE: u8 = 4;

/// GPUs of one engine at most.
pub(crate) const MAX_GPUS: usize = (u8::MAX as usize - FIRST_LANE as usize) / LANES_PER_GPU;

/// The GPUs of an engine.
pub(crate) struct Gpus {
    gpus: Box<[Gpu]>,
    lanes: Box<[GpuLane]>,
    /// Whether the lanes' threads stay near their devices.
    pins: bool,
    /// Lanes of each GPU, one in the naive engine, where no thread serves it.
    lanes_each: usize,
    /// Taken by whoever reads or changes the failure of a variable that may be on its way through several streams.
    turns: Turns,
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
pub(crate) struct GpuLane {
    lane: Arc<Lane<Task>>,
    gpu: usize,
    role: Role,
    pub(crate) timeline: Timeline,
    /// Whether the lane's thread is started, for pushers that only look.
    started: AtomicBool,
    /// Until the lane's thread is started.
    worker: Mutex<Option<Box<Worker<Task>>>>,
}

/// What each lane of a GPU is for, and its name.
const ROLES: [(Role, &str); LANES_PER_GPU] =
    [(Role::CopyIn, "copy-in"), (Role::CopyOut, "copy-out"), (Role::Compute, "compute"), (Role::Urgent, "urgent")];

impl Gpus {
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
        Self { gpus, lanes, pins, lanes_each: roles.len().max(1), turns: Turns::default() }
    }

    /// The GPU that a context names.
    pub(crate) fn gpu(&self, context: Context) -> Option<&Gpu> {
        match context {
            Context::Cpu => None,
            Context::Gpu(number) => self.gpus.get(number as usize),
        }
    }

    /// The lanes of all GPUs.
    pub(crate) fn lanes(&self) -> &[GpuLane] {
        &self.lanes
    }

    /// The lane for operations with `property` on `gpu`, by its number among those of the engine, with its thread
    /// started.
    pub(crate) fn route(&self, core: &Arc<Core>, context: Context, property: Property) -> Result<u8, PushError> {
        let refused = || PushError::NoSuchDevice(context);
        let Context::Gpu(gpu) = context else { return Err(refused()) };
        if self.gpu(context).is_none() {
            return Err(refused());
        }
        let role = match property {
            // These name threads of the CPU; what a device does is issued by its own.
            Property::CpuPrioritized | Property::Async => return Err(PushError::NotOfDevice(property)),
            _ if self.lanes_each < LANES_PER_GPU => 0,
            Property::CopyToGpu => 0,
            Property::CopyFromGpu => 1,
            Property::GpuPrioritized => 3,
            _ => 2,
        };
        let number = gpu as usize * self.lanes_each + role;
        if let Some(lane) = self.lanes.get(number) {
            lane.start(core, number).map_err(|error| {
                context::enter_after(core, || {
                    panics::log!(Warn, "raddle: the thread of a device's lane could not be started: {error}");
                });
                PushError::DeviceUnavailable(context)
            })?;
        }
        // It fits: there are at most `MAX_GPUS`.
        Ok(FIRST_LANE + number as u8)
    }

    /// The device that operations of `lane` run on.
    pub(crate) fn context_of(&self, lane: u8) -> Context {
        match lane.checked_sub(FIRST_LANE) {
            Some(number) => Context::Gpu(u32::from(number) / self.lanes_each as u32),
            None => Context::Cpu,
        }
    }

    /// Whether the engine has none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// Gives `op` to its own lane.
    pub(crate) fn schedule(&self, op: OpRef<Task>) {
        let lane = usize::from(op.task().lane - FIRST_LANE);
        self.lanes[lane].lane.inject(op);
    }

    /// Sends `op` to a lane of a device that it waits for. There it is looked at before what is to be issued, since it has
    /// nothing to do with that.
    pub(crate) fn send(&self, number: usize, op: OpRef<Task>) {
        self.lanes[number].lane.inject_first(op);
    }

    /// What has made an end of `gpu`.
    pub(crate) fn lost(&self, gpu: Context) -> Option<&DeviceError> {
        self.gpu(gpu).and_then(|gpu| gpu.lost.get())
    }

    /// The turns of whoever reads or changes the failure of a variable that may be on a device.
    pub(crate) fn turns(&self) -> &Turns {
        &self.turns
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
    pub(crate) fn take_stream(&self, context: Context) -> GpuStream {
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

impl GpuLane {
    /// Starts the lane's thread unless that was done.
    fn start(&self, core: &Arc<Core>, number: usize) -> std::io::Result<()> {
        // Relaxed: the lane takes what is sent before its thread runs as well.
        if self.started.load(Relaxed) || core.crew().has_ended() {
            return Ok(());
        }
        let mut place = lock(&self.worker);
        let Some(worker) = place.take() else { return Ok(()) };
        let name = format!("raddle-gpu{}-{}", self.gpu, self.lane.name());
        let for_thread = Arc::clone(core);
        let main = move |worker: Box<_>, _| issuer::serve(&for_thread, number, *worker);
        match core.crew().spawn_with(name, worker, main) {
            Ok(()) => {
                // Relaxed: as above.
                self.started.store(true, Relaxed);
                Ok(())
            }
            Err((error, worker)) => {
                *place = worker;
                Err(error)
            }
        }
    }
}
