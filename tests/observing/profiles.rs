//! The files of profiles: which file an engine writes, which it leaves alone, and what happens if it cannot write.

#![cfg(target_os = "linux")]

use raddle_testkit as common;

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::Command,
};

use common::watched;
use raddle::{
    Engine, EngineBuilder, Shutdown,
    error::{BuildError, ShutdownError},
    replay::Log,
};

/// A folder for files, removed when this value is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = Self(std::env::temp_dir().join(format!("raddle-profiles-{name}-{}", std::process::id())));
        let _ = fs::remove_dir_all(&folder.0);
        fs::create_dir_all(&folder.0).unwrap();
        folder
    }

    /// Returns the names of the files, each with the number of operations that ran in it.
    fn files(&self) -> Vec<(String, usize)> {
        let count = |path: &Path| fs::read_to_string(path).unwrap().matches(r#""cat":"operation""#).count();
        let files = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> =
            files.map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), count(&path))).collect();
        files.sort();
        files
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn builder() -> EngineBuilder {
    Engine::builder().workers(1).pin(false)
}

fn profiled(path: impl Into<PathBuf>) -> Engine {
    builder().profile(path).build().unwrap()
}

fn run(engine: &Engine, ops: usize) {
    (0..ops).for_each(|_| engine.op("profiled").push((), |()| {}).unwrap());
    engine.wait_for_all().unwrap();
}

fn files(expected: &[(&str, usize)]) -> Vec<(String, usize)> {
    expected.iter().map(|&(name, ops)| (name.to_owned(), ops)).collect()
}

#[test]
#[cfg_attr(miri, ignore = "uses links of the file system")]
fn a_file_with_several_paths_is_one_file() {
    watched(|| {
        let folder = Folder::new("paths");
        let path = folder.0.join("a.json");
        let engine = profiled(&path);
        run(&engine, 1);
        // The next profiles have names of their own, whether or not the first is complete.
        let other = profiled(folder.0.join(".").join("a.json"));
        run(&other, 2);
        drop((engine, other));
        let another = profiled(folder.0.join("..").join(folder.0.file_name().unwrap()).join("a.json"));
        run(&another, 3);
        drop(another);
        fs::hard_link(&path, folder.0.join("link.json")).unwrap();
        let linked = profiled(folder.0.join("link.json"));
        run(&linked, 4);
        drop(linked);
        let expected = [("a-2.json", 2), ("a-3.json", 3), ("a.json", 1), ("link-2.json", 4), ("link.json", 1)];
        assert_eq!(folder.files(), files(&expected));
    });
}

