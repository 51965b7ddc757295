//! Large functions and values are moved to the heap where they enter the library, and out of it where they leave.
//!
//! Without optimization, each layer that moves a value copies it to its own stack frame, and there are up to twenty.

/// The size in bytes above which something is moved to the heap. Not tuned.
pub(super) const LARGE: usize = 2 << 10;

/// Evaluates an expression that consumes the function `$f`, of type `$F`, which is boxed first if it is [`LARGE`].
macro_rules! boxed_if_large {
    ($F:ident, $f:ident => $push:expr) => {
        if const { size_of::<$F>() > $crate::api::large::LARGE } {
            let $f = Box::new($f);
            $push
        } else {
            $push
        }
    };
}

/// Evaluates an expression in which `$value`, of type `$T`, is a function that returns it, and keeps it boxed until
/// then if it is [`LARGE`].
macro_rules! kept_boxed_if_large {
    ($T:ty, $value:ident => $push:expr) => {
        if const { size_of::<$T>() > $crate::api::large::LARGE } {
            let $value = Box::new($value);
            let $value = move || *$value;
            $push
        } else {
            let $value = move || $value;
            $push
        }
    };
}

/// Evaluates `$result`, in which `$kept` is a function that boxes a value of type `$T` if it is [`LARGE`], and takes
/// the value out of its box.
macro_rules! unboxed_if_large {
    ($T:ident, $kept:ident => $result:expr) => {
        if const { size_of::<$T>() > $crate::api::large::LARGE } {
            let $kept = Box::<$T>::new;
            // A closure would receive a copy.
            match $result {
                Ok(value) => Ok(*value),
                Err(error) => Err(error),
            }
        } else {
            let $kept = std::convert::identity::<$T>;
            $result
        }
    };
}

/// Evaluates `$pushed`, in which `$kept` is a function that boxes a result of type `$R` if it is [`LARGE`], and returns
/// the handle to the operation, which takes the result out of its box.
macro_rules! handle_unboxing_if_large {
    ($R:ident, $core:expr, $kept:ident => $pushed:expr) => {
        if const { size_of::<$R>() > $crate::api::large::LARGE } {
            let (core, $kept) = ($core, Box::<$R>::new);
            $pushed.map(|shared| OpHandle::of_boxed(shared, core))
        } else {
            let (core, $kept) = ($core, std::convert::identity::<$R>);
            $pushed.map(|shared| OpHandle::new(shared, core))
        }
    };
}

pub(super) use {boxed_if_large, handle_unboxing_if_large, kept_boxed_if_large, unboxed_if_large};
