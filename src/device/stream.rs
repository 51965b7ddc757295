//! The stream passed to the function of a device operation, and the program's own streams, which the function can
//! include.
//!
//! # The program's own streams
//!
//! [`GpuStream::include`] calls a function that issues work on another stream, and uses events to order this work.
//! Before the call, the other stream waits for an event of the lane's stream; afterwards, the lane's stream waits for
//! an event of the other stream. So everything that an operation issues precedes its lane's next mark or event. This is
//! all that the engine needs.
//!
//! | state of the lane's stream | how it is reached | next |
//! |---|---|---|
//! | alone | – | forked |
//! | forked | the other stream waits for an event of the lane's stream; the function runs, and is given only the other stream | alone, given up |
//! | alone | the lane's stream waits for an event of the other stream; the record and the wait are each tried up to [`MARK_TRIES`] times | forked |
//! | given up | the device is lost, or every attempt failed; the stream is dead: nothing more is issued on it, and the engine gives up the device | – |

use std::{any::Any, fmt, panic::resume_unwind};

use crate::{
    device::{
        driver::{Address, CaptureCheck, DeviceEvent, Driver, LeftBehind, Stream, StreamRole},
        memory::{DeviceVec, PinnedVec},
        simulated::{SimulatedGpu, SimulatedStream},
    },
    error::device_error::{CAPTURING, DeviceError},
    sync::edge::{removed, step},
    system::panics,
    values::device::Device,
};

/// How many times the engine tries to mark a stream, or to order work behind that of an included stream, before it
/// gives up the device.
pub(crate) const MARK_TRIES: u32 = 3;

/// How the function of a device operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FunctionEnd {
    Returned,
    /// The function failed, so it may have left a capture open.
    Failed,
}

/// The stream on which a device operation issues its work. The operation's function receives it if the accesses include
/// [`stream()`](crate::stream).
///
/// The work that the function issues on the stream runs on the device after all of the operation's dependencies, and
/// the operation is complete once the device has completed that work. To use one of the program's own streams as well,
/// call [`include`](Self::include), which makes the work issued there part of the operation.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::{Device, Engine, stream, gpu::SimulatedGpu};
/// use std::time::Duration;
///
/// let gpu = Device::Gpu(0);
/// let engine = Engine::builder().workers(1).gpu(SimulatedGpu::new()).build()?;
/// let values = engine.device_var::<u32>(gpu, 4)?;
/// engine.op("fill").on(gpu).try_push((values.overwrite(), stream()), |(values, stream)| {
///     assert_eq!(stream.device(), Device::Gpu(0));
///     let mut stream = stream.simulated().expect("the device is simulated");
///     stream.launch(Duration::from_micros(5), values, |values| values.fill(7))?;
///     Ok(())
/// })?;
/// engine.wait_for_var(&values)?;
/// # Ok(())
/// # }
/// ```
pub struct GpuStream {
    stream: Box<dyn Stream>,
    device: Device,
    /// The number of the last mark made by `finish`.
    marks: u64,
    /// If [`include`](Self::include) has made the stream dead: the reason, and the original stream, which is kept so
    /// that its work is waited for when the device is given up.
    given_up: Option<(DeviceError, Box<dyn Stream>)>,
}

impl fmt::Debug for GpuStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuStream").field("device", &self.device).finish_non_exhaustive()
    }
}

impl GpuStream {
    pub(crate) fn new(stream: Box<dyn Stream>, device: Device) -> Self {
        Self { stream, device, marks: 0, given_up: None }
    }

    /// Creates a stream on which every command and every poll returns `error`, in place of one that could not be opened
    /// or adopted.
    pub(crate) fn dead(error: DeviceError, device: Device) -> Self {
        Self::new(Box::new(Dead(error)), device)
    }

