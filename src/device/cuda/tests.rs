//! Tests of the CUDA device against `fake.c`, a library that stands in for the driver. A test builds the library, and
//! runs ignored tests in processes that load it.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use super::*;
use crate::{
    Accesses, Engine, EngineKind, OpBuilder, OpHandle, PushError,
    access::Refs,
    device::{
        memory::{DeviceVec, PinnedVec},
        simulated::SimulatedGpu,
    },
    gpu::{GpuStream, ImportedStream},
    stream,
    values::device::Device,
};

/// `try_submit` with a stream, for functions that fail with a `DeviceError`.
trait SubmitLaunch {
    fn submit_launch_any<A: Accesses, R: Send + 'static>(
        self,
        accesses: A,
        f: impl for<'a> FnOnce(&mut GpuStream, Refs<'a, A>) -> Result<R, DeviceError> + Send + 'static,
    ) -> Result<OpHandle<R>, PushError>;
}

impl SubmitLaunch for OpBuilder<'_> {
    fn submit_launch_any<A: Accesses, R: Send + 'static>(
        self,
        accesses: A,
        f: impl for<'a> FnOnce(&mut GpuStream, Refs<'a, A>) -> Result<R, DeviceError> + Send + 'static,
    ) -> Result<OpHandle<R>, PushError> {
        self.try_submit((accesses, stream()), move |(refs, stream)| Ok(f(stream, refs)?))
    }
}

/// The environment variable set in the process that loads the library.
const INSIDE: &str = "RADDLE_FAKE_CUDA";

const PATIENCE: Duration = Duration::from_secs(60);

/// A new folder for this process. Dropping this removes the folder.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("raddle-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs a process, killing it if it takes too long. Returns whether it succeeded, and its output.
fn run(command: &mut Command) -> (bool, String) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the process should start");
    let (done, is_done) = mpsc::channel();
    let (mut out, mut err) = (
        child.stdout.take().expect("the output should be piped"),
        child.stderr.take().expect("the output should be piped"),
    );
    let reader = thread::spawn(move || {
        let mut text = Vec::new();
        let mut errors = Vec::new();
        // Both outputs are short, so neither pipe fills while the other is read.
        let _ = std::io::Read::read_to_end(&mut out, &mut text);
        let _ = std::io::Read::read_to_end(&mut err, &mut errors);
        text.extend(errors);
        let _ = done.send(());
        String::from_utf8_lossy(&text).into_owned()
    });
    if is_done.recv_timeout(PATIENCE).is_err() {
        let _ = child.kill();
    }
    let well = child.wait().expect("waiting for the process should succeed").success();
    (well, reader.join().expect("the reader should not panic"))
}

/// Builds the library with `defines` in `folder`. Returns `false` if there is no compiler.
fn build(folder: &Path, defines: &[&str]) -> bool {
    let source = folder.join("fake.c");
    fs::write(&source, include_str!("fake.c")).expect("there should be room");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"]).arg(folder.join("libcuda.so")).arg(&source);
    compiler.args(defines.iter().map(|define| format!("-D{define}")));
    if Command::new("cc").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        eprintln!("skipped: there is no C compiler (cc) to build the stand-in for the driver's library");
        return false;
    }
    let (well, text) = run(&mut compiler);
    assert!(well, "the library cannot be built:\n{text}");
    true
}

/// Runs the ignored test `name` in a process that searches `folder` first for the driver's library, and asserts that
/// the test passes.
fn inside(folder: &Path, name: &str, variables: &[(&str, &str)]) {
    let mut command = Command::new(env::current_exe().expect("the path of this program should be known"));
    command.args(["--exact", "--ignored", "--nocapture", "--test-threads=1", &format!("device::cuda::tests::{name}")]);
    for unset in ["FAKE_INIT", "FAKE_DEVICES", "FAKE_NARROW", "FAKE_OLD", "RADDLE_CUDA_MARKS"] {
        command.env_remove(unset);
    }
    command.env("LD_LIBRARY_PATH", folder).env(INSIDE, "1").envs(variables.iter().copied());
    let (well, text) = run(&mut command);
    assert!(well && text.contains("1 passed"), "{name} with {variables:?}:\n{text}");
    assert!(!text.contains("panicked"), "{name} with {variables:?}:\n{text}");
}

/// Returns whether this process was started by `inside`. If not, the ignored tests must do nothing.
fn is_inside() -> bool {
    env::var_os(INSIDE).is_some()
}

// ---------------------------------------------------------------------------------------- what cannot be opened ----

