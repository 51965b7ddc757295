//! The workloads on dagrs.

use std::sync::Arc;

use async_trait::async_trait;
use dagrs::{
    Action, Content, DefaultNode, EnvVar, Graph, InChannels, Node as _, NodeId, NodeTable, OutChannels, Output,
};

use super::{History, Runtime, track};
use crate::kernel::Work;

struct DagrsWork(Work);

#[async_trait]
impl Action for DagrsWork {
    async fn run(&self, inputs: &mut InChannels, outputs: &mut OutChannels, _: Arc<EnvVar>) -> Output {
        inputs.map(drop).await;
        self.0.run();
        outputs.broadcast(Content::new(())).await;
        Output::empty()
    }
}

/// [dagrs]: a graph of nodes connected by channels, built first and then run.
pub struct Dagrs {
    runtime: tokio::runtime::Runtime,
    table: NodeTable,
    graph: Graph,
    edges: Vec<(NodeId, NodeId)>,
    variables: Vec<History<NodeId>>,
}

impl std::fmt::Debug for Dagrs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dagrs").field("edges", &self.edges.len()).finish_non_exhaustive()
    }
}

impl Dagrs {
    /// Creates a runtime with `threads` worker threads.
    ///
    /// # Panics
    /// If the runtime cannot be created.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).build().expect("a runtime");
        Self { runtime, table: NodeTable::default(), graph: Graph::new(), edges: vec![], variables: vec![] }
    }
}

impl Runtime for Dagrs {
    fn name(&self) -> &'static str {
        "dagrs"
    }

    fn make_variables(&mut self, count: usize) {
        self.variables = vec![History::default(); count];
    }

    fn submit(&mut self, work: Work, reads: &[u32], write: Option<u32>) {
        let node = DefaultNode::with_action(String::new(), DagrsWork(work), &mut self.table);
        let new = node.id();
        self.graph.add_node(node).expect("a node");
        let edges = &mut self.edges;
        track(&mut self.variables, &new, reads, write, |&before| {
            if before != new {
                edges.push((before, new));
            }
        });
    }

    fn wait(&mut self) {
        for (from, to) in self.edges.drain(..) {
            self.graph.add_edge(from, [to]).expect("an edge");
        }
        let table = std::mem::take(&mut self.table);
        self.graph.set_env(EnvVar::new(table));
        self.runtime.block_on(self.graph.async_start()).expect("the graph should run");
        self.graph = Graph::new();
        self.variables.iter_mut().for_each(|history| *history = History::default());
    }

    /// Returns at most 2,000: the time to build and run dagrs's graphs grows superlinearly.
    fn at_most(&self, wanted: usize) -> usize {
        wanted.min(2_000)
    }
}
