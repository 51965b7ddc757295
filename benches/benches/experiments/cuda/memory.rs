//! Can most of the device's memory be allocated, and what does the driver block during an allocation?

use std::{
    ptr,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use raddle::{
    Engine, IdlePolicy, Var,
    gpu::{CudaGpu, DeviceVec, GpuStream, PinnedVec, cudarc::driver::sys},
};
use raddle_benches::shapes::*;
use raddle_benches::{
    machine,
    report::{Table, number},
};

use super::{
    Experiment, GPU, Outcome,
    child::{self, figure, figures, leaving},
    hand::{self, Kernels, lane, ns},
    whole,
};

pub const EXPERIMENT: Experiment = Experiment {
    name: "memory",
    about: "through the engine, the allocation of two vectors of 47 % of the device's memory each, then of one of \
            92 %, and the use of their last words; how long another thread's launches take while 1 GiB is allocated \
            and freed, pinned and on the device",
    run,
    part,
};

/// The sizes allocated at the same time, in percent of the device's memory.
const SHARES: [&[usize]; 2] = [&[47, 47], &[92]];

/// The calls made while another thread launches.
const ACTS: [(&str, &str); 5] = [
    ("quiet", "nothing"),
    ("pinned.alloc", "cuMemHostAlloc"),
    ("pinned.free", "cuMemFreeHost"),
    ("device.alloc", "cuMemAlloc"),
    ("device.free", "cuMemFree"),
];

fn run() -> Outcome {
    let large = child::run("memory", &["large"], &[], 20)?;
    let gib = |bytes: f64| bytes / f64::from(1 << 30);
    println!("the device has {:.1} GiB, of which {:.1} are free", gib(large.get("total")), gib(large.get("free")));
    let mut table = Table::new("large", "", "", &["vectors", "GiB each", "code", "the last words are right"]);
    let mut refused = vec![];
    for shares in SHARES {
        for index in 0..shares.len() {
            let key = format!("{}.{index}", shares[0]);
            let [bytes, code, right] = ["bytes", "code", "right"].map(|name| large.get(&format!("{key}.{name}")));
            table.row(format!("{} %, {}", shares[0], index + 1), [number(gib(bytes)), whole(code), whole(right)]);
            if code != 0.0 || right != 1.0 {
                refused.push(format!("vector {} of {} % ({:.0} GiB): code {code}", index + 1, shares[0], gib(bytes)));
            }
        }
    }
    println!("{}", table.markdown());
    large.complete()?;
    let stalls = child::run("memory", &["stalls"], &[], 20)?.well()?;
    let columns = ["launches meanwhile, µs", "it takes, ms", "p50", "p99", "longest", "of", "longest wait for 64"];
    let mut table = Table::new("stalls", "", "", &columns);
    let (mut held, mut quiet) = (vec![], [f64::NAN; 2]);
    for (key, name) in ACTS {
        let takes = stalls.get(&format!("{key}.takes")) / 1e6;
        let [p50, p99, longest] = ["p50", "p99", "max"].map(|figure| stalls.get(&format!("{key}.{figure}")) / 1e3);
        let wait = stalls.get(&format!("{key}.wait.max")) / 1e3;
        let count = whole(stalls.get(&format!("{key}.count")));
        table.row(name, [number(takes), number(p50), number(p99), number(longest), count, number(wait)]);
        for (index, (what, stall)) in [("launches", "stall"), ("waits", "wait.stall")].into_iter().enumerate() {
            let stall = stalls.get(&format!("{key}.{stall}")) / 1e3;
            if key == "quiet" {
                quiet[index] = stall;
            } else if stall > 100.0 && stall > 4.0 * quiet[index] {
                held.push(format!("{name} ({what}, for {stall:.0} of its {:.0} µs)", 1e3 * takes));
            }
        }
    }
    println!("{}", table.markdown());
    let engine = stalls.get("engine") / 1e6;
    stalls.complete()?;
    let large = if refused.is_empty() {
        "all of the large vectors could be allocated and used".to_owned()
    } else {
        format!("REFUSED or wrong: {}", refused.join("; "))
    };
    let held = if held.is_empty() {
        "no allocation holds up what another thread launches".to_owned()
    } else {
        let list = held.join(", ");
        format!("what another thread launches IS HELD UP by {list}, so the pool must not allocate while work runs")
    };
    Ok(format!(
        "{large}; without allocations a launch takes {:.0} µs at most, and {held}; a pinned vector of that size takes \
         {engine:.0} ms through the engine",
        quiet[0],
    ))
}

fn part(arguments: &[&str]) {
    match arguments {
        ["large"] => large(),
        _ => stalls(),
    }
    leaving();
}

/// The number of words used at a vector's end.
const TAIL: usize = 256;

/// Returns the free and the total bytes of the device.
fn room() -> (usize, usize) {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the context is current, and the pointers are valid for the driver's writes.
    hand::must("the memory's size", unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) });
    (free, total)
}

