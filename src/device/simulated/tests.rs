//! Tests of the simulated device, mostly on one thread and with a manual clock.

use std::sync::{Arc, Mutex, mpsc};

use super::*;
use crate::{
    device::{
        memory::{DeviceVec, PinnedVec},
        stream::{GpuStream, ImportedStream},
        timeline::{RecordedPoint, Timeline},
    },
    values::device,
};

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Returns a builder for a device with a manual clock and no latency, whose copies take a millisecond per 1,000 bytes.
fn builder() -> SimulatedGpuBuilder {
    SimulatedGpu::builder()
        .copy_in_bandwidth(1_000_000)
        .copy_out_bandwidth(1_000_000)
        .launch_latency(Duration::ZERO)
        .kernel_time(ms(1))
        .clock(Clock::Manual)
}

fn open(gpu: &SimulatedGpu, role: StreamRole) -> Box<dyn Stream> {
    gpu.open(role).expect("the device should be there")
}

fn pinned(gpu: &SimulatedGpu, values: &[u32]) -> PinnedVec<u32> {
    let driver: Arc<dyn Driver> = Arc::new(gpu.clone());
    let mut vec = PinnedVec::new(&driver, values.len()).expect("there should be memory");
    vec.copy_from_slice(values);
    vec
}

fn on_device(gpu: &SimulatedGpu, len: usize) -> DeviceVec<u32> {
    let driver: Arc<dyn Driver> = Arc::new(gpu.clone());
    DeviceVec::new(&driver, len).expect("there should be memory")
}

fn copy(stream: &mut dyn Stream, from: Address, to: Address, bytes: usize) -> Result<(), DeviceError> {
    // SAFETY: the tests keep both vectors until the copy is done or can no longer happen.
    unsafe { stream.copy(from, to, bytes) }
}

fn launch<A: KernelArgs>(
    stream: &mut dyn Stream,
    time: Duration,
    args: A,
    f: impl for<'a> FnOnce(A::Views<'a>) + Send + 'static,
) -> Result<(), DeviceError> {
    SimulatedStream::new(stream).expect("the stream should be simulated").launch(time, args, f)
}

/// Returns the values on the device. Copies them on a separate stream, after all other commands are done.
fn read_back(gpu: &SimulatedGpu, vec: &DeviceVec<u32>) -> Vec<u32> {
    let (mut stream, target) = (open(gpu, StreamRole::CopyOut), pinned(gpu, &vec![0; vec.len()]));
    finish(gpu, &mut *stream);
    copy(&mut *stream, vec.address(), target.address(), vec.len() * 4).expect("the copy should be issued");
    finish(gpu, &mut *stream);
    target.to_vec()
}

/// Polls until the device has nothing left to do. A device that picks at random leaves commands for later polls.
fn finish(gpu: &SimulatedGpu, stream: &mut dyn Stream) {
    for _ in 0..1_000 {
        gpu.advance(ms(1_000));
        stream.probe().expect("the device should be sound");
        if lock(&gpu.0.state).is_idle() {
            return;
        }
    }
    panic!("the device makes no progress");
}

#[test]
fn copies_and_kernels_take_effect_at_the_end_of_their_times() {
    let gpu = builder().build();
    let mut stream = open(&gpu, StreamRole::All);
    let (from, to) = (pinned(&gpu, &[1, 2, 3, 4]), pinned(&gpu, &[0; 4]));
    let mut values = on_device(&gpu, 4);
    copy(&mut *stream, from.address(), values.address(), 16).expect("the copy should be issued");
    launch(&mut *stream, ms(5), &mut values, |values| values.iter_mut().for_each(|value| *value *= 10)).unwrap();
    copy(&mut *stream, values.address(), to.address(), 16).expect("the copy should be issued");
    stream.mark(7).expect("the mark should be made");
    for (at, seq) in [(Duration::ZERO, 0), (ms(5), 0), (Duration::from_micros(31), 0), (Duration::from_micros(1), 7)] {
        assert_eq!(to[0], 0);
        gpu.advance(at);
        assert_eq!(stream.passed().unwrap(), seq);
    }
    assert_eq!(*to, [10, 20, 30, 40]);
}

