//! Which cores are near a device, and how a thread is kept to them.

use std::{fs, ops::RangeInclusive};

/// The cores near the device with this address on the PCI bus, as Linux tells; none where it does not.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub(crate) fn cores_near(pci_address: &str) -> Vec<usize> {
    let list = fs::read_to_string(format!("/sys/bus/pci/devices/{pci_address}/local_cpulist"));
    list.ok().and_then(|list| parse(&list)).unwrap_or_default()
}

/// Reads a list as the kernel writes it: `0-3,8,10-11`.
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

/// Cores that a mask of the operating system has room for.
const MAX_CORES: usize = 1024;

/// Keeps the calling thread to those of `cores` that it may use now; `false` where that are none, or it cannot be done.
pub(crate) fn keep_to(cores: &[usize]) -> bool {
    let allowed = core_affinity::get_core_ids().unwrap_or_default();
    let wanted: Vec<usize> = allowed.iter().map(|core| core.id).filter(|core| cores.contains(core)).collect();
    !wanted.is_empty() && set_affinity(&wanted)
}

#[cfg(all(target_os = "linux", not(miri)))]
fn set_affinity(cores: &[usize]) -> bool {
    // SAFETY: a mask is a number of bits, all of which may be zero.
    let mut mask: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &core in cores.iter().filter(|&&core| core < MAX_CORES) {
        // SAFETY: the mask has a bit for it.
        unsafe { libc::CPU_SET(core, &mut mask) };
    }
    // SAFETY: the mask is valid for its size, and 0 is the calling thread.
    unsafe { libc::sched_setaffinity(0, size_of_val(&mask), &raw const mask) == 0 }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn set_affinity(_cores: &[usize]) -> bool {
    false
}

#[cfg(all(test, not(any(raddle_loom, raddle_shuttle, miri))))]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse("7"), Some(vec![7]));
        assert_eq!(parse("\n"), Some(vec![]));
        for wrong in ["a", "1-", "-1", "1,,2", "0-99999999999", "0-1000000"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_device_that_is_not_there_has_no_cores_near() {
        assert!(cores_near("ffff:ff:1f.7").is_empty());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_is_kept_to_the_cores_that_it_may_use() {
        let kept = std::thread::spawn(|| {
            let allowed: Vec<usize> =
                core_affinity::get_core_ids().expect("Linux tells").iter().map(|core| core.id).collect();
            assert!(!keep_to(&[]), "that would be no core at all");
            assert!(!keep_to(&[MAX_CORES + 1]), "nor is this one");
            let wanted = [allowed[0], MAX_CORES + 1];
            assert!(keep_to(&wanted));
            let now: Vec<usize> =
                core_affinity::get_core_ids().expect("Linux tells").iter().map(|core| core.id).collect();
            assert_eq!(now, [allowed[0]]);
        });
        kept.join().expect("it is kept there");
    }
}
