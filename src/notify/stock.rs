//! Resources: units that operations take all at once or wait for.
//!
//! # States of a waiter
//!
//! 1. *Waits*: in its queue. Waiters with the same priority band and the same needs form a queue, in the order in which
//!    they came.
//! 2. *Admitted*: it has all its units, and has left its queue. The thread that gave them back owns it.
//! 3. *Withdrawn* instead: it has left its queue without units, since it was cancelled.
//!
//! # Who is admitted
//!
//! Queues are looked at by band, highest first, and within a band by the age of their first waiters. A waiter is
//! admitted if each of its resources has enough free units besides those *kept* for a waiter before it. Units are kept
//! for a waiter of a higher band, and for one of the same band that [`MAX_OVERTAKEN`] later ones have overtaken: in
//! each resource as many as it needs. As this order is total, one of the waiters for which units are kept is admitted
//! once enough are given back, whatever others they lack, and so on for the next.
//!
//! Nothing is kept for a waiter while an operation that holds units of one of its resources [waits](Stock::hold_still),
//! since what that operation waits for may need the units that would be kept. So a waiter whose resources have no such
//! holder is admitted once all other holders have given their units back.
//!
//! # Who may touch what
//!
//! * A [`StockPool`] has the queues of its resources. Each resource begins with a pool of its own. Resources that an
//!   operation needs together share one from then on ([`join`]): the smaller pool moves into the other, so a resource
//!   finds its queues in a number of steps that grows with the logarithm of the number of pools. A pool never comes
//!   back.
//! * The [`UnitCount`]s of a resource: under the lock of its pool.
//!
//! There are no edges: locks hand everything over.
//!
//! # Progress
//!
//! A thread takes the lock of one pool at a time; only a join takes two, in the order of their addresses. No program
//! code runs under a lock. So a thread that is stopped here delays only operations that use a resource of that pool.

use std::{
    cmp::Reverse,
    collections::VecDeque,
    ops::RangeInclusive,
    ptr,
    sync::{Arc, OnceLock},
};

use raddle_trace::Name;
use smallvec::SmallVec;

use crate::{
    sync::{
        Mutex, MutexGuard,
        Ordering::Relaxed,
        atomic::AtomicU64,
        edge::{removed, step},
        lock, try_lock,
    },
    testing::pause::{self, Point},
};

/// The number of later waiters of its band that may be admitted before a waiter. Not tuned.
const MAX_OVERTAKEN: u64 = 32;

/// A number that is used only under the lock of a pool.
#[derive(Debug, Default)]
struct UnitCount(AtomicU64);

impl UnitCount {
    fn get(&self) -> u64 {
        // Relaxed: the lock of the pool hands over the value.
        self.0.load(Relaxed)
    }

    fn set(&self, value: u64) {
        // Relaxed: the lock of the pool hands over the value.
        self.0.store(value, Relaxed);
    }

    fn add(&self, more: u64) {
        self.set(self.get() + more);
    }

    fn subtract(&self, fewer: u64) {
        self.set(self.get() - fewer);
    }
}

/// A number of equal units, for which waiters of type `W` wait.
#[derive(Debug)]
pub struct Stock<W> {
    /// Identifies the engine. Only compared.
    owner: usize,
    units: u64,
    /// Whether its units are lent while their holder waits: the resource is the bound of a group or an engine.
    is_bound: bool,
    name: OnceLock<Name>,
    /// The units that are taken, which may be [more](Stock::take_anyway) than there are.
    taken: UnitCount,
    /// The units kept for waiters, as far as the present search has found.
    kept: UnitCount,
    /// The number of operations that hold units and wait, for something or for their children, or whose future has
    /// slept.
    still: UnitCount,
    /// The pool, or one that has moved into it.
    pool: Arc<StockPool<W>>,
}

/// A number of units of a resource, other than zero.
#[derive(Debug)]
pub struct Need<W> {
    /// The resource.
    pub resource: Arc<Stock<W>>,
    /// The number of units.
    pub units: u64,
}

impl<W> Clone for Need<W> {
    fn clone(&self) -> Self {
        Self { resource: Arc::clone(&self.resource), units: self.units }
    }
}

impl<W> Need<W> {
    /// Whether both are of the same resource.
    pub fn is_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.resource, &other.resource)
    }
}

