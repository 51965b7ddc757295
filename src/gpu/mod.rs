//! GPUs: real and simulated devices, the streams on which operations issue work, and values in device memory.
//!
//! [`EngineBuilder::gpu`](crate::EngineBuilder::gpu) gives a GPU to an engine: a [`SimulatedGpu`], or a `CudaGpu` in
//! builds with the feature `cuda`. The function of an operation that declares [`stream()`](crate::stream()) receives a
//! [`GpuStream`]. [`DeviceVec`]s are in the memory of a device, and [`PinnedVec`]s in host memory that devices copy to
//! and from directly. The [guide](crate::guide::gpus) has a chapter on GPUs.

use std::{io, sync::Arc};

use crate::{
    device::{
        gpus::{GpuLane, gpu_lane, lane_number},
        timeline::LANES_PER_GPU,
    },
    engine::{core::Core, stop},
    error::push_error::{Misfit, PushError},
    op::{frame, task::Task},
    sync::{Ordering::Relaxed, lock},
    system::panics,
    threads::thread_pool::BoxedWorker,
    values::{device::Device, property::Property},
};

mod backoff;
mod issuer;

#[cfg(feature = "cuda")]
pub use crate::device::cuda::CudaGpu;
pub use crate::device::{
    driver::GpuDriver,
    memory::{DeviceVec, PinnedVec},
    simulated::{self, SimulatedGpu, SimulatedStream},
    stream::{GpuStream, ImportedStream},
};
/// The version of cudarc that [`CudaGpu`] is built on.
///
/// cudarc is a 0.x crate, so a new minor version can break programs that use this re-export. Adopting such a version is
/// therefore a breaking change of this crate too. A program that needs another version of cudarc must depend on it
/// directly.
#[cfg(feature = "cuda")]
pub use cudarc;

/// Returns the lane for operations with `property` on `device`, as its number among the engine's lanes. Starts the
/// lane's thread if necessary.
pub(crate) fn route(core: &Arc<Core>, device: Device, property: Property) -> Result<u8, PushError> {
    let gpus = core.gpus();
    let refused = || PushError::NoSuchDevice(device);
    let Device::Gpu(gpu) = device else { return Err(refused()) };
    if gpus.gpu(device).is_none() {
        return Err(refused());
    }
    // The positions are those in `LANE_ROLES`; an engine of another kind has one lane for everything.
    let role = match property {
        // The property selects threads of the CPU, but the lane's own thread issues the work of a device.
        Property::CpuPrioritized => return Err(PushError::Unfit(Misfit::NotOfDevice(property))),
        _ if gpus.lanes_each < LANES_PER_GPU => 0,
        Property::CopyToGpu => 0,
        Property::CopyFromGpu => 1,
        Property::GpuPrioritized => 3,
        _ => 2,
    };
    let gpu_lane = gpu as usize * gpus.lanes_each + role;
    if let Some(lane) = gpus.lanes().get(gpu_lane) {
        start(lane, core).map_err(|error| {
            frame::enter_after(core, || {
                panics::log!(Warn, "raddle: the thread of a device lane could not be started: {error}");
            });
            PushError::DeviceUnavailable(device)
        })?;
    }
    Ok(lane_number(gpu_lane))
}

/// Starts a lane's thread, unless an earlier push has taken its worker.
fn start(lane: &GpuLane<Task>, core: &Arc<Core>) -> io::Result<()> {
    // Relaxed: a lane accepts operations even before its thread runs.
    if lane.started.load(Relaxed) || core.threads().has_ended() {
        return Ok(());
    }
    let mut place = lock(&lane.worker);
    let Some(worker) = place.take() else { return Ok(()) };
    match stop::begin_lane(core, worker) {
        Ok(()) => {
            // Relaxed: as for the load.
            lane.started.store(true, Relaxed);
            Ok(())
        }
        Err((error, worker)) => {
            *place = worker;
            Err(error)
        }
    }
}

/// Starts a thread that serves the engine's lane `lane`, a GPU lane. The lane's worker is used by [`issuer::serve`], so
/// the thread does not have it as its own. If the thread cannot be started, returns the worker.
pub(crate) fn serve(
    core: &Arc<Core>,
    lane: u8,
    worker: BoxedWorker<Task>,
) -> Result<(), (io::Error, Option<BoxedWorker<Task>>)> {
    let Some(gpu_lane) = gpu_lane(lane) else { unreachable!("lane {lane} is of the CPU") };
    let GpuLane { gpu, lane, .. } = &core.gpus().lanes()[gpu_lane];
    let name = format!("raddle-gpu{gpu}-{}", lane.name());
    let for_thread = Arc::clone(core);
    core.threads().spawn_named(name, worker, move |worker| issuer::serve(&for_thread, gpu_lane, worker))
}
