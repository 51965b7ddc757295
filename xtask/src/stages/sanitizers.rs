//! The sanitizers, on random programs and on planted bugs.

use std::{
    env,
    path::{Path, PathBuf},
};

use crate::tools::{
    Cmd, Result, as_root, cargo, empty_folder, glob, has_nightly, has_program, install, is_linux_x86, read, require,
    skip, target,
};

/// The sanitizers run on one platform; naming it keeps build scripts from being instrumented.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// A sanitizer with its build and its tests.
struct Sanitizer {
    /// Its name for the compiler.
    name: &'static str,
    flags: &'static str,
    /// Whether it needs an instrumented standard library, and thus the compiler of Debian's `rustc-web`.
    with_std: bool,
    /// Which tests run; all if empty.
    tests: &'static str,
    /// The planted bugs, with the words that must be in the reports.
    planted: &'static [(&'static str, &'static str)],
    /// The counterpart of a planted bug.
    harmless: &'static str,
}

/// The program that each sanitizer runs: the fuzz targets on their corpora, the soak test, and the planted bugs.
const PROGRAM: &str = "--package raddle-testkit --test sanitizers";

/// Records are not reused in two of the builds (`raddle_unpooled`): a reused record would look alive and initialised,
/// and its old bytes would hide leaks of memory to which they point.
const SANITIZERS: [Sanitizer; 3] = [
    Sanitizer {
        name: "address",
        flags: "-Zsanitizer=address --cfg raddle_unpooled",
        with_std: false,
        tests: "",
        planted: &[("use_after_free", "AddressSanitizer: heap-use-after-free"), ("leak", "Direct leak of")],
        harmless: "no_leak",
    },
    Sanitizer {
        name: "thread",
        flags: "-Zsanitizer=thread --cfg raddle_tsan",
        with_std: true,
        tests: "",
        planted: &[("data_race", "ThreadSanitizer: data race")],
        harmless: "no_data_race",
    },
    Sanitizer {
        name: "memory",
        flags: "-Zsanitizer=memory --cfg raddle_unpooled",
        with_std: true,
        tests: "besides soak typed",
        planted: &[("uninitialised_read", "MemorySanitizer: use-of-uninitialized-value")],
        harmless: "no_uninitialised_read",
    },
];

impl Sanitizer {
    /// Starts `cargo test` on the program, with more arguments.
    fn test(&self, line: &str) -> Cmd {
        self.cargo("test").args(PROGRAM.split(' ').chain(line.split_whitespace()))
    }

    /// Starts a command of cargo with the sanitizer.
    fn cargo(&self, command: &str) -> Cmd {
        let symbolizer = glob("/usr/lib/llvm-*/bin/llvm-symbolizer").unwrap_or_default();
        let mut cargo = cargo(if self.with_std { "-Zbuild-std" } else { "+nightly" });
        if self.with_std {
            cargo = cargo.env("RUSTC", "/usr/bin/rustc").env("RUSTC_BOOTSTRAP", "1");
        }
        let options = format!("{} external_symbolizer_path={symbolizer}", tsan_options());
        cargo
            .args([command, "--target", PLATFORM])
            .flags(&format!("sanitizers/{}", self.name), &format!("{} --cfg raddle_sanitized", self.flags))
            // The reports give lines.
            .env("CARGO_PROFILE_TEST_DEBUG", "line-tables-only")
            .env("RUST_BACKTRACE", "0")
            .env("ASAN_SYMBOLIZER_PATH", &symbolizer)
            .env("MSAN_SYMBOLIZER_PATH", &symbolizer)
            .env("TSAN_OPTIONS", options)
    }

    fn build(&self) -> Result {
        self.test("--no-run").run()?;
        if self.is_for_c() { self.library_for_c().run() } else { Ok(()) }
    }

    /// Whether the examples of C run with the sanitizer. `capi/tests/c.rs` runs them with that of addresses, and GCC
    /// has none of uninitialised memory.
    fn is_for_c(&self) -> bool {
        self.name == "thread"
    }