    /// Returns the device of the operation.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device
    }

    /// Returns the stream's interface on a simulated device, or `None` on another device or if the stream was given up.
    #[must_use]
    pub fn simulated(&mut self) -> Option<SimulatedStream<'_>> {
        SimulatedStream::new(&mut *self.stream)
    }

    /// Returns the cudarc stream, which can be passed to libraries, or `None` on other devices or if the stream was
    /// given up. The stream's method `cu_stream` returns the raw handle.
    ///
    /// Besides the operation's variables, work issued on the stream may use only what outlives the work; this is why
    /// cudarc's launches are `unsafe`. The code of kernels must outlive the work, too: cudarc unloads a module when its
    /// last `CudaFunction` or `CudaModule` is dropped, and whatever the operation's function owns is dropped when the
    /// function ends, possibly before the device has finished. So a program must keep its modules outside such
    /// functions, for instance as values of variables that the operation reads.
    ///
    /// A function that captures a graph on the stream must end the capture on every exit path, panics included. If it
    /// does not, the operation fails in builds with debug assertions; in other builds the operation fails or the device
    /// is given up. The engine's own calls on other streams do not invalidate the capture.
    ///
    /// Except in a naive engine, operations with the same device and property use the same stream, even after a
    /// [stop](crate::Engine::stop) and a start. So they can share an object bound to the stream, such as a graph or a
    /// library's handle. In the naive engine, each operation may use a different stream.
    ///
    /// For work on the program's own streams, see [`include`](Self::include).
    #[cfg(feature = "cuda")]
    #[must_use]
    pub fn cuda(&mut self) -> Option<std::sync::Arc<cudarc::driver::CudaStream>> {
        crate::device::cuda::stream_of(&mut *self.stream)
    }

    /// Calls `f` with `other`, one of the program's own streams, and makes the work that `f` issues there part of this
    /// operation: the device does this work after everything issued on this stream before the call, and before
    /// everything issued on it after the call. `f` need not issue anything.
    ///
    /// This method is for objects bound to a stream, such as a library's handle: their work stays on their own stream,
    /// yet is part of an operation. Work that the program issued on `other` before the call keeps its place there, so
    /// this operation waits for that work. The host does not wait. The call costs two events and two waits for events,
    /// which operations using only their lane's stream do not need.
    ///
    /// If `f` panics, the work it has issued is still part of the operation.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{Device, Engine, stream, gpu::{ImportedStream, SimulatedGpu}};
    /// use std::time::Duration;
    ///
    /// let device = SimulatedGpu::default();
    /// let engine = Engine::builder().gpu(device.clone()).build()?;
    /// let gpu = Device::Gpu(0);
    /// // With CUDA: `ImportedStream::cuda(&device, stream)?`.
    /// let own = engine.stream_var(ImportedStream::simulated(&device)?);
    /// let values = engine.device_var::<u32>(gpu, 4)?;
    /// let host = engine.pinned_var::<u32>(gpu, 4)?;
    /// engine.op("upload").on(gpu).copy_to_device(&host, &values)?;
    /// engine.op("add").on(gpu).try_push((values.write(), own.overwrite(), stream()), |(values, own, stream)| {
    ///     stream.include(own, |own| {
    ///         let mut own = own.simulated().expect("the device is simulated");
    ///         own.launch(Duration::ZERO, values, |values| values.iter_mut().for_each(|value| *value += 1))
    ///     })??;
    ///     Ok(())
    /// })?;
    /// engine.op("download").on(gpu).copy_from_device(&values, &host)?;
    /// assert_eq!(engine.op("look").submit(host.read(), |host| host[3])?.wait()?, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `other` belongs to another device, or was imported through a handle that is neither the engine's nor a clone of
    /// it; a capture is open on one of the two streams; or the device refuses a call or is lost. Errors found before
    /// the call to `f` prevent that call. If the device repeatedly refuses a call needed after `f`, the engine gives up
    /// the device as if it were lost: all operations in flight on it fail, since their state is unknown.
    ///
    /// # Panics
    /// If `f` panics.
    pub fn include<R>(
        &mut self,
        other: &mut ImportedStream,
        f: impl FnOnce(&mut GpuStream) -> R,
    ) -> Result<R, DeviceError> {
        let other = &mut other.0;
        if self.stream.is_captured()? {
            let message = "the function is capturing its stream; end the capture before including another stream";
            return Err(DeviceError::refused(CAPTURING, message));
        }
        let before = self.stream.record()?;
        if other.stream.driver().is_some_and(|driver| self.stream.driver() != Some(driver)) {
            let message = "the imported stream belongs to a device other than the operation's; import one for each \
                           device, through the handle that the engine was given or a clone of it";
            return Err(DeviceError::refused(-1, message));
        }
        if !removed(step::INCLUDED_COMES_AFTER) {
            other.stream.wait(&before)?;
        }
        other.device = self.device;
        let result = panics::catch(|| f(other));
        // Ends a capture left open on `other` by `f`: `record`, below, would refuse a captured stream.
        let left = other.function_ended(FunctionEnd::Failed);
        // `f` may also have begun to capture the lane's stream. That capture's graph contains only this operation's
        // work, so that capture is ended here as well.
        let left = match self.stream.is_captured() {
            Ok(true) => left.and(self.function_ended(FunctionEnd::Failed)),
            _ => left,
        };
        let joined = persist(|| other.stream.record()).and_then(|after| {
            if removed(step::INCLUDED_COMES_BEFORE) {
                return Ok(());
            }
            persist(|| self.stream.wait(&after))
        });
        if let Err(error) = joined {
            // The lane's later work must not run concurrently with the included work, which could not be ordered before
            // it.
            let stream = std::mem::replace(&mut self.stream, Box::new(Dead(error.clone())));
            self.given_up = Some((error.clone(), stream));
            if let Err(payload) = result {
                resume_unwind(payload);
            }
            return Err(error);
        }
        let result = result.unwrap_or_else(|payload| resume_unwind(payload));
        left.map(|()| result)
    }

    /// Must be called when a function that was given the stream has ended. Returns an error if the function left a
    /// failure or an open capture behind.
    pub(crate) fn function_ended(&mut self, end: FunctionEnd) -> Result<(), DeviceError> {
        let check = match end {
            FunctionEnd::Returned if !cfg!(debug_assertions) => CaptureCheck::Later,
            _ => CaptureCheck::Now,
        };
        // The function may have continued to use the original stream after that stream was given up, and the stream's
        // work must still be waited for.
        let dead = match &mut self.given_up {
            Some((_, stream)) => stream.function_ended(CaptureCheck::Now),
            None => Ok(LeftBehind::Nothing),
        };
        if [self.stream.function_ended(check)?, dead?].contains(&LeftBehind::Capture) {
            let message = "the function left a capture of its stream open; end it on every exit path";
            return Err(DeviceError::refused(CAPTURING, message));
        }
        Ok(())
    }

    /// Returns why nothing more can be issued, if [`include`](Self::include) has made the stream dead.
    pub(crate) fn given_up(&self) -> Option<&DeviceError> {
        self.given_up.as_ref().map(|(error, _)| error)
    }

    /// Returns the underlying stream of the driver.
    pub(crate) fn inner(&mut self) -> &mut dyn Stream {
        &mut *self.stream
    }

    /// Blocks this thread until the device has done everything issued on the stream. Called by the naive engine. After
    /// an error, the device may still be working, and must be given up.
    pub(crate) fn finish(&mut self) -> Result<(), DeviceError> {
        let mark = self.marks + 1;
        persist(|| self.stream.mark(mark))?;
        self.marks = mark;
        let mut looks = 0u32;
        while self.stream.passed()? < mark {
            looks = looks.wrapping_add(1);
            if looks % 1024 == 0 {
                self.stream.probe()?;
            }
            crate::sync::hint::spin_loop();
        }
        Ok(())
    }

    /// Makes the device copy values of type `T`. `from` and `to` are addresses with lengths.
    ///
    /// # Safety
    /// 1. `from` and `to` contain as many values as their lengths state, and both belong to variables declared by the
    ///    running operation, which may read `from` and mutate `to`.
    unsafe fn copy<T>(&mut self, from: (Address, usize), to: (Address, usize)) -> Result<(), DeviceError> {
        let ((from, length), (to, room)) = (from, to);
        if length != room {
            let message = format!("a copy from {length} elements to {room}; make both the same length");
            return Err(DeviceError::refused(-1, message));
        }
        // SAFETY: (1) implies both obligations: both ranges are large enough, and the engine keeps the values alive and
        // orders conflicting operations before or after the copy.
        unsafe { self.stream.copy(from, to, length * size_of::<T>()) }
    }

    // Only the address and the length of a `PinnedVec` are used: another copy may be in flight in its memory, so no
    // reference to its values may exist.

    pub(crate) fn copy_in<T>(&mut self, from: &PinnedVec<T>, to: &mut DeviceVec<T>) -> Result<(), DeviceError> {
        // SAFETY: (1): the only caller is the function of an operation that reads `from` and overwrites `to`.
        unsafe { self.copy::<T>((from.address(), from.count()), (to.address(), to.len())) }
    }

    pub(crate) fn copy_out<T>(&mut self, from: &DeviceVec<T>, to: &mut PinnedVec<T>) -> Result<(), DeviceError> {
        // SAFETY: (1): the only caller is the function of an operation that reads `from` and overwrites `to`.
        unsafe { self.copy::<T>((from.address(), from.len()), (to.address(), to.count())) }
    }

    pub(crate) fn copy_across<T>(&mut self, from: &DeviceVec<T>, to: &mut DeviceVec<T>) -> Result<(), DeviceError> {
        // SAFETY: (1): the only caller is the function of an operation that reads `from` and overwrites `to`.
        unsafe { self.copy::<T>((from.address(), from.len()), (to.address(), to.len())) }
    }
}

