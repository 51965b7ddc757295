//! Random programs of CPU and device operations, compared with a serial model; one such program is repeated with a
//! fault at each point in turn.
//!
//! A program runs on two GPUs that pick their commands at random. Without faults, the program determines what each
//! operation sees and all values, versions and failures. With a fault, operations that succeed must still be correct,
//! and those independent of the faulty GPU must not fail.

use crate::common::shapes::*;
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use raddle::{
    Device, Engine, EngineKind, OpBuilder, OpError, OpHandle, Shutdown, Token, Var, WaitError, Write,
    error::{BoxError, Cause, DeviceError},
    gpu::{DeviceVec, GpuStream, ImportedStream, PinnedVec, SimulatedGpu},
};

use super::{builder, device, issued, kernel, random, simulated};
use crate::common::{
    Drops, KINDS, Meeting, THREADED, eventually, lock,
    program::{Access, Random, Source, fewer},
    watched,
};

// ----------------------------------------------------------------------------------------------------- programs ----

/// The place of a variable's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Cpu,
    Pinned,
    Gpu(u32),
}

const PLACES: [Place; 14] = [
    Place::Cpu,
    Place::Gpu(0),
    Place::Pinned,
    Place::Gpu(1),
    Place::Gpu(0),
    Place::Cpu,
    Place::Pinned,
    Place::Gpu(1),
    Place::Gpu(0),
    Place::Pinned,
    Place::Gpu(1),
    Place::Cpu,
    Place::Pinned,
    Place::Gpu(0),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A CPU operation, which uses values on the host. It declares device variables without using their values.
    Cpu,
    /// Like `Cpu`, but runs in a device operation's function.
    Function(u32),
    /// An asynchronous device operation, which declares its variables without using their values.
    Asynchronous(u32),
    Kernel(u32),
    CopyIn(u32),
    CopyOut(u32),
    Peer(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    Well,
    /// The function returns an error before doing anything.
    FailsBefore,
    /// The function returns an error after doing its work.
    FailsAfter,
    Panics,
}

#[derive(Clone, Debug)]
struct Operation {
    kind: Kind,
    /// Each variable appears once. Variables that are only read come first, in the order in which their values are
    /// folded.
    accesses: Vec<(usize, Access)>,
    ends: Ends,
    property: Property,
    priority: i32,
    no_skip: bool,
    /// Whether the kernel is issued on one of the program's own streams.
    imported: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Push(usize),
    WaitForVar(usize),
    WaitToRead(usize),
    WaitForHandle(usize),
    WaitForAll,
    ClearError(usize),
}

#[derive(Debug)]
struct Program {
    operations: Vec<Operation>,
    steps: Vec<Step>,
}

impl Program {
    fn generate(operations: usize, fails: bool, source: &mut impl Source) -> Self {
        let mut program = Self { operations: Vec::new(), steps: Vec::new() };
        while program.operations.len() < operations {
            let variable = source.below(PLACES.len());
            let step = match source.below(40) {
                0 => Step::WaitForVar(variable),
                1 => Step::WaitToRead(variable),
                2 if !program.operations.is_empty() => Step::WaitForHandle(source.below(program.operations.len())),
                3 if source.one_in(6) => Step::WaitForAll,
                4..=5 if fails => Step::ClearError(variable),
                _ => {
                    program.add(fails, source);
                    Step::Push(program.operations.len() - 1)
                }
            };
            program.steps.push(step);
        }
        program
    }

    fn add(&mut self, fails: bool, source: &mut impl Source) {
        let gpu = source.below(2) as u32;
        let kind = match source.below(16) {
            0..=2 => Kind::Cpu,
            3 => Kind::Function(gpu),
            4 => Kind::Asynchronous(gpu),
            5..=7 => Kind::CopyIn(gpu),
            8..=9 => Kind::CopyOut(gpu),
            10 => Kind::Peer(gpu),
            _ => Kind::Kernel(gpu),
        };
        let mut accesses = Vec::new();
        let mut name = |place: Option<Place>, access, source: &mut dyn FnMut(usize) -> usize| {
            let fits = |&variable: &usize| {
                place.is_none_or(|place| PLACES[variable] == place)
                    && accesses.iter().all(|&(other, _)| other != variable)
            };
            let all: Vec<usize> = (0..PLACES.len()).filter(fits).collect();
            if !all.is_empty() {
                accesses.push((all[source(all.len())], access));
            }
        };
        let mut below = |bound| source.below(bound);
        let write =
            |below: &mut dyn FnMut(usize) -> usize| if below(3) == 0 { Access::Overwrite } else { Access::Write };
        match kind {
            Kind::Cpu | Kind::Function(_) | Kind::Asynchronous(_) => {
                (0..below(4)).for_each(|_| name(None, Access::Read, &mut below));
                for _ in 0..1 + below(2) {
                    // An overwritten variable must receive a value, so only variables that the host can write are
                    // overwritten.
                    let place = [Some(Place::Cpu), Some(Place::Pinned), None][below(3)];
                    let access = if place.is_some() && !matches!(kind, Kind::Asynchronous(_)) {
                        write(&mut below)
                    } else {
                        Access::Write
                    };
                    name(place, access, &mut below);
                }
            }
            Kind::Kernel(gpu) => {
                (0..below(3)).for_each(|_| name(Some(Place::Gpu(gpu)), Access::Read, &mut below));
                let access = write(&mut below);
                name(Some(Place::Gpu(gpu)), access, &mut below);
            }
            Kind::CopyIn(gpu) => {
                name(Some(Place::Pinned), Access::Read, &mut below);
                name(Some(Place::Gpu(gpu)), Access::Overwrite, &mut below);
            }
            Kind::CopyOut(gpu) => {
                name(Some(Place::Gpu(gpu)), Access::Read, &mut below);
                name(Some(Place::Pinned), Access::Overwrite, &mut below);
            }
            Kind::Peer(gpu) => {
                name(Some(Place::Gpu(1 - gpu)), Access::Read, &mut below);
                name(Some(Place::Gpu(gpu)), Access::Overwrite, &mut below);
            }
        }
        let may_fail = fails && matches!(kind, Kind::Cpu | Kind::Function(_) | Kind::Kernel(_));
        let ends = match below(20) {
            0 if may_fail => Ends::FailsBefore,
            1 if may_fail => Ends::FailsAfter,
            2 if may_fail => Ends::Panics,
            _ => Ends::Well,
        };
        let properties =
            [Property::Normal, Property::Normal, Property::GpuPrioritized, Property::CopyToGpu, Property::CopyFromGpu];
        self.operations.push(Operation {
            kind,
            accesses,
            ends,
            property: properties[below(properties.len())],
            priority: below(7) as i32 - 3,
            no_skip: fails && below(16) == 0,
            imported: below(4) == 0,
        });
    }
}

impl Operation {
    fn gpu(&self) -> Option<u32> {
        match self.kind {
            Kind::Cpu => None,
            Kind::Function(gpu) | Kind::Asynchronous(gpu) | Kind::Kernel(gpu) => Some(gpu),
            Kind::CopyIn(gpu) | Kind::CopyOut(gpu) | Kind::Peer(gpu) => Some(gpu),
        }
    }

    fn is_copy(&self) -> bool {
        matches!(self.kind, Kind::CopyIn(_) | Kind::CopyOut(_) | Kind::Peer(_))
    }

    /// Returns whether the operation uses the value of a variable at `place` instead of only declaring the variable.
    fn uses(&self, place: Place) -> bool {
        match self.kind {
            Kind::Cpu | Kind::Function(_) => !matches!(place, Place::Gpu(_)),
            Kind::Asynchronous(_) => false,
            _ => true,
        }
    }

    fn of(&self, place: Place, is_read: bool) -> impl Iterator<Item = (usize, Access)> + '_ {
        let wanted = move |&(variable, access): &(usize, Access)| {
            PLACES[variable] == place && (access == Access::Read) == is_read
        };
        self.accesses.iter().copied().filter(wanted)
    }
}

