//! Sums of arrays across processes, using MPI.
//!
//! | here | in the engine |
//! |---|---|
//! | a key | two variables: this process's sum, and all processes' sums |
//! | [`push`](Processes::push) | copies to the host of parts on GPUs, an operation that sums this process's parts, and an operation whose future passes guards for both variables to the lane: the latter operation ends when the lane drops the guards |
//! | [`pull`](Processes::pull) | an operation that adds all processes' sums in rank order, and, for an array on a GPU, a copy of the total to it |
//! | the lane | a separate thread, the only one that may call MPI while the exchange exists: it starts collectives, highest priority first, and polls them |
//!
//! MPI requires all processes to start the collectives of a communicator in the same order. Each key has its own
//! communicator, and its variables order its operations, so the keys may become ready in a different order in each
//! process.
//!
//! MPI has no priorities. The priorities of `push` and `pull` decide the order in which the engine runs ready
//! operations, and the order in which the lane starts waiting collectives, but not how the started collectives share
//! the network.
//!
//! MPI may write to a collective's memory until the collective is complete, and no collective can be cancelled. So a
//! failure ends all processes:
//!
//! | failure | reported by |
//! |---|---|
//! | a process dies | `mpirun`, at once |
//! | a process hangs | the other processes' lanes, after a time limit; where there are no lanes, [`within`] |
//! | a process calls `push` or `pull` with an unknown key or another shape | its lane, which tells the other lanes |

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{cmp::Reverse, io, iter, mem, process, sync::Arc};

use mpi::datatype::{Equivalence, PartitionMut};
use mpi::point_to_point::{Destination, MatchedReceiveVec, Source};
use mpi::topology::{Communicator, SimpleCommunicator};
use mpi::{Count, Threading, collective::CommunicatorCollectives, environment::Universe, ffi, raw::AsRaw};
use raddle::{ReadGuard, WriteGuard};

use crate::{Array, Error, Mode, Runtime, Shape, Task, storage::Block, training::Processes, volume};

/// The lane's sleep after a poll that ends no operation. Not tuned.
const PAUSE: Duration = Duration::from_micros(20);

/// How long an idle lane waits for a job before it looks for errors of other processes. Not tuned.
const IDLE: Duration = Duration::from_millis(10);

/// The time for the other processes to report an error before this one ends them. Not tuned.
pub const GRACE: Duration = Duration::from_secs(1);

/// The time limit for the start of MPI and for its end. In both, each process waits for all others.
pub const LIMIT: Duration = Duration::from_secs(10);

/// The maximum number of bytes of an error that are sent to other processes: small enough for MPI to send them without
/// waiting for the receiver.
const LONGEST: usize = 1000;

/// Writes a line to standard error in one piece, since several processes may write at the same time.
pub fn report(text: &str) {
    let line = format!("raddle-train-mpi: {text}\n");
    eprint!("{line}");
}

/// Calls a function in which this process waits for others. If the call takes longer than `limit`, this process ends,
/// and thereby all others.
///
/// # Errors
/// The thread that measures the time cannot be started.
pub fn within<R>(what: &str, limit: Duration, f: impl FnOnce() -> R) -> io::Result<R> {
    let (running, ended) = channel::<()>();
    let error = format!("{what} has taken {limit:?}: a process has died or hangs");
    thread::Builder::new().name("time limit".into()).spawn(move || {
        if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            report(&error);
            // Another thread may be inside a call to MPI, so this thread must not call MPI.
            process::exit(3);
        }
    })?;
    let result = f();
    drop(running);
    Ok(result)
}

/// Starts MPI. If this takes longer than [`LIMIT`], this process ends, and thereby all others.
///
/// # Errors
/// MPI has been started before, or allows no calls from other threads; the thread that measures the time cannot be
/// started.
pub fn start() -> Result<Universe, Error> {
    match within("the start of MPI", LIMIT, || mpi::initialize_with_threading(Threading::Serialized))? {
        Some((universe, Threading::Serialized | Threading::Multiple)) => Ok(universe),
        _ => {
            Err(Error::Use("MPI has been started before, or allows no calls from threads other than the first".into()))
        }
    }
}

/// Ends MPI. If this takes longer than [`LIMIT`], this process ends, and thereby all others.
///
/// # Errors
/// The thread that measures the time cannot be started.
pub fn end(universe: Universe) -> Result<(), Error> {
    let what = format!("rank {}: the end of MPI", universe.world().rank());
    Ok(within(&what, LIMIT, || drop(universe))?)
}