fn large() {
    let gpu = hand::open();
    let kernels = hand::kernels();
    let (free, total) = room();
    figure("total", total as f64);
    figure("free", free as f64);
    let engine = hand::engine(&gpu, IdlePolicy::default());
    for shares in SHARES {
        let mut held = vec![];
        for (index, share) in shares.iter().enumerate() {
            let key = format!("{}.{index}", shares[0]);
            let len = total / 100 * share / 4;
            figure(&format!("{key}.bytes"), 4.0 * len as f64);
            match engine.device_var::<u32>(GPU, len) {
                Ok(var) => {
                    figure(&format!("{key}.code"), 0.0);
                    figure(&format!("{key}.right"), f64::from(u8::from(is_usable(&engine, kernels, &var))));
                    held.push(var);
                }
                Err(error) => {
                    println!("{error}");
                    figure(&format!("{key}.code"), f64::from(error.code()));
                    figure(&format!("{key}.right"), 0.0);
                }
            }
        }
        // Dropped variables release their memory once no operation on them is pending.
        drop(held);
        engine.wait_for_all().expect("no operation should fail");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Sets the last words with a kernel, and returns whether they are then correct.
fn is_usable(engine: &Engine, kernels: Kernels, var: &Var<DeviceVec<u32>>) -> bool {
    const VALUE: u32 = 0x5eed_1234;
    let tail = engine.pinned_var::<u32>(GPU, TAIL).expect("pinned memory");
    let step = move |stream: &mut GpuStream, (words, tail): (&mut DeviceVec<u32>, &mut PinnedVec<u32>)| {
        let at = words.cuda_ptr().expect("memory of a CUDA device") + 4 * (words.len() - TAIL) as u64;
        let stream = lane(stream);
        // SAFETY: these are the vector's last words, to which the operation has exclusive access until the device has
        // completed it.
        unsafe { kernels.fill(stream, at, TAIL as u64, VALUE) }.result()?;
        let to = tail.as_mut_ptr().cast();
        // SAFETY: the operation has exclusive access to both vectors until the device has completed the copy, and both
        // have room for this many bytes.
        unsafe { sys::cuMemcpyDtoHAsync_v2(to, at, 4 * TAIL, stream.0) }.result()
    };
    engine.op("use").on(GPU).launch_any((var.write(), tail.write()), step).expect("a push");
    let right = engine.op("look").submit(tail.read(), |tail| tail.iter().all(|&word| word == VALUE)).expect("a push");
    right.wait().unwrap_or_else(|error| {
        println!("{error}");
        false
    })
}

/// The start and the end of a call.
type Span = (Instant, Instant);

fn timed<R>(f: impl FnOnce() -> R) -> (R, Span) {
    let start = Instant::now();
    (f(), (start, Instant::now()))
}

fn stalls() {
    let gpu = hand::open();
    let kernels = hand::kernels();
    let bytes = machine::choose(1 << 30, 64 << 20).min(room().0 / 4);
    let pause = machine::choose(Duration::from_millis(300), Duration::from_millis(30));
    let is_over = AtomicBool::new(false);
    let mut spans: Vec<[Span; ACTS.len()]> = vec![];
    let (launches, waits) = thread::scope(|scope| {
        let launcher = scope.spawn(|| launch(&gpu, kernels, &is_over));
        thread::sleep(Duration::from_millis(20));
        for _ in 0..machine::choose(4, 1) {
            let quiet = timed(|| thread::sleep(pause)).1;
            let (mut at, mut host) = (0, ptr::null_mut());
            // SAFETY: the context is current, and the pointer is valid for the driver's write.
            let allocate = || unsafe { sys::cuMemHostAlloc(&raw mut host, bytes, 0) };
            let (pinned, pinned_alloc) = timed(allocate);
            // SAFETY: the memory was just allocated, or the pointer is null, and no other code uses it.
            let (_, pinned_free) = timed(|| unsafe { sys::cuMemFreeHost(host) });
            // SAFETY: the context is current, and the pointer is valid for the driver's write.
            let (memory, device_alloc) = timed(|| unsafe { sys::cuMemAlloc_v2(&raw mut at, bytes) });
            // SAFETY: the memory was just allocated, or the address is 0, and no other code uses it.
            let (_, device_free) = timed(|| unsafe { sys::cuMemFree_v2(at) });
            spans.push([quiet, pinned_alloc, pinned_free, device_alloc, device_free]);
            if pinned.result().and(memory.result()).is_err() {
                println!("{bytes} bytes: pinned {pinned:?}, on the device {memory:?}");
                break;
            }
        }
        // Relaxed: the flag publishes no other data.
        is_over.store(true, Relaxed);
        launcher.join().expect("the thread should not panic")
    });
    for (act, (key, _)) in ACTS.iter().enumerate() {
        let takes: f64 = spans.iter().map(|spans| ns(spans[act].1 - spans[act].0)).sum();
        figure(&format!("{key}.takes"), takes / spans.len() as f64);
        for (name, all) in [(key.to_string(), &launches), (format!("{key}.wait"), &waits)] {
            // Returns the longest time for which a call overlaps one of the spans, if any.
            let overlap = |other: &Span| {
                let overlaps = spans.iter().map(|spans| {
                    let (start, end) = (other.0.max(spans[act].0), other.1.min(spans[act].1));
                    end.saturating_duration_since(start)
                });
                overlaps.max().filter(|time| !time.is_zero())
            };
            let longest = all.iter().filter_map(overlap).max();
            figure(&format!("{name}.stall"), ns(longest.unwrap_or_default()));
            figures(&name, all.iter().filter(|span| overlap(span).is_some()).map(|span| ns(span.1 - span.0)).collect());
        }
    }
    let engine = hand::engine(&gpu, IdlePolicy::default());
    let start = Instant::now();
    let pinned = engine.pinned_var::<u8>(GPU, bytes).expect("pinned memory");
    figure("engine", ns(start.elapsed()));
    drop(pinned);
}

/// Launches kernels until the flag is set, and waits for them after every 64. Returns the spans of launches and waits.
fn launch(gpu: &CudaGpu, kernels: Kernels, is_over: &AtomicBool) -> (Vec<Span>, Vec<Span>) {
    hand::bind(gpu);
    let (stream, mut launches, mut waits) = (hand::stream(), vec![], vec![]);
    // Relaxed: the flag publishes no other data.
    while !is_over.load(Relaxed) {
        launches.extend((0..64).map(|_| timed(|| hand::must("launch", kernels.nothing(stream))).1));
        // Keeps the stream's queue from filling up.
        waits.push(timed(|| hand::must("the end of the launches", stream.synchronize())).1);
    }
    (launches, waits)
}
