//! The simulated device on one thread, mostly with a clock that the test moves.

use std::sync::Arc;

use super::*;
use crate::device::{DeviceVec, PinnedVec};

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A device without latency, whose copies take a millisecond per 1000 bytes, with a clock that the test moves.
fn builder() -> Builder {
    SimulatedGpu::builder()
        .copy_in_bandwidth(1_000_000)
        .copy_out_bandwidth(1_000_000)
        .launch_latency(Duration::ZERO)
        .kernel_time(ms(1))
        .clock(Clock::Manual)
}

fn open(gpu: &SimulatedGpu, role: Role) -> Box<dyn Stream> {
    gpu.open(role).expect("the device is there")
}

fn pinned(gpu: &SimulatedGpu, values: &[u32]) -> PinnedVec<u32> {
    let driver: Arc<dyn Driver> = Arc::new(gpu.clone());
    let mut vec = PinnedVec::new(&driver, values.len()).expect("there is memory");
    vec.copy_from_slice(values);
    vec
}

fn on_device(gpu: &SimulatedGpu, len: usize) -> DeviceVec<u32> {
    let driver: Arc<dyn Driver> = Arc::new(gpu.clone());
    DeviceVec::new(&driver, len).expect("there is memory")
}

fn copy(stream: &mut dyn Stream, from: Address, to: Address, bytes: usize) -> Result<(), DeviceError> {
    // SAFETY: the tests keep both vectors until they have seen what the copy has done, or that it never will.
    unsafe { stream.copy(from, to, bytes) }
}

fn launch<A: KernelArgs>(
    stream: &mut dyn Stream,
    time: Duration,
    args: A,
    f: impl for<'a> FnOnce(A::Views<'a>) + Send + 'static,
) -> Result<(), DeviceError> {
    SimulatedStream::new(stream).expect("it is one").launch(time, args, f)
}

/// What is on the device, by a copy on a stream of its own, after everything else is done.
fn read_back(gpu: &SimulatedGpu, vec: &DeviceVec<u32>) -> Vec<u32> {
    let (mut stream, target) = (open(gpu, Role::CopyOut), pinned(gpu, &vec![0; vec.len()]));
    copy(&mut *stream, vec.address(), target.address(), vec.len() * 4).expect("it is issued");
    stream.mark(1).expect("it is made");
    gpu.advance(ms(1_000));
    // A device that picks at random leaves things for later polls.
    let polls = (0..1_000).find(|_| stream.passed().expect("the device is sound") == 1);
    assert!(polls.is_some(), "the copy does not end");
    target.to_vec()
}

#[test]
fn a_copy_in_a_kernel_and_a_copy_out_give_the_result_at_the_end_of_their_times() {
    let gpu = builder().build();
    let mut stream = open(&gpu, Role::All);
    let (from, to) = (pinned(&gpu, &[1, 2, 3, 4]), pinned(&gpu, &[0; 4]));
    let mut values = on_device(&gpu, 4);
    copy(&mut *stream, from.address(), values.address(), 16).expect("it is issued");
    launch(&mut *stream, ms(5), &mut values, |values| values.iter_mut().for_each(|value| *value *= 10)).unwrap();
    copy(&mut *stream, values.address(), to.address(), 16).expect("it is issued");
    stream.mark(7).expect("it is made");
    for (at, seq) in [(Duration::ZERO, 0), (ms(5), 0), (Duration::from_micros(31), 0), (Duration::from_micros(1), 7)] {
        assert_eq!(to[0], 0);
        gpu.advance(at);
        assert_eq!(stream.passed().unwrap(), seq);
    }
    assert_eq!(*to, [10, 20, 30, 40]);
}
