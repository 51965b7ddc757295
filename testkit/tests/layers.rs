//! Checks the layers of `src`, based on the `use` lines and paths in each file.
//!
//! The folders of `src` are layers, listed from top to bottom in `ARCHITECTURE.md`. A file may refer only to files in
//! its own folder and in lower layers, and some also to [`FACE`]. At most three files may form a cycle of references.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The file to which [some layers](BELOW_FACE) below it may refer: its methods are what they may ask of the engine.
const FACE: &str = "engine::core";

/// The layers below [`FACE`] that may refer to it.
const BELOW_FACE: [&str; 5] = ["observe", "group", "wait", "context", "op"];

/// The maximum number of files in a cycle.
const MAX_CIRCLE: usize = 3;

/// The path of a module, such as `engine::push`. It is empty for the root of the crate.
type Module = String;

/// Returns the code of each module of raddle that is not a test module.
fn sources() -> BTreeMap<Module, String> {
    sources_in("../src")
}

/// Returns the code of each module below `folder` that is not a test module.
fn sources_in(folder: &str) -> BTreeMap<Module, String> {
    fn visit(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("the folder should be readable").flatten() {
            let path = entry.path();
            if path.is_dir() {
                visit(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut files = Vec::new();
    visit(&root, &mut files);
    let module = |file: &PathBuf| {
        let path = file.strip_prefix(&root).expect("files should be below the root").with_extension("");
        let mut parts: Vec<_> =
            path.iter().map(|part| part.to_str().expect("names of files should be UTF-8")).collect();
        if matches!(parts.last(), Some(&"mod" | &"lib")) {
            parts.pop();
        }
        parts.join("::")
    };
    let is_test = |module: &str| module.split("::").any(|part| matches!(part, "tests" | "testing_helpers" | "fake"));
    let sources =
        files.iter().map(|file| (module(file), code(&fs::read_to_string(file).expect("source files should be UTF-8"))));
    sources.filter(|(module, _)| !is_test(module)).collect()
}

/// Returns source text without comments and without items built only for tests.
fn code(text: &str) -> String {
    let mut code = String::new();
    let (mut depth, mut test_depth, mut test_next) = (0usize, None, false);
    for line in text.lines() {
        let line = line.split("//").next().unwrap_or_default();
        if line.contains("#[cfg(") && line.contains("test") && !line.contains("not(test") {
            test_next = true;
            continue;
        }
        let before = depth;
        depth = (depth + line.matches('{').count()).saturating_sub(line.matches('}').count());
        if test_next && !line.trim_start().starts_with("#[") {
            test_next = false;
            if depth > before {
                test_depth = Some(before);
            }
            continue;
        }
        match test_depth {
            Some(outer) if depth <= outer => test_depth = None,
            Some(_) => {}
            None => {
                code.push_str(line);
                code.push('\n');
            }
        }
    }
    code
}

/// Returns the paths of a `use` tree, such as `a::{b, c::d}`.
fn flatten(tree: &str) -> Vec<String> {
    fn branch(prefix: &str, tree: &str, paths: &mut Vec<String>) {
        let tree = tree.trim();
        let Some((head, rest)) = tree.split_once('{') else {
            let path = tree.split(" as ").next().unwrap_or_default().trim();
            paths.push(format!("{prefix}{path}"));
            return;
        };
        let inner = rest.trim_end().strip_suffix('}').unwrap_or(rest);
        let (mut depth, mut start) = (0, 0);
        for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    if !inner[start..at].trim().is_empty() {
                        branch(&format!("{prefix}{}", head.trim()), &inner[start..at], paths);
                    }
                    start = at + 1;
                }
                _ => {}
            }
        }
    }
    let mut paths = Vec::new();
    branch("", tree, &mut paths);
    paths
}

/// Converts a path written in `module` to a path from the crate's root. Returns `None` for a path in another crate.
fn absolute(module: &str, path: &str) -> Option<String> {
    let mut parts: Vec<_> = path.split("::").map(str::trim).collect();
    let mut base: Vec<_> = if module.is_empty() { Vec::new() } else { module.split("::").collect() };
    match parts.remove(0) {
        "crate" => base.clear(),
        "self" => {}
        "super" => {
            base.pop();
            while parts.first() == Some(&"super") {
                parts.remove(0);
                base.pop();
            }
        }
        _ => return None,
    }
    base.extend(parts);
    Some(base.join("::"))
}

/// The paths to which a module refers, from the crate's root, and the items that it re-exports from other modules.
struct Names {
    named: BTreeSet<String>,
    /// The paths of exported items, by name.
    exported: BTreeMap<String, String>,
}

/// Returns the paths to which the code of `module` refers, and its re-exports.
fn names(module: &str, code: &str, modules: &BTreeSet<Module>) -> Names {
    let (mut named, mut exported) = (BTreeSet::new(), BTreeMap::new());
    let mut rest = String::new();
    let mut statements = code.split(';');
    for statement in &mut statements {
        let at = statement.rfind("use ").filter(|&at| {
            let before = statement[..at].trim_end();
            before.is_empty() || before.ends_with([')', ']', '}', '{', '\n']) || before.ends_with("pub")
        });
        let Some(at) = at else {
            rest.push_str(statement);
            rest.push(';');
            continue;
        };
        rest.push_str(&statement[..at]);
        let is_export =
            statement[..at].trim_end().ends_with("pub") || statement[..at].trim_end().ends_with("pub(crate)");
        for path in flatten(&statement[at + 4..]) {
            // A path to a child module may omit `self`.
            let head = path.split("::").next().unwrap_or_default();
            let child = if module.is_empty() { head.to_owned() } else { format!("{module}::{head}") };
            let path = if modules.contains(&child) { format!("self::{path}") } else { path };
            let Some(path) = absolute(module, path.trim_end_matches("::self")) else { continue };
            if is_export {
                let name = path.rsplit("::").next().unwrap_or_default().to_owned();
                exported.insert(name, path);
            } else {
                named.insert(path);
            }
        }
    }
    for (at, _) in rest.match_indices("crate::").chain(rest.match_indices("super::")) {
        if rest[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$' || c == ':') {
            continue;
        }
        let end = rest[at..].find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).unwrap_or(rest.len() - at);
        named.extend(absolute(module, rest[at..at + end].trim_end_matches("::")));
    }
    Names { named, exported }
}

