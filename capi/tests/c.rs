//! The library as C and C++ use it: installed, compiled with the system's compiler and run, also with sanitizers
//! and under valgrind.
//!
//! The library's own code is not instrumented here, so the sanitizer of addresses sees what C and C++ do with memory,
//! and all that was allocated. For that of threads, `cargo xtask ci sanitizers` instruments the library too.

#![cfg(target_os = "linux")]

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}\n{text}",
        output.status,
        String::from_utf8_lossy(&output.stdout)
    );
    output
}

fn exists(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Installs the library, once, and returns its folder; `None` without a C compiler.
fn installed() -> Option<&'static Path> {
    static INSTALLED: OnceLock<Option<PathBuf>> = OnceLock::new();
    let install = || {
        if !exists("cc") || !exists("c++") {
            println!("skipped: there is no C compiler");
            return None;
        }
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("capi");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(ROOT).args(["run", "--quiet", "--package", "xtask", "--", "capi"]).arg(&folder).arg("test");
        // `target` is that of this test.
        run(cargo.env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is in `target`")));
        Some(folder)
    };
    INSTALLED.get_or_init(install).as_deref()
}

/// Compiles an example with warnings as errors and these arguments, runs it, and returns what it prints.
fn compile_and_run(source: &str, name: &str, arguments: &[&str]) -> Option<String> {
    let folder = installed()?;
    let program = folder.join(name);
    let mut compiler = if source.ends_with(".c") {
        let mut compiler = Command::new("cc");
        compiler.args(["-std=c11", "-D_DEFAULT_SOURCE"]);
        compiler
    } else {
        let mut compiler = Command::new("c++");
        compiler.arg("-std=c++11");
        compiler
    };
    compiler.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-o"]).arg(&program);
    compiler.arg(Path::new(ROOT).join("examples/c").join(source)).arg("-I").arg(folder.join("include"));
    for argument in arguments {
        compiler.arg(argument.replace('@', &folder.to_string_lossy()));
    }
    run(compiler.arg("-lpthread"));
    let mut command = Command::new(&program);
    if name.ends_with(VALGRIND) {
        command = Command::new(VALGRIND);
        // Names and the epoch's lists are reached by pointers into them, which counts as a possible loss.
        let leaks = ["--leak-check=full", "--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"];
        command.args(["--quiet", "--error-exitcode=9"]).args(leaks).arg(&program);
    }
    Some(String::from_utf8_lossy(&run(&mut command).stdout).into_owned())
}

const VALGRIND: &str = "valgrind";

const SHARED: [&str; 3] = ["-L@/lib", "-lraddle", "-Wl,-rpath,@/lib"];
const WITH_ASAN: [&str; 4] = ["-fsanitize=address,undefined", "@/lib/libraddle.a", "-lm", "-ldl"];

/// Whether what the build needs to run is there.
fn can_run((name, _): &(&str, &[&str])) -> bool {
    let can_run = !name.ends_with(VALGRIND) || exists(VALGRIND);
    if !can_run {
        println!("skipped: there is no valgrind for {name}");
    }
    can_run
}

#[test]
fn the_pipeline_in_c_reports_the_failure_and_the_sum() {
    let builds = [
        ("pipeline", &SHARED[..]),
        ("pipeline-static", &WITH_ASAN[1..]),
        ("pipeline-asan", &WITH_ASAN),
        ("pipeline-valgrind", &SHARED),
    ];
    for (name, arguments) in builds.into_iter().filter(can_run) {
        let Some(text) = compile_and_run("pipeline.c", name, arguments) else { return };
        let failure = "chunk 5: operation `read` failed: the disk has a bad sector (code 5), sector 1234\n";
        assert_eq!(text, format!("{failure}the sum is 230000; 1 chunk failed; pending: 0\n"), "{name}");
    }
}

#[test]
fn lambdas_and_exceptions_pass_through_the_engine() {
    let builds = [("lambdas", &SHARED[..]), ("lambdas-asan", &WITH_ASAN), ("lambdas-valgrind", &SHARED)];
    for (name, arguments) in builds.into_iter().filter(can_run) {
        let Some(text) = compile_and_run("lambdas.cpp", name, arguments) else { return };
        assert_eq!(text, "the mean is 2.5\ncaught: there are no values\n", "{name}");
    }
}

/// The shared library exports the functions of the header, each with a version, and nothing else.
#[test]
fn the_shared_library_exports_the_header_with_versions() {
    let Some(folder) = installed().filter(|_| exists("nm")) else { return };
    let header =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("raddle.h")).expect("the header is readable");
    let mut declared: Vec<_> = header
        .lines()
        .filter(|line| !line.starts_with([' ', '/', '#', '}']) && !line.starts_with("typedef"))
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .map(|name| format!("{name}@@RADDLE_0.1"))
        .collect();
    declared.sort();
    let listed = run(Command::new("nm")
        .args(["-D", "--defined-only", "--with-symbol-versions"])
        .arg(folder.join("lib/libraddle.so")));
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mut exported: Vec<_> = listed.lines().filter_map(|line| line.split(" T ").nth(1)).map(str::to_owned).collect();
    exported.sort();
    assert!(declared.len() > 50, "{declared:?}");
    assert_eq!(declared, exported);
}

/// The version of the header, of the library and of the package are one.
#[test]
fn versions_agree() {
    let mut parts = env!("CARGO_PKG_VERSION").split('.').map(|part| part.parse::<u32>().expect("a number"));
    let mut part = || parts.next().expect("a version has three parts");
    assert_eq!(part() * 10_000 + part() * 100 + part(), raddle_capi::raddle_version());
}
