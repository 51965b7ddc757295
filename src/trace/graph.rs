//! Searches in graphs of operations.

use std::collections::VecDeque;

/// Returns the nodes of a cycle, in order, if there is one. `edges` returns the nodes to which the edges of a node
/// lead. Visits each edge at most once.
pub(super) fn find_cycle<'g>(nodes: usize, edges: impl Fn(usize) -> &'g [usize]) -> Option<Vec<usize>> {
    #[derive(Clone, Copy, PartialEq)]
    enum State {
        New,
        Open,
        Done,
    }
    let mut states = vec![State::New; nodes];
    for first in 0..nodes {
        if states[first] != State::New {
            continue;
        }
        // The walk has its own stack, since a chain may be long: each entry is a node and the number of its next edge.
        let mut path = vec![(first, 0)];
        states[first] = State::Open;
        while let Some((node, edge)) = path.last_mut() {
            let Some(&next) = edges(*node).get(*edge) else {
                states[*node] = State::Done;
                path.pop();
                continue;
            };
            *edge += 1;
            match states[next] {
                State::New => {
                    states[next] = State::Open;
                    path.push((next, 0));
                }
                State::Open => {
                    let start = path.iter().position(|&(node, _)| node == next)?;
                    return Some(path[start..].iter().map(|&(node, _)| node).collect());
                }
                State::Done => {}
            }
        }
    }
    None
}

/// Returns a shortest path from one of `starts` to a node that is `wanted`, including both ends, if there is one.
/// `edges` returns the nodes to which the edges of a node lead. Visits each node at most once.
pub(super) fn nearest<'g>(
    nodes: usize,
    starts: &[usize],
    edges: impl Fn(usize) -> &'g [usize],
    wanted: impl Fn(usize) -> bool,
) -> Option<Vec<usize>> {
    // For each node that was seen, the node before it; for a start, the start itself.
    let mut before: Vec<Option<usize>> = vec![None; nodes];
    let mut queue = VecDeque::new();
    for &start in starts {
        if before[start].is_none() {
            before[start] = Some(start);
            queue.push_back(start);
        }
    }
    while let Some(node) = queue.pop_front() {
        if wanted(node) {
            let mut path = vec![node];
            while let (Some(&last), Some(step)) = (path.last(), path.last().and_then(|&last| before[last])) {
                if step == last {
                    break;
                }
                path.push(step);
            }
            path.reverse();
            return Some(path);
        }
        for &next in edges(node) {
            if before[next].is_none() {
                before[next] = Some(node);
                queue.push_back(next);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges<'g>(graph: &'g [Vec<usize>]) -> impl Fn(usize) -> &'g [usize] {
        |node| &graph[node]
    }

    #[test]
    fn a_cycle_is_found_if_there_is_one() {
        let line = vec![vec![1], vec![2, 3], vec![3], vec![]];
        assert_eq!(find_cycle(4, edges(&line)), None);
        let loops = vec![vec![1], vec![2], vec![3], vec![1]];
        assert_eq!(find_cycle(4, edges(&loops)), Some(vec![1, 2, 3]));
        let itself = vec![vec![], vec![1]];
        assert_eq!(find_cycle(2, edges(&itself)), Some(vec![1]));
    }

    #[test]
    fn the_nearest_node_is_found_by_a_shortest_path() {
        let graph = vec![vec![1, 4], vec![2], vec![3], vec![], vec![3]];
        assert_eq!(nearest(5, &[0], edges(&graph), |node| node == 3), Some(vec![0, 4, 3]));
        assert_eq!(nearest(5, &[0], edges(&graph), |node| node == 0), Some(vec![0]));
        assert_eq!(nearest(5, &[3], edges(&graph), |node| node == 0), None);
        let loops = vec![vec![1], vec![0]];
        assert_eq!(nearest(2, &[0, 1], edges(&loops), |_| false), None);
    }

    #[test]
    fn a_chain_of_a_million_nodes_does_not_overflow_the_stack() {
        let nodes = 1_000_000;
        let graph: Vec<Vec<usize>> =
            (0..nodes).map(|node| if node + 1 < nodes { vec![node + 1] } else { vec![] }).collect();
        assert_eq!(find_cycle(nodes, edges(&graph)), None);
        assert_eq!(nearest(nodes, &[0], edges(&graph), |node| node + 1 == nodes).map(|path| path.len()), Some(nodes));
    }
}
