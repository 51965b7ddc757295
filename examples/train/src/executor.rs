//! Executors: graphs bound to arrays. Everything is decided when a graph is bound; a training step only pushes
//! operators.
//!
//! | here | in the engine |
//! |---|---|
//! | [`Executor::bind`] | an [`Operator`](raddle::Operator) for each operation, with its variables and its function |
//! | [`Executor::forward`], [`Executor::backward`] | one push for each operator, without a wait for the operations |
//! | values that share a buffer | operations on one variable, which run in the order of their pushes |
//! | two steps in a row | pushes on the same variables: each operation of the second step waits only for what it depends on |

use std::collections::{BTreeMap, HashMap};
use std::{fmt, sync::Arc};

use crate::gradient::{self, Applied, Part};
use crate::operator::{Operator, Pass};
use crate::plan::{Use, plan};
use crate::symbol::{Graph, Symbol};
use crate::task::{Mode, Prepared, Task};
use crate::{Array, Error, Runtime, Shape, simple, volume};

/// Arrays by argument name.
pub type Arrays = BTreeMap<String, Array>;

/// The arrays that receive gradients, by argument name, and how the gradients are written.
pub type Gradients = BTreeMap<String, (Array, Mode)>;

/// Returns the array for an argument.
pub(crate) fn argument<'a>(arguments: &'a Arrays, name: &str) -> Result<&'a Array, Error> {
    arguments.get(name).ok_or_else(|| Error::key("argument without an array", name, arguments.keys()))
}

/// The planned memory of a graph's values, except the arguments and the gradients given for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// The number of values.
    pub values: usize,
    /// The total size of the values, in bytes.
    pub value_bytes: usize,
    /// The number of buffers that hold the values.
    pub buffers: usize,
    /// The total size of the buffers, in bytes.
    pub buffer_bytes: usize,
    /// The number of values written in place of an input.
    pub in_place: usize,
}

impl fmt::Display for MemoryUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { values, value_bytes, buffers, buffer_bytes, in_place } = self;
        let (value_kib, buffer_kib) = (value_bytes >> 10, buffer_bytes >> 10);
        write!(f, "{values} values of {value_kib} KiB in {buffers} buffers of {buffer_kib} KiB, {in_place} in place")
    }
}

/// A graph bound to arrays, whose operations can be pushed.
#[derive(Debug)]
pub struct Executor {
    forward: Vec<Prepared>,
    backward: Vec<Prepared>,
    outputs: Vec<Array>,
    memory: MemoryUse,
}

/// A value of the graph: the output of a node, or a gradient.
#[derive(Debug)]
struct Value {
    shape: Shape,
    /// The array, if the value is an argument, a gradient given for an argument, or the first symbol's gradient.
    array: Option<Array>,
}

/// An operation of the graph.
#[derive(Debug)]
struct Step {
    name: String,
    operator: Arc<dyn Operator>,
    pass: Pass,
    values: Use,
    temporary: usize,
}

impl Step {
    fn new(
        name: String,
        operator: Arc<dyn Operator>,
        pass: Pass,
        reads: Vec<usize>,
        writes: Vec<(Option<usize>, Mode)>,
        temporary: usize,
    ) -> Self {
        let in_place = operator.signature().in_place[pass as usize];
        Self { name, operator, pass, values: Use { reads, writes, in_place }, temporary }
    }
}

/// A graph's operations before memory is assigned.
#[derive(Debug, Default)]
struct Program {
    values: Vec<Value>,
    steps: Vec<Step>,
}

impl Program {
    fn value(&mut self, shape: &[usize], array: Option<Array>) -> usize {
        self.values.push(Value { shape: shape.into(), array });
        self.values.len() - 1
    }

