//! The models under loom, one module for each protocol.

#![cfg(any(raddle_loom, raddle_shuttle))]

mod acquire;
mod cancel;
mod complete;
mod completion;
mod delete;
mod devices;
mod family;
mod fork;
mod futures;
mod in_place;
mod injector;
mod loans;
mod pool;
mod push;
mod reclaim;
mod records;
mod shutdown;
mod sleep;
mod threads;
mod variable;
mod waits;
