//! The processing of the sensor's data: a reference on the CPU, and the devices' kernels.

/// Bytes in a row, on all devices. The CUDA kernels contain the same constant.
pub const WIDTH: usize = 512;

/// Computes the result of both kernels for a chunk, byte by byte, as the reference for all devices' results.
pub fn reference(raw: &[u8]) -> Vec<u8> {
    let rows = raw.len() / WIDTH;
    let at = |x: usize, y: usize| u32::from(raw[y * WIDTH + x]);
    let smooth = |x: usize, y: usize| {
        let (left, right) = (x.saturating_sub(1), (x + 1).min(WIDTH - 1));
        let row = |y| at(left, y) + 2 * at(x, y) + at(right, y);
        (row(y.saturating_sub(1)) + 2 * row(y) + row((y + 1).min(rows - 1)) + 8) / 16
    };
    (0..raw.len())
        .map(|i| {
            let (x, y) = (i % WIDTH, i / WIDTH);
            let sharp = (3 * at(x, y)).saturating_sub(2 * smooth(x, y)).min(255);
            (510 * sharp / (sharp + 255)) as u8
        })
        .collect()
}

/// The first kernel on the simulated device: reduces the noise.
pub fn smooth(raw: &[u8], smooth: &mut [u8]) {
    let rows = raw.len() / WIDTH;
    let row = |y: usize| &raw[y * WIDTH..][..WIDTH];
    // The sums have an additional column on each side, a copy of the adjacent one.
    let mut sums = [0u16; WIDTH + 2];
    for (y, smooth) in smooth.chunks_exact_mut(WIDTH).enumerate() {
        let (above, here, below) = (row(y.saturating_sub(1)), row(y), row((y + 1).min(rows - 1)));
        for (((sum, above), here), below) in sums[1..].iter_mut().zip(above).zip(here).zip(below) {
            *sum = u16::from(*above) + 2 * u16::from(*here) + u16::from(*below);
        }
        (sums[0], sums[WIDTH + 1]) = (sums[1], sums[WIDTH]);
        for (smooth, sums) in smooth.iter_mut().zip(sums.windows(3)) {
            *smooth = ((sums[0] + 2 * sums[1] + sums[2] + 8) / 16) as u8;
        }
    }
}

/// The second kernel on the simulated device: sharpens edges and brightens dark areas.
pub fn tone(raw: &[u8], smooth: &[u8], toned: &mut [u8]) {
    const BRIGHTER: [u8; 256] = {
        let (mut table, mut sharp) = ([0; 256], 0);
        while sharp < 256 {
            table[sharp] = (510 * sharp / (sharp + 255)) as u8;
            sharp += 1;
        }
        table
    };
    for ((raw, smooth), toned) in raw.iter().zip(smooth).zip(toned) {
        let sharp = (3 * u16::from(*raw)).saturating_sub(2 * u16::from(*smooth)).min(255);
        *toned = BRIGHTER[usize::from(sharp)];
    }
}

/// The kernels on a CUDA device.
#[cfg(feature = "cuda")]
pub mod cuda {
    use std::sync::Arc;

    use raddle::gpu::{
        DeviceVec, GpuStream,
        cudarc::{
            driver::{CudaFunction, CudaStream, DriverError, LaunchConfig, PushKernelArg},
            nvrtc::Ptx,
        },
    };

    use super::WIDTH;

    /// Threads per block. Not tuned.
    const BLOCK: u32 = 256;

    /// Kernels loaded onto a device.
    #[derive(Debug)]
    pub struct Kernels {
        smooth: CudaFunction,
        tone: CudaFunction,
    }

    impl Kernels {
        /// Loads the kernels, which the driver compiles for `stream`'s device.
        pub fn load(stream: &mut GpuStream) -> Result<Self, DriverError> {
            let module = stream_of(stream).context().load_module(Ptx::from_src(include_str!("../kernels.ptx")))?;
            Ok(Self { smooth: module.load_function("smooth")?, tone: module.load_function("tone")? })
        }

        pub fn smooth(
            &self,
            stream: &mut GpuStream,
            raw: &DeviceVec<u8>,
            smooth: &mut DeviceVec<u8>,
        ) -> Result<(), DriverError> {
            launch(stream, &self.smooth, &[raw, smooth])
        }

        pub fn tone(
            &self,
            stream: &mut GpuStream,
            raw: &DeviceVec<u8>,
            smooth: &DeviceVec<u8>,
            toned: &mut DeviceVec<u8>,
        ) -> Result<(), DriverError> {
            launch(stream, &self.tone, &[raw, smooth, toned])
        }
    }

    fn stream_of(stream: &mut GpuStream) -> Arc<CudaStream> {
        stream.cuda().expect("the engine's only GPU should be a CUDA device")
    }

    /// Launches a kernel that takes the addresses of `vecs` and their number of rows, and writes the last vector.
    #[expect(unsafe_code, reason = "the compiler cannot check what a kernel accesses")]
    fn launch(stream: &mut GpuStream, kernel: &CudaFunction, vecs: &[&DeviceVec<u8>]) -> Result<(), DriverError> {
        let bytes = vecs[0].len();
        assert!(
            vecs.iter().all(|vec| vec.len() == bytes) && bytes % WIDTH == 0,
            "the vectors do not have the same number of whole rows"
        );
        let pointers: Vec<u64> = vecs.iter().map(|vec| vec.cuda_ptr().expect("memory of a CUDA device")).collect();
        let rows = u32::try_from(bytes / WIDTH).expect("the number of rows should fit in 32 bits");
        let stream = stream_of(stream);
        let mut arguments = stream.launch_builder(kernel);
        for pointer in &pointers {
            arguments.arg(pointer);
        }
        arguments.arg(&rows);
        let grid = (bytes as u32).div_ceil(BLOCK);
        let config = LaunchConfig { grid_dim: (grid, 1, 1), block_dim: (BLOCK, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the arguments match the kernel's parameters: both callers pass the vectors in the order of the
        // pointers in `kernels.ptx`, and the number of rows comes last. A kernel accesses only the `rows` rows of each
        // vector, and writes only the last vector. The operation that launches the kernel has access to the vectors,
        // and exclusive access to the last one, until the device has completed the work on the stream.
        unsafe { arguments.launch(config) }.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns pseudorandom bytes.
    fn noise(rows: usize) -> Vec<u8> {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..rows * WIDTH).map(|_| next()).collect()
    }

    #[test]
    fn the_simulated_kernels_agree_with_the_reference() {
        for rows in [1, 2, 3, 16] {
            let raw = noise(rows);
            let (mut smoothed, mut toned) = (vec![0; raw.len()], vec![0; raw.len()]);
            smooth(&raw, &mut smoothed);
            tone(&raw, &smoothed, &mut toned);
            assert!(toned == reference(&raw), "{rows} rows");
        }
    }

    #[test]
    fn a_flat_chunk_stays_flat_and_is_not_darkened() {
        for (before, after) in [(0, 0), (85, 127), (255, 255)] {
            assert!(reference(&[before; 4 * WIDTH]).iter().all(|&byte| byte == after), "{before}");
        }
    }
}
