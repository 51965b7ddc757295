//! A folder of programs for a machine that has a GPU, but neither Rust nor a network.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use crate::tools::{Result, cargo, require};

/// Builds the checks, the example and the benchmarks for GPUs, and puts them into `folder` with a script that runs
/// them: `folder/run` on the machine with the GPU.
pub fn pack(folder: &str) -> Result {
    let to = |error: std::io::Error| format!("{folder}: {error}");
    let bin = Path::new(folder).join("bin");
    fs::create_dir_all(&bin).map_err(to)?;
    let builds = [
        "test --no-run --release --features cuda --test cuda --test devices",
        "build --release --package gpu_pipeline --features cuda",
        "bench --no-run --package raddle-benches --no-default-features --features cuda --bench gpu --bench experiments",
    ];
    for build in builds {
        let text = cargo(build).arg("--message-format=json").output()?;
        for line in text.lines() {
            let field = |name: &str| {
                let rest = &line[line.find(&format!("\"{name}\":\""))? + name.len() + 4..];
                rest.split('"').next()
            };
            let target = line.find("\"target\":{").and_then(|at| line[at..].split("\"name\":\"").nth(1));
            if let (Some(program), Some(name)) = (field("executable"), target.and_then(|name| name.split('"').next())) {
                fs::copy(program, bin.join(name)).map_err(to)?;
            }
        }
    }
    for name in ["cuda", "devices", "gpu_pipeline", "gpu", "experiments"] {
        require(bin.join(name).exists(), format!("{name} was not built"))?;
    }
    let script = Path::new(folder).join("run");
    fs::write(&script, include_str!("gpu_run.sh")).map_err(to)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).map_err(to)
}
