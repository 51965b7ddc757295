//! Gradients without a graph: a tape records the applied operators and their arrays, and is read backwards.
//!
//! Each application is one push and allocates memory for its results. An [`Executor`](crate::Executor) does the same
//! work in planned memory, with operators of the engine that are created once.

use std::{collections::HashMap, sync::Arc};

use crate::executor::{Arrays, argument};
use crate::gradient::{self, Applied, Part};
use crate::operator::{Operator, invoke, invoke_backward};
use crate::symbol::{Graph, Symbol};
use crate::{Array, Error, Mode, storage::Chunk};

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

/// What identifies an array, whatever its shape: its chunk, and the start and the end of its range.
type Key = (*const Chunk, usize, usize);

fn key(array: &Array) -> Key {
    (Arc::as_ptr(array.chunk()), array.range().start, array.range().end)
}

impl Tape {
    /// Returns an empty tape.
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies an operator in training and records it. Returns its outputs without waiting for their values.
    ///
    /// # Errors
    /// The errors of [`invoke`].
    #[track_caller]
    pub fn apply(&mut self, name: &str, operator: &Arc<dyn Operator>, ins: &[&Array]) -> Result<&[Array], Error> {
        let outs = invoke(operator, ins, true)?;
        let (operator, ins) = (Arc::clone(operator), ins.iter().copied().cloned().collect());
        self.0.push(Record { name: name.into(), operator, ins, outs });
        Ok(self.0.last().map_or(&[], |record| &record.outs))
    }

    /// Applies a graph's operators to arrays, one after the other. Returns the array of the symbol's value.
    ///
    /// # Errors
    /// An argument has no array; a node does not have an output that is used; the errors of [`invoke`].
    #[track_caller]
    pub fn apply_all(&mut self, symbol: &Symbol, arguments: &Arrays) -> Result<Array, Error> {
        let graph = Graph::of(&[symbol]);
        let mut outs: Vec<Vec<Array>> = Vec::new();
        for node in &graph.nodes {
            let Some(operator) = &node.operator else {
                outs.push(vec![argument(arguments, &node.name)?.clone()]);
                continue;
            };
            let new = self.apply(&node.name, operator, &graph.inputs(&outs, node)?)?.to_vec();
            outs.push(new);
        }
        graph.value(&outs, symbol).cloned()
    }

    /// Pushes the operations that compute the gradients of the last result with respect to some arrays. `gradients`
    /// holds pairs of an array and the array that receives its gradient. If the last result does not depend on an
    /// array, the array's gradient is not written.
    ///
    /// # Errors
    /// A gradient has another shape than its array; an operator's input overlaps an array with a gradient, but is not
    /// the same range; the errors of [`invoke_backward`].
    #[track_caller]
    pub fn backward(&self, gradients: &[(&Array, &Array)]) -> Result<(), Error> {
        let Some(last) = self.0.last() else { return Ok(()) };
        for (array, gradient) in gradients {
            Error::check_shape("backward", "gradient", array.shape(), gradient.shape())?;
        }
        let targets: HashMap<Key, &Array> = gradients.iter().map(|(array, gradient)| (key(array), *gradient)).collect();
        let applied = |Record { operator, ins, outs, .. }: &Record| Applied {
            operator: Arc::clone(operator),
            ins: ins.iter().map(key).collect(),
            out: key(&outs[0]),
        };
        let applied: Vec<_> = self.0.iter().map(applied).collect();
        let needed = gradient::needed(&applied, targets.keys().copied().collect());
        let overlap = |(a, b): (&Key, &Key)| a.0 == b.0 && a.1 < b.2 && b.1 < a.2 && a != b;
        for (record, one) in self.0.iter().zip(&applied) {
            if one.differentiable().iter().any(|input| needed.iter().any(|value| overlap((input, value)))) {
                let name = &record.name;
                return Err(Error::Use(format!(
                    "`{name}`: an input is not an array with a gradient, but overlaps one"
                )));
            }
        }
        let start = Array::full(last.outs[0].runtime(), last.outs[0].shape(), 1.0)?;
        let new = |index: usize, place: usize, is_own: bool| {
            let array = &self.0[index].ins[place];
            let target = targets.get(&key(array)).filter(|_| is_own);
            let gradient =
                target.map_or_else(|| Array::new(array.runtime(), array.shape()), |&target| Ok(target.clone()));
            Ok((gradient?, Mode::Write))
        };
        for Part { index, gradient, writes, sums } in
            gradient::backward(&applied, &needed, [(key(&last.outs[0]), start)].into(), new)?
        {
            let Record { operator, ins, outs, .. } = &self.0[index];
            // An array may have been reshaped between two operators.
            let gradient = gradient.reshape(outs[0].shape())?;
            let reshape = |((gradient, mode), array): (&(Option<Array>, Mode), &Array)| {
                Ok((gradient.as_ref().map(|gradient| gradient.reshape(array.shape())).transpose()?, *mode))
            };
            let writes = writes.iter().zip(ins).map(reshape).collect::<Result<Vec<_>, Error>>()?;
            let places: Vec<_> = writes.iter().map(|(array, mode)| (array.as_ref(), *mode)).collect();
            let (ins, outs): (Vec<_>, Vec<_>) = (ins.iter().collect(), outs.iter().collect());
            invoke_backward(operator, &gradient, &ins, &outs, &places)?;
            sums.iter().try_for_each(|(sum, other)| sum.reshape(other.shape())?.add_assign(other))?;
        }
        Ok(())
    }

    /// Waits for the results, and returns the name of the first operator whose result is not finite.
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
