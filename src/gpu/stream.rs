//! What the function of a device operation gets.

use std::{any::Any, fmt};

use super::issuer::MARK_TRIES;
use crate::device::{Address, Context, DeviceError, DeviceVec, Event, PinnedVec, Stream, simulated::SimulatedStream};

/// The stream that a device operation issues its work on; from [`OpBuilder::launch`](crate::OpBuilder::launch)
/// its siblings.
///
/// What the function puts on it runs on the device after everything that the operation comes after, and the operation is
/// complete when the device has done it. Other streams may be used as well if they are put in order with this one.
pub struct GpuStream {
    stream: Box<dyn Stream>,
    context: Context,
    /// The last one made by `finish`.
    marks: u64,
}

impl fmt::Debug for GpuStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuStream").field("context", &self.context).finish_non_exhaustive()
    }
}

impl GpuStream {
    pub(crate) fn new(stream: Box<dyn Stream>, context: Context) -> Self {
        Self { stream, context, marks: 0 }
    }

    /// Instead of one that could not be opened.
    pub(crate) fn dead(error: DeviceError, context: Context) -> Self {
        Self::new(Box::new(Dead(error)), context)
    }

    /// The device.
    #[must_use]
    pub fn context(&self) -> Context {
        self.context
    }

    /// What a simulated device offers; `None` on others.
    #[must_use]
    pub fn simulated(&mut self) -> Option<SimulatedStream<'_>> {
        SimulatedStream::new(&mut *self.stream)
    }

    /// The stream for CUDA: cudarc's, from which libraries get theirs and which gives the raw one by `cu_stream()`; `None`
    /// on other devices.
    ///
    /// Streams of the program's own, also raw ones (cudarc's `wrap_borrowed_stream`), are put in order with it by `join`:
    /// this stream joins one whose work the operation is to include, and one whose work is to come after the operation's
    /// joins this one. What is put on it must use nothing beyond the operation's variables that does not outlive the
    /// device's work, which is why cudarc's launches are `unsafe`.
    #[cfg(feature = "cuda")]
    #[must_use]
    pub fn cuda(&mut self) -> Option<std::sync::Arc<cudarc::driver::CudaStream>> {
        crate::device::cuda_stream(&mut *self.stream)
    }

    /// The device's own.
    pub(crate) fn inner(&mut self) -> &mut dyn Stream {
        &mut *self.stream
    }

    /// Waits, on this thread, until the device has done what was issued; for the naive engine. If it fails nobody knows
    /// what the device still does, and it has to be given up.
    pub(crate) fn finish(&mut self) -> Result<(), DeviceError> {
        let mark = self.marks + 1;
        let mut tries = 1;
        while let Err(error) = self.stream.mark(mark) {
            if error.is_lost() || tries == MARK_TRIES {
                return Err(error);
            }
            tries += 1;
        }
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

/// A stream that could not be opened: every call gives the reason.
struct Dead(DeviceError);

impl Stream for Dead {
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
