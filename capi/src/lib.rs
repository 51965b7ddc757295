//! raddle for C and C++: the functions of `raddle.h`, which is made from this crate. See its README for the design.
//!
//! Each module has the functions for one kind of thing. Each function catches panics, and its `# Safety` section
//! numbers what C must promise; a `SAFETY` comment with a number refers to it.

// The names are those of C.
#![allow(non_camel_case_types)]

mod handles;

// In the order of the header.
mod status;

mod name;

mod engine;

mod token;

mod push;

mod wait;

mod failure;

mod group;

mod observe;

pub use engine::*;
pub use failure::*;
pub use group::*;
pub use name::*;
pub use observe::*;
pub use push::*;
pub use status::*;
pub use token::*;
pub use wait::*;

/// The version of this interface: 10,000 for each major version, 100 for each minor one.
pub const RADDLE_VERSION: u32 = 100;
