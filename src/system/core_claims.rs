//! Claims: which cores have pinned workers, in this process and in others.
//!
//! A claim is to one *place* of a core. Each core has many places, and a claim takes the lowest that is free anywhere,
//! so pinned workers are spread evenly, whatever engine and process they belong to.
//!
//! Among processes, a claim is a lock on one byte of `/dev/full`: every process may open this device, and no program
//! locks it for another purpose. The kernel releases the locks of a process that ends. The device is open only while
//! this process has claims. Where it cannot be opened or locked, as in some sandboxes, only the claims of this process
//! count. Containers that have a device file of their own do not see one another's claims.
//!
//! Claims are not part of any protocol, so they use `std` even in models.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::topology::spread;
use crate::sync::process::{PerProcess, ProcessMark};

/// The number of places of each core that other processes see. Not tuned.
const SHARED_PLACES: usize = 64;

/// The claims of this process. A forked child starts with none.
static CLAIMS: PerProcess<Mutex<Claims>> = PerProcess::new();

fn claims() -> MutexGuard<'static, Claims> {
    CLAIMS.get(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Default)]
struct Claims {
    /// The core and the place of each claim.
    taken: BTreeSet<(usize, usize)>,
    /// The locks, while there are claims.
    locks: Option<locks::Locks>,
}

impl Claims {
    /// Takes a place of a core, unless it is taken.
    fn take(&mut self, core: usize, place: usize) -> Option<CoreClaim> {
        let is_locked = |locks: &locks::Locks| place < SHARED_PLACES && !locks.lock(core, place);
        if self.taken.contains(&(core, place)) || self.locks.as_ref().is_some_and(is_locked) {
            return None;
        }
        self.taken.insert((core, place));
        Some(CoreClaim { core, place, process: ProcessMark::current() })
    }

    /// Whether there is no claim to `core`.
    fn is_free(&self, core: usize) -> bool {
        self.taken.range((core, 0)..(core + 1, 0)).next().is_none()
            && self.locks.as_ref().is_none_or(|locks| locks.are_free(core))
    }

    /// Calls `f` while the locks are open.
    fn with_locks<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        if self.locks.is_none() {
            self.locks = locks::Locks::open();
        }
        let result = f(self);
        if self.taken.is_empty() {
            self.locks = None;
        }
        result
    }
}

/// A pinned worker's claim to a core, valid until dropped.
#[derive(Debug)]
pub(crate) struct CoreClaim {
    pub(crate) core: usize,
    place: usize,
    process: ProcessMark,
}

impl Drop for CoreClaim {
    fn drop(&mut self) {
        if self.process.is_foreign() {
            return;
        }
        claims().with_locks(|claims| {
            claims.taken.remove(&(self.core, self.place));
            claims.locks.iter().for_each(|locks| locks.unlock(self.core, self.place));
        });
    }
}

/// Claims `count` of `cores`, or all of them if there are fewer: those with the fewest claims and, among equals, those
/// that [`spread`] puts first. The claims are in ascending order.
pub(crate) fn claim(cores: &[usize], count: usize) -> Vec<CoreClaim> {
    let mut left = if count < cores.len() { spread(cores) } else { cores.to_vec() };
    let mut made = Vec::new();
    claims().with_locks(|claims| {
        // The loop ends, since a place that other processes do not see is taken only by this process.
        for place in 0.. {
            left.retain(|&core| {
                let claim = if made.len() < count { claims.take(core, place) } else { None };
                let is_left = claim.is_none();
                made.extend(claim);
                is_left
            });
            if left.is_empty() || made.len() == count {
                break;
            }
        }
    });
    made.sort_unstable_by_key(|claim: &CoreClaim| claim.core);
    made
}

/// Claims all of `cores` if there is no claim to any of them. Otherwise, claims none.
pub(crate) fn claim_if_free(cores: &[usize]) -> Vec<CoreClaim> {
    let made: Vec<_> = claims().with_locks(|claims| {
        let are_free = cores.iter().all(|&core| claims.is_free(core));
        // Another process may be claiming the same cores. Only the one that comes first at the first core goes on.
        cores.iter().map_while(|&core| if are_free { claims.take(core, 0) } else { None }).collect()
    });
    if made.len() == cores.len() { made } else { Vec::new() }
}

