//! A pipeline on a simulated GPU: copy in, compute, copy out, sum on the CPU. It needs no real GPU.
//!
//! ```text
//! cargo run --example simulated_gpu
//! ```
//!
//! Look at what is missing: the program creates no streams and records no events. Host and device buffers are
//! variables, so the engine orders each chunk's copies and kernel, and chunks in different slots can overlap: one may
//! be copied while another is computed. No CPU worker waits for a copy or a kernel.

use std::error::Error;
use std::time::Duration;

use raddle::{Device, Engine, gpu::SimulatedGpu, stream};

const GPU: Device = Device::Gpu(0);
const SLOTS: usize = 2;
const CHUNKS: usize = 16;
const LEN: usize = 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let gpu = SimulatedGpu::default();
    let engine = Engine::builder().gpu(gpu.clone()).build()?;

    // A slot has a buffer in host memory that the device can access, and a buffer in device memory.
    let mut slots = Vec::new();
    for _ in 0..SLOTS {
        slots.push((engine.pinned_var::<f32>(GPU, LEN)?, engine.device_var::<f32>(GPU, LEN)?));
    }

    let mut sums = Vec::new();
    for chunk in 0..CHUNKS {
        let (host, device) = &slots[chunk % SLOTS];
        engine.op("fill").push(host.overwrite(), move |host| {
            host.iter_mut().zip(chunk..).for_each(|(value, n)| *value = n as f32);
        })?;
        engine.op("copy in").on(GPU).copy_to_device(host, device)?;
        engine.op("double").on(GPU).try_push((device.write(), stream()), |(device, stream)| {
            // The function runs when the kernel can be issued; the operation completes when the device has run the
            // kernel.
            let mut gpu = stream.simulated().ok_or("the GPU is not simulated")?;
            gpu.launch(Duration::from_micros(20), device, |values| values.iter_mut().for_each(|v| *v *= 2.0))?;
            Ok(())
        })?;
        engine.op("copy out").on(GPU).copy_from_device(device, host)?;
        sums.push(engine.op("sum").submit(host.read(), |host| host.iter().sum::<f32>())?);
    }

    for (chunk, sum) in sums.into_iter().enumerate() {
        let expected = LEN * (2 * chunk + LEN - 1);
        assert_eq!(sum.wait()?, expected as f32, "chunk {chunk}");
    }
    let counts = gpu.counts();
    println!("{CHUNKS} chunks with the right sums, from {} kernels and {} copies", counts.launches, counts.copies);
    assert_eq!((counts.launches, counts.copies), (CHUNKS as u64, 2 * CHUNKS as u64));
    Ok(())
}
