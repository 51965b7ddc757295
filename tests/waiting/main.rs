//! Waits of every form, the threads that wait, and the ends and pauses of engines.

mod cycles;
mod deadlock;
mod foreign;
mod nested_waits;
mod regain;
mod shutdown;
mod stacks;
mod stop;
mod threads;
mod waits_in_place;
