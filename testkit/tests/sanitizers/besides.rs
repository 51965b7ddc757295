//! Unsafe code that neither the corpora nor the soak test reaches.

use std::{thread, time::Duration};

use raddle::{Device, Engine, gpu::SimulatedGpu, gpu::simulated::Clock};
use raddle_testkit::{KINDS, engine, shapes::*};

#[test]
fn kernels_and_copies_run_in_order() {
    let gpu = Device::Gpu(0);
    for (kind, seed) in KINDS.into_iter().flat_map(|kind| (0..10).map(move |seed| (kind, seed))) {
        let device = SimulatedGpu::builder().clock(Clock::Instantly).seed(seed).build();
        let engine = Engine::builder().kind(kind).workers(2).pin(false).gpu(device).build().unwrap();
        let host = engine.pinned_var::<u64>(gpu, 100).unwrap();
        let [more, sum] = [(); 2].map(|()| engine.device_var::<u64>(gpu, 100).unwrap());
        engine.op("clear").on(gpu).copy_to_device(&host, &sum).unwrap();
        for number in 1..=20 {
            engine.op("fill").push(host.write(), move |host| host.fill(number)).unwrap();
            engine.op("in").on(gpu).copy_to_device(&host, &more).unwrap();
            let add = engine.op("add").on(gpu).launch_any((more.read(), sum.write()), |stream, (more, sum)| {
                stream.simulated().unwrap().launch(Duration::ZERO, (more, sum), |(more, sum)| {
                    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
                })
            });
            add.unwrap();
            engine.op("out").on(gpu).copy_from_device(&sum, &host).unwrap();
        }
        let last = engine.op("look").submit(host.read(), |host| host.to_vec()).unwrap();
        assert_eq!(last.wait().unwrap(), [210; 100]);
    }
}

#[test]
fn engines_at_work_can_be_dumped() {
    for kind in KINDS {
        let engine = engine(kind, 2);
        let tokens: Vec<_> = (0..4).map(|_| engine.token()).collect();
        thread::scope(|scope| {
            for first in 0..2 {
                let (engine, tokens) = (&engine, &tokens);
                scope.spawn(move || {
                    for number in first..1_000 {
                        let work = engine.op("work").reads([&tokens[number % 4]]).writes([&tokens[(number + 1) % 4]]);
                        work.push((), |()| {}).unwrap();
                    }
                });
            }
            (0..100).for_each(|_| assert!(!engine.dump().to_string().is_empty()));
        });
        engine.wait_for_all().unwrap();
    }
}
