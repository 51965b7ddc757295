//! Cores: which ones a thread may use, which are near a device, which have pinned workers, and how a thread is pinned.
//!
//! The pinned workers are counted per process. The count is not part of any protocol, so it uses `std` even in models.

use std::{
    fs,
    num::NonZero,
    ops::RangeInclusive,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use core_affinity::CoreId;

use crate::sync::process::{PerProcess, ProcessMark};

/// Where a worker runs.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::{Engine, system::Placement};
///
/// let engine = Engine::builder().build()?;
/// let pinned = engine.placements().iter().filter(|placement| matches!(placement, Placement::Pinned(_)));
/// println!("{} workers have a core of their own", pinned.count());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placement {
    /// On this core only.
    Pinned(usize),
    /// Unpinned: pinning was not requested, or there are more workers than cores.
    Unpinned,
    /// Unpinned, because the operating system refused this core.
    Refused(usize),
}

/// Returns the cores that Linux reports as near the device with this PCI address; none on other systems.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub(crate) fn cores_near(pci_address: &str) -> Vec<usize> {
    let list = fs::read_to_string(format!("/sys/bus/pci/devices/{pci_address}/local_cpulist"));
    list.ok().and_then(|list| parse(&list)).unwrap_or_default()
}

/// Parses a list in the kernel's format: `0-3,8,10-11`.
fn parse(list: &str) -> Option<Vec<usize>> {
    let range = |part: &str| -> Option<RangeInclusive<usize>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok().filter(|&last| last < MAX_CORES)?)
    };
    let list = list.trim();
    if list.is_empty() {
        return Some(Vec::new());
    }
    let ranges: Option<Vec<_>> = list.split(',').map(range).collect();
    Some(ranges?.into_iter().flatten().collect())
}

/// The number of cores for which Linux's mask has a bit.
const MAX_CORES: usize = 1024;

/// Whether a thread that was pinned to one core can be unpinned.
pub(crate) const CAN_WIDEN: bool = cfg!(all(target_os = "linux", not(any(miri, raddle_loom, raddle_shuttle))));

/// Returns the cores that the calling thread may use, in ascending order; none if unknown.
pub(crate) fn allowed() -> Box<[usize]> {
    if cfg!(any(miri, raddle_loom, raddle_shuttle)) {
        return Box::default();
    }
    let mut cores: Vec<usize> = core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect();
    cores.sort_unstable();
    cores.into()
}

/// Pins the calling thread to `core`. Returns `false` if the operating system refuses.
pub(crate) fn keep_to_one(core: usize) -> bool {
    core_affinity::set_for_current(CoreId { id: core })
}

/// Restricts the calling thread to `cores`. Returns `false` if `cores` is empty or the operating system refuses.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn keep_to(cores: &[usize]) -> bool {
    // SAFETY: a mask is an array of bits, for which zero is valid.
    let mut mask: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &core in cores.iter().filter(|&&core| core < MAX_CORES) {
        // SAFETY: the mask has a bit for the core.
        unsafe { libc::CPU_SET(core, &mut mask) };
    }
    // SAFETY: the mask is valid for its size, and 0 is the calling thread.
    !cores.is_empty() && unsafe { libc::sched_setaffinity(0, size_of_val(&mask), &raw const mask) == 0 }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) fn keep_to(_cores: &[usize]) -> bool {
    false
}

/// Returns the elements common to both lists.
pub(crate) fn common(some: &[usize], others: &[usize]) -> Vec<usize> {
    some.iter().copied().filter(|core| others.contains(core)).collect()
}