/// Returns, for each module, the modules to which it refers.
fn graph() -> BTreeMap<Module, BTreeSet<Module>> {
    let sources = sources();
    let modules: BTreeSet<_> = sources.keys().cloned().collect();
    let names: BTreeMap<_, _> =
        sources.iter().map(|(module, code)| (module.clone(), names(module, code, &modules))).collect();
    // Returns the module that defines a path's item, following other modules' exports.
    let resolve = |path: &str| {
        let mut path = path.to_owned();
        for _ in 0..8 {
            let mut module = path.as_str();
            while !modules.contains(module) {
                module = module.rsplit_once("::")?.0;
            }
            let item = path[module.len()..].trim_start_matches("::").split("::").next().unwrap_or_default();
            match names[module].exported.get(item) {
                Some(exported) if !item.is_empty() => path = exported.clone(),
                _ => return Some(module.to_owned()),
            }
        }
        None
    };
    let edges = |module: &Module| {
        let targets = names[module].named.iter().filter_map(|path| resolve(path));
        targets.filter(|target| target != module && !target.is_empty()).collect()
    };
    // The root is omitted: it refers to every module, and modules refer to it only for its exports.
    modules.iter().filter(|module| !module.is_empty()).map(|module| (module.clone(), edges(module))).collect()
}

/// Returns the modules reachable from `start`.
fn reachable(graph: &BTreeMap<Module, BTreeSet<Module>>, start: &Module) -> BTreeSet<Module> {
    let (mut found, mut next) = (BTreeSet::new(), vec![start]);
    while let Some(module) = next.pop() {
        for target in &graph[module] {
            if found.insert(target.clone()) {
                next.push(target);
            }
        }
    }
    found
}

/// Returns the layers listed in `ARCHITECTURE.md`, from top to bottom.
fn layers() -> Vec<String> {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../ARCHITECTURE.md"))
        .expect("ARCHITECTURE.md should be readable");
    let section =
        page.split("## Layers").nth(1).expect("ARCHITECTURE.md should have a section on layers").split("\n## ").next();
    let rows = section.expect("the section should not be empty").lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split('`').next()?.strip_suffix('/')).map(str::to_owned).collect()
}

#[test]
#[cfg_attr(miri, ignore = "reads files")]
fn arrows_between_layers_point_down() {
    let layers = layers();
    let graph = graph();
    assert!(graph.len() > 50, "only {} files were found", graph.len());
    let layer = |module: &str| {
        let folder = module.split("::").next().unwrap_or_default();
        layers
            .iter()
            .position(|layer| layer == folder)
            .unwrap_or_else(|| panic!("`{folder}` is not in the table of layers in ARCHITECTURE.md: {layers:?}"))
    };
    let asks_engine = |module: &str, target: &str| {
        target == FACE && BELOW_FACE.contains(&module.split("::").next().unwrap_or_default())
    };
    let mut upwards = Vec::new();
    for (module, targets) in &graph {
        upwards.extend(
            targets
                .iter()
                .filter(|target| layer(target) < layer(module) && !asks_engine(module, target))
                .map(|to| format!("{module} -> {to}")),
        );
    }
    assert!(upwards.is_empty(), "these files refer to a layer above their own:\n{}", upwards.join("\n"));
    for name in &layers {
        assert!(
            graph.keys().any(|module| module.split("::").next() == Some(name)),
            "ARCHITECTURE.md lists the layer `{name}`, which has no files"
        );
    }
}

