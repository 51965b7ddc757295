//! What the compiler says about common mistakes. Only words that the library chooses are compared: names of its items,
//! and its own messages. The compiler's words differ between versions.

#![cfg(not(any(miri, raddle_sanitized, raddle_tsan)))]

use std::{
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Programs, each with what must appear in the messages. The program compiles if that is nothing.
const PROGRAMS: [(&str, &[&str]); 8] = [
    ("let (a, t) = (engine.var(1), engine.token()); engine.op(&name).reads(&t).writes(&a).push((), |()| {})?;", &[]),
    ("engine.try_scope(|s| { s.op(\"\").push((), |()| {})?; Ok(()) })?;", &[]),
    ("let a = engine.var(1); engine.op(\"\").push(&a, |a| *a += 1)?;", NO_DECLARATION),
    ("let a = engine.var(1); engine.op(\"\").push(a, |a| *a += 1)?;", NO_DECLARATION),
    ("let a = engine.var(1); engine.op(\"\").push((&a, cx()), |(a, op)| *a += 1)?;", NO_DECLARATION),
    ("let t = engine.token(); engine.op(\"\").push(&t, |()| {})?;", NO_DECLARATION),
    (
        "let a = engine.var(1); engine.op(\"\").operator_on(a.read(), (), |a, (), ()| {})?;",
        &[
            "does not declare how chosen variables are used",
            "use `raddle::chosen::read()`, `write()`, `overwrite()` and `commute()` for variables with values",
        ],
    ),
    (
        "let a = engine.var(Cell::new(1)); engine.op(\"\").push(a.read(), |a| a.set(2))?;",
        &["`Cell<", "`Sync`", "Var", "read"],
    ),
];

const NO_DECLARATION: &[&str] = &[
    "does not declare what an operation reads and mutates",
    "not a declaration: of a variable, pass `.read()`, `.write()`, `.overwrite()` or `.commute()`",
];

/// Returns the library with which this test was built, the one built last.
fn library() -> PathBuf {
    let test = env::current_exe().expect("this program has a path");
    let files = fs::read_dir(test.parent().expect("a folder")).expect("a folder of libraries").flatten();
    let is_library = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libraddle-") && name.ends_with(".rlib")
    };
    let libraries = files.map(|file| file.path()).filter(is_library);
    libraries
        .max_by_key(|path| fs::metadata(path).and_then(|file| file.modified()).ok())
        .expect("the library was built")
}

/// Returns whether the compiler accepts `program`, and its messages.
fn compile(library: &Path, program: &str) -> (bool, String) {
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("messages-{}.rmeta", std::process::id()));
    let [dependencies, library] = [("dependency", library.parent().expect("a folder")), ("raddle", library)]
        .map(|(kind, path)| format!("{kind}={}", path.display()));
    let mut compiler = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .args(["--edition=2024", "--crate-type=lib", "--cap-lints=allow", "--emit=metadata", "-o"])
        .arg(&output)
        .args(["-L", &dependencies, "--extern", &library, "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the compiler should start");
    let text = format!(
        "use std::cell::Cell;\nuse raddle::*;\n\
         pub fn f(engine: &Engine, name: String) -> Result<(), Box<dyn std::error::Error>> {{\n{program}\nOk(())\n}}\n"
    );
    let mut input = compiler.stdin.take().expect("the input is a pipe");
    input.write_all(text.as_bytes()).expect("the compiler should read");
    drop(input);
    let compiled = compiler.wait_with_output().expect("the compiler should end");
    let _ = fs::remove_file(output);
    (compiled.status.success(), String::from_utf8_lossy(&compiled.stderr).into_owned())
}

#[test]
fn a_mistake_is_told_in_words_that_help() {
    let library = library();
    for (program, words) in PROGRAMS {
        let (succeeded, messages) = compile(&library, program);
        assert_eq!(succeeded, words.is_empty(), "{program}\n{messages}");
        for word in words {
            assert!(messages.contains(word), "{program}\n`{word}` is missing in:\n{messages}");
        }
    }
}