// -------------------------------------------------------------------------------------------------- arithmetic ----

const FACTOR: u64 = 6_364_136_223_846_793_005;

fn first_value(variable: usize) -> u64 {
    (variable as u64 + 1).wrapping_mul(FACTOR)
}

fn fold(seen: u64, value: u64) -> u64 {
    seen.wrapping_mul(FACTOR).wrapping_add(value)
}

fn begin(id: usize) -> u64 {
    id as u64 + 1
}

// --------------------------------------------------------------------------------------------------- the model ----

#[derive(Debug)]
struct Model {
    values: Vec<u64>,
    versions: Vec<u64>,
    /// For each variable, the operation that caused its failure, if the variable has failed.
    failed: Vec<Option<usize>>,
    /// What each operation saw, or the operation that caused its failure.
    results: Vec<Result<u64, usize>>,
    /// The operations whose failures have not been reported yet.
    unknown: BTreeSet<usize>,
}

impl Model {
    fn new() -> Self {
        Self {
            values: (0..PLACES.len()).map(first_value).collect(),
            // The first operation on each variable has written the variable's first value.
            versions: vec![1; PLACES.len()],
            failed: vec![None; PLACES.len()],
            results: Vec::new(),
            unknown: BTreeSet::new(),
        }
    }

    fn run(&mut self, id: usize, operation: &Operation) {
        let mut sorted = operation.accesses.clone();
        sorted.sort_unstable_by_key(|&(variable, _)| variable);
        let cause = sorted.iter().filter(|&&(_, access)| access != Access::Overwrite);
        let cause = cause.filter_map(|&(variable, _)| self.failed[variable]).next();
        if let (Some(cause), false) = (cause, operation.no_skip) {
            self.fail(&sorted, cause);
            self.results.push(Err(cause));
            return;
        }
        let mut seen = begin(id);
        let runs = !matches!(operation.ends, Ends::FailsBefore);
        if runs {
            for &(variable, access) in &operation.accesses {
                if operation.uses(PLACES[variable]) && access != Access::Overwrite {
                    seen = fold(seen, self.values[variable]);
                }
            }
            for &(variable, access) in &operation.accesses {
                if operation.uses(PLACES[variable]) && access != Access::Read {
                    self.values[variable] =
                        if operation.is_copy() { self.values[operation.accesses[0].0] } else { fold(seen, 1) };
                }
            }
        }
        if operation.ends != Ends::Well {
            self.unknown.insert(id);
            self.fail(&sorted, id);
            self.results.push(Err(id));
            return;
        }
        self.results.push(Ok(seen));
        for &(variable, access) in &sorted {
            if access != Access::Read {
                self.versions[variable] += 1;
            }
            if access == Access::Overwrite {
                self.clear(variable);
            }
        }
    }