#[test]
#[cfg_attr(miri, ignore = "starts processes")]
fn a_missing_or_old_driver_and_a_missing_device_are_errors_with_advice() {
    let folder = Folder::new("bad");
    // The loader finds these files before any driver library on the machine.
    for name in ["libcuda.so", "libcuda.so.1"] {
        fs::write(folder.0.join(name), "not a library").expect("there should be room");
    }
    inside(&folder.0, "inside_opening_fails", &[("WANTED", "was not found: install"), ("CODE", "-1")]);
    fs::remove_file(folder.0.join("libcuda.so.1")).expect("the file should exist");
    if !build(&folder.0, &["WITHOUT_EVENT_QUERY"]) {
        return;
    }
    let wanted = "has no cuEventQuery: install a newer NVIDIA driver";
    inside(&folder.0, "inside_opening_fails", &[("WANTED", wanted), ("CODE", "-1")]);
    assert!(build(&folder.0, &[]));
    for (variables, wanted, code) in [
        (&[("FAKE_INIT", "100")][..], "CUDA_ERROR_NO_DEVICE: no GPU is visible", "100"),
        (&[("FAKE_INIT", "803")], "SYSTEM_DRIVER_MISMATCH: the driver's kernel module", "803"),
        (&[("FAKE_INIT", "999")], "cuInit returned CUDA_ERROR_UNKNOWN", "999"),
        (&[("FAKE_INIT", "46")], "cuInit returned CUDA_ERROR_DEVICE_UNAVAILABLE", "46"),
        (&[("FAKE_DEVICES", "0")], "there is no GPU 0: the CUDA driver sees 0", "101"),
        (&[("RADDLE_CUDA_MARKS", "pending")], "neither `events` nor `counter`", "-1"),
        (&[("RADDLE_CUDA_MARKS", "counter"), ("FAKE_NARROW", "")], "cannot write 64 bits", "-1"),
    ] {
        inside(&folder.0, "inside_opening_fails", &[variables, &[("WANTED", wanted), ("CODE", code)]].concat());
    }
}

#[test]
#[ignore = "run by another test in a separate process, with a stand-in for the driver's library"]
fn inside_opening_fails() {
    if !is_inside() {
        return;
    }
    let error = CudaGpu::open(0).expect_err("opening should fail");
    assert!(error.message().contains(&env::var("WANTED").unwrap()), "{error}");
    assert_eq!(error.code().to_string(), env::var("CODE").unwrap());
    assert_eq!(error.is_lost(), error.code() == 999);
    match CudaGpu::count() {
        Ok(count) if error.code() == 100 || env::var_os("FAKE_DEVICES").is_some() => assert_eq!(count, 0),
        Ok(count) => assert_eq!(count, 2, "the count of devices is wrong although only opening fails"),
        Err(again) => assert_eq!(again.to_string(), error.to_string()),
    }
    // A further call returns the same error.
    assert_eq!(CudaGpu::open(0).expect_err("the same error").to_string(), error.to_string());
}

// ------------------------------------------------------------------------------------------- what can be opened ----

#[test]
#[cfg_attr(miri, ignore = "starts processes")]
fn streams_copy_wait_mark_and_fail_as_the_driver_does() {
    let folder = Folder::new("good");
    if !build(&folder.0, &[]) {
        return;
    }
    for name in [
        "inside_all_commands_are_executed",
        "inside_imported_streams_are_ordered_with_lanes",
        "inside_memory_is_pooled",
        "inside_refused_calls_can_be_repeated",
        "inside_losses_are_permanent",
        "inside_calls_during_a_capture_neither_fail_nor_invalidate_it",
        "inside_a_device_given_up_during_a_capture_completes_its_commands",
        "inside_an_open_capture_fails_only_its_operation",
        "inside_a_capture_over_several_operations_is_refused",
        "inside_errors_of_drops_fail_the_function_that_caused_them",
    ] {
        for (marks, wanted) in [("events", "Events"), ("counter", "Counter"), ("", "Counter")] {
            inside(&folder.0, name, &[("RADDLE_CUDA_MARKS", marks), ("WANTED", wanted)]);
        }
    }
    for without in ["FAKE_NARROW", "FAKE_OLD"] {
        inside(&folder.0, "inside_all_commands_are_executed", &[(without, ""), ("WANTED", "Events")]);
    }
    let old = Folder::new("old");
    assert!(build(&old.0, &["WITHOUT_WRITE_VALUE"]));
    inside(&old.0, "inside_all_commands_are_executed", &[("WANTED", "Events")]);
}

/// Returns a function that `fake.c` defines and the driver does not.
fn fake<F: Copy>(name: &str) -> F {
    // SAFETY: the library is loaded, and its initialisation code does nothing.
    let library = unsafe { sys::culib() };
    // SAFETY: `fake.c` defines this name with the type `F`.
    *unsafe { library.get::<F>(name.as_bytes()) }
        .expect("the loaded library should be the one that the tests have built")
}

/// Calls a function of `fake.c` that returns a number and takes no arguments.
fn number_of(name: &str) -> i32 {
    fake::<extern "C" fn() -> i32>(name)()
}

