//! What is the resolution of the device's clock, and how soon after a kernel's end does the CPU continue?

use std::{
    thread,
    time::{Duration, Instant},
};

use raddle::{
    IdlePolicy,
    gpu::{CudaGpu, GpuStream},
    stream,
};
use raddle_benches::shapes::*;
use raddle_benches::{
    machine,
    report::{Table, number},
    stats,
};

use super::{
    Experiment, GPU, Outcome,
    child::{self, figure, figures, leaving},
    hand::{self, Kernels, Pinned, lane, ns},
    whole,
};

pub const EXPERIMENT: Experiment = Experiment {
    name: "clock",
    about: "the resolution of %globaltimer; the time from the end of a kernel of 2 ms, as seen by a spinning \
            thread, until the CPU operation behind it starts, with spinning workers and with default ones; and until a \
            thread that polls every 50 µs sees the end, with the timer slack that lanes have and with the default one",
    run,
    part,
};

/// The ways to wait for a kernel's end.
const WAYS: [(&str, &str); 5] = [
    ("spin", "an operation, workers spin"),
    ("default", "an operation, by default"),
    ("sharp", "without an engine: a poll every 50 µs, slack of 1 ns"),
    ("blunt", "without an engine: a poll every 50 µs, slack of 50 µs"),
    ("wait", "without an engine: cuStreamSynchronize"),
];

fn run() -> Outcome {
    let part = child::run("clock", &[], &[], 40)?.well()?;
    let mut table = Table::new("clock", "", "", &["%globaltimer, ns", "smallest", "median", "largest"]);
    let [least, median, largest] = ["least", "median", "largest"].map(|name| part.get(&format!("step.{name}")));
    table.row("from a reading to the next different one", [least, median, largest].map(number));
    println!("{}", table.markdown());
    let mut table = Table::new("end", "", "", &["from a kernel's end, µs, to", "p50", "p99", "longest", "of"]);
    let mut found = vec![];
    for (key, name) in WAYS {
        let figures = ["p50", "p99", "max"].map(|quantile| part.get(&format!("{key}.{quantile}")) / 1e3);
        let count = whole(part.get(&format!("{key}.count")));
        table.row(name, figures.map(number).into_iter().chain([count]));
        found.push(figures);
    }
    println!("{}", table.markdown());
    let (slack, usual) = (part.get("slack"), part.get("usual"));
    part.complete()?;
    let coarse = if median > 250.0 {
        let bound = median / 50.0;
        format!("IT IS COARSE: kernels shorter than {bound:.0} µs that wait by this clock are off by more than 5 %")
    } else {
        "it is fine enough for kernels of a few µs".to_owned()
    };
    let [spin, default, sharp, blunt, wait] = found[..] else { unreachable!("there should be five rows of figures") };
    let gain = blunt[0] - sharp[0];
    let alone = if found.iter().any(|figures| figures[0] < 0.0) {
        "; THE WATCHING THREAD HAD NO CORE OF ITS OWN, so the times from a kernel's end mean nothing"
    } else {
        ""
    };
    let worth = if gain > 10.0 { "worth it" } else { "NOT WORTH IT" };
    Ok(format!(
        "%globaltimer advances in steps of {median:.0} ns (smallest {least:.0}): {coarse}; from a kernel's end to the \
         operation behind it {:.1} µs (p99 {:.1}) with workers that spin, {:.1} (p99 {:.1}) by default, {:.1} to a \
         thread in cuStreamSynchronize; lanes have a timer slack of {slack:.0} ns, other threads of {usual:.0}: by \
         hand the smaller one saves {gain:.1} µs ({:.1} to {:.1}), so it is {worth}{alone}",
        spin[0], spin[1], default[0], default[1], wait[0], blunt[0], sharp[0],
    ))
}

/// The minimum duration of the kernels, which exceeds the time for which a lane polls without sleeping.
const KERNEL: Duration = Duration::from_millis(2);

fn part(_: &[&str]) {
    let gpu = hand::open();
    let bed = Bed { kernels: hand::kernels(), stream: hand::stream(), end: hand::pinned(4096), gpu };
    bed.steps();
    for (key, idle) in [("spin", IdlePolicy::Spin), ("default", IdlePolicy::default())] {
        bed.engine(key, idle);
    }
    // This thread's slack, unchanged by any engine.
    figure("usual", slack() as f64);
    for (key, nanos) in [("sharp", 1), ("blunt", 50_000)] {
        bed.naps(key, nanos);
    }
    bed.wait();
    leaving();
}

/// Returns the calling thread's timer slack in ns.
fn slack() -> i64 {
    // SAFETY: the call reads a property of the calling thread.
    let slack = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
    i64::from(slack)
}

