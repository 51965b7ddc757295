//! What the function of a device operation gets: the stream of its lane, and beside it streams of the program's own.
//!
//! # Streams of the program's own
//!
//! [`GpuStream::include`] puts one in order with the stream of the lane for the time of a function: what is issued on it is
//! enclosed by an event of the one that the other waits for, and an event of the other that the one waits for. So all that
//! an operation issues is before the next mark or event of its lane, which is all that the engine asks for.
//!
//! | state of the lane's stream | how it gets there | next |
//! |---|---|---|
//! | alone | – | forked |
//! | forked | the other one waits for an event of it; the function runs, and has the other one only | alone, given up |
//! | alone | it waits for an event of the other one; both calls have as many tries as a mark | forked |
//! | given up | the device is lost, or no try did it; it is dead, so that nothing more is issued, and the engine gives up the device | – |

use std::{any::Any, fmt, panic::resume_unwind};

use crate::{
    device::{
        driver::{Address, Driver, Event, Role, Stream},
        memory::{DeviceVec, PinnedVec},
        simulated::{SimulatedGpu, SimulatedStream},
    },
    error::device::{CAPTURING, DeviceError},
    system::panics,
    testing::weaken::{Step, removed},
    values::device::Device,
};

/// Tries to mark a stream before it is given up.
pub(crate) const MARK_TRIES: u32 = 3;

/// The stream that a device operation issues its work on; from [`OpBuilder::launch`](crate::OpBuilder::launch)
/// its siblings.
///
/// What the function puts on it runs on the device after everything that the operation comes after, and the operation is
/// complete when the device has done it. Streams of the program's own are put in order with it by
/// [`include`](Self::include).
pub struct GpuStream {
    stream: Box<dyn Stream>,
    context: Device,
    /// The last one made by `finish`.
    marks: u64,
    /// It is dead since this happened. The stream that it was stays until the device has been given up, which waits for it.
    given_up: Option<(DeviceError, Box<dyn Stream>)>,
}

impl fmt::Debug for GpuStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuStream").field("context", &self.context).finish_non_exhaustive()
    }
}

impl GpuStream {
    pub(crate) fn new(stream: Box<dyn Stream>, context: Device) -> Self {
        Self { stream, context, marks: 0, given_up: None }
    }

    /// Instead of one that could not be opened.
    pub(crate) fn dead(error: DeviceError, context: Device) -> Self {
        Self::new(Box::new(Dead(error)), context)
    }

    /// The device.
    #[must_use]
    pub fn context(&self) -> Device {
        self.context
    }