#[test]
fn a_device_that_is_not_polled_does_nothing() {
    let gpu = builder().build();
    let (mut stream, values) = (open(&gpu, StreamRole::Compute), on_device(&gpu, 1));
    launch(&mut *stream, ms(1), &values, |_| panic!("a kernel ran although the device was not polled")).unwrap();
    gpu.advance(ms(10));
    assert_eq!(gpu.counts(), Counts { streams: 1, launches: 1, allocations: 1, ..Counts::default() });
    assert_eq!(gpu.usage(), Usage { compute: vec![EngineUsage::default()], ..Usage::default() });
}

#[test]
fn a_stream_waits_for_the_event_of_another_stream_without_the_host() {
    let gpu = builder().build();
    let (mut copies, mut kernels) = (open(&gpu, StreamRole::CopyIn), open(&gpu, StreamRole::Compute));
    let (from, mut values) = (pinned(&gpu, &[5; 1000]), on_device(&gpu, 1000));
    copy(&mut *copies, from.address(), values.address(), 4000).unwrap();
    let event = copies.record().unwrap();
    // Commands behind the event are not waited for.
    copies.mark(1).unwrap();
    kernels.wait(&event).unwrap();
    launch(&mut *kernels, ms(2), &mut values, |values| values.iter_mut().for_each(|value| *value += 1)).unwrap();
    kernels.mark(1).unwrap();
    gpu.advance(ms(3));
    assert_eq!((kernels.passed().unwrap(), copies.passed().unwrap()), (0, 0));
    gpu.advance(ms(1));
    assert_eq!((kernels.passed().unwrap(), copies.passed().unwrap()), (0, 1));
    gpu.advance(ms(2));
    assert_eq!(kernels.passed().unwrap(), 1);
    assert_eq!(read_back(&gpu, &values), [6; 1000]);
    let compute = gpu.usage().compute[0];
    assert_eq!((compute.first_start, compute.last_end, compute.busy), (Some(ms(4)), Some(ms(6)), ms(2)));
}

#[test]
fn an_old_event_delays_nothing() {
    let gpu = builder().build();
    let (mut one, mut other) = (open(&gpu, StreamRole::CopyIn), open(&gpu, StreamRole::Compute));
    let event = one.record().unwrap();
    one.passed().unwrap();
    gpu.advance(ms(5));
    other.wait(&event).unwrap();
    other.mark(3).unwrap();
    assert_eq!(other.passed().unwrap(), 3);
}

#[test]
fn copies_in_both_directions_and_kernels_overlap() {
    let gpu = builder().copy_out_bandwidth(2_000_000).build();
    let (a, b, values) = (pinned(&gpu, &[1; 1000]), pinned(&gpu, &[2; 1000]), on_device(&gpu, 1000));
    let other = on_device(&gpu, 1000);
    let mut streams = [StreamRole::CopyIn, StreamRole::CopyOut, StreamRole::Compute].map(|role| open(&gpu, role));
    copy(&mut *streams[0], a.address(), values.address(), 4000).unwrap();
    copy(&mut *streams[1], other.address(), b.address(), 4000).unwrap();
    launch(&mut *streams[2], ms(4), (), |()| ()).unwrap();
    for stream in &mut streams {
        stream.mark(1).unwrap();
    }
    gpu.advance(ms(4));
    for stream in &mut streams {
        assert_eq!(stream.passed().unwrap(), 1);
    }
    let usage = gpu.usage();
    for (engine, time) in [(usage.copy_in, ms(4)), (usage.copy_out, ms(2)), (usage.compute[0], ms(4))] {
        let all = EngineUsage { commands: 1, busy: time, first_start: Some(ms(0)), last_end: Some(time) };
        assert_eq!(engine, all);
    }
    assert_eq!(gpu.counts().bytes_copied, 8000);
}

#[test]
fn as_many_kernels_run_side_by_side_as_there_are_engines() {
    for (engines, end) in [(1, 6), (2, 4), (3, 2), (4, 2)] {
        let gpu = builder().compute_engines(engines).build();
        let mut streams = [(); 3].map(|()| open(&gpu, StreamRole::Compute));
        for stream in &mut streams {
            launch(&mut **stream, ms(2), (), |()| ()).unwrap();
            stream.mark(1).unwrap();
        }
        gpu.advance(ms(100));
        for stream in &mut streams {
            assert_eq!(stream.passed().unwrap(), 1);
        }
        let ends = gpu.usage().compute.iter().filter_map(|engine| engine.last_end).max();
        assert_eq!(ends, Some(ms(end)), "with {engines} engines");
    }
}

