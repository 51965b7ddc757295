//! The engine's contract, rule by rule, and what a program may rely on beyond it: order, values, names, memory, misuse.
//!
//! A test that ends, measures or modifies its process runs in a process of its own, which `raddle_testkit::child`
//! starts.
//!
//! A sanitizer's build (`raddle_sanitized`) contains only what `cargo xtask ci sanitizers` runs.

mod bad_input;
mod leaks;
mod ordering;
mod panics;
mod semantics;

#[cfg(not(raddle_sanitized))]
mod affinity;
#[cfg(not(raddle_sanitized))]
mod api;
#[cfg(not(raddle_sanitized))]
mod corpus;
#[cfg(not(raddle_sanitized))]
mod doctor;
#[cfg(not(raddle_sanitized))]
mod environment;
#[cfg(not(raddle_sanitized))]
mod fairness;
#[cfg(not(raddle_sanitized))]
mod guarded;
#[cfg(not(raddle_sanitized))]
mod idle;
#[cfg(not(raddle_sanitized))]
mod memory;
#[cfg(not(raddle_sanitized))]
mod names;
#[cfg(not(raddle_sanitized))]
mod plugin;
#[cfg(not(raddle_sanitized))]
mod shuffle;
#[cfg(not(raddle_sanitized))]
mod values;
