//! A build graph that grows as it runs: operations discover which other modules must be built, and push the operations
//! that build them.
//!
//! ```text
//! cargo run --example build_graph
//! ```
//!
//! Look at `build`. Its operation reads a module's source and, through `cx.engine()`, pushes the operations that build
//! the modules declared there. The operation is asynchronous: it holds its token until `compile` uses the completion.
//! So a wait for the token of the module `main` also covers operations that are pushed after the wait has begun, and no
//! operation blocks a worker to wait for another.
//!
//! The group of `compile` has a bound, like `make -j 2`: at most two modules are compiled at a time. The operations
//! that only wait for others are not in this group, so they take no place in it.

use std::error::Error;
use std::sync::OnceLock;

use raddle::{Engine, Group, PushError, Token, completion, cx};

static MODULES: [Module; 7] = [
    Module::new("main", "mod parser;\nmod runtime;\nfn main() {}"),
    Module::new("parser", "mod lexer;\nmod tree;\nfn parse() {}"),
    Module::new("lexer", "fn next() {}\nfn peek() {}"),
    Module::new("tree", "fn insert() {}\nfn walk() {}\nfn drop() {}"),
    Module::new("runtime", "mod heap;\nmod stack;"),
    Module::new("heap", "fn allocate() {}\nfn free() {}"),
    Module::new("stack", "fn push() {}\nfn pop() {}"),
];

struct Module {
    name: &'static str,
    source: &'static str,
    /// The result of `compile`: the number of functions in this module and in the modules below it. A token represents
    /// this result.
    functions: OnceLock<usize>,
}

impl Module {
    const fn new(name: &'static str, source: &'static str) -> Self {
        Self { name, source, functions: OnceLock::new() }
    }

    /// Returns the modules declared by this module's source.
    fn children(&self) -> Vec<&'static Self> {
        let names = self.source.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
        names.filter_map(|name| MODULES.iter().find(|module| module.name == name)).collect()
    }

    fn compile(&self, children: &[&Self]) {
        let own = self.source.lines().filter(|line| line.starts_with("fn ")).count();
        let below: usize = children
            .iter()
            .map(|child| child.functions.get().expect("a child should be compiled before its parent"))
            .sum();
        println!("compiled {:8}functions: {own} own, {below:2} below", self.name);
        self.functions.set(own + below).expect("a module should be compiled once");
    }
}

/// Pushes the operation that builds a module, which is compiled by an operation of `compilers`. Returns the token that
/// this operation writes.
fn build(engine: &Engine, compilers: &Group, module: &'static Module) -> Result<Token, PushError> {
    let (built, compilers) = (engine.token(), compilers.clone());
    engine.op("build").writes([&built]).try_push((cx(), completion()), move |(cx, done)| {
        let engine = cx.engine();
        let children = module.children();
        let tokens = children.iter().map(|child| build(&engine, &compilers, child)).collect::<Result<Vec<_>, _>>()?;
        compilers.op("compile").reads(&tokens).push((), move |()| {
            module.compile(&children);
            done.complete();
        })?;
        Ok(())
    })?;
    Ok(built)
}

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::builder().build()?;
    // This is the only push from outside. All other pushes are made by operations.
    let built = build(&engine, &engine.group().jobs(2), &MODULES[0])?;
    engine.wait_for_var(&built)?;

    assert!(MODULES.iter().all(|module| module.functions.get().is_some()));
    assert_eq!(MODULES[0].functions.get(), Some(&11));
    Ok(())
}
