//! Memory for variables: it returns in push order, pools are bounded, and what cannot be is an error.

use common::{KINDS, THREADED};
use raddle::{OpContext, cx, error::DeviceError, stream};

use super::*;

const MIB: usize = 1 << 20;

/// Returns a GPU with a mebibyte of memory.
fn small() -> SimulatedGpu {
    SimulatedGpu::builder().memory(MIB).launch_latency(Duration::ZERO).kernel_time(ms(1)).build()
}

/// Creates a variable that takes most of a small GPU's memory.
fn large(engine: &Engine) -> Result<Var<DeviceVec<u64>>, DeviceError> {
    engine.device_var(GPU, MIB * 5 / 8 / 8)
}

#[track_caller]
fn assert_out_of_memory<T>(made: Result<T, DeviceError>) {
    let Err(error) = made else { panic!("there should be no memory") };
    assert_eq!((error.code(), error.is_lost()), (2, false), "{error}");
}

#[test]
fn memory_of_a_dropped_variable_is_awaited() {
    for kind in KINDS {
        let gpu = small();
        let engine = engine(kind, &gpu);
        for round in 0..20 {
            let var = large(&engine).expect("the last variable was dropped");
            kernel(&engine, "use", &var, |values| values.fill(1));
            if round % 2 == 0 {
                engine.delete_variable(&var, |_| {}).unwrap();
            }
        }
        engine.wait_for_all().unwrap();
        let kept = large(&engine).unwrap();
        assert_out_of_memory(large(&engine));
        drop(kept);
    }
}

#[test]
fn an_operation_awaits_memory_on_its_only_worker() {
    for kind in THREADED {
        let gpu = small();
        let engine = Engine::builder().kind(kind).workers(1).pin(false).gpu(gpu).build().unwrap();
        let var = large(&engine).unwrap();
        kernel(&engine, "use", &var, |values| values.fill(1));
        drop(var);
        let make = |op: &OpContext<'_>| large(&op.engine()).map(drop);
        engine.op("allocate").submit(cx(), make).unwrap().wait().unwrap().unwrap();
    }
}

/// The operation's own variable cannot be dropped before the operation has ended.
#[test]
fn an_operation_does_not_await_memory_that_it_holds() {
    for kind in KINDS {
        let engine = engine(kind, &small());
        let (var, dropped) = (large(&engine).unwrap(), Gate::new());
        let inside = dropped.clone();
        let op = engine.op("hold");
        let held = op.submit((cx(), var.overwrite()), move |(op, _)| {
            if kind != EngineKind::Naive {
                inside.pass();
            }
            large(&op.engine()).map(drop)
        });
        drop(var);
        dropped.open();
        assert_out_of_memory(held.unwrap().wait().unwrap());
    }
}

