//! Training with several processes. Each test starts four processes with `mpirun`; they run the program or one of the
//! workers below.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Command, Output, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use mpi::topology::SimpleCommunicator;
use raddle::{
    Device, Engine,
    gpu::{SimulatedGpu, simulated::Clock},
    trace::Recorder,
};
use raddle_train::{
    Array, Error, Runtime, Shape,
    exchange::{self, Exchange},
    training::Processes,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_raddle-train-mpi");

fn mpirun(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("mpirun");
    command.args(["-n", "4", "--oversubscribe", program]).args(arguments);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command
}

fn train(arguments: &[&str]) -> Output {
    mpirun(PROGRAM, arguments).output().expect("mpirun should be installed")
}

/// Runs a worker in four processes. Returns whether all succeeded, their output, and the time taken.
fn workers(name: &str) -> (bool, String, Duration) {
    let start = Instant::now();
    let this = std::env::current_exe().expect("a path");
    let arguments = ["--ignored", "--exact", name, "--nocapture", "--test-threads=1"];
    let output = mpirun(this.to_str().expect("the path should be UTF-8"), &arguments)
        .output()
        .expect("mpirun should be installed");
    (output.status.success(), text(&output), start.elapsed())
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

/// A worker's exchange, engine and MPI library, which are dropped in this order.
struct Worker {
    exchange: Option<Exchange>,
    runtime: Arc<Runtime>,
    recorder: Recorder,
    rank: usize,
    _universe: mpi::environment::Universe,
}

fn worker(keys: impl FnOnce(usize) -> Vec<(String, Shape)>, limit: u64) -> Result<Worker, Error> {
    let universe = exchange::start()?;
    let rank = mpi::topology::Communicator::rank(&universe.world()) as usize;
    let recorder = Recorder::new();
    let gpus = (0..2).map(|_| SimulatedGpu::builder().clock(Clock::Instantly).build());
    let builder = gpus.fold(Engine::builder().workers(2).recorder(&recorder), |builder, gpu| builder.gpu(gpu));
    let runtime = Runtime::new(&builder.build()?, Device::Cpu, 0);
    let exchange = Exchange::init(SimpleCommunicator::world(), &runtime, &keys(rank), Duration::from_secs(limit));
    if let Err(error) = &exchange {
        say(&format!("rank {rank} got: {error}"));
    }
    Ok(Worker { exchange: Some(exchange?), runtime, recorder, rank, _universe: universe })
}

/// Writes a line to standard error in one piece, since several processes may write at the same time.
fn say(text: &str) {
    let line = format!("{text}\n");
    eprint!("{line}");
}

fn keys(_: usize) -> Vec<(String, Shape)> {
    vec![("weight".into(), vec![2, 3]), ("bias".into(), vec![3])]
}

/// Each process computes two parts of each batch.
#[test]
fn four_processes_compute_the_same_bits_as_one() {
    for arguments in [&["--epochs", "2"][..], &["--epochs", "1", "--gpu"]] {
        let output = train(&[arguments, &["--shards", "2", "--compare"]].concat());
        let text = text(&output);
        assert!(output.status.success(), "{text}");
        assert!(text.contains("4 processes have the same bits after "), "{text}");
        assert!(text.contains("one process with the same batches gets the same bits"), "{text}");
    }
}

#[test]
fn exchanges_overlap_with_the_backward_pass() {
    let path = std::env::temp_dir().join(format!("raddle-train-{}.pftrace", std::process::id()));
    let output = train(&["--epochs", "2", "--trace", path.to_str().expect("the path should be UTF-8")]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    let counts = text.lines().filter_map(|line| line.split_once(" exchanges were in flight"));
    let counts: Vec<_> = counts.map(|(before, _)| before.split(' ').nth(2).expect("a number")).collect();
    assert!(counts.len() == 4 && counts.iter().any(|count| *count != "0"), "{text}");
    for rank in 0..4 {
        let mut path = path.clone().into_os_string();
        path.push(format!(".{rank}"));
        fs::remove_file(path).expect("the trace should have been written");
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
    let worker = worker(keys, 20).expect("the keys should be the same");
    let (exchange, runtime) = (worker.exchange.as_ref().expect("the exchange should exist"), &worker.runtime);
    // The sum of these values depends on the order of addition.
    let value = |rank: usize, step: usize| [1e8f32, 1.0, -1e8, 0.5][rank] * (1 + step % 3) as f32;
    let engine = runtime.engine();
    let gpus = [0, 1].map(|gpu| Runtime::new(engine, Device::Gpu(gpu), 0));
    let array =
        |runtime: &Arc<Runtime>, shape: &[usize], value| Array::full(runtime, shape, value).expect("enough memory");
    let sums = array(&gpus[1], &[2, 3], 0.0);
    let mut all = Vec::new();
    for step in 0..50 {
        let parts = |shape, value| [runtime, &gpus[0], &gpus[1]].map(|place| array(place, shape, value));
        // Half of the processes push the keys in a different order.
        let keys = [("weight", parts(&[2, 3], value(worker.rank, step))), ("bias", parts(&[3], 1.0))];
        for key in 0..2 {
            let (name, parts) = &keys[(key + worker.rank) % 2];
            exchange.push(name, name.len() as i32, &parts.each_ref()).expect("the shape should match");
        }
        exchange.pull("weight", 0, &sums).expect("the shape should match");
        all.push(sums.to_vec().expect("no operation should fail"));
    }
    for (step, sums) in all.iter().enumerate() {
        let expected = (0..4).fold(0.0f32, |sum, rank| sum + 3.0 * value(rank, step));
        assert_eq!(*sums, [expected; 6], "step {step}");
    }
    engine.wait_for_all().expect("no operation should fail");
    let trace = worker.recorder.take();
    for (name, priority) in [("aggregate weight", 6), ("exchange weight", 6), ("exchange bias", 4)] {
        let op = trace.ops().iter().find(|op| op.label() == name).expect("the operation should have run");
        assert_eq!(op.priority, priority, "{name}");
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
    worker(other, 20).map(drop).expect("the keys should be the same");
}

/// Only one process makes a wrong call; the others wait for it.
#[test]
fn an_unknown_key_or_another_shape_is_an_error_in_all_processes() {
    for (name, error) in [
        ("worker_with_an_unknown_key", "no such key: `weihgt`; known names: weight, bias"),
        ("worker_with_another_shape", "`pull`: the shape of `weight` must be [2, 3], but is [2]"),
    ] {
        let (success, text, time) = workers(name);
        assert!(!success && time < Duration::from_secs(10), "{time:?}: {text}");
        assert_eq!(text.matches(&format!("rank 2: {error}")).count(), 1, "{text}");
        assert_eq!(text.matches(&format!("rank 2 has failed: {error}")).count(), 3, "{text}");
    }
}

/// Exchanges `weight`; in the process of rank 2, calls `wrong` instead.
fn exchange_or(wrong: fn(&Exchange, &Array) -> Result<(), Error>) {
    let worker = worker(keys, 20).expect("the keys should be the same");
    let exchange = worker.exchange.as_ref().expect("the exchange should exist");
    let array = |shape: &[usize]| Array::full(&worker.runtime, shape, 1.0).expect("enough memory");
    if worker.rank == 2 {
        wrong(exchange, &array(&[2])).expect_err("a wrong call should fail");
        thread::sleep(Duration::from_secs(60));
    }
    let weight = array(&[2, 3]);
    let exchanged = exchange.push("weight", 0, &[&weight]).and_then(|()| exchange.pull("weight", 0, &weight));
    exchanged.and_then(|()| weight.wait_to_read()).expect("no operation should fail");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn worker_with_an_unknown_key() {
    exchange_or(|exchange, array| exchange.push("weihgt", 0, &[array]));
}

#[test]
#[ignore = "run by another test in a separate process"]
fn worker_with_another_shape() {
    exchange_or(|exchange, array| exchange.pull("weight", 0, array));
}

#[test]
fn a_process_that_hangs_before_the_exchange_ends_the_others() {
    let (success, text, time) = workers("worker_hangs");
    assert!(!success && time < Duration::from_secs(10), "{time:?}: {text}");
    assert!(text.contains("the start of the exchange has taken 3s: a process has died or hangs"), "{text}");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn worker_hangs() {
    let hang = |rank| {
        if rank == 2 {
            thread::sleep(Duration::from_secs(60));
        }
        keys(rank)
    };
    let _ = worker(hang, 3);
}

/// One more process, `sleep`, never starts MPI.
#[test]
fn a_process_that_does_not_start_ends_the_others() {
    let start = Instant::now();
    let mut mpirun = mpirun(PROGRAM, &[":", "-n", "1", "sleep", "60"]);
    let output = mpirun.output().expect("mpirun should be installed");
    let (text, time) = (text(&output), start.elapsed());
    assert!(!output.status.success() && time < Duration::from_secs(20), "{time:?}: {text}");
    assert!(text.contains("the start of MPI has taken 10s: a process has died or hangs"), "{text}");
}

#[test]
fn a_process_that_is_stopped_before_the_end_ends_the_others() {
    let (success, text, time) = workers("worker_is_stopped");
    assert!(!success && time < Duration::from_secs(20), "{time:?}: {text}");
    assert!(text.contains("the end of MPI has taken 10s: a process has died or hangs"), "{text}");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn worker_is_stopped() {
    let universe = exchange::start().expect("this should be the first call of MPI");
    if mpi::topology::Communicator::rank(&universe.world()) == 2 {
        let stopped = Command::new("sh").args(["-c", &format!("kill -STOP {}", std::process::id())]).status();
        assert!(stopped.expect("there should be a shell").success());
    }
    exchange::end(universe).expect("the thread should be started");
}

/// Returns the state of a process, and the id of its parent.
fn process(id: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Trains, and sends a signal to one process after the first epoch. All processes must then end within ten seconds.
/// Returns their output.
fn train_until(signal: &str) -> String {
    let mut mpirun = mpirun(PROGRAM, &["--epochs", "500"]);
    let mut mpirun = mpirun.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("mpirun should be installed");
    let mut lines = BufReader::new(mpirun.stdout.take().expect("it should be piped"));
    let mut text = String::new();
    while !text.contains("epoch  1") {
        assert_ne!(lines.read_line(&mut text).expect("the text should be UTF-8"), 0, "{text}");
    }
    let all = fs::read_dir("/proc")
        .expect("this should be Linux")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let ranks: Vec<u32> = all.filter(|&id| process(id).is_some_and(|(_, parent)| parent == mpirun.id())).collect();
    assert_eq!(ranks.len(), 4);
    let start = Instant::now();
    let killed = Command::new("sh").args(["-c", &format!("kill -{signal} {}", ranks[2])]).status();
    assert!(killed.expect("there should be a shell").success());
    lines.read_to_string(&mut text).expect("the text should be UTF-8");
    let output = mpirun.wait_with_output().expect("mpirun should end");
    assert!(!output.status.success());
    text += &String::from_utf8_lossy(&output.stderr);
    while ranks.iter().any(|&rank| process(rank).is_some_and(|(state, _)| state != 'Z')) {
        assert!(start.elapsed() < Duration::from_secs(10), "{text}");
        thread::sleep(Duration::from_millis(10));
    }
    assert!(start.elapsed() < Duration::from_secs(10), "{text}");
    text
}

#[test]
fn a_process_that_is_killed_ends_the_others() {
    let text = train_until("KILL");
    assert!(text.contains("exited on signal 9 (Killed)"), "{text}");
}

#[test]
fn a_process_that_is_stopped_ends_the_others() {
    let text = train_until("STOP");
    assert!(text.contains(" has not arrived from all processes within 5s: a process has died or hangs"), "{text}");
}
