//! A logger that passes a test process's messages to a hook.

use std::sync::{Arc, PoisonError, RwLock};

type Hook = Arc<dyn Fn(&str) + Send + Sync>;

static HOOK: RwLock<Option<Hook>> = RwLock::new(None);

struct Logger;

impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let hook = HOOK.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(hook) = hook {
            hook(&record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// Passes this process's log messages to `hook`.
pub fn log_to(hook: impl Fn(&str) + Send + Sync + 'static) {
    *HOOK.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(hook));
    if log::set_logger(&Logger).is_ok() {
        log::set_max_level(log::LevelFilter::Trace);
    }
}
