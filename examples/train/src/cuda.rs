//! Products and copies on CUDA devices. cuBLAS computes the products.
//!
//! | here | in the engine |
//! |---|---|
//! | a product | an operation that calls cuBLAS with the operation's stream |
//! | a copy between arrays of a device | an operation that issues the driver's copy on the operation's stream |
//! | a handle of cuBLAS | no variable: each thread that issues a device's operations has its own handle for the device |
//!
//! A handle works on one stream at a time. Since each thread has its own handle, a handle needs no lock, and threads
//! that issue products do not wait for each other. A lane's thread always issues on the same stream. But a naive engine
//! issues operations on the threads that push them, and may use a different stream for each operation. Therefore, each
//! product first sets its handle's stream.
//!
//! cuBLAS is loaded when it is first needed. A build needs no part of CUDA.

use std::collections::{HashMap, hash_map::Entry};
use std::sync::{Arc, OnceLock};
use std::{cell::RefCell, ops::Range, ptr::from_ref};

use cudarc::cublas::result::{self as cublas, CublasError};
use cudarc::cublas::sys::{self, cublasHandle_t, cublasOperation_t};
use cudarc::driver::{CudaContext, CudaStream, result as driver, sys::CUdeviceptr};
use raddle::{
    Device, Engine, Token,
    error::BoxError,
    gpu::{DeviceVec, GpuStream},
    stream,
};

use crate::{Array, Error};

/// The functions of cuBLAS that are called. They are looked up before the first call, since cudarc panics if one is
/// missing.
const FUNCTIONS: [&str; 4] = ["cublasCreate_v2", "cublasDestroy_v2", "cublasSetStream_v2", "cublasSgemm_v2"];

/// Loads cuBLAS, unless it is loaded already.
///
/// # Errors
/// The library is missing, or lacks a function.
pub fn load() -> Result<(), Error> {
    static LOADED: OnceLock<Result<(), String>> = OnceLock::new();
    let load = || {
        // SAFETY: loading the library runs only its own initialisation code.
        if !unsafe { sys::is_culib_present() } {
            return Err("cuBLAS was not found: install it, or add its folder to LD_LIBRARY_PATH".into());
        }
        // SAFETY: as above.
        let library = unsafe { sys::culib() };
        for function in FUNCTIONS {
            // SAFETY: the symbol is a function, and the pointer is not called.
            unsafe { library.get::<unsafe extern "C" fn()>(function.as_bytes()) }
                .map_err(|error| format!("this version of cuBLAS cannot be used: {error}"))?;
        }
        Ok(())
    };
    LOADED.get_or_init(load).clone().map_err(Error::Unavailable)
}

/// Returns whether a device is a CUDA device. An operation on the device determines this from its stream, and this call
/// waits for the operation.
pub(crate) fn is_cuda(engine: &Engine, device: Device) -> bool {
    let asked = || engine.op("is_cuda").on(device).submit(stream(), |stream| stream.cuda().is_some());
    device != Device::Cpu && asked().is_ok_and(|handle| handle.wait().unwrap_or(false))
}

/// A handle of cuBLAS, for the device of a context.
struct Handle {
    raw: cublasHandle_t,
    context: Arc<CudaContext>,
}

impl Handle {
    fn new(context: &Arc<CudaContext>) -> Result<Self, BoxError> {
        context.bind_to_thread()?;
        let raw = cublas::create_handle().map_err(failed("cublasCreate"))?;
        Ok(Self { raw, context: Arc::clone(context) })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Nothing can be done about an error: the device may be lost.
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: the handle is alive, and nothing uses it afterwards.
            let _ = unsafe { cublas::destroy_handle(self.raw) };
        }
    }
}

thread_local! {
    /// This thread's handles by the address of their context, which lives as long as the handle.
    static HANDLES: RefCell<HashMap<*const CudaContext, Handle>> = RefCell::default();
}

/// Returns a function that makes an operation's error from the error of a cuBLAS function.
fn failed(function: &'static str) -> impl Fn(CublasError) -> BoxError {
    move |CublasError(status)| format!("{function} of cuBLAS returned {status:?}").into()
}

/// Calls `f` with this thread's handle for the device of `stream`, after setting the handle's stream to `stream`.
fn with_handle(stream: &CudaStream, f: impl FnOnce(cublasHandle_t) -> Result<(), BoxError>) -> Result<(), BoxError> {
    HANDLES.with_borrow_mut(|handles| {
        let context = stream.context();
        let handle = match handles.entry(Arc::as_ptr(context)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(Handle::new(context)?),
        };
        context.bind_to_thread()?;
        // SAFETY: the handle is alive and belongs to this thread. The stream is alive during `f`, and each later use of
        // the handle first sets the stream again.
        unsafe { cublas::set_stream(handle.raw, stream.cu_stream().cast()) }.map_err(failed("cublasSetStream"))?;
        f(handle.raw)
    })
}

/// Returns the cudarc stream of an operation on a CUDA device.
fn stream_of(stream: &mut GpuStream) -> Result<Arc<CudaStream>, BoxError> {
    stream.cuda().ok_or_else(|| "the device was given up".into())
}

