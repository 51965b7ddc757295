//! The feature `cuda`, on a stand-in for the driver's library.

use std::{fs, os::unix::fs::symlink, path::Path};

use crate::tools::{Cmd, Result, cargo, has_program, skip, target};

pub fn run() -> Result {
    // Tests that need a GPU report that they were skipped if there is none; the stage `test` runs all others.
    cargo("test --features cuda --lib --test cuda").run()?;
    cargo("test --package gpu_pipeline --features cuda").run()?;
    // Compiles the CUDA programs of the guide.
    cargo("test --features cuda --doc -- guide::gpus").run()?;
    if !cfg!(target_os = "linux") || !has_program("cc") {
        skip("the stand-in for the CUDA driver needs Linux and a C compiler (cc)");
        return Ok(());
    }
    let folder = target("stand-in");
    fs::create_dir_all(folder.join("cublas")).map_err(|error| error.to_string())?;
    compile(&folder.join("libcuda.so.1"), "-shared -fPIC", &["cuda.c"]).run()?;
    // The link may exist.
    let _ = symlink("libcuda.so.1", folder.join("libcuda.so"));
    self_test(&folder)?;
    for marks in ["counter", "events"] {
        for depth in ["1024", "8"] {
            let test = cargo("test --quiet --features cuda --test cuda").env("STAND_IN_DEPTH", depth);
            on_stand_in(test, &folder, marks).run()?;
        }
        let line = "run --quiet --profile test --package gpu_pipeline --features cuda -- --gpu cuda --chunks 60 --chunk-kib 64";
        on_stand_in(cargo(line), &folder, marks).run()?;
    }
    // The products of `examples/train` also need the stand-in for cuBLAS.
    let cublas = compile(&folder.join("cublas/libcublas.so"), "-shared -fPIC", &["cublas.c"]);
    cublas.arg(format!("-L{}", folder.display())).arg("-l:libcuda.so.1").run()?;
    let test = cargo("test --quiet --package raddle-train --features cuda --test cublas");
    let libraries = format!("{0}/cublas:{0}", folder.display());
    on_stand_in(test, &folder, "counter").env("LD_LIBRARY_PATH", libraries).run()
}

fn on_stand_in(cmd: Cmd, folder: &Path, marks: &str) -> Cmd {
    cmd.env("RADDLE_REQUIRE_GPU", "1")
        .env("RADDLE_CUDA_MARKS", marks)
        .env("STAND_IN_DEVICES", "2")
        .env("LD_LIBRARY_PATH", folder)
}

/// Starts the C compiler on sources of the stand-in.
fn compile(output: &Path, options: &str, sources: &[&str]) -> Cmd {
    let cc =
        Cmd::new("cc").args(options.split_whitespace()).args("-g -O1 -Wall -Wextra -Werror -pthread -o".split(' '));
    cc.arg(output).args(sources.iter().map(|source| format!("tests/stand_in/{source}")))
}

/// Tests the stand-in itself, also with the sanitizers that the C compiler has.
fn self_test(folder: &Path) -> Result {
    let program = folder.join("self_test");
    for sanitizer in
        ["", "-fsanitize=thread -fno-sanitize-recover=all", "-fsanitize=address,undefined -fno-sanitize-recover=all"]
    {
        let (compiles, text) = compile(&program, sanitizer, &["self_test.c", "cuda.c"]).capture();
        if compiles {
            Cmd::new(&program).run()?;
            Cmd::new(&program).env("STAND_IN_DEPTH", "2").run()?;
        } else if sanitizer.is_empty() {
            return Err(text);
        } else {
            skip(&format!("the self-test of the stand-in with {sanitizer}: cc does not support it"));
        }
    }
    Ok(())
}
