//! Commands, build folders and Debian packages.

use std::{
    env,
    ffi::OsStr,
    fs, iter,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// A failure is a message for the person who runs the checks.
pub type Result<T = ()> = std::result::Result<T, String>;

/// A command, printed before it runs.
pub struct Cmd(Command);

/// Starts a command line of cargo whose arguments contain no blanks.
pub fn cargo(line: &str) -> Cmd {
    Cmd::new("cargo").args(line.split_whitespace())
}

impl Cmd {
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(program);
        // What `cargo run` sets for this program would confuse build scripts and other compilers.
        let own = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        env::vars_os().filter(|(name, _)| name.to_str().is_some_and(own)).for_each(|(name, _)| {
            command.env_remove(name);
        });
        command.env_remove("LD_LIBRARY_PATH").env_remove("CARGO");
        // Most runs build everything once, and need no debug information: backtraces name the functions without it.
        command.env("CARGO_INCREMENTAL", "0");
        for profile in ["DEV", "TEST", "LOOM", "SHUTTLE", "RELEASE"] {
            command.env(format!("CARGO_PROFILE_{profile}_DEBUG"), "0");
        }
        Self(command)
    }

    pub fn with(mut self, change: impl FnOnce(&mut Command)) -> Self {
        change(&mut self.0);
        self
    }

    pub fn arg(self, argument: impl AsRef<OsStr>) -> Self {
        self.with(|command| _ = command.arg(argument))
    }

    pub fn args(self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.with(|command| _ = command.args(arguments))
    }

    pub fn env(self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.with(|command| _ = command.env(name, value))
    }

    /// Compiles with `flags` besides those of the caller, in a folder of these flags, so no build displaces another.
    pub fn flags(self, folder: &str, flags: &str) -> Self {
        let given = env::var("CARGO_ENCODED_RUSTFLAGS").ok();
        let given = given.or_else(|| env::var("RUSTFLAGS").ok().map(|flags| words(&flags).join("\x1f")));
        let all = given.into_iter().filter(|given| !given.is_empty()).chain(iter::once(words(flags).join("\x1f")));
        self.env("CARGO_ENCODED_RUSTFLAGS", all.collect::<Vec<_>>().join("\x1f"))
            .env("CARGO_TARGET_DIR", target(folder))
    }

    /// Runs the command. Returns an error unless it succeeds.
    pub fn run(mut self) -> Result {
        println!("$ {}", self.line());
        let status = self.0.status();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("{status}: {}", self.line())),
            Err(error) => Err(format!("{error}: {}", self.line())),
        }
    }

    pub fn spawn(mut self) -> Result<Child> {
        self.0.spawn().map_err(|error| format!("{error}: {}", self.line()))
    }

    /// Runs the command; returns what it prints. Returns an error unless it succeeds.
    pub fn output(self) -> Result<String> {
        let line = self.line();
        println!("$ {line}");
        match self.capture() {
            (true, text) => Ok(text),
            (false, text) => Err(format!("{text}\nfailed: {line}")),
        }
    }

    /// As [`output`](Self::output), but returns only what it prints to the standard output.
    pub fn stdout(mut self) -> Result<String> {
        let line = self.line();
        println!("$ {line}");
        let output = self.0.stderr(Stdio::inherit()).output().map_err(|error| format!("{error}: {line}"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() { Ok(text) } else { Err(format!("{text}\n{}: {line}", output.status)) }
    }

    /// Runs the command; returns whether it succeeds, and what it prints, errors last.
    pub fn capture(mut self) -> (bool, String) {
        match self.0.output() {
            Ok(output) => {
                let text = [output.stdout, output.stderr].concat();
                (output.status.success(), String::from_utf8_lossy(&text).into_owned())
            }
            Err(error) => (false, error.to_string()),
        }
    }

    fn line(&self) -> String {
        let words = iter::once(self.0.get_program()).chain(self.0.get_args());
        words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
    }
}

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

/// Returns the path of `name` in the folder of builds.
pub fn target(name: &str) -> PathBuf {
    let folder = PathBuf::from(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into())).join(name);
    std::path::absolute(&folder).unwrap_or(folder)
}

