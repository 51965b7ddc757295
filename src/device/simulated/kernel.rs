//! Kernels of the simulated device: closures over values in its memory.

use std::{fmt, marker::PhantomData, slice, time::Duration};

use bytemuck::Pod;

use super::Simulated;
use crate::{
    device::{
        driver::{MemoryOwner, Stream},
        memory::DeviceVec,
    },
    error::device_error::DeviceError,
};

/// The running operation's interface to a stream of a simulated GPU.
/// [`GpuStream::simulated`](crate::gpu::GpuStream::simulated) returns it.
pub struct SimulatedStream<'s>(&'s mut Simulated);

impl<'s> SimulatedStream<'s> {
    /// Returns `None` if the stream is not a simulated device's.
    pub(crate) fn new(stream: &'s mut dyn Stream) -> Option<Self> {
        stream.as_any().downcast_mut().map(Self)
    }

    /// Launches a kernel: `duration` after the device starts it, the device calls `f` with the contents of `args`. A
    /// `duration` of zero selects the device's default
    /// ([`SimulatedGpuBuilder::kernel_time`](super::SimulatedGpuBuilder::kernel_time)).
    ///
    /// `args` is a reference to a vector, a `Vec` of arguments, a tuple of up to six arguments, or `()`: `f` receives a
    /// `&DeviceVec<T>` as `&[T]`, and a `&mut DeviceVec<T>` as `&mut [T]`. `f` may run on any thread that polls the
    /// device or issues a command. If `f` panics, the device is lost. `f` may push, but a wait for an engine inside `f`
    /// returns an error. Nor must `f` wait by other means for the device to make progress.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{Device, Engine, stream, gpu::SimulatedGpu};
    /// use std::time::Duration;
    ///
    /// let gpu = Device::Gpu(0);
    /// let engine = Engine::builder().workers(1).gpu(SimulatedGpu::new()).build()?;
    /// let (source, target) = (engine.device_var::<u32>(gpu, 4)?, engine.device_var::<u32>(gpu, 4)?);
    /// engine.op("fill").on(gpu).try_push((source.overwrite(), stream()), |(source, stream)| {
    ///     let mut stream = stream.simulated().expect("the device is simulated");
    ///     Ok(stream.launch(Duration::ZERO, source, |source| source.fill(2))?)
    /// })?;
    /// engine.op("square").on(gpu).try_push((source.read(), target.overwrite(), stream()), |(source, target, stream)| {
    ///     let mut stream = stream.simulated().expect("the device is simulated");
    ///     Ok(stream.launch(Duration::ZERO, (source, target), |(source, target)| {
    ///         target.iter_mut().zip(source).for_each(|(target, source)| *target = source * source);
    ///     })?)
    /// })?;
    /// engine.wait_for_var(&target)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The device is lost or refuses the call, or an argument is not in its memory. `f` is then dropped without being
    /// called.
    pub fn launch<A, F>(&mut self, duration: Duration, args: A, f: F) -> Result<(), DeviceError>
    where
        A: KernelArgs,
        F: for<'a> FnOnce(A::Views<'a>) + Send + 'static,
    {
        let mut raw = args.raw(self.0.device.number)?;
        let kernel = move || {
            // SAFETY: (1) the caller received the references from the engine, in an operation on the variables to whose
            // values they refer. Until the stream has passed a mark behind this kernel, or the device is lost, the
            // engine keeps conflicting operations away from the variables, or orders their commands before or after
            // this kernel. After a loss no kernel starts, and the engine waits for those that are running. The
            // operation's other kernels and copies are on the same stream, or on an included one
            // (`GpuStream::include`), so they run before or after this kernel. (2) `raw` is used once.
            let views = unsafe { A::views(&mut raw) };
            f(views);
        };
        self.0.launch(duration, Box::new(kernel))
    }
}

impl fmt::Debug for SimulatedStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedStream").field("index", &self.0.index).finish()
    }
}

/// The address and the number of an argument's values.
#[derive(Debug)]
pub struct RawSlice<T> {
    ptr: *mut T,
    len: usize,
    values: PhantomData<T>,
}

// SAFETY: the value represents a `&mut [T]` or a `&[T]`, both of which are `Send` if `T` is `Send` and `Sync`.
unsafe impl<T: Send + Sync> Send for RawSlice<T> {}