#[cfg(any(raddle_loom, raddle_shuttle))]
impl GpuStream {
    /// Returns a stream without a lane, for models.
    pub fn alone(gpu: &SimulatedGpu) -> Self {
        Self::new(gpu.open(StreamRole::All).expect("the device is sound"), Device::Gpu(0))
    }

    /// Makes all work issued on this stream from now on wait for the work already issued on `other`, a stream of any
    /// device.
    pub fn follow(&mut self, other: &mut Self) {
        let event = other.stream.record().expect("nothing fails");
        self.stream.wait(&event).expect("nothing fails");
    }

    /// Waits until the device has done everything issued on the stream.
    pub fn end(&mut self) {
        self.finish().expect("nothing fails");
    }
}

/// Makes a call whose failure would leave the device in an unknown state, and retries it a few times unless the device
/// is lost.
fn persist<R>(mut call: impl FnMut() -> Result<R, DeviceError>) -> Result<R, DeviceError> {
    let mut tries = 1;
    loop {
        match call() {
            Err(error) if !error.is_lost() && tries < MARK_TRIES => tries += 1,
            done => return done,
        }
    }
}

/// One of the program's own streams, on which operations of its device can issue work; see [`GpuStream::include`].
///
/// An imported stream belongs to one operation at a time. The engine ensures this for a variable's value
/// ([`Engine::stream_var`](crate::Engine::stream_var)). Dropping an imported stream does not affect the program's
/// stream.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::{Engine, gpu::{ImportedStream, SimulatedGpu}};
///
/// let device = SimulatedGpu::new();
/// let engine = Engine::builder().workers(1).gpu(device.clone()).build()?;
/// let own = engine.stream_var(ImportedStream::simulated(&device)?);
/// # Ok(())
/// # }
/// ```
pub struct ImportedStream(GpuStream);