#[test]
fn urgent_kernels_start_before_others_that_were_issued_earlier() {
    let gpu = builder().build();
    let (mut slow, mut fast) = (open(&gpu, StreamRole::Compute), open(&gpu, StreamRole::Urgent));
    let order = Arc::new(Mutex::new(Vec::new()));
    let kernel = |number: u32| {
        let order = Arc::clone(&order);
        move |()| lock(&order).push(number)
    };
    launch(&mut *slow, ms(1), (), kernel(0)).unwrap();
    // The first kernel begins before the others are issued.
    slow.probe().unwrap();
    launch(&mut *slow, ms(1), (), kernel(1)).unwrap();
    launch(&mut *fast, ms(1), (), kernel(2)).unwrap();
    gpu.advance(ms(10));
    fast.passed().unwrap();
    assert_eq!(*lock(&order), [0, 2, 1]);
}

#[test]
fn latency_delays_the_start_and_keeps_no_engine_busy() {
    let gpu = builder().launch_latency(ms(3)).build();
    let mut stream = open(&gpu, StreamRole::Compute);
    for seq in 1..3 {
        launch(&mut *stream, Duration::ZERO, (), |()| ()).unwrap();
        stream.mark(seq).unwrap();
    }
    for (by, seq) in [(3, 0), (1, 1), (1, 2)] {
        gpu.advance(ms(by));
        assert_eq!(stream.passed().unwrap(), seq);
    }
    let usage = gpu.usage().compute[0];
    assert_eq!(usage.busy, ms(2), "the engine was not busy for two kernels of the default duration");
    assert_eq!((usage.first_start, usage.last_end), (Some(ms(3)), Some(ms(5))));
}

/// Copies values on one stream and doubles them on another. The other stream waits for the copy if `wait` is set.
/// Returns the values at the end.
fn copy_and_double(seed: u64, wait: bool) -> Vec<u32> {
    let gpu = SimulatedGpu::builder().clock(Clock::Instantly).seed(seed).build();
    let (mut copies, mut kernels) = (open(&gpu, StreamRole::CopyIn), open(&gpu, StreamRole::Compute));
    let (zeros, from, mut values) = (pinned(&gpu, &[0; 2]), pinned(&gpu, &[4, 5]), on_device(&gpu, 2));
    copy(&mut *copies, zeros.address(), values.address(), 8).unwrap();
    copy(&mut *copies, from.address(), values.address(), 8).unwrap();
    let event = copies.record().unwrap();
    copies.mark(1).unwrap();
    if wait {
        kernels.wait(&event).unwrap();
    }
    launch(&mut *kernels, Duration::ZERO, &mut values, |values| {
        values.iter_mut().for_each(|value| *value = value.wrapping_mul(2));
    })
    .unwrap();
    kernels.mark(1).unwrap();
    finish(&gpu, &mut *kernels);
    assert_eq!((copies.passed().unwrap(), kernels.passed().unwrap()), (1, 1));
    read_back(&gpu, &values)
}

#[test]
fn a_seed_exposes_only_missing_waits() {
    let wrong = (0..40).filter(|&seed| copy_and_double(seed, false) != [8, 10]).count();
    assert!((5..40).contains(&wrong), "{wrong} of 40 seeds let the kernel run too early");
    for seed in 0..40 {
        assert_eq!(copy_and_double(seed, true), [8, 10], "with seed {seed}");
        assert_eq!(copy_and_double(seed, false), copy_and_double(seed, false), "the seed did not determine the order");
    }
}

#[test]
fn with_a_seed_a_poll_may_leave_commands_for_the_next_one() {
    let left = (0..40).filter(|&seed| {
        let gpu = SimulatedGpu::builder().clock(Clock::Instantly).seed(seed).build();
        let mut stream = open(&gpu, StreamRole::All);
        for seq in 1..4 {
            stream.mark(seq).unwrap();
        }
        let passed = stream.passed().unwrap();
        finish(&gpu, &mut *stream);
        assert_eq!(stream.passed().unwrap(), 3);
        passed < 3
    });
    let left = left.count();
    assert!((5..36).contains(&left), "{left} of 40 seeds leave commands");
}

/// Asserts that a call returned a loss with the error number `code`.
fn loss<T: fmt::Debug>(result: Result<T, DeviceError>, code: i32) {
    let error = result.expect_err("the device should be lost");
    assert!(error.is_lost() && error.code() == code, "{error:?}");
}

