//! A logger that passes a test process's messages to hooks.

use std::{
    collections::BTreeMap,
    panic::Location,
    sync::{Arc, PoisonError, RwLock},
};

type Hook = Arc<dyn Fn(&str) + Send + Sync>;

/// The hooks, by the files of the tests that have set them.
static HOOKS: RwLock<BTreeMap<&str, Hook>> = RwLock::new(BTreeMap::new());

struct Logger;

impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        // The lock is not held while the hooks run.
        let hooks: Vec<_> = HOOKS.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        if !hooks.is_empty() {
            let text = record.args().to_string();
            hooks.iter().for_each(|hook| hook(&text));
        }
    }

    fn flush(&self) {}
}

/// Passes this process's log messages to `hook`, in place of the hook that a test of the caller's file has set before.
/// Among the messages are those of concurrent tests.
#[track_caller]
pub fn log_to(hook: impl Fn(&str) + Send + Sync + 'static) {
    HOOKS.write().unwrap_or_else(PoisonError::into_inner).insert(Location::caller().file(), Arc::new(hook));
    if log::set_logger(&Logger).is_ok() {
        log::set_max_level(log::LevelFilter::Trace);
    }
}