    fn clear(&mut self, variable: usize) {
        if let Some(failure) = self.failed[variable].take() {
            self.unknown.remove(&failure);
        }
    }

    /// Records that `result` was reported.
    fn note_reported(&mut self, result: Result<u64, usize>) -> Result<u64, usize> {
        result.inspect_err(|failure| _ = self.unknown.remove(failure))
    }

    fn fail(&mut self, accesses: &[(usize, Access)], cause: usize) {
        for &(variable, access) in accesses {
            match access {
                Access::Read => {}
                Access::Overwrite => self.failed[variable] = Some(cause),
                _ => _ = self.failed[variable].get_or_insert(cause),
            }
        }
    }
}

// ----------------------------------------------------------------------------------------------------- the run ----

enum Handle {
    Cpu(Var<u64>),
    Pinned(Var<PinnedVec<u64>>),
    Gpu(Var<DeviceVec<u64>>),
}

impl Handle {
    fn token(&self) -> &Token {
        match self {
            Self::Cpu(var) => var.token(),
            Self::Pinned(var) => var.token(),
            Self::Gpu(var) => var.token(),
        }
    }

    fn cpu(&self) -> &Var<u64> {
        let Self::Cpu(var) = self else { unreachable!("the program should know the places") };
        var
    }

    fn pinned(&self) -> &Var<PinnedVec<u64>> {
        let Self::Pinned(var) = self else { unreachable!("the program should know the places") };
        var
    }

    fn gpu(&self) -> &Var<DeviceVec<u64>> {
        let Self::Gpu(var) = self else { unreachable!("the program should know the places") };
        var
    }
}

fn mutates<T: Send + 'static>(var: &Var<T>, access: Access) -> Write<'_, T> {
    if access == Access::Overwrite { var.overwrite() } else { var.write() }
}

/// A fault of GPU 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    FailAt(u64),
    RefuseAt(u64),
    /// The GPU is lost before the push with this number.
    LoseAfter(usize),
}

/// A function that issues a kernel on a stream.
type Issue<'a> = Box<dyn FnOnce(&mut GpuStream) -> Result<(), DeviceError> + 'a>;

struct Runner {
    program: Arc<Program>,
    engine: Engine,
    gpus: [SimulatedGpu; 2],
    /// One imported stream for each GPU.
    own: [Arc<Mutex<ImportedStream>>; 2],
    variables: Vec<Handle>,
    handles: Vec<Option<OpHandle<u64>>>,
    drops: Drops,
}