    /// The build of the library for C.
    fn library_for_c(&self) -> Cmd {
        self.cargo("build").args(["--package", "raddle-capi", "--lib", "--profile", "test"])
    }

    /// Runs the examples of C and C++, instrumented like the library.
    fn run_examples_of_c(&self) -> Result {
        if !has_program("cc") || !has_program("c++") {
            skip("the examples of C with a sanitizer: there is no C compiler");
            return Ok(());
        }
        self.library_for_c().run()?;
        let folder = empty_folder("sanitizers")?;
        // Without its token, the last stage of the pipeline races with the others.
        let pipeline = read("examples/c/pipeline.c")?;
        let (before, behind) = pipeline.split_once(".function = add_up").ok_or("pipeline.c has no `add_up`")?;
        let planted =
            format!("{before}.function = add_up{}", behind.replacen(".write_count = 1", ".write_count = 0", 1));
        let planted_file = folder.join("planted.c");
        std::fs::write(&planted_file, planted).map_err(|error| error.to_string())?;
        for (compiler, source) in [("cc", "examples/c/pipeline.c"), ("c++", "examples/c/lambdas.cpp")] {
            let program = self.compile(compiler, Path::new(source), &folder)?;
            for _ in 0..20 {
                Cmd::new(&program).env("TSAN_OPTIONS", tsan_options()).output()?;
            }
        }
        let program = self.compile("cc", &planted_file, &folder)?;
        let finds = || Cmd::new(&program).env("TSAN_OPTIONS", tsan_options()).capture().1.contains("data race");
        // The race depends on the schedule: it was found in one run of four.
        require((0..100).any(|_| finds()), "the planted race in `pipeline.c` was not reported")
    }

    /// Compiles a program of C or C++ with the sanitizer, and links it with the library and the runtime that the
    /// library was compiled for.
    fn compile(&self, compiler: &str, source: &Path, folder: &Path) -> Result<PathBuf> {
        let program = folder.join(source.file_stem().unwrap_or_default());
        let object = program.with_extension("o");
        let flags = [&format!("-fsanitize={}", self.name), "-g", "-D_DEFAULT_SOURCE", "-Icapi", "-c", "-o"];
        Cmd::new(compiler).args(flags).arg(&object).arg(source).run()?;
        let runtime = format!("/usr/lib/rustlib/{PLATFORM}/lib/librustc-stable_rt.tsan.a");
        let library = target("sanitizers").join(self.name).join(PLATFORM).join("debug/libraddle_capi.a");
        let link = Cmd::new(compiler).arg("-o").arg(&program).arg(&object);
        let link = link.args(["-Wl,--whole-archive", &runtime, "-Wl,--no-whole-archive"]).arg(library);
        link.args(["-lpthread", "-ldl", "-lm", "-lrt"]).run()?;
        Ok(program)
    }

    fn run(&self) -> Result {
        println!("with the sanitizer `{}`", self.name);
        let text = self.test(&format!("-- {}", self.tests)).env("RADDLE_SOAK_SECONDS", "5").output()?;
        println!("{text}");
        // If the sanitizer ends the process before the first test, this does not count as success.
        require(text.contains("test result: ok. ") && !text.contains("ok. 0 passed"), "no test ran")?;
        self.planted.iter().try_for_each(|(bug, words)| self.finds(bug, words))?;
        let (succeeds, text) = self.planted(self.harmless);
        let is_silent = succeeds && text.contains("test result: ok. 1 passed");
        require(is_silent, format!("{text}\n`{}` was reported, although it has no bug", self.harmless))?;
        if self.is_for_c() { self.run_examples_of_c() } else { Ok(()) }
    }

    /// Runs a planted bug or the counterpart of one.
    fn planted(&self, name: &str) -> (bool, String) {
        self.test(&format!("-- --exact --ignored --nocapture --test-threads=1 {name}")).capture()
    }

