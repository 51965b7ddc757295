//! Training with several processes. Each test starts four processes with `mpirun`; they run the program or one of the
//! workers below.

use std::{
    process::{Command, Output, abort},
    thread,
    time::{Duration, Instant},
};

use mpi::{Threading, topology::SimpleCommunicator};
use raddle::{Device, Engine};
use raddle_train::{Array, Error, Runtime, Shape, exchange::Exchange, training::Processes};

fn mpirun(program: &str, arguments: &[&str]) -> (Output, Duration) {
    let start = Instant::now();
    let mut command = Command::new("mpirun");
    command.args(["-n", "4", "--oversubscribe", program]).args(arguments);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    (command.output().expect("mpirun is installed"), start.elapsed())
}

fn train(arguments: &[&str]) -> Output {
    mpirun(env!("CARGO_BIN_EXE_raddle-train-mpi"), arguments).0
}

/// Runs a worker in four processes. Returns whether all succeeded, their output, and the time taken.
fn workers(name: &str) -> (bool, String, Duration) {
    let this = std::env::current_exe().expect("a path");
    let arguments = ["--ignored", "--exact", name, "--nocapture", "--test-threads=1"];
    let (output, time) = mpirun(this.to_str().expect("the path is UTF-8"), &arguments);
    (output.status.success(), text(&output), time)
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

/// A worker's MPI library and engine. The engine is dropped first.
struct Worker {
    exchange: Option<Exchange>,
    runtime: std::sync::Arc<Runtime>,
    rank: usize,
    _universe: mpi::environment::Universe,
}

fn worker(keys: impl FnOnce(usize) -> Vec<(String, Shape)>, limit: u64) -> Result<Worker, Error> {
    let (universe, _) = mpi::initialize_with_threading(Threading::Serialized).expect("this is the first call of MPI");
    let rank = mpi::topology::Communicator::rank(&universe.world()) as usize;
    let runtime = Runtime::new(&Engine::builder().workers(2).build()?, Device::Cpu, 0);
    let exchange = Exchange::init(SimpleCommunicator::world(), &runtime, &keys(rank), Duration::from_secs(limit));
    if let Err(error) = &exchange {
        say(&format!("rank {rank} got: {error}"));
    }
    Ok(Worker { exchange: Some(exchange?), runtime, rank, _universe: universe })
}

/// Writes a line in one piece, since processes may write concurrently.
fn say(text: &str) {
    let line = format!("{text}\n");
    eprint!("{line}");
}

fn keys(_: usize) -> Vec<(String, Shape)> {
    vec![("weight".into(), vec![2, 3]), ("bias".into(), vec![3])]
}

#[test]
fn four_processes_compute_the_same_bits_as_one() {
    let output = train(&["--epochs", "2", "--compare"]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("one process with the same batches gets the same bits"), "{text}");
}

#[test]
fn exchanges_overlap_with_the_backward_pass() {
    let path = std::env::temp_dir().join(format!("raddle-train-{}.pftrace", std::process::id()));
    let output = train(&["--epochs", "2", "--trace", path.to_str().expect("the path is UTF-8")]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    let counts = text.lines().filter_map(|line| line.split_once(" exchanges were in flight"));
    let counts: Vec<_> = counts.map(|(before, _)| before.split(' ').nth(2).expect("a number")).collect();
    assert!(counts.len() == 4 && counts.iter().any(|count| *count != "0"), "{text}");
    for rank in 0..4 {
        let mut path = path.clone().into_os_string();
        path.push(format!(".{rank}"));
        std::fs::remove_file(path).expect("the trace was written");
    }
}

#[test]
fn a_loss_that_is_not_finite_ends_all_processes() {
    let output = train(&["--epochs", "2", "--rate", "1000"]);
    let text = text(&output);
    assert!(!output.status.success(), "{text}");
    assert_eq!(text.matches("the loss is NaN").count(), 4, "{text}");
}

#[test]
fn sums_are_in_the_order_of_ranks() {
    let (success, text, _) = workers("worker_sums");
    assert!(success, "{text}");
    assert_eq!(text.matches("has the sums").count(), 4, "{text}");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn worker_sums() {
    let worker = worker(keys, 20).expect("the keys are the same");
    let (exchange, runtime) = (worker.exchange.as_ref().expect("the exchange exists"), &worker.runtime);
    // The sum of these values depends on the order of addition.
    let value = |rank: usize, step: usize| [1e8f32, 1.0, -1e8, 0.5][rank] * (1 + step % 3) as f32;
    let array = |shape: &[usize], value: f32| Array::full(runtime, shape, value).expect("enough memory");
    let sums = array(&[2, 3], 0.0);
    let mut all = Vec::new();
    for step in 0..50 {
        // Half of the processes push the keys in a different order.
        let parts = [("weight", array(&[2, 3], value(worker.rank, step))), ("bias", array(&[3], 1.0))];
        for key in 0..2 {
            let (name, part) = &parts[(key + worker.rank) % 2];
            exchange.push(name, key as i32, &[part, part]).expect("the shape matches");
        }
        exchange.pull("weight", 0, &sums).expect("the shape matches");
        all.push(sums.to_vec().expect("no operation fails"));
    }
    for (step, sums) in all.iter().enumerate() {
        let expected = (0..4).fold(0.0f32, |sum, rank| sum + 2.0 * value(rank, step));
        assert_eq!(*sums, [expected; 6], "step {step}");
    }
    say(&format!("rank {} has the sums", worker.rank));
}

#[test]
fn different_keys_are_an_error_in_all_processes() {
    let (success, text, time) = workers("worker_with_other_keys");
    assert!(!success && time < Duration::from_secs(10), "{time:?}: {text}");
    let error = "got: the keys of the processes differ: rank 0 has `bias` [3], and rank 2 has `bias` [4]";
    assert_eq!(text.matches(error).count(), 4, "{text}");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn worker_with_other_keys() {
    let other = |rank| vec![("weight".into(), vec![2, 3]), ("bias".into(), vec![if rank == 2 { 4 } else { 3 }])];
    worker(other, 20).map(drop).expect("the keys are the same");
}

#[test]
fn the_error_for_an_unknown_key_names_it() {
    let (success, text, _) = workers("worker_with_an_unknown_key");
    assert!(success, "{text}");
    let error = "got: no such key: `weihgt`; known names: weight, bias";
    assert_eq!(text.matches(error).count(), 4, "{text}");
    assert_eq!(text.matches("the shape of `bias` must be [3], but is [2]").count(), 4, "{text}");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn worker_with_an_unknown_key() {
    let worker = worker(keys, 20).expect("the keys are the same");
    let exchange = worker.exchange.as_ref().expect("the exchange exists");
    let array = Array::full(&worker.runtime, &[2], 0.0).expect("enough memory");
    for name in ["weihgt", "bias"] {
        let error = exchange.push(name, 0, &[&array]).unwrap_err();
        say(&format!("rank {} got: {error}", worker.rank));
    }
}

/// First, a process is killed by a signal; then, a process hangs.
#[test]
fn a_process_that_dies_ends_the_others() {
    let (success, text, time) = workers("worker_dies");
    assert!(!success && time < Duration::from_secs(10), "{time:?}: {text}");
    assert!(text.contains("exited on signal 6"), "{text}");
    let (success, text, time) = workers("worker_hangs");
    assert!(!success && time < Duration::from_secs(10), "{time:?}: {text}");
    assert!(text.contains("`weight` has not arrived from all processes within "), "{text}");
}

/// Exchanges values and, after some steps, calls `end` in the process of rank 2.
fn exchange_until(end: fn()) {
    let worker = worker(keys, 3).expect("the keys are the same");
    let exchange = worker.exchange.as_ref().expect("the exchange exists");
    let array = Array::full(&worker.runtime, &[2, 3], 1.0).expect("enough memory");
    for step in 0..10 {
        if (step, worker.rank) == (5, 2) {
            end();
        }
        exchange
            .push("weight", 0, &[&array])
            .and_then(|()| exchange.pull("weight", 0, &array))
            .expect("the push succeeds");
        array.wait_to_read().expect("no operation fails");
    }
}

#[test]
#[ignore = "run by another test in a separate process"]
fn worker_dies() {
    exchange_until(|| abort());
}

#[test]
#[ignore = "run by another test in a separate process"]
fn worker_hangs() {
    exchange_until(|| thread::sleep(Duration::from_secs(60)));
}
