//! The planted bugs, and raddle's own tests, unchanged, in one program: the instrumented code that they share is
//! compiled once.

mod planted;

#[path = "../../../tests/bad_input/main.rs"]
mod bad_input;
#[path = "../../../tests/cancellation.rs"]
mod cancellation;
#[path = "../../../tests/children.rs"]
mod children;
#[path = "../../../tests/deadlock.rs"]
mod deadlock;
#[path = "../../../tests/devices/main.rs"]
mod devices;
#[path = "../../../tests/dump.rs"]
mod dump;
#[path = "../../../tests/leaks.rs"]
mod leaks;
#[path = "../../../tests/ordering.rs"]
mod ordering;
#[path = "../../../tests/scopes.rs"]
mod scopes;
#[path = "../../../tests/semantics/main.rs"]
mod semantics;
#[path = "../../../tests/stop.rs"]
mod stop;
#[path = "../../../tests/traces.rs"]
mod traces;
#[path = "../../../tests/waits_in_place.rs"]
mod waits_in_place;
