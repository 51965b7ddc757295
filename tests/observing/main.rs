//! What an engine shows of itself: traces, dumps, files for other programs, reports of watchdogs.

mod dump;
mod files;
mod memory;
mod profiles;
mod replay;
mod traces;
mod watchdog;
