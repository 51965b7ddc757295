//! Training: each batch is split among several executors, whose gradients are summed in a fixed order.
//!
//! A step is pushed as a whole, without a wait:
//!
//! ```text
//!   decode ─► augment ─► copy ─► forward ─► backward of the last layer ─► ... ─► backward of the first layer
//!                                   │                    │                                  │
//!                                 check ───────► update of the last layer   ...   update of the first layer
//! ```
//!
//! | here | in the engine |
//! |---|---|
//! | an update during the backward pass of other layers | operations on different variables |
//! | a parameter updated after its gradients are computed and before the next forward pass | operations on the same variables |
//! | the first layers first | priorities of the updates: the next forward pass needs these parameters first |
//! | a non-finite loss changes no parameter | `check` fails, and with it a token that the updates read |
//! | the same bits with any number of workers | each sum has a fixed order, and each generator is a variable |

use std::{collections::VecDeque, fmt, sync::Arc, time::Instant};

use clap::Args;
use raddle::{
    Device, Engine, EngineKind, OpHandle, Token, WaitError,
    gpu::{SimulatedGpu, simulated::Clock},
    trace::Recorder,
};

use crate::data::{Batch, Images, Loader};
use crate::executor::{Arrays, Executor, Gradients, MemoryUse};
use crate::task::{Mode, Prepared, Task, View};
use crate::{Array, Error, Runtime, Shape, Symbol, Tape, net};

/// The number of steps pushed before the trainer waits for the first of them. Not tuned.
const WINDOW: usize = 4;

/// The name of the operation that checks the losses.
const CHECK: &str = "check";

/// The key under which processes exchange the loss.
const LOSS: &str = "loss";

/// The maximum number of batches that are ready, in use or being made. Not tuned.
const AHEAD: usize = 4;

/// The options of a training run.
#[derive(Args, Clone, Copy, Debug)]
pub struct Options {
    /// Number of epochs, each of which uses every training image at most once
    #[arg(long, default_value_t = Self::default().epochs)]
    pub epochs: usize,

    /// Number of images in a step
    #[arg(long, default_value_t = Self::default().batch)]
    pub batch: usize,

    /// Number of parts of a batch that are computed in parallel; affects the result
    #[arg(long, default_value_t = Self::default().shards)]
    pub shards: usize,

    /// Number of groups of parts: gradients are first summed within each group, as if each group were a process
    #[arg(skip = Self::default().groups)]
    pub groups: usize,

    /// Learning rate in the first epoch; it decreases from epoch to epoch
    #[arg(long, default_value_t = Self::default().rate)]
    pub rate: f32,

    /// Probability that dropout sets a value to zero
    #[arg(long, default_value_t = Self::default().dropout)]
    pub dropout: f32,

    /// Seed of all random numbers
    #[arg(long, default_value_t = Self::default().seed)]
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { epochs: 20, batch: 64, shards: 2, groups: 1, rate: 0.08, dropout: 0.2, seed: 1 }
    }
}

/// Returns an engine, and the device for the net: the processor, or a simulated GPU whose kernels take no time.
///
/// # Errors
/// The engine cannot be built.
pub fn engine(
    kind: EngineKind,
    workers: Option<usize>,
    on_gpu: bool,
    recorder: Option<&Recorder>,
) -> Result<(Engine, Device), Error> {
    let mut builder = Engine::builder().kind(kind);
    if let Some(workers) = workers {
        builder = builder.workers(workers);
    }
    if let Some(recorder) = recorder {
        builder = builder.recorder(recorder);
    }
    if on_gpu {
        builder = builder.gpu(SimulatedGpu::builder().clock(Clock::Instantly).build());
    }
    Ok((builder.build()?, if on_gpu { Device::Gpu(0) } else { Device::Cpu }))
}

/// Processes training one net together: each computes some parts of a batch.
pub trait Processes: fmt::Debug + Send + Sync {
    /// Returns the rank of this process, which is less than their number.
    fn rank(&self) -> usize;

    /// Returns the number of processes.
    fn count(&self) -> usize;

