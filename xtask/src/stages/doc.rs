//! The documentation, and the names in ARCHITECTURE.md.

use std::{collections::BTreeSet, fs, path::Path};

use crate::tools::{Result, cargo, read, require};

pub fn run() -> Result {
    let flags = format!("{} -D warnings", std::env::var("RUSTDOCFLAGS").unwrap_or_default());
    for line in ["doc --no-deps", "doc --no-deps --document-private-items", "doc --no-deps --features cuda"] {
        cargo(line).env("RUSTDOCFLAGS", &flags).run()?;
    }
    // Each word in backticks that may be a name must be one in the sources: an item, a file or a module.
    let mut known = BTreeSet::new();
    for folder in fs::read_dir(".").map_err(|error| error.to_string())?.flatten() {
        let source = folder.path().join("src");
        if source.is_dir() {
            words(&source, &mut known);
        }
    }
    words(Path::new("src"), &mut known);
    let is_name = |text: &&str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphabetic() || "_:".contains(c));
    let page = read("ARCHITECTURE.md")?;
    let names = page.lines().flat_map(|line| line.split('`').skip(1).step_by(2)).filter(is_name);
    let names: BTreeSet<_> = names.filter_map(|path| path.rsplit("::").next()).collect();
    let missing: Vec<_> = names.iter().filter(|&&name| !known.contains(name) && !Path::new(name).exists()).collect();
    require(missing.is_empty(), format!("ARCHITECTURE.md names what does not exist: {missing:?}"))
}

/// Adds the names of the files and folders in `folder`, and the words in the files.
fn words(folder: &Path, known: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        known.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
        if path.is_dir() {
            words(&path, known);
        } else if let Ok(text) = read(&path) {
            known.extend(text.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned));
        }
    }
}