/// What a waiter needs: units of different resources, which share a pool, sorted by the resources' addresses.
pub type NeedsOf<W> = SmallVec<[Need<W>; 1]>;

/// The queues of resources that are needed together.
#[derive(Debug)]
struct StockPool<W> {
    /// The number by which pools are ordered when two of them are locked.
    number: u64,
    state: Mutex<StockPoolState<W>>,
}

#[derive(Debug)]
enum StockPoolState<W> {
    Here(Queues<W>),
    /// The pool has moved into this one.
    Moved(Arc<StockPool<W>>),
}

#[derive(Debug)]
struct Queues<W> {
    /// Sorted by band, highest first, and by the numbers of their first waiters. None is empty.
    queues: Vec<Queue<W>>,
    /// The number of the last waiter.
    last: u64,
    /// The number of pools that have become this one.
    pools: usize,
}

impl<W> Default for Queues<W> {
    fn default() -> Self {
        Self { queues: Vec::new(), last: 0, pools: 1 }
    }
}

/// Waiters with the same band and the same needs.
#[derive(Debug)]
struct Queue<W> {
    band: u8,
    needs: NeedsOf<W>,
    /// The number of waiters that were admitted before the first one here, although they are in the same band, came
    /// later and need one of its resources.
    overtaken: u64,
    waiters: VecDeque<QueuedWaiter<W>>,
}

#[derive(Debug)]
struct QueuedWaiter<W> {
    number: u64,
    /// `overtaken` of the queue when the waiter came.
    overtaken: u64,
    waiter: W,
}

impl<W> Queue<W> {
    fn first(&self) -> u64 {
        self.waiters.front().map_or(u64::MAX, |first| first.number)
    }

    fn order(&self) -> (Reverse<u8>, u64) {
        (Reverse(self.band), self.first())
    }

    /// Whether no later waiter of the band may be admitted before the first one here.
    fn is_starved(&self) -> bool {
        self.waiters.front().is_some_and(|first| self.overtaken - first.overtaken >= MAX_OVERTAKEN)
    }

    /// Keeps units for the first waiter, unless an operation that holds units of one of its resources waits.
    fn keep(&self) {
        if self.needs.iter().all(|need| need.resource.still.get() == 0) {
            for Need { resource, units } in &self.needs {
                resource.kept.set(resource.kept.get().max(*units));
            }
        }
    }

    fn has(&self, band: u8, needs: &[Need<W>]) -> bool {
        let is_equal = |(own, other): (&Need<W>, &Need<W>)| own.units == other.units && own.is_of(other);
        self.band == band && self.needs.len() == needs.len() && self.needs.iter().zip(needs).all(is_equal)
    }
}

/// Whether there are enough free units besides those that are kept.
fn are_free<W>(needs: &[Need<W>]) -> bool {
    let is_free = |need: &Need<W>| {
        let Stock { units, taken, kept, .. } = &*need.resource;
        units.saturating_sub(taken.get()).saturating_sub(kept.get()) >= need.units
    };
    needs.iter().all(is_free)
}

fn share_one<W>(needs: &[Need<W>], others: &[Need<W>]) -> bool {
    needs.iter().any(|need| others.iter().any(|other| need.is_of(other)))
}

impl<W> Queues<W> {
    /// Takes the units for a waiter with this number.
    fn take(&mut self, band: u8, number: u64, needs: &[Need<W>]) {
        needs.iter().for_each(|need| need.resource.taken.add(need.units));
        for queue in &mut self.queues {
            if queue.band == band && queue.first() < number && share_one(&queue.needs, needs) {
                queue.overtaken += 1;
            }
        }
    }

    /// Whether a waiter that comes now may take its units at once.
    fn may_take(&self, band: u8, needs: &[Need<W>]) -> bool {
        needs.iter().for_each(|need| need.resource.kept.set(0));
        let keeps = |queue: &&Queue<W>| queue.band > band || queue.band == band && queue.is_starved();
        self.queues.iter().filter(keeps).for_each(Queue::keep);
        // Whatever keeps the first waiter of its own queue from its units does the same here.
        are_free(needs)
    }