    /// Pushes the operations that sum this process's arrays in order and send the result to all processes.
    ///
    /// # Errors
    /// The key is unknown, or an array has a different shape; the engine refuses a push.
    fn push(&self, key: &str, priority: i32, parts: &[&Array]) -> Result<(), Error>;

    /// Pushes the operations that add all processes' sums in rank order and write the total to `into`.
    ///
    /// # Errors
    /// The key is unknown, or the array has a different shape; the engine refuses a push.
    fn pull(&self, key: &str, priority: i32, into: &Array) -> Result<(), Error>;
}

/// The executor that computes the gradients for one part of each batch, and its arrays.
#[derive(Debug)]
struct Shard {
    executor: Executor,
    arguments: Arrays,
    gradients: Gradients,
    /// The shard's place in [`Trainer::losses`].
    loss: Array,
}

/// An update of a parameter.
#[derive(Debug)]
struct Update {
    name: String,
    priority: i32,
    operator: Prepared,
    /// The sum of all processes' gradients, if there is an exchange with other processes.
    sum: Option<Array>,
}

/// A net in training.
#[derive(Debug)]
pub struct Trainer {
    options: Options,
    net: Symbol,
    runtime: Arc<Runtime>,
    loader: Loader,
    parameters: Arrays,
    shards: Vec<Shard>,
    rate: Array,
    updates: Vec<Update>,
    /// The losses of this process's shards, in host memory.
    losses: Array,
    /// The processes, and the sum of all their losses.
    processes: Option<(Arc<dyn Processes>, Array)>,
    /// A token that fails with the first non-finite loss.
    sound: Token,
    test: Executor,
    /// The number and the class of each test image.
    tested: Vec<(usize, usize)>,
}

impl Trainer {
    /// Prepares the training of the net for `images` on a device of the engine.
    ///
    /// # Errors
    /// The options are invalid, or the training images do not fill a batch; the GPU is out of memory, or is a CUDA
    /// device; the engine refuses a push.
    pub fn new(engine: &Engine, device: Device, images: &Arc<Images>, options: Options) -> Result<Self, Error> {
        Self::with_processes(engine, device, images, options, None)
    }

    /// Returns the keys exchanged by processes, with their arrays' shapes.
    ///
    /// # Errors
    /// The shapes of the net do not match.
    pub fn keys(images: &Images, options: Options) -> Result<Vec<(String, Shape)>, Error> {
        let net = net::digits(images.classes, options.batch, options.dropout);
        let data = vec![options.batch, 1, images.size[0], images.size[1]];
        let mut shapes = net.infer_shapes(&[("data".into(), data)].into())?;
        let parameters = net::parameters(&net).into_iter().filter_map(|name| shapes.remove_entry(&name));
        Ok(parameters.chain([(LOSS.into(), vec![1])]).collect())
    }