    /// Requires a report on a planted bug in one of at most four runs: whether a leak is found depends on when the
    /// epoch allows records to be freed.
    fn finds(&self, bug: &str, words: &str) -> Result {
        let mut last = String::new();
        for run in 1..=4 {
            let (succeeds, text) = self.planted(bug);
            if !succeeds && text.contains("running 1 test") && text.contains(words) {
                println!("found as expected, in run {run}: {bug}");
                return Ok(());
            }
            last = text;
            if !succeeds {
                break;
            }
        }
        Err(format!("{last}\nthe planted bug `{bug}` was not reported as `{words}`"))
    }
}

fn tsan_options() -> String {
    let suppressions = env::current_dir().unwrap_or_default().join("xtask/tsan.supp");
    format!("halt_on_error=1 suppressions={}", suppressions.display())
}

/// Returns the sanitizers whose compilers are available.
fn available() -> Vec<&'static Sanitizer> {
    if !is_linux_x86() {
        skip("the sanitizers are set up for Linux on x86-64 only");
        return Vec::new();
    }
    let (nightly, with_std) = (has_nightly(), has_instrumenting_compiler());
    if !nightly {
        skip("AddressSanitizer and LeakSanitizer: there is no nightly toolchain");
    }
    if !with_std {
        skip("ThreadSanitizer and MemorySanitizer: Debian's rustc-web and rust-web-src are not installed");
    }
    SANITIZERS.iter().filter(|sanitizer| if sanitizer.with_std { with_std } else { nightly }).collect()
}

pub fn build() -> Result {
    available().iter().try_for_each(|sanitizer| sanitizer.build())
}

pub fn run() -> Result {
    available().iter().try_for_each(|sanitizer| {
        let result = sanitizer.run();
        if env::var_os(crate::ALL).is_some() {
            // The builds are large, and no other stage uses them.
            let _ = std::fs::remove_dir_all(target("sanitizers").join(sanitizer.name));
        }
        result
    })
}

/// Finds or installs a compiler and the sources of its standard library, which must be instrumented as well. rustup's
/// toolchains lack the sources by default. Debian has them in a package for `rustc-web`, which takes the sanitizers'
/// runtimes from a package of clang.
fn has_instrumenting_compiler() -> bool {
    let sources = "/usr/lib/rustlib/src/rust/library/std/Cargo.toml";
    let is_usable = || is_recent("/usr/bin/rustc") && glob(sources).is_some();
    let packages = "rustc-web rust-web-src";
    let install_both = || as_root(&format!("apt-get update && apt-get install -qy --no-install-recommends {packages}"));
    if !(is_usable() || install_both() && is_usable()) {
        return false;
    }
    let version = Cmd::new("/usr/bin/rustc").arg("-vV").capture().1;
    let llvm = version.split("LLVM version: ").nth(1).and_then(|rest| rest.split('.').next()).unwrap_or_default();
    if !install(&format!("/usr/lib/llvm-{llvm}/bin/llvm-symbolizer"), &format!("llvm-{llvm}")) {
        return false;
    }
    ["tsan", "msan"].iter().all(|name| {
        let runtime = format!("/usr/lib/llvm-{llvm}/lib/clang/*/lib/linux/libclang_rt.{name}-x86_64.a");
        // The compiler expects the runtime under this name; an existing link may point to another version.
        let link = format!("/usr/lib/rustlib/{PLATFORM}/lib/librustc-stable_rt.{name}.a");
        install(&runtime, &format!("libclang-rt-{llvm}-dev"))
            && (as_root(&format!("ln -sf {} {link}", glob(&runtime).unwrap_or_default())) || glob(&link).is_some())
    })
}

/// Returns whether the compiler exists and is new enough for the package.
fn is_recent(compiler: &str) -> bool {
    let number = |text: &str| -> Option<(u32, u32)> {
        let mut parts = text.split('.').map(|part| part.parse().ok());
        Some((parts.next()??, parts.next()??))
    };
    let manifest = read("Cargo.toml").unwrap_or_default();
    let wanted = manifest.split("\nrust-version = \"").nth(1).and_then(|rest| number(rest.split('"').next()?));
    let (exists, version) = Cmd::new(compiler).arg("--version").capture();
    exists && version.split(' ').nth(1).and_then(number) >= wanted
}
