//! The values of a conflating operator whose runs have not started.
//!
//! A push *replaces* the oldest of these values, if enough of them wait, or *enters* another run. The runs whose values
//! may be replaced are *listed*, at most [`most`](Conflation::new) of them, in the order of their places.
//!
//! # States
//!
//! The word of a [`ValueCell`], which holds the value of one run:
//!
//! | value | meaning | next |
//! |---|---|---|
//! | 0, 1 | *open*: the value is in the place of this number | the other one, by `replace`; `CLOSED` and this number |
//! | `CLOSED` and the number of a place | no push replaces the value: the run has started and taken it, or will not start and drops it | – |
//!
//! A run that is cancelled or skipped is [closed](Closer::close) before other threads or program code can see this, but
//! its value is dropped later, since the drop may run program code. So a push that comes after the cancellation or the
//! skip does not put its value into that run.
//!
//! A push that enters a run takes these steps:
//!
//! 1. *Begin*: it notes how many runs have entered ([`Entering::since`]).
//! 2. *Land*: the engine's push gives the run its place in the order.
//! 3. *End*: it counts its run as entered, and lists it. If no other run was counted in between, every run that has
//!    entered lies before this one. Otherwise their order is unknown, and the list is void: its
//!    [count](Listed::as_of) is not that of the runs that have entered. A run that is closed by then, for example
//!    because its push has run it, is not listed and leaves a valid list valid: no listed run can overtake it.
//!
//! So while a list is valid, a listed run lies behind every run whose push has returned, except those that are closed
//! or listed after it. A push that replaces therefore never overtakes an earlier one of its thread, nor any other push
//! that had returned. It puts its value into the last listed run, the value from there into the run before, and so on,
//! so that the runs receive the values in the order of their pushes. What comes out of the first one is dropped.
//!
//! # Who may touch what
//!
//! * The place that the word names: the thread that takes the value, after it has closed the word.
//! * The other place: the thread that holds the list's lock. It writes the new value there before its exchange and, if
//!   the exchange succeeds, takes the old value from where that was; if the run has started instead, it takes the new
//!   value back.
//! * The list: the thread that holds its lock. No program code runs meanwhile: values only move.
//!
//! # Progress
//!
//! No thread waits for the lock: one that fails to get it within [`TRIES`] tries enters a run, or does not list its
//! own. The start of a run is a single atomic operation. A push that enters while another one does also tries that
//! long, since otherwise neither of two runs that always enter at the same time would be listed, and the number of runs
//! would grow. It grows too, as without conflation, while a thread is stopped that has the lock; the lock is held for a
//! few exchanges.
//!
//! # Edges
//!
//! [`newest`](crate::sync::edge::newest), [`entered`](crate::sync::edge::entered).

use std::{
    collections::VecDeque,
    fmt,
    mem::{ManuallyDrop, MaybeUninit},
    ptr,
    sync::Arc,
};

use crate::sync::{
    Mutex, MutexGuard,
    Ordering::Relaxed,
    atomic::{AtomicU8, AtomicU64},
    cell::UnsafeCell,
    edge::{self, acquire, release, removed, step},
    hint, thread, try_lock,
};
use crate::testing::pause::{self, Point};

/// The number of times that a push tries to get the lock, or looks whether another one still enters. Not tuned: about
/// as long as a push takes. A model tries once, and explores what else may happen.
const TRIES: usize = if cfg!(any(raddle_loom, raddle_shuttle)) { 1 } else { 64 };

/// The number of last tries before which the thread yields, so that a thread that was preempted continues. Not tuned.
const YIELDS: usize = 8;

/// The bit of a cell's word that closes the cell.
const CLOSED: u8 = 2;

/// The value of a run that has not started.
struct ValueCell<T> {
    word: AtomicU8,
    places: [UnsafeCell<MaybeUninit<T>>; 2],
}

// SAFETY: the head of this module states which thread may use which place, so values only move between threads.
unsafe impl<T: Send> Send for ValueCell<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Send> Sync for ValueCell<T> {}

impl<T> fmt::Debug for ValueCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValueCell").field("is_closed", &self.is_closed()).finish_non_exhaustive()
    }
}

impl<T> ValueCell<T> {
    fn new(value: T) -> Self {
        let places = [MaybeUninit::new(value), MaybeUninit::uninit()].map(UnsafeCell::new);
        Self { word: AtomicU8::new(0), places }
    }