fn live() -> i32 {
    number_of("fakeLive")
}

/// Returns how often callers have waited for a stream.
fn stream_waits() -> i32 {
    number_of("fakeStreamWaits")
}

fn current() -> i32 {
    number_of("fakeCurrent")
}

/// Sets whether another thread is capturing a graph in the global mode: 1 if so, 0 if not.
fn capture(how: i32) {
    fake::<extern "C" fn(i32)>("fakeCapture")(how);
}

fn fail(skip: i32, code: i32, stays: bool) {
    fake::<extern "C" fn(i32, i32, i32)>("fakeFail")(skip, code, stays.into());
}

fn driver(ordinal: usize) -> Arc<dyn Driver> {
    Arc::new(CudaGpu::open(ordinal).expect("the device should exist"))
}

fn pinned(driver: &Arc<dyn Driver>, values: &[u64]) -> PinnedVec<u64> {
    let mut vec = PinnedVec::new(driver, values.len()).expect("there should be memory");
    vec.copy_from_slice(values);
    vec
}

fn copy(stream: &mut dyn Stream, from: Address, to: Address, bytes: usize) -> Result<(), DeviceError> {
    // SAFETY: the library executes copies immediately, between vectors of the tests.
    unsafe { stream.copy(from, to, bytes) }
}

/// Polls until the mark has passed.
fn pass(stream: &mut dyn Stream, seq: u64) {
    let mut passed = || {
        stream.probe().unwrap();
        stream.passed().unwrap()
    };
    assert!((0..4).any(|_| passed() == seq), "the mark {seq} does not pass");
}

#[test]
#[ignore = "run by another test in a separate process, with a stand-in for the driver's library"]
fn inside_all_commands_are_executed() {
    if !is_inside() {
        return;
    }
    {
        assert_eq!(CudaGpu::count().unwrap(), 2);
        let (one, two) = (driver(0), driver(1));
        assert_eq!(one.name(), "fake (CUDA device 0)");
        assert_eq!(CudaGpu::open(0).unwrap().0.pci_address().as_deref(), Some("0000:0a:1f.3"));
        assert!(format!("{one:?}").contains(&env::var("WANTED").unwrap()), "{one:?} uses the wrong kind of marks");
        let from = pinned(&one, &[1, 2, 3]);
        let to = pinned(&two, &[0; 3]);
        let [a, b] = [(); 2].map(|()| DeviceVec::<u64>::new(&one, 3).unwrap());
        let c = DeviceVec::<u64>::new(&two, 3).unwrap();
        assert_eq!(a.cuda_ptr(), Some(a.address().ptr().addr() as u64));
        assert_eq!(DeviceVec::<u64>::new(&one, 0).unwrap().cuda_ptr(), None);
        let (mut first, mut second) = (one.open(StreamRole::CopyIn).unwrap(), two.open(StreamRole::Urgent).unwrap());
        let priority = |stream: &mut dyn Stream| {
            let stream = stream_of(stream).expect("the stream should be a CUDA stream").cu_stream();
            fake::<extern "C" fn(sys::CUstream) -> i32>("fakePriority")(stream)
        };
        assert_eq!((priority(&mut *first), priority(&mut *second)), (0, -5));
        copy(&mut *first, from.address(), a.address(), 24).unwrap();
        copy(&mut *first, a.address(), b.address(), 24).unwrap();
        let event = first.record().unwrap();
        first.mark(7).unwrap();
        second.wait(&event.clone()).unwrap();
        drop(event);
        fake::<extern "C" fn(i32)>("fakeRefusePeer")(2);
        copy(&mut *second, b.address(), c.address(), 24).unwrap();
        assert_eq!(number_of("fakePeers"), 0);
        copy(&mut *second, b.address(), c.address(), 24).unwrap();
        assert_eq!(number_of("fakePeers"), 1, "a temporary refusal was not retried");
        copy(&mut *second, a.address(), c.address(), 8).unwrap();
        copy(&mut *second, b.address(), c.address(), 24).unwrap();
        assert_eq!(number_of("fakePeers"), 1, "a device was asked again");
        copy(&mut *second, c.address(), to.address(), 24).unwrap();
        copy(&mut *second, to.address(), to.address(), 8).unwrap();
        copy(&mut *second, Address::nowhere(MemoryKind::Device), Address::nowhere(MemoryKind::Pinned), 0).unwrap();
        for seq in [3, 4] {
            second.mark(seq).unwrap();
        }
        assert_eq!(
            (first.passed().unwrap(), second.passed().unwrap()),
            (0, 0),
            "a mark passed before the driver was queried"
        );
        pass(&mut *first, 7);
        pass(&mut *second, 4);
        assert_eq!(*to, [1, 2, 3]);

        let simulated = SimulatedGpu::new();
        let mut other = simulated.open(StreamRole::All).unwrap();
        let (event, theirs) = (first.record().unwrap(), other.record().unwrap());
        assert!(!other.wait(&event).expect_err("the devices should not wait for each other").is_lost());
        assert!(!first.wait(&theirs).expect_err("the devices should not wait for each other").is_lost());
        assert!(stream_of(&mut *other).is_none());
        let theirs = DeviceVec::<u64>::new(&(Arc::new(simulated) as Arc<dyn Driver>), 3).unwrap();
        copy(&mut *first, theirs.address(), a.address(), 24).expect_err("the memory should be a simulated device's");
        copy(&mut *other, a.address(), theirs.address(), 24).expect_err("the memory should be a CUDA device's");
        assert_eq!(theirs.cuda_ptr(), None);
    }
    assert_eq!(live(), 0, "something was not released");
}

