//! `mxnet` 1.9.1 on raddle: builds `examples/mxnet`, and compares it with `mxnet` on its own engine.

use std::{fs, path::PathBuf};

use crate::{
    capi,
    tools::{Cmd, Result, empty_folder, has_program, is_linux_x86, may_install, require, skip, target},
};

/// What the wheel of `mxnet` needs on today's Python: it uses names that `numpy` lacks since 1.24.
const PACKAGES: [&str; 2] = ["mxnet==1.9.1", "numpy==1.23.5"];

/// The kinds of engine, with the checks that run on them; all if empty.
const KINDS: [(&str, &str); 3] = [
    ("ThreadedEnginePerDevice", ""),
    ("ThreadedEngine", "bulks random_sums functions_of_c a_failure_is_raised_once a_perceptron loaders"),
    ("NaiveEngine", "random_sums functions_of_c gradients random_numbers a_perceptron stores loaders"),
];

/// What the compiler must know of the wheel.
const FLAGS: [&str; 10] = [
    "-std=c++17",
    "-O2",
    "-Wall",
    "-Wextra",
    "-D_GLIBCXX_USE_CXX11_ABI=0",
    "-DDMLC_USE_CXX11=1",
    "-DMSHADOW_STAND_ALONE=1",
    "-DMSHADOW_USE_F16C=0",
    "-DMXNET_USE_CUDA=0",
    "-Wl,--version-script=examples/mxnet/shim.map",
];

struct Built {
    python: PathBuf,
    shim: PathBuf,
    engine: PathBuf,
}

/// Which engine a program runs on.
#[derive(Clone, Copy)]
enum On {
    Raddle,
    Mxnet,
}

pub fn run() -> Result {
    let Some(built) = built()? else { return Ok(()) };
    let train = |on| built.python(on, "ThreadedEnginePerDevice", "train.py", "");
    println!("{}", same("the trainings", train(On::Mxnet)?, train(On::Raddle)?)?);
    for (kind, checks) in KINDS {
        built.engine(On::Mxnet, kind)?;
        built.engine(On::Raddle, kind)?;
        let check = |on| built.python(on, kind, "checks.py", checks);
        println!("{kind}:\n{}", same("the checks", check(On::Mxnet)?, check(On::Raddle)?)?);
    }
    // MXNet's own engine hangs in it.
    println!("{}", built.python(On::Raddle, KINDS[0].0, "checks.py", "forks_beside_threads")?);
    Ok(())
}

/// Returns the lines that both engines print, if they are the same.
fn same(what: &str, on_mxnet: String, on_raddle: String) -> Result<String> {
    let (expected, lines) = (on_mxnet.lines().collect::<Vec<_>>(), on_raddle.lines().collect::<Vec<_>>());
    let message = format!("{what} differ; on MXNet's own engine:\n{on_mxnet}\non raddle:\n{on_raddle}");
    require(!lines.is_empty() && lines == expected, message)?;
    Ok(on_raddle)
}

impl Built {
    /// Runs a program of Python in the folder of the example; returns what it prints.
    fn python(&self, on: On, kind: &str, file: &str, checks: &str) -> Result<String> {
        let script = format!("examples/mxnet/{file}");
        let program = Cmd::new("timeout").arg("240").arg(&self.python).arg(script).args(checks.split_whitespace());
        self.on(on, kind, program).stdout()
    }

    /// Runs the tests of the engine's interface.
    fn engine(&self, on: On, kind: &str) -> Result {
        self.on(on, kind, Cmd::new("timeout").arg("120").arg(&self.engine)).run()
    }

    fn on(&self, on: On, kind: &str, program: Cmd) -> Cmd {
        let program = program.env("MXNET_ENGINE_TYPE", kind);
        match on {
            On::Raddle => program.env("LD_PRELOAD", &self.shim),
            On::Mxnet => program,
        }
    }
}

/// Makes a virtual environment with `mxnet` and compiles the example. Returns nothing if something for this is missing.
fn built() -> Result<Option<Built>> {
    let folder = target("mxnet");
    let python = folder.join("venv/bin/python");
    let finds_mxnet = || Cmd::new(&python).args(["-c", "import mxnet; print(mxnet.__path__[0])"]).stdout();
    if !is_linux_x86() || !has_program("c++") {
        skip("MXNet: its wheel is for Linux on x86-64, and a C++ compiler is needed");
        return Ok(None);
    }
    if finds_mxnet().is_err() && may_install() {
        // Without Python or a network, MXNet is missing afterwards.
        let _ = Cmd::new("python3").args(["-m", "venv"]).arg(folder.join("venv")).run();
        let _ = Cmd::new(&python).args(["-m", "pip", "install", "-q"]).args(PACKAGES).run();
    }
    let Ok(path) = finds_mxnet() else {
        skip("MXNet 1.9.1 is neither installed nor installable");
        return Ok(None);
    };
    let mxnet = PathBuf::from(path.trim());
    let prefix = empty_folder("mxnet")?;
    capi::install(&prefix.to_string_lossy(), "release")?;
    let (shim, engine) = (prefix.join("libraddle_mxnet.so"), prefix.join("engine"));
    let compile = |to: &PathBuf| {
        let headers = Cmd::new("c++").args(FLAGS).arg("-isystem").arg(mxnet.join("include")).arg("-Icapi");
        headers.arg("-o").arg(to)
    };
    let library =
        compile(&shim).args(["-shared", "-fPIC", "examples/mxnet/shim.cpp"]).arg(prefix.join("lib/libraddle.a"));
    library.args(["-Wl,--gc-sections", "-lpthread", "-ldl"]).run()?;
    let program = compile(&engine).arg("examples/mxnet/engine.cpp").arg(mxnet.join("libmxnet.so"));
    program.arg(format!("-Wl,-rpath,{}", mxnet.display())).arg("-pthread").run()?;
    for file in [&shim, &engine] {
        fs::metadata(file).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(Some(Built { python, shim, engine }))
}