    fn is_closed(&self) -> bool {
        // Relaxed: once closed, a cell stays closed, and nothing is handed over.
        self.word.load(Relaxed) & CLOSED != 0
    }

    /// Moves the value out of the place of this number.
    ///
    /// # Safety
    /// 1. The place contains a value, and this thread may touch it.
    unsafe fn read(&self, place: u8) -> T {
        // SAFETY: (1), and the value is not read again.
        self.places[usize::from(place)].with_mut(|place| unsafe { (*place).assume_init_read() })
    }

    /// Takes the value.
    ///
    /// # Safety
    /// 1. This is called once.
    unsafe fn take(&self) -> T {
        let place = self.word.fetch_or(CLOSED, acquire(edge::newest::TAKEN)) & !CLOSED;
        // SAFETY: (1): the word names the place of the value, which is this thread's now.
        unsafe { self.read(place) }
    }

    /// Puts `value` in place of the cell's value, which is returned. Returns `value` if the cell is closed.
    ///
    /// # Safety
    /// 1. This thread holds the lock of the list.
    unsafe fn replace(&self, value: T) -> Result<T, T> {
        // Relaxed: changed only by this thread, which holds the lock, or closed. A close that happened before is seen.
        let place = self.word.load(Relaxed);
        if place & CLOSED != 0 {
            return Err(value);
        }
        let other = 1 - place;
        // SAFETY: (1): the place that the word does not name is this thread's, and contains no value.
        self.places[usize::from(other)].with_mut(|place| unsafe { (*place).write(value) });
        // Relaxed on failure: the cell was closed.
        match self.word.compare_exchange(place, other, release(edge::newest::REPLACED), Relaxed) {
            // SAFETY: (1): it has become the place that the word does not name. The lock, or the listing of the cell
            // under it, orders the write of the value before this.
            Ok(_) => Ok(unsafe { self.read(place) }),
            // SAFETY: (1): no thread has seen the value that was written above.
            Err(_) => Err(unsafe { self.read(other) }),
        }
    }
}

/// What a run has of its operator's values: the one that it receives when it starts. If the run does not start, the
/// drop of this drops the value.
#[derive(Debug)]
pub struct RunValue<T>(Arc<ValueCell<T>>);

impl<T> RunValue<T> {
    /// Takes the newest value for the run, which starts.
    pub fn take(self) -> T {
        let this = ManuallyDrop::new(self);
        // SAFETY: the original is not dropped.
        let cell = unsafe { ptr::read(&raw const this.0) };
        // SAFETY: (1): a run has one `RunValue`, whose drop, the other caller, does not happen.
        unsafe { cell.take() }
    }
}

impl<T: Send + 'static> RunValue<T> {
    /// Returns what closes the value if the run does not start.
    pub fn closer(&self) -> Closer {
        Closer(Arc::<ValueCell<T>>::clone(&self.0))
    }
}

impl<T> Drop for RunValue<T> {
    fn drop(&mut self) {
        // SAFETY: (1): `take` would have prevented this drop.
        drop(unsafe { self.0.take() });
    }
}

/// A cell of any type.
trait AnyCell: fmt::Debug + Send + Sync {
    fn close(&self);
}

impl<T: Send> AnyCell for ValueCell<T> {
    fn close(&self) {
        // Relaxed: a push that must not replace the value comes after this, so it sees the bit.
        self.word.fetch_or(CLOSED, Relaxed);
    }
}

/// Closes the value of a run that will not start.
#[derive(Clone, Debug)]
pub struct Closer(Arc<dyn AnyCell>);

impl Closer {
    /// Closes the value: no push that comes after this replaces it. Runs no program code, and does nothing if the run
    /// has taken the value. May be called repeatedly, by several threads.
    pub fn close(&self) {
        self.0.close();
    }
}

/// What closes the value of a run, if pushes may replace the value.
pub trait Close: Send + 'static {
    /// Whether pushes may replace the value.
    const CLOSES: bool;
    /// Returns what closes the value.
    fn closer(&self) -> Option<&Closer>;
}

impl Close for () {
    const CLOSES: bool = false;
    fn closer(&self) -> Option<&Closer> {
        None
    }
}