#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) mod locks {
    use std::{
        fs::File,
        os::fd::AsRawFd,
        sync::atomic::{AtomicI32, Ordering::Relaxed},
    };

    use super::SHARED_PLACES;

    /// The descriptor of this process's locks, or -1.
    static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);

    /// Closes the parent's locks in a forked child, which would otherwise keep them when the parent ends. Takes no
    /// lock.
    #[cfg_attr(any(raddle_loom, raddle_shuttle), allow(dead_code))]
    pub(crate) fn leave() {
        // Relaxed: there is no other thread.
        let descriptor = DESCRIPTOR.swap(-1, Relaxed);
        if descriptor >= 0 {
            // SAFETY: the descriptor was copied by the fork, and its owner, the parent's `Locks`, is not used here.
            unsafe { libc::close(descriptor) };
        }
    }

    /// The locks of this process, all of one open file: one lock for each place.
    #[derive(Debug)]
    pub(super) struct Locks(File);

    impl Locks {
        /// Returns `None` if the device cannot be opened.
        pub(super) fn open() -> Option<Self> {
            let file = File::options().read(true).write(true).open("/dev/full").ok()?;
            // Relaxed: read only where there is no other thread.
            DESCRIPTOR.store(file.as_raw_fd(), Relaxed);
            Some(Self(file))
        }

        /// Returns `false` if another process has the lock of the place. If locks are not supported, all are free.
        pub(super) fn lock(&self, core: usize, place: usize) -> bool {
            let mut lock = Self::range(libc::F_WRLCK, core, place, 1);
            let is_taken = |error: std::io::Error| matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES));
            self.call(libc::F_OFD_SETLK, &mut lock).map_or_else(|error| !is_taken(error), |()| true)
        }

        pub(super) fn unlock(&self, core: usize, place: usize) {
            // Nothing can be done about an error.
            let _ = self.call(libc::F_OFD_SETLK, &mut Self::range(libc::F_UNLCK, core, place, 1));
        }

        /// Whether no other process has the lock of a place of `core`.
        pub(super) fn are_free(&self, core: usize) -> bool {
            let mut lock = Self::range(libc::F_WRLCK, core, 0, SHARED_PLACES);
            self.call(libc::F_OFD_GETLK, &mut lock).is_err() || i32::from(lock.l_type) == libc::F_UNLCK
        }

        fn range(kind: libc::c_int, core: usize, place: usize, places: usize) -> libc::flock {
            // SAFETY: a lock is made of integers, for which zero is valid.
            let mut lock: libc::flock = unsafe { std::mem::zeroed() };
            lock.l_type = kind as _;
            lock.l_whence = libc::SEEK_SET as _;
            (lock.l_start, lock.l_len) = ((core * SHARED_PLACES + place) as _, places as _);
            lock
        }

        fn call(&self, command: libc::c_int, lock: &mut libc::flock) -> std::io::Result<()> {
            // SAFETY: the descriptor is open, and these commands take a lock, which the call may write.
            let result = unsafe { libc::fcntl(self.0.as_raw_fd(), command, std::ptr::from_mut(lock)) };
            if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        }
    }

    impl Drop for Locks {
        fn drop(&mut self) {
            // Relaxed: as in `open`.
            DESCRIPTOR.store(-1, Relaxed);
        }
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod locks {
    #[derive(Debug)]
    pub(super) enum Locks {}

    impl Locks {
        pub(super) fn open() -> Option<Self> {
            None
        }

        pub(super) fn lock(&self, _core: usize, _place: usize) -> bool {
            match *self {}
        }

        pub(super) fn unlock(&self, _core: usize, _place: usize) {
            match *self {}
        }

        pub(super) fn are_free(&self, _core: usize) -> bool {
            match *self {}
        }
    }
}

#[cfg(all(test, not(any(raddle_loom, raddle_shuttle, miri))))]
mod tests {
    use super::*;

    /// Returns cores that no engine and no other process uses, three for each `test`.
    fn cores(test: usize) -> [usize; 3] {
        [0, 1, 2].map(|core| 10_000 + std::process::id() as usize * 100 + 3 * test + core)
    }

    fn numbers(claims: &[CoreClaim]) -> Vec<usize> {
        claims.iter().map(|claim| claim.core).collect()
    }

    #[test]
    fn the_cores_with_the_fewest_claims_are_claimed_first() {
        let cores = cores(0);
        let [a, b, c] = cores;
        let one = claim(&cores, 1);
        assert_eq!(numbers(&one), [a]);
        let mut two = claim(&cores, 2);
        assert_eq!(numbers(&two), [b, c]);
        let all = claim(&cores, 5);
        assert_eq!(numbers(&all), cores);
        drop(two.pop());
        assert_eq!(numbers(&claim(&cores, 1)), [c]);
        drop(two);
        assert_eq!(numbers(&claim(&cores, 2)), [b, c]);
        drop((one, all));
        assert_eq!(numbers(&claim(&cores, 1)), [a]);
        assert!(claim(&[], 3).is_empty());
    }

    #[test]
    fn cores_are_claimed_together_only_if_all_are_free() {
        let cores = cores(1);
        let one = claim(&cores[2..], 1);
        assert!(claim_if_free(&cores).is_empty());
        assert_eq!(numbers(&claim_if_free(&cores[..2])), cores[..2], "a failed claim has kept a core");
        drop(one);
        assert_eq!(numbers(&claim_if_free(&cores)), cores);
    }

    #[test]
    fn of_two_engines_built_at_the_same_moment_one_has_the_cores_to_itself() {
        let cores = cores(2);
        for _ in 0..100 {
            let both = std::sync::Barrier::new(2);
            let claims = || {
                both.wait();
                let claims = claim_if_free(&cores);
                both.wait();
                claims.len()
            };
            let [one, two] = std::thread::scope(|scope| [scope.spawn(claims), scope.spawn(claims)].map(|it| it.join()));
            assert_eq!(one.expect("no panic") + two.expect("no panic"), cores.len());
        }
    }

    /// To the kernel, an open file of its own is another process.
    #[cfg(target_os = "linux")]
    #[test]
    fn the_claims_of_another_process_count() {
        let cores = cores(3);
        let [a, b, _] = cores;
        let cores = &cores[..2];
        let Some(others) = locks::Locks::open() else { return eprintln!("no locks here") };
        assert!(others.lock(a, 0));
        if locks::Locks::open().is_some_and(|locks| locks.are_free(a)) {
            return eprintln!("the kernel has no such locks");
        }
        assert!(claim_if_free(cores).is_empty());
        let one = claim(cores, 1);
        assert_eq!(numbers(&one), [b]);
        assert!(!others.are_free(b) && !others.lock(b, 0));
        assert_eq!(numbers(&claim(cores, 1)), [a], "both have one claim");
        others.unlock(a, 0);
        drop(one);
        assert!(others.are_free(b), "the claim was not given back");
        assert_eq!(numbers(&claim_if_free(cores)), cores);
        // A process that has all places does not keep others from building engines.
        (0..SHARED_PLACES).for_each(|place| assert!(others.lock(a, place)));
        assert_eq!(numbers(&claim(&cores[..1], 1)), [a]);
    }
}
