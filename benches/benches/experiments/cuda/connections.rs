//! Do many streams benefit from more hardware queues?

use std::time::{Duration, Instant};

use raddle_benches::{
    machine,
    report::{Table, number},
    stats,
};

use super::{
    Experiment, Outcome,
    child::{self, figure, leaving},
    hand::{self, ns},
};

pub const EXPERIMENT: Experiment = Experiment {
    name: "connections",
    about: "16 streams of short kernels with CUDA_DEVICE_MAX_CONNECTIONS at 8 and at 32: the time until all are done, \
            launched stream by stream and alternately",
    run,
    part,
};

const STREAMS: usize = 16;

/// The number of kernels on each stream.
const KERNELS: usize = 20;

/// The duration of each kernel, much longer than a launch, so that streams can run in parallel.
const KERNEL: Duration = Duration::from_micros(100);

const ORDERS: [&str; 2] = ["by stream", "alternately"];

fn run() -> Outcome {
    let ideal = KERNELS as f64 * ns(KERNEL) / 1e6;
    let mut table = Table::new("connections", "", "", &["connections, ms", ORDERS[0], ORDERS[1], "one stream alone"]);
    let mut times = vec![];
    for connections in ["8", "32"] {
        let part = child::run("connections", &[], &[("CUDA_DEVICE_MAX_CONNECTIONS", connections)], 15)?.well()?;
        let [by_stream, turns, alone] = [ORDERS[0], ORDERS[1], "alone"].map(|name| part.get(name));
        table.row(connections, [by_stream, turns, alone].map(number));
        part.complete()?;
        times.push([by_stream, turns]);
    }
    println!("{}", table.markdown());
    let gains: Vec<f64> = (0..2).map(|order| times[0][order] / times[1][order]).collect();
    let best = gains.iter().fold(0.0f64, |best, &gain| best.max(gain));
    let follows = if best > 1.2 {
        "32 QUEUES PAY OFF: programs with many streams should set the variable before the driver starts"
    } else {
        "the number of queues makes no difference here"
    };
    Ok(format!(
        "with 32 queues instead of 8, the time goes from {:.2} to {:.2} ms {}, from {:.2} to {:.2} {} (at best \
         {ideal:.2}): {follows}",
        times[0][0], times[1][0], ORDERS[0], times[0][1], times[1][1], ORDERS[1],
    ))
}

fn part(_: &[&str]) {
    let _gpu = hand::open();
    let kernels = hand::kernels();
    let streams: Vec<_> = (0..STREAMS).map(|_| hand::stream()).collect();
    let launch = |stream: &hand::Stream| hand::must("launch", kernels.spin(*stream, 1, KERNEL));
    let synchronize = || streams.iter().for_each(|stream| hand::must("the end of all launches", stream.synchronize()));
    streams.iter().for_each(launch);
    synchronize();
    let time = |push: &dyn Fn()| {
        let round = |_| {
            let start = Instant::now();
            push();
            synchronize();
            ns(start.elapsed()) / 1e6
        };
        stats::median(&(0..machine::choose(30, 3)).map(round).collect::<Vec<_>>())
    };
    figure("alone", time(&|| (0..KERNELS).for_each(|_| launch(&streams[0]))));
    figure(ORDERS[0], time(&|| streams.iter().for_each(|stream| (0..KERNELS).for_each(|_| launch(stream)))));
    figure(ORDERS[1], time(&|| (0..KERNELS).for_each(|_| streams.iter().for_each(launch))));
    leaving();
}