impl ImportedStream {
    fn new(stream: Box<dyn Stream>) -> Self {
        // A placeholder: `include` sets the device to the operation's.
        Self(GpuStream::new(stream, Device::Cpu))
    }

    /// Creates a stream of a simulated device, which stands in for one of a real program's own streams.
    ///
    /// # Errors
    /// The device is lost.
    pub fn simulated(gpu: &SimulatedGpu) -> Result<Self, DeviceError> {
        gpu.open(StreamRole::All).map(Self::new)
    }

    /// Wraps a CUDA stream: one created by cudarc, or a raw one through cudarc's `wrap_borrowed_stream`.
    ///
    /// The stream must not be captured into a graph while an operation includes it.
    ///
    /// # Errors
    /// The stream belongs to a context other than `gpu`'s primary context, returned by
    /// [`CudaGpu::context`](crate::gpu::CudaGpu::context); it is the per-thread default stream, which would be a
    /// different stream on a lane's thread; or the device is lost.
    #[cfg(feature = "cuda")]
    pub fn cuda(
        gpu: &crate::device::cuda::CudaGpu,
        stream: std::sync::Arc<cudarc::driver::CudaStream>,
    ) -> Result<Self, DeviceError> {
        gpu.import(stream).map(Self::new)
    }
}

impl fmt::Debug for ImportedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImportedStream").finish_non_exhaustive()
    }
}

/// Takes the place of a stream that could not be opened or adopted, or that was given up. Every command and every poll
/// returns the reason.
struct Dead(DeviceError);

impl Stream for Dead {
    fn driver(&self) -> Option<usize> {
        None
    }

    fn record(&mut self) -> Result<DeviceEvent, DeviceError> {
        Err(self.0.clone())
    }

    fn wait(&mut self, _: &DeviceEvent) -> Result<(), DeviceError> {
        Err(self.0.clone())
    }

    fn mark(&mut self, _: u64) -> Result<(), DeviceError> {
        Err(self.0.clone())
    }

    fn passed(&mut self) -> Result<u64, DeviceError> {
        Err(self.0.clone())
    }

    fn probe(&mut self) -> Result<(), DeviceError> {
        Err(self.0.clone())
    }

