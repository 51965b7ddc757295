//! The errors of this library.

use std::{fmt, io};

use raddle::{BuildError, DeviceError, PushError, WaitError};

use crate::Shape;

/// An argument with the wrong shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// The argument, such as `weight`.
    pub argument: String,
    /// The expected shape.
    pub expected: String,
    /// The actual shape.
    pub found: String,
}

/// An error of this library.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// An argument has the wrong shape.
    Shape {
        /// The operator to be applied.
        operator: String,
        /// The argument and its shapes.
        misfit: Misfit,
    },
    /// A name is unknown, or an argument has no array.
    Key {
        /// The problem with the name.
        problem: String,
        /// The name.
        key: String,
        /// The known names.
        known: Vec<String>,
    },
    /// An operation's description is invalid.
    Use(String),
    /// The operation does not exist on the device, or needs a library that is missing.
    Unavailable(String),
    /// A file with data cannot be used.
    Data(String),
    /// A loss is not a finite number.
    Loss(String),
    /// The engine refused an operation.
    Push(PushError),
    /// An operation has failed.
    Wait(WaitError),
    /// A device could not allocate memory.
    Device(DeviceError),
    /// An engine could not be built.
    Build(BuildError),
    /// A file could not be read or written.
    Io(io::Error),
}

impl Misfit {
    /// Returns the error for an argument with the wrong shape.
    pub fn new(argument: &str, expected: impl Into<String>, found: &[usize]) -> Self {
        Self { argument: argument.into(), expected: expected.into(), found: format!("{found:?}") }
    }

    /// Returns the error for an argument whose shape does not follow from those of others.
    pub fn unknown(argument: &str) -> Self {
        Self { argument: argument.into(), expected: "known".into(), found: "unknown".into() }
    }

    /// Adds the operator.
    pub fn of(self, operator: impl Into<String>) -> Error {
        Error::Shape { operator: operator.into(), misfit: self }
    }
}

impl Error {
    /// Returns the error for an argument with the wrong shape.
    pub fn shape(operator: &str, argument: &str, expected: impl Into<String>, found: &[usize]) -> Self {
        Misfit::new(argument, expected, found).of(operator)
    }

    /// Returns the error for a name that is not one of the known ones.
    pub fn key<'k>(problem: &str, key: &str, known: impl IntoIterator<Item = &'k String>) -> Self {
        Self::Key { problem: problem.into(), key: key.into(), known: known.into_iter().cloned().collect() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape { operator, misfit: Misfit { argument, expected, found } } => {
                write!(f, "`{operator}`: the shape of `{argument}` must be {expected}, but is {found}")
            }
            Self::Key { problem, key, known } => write!(f, "{problem}: `{key}`; known names: {}", known.join(", ")),
            Self::Use(text) | Self::Unavailable(text) | Self::Data(text) | Self::Loss(text) => f.write_str(text),
            Self::Push(error) => error.fmt(f),
            Self::Wait(error) => error.fmt(f),
            Self::Device(error) => error.fmt(f),
            Self::Build(error) => error.fmt(f),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

macro_rules! from {
    ($($source:ident $variant:ident),+) => {
        $(impl From<$source> for Error {
            fn from(error: $source) -> Self {
                Self::$variant(error)
            }
        })+
    };
}

type IoError = io::Error;
from!(PushError Push, WaitError Wait, DeviceError Device, BuildError Build, IoError Io);

/// Returns the shape of an input, which must be known.
pub fn known(inputs: &[Option<Shape>], index: usize, argument: &str) -> Result<Shape, Misfit> {
    inputs[index].clone().ok_or_else(|| Misfit::unknown(argument))
}

/// Records that an argument has the shape `expected`, or returns an error if a different shape is already known.
pub fn settle(slot: &mut Option<Shape>, argument: &str, expected: Shape) -> Result<(), Misfit> {
    match slot {
        Some(found) if *found != expected => Err(Misfit::new(argument, format!("{expected:?}"), found)),
        _ => {
            *slot = Some(expected);
            Ok(())
        }
    }
}
