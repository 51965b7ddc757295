//! Profiles: traces that a thread writes to a file while the engine runs.

use std::{
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        mpsc::{self, RecvTimeoutError},
    },
    time::Duration,
};

use raddle_trace::recording::{Chrome, Exporter, Format, Perfetto};

use super::{
    profile_file::{ProcessName, ProfileFile},
    recorder::Recorder,
};
use crate::{
    sync::{Mutex, lock},
    system::panics,
};

/// The time between two readings of the rings, unless there is more to read. Unless the program has set its own recorder,
/// a thread can push and run some 40,000 operations in this time without losing events. Not tuned.
const INTERVAL: Duration = Duration::from_millis(5);

/// A trace that is being written.
#[derive(Debug)]
pub(crate) struct Profile {
    /// The sender, whose drop tells the thread to write the rest and end.
    stop: Mutex<Option<mpsc::Sender<()>>>,
    path: PathBuf,
    /// Why the file could not be written, if so.
    error: Arc<OnceLock<String>>,
}

impl Profile {
    /// Starts writing what `recorder` records to the file at `path`, or to one with a [similar name](ProfileFile::open),
    /// in Chrome's format if the name ends in `.json` and otherwise in Perfetto's. `spawn` starts the thread and sees to
    /// it that the thread is joined.
    pub(crate) fn begin(
        recorder: &Recorder,
        path: &Path,
        may_overwrite: bool,
        spawn: impl FnOnce(String, Box<dyn FnOnce() + Send>) -> io::Result<()>,
    ) -> io::Result<Self> {
        let file = ProfileFile::open(path, may_overwrite)?;
        let path = file.path.clone();
        let format: Box<dyn Format + Send> =
            if file.is_chrome() { Box::new(Chrome::default()) } else { Box::new(Perfetto::default()) };
        let mut file = BufWriter::new(file);
        let mut exporter = Exporter::begin(format, &mut file)?;
        exporter.mark(&mut file, &ProcessName::current().to_string())?;
        file.flush()?;
        recorder.begin_export();
        let (sender, receiver) = mpsc::channel();
        let (shared, error) = (recorder.clone(), Arc::new(OnceLock::new()));
        let (path_of_thread, error_of_thread) = (path.clone(), Arc::clone(&error));
        let write = move || {
            let written = write(&shared, exporter, file, &receiver);
            shared.end_export();
            if let Err(error) = written {
                let path = path_of_thread.display();
                let error = error_of_thread.get_or_init(|| error.to_string());
                panics::log!(Error, "raddle: the profile {path} could not be written: {error}");
            }
        };
        spawn("raddle-profile".to_owned(), Box::new(write)).inspect_err(|_| recorder.end_export())?;
        Ok(Self { stop: Mutex::new(Some(sender)), path, error })
    }

    /// Tells the thread to write the rest of the trace and end. Does not wait for it, since the caller may not block.
    pub(crate) fn end(&self) {
        drop(lock(&self.stop).take());
    }

    /// Returns the path of the file, and why it could not be written, if so.
    pub(crate) fn error(&self) -> Option<(&Path, &str)> {
        Some((&self.path, self.error.get()?))
    }
}

/// Writes the profile until the sender of `stop` is dropped.
fn write(
    recorder: &Recorder,
    mut exporter: Exporter<Box<dyn Format + Send>>,
    mut file: BufWriter<ProfileFile>,
    stop: &mpsc::Receiver<()>,
) -> io::Result<()> {
    let (mut lost, mut has_more) = (0, false);
    loop {
        let pause = if has_more { Duration::ZERO } else { INTERVAL };
        let is_last = matches!(stop.recv_timeout(pause), Err(RecvTimeoutError::Disconnected));
        let export;
        (export, has_more) = recorder.export();
        lost += export.trace.lost();
        exporter.add(&mut file, export)?;
        if is_last && !has_more {
            exporter.end(&mut file, recorder.unfinished())?;
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