impl<T> RawSlice<T> {
    fn new(vec: &DeviceVec<T>, device: u64) -> Result<Self, DeviceError> {
        if !vec.is_at(MemoryOwner::Simulated(device)) {
            return Err(DeviceError::refused(-1, "an argument of the kernel is in another device's memory"));
        }
        Ok(Self { ptr: vec.address().ptr().cast(), len: vec.len(), values: PhantomData })
    }
}

mod sealed {
    pub trait SealedArgs {}
}

/// The arguments of a [simulated kernel](SimulatedStream::launch): `&DeviceVec<T>`, `&mut DeviceVec<T>`, a `Vec` of
/// arguments, or a tuple of up to six; `()` for none.
pub trait KernelArgs: sealed::SealedArgs {
    /// What the kernel receives for the arguments: `&[T]`, `&mut [T]`, or a `Vec` or a tuple of these.
    type Views<'a>;
    #[doc(hidden)]
    type Raw: Send + 'static;
    #[doc(hidden)]
    fn raw(self, device: u64) -> Result<Self::Raw, DeviceError>;
    /// # Safety
    /// 1. The vectors exist during `'a`. Nothing else uses the mutable ones, and nothing changes the shared ones.
    /// 2. There are no other views of `raw`.
    #[doc(hidden)]
    unsafe fn views<'a>(raw: &'a mut Self::Raw) -> Self::Views<'a>;
}

impl<T> sealed::SealedArgs for &DeviceVec<T> {}

impl<T: Pod + Send + Sync> KernelArgs for &DeviceVec<T> {
    type Views<'a> = &'a [T];
    type Raw = RawSlice<T>;

    fn raw(self, device: u64) -> Result<Self::Raw, DeviceError> {
        RawSlice::new(self, device)
    }

    unsafe fn views<'a>(raw: &'a mut Self::Raw) -> Self::Views<'a> {
        // SAFETY: a simulated device's memory is host memory, aligned and initialised. The vector has `len` values
        // there, and any bytes are valid values, since `T` is `Pod`. By (1) nothing changes them.
        unsafe { slice::from_raw_parts(raw.ptr, raw.len) }
    }
}

impl<T> sealed::SealedArgs for &mut DeviceVec<T> {}

impl<T: Pod + Send + Sync> KernelArgs for &mut DeviceVec<T> {
    type Views<'a> = &'a mut [T];
    type Raw = RawSlice<T>;

    fn raw(self, device: u64) -> Result<Self::Raw, DeviceError> {
        RawSlice::new(self, device)
    }

    unsafe fn views<'a>(raw: &'a mut Self::Raw) -> Self::Views<'a> {
        // SAFETY: as for shared vectors; in addition, this was the only reference to its vector (1), and only one slice
        // is made of it (2).
        unsafe { slice::from_raw_parts_mut(raw.ptr, raw.len) }
    }
}

impl<A> sealed::SealedArgs for Vec<A> {}

impl<A: KernelArgs> KernelArgs for Vec<A> {
    type Views<'a> = Vec<A::Views<'a>>;
    type Raw = Vec<A::Raw>;

    fn raw(self, device: u64) -> Result<Self::Raw, DeviceError> {
        self.into_iter().map(|args| args.raw(device)).collect()
    }

    unsafe fn views<'a>(raw: &'a mut Self::Raw) -> Self::Views<'a> {
        // SAFETY: (1) and (2) hold for each argument, since they hold for all of them.
        raw.iter_mut().map(|raw| unsafe { A::views(raw) }).collect()
    }
}

macro_rules! tuples {
    ($($args:ident)+) => {
        impl<$($args: KernelArgs),+> sealed::SealedArgs for ($($args,)+) {}

        impl<$($args: KernelArgs),+> KernelArgs for ($($args,)+) {
            type Views<'a> = ($($args::Views<'a>,)+);
            type Raw = ($($args::Raw,)+);

            #[allow(non_snake_case)]
            fn raw(self, device: u64) -> Result<Self::Raw, DeviceError> {
                let ($($args,)+) = self;
                Ok(($($args.raw(device)?,)+))
            }

            #[allow(non_snake_case)]
            unsafe fn views<'a>(raw: &'a mut Self::Raw) -> Self::Views<'a> {
                let ($($args,)+) = raw;
                // SAFETY: (1) and (2) hold for each argument, since they hold for the whole tuple.
                ($(unsafe { $args::views($args) },)+)
            }
        }
    };
}

impl sealed::SealedArgs for () {}

impl KernelArgs for () {
    type Views<'a> = ();
    type Raw = ();

    fn raw(self, _device: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    unsafe fn views((): &mut ()) {}
}

tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);