    /// Appends a waiter to its queue. Returns its number.
    fn append(&mut self, band: u8, needs: &[Need<W>], waiter: W) -> u64 {
        self.last += 1;
        let number = self.last;
        if let Some(queue) = self.queues.iter_mut().find(|queue| queue.has(band, needs)) {
            queue.waiters.push_back(QueuedWaiter { number, overtaken: queue.overtaken, waiter });
            return number;
        }
        let waiters = VecDeque::from([QueuedWaiter { number, overtaken: 0, waiter }]);
        self.insert(Queue { band, needs: needs.into(), overtaken: 0, waiters });
        number
    }

    /// Inserts a queue in its place, unless it is empty.
    fn insert(&mut self, queue: Queue<W>) {
        if !queue.waiters.is_empty() {
            let at = self.queues.partition_point(|other| other.order() < queue.order());
            self.queues.insert(at, queue);
        }
    }

    /// Moves the queues of another pool here.
    fn absorb(&mut self, other: &mut Self) {
        self.last = self.last.max(other.last);
        self.pools += other.pools;
        other.queues.drain(..).for_each(|queue| self.insert(queue));
    }

    /// Admits waiters until no other can be admitted.
    fn admit(&mut self, left: &mut Vec<LeftQueue<W>>) {
        while let Some(at) = self.next() {
            let mut queue = self.queues.remove(at);
            if let Some(QueuedWaiter { number, waiter, .. }) = queue.waiters.pop_front() {
                self.take(queue.band, number, &queue.needs);
                left.push(LeftQueue { waiter, is_admitted: true });
            }
            self.insert(queue);
        }
    }

    /// Returns the queue whose first waiter is to be admitted next, if any can be.
    fn next(&self) -> Option<usize> {
        let needs = || self.queues.iter().flat_map(|queue| &queue.needs);
        needs().for_each(|need| need.resource.kept.set(0));
        let mut band_begin = 0;
        for (at, queue) in self.queues.iter().enumerate() {
            if queue.band != self.queues[band_begin].band {
                self.queues[band_begin..at].iter().for_each(Queue::keep);
                band_begin = at;
            }
            if are_free(&queue.needs) {
                return Some(at);
            }
            if queue.is_starved() {
                queue.keep();
            }
        }
        None
    }

    /// Removes the waiter with this number, if it still waits.
    fn remove(&mut self, band: u8, needs: &[Need<W>], number: u64) -> Option<W> {
        let at = self.queues.iter().position(|queue| queue.has(band, needs))?;
        let place = self.queues[at].waiters.binary_search_by_key(&number, |place| place.number).ok()?;
        let mut queue = self.queues.remove(at);
        let removed = queue.waiters.remove(place);
        self.insert(queue);
        removed.map(|place| place.waiter)
    }

    /// Removes the waiters for which `is_off` returns `true`.
    fn remove_if(&mut self, is_off: impl Fn(&W) -> bool) -> Vec<W> {
        let mut removed = Vec::new();
        for mut queue in std::mem::take(&mut self.queues) {
            let (off, left) = queue.waiters.drain(..).partition::<VecDeque<_>, _>(|place| is_off(&place.waiter));
            removed.extend(off.into_iter().map(|place| place.waiter));
            queue.waiters = left;
            self.insert(queue);
        }
        removed
    }
}

/// A waiter that has left its queue.
#[derive(Debug)]
pub struct LeftQueue<W> {
    /// The waiter.
    pub waiter: W,
    /// Whether it has its units. Otherwise, it was withdrawn.
    pub is_admitted: bool,
}

/// What [`enter`](Stock::enter) has done.
#[derive(Debug)]
pub enum Admission<W> {
    /// The waiter has its units.
    Admitted(W),
    /// The waiter was not wanted any more.
    Unwanted(W),
    /// The waiter is in its queue.
    Waits,
}

impl<W> Stock<W> {
    /// Creates a resource of the engine with this tag.
    pub fn new(owner: usize, units: u64, is_bound: bool) -> Self {
        let pool = Arc::new(StockPool::new());
        let (taken, kept, still) = Default::default();
        Self { owner, units, is_bound, name: OnceLock::new(), taken, kept, still, pool }
    }

    /// Creates the bound of a group or an engine. No operation names it, so its owner is never compared.
    pub fn bound(jobs: usize) -> Self {
        let bound = Self::new(0, jobs.max(1) as u64, true);
        bound.set_name(Name::from("jobs"));
        bound
    }

    /// Returns the tag of the engine.
    pub fn owner(&self) -> usize {
        self.owner
    }