/// Sets the calling thread's timer slack in ns.
fn set_slack(nanos: libc::c_ulong) {
    // SAFETY: the call changes a property of the calling thread.
    let result = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, nanos) };
    assert_eq!(result, 0, "the slack could not be set");
}

struct Bed {
    gpu: CudaGpu,
    kernels: Kernels,
    stream: hand::Stream,
    /// A kernel writes the first word at its end; the second word counts marks.
    end: Pinned,
}

impl Bed {
    fn steps(&self) {
        const COUNT: usize = 512;
        let words = hand::pinned(8 * COUNT);
        // SAFETY: the memory has this many words, which are loaded only after the kernel has completed.
        hand::must("sample", unsafe { self.kernels.sample(self.stream, words.device, COUNT as u32) });
        hand::must("the end of the stream", self.stream.synchronize());
        // Acquire: makes the earlier writes of the device visible, as in the engine.
        let at = |number| words.word(number).load(std::sync::atomic::Ordering::Acquire);
        let steps: Vec<f64> = (1..COUNT).map(|number| at(number).wrapping_sub(at(number - 1)) as f64).collect();
        let (least, largest) = stats::range(&steps);
        figure("step.least", least);
        figure("step.median", stats::median(&steps));
        figure("step.largest", largest);
    }

    fn count() -> u32 {
        machine::choose(500, 20)
    }

    /// Takes samples of one way to wait. `wait` launches a kernel that writes `end`, and returns the time at which the
    /// kernel's end was known.
    fn samples(&self, key: &str, mut wait: impl FnMut(Duration) -> Instant) {
        let sample = |round| {
            // No thread reads the word now, and no kernel runs. Relaxed: the launch of the next kernel comes after this
            // store.
            self.end.word(0).store(0, std::sync::atomic::Ordering::Relaxed);
            // A varying duration keeps the samples out of step with periodic polls.
            let time = KERNEL + Duration::from_nanos(u64::from(round) * 7_919 % 100_000);
            thread::scope(|scope| {
                let watcher = scope.spawn(|| {
                    while self.end.word(0).load(std::sync::atomic::Ordering::Acquire) == 0 {
                        std::hint::spin_loop();
                    }
                    Instant::now()
                });
                let known = wait(time);
                let ended = watcher.join().expect("the thread should not panic");
                // The end may be known before the watcher has seen it, for instance if the watcher has no core of its
                // own.
                ns(known.saturating_duration_since(ended)) - ns(ended.saturating_duration_since(known))
            })
        };
        figures(key, (0..Self::count()).map(sample).collect());
    }

    fn stamp(&self, stream: hand::Stream, time: Duration) -> raddle::gpu::cudarc::driver::sys::CUresult {
        // SAFETY: the word exists, and until the kernel has completed, the host only loads it, atomically.
        unsafe { self.kernels.stamp(stream, self.end.device, time) }
    }

    fn engine(&self, key: &str, idle: IdlePolicy) {
        let engine = hand::engine(&self.gpu, idle);
        let var = engine.device_var::<u32>(GPU, 1).expect("memory");
        let lanes = engine.op("slack").on(GPU).submit((var.write(), stream()), |(_, _)| slack());
        figure("slack", lanes.expect("a push").wait().expect("the operation should succeed") as f64);
        self.samples(key, |time| {
            let (kernels, at) = (self.kernels, self.end.device);
            let step = move |stream: &mut GpuStream, _: &mut _| {
                // SAFETY: the word exists, and until the kernel has completed, the host only loads it, atomically.
                unsafe { kernels.stamp(lane(stream), at, time) }.result()
            };
            engine.op("kernel").on(GPU).launch_any(var.write(), step).expect("a push");
            let next = engine.op("next").submit(var.read(), |_| Instant::now()).expect("a push");
            next.wait().expect("the operation should succeed")
        });
    }

    /// Polls like a lane whose stream has made no progress for a while.
    fn naps(&self, key: &str, slack: libc::c_ulong) {
        let mut mark = self.end.word(1).load(std::sync::atomic::Ordering::Acquire);
        thread::scope(|scope| {
            let main = || {
                hand::bind(&self.gpu);
                set_slack(slack);
                self.samples(key, |time| {
                    mark += 1;
                    hand::must("stamp", self.stamp(self.stream, time));
                    hand::must("write", self.stream.write(&self.end, 1, mark));
                    while self.end.word(1).load(std::sync::atomic::Ordering::Acquire) != mark {
                        thread::sleep(Duration::from_micros(50));
                    }
                    Instant::now()
                });
            };
            scope.spawn(main).join().expect("the thread should not panic");
        });
    }

    fn wait(&self) {
        self.samples("wait", |time| {
            hand::must("stamp", self.stamp(self.stream, time));
            hand::must("the end of the stream", self.stream.synchronize());
            Instant::now()
        });
    }
}
