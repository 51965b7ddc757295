//! The units that an operation needs: those that it names, and one of each bound of its groups and its engine.
//!
//! # States
//!
//! | state | meaning | next |
//! |---|---|---|
//! | `NONE` | the operation has no units, or needs none since it will be skipped | `WAITS`, `HELD`, `ENDED` |
//! | `WAITS` | the operation is in a queue of the resources' [pool](crate::notify::stock) | `HELD`, or `NONE` if it is cancelled |
//! | `HELD` | the operation has all its units | `STILL`, `NAMED`, `ENDED` |
//! | `STILL` | its function waits, and has lent the units of bounds | `HELD`, `ENDED` |
//! | `NAMED` | it has given back the units of bounds for good: its own work has ended, and it waits for its children; or its future has slept or ended | `ENDED` |
//! | `ENDED` | it has given back all units | – |
//!
//! A child has units of its own, and so has each poll of a future in the state `NAMED`: the internal operation that
//! polls it needs the units of the future's bounds ([`Units::of_polls`]). It needs none once the future was asked to
//! stop ([`WaitNumber::end`]), since the poll then only drops the future.
//!
//! # Who may touch what
//!
//! * `needs`: constant.
//! * `number`: under the lock of the resources' pool. The polls of a future share it.
//! * `state`: up to `HELD`, set by the owner of the ready operation, or by the thread that takes it out of its queue;
//!   then by the thread whose wait begins or ends, the thread that ends the parent's work or polls the future, and the
//!   thread that ends the operation, which may do so during a wait. Whoever leaves `HELD` gives back what `HELD` has
//!   and the next state has not, and whoever leaves `STILL` or `NAMED` gives back the units that the operation names.
//!   The thread that waits gives back the units of bounds that it has taken again after the wait if the operation has
//!   ended meanwhile.

use std::{
    collections::HashMap,
    ptr::NonNull,
    sync::{Arc, Weak},
};

use crate::{
    error::push_error::Misfit,
    notify::{
        oneshot::Oneshot,
        stock::{self, Need, Stock},
    },
    sync::{
        Mutex,
        Ordering::Relaxed,
        atomic::{AtomicU8, AtomicU64},
        lock,
    },
};

/// A waiter for units.
#[derive(Debug)]
pub(crate) enum UnitsWaiter {
    /// The owned record of a ready operation.
    Op(NonNull<()>),
    /// A function whose wait has ended, and which is to have back the units that it had lent.
    Function(Arc<Oneshot<()>>),
}

// SAFETY: the pointer owns an operation, and any thread may own one.
unsafe impl Send for UnitsWaiter {}

pub(crate) type ResourceCore = Stock<UnitsWaiter>;

/// Units of resources.
pub(crate) type Needs = stock::NeedsOf<UnitsWaiter>;

/// The states of an operation's units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum UnitsState {
    None,
    Waits,
    Held,
    Still,
    Named,
    Ended,
}

/// The number with which an operation waits for its units, or waited last.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitNumber(Arc<AtomicU64>);

impl WaitNumber {
    /// The number of a waiter that must not wait any more.
    const ENDED: u64 = u64::MAX;

    pub(crate) fn set(&self, number: u64) {
        // Relaxed: the lock of the pool hands over the value.
        self.0.store(number, Relaxed);
    }

    /// Lets the operation not wait any more. Returns the number with which it waits, if it does.
    pub(crate) fn end(&self) -> u64 {
        // Relaxed: the lock of the pool hands over the value.
        self.0.swap(Self::ENDED, Relaxed)
    }

    pub(crate) fn is_ended(&self) -> bool {
        // Relaxed: the lock of the pool hands over the value.
        self.0.load(Relaxed) == Self::ENDED
    }
}

/// The units that an operation needs.
#[derive(Debug)]
pub(crate) struct Units {
    needs: Needs,
    state: AtomicU8,
    number: WaitNumber,
}

