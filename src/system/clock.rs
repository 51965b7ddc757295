//! A clock for the recorder: the processor's time stamp counter where usable, and [`Instant`] elsewhere.
//!
//! On x86-64, reading the counter takes about 10 ns, less than half as long as [`Instant::now`]. The counter is used if
//! the processor reports that it runs at a constant rate in every power state ("invariant": Intel, Software Developer's
//! Manual, volume 3, section 19.17.1; AMD, Architecture Programmer's Manual, volume 3, function 8000 0007 of CPUID).
//! Linux compares the counters of all cores with each other and with another clock, and stops using them if they
//! differ; then they are not used here either. Two readings ordered by a message between threads have never been
//! observed out of order.

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

/// The minimum time over which the counter's rate is measured. The errors of two readings of [`Instant`] add up to
/// about 50 ns, or 5 ppm of this time.
const MIN_MEASURED: Duration = Duration::from_millis(10);

/// Returns the clock's time, in ticks since an arbitrary moment.
#[inline]
pub(crate) fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if has_constant_counter() {
        // SAFETY: every x86-64 processor has the instruction.
        return unsafe { std::arch::x86_64::_rdtsc() };
    }
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Whether the clock is the time stamp counter.
pub(crate) fn reads_counter() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    return has_constant_counter();
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    false
}

/// Whether the time stamp counter runs at a constant rate.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn has_constant_counter() -> bool {
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

    const UNKNOWN: u8 = 0;
    const CONSTANT: u8 = 1;
    const VARYING: u8 = 2;
    static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);

    #[cold]
    fn find_out() -> bool {
        #[allow(unused_unsafe)] // The call is safe in later versions of Rust.
        // SAFETY: every x86-64 processor has the instruction.
        let cpuid = |leaf| unsafe { std::arch::x86_64::__cpuid(leaf) };
        let constant = cpuid(0x8000_0000).eax >= 0x8000_0007 && cpuid(0x8000_0007).edx & 1 << 8 != 0;
        let constant = constant && !kernel_source().is_some_and(|source| replaces_counter(&source));
        let found = if constant { CONSTANT } else { VARYING };
        // Relaxed: only the value counts. All threads use the same clock, also if the kernel changes its own meanwhile.
        KNOWN.compare_exchange(UNKNOWN, found, Relaxed, Relaxed).map_or_else(|known| known, |_| found) == CONSTANT
    }

    // Relaxed: only the value counts.
    match KNOWN.load(Relaxed) {
        CONSTANT => true,
        VARYING => false,
        _ => find_out(),
    }
}

/// Returns the name of the clock that Linux uses.
pub(super) fn kernel_source() -> Option<String> {
    std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource").ok()
}

/// Whether Linux uses this clock only on machines whose time stamp counters it has found to be unusable. The clocks of
/// virtual machines are computed from the counter.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn replaces_counter(source: &str) -> bool {
    ["hpet", "acpi_pm", "refined-jiffies", "jiffies"].contains(&source.trim())
}

/// The number of attempts to read both clocks at the same time. Not tuned: a few suffice for one that is not
/// interrupted.
const ATTEMPTS: usize = 5;

/// Reads [`Instant`] and the ticks at the same time, as nearly as possible in a few attempts.
fn both() -> (Instant, u64) {
    // The first reading in a process finds out which clock to use, which takes microseconds on a virtual machine.
    let _ = ticks();
    let attempt = |_| {
        let (before, at, after) = (Instant::now(), ticks(), Instant::now());
        let took = after.duration_since(before);
        (took, before + took / 2, at)
    };
    let (_, instant, at) = (0..ATTEMPTS).map(attempt).min().expect("there are attempts");
    (instant, at)
}

/// A clock that converts ticks into times since its creation.
#[derive(Debug)]
pub(crate) struct TraceClock {
    start: Instant,
    first: u64,
    /// Nanoseconds per tick, measured once, so that later times agree with earlier ones.
    rate: OnceLock<f64>,
}

impl TraceClock {
    pub(crate) fn new() -> Self {
        let (start, first) = both();
        Self { start, first, rate: OnceLock::new() }
    }

    /// Returns the ticks since the clock's creation.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        // Another core's counter may lag by a few ticks.
        ticks().saturating_sub(self.first)
    }

    /// Converts ticks returned by [`now`](Self::now) into the time since the clock's creation. The first call may sleep
    /// for some milliseconds to measure the rate.
    pub(crate) fn time(&self, now: u64) -> Duration {
        let rate = self.rate.get_or_init(|| {
            if let Some(missing) = MIN_MEASURED.checked_sub(self.start.elapsed()) {
                std::thread::sleep(missing);
            }
            let (now, at) = both();
            let passed = now.saturating_duration_since(self.start);
            passed.as_nanos() as f64 / at.saturating_sub(self.first).max(1) as f64
        });
        Duration::from_nanos((now as f64 * rate) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_agrees_with_instant() {
        let clock = TraceClock::new();
        let _ = clock.time(0);
        let start = (clock.now(), Instant::now());
        std::thread::sleep(Duration::from_millis(50));
        let end = (clock.now(), Instant::now());
        let (measured, expected) = (clock.time(end.0) - clock.time(start.0), end.1 - start.1);
        let error = measured.abs_diff(expected);
        assert!(error < Duration::from_micros(500), "{measured:?} instead of {expected:?}");
    }

    /// The first clock of a process is the one whose readings begin with what is done once. The two readings of each
    /// clock may be interrupted, so there are several attempts.
    #[test]
    fn the_rate_of_a_clock_is_measured_to_a_few_millionths() {
        let off = || {
            let clock = TraceClock::new();
            let _ = clock.time(0);
            std::thread::sleep(Duration::from_millis(200));
            let (now, ticks) = both();
            let passed = now.duration_since(clock.start).as_nanos() as f64;
            let measured = clock.time(ticks - clock.first).as_nanos() as f64;
            (measured / passed - 1.0).abs() * 1e6
        };
        let offs: Vec<_> = (0..5).map(|_| off()).collect();
        assert!(offs.iter().any(|off| *off < 20.0), "off by {offs:?} millionths");
    }

    #[test]
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn the_counter_is_not_used_where_the_kernel_has_given_it_up() {
        assert!(["hpet\n", "acpi_pm\n"].map(replaces_counter).iter().all(|replaces| *replaces));
        assert!(
            ["tsc\n", "kvm-clock\n", "hyperv_clocksource_tsc_page\n", "xen\n", ""]
                .map(replaces_counter)
                .iter()
                .all(|replaces| !replaces)
        );
    }

    #[test]
    fn readings_never_go_back() {
        let mut last = ticks();
        for _ in 0..100_000 {
            let now = ticks();
            assert!(now >= last, "{now} after {last}");
            last = now;
        }
    }
}
