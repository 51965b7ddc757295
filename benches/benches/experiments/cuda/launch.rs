//! What does a launch cost, and do threads that launch block each other?

use std::{
    sync::{Arc, Barrier, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use raddle::{
    IdlePolicy, Var,
    gpu::{CudaGpu, DeviceVec, GpuStream},
};
use raddle_benches::shapes::*;
use raddle_benches::{
    machine,
    report::{Table, number},
    stats,
};

use super::{
    Experiment, GPU, Outcome,
    child::{self, figure, leaving},
    hand::{self, Kernels, lane, ns},
};

pub const EXPERIMENT: Experiment = Experiment {
    name: "launch",
    about: "1 to 4 threads that launch a kernel that does nothing, each on a stream of its own: ns per launch of a \
            thread; the same through an engine, whose lane launches for all",
    run,
    part,
};

const THREADS: std::ops::RangeInclusive<usize> = 1..=4;

/// The number of launches between two waits, less than a stream's capacity.
const BATCH: usize = 256;

fn run() -> Outcome {
    let part = child::run("launch", &[], &[], 20)?.well()?;
    let columns = ["threads", "direct, a call", "that per thread", "engine, an operation", "engine, its lane's call"];
    let mut table = Table::new("launch", "", "", &columns);
    let of = |kind: &str, threads: usize| part.get(&format!("{kind}.{threads}"));
    for threads in THREADS {
        let kinds = ["call", "all", "engine", "lane"];
        table.row(threads.to_string(), kinds.map(|kind| number(of(kind, threads))));
    }
    println!("{}", table.markdown());
    part.complete()?;
    let (one, four) = (of("all", 1), of("all", 4));
    let gain = one / four;
    let follows = if gain >= 2.0 {
        "threads launch in parallel, so a lane for each purpose pays off"
    } else if gain >= 1.1 {
        "threads block each other, but together launch more than one thread does alone"
    } else {
        "FOUR THREADS LAUNCH NO MORE THAN ONE, so more lanes gain nothing if launches are the bottleneck"
    };
    let engine = of("engine", 1);
    Ok(format!(
        "a launch takes {:.0} ns, and {:.0} while three other threads launch; together four launch {gain:.2} times as \
         many as one: {follows}; through the engine an operation takes {engine:.0} ns with one pusher, {:.0} with \
         four, of which the lane's call takes {:.0}",
        of("call", 1),
        of("call", 4),
        of("engine", 4),
        of("lane", 1),
    ))
}

fn part(_: &[&str]) {
    let gpu = hand::open();
    let kernels = hand::kernels();
    for threads in THREADS {
        let found: Vec<_> = (0..machine::choose(5, 1)).map(|_| by_hand(&gpu, kernels, threads)).collect();
        figure(&format!("call.{threads}"), stats::median(&found.iter().map(|found| found.0).collect::<Vec<_>>()));
        figure(&format!("all.{threads}"), stats::median(&found.iter().map(|found| found.1).collect::<Vec<_>>()));
        let found: Vec<_> = (0..machine::choose(5, 1)).map(|_| by_engine(&gpu, kernels, threads)).collect();
        figure(&format!("engine.{threads}"), stats::median(&found.iter().map(|found| found.0).collect::<Vec<_>>()));
        figure(&format!("lane.{threads}"), stats::median(&found.iter().map(|found| found.1).collect::<Vec<_>>()));
    }
    leaving();
}

/// Returns the number of launches per thread.
fn count() -> usize {
    machine::choose(20_480, 1_024)
}

/// Returns two times in ns: the mean time of a call, and that time divided by the number of threads.
fn by_hand(gpu: &CudaGpu, kernels: Kernels, threads: usize) -> (f64, f64) {
    let barrier = Barrier::new(threads);
    let found: Vec<Duration> = thread::scope(|scope| {
        let launcher = |_| {
            let barrier = &barrier;
            scope.spawn(move || {
                hand::bind(gpu);
                let stream = hand::stream();
                hand::must("a first launch", kernels.nothing(stream));
                hand::must("the end of the stream", stream.synchronize());
                barrier.wait();
                let mut time = Duration::ZERO;
                for _ in 0..count() / BATCH {
                    let start = Instant::now();
                    (0..BATCH).for_each(|_| hand::must("launch", kernels.nothing(stream)));
                    time += start.elapsed();
                    hand::must("the end of all launches", stream.synchronize());
                }
                time
            })
        };
        let launchers: Vec<_> = (0..threads).map(launcher).collect();
        launchers.into_iter().map(|launcher| launcher.join().expect("the thread should not panic")).collect()
    });
    let mean = found.iter().map(|&time| ns(time)).sum::<f64>() / threads as f64;
    let call = mean / count() as f64;
    (call, call / threads as f64)
}

/// Returns the time until all operations are done and the time spent in the lane's calls, both in ns per operation.
fn by_engine(gpu: &CudaGpu, kernels: Kernels, threads: usize) -> (f64, f64) {
    let engine = hand::engine(gpu, IdlePolicy::default());
    let vars: Vec<_> = (0..threads).map(|_| engine.device_var::<u32>(GPU, 1).expect("memory")).collect();
    let calls = Arc::new(Mutex::new(Duration::ZERO));
    let push = |var: &Var<DeviceVec<u32>>, count| {
        for _ in 0..count {
            let calls = Arc::clone(&calls);
            let step = move |stream: &mut GpuStream, _: &mut DeviceVec<u32>| {
                let stream = lane(stream);
                let start = Instant::now();
                let launched = kernels.nothing(stream).result();
                // Only the lane's thread uses the lock while operations run.
                *calls.lock().unwrap_or_else(PoisonError::into_inner) += start.elapsed();
                launched
            };
            engine.op("step").on(GPU).launch_any(var.write(), step).expect("a push");
        }
    };
    push(&vars[0], 10);
    engine.wait_for_all().expect("no operation should fail");
    *calls.lock().unwrap_or_else(PoisonError::into_inner) = Duration::ZERO;
    let each = count() / threads;
    let start = Instant::now();
    thread::scope(|scope| {
        for var in &vars {
            let push = &push;
            scope.spawn(move || push(var, each));
        }
    });
    engine.wait_for_all().expect("no operation should fail");
    let all = (each * threads) as f64;
    let time = *calls.lock().unwrap_or_else(PoisonError::into_inner);
    (ns(start.elapsed()) / all, ns(time) / all)
}
