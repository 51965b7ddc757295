//! The backward pass over operators that were applied one after the other, for graphs and for tapes: which gradients
//! each operator writes, and how.

use std::collections::{HashMap, HashSet};
use std::{hash::Hash, sync::Arc};

use crate::{Error, Mode, Operator};

/// An operator that was applied to values, each identified by a key.
pub(crate) struct Applied<K> {
    pub(crate) operator: Arc<dyn Operator>,
    pub(crate) ins: Vec<K>,
    /// The first output.
    pub(crate) out: K,
}

impl<K> Applied<K> {
    /// Returns the inputs with gradients.
    pub(crate) fn differentiable(&self) -> &[K] {
        &self.ins[..self.operator.signature().differentiable]
    }
}

/// Returns the values whose gradients are needed to compute those of the `wanted` values.
pub(crate) fn needed<K: Copy + Eq + Hash>(applied: &[Applied<K>], wanted: HashSet<K>) -> HashSet<K> {
    let mut needed = wanted;
    for one in applied {
        if one.differentiable().iter().any(|value| needed.contains(value)) {
            needed.insert(one.out);
        }
    }
    needed
}

/// One operator's part in the backward pass.
pub(crate) struct Part<G> {
    /// The index of the operator among those applied.
    pub(crate) index: usize,
    /// The gradient of the first output.
    pub(crate) gradient: G,
    /// The gradients of the inputs.
    pub(crate) writes: Vec<(Option<G>, Mode)>,
    /// Pairs of a gradient and another one that is to be added to it afterwards.
    pub(crate) sums: Vec<(G, G)>,
}

/// Returns the backward pass for the gradients of the values in `needed`, from the last operator to the first. `known`
/// holds the gradient of the result. `new` creates a gradient of an input, and returns it with the mode in which it is
/// written. The arguments of `new` are the index of an operator, the index of one of its inputs, and whether the
/// gradient is the input's own; if not, a separate operation later adds it to the input's own gradient.
pub(crate) fn backward<K: Copy + Eq + Hash, G: Clone>(
    applied: &[Applied<K>],
    needed: &HashSet<K>,
    mut known: HashMap<K, G>,
    mut new: impl FnMut(usize, usize, bool) -> Result<(G, Mode), Error>,
) -> Result<Vec<Part<G>>, Error> {
    let mut parts = Vec::new();
    for (index, one) in applied.iter().enumerate().rev() {
        let Some(gradient) = known.get(&one.out).filter(|_| needed.contains(&one.out)).cloned() else { continue };
        let (mut writes, mut sums) = (vec![(None, Mode::Null); one.ins.len()], Vec::new());
        for (place, value) in one.differentiable().iter().enumerate().filter(|(_, value)| needed.contains(value)) {
            let (gradient, mode) = match known.get(value) {
                // If an operator uses the value twice, a separate operation adds the second gradient.
                Some(sum) if one.ins[..place].contains(value) => {
                    let (other, mode) = new(index, place, false)?;
                    sums.push((sum.clone(), other.clone()));
                    (other, mode)
                }
                Some(sum) => (sum.clone(), Mode::Add),
                None => {
                    let (gradient, mode) = new(index, place, true)?;
                    known.insert(*value, gradient.clone());
                    (gradient, mode)
                }
            };
            writes[place] = (Some(gradient), mode);
        }
        parts.push(Part { index, gradient, writes, sums });
    }
    Ok(parts)
}
