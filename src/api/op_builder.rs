//! Describes an operation and pushes it.

use std::{panic::Location, sync::Arc};

use bytemuck::Pod;

use crate::{
    api::{
        accesses::{Accesses, sealed::List},
        completion::{Completion, async_body},
        engine::Engine,
        handle::OpHandle,
        op_context::OpContext,
        operator::{Function, Operator},
        token::Token,
        var::Var,
    },
    device::{
        memory::{DeviceVec, PinnedVec},
        stream::GpuStream,
    },
    engine::{
        frame::Call,
        spec::{Entries, Entry, Refs, Route, Spec},
        task::{FnJob, Job, ResultJob, flag},
    },
    error::{
        device::DeviceError,
        op::{BoxError, Cause},
        push::PushError,
    },
    gpu,
    notify::oneshot::Oneshot,
    tracker::Mode,
    values::{device::Device, name::Name, property::Property},
};

/// What an operation's function may return: nothing, `Result<(), E>`, whose error fails the operation, or `!`.
pub trait Report: sealed::Sealed {
    #[doc(hidden)]
    fn into_result(self) -> Result<(), BoxError>;
}

mod sealed {
    pub trait Sealed {}
    /// Names the type of functions that never return, so that a closure that only panics is an operation's function too.
    pub trait Returns {
        type Type;
    }
    impl<R> Returns for fn() -> R {
        type Type = R;
    }
    pub type Never = <fn() -> ! as Returns>::Type;
}

impl sealed::Sealed for () {}
impl Report for () {
    fn into_result(self) -> Result<(), BoxError> {
        Ok(())
    }
}

impl<E: Into<BoxError>> sealed::Sealed for Result<(), E> {}
impl<E: Into<BoxError>> Report for Result<(), E> {
    fn into_result(self) -> Result<(), BoxError> {
        self.map_err(Into::into)
    }
}

impl sealed::Sealed for sealed::Never {}
impl Report for sealed::Never {
    fn into_result(self) -> Result<(), BoxError> {
        self
    }
}

/// Runs the function of a device's operation, which always has a stream.
fn with_stream<R>(cx: &Call<'_>, f: impl FnOnce(&mut GpuStream) -> Result<R, Cause>) -> Result<R, Cause> {
    match cx.take_stream() {
        Some(stream) => f(stream).map_err(Cause::of_device),
        None => Err(Cause::Device(DeviceError::lost(-1, "the operation has no stream"))),
    }
}

fn outcome_of(report: impl Report) -> Result<(), Cause> {
    report.into_result().map_err(Cause::Error)
}

/// Describes an operation and pushes it; from [`Engine::op`].
///
/// Variables are declared in two ways that may be mixed: untyped ones by [`reads`](Self::reads), [`writes`](Self::writes)
/// and [`overwrites`](Self::overwrites), typed ones in the call that pushes. Naming a variable twice is the same as naming
/// it once; what is both read and mutated counts as mutated. Only typed accesses of one operation may not name a variable
/// twice if one of them mutates it, since that would alias a `&mut`.
///
/// The description borrows the variables that it names:
///
/// ```compile_fail,E0505
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// let token = engine.token();
/// let description = engine.op("late").writes([&token]);
/// drop(token);
/// description.push_sync(|_| {})?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "an operation does nothing until it is pushed"]
pub struct OpBuilder<'e> {
    engine: &'e Engine,
    spec: Spec,
    property: Property,
    context: Device,
    entries: Entries,
}

impl<'e> OpBuilder<'e> {
    #[inline]
    pub(crate) fn new(engine: &'e Engine, name: Name) -> Self {
        Self {
            engine,
            spec: Spec::new(name),
            property: Property::Normal,
            context: Device::Cpu,
            entries: Entries::new(),
        }
    }

    /// How urgent the operation is among those that are ready: higher first. Default: 0.
    ///
    /// A worker that becomes free takes a ready operation of the highest band in its lane, except that it may first finish
    /// a run of at most 32 successors that it already holds. Priorities from -7 to 7 have a band each; beyond that each
    /// doubling shares one (8 to 15, 16 to 31, ...). Among equals no order is promised, and none starves.
    pub fn priority(mut self, priority: i32) -> Self {
        self.spec.priority = priority;
        self
    }

