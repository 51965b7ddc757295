//! Sums of arrays across processes, using MPI.
//!
//! | here | in the engine |
//! |---|---|
//! | a key | two variables: this process's sum, and all processes' sums |
//! | [`push`](Processes::push) | copies of parts on devices, an operation that sums this process's parts, and a future that passes guards for both variables to the lane and is woken when the values have arrived |
//! | [`pull`](Processes::pull) | an operation that adds all processes' sums in rank order, and a copy to the device, if any |
//! | the lane | a separate thread, the only one that calls MPI: it starts collectives, highest priority first, and polls them |
//!
//! MPI requires all processes to start the collectives of a communicator in the same order. Each key has its own
//! communicator, and its variables order its operations, so the keys may become ready in a different order in each
//! process.
//!
//! MPI has no priorities. They decide the order in which the engine runs operations and the lane starts the collectives
//! that wait for it, but not how those already started share the network.
//!
//! MPI may write to a collective's memory until the collective is complete, and no collective can be cancelled. So a
//! failure ends all processes:
//!
//! | failure | reported by |
//! |---|---|
//! | a process dies | `mpirun`, at once |
//! | a process hangs | the other processes' lanes, after a time limit; before there are lanes, the [`TimeLimit`] of `init` |
//! | a process calls `push` or `pull` with an unknown key or another shape | its lane, which tells the other lanes |

use std::{
    cmp::Reverse,
    future::poll_fn,
    io,
    mem::MaybeUninit,
    process,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    task::{Poll, Waker},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use mpi::{
    Count,
    collective::CommunicatorCollectives,
    datatype::PartitionMut,
    ffi,
    point_to_point::{Destination, MatchedReceiveVec, Source},
    raw::AsRaw,
    topology::{Communicator, SimpleCommunicator},
};
use raddle::{ReadGuard, WriteGuard};

use crate::{
    Mode, Runtime, Shape, array::Array, error::Error, storage::Block, task::Task, training::Processes, volume,
};

/// The lane's sleep between two polls. Not tuned.
const PAUSE: Duration = Duration::from_micros(20);

/// An idle lane's wait for a job, after which it looks for errors of other processes. Not tuned.
const IDLE: Duration = Duration::from_millis(10);

/// The time for the other processes to report an error before this one ends them. Not tuned.
pub const GRACE: Duration = Duration::from_secs(1);

/// The most bytes of an error that are sent to other processes: few enough for MPI to send them without a wait.
const LONGEST: usize = 1000;

/// Writes a line in one piece, since processes may write concurrently.
pub fn report(text: &str) {
    let line = format!("raddle-train-mpi: {text}\n");
    eprint!("{line}");
}

/// Ends this process, and thereby all others, if it is not dropped within a time limit.
#[derive(Debug)]
pub struct TimeLimit {
    _dropped_in_time: Sender<()>,
}

impl TimeLimit {
    /// Starts a thread that waits for the drop.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(rank: usize, what: &'static str, limit: Duration) -> io::Result<Self> {
        let (sender, dropped) = channel();
        thread::Builder::new().name("time limit".into()).spawn(move || {
            if dropped.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                report(&format!("rank {rank}: {what} has taken {limit:?}: a process has died or hangs"));
                // Another thread may be within MPI, so this one must not call it.
                process::exit(3);
            }
        })?;
        Ok(Self { _dropped_in_time: sender })
    }
}

/// The lane's notification to an operation's future that the collective is complete.
#[derive(Debug, Default)]
struct Arrival(Mutex<(bool, Option<Waker>)>);