/// Asserts that every call on `stream` and on the device returns a loss with the error number `code`.
fn is_lost(gpu: &SimulatedGpu, stream: &mut dyn Stream, event: &DeviceEvent, code: i32) {
    for _ in 0..2 {
        loss(stream.passed(), code);
        loss(stream.probe(), code);
        loss(stream.mark(9), code);
        loss(stream.record(), code);
        loss(stream.wait(event), code);
        loss(copy(stream, Address::nowhere(MemoryKind::Device), Address::nowhere(MemoryKind::Pinned), 0), code);
        loss(launch(stream, ms(1), (), |()| ()), code);
        loss(gpu.allocate(MemoryKind::Pinned, 8), code);
        loss(gpu.open(StreamRole::Compute).map(drop), code);
    }
}

#[test]
fn a_lost_device_drops_its_commands_and_stays_lost() {
    let gpu = builder().build();
    let mut streams = [StreamRole::CopyIn, StreamRole::Compute].map(|role| open(&gpu, role));
    let event = streams[0].record().unwrap();
    let kept = Arc::new(());
    let inside = Arc::clone(&kept);
    launch(&mut *streams[1], ms(1), (), move |()| unreachable!("a lost device ran a kernel with {inside:?}")).unwrap();
    streams[1].mark(1).unwrap();
    assert_eq!(Arc::strong_count(&kept), 2);
    gpu.lose();
    assert_eq!(Arc::strong_count(&kept), 1, "the kernel was not dropped");
    gpu.advance(ms(10));
    for stream in &mut streams {
        is_lost(&gpu, &mut **stream, &event, 999);
    }
    gpu.lose();
    assert_eq!(gpu.counts().launches, 1, "a call on a lost device was counted");
}

#[test]
fn a_command_that_was_made_to_fail_loses_the_device_at_the_end_of_its_time() {
    let gpu = builder().build();
    let mut stream = open(&gpu, StreamRole::All);
    let ran = Arc::new(Mutex::new(Vec::new()));
    let event = stream.record().unwrap();
    gpu.fail_at(2);
    for number in 0..3 {
        let ran = Arc::clone(&ran);
        launch(&mut *stream, ms(1), (), move |()| lock(&ran).push(number)).unwrap();
        stream.mark(number).unwrap();
    }
    gpu.advance(ms(1));
    assert_eq!(stream.passed().unwrap(), 0);
    gpu.advance(ms(2));
    is_lost(&gpu, &mut *stream, &event, 700);
    assert_eq!(*lock(&ran), [0]);
    // The first cause is kept.
    gpu.lose();
    loss(stream.passed(), 700);
}

#[test]
fn a_kernel_that_panics_loses_the_device_and_nothing_else() {
    let gpu = builder().build();
    let (mut stream, mut other) = (open(&gpu, StreamRole::Compute), open(&gpu, StreamRole::CopyIn));
    let event = other.record().unwrap();
    launch(&mut *stream, ms(1), (), |()| panic!("division by {}", "zero")).unwrap();
    gpu.advance(ms(1));
    let error = other.passed().expect_err("a poll should execute the commands of all streams");
    assert_eq!(error.message(), "a kernel panicked: division by zero");
    assert_eq!(error.to_string(), "a kernel panicked: division by zero (error 719, the device is lost)");
    is_lost(&gpu, &mut *stream, &event, 719);
}

#[test]
fn the_drop_of_a_kernel_may_panic() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("the drop of a kernel");
        }
    }
    let gpu = builder().build();
    let mut stream = open(&gpu, StreamRole::Compute);
    let bomb = Bomb;
    launch(&mut *stream, ms(1), (), move |()| drop(bomb)).unwrap();
    gpu.lose();
    loss(stream.passed(), 999);
    let bomb = Bomb;
    loss(launch(&mut *stream, ms(1), (), move |()| drop(bomb)), 999);
}