impl Runner {
    fn new(program: &Arc<Program>, kind: EngineKind, seed: u64) -> Self {
        let gpus = [random(seed), random(seed ^ 0xFF)];
        let own = gpus.each_ref().map(|gpu| ImportedStream::simulated(gpu).expect("the device should be sound"));
        let own = own.map(|own| Arc::new(Mutex::new(own)));
        let engine = builder(kind).gpu(gpus[0].clone()).gpu(gpus[1].clone()).build().expect("an engine");
        let variables = PLACES.iter().enumerate().map(|(variable, &place)| {
            let value = first_value(variable);
            let fill = |gpu| {
                let host = engine.pinned_var(Device::Gpu(gpu), 1).expect("there should be memory");
                engine.op("first").push(host.write(), move |host| host[0] = value).expect("the engine should be open");
                host
            };
            match place {
                Place::Cpu => {
                    let var = engine.var(0);
                    engine.op("first").push(var.write(), move |var| *var = value).expect("the engine should be open");
                    Handle::Cpu(var)
                }
                Place::Pinned => Handle::Pinned(fill(0)),
                Place::Gpu(gpu) => {
                    let (host, context) = (fill(gpu), Device::Gpu(gpu));
                    let var = engine.device_var(context, 1).expect("there should be memory");
                    engine.op("first").on(context).copy_to_device(&host, &var).expect("the engine should be open");
                    Handle::Gpu(var)
                }
            }
        });
        let variables = variables.collect();
        engine.wait_for_all().expect("nothing should have failed so far");
        Self { program: Arc::clone(program), engine, gpus, own, variables, handles: Vec::new(), drops: Drops::new() }
    }

    fn push(&self, id: usize) -> Option<OpHandle<u64>> {
        let operation = &self.program.operations[id];
        let mut op = self.engine.op(format!("#{id}")).priority(operation.priority);
        if operation.no_skip {
            op = op.run_always();
        }
        if let Some(gpu) = operation.gpu() {
            op = op.on(Device::Gpu(gpu));
        }
        // Copies have their own lanes unless another property is set.
        if !operation.is_copy() || operation.property != Property::Normal {
            op = op.kind(operation.property);
        }
        for &(variable, access) in &operation.accesses {
            if !operation.uses(PLACES[variable]) {
                let token = [self.variables[variable].token()];
                op = if access == Access::Read { op.reads(token) } else { op.writes(token) };
            }
        }
        let life = self.drops.make();
        let nth = |index: usize| &self.variables[operation.accesses[index].0];
        match operation.kind {
            Kind::Cpu | Kind::Function(_) => return Some(self.push_on_host(id, op)),
            Kind::Kernel(_) => return Some(self.push_kernel(id, op)),
            Kind::Asynchronous(_) => {
                let elsewhere = operation.priority > 0;
                op.push_async_any(raddle::cx(), move |_, done| {
                    life.touch();
                    if elsewhere {
                        thread::spawn(move || done.complete());
                    } else {
                        done.complete();
                    }
                })
            }
            Kind::CopyIn(_) => op.copy_to_device(nth(0).pinned(), nth(1).gpu()),
            Kind::CopyOut(_) => op.copy_from_device(nth(0).gpu(), nth(1).pinned()),
            Kind::Peer(_) => op.copy_peer(nth(0).gpu(), nth(1).gpu()),
        }
        .expect("the engine should be open");
        None
    }

    fn push_on_host(&self, id: usize, op: OpBuilder<'_>) -> OpHandle<u64> {
        let operation = &self.program.operations[id];
        let (program, life) = (Arc::clone(&self.program), self.drops.make());
        let of =
            |place, is_read| operation.of(place, is_read).map(|(variable, access)| (&self.variables[variable], access));
        let accesses = (
            of(Place::Cpu, true).map(|(var, _)| var.cpu().read()).collect::<Vec<_>>(),
            of(Place::Pinned, true).map(|(var, _)| var.pinned().read()).collect::<Vec<_>>(),
            of(Place::Cpu, false).map(|(var, access)| mutates(var.cpu(), access)).collect::<Vec<_>>(),
            of(Place::Pinned, false).map(|(var, access)| mutates(var.pinned(), access)).collect::<Vec<_>>(),
        );
        type Refs<'a> = (Vec<&'a u64>, Vec<&'a PinnedVec<u64>>, Vec<&'a mut u64>, Vec<&'a mut PinnedVec<u64>>);
        let run = move |(reads, pinned_reads, writes, pinned_writes): Refs<'_>| {
            life.touch();
            let operation = &program.operations[id];
            if operation.ends == Ends::FailsBefore {
                return Err(BoxError::from("as planned"));
            }
            let (mut reads, mut pinned_reads) = (reads.into_iter(), pinned_reads.into_iter());
            let (mut writes, mut pinned_writes) = (writes, pinned_writes);
            let (mut next, mut next_pinned, mut seen) = (0, 0, begin(id));
            for &(variable, access) in &operation.accesses {
                let value = match (PLACES[variable], access) {
                    (Place::Gpu(_), _) => continue,
                    (Place::Cpu, Access::Read) => *reads.next().expect("a declared read"),
                    (Place::Pinned, Access::Read) => pinned_reads.next().expect("a declared read")[0],
                    (Place::Cpu, _) => {
                        next += 1;
                        *writes[next - 1]
                    }
                    (Place::Pinned, _) => {
                        next_pinned += 1;
                        pinned_writes[next_pinned - 1][0]
                    }
                };
                if access != Access::Overwrite {
                    seen = fold(seen, value);
                }
            }
            writes.iter_mut().for_each(|value| **value = fold(seen, 1));
            pinned_writes.iter_mut().for_each(|values| values[0] = fold(seen, 1));
            match operation.ends {
                Ends::Panics => std::panic::resume_unwind(Box::new("as planned")),
                Ends::FailsAfter => Err(BoxError::from("as planned")),
                _ => Ok(seen),
            }
        };
        let pushed = match operation.kind {
            Kind::Cpu => op.submit_any(accesses, run),
            _ => op.submit_launch_any(accesses, move |_: &mut GpuStream, refs: Refs<'_>| run(refs)),
        };
        pushed.expect("the engine should be open")
    }

