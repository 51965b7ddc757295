//! Kernels of the simulated device: closures over what is in its memory.

use std::{fmt, marker::PhantomData, slice, time::Duration};

use bytemuck::Pod;

use super::Simulated;
use crate::{
    device::{
        driver::{MemoryOwner, Stream},
        memory::DeviceVec,
    },
    error::device::DeviceError,
};

/// A simulated GPU's stream, for the operation that runs.
pub struct SimulatedStream<'s>(&'s mut Simulated);

impl<'s> SimulatedStream<'s> {
    /// `None` if it is a stream of another device.
    pub(crate) fn new(stream: &'s mut dyn Stream) -> Option<Self> {
        stream.as_any().downcast_mut().map(Self)
    }

    /// Launches a kernel: when the device gets to it and `duration` has passed there, it calls `f` with the contents of
    /// `args`. A `duration` of zero stands for the device's own
    /// ([`SimulatedGpuBuilder::kernel_time`](super::SimulatedGpuBuilder::kernel_time)).
    ///
    /// `args` are `&DeviceVec<T>`, which `f` gets as `&[T]`, and `&mut DeviceVec<T>`, which it gets as `&mut [T]`: one
    /// of them, or a tuple of up to six. `f` runs on any thread that polls the device. If it panics, the device is
    /// lost. It must not wait for an operation of the device.
    ///
    /// # Errors
    ///
    /// The device is lost or refuses the call, or some of `args` is not in its memory. `f` is dropped then.
    pub fn launch<A, F>(&mut self, duration: Duration, args: A, f: F) -> Result<(), DeviceError>
    where
        A: KernelArgs,
        F: for<'a> FnOnce(A::Views<'a>) + Send + 'static,
    {
        let mut raw = args.raw(self.0.device.number)?;
        let kernel = move || {
            // SAFETY: (1) whoever launches it had the references from the engine, in an operation on variables whose
            // values these are; the engine keeps other operations from them until a mark behind this kernel has passed,
            // or the device is lost, and then no kernel is run. Other kernels and copies of the operation are in the
            // same stream, or in one that `GpuStream::include` has put in order with it, and run before or after. (2) `raw`
            // is used once.
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

/// Where the values of an argument are, and how many.
#[derive(Debug)]
pub struct RawSlice<T> {
    ptr: *mut T,
    len: usize,
    values: PhantomData<T>,
}

// SAFETY: it is a `&mut [T]` or a `&[T]` in the making, of values that are `Send` and `Sync`.
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
    pub trait Sealed {}
}

/// What a [simulated kernel](SimulatedStream::launch) takes: `&DeviceVec<T>`, `&mut DeviceVec<T>`, or a tuple of up to
/// six of those or of such tuples; `()` for nothing.
pub trait KernelArgs: sealed::Sealed {
    /// What the kernel gets for it: `&[T]`, `&mut [T]`, or a tuple of these.
    type Views<'a>;
    #[doc(hidden)]
    type Raw: Send + 'static;
    #[doc(hidden)]
    fn raw(self, device: u64) -> Result<Self::Raw, DeviceError>;
    /// # Safety
    ///
    /// 1. The vectors are there and nobody else uses them, or changes those that are shared, during `'a`.
    /// 2. There are no other views of `raw`.
    #[doc(hidden)]
    unsafe fn views<'a>(raw: &'a mut Self::Raw) -> Self::Views<'a>;
}

impl<T> sealed::Sealed for &DeviceVec<T> {}

impl<T: Pod + Send + Sync> KernelArgs for &DeviceVec<T> {
    type Views<'a> = &'a [T];
    type Raw = RawSlice<T>;

    fn raw(self, device: u64) -> Result<Self::Raw, DeviceError> {
        RawSlice::new(self, device)
    }

    unsafe fn views<'a>(raw: &'a mut Self::Raw) -> Self::Views<'a> {
        // SAFETY: memory of simulated devices is the host's, and filled from the start; the vector has `len` values
        // there, which may be any bytes. The rest is (1).
        unsafe { slice::from_raw_parts(raw.ptr, raw.len) }
    }
}

impl<T> sealed::Sealed for &mut DeviceVec<T> {}

impl<T: Pod + Send + Sync> KernelArgs for &mut DeviceVec<T> {
    type Views<'a> = &'a mut [T];
    type Raw = RawSlice<T>;

    fn raw(self, device: u64) -> Result<Self::Raw, DeviceError> {
        RawSlice::new(self, device)
    }

    unsafe fn views<'a>(raw: &'a mut Self::Raw) -> Self::Views<'a> {
        // SAFETY: as for shared vectors; and this was the only reference to its vector (1), of which (2) makes one
        // slice.
        unsafe { slice::from_raw_parts_mut(raw.ptr, raw.len) }
    }
}

macro_rules! tuples {
    ($($args:ident)+) => {
        impl<$($args: KernelArgs),+> sealed::Sealed for ($($args,)+) {}

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
                // SAFETY: (1) and (2) hold for each if they hold for all.
                ($(unsafe { $args::views($args) },)+)
            }
        }
    };
}

impl sealed::Sealed for () {}

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