#[test]
fn a_refused_call_has_no_effect_and_the_next_one_succeeds() {
    let gpu = builder().build();
    let (mut stream, values) = (open(&gpu, StreamRole::All), on_device(&gpu, 4));
    type Call = fn(&SimulatedGpu, &mut dyn Stream, &DeviceVec<u32>) -> Result<(), DeviceError>;
    let calls: [Call; 6] = [
        |_, stream, values| copy(stream, values.address(), values.address(), 16),
        |_, stream, _| launch(stream, ms(1), (), |()| ()),
        |_, stream, _| stream.record().map(drop),
        |_, stream, _| stream.wait(&DeviceEvent::new(Arc::new(Moment::new()))),
        |_, stream, _| stream.mark(1),
        |gpu, _, _| gpu.allocate(MemoryKind::Device, 16).map(|block| gpu.free(block)),
    ];
    for call in calls {
        let before = gpu.counts();
        gpu.refuse_at(1);
        let error = call(&gpu, &mut *stream, &values).expect_err("the call should be refused");
        assert!(!error.is_lost() && error.code() == 801, "{error:?}");
        assert_eq!(gpu.counts(), before);
    }
    gpu.advance(ms(10));
    assert_eq!(stream.passed().unwrap(), 0);
    gpu.refuse_at(3);
    stream.mark(1).unwrap();
    stream.mark(2).unwrap();
    stream.mark(3).expect_err("the third call should be refused");
    stream.mark(4).unwrap();
    assert_eq!(stream.passed().unwrap(), 4);
    gpu.refuse_at(1);
    gpu.refuse_at(0);
    stream.mark(5).unwrap();
}

#[test]
fn a_stalled_device_does_nothing_until_it_resumes() {
    let gpu = builder().build();
    let mut stream = open(&gpu, StreamRole::Compute);
    gpu.stall();
    launch(&mut *stream, ms(1), (), |()| ()).unwrap();
    stream.mark(1).unwrap();
    gpu.advance(ms(50));
    assert_eq!(stream.passed().unwrap(), 0);
    stream.probe().unwrap();
    assert_eq!((gpu.counts().polls, gpu.counts().probes), (1, 1));
    gpu.resume();
    assert_eq!(stream.passed().unwrap(), 0);
    gpu.advance(ms(1));
    assert_eq!(stream.passed().unwrap(), 1);
    assert_eq!(gpu.usage().compute[0].first_start, Some(ms(50)));
    gpu.stall();
    gpu.lose();
    loss(stream.passed(), 999);
}

#[test]
fn memory_is_limited_and_free_blocks_are_released_when_it_runs_out() {
    let gpu = builder().memory(4096).build();
    let all = on_device(&gpu, 1024);
    let driver: Arc<dyn Driver> = Arc::new(gpu.clone());
    let error = DeviceVec::<u8>::new(&driver, 1).expect_err("there should be no room");
    assert!(!error.is_lost() && error.code() == 2, "{error:?}");
    assert_eq!(error.message(), "the simulated device has 0 bytes of memory left, and 256 are needed");
    assert_eq!(pinned(&gpu, &[1; 2000]).len(), 2000, "the device's limit applied to pinned memory");
    drop(all);
    // These vectors do not fit the size class of the free block, so that block must be released.
    let less: Vec<_> = (0..8).map(|_| on_device(&gpu, 128)).collect();
    let counts = gpu.counts();
    drop(less);
    let again: Vec<_> = (0..8).map(|_| on_device(&gpu, 128)).collect();
    assert_eq!(gpu.counts(), Counts { reuses: counts.reuses + 8, ..counts });
    drop(again);
    drop(on_device(&gpu, 1024));
}

/// There are only four sizes of blocks for each power of two, so a free block often fits.
#[test]
fn a_free_block_is_reused_for_a_vector_of_nearly_the_same_size() {
    let gpu = builder().build();
    let driver: Arc<dyn Driver> = Arc::new(gpu.clone());
    for (number, (bytes, nearly)) in (1..).zip([(1000, 900), (1_000_000, 920_000)]) {
        for bytes in [bytes, nearly] {
            drop(DeviceVec::<u8>::new(&driver, bytes).expect("there should be memory"));
        }
        assert_eq!((gpu.counts().allocations, gpu.counts().reuses), (number, number));
    }
}

