//! Executors: graphs bound to arrays. Everything is decided when a graph is bound; a training step only pushes
//! operators.
//!
//! | here | in the engine |
//! |---|---|
//! | [`Executor::bind`] | an [`Operator`](raddle::Operator) for each operation, with its variables and its function |
//! | [`Executor::forward`], [`Executor::backward`] | one push for each operator; both return immediately |
//! | values that share a buffer | operations on one variable, which run in the order of their pushes |
//! | two steps in a row | pushes on the same variables: each operation of the second step waits only for what it depends on |

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    sync::Arc,
};

use crate::{
    Shape,
    array::Array,
    error::Error,
    operator::{Operator, Pass},
    plan::{Use, plan},
    runtime::Runtime,
    simple,
    symbol::{Graph, Symbol},
    task::{Mode, Prepared, Task},
    volume,
};

/// Arrays by argument name.
pub type Arrays = BTreeMap<String, Array>;

/// The arrays that receive gradients, by argument name, and how the gradients are written.
pub type Gradients = BTreeMap<String, (Array, Mode)>;

/// Returns the array for an argument.
pub(crate) fn argument<'a>(arguments: &'a Arrays, name: &str) -> Result<&'a Array, Error> {
    arguments.get(name).ok_or_else(|| Error::key("argument without an array", name, arguments.keys()))
}

/// The planned memory of non-argument values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// The number of values.
    pub values: usize,
    /// The total size of the values, in bytes.
    pub value_bytes: usize,
    /// The number of buffers holding them.
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
    /// The array, if the value is an argument or an argument's gradient.
    array: Option<Array>,
}