    fn push_kernel(&self, id: usize, op: OpBuilder<'_>) -> OpHandle<u64> {
        let operation = &self.program.operations[id];
        let (life, inner) = (self.drops.make(), self.drops.make());
        let (ends, nth) = (operation.ends, |index: usize| self.variables[operation.accesses[index].0].gpu());
        let (last, access) = operation.accesses[operation.accesses.len() - 1];
        let target = mutates(self.variables[last].gpu(), access);
        let work = move |reads: &[u64], target: &mut [u64]| {
            inner.touch();
            let seen = reads.iter().fold(begin(id), |seen, &value| fold(seen, value));
            let seen = if access == Access::Write { fold(seen, target[0]) } else { seen };
            target[0] = fold(seen, 1);
        };
        // When the function is called, the handle's value is known, but the values that the kernel will see are not.
        let end = move || {
            life.touch();
            match ends {
                Ends::Panics => std::panic::resume_unwind(Box::new("as planned")),
                Ends::FailsAfter => Err(BoxError::from("as planned")),
                _ => Ok(begin(id)),
            }
        };
        // Issues a kernel and calls `end`, on the lane's stream or on one of the program's streams.
        let own = operation.gpu().filter(|_| operation.imported).map(|gpu| Arc::clone(&self.own[gpu as usize]));
        let issue = move |stream: &mut GpuStream, kernel: Issue<'_>| {
            let issue = |stream: &mut GpuStream| {
                kernel(stream)?;
                end()
            };
            match own {
                Some(own) => stream.include(&mut lock(&own), issue)?,
                None => issue(stream),
            }
        };
        let before = move || if ends == Ends::FailsBefore { Err(BoxError::from("as planned")) } else { Ok(()) };
        let pushed = match operation.accesses.len() {
            1 => op.submit_launch_any(target, move |stream, target| {
                before()?;
                let kernel = move |target: &mut [u64]| work(&[], target);
                issue(stream, Box::new(|stream| simulated(stream).launch(Duration::ZERO, target, kernel)))
            }),
            2 => op.submit_launch_any((nth(0).read(), target), move |stream, (a, target)| {
                before()?;
                let kernel = move |(a, target): (&[u64], &mut [u64])| work(a, target);
                issue(stream, Box::new(|stream| simulated(stream).launch(Duration::ZERO, (a, target), kernel)))
            }),
            _ => op.submit_launch_any((nth(0).read(), nth(1).read(), target), move |stream, (a, b, target)| {
                before()?;
                let kernel = move |(a, b, target): (&[u64], &[u64], &mut [u64])| work(&[a[0], b[0]], target);
                issue(stream, Box::new(|stream| simulated(stream).launch(Duration::ZERO, (a, b, target), kernel)))
            }),
        };
        pushed.expect("the engine should be open")
    }

    /// Returns a variable's value, which further operations read. Returns `u64::MAX` if pinned memory for the value
    /// cannot be allocated.
    fn value(&self, variable: usize) -> Result<u64, WaitError> {
        let of_host = |host: &Var<PinnedVec<u64>>| {
            self.engine.op("look").submit(host.read(), |host| host[0]).expect("the engine should be open").wait()
        };
        match &self.variables[variable] {
            Handle::Cpu(var) => self.engine.get(var),
            Handle::Pinned(var) => of_host(var),
            Handle::Gpu(var) => {
                let Place::Gpu(gpu) = PLACES[variable] else { unreachable!("the variable should be on a GPU") };
                let context = Device::Gpu(gpu);
                let Ok(host) = self.engine.pinned_var(context, 1) else { return Ok(u64::MAX) };
                self.engine.op("download").on(context).copy_from_device(var, &host).expect("the engine should be open");
                of_host(&host)
            }
        }
    }

    fn end(self) {
        let Self { engine, variables, handles, drops, .. } = self;
        drop(handles);
        drop(variables);
        let _ = engine.wait_for_all();
        engine.shutdown(Shutdown::Drain, None).expect("the engine should end");
        drop(engine);
        eventually("functions and kernels are dropped once each", || drops.check().is_ok());
    }
}