#[test]
fn vectors_without_bytes_need_no_memory_and_too_large_ones_are_refused() {
    let gpu = builder().memory(0).build();
    let driver: Arc<dyn Driver> = Arc::new(gpu.clone());
    let mut empty = on_device(&gpu, 0);
    let nothings = DeviceVec::<()>::new(&driver, usize::MAX).unwrap();
    assert!(empty.is_empty() && nothings.len() == usize::MAX);
    assert_eq!(PinnedVec::<()>::new(&driver, 7).unwrap().len(), 7);
    assert_eq!(*pinned(&gpu, &[]), []);
    for len in [usize::MAX, usize::MAX / 4, usize::MAX / 8 + 1] {
        let error = DeviceVec::<u32>::new(&driver, len).expect_err("the buffer should be too large");
        assert!(!error.is_lost() && error.code() == -1, "{error:?}");
        PinnedVec::<u32>::new(&driver, len).expect_err("the buffer should be too large");
    }
    let mut stream = open(&gpu, StreamRole::All);
    copy(&mut *stream, empty.address(), nothings.address(), 0).unwrap();
    launch(&mut *stream, ms(1), (&mut empty, &nothings), |(empty, nothings)| {
        assert_eq!((empty.len(), nothings.len()), (0, usize::MAX));
    })
    .unwrap();
    gpu.advance(ms(1));
    stream.probe().unwrap();
    assert_eq!(gpu.counts().allocations, 0);
}

#[test]
fn pinned_memory_starts_as_zeros_and_device_memory_does_not() {
    let gpu = builder().build();
    drop(pinned(&gpu, &[7; 100]));
    let driver: Arc<dyn Driver> = Arc::new(gpu.clone());
    let again = PinnedVec::<u32>::new(&driver, 100).unwrap();
    assert_eq!(gpu.counts().reuses, 1);
    assert_eq!(*again, [0; 100]);
    let values = on_device(&gpu, 3);
    assert_eq!(read_back(&gpu, &values), [0xA5A5_A5A5; 3]);
}

#[test]
fn kernels_receive_up_to_six_vectors_as_they_were_declared() {
    let gpu = builder().build();
    let mut stream = open(&gpu, StreamRole::All);
    let [mut a, mut b, mut c] = [1, 2, 3].map(|len| on_device(&gpu, len));
    launch(&mut *stream, ms(1), (&mut a, &mut b, &mut c), |(a, b, c)| {
        (a[0], b[1], c[2]) = (1, 2, 3);
    })
    .unwrap();
    let [mut d, mut e] = [(); 2].map(|()| on_device(&gpu, 1));
    launch(&mut *stream, ms(1), (&a, &b, &c, (&a, &b), &mut d, &mut e), |(a, b, c, (x, y), d, e)| {
        d[0] = a[0] + b[1] + c[2];
        e[0] = x[0] + y[1];
    })
    .unwrap();
    assert_eq!((read_back(&gpu, &d), read_back(&gpu, &e)), (vec![6], vec![3]));
}

#[test]
fn kernels_receive_any_number_of_vectors() {
    let gpu = builder().build();
    let mut stream = open(&gpu, StreamRole::All);
    let mut vectors: Vec<_> = (0..10).map(|_| on_device(&gpu, 2)).collect();
    launch(&mut *stream, ms(1), vectors.iter_mut().collect::<Vec<_>>(), |vectors| {
        vectors.into_iter().zip(1..).for_each(|(vector, i)| vector.fill(i));
    })
    .unwrap();
    let mut sum = on_device(&gpu, 1);
    launch(&mut *stream, ms(1), (vectors.iter().collect::<Vec<_>>(), &mut sum), |(vectors, sum)| {
        sum[0] = vectors.iter().map(|vector| vector[1]).sum();
    })
    .unwrap();
    assert_eq!(read_back(&gpu, &sum), [55]);
    let none = Vec::<&DeviceVec<u32>>::new();
    launch(&mut *stream, ms(1), none, |none| assert!(none.is_empty())).unwrap();
}

#[test]
fn a_kernel_with_memory_of_another_device_is_refused() {
    let (gpu, other) = (builder().build(), builder().build());
    let values = on_device(&other, 1);
    let mut stream = open(&gpu, StreamRole::All);
    let error = launch(&mut *stream, ms(1), &values, |_| ()).expect_err("the memory should be another device's");
    assert!(!error.is_lost(), "{error:?}");
    assert_eq!(gpu.counts().launches, 0);
}