/// A collective that waits for its start, or has been started. The job owns the guards of the collective's memory until
/// the collective is complete; the drop of the guards ends the operation.
struct Job {
    key: usize,
    priority: i32,
    from: ReadGuard<Block>,
    to: WriteGuard<Block>,
}

/// A message to the lane: a job, or an error with which this process has failed.
type Message = Result<Job, String>;

/// Sorts messages: errors come first, then jobs, highest priority first.
fn sorted(messages: impl Iterator<Item = Message>) -> Vec<Message> {
    let mut messages: Vec<_> = messages.collect();
    messages.sort_by_key(|message| message.as_ref().ok().map(|job| Reverse(job.priority)));
    messages
}

/// A started collective.
struct Flight {
    job: Job,
    request: ffi::MPI_Request,
    started: Instant,
}

#[derive(Debug)]
struct Key {
    name: String,
    /// The sum of this process's parts.
    part: Array,
    /// The sums of all processes, in rank order.
    all: Array,
}

/// The sums of some arrays across all processes, by key.
#[derive(Debug)]
pub struct Exchange {
    runtime: Arc<Runtime>,
    keys: Vec<Key>,
    rank: usize,
    processes: usize,
    /// `None` while the exchange is being dropped.
    messages: Option<Sender<Message>>,
    lane: Option<JoinHandle<()>>,
}

impl Exchange {
    /// Creates the keys and the lane. All processes must call this function with the same keys and shapes. Until the
    /// returned value is dropped, no thread except the lane may call MPI. The sums are in the memory of `runtime`,
    /// which must be a runtime of the host. A process that waits for the others for longer than `limit`, here or later,
    /// ends all processes.
    ///
    /// # Errors
    /// A shape has too many values for MPI; the keys or shapes of two processes differ, in which case all processes
    /// return an error; a thread cannot be started.
    pub fn init(
        world: SimpleCommunicator,
        runtime: &Arc<Runtime>,
        keys: &[(String, Shape)],
        limit: Duration,
    ) -> Result<Self, Error> {
        let (rank, processes) = (world.rank() as usize, world.size() as usize);
        // MPI represents counts with this type. `Lane::start` relies on this check.
        if let Some((name, shape)) = keys.iter().find(|(_, shape)| Count::try_from(volume(shape)).is_err()) {
            return Err(Error::Use(format!("`{name}` has too many values for MPI: its shape is {shape:?}")));
        }
        let starting = format!("rank {rank}: the start of the exchange");
        let (communicators, errors) = within(&starting, limit, || {
            compare_keys(&world, keys)?;
            // The keys have the same order in all processes, so each key gets the same communicator in all of them.
            Ok::<_, Error>((keys.iter().map(|_| world.duplicate()).collect(), world.duplicate()))
        })??;
        let key = |(name, shape): &(String, Shape)| {
            let part = Array::new(runtime, shape)?;
            let all = Array::new(runtime, &[&[processes], &shape[..]].concat())?;
            Ok(Key { name: name.clone(), part, all })
        };
        let names = keys.iter().map(|(name, _)| name.clone()).collect();
        let (runtime, keys) = (Arc::clone(runtime), keys.iter().map(key).collect::<Result<_, Error>>()?);
        let (messages, received) = channel();
        let lane = Lane { rank, names, communicators, errors, limit, flying: Vec::new() };
        let lane = thread::Builder::new().name("mpi".into()).spawn(move || lane.run(&received))?;
        Ok(Self { runtime, keys, rank, processes, messages: Some(messages), lane: Some(lane) })
    }

    /// Returns a key and its index. If the key is unknown, or if an array has another shape, this call makes all other
    /// processes end, since they would wait for this one.
    fn key(&self, call: &str, name: &str, arrays: &[&Array]) -> Result<(usize, &Key), Error> {
        let known = self.keys.iter().enumerate().find(|(_, key)| key.name == name);
        let unknown = || Error::key("no such key", name, self.keys.iter().map(|key| &key.name));
        let found = known.ok_or_else(unknown).and_then(|(index, key)| {
            let mut shapes = arrays.iter().map(|array| array.shape());
            shapes.try_for_each(|shape| Error::check_shape(call, name, key.part.shape(), shape))?;
            Ok((index, key))
        });
        if let (Err(error), Some(lane)) = (&found, &self.messages) {
            let _ = lane.send(Err(error.to_string()));
        }
        found
    }
}