#[test]
#[ignore = "run by another test in a separate process, with a stand-in for the driver's library"]
fn inside_imported_streams_are_ordered_with_lanes() {
    if !is_inside() {
        return;
    }
    {
        let gpus = [0, 1].map(|ordinal| CudaGpu::open(ordinal).unwrap());
        let streams = gpus.each_ref().map(|gpu| gpu.context().new_stream_with_priority(0).unwrap());
        let error = ImportedStream::cuda(&gpus[0], Arc::clone(&streams[1]))
            .expect_err("the stream should be the other device's");
        assert!(!error.is_lost() && error.message().contains("context of fake (CUDA device 0)"), "{error}");

        // Only one thread at a time may use the library.
        let engine = Engine::builder().kind(EngineKind::Naive).gpu(gpus[0].clone()).build().unwrap();
        let own = engine.stream_var(ImportedStream::cuda(&gpus[0], Arc::clone(&streams[0])).unwrap());
        let waits = || number_of("fakeWaits");
        let (before, expected) = (waits(), streams[0].cu_stream().addr());
        let include = engine.op("include").on(Device::Gpu(0)).submit_launch_any(own.overwrite(), move |stream, own| {
            let lane = stream.cuda().expect("the stream should be CUDA's").cu_stream().addr();
            assert_ne!(lane, expected);
            stream.include(own, |own| {
                assert_eq!(own.cuda().expect("the stream should be CUDA's").cu_stream().addr(), expected);
            })
        });
        include.unwrap().wait().unwrap();
        // Each stream waits for the other one.
        assert_eq!(waits() - before, 2);
        engine.wait_for_all().unwrap();
        drop((own, engine));
        assert_eq!(Arc::strong_count(&streams[0]), 1, "not only the program keeps the stream");
    }
    assert_eq!(live(), 0, "something was not released");
}

#[test]
#[ignore = "run by another test in a separate process, with a stand-in for the driver's library"]
fn inside_memory_is_pooled() {
    if !is_inside() {
        return;
    }
    let (one, two) = (driver(0), driver(1));
    assert_eq!(current(), 1);
    let mut vec = pinned(&one, &[5; 100]);
    assert_eq!(current(), 1, "an allocation changed the thread's context");
    vec.fill(6);
    drop(vec);
    let before = live();
    assert_eq!(*PinnedVec::<u64>::new(&one, 100).unwrap(), [0; 100]);
    assert_eq!(live(), before, "the block did not come from the pool");
    assert_eq!(*PinnedVec::<u64>::new(&two, 100).unwrap(), [0; 100]);
    assert_eq!(live(), before + 1, "the devices do not have pools of their own");
    assert!(
        PinnedVec::<u64>::new(&one, 625).unwrap().iter().all(|&value| value == 0),
        "new pinned memory is not zeroed"
    );

    drop(pinned(&one, &[9]));
    let mut stream = one.open(StreamRole::All).unwrap();
    assert_eq!(stream.passed().unwrap(), 0, "the reused word was not reset");
    let before = live();
    let more = [(); 40].map(|()| one.open(StreamRole::All).unwrap());
    // The streams, and one page of counters beyond the page allocated with the device.
    let pages = i32::from(env::var("WANTED").unwrap() == "Counter");
    assert_eq!(live() - before, 40 + pages);
    drop((stream, more));

    // Allocates all of the memory, first in two parts, then in one. For the single part, the first two must have been
    // returned to the driver.
    let halves = [(); 2].map(|()| DeviceVec::<u8>::new(&one, 1 << 19).unwrap());
    let error = DeviceVec::<u8>::new(&one, 1).expect_err("the memory should be full");
    assert!(!error.is_lost() && error.code() == 2, "{error}");
    drop(halves);
    let whole = DeviceVec::<u8>::new(&one, 1 << 20).unwrap();
    thread::scope(|scope| {
        // A thread that has not used the driver before.
        scope.spawn(|| {
            assert_eq!(current(), -1);
            drop(whole);
            DeviceVec::<u8>::new(&one, 1000).unwrap();
            assert_eq!(current(), -1);
        });
    });
    drop((one, two));
    assert_eq!(live(), 0);
}