impl Close for Closer {
    const CLOSES: bool = true;
    fn closer(&self) -> Option<&Closer> {
        Some(self)
    }
}

/// The listed runs.
struct Listed<T> {
    cells: VecDeque<Arc<ValueCell<T>>>,
    /// The number of runs that had entered when the last one was listed.
    as_of: u64,
}

impl<T> Listed<T> {
    /// Empties the list if it is void: if not as many runs as this had entered when the last one was listed.
    fn renew(&mut self, entered: u64) {
        if self.as_of != entered && !removed(step::LATER_RUNS_VOID) {
            // No value is dropped: a run that has not started has a `RunValue`.
            self.cells.clear();
        }
    }

    /// Whether `most` runs are listed whose values may be replaced. Forgets others, in constant time on average.
    fn is_full(&mut self, most: usize) -> bool {
        while self.cells.front().is_some_and(|cell| cell.is_closed()) {
            self.cells.pop_front();
        }
        if self.cells.len() >= most.min(self.cells.capacity()) {
            self.cells.retain(|cell| !cell.is_closed());
            // So the next time is that of a list of twice the length.
            self.cells.reserve(self.cells.len());
        }
        self.cells.len() >= most
    }
}

/// The values of an operator's runs that have not started.
pub struct Conflation<T> {
    /// The number of runs from which values are replaced.
    most: usize,
    listed: Mutex<Listed<T>>,
    /// The number of runs that have entered.
    entered: AtomicU64,
    /// The number of pushes that are entering a run.
    entering: AtomicU64,
    /// The number of replaced values.
    replaced: AtomicU64,
}

impl<T> fmt::Debug for Conflation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conflation").field("most", &self.most).finish_non_exhaustive()
    }
}

/// What became of the value of a push.
#[derive(Debug)]
pub enum Offered<'c, T> {
    /// The value is that of a listed run. The oldest value, which is returned, will not be received by any run.
    Replaced(T),
    /// The push must enter a run with this value.
    Enters(Entering<'c, T>, RunValue<T>),
}

impl<T> Conflation<T> {
    /// Creates the state of an operator without runs, of which up to `most` wait with a value of their own before
    /// values are replaced.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            listed: Mutex::new(Listed { cells: VecDeque::new(), as_of: 0 }),
            entered: AtomicU64::new(0),
            entering: AtomicU64::new(0),
            replaced: AtomicU64::new(0),
        }
    }

    /// Returns the number of replaced values, including those of all pushes that happened before this call.
    pub fn replaced(&self) -> u64 {
        // Relaxed: what happened before is included, and nothing is handed over.
        self.replaced.load(Relaxed)
    }

    /// Whether a push would now replace a value.
    pub fn would_replace(&self) -> bool {
        self.try_lock().is_some_and(|mut listed| self.is_full(&mut listed))
    }

    /// Replaces the oldest value if as many runs wait as may be listed. Otherwise, begins to enter a run.
    pub fn offer(&self, mut value: T) -> Offered<'_, T> {
        let mut tries = 0..TRIES;
        let since = loop {
            let listed = try_lock(&self.listed);
            let tries_again = tries.next().is_some();
            match listed {
                Some(mut listed) => {
                    value = match self.replace(&mut listed, value) {
                        Ok(oldest) => return Offered::Replaced(oldest),
                        Err(same) => same,
                    };
                    // Relaxed: it only decides whether to spin.
                    if self.entering.load(Relaxed) == 0 || !tries_again {
                        // Under the lock, so that no other push finds that none is entering.
                        break self.begin();
                    }
                }
                None if !tries_again => break self.begin(),
                None => {}
            }
            pause(tries.len());
        };
        let (entering, value) = self.enter(since, value);
        Offered::Enters(entering, value)
    }

    /// Calls `push` to enter a run whose value is never replaced.
    pub fn push_unlisted<R, E>(&self, value: T, push: impl FnOnce(RunValue<T>) -> Result<R, E>) -> Result<R, E> {
        let (entering, value) = self.enter(self.begin(), value);
        let pushed = push(value);
        if pushed.is_err() {
            entering.refused();
        }
        pushed
    }

    /// Enters a run with this value. `since` runs had entered when this push began.
    fn enter(&self, since: u64, value: T) -> (Entering<'_, T>, RunValue<T>) {
        pause::at(Point::ConflateBegun);
        let cell = Arc::new(ValueCell::new(value));
        (Entering { conflation: self, since, cell: Arc::clone(&cell), may_have_landed: true }, RunValue(cell))
    }

    /// Puts `value` in the place of the last listed value, and so on; see the head of this module. Returns the oldest
    /// value, or `value` if it replaces none.
    fn replace(&self, listed: &mut Listed<T>, value: T) -> Result<T, T> {
        if !self.is_full(listed) {
            return Err(value);
        }
        let (mut value, mut replaces) = (value, false);
        for cell in listed.cells.iter().rev() {
            pause::at(Point::ConflateLocked);
            // SAFETY: (1): the list is borrowed from its lock.
            value = match unsafe { cell.replace(value) } {
                Ok(older) => {
                    replaces = true;
                    older
                }
                Err(same) => same,
            };
        }
        if !replaces {
            return Err(value);
        }
        pause::at(Point::ConflateReplaced);
        // Relaxed: only counts.
        self.replaced.fetch_add(1, Relaxed);
        Ok(value)
    }

    /// Whether a push replaces a value.
    fn is_full(&self, listed: &mut Listed<T>) -> bool {
        // Relaxed: what this push must not overtake happened before it, so its run is counted.
        listed.renew(self.entered.load(Relaxed));
        listed.is_full(self.most)
    }

    /// Begins to enter a run. Returns the number of runs that have entered.
    fn begin(&self) -> u64 {
        // Relaxed: it only decides whether other pushes spin.
        self.entering.fetch_add(1, Relaxed);
        self.entered.load(acquire(edge::entered::BEGUN))
    }

    /// Locks the list, unless other threads have the lock for long.
    fn try_lock(&self) -> Option<MutexGuard<'_, Listed<T>>> {
        (0..TRIES).rev().find_map(|left| {
            let listed = try_lock(&self.listed);
            if listed.is_none() {
                pause(left);
            }
            listed
        })
    }
}