impl Processes for Exchange {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        self.processes
    }

    fn push(&self, key: &str, priority: i32, parts: &[&Array]) -> Result<(), Error> {
        let (index, Key { part, all, .. }) = self.key("push", key, parts)?;
        let is_here = |array: &Array| array.runtime().device() == self.runtime.device();
        let here = |&array: &&Array| if is_here(array) { Ok(array.clone()) } else { array.copy_to(&self.runtime) };
        let parts = parts.iter().map(here).collect::<Result<Vec<_>, _>>()?;
        let sum = Task { priority, ..Task::new(format!("aggregate {key}"), parts.iter().collect()) };
        sum.out(part, Mode::Write).push(&self.runtime, |mut views| {
            let (ins, out) = (&views.ins, &mut views.outs[0]);
            out.fill(|i| ins.iter().map(|part| part.values[i]).sum());
        })?;
        let lane = self.messages.clone();
        let op = self.runtime.engine().op(format!("exchange {key}")).priority(priority);
        let accesses = (part.chunk().host()?.read(), all.chunk().host()?.overwrite());
        op.try_push_future(accesses, move |(from, to)| async move {
            from.values()?; // fails if there is no sum
            let job = Job { key: index, priority, from, to };
            Ok(lane.and_then(|lane| lane.send(Ok(job)).ok()).ok_or("the MPI lane has ended")?)
        })?;
        Ok(())
    }

    fn pull(&self, key: &str, priority: i32, into: &Array) -> Result<(), Error> {
        let (_, Key { all, .. }) = self.key("pull", key, &[into])?;
        if into.runtime().device() != self.runtime.device() {
            let sum = Array::new(&self.runtime, into.shape())?;
            self.pull(key, priority, &sum)?;
            return into.copy_from(&sum);
        }
        let sum = Task { priority, ..Task::new(format!("pull {key}"), vec![all]) };
        sum.out(into, Mode::Write).push(&self.runtime, |mut views| {
            let (all, out) = (views.ins[0].values, &mut views.outs[0]);
            let len = out.values.len();
            out.fill(|i| all[i..].iter().step_by(len).sum());
        })
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        // Pending operations may still use the lane.
        let _ = self.runtime.engine().wait_for_all();
        drop(self.messages.take());
        if let Some(lane) = self.lane.take() {
            let _ = lane.join();
        }
    }
}

/// Compares the keys and shapes of all processes. If they differ, all processes return an error.
fn compare_keys(world: &SimpleCommunicator, keys: &[(String, Shape)]) -> Result<(), Error> {
    let own: String = keys.iter().map(|(name, shape)| format!("`{name}` {shape:?}\n")).collect();
    let mut counts = vec![0 as Count; world.size() as usize];
    world.all_gather_into(&(own.len() as Count), &mut counts[..]);
    let starts: Vec<Count> = counts.iter().scan(0, |sum, count| Some(mem::replace(sum, *sum + count))).collect();
    let mut texts = vec![0u8; counts.iter().sum::<Count>() as usize];
    world.all_gather_varcount_into(own.as_bytes(), &mut PartitionMut::new(&mut texts[..], &counts[..], &starts[..]));
    let lines = |rank: usize| {
        let text = &texts[starts[rank] as usize..][..counts[rank] as usize];
        str::from_utf8(text).unwrap_or_default().lines().chain(["no more keys"])
    };
    for other in 1..counts.len() {
        if let Some((a, b)) = iter::zip(lines(0), lines(other)).find(|(a, b)| a != b) {
            let differ = "the keys of the processes differ";
            return Err(Error::Use(format!("{differ}: rank 0 has {a}, and rank {other} has {b}")));
        }
    }
    Ok(())
}

/// The thread that calls MPI.
struct Lane {
    rank: usize,
    names: Vec<String>,
    /// One for each key.
    communicators: Vec<SimpleCommunicator>,
    /// For the texts of errors.
    errors: SimpleCommunicator,
    limit: Duration,
    flying: Vec<Flight>,
}

// SAFETY: once the lane's thread has started, only that thread uses the handles to communicators and requests (in the
// fields `communicators`, `errors` and `flying`); before that, only the thread that creates the lane uses them.
unsafe impl Send for Lane {}

impl Lane {
    fn run(mut self, messages: &Receiver<Message>) {
        loop {
            let mut first = None;
            if self.flying.is_empty() {
                first = match messages.recv_timeout(IDLE) {
                    Err(RecvTimeoutError::Disconnected) => return,
                    first => first.ok(),
                };
            }
            // The lane starts all waiting jobs before it polls any: the lane must not let a job wait for another key's
            // collective, which another process may not have started yet.
            for message in sorted(first.into_iter().chain(messages.try_iter())) {
                match message {
                    Ok(job) => self.start(job),
                    Err(error) => self.tell(&error),
                }
            }
            self.listen();
            if !self.poll() {
                thread::sleep(PAUSE);
            }
        }
    }