    /// Adds the forward pass and returns the values of all nodes' outputs.
    fn forward(&mut self, graph: &Graph, shapes: &[Vec<Shape>], arguments: &Arrays) -> Result<Vec<Vec<usize>>, Error> {
        let mut ids: Vec<Vec<usize>> = Vec::new();
        for (node, shapes_of_node) in graph.nodes.iter().zip(shapes) {
            let Some(operator) = &node.operator else {
                let array = argument(arguments, &node.name)?.clone();
                ids.push(vec![self.value(&shapes_of_node[0], Some(array))]);
                continue;
            };
            let ins: Vec<_> = graph.inputs(shapes, node)?.into_iter().cloned().collect();
            let outs: Vec<_> = shapes_of_node.iter().map(|shape| self.value(shape, None)).collect();
            let reads = graph.inputs(&ids, node)?.into_iter().copied().collect();
            let writes = outs.iter().map(|&out| (Some(out), Mode::Write)).collect();
            let (name, temporary) = (node.name.clone(), operator.temporary(&ins));
            self.steps.push(Step::new(name, Arc::clone(operator), Pass::Forward, reads, writes, temporary));
            ids.push(outs);
        }
        Ok(ids)
    }

    /// Adds the backward pass of all steps so far, from the gradient `start` of the value `last` to the gradients of
    /// the values in `wanted`.
    fn backward(&mut self, last: usize, start: Array, wanted: &HashMap<usize, (Array, Mode)>) -> Result<(), Error> {
        let applied = |Step { operator, values, .. }: &Step| Applied {
            operator: Arc::clone(operator),
            ins: values.reads.clone(),
            // `drop_unused` removes outputs only later.
            out: values.writes[0].0.unwrap_or_default(),
        };
        let applied: Vec<_> = self.steps.iter().map(applied).collect();
        let needed = gradient::needed(&applied, wanted.keys().copied().collect());
        let start = self.value(&Shape::from(start.shape()), Some(start));
        let new = |index: usize, place: usize, is_own: bool| {
            let value = applied[index].ins[place];
            let given = wanted.get(&value).filter(|_| is_own).cloned();
            let (array, mode) = given.map_or((None, Mode::Write), |(array, mode)| (Some(array), mode));
            let shape = self.values[value].shape.clone();
            Ok((self.value(&shape, array), mode))
        };
        let parts = gradient::backward(&applied, &needed, [(last, start)].into(), new)?;
        for Part { index, gradient, writes, sums } in parts {
            let Step { name, operator, values, temporary, .. } = &self.steps[index];
            let outs: Vec<usize> = values.writes.iter().filter_map(|(value, _)| *value).collect();
            let reads = operator.signature().backward_reads(gradient, &values.reads, &outs);
            let (name, operator, temporary) = (format!("{name} backward"), Arc::clone(operator), *temporary);
            let sum_name = format!("{name}, sum");
            self.steps.push(Step::new(name, operator, Pass::Backward, reads, writes, temporary));
            for (sum, other) in sums {
                let (add, writes) = (Arc::new(simple::ADD.with(0.0)), vec![(Some(sum), Mode::InPlace)]);
                self.steps.push(Step::new(sum_name.clone(), add, Pass::Forward, vec![sum, other], writes, 0));
            }
        }
        Ok(())
    }

    /// Removes outputs that nothing reads.
    fn drop_unused(&mut self, kept: &[usize]) {
        let mut used: Vec<bool> = self.values.iter().map(|value| value.array.is_some()).collect();
        kept.iter().for_each(|&value| used[value] = true);
        self.steps.iter().flat_map(|step| &step.values.reads).for_each(|&value| used[value] = true);
        for write in self.steps.iter_mut().flat_map(|step| &mut step.values.writes) {
            if write.0.is_some_and(|value| !used[value]) {
                *write = (None, Mode::Null);
            }
        }
    }

    /// Decides which values share memory, and returns all values' arrays.
    fn allocate(&mut self, runtime: &Arc<Runtime>, kept: &[usize]) -> Result<(Vec<Option<Array>>, MemoryUse), Error> {
        let size = |value: &Value| value.array.is_none().then(|| volume(&value.shape));
        let sizes: Vec<_> = self.values.iter().map(size).collect();
        let plan = plan(&sizes, self.steps.iter().map(|step| &step.values), kept);
        plan.in_place.iter().for_each(|&(step, _)| self.steps[step].values.writes[0].1 = Mode::InPlace);
        let chunks = plan.buffers.iter().map(|&size| runtime.allocate(size)).collect::<Result<Vec<_>, _>>()?;
        let place = |(value, buffer): (&Value, &Option<usize>)| {
            let planned = buffer.map(|buffer| Array::within(runtime, &chunks[buffer], &value.shape));
            value.array.clone().or(planned)
        };
        let arrays = self.values.iter().zip(&plan.buffer_of).map(place).collect();
        let planned = || sizes.iter().zip(&plan.buffer_of).filter(|(_, buffer)| buffer.is_some());
        let memory = MemoryUse {
            values: planned().count(),
            value_bytes: 4 * planned().filter_map(|(size, _)| *size).sum::<usize>(),
            buffers: plan.buffers.len(),
            buffer_bytes: 4 * plan.buffers.iter().sum::<usize>(),
            in_place: plan.in_place.len(),
        };
        Ok((arrays, memory))
    }
}

