//! Are values and orders correct with both kinds of marks?

use std::{
    thread,
    time::{Duration, Instant},
};

use raddle::{
    Engine, EngineKind, Property, Var,
    gpu::{CudaGpu, DeviceVec, GpuStream},
};
use raddle_benches::shapes::*;
use raddle_benches::{
    machine,
    report::{Table, number},
};

use super::{
    Experiment, GPU, Outcome,
    child::{self, End, Part, figure},
    hand::{self, Kernels, lane},
    whole,
};

pub const EXPERIMENT: Experiment = Experiment {
    name: "marks",
    about: "values that pass through the lanes, and orders across streams, with marks by counters and by events; with \
            one engine, then with four on one GPU",
    run,
    part,
};

const MODES: [&str; 2] = ["counter", "events"];

/// The numbers of engines used at the same time.
const ENGINES: [&str; 2] = ["1", "4"];

/// The duration of the slow kernels.
const AWHILE: Duration = Duration::from_micros(200);

fn run() -> Outcome {
    let mut table = Table::new("marks", "", "", &["marks, engines", "checks", "wrong", "ms", "end"]);
    let (mut bad, mut good) = (vec![], vec![]);
    for (engines, mode) in ENGINES.iter().flat_map(|engines| MODES.map(|mode| (engines, mode))) {
        let part = child::run("marks", &[engines], &[("RADDLE_CUDA_MARKS", mode)], 14)?;
        let name = format!("{mode}, {engines}");
        let [checks, wrong, ms] = ["checks", "wrong", "ms"].map(|figure| part.get(figure));
        table.row(&name, [whole(checks), whole(wrong), number(ms), part.how().into()]);
        match fault(&part, checks, wrong) {
            Some(fault) => bad.push(format!("{name}: {fault}")),
            None => good.push(format!("{name}: {checks} in {ms:.0} ms")),
        }
    }
    println!("{}", table.markdown());
    if bad.is_empty() {
        return Ok(format!(
            "all values and orders were correct ({}); both kinds of marks can be used",
            good.join("; ")
        ));
    }
    let good = if good.is_empty() { "nothing".to_owned() } else { good.join("; ") };
    Ok(format!("WRONG: {}; correct: {good}; a wrong kind must not be the default", bad.join("; ")))
}

fn fault(part: &Part, checks: f64, wrong: f64) -> Option<String> {
    if part.has(hand::REFUSED) {
        return Some("the device or its driver does not support it".to_owned());
    }
    if part.end != End::Well || part.complete().is_err() {
        return Some(part.how());
    }
    (wrong != 0.0 || checks == 0.0).then(|| format!("{wrong} of {checks} wrong"))
}

fn part(arguments: &[&str]) {
    let engines: u32 = arguments[0].parse().expect("a number");
    let Some(gpu) = hand::open_with_marks() else { return };
    println!("{gpu:?}");
    let kernels = hand::kernels();
    let start = Instant::now();
    let found: Vec<(u32, u32)> = thread::scope(|scope| {
        let check = |seed| {
            let gpu = &gpu;
            scope.spawn(move || Check { gpu, kernels, checks: 0, wrong: 0 }.all(seed))
        };
        let threads: Vec<_> = (1..=engines).map(check).collect();
        threads.into_iter().map(|thread| thread.join().expect("the thread should not panic")).collect()
    });
    figure("checks", found.iter().map(|&(checks, _)| f64::from(checks)).sum());
    figure("wrong", found.iter().map(|&(_, wrong)| f64::from(wrong)).sum());
    figure("ms", start.elapsed().as_secs_f64() * 1e3);
}

/// The checks made by one thread.
struct Check<'a> {
    gpu: &'a CudaGpu,
    kernels: Kernels,
    checks: u32,
    wrong: u32,
}

type Words = Var<DeviceVec<u32>>;