/// Returns how many threads can compute simultaneously on `cores`, within the process's control group quota.
pub(crate) fn parallelism(cores: &[usize]) -> usize {
    // The standard library counts the cores available to the calling thread, which may be restricted to the core of an
    // engine's worker.
    let before = allowed();
    let _restored = (*before != *cores && keep_to(cores)).then(|| RestoreAffinity(before));
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// A guard that restricts the calling thread to these cores again when dropped.
struct RestoreAffinity(Box<[usize]>);

impl Drop for RestoreAffinity {
    fn drop(&mut self) {
        let _ = keep_to(&self.0);
    }
}

/// The number of pinned workers on each core, across all engines in the process. A forked child starts with none.
static PINNED: PerProcess<Mutex<Vec<usize>>> = PerProcess::new();

fn pinned() -> MutexGuard<'static, Vec<usize>> {
    PINNED.get(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pinned worker's claim to a core, valid until it is given back or dropped.
#[derive(Debug)]
pub(crate) struct CoreClaim {
    pub(crate) core: usize,
    given_back: AtomicBool,
    process: ProcessMark,
}

/// Whether no engine of this process has pinned a worker to one of `cores`.
pub(crate) fn are_free(cores: &[usize]) -> bool {
    let pinned = pinned();
    cores.iter().all(|&core| pinned.get(core).is_none_or(|&workers| workers == 0))
}

/// Claims `count` of `cores`, or all of them if there are fewer: those with the fewest pinned workers and, among
/// equals, the lowest numbers. The claims are in ascending order.
pub(crate) fn claim(cores: &[usize], count: usize) -> Vec<CoreClaim> {
    let mut pinned = pinned();
    let most = cores.iter().max().map_or(0, |core| core + 1);
    if pinned.len() < most {
        pinned.resize(most, 0);
    }
    let mut chosen = cores.to_vec();
    chosen.sort_by_key(|&core| (pinned[core], core));
    chosen.truncate(count);
    chosen.sort_unstable();
    chosen.iter().for_each(|&core| pinned[core] += 1);
    let process = ProcessMark::current();
    chosen.into_iter().map(|core| CoreClaim { core, given_back: AtomicBool::new(false), process }).collect()
}

impl CoreClaim {
    /// Gives the core back. Further calls do nothing.
    pub(crate) fn give_back(&self) {
        // Relaxed: this only decides which call changes the count, which a lock protects.
        if !self.given_back.swap(true, Relaxed) && !self.process.is_foreign() {
            pinned()[self.core] -= 1;
        }
    }
}

impl Drop for CoreClaim {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(all(test, not(any(raddle_loom, raddle_shuttle, miri))))]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_parsed_in_the_kernels_format() {
        assert_eq!(parse("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse("7"), Some(vec![7]));
        assert_eq!(parse("\n"), Some(vec![]));
        for wrong in ["a", "1-", "-1", "1,,2", "0-99999999999", "0-1024"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_absent_device_has_no_near_cores() {
        assert!(cores_near("ffff:ff:1f.7").is_empty());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_is_restricted_to_the_given_cores() {
        let kept = std::thread::spawn(|| {
            let before = allowed();
            assert!(!before.is_empty(), "Linux reports no cores");
            assert!(!keep_to(&[]), "an empty set must be refused");
            assert!(!keep_to(&[MAX_CORES]), "a core that does not exist was accepted");
            assert!(keep_to(&[before[0], MAX_CORES + 1]));
            assert_eq!(common(&before, &allowed()), before[..1]);
            assert_eq!(
                parallelism(&before),
                std::thread::spawn(move || {
                    assert!(keep_to(&before));
                    std::thread::available_parallelism().map_or(1, NonZero::get)
                })
                .join()
                .expect("the thread should not panic")
            );
            assert_eq!(allowed().len(), 1, "asking for other cores must not move the thread");
        });
        kept.join().expect("the thread should not panic");
    }

    #[test]
    fn the_least_used_cores_are_claimed_first_and_given_back_once() {
        // Cores that no test's engine uses.
        let cores = [2000, 2001, 2002];
        let numbers = |claims: &[CoreClaim]| claims.iter().map(|claim| claim.core).collect::<Vec<_>>();
        let one = claim(&cores, 1);
        assert_eq!(numbers(&one), [2000]);
        let two = claim(&cores, 2);
        assert_eq!(numbers(&two), [2001, 2002]);
        let all = claim(&cores, 5);
        assert_eq!(numbers(&all), cores);
        two[1].give_back();
        two[1].give_back();
        drop(two);
        assert_eq!(numbers(&claim(&cores, 2)), [2001, 2002]);
        drop((one, all));
        assert_eq!(numbers(&claim(&cores, 1)), [2000]);
        assert!(claim(&[], 3).is_empty());
    }
}