/// An operation of the graph.
#[derive(Clone, Debug)]
struct Step {
    name: String,
    operator: Arc<dyn Operator>,
    pass: Pass,
    reads: Vec<usize>,
    writes: Vec<(Option<usize>, Mode)>,
    temporary: usize,
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
            let ins: Vec<_> = node.ins.iter().map(|entry| shapes[entry.node][entry.output].clone()).collect();
            let outs: Vec<_> = shapes_of_node.iter().map(|shape| self.value(shape, None)).collect();
            self.steps.push(Step {
                name: node.name.clone(),
                operator: Arc::clone(operator),
                pass: Pass::Forward,
                reads: node.ins.iter().map(|entry| ids[entry.node][entry.output]).collect(),
                writes: outs.iter().map(|&out| (Some(out), Mode::Write)).collect(),
                temporary: operator.temporary(&ins),
            });
            ids.push(outs);
        }
        Ok(ids)
    }

    /// Adds the backward pass of all steps so far, from the gradient `start` of the value `last` to the gradients of
    /// the values in `wanted`.
    fn backward(&mut self, last: usize, start: Array, wanted: &HashMap<usize, (Array, Mode)>) {
        let mut needed: HashSet<usize> = wanted.keys().copied().collect();
        for Step { operator, reads, writes, .. } in &self.steps {
            if reads[..operator.signature().differentiable].iter().any(|value| needed.contains(value)) {
                needed.extend(writes[0].0);
            }
        }
        let start = self.value(&Shape::from(start.shape()), Some(start));
        let mut gradient_of = HashMap::from([(last, start)]);
        for index in (0..self.steps.len()).rev() {
            let Step { name, operator, reads: ins, writes: outs, temporary, .. } = self.steps[index].clone();
            let outs: Vec<usize> = outs.iter().filter_map(|(value, _)| *value).collect();
            let Some(&gradient) = gradient_of.get(&outs[0]).filter(|_| needed.contains(&outs[0])) else { continue };
            let (mut writes, mut sums) = (Vec::new(), Vec::new());
            for (place, value) in ins.iter().enumerate() {
                if place >= operator.signature().differentiable || !needed.contains(value) {
                    writes.push((None, Mode::Null));
                    continue;
                }
                let shape = self.values[*value].shape.clone();
                writes.push(match gradient_of.get(value) {
                    // If an operation uses the value twice, a separate operation adds the second gradient.
                    Some(&known) if ins[..place].contains(value) => {
                        let other = self.value(&shape, None);
                        sums.push((known, other));
                        (Some(other), Mode::Write)
                    }
                    Some(&known) => (Some(known), Mode::Add),
                    None => {
                        let given = wanted.get(value).map(|(array, mode)| (Some(array.clone()), *mode));
                        let (array, mode) = given.unwrap_or((None, Mode::Write));
                        let new = self.value(&shape, array);
                        gradient_of.insert(*value, new);
                        (Some(new), mode)
                    }
                });
            }
            let (pass, reads) = (Pass::Backward, operator.signature().backward_reads(gradient, &ins, &outs));
            let name = format!("{name} backward");
            let sum_name = format!("{name}, sum");
            self.steps.push(Step { name, operator, pass, reads, writes, temporary });
            for (sum, other) in sums {
                let operator: Arc<dyn Operator> = Arc::new(simple::ADD.operator());
                let (name, reads, writes) = (sum_name.clone(), vec![sum, other], vec![(Some(sum), Mode::InPlace)]);
                self.steps.push(Step { name, operator, pass: Pass::Forward, reads, writes, temporary: 0 });
            }
        }
    }

    /// Removes outputs that nothing reads.
    fn drop_unused(&mut self, kept: &[usize]) {
        let mut used: Vec<bool> = self.values.iter().map(|value| value.array.is_some()).collect();
        kept.iter().for_each(|&value| used[value] = true);
        self.steps.iter().flat_map(|step| &step.reads).for_each(|&value| used[value] = true);
        for write in self.steps.iter_mut().flat_map(|step| &mut step.writes) {
            if write.0.is_some_and(|value| !used[value]) {
                *write = (None, Mode::Null);
            }
        }
    }

    /// Decides which values share memory, and returns all values' arrays.
    fn allocate(&mut self, runtime: &Arc<Runtime>, kept: &[usize]) -> Result<(Vec<Option<Array>>, MemoryUse), Error> {
        let size = |value: &Value| value.array.is_none().then(|| volume(&value.shape));
        let sizes: Vec<_> = self.values.iter().map(size).collect();
        let mut uses = Vec::new();
        for step in &self.steps {
            let in_place = step.operator.signature().in_place[step.pass as usize];
            let (mut writes, mut pairs) = (Vec::new(), Vec::new());
            for (place, &(value, mode)) in step.writes.iter().enumerate() {
                let Some(value) = value else { continue };
                let of_place = in_place.iter().filter(|pair| pair.1 == place);
                pairs.extend(of_place.map(|pair| (pair.0, writes.len())));
                writes.push((value, mode == Mode::Write));
            }
            uses.push(Use { reads: step.reads.clone(), writes, in_place: pairs });
        }
        let plan = plan(&sizes, &uses, kept);
        for &(step, value) in &plan.in_place {
            let writes = self.steps[step].writes.iter_mut();
            writes.filter(|(written, _)| *written == Some(value)).for_each(|(_, mode)| *mode = Mode::InPlace);
        }
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
    /// gradients with [`Mode::Write`] or [`Mode::Add`]. Without gradients, the executor does not train.
    ///
    /// # Errors
    /// A name is not an argument, or an argument has no array; shapes do not match; an array is on another device.
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
        for (name, (array, _)) in gradients {
            if known.get(name).is_some_and(|shape| shape != array.shape()) {
                return Err(Error::shape("gradient", name, format!("{:?}", known[name]), array.shape()));
            }
        }
        let training = !gradients.is_empty();
        let mut program = Program::default();
        let ids = program.forward(&graph, &shapes, arguments)?;
        let forward_steps = program.steps.len();
        if let (true, Some(head)) = (training, graph.heads.first()) {
            let start = Array::full(runtime, &shapes[head.node][head.output], 1.0)?;
            let wanted = |(node, name): (usize, &str)| Some((ids[node][0], gradients.get(name)?.clone()));
            let wanted = graph.variables().filter_map(wanted).collect();
            program.backward(ids[head.node][head.output], start, &wanted);
        }
        let kept: Vec<usize> = graph.heads.iter().map(|head| ids[head.node][head.output]).collect();
        program.drop_unused(&kept);
        let (arrays, memory) = program.allocate(runtime, &kept)?;

        let array = |value: usize| {
            let none = || Error::Use("a value of the graph has no memory".into());
            arrays[value].as_ref().ok_or_else(none)
        };
        let mut operators = Vec::new();
        for step in program.steps {
            let ins = step.reads.iter().map(|&value| array(value)).collect::<Result<Vec<_>, _>>()?;
            let outs = step.writes.iter().map(|&(value, mode)| Ok((value.map(array).transpose()?, mode)));
            let outs = outs.collect::<Result<Vec<_>, Error>>()?;
            let Step { name, operator, temporary, .. } = step;
            let random = operator.signature().random[step.pass as usize];
            let task = Task { outs, temporary, random, training, ..Task::new(name, ins) };
            operators.push(task.operator(runtime, move |views| operator.run(step.pass, views))?);
        }
        let backward = operators.split_off(forward_steps);
        let outputs = kept.iter().map(|&value| array(value).cloned()).collect::<Result<_, _>>()?;
        Ok(Self { forward: operators, backward, outputs, memory })
    }

    /// Pushes the forward pass.
    ///
    /// # Errors
    /// The engine refuses the pushes.
    #[track_caller]
    pub fn forward(&self) -> Result<(), Error> {
        for operator in &self.forward {
            operator.push()?;
        }
        Ok(())
    }

    /// Pushes the backward pass.
    ///
    /// # Errors
    /// The engine refuses the pushes.
    #[track_caller]
    pub fn backward(&self) -> Result<(), Error> {
        for operator in &self.backward {
            operator.push()?;
        }
        Ok(())
    }

    /// Returns the arrays holding the symbols' values.
    pub fn outputs(&self) -> &[Array] {
        &self.outputs
    }

    /// Returns the plan's memory use.
    pub fn memory(&self) -> MemoryUse {
        self.memory
    }
}
