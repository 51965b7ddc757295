//! The lanes of GPUs, each with a thread and a stream of its own, and how operations of the CPU and of devices come after
//! one another.
//!
//! A device operation that is ready goes to its lane, whose thread calls its function with the lane's stream and passes
//! its variables on at once ([`issuer`]). What the device still has to do is noted on the variables
//! ([`timeline`](crate::device::timeline)). An operation that must not run before that is done, because it is the CPU's,
//! another device's, or uses a value in the host's memory, is *sent* to the lane that it waits for; that lane watches its
//! stream, and sends it back.

use std::sync::Arc;

use crate::{
    device::{
        gpus::{FIRST_LANE, GpuLane},
        timeline::LANES_PER_GPU,
    },
    engine::{core::Core, frame, task::Task},
    error::push::PushError,
    sync::{Ordering::Relaxed, lock},
    system::panics,
    values::{device::Device, property::Property},
};

mod issuer;

/// The lane for operations with `property` on `gpu`, by its number among those of the engine, with its thread started.
pub(crate) fn route(core: &Arc<Core>, context: Device, property: Property) -> Result<u8, PushError> {
    let gpus = core.gpus();
    let refused = || PushError::NoSuchDevice(context);
    let Device::Gpu(gpu) = context else { return Err(refused()) };
    if gpus.gpu(context).is_none() {
        return Err(refused());
    }
    let role = match property {
        // It names threads of the CPU; what a device does is issued by its own.
        Property::CpuPrioritized => return Err(PushError::NotOfDevice(property)),
        _ if gpus.lanes_each < LANES_PER_GPU => 0,
        Property::CopyToGpu => 0,
        Property::CopyFromGpu => 1,
        Property::GpuPrioritized => 3,
        _ => 2,
    };
    let number = gpu as usize * gpus.lanes_each + role;
    if let Some(lane) = gpus.lanes().get(number) {
        start(lane, core, number).map_err(|error| {
            frame::enter_after(core, || {
                panics::log!(Warn, "raddle: the thread of a device's lane could not be started: {error}");
            });
            PushError::DeviceUnavailable(context)
        })?;
    }
    // It fits: there are at most `MAX_GPUS`.
    Ok(FIRST_LANE + number as u8)
}

/// Starts the thread of a lane unless that was done.
fn start(lane: &GpuLane<Task>, core: &Arc<Core>, number: usize) -> std::io::Result<()> {
    // Relaxed: the lane takes what is sent before its thread runs as well.
    if lane.started.load(Relaxed) || core.threads().has_ended() {
        return Ok(());
    }
    let mut place = lock(&lane.worker);
    let Some(worker) = place.take() else { return Ok(()) };
    let name = format!("raddle-gpu{}-{}", lane.gpu, lane.lane.name());
    let for_thread = Arc::clone(core);
    let main = move |worker: Box<_>, _| issuer::serve(&for_thread, number, *worker);
    match core.threads().spawn_with(name, worker, main) {
        Ok(()) => {
            // Relaxed: as above.
            lane.started.store(true, Relaxed);
            Ok(())
        }
        Err((error, worker)) => {
            *place = worker;
            Err(error)
        }
    }
}
