//! Sums of arrays across processes, using MPI.
//!
//! | here | in the engine |
//! |---|---|
//! | a key | two variables: this process's sum, and all processes' sums |
//! | [`push`](Processes::push) | an operation that sums this process's parts, and a future that passes guards for both variables to the lane and is woken when the values have arrived |
//! | [`pull`](Processes::pull) | an operation that adds all processes' sums in rank order |
//! | the lane | a separate thread, the only one that calls MPI: it starts collectives, highest priority first, and polls them |
//!
//! MPI requires all processes to start the collectives of a communicator in the same order. Each key has its own
//! communicator, and its variables order its operations, so the keys may become ready in a different order in each
//! process.
//!
//! MPI may write to a collective's memory until the collective is complete, and no collective can be cancelled. If a
//! process dies or hangs, the other processes' lanes report the failure after a time limit and end their processes.

use std::{
    cmp::Reverse,
    future::poll_fn,
    mem::MaybeUninit,
    process,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
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
    raw::AsRaw,
    topology::{Communicator, SimpleCommunicator},
};
use raddle::{ReadGuard, WriteGuard};

use crate::{
    Mode, Runtime, Shape, array::Array, error::Error, storage::Block, task::Task, training::Processes, volume,
};

/// The lane's sleep between two polls. Not tuned.
const PAUSE: Duration = Duration::from_micros(20);

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
    jobs: Option<Sender<Job>>,
    lane: Option<JoinHandle<()>>,
}

impl Exchange {
    /// Creates the keys and the lane. All processes must call it with the same keys and shapes. Until the returned
    /// value is dropped, no other thread may call MPI. The arrays are in host memory.
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
        compare_keys(&world, keys)?;
        let key = |(name, shape): &(String, Shape)| {
            let part = Array::new(runtime, shape)?;
            let all = Array::new(runtime, &[processes, volume(shape)])?;
            Ok(Key { name: name.clone(), shape: shape.clone(), part, all })
        };
        let (runtime, names) = (Arc::clone(runtime), keys.iter().map(|(name, _)| name.clone()).collect());
        // Key order is the same in all processes.
        let communicators = keys.iter().map(|_| world.duplicate()).collect();
        let keys = keys.iter().map(key).collect::<Result<_, Error>>()?;
        let (jobs, received) = channel();
        let lane = Lane { rank, names, communicators, limit, flying: Vec::new() };
        let lane = thread::Builder::new().name("mpi".into()).spawn(move || lane.run(&received))?;
        Ok(Self { runtime, keys, rank, processes, jobs: Some(jobs), lane: Some(lane) })
    }

    /// Returns a key and its index.
    fn key(&self, name: &str) -> Result<(usize, &Key), Error> {
        let known = self.keys.iter().enumerate().find(|(_, key)| key.name == name);
        known.ok_or_else(|| Error::key("no such key", name, self.keys.iter().map(|key| &key.name)))
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
        let (index, Key { name, shape, part, all }) = self.key(key)?;
        if let Some(array) = parts.iter().find(|array| array.shape() != shape) {
            return Err(Error::shape("push", key, format!("{shape:?}"), array.shape()));
        }
        let mut sum = Task::new(format!("aggregate {key}"), parts.to_vec()).out(part, Mode::Write);
        sum.priority = priority;
        sum.push(&self.runtime, |mut views| {
            let (ins, out) = (&views.ins, &mut views.outs[0]);
            out.fill(|i| ins.iter().map(|part| part.values[i]).sum());
        })?;
        let lane = self.jobs.clone();
        let op = self.runtime.engine().op(format!("exchange {name}"));
        let accesses = (part.chunk().host()?.read(), all.chunk().host()?.overwrite());
        op.priority(priority).try_push_future(accesses, move |(from, to)| async move {
            from.values()?; // fails if there is no sum
            let arrival = Arc::new(Arrival::default());
            let job = Job { key: index, priority, from, to, arrival: Arc::clone(&arrival) };
            lane.and_then(|lane| lane.send(job).ok()).ok_or("the MPI lane has ended")?;
            arrival.wait().await;
            Ok(())
        })?;
        Ok(())
    }

    fn pull(&self, key: &str, priority: i32, into: &Array) -> Result<(), Error> {
        let (_, Key { shape, all, .. }) = self.key(key)?;
        if into.shape() != shape {
            return Err(Error::shape("pull", key, format!("{shape:?}"), into.shape()));
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
        drop(self.jobs.take());
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
    limit: Duration,
    flying: Vec<Flight>,
}

// SAFETY: once the lane's thread has started, only that thread uses the handles to communicators and requests; before
// that, only the thread that creates the lane does.
unsafe impl Send for Lane {}

impl Lane {
    fn run(mut self, jobs: &Receiver<Job>) {
        loop {
            let mut waiting = Vec::new();
            if self.flying.is_empty() {
                let Ok(job) = jobs.recv() else { return };
                waiting.push(job);
            }
            waiting.extend(jobs.try_iter());
            // All waiting jobs are started together: a process must not wait for a key not yet reached by another
            // process.
            waiting.sort_by_key(|job| Reverse(job.priority));
            waiting.into_iter().for_each(|job| self.start(job));
            if !self.poll() {
                thread::sleep(PAUSE);
            }
        }
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
        let Flight { job, started, .. } = &self.flying[index];
        let (name, seconds) = (&self.names[job.key], started.elapsed().as_secs());
        let late = format!("rank {}: `{name}` has not arrived from all processes within {seconds} s", self.rank);
        // The line is written in one piece, since processes may write concurrently.
        let line = format!("raddle-train: {late}: a process has died or hangs\n");
        eprint!("{line}");
        match self.communicators.first() {
            Some(communicator) => communicator.abort(3),
            None => process::exit(3),
        }
    }
}
