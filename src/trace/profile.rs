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

use raddle_trace::{
    Trace,
    recording::{Chrome, Export, Exporter, Format, Gathered, Perfetto},
};

use super::{
    profile_file::{ProcessName, ProfileFile},
    recorder::Recorder,
};
use crate::{
    sync::{Mutex, lock},
    system::panics,
};

/// The time between two readings of the rings, unless there is more to read. Unless the program has set its own
/// recorder, a thread can push and run some 40,000 operations in this time without losing events. Not tuned.
const INTERVAL: Duration = Duration::from_millis(5);

/// What is written, and how.
enum Output {
    Trace(Exporter<Box<dyn Format + Send>>),
    /// A report, written at the end.
    Report(Gathered),
}

impl Output {
    /// Writes the beginning of a file, which names this process.
    fn begin(path: &Path, file: &mut impl Write) -> io::Result<Self> {
        let (mark, extension) = (ProcessName::current(), path.extension());
        let format: Box<dyn Format + Send> = match extension.and_then(|extension| extension.to_str()) {
            Some("html") => {
                write!(file, "<!-- {mark} The report is written when the engine ends. -->")?;
                file.flush()?;
                return Ok(Self::Report(Gathered::default()));
            }
            Some("json") => Box::new(Chrome::default()),
            _ => Box::new(Perfetto::default()),
        };
        let mut exporter = Exporter::begin(format, file)?;
        exporter.mark(file, &mark.to_string())?;
        file.flush()?;
        Ok(Self::Trace(exporter))
    }

    fn add(&mut self, file: &mut impl Write, export: Export) -> io::Result<()> {
        match self {
            Self::Trace(exporter) => exporter.add(file, export),
            Self::Report(gathered) => {
                gathered.add(export);
                Ok(())
            }
        }
    }

    fn end(self, file: &mut impl Write, unfinished: Trace) -> io::Result<()> {
        match self {
            Self::Trace(exporter) => exporter.end(file, unfinished),
            Self::Report(gathered) => {
                let program = std::env::current_exe().ok();
                let title = program.as_deref().and_then(Path::file_stem).unwrap_or("profile".as_ref());
                let left_out = gathered.write(&title.to_string_lossy(), file, &unfinished)?;
                if left_out > 0 {
                    panics::log!(Warn, "raddle: {left_out} later operations are missing from the report");
                }
                Ok(())
            }
        }
    }
}

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
    /// Starts writing what `recorder` records to the file at `path`, or to one with a [similar
    /// name](ProfileFile::open), in Chrome's format if the name ends in `.json`, as a report if it ends in `.html`, and
    /// otherwise in Perfetto's format. `spawn` starts the thread and sees to it that the thread is joined.
    pub(crate) fn begin(
        recorder: &Recorder,
        path: &Path,
        may_overwrite: bool,
        spawn: impl FnOnce(String, Box<dyn FnOnce() + Send>) -> io::Result<()>,
    ) -> io::Result<Self> {
        let file = ProfileFile::open(path, may_overwrite)?;
        let path = file.path.clone();
        let mut file = BufWriter::new(file);
        let output = Output::begin(&path, &mut file)?;
        recorder.begin_export();
        let (sender, receiver) = mpsc::channel();
        let (shared, error) = (recorder.clone(), Arc::new(OnceLock::new()));
        let (path_of_thread, error_of_thread) = (path.clone(), Arc::clone(&error));
        let write = move || {
            let written = write(&shared, output, file, &receiver);
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
    mut output: Output,
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
        output.add(&mut file, export)?;
        if is_last && !has_more {
            output.end(&mut file, recorder.unfinished())?;
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