/// Calls `check` with a stream and a call on it: in turn, an event, a wait, a mark, a copy in each direction, and a
/// probe.
fn each_call(mut check: impl FnMut(&mut dyn Stream, &dyn Fn(&mut dyn Stream) -> Result<(), DeviceError>)) {
    let gpu = driver(0);
    let (from, to) = (pinned(&gpu, &[1]), DeviceVec::<u64>::new(&gpu, 1).unwrap());
    let mut stream = gpu.open(StreamRole::All).unwrap();
    let event = stream.record().unwrap();
    check(&mut *stream, &|stream| stream.record().map(drop));
    check(&mut *stream, &|stream| stream.wait(&event));
    check(&mut *stream, &|stream| stream.mark(1));
    check(&mut *stream, &|stream| copy(stream, from.address(), to.address(), 8));
    check(&mut *stream, &|stream| copy(stream, to.address(), from.address(), 8));
    check(&mut *stream, &|stream| stream.probe());
    // A word that the device may still write would leak.
    pass(&mut *stream, 1);
}

#[test]
#[ignore = "run by another test in a separate process, with a stand-in for the driver's library"]
fn inside_refused_calls_can_be_repeated() {
    if !is_inside() {
        return;
    }
    let mut calls = 0;
    each_call(|stream, call| {
        calls += 1;
        fail(0, 801, false);
        let error = call(stream).expect_err("the call should be refused");
        assert!(!error.is_lost() && error.code() == 801, "{error}");
        if calls <= 3 {
            // No mark has been made yet: only the third call makes one, and that call was refused.
            stream.probe().unwrap();
            stream.probe().unwrap();
            assert_eq!(stream.passed().unwrap(), 0);
        }
        call(stream).expect("the device should be sound");
    });
    assert_eq!((calls, live()), (6, 0));

    // The device's list of streams holds no dropped stream, and an imported stream only once.
    let gpu = CudaGpu::open(0).unwrap();
    let own = gpu.context().new_stream_with_priority(0).unwrap();
    drop([(); 3].map(|()| (Driver::open(&gpu, StreamRole::All).unwrap(), gpu.import(Arc::clone(&own)).unwrap())));
    let last = Driver::open(&gpu, StreamRole::All).unwrap();
    assert_eq!(lock(&gpu.0.streams).len(), 2, "the list is not the last stream and, once, the program's own");
    drop((last, gpu, own));

    // A device given up because of a refusal must first complete its commands.
    let gpu = driver(0);
    let mut stream = gpu.open(StreamRole::All).unwrap();
    gpu.abandon(&DeviceError::refused(801, "no mark can be made"));
    assert_eq!(stream_waits(), 1);
    // Another lane may have issued commands after the device was given up.
    gpu.abandon(&gpu.open(StreamRole::All).map(drop).expect_err("the device should be given up"));
    assert_eq!(stream_waits(), 2);
    for error in [stream.mark(1), stream.passed().map(drop), gpu.allocate(MemoryKind::Pinned, 8).map(drop)] {
        let error = error.expect_err("the device should be given up");
        assert!(error.is_lost() && error.code() == 801, "{error}");
    }
    drop((stream, gpu));
    assert_eq!(live(), 0, "the memory was not released");
}

