//! Gradients without a graph: a tape records the operators applied and their arrays, and is read backwards.
//!
//! Each application is one push and allocates memory for its results. An [`Executor`](crate::Executor) does the same
//! work in planned memory, with operators created once.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use crate::{
    array::Array,
    error::Error,
    executor::{Arrays, argument},
    operator::{Operator, invoke, invoke_backward},
    storage::Chunk,
    symbol::{Graph, Symbol},
    task::Mode,
};

#[derive(Debug)]
struct Record {
    name: String,
    operator: Arc<dyn Operator>,
    ins: Vec<Array>,
    outs: Vec<Array>,
}

/// A record of applied operators.
#[derive(Debug, Default)]
pub struct Tape(Vec<Record>);

/// Returns a key that identifies an array.
fn key(array: &Array) -> (*const Chunk, usize, usize) {
    (Arc::as_ptr(array.chunk()), array.range().start, array.range().end)
}

impl Tape {
    /// Returns an empty tape.
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies an operator and returns its outputs immediately.
    ///
    /// # Errors
    /// The shapes do not match; the engine refuses the push.
    #[track_caller]
    pub fn apply(&mut self, name: &str, operator: &Arc<dyn Operator>, ins: &[&Array]) -> Result<&[Array], Error> {
        let outs = invoke(operator, ins, true)?;
        let (operator, ins) = (Arc::clone(operator), ins.iter().copied().cloned().collect());
        self.0.push(Record { name: name.into(), operator, ins, outs });
        Ok(self.0.last().map_or(&[], |record| &record.outs))
    }

    /// Applies a graph's operators to arrays, one after the other.
    ///
    /// # Errors
    /// An argument has no array; the shapes do not match; the engine refuses a push.
    #[track_caller]
    pub fn apply_all(&mut self, symbol: &Symbol, arguments: &Arrays) -> Result<Array, Error> {
        let graph = Graph::of(&[symbol]);
        let mut outs: Vec<Vec<Array>> = Vec::new();
        for node in &graph.nodes {
            let Some(operator) = &node.operator else {
                outs.push(vec![argument(arguments, &node.name)?.clone()]);
                continue;
            };
            let ins: Vec<&Array> = node.ins.iter().map(|entry| &outs[entry.node][entry.output]).collect();
            let new = self.apply(&node.name, operator, &ins)?.to_vec();
            outs.push(new);
        }
        Ok(outs[graph.heads[0].node][graph.heads[0].output].clone())
    }

    /// Writes the gradients of the last result with respect to some arrays, given as pairs of an array and its
    /// gradient.
    ///
    /// # Errors
    /// A gradient has another shape than its array; an operator's input is a part of an array with a gradient, or
    /// contains one; the engine refuses a push.
    #[track_caller]
    pub fn backward(&self, gradients: &[(&Array, &Array)]) -> Result<(), Error> {
        let Some(last) = self.0.last() else { return Ok(()) };
        if let Some((array, gradient)) = gradients.iter().find(|(array, gradient)| array.shape() != gradient.shape()) {
            return Err(Error::shape("backward", "gradient", format!("{:?}", array.shape()), gradient.shape()));
        }
        let targets: BTreeMap<_, _> = gradients.iter().map(|(array, gradient)| (key(array), *gradient)).collect();
        let mut needed: HashSet<_> = targets.keys().copied().collect();
        for record in &self.0 {
            let ins: Vec<_> = record.ins[..record.operator.signature().differentiable].iter().map(key).collect();
            let overlaps = |&(chunk, from, to): &(_, usize, usize)| {
                ins.iter()
                    .any(|&(of, start, end)| of == chunk && from < end && start < to && (from, to) != (start, end))
            };
            if needed.iter().any(overlaps) {
                let name = &record.name;
                return Err(Error::Use(format!(
                    "`{name}`: an input is not an array with a gradient, but overlaps one"
                )));
            }
            if ins.iter().any(|array| needed.contains(array)) {
                needed.insert(key(&record.outs[0]));
            }
        }
        let start = Array::full(last.outs[0].runtime(), last.outs[0].shape(), 1.0)?;
        let mut known: HashMap<_, Array> = [(key(&last.outs[0]), start)].into();
        for record in self.0.iter().rev() {
            let Some(gradient) = known.remove(&key(&record.outs[0])) else { continue };
            let (mut places, mut sums) = (Vec::new(), Vec::<(Array, Array)>::new());
            for (place, array) in record.ins.iter().enumerate() {
                let key = key(array);
                if place >= record.operator.signature().differentiable || !needed.contains(&key) {
                    places.push((None, Mode::Null));
                    continue;
                }
                let twice = record.ins[..place].iter().any(|other| self::key(other) == key);
                let new = || Array::new(array.runtime(), array.shape());
                match known.get(&key) {
                    Some(sum) if twice => {
                        let other = new()?;
                        sums.push((sum.reshape(array.shape())?, other.clone()));
                        places.push((Some(other), Mode::Write));
                    }
                    Some(sum) => places.push((Some(sum.reshape(array.shape())?), Mode::Add)),
                    None => {
                        let gradient = targets.get(&key).map_or_else(new, |target| Ok((*target).clone()))?;
                        known.insert(key, gradient.clone());
                        places.push((Some(gradient.reshape(array.shape())?), Mode::Write));
                    }
                }
            }
            let places: Vec<_> = places.iter().map(|(array, mode)| (array.as_ref(), *mode)).collect();
            let (ins, outs): (Vec<_>, Vec<_>) = (record.ins.iter().collect(), record.outs.iter().collect());
            // An array may have been reshaped between two operators.
            let gradient = gradient.reshape(record.outs[0].shape())?;
            invoke_backward(&record.operator, &gradient, &ins, &outs, &places)?;
            sums.iter().try_for_each(|(sum, other)| sum.add_assign(other))?;
        }
        Ok(())
    }

    /// Waits for the results and returns the name of the first operator with a non-finite result.
    ///
    /// # Errors
    /// An operation has failed.
    pub fn first_not_finite(&self) -> Result<Option<&str>, Error> {
        for record in &self.0 {
            if record.outs[0].to_vec()?.iter().any(|value| !value.is_finite()) {
                return Ok(Some(&record.name));
            }
        }
        Ok(None)
    }
}