/// Lets other threads continue before the next try, after which `left` are left.
fn pause(left: usize) {
    if cfg!(any(raddle_loom, raddle_shuttle)) {
        // The checkers would prefer other threads. They try both, and the number of tries is bounded.
    } else if left < YIELDS {
        thread::yield_now();
    } else {
        hint::spin_loop();
    }
}

/// A push that enters a run. Its drop counts the run without listing it, unless the push was [refused](Self::refused).
#[derive(Debug)]
#[must_use = "the end of the push must be told"]
pub struct Entering<'c, T> {
    conflation: &'c Conflation<T>,
    /// The number of runs that had entered when this push began.
    since: u64,
    cell: Arc<ValueCell<T>>,
    may_have_landed: bool,
}

impl<T> Entering<'_, T> {
    /// Returns the number of runs that had entered when this push began.
    #[cfg(any(raddle_loom, raddle_shuttle))]
    pub fn since(&self) -> u64 {
        self.since
    }

    /// Tells that the run has no place.
    pub fn refused(mut self) {
        self.may_have_landed = false;
    }

    /// Tells that the run has landed, and lists it. If another run was counted since this push began, the list is void,
    /// unless the run is closed already: then no value that is replaced from now on overtakes its own.
    pub fn landed(mut self) {
        pause::at(Point::ConflateLanded);
        let listed = self.conflation.try_lock();
        let before = self.count();
        pause::at(Point::ConflateCounted);
        let Some(mut listed) = listed else { return };
        if self.cell.is_closed() {
            if listed.as_of == before {
                listed.as_of = before + 1;
            }
            return;
        }
        listed.renew(self.since);
        if listed.is_full(self.conflation.most) {
            listed.cells.pop_front();
        }
        listed.cells.push_back(Arc::clone(&self.cell));
        listed.as_of = self.since + 1;
    }

    /// Counts the run as entered. Returns how many had entered before.
    fn count(&mut self) -> u64 {
        self.may_have_landed = false;
        self.conflation.entered.fetch_add(1, release(edge::entered::ENDED))
    }
}

impl<T> Drop for Entering<'_, T> {
    fn drop(&mut self) {
        if self.may_have_landed {
            self.count();
        }
        // Relaxed: it only decides whether other pushes spin.
        self.conflation.entering.fetch_sub(1, Relaxed);
    }
}
