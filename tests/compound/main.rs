//! Operations that consist of others or belong to others: futures, children, scopes, groups.
//!
//! A sanitizer's build (`raddle_sanitized`) contains only what `cargo xtask ci sanitizers` runs.

mod cancellation;
mod children;
mod scopes;

#[cfg(not(raddle_sanitized))]
mod backpressure;
#[cfg(not(raddle_sanitized))]
mod futures;
