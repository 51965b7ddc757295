//! Decides which values of a graph share memory: a value takes the buffer of another that is no longer needed, or
//! overwrites an input in place.
//!
//! The plan is made before anything runs. Values that share a buffer share its variable, so the engine preserves the
//! order: an operation that writes a buffer runs after all readers of its previous value, including those of the
//! previous training step.

use crate::Mode;

/// The values used by an operation of a graph, by number.
#[derive(Clone, Debug)]
pub(crate) struct Use {
    pub(crate) reads: Vec<usize>,
    /// The values that the operation writes, and how. The operation is the first to write the values with
    /// [`Mode::Write`].
    pub(crate) writes: Vec<(Option<usize>, Mode)>,
    /// Whether the first value written may replace the first one read.
    pub(crate) in_place: bool,
}

impl Use {
    fn values(&self) -> impl Iterator<Item = usize> {
        self.reads.iter().copied().chain(self.writes.iter().filter_map(|(value, _)| *value))
    }
}

/// The memory of the values.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Each value's buffer, or `None` if it is stored elsewhere.
    pub(crate) buffer_of: Vec<Option<usize>>,
    /// The sizes of the buffers.
    pub(crate) buffers: Vec<usize>,
    /// Pairs of an operation and a value that it writes in place of an input.
    pub(crate) in_place: Vec<(usize, usize)>,
}

/// Plans the memory of values with these sizes; values without a size are stored elsewhere. The values in `kept` are
/// needed until the end.
pub(crate) fn plan<'u>(sizes: &[Option<usize>], uses: impl Iterator<Item = &'u Use> + Clone, kept: &[usize]) -> Plan {
    let mut last_use = vec![0; sizes.len()];
    for (step, operation) in uses.clone().enumerate() {
        operation.values().for_each(|value| last_use[value] = step);
    }
    kept.iter().for_each(|&value| last_use[value] = usize::MAX);

    let mut plan = Plan { buffer_of: vec![None; sizes.len()], ..Plan::default() };
    let mut free: Vec<usize> = Vec::new();
    for (step, operation) in uses.enumerate() {
        let Use { reads, writes, in_place } = operation;
        let mut passed_on = None;
        for (place, &(value, mode)) in writes.iter().enumerate() {
            let (Some(value), Mode::Write) = (value, mode) else { continue };
            let Some(size) = sizes[value] else { continue };
            // An input that nothing needs later can be overwritten.
            let heir = reads.first().copied().filter(|input| {
                let is_read_once = !reads[1..].contains(input);
                *in_place && place == 0 && is_read_once && sizes[*input] == Some(size) && last_use[*input] == step
            });
            if let Some(input) = heir {
                plan.buffer_of[value] = plan.buffer_of[input];
                plan.in_place.push((step, value));
                passed_on = heir;
                continue;
            }
            // Takes the free buffer of the closest size, which grows if it is too small.
            let closest = (0..free.len()).min_by_key(|&place| plan.buffers[free[place]].abs_diff(size));
            let buffer = closest.map(|place| free.swap_remove(place)).unwrap_or_else(|| {
                plan.buffers.push(0);
                plan.buffers.len() - 1
            });
            plan.buffers[buffer] = plan.buffers[buffer].max(size);
            plan.buffer_of[value] = Some(buffer);
        }
        let mut ended: Vec<usize> = operation.values().collect();
        ended.sort_unstable();
        ended.dedup();
        ended.retain(|value| last_use[*value] == step && passed_on != Some(*value));
        free.extend(ended.iter().filter_map(|&value| plan.buffer_of[value]));
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(reads: &[usize], write: usize, in_place: bool) -> Use {
        Use { reads: reads.into(), writes: vec![(Some(write), Mode::Write)], in_place }
    }

    fn chain(len: usize, in_place: bool) -> Vec<Use> {
        (1..len).map(|i| operation(&[i - 1], i, in_place)).collect()
    }

    #[test]
    fn a_chain_needs_two_buffers_or_one() {
        let sizes = [&[None][..], &[Some(10); 5]].concat();
        let planned = plan(&sizes, chain(6, false).iter(), &[5]);
        assert_eq!((planned.buffers, planned.in_place), (vec![10, 10], vec![]));
        let planned = plan(&sizes, chain(6, true).iter(), &[5]);
        assert_eq!((planned.buffers, planned.in_place.len()), (vec![10], 4));
    }

    #[test]
    fn a_value_that_is_read_later_keeps_its_memory() {
        let sizes = [Some(10); 4];
        let mut uses = chain(3, true);
        uses.insert(0, operation(&[], 0, false));
        uses.push(operation(&[0, 2], 3, true));
        let planned = plan(&sizes, uses.iter(), &[3]);
        // Value 1 must not replace value 0, which value 3 replaces.
        assert_eq!(planned.in_place, [(2, 2), (3, 3)]);
        assert_ne!(planned.buffer_of[1], planned.buffer_of[0]);
        assert_eq!(planned.buffers, [10, 10]);
    }

    #[test]
    fn an_input_that_is_read_twice_is_not_replaced() {
        let uses = [operation(&[], 0, false), operation(&[0, 0], 1, true)];
        let planned = plan(&[Some(4), Some(4)], uses.iter(), &[1]);
        assert!(planned.in_place.is_empty() && planned.buffers.len() == 2);
    }
}