    unsafe fn copy(&mut self, _: Address, _: Address, _: usize) -> Result<(), DeviceError> {
        Err(self.0.clone())
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::{device::simulated, sync::lock};

    /// The calls so far, each with its stream's name, and the calls to refuse.
    #[derive(Clone, Default)]
    struct Calls(Arc<Mutex<(Vec<String>, Vec<&'static str>)>>);

    struct Noting(&'static str, SimulatedGpu, Calls);

    impl Calls {
        fn made(&self) -> Vec<String> {
            lock(&self.0).0.clone()
        }
    }

    impl Noting {
        fn note(&self, call: &str) -> Result<(), DeviceError> {
            let call = format!("{} {call}", self.0);
            let (calls, refused) = &mut *lock(&self.2.0);
            let error = refused.contains(&&*call).then(|| DeviceError::refused(801, "not now"));
            calls.push(call);
            error.map_or(Ok(()), Err)
        }
    }

    impl Stream for Noting {
        fn driver(&self) -> Option<usize> {
            Some(1)
        }

        fn record(&mut self) -> Result<DeviceEvent, DeviceError> {
            self.note("record")?;
            self.1.open(StreamRole::All)?.record()
        }

        fn wait(&mut self, _: &DeviceEvent) -> Result<(), DeviceError> {
            self.note("wait")
        }

        fn mark(&mut self, _: u64) -> Result<(), DeviceError> {
            self.note("mark")
        }

        fn passed(&mut self) -> Result<u64, DeviceError> {
            Ok(0)
        }

        fn probe(&mut self) -> Result<(), DeviceError> {
            Ok(())
        }

        unsafe fn copy(&mut self, _: Address, _: Address, _: usize) -> Result<(), DeviceError> {
            Ok(())
        }

        fn as_any(&mut self) -> &mut dyn Any {
            self
        }
    }

    /// Includes a stream while some calls are refused. Returns the calls so far, the result, and the lane's stream,
    /// whose later calls are added to the same list.
    fn include(refused: &[&'static str]) -> (Calls, Result<(), DeviceError>, GpuStream) {
        let (gpu, calls) = (SimulatedGpu::builder().clock(simulated::Clock::Instantly).build(), Calls::default());
        lock(&calls.0).1.extend(refused);
        let stream = |name| Box::new(Noting(name, gpu.clone(), calls.clone()));
        let mut lane = GpuStream::new(stream("lane"), Device::Gpu(3));
        let mut other = ImportedStream::new(stream("other"));
        let result = lane.include(&mut other, |other| {
            assert_eq!(other.device(), Device::Gpu(3));
            lock(&calls.0).0.push("function".to_owned());
        });
        (calls, result, lane)
    }

    #[test]
    fn an_included_stream_is_between_two_events() {
        let (calls, result, mut lane) = include(&[]);
        assert_eq!(calls.made(), ["lane record", "other wait", "function", "other record", "lane wait"]);
        result.unwrap();
        assert!(lane.given_up().is_none());
        lane.inner().mark(1).unwrap();
    }

    #[test]
    fn a_refusal_before_the_function_leaves_the_stream_as_it_was() {
        for (refused, expected) in [("lane record", 1), ("other wait", 2)] {
            let (calls, result, mut lane) = include(&[refused]);
            assert_eq!(calls.made().len(), expected, "{:?}", calls.made());
            assert_eq!(result.expect_err("the call should be refused").code(), 801);
            assert!(lane.given_up().is_none());
            lane.inner().mark(1).unwrap();
        }
    }

    /// No more work may be issued on a stream if the included work could not be ordered. The engine's next call on the
    /// stream returns an error, so the engine gives up the device.
    #[test]
    fn a_stream_whose_included_work_cannot_be_ordered_is_dead() {
        for (refused, others) in [("other record", 3), ("lane wait", 4)] {
            let (calls, result, mut lane) = include(&[refused]);
            let made = calls.made();
            assert_eq!(made.iter().filter(|call| *call == refused).count(), MARK_TRIES as usize, "{made:?}");
            assert_eq!(made.len(), others + MARK_TRIES as usize, "{made:?}");
            assert_eq!(result.expect_err("the call should be refused").code(), 801);
            assert_eq!(lane.given_up().map(DeviceError::message), Some("not now"));
            // The work issued on the stream must still be waited for.
            assert_eq!(Arc::strong_count(&calls.0), 2, "the stream was dropped");
            for result in [
                lane.inner().mark(1),
                lane.inner().passed().map(drop),
                lane.inner().probe(),
                lane.inner().record().map(drop),
                lane.finish(),
            ] {
                assert_eq!(result.expect_err("the stream should be dead").message(), "not now");
            }
            assert_eq!(calls.made(), made, "the stream itself was called");
        }
    }
}
