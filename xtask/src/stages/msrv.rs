//! The oldest supported compiler.
//!
//! It comes from Debian bookworm, which provides Rust 1.85 as `rustc-web`. The packages are unpacked into the folder of
//! builds, not installed. The feature `cuda` is omitted: cudarc needs Rust 1.88.

use std::{fs, path::Path};

use crate::tools::{Cmd, Result, cargo, read, require, skip, target};

const VERSION: &str = "1.85";

pub fn run() -> Result {
    let declared = read("Cargo.toml")?.contains(&format!("\nrust-version = \"{VERSION}\"\n"));
    require(declared, format!("Cargo.toml does not declare Rust {VERSION}, which this stage tests"))?;
    let folder = target("msrv");
    let compiler = folder.join("root/usr/bin/rustc");
    if !compiler.exists() && !unpack(&folder) {
        skip("no Rust 1.85 compiler is available");
        return Ok(());
    }
    let libraries = folder.join("root/usr/lib/x86_64-linux-gnu");
    let with = |line: &str| {
        let builds = cargo(line).env("RUSTC", &compiler).env("LD_LIBRARY_PATH", &libraries);
        builds.env("CARGO_TARGET_DIR", folder.join("target"))
    };
    with("check --lib").run()?;
    with("check --lib --features derive,metrics,tracing").run()
}

/// Unpacks the compiler into `folder`. Returns whether it succeeds.
fn unpack(folder: &Path) -> bool {
    let list = Cmd::new("apt-cache").args(["madison", "rustc-web"]).capture().1;
    let mut versions = list.lines().filter_map(|line| line.split('|').nth(1)).map(str::trim);
    let Some(full) = versions.find(|version| version.starts_with(VERSION)) else { return false };
    let packages = folder.join("packages");
    let _ = fs::remove_dir_all(&packages);
    let mut names = vec![
        format!("rustc-web={full}"),
        format!("libstd-rust-web-{VERSION}={full}"),
        format!("libstd-rust-web-dev={full}"),
    ];
    // The libraries that the compiler needs and this machine lacks.
    let options =
        "depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances";
    let needed = Cmd::new("apt-cache").args(options.split(' ')).arg(&names[1]).capture().1;
    let is_library =
        |name: &&str| name.starts_with("lib") && !name.starts_with("libstd-rust-web") && !name.contains(':');
    for name in needed.lines().filter(is_library) {
        if !names.iter().any(|other| other == name) && !Cmd::new("dpkg").args(["-s", name]).capture().0 {
            names.push(name.to_owned());
        }
    }
    let download =
        || Cmd::new("apt-get").arg("download").args(&names).with(|command| _ = command.current_dir(&packages));
    if fs::create_dir_all(&packages).is_err() || download().run().is_err() {
        return false;
    }
    let root = folder.join("root");
    let debs = fs::read_dir(&packages).into_iter().flatten().flatten();
    debs.into_iter().all(|deb| Cmd::new("dpkg").arg("-x").arg(deb.path()).arg(&root).run().is_ok())
}