/// Returns the address of a range of values, or 0 if the values have no address; the range must then be empty.
fn address(values: &DeviceVec<f32>, range: &Range<usize>) -> Result<CUdeviceptr, BoxError> {
    match values.cuda_ptr() {
        Some(start) if range.end <= values.len() => Ok(start + 4 * range.start as CUdeviceptr),
        None if range.is_empty() => Ok(0),
        _ => Err("an array is not within its memory".into()),
    }
}

/// Pushes the copy of an array to another one on the same device. The operation also reads some tokens.
///
/// # Panics
/// If the arrays have different sizes.
#[track_caller]
pub(crate) fn copy(from: &Array, to: &Array, after: &[&Token]) -> Result<(), Error> {
    assert_eq!(from.len(), to.len(), "the arrays of a copy have different sizes");
    if Arc::ptr_eq(from.chunk(), to.chunk()) {
        // Ranges of one chunk may overlap, and the driver does not copy between overlapping ranges.
        return copy(&from.copy_to(from.runtime())?, to, after);
    }
    let (source, target) = (from.chunk().gpu()?, to.chunk().gpu()?);
    let (source_range, target_range) = (from.range(), to.range());
    let runtime = to.runtime();
    let op = runtime.engine().op("copy").on(runtime.device()).reads(after.iter().copied());
    let target = if to.is_whole() { target.overwrite() } else { target.write() };
    op.try_push((source.read(), target, stream()), move |(source, target, stream)| {
        let (stream, bytes) = (stream_of(stream)?, 4 * source_range.len());
        let (source, target) = (address(source, &source_range)?, address(target, &target_range)?);
        stream.context().bind_to_thread()?;
        // SAFETY: both ranges have this number of bytes, and are within two different vectors, as checked by
        // `address`. The operation declares both vectors, the target as mutated, and is complete only when the device
        // has done the copy.
        unsafe { driver::memcpy_dtod_async(target, source, bytes, stream.cu_stream()) }?;
        Ok(())
    })?;
    Ok(())
}

/// Pushes the product of two matrices. Each matrix is transposed first if its flag in `transposed` is set. `sizes`
/// holds the numbers of rows and columns of the first factor, and the number of columns of the second, after
/// transposition.
///
/// # Panics
/// If an array does not have these sizes.
#[track_caller]
pub(crate) fn multiply(
    product: &Array,
    factors: [&Array; 2],
    transposed: [bool; 2],
    sizes: [usize; 3],
) -> Result<(), Error> {
    load()?;
    let [a, b] = factors;
    let [rows, inner, columns] = sizes;
    let lens = [a.len(), b.len(), product.len()];
    assert_eq!(lens, [rows * inner, inner * columns, rows * columns], "the arrays of a product have the wrong sizes");
    let [Ok(rows), Ok(inner), Ok(columns)] = sizes.map(i32::try_from) else {
        return Err(Error::Unavailable(format!("`matmul`: cuBLAS multiplies no matrices with sizes of {sizes:?}")));
    };
    // cuBLAS expects matrices in column-major order, and thus sees the transpose of each array. So it computes the
    // transpose of the product, `(a b)ᵀ = bᵀ aᵀ`, from the transposes that it sees.
    let operation = |is_transposed| match is_transposed {
        true => cublasOperation_t::CUBLAS_OP_T,
        false => cublasOperation_t::CUBLAS_OP_N,
    };
    let [of_a, of_b] = transposed.map(operation);
    // The distance, in values, from each row of an array to the next. These rows are columns to cuBLAS, which does not
    // accept a distance of 0.
    let stride_of_a = if transposed[0] { rows } else { inner }.max(1);
    let stride_of_b = if transposed[1] { inner } else { columns }.max(1);
    let stride_of_product = columns.max(1);
    let ranges = [a.range(), b.range(), product.range()];
    let runtime = product.runtime();
    let op = runtime.engine().op("matmul").on(runtime.device());
    let accesses = (a.chunk().gpu()?.read(), b.chunk().gpu()?.read(), product.chunk().gpu()?.overwrite());
    op.try_push((accesses, stream()), move |((a, b, product), stream)| {
        let stream = stream_of(stream)?;
        let (a, b, product) = (address(a, &ranges[0])?, address(b, &ranges[1])?, address(product, &ranges[2])?);
        let (one, zero) = (1.0, 0.0);
        with_handle(&stream, |handle| {
            // SAFETY: the arrays have these sizes, as checked above, and are within their vectors, as checked by
            // `address`. The operation declares all three vectors, the product's as mutated, and is complete only when
            // the device has computed the product. cuBLAS reads `one` and `zero` before it returns.
            let multiplied = unsafe {
                cublas::sgemm(
                    handle,
                    of_b,
                    of_a,
                    columns,
                    rows,
                    inner,
                    from_ref(&one),
                    b as *const f32,
                    stride_of_b,
                    a as *const f32,
                    stride_of_a,
                    from_ref(&zero),
                    product as *mut f32,
                    stride_of_product,
                )
            };
            multiplied.map_err(failed("cublasSgemm"))
        })
    })?;
    Ok(())
}
