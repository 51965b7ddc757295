//! Profiles: traces that a thread writes to a file while the engine runs.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::{
        LazyLock,
        mpsc::{self, RecvTimeoutError},
    },
    time::Duration,
};

use raddle_trace::recording::{Chrome, Exporter, Format, Perfetto};

use super::recorder::Recorder;
use crate::{
    sync::{Mutex, lock},
    system::panics,
};

/// The time between two readings of the rings. Unless the program has set its own recorder, a thread can push and run
/// some 40,000 operations in this time without losing events. Not tuned.
const INTERVAL: Duration = Duration::from_millis(5);

/// A trace that is being written.
#[derive(Debug)]
pub(crate) struct Profile {
    /// The sender, whose drop tells the thread to write the rest and end.
    stop: Mutex<Option<mpsc::Sender<()>>>,
}

impl Profile {
    /// Starts writing what `recorder` records to the file at `path`, in Chrome's format if the name ends in `.json` and
    /// otherwise in Perfetto's. If this process has already written a profile there, a number is added to the name.
    /// `spawn` starts the thread and sees to it that the thread is joined.
    pub(crate) fn begin(
        recorder: &Recorder,
        path: &Path,
        spawn: impl FnOnce(String, Box<dyn FnOnce() + Send>) -> io::Result<()>,
    ) -> io::Result<Self> {
        let path = unused(path);
        let file = BufWriter::new(File::create(&path)?);
        let format: Box<dyn Format + Send> = if path.extension().is_some_and(|extension| extension == "json") {
            Box::new(Chrome::default())
        } else {
            Box::new(Perfetto::default())
        };
        recorder.begin_export();
        let (sender, receiver) = mpsc::channel();
        let shared = recorder.clone();
        let write = move || {
            let written = write(&shared, format, file, &receiver);
            shared.end_export();
            if let Err(error) = written {
                panics::log!(Error, "raddle: the profile {} could not be written: {error}", path.display());
            }
        };
        spawn("raddle-profile".to_owned(), Box::new(write)).inspect_err(|_| recorder.end_export())?;
        Ok(Self { stop: Mutex::new(Some(sender)) })
    }

    /// Tells the thread to write the rest of the trace and end. Does not wait for it, since the caller may not block.
    pub(crate) fn end(&self) {
        drop(lock(&self.stop).take());
    }
}

/// Returns `path`, with a number added to its name if this process has used it before.
fn unused(path: &Path) -> PathBuf {
    static USED: LazyLock<Mutex<HashMap<PathBuf, u32>>> = LazyLock::new(Mutex::default);
    let mut used = lock(&USED);
    let times = used.entry(path.to_owned()).or_insert(0);
    *times += 1;
    if *times == 1 {
        return path.to_owned();
    }
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{times}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// Writes the profile until the sender of `stop` is dropped.
fn write(
    recorder: &Recorder,
    format: Box<dyn Format + Send>,
    mut file: BufWriter<File>,
    stop: &mpsc::Receiver<()>,
) -> io::Result<()> {
    let mut exporter = Exporter::begin(format, &mut file)?;
    let mut lost = 0;
    loop {
        let is_last = matches!(stop.recv_timeout(INTERVAL), Err(RecvTimeoutError::Disconnected));
        let trace = recorder.export();
        lost += trace.lost();
        exporter.add(&mut file, &trace)?;
        if is_last {
            exporter.end(&mut file, &trace)?;
            break;
        }
        // Keeps the file up to date, in case the program is killed.
        file.flush()?;
    }
    if lost > 0 {
        panics::log!(Warn, "raddle: {lost} events came too fast to be written and are missing from the profile");
    }
    Ok(())
}
