//! Searches in graphs of operations.

use std::{
    collections::{HashMap, VecDeque},
    ops::ControlFlow,
};

/// Walks a graph depth-first and calls `found` with each cycle closed by an edge back to the walk's own path: the nodes
/// of the path from the head, to which that edge leads, to the last. `edges` returns a node's successors. Visits each
/// edge at most once. Returns the value with which `found` breaks.
///
/// Every cycle contains a head: the first of its nodes that the walk reaches.
fn each_loop<'g, B>(
    nodes: usize,
    edges: impl Fn(usize) -> &'g [usize],
    mut found: impl FnMut(&[(usize, usize)]) -> ControlFlow<B>,
) -> Option<B> {
    #[derive(Clone, Copy)]
    enum NodeState {
        New,
        /// The node is on the path, behind this many others.
        Open(usize),
        Done,
    }
    let mut states = vec![NodeState::New; nodes];
    for first in 0..nodes {
        if !matches!(states[first], NodeState::New) {
            continue;
        }
        // The walk has its own stack, since a chain may be long: each entry is a node and the number of its next edge.
        let mut path = vec![(first, 0)];
        states[first] = NodeState::Open(0);
        while let Some((node, edge)) = path.last_mut() {
            let Some(&next) = edges(*node).get(*edge) else {
                states[*node] = NodeState::Done;
                path.pop();
                continue;
            };
            *edge += 1;
            match states[next] {
                NodeState::New => {
                    states[next] = NodeState::Open(path.len());
                    path.push((next, 0));
                }
                NodeState::Open(start) => {
                    if let ControlFlow::Break(result) = found(&path[start..]) {
                        return Some(result);
                    }
                }
                NodeState::Done => {}
            }
        }
    }
    None
}

/// Returns a cycle's nodes in order, if there is a cycle. `edges` returns a node's successors. Visits each edge at most
/// once.
pub fn find_cycle<'g>(nodes: usize, edges: impl Fn(usize) -> &'g [usize]) -> Option<Vec<usize>> {
    each_loop(nodes, edges, |path| ControlFlow::Break(path.iter().map(|&(node, _)| node).collect()))
}

/// Returns a short cycle's nodes in order, if there is a cycle. `edges` returns a node's successors.
///
/// The cycle is a shortest one if a depth-first walk finds at most `max_heads` nodes at which a cycle begins. If there
/// are more, the search is limited to those with the shortest cycles in the walk. It visits each edge at most
/// `max_heads + 1` times.
pub fn short_cycle<'g>(nodes: usize, edges: impl Fn(usize) -> &'g [usize], max_heads: usize) -> Option<Vec<usize>> {
    // For each head, the length of the shortest cycle that the walk has found there.
    let mut lengths: HashMap<usize, usize> = HashMap::new();
    let _: Option<()> = each_loop(nodes, &edges, |path| {
        let length = lengths.entry(path[0].0).or_insert(usize::MAX);
        *length = path.len().min(*length);
        ControlFlow::Continue(())
    });
    let mut heads: Vec<(usize, usize)> = lengths.into_iter().map(|(head, length)| (length, head)).collect();
    heads.sort_unstable();
    let cycles = heads.iter().take(max_heads).filter_map(|&(_, head)| {
        let back = nearest(nodes, edges(head), &edges, |node| node == head)?;
        // The path returns to where it began.
        Some([&[head], &back[..back.len() - 1]].concat())
    });
    cycles.min_by_key(Vec::len)
}

/// Returns a shortest path, including both endpoints, from one of `starts` to a node that is `wanted`, if such a path
/// exists. `edges` returns a node's successors. Visits each node at most once.
pub fn nearest<'g>(
    nodes: usize,
    starts: &[usize],
    edges: impl Fn(usize) -> &'g [usize],
    wanted: impl Fn(usize) -> bool,
) -> Option<Vec<usize>> {
    // For each node seen, its predecessor; for a start, the start itself.
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
    fn the_shortest_of_several_cycles_is_found() {
        let shortest = |graph: &[Vec<usize>], max| short_cycle(graph.len(), edges(graph), max);
        assert_eq!(shortest(&[vec![1], vec![]], 64), None);
        // The walk finds the cycle of four nodes first and reaches the others later.
        let apart = [vec![1], vec![2], vec![3], vec![0], vec![5], vec![4], vec![7], vec![8], vec![6]];
        assert_eq!(shortest(&apart, 64), Some(vec![4, 5]));
        assert_eq!(
            shortest(&apart, 1),
            Some(vec![4, 5]),
            "the head of the shortest known cycle was not searched first"
        );
        // The edge from 3 to 1 closes a cycle of three nodes; a shorter one through 1 uses the edge from 1 to 3, which
        // the walk finds only after 3 is done.
        let nested = [vec![1], vec![2, 3], vec![3], vec![1, 0]];
        assert_eq!(shortest(&nested, 64), Some(vec![1, 3]));
        let itself = [vec![1], vec![0, 1]];
        assert_eq!(shortest(&itself, 64), Some(vec![1]));
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
        assert_eq!(short_cycle(nodes, edges(&graph), 64), None);
        assert_eq!(nearest(nodes, &[0], edges(&graph), |node| node + 1 == nodes).map(|path| path.len()), Some(nodes));
    }
}
