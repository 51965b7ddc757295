//! The errors of this library.

use std::{fmt, io};

use raddle::{
    PushError, WaitError,
    error::{BuildError, DeviceError},
};

use crate::Shape;

/// An error about an argument's shape, which is wrong or unknown. The error does not yet name the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit(String);

/// An error of this library.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// An argument's shape is wrong or unknown.
    Shape(String),
    /// A name is unknown, or an argument has no array.
    Key(String),
    /// A call or its arguments are invalid.
    Use(String),
    /// The operation is not available on the device, or needs a library that is missing or cannot be used.
    Unavailable(String),
    /// A file of images cannot be used, or a picture cannot be written.
    Data(String),
    /// A loss is not a finite number.
    Loss(String),
    /// The engine refused an operation.
    Push(PushError),
    /// A wait has returned an error: an operation has failed, for instance.
    Wait(WaitError),
    /// A device has returned an error: its memory is exhausted, for instance.
    Device(DeviceError),
    /// An engine could not be built.
    Build(BuildError),
    /// A file could not be written, or a thread could not be started.
    Io(io::Error),
}

impl Misfit {
    /// Returns the error for an argument with the wrong shape.
    pub fn new(argument: &str, expected: impl fmt::Display, found: &[usize]) -> Self {
        Self(format!("the shape of `{argument}` must be {expected}, but is {found:?}"))
    }

    /// Returns the error for an argument whose shape is neither given nor inferred.
    pub fn unknown(argument: &str) -> Self {
        Self(format!("the shape of `{argument}` must be known, but is unknown"))
    }

    /// Adds the operator's name.
    pub fn of(self, operator: &str) -> Error {
        Error::Shape(format!("`{operator}`: {}", self.0))
    }
}

impl Error {
    /// Returns the error for an argument with the wrong shape.
    pub fn shape(operator: &str, argument: &str, expected: impl fmt::Display, found: &[usize]) -> Self {
        Misfit::new(argument, expected, found).of(operator)
    }

    /// Returns an error unless an argument has the expected shape.
    pub(crate) fn check_shape(op: &str, argument: &str, expected: &[usize], found: &[usize]) -> Result<(), Self> {
        if expected == found { Ok(()) } else { Err(Self::shape(op, argument, format!("{expected:?}"), found)) }
    }

    /// Returns the error for a name that is not one of the known ones.
    pub fn key<'k>(problem: &str, key: &str, known: impl IntoIterator<Item = &'k String>) -> Self {
        let known: Vec<&str> = known.into_iter().map(String::as_str).collect();
        Self::Key(format!("{problem}: `{key}`; known names: {}", known.join(", ")))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape(text) | Self::Key(text) | Self::Use(text) => f.write_str(text),
            Self::Unavailable(text) | Self::Data(text) | Self::Loss(text) => f.write_str(text),
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
    ($($source:ty => $variant:ident),+) => {
        $(impl From<$source> for Error {
            fn from(error: $source) -> Self {
                Self::$variant(error)
            }
        })+
    };
}

from!(PushError => Push, WaitError => Wait, DeviceError => Device, BuildError => Build, io::Error => Io);

/// Returns the shape of an input, which must be known.
pub fn known(inputs: &[Option<Shape>], index: usize, argument: &str) -> Result<Shape, Misfit> {
    inputs.get(index).cloned().flatten().ok_or_else(|| Misfit::unknown(argument))
}

/// Records that an argument has the shape `expected`, or returns an error if a different shape is already known.
pub fn settle(slot: &mut Option<Shape>, argument: &str, expected: Shape) -> Result<(), Misfit> {
    let found = slot.get_or_insert_with(|| expected.clone());
    if *found == expected { Ok(()) } else { Err(Misfit::new(argument, format!("{expected:?}"), found)) }
}
