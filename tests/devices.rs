//! Operations of devices, on the simulated one: order, completion, failure.

use std::time::Duration;

use raddle::{Cause, Context, Engine, EngineKind, SimulatedGpu, WaitError};

const GPU: Context = Context::Gpu(0);
const KINDS: [EngineKind; 3] = [EngineKind::Naive, EngineKind::Pooled, EngineKind::PerDevice];

fn engine(kind: EngineKind, gpu: &SimulatedGpu) -> Engine {
    Engine::builder().kind(kind).workers(2).pin(false).gpu(gpu.clone()).build().unwrap()
}

#[test]
fn values_go_through_a_device_and_come_back() {
    for kind in KINDS {
        let gpu = SimulatedGpu::default();
        let engine = engine(kind, &gpu);
        let host = engine.pinned_var::<u32>(GPU, 1000).unwrap();
        let device = engine.device_var::<u32>(GPU, 1000).unwrap();
        for round in 0..20 {
            engine.op("fill").push(host.write(), move |host| host.fill(round)).unwrap();
            engine.op("in").on(GPU).copy_to_device(&host, &device).unwrap();
            for _ in 0..3 {
                engine
                    .op("double")
                    .on(GPU)
                    .launch(device.write(), |stream, device| {
                        stream.simulated().unwrap().launch(Duration::from_micros(20), device, |values| {
                            values.iter_mut().for_each(|value| *value = 2 * *value + 1);
                        })
                    })
                    .unwrap();
            }
            engine.op("out").on(GPU).copy_from_device(&device, &host).unwrap();
            let sum = engine.op("sum").submit(host.read(), |host| host.iter().sum::<u32>()).unwrap();
            assert_eq!(sum.wait().unwrap(), 1000 * (8 * round + 7), "{kind} {round}");
        }
        engine.wait_for_all().unwrap();
        assert_eq!(engine.version(&device), 80, "{kind}");
    }
}

#[test]
fn a_chain_on_one_stream_records_nothing_and_waits_for_nothing() {
    let gpu = SimulatedGpu::default();
    let engine = engine(EngineKind::PerDevice, &gpu);
    let device = engine.device_var::<u64>(GPU, 1).unwrap();
    for _ in 0..1000 {
        engine
            .op("add")
            .on(GPU)
            .launch(device.write(), |stream, device| {
                stream.simulated().unwrap().launch(Duration::ZERO, device, |values| values[0] += 1)
            })
            .unwrap();
    }
    engine.wait_for_all().unwrap();
    let counts = gpu.counts();
    assert_eq!((counts.launches, counts.records, counts.waits), (1000, 0, 0), "{counts:?}");
    println!("{counts:?}");
}

#[test]
fn a_lost_device_fails_what_is_under_way_and_what_comes_and_leaves_the_rest_alone() {
    for kind in KINDS {
        let gpu = SimulatedGpu::default();
        let engine = engine(kind, &gpu);
        let device = engine.device_var::<u64>(GPU, 1).unwrap();
        let cpu = engine.var(0);
        gpu.lose();
        let launched = engine.op("launch").on(GPU).launch(device.write(), |stream, device| {
            stream.simulated().unwrap().launch(Duration::ZERO, device, |values| values[0] += 1)
        });
        launched.unwrap();
        engine.op("cpu").push(cpu.write(), |cpu| *cpu += 1).unwrap();
        let failed = engine.wait_for_var(&device).unwrap_err();
        assert!(matches!(&failed, WaitError::Failed(error) if error.name() == "launch"), "{kind} {failed}");
        let Err(WaitError::Failed(error)) = engine.wait_for_var(&device) else { panic!("it stays") };
        assert!(matches!(error.cause(), Cause::Device(_) | Cause::Error(_)), "{error:?}");
        assert_eq!(engine.get(&cpu).unwrap(), 1);
    }
}
