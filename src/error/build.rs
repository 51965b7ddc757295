//! Why an engine could not be built or shut down.

use std::{error::Error, fmt, path::PathBuf, str::FromStr};

use super::push_error::FORKED;
use crate::values::kind::EngineKind;

/// Why an engine could not be built.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::{EngineKind, error::BuildError};
///
/// let Err(BuildError::UnknownEngine(name)) = "Fast".parse::<EngineKind>() else { panic!("there is no such kind") };
/// assert_eq!(name, "Fast");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// The builder was configured with zero workers, or with zero workers for prioritised operations.
    NoWorkers,
    /// The builder was configured with more workers in a lane than this maximum.
    TooManyWorkers(usize),
    /// The [reserve](crate::EngineBuilder::stack_reserve) of stack is below 64 KiB, or the
    /// [size](crate::EngineBuilder::stack_size) does not exceed it by 128 KiB, or one of them is too large for any
    /// stack.
    Stack {
        /// The size of a stack, in bytes.
        size: usize,
        /// What each function is promised, in bytes.
        reserve: usize,
    },
    /// This string, from `RADDLE_ENGINE` or passed to `parse`, is not the name of a kind of engine.
    UnknownEngine(String),
    /// `RADDLE_SHUFFLE` has this value, which is not a valid seed.
    InvalidSeed(String),
    /// A thread could not be started.
    Thread(std::io::Error),
    /// The builder was configured with more GPUs than this maximum.
    TooManyGpus(usize),
    /// The [profile](crate::EngineBuilder::profile) at this path could not be created, or the thread that writes it
    /// could not be started.
    Profile(PathBuf, std::io::Error),
    /// The [recorder](crate::EngineBuilder::recorder) was made by the process from which this one was forked.
    ForkedRecorder,
    /// Another engine has the [log](crate::EngineBuilder::log), or the process from which this one was forked has
    /// created it.
    LogInUse,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoWorkers => f.write_str("an engine needs at least one worker in each lane; ask for one or more"),
            Self::TooManyWorkers(max) => write!(f, "an engine has at most {max} workers in a lane; ask for fewer"),
            Self::Stack { size, reserve } => write!(
                f,
                "stacks of {size} bytes cannot promise {reserve} to each function; reserve at least 65536, and choose a \
                 size that exceeds the reserve by 131072 (by default, the reserve is a quarter of the size)"
            ),
            Self::UnknownEngine(value) => {
                write!(
                    f,
                    "`{value}` is not a kind of engine; use `Naive`, `Pooled` or `PerDevice` (if it comes from \
                     RADDLE_ENGINE, set or unset that variable)"
                )
            }
            Self::InvalidSeed(value) => {
                write!(f, "RADDLE_SHUFFLE is `{value}`; set it to a whole number, the seed, or unset it")
            }
            Self::TooManyGpus(max) => write!(f, "an engine has at most {max} GPUs; add fewer"),
            Self::Thread(error) => write!(f, "a thread could not be started: {error}"),
            Self::Profile(path, error) => {
                let path = path.display();
                write!(f, "the profile {path} cannot be written: {error}; choose another path, or unset RADDLE_PROFILE")
            }
            Self::LogInUse => f.write_str("the log is that of another engine; create a new one for this engine"),
            Self::ForkedRecorder => {
                f.write_str("the recorder was made before this process was forked; make a new one in this process")
            }
        }
    }
}

impl Error for BuildError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            // The message includes this error, so the chain continues with its source.
            Self::Thread(error) | Self::Profile(_, error) => error.source(),
            _ => None,
        }
    }
}

impl FromStr for EngineKind {
    type Err = BuildError;

    /// Parses `Naive`, `Pooled` or `PerDevice`, ignoring case and surrounding whitespace.
    fn from_str(name: &str) -> Result<Self, BuildError> {
        [EngineKind::Naive, EngineKind::Pooled, EngineKind::PerDevice]
            .into_iter()
            .find(|kind| kind.to_string().eq_ignore_ascii_case(name.trim()))
            .ok_or_else(|| BuildError::UnknownEngine(name.to_owned()))
    }
}

/// Why a shutdown or [stop](crate::Engine::stop) returned before it was complete.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::{Engine, Shutdown, error::ShutdownError};
/// use std::time::Duration;
///
/// let engine = Engine::builder().workers(1).build()?;
/// let (sender, receiver) = std::sync::mpsc::channel::<()>();
/// engine.op("wait").push((), move |()| _ = receiver.recv())?;
/// let timed_out = engine.shutdown(Shutdown::Drain, Some(Duration::from_millis(1)));
/// assert_eq!(timed_out, Err(ShutdownError::TimedOut));
///
/// drop(sender);
/// engine.shutdown(Shutdown::Drain, None)?; // waits again
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShutdownError {
    /// The deadline passed: for a shutdown, while operations were pending; for a stop, while a function was running or
    /// a device was working. A shutdown stays in effect, and another call waits again. A stop is cancelled, and the
    /// engine continues to run.
    TimedOut,
    /// The call would have to wait for its caller: an operation, a logger called by the engine, or a thread-local
    /// destructor on one of the engine's threads. This error is also returned if the caller must not wait or if no
    /// thread could take over the caller's worker. The shutdown continues in the background.
    InsideOperation,
    /// As [`InsideOperation`](Self::InsideOperation), for a stop, which has no effect.
    StopInsideOperation,
    /// No operation was pending, or the engine was stopped, but engine threads with these names had not ended at the
    /// deadline. They were still running program code or had too little time to end. The code may be an asynchronous
    /// operation's function that continues after completion, a thread-local destructor or a logger. The threads end
    /// when that code returns. Another call waits again; dropping the engine does not wait for these threads.
    ThreadsLeft(Vec<String>),
    /// This is a forked child of the process that built the engine and has none of the engine's threads. The call has
    /// no effect.
    Forked,
    /// The engine has ended, but its [profile](crate::EngineBuilder::profile) at this path is incomplete, for this
    /// reason: the file could not be written.
    Profile(PathBuf, String),
    /// The engine has ended, but the file of its [log](crate::EngineBuilder::log) at this path is incomplete, for this
    /// reason.
    Log(PathBuf, String),
}

impl fmt::Display for ShutdownError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut => {
                f.write_str("operations had not ended at the deadline; a shutdown continues, and a stop is cancelled")
            }
            Self::Forked => f.write_str(FORKED),
            Self::InsideOperation => f.write_str(
                "a call inside an operation cannot wait for that operation; a shutdown continues in the background",
            ),
            Self::StopInsideOperation => f.write_str(
                "a stop inside an operation cannot wait for that operation and has no effect; call `stop` outside",
            ),
            Self::ThreadsLeft(names) => {
                write!(f, "no operation is running, but threads had not ended at the deadline: {}", names.join(", "))
            }
            Self::Profile(path, error) => {
                write!(f, "the engine has ended, but its profile {} is incomplete: {error}", path.display())
            }
            Self::Log(path, error) => {
                write!(f, "the engine has ended, but its log {} is incomplete: {error}", path.display())
            }
        }
    }
}

impl Error for ShutdownError {}
