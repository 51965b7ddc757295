//! Trains the net for handwritten digits with several processes, each computing one part of each batch.
//!
//! ```text
//! apt-get install libopenmpi-dev openmpi-bin libclang-dev
//! cargo build --release -p raddle-train --features mpi
//! mpirun -n 4 --oversubscribe target/release/raddle-train-mpi --shards 2 --compare
//! ```

#![forbid(unsafe_code)]

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Parser;
use mpi::{Threading, collective::CommunicatorCollectives, topology::Communicator};
use raddle::{Device, Engine, Recorder, SimulatedGpu, simulated::Clock};
use raddle_train::{
    Error, Runtime,
    data::Images,
    exchange::{self, Exchange, TimeLimit},
    report,
    training::{Options, Processes, Trainer},
};

/// Trains a net on handwritten digits with several processes
#[derive(Parser)]
#[command(name = "raddle-train-mpi")]
struct Arguments {
    /// Number of times each image is used
    #[arg(long, default_value_t = 5)]
    epochs: usize,

    /// Number of images in a step, for all processes together
    #[arg(long, default_value_t = Options::default().batch)]
    batch: usize,

    /// Learning rate in the first epoch
    #[arg(long, default_value_t = Options::default().rate)]
    rate: f32,

    /// Number of parts of a batch that each process computes in parallel; affects the result
    #[arg(long, default_value_t = 1)]
    shards: usize,

    /// Train on a simulated GPU in each process
    #[arg(long)]
    gpu: bool,

    /// Number of worker threads in each process
    #[arg(long, default_value_t = 2)]
    workers: usize,

    /// Seconds to wait for the other processes before giving up
    #[arg(long, default_value_t = 5)]
    limit: u64,

    /// Also train in the first process alone, and compare the bits
    #[arg(long)]
    compare: bool,

    /// Where each process writes a trace of the last epoch; its rank is appended to the name
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let Some((universe, Threading::Serialized | Threading::Multiple)) =
        mpi::initialize_with_threading(Threading::Serialized)
    else {
        eprintln!("raddle-train-mpi: MPI allows no calls from threads other than the first");
        return ExitCode::FAILURE;
    };
    let world = universe.world();
    match run(&arguments, &world) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            exchange::report(&format!("rank {}: {error}", world.rank()));
            // Errors in the data and in the losses occur in all processes, and this pause gives the others time to
            // report theirs. If only this process has failed, the abort keeps the others from waiting for it.
            std::thread::sleep(exchange::GRACE);
            world.abort(1)
        }
    }
}

fn run(arguments: &Arguments, world: &mpi::topology::SimpleCommunicator) -> Result<(), Error> {
    let count = world.size() as usize;
    let &Arguments { epochs, batch, rate, .. } = arguments;
    let shards = arguments.shards * count;
    let options = Options { epochs, batch, rate, shards, groups: count, ..Options::default() };
    let images = Images::open(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits.bin")));
    let images = Arc::new(images?);
    let recorder = arguments.trace.as_ref().map(|_| Recorder::with_capacity(16 << 20));
    let mut builder = Engine::builder().workers(arguments.workers);
    if let Some(recorder) = &recorder {
        builder = builder.recorder(recorder);
    }
    if arguments.gpu {
        builder = builder.gpu(SimulatedGpu::builder().clock(Clock::Instantly).build());
    }
    let engine = builder.build()?;
    let device = if arguments.gpu { Device::Gpu(0) } else { Device::Cpu };

    let host = Runtime::new(&engine, Device::Cpu, 0);
    let limit = Duration::from_secs(arguments.limit);
    let exchange =
        Exchange::init(mpi::topology::SimpleCommunicator::world(), &host, &Trainer::keys(&images, options)?, limit)?;
    let is_first = exchange.rank() == 0;
    let rank = exchange.rank();
    let exchange: Arc<dyn Processes> = Arc::new(exchange);
    let mut trainer = Trainer::with_processes(&engine, device, &images, options, Some(exchange))?;
    let start = Instant::now();
    for epoch in 0..epochs {
        if let (Some(recorder), true) = (&recorder, epoch + 1 == epochs) {
            drop(recorder.take());
        }
        let loss = trainer.epoch(epoch, |_, _| {})?;
        if let (Some(recorder), Some(path), true) = (&recorder, &arguments.trace, epoch + 1 == epochs) {
            let mut path = path.clone().into_os_string();
            path.push(format!(".{rank}"));
            let is_exchange = |name: &str| name.starts_with("exchange ") && name != "exchange loss";
            let overlap = report::write_trace(&recorder.take(), Path::new(&path), is_exchange)?;
            println!("rank {rank}: {}", overlap.sentence("exchanges were in flight during a backward pass"));
        }
        let accuracy = 100.0 * report::accuracy(&trainer.test()?);
        if is_first {
            println!("epoch {:>2}  loss {loss:.4}  test {accuracy:.2} %", epoch + 1);
        }
    }
    let bits = trainer.bits()?;
    // The exchange ends with the trainer. From then on, this thread may call MPI.
    drop(trainer);
    let mut hasher = DefaultHasher::new();
    bits.hash(&mut hasher);
    let mut hashes = vec![0u64; count];
    let comparing = TimeLimit::start(rank, "the comparison of the parameters", limit)?;
    world.all_gather_into(&hasher.finish(), &mut hashes[..]);
    drop(comparing);
    if hashes.iter().any(|hash| *hash != hashes[0]) {
        return Err(Error::Use("the processes have different bits".into()));
    }
    if is_first {
        let seconds = start.elapsed().as_secs_f32();
        println!("{count} processes have the same bits after {epochs} epochs, in {seconds:.1} s");
    }
    if is_first && arguments.compare {
        let mut alone = Trainer::new(&engine, device, &images, options)?;
        for epoch in 0..epochs {
            alone.epoch(epoch, |_, _| {})?;
        }
        if alone.bits()? != bits {
            return Err(Error::Use("one process with the same batches gets different bits".into()));
        }
        println!("one process with the same batches gets the same bits");
    }
    Ok(())
}
