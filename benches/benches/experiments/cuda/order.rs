//! Are a copy's writes visible when its mark has passed?

use std::{
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::{Duration, Instant},
};

use raddle::{
    IdlePolicy,
    gpu::{CudaGpu, GpuStream, PinnedVec},
};
use raddle_benches::shapes::*;
use raddle_benches::{machine, report::Table};

use super::{
    Experiment, GPU, Outcome,
    child::{self, figure, leaving},
    hand::{self, Kernels, Pinned},
    whole,
};

pub const EXPERIMENT: Experiment = Experiment {
    name: "order",
    about: "repeated copies of 64 MiB from the device to the host, whose last bytes are checked as soon as the counter \
            moves or the event has happened: how often old bytes are still there",
    run,
    part,
};

/// How the host detects the end of a copy, the maximum number of copies, and the maximum time in seconds.
const MEANS: [(&str, u32, u64); 3] = [("counter", 100_000, 36), ("event", 20_000, 8), ("engine", 20_000, 6)];

fn run() -> Outcome {
    let mut table = Table::new("order", "", "", &["the end known by", "copies", "wrong"]);
    let (mut copies, mut wrong) = (0.0, vec![]);
    for (means, _, seconds) in MEANS {
        let part = child::run("order", &[means], &[], seconds + 10)?.well()?;
        let found = ["copies", "wrong"].map(|name| part.get(name));
        table.row(means, found.map(whole));
        part.complete()?;
        if found[0] == 0.0 {
            return Err(format!("{means}: not a single copy was made in time"));
        }
        copies += found[0];
        if found[1] != 0.0 {
            wrong.push(format!("{means}: {} of {}", found[1], found[0]));
        }
    }
    println!("{}", table.markdown());
    if wrong.is_empty() {
        return Ok(format!("in none of {copies} copies were old bytes seen behind the mark; marks can be relied on"));
    }
    Ok(format!("OLD BYTES WERE SEEN BEHIND A MARK ({}): that kind of mark must not be used", wrong.join("; ")))
}

/// Returns the number of words in a copy.
fn words() -> usize {
    machine::choose(64 << 20, 4 << 20) / 4
}

/// The number of words checked at the end of a copy.
const TAIL: usize = 16;

fn part(arguments: &[&str]) {
    let (means, limit, seconds) =
        MEANS.into_iter().find(|means| means.0 == arguments[0]).expect("the argument should name one of the means");
    let time = machine::choose(Duration::from_secs(seconds), Duration::from_millis(400));
    let gpu = hand::open();
    let kernels = hand::kernels();
    let start = Instant::now();
    let goes_on = move |copy: u32| copy < limit && start.elapsed() < time;
    match means {
        "engine" => by_engine(&gpu, kernels, goes_on),
        _ => by_hand(kernels, means == "counter", goes_on),
    }
    leaving();
}

/// Returns whether the end, the start and the middle of the copied words have this round's value.
fn is_right(target: &Pinned, value: u32) -> bool {
    let word = |index: usize| {
        let at = target.host.cast::<u32>().wrapping_add(index);
        // SAFETY: `at` points to a word of the pinned memory, which is alive. The device may still write it; the
        // experiment looks for such writes.
        let word = unsafe { AtomicU32::from_ptr(at) };
        // Relaxed: the copy's mark has been seen by an acquire load, by a query of its event, or by the engine.
        word.load(Relaxed) == value
    };
    let last = words() - 1;
    // The last words come first: words checked later have more time to arrive.
    (0..TAIL).all(|index| word(last - index)) && word(0) && word(last / 2)
}

fn by_hand(kernels: Kernels, by_counter: bool, goes_on: impl Fn(u32) -> bool) {
    let (stream, event) = (hand::stream(), hand::event());
    let (memory, target, counter) = (hand::memory(4 * words()), hand::pinned(4 * words()), hand::pinned(4096));
    let (mut copies, mut wrong) = (0, 0);
    while goes_on(copies) {
        copies += 1;
        // SAFETY: the memory has this many words, which only this stream uses.
        hand::must("fill", unsafe { kernels.fill(stream, memory.0, words() as u64, copies) });
        // SAFETY: both pieces of memory have this size, only this stream uses the device memory, and the host only
        // loads whole words, atomically.
        hand::must("copy", unsafe { stream.copy_out(memory.0, &target, 4 * words()) });
        if by_counter {
            hand::must("write", stream.write(&counter, 0, u64::from(copies)));
            counter.spin(0, u64::from(copies));
        } else {
            hand::must("record", event.record(stream));
            event.spin();
        }
        wrong += u32::from(!is_right(&target, copies));
        hand::must("the end of the stream", stream.synchronize());
    }
    figure("copies", f64::from(copies));
    figure("wrong", f64::from(wrong));
}

fn by_engine(gpu: &CudaGpu, kernels: Kernels, goes_on: impl Fn(u32) -> bool) {
    let engine = hand::engine(gpu, IdlePolicy::default());
    let memory = engine.device_var::<u32>(GPU, words()).expect("memory");
    let target = engine.pinned_var::<u32>(GPU, words()).expect("memory");
    let (mut copies, mut wrong) = (0, 0);
    while goes_on(copies) {
        copies += 1;
        let value = copies;
        let fill = move |stream: &mut GpuStream, words: &mut _| kernels.fill_vec(stream, words, value);
        engine.op("fill").on(GPU).launch_any(memory.write(), fill).expect("a push");
        engine.op("out").on(GPU).copy_from_device(&memory, &target).expect("a push");
        let look = move |target: &PinnedVec<u32>| {
            let target = Pinned { host: target.as_ptr().cast_mut().cast(), device: 0 };
            is_right(&target, value)
        };
        let right = engine.op("look").submit(target.read(), look).expect("a push").wait().expect("`look` should run");
        wrong += u32::from(!right);
    }
    figure("copies", f64::from(copies));
    figure("wrong", f64::from(wrong));
}