impl Units {
    /// Returns the units of an operation of the engine with the tag `owner`, which names `named` and has these bounds,
    /// if there are any.
    ///
    /// # Errors
    /// Returns an error if a resource belongs to another engine or has too few units.
    pub(crate) fn new(
        owner: usize,
        named: &[Need<UnitsWaiter>],
        bounds: impl Iterator<Item = Arc<ResourceCore>>,
    ) -> Result<Option<Box<Self>>, Misfit> {
        let mut needs = Needs::from(named);
        for Need { resource, .. } in &needs {
            if resource.owner() != owner {
                return Err(Misfit::ForeignResource);
            }
        }
        needs.extend(bounds.map(|resource| Need { resource, units: 1 }));
        stock::merge(&mut needs);
        for Need { resource, units } in &needs {
            if *units > resource.units() {
                return Err(Misfit::TooManyUnits { needed: *units, units: resource.units() });
            }
        }
        stock::join(&needs);
        Ok(Self::of(needs, WaitNumber::default()))
    }

    fn of(needs: Needs, number: WaitNumber) -> Option<Box<Self>> {
        let state = AtomicU8::new(UnitsState::None as u8);
        (!needs.is_empty()).then(|| Box::new(Self { needs, state, number }))
    }

    /// Returns the units of an operation that polls the future of this one, if this one has bounds. For the second poll
    /// and those after it, they are returned by the same call on the first one's.
    pub(crate) fn of_polls(&self) -> Option<Box<Self>> {
        Self::of(self.part(true), self.number.clone())
    }

    pub(crate) fn number(&self) -> &WaitNumber {
        &self.number
    }

    pub(crate) fn needs(&self) -> &Needs {
        &self.needs
    }

    /// Returns the needs that are, or are not, of bounds.
    pub(crate) fn part(&self, of_bounds: bool) -> Needs {
        self.needs.iter().filter(|need| need.resource.is_bound() == of_bounds).cloned().collect()
    }

    /// Returns the state. A snapshot, except for threads that may set the state.
    pub(crate) fn state(&self) -> UnitsState {
        // Relaxed: only the state itself matters; locks and the queues hand over the operation.
        state_of(self.state.load(Relaxed))
    }

    pub(crate) fn set(&self, state: UnitsState) -> UnitsState {
        // Relaxed: as in `state`.
        state_of(self.state.swap(state as u8, Relaxed))
    }

    /// Changes the state `from` to `to`. Returns whether it was `from`.
    pub(crate) fn change(&self, from: UnitsState, to: UnitsState) -> bool {
        // Relaxed: only the choice of the winner matters.
        self.state.compare_exchange(from as u8, to as u8, Relaxed, Relaxed).is_ok()
    }

    /// Returns the needs whose units the operation holds. A snapshot.
    pub(crate) fn held(&self) -> impl Iterator<Item = &Need<UnitsWaiter>> {
        let (has_all, has_named) = (self.state() == UnitsState::Held, self.are_held());
        self.needs.iter().filter(move |need| has_all || has_named && !need.resource.is_bound())
    }

    /// Whether the operation holds the units that it names.
    pub(crate) fn are_held(&self) -> bool {
        matches!(self.state(), UnitsState::Held | UnitsState::Still | UnitsState::Named)
    }
}

fn state_of(state: u8) -> UnitsState {
    use UnitsState::{Ended, Held, Named, None, Still, Waits};
    [None, Waits, Held, Still, Named, Ended][usize::from(state)]
}

/// Resources in whose pools operations may wait. Small as long as there are none.
#[derive(Debug, Default)]
pub(crate) struct Resources(Mutex<Option<Box<ResourceList>>>);

#[derive(Debug, Default)]
struct ResourceList {
    /// The resources by their addresses, among them some that exist no longer.
    used: HashMap<usize, Weak<ResourceCore>>,
    /// The number of resources from which on those that exist no longer are removed.
    is_many: usize,
}

impl Resources {
    pub(crate) fn add(&self, resource: &Arc<ResourceCore>) {
        let mut list = lock(&self.0);
        let ResourceList { used, is_many } = &mut **list.get_or_insert_default();
        used.entry(Arc::as_ptr(resource).addr()).or_insert_with(|| Arc::downgrade(resource));
        if used.len() > *is_many {
            used.retain(|_, known| known.strong_count() > 0);
            *is_many = 2 * used.len();
        }
    }

    /// Returns those that still exist.
    pub(crate) fn all(&self) -> Vec<Arc<ResourceCore>> {
        let list = lock(&self.0);
        list.iter().flat_map(|list| list.used.values()).filter_map(Weak::upgrade).collect()
    }
}