#[test]
fn devices_copy_from_each_other_and_wait_for_each_other() {
    let (one, two) = (builder().build(), builder().build());
    let (from, mut there) = (pinned(&one, &[3; 500]), on_device(&one, 500));
    let here = on_device(&two, 500);
    let (mut giving, mut taking) = (open(&one, StreamRole::All), open(&two, StreamRole::All));
    // One device's clock is ahead of the other's.
    one.advance(ms(5_000));
    copy(&mut *giving, from.address(), there.address(), 2000).unwrap();
    launch(&mut *giving, ms(1), &mut there, |there| there.fill(4)).unwrap();
    let event = giving.record().unwrap();
    taking.wait(&event).unwrap();
    copy(&mut *taking, there.address(), here.address(), 2000).unwrap();
    taking.mark(1).unwrap();
    two.advance(ms(100));
    one.advance(ms(1_000));
    assert_eq!(taking.passed().unwrap(), 0, "the mark passed although the other device was not polled");
    giving.passed().unwrap();
    two.advance(ms(2));
    taking.passed().unwrap();
    two.advance(ms(2));
    assert_eq!(taking.passed().unwrap(), 1);
    assert_eq!(two.usage().copy_in.busy, ms(2));
    assert_eq!(read_back(&two, &here), [4; 500]);
}

#[test]
fn an_event_of_another_kind_of_device_is_refused() {
    let gpu = builder().build();
    let error =
        open(&gpu, StreamRole::All).wait(&DeviceEvent::new(Arc::new(5))).expect_err("no stream has recorded this");
    assert!(!error.is_lost() && error.code() == -1, "{error:?}");
    assert_eq!(gpu.counts().waits, 0);
}

#[test]
fn waits_for_events_of_a_lost_device_end() {
    let (gpu, other) = (builder().build(), builder().build());
    let mut stream = open(&gpu, StreamRole::All);
    launch(&mut *stream, ms(1), (), |()| ()).unwrap();
    let event = stream.record().unwrap();
    let mut waiting = open(&other, StreamRole::All);
    waiting.wait(&event).unwrap();
    waiting.mark(1).unwrap();
    assert_eq!(waiting.passed().unwrap(), 0);
    gpu.lose();
    assert_eq!(waiting.passed().unwrap(), 1);
}

#[test]
fn commands_of_a_dropped_stream_are_executed_and_its_index_is_reused() {
    let gpu = builder().build();
    let mut values = on_device(&gpu, 1);
    let mut stream = open(&gpu, StreamRole::Compute);
    launch(&mut *stream, ms(1), &mut values, |values| values[0] = 9).unwrap();
    drop(stream);
    assert_eq!(read_back(&gpu, &values), [9]);
    let streams = lock(&gpu.0.state).streams();
    drop(open(&gpu, StreamRole::Compute));
    assert_eq!(lock(&gpu.0.state).streams(), streams);
}

/// No time passes on this device, so a kernel waits only for a poll.
#[test]
fn a_call_on_a_full_stream_executes_commands_until_there_is_room() {
    let gpu = SimulatedGpu::builder().clock(Clock::Instantly).depth(2).build();
    let mut stream = open(&gpu, StreamRole::Compute);
    let ran = Arc::new(Mutex::new(Vec::new()));
    for number in 0..3 {
        assert_eq!(*lock(&ran), [], "a kernel ran although the stream was not full");
        let ran = Arc::clone(&ran);
        launch(&mut *stream, ms(1), (), move |()| lock(&ran).push(number)).unwrap();
    }
    assert_eq!(*lock(&ran), [0, 1]);
}

/// The device refuses to order the work on the inner stream behind that on the outer one, so the outer one is dead.
#[test]
fn a_dead_stream_is_not_included_and_returns_the_reason() {
    let gpu = SimulatedGpu::builder().clock(Clock::Instantly).build();
    let lane = || GpuStream::new(open(&gpu, StreamRole::All), device::Device::Gpu(0));
    let own = || ImportedStream::simulated(&gpu).expect("the device should be there");
    let (mut outer, mut inner) = (own(), own());
    let mut another = lane();
    let included = lane().include(&mut outer, |outer| outer.include(&mut inner, |_| gpu.refuse_from(1)));
    let reason = included.expect_err("the work on the outer stream cannot be ordered either");
    assert_eq!(reason.code(), 801, "{reason:?}");
    gpu.refuse_at(0);
    let error = another.include(&mut outer, |_| unreachable!("a dead stream was included")).expect_err("it is dead");
    assert_eq!((error.code(), error.message()), (801, reason.message()));
    assert!(another.given_up().is_none());
}

