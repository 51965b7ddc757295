//! Symbols: graphs of operators, without values.
//!
//! ```
//! use raddle_train::{Symbol, operator::FullyConnected, simple};
//!
//! # fn main() -> Result<(), raddle_train::Error> {
//! let data = Symbol::variable("data");
//! let layer = Symbol::apply(FullyConnected { outputs: 5 }, "layer", &[&data]);
//! let net = Symbol::apply(simple::RELU.with(0.0), "active", &[&layer]);
//! assert_eq!(net.arguments(), ["data", "layer_weight", "layer_bias"]);
//! let shapes = net.infer_shapes(&[("data".into(), vec![8, 3])].into())?;
//! assert_eq!(shapes["layer_weight"], [5, 3]);
//! # Ok(())
//! # }
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::{Error, Misfit, Operator, Shape, operator::infer};

/// A node of a graph.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    /// `None` for a variable of the graph, a placeholder for an array.
    pub(crate) operator: Option<Arc<dyn Operator>>,
    pub(crate) ins: Vec<Symbol>,
}

/// An output of a node, with the graph on which it depends.
#[derive(Clone, Debug)]
pub struct Symbol {
    node: Arc<Node>,
    output: usize,
}

impl Symbol {
    /// Returns a variable of a graph: a placeholder for an array.
    pub fn variable(name: &str) -> Self {
        Self { node: Arc::new(Node { name: name.into(), operator: None, ins: Vec::new() }), output: 0 }
    }

    /// Applies an operator. Missing inputs become variables: the `weight` of `conv1` becomes `conv1_weight`.
    pub fn apply(operator: impl Operator, name: &str, ins: &[&Self]) -> Self {
        let missing = operator.signature().arguments.iter().skip(ins.len());
        let missing = missing.map(|argument| Self::variable(&format!("{name}_{argument}")));
        let ins = ins.iter().copied().cloned().chain(missing).collect();
        Self { node: Arc::new(Node { name: name.into(), operator: Some(Arc::new(operator)), ins }), output: 0 }
    }

    /// Returns another output of the same operator. If the operator does not have this output, the uses of the symbol
    /// return an error: the inference of shapes, the binding of the graph, and its application on a tape.
    pub fn output(&self, output: usize) -> Self {
        Self { output, ..self.clone() }
    }

    /// Returns the names of all variables in the order of first use.
    pub fn arguments(&self) -> Vec<String> {
        Graph::of(&[self]).variables().map(|(_, name)| name.into()).collect()
    }

    /// Infers the shapes of all variables from the shapes of some.
    ///
    /// # Errors
    /// A name in `known` is not that of a variable; two nodes have the same name; an operator has too many inputs; a
    /// node does not have an output that is used; shapes do not match; the shapes of some variables cannot be inferred.
    pub fn infer_shapes(&self, known: &BTreeMap<String, Shape>) -> Result<BTreeMap<String, Shape>, Error> {
        let graph = Graph::of(&[self]);
        let shapes = graph.infer(known)?;
        graph.value(&shapes, self)?;
        Ok(graph.variables().map(|(node, name)| (name.into(), shapes[node][0].clone())).collect())
    }
}

/// The nodes on which some symbols depend, each after its inputs.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Arc<Node>>,
    indices: HashMap<*const Node, usize>,
}

impl Graph {
    pub(crate) fn of(symbols: &[&Symbol]) -> Self {
        let mut graph = Self::default();
        symbols.iter().for_each(|symbol| graph.visit(symbol));
        graph
    }

    fn visit(&mut self, symbol: &Symbol) {
        if !self.indices.contains_key(&Arc::as_ptr(&symbol.node)) {
            symbol.node.ins.iter().for_each(|input| self.visit(input));
            self.indices.insert(Arc::as_ptr(&symbol.node), self.nodes.len());
            self.nodes.push(Arc::clone(&symbol.node));
        }
    }

    /// Returns the indices of a symbol's node and output.
    fn place(&self, symbol: &Symbol) -> (usize, usize) {
        (self.indices[&Arc::as_ptr(&symbol.node)], symbol.output)
    }

    /// Returns the value of a symbol. For each node up to the symbol's, `values` holds the values of the node's
    /// outputs.
    pub(crate) fn value<'v, T>(&self, values: &'v [Vec<T>], symbol: &Symbol) -> Result<&'v T, Error> {
        let (node, output) = self.place(symbol);
        let (name, count) = (&symbol.node.name, values[node].len());
        let problem = || format!("`{name}` has {count} outputs, numbered from 0, but output {output} is used");
        values[node].get(output).ok_or_else(|| Error::Use(problem()))
    }

    /// Returns the values of a node's inputs, like [`value`](Self::value).
    pub(crate) fn inputs<'v, T>(&self, values: &'v [Vec<T>], node: &Node) -> Result<Vec<&'v T>, Error> {
        node.ins.iter().map(|input| self.value(values, input)).collect()
    }

    /// Returns the variables: their indices among the nodes, and their names.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (usize, &str)> {
        let variables = self.nodes.iter().enumerate().filter(|(_, node)| node.operator.is_none());
        variables.map(|(index, node)| (index, node.name.as_str()))
    }

    /// Returns an error if a name is not that of a variable.
    pub(crate) fn check_names<'n>(&self, names: impl IntoIterator<Item = &'n String>) -> Result<(), Error> {
        let known: Vec<String> = self.variables().map(|(_, name)| name.into()).collect();
        match names.into_iter().find(|name| !known.contains(name)) {
            Some(key) => Err(Error::key("no such argument", key, &known)),
            None => Ok(()),
        }
    }

    /// Returns the shapes of all nodes' outputs.
    pub(crate) fn infer(&self, known: &BTreeMap<String, Shape>) -> Result<Vec<Vec<Shape>>, Error> {
        self.check_names(known.keys())?;
        let (mut shapes, mut names) = (Vec::<Vec<Option<Shape>>>::new(), HashSet::new());
        for node in &self.nodes {
            if !names.insert(&node.name) {
                return Err(Error::Use(format!("the graph has two nodes called `{}`", node.name)));
            }
            let Some(operator) = &node.operator else {
                shapes.push(vec![known.get(&node.name).cloned()]);
                continue;
            };
            let mut ins: Vec<_> = self.inputs(&shapes, node)?.into_iter().cloned().collect();
            let name = format!("{} ({})", node.name, operator.signature().name);
            let outs = infer(&**operator, &name, &mut ins)?;
            // The operator may have inferred the shapes of inputs that are variables.
            for (input, shape) in node.ins.iter().zip(ins) {
                let (node, output) = self.place(input);
                shapes[node][output] = shape;
            }
            shapes.push(outs.into_iter().map(Some).collect());
        }
        let complete = |(node, shapes): (&Arc<Node>, Vec<Option<Shape>>)| {
            let unknown = || Misfit::unknown(&node.name).of("graph");
            shapes.into_iter().map(|shape| shape.ok_or_else(unknown)).collect()
        };
        self.nodes.iter().zip(shapes).map(complete).collect()
    }
}
