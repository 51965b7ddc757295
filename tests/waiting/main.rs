//! Waits of every form, the threads that wait, and the ends and pauses of engines.
//!
//! A sanitizer's build (`raddle_sanitized`) contains only what `cargo xtask ci sanitizers` runs.

mod waits_in_place;

#[cfg(not(raddle_sanitized))]
mod cycles;
#[cfg(not(raddle_sanitized))]
mod deadlock;
#[cfg(not(raddle_sanitized))]
mod foreign;
#[cfg(not(raddle_sanitized))]
mod nested_waits;
#[cfg(not(raddle_sanitized))]
mod regain;
#[cfg(not(raddle_sanitized))]
mod shutdown;
#[cfg(not(raddle_sanitized))]
mod stop;
#[cfg(not(raddle_sanitized))]
mod threads;