    /// Returns the number of units, whether or not they are free.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// Whether units are lent while their holder waits.
    pub fn is_bound(&self) -> bool {
        self.is_bound
    }

    /// Returns the name, if there is one.
    pub fn name(&self) -> Option<&Name> {
        self.name.get()
    }

    /// Sets the name, unless there is one.
    pub fn set_name(&self, name: Name) {
        let _ = self.name.set(name);
    }

    /// Calls `f` with the pool that has the queues, and with these, under its lock, which `lock` takes. Returns `None`
    /// if `lock` does.
    fn visit<R>(
        &self,
        lock: impl for<'m> Fn(&'m Mutex<StockPoolState<W>>) -> Option<MutexGuard<'m, StockPoolState<W>>>,
        f: impl FnOnce(&Arc<StockPool<W>>, &mut Queues<W>) -> R,
    ) -> Option<R> {
        let mut pool = Arc::clone(&self.pool);
        loop {
            let next = match &mut *lock(&pool.state)? {
                StockPoolState::Here(queues) => return Some(f(&pool, queues)),
                StockPoolState::Moved(next) => Arc::clone(next),
            };
            pool = next;
        }
    }

    /// Calls `f` with the pool that has the queues, and with these, under its lock.
    fn with_pool<R>(&self, f: impl FnOnce(&Arc<StockPool<W>>, &mut Queues<W>) -> R) -> R {
        self.visit(|state| Some(lock(state)), f).expect("the lock is waited for")
    }

    /// Calls `f` with the queues of the pool, under its lock.
    fn with<R>(&self, f: impl FnOnce(&mut Queues<W>) -> R) -> R {
        self.with_pool(|_, queues| f(queues))
    }

    /// Takes the units for a waiter, or lets it wait. `is_wanted` says, under the lock, whether the waiter is still
    /// wanted; what changes that must [withdraw](Self::withdraw) afterwards. `note` receives the waiter's number.
    pub fn enter(
        band: u8,
        needs: &[Need<W>],
        waiter: W,
        is_wanted: impl Fn(&W) -> bool,
        note: impl FnOnce(u64),
    ) -> Admission<W> {
        let Some(Need { resource, .. }) = needs.first() else { return Admission::Admitted(waiter) };
        let looks_first = removed(step::UNITS_LOOK_FOR_CANCEL);
        if looks_first && !is_wanted(&waiter) {
            return Admission::Unwanted(waiter);
        }
        let is_lacking = removed(step::UNITS_LOOK_UNDER_LOCK) && resource.with(|queues| !queues.may_take(band, needs));
        resource.with(|queues| {
            pause::at(Point::UnitsBeforeTake);
            if !looks_first && !is_wanted(&waiter) {
                Admission::Unwanted(waiter)
            } else if !is_lacking && queues.may_take(band, needs) {
                queues.take(band, queues.last + 1, needs);
                Admission::Admitted(waiter)
            } else {
                note(queues.last + 1);
                queues.append(band, needs, waiter);
                Admission::Waits
            }
        })
    }

    /// Gives units back. Returns the waiters that are admitted.
    pub fn give_back(needs: &[Need<W>]) -> Vec<LeftQueue<W>> {
        Self::change(needs, |need| need.resource.taken.subtract(need.units))
    }

    /// Records that an operation that holds these units waits, or that it does no longer: gives back the units of
    /// bounds, and keeps nothing for waiters that need the other resources meanwhile. Returns the waiters that are
    /// admitted.
    pub fn hold_still(needs: &[Need<W>], waits: bool) -> Vec<LeftQueue<W>> {
        Self::change(needs, |need| {
            let Stock { is_bound, taken, still, .. } = &*need.resource;
            match (is_bound, waits) {
                (true, true) => taken.subtract(need.units),
                (true, false) => {}
                (false, true) => still.add(1),
                (false, false) => still.subtract(1),
            }
        })
    }

    /// Lets a waiter that still waits take its units although they are not free.
    pub fn take_anyway(band: u8, needs: &[Need<W>], number: u64) {
        let Some(Need { resource, .. }) = needs.first() else { return };
        resource.with(|queues| {
            if queues.remove(band, needs, number).is_some() {
                queues.take(band, number, needs);
            }
        });
    }

    /// Withdraws the waiter whose number `number` returns under the lock, if it waits. Returns it, and the waiters that
    /// are admitted.
    pub fn withdraw(band: u8, needs: &[Need<W>], number: impl FnOnce() -> u64) -> Vec<LeftQueue<W>> {
        let mut left = Vec::new();
        if let Some(Need { resource, .. }) = needs.first() {
            resource.with(|queues| {
                let withdrawn = queues.remove(band, needs, number());
                left.extend(withdrawn.map(|waiter| LeftQueue { waiter, is_admitted: false }));
                queues.admit(&mut left);
            });
        }
        left
    }

    /// Withdraws the waiters in the pool for which `is_off` returns `true`. Returns these, and those that are admitted.
    pub fn withdraw_if(&self, is_off: impl Fn(&W) -> bool) -> Vec<LeftQueue<W>> {
        self.with(|queues| {
            let withdrawn = queues.remove_if(is_off).into_iter();
            let mut left = withdrawn.map(|waiter| LeftQueue { waiter, is_admitted: false }).collect();
            queues.admit(&mut left);
            left
        })
    }

    /// Calls `look`, under the lock, with each waiter that needs one of these numbers of units of this resource.
    /// Returns whether any waiter needs units of it. Finds none while another thread has the lock, so that a caller who
    /// does not use the resource does not depend on that thread.
    pub fn each_waiter(&self, units: RangeInclusive<u64>, mut look: impl FnMut(&W)) -> bool {
        let look_at_all = |_: &_, queues: &mut Queues<W>| {
            let mut are_wanted = false;
            for queue in &queues.queues {
                let need = queue.needs.iter().find(|need| ptr::eq(&raw const *need.resource, self));
                are_wanted |= need.is_some();
                if need.is_some_and(|need| units.contains(&need.units)) {
                    queue.waiters.iter().for_each(|place| look(&place.waiter));
                }
            }
            are_wanted
        };
        self.visit(try_lock, look_at_all).unwrap_or(false)
    }

    /// Calls `change` with each need, under the lock, and admits waiters.
    fn change(needs: &[Need<W>], change: impl Fn(&Need<W>)) -> Vec<LeftQueue<W>> {
        let mut left = Vec::new();
        if let Some(Need { resource, .. }) = needs.first() {
            resource.with(|queues| {
                needs.iter().for_each(change);
                pause::at(Point::UnitsBeforeAdmit);
                queues.admit(&mut left);
            });
        }
        left
    }
}

