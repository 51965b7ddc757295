//! The tests of the optional features.

mod bridges;
mod derive;
