//! How a GPU lane's thread waits between two polls of its stream: it pauses, then yields, then sleeps.

use crate::sync::hint;

/// The wait between two polls of a stream that has made no progress.
#[derive(Debug)]
pub(super) struct Backoff {
    #[cfg(not(any(raddle_loom, raddle_shuttle)))]
    since: std::time::Instant,
    #[cfg(not(any(raddle_loom, raddle_shuttle)))]
    probed: std::time::Instant,
    looks: u32,
}

/// The number of polls with only a pause between them, about 10 µs in all. After these, the thread yields the processor
/// between polls.
const EAGER_LOOKS: u32 = 200;

/// How long a stream must make no progress before it is polled less often.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
const QUIET: std::time::Duration = std::time::Duration::from_millis(1);

/// The time between two polls of a quiet stream, and so the longest delay that sleeping adds to the issue of an
/// operation.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
const NAP: std::time::Duration = std::time::Duration::from_micros(50);

/// The time between two probes of a stream that makes no progress. A fault should be reported within 5 ms.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
const PROBE: std::time::Duration = std::time::Duration::from_millis(1);

impl Backoff {
    /// Starts over, since the stream has made progress or received work.
    pub(super) fn renew(&mut self) {
        self.looks = 0;
    }
}

#[cfg(not(any(raddle_loom, raddle_shuttle)))]
impl Backoff {
    pub(super) fn new() -> Self {
        let now = std::time::Instant::now();
        Self { since: now, probed: now, looks: 0 }
    }

    pub(super) fn wants_probe(&mut self) -> bool {
        if self.looks < EAGER_LOOKS {
            return false;
        }
        let now = std::time::Instant::now();
        let wants = now - self.probed >= PROBE;
        if wants {
            self.probed = now;
        }
        wants
    }

    pub(super) fn wait(&mut self) {
        self.looks = self.looks.saturating_add(1);
        if self.looks < EAGER_LOOKS {
            hint::spin_loop();
            return;
        }
        let now = std::time::Instant::now();
        if self.looks == EAGER_LOOKS {
            self.since = now;
        }
        if now - self.since < QUIET {
            crate::sync::thread::yield_now();
        } else {
            crate::sync::thread::sleep_sharply(NAP);
        }
    }
}

/// Models have no clock: every poll that finds no progress yields, and probes the stream.
#[cfg(any(raddle_loom, raddle_shuttle))]
impl Backoff {
    pub(super) fn new() -> Self {
        let _ = EAGER_LOOKS;
        Self { looks: 0 }
    }

    pub(super) fn wants_probe(&mut self) -> bool {
        self.looks > 0
    }

    pub(super) fn wait(&mut self) {
        self.looks = self.looks.saturating_add(1);
        hint::spin_loop();
    }
}
