//! Why an engine could not be built or shut down.

use std::{error::Error, fmt, str::FromStr};

use super::push::FORKED;
use crate::values::kind::EngineKind;

/// Why an engine could not be built.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// Zero workers were asked for.
    NoWorkers,
    /// More workers were asked for than the given maximum.
    TooManyWorkers(usize),
    /// `RADDLE_ENGINE` names no kind of engine.
    UnknownEngine(String),
    /// A thread could not be started.
    Thread(std::io::Error),
    /// More GPUs were given than the given maximum.
    TooManyGpus(usize),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoWorkers => f.write_str("an engine needs at least one worker in each lane"),
            Self::TooManyWorkers(max) => write!(f, "an engine has at most {max} workers in a lane"),
            Self::UnknownEngine(value) => {
                write!(f, "RADDLE_ENGINE is `{value}`; it may be `Naive`, `Pooled` or `PerDevice`")
            }
            Self::TooManyGpus(max) => write!(f, "an engine has at most {max} GPUs"),
            Self::Thread(error) => write!(f, "a worker thread could not be started: {error}"),
        }
    }
}

impl Error for BuildError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            // The message has the error.
            Self::Thread(error) => error.source(),
            _ => None,
        }
    }
}

impl FromStr for EngineKind {
    type Err = BuildError;

    /// Reads `Naive`, `Pooled` or `PerDevice`, in any case.
    fn from_str(name: &str) -> Result<Self, BuildError> {
        [EngineKind::Naive, EngineKind::Pooled, EngineKind::PerDevice]
            .into_iter()
            .find(|kind| kind.to_string().eq_ignore_ascii_case(name.trim()))
            .ok_or_else(|| BuildError::UnknownEngine(name.to_owned()))
    }
}

/// Why a shutdown did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShutdownError {
    /// The deadline passed while operations were pending. The shutdown goes on by itself; calling it again waits again.
    TimedOut,
    /// It was called inside an operation, which it would have to wait for, in a logger that the engine calls, or in a
    /// destructor of a thread-local of one of its threads. The shutdown goes on by itself.
    InsideOperation,
    /// Nothing was pending any more, but threads of the engine had not ended at the deadline. These are their names.
    /// They are in code of the program, such as the function of an asynchronous operation that goes on after its
    /// completion, a destructor of a thread-local, or a logger; or there was no time for them to end. They keep what
    /// they use, and end when that code returns. Calling it again waits again; dropping the engine does not wait for
    /// them.
    ThreadsLeft(Vec<String>),
    /// The engine was made before this process was forked from the one that has its threads. There is nothing to shut
    /// down.
    Forked,
}

impl fmt::Display for ShutdownError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut => f.write_str("operations were still pending at the deadline of the shutdown"),
            Self::Forked => f.write_str(FORKED),
            Self::InsideOperation => {
                f.write_str("a shutdown inside an operation cannot wait for that operation; it goes on by itself")
            }
            Self::ThreadsLeft(names) => {
                write!(
                    f,
                    "nothing is pending, but threads had not ended at the deadline of the shutdown: {}",
                    names.join(", ")
                )
            }
        }
    }
}

impl Error for ShutdownError {}
