//! Trains the net for handwritten digits with several processes, each of which computes some parts of each batch.
//!
//! ```text
//! apt-get install libopenmpi-dev openmpi-bin libclang-dev
//! cargo build --release -p raddle-train --features mpi
//! mpirun -n 4 --oversubscribe target/release/raddle-train-mpi --shards 2 --compare
//! ```

#![forbid(unsafe_code)]

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{process::ExitCode, sync::Arc, thread};

use clap::Parser;
use mpi::collective::CommunicatorCollectives;
use mpi::topology::{Communicator, SimpleCommunicator};
use raddle::{Device, Engine, EngineKind, trace::Recorder};
use raddle_train::exchange::{self, Exchange};
use raddle_train::training::{self, Options, Trainer};
use raddle_train::{Error, Runtime, data::Images, report};

const SHARDS: &str = "Number of parts of a batch that each process computes in parallel; affects the result";

/// Trains a net on handwritten digits with several processes
#[derive(Parser)]
#[command(name = "raddle-train-mpi", mut_arg("epochs", |epochs| epochs.default_value("5")))]
#[command(mut_arg("shards", |shards| shards.default_value("1").help(SHARDS)))]
struct Arguments {
    #[command(flatten)]
    options: Options,

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

    /// Where each process writes a trace of the last epoch; the process's rank is appended to the name
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            exchange::report(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Error> {
    let universe = exchange::start()?;
    let world = universe.world();
    let (options, bits) = train(arguments, &world).unwrap_or_else(|error| {
        exchange::report(&format!("rank {}: {error}", world.rank()));
        // Errors in the data and in the losses occur in all processes, and this pause gives the others time to report
        // theirs. If only this process has failed, the abort keeps the others from waiting for it.
        thread::sleep(exchange::GRACE);
        world.abort(1)
    });
    let is_first = world.rank() == 0;
    exchange::end(universe)?;
    // The other processes do not wait for this comparison.
    if is_first && arguments.compare {
        let (engine, device) = engine(arguments, None)?;
        if Trainer::new(&engine, device, &images()?, options)?.train()? != bits {
            return Err(Error::Use("one process with the same batches gets different bits".into()));
        }
        println!("one process with the same batches gets the same bits");
    }
    Ok(())
}

fn images() -> Result<Arc<Images>, Error> {
    Ok(Arc::new(Images::open(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits.bin")))?))
}

fn engine(arguments: &Arguments, recorder: Option<&Recorder>) -> Result<(Engine, Device), Error> {
    training::engine(EngineKind::default(), Some(arguments.workers), arguments.gpu, recorder)
}

/// Trains the net together with the other processes, and returns the options and the bits of the parameters.
fn train(arguments: &Arguments, world: &SimpleCommunicator) -> Result<(Options, Vec<u32>), Error> {
    let (rank, count) = (world.rank(), world.size() as usize);
    let shards = arguments.options.shards.saturating_mul(count);
    let options = Options { shards, groups: count, ..arguments.options };
    let epochs = options.epochs;
    let images = images()?;
    let recorder = arguments.trace.as_ref().map(|_| Recorder::with_capacity(16 << 20));
    let (engine, device) = engine(arguments, recorder.as_ref())?;

    let host = Runtime::new(&engine, Device::Cpu, 0);
    let limit = Duration::from_secs(arguments.limit);
    let keys = Trainer::keys(&images, options)?;
    let exchange = Exchange::init(SimpleCommunicator::world(), &host, &keys, limit)?;
    let mut trainer = Trainer::with_processes(&engine, device, &images, options, Some(Arc::new(exchange)))?;
    let start = Instant::now();
    for epoch in 0..epochs {
        let trace = recorder.as_ref().zip(arguments.trace.as_ref()).filter(|_| epoch + 1 == epochs);
        trace.inspect(|(recorder, _)| drop(recorder.take()));
        let loss = trainer.epoch(epoch, |_, _| {})?;
        if let Some((recorder, path)) = trace {
            let path = format!("{}.{rank}", path.display());
            let is_exchange = |name: &str| name.starts_with("exchange ") && name != "exchange loss";
            let overlap = report::write_trace(&recorder.take(), Path::new(&path), is_exchange)?;
            println!("rank {rank}: {}", overlap.sentence("exchanges were in flight during a backward pass"));
        }
        let accuracy = 100.0 * report::accuracy(&trainer.test()?);
        if rank == 0 {
            println!("epoch {:>2}  loss {loss:.4}  test {accuracy:.2} %", epoch + 1);
        }
    }
    let bits = trainer.bits()?;
    // The exchange ends with the trainer. From then on, this thread may call MPI.
    drop(trainer);
    let mut hasher = DefaultHasher::new();
    bits.hash(&mut hasher);
    let mut hashes = vec![0u64; count];
    let comparison = format!("rank {rank}: the comparison of the parameters");
    exchange::within(&comparison, limit, || world.all_gather_into(&hasher.finish(), &mut hashes[..]))?;
    if hashes.iter().any(|hash| *hash != hashes[0]) {
        return Err(Error::Use("the processes have different bits".into()));
    }
    if rank == 0 {
        let seconds = start.elapsed().as_secs_f32();
        println!("{count} processes have the same bits after {epochs} epochs, in {seconds:.1} s");
    }
    Ok((options, bits))
}