impl<W> StockPool<W> {
    fn new() -> Self {
        // Of `std` also in models, since it orders nothing.
        use std::sync::atomic::AtomicU64 as Number;
        static NEXT: Number = Number::new(0);
        // Relaxed: the numbers need only be distinct.
        let number = NEXT.fetch_add(1, Relaxed);
        Self { number, state: Mutex::new(StockPoolState::Here(Queues::default())) }
    }

    /// Moves the smaller of two pools into the other, unless a pool has moved.
    fn join(one: &Arc<Self>, other: &Arc<Self>) {
        let (first, second) = if one.number < other.number { (one, other) } else { (other, one) };
        let (mut first_state, mut second_state) = (lock(&first.state), lock(&second.state));
        let (StockPoolState::Here(of_first), StockPoolState::Here(of_second)) = (&mut *first_state, &mut *second_state)
        else {
            return;
        };
        if of_first.pools < of_second.pools {
            of_second.absorb(of_first);
            *first_state = StockPoolState::Moved(Arc::clone(second));
        } else {
            of_first.absorb(of_second);
            *second_state = StockPoolState::Moved(Arc::clone(first));
        }
    }
}

/// Sorts needs, merges those of the same resource, and leaves out those of no unit.
pub fn merge<W>(needs: &mut NeedsOf<W>) {
    needs.retain(|need| need.units != 0);
    needs.sort_by_key(|need| Arc::as_ptr(&need.resource));
    needs.dedup_by(|later, kept| {
        let is_same = later.is_of(kept);
        if is_same {
            kept.units = kept.units.saturating_add(later.units);
        }
        is_same
    });
}

/// Lets the resources of needs share a pool.
pub fn join<W>(needs: &[Need<W>]) {
    for pair in needs.windows(2) {
        loop {
            let [one, other] = [0, 1].map(|at| pair[at].resource.with_pool(|pool, _| Arc::clone(pool)));
            if Arc::ptr_eq(&one, &other) {
                break;
            }
            StockPool::join(&one, &other);
        }
    }
}

#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
mod tests;