#[test]
#[cfg_attr(miri, ignore = "reads files")]
fn cycles_have_at_most_three_files() {
    let graph = graph();
    let reachable: BTreeMap<_, _> = graph.keys().map(|module| (module, reachable(&graph, module))).collect();
    let mut circles = BTreeSet::new();
    for (module, targets) in &reachable {
        let circle: BTreeSet<_> = targets.iter().filter(|target| reachable[target].contains(*module)).collect();
        if !circle.is_empty() {
            circles.insert(circle);
        }
    }
    let too_large: Vec<_> = circles.iter().filter(|circle| circle.len() > MAX_CIRCLE).collect();
    assert!(too_large.is_empty(), "more than {MAX_CIRCLE} files form a cycle of references: {too_large:#?}");
    assert!(!circles.is_empty(), "the search did not find the cycle of the engine, its frames and its tasks");
}

/// Only `sync::edge` names orderings other than `Relaxed`, so each one belongs to an edge. The models that stand in for
/// crossbeam's crates and for `std`'s `Arc` have orderings of their own.
#[test]
#[cfg_attr(miri, ignore = "reads files")]
fn each_ordering_is_that_of_an_edge() {
    let models = ["memory::epoch", "sync", "sync::announced", "sync::deque", "sync::edge", "sync::shared"];
    let words = ["Ordering::Acquire", "Ordering::Release", "AcqRel", "SeqCst", "Ordering::{"];
    let named: Vec<_> = sources()
        .iter()
        .filter(|(module, _)| !models.contains(&module.as_str()))
        .flat_map(|(module, code)| code.lines().map(move |line| format!("{module}: {}", line.trim())))
        .filter(|line| words.iter().any(|word| line.contains(word)))
        .collect();
    assert!(named.is_empty(), "orderings that no edge of `sync::edge` names:\n{}", named.join("\n"));
}

/// A type or a file can be found by its name, except for errors and the files at the head of a folder. The two forms of
/// a type, for ordinary builds and for models, are in one file.
#[test]
#[cfg_attr(miri, ignore = "reads files")]
fn each_name_has_one_meaning() {
    let mut places: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for folder in ["../src", "../crates/raddle-trace/src"] {
        for (module, code) in sources_in(folder) {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(module.replace("::", "/"));
            let is_head = module.is_empty() || path.join("mod.rs").exists();
            let file = module.rsplit("::").next().filter(|_| !is_head).map(|name| format!("{name}.rs"));
            let types = code.lines().filter_map(declared_type).map(str::to_owned);
            for name in types.chain(file).filter(|name| name != "Error") {
                places.entry(name).or_default().insert(format!("{folder}: {module}"));
            }
        }
    }
    let twice: BTreeMap<_, _> = places.iter().filter(|(_, files)| files.len() > 1).collect();
    assert!(twice.is_empty(), "types in several files, and files of one name: {twice:#?}");
}

/// Returns the name of the type or trait that a line of code declares. An indented alias is the type of a trait.
fn declared_type(line: &str) -> Option<&str> {
    let code = line.trim_start();
    let code = code.strip_prefix("pub").map_or(code, |rest| rest.split_once(' ').map_or("", |(_, rest)| rest));
    let (keyword, rest) = code.split_once(' ')?;
    let is_type =
        matches!(keyword, "struct" | "enum" | "union" | "trait") || keyword == "type" && line == line.trim_start();
    is_type.then(|| rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default())
}

/// The check finds paths in `use` lines and code, and ignores those in comments and tests.
#[test]
fn paths_are_read_from_use_lines_and_from_code() {
    let modules: BTreeSet<_> = ["a", "a::b", "c"].map(str::to_owned).into();
    let text = "use crate::{c::X, a::b::{self, Y}};\nuse std::fmt;\n// use crate::d;\nfn f() { crate::c::g(); super::h::<u8>() }";
    let found = names("a::b", &code(text), &modules);
    let expected = ["a::b", "a::b::Y", "a::h", "c::X", "c::g"].map(str::to_owned);
    assert_eq!(found.named, expected.into());
    let found =
        names("a", &code("pub use b::{Y, Z as W};\n#[cfg(test)]\nmod tests {\n    use crate::c;\n}\n"), &modules);
    assert!(found.named.is_empty());
    assert_eq!(found.exported["Y"], "a::b::Y");
}