impl Check<'_> {
    /// Makes all checks. Returns how many there are and how many failed.
    fn all(mut self, seed: u32) -> (u32, u32) {
        hand::bind(self.gpu);
        for kind in [EngineKind::Naive, EngineKind::Pooled, EngineKind::PerDevice] {
            let builder = Engine::builder().kind(kind).workers(2).pin(false);
            let engine = builder.gpu(self.gpu.clone()).build().expect("an engine");
            self.values(&engine);
            if kind != EngineKind::Naive {
                self.orders(&engine, seed);
            }
        }
        (self.checks, self.wrong)
    }

    fn note(&mut self, right: bool) {
        self.checks += 1;
        self.wrong += u32::from(!right);
    }

    /// Checks values copied from the host to the device and back, and values written by a kernel.
    fn values(&mut self, engine: &Engine) {
        const LEN: usize = 1000;
        let (host, back) = (engine.pinned_var::<u32>(GPU, LEN).unwrap(), engine.pinned_var::<u32>(GPU, LEN).unwrap());
        let device = engine.device_var::<u32>(GPU, LEN).unwrap();
        let kernels = self.kernels;
        for round in 0..machine::choose(200, 10) {
            let count = move |host: &mut raddle::gpu::PinnedVec<u32>| {
                host.iter_mut().zip(round..).for_each(|(word, value)| *word = value);
            };
            engine.op("count").push(host.write(), count).unwrap();
            engine.op("in").on(GPU).copy_to_device(&host, &device).unwrap();
            engine.op("out").on(GPU).copy_from_device(&device, &back).unwrap();
            let same = engine.op("same").submit((host.read(), back.read()), |(host, back)| **host == **back).unwrap();
            self.note(same.wait().unwrap());
            let fill = move |stream: &mut GpuStream, words: &mut _| {
                // Without this delay, a copy would rarely be early enough to be wrong.
                kernels.spin(lane(stream), 1, AWHILE).result()?;
                kernels.fill_vec(stream, words, !round)
            };
            engine.op("fill").on(GPU).launch_any(device.write(), fill).unwrap();
            engine.op("out").on(GPU).copy_from_device(&device, &back).unwrap();
            let all =
                engine.op("all").submit(back.read(), move |back| back.iter().all(|&word| word == !round)).unwrap();
            self.note(all.wait().unwrap());
        }
    }

    /// Compares random fills, some of them slow, and random copies on several lanes with a serial run in push order.
    fn orders(&mut self, engine: &Engine, seed: u32) {
        const VARS: usize = 4;
        let mut state = seed;
        let mut random = move |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % below
        };
        let vars: Vec<Words> = (0..VARS).map(|_| engine.device_var(GPU, 64).unwrap()).collect();
        let mut expected = [None; VARS];
        let kernels = self.kernels;
        for step in 0..machine::choose(1000, 60) {
            let (to, from) = (random(VARS as u32) as usize, random(VARS as u32) as usize);
            let late = random(8) == 0;
            let property = if random(2) == 0 { Property::GpuPrioritized } else { Property::Normal };
            if random(4) == 0 && to != from {
                let property = if random(2) == 0 { Property::CopyToGpu } else { property };
                engine.op("move").on(GPU).property(property).copy_peer(&vars[from], &vars[to]).unwrap();
                expected[to] = expected[from];
                continue;
            }
            let fill = move |stream: &mut GpuStream, words: &mut _| {
                if late {
                    kernels.spin(lane(stream), 1, AWHILE).result()?;
                }
                kernels.fill_vec(stream, words, step)
            };
            engine.op("fill").on(GPU).property(property).launch_any(vars[to].write(), fill).unwrap();
            expected[to] = Some(step);
            if step % 20 == 19 {
                self.compare(engine, &vars[to], Some(step));
            }
        }
        for (var, expected) in vars.iter().zip(expected) {
            self.compare(engine, var, expected);
        }
    }

    /// Compares all words of a vector with the expected value, if there is one.
    fn compare(&mut self, engine: &Engine, var: &Words, expected: Option<u32>) {
        let Some(expected) = expected else { return };
        let back = engine.pinned_var::<u32>(GPU, 64).unwrap();
        engine.op("out").on(GPU).copy_from_device(var, &back).unwrap();
        let right = move |back: &raddle::gpu::PinnedVec<u32>| back.iter().all(|&word| word == expected);
        self.note(engine.op("compare").submit(back.read(), right).unwrap().wait().unwrap());
    }
}