/// Returns the number of the operation that caused a failure.
fn origin(error: &OpError) -> usize {
    let number = error.name().strip_prefix('#').and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("not a failure of the program's operations: {error}"))
}

fn shown(result: Result<u64, WaitError>) -> Result<u64, usize> {
    result.map_err(|error| match error {
        WaitError::Failed(error) => origin(&error),
        other => panic!("{other}"),
    })
}

// -------------------------------------------------------------------------------------------- without faults ----

/// Runs a program and compares all its results with the model.
fn compare(program: &Arc<Program>, kind: EngineKind, seed: u64) {
    let mut runner = Runner::new(program, kind, seed);
    let mut model = Model::new();
    let at = |what: &str| format!("{what} on the {kind} engine, seed {seed}: {program:#?}");
    let check_handle = |runner: &mut Runner, model: &mut Model, id: usize| {
        if let Some(handle) = runner.handles.get_mut(id).and_then(Option::take) {
            let expected = match (program.operations[id].kind, model.results[id]) {
                (Kind::Kernel(_), Ok(_)) => Ok(begin(id)),
                (_, result) => result,
            };
            assert_eq!(model.note_reported(shown(handle.wait())), expected, "{}", at(&format!("the handle of #{id}")));
        }
    };
    for (index, &step) in program.steps.iter().enumerate() {
        // Occasionally the devices are stalled, so that more operations are in flight at once. The naive engine would
        // hang, since it waits for each operation.
        if kind != EngineKind::Naive {
            match (index % 24, step) {
                (0, Step::Push(_)) => runner.gpus.iter().for_each(SimulatedGpu::stall),
                (1..16, Step::Push(_)) => {}
                _ => runner.gpus.iter().for_each(SimulatedGpu::resume),
            }
        }
        let what = |what: &str| at(&format!("{what} at step {index}"));
        match step {
            Step::Push(id) => {
                model.run(id, &program.operations[id]);
                let handle = runner.push(id);
                runner.handles.push(handle);
            }
            Step::WaitForVar(variable) | Step::WaitToRead(variable) => {
                let token = runner.variables[variable].token();
                let waited = match step {
                    Step::WaitForVar(_) => runner.engine.wait_for_var(token),
                    _ => runner.engine.wait_to_read(token),
                };
                let expected = model.failed[variable].map_or(Ok(0), Err);
                assert_eq!(model.note_reported(shown(waited.map(|()| 0))), expected, "{}", what("a wait"));
                assert_eq!(token.version(), model.versions[variable], "{}", what("a version"));
            }
            Step::WaitForHandle(id) => check_handle(&mut runner, &mut model, id),
            Step::WaitForAll => match runner.engine.wait_for_all() {
                Ok(()) => assert!(model.unknown.is_empty(), "{}: {:?}", what("a wait for all"), model.unknown),
                Err(error) => {
                    let failure = shown(Err(error)).expect_err("the failure should be an error");
                    assert!(model.unknown.remove(&failure), "{}: {failure}", what("a wait for all"));
                }
            },
            Step::ClearError(variable) => {
                model.clear(variable);
                runner.engine.clear_error(runner.variables[variable].token()).expect("the engine should be open");
            }
        }
    }
    runner.gpus.iter().for_each(SimulatedGpu::resume);
    for id in 0..program.operations.len() {
        check_handle(&mut runner, &mut model, id);
    }
    for variable in 0..PLACES.len() {
        let expected = model.failed[variable].map_or(Ok(model.values[variable]), Err);
        assert_eq!(shown(runner.value(variable)), expected, "{}", at(&format!("variable {variable}")));
        let token = runner.variables[variable].token();
        // A copy on another stream may have read the value before the mutation's lane has counted the mutation.
        let waited = runner.engine.wait_for_var(token).map(|()| 0);
        assert_eq!(shown(waited), expected.map(|_| 0), "{}", at(&format!("a wait for variable {variable}")));
        let version = token.version();
        assert_eq!(version, model.versions[variable], "{}", at(&format!("the version of variable {variable}")));
    }
    runner.end();
}