#[test]
fn a_timeline_forgets_the_points_behind_complete_operations_and_no_others() {
    let gpu = builder().build();
    let (mut stream, timeline) = (open(&gpu, StreamRole::All), Timeline::default());
    for seq in [2, 4, 6] {
        timeline.publish(RecordedPoint { seq, event: stream.record().unwrap(), clock: [0; 4] });
    }
    for (complete, first) in [(1, Some(2)), (4, Some(6)), (5, Some(6)), (6, None)] {
        timeline.complete(complete);
        assert_eq!(timeline.after(0).map(|point| point.seq), first, "after operation {complete}");
    }
}

const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn a_loss_is_returned_only_once_no_kernel_is_running() {
    type Call = fn(&SimulatedGpu, &mut dyn Stream) -> Result<(), DeviceError>;
    let calls: [Call; 5] = [
        |_, stream| stream.passed().map(drop),
        |_, stream| stream.probe(),
        |_, stream| stream.mark(1),
        |_, stream| launch(stream, ms(1), (), |()| ()),
        |gpu, _| {
            let error = DeviceError::lost(999, "lost");
            gpu.abandon(&error);
            Err(error)
        },
    ];
    for call in calls {
        let gpu = SimulatedGpu::builder().clock(Clock::Instantly).build();
        let (mut stream, mut other) = (open(&gpu, StreamRole::Compute), open(&gpu, StreamRole::CopyIn));
        let (started, has_started) = mpsc::channel();
        let (go, may_go) = mpsc::channel();
        let ended = Arc::new(Mutex::new(false));
        let at_end = Arc::clone(&ended);
        launch(&mut *stream, ms(1), (), move |()| {
            started.send(()).unwrap();
            may_go.recv_timeout(PATIENCE).unwrap();
            *lock(&at_end) = true;
        })
        .unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| loss(stream.passed(), 999));
            has_started.recv_timeout(PATIENCE).expect("the kernel should run");
            gpu.lose();
            let (sender, receiver) = mpsc::channel();
            let (gpu, ended) = (&gpu, &ended);
            scope.spawn(move || {
                loss(call(gpu, &mut *other), 999);
                sender.send(*lock(ended)).unwrap();
            });
            let deadline = std::time::Instant::now() + PATIENCE;
            while lock(&gpu.0.state).waiters == 0 {
                assert!(std::time::Instant::now() < deadline, "the other stream does not wait");
                std::thread::yield_now();
            }
            go.send(()).unwrap();
            assert_eq!(receiver.recv_timeout(PATIENCE), Ok(true), "the kernel had not ended");
        });
    }
}

#[test]
fn other_streams_continue_while_a_kernel_runs() {
    let gpu = SimulatedGpu::builder().clock(Clock::Instantly).build();
    let (mut stream, mut other) = (open(&gpu, StreamRole::Compute), open(&gpu, StreamRole::CopyIn));
    let (started, has_started) = mpsc::channel();
    let (go, may_go) = mpsc::channel();
    launch(&mut *stream, ms(1), (), move |()| {
        started.send(()).unwrap();
        may_go.recv_timeout(PATIENCE).unwrap();
    })
    .unwrap();
    stream.mark(1).unwrap();
    std::thread::scope(|scope| {
        let polling = scope.spawn(|| stream.passed().unwrap());
        has_started.recv_timeout(PATIENCE).expect("the kernel should run");
        other.mark(1).unwrap();
        assert_eq!(other.passed().unwrap(), 1);
        go.send(()).unwrap();
        assert_eq!(polling.join().unwrap(), 1);
    });
}

#[test]
fn with_the_real_clock_a_command_takes_as_long_as_configured() {
    let gpu = SimulatedGpu::builder().launch_latency(ms(1)).build();
    let mut stream = open(&gpu, StreamRole::Compute);
    let before = std::time::Instant::now();
    launch(&mut *stream, ms(4), (), |()| ()).unwrap();
    stream.mark(1).unwrap();
    while stream.passed().unwrap() == 0 {
        assert!(before.elapsed() < PATIENCE, "the kernel does not end");
        std::thread::yield_now();
    }
    assert!(before.elapsed() >= ms(5), "the kernel took {:?}", before.elapsed());
    let usage = gpu.usage().compute[0];
    assert_eq!((usage.commands, usage.busy), (1, ms(4)));
}
