//! The lock files, the contents of the package, and the layers of the sources.

use std::{collections::BTreeSet, path::Path};

use crate::tools::{Result, cargo, read, require};

/// What users of the package expect in it.
const WANTED: [&str; 8] = [
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "src/lib.rs",
    "src/scheduler/README.md",
];

/// The folders that belong only in the checkout.
const UNWANTED: [&str; 17] = [
    ".cargo/",
    ".ci/",
    ".config/",
    "benches/",
    "capi/",
    "crates/",
    "derive/",
    "examples/c/",
    "examples/frames/",
    "examples/gpu_pipeline/",
    "examples/mxnet/",
    "examples/train/",
    "fuzz/",
    "loom-tests/",
    "testkit/",
    "tests/",
    "xtask/",
];

pub fn run() -> Result {
    for manifest in ["Cargo.toml", "fuzz/Cargo.toml"] {
        cargo("metadata --locked --format-version 1 --manifest-path").arg(manifest).output()?;
    }
    let list = cargo("package --package raddle --no-verify --allow-dirty --list").output()?;
    let files: BTreeSet<_> = list.lines().collect();
    let mut wanted: BTreeSet<_> = WANTED.map(str::to_owned).into();
    for file in files.iter().filter(|file| file.ends_with(".rs")) {
        wanted.extend(included(file)?);
    }
    let missing: Vec<_> = wanted.iter().filter(|file| !files.contains(file.as_str())).collect();
    require(missing.is_empty(), format!("the package lacks {missing:?}"))?;
    let unwanted: Vec<_> = files.iter().filter(|file| UNWANTED.iter().any(|folder| file.starts_with(folder))).collect();
    require(unwanted.is_empty(), format!("the package contains {unwanted:?}"))?;
    crates_in_readme()?;
    // The steps of publishing except the build and the upload, for all packages together, since some depend on others.
    cargo("publish --dry-run --allow-dirty --no-verify --workspace").run()?;
    cargo("test --package raddle-testkit --test layers").run()
}

/// Returns the files that the source file includes.
fn included(file: &str) -> Result<Vec<String>> {
    let text = read(file)?;
    let names = text.split("include").skip(1).filter_map(|rest| {
        let rest = ["!(\"", "_str!(\"", "_bytes!(\""].iter().find_map(|start| rest.strip_prefix(start))?;
        let mut path = Path::new(file).parent()?.to_path_buf();
        for part in rest.split('"').next()?.split('/') {
            match part {
                ".." => _ = path.pop(),
                part => path.push(part),
            }
        }
        Some(path.to_string_lossy().into_owned())
    });
    Ok(names.collect())
}

/// Where the README states the number of crates in a default build, it must be right.
fn crates_in_readme() -> Result {
    let tree = cargo("tree --package raddle --edges normal,build --prefix none --format {p}").output()?;
    let crates: BTreeSet<_> =
        tree.lines().filter_map(|line| line.split(" (").next()).filter(|name| !name.is_empty()).collect();
    let readme = read("README.md")?;
    match readme.split(" crates, raddle included").next().filter(|before| before.len() < readme.len()) {
        Some(before) => require(
            before.ends_with(&format!(" {}", crates.len())),
            format!("a default build compiles {} crates, but the README gives another number", crates.len()),
        ),
        None => Ok(()),
    }
}