fn many(seeds: std::ops::Range<u64>, fails: bool) {
    watched(move || {
        for seed in seeds {
            let program = Arc::new(Program::generate(fewer(300), fails, &mut Random::new(seed)));
            for kind in KINDS {
                compare(&program, kind, seed);
            }
        }
    });
}

#[test]
fn programs_of_cpu_and_device_operations_equal_the_serial_run() {
    many(0..fewer(60) as u64, false);
}

#[test]
fn programs_of_cpu_and_device_operations_that_fail_equal_the_serial_run() {
    many(1000..1000 + fewer(60) as u64, true);
}

// ------------------------------------------------------------------------------------------------ with a fault ----

/// Asserts that a fault of GPU 0 can have caused this failure, that is, that it is a device error in an operation on
/// GPU 0.
fn assert_is_of_the_fault(program: &Program, error: &WaitError) {
    let WaitError::Failed(error) = error else { panic!("{error}") };
    let is_device = match error.cause() {
        Cause::Device(_) => true,
        Cause::Error(error) => error.is::<DeviceError>(),
        _ => false,
    };
    assert!(is_device, "{error:?}");
    // The final downloads are not operations of the program.
    if error.name() != "download" {
        let gpu = program.operations[origin(error)].gpu();
        assert_eq!(gpu, Some(0), "a failure in an operation that does not run on GPU 0: {error}");
    }
}

/// Returns whether a fault of GPU 0 can affect each operation, and the variables that the fault can leave failed.
fn exposed(program: &Program) -> (Vec<bool>, BTreeSet<usize>) {
    let (mut operations, mut variables) = (Vec::new(), BTreeSet::new());
    for operation in &program.operations {
        let named =
            |&(variable, access): &(usize, Access)| access != Access::Overwrite && variables.contains(&variable);
        let is_exposed = operation.gpu() == Some(0) || operation.accesses.iter().any(named);
        for &(variable, access) in &operation.accesses {
            match access {
                Access::Read => {}
                _ if is_exposed => _ = variables.insert(variable),
                Access::Overwrite => _ = variables.remove(&variable),
                Access::Write | Access::Commute => {}
            }
        }
        operations.push(is_exposed);
    }
    (operations, variables)
}

/// Runs only the operations of a program, with a fault. Returns whether anything failed, and the number of calls to GPU
/// 0.
fn run_with(program: &Arc<Program>, kind: EngineKind, seed: u64, fault: Fault) -> (bool, u64) {
    let mut runner = Runner::new(program, kind, seed);
    let gpu = runner.gpus[0].clone();
    let calls = || {
        let counts = gpu.counts();
        counts.copies + counts.launches + counts.marks + counts.records + counts.waits
    };
    let before = calls();
    match fault {
        Fault::FailAt(n) => gpu.fail_at(n),
        Fault::RefuseAt(n) => gpu.refuse_at(n),
        Fault::None | Fault::LoseAfter(_) => {}
    }
    let mut model = Model::new();
    let (is_exposed, exposed) = exposed(program);
    let mut failed = false;
    for (id, operation) in program.operations.iter().enumerate() {
        if kind != EngineKind::Naive && id % 24 == 4 {
            runner.gpus.iter().for_each(SimulatedGpu::stall);
        } else if id % 24 == 20 {
            runner.gpus.iter().for_each(SimulatedGpu::resume);
        }
        if fault == Fault::LoseAfter(id) {
            gpu.lose();
        }
        model.run(id, operation);
        let handle = runner.push(id);
        runner.handles.push(handle);
    }
    runner.gpus.iter().for_each(SimulatedGpu::resume);
    let at = |what: String| format!("{what} on the {kind} engine, seed {seed}, {fault:?}");
    let mut check = |result: Result<u64, WaitError>, expected: u64, may_fail: bool, what: String| match result {
        Ok(value) => assert_eq!(value, expected, "{}", at(what)),
        Err(error) => {
            assert!(may_fail && fault != Fault::None, "{}: {error}", at(what));
            assert_is_of_the_fault(program, &error);
            failed = true;
        }
    };
    for (id, &is_exposed) in is_exposed.iter().enumerate() {
        if let Some(handle) = runner.handles[id].take() {
            let saw = *model.results[id].as_ref().expect("this program should have no planned failures");
            let expected = if matches!(program.operations[id].kind, Kind::Kernel(_)) { begin(id) } else { saw };
            check(handle.wait(), expected, is_exposed, format!("the handle of #{id}"));
        }
    }
    for (variable, &place) in PLACES.iter().enumerate() {
        let token = runner.variables[variable].token();
        let waited = runner.engine.wait_for_var(token).map(|()| 0);
        let is_well = waited.is_ok();
        check(waited, 0, exposed.contains(&variable), format!("a wait for variable {variable}"));
        // After a fault, the values on GPU 0 may be unreadable.
        let unknown = place == Place::Gpu(0) && fault != Fault::None;
        match runner.value(variable) {
            Ok(u64::MAX) | Err(_) if unknown => {}
            result => check(result, model.values[variable], !is_well, format!("the value of variable {variable}")),
        }
    }
    let calls = calls() - before;
    runner.end();
    (failed, calls)
}