/// Creates an empty folder for a stage's files.
pub fn empty_folder(name: &str) -> Result<PathBuf> {
    let folder = target("ci").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}

pub fn read(path: impl AsRef<Path>) -> Result<String> {
    fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.as_ref().display()))
}

/// Returns an error with `message` unless `condition` holds.
pub fn require(condition: bool, message: impl Into<String>) -> Result {
    if condition { Ok(()) } else { Err(message.into()) }
}

/// Returns an error unless each of these files exists and is not empty.
pub fn require_files<'a>(folder: &Path, names: impl IntoIterator<Item = &'a str>) -> Result {
    names.into_iter().try_for_each(|name| {
        let is_there = fs::metadata(folder.join(name)).is_ok_and(|file| file.len() > 0);
        require(is_there, format!("{name} was not written to {}", folder.display()))
    })
}

/// Records that a part of the running stage was left out. The summary finds the line.
pub fn skip(reason: &str) {
    println!("skipped: {reason}");
}

/// Returns whether a subcommand of cargo works. A proxy that only offers to install it does not count.
pub fn has(subcommand: &str) -> bool {
    cargo(subcommand).arg("--version").capture().0
}

/// Returns whether `program` is on the path.
pub fn has_program(program: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(program).exists()))
}

/// Returns whether there is a nightly toolchain. Looks at the list of toolchains, since naming one that is not
/// installed may make rustup download it.
pub fn has_nightly() -> bool {
    let (_, list) = Cmd::new("rustup").args(["toolchain", "list"]).capture();
    list.lines().any(|line| line.starts_with("nightly"))
}

pub fn is_linux_x86() -> bool {
    cfg!(all(target_os = "linux", target_arch = "x86_64"))
}

/// Returns whether Debian packages may be installed.
pub fn may_install() -> bool {
    match env::var("RADDLE_INSTALL") {
        Ok(value) => value == "1",
        Err(_) => env::var_os("CI").is_some() || env::var_os(crate::ALL).is_some(),
    }
}

/// Runs a shell's command line as root, if packages may be installed. Returns whether it succeeds.
pub fn as_root(line: &str) -> bool {
    let sudo = if Cmd::new("id").arg("-u").capture().1.trim() == "0" { "" } else { "sudo -n " };
    may_install() && Cmd::new("sh").args(["-c", &format!("{sudo}sh -c '{line}'")]).run().is_ok()
}

/// Installs Debian packages unless a file matches `pattern`. Returns whether there is such a file then.
pub fn install(pattern: &str, packages: &str) -> bool {
    if glob(pattern).is_none() {
        let install = format!(
            "DEBIAN_FRONTEND=noninteractive apt-get install -qy -o DPkg::Lock::Timeout=300 --no-install-recommends {packages}"
        );
        let _ = as_root(&install) || as_root(&format!("apt-get update && {install}"));
    }
    glob(pattern).is_some()
}

/// Returns the last file that matches a shell's pattern.
pub fn glob(pattern: &str) -> Option<String> {
    let (_, list) = Cmd::new("sh").args(["-c", &format!("ls -d1 {pattern} 2>/dev/null | sort -V")]).capture();
    list.lines().last().map(str::to_owned)
}

/// Returns how many tests have passed and failed according to the output of `cargo test` and `cargo nextest`.
pub fn results(text: &str) -> (usize, usize) {
    let mut sums = (0, 0);
    let is_result = |line: &&str| line.starts_with("test result: ") || line.trim_start().starts_with("Summary [");
    for line in text.lines().filter(is_result) {
        let before = |word: &str| {
            let words: Vec<_> = line.split([' ', ';', ',', '(']).filter(|word| !word.is_empty()).collect();
            let at = words.iter().rposition(|&other| other == word);
            at.and_then(|at| words.get(at.checked_sub(1)?)?.parse::<usize>().ok()).unwrap_or(0)
        };
        sums = (sums.0 + before("passed"), sums.1 + before("failed"));
    }
    sums
}