    /// Reports an error of this process, here and in all other processes.
    fn tell(&self, error: &str) {
        report(&format!("rank {}: {error}", self.rank));
        let text = &error.as_bytes()[..error.len().min(LONGEST)];
        for rank in (0..self.errors.size()).filter(|rank| *rank != self.errors.rank()) {
            self.errors.process_at_rank(rank).send(text);
        }
    }

    /// Ends all processes if another process has reported an error.
    fn listen(&self) {
        let Some(message) = self.errors.any_process().immediate_matched_probe() else { return };
        let (text, status) = message.matched_receive_vec::<u8>();
        let text = String::from_utf8_lossy(&text);
        report(&format!("rank {}: rank {} has failed: {text}", self.rank, status.source_rank()));
        thread::sleep(GRACE);
        self.errors.abort(1)
    }

    /// Starts a job's collective.
    fn start(&mut self, mut job: Job) {
        let values = job.from.values().expect("the operation should have checked the values");
        let (from, count) = (values.as_ptr(), values.len() as Count);
        let to = job.to.values_mut().as_mut_ptr();
        let (kind, communicator) = (f32::equivalent_datatype(), &self.communicators[job.key]);
        let mut request = mem::MaybeUninit::uninit();
        // SAFETY: `from` points to `count` values, and `to` to `count` values for each process, as allocated by
        // `Exchange::init`, which has also checked that a `Count` can hold their number. The guards in `job` keep both
        // buffers alive, and keep other operations from using them, until the collective is complete: `poll` drops the
        // job only then, and a process whose collective does not complete ends. All processes have the same counts,
        // since `compare_keys` has found the same shapes.
        unsafe {
            ffi::MPI_Iallgather(
                from.cast(),
                count,
                kind.as_raw(),
                to.cast(),
                count,
                kind.as_raw(),
                communicator.as_raw(),
                request.as_mut_ptr(),
            );
        }
        // SAFETY: the call has written the request, since an error would have ended the process.
        let request = unsafe { request.assume_init() };
        self.flying.push(Flight { job, request, started: Instant::now() });
    }

    /// Ends the operations whose collectives are complete, and returns whether there were any.
    fn poll(&mut self) -> bool {
        let before = self.flying.len();
        self.flying.retain_mut(|flight| {
            let mut is_complete = 0;
            // SAFETY: this is a constant of the library, which is initialized.
            let ignored = unsafe { ffi::RSMPI_STATUS_IGNORE };
            // SAFETY: the request belongs to a collective that was started and was not found complete before, and MPI
            // does not write to an ignored status.
            unsafe { ffi::MPI_Test(&raw mut flight.request, &raw mut is_complete, ignored) };
            is_complete == 0
        });
        if let Some(late) = self.flying.iter().find(|flight| flight.started.elapsed() > self.limit) {
            let (rank, name, limit) = (self.rank, &self.names[late.job.key], self.limit);
            let problem = format!("`{name}` has not arrived from all processes within {limit:?}");
            report(&format!("rank {rank}: {problem}: a process has died or hangs"));
            self.errors.abort(3)
        }
        self.flying.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_jobs_are_started_by_priority() {
        let engine = raddle::Engine::builder().workers(1).build().expect("an engine");
        let runtime = Runtime::new(&engine, raddle::Device::Cpu, 0);
        let (messages, received) = channel();
        messages.send(Err("a failure".into())).expect("the receiver should exist");
        for priority in [1, 3, 2] {
            let [from, to] = [0.0, 1.0].map(|value| Array::full(&runtime, &[1], value).expect("enough memory"));
            let variables = [&from, &to].map(|array| array.chunk().host().expect("the array should be in host memory"));
            let messages = messages.clone();
            let accesses = (variables[0].read(), variables[1].overwrite());
            let send = move |(from, to)| async move {
                messages.send(Ok(Job { key: 0, priority, from, to })).expect("the receiver should exist");
            };
            engine.op("send").push_future(accesses, send).expect("the push should succeed");
        }
        let order = sorted(received.iter().take(4)).into_iter().map(|message| message.map(|job| job.priority));
        assert_eq!(order.collect::<Vec<_>>(), [Err("a failure".into()), Ok(3), Ok(2), Ok(1)]);
    }
}
