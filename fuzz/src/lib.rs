//! What the fuzz targets of raddle run: the same functions as the test `corpus`, from the same files.

#![allow(missing_docs, missing_debug_implementations, reason = "these are modules of tests")]

#[path = "../../tests/common/mod.rs"]
pub mod common;
#[path = "../../tests/harness/mod.rs"]
pub mod harness;
