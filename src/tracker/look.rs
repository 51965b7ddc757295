//! Inspects pending operations from outside while other threads continue.

use std::{collections::HashMap, fmt, marker::PhantomData, ptr};

use super::{
    access::{Access, DONE, Mode},
    followers::waits_for,
    op_record::Op,
};
use crate::{
    memory::epoch::{Guard, unprotected},
    sync::{
        Ordering::Relaxed,
        edge::{self, acquire},
    },
};

/// The maximum number of operations listed as waiting for an access that does not mutate. Not tuned: any number of
/// waits can be behind any number of readers.
pub const MAX_SUCCESSORS: usize = 32;

/// The state of an access as seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The access waits for accesses before it.
    Waits,
    /// The access's operation holds the variable.
    Holds,
    /// The access's operation is done with the variable.
    Done,
}

impl<T> Access<T> {
    /// Returns the state of the access, which may change as soon as this returns.
    pub fn standing(&self) -> Standing {
        // Relaxed: a snapshot.
        match self.word.load(Relaxed, unprotected()).tag() {
            flags if flags & DONE != 0 => Standing::Done,
            flags if self.mode().is_satisfied_by(flags) => Standing::Holds,
            _ => Standing::Waits,
        }
    }
}

/// Finds the operations that wait for accesses, of any number of accesses.
///
/// What is behind a reader is remembered. So a thread that looks at all accesses of a queue visits each reader once,
/// and not once for each reader before it. The same holds for accesses that commute.
pub struct Successors<'g, T> {
    pinned: PhantomData<&'g Guard>,
    /// For accesses visited so far, and a mode: the next access behind them that is not of this mode. If there was
    /// none, the last one behind them, since another access may have been linked behind it in the meantime.
    behind: HashMap<(*const Access<T>, Mode), &'g Access<T>>,
}

impl<T> fmt::Debug for Successors<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Successors").field("visited", &self.behind.len()).finish_non_exhaustive()
    }
}

impl<'g, T> Successors<'g, T> {
    /// Until the thread is unpinned, the accesses seen stay readable.
    pub fn new(_pinned: &'g Guard) -> Self {
        Self { pinned: PhantomData, behind: HashMap::new() }
    }

    /// Calls `f` with each operation known to wait directly for `access`: of those behind it, up to and including the
    /// next exclusive one or the first that waits for others of these, the ones that [wait](waits_for) for it. If
    /// `access` is not exclusive, calls `f` at most [`MAX_SUCCESSORS`] times. If `access` is already done, does
    /// nothing.
    pub fn each(&mut self, access: &Access<T>, mut f: impl FnMut(&Op<T>)) {
        if access.standing() == Standing::Done {
            return;
        }
        let mode = access.mode();
        let max = if mode.is_exclusive() { usize::MAX } else { MAX_SUCCESSORS };
        let beside = if mode == Mode::Commute { Mode::Commute } else { Mode::Read };
        let (mut at, mut runs) = (access, 0);
        for _ in 0..max {
            // SAFETY: (1): `access` was not done after this thread was pinned, so nothing still behind it had been
            // retired before the pin.
            let next = unsafe { if mode.shares_with(at.mode()) { self.next_but(at, beside) } else { self.next(at) } };
            let Some(next) = next else { return };
            next.op().filter(|_| waits_for(next, access)).into_iter().for_each(&mut f);
            runs += u32::from(!at.mode().shares_with(next.mode()));
            if next.mode().is_exclusive() || runs == 2 {
                return;
            }
            at = next;
        }
    }

    /// Returns the access behind `at`.
    ///
    /// # Safety
    /// 1. When this thread was pinned, nothing still behind `at` had been retired.
    unsafe fn next(&self, at: &Access<T>) -> Option<&'g Access<T>> {
        let word = at.word.load(acquire(edge::link::LOOKED_AT), unprotected());
        // SAFETY: (1): so the next access is not reclaimed before this thread is unpinned.
        let next = unsafe { word.as_ref() };
        next.inspect(|next| next.check())
    }

    /// Returns the next access behind `at` that is not of mode `left_out`.
    ///
    /// # Safety
    /// 1. When this thread was pinned, nothing still behind `at` had been retired.
    unsafe fn next_but(&mut self, at: &Access<T>, left_out: Mode) -> Option<&'g Access<T>> {
        let (mut visited, mut reached) = (Vec::new(), None);
        let found = loop {
            let from = reached.unwrap_or(at);
            visited.push(ptr::from_ref(from));
            let known = self.behind.get(&(ptr::from_ref(from), left_out)).copied();
            // SAFETY: (1): what is behind `from` is behind `at`.
            let Some(next) = known.or_else(|| unsafe { self.next(from) }) else { break None };
            reached = Some(next);
            if next.mode() != left_out {
                break reached;
            }
        };
        if let Some(reached) = reached {
            visited.retain(|&visited| visited != ptr::from_ref(reached));
            self.behind.extend(visited.into_iter().map(|visited| ((visited, left_out), reached)));
        }
        found
    }
}