    /// What kind of work the operation is, which decides its lane. Default: [`Property::Normal`].
    pub fn property(mut self, property: Property) -> Self {
        self.property = property;
        self
    }

    /// Runs the operation even if a variable it names has failed. Such a run does not end the failure, nor pass it on.
    pub fn no_skip(mut self) -> Self {
        self.spec.flags |= flag::NO_SKIP;
        self
    }

    /// The device the operation runs on. Default: [`Device::Cpu`].
    ///
    /// The function of a device's operation is called on the thread of the device's lane for its
    /// [property](Self::property): one for copies each way, one for urgent work
    /// ([`GpuPrioritized`](Property::GpuPrioritized)), one for all other. [`launch`](Self::launch) and
    /// its siblings give it the lane's stream; operations pushed by other calls have none, and run when all that they come
    /// after is complete, like those of the CPU.
    pub fn on(mut self, context: Device) -> Self {
        self.context = context;
        self
    }

    /// Declares variables that the operation reads.
    #[inline]
    pub fn reads(self, tokens: impl IntoIterator<Item = &'e Token>) -> Self {
        self.declare(tokens, Mode::Read)
    }

    /// Declares variables that the operation mutates.
    #[inline]
    pub fn writes(self, tokens: impl IntoIterator<Item = &'e Token>) -> Self {
        self.declare(tokens, Mode::Write)
    }

    /// Declares variables that the operation mutates whatever they were: it is not skipped because they have failed, and
    /// its success ends their failure.
    #[inline]
    pub fn overwrites(self, tokens: impl IntoIterator<Item = &'e Token>) -> Self {
        self.declare(tokens, Mode::Overwrite)
    }

    #[inline]
    fn declare(mut self, tokens: impl IntoIterator<Item = &'e Token>, mode: Mode) -> Self {
        // Not `extend`: these are few, and what that prepares for many costs more than they do.
        for token in tokens {
            self.entries.push(Entry { cell: token.ptr(), mode, refs: Refs::None });
        }
        self
    }