fn fixed() -> Arc<Program> {
    let mut program = Program::generate(60, false, &mut Random::new(77));
    program.steps.clear();
    let of = |gpu| program.operations.iter().filter(|operation| operation.gpu() == gpu).count();
    assert!(of(None) > 5 && of(Some(0)) > 15 && of(Some(1)) > 15, "a device has too few operations");
    Arc::new(program)
}

#[test]
fn a_failing_command_fails_only_its_dependents_and_nothing_hangs() {
    for kind in KINDS {
        watched(move || {
            let program = fixed();
            let (failed, _) = run_with(&program, kind, 5, Fault::None);
            assert!(!failed);
            let mut without = 0;
            for n in 1..=60 {
                let (failed, _) = run_with(&program, kind, n, Fault::FailAt(n));
                without += u64::from(!failed);
            }
            assert!((1..50).contains(&without), "{without} of 60 faults had no effect: expected some, but not most");
        });
    }
}

#[test]
fn a_refused_call_fails_one_operation_or_is_repeated() {
    for kind in KINDS {
        watched(move || {
            let program = fixed();
            let (_, calls) = run_with(&program, kind, 5, Fault::None);
            let mut failed = 0;
            for n in 1..=calls.min(120) {
                failed += u64::from(run_with(&program, kind, n, Fault::RefuseAt(n)).0);
            }
            assert!(failed > 5 && failed < calls, "{failed} runs of {calls} had failures");
        });
    }
}

#[test]
fn a_lost_device_fails_only_its_dependents_and_nothing_hangs() {
    for kind in KINDS {
        watched(move || {
            let program = fixed();
            for n in 0..program.operations.len() {
                let (failed, _) = run_with(&program, kind, n as u64, Fault::LoseAfter(n));
                assert!(failed || n > 30, "lost after {n} pushes, and nothing failed");
            }
        });
    }
}

/// Measures the time until all waits have returned. On an idle machine, it is at most five milliseconds. On a loaded
/// machine, the fastest of the rounds may take nearly fifty milliseconds.
#[test]
fn waits_return_soon_after_a_loss() {
    for kind in THREADED {
        watched(move || {
            let mut best = Duration::MAX;
            for _ in 0..10 {
                let gpu = SimulatedGpu::builder().kernel_time(Duration::from_secs(3600)).build();
                let engine = super::engine(kind, &gpu);
                let vars: Vec<_> = (0..4).map(|_| device(&engine, 1)).collect();
                vars.iter().for_each(|var| kernel(&engine, "forever", var, |_| {}));
                let looks = vars
                    .iter()
                    .map(|var| engine.op("look").submit(var.read(), |_| ()).expect("the engine should be open"));
                let looks: Vec<_> = looks.collect();
                issued(&gpu, 4, 0);
                let meeting = Meeting::new(9);
                let mut lost_at = None;
                let told: Vec<Instant> = thread::scope(|scope| {
                    let mut waiters = Vec::new();
                    for (var, look) in vars.iter().zip(looks) {
                        let (engine, meeting, other) = (&engine, &meeting, &meeting);
                        waiters.push(scope.spawn(move || {
                            meeting.join();
                            assert!(engine.wait_for_var(var).is_err());
                            Instant::now()
                        }));
                        waiters.push(scope.spawn(move || {
                            other.join();
                            assert!(look.wait().is_err());
                            Instant::now()
                        }));
                    }
                    meeting.join();
                    lost_at = Some(Instant::now());
                    gpu.lose();
                    waiters.into_iter().map(|waiter| waiter.join().expect("the waiter panicked")).collect()
                });
                let lost_at = lost_at.expect("the device should be lost");
                best = told.into_iter().map(|at| at - lost_at).max().expect("there should be waiters").min(best);
            }
            println!("{kind}: the last of eight waiters returned {best:?} after the loss");
            assert!(best < Duration::from_millis(50), "{kind}: {best:?}");
        });
    }
}