#[test]
fn a_name_with_a_number_is_not_that_of_another_profile_or_file() {
    watched(|| {
        let folder = Folder::new("names");
        fs::write(folder.0.join("b-3.json"), "not a profile").unwrap();
        let engines: Vec<_> = ["b.json", "b-2.json", "b.json", "b-2.json"]
            .into_iter()
            .enumerate()
            .map(|(index, name)| {
                let engine = profiled(folder.0.join(name));
                run(&engine, index + 1);
                engine
            })
            .collect();
        drop(engines);
        let expected = [("b-2-2.json", 4), ("b-2.json", 2), ("b-3.json", 0), ("b-4.json", 3), ("b.json", 1)];
        assert_eq!(folder.files(), files(&expected));
        assert_eq!(fs::read(folder.0.join("b-3.json")).unwrap(), b"not a profile");
    });
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_the_environment_sets_a_profile() {
    if !common::is_child() {
        return;
    }
    let engine = builder().build().unwrap();
    run(&engine, 3);
    engine.shutdown(Shutdown::Drain, None).unwrap();
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_another_process_inherits_the_environment() {
    if !common::is_child() {
        return;
    }
    let engine = builder().build().unwrap();
    let starts_another = || {
        let (success, text) = common::child("in_a_child_the_environment_sets_a_profile", &[]);
        assert!(success, "{text}");
        let said = text.matches("is the profile of another process; this one writes").count();
        assert_eq!(said, 1, "{text}");
    };
    run(&engine, 1);
    starts_another();
    run(&engine, 1);
    engine.shutdown(Shutdown::Drain, None).unwrap();
    starts_another();
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_process_leaves_the_profile_of_its_parent_alone() {
    let folder = Folder::new("inherited");
    let path = folder.0.join("env.json");
    let inherit = || {
        let variables = [("RADDLE_PROFILE", path.to_str().unwrap())];
        let (success, text) = common::child("in_a_child_another_process_inherits_the_environment", &variables);
        assert!(success, "{text}");
        let files = folder.files();
        files.into_iter().map(|(name, ops)| (name == "env.json", ops)).collect::<Vec<_>>()
    };
    let mut found = inherit();
    found.sort_unstable();
    assert_eq!(found, [(false, 3), (false, 3), (true, 2)]);
    // The process is not there any more, so the next one overwrites its profile.
    assert_eq!(inherit().iter().filter(|file| file.0).collect::<Vec<_>>(), [&(true, 2)]);
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_another_file_is_not_overwritten() {
    if !common::is_child() {
        return;
    }
    let path = std::env::var("RADDLE_PROFILE").unwrap();
    let refused = builder().build().unwrap_err();
    assert!(matches!(&refused, BuildError::Profile(_, error) if error.kind() == std::io::ErrorKind::AlreadyExists));
    assert!(refused.to_string().contains("not a profile"), "{refused}");
    assert_eq!(fs::read(&path).unwrap(), b"fn main() {}\n");
    // Here, the program asks for it.
    let engine = builder().profile(&path).build().unwrap();
    run(&engine, 1);
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_file_that_is_not_a_profile_is_overwritten_only_if_the_program_says_so() {
    let folder = Folder::new("other");
    let path = folder.0.join("main.json");
    fs::write(&path, "fn main() {}\n").unwrap();
    let variables = [("RADDLE_PROFILE", path.to_str().unwrap())];
    let (success, text) = common::child("in_a_child_another_file_is_not_overwritten", &variables);
    assert!(success, "{text}");
    assert_eq!(folder.files(), files(&[("main.json", 1)]));
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_path_that_cannot_be_written_is_an_error_at_once() {
    watched(|| {
        let folder = Folder::new("unwritable");
        let pipe = folder.0.join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [folder.0.clone(), pipe, folder.0.join("missing/a.json"), PathBuf::from("/dev/full")] {
            let refused = builder().profile(&path).build();
            assert!(matches!(&refused, Err(BuildError::Profile(at, _)) if *at == path), "{path:?}: {refused:?}");
        }
        run(&profiled("/dev/null"), 1);
    });
}

#[test]
fn a_refused_build_leaves_no_profile_and_takes_no_log() {
    watched(|| {
        let folder = Folder::new("refused");
        let (taken, free) = (Log::new(), Log::new());
        let _engine = builder().log(&taken).build().unwrap();
        let refused = builder().log(&taken).profile(folder.0.join("a.json")).build();
        assert!(matches!(refused, Err(BuildError::LogInUse)), "{refused:?}");
        assert_eq!(folder.files(), []);
        let refused = builder().log(&free).profile(folder.0.join("missing/a.json")).build();
        assert!(matches!(refused, Err(BuildError::Profile(..))), "{refused:?}");
        let engine = builder().log(&free).build().expect("the log is free");
        run(&engine, 3);
        assert_eq!(free.entries().unwrap().iter().count(), 3);
    });
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_the_reader_of_a_profile_ends() {
    if !common::is_child() {
        return;
    }
    // As in a process whose `main` is not Rust's.
    // SAFETY: the default handler may be set at any time.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    watched(|| {
        let folder = Folder::new("reader");
        let pipe = folder.0.join("pipe.json");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let path = pipe.clone();
        let reader = std::thread::spawn(move || {
            // The first bytes, which `build` writes.
            fs::File::open(path).unwrap().read_exact(&mut [0; 8]).unwrap();
        });
        common::eventually("the pipe has a reader", || match builder().profile(&pipe).build() {
            Err(_) => false,
            Ok(engine) => {
                run(&engine, 1);
                while !reader.is_finished() {
                    std::thread::yield_now();
                }
                run(&engine, 1);
                let ended = engine.shutdown(Shutdown::Drain, None);
                assert!(matches!(&ended, Err(ShutdownError::Profile(path, _)) if *path == pipe), "{ended:?}");
                assert!(ended.unwrap_err().to_string().contains("pipe.json is incomplete"));
                true
            }
        });
    });
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_a_profile_becomes_as_large_as_files_may() {
    if !common::is_child() {
        return;
    }
    watched(|| {
        let folder = Folder::new("large");
        let path = folder.0.join("large.json");
        let most = libc::rlimit { rlim_cur: 1 << 16, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the call reads the limit.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const most) }, 0);
        let engine = profiled(&path);
        run(&engine, 2000);
        let ended = engine.shutdown(Shutdown::Drain, None);
        assert!(matches!(&ended, Err(ShutdownError::Profile(at, _)) if *at == path), "{ended:?}");
    });
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_profile_that_cannot_be_written_to_its_end_is_an_error_of_the_shutdown() {
    for name in ["in_a_child_the_reader_of_a_profile_ends", "in_a_child_a_profile_becomes_as_large_as_files_may"] {
        let (success, text) = common::child(name, &[]);
        assert!(success, "{text}");
        assert_eq!(text.matches("could not be written").count(), 1, "{text}");
    }
}