impl Executor {
    /// Binds the graph of some symbols to arrays for all arguments, and to arrays that receive the first symbol's
    /// gradients with [`Mode::Write`] or [`Mode::Add`]. If the first symbol does not depend on an argument, the
    /// argument's gradient is not written. Without gradients, the operators run as they do outside training.
    ///
    /// # Errors
    /// A name is not that of an argument, or an argument has no array; two nodes have the same name; a node does not
    /// have an output that is used; shapes do not match; an array is on another device; memory is exhausted, or the
    /// device is a CUDA device; the engine refuses a push or the variables.
    pub fn bind(
        symbols: &[&Symbol],
        runtime: &Arc<Runtime>,
        arguments: &Arrays,
        gradients: &Gradients,
    ) -> Result<Self, Error> {
        let graph = Graph::of(symbols);
        graph.check_names(gradients.keys())?;
        let known = arguments.iter().map(|(name, array)| (name.clone(), array.shape().to_vec())).collect();
        let shapes = graph.infer(&known)?;
        for (name, (gradient, _)) in gradients {
            Error::check_shape("gradient", name, argument(arguments, name)?.shape(), gradient.shape())?;
        }
        let training = !gradients.is_empty();
        let mut program = Program::default();
        let ids = program.forward(&graph, &shapes, arguments)?;
        let kept = symbols.iter().map(|symbol| graph.value(&ids, symbol).copied()).collect::<Result<Vec<_>, _>>()?;
        let forward_steps = program.steps.len();
        if let (true, Some(&head)) = (training, kept.first()) {
            let start = Array::full(runtime, &program.values[head].shape, 1.0)?;
            let wanted = |(node, name): (usize, &str)| Some((ids[node][0], gradients.get(name)?.clone()));
            let wanted = graph.variables().filter_map(wanted).collect();
            program.backward(head, start, &wanted)?;
        }
        program.drop_unused(&kept);
        let (arrays, memory) = program.allocate(runtime, &kept)?;

        let array = |value: usize| {
            let none = || Error::Use("a value of the graph has no memory".into());
            arrays[value].as_ref().ok_or_else(none)
        };
        let mut operators = Vec::new();
        for step in program.steps {
            let Step { name, operator, pass, values, temporary } = step;
            let ins = values.reads.iter().map(|&value| array(value)).collect::<Result<Vec<_>, _>>()?;
            let outs = values.writes.iter().map(|&(value, mode)| Ok((value.map(array).transpose()?, mode)));
            let outs = outs.collect::<Result<Vec<_>, Error>>()?;
            let random = operator.signature().random[pass as usize];
            let task = Task { outs, temporary, random, training, ..Task::new(name, ins) };
            operators.push(task.operator(runtime, move |views| operator.run(pass, views))?);
        }
        let backward = operators.split_off(forward_steps);
        let outputs = kept.iter().map(|&value| array(value).cloned()).collect::<Result<_, _>>()?;
        Ok(Self { forward: operators, backward, outputs, memory })
    }

    /// Pushes the forward pass.
    ///
    /// # Errors
    /// The engine refuses a push.
    #[track_caller]
    pub fn forward(&self) -> Result<(), Error> {
        self.forward.iter().try_for_each(Prepared::push)
    }

    /// Pushes the backward pass.
    ///
    /// # Errors
    /// The engine refuses a push.
    #[track_caller]
    pub fn backward(&self) -> Result<(), Error> {
        self.backward.iter().try_for_each(Prepared::push)
    }

    /// Returns the arrays that hold the symbols' values, in the order of the symbols.
    pub fn outputs(&self) -> &[Array] {
        &self.outputs
    }

    /// Returns the plan's memory use.
    pub fn memory(&self) -> MemoryUse {
        self.memory
    }
}
