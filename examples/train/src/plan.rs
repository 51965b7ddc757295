//! Decides which values of a graph share memory: a value takes the buffer of another that is no longer needed, or
//! overwrites an input in place.
//!
//! The plan is made before anything runs. Values that share a buffer share its variable, so the engine preserves the
//! order: an operation that writes a buffer runs after all readers of its previous value, including those of the
//! previous training step.

/// The values used by an operation of a graph, by number.
#[derive(Debug)]
pub(crate) struct Use {
    pub(crate) reads: Vec<usize>,
    /// The values that the operation writes, each with a flag that tells whether this is its first write.
    pub(crate) writes: Vec<(usize, bool)>,
    /// Pairs of an index into `reads` and an index into `writes` whose values may share memory.
    pub(crate) in_place: Vec<(usize, usize)>,
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

/// Plans the memory of values with these sizes; those without a size are stored elsewhere. The values in `kept` are
/// needed at the end.
pub(crate) fn plan(sizes: &[Option<usize>], uses: &[Use], kept: &[usize]) -> Plan {
    let mut last_use = vec![0; sizes.len()];
    for (step, operation) in uses.iter().enumerate() {
        operation.reads.iter().for_each(|&value| last_use[value] = step);
        operation.writes.iter().for_each(|&(value, _)| last_use[value] = step);
    }
    kept.iter().for_each(|&value| last_use[value] = usize::MAX);

    let mut plan = Plan { buffer_of: vec![None; sizes.len()], ..Plan::default() };
    let mut free: Vec<usize> = Vec::new();
    for (step, operation) in uses.iter().enumerate() {
        let mut passed_on = Vec::new();
        for (place, &(value, is_first)) in operation.writes.iter().enumerate() {
            let (Some(size), true) = (sizes[value], is_first) else { continue };
            // An input that nothing needs later can be overwritten.
            let heir = operation
                .in_place
                .iter()
                .filter(|pair| pair.1 == place)
                .map(|pair| operation.reads[pair.0])
                .find(|&input| {
                    let reads = operation.reads.iter().filter(|&&read| read == input).count();
                    sizes[input] == Some(size) && last_use[input] == step && reads == 1 && !passed_on.contains(&input)
                });
            if let Some(input) = heir {
                plan.buffer_of[value] = plan.buffer_of[input];
                plan.in_place.push((step, value));
                passed_on.push(input);
                continue;
            }
            // The free buffer of the closest size. It grows if it is too small.
            let closest = (0..free.len()).min_by_key(|&place| plan.buffers[free[place]].abs_diff(size));
            let buffer = match closest {
                Some(place) => free.swap_remove(place),
                None => {
                    plan.buffers.push(0);
                    plan.buffers.len() - 1
                }
            };
            plan.buffers[buffer] = plan.buffers[buffer].max(size);
            plan.buffer_of[value] = Some(buffer);
        }
        let mut ended: Vec<usize> = operation.reads.clone();
        ended.extend(operation.writes.iter().map(|(value, _)| value));
        ended.sort_unstable();
        ended.dedup();
        ended.retain(|value| last_use[*value] == step && !passed_on.contains(value));
        free.extend(ended.iter().filter_map(|&value| plan.buffer_of[value]));
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(len: usize, in_place: bool) -> Vec<Use> {
        let in_place = if in_place { vec![(0, 0)] } else { vec![] };
        (1..len).map(|i| Use { reads: vec![i - 1], writes: vec![(i, true)], in_place: in_place.clone() }).collect()
    }

    #[test]
    fn a_chain_needs_two_buffers_or_one() {
        let sizes = [&[None][..], &[Some(10); 5]].concat();
        let planned = plan(&sizes, &chain(6, false), &[5]);
        assert_eq!((planned.buffers, planned.in_place), (vec![10, 10], vec![]));
        let planned = plan(&sizes, &chain(6, true), &[5]);
        assert_eq!((planned.buffers, planned.in_place.len()), (vec![10], 4));
    }

    #[test]
    fn a_value_that_is_read_later_keeps_its_memory() {
        let sizes = [Some(10); 4];
        let mut uses = chain(3, true);
        uses.insert(0, Use { reads: vec![], writes: vec![(0, true)], in_place: vec![] });
        uses.push(Use { reads: vec![0, 2], writes: vec![(3, true)], in_place: vec![(0, 0)] });
        let planned = plan(&sizes, &uses, &[3]);
        // Value 1 must not replace value 0, which value 3 replaces.
        assert_eq!(planned.in_place, [(2, 2), (3, 3)]);
        assert_ne!(planned.buffer_of[1], planned.buffer_of[0]);
        assert_eq!(planned.buffers, [10, 10]);
    }

    #[test]
    fn an_input_that_is_read_twice_is_not_replaced() {
        let uses = [
            Use { reads: vec![], writes: vec![(0, true)], in_place: vec![] },
            Use { reads: vec![0, 0], writes: vec![(1, true)], in_place: vec![(0, 0)] },
        ];
        let planned = plan(&[Some(4), Some(4)], &uses, &[1]);
        assert!(planned.in_place.is_empty() && planned.buffers.len() == 2);
    }
}
