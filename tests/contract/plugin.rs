//! An engine in a library that is unloaded after shutdown.

#![cfg(all(target_os = "linux", not(miri)))]

use raddle_testkit as common;

use std::{
    ffi::{CStr, CString, c_void},
    fs, mem,
    path::PathBuf,
    process::Command,
    thread,
};

/// Builds the example `plugin`, unless it is already built, and returns its path.
fn build() -> PathBuf {
    let mut target = std::env::current_exe().unwrap();
    // The test is in `PROFILE/deps`.
    target.pop();
    target.pop();
    let profile = target.file_name().unwrap().to_str().unwrap().to_owned();
    let path = target.join("examples/libplugin.so");
    if !path.exists() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--example", "plugin", "--target-dir"]).arg(target.parent().unwrap());
        cargo.args(["--profile", if profile == "debug" { "dev" } else { &profile }]);
        assert!(cargo.status().unwrap().success(), "the example could not be built");
    }
    path
}

/// Loads, calls and unloads the library.
fn load_call_unload(path: &CStr, count: u32) -> i64 {
    // SAFETY: the library has no initialisers.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null(), "the library could not be loaded");
    // SAFETY: the library is loaded.
    let symbol: *mut c_void = unsafe { libc::dlsym(library, c"plugin_sum".as_ptr()) };
    assert!(!symbol.is_null(), "the library lacks the function");
    // SAFETY: the function has this type.
    let sum: extern "C" fn(u32) -> i64 = unsafe { mem::transmute(symbol) };
    // The call is made on a separate thread, since the thread-locals of a calling thread keep the library loaded.
    let result = thread::spawn(move || sum(count)).join().unwrap();
    // SAFETY: the library's engine was shut down, so no other thread runs the library's code, and the pointers are no
    // longer used.
    assert_eq!(unsafe { libc::dlclose(library) }, 0);
    result
}

fn is_mapped() -> bool {
    fs::read_to_string("/proc/self/maps").unwrap().contains("libplugin.so")
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_a_library_is_unloaded_and_the_process_continues() {
    assert!(common::is_child());
    let path = CString::new(build().into_os_string().into_encoded_bytes()).unwrap();
    let mut memory = 0;
    for round in 0..30 {
        assert_eq!(load_call_unload(&path, 1000), 499_500);
        assert!(!is_mapped(), "the library is still mapped");
        if round == 10 {
            memory = common::resident_bytes();
        }
        // The unloaded library must not have left a function that a fork would call.
        // SAFETY: the child only exits.
        match unsafe { libc::fork() } {
            // SAFETY: `_exit` has no preconditions.
            0 => unsafe { libc::_exit(7) },
            child => {
                let mut status = 0;
                // SAFETY: the pointer is to `status`, which is alive.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 7));
            }
        }
    }
    // Statics are not dropped when a library is unloaded, so the records that the engine keeps for reuse stay
    // allocated.
    let grown = common::resident_bytes().saturating_sub(memory) / 19;
    assert!(grown < 1 << 20, "{grown} bytes more after each round");
}

#[test]
fn a_library_is_unloaded_and_the_process_continues() {
    let name = "in_a_child_a_library_is_unloaded_and_the_process_continues";
    common::child_succeeds_on_each_kind(name);
    // The library's engine reads the environment variable: with an unknown kind, it cannot be built.
    let (succeeded, output) = common::child(name, &[("RADDLE_ENGINE", "Other")]);
    assert!(!succeeded && output.contains("left: -1"), "{output}");
}
