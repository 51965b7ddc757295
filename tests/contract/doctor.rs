//! What [`raddle::system::doctor`] finds agrees with what the system says.

#![forbid(unsafe_code)]
#![cfg(all(target_os = "linux", not(miri)))]

use std::{fs, time::Instant};

use raddle::system::{Diagnosis, doctor};
use raddle_testkit::timer_slack;

/// Returns what was found about `about`.
#[track_caller]
fn found<'d>(diagnosis: &'d Diagnosis, about: &str) -> &'d str {
    let finding = diagnosis.findings().iter().find(|finding| finding.about == about);
    &finding.unwrap_or_else(|| panic!("nothing was found about {about}: {diagnosis}")).found
}

#[test]
fn the_clock_is_measured_and_is_the_counter_if_that_is_constant() {
    let start = Instant::now();
    let diagnosis = doctor();
    let took = start.elapsed();
    let clock = found(&diagnosis, "clock");
    let each = clock.split_once("read in ").and_then(|(_, each)| each.split(' ').next()?.parse::<u128>().ok());
    // The time is the mean of a thousand readings, which are part of the diagnosis.
    assert!(each.is_some_and(|each| each > 0 && 1000 * each <= took.as_nanos()), "{clock}, of {took:?} in all");
    // Linux and the library read the same bit of the processor.
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if processors.split_whitespace().any(|flag| flag == "nonstop_tsc") {
        assert!(clock.ends_with("traces read the time stamp counter"), "{clock}");
    }
}

#[test]
fn wake_ups_and_sleeps_are_measured() {
    let diagnosis = doctor();
    for about in ["waking a thread", "sleeping"] {
        let times = found(&diagnosis, about);
        assert!(!times.contains(" 0.0ns"), "{about}: {times}");
    }
}

#[test]
fn threads_can_be_pinned_to_the_cores_that_they_may_use() {
    assert_eq!(found(&doctor(), "pinning"), "threads can be pinned to every core");
}

#[test]
fn the_timer_slack_is_that_of_the_calling_thread() {
    let diagnosis = doctor();
    let text = found(&diagnosis, "timer slack");
    assert_eq!(text.split(' ').next(), Some(&*timer_slack().to_string()), "{text}");
}

#[test]
fn a_driver_for_gpus_is_found_where_there_is_one() {
    let diagnosis = doctor();
    let gpus = found(&diagnosis, "GPUs");
    match fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default().lines().next() {
        Some(driver) => assert!(gpus.contains(driver.trim()), "{gpus}"),
        None => assert!(gpus.starts_with("no NVIDIA driver"), "{gpus}"),
    }
}