#[test]
fn the_function_of_a_device_operation_does_not_await_memory() {
    for kind in THREADED {
        let gpu = SimulatedGpu::builder().memory(MIB).clock(Clock::Manual).build();
        let engine = engine(kind, &gpu);
        let var = large(&engine).unwrap();
        kernel(&engine, "use", &var, |values| values.fill(1));
        drop(var);
        let (tx, rx) = mpsc::channel();
        let make = move |(op, _): (&OpContext<'_>, &mut GpuStream)| tx.send(large(&op.engine()).map(drop)).unwrap();
        engine.op("allocate").on(GPU).push((cx(), stream()), make).unwrap();
        assert_out_of_memory(rx.recv().unwrap());
        gpu.lose();
    }
}

#[test]
fn a_pool_keeps_no_more_than_was_in_use_at_once_and_its_limit() {
    let gpu = SimulatedGpu::builder().clock(Clock::Instantly).build();
    let engine = engine(EngineKind::PerDevice, &gpu);
    engine.limit_pools(GPU, 3 * MIB).unwrap();
    let one_at_a_time = |sizes: &[usize]| {
        for mib in sizes {
            drop(engine.pinned_var::<u8>(GPU, mib * MIB).unwrap());
            drop(engine.device_var::<u8>(GPU, mib * MIB).unwrap());
            engine.wait_for_all().unwrap();
        }
    };
    one_at_a_time(&[7, 1, 9, 2, 1]);
    assert_eq!(engine.trim_pools(GPU).unwrap(), 2 * 3 * MIB, "of each kind, what was free last and fits");
    assert_eq!(engine.trim_pools(GPU).unwrap(), 0);
    let held = engine.pinned_var::<u8>(GPU, 8 * MIB).unwrap();
    let others: Vec<_> = (0..6).map(|_| engine.pinned_var::<u8>(GPU, MIB).unwrap()).collect();
    drop(others);
    engine.wait_for_all().unwrap();
    assert_eq!(engine.trim_pools(GPU).unwrap(), 6 * MIB, "as much was in use");
    drop(held);
    engine.wait_for_all().unwrap();
    assert_eq!(engine.trim_pools(GPU).unwrap(), 0, "what is larger than the limit was returned");
    gpu.lose();
    assert!(engine.trim_pools(GPU).unwrap_err().is_lost());
    assert_eq!(engine.trim_pools(OTHER).unwrap_err().code(), -1);
}

#[test]
fn sizes_that_no_memory_has_are_errors() {
    let gpu = SimulatedGpu::builder().memory(usize::MAX).build();
    let engine = engine(EngineKind::PerDevice, &gpu);
    for bytes in [1 << (usize::BITS - 18), isize::MAX as usize, usize::MAX] {
        let errors = [
            engine.device_var::<u8>(GPU, bytes).map(drop).unwrap_err(),
            engine.pinned_var::<u8>(GPU, bytes).map(drop).unwrap_err(),
            engine.pinned_var::<u64>(GPU, bytes).map(drop).unwrap_err(),
        ];
        for error in errors {
            assert!([-1, 2].contains(&error.code()) && !error.is_lost(), "{bytes}: {error}");
        }
    }
    for len in [0, usize::MAX] {
        assert_eq!(engine.with(&engine.pinned_var::<()>(GPU, len).unwrap(), |values| values.len()).unwrap(), len);
        engine.device_var::<()>(GPU, len).unwrap();
    }
    engine.wait_for_all().unwrap();
}

/// Starts kernels on a device with these options, and returns whether the last ends within a time that each has.
fn ends(gpu: &SimulatedGpu, duration: Duration) -> bool {
    let engine = engine(EngineKind::PerDevice, gpu);
    let var = device(&engine, 4);
    for _ in 0..3 {
        let launch = move |stream: &mut GpuStream, var: &mut _| simulated(stream).launch(duration, var, |_| {});
        engine.op("kernel").on(GPU).launch_any(var.write(), launch).unwrap();
    }
    gpu.advance(Duration::MAX);
    let patience = if duration == Duration::MAX { ms(20) } else { ms(200) };
    let ended = engine.wait_for_var_timeout(&var, patience).is_ok();
    gpu.lose();
    ended
}

#[test]
fn extreme_options_of_a_device_do_what_they_say() {
    let options = SimulatedGpu::builder;
    assert!(!ends(&options().launch_latency(Duration::MAX).build(), ms(1)));
    assert!(!ends(&options().kernel_time(Duration::MAX).build(), Duration::ZERO));
    assert!(!ends(&options().build(), Duration::MAX));
    for count in [0, usize::MAX] {
        let gpu = options().compute_engines(count).depth(count).copy_in_bandwidth(0).clock(Clock::Instantly).build();
        assert!(ends(&gpu, ms(1)), "{count}");
        assert_eq!(gpu.usage().compute.len(), count.clamp(1, 1024));
    }
    let gpu = options().clock(Clock::Manual).build();
    gpu.advance(ms(1));
    gpu.advance(Duration::MAX);
    assert!(ends(&gpu, Duration::from_secs(u64::MAX / 2)), "the clock is at the end of time");
}