#[test]
#[ignore = "run by another test in a separate process, with a stand-in for the driver's library"]
fn inside_losses_are_permanent() {
    if !is_inside() {
        return;
    }
    let gpu = driver(0);
    let (from, to) = (pinned(&gpu, &[1]), DeviceVec::<u64>::new(&gpu, 1).unwrap());
    let (mut stream, mut other) = (gpu.open(StreamRole::All).unwrap(), gpu.open(StreamRole::Compute).unwrap());
    let event = other.record().unwrap();
    stream.mark(1).unwrap();
    fail(0, 700, true);
    // A counter does not show the failure; a query of an event would. With both kinds of marks the probe detects it.
    stream.probe().expect_err("an illegal address");
    for stream in [&mut *stream, &mut *other] {
        for error in [
            stream.passed().map(drop),
            stream.probe(),
            stream.record().map(drop),
            stream.wait(&event),
            stream.mark(2),
            copy(stream, from.address(), to.address(), 8),
            gpu.allocate(MemoryKind::Device, 8).map(drop),
            gpu.open(StreamRole::All).map(drop),
        ] {
            let error = error.expect_err("the device should be lost");
            assert!(error.is_lost() && error.code() == 700, "{error}");
            assert!(error.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
        }
    }
    gpu.abandon(&gpu.open(StreamRole::All).map(drop).expect_err("the device should be lost"));
    assert_eq!(stream_waits(), 0, "a lost device was waited for");
    // Nothing can be freed, but the process continues.
    drop((from, to, stream, other, event, gpu));
    assert!(live() > 0, "memory of a lost device was freed");
}

#[test]
#[ignore = "run by another test in a separate process, with a stand-in for the driver's library"]
fn inside_calls_during_a_capture_neither_fail_nor_invalidate_it() {
    if !is_inside() {
        return;
    }
    {
        let gpu = driver(0);
        let kept = DeviceVec::<u8>::new(&gpu, 5000).unwrap();
        let mut stream = gpu.open(StreamRole::All).unwrap();
        stream.mark(1).unwrap();
        drop(kept);
        capture(1);
        pass(&mut *stream, 1);
        let (free, new) = (DeviceVec::<u8>::new(&gpu, 5000).unwrap(), DeviceVec::<u8>::new(&gpu, 70_000).unwrap());
        let host = pinned(&gpu, &[1, 2, 3]);
        copy(&mut *stream, host.address(), free.address(), 24).unwrap();
        // The free blocks must be returned to the driver for this allocation.
        drop((free, new));
        drop(DeviceVec::<u8>::new(&gpu, 1 << 20).unwrap());
        thread::scope(|scope| {
            // A thread that has not used the driver before.
            scope.spawn(|| drop(DeviceVec::<u8>::new(&gpu, 3000).unwrap()));
        });
        let other = driver(1);
        let there = DeviceVec::<u8>::new(&other, 24).unwrap();
        copy(&mut *stream, host.address(), there.address(), 0).unwrap();
        let here = DeviceVec::<u8>::new(&gpu, 24).unwrap();
        copy(&mut *stream, here.address(), there.address(), 24).unwrap();
        assert_eq!(number_of("fakePeers"), 1);
        drop((gpu.open(StreamRole::Urgent).unwrap(), host, stream, here, there));
        drop((gpu, other));
        assert_eq!(number_of("fakeBroken"), 0, "the capture was invalidated");
    }
    capture(0);
    assert_eq!(live(), 0);
}

#[test]
#[ignore = "run by another test in a separate process, with a stand-in for the driver's library"]
fn inside_a_device_given_up_during_a_capture_completes_its_commands() {
    if !is_inside() {
        return;
    }
    let gpu = driver(0);
    let mut streams = [StreamRole::Compute, StreamRole::CopyIn, StreamRole::All].map(|role| gpu.open(role).unwrap());
    drop(gpu.open(StreamRole::CopyOut).unwrap());
    capture_on(&mut *streams[2]);
    capture(1);
    gpu.abandon(&DeviceError::refused(801, "no mark can be made"));
    assert_eq!((stream_waits(), number_of("fakeBroken")), (2, 0));
    let recorded = stream_of(&mut *streams[2]).expect("the stream should be a CUDA stream");
    let (mut status, mut graph) = (sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE, ptr::null_mut());
    // SAFETY: the stream is alive, and the pointer is to a local variable of the type that the library writes.
    check("cuStreamIsCapturing", unsafe { sys::cuStreamIsCapturing(recorded.cu_stream(), &raw mut status) }).unwrap();
    // SAFETY: the stream is alive, and the pointer is to a local variable of the type that the library writes.
    let ended = unsafe { sys::cuStreamEndCapture(recorded.cu_stream(), &raw mut graph) };
    assert_eq!(status, sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE, "the capture was invalidated");
    check("cuStreamEndCapture", ended).unwrap();
    // SAFETY: the graph has just been created, and nothing else uses it.
    check("cuGraphDestroy", unsafe { sys::cuGraphDestroy(graph) }).unwrap();
    drop((recorded, streams, gpu));
    capture(0);
    assert_eq!(live(), 0);
}

fn begin_capture(stream: &CudaStream) {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the stream is alive.
    check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(stream.cu_stream(), mode) }).unwrap();
}

/// Begins a capture on a stream, as the program could.
fn capture_on(stream: &mut dyn Stream) {
    begin_capture(&stream_of(stream).expect("the stream should be a CUDA stream"));
}