    /// What a simulated device offers; `None` on others, and on a device that was given up.
    #[must_use]
    pub fn simulated(&mut self) -> Option<SimulatedStream<'_>> {
        SimulatedStream::new(&mut *self.stream)
    }

    /// The stream for CUDA: cudarc's, from which libraries get theirs and which gives the raw one by `cu_stream()`; `None`
    /// on other devices, and on a stream that was given up.
    ///
    /// What is put on it must use nothing beyond the operation's variables that does not outlive the device's work, which is
    /// why cudarc's launches are `unsafe`. That is true of code as well: cudarc unloads a module with its last
    /// `CudaFunction` and `CudaModule`, and what a function has captured is dropped before the device is done. A program keeps
    /// its modules elsewhere, or as values of variables that the operation reads.
    ///
    /// A function that captures a graph on the stream must end the capture on every way out, panics included. If it does not,
    /// the operation fails in builds with debug assertions; in others the operation fails or the device is given up. Nothing
    /// that the engine does on other streams invalidates the capture.
    ///
    /// What keeps the stream, such as a graph or a library's handle, is for operations of one property, on one engine that is
    /// not naive: there each operation has the same stream. The naive engine gives any of its streams.
    ///
    /// For work on streams of the program's own see [`include`](Self::include).
    #[cfg(feature = "cuda")]
    #[must_use]
    pub fn cuda(&mut self) -> Option<std::sync::Arc<cudarc::driver::CudaStream>> {
        crate::device::cuda::stream_of(&mut *self.stream)
    }

    /// Calls `f` with `other`, a stream of the program's own, and makes what `f` issues on it a part of this operation: the
    /// device does it after what was issued on this stream before, and before what is issued on it afterwards. `f` need not
    /// issue anything.
    ///
    /// This is for what is bound to a stream, like the handle of a library: it works on its stream, and is in order with all
    /// operations. What the program has put on that stream otherwise comes in its place there, so that this operation waits
    /// for what is before. The host waits for nothing. It costs two events and two waits for events, which operations that
    /// stay on their lane's stream do not need.
    ///
    /// If `f` panics, what it has issued is a part of the operation all the same.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{Device, Engine, ImportedStream, SimulatedGpu};
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
    /// engine.op("add").on(gpu).try_launch((values.write(), own.overwrite()), |stream, (values, own)| {
    ///     stream.include(own, |own| {
    ///         let mut own = own.simulated().expect("it is a simulated device");
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
    ///
    /// `other` is of another device, or of another handle of it than the engine's; the device refuses a call, or is lost. `f`
    /// has not been called if that happened before. A device that refuses again and again what is needed *after* `f` is given
    /// up, as if it were lost: all that is under way on it fails, since nobody could know what it does still.
    ///
    /// # Panics
    ///
    /// If `f` does.
    pub fn include<R>(
        &mut self,
        other: &mut ImportedStream,
        f: impl FnOnce(&mut GpuStream) -> R,
    ) -> Result<R, DeviceError> {
        let other = &mut other.0;
        if self.stream.is_captured()? {
            let message = "the function captures its stream; end the capture before another stream is included";
            return Err(DeviceError::refused(CAPTURING, message));
        }
        let before = self.stream.record()?;
        if other.stream.driver().is_some_and(|driver| self.stream.driver() != Some(driver)) {
            let message = "the imported stream is of another device than the operation; import one of each device, by \
                           the handle that the engine was given, or a clone of that";
            return Err(DeviceError::refused(-1, message));
        }
        if !removed(Step::IncludedComesAfter) {
            other.stream.wait(&before)?;
        }
        other.context = self.context;
        let result = panics::catch(|| f(other));
        // The record below would look as well.
        let left = other.function_ended(true);
        // `f` may have captured the lane's stream as well, into a graph that only this operation's work is in.
        let left = match self.stream.is_captured() {
            Ok(true) => left.and(self.function_ended(true)),
            _ => left,
        };
        let joined = persist(|| other.stream.record()).and_then(|after| {
            if removed(Step::IncludedComesBefore) {
                return Ok(());
            }
            persist(|| self.stream.wait(&after))
        });
        if let Err(error) = joined {
            // Nothing that comes later may run beside what is out of order now.
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

    /// Notes that a function which had the stream has returned, and whether it `failed`. Gives the error that it has left.
    pub(crate) fn function_ended(&mut self, failed: bool) -> Result<(), DeviceError> {
        let look = failed || cfg!(debug_assertions);
        // The function may go on with a stream that was given up, which has to be waited for.
        let dead = self.given_up.as_mut().map_or(Ok(false), |(_, stream)| stream.function_ended(true));
        if self.stream.function_ended(look)? || dead? {
            let message = "the function has left its stream in a capture; end the capture on every way out";
            return Err(DeviceError::refused(CAPTURING, message));
        }
        Ok(())
    }

    /// Why nothing can be issued on it any more, if [`include`](Self::include) has brought that about.
    pub(crate) fn given_up(&self) -> Option<&DeviceError> {
        self.given_up.as_ref().map(|(error, _)| error)
    }

    /// The device's own.
    pub(crate) fn inner(&mut self) -> &mut dyn Stream {
        &mut *self.stream
    }

    /// Waits, on this thread, until the device has done what was issued; for the naive engine. If it fails nobody knows
    /// what the device still does, and it has to be given up.
    pub(crate) fn finish(&mut self) -> Result<(), DeviceError> {
        let mark = self.marks + 1;
        persist(|| self.stream.mark(mark))?;
        self.marks = mark;
        let mut looks = 0u32;
        while self.stream.passed()? < mark {
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(1024) {
                self.stream.probe()?;
            }
            crate::sync::hint::spin_loop();
        }
        Ok(())
    }

    /// Copies values of type `T` that a device operation has declared; both places are with their lengths.
    ///
    /// # Safety
    /// 1. Both places have as many values, and the operation holds them until the device has done it.
    unsafe fn copy<T>(&mut self, from: (Address, usize), to: (Address, usize)) -> Result<(), DeviceError> {
        let ((from, length), (to, room)) = (from, to);
        if length != room {
            let message = format!("a copy from {length} elements to {room}; make both the same length");
            return Err(DeviceError::refused(-1, message));
        }
        // SAFETY: (1).
        unsafe { self.stream.copy(from, to, length * size_of::<T>()) }
    }

    // Of pinned memory the length alone: another copy may be under way there, so that not even a reference to the values
    // may be made.

    pub(crate) fn copy_in<T>(&mut self, from: &PinnedVec<T>, to: &mut DeviceVec<T>) -> Result<(), DeviceError> {
        // SAFETY: the only caller is an operation that declares both.
        unsafe { self.copy::<T>((from.address(), from.count()), (to.address(), to.len())) }
    }

    pub(crate) fn copy_out<T>(&mut self, from: &DeviceVec<T>, to: &mut PinnedVec<T>) -> Result<(), DeviceError> {
        // SAFETY: as above.
        unsafe { self.copy::<T>((from.address(), from.len()), (to.address(), to.count())) }
    }

    pub(crate) fn copy_across<T>(&mut self, from: &DeviceVec<T>, to: &mut DeviceVec<T>) -> Result<(), DeviceError> {
        // SAFETY: as above.
        unsafe { self.copy::<T>((from.address(), from.len()), (to.address(), to.len())) }
    }
}

#[cfg(raddle_loom)]
impl GpuStream {
    /// A stream for models, without a lane.
    pub fn alone(gpu: &SimulatedGpu) -> Self {
        Self::new(gpu.open(Role::All).expect("the device is sound"), Device::Gpu(0))
    }

    /// Waits until the device has done what was issued.
    pub fn end(&mut self) {
        self.finish().expect("nothing fails");
    }
}

/// Makes a call that leaves the device in an unknown state if it cannot be made: some times, unless the device is lost.
fn persist<R>(mut call: impl FnMut() -> Result<R, DeviceError>) -> Result<R, DeviceError> {
    let mut tries = 1;
    loop {
        match call() {
            Err(error) if !error.is_lost() && tries < MARK_TRIES => tries += 1,
            done => return done,
        }
    }
}

/// A stream of the program's own, for operations of its device to issue work on: see [`GpuStream::include`].
///
/// It belongs to one operation at a time. As the value of a variable ([`Engine::stream_var`](crate::Engine::stream_var))
/// it is the engine that sees to that. Dropped, it leaves the program's stream as it is.
pub struct ImportedStream(GpuStream);

impl ImportedStream {
    fn new(stream: Box<dyn Stream>) -> Self {
        // The device's place in the engine is known when an operation includes it.
        Self(GpuStream::new(stream, Device::Cpu))
    }

    /// A new stream of a simulated device, in the place of one that the program would have.
    ///
    /// # Errors
    ///
    /// The device is lost.
    pub fn simulated(gpu: &SimulatedGpu) -> Result<Self, DeviceError> {
        gpu.open(Role::All).map(Self::new)
    }

    /// A stream for CUDA: cudarc's, or a raw one by its `wrap_borrowed_stream`.
    ///
    /// The stream is not to be captured into a graph while an operation includes it.
    ///
    /// # Errors
    ///
    /// The stream is of another context than the primary one of `gpu`, where
    /// [`CudaGpu::context`](crate::CudaGpu::context) makes streams; it is the per-thread default stream, which on a lane's
    /// thread is another one; the device is lost.
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

/// A stream that could not be opened, or was given up: every call gives the reason.
struct Dead(DeviceError);

impl Stream for Dead {
    fn driver(&self) -> Option<usize> {
        None
    }

    fn record(&mut self) -> Result<Event, DeviceError> {
        Err(self.0.clone())
    }

    fn wait(&mut self, _: &Event) -> Result<(), DeviceError> {
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

    /// What was called, by the stream's name; calls with a name in `refused` are refused.
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

        fn record(&mut self) -> Result<Event, DeviceError> {
            self.note("record")?;
            self.1.open(Role::All)?.record()
        }

        fn wait(&mut self, _: &Event) -> Result<(), DeviceError> {
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

    /// Includes a stream while some calls are refused; gives the calls so far, what it came to, and the lane's stream, whose
    /// calls are noted as well.
    fn include(refused: &[&'static str]) -> (Calls, Result<(), DeviceError>, GpuStream) {
        let (gpu, calls) = (SimulatedGpu::builder().clock(simulated::Clock::Instantly).build(), Calls::default());
        lock(&calls.0).1.extend(refused);
        let stream = |name| Box::new(Noting(name, gpu.clone(), calls.clone()));
        let mut lane = GpuStream::new(stream("lane"), Device::Gpu(3));
        let mut other = ImportedStream::new(stream("other"));
        let result = lane.include(&mut other, |other| {
            assert_eq!(other.context(), Device::Gpu(3));
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
            assert_eq!(result.expect_err("it was refused").code(), 801);
            assert!(lane.given_up().is_none());
            lane.inner().mark(1).unwrap();
        }
    }

    /// Nothing more may be issued on a stream beside which something runs that it knows nothing of: by its next call the
    /// engine finds that the device has to be given up.
    #[test]
    fn a_stream_whose_included_work_cannot_be_put_in_order_is_dead() {
        for (refused, others) in [("other record", 3), ("lane wait", 4)] {
            let (calls, result, mut lane) = include(&[refused]);
            let made = calls.made();
            assert_eq!(made.iter().filter(|call| *call == refused).count(), MARK_TRIES as usize, "{made:?}");
            assert_eq!(made.len(), others + MARK_TRIES as usize, "{made:?}");
            assert_eq!(result.expect_err("it was refused").code(), 801);
            assert_eq!(lane.given_up().map(DeviceError::message), Some("not now"));
            // What was issued there has to be waited for.
            assert_eq!(Arc::strong_count(&calls.0), 2, "the stream is not there any more");
            for result in [
                lane.inner().mark(1),
                lane.inner().passed().map(drop),
                lane.inner().probe(),
                lane.inner().record().map(drop),
                lane.finish(),
            ] {
                assert_eq!(result.expect_err("it is dead").message(), "not now");
            }
            assert_eq!(calls.made(), made, "the stream itself was asked for nothing");
        }
    }
}