    /// Pushes an operation over typed variables. Its function gets references to their values.
    ///
    /// # Errors
    /// See [`PushError`]; nothing is enqueued then.
    #[track_caller]
    pub fn push<A, F, R>(mut self, accesses: A, f: F) -> Result<(), PushError>
    where
        A: Accesses,
        F: for<'a> FnOnce(A::Refs<'a>) -> R + Send + 'static,
        R: Report,
    {
        let location = Location::caller();
        let captured = accesses.capture();
        // SAFETY: the operation declares `accesses` and runs once; normalising refuses aliases.
        let f = move |_: &Call<'_>| outcome_of(f(unsafe { A::refs(&captured) }));
        self.enqueue(location, &accesses, 0, FnJob::new(f))
    }

    /// Pushes an operation over typed variables whose function returns a value, had from the handle.
    ///
    /// # Errors
    /// See [`PushError`]; nothing is enqueued then.
    #[track_caller]
    pub fn submit<A, F, R>(mut self, accesses: A, f: F) -> Result<OpHandle<R>, PushError>
    where
        A: Accesses,
        F: for<'a> FnOnce(A::Refs<'a>) -> R + Send + 'static,
        R: Send + 'static,
    {
        let location = Location::caller();
        let captured = accesses.capture();
        // SAFETY: the operation declares `accesses` and runs once; normalising refuses aliases.
        let f = move |_: &Call<'_>| Ok(f(unsafe { A::refs(&captured) }));
        self.enqueue_returning(location, &accesses, 0, f)
    }

    /// As [`submit`](Self::submit), with a function whose error fails the operation.
    ///
    /// # Errors
    /// See [`PushError`]; nothing is enqueued then.
    #[track_caller]
    pub fn try_submit<A, F, R, E>(mut self, accesses: A, f: F) -> Result<OpHandle<R>, PushError>
    where
        A: Accesses,
        F: for<'a> FnOnce(A::Refs<'a>) -> Result<R, E> + Send + 'static,
        R: Send + 'static,
        E: Into<BoxError>,
    {
        let location = Location::caller();
        let captured = accesses.capture();
        let f = move |_: &Call<'_>| {
            // SAFETY: the operation declares `accesses` and runs once; normalising refuses aliases.
            f(unsafe { A::refs(&captured) }).map_err(|error| Cause::Error(error.into()))
        };
        self.enqueue_returning(location, &accesses, 0, f)
    }

    /// Pushes an operation of a device over typed variables. Its function gets the stream to issue work on, and references
    /// to the values. See [`GpuStream`].
    ///
    /// The function is called when everything that the operation comes after has been issued on the same device, and
    /// complete elsewhere; so it should return soon. Where a value lies in the host's memory, what devices do with it is
    /// complete as well.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{Device, Engine, SimulatedGpu};
    /// use std::time::Duration;
    ///
    /// let engine = Engine::builder().gpu(SimulatedGpu::default()).build()?;
    /// let gpu = Device::Gpu(0);
    /// let host = engine.pinned_var::<f32>(gpu, 4)?;
    /// let device = engine.device_var::<f32>(gpu, 4)?;
    /// engine.op("fill").push(host.write(), |host| host.fill(1.5))?;
    /// engine.op("upload").on(gpu).copy_to_device(&host, &device)?;
    /// engine.op("double").on(gpu).launch(device.write(), |stream, device| {
    ///     let mut gpu = stream.simulated().expect("it is a simulated device");
    ///     gpu.launch(Duration::from_micros(5), device, |values| values.iter_mut().for_each(|value| *value *= 2.0))
    /// })?;
    /// engine.op("download").on(gpu).copy_from_device(&device, &host)?;
    /// let sum = engine.op("sum").submit(host.read(), |host| host.iter().sum::<f32>())?;
    /// assert_eq!(sum.wait()?, 12.0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`PushError`]; nothing is enqueued then.
    #[track_caller]
    pub fn launch<A, F, R>(self, accesses: A, f: F) -> Result<(), PushError>
    where
        A: Accesses,
        F: for<'a> FnOnce(&mut GpuStream, A::Refs<'a>) -> R + Send + 'static,
        R: Report,
    {
        self.enqueue_launch(0, accesses, f)
    }

    #[track_caller]
    fn enqueue_launch<A, F, R>(mut self, flags: u16, accesses: A, f: F) -> Result<(), PushError>
    where
        A: Accesses,
        F: for<'a> FnOnce(&mut GpuStream, A::Refs<'a>) -> R + Send + 'static,
        R: Report,
    {
        let location = Location::caller();
        let captured = accesses.capture();
        let f = move |cx: &Call<'_>| {
            // SAFETY: the operation declares `accesses` and runs once; normalising refuses aliases.
            with_stream(cx, |stream| outcome_of(f(stream, unsafe { A::refs(&captured) })))
        };
        self.check_device()?;
        self.enqueue(location, &accesses, flag::DEVICE | flags, FnJob::new(f))
    }

    /// As [`launch`](Self::launch), for a function whose value is had from the handle, once the device has done what it
    /// issued.
    ///
    /// # Errors
    /// See [`PushError`]; nothing is enqueued then.
    #[track_caller]
    pub fn try_launch<A, F, R, E>(mut self, accesses: A, f: F) -> Result<OpHandle<R>, PushError>
    where
        A: Accesses,
        F: for<'a> FnOnce(&mut GpuStream, A::Refs<'a>) -> Result<R, E> + Send + 'static,
        R: Send + 'static,
        E: Into<BoxError>,
    {
        let location = Location::caller();
        let captured = accesses.capture();
        let f = move |cx: &Call<'_>| {
            with_stream(cx, |stream| {
                // SAFETY: the operation declares `accesses` and runs once; normalising refuses aliases.
                f(stream, unsafe { A::refs(&captured) }).map_err(|error| Cause::Error(error.into()))
            })
        };
        self.check_device()?;
        self.enqueue_returning(location, &accesses, flag::DEVICE, f)
    }

    /// Makes an operator of a device over typed variables, to be pushed often.
    ///
    /// # Errors
    /// See [`PushError`].
    pub fn launch_operator<A, F, R>(self, accesses: A, f: F) -> Result<Operator, PushError>
    where
        A: Accesses,
        F: for<'a> Fn(&mut GpuStream, A::Refs<'a>) -> R + Send + Sync + 'static,
        R: Report,
    {
        let captured = accesses.capture();
        let f = move |cx: &Call<'_>| {
            // SAFETY: each run declares `accesses` and calls this once; normalising refuses aliases.
            with_stream(cx, |stream| outcome_of(f(stream, unsafe { A::refs(&captured) })))
        };
        self.check_device()?;
        self.into_operator(&accesses, flag::DEVICE, Function::Sync(Box::new(f)))
    }

    /// Pushes a copy to a device's memory, of all of it. Unless a [property](Self::property) was set, it goes to the lane for
    /// copies to the device. Copies of different lengths fail when they run.
    ///
    /// # Errors
    /// See [`PushError`]; nothing is enqueued then.
    #[track_caller]
    pub fn copy_to_device<T: Pod + Send + Sync>(
        self,
        from: &Var<PinnedVec<T>>,
        to: &Var<DeviceVec<T>>,
    ) -> Result<(), PushError> {
        let copy = self.default_property(Property::CopyToGpu);
        copy.enqueue_launch(flag::COPY, (from.read(), to.overwrite()), |stream, (from, to)| stream.copy_in(from, to))
    }

    /// Pushes a copy from a device's memory, of all of it. Unless a [property](Self::property) was set, it goes to the lane
    /// for copies from the device. Copies of different lengths fail when they run.
    ///
    /// # Errors
    /// See [`PushError`]; nothing is enqueued then.
    #[track_caller]
    pub fn copy_from_device<T: Pod + Send + Sync>(
        self,
        from: &Var<DeviceVec<T>>,
        to: &Var<PinnedVec<T>>,
    ) -> Result<(), PushError> {
        let copy = self.default_property(Property::CopyFromGpu);
        copy.enqueue_launch(flag::COPY, (from.read(), to.overwrite()), |stream, (from, to)| stream.copy_out(from, to))
    }

    /// Pushes a copy between two memories of devices, of all of it, on the device of this operation. Unless a
    /// [property](Self::property) was set, it goes to the lane for copies to the device. Copies of different lengths fail
    /// when they run.
    ///
    /// # Errors
    /// See [`PushError`]; nothing is enqueued then.
    #[track_caller]
    pub fn copy_peer<T: Pod + Send + Sync>(
        self,
        from: &Var<DeviceVec<T>>,
        to: &Var<DeviceVec<T>>,
    ) -> Result<(), PushError> {
        let copy = self.default_property(Property::CopyToGpu);
        copy.enqueue_launch(flag::COPY, (from.read(), to.overwrite()), |stream, (from, to)| {
            stream.copy_across(from, to)
        })
    }

    fn default_property(self, property: Property) -> Self {
        if self.property == Property::Normal { self.property(property) } else { self }
    }

    fn check_device(&self) -> Result<(), PushError> {
        if self.context == Device::Cpu { Err(PushError::NotOnDevice) } else { Ok(()) }
    }

    /// Pushes an operation over the untyped variables declared so far.
    ///
    /// # Errors
    /// See [`PushError`]; nothing is enqueued then.
    #[track_caller]
    pub fn push_sync<F, R>(mut self, f: F) -> Result<(), PushError>
    where
        F: FnOnce(&OpContext<'_>) -> R + Send + 'static,
        R: Report,
    {
        let location = Location::caller();
        let f = move |cx: &Call<'_>| outcome_of(f(&OpContext::new(cx)));
        self.enqueue(location, &(), 0, FnJob::new(f))
    }

    /// Pushes an asynchronous operation over the untyped variables declared so far: it is done when its [`Completion`] is
    /// used, not when its function returns.
    ///
    /// If the function panics or returns an error while the completion lives elsewhere, the operation fails with that when
    /// the completion is used; if that had been used before, [`Engine::wait_for_all`] reports it.
    ///
    /// # Errors
    /// See [`PushError`]; nothing is enqueued then.
    #[track_caller]
    pub fn push_async<F, R>(mut self, f: F) -> Result<(), PushError>
    where
        F: FnOnce(&OpContext<'_>, Completion) -> R + Send + 'static,
        R: Report,
    {
        let location = Location::caller();
        let work = async_body(move |cx: &Call<'_>, done| outcome_of(f(&OpContext::new(cx), done)));
        self.enqueue(location, &(), flag::ASYNC, work)
    }

    /// Makes an operator over typed variables, to be pushed often.
    ///
    /// # Errors
    /// See [`PushError`].
    pub fn operator<A, F, R>(self, accesses: A, f: F) -> Result<Operator, PushError>
    where
        A: Accesses,
        F: for<'a> Fn(A::Refs<'a>) -> R + Send + Sync + 'static,
        R: Report,
    {
        let captured = accesses.capture();
        // SAFETY: each run declares `accesses` and calls this once; normalising refuses aliases.
        let f = move |_: &Call<'_>| outcome_of(f(unsafe { A::refs(&captured) }));
        self.into_operator(&accesses, 0, Function::Sync(Box::new(f)))
    }

    /// Makes an operator over the untyped variables declared so far, to be pushed often.
    ///
    /// # Errors
    /// See [`PushError`].
    pub fn operator_sync<F, R>(self, f: F) -> Result<Operator, PushError>
    where
        F: Fn(&OpContext<'_>) -> R + Send + Sync + 'static,
        R: Report,
    {
        let f = move |cx: &Call<'_>| outcome_of(f(&OpContext::new(cx)));
        self.into_operator(&(), 0, Function::Sync(Box::new(f)))
    }

    /// Makes an asynchronous operator over the untyped variables declared so far, to be pushed often.
    ///
    /// # Errors
    /// See [`PushError`].
    pub fn operator_async<F, R>(self, f: F) -> Result<Operator, PushError>
    where
        F: Fn(&OpContext<'_>, Completion) -> R + Send + Sync + 'static,
        R: Report,
    {
        let f = move |cx: &Call<'_>, done| outcome_of(f(&OpContext::new(cx), done));
        self.into_operator(&(), flag::ASYNC, Function::Async(Box::new(f)))
    }

    fn into_operator(
        mut self,
        accesses: &impl Accesses,
        flags: u16,
        function: Function,
    ) -> Result<Operator, PushError> {
        let core = self.engine.core();
        if core.is_forked() {
            return Err(PushError::Forked);
        }
        let fixed_priority = Route::of(self.property, core.kind()).priority.is_some();
        self.finish(accesses, flags)?;
        let entries = core.check_and_sort(&mut self.entries)?.into();
        Ok(Operator::new(Arc::clone(core), self.spec, entries, function, fixed_priority))
    }

    // These take the builder by reference, since to move it would copy it once more.

    fn enqueue_returning<F, R>(
        &mut self,
        location: &'static Location<'static>,
        accesses: &impl Accesses,
        flags: u16,
        f: F,
    ) -> Result<OpHandle<R>, PushError>
    where
        F: FnOnce(&Call<'_>) -> Result<R, Cause> + Send + 'static,
        R: Send + 'static,
    {
        let oneshot = Oneshot::new();
        let core = Arc::clone(self.engine.core());
        self.enqueue(location, accesses, flags, ResultJob::new(f, Arc::clone(&oneshot)))?;
        Ok(OpHandle::new(oneshot, core))
    }

    #[inline]
    fn enqueue(
        &mut self,
        location: &'static Location<'static>,
        accesses: &impl Accesses,
        flags: u16,
        work: impl Job,
    ) -> Result<(), PushError> {
        self.finish(accesses, flags)?;
        self.engine.core().push(&mut self.spec, location, &mut self.entries, work)
    }

    /// Ends the list of entries, and the rest of the description.
    #[inline]
    fn finish(&mut self, accesses: &impl Accesses, flags: u16) -> Result<(), PushError> {
        accesses.declare(&mut List(&mut self.entries));
        self.spec.flags |= flags;
        if self.property == Property::Normal && self.context == Device::Cpu { Ok(()) } else { self.route() }
    }

    /// Notes what the operation's property and device mean.
    #[cold]
    fn route(&mut self) -> Result<(), PushError> {
        let core = self.engine.core();
        if core.is_forked() {
            return Err(PushError::Forked);
        }
        let route = Route::of(self.property, core.kind());
        let (lane, flags) = match self.context {
            Device::Cpu => (route.lane, route.flags),
            // On its lane's thread, whoever pushes.
            Device::Gpu(_) => {
                let lane = gpu::route(core, self.context, self.property)?;
                (lane, route.flags & !flag::EAGER | flag::ON_DEVICE)
            }
        };
        self.spec.lane = lane;
        self.spec.flags |= flags;
        self.spec.priority = route.priority.unwrap_or(self.spec.priority);
        Ok(())
    }
}