#[test]
#[ignore = "run by another test in a separate process, with a stand-in for the driver's library"]
fn inside_an_open_capture_fails_only_its_operation() {
    if !is_inside() {
        return;
    }
    {
        let gpu = CudaGpu::open(0).unwrap();
        // Only one thread at a time may use the library.
        let engine = Engine::builder().kind(EngineKind::Naive).gpu(gpu.clone()).build().unwrap();
        let own =
            engine.stream_var(ImportedStream::cuda(&gpu, gpu.context().new_stream_with_priority(0).unwrap()).unwrap());
        // The first function returns an error; the other operations fail only because of the open capture.
        let left = "left a capture of its stream open";
        for (fails, included, wanted) in
            [(true, false, "CUDA_ERROR_INVALID_VALUE"), (false, false, left), (false, true, left)]
        {
            if fails || cfg!(debug_assertions) {
                let record = move |stream: &mut GpuStream, own: &mut ImportedStream| {
                    if included {
                        return stream.include(own, |own| capture_on(own.inner()));
                    }
                    capture_on(stream.inner());
                    if fails { check("the program", CUresult::CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
                };
                let failed = engine.op("record").on(Device::Gpu(0)).submit_launch_any(own.overwrite(), record).unwrap();
                let error = failed.wait().expect_err("the capture should be open").to_string();
                assert!(error.contains(wanted), "{error}");
                let next = |stream: &mut GpuStream, _: &mut ImportedStream| {
                    stream.cuda().expect("the device should be sound");
                    Ok::<(), DeviceError>(())
                };
                let next = engine.op("next").on(Device::Gpu(0)).submit_launch_any(own.overwrite(), next);
                next.unwrap().wait().unwrap();
            }
        }
        engine.clear_errors();
        // An event of a captured stream would draw the other stream into the capture.
        let fork = |stream: &mut GpuStream, own: &mut ImportedStream| {
            capture_on(stream.inner());
            let refused = stream
                .include(own, |_| unreachable!("the include is refused"))
                .expect_err("the stream should be captured");
            let graph =
                stream.cuda().expect("the stream should be CUDA's").end_capture(sys::CUgraphInstantiate_flags(0));
            assert!(refused.message().contains("end the capture before"), "{refused}");
            graph.map(drop).map_err(DeviceError::from)
        };
        engine.op("fork").on(Device::Gpu(0)).submit_launch_any(own.overwrite(), fork).unwrap().wait().unwrap();
        assert_eq!(number_of("fakeRecorded"), 0, "the engine's own commands were captured");
        // A capture begun on the lane's stream while another stream is included fails the operation. The device stays
        // usable.
        let inside = |stream: &mut GpuStream, own: &mut ImportedStream| {
            let lane = stream.cuda().expect("the stream should be CUDA's");
            stream.include(own, |_| begin_capture(&lane))
        };
        let inside = engine.op("inside").on(Device::Gpu(0)).submit_launch_any(own.overwrite(), inside);
        let error = inside.unwrap().wait().expect_err("the capture should be open").to_string();
        assert!(error.contains(left), "{error}");
        engine.clear_errors();
        // A capture begun after a stream was included is found as well.
        let late = |stream: &mut GpuStream, own: &mut ImportedStream| {
            let lane = stream.cuda().expect("the stream should be CUDA's");
            stream.include(own, |_| ())?;
            begin_capture(&lane);
            drop(lane);
            check("the program", CUresult::CUDA_ERROR_INVALID_VALUE)
        };
        engine
            .op("late")
            .on(Device::Gpu(0))
            .submit_launch_any(own.overwrite(), late)
            .unwrap()
            .wait()
            .expect_err("the operation should fail");
        engine.clear_errors();
        engine
            .op("next")
            .on(Device::Gpu(0))
            .submit_launch_any((), |_, ()| Ok::<(), DeviceError>(()))
            .unwrap()
            .wait()
            .unwrap();
        assert_eq!(number_of("fakeRecorded"), 0, "the engine's own commands were captured");
        // An imported stream cannot be included while the program is capturing it, but can be afterwards.
        let theirs = gpu.context().new_stream_with_priority(0).unwrap();
        let imported = engine.stream_var(ImportedStream::cuda(&gpu, Arc::clone(&theirs)).unwrap());
        begin_capture(&theirs);
        for captured in [true, false] {
            let include = engine
                .op("include")
                .on(Device::Gpu(0))
                .submit_launch_any(imported.overwrite(), |stream, own| stream.include(own, |own| drop(own.cuda())));
            let included = include.unwrap().wait();
            if captured {
                let error = included.expect_err("the stream should be captured").to_string();
                assert!(error.contains("before an operation includes it"), "{error}");
                theirs
                    .end_capture(sys::CUgraphInstantiate_flags(0))
                    .map(drop)
                    .expect("the capture should not have ended");
                engine.clear_errors();
            } else {
                included.expect("the capture should be over");
            }
        }
    }
    assert_eq!(live(), 0);
}

#[test]
#[ignore = "run by another test in a separate process, with a stand-in for the driver's library"]
fn inside_a_capture_over_several_operations_is_refused() {
    if !is_inside() {
        return;
    }
    for case in ["nothing is checked", "a function fails", "the stream is probed", "through a handle that is kept"] {
        let gpu = driver(0);
        let mut stream = gpu.open(StreamRole::Compute).unwrap();
        let event = stream.record().unwrap();
        let mut kept = None;
        if case == "through a handle that is kept" {
            kept = stream_of(&mut *stream);
            assert_eq!(stream.function_ended(CaptureCheck::Later).unwrap(), LeftBehind::Nothing);
            stream.mark(1).unwrap();
            pass(&mut *stream, 1);
            begin_capture(kept.as_ref().expect("the stream should be a CUDA stream"));
        } else {
            capture_on(&mut *stream);
        }
        // Nothing is checked here, so a capture that the next check finds may have begun earlier.
        assert_eq!(stream.function_ended(CaptureCheck::Later).unwrap(), LeftBehind::Nothing);
        if case == "a function fails" {
            stream_of(&mut *stream).expect("the stream should be a CUDA stream");
            assert_eq!(stream.function_ended(CaptureCheck::Now).unwrap(), LeftBehind::Capture);
        }
        if case == "the stream is probed" {
            assert_eq!(stream.probe().expect_err("something should have been captured").code(), CAPTURING);
        }
        // The probe has already reported the capture.
        let calls = if case == "the stream is probed" { 0 } else { 2 };
        for _ in 0..calls {
            for error in [stream.mark(2), stream.record().map(drop), stream.wait(&event)] {
                let error = error.expect_err("the captured work should be missing");
                assert!(!error.is_lost() && error.code() == CAPTURING, "{case}: {error}");
            }
        }
        assert_eq!(number_of("fakeRecorded"), 0);
        let before = stream_waits();
        // The device must be waited for even if the program reports it as lost.
        gpu.abandon(&DeviceError::lost(999, "reported by the program"));
        assert_eq!(stream_waits(), before + 1, "a device that is sound was not waited for");
        drop((stream, event, gpu, kept));
        assert_eq!(live(), 0);
    }

    // Another lane gives up the device while this lane's function is capturing.
    let gpu = driver(0);
    let mut stream = gpu.open(StreamRole::Compute).unwrap();
    capture_on(&mut *stream);
    let before = stream_waits();
    gpu.abandon(&DeviceError::refused(801, "no mark can be made"));
    assert_eq!(stream_waits(), before, "a wait that would be refused was tried");
    assert_eq!(stream.function_ended(CaptureCheck::Now).unwrap(), LeftBehind::Capture);
    gpu.abandon(&DeviceError::refused(801, "no mark can be made"));
    assert_eq!(stream_waits(), before + 1, "a lane must wait for what it has issued");
    drop((stream, gpu));
    assert_eq!(live(), 0);
}

#[test]
#[ignore = "run by another test in a separate process, with a stand-in for the driver's library"]
fn inside_errors_of_drops_fail_the_function_that_caused_them() {
    if !is_inside() {
        return;
    }
    let gpu = CudaGpu::open(0).unwrap();
    let mut stream = Driver::open(&gpu, StreamRole::All).unwrap();
    let drop_badly = |code| gpu.context().record_err::<()>(Err(cudarc::driver::DriverError(code)));
    // An error left before a function runs is not attributed to that function.
    drop_badly(CUresult::CUDA_ERROR_INVALID_HANDLE);
    let own = stream_of(&mut *stream).expect("the stream should be a CUDA stream");
    own.context().bind_to_thread().expect("an earlier error must not fail this call");
    assert_eq!(stream.function_ended(CaptureCheck::Later).unwrap(), LeftBehind::Nothing);
    // An error left while the function runs is attributed to it.
    stream_of(&mut *stream).expect("the stream should be a CUDA stream");
    drop_badly(CUresult::CUDA_ERROR_INVALID_HANDLE);
    let error = stream.function_ended(CaptureCheck::Later).expect_err("a drop should have failed");
    assert!(!error.is_lost() && error.code() == 400, "{error}");
    stream.mark(1).unwrap();
    // The error does not prevent the check for captures.
    capture_on(&mut *stream);
    drop_badly(CUresult::CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(stream.function_ended(CaptureCheck::Later).expect_err("a drop should have failed").code(), 400);
    stream.mark(2).unwrap();
    assert_eq!(number_of("fakeRecorded"), 0);
    // A function's own error is kept, no matter how often the function asks for its stream.
    stream_of(&mut *stream).expect("the stream should be a CUDA stream");
    drop_badly(CUresult::CUDA_ERROR_INVALID_HANDLE);
    stream_of(&mut *stream).expect("the stream should be a CUDA stream");
    assert_eq!(stream.function_ended(CaptureCheck::Later).expect_err("a drop should have failed").code(), 400);
    // A loss is kept even if it was left before the function asked for its stream.
    drop_badly(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    stream_of(&mut *stream).expect("the stream should be a CUDA stream");
    assert!(stream.mark(3).expect_err("the device should be lost").is_lost());
}

/// Checks all error numbers that count as losses, and some that do not.
#[test]
fn only_errors_that_end_a_context_are_losses() {
    for code in [4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 806, 810, 999] {
        assert!(is_loss(code), "{code}");
    }
    for code in [1, 2, 3, 46, 100, 101, 201, 600, 704, 801, 805].into_iter().chain(900..=908) {
        assert!(!is_loss(code), "{code}");
    }
}
