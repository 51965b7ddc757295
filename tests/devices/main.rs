//! Tests of device operations, on the simulated device: order, completion, failure.
//!
//! No test infers from elapsed time what a device has done. Most tests use a manual clock or resume a stalled device.

#![forbid(unsafe_code)]

use raddle_testkit as common;
mod ends;
mod memory;
mod mixed;
mod order;
mod results;
mod stop;
mod streams;
mod waiters;

use std::{fmt::Display, sync::mpsc, thread, time::Duration};

use common::shapes::*;
use common::{Gate, eventually};
use raddle::{
    Device, Engine, EngineBuilder, EngineKind, Var,
    gpu::{DeviceVec, GpuStream, PinnedVec, SimulatedGpu, SimulatedStream, simulated::Clock},
};

const GPU: Device = Device::Gpu(0);
const OTHER: Device = Device::Gpu(1);

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn builder(kind: EngineKind) -> EngineBuilder {
    Engine::builder().kind(kind).workers(2).pin(false)
}

/// Returns an engine of `kind` with one GPU.
fn engine(kind: EngineKind, gpu: &SimulatedGpu) -> Engine {
    builder(kind).gpu(gpu.clone()).build().expect("an engine")
}

/// Returns a GPU with a manual clock and no latency. A kernel takes a millisecond; a copy takes a millisecond per 1,000
/// bytes.
fn manual() -> SimulatedGpu {
    SimulatedGpu::builder()
        .copy_in_bandwidth(1_000_000)
        .copy_out_bandwidth(1_000_000)
        .launch_latency(Duration::ZERO)
        .kernel_time(ms(1))
        .clock(Clock::Manual)
        .build()
}

/// Returns a GPU that picks its next command at random whenever it is polled.
fn random(seed: u64) -> SimulatedGpu {
    SimulatedGpu::builder().clock(Clock::Instantly).seed(seed).build()
}

fn simulated(stream: &mut GpuStream) -> SimulatedStream<'_> {
    stream.simulated().expect("the device should be a simulated one")
}

fn device(engine: &Engine, len: usize) -> Var<DeviceVec<u64>> {
    engine.device_var(GPU, len).expect("there is memory")
}

fn pinned(engine: &Engine, len: usize) -> Var<PinnedVec<u64>> {
    engine.pinned_var(GPU, len).expect("there is memory")
}

/// Pushes a kernel that mutates `var`.
#[track_caller]
fn kernel(engine: &Engine, name: &'static str, var: &Var<DeviceVec<u64>>, f: impl FnOnce(&mut [u64]) + Send + 'static) {
    let pushed = engine
        .op(name)
        .on(GPU)
        .launch_any(var.write(), move |stream, var| simulated(stream).launch(Duration::ZERO, var, f));
    pushed.expect("the engine should be open");
}

/// Pushes a kernel that reads `var`.
#[track_caller]
fn reading_kernel(engine: &Engine, name: &'static str, var: &Var<DeviceVec<u64>>) {
    let launch = |stream: &mut GpuStream, var: &_| simulated(stream).launch(Duration::ZERO, var, |_| {});
    engine.op(name).on(GPU).launch_any(var.read(), launch).expect("the engine should be open");
}

/// Pushes a kernel that reads `from` and mutates `to`.
#[track_caller]
fn kernel_from(
    engine: &Engine,
    name: &'static str,
    property: Property,
    from: &Var<DeviceVec<u64>>,
    to: &Var<DeviceVec<u64>>,
    f: impl FnOnce(&[u64], &mut [u64]) + Send + 'static,
) {
    let launch = move |stream: &mut GpuStream, (from, to): (&DeviceVec<u64>, &mut DeviceVec<u64>)| {
        simulated(stream).launch(Duration::ZERO, (from, to), move |(from, to)| f(from, to))
    };
    let pushed = engine.op(name).on(GPU).kind(property).launch_any((from.read(), to.write()), launch);
    pushed.expect("the engine should be open");
}

/// Pushes operations that write `values` to `var` through a new pinned variable.
fn upload(engine: &Engine, var: &Var<DeviceVec<u64>>, values: Vec<u64>) {
    let host = pinned(engine, values.len());
    engine.op("fill").push(host.write(), move |host| host.copy_from_slice(&values)).expect("the engine should be open");
    engine.op("upload").on(GPU).copy_to_device(&host, var).expect("the engine should be open");
}

/// Returns the values of `var`, copied through a new pinned variable.
fn download(engine: &Engine, var: &Var<DeviceVec<u64>>, len: usize) -> Vec<u64> {
    let host = pinned(engine, len);
    engine.op("download").on(GPU).copy_from_device(var, &host).expect("the engine should be open");
    let read = engine.op("look").submit(host.read(), |host| host.to_vec()).expect("the engine should be open");
    read.wait().expect("no operation should fail")
}

/// Blocks the lane of `property`. Once it is blocked, returns a gate that lets the lane continue.
fn hold_lane(engine: &Engine, property: Property) -> Gate {
    let (gate, started) = (Gate::new(), Gate::new());
    let (inside, at) = (gate.clone(), started.clone());
    let token = engine.token();
    let hold = engine.op("hold the lane").on(GPU).kind(property).writes([&token]).push_sync(move |_| {
        at.open();
        inside.pass();
    });
    hold.expect("the engine should be open");
    started.pass();
    gate
}

/// Waits until `launches` kernels and `copies` copies have been issued. Panics if there are more.
fn issued(gpu: &SimulatedGpu, launches: u64, copies: u64) {
    eventually("everything is issued", || {
        let counts = gpu.counts();
        assert!(counts.launches <= launches && counts.copies <= copies, "{counts:?}");
        (counts.launches, counts.copies) == (launches, copies)
    });
}

/// Sends the name of the calling thread.
fn send_thread_name(to: &mpsc::Sender<String>) {
    to.send(thread::current().name().unwrap_or_default().to_owned()).expect("the test should receive the name");
}

/// Receives the name of a thread, and asserts that the thread is a worker of an engine rather than one of a GPU lane.
#[track_caller]
fn assert_sent_by_worker(names: &mpsc::Receiver<String>, what: impl Display) {
    let name = names.recv().expect("a thread should send its name");
    assert!(name.starts_with("raddle-") && !name.starts_with("raddle-gpu"), "{what}: {name}");
}
