//! The engine's contract, rule by rule, and what a program may rely on beyond it: order, values, names, memory, misuse.
//!
//! A test that ends, measures or modifies its process runs in a process of its own, which `raddle_testkit::child`
//! starts.

mod affinity;
mod api;
mod bad_input;
mod commuting;
mod corpus;
mod deferral;
mod doctor;
mod environment;
mod fairness;
mod guarded;
mod idle;
mod leaks;
mod memory;
mod names;
mod newest;
mod ordering;
mod panics;
mod parts;
mod plugin;
mod published;
mod semantics;
mod shuffle;
mod silence;
mod values;