    /// Prepares this process for training together with other processes, or alone if `processes` is `None`.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn with_processes(
        engine: &Engine,
        device: Device,
        images: &Arc<Images>,
        options: Options,
        processes: Option<Arc<dyn Processes>>,
    ) -> Result<Self, Error> {
        let Options { epochs, batch, shards, groups, dropout, seed, .. } = options;
        if epochs == 0 || batch == 0 {
            return Err(Error::Use(format!("{epochs} epochs with batches of {batch} train nothing")));
        }
        if shards == 0 || batch % shards != 0 {
            return Err(Error::Use(format!("a batch of {batch} cannot be split into {shards} equal parts")));
        }
        let (rank, count) = processes.as_ref().map_or((0, 1), |processes| (processes.rank(), processes.count()));
        if let Some(count) = [count, groups].into_iter().find(|&count| count == 0 || shards % count != 0) {
            return Err(Error::Use(format!("{shards} parts of a batch cannot be shared equally by {count} processes")));
        }
        let own = rank * shards / count..(rank + 1) * shards / count;
        let (learn, test) = images.split();
        let host = Runtime::new(engine, Device::Cpu, seed);
        let runtime = host.beside(device, seed.wrapping_add(1));
        let loader = Loader::new(images, &host, learn, batch, epochs, AHEAD)?;
        let [rows, columns] = images.size;
        let part = [batch / shards, 1, rows, columns];
        let net = net::digits(images.classes, batch, dropout);
        let parameters = net::initial(&net, &runtime, &part)?;

        let losses = Array::new(&host, &[own.len()])?;
        let shard = |(place, index): (usize, usize)| {
            // Each shard has its own generators, so a part of a batch gets the same numbers wherever it is computed.
            let own = host.beside(device, seed.wrapping_add(2 + index as u64));
            let mut arguments = parameters.clone();
            arguments.insert("data".into(), Array::new(&own, &part)?);
            arguments.insert("label".into(), Array::new(&own, &part[..1])?);
            let gradient =
                |(name, array): (&String, &Array)| Ok((name.clone(), (Array::new(&own, array.shape())?, Mode::Write)));
            let gradients = parameters.iter().map(gradient).collect::<Result<Gradients, Error>>()?;
            let executor = Executor::bind(&[&net], &own, &arguments, &gradients)?;
            Ok(Shard { executor, arguments, gradients, loss: losses.slice(place..place + 1)? })
        };
        let shards = own.enumerate().map(shard).collect::<Result<Vec<_>, Error>>()?;

        let (sound, rate) = (engine.token().named("sound"), Array::full(&runtime, &[1], options.rate)?);
        let names = net::parameters(&net);
        let mut updates = Vec::new();
        let group = if processes.is_some() { 1 } else { shards.len() / groups };
        // The updates have the order of the backward pass, which ends with the first layer.
        for (layer, name) in names.iter().enumerate().rev() {
            let parameter = &parameters[name];
            let momentum = Array::full(&runtime, parameter.shape(), 0.0)?;
            let sum = processes.as_ref().map(|_| Array::new(&runtime, parameter.shape())).transpose()?;
            let gradients = match &sum {
                Some(sum) => vec![sum],
                None => shards.iter().map(|shard| &shard.gradients[name].0).collect(),
            };
            let priority = (names.len() - layer) as i32;
            let ins = [&rate].into_iter().chain(gradients).collect();
            let update = Task { priority, after: vec![&sound], ..Task::new(format!("update {name}"), ins) };
            let update = update.out(parameter, Mode::InPlace).out(&momentum, Mode::InPlace);
            let operator = update.operator(&runtime, move |mut views| {
                let rate = views.ins[0].values[0];
                let [parameter, momentum] = &mut views.outs[..] else { return };
                for (i, (parameter, momentum)) in parameter.values.iter_mut().zip(&mut *momentum.values).enumerate() {
                    let sum = |group: &[View<'_>]| group.iter().map(|shard| shard.values[i]).sum::<f32>();
                    let gradient: f32 = views.ins[1..].chunks(group).map(sum).sum();
                    *momentum = 0.9 * *momentum - rate * (gradient + 1e-4 * *parameter);
                    *parameter += *momentum;
                }
            })?;
            updates.push(Update { name: name.clone(), priority, operator, sum });
        }
        let processes = processes.map(|processes| Ok::<_, Error>((processes, Array::new(&host, &[1])?))).transpose()?;

        let Batch { images: pixels, classes } = images.arrays(&host, &test)?;
        let mut arguments = parameters.clone();
        for (name, values) in [("data", pixels), ("label", classes)] {
            arguments.insert(name.into(), values.copy_to(&runtime)?);
        }
        let tested = test.iter().map(|&number| (number, images.example(number).0.into())).collect();
        let test = Executor::bind(&[&net.output(1)], &runtime, &arguments, &Gradients::new())?;
        Ok(Self {
            options,
            net,
            runtime,
            loader,
            parameters,
            shards,
            rate,
            updates,
            losses,
            processes,
            sound,
            test,
            tested,
        })
    }

    /// Returns the number of steps in an epoch.
    pub fn steps(&self) -> usize {
        self.loader.per_epoch()
    }

    /// Returns the memory use of each shard's plan.
    pub fn memory(&self) -> MemoryUse {
        self.shards[0].executor.memory()
    }

    /// Returns the parameters' runtime and the host's, in which batches are made.
    pub fn runtimes(&self) -> [&Arc<Runtime>; 2] {
        [&self.runtime, self.losses.runtime()]
    }

    /// Pushes the operations that copy the parts of a batch to their shards.
    fn distribute(&self, batch: &Batch) -> Result<(), Error> {
        let part = self.options.batch / self.options.shards;
        let first = self.processes.as_ref().map_or(0, |(processes, _)| processes.rank() * self.shards.len());
        for (index, shard) in (first..).zip(&self.shards) {
            let range = index * part..(index + 1) * part;
            // The copies read `sound`, so they do not replace a batch whose loss is not finite: `explain` needs it.
            shard.arguments["data"].copy_after(&batch.images.slice(range.clone())?, &[&self.sound])?;
            shard.arguments["label"].copy_after(&batch.classes.slice(range)?, &[&self.sound])?;
        }
        Ok(())
    }

    /// Pushes the forward and the backward pass of all shards, and what [`finish_step`](Self::finish_step) pushes.
    /// Returns a handle to the loss.
    fn push_step(&self) -> Result<OpHandle<f32>, Error> {
        for Shard { executor, loss, .. } in &self.shards {
            executor.forward()?;
            loss.copy_from(&executor.outputs()[0])?;
        }
        self.shards.iter().try_for_each(|shard| shard.executor.backward())?;
        self.finish_step()
    }

    /// Pushes the exchange with other processes, the loss check and the updates, and returns a handle to the loss.
    fn finish_step(&self) -> Result<OpHandle<f32>, Error> {
        let mut losses = &self.losses;
        if let Some((processes, total)) = &self.processes {
            processes.push(LOSS, i32::MAX, &self.shards.iter().map(|shard| &shard.loss).collect::<Vec<_>>())?;
            processes.pull(LOSS, i32::MAX, total)?;
            losses = total;
        }
        let loss = losses.look(CHECK, [&self.sound], |losses| {
            let loss: f32 = losses.iter().sum();
            if loss.is_finite() { Ok(loss) } else { Err(format!("the loss is {loss}").into()) }
        })?;
        for Update { name, priority, operator, sum } in &self.updates {
            if let (Some((processes, _)), Some(sum)) = (&self.processes, sum) {
                let gradients: Vec<_> = self.shards.iter().map(|shard| &shard.gradients[name].0).collect();
                processes.push(name, *priority, &gradients)?;
                processes.pull(name, *priority, sum)?;
            }
            operator.push()?;
        }
        Ok(loss)
    }

    /// Trains for one epoch and returns the mean loss. After each step, calls `done` with the step's number and loss.
    ///
    /// # Errors
    /// A loss is not finite (the error names the step and, if it is found, the first operator whose result is not
    /// finite); an operation has failed; all batches were used; the engine refuses a push.
    pub fn epoch(&mut self, epoch: usize, mut done: impl FnMut(usize, f32)) -> Result<f32, Error> {
        let progress = epoch as f32 / self.options.epochs as f32;
        self.rate.fill(self.options.rate * 0.5 * (1.0 + (std::f32::consts::PI * progress).cos()))?;
        let mut pending: VecDeque<OpHandle<f32>> = VecDeque::new();
        let (mut sum, mut pushed) = (0.0, 0);
        for step in 0..self.steps() {
            while pushed < self.steps().min(step + WINDOW) {
                let batch = self.loader.next()?.ok_or_else(|| Error::Use("all batches were used".into()))?;
                self.distribute(&batch)?;
                pending.push_back(self.push_step()?);
                pushed += 1;
            }
            let Some(loss) = pending.pop_front() else { break };
            let loss = loss.wait().map_err(|error| self.explain(epoch, step, error))?;
            sum += loss;
            done(step, loss);
        }
        Ok(sum / self.steps() as f32)
    }

    /// Trains for all epochs and returns the bits of all parameters.
    ///
    /// # Errors
    /// The errors of [`epoch`](Self::epoch).
    pub fn train(&mut self) -> Result<Vec<u32>, Error> {
        (0..self.options.epochs).try_for_each(|epoch| self.epoch(epoch, |_, _| {}).map(drop))?;
        self.bits()
    }

    /// Returns the error for a failed step. For a non-finite loss, searches for the first operator whose result is not
    /// finite, by computing the loss again. The step's updates and the copies of later batches did not run, so the
    /// parameters and the batch are those of the loss. But dropout draws other numbers, so the search may find nothing;
    /// nor does it find a result of another process.
    fn explain(&self, epoch: usize, step: usize, error: WaitError) -> Error {
        if !matches!(&error, WaitError::Failed(failed) if failed.name() == CHECK) {
            return Error::Wait(error);
        }
        let look = || {
            // Because of the failure, the later steps that are already pushed are skipped, and this wait returns an
            // error.
            let _ = self.runtime.engine().wait_for_all();
            let arrays = self.parameters.values().chain(self.shards.iter().flat_map(|shard| shard.arguments.values()));
            for array in arrays {
                self.runtime.engine().clear_error(array.chunk().token())?;
            }
            for shard in &self.shards {
                let mut tape = Tape::new();
                tape.apply_all(&self.net, &shard.arguments)?;
                if let Some(name) = tape.first_not_finite()? {
                    return Ok::<_, Error>(format!("that of `{name}`"));
                }
            }
            Ok("unknown: dropout now draws other numbers, or the result is in another process".into())
        };
        let first = look().unwrap_or_else(|error| format!("unknown ({error})"));
        let first = format!("computed again, the first result that is not finite is {first}");
        Error::Loss(format!("epoch {}, step {}: {error}; {first}", epoch + 1, step + 1))
    }

    /// Returns the number, true class and predicted class of each test image.
    ///
    /// # Errors
    /// An operation has failed.
    pub fn test(&self) -> Result<Vec<(usize, usize, usize)>, Error> {
        self.test.forward()?;
        let found = self.test.outputs()[0].argmax()?.to_vec()?;
        Ok(self.tested.iter().zip(found).map(|(&(number, truth), found)| (number, truth, found as usize)).collect())
    }

    /// Returns the bits of all parameters.
    ///
    /// # Errors
    /// An operation has failed.
    pub fn bits(&self) -> Result<Vec<u32>, Error> {
        let mut bits = Vec::new();
        for array in self.parameters.values() {
            bits.extend(array.to_vec()?.into_iter().map(f32::to_bits));
        }
        Ok(bits)
    }

    /// Returns the mean duration of a step in seconds: first with the executors, then with a tape. The steps are real:
    /// they change the parameters.
    ///
    /// # Errors
    /// An operation has failed.
    pub fn compare(&self, steps: u32) -> Result<[f64; 2], Error> {
        let mut seconds = [0.0; 2];
        for (kind, seconds) in seconds.iter_mut().enumerate() {
            // The first step is not counted, since it allocates memory that the others reuse.
            for step in 0..=steps {
                let start = Instant::now();
                let loss = if kind == 0 { self.push_step()? } else { self.push_imperative_step()? };
                loss.wait()?;
                self.runtime.engine().wait_for_all()?;
                *seconds += if step == 0 { 0.0 } else { start.elapsed().as_secs_f64() / f64::from(steps) };
            }
        }
        Ok(seconds)
    }

    /// Like [`push_step`](Self::push_step), but with arrays and a tape instead of the executors.
    fn push_imperative_step(&self) -> Result<OpHandle<f32>, Error> {
        for shard in &self.shards {
            let mut tape = Tape::new();
            shard.loss.copy_from(&tape.apply_all(&self.net, &shard.arguments)?)?;
            let pairs: Vec<_> = self.parameters.iter().map(|(name, array)| (array, &shard.gradients[name].0)).collect();
            tape.backward(&pairs)?;
        }
        self.finish_step()
    }
}
