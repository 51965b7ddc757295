//! Cores: which ones a thread may use, which are near a device, and how a thread is pinned.

use std::{fs, num::NonZero, ops::RangeInclusive, path::Path};

use core_affinity::CoreId;

use super::core_set::{CoreSet, MAX_CORES};

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

impl Placement {
    /// Returns the core on which the worker is pinned.
    pub(crate) fn core(self) -> Option<usize> {
        if let Self::Pinned(core) = self { Some(core) } else { None }
    }
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
    if CAN_WIDEN {
        return CoreSet::new(&[core]).keep_thread();
    }
    core_affinity::set_for_current(CoreId { id: core })
}

/// Returns `cores` in the order in which an engine with fewer workers uses them: first one logical core of each
/// physical core, those of one package after those of another.
pub(super) fn spread(cores: &[usize]) -> Vec<usize> {
    spread_by(cores, Path::new("/sys/devices/system/cpu"))
}

/// [`spread`], with the folder in which Linux describes each core. A core without a description counts as a physical
/// core of the first package.
fn spread_by(cores: &[usize], folder: &Path) -> Vec<usize> {
    let rank = |&core: &usize| {
        let topology = folder.join(format!("cpu{core}/topology"));
        let read = |name| fs::read_to_string(topology.join(name)).unwrap_or_default();
        let siblings = parse(&read("thread_siblings_list")).unwrap_or_default();
        let before = siblings.iter().filter(|&&sibling| sibling < core && cores.contains(&sibling)).count();
        (before, read("physical_package_id").trim().parse().unwrap_or(0u32), core)
    };
    let mut cores = cores.to_vec();
    cores.sort_by_cached_key(rank);
    cores
}

/// Returns how many threads can compute simultaneously on `cores`, within the process's control group quota.
pub(crate) fn parallelism(cores: &[usize]) -> usize {
    // The standard library counts the cores available to the calling thread, which may be restricted to the core of an
    // engine's worker.
    let before = allowed();
    let _restored = (*before != *cores && CoreSet::new(cores).keep_thread()).then(|| RestoreAffinity(before));
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// A guard that restricts the calling thread to these cores again when dropped.
struct RestoreAffinity(Box<[usize]>);

impl Drop for RestoreAffinity {
    fn drop(&mut self) {
        CoreSet::new(&self.0).keep_thread();
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
    fn siblings_of_a_physical_core_and_other_packages_come_last() {
        let folder = std::env::temp_dir().join(format!("raddle-cores-{}", std::process::id()));
        // Two packages of two physical cores, each with two logical cores.
        for (core, package, siblings) in
            [(0, 0, "0,4"), (1, 0, "1,5"), (2, 1, "2,6"), (3, 1, "3,7"), (4, 0, "0,4"), (5, 0, "1,5"), (6, 1, "2,6")]
        {
            let topology = folder.join(format!("cpu{core}/topology"));
            fs::create_dir_all(&topology).expect("a folder");
            fs::write(topology.join("thread_siblings_list"), format!("{siblings}\n")).expect("a file");
            fs::write(topology.join("physical_package_id"), format!("{package}\n")).expect("a file");
        }
        assert_eq!(spread_by(&[0, 1, 2, 3, 4, 5, 6], &folder), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(spread_by(&[0, 2, 4, 5, 6], &folder), [0, 5, 2, 4, 6], "5 is the only logical core of its core");
        assert_eq!(spread_by(&[6, 1, 2], &folder), [1, 2, 6]);
        // Neither core 7 nor core 8 is described.
        assert_eq!(spread_by(&[8, 4, 0, 7], &folder), [0, 7, 8, 4]);
        assert_eq!(spread_by(&[8, 4, 0, 7], &folder.join("absent")), [0, 4, 7, 8]);
        fs::remove_dir_all(folder).expect("the folder");
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
            let keep_to = |cores: &[usize]| CoreSet::new(cores).keep_thread();
            assert!(!keep_to(&[]), "an empty set must be refused");
            assert!(!keep_to(&[MAX_CORES]), "a core that does not exist was accepted");
            assert!(keep_to(&[before[0], MAX_CORES + 1]));
            assert_eq!(*allowed(), before[..1]);
            assert_eq!(
                parallelism(&before),
                std::thread::spawn(move || {
                    assert!(CoreSet::new(&before).keep_thread());
                    std::thread::available_parallelism().map_or(1, NonZero::get)
                })
                .join()
                .expect("the thread should not panic")
            );
            assert_eq!(allowed().len(), 1, "asking for other cores must not move the thread");
        });
        kept.join().expect("the thread should not panic");
    }
}