impl Arrival {
    fn tell(&self) {
        let waker = {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            state.0 = true;
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    async fn wait(&self) {
        poll_fn(|cx| {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if state.0 {
                return Poll::Ready(());
            }
            state.1 = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// A collective to start. The job owns the guards of its memory until the collective is complete.
struct Job {
    key: usize,
    priority: i32,
    from: ReadGuard<Block>,
    to: WriteGuard<Block>,
    arrival: Arc<Arrival>,
}

/// A message to the lane.
enum Message {
    Start(Job),
    /// This process has failed.
    Fail(String),
}

/// Sorts messages: failures first, and then jobs by priority.
fn sorted(messages: impl Iterator<Item = Message>) -> Vec<Message> {
    let mut messages: Vec<_> = messages.collect();
    messages.sort_by_key(|message| match message {
        Message::Fail(_) => None,
        Message::Start(job) => Some(Reverse(job.priority)),
    });
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
    shape: Shape,
    part: Array,
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
    /// Creates the keys and the lane. All processes must call it with the same keys and shapes. Until the returned
    /// value is dropped, no other thread may call MPI. The sums are in the memory of `runtime`, which is the host's. A
    /// process that waits for the others for longer than `limit`, here or later, ends all processes.
    ///
    /// # Errors
    /// The keys or shapes of two processes differ; in that case, all processes return an error.
    pub fn init(
        world: SimpleCommunicator,
        runtime: &Arc<Runtime>,
        keys: &[(String, Shape)],
        limit: Duration,
    ) -> Result<Self, Error> {
        let (rank, processes) = (world.rank() as usize, world.size() as usize);
        let starting = TimeLimit::start(rank, "the start of the exchange", limit)?;
        compare_keys(&world, keys)?;
        let key = |(name, shape): &(String, Shape)| {
            let part = Array::new(runtime, shape)?;
            let all = Array::new(runtime, &[processes, volume(shape)])?;
            Ok(Key { name: name.clone(), shape: shape.clone(), part, all })
        };
        let (runtime, names) = (Arc::clone(runtime), keys.iter().map(|(name, _)| name.clone()).collect());
        // Key order is the same in all processes.
        let communicators = keys.iter().map(|_| world.duplicate()).collect();
        let errors = world.duplicate();
        drop(starting);
        let keys = keys.iter().map(key).collect::<Result<_, Error>>()?;
        let (messages, received) = channel();
        let lane = Lane { rank, names, communicators, errors, limit, flying: Vec::new() };
        let lane = thread::Builder::new().name("mpi".into()).spawn(move || lane.run(&received))?;
        Ok(Self { runtime, keys, rank, processes, messages: Some(messages), lane: Some(lane) })
    }

    /// Returns a key and its index. If the key is unknown, or if an array has another shape, all other processes end,
    /// since they would wait for this one.
    fn key(&self, call: &str, name: &str, arrays: &[&Array]) -> Result<(usize, &Key), Error> {
        let known = self.keys.iter().enumerate().find(|(_, key)| key.name == name);
        let unknown = || Error::key("no such key", name, self.keys.iter().map(|key| &key.name));
        let found = known.ok_or_else(unknown).and_then(|(index, key)| {
            match arrays.iter().find(|array| array.shape() != key.shape) {
                Some(array) => Err(Error::shape(call, name, format!("{:?}", key.shape), array.shape())),
                None => Ok((index, key)),
            }
        });
        if let (Err(error), Some(lane)) = (&found, &self.messages) {
            let _ = lane.send(Message::Fail(error.to_string()));
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
        let (index, Key { name, part, all, .. }) = self.key("push", key, parts)?;
        let is_here = |array: &Array| array.runtime().device() == self.runtime.device();
        let here = |&array: &&Array| if is_here(array) { Ok(array.clone()) } else { array.copy_to(&self.runtime) };
        let parts = parts.iter().map(here).collect::<Result<Vec<_>, _>>()?;
        let mut sum = Task::new(format!("aggregate {key}"), parts.iter().collect()).out(part, Mode::Write);
        sum.priority = priority;
        sum.push(&self.runtime, |mut views| {
            let (ins, out) = (&views.ins, &mut views.outs[0]);
            out.fill(|i| ins.iter().map(|part| part.values[i]).sum());
        })?;
        let lane = self.messages.clone();
        let op = self.runtime.engine().op(format!("exchange {name}"));
        let accesses = (part.chunk().host()?.read(), all.chunk().host()?.overwrite());
        op.priority(priority).try_push_future(accesses, move |(from, to)| async move {
            from.values()?; // fails if there is no sum
            let arrival = Arc::new(Arrival::default());
            let job = Job { key: index, priority, from, to, arrival: Arc::clone(&arrival) };
            lane.and_then(|lane| lane.send(Message::Start(job)).ok()).ok_or("the MPI lane has ended")?;
            arrival.wait().await;
            Ok(())
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
        let mut sum = Task::new(format!("pull {key}"), vec![all]).out(into, Mode::Write);
        sum.priority = priority;
        sum.push(&self.runtime, |mut views| {
            let (all, out) = (views.ins[0].values, &mut views.outs[0]);
            let len = out.values.len();
            out.fill(|i| all[i..].iter().step_by(len).sum());
        })
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        // Pending operations are still using the lane.
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
    let starts: Vec<Count> = counts.iter().scan(0, |sum, count| Some(std::mem::replace(sum, *sum + count))).collect();
    let mut texts = vec![0u8; counts.iter().sum::<Count>() as usize];
    world.all_gather_varcount_into(own.as_bytes(), &mut PartitionMut::new(&mut texts[..], &counts[..], &starts[..]));
    let text = |rank: usize| String::from_utf8_lossy(&texts[starts[rank] as usize..][..counts[rank] as usize]);
    let first = text(0);
    let Some(other) = (1..counts.len()).find(|&rank| text(rank) != first) else { return Ok(()) };
    let text = text(other);
    let (mut ours, mut theirs) = (first.lines(), text.lines());
    loop {
        let (a, b) = (ours.next(), theirs.next());
        if a != b {
            let [a, b] = [a, b].map(|line| line.unwrap_or("no more keys"));
            return Err(Error::Use(format!(
                "the keys of the processes differ: rank 0 has {a}, and rank {other} has {b}"
            )));
        }
    }
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

// SAFETY: once the lane's thread has started, only that thread uses the handles to communicators and requests; before
// that, only the thread that creates the lane does.
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
            // All waiting jobs are started together: a process must not wait for a key not yet reached by another
            // process.
            for message in sorted(first.into_iter().chain(messages.try_iter())) {
                match message {
                    Message::Start(job) => self.start(job),
                    Message::Fail(error) => self.tell(&error),
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
        let values = job.from.values().expect("the operation has checked the values");
        let (from, count) = (values.as_ptr(), values.len() as Count);
        let to = job.to.values_mut().as_mut_ptr();
        let (kind, communicator) =
            (<f32 as mpi::datatype::Equivalence>::equivalent_datatype(), &self.communicators[job.key]);
        let mut request = MaybeUninit::uninit();
        // SAFETY: `from` points to `count` values, and `to` to `count` values for each process, as allocated by
        // `Exchange::init`. The guards in `job` keep both buffers alive, and keep other operations from using them,
        // until the collective is complete: `poll` drops the job only then, and a process whose collective does not
        // complete ends. All processes have the same counts, since `compare_keys` has found the same shapes.
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

    /// Notifies the operations whose collectives are complete, and returns whether there were any.
    fn poll(&mut self) -> bool {
        let before = self.flying.len();
        let mut index = 0;
        while index < self.flying.len() {
            let flight = &mut self.flying[index];
            let mut is_complete = 0;
            // SAFETY: this is a constant of the library, which is initialized.
            let ignored = unsafe { ffi::RSMPI_STATUS_IGNORE };
            // SAFETY: the request belongs to a collective that was started and was not found complete before, and MPI
            // does not write to an ignored status.
            unsafe { ffi::MPI_Test(&raw mut flight.request, &raw mut is_complete, ignored) };
            if is_complete == 0 {
                if flight.started.elapsed() > self.limit {
                    self.give_up(index);
                }
                index += 1;
                continue;
            }
            let Job { from, to, arrival, .. } = self.flying.swap_remove(index).job;
            drop((from, to));
            arrival.tell();
        }
        self.flying.len() < before
    }

    /// Ends this process and all others that MPI can reach.
    fn give_up(&self, index: usize) -> ! {
        let name = &self.names[self.flying[index].job.key];
        report(&format!(
            "rank {}: `{name}` has not arrived from all processes within {:?}: a process has died or hangs",
            self.rank, self.limit
        ));
        self.errors.abort(3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_jobs_are_started_by_priority() {
        let engine = raddle::Engine::builder().workers(1).build().expect("the engine is built");
        let runtime = Runtime::new(&engine, raddle::Device::Cpu, 0);
        let (messages, received) = channel();
        messages.send(Message::Fail("a failure".into())).expect("the receiver exists");
        for priority in [1, 3, 2] {
            let [from, to] = [0.0, 1.0].map(|value| Array::full(&runtime, &[1], value).expect("enough memory"));
            let variables = [&from, &to].map(|array| array.chunk().host().expect("the array is in host memory"));
            let messages = messages.clone();
            let accesses = (variables[0].read(), variables[1].overwrite());
            let send = move |(from, to)| async move {
                let job = Job { key: 0, priority, from, to, arrival: Arc::default() };
                messages.send(Message::Start(job)).expect("the receiver exists");
            };
            engine.op("send").push_future(accesses, send).expect("the push succeeds");
        }
        let priority = |message: &Message| match message {
            Message::Fail(_) => None,
            Message::Start(job) => Some(job.priority),
        };
        let order: Vec<_> = sorted(received.iter().take(4)).iter().map(priority).collect();
        assert_eq!(order, [None, Some(3), Some(2), Some(1)]);
    }
}
