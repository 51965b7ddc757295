//! The arguments of a push: an operation's variables and properties.

use std::{panic::Location, ptr::NonNull};

use smallvec::SmallVec;

use crate::{
    error::push_error::{NoAccess, PushError},
    op::{task::flag, variable::VarCell},
    tracker::Mode,
    values::{Name, kind::EngineKind, property::Property},
};

/// The kind of reference to a variable's value that an operation's function receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RefKind {
    None,
    Shared,
    Exclusive,
}

/// An access before its push: a variable and how the operation uses it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) cell: NonNull<VarCell>,
    pub(crate) mode: Mode,
    /// The kind of reference that the function receives.
    pub(crate) refs: RefKind,
}

// SAFETY: an entry is a pointer to a cell, which is `Sync`. It does not grant access to the variable's value. On any
// thread, the owner of an entry keeps a handle to the variable.
unsafe impl Send for Entry {}

/// The maximum number of accesses of an operation that goes the [short way](crate::engine::push).
pub(crate) const MOST_SHORT: usize = 16;

/// The accesses of an operation before its push.
pub(crate) type Entries = SmallVec<[Entry; MOST_SHORT]>;

/// An operation's properties, other than its accesses, its function and the location of its push. The flags also
/// indicate whether the operation has a name and whether the name owns memory.
#[derive(Debug)]
pub(crate) struct Spec {
    pub(crate) name: Name,
    pub(crate) priority: i32,
    pub(crate) flags: u16,
    pub(crate) lane: u8,
    /// Whether there is room for the operation or the operation needs none. If so, its push is not held back.
    pub(crate) is_admitted: bool,
    /// Whether the operation is a child. Since its parent is then pending, the child may be pushed on any thread while
    /// the engine drains.
    pub(crate) is_child: bool,
    /// Whether closed variables accept the operation: it deletes, empties, frees or awaits a variable.
    pub(crate) passes_closed: bool,
}

impl Spec {
    /// Returns the default properties of an operation with this name, which may be empty.
    #[inline]
    pub(crate) fn new(name: Name) -> Self {
        let flags = if name.is_empty() { 0 } else { flag::NAMED };
        let flags = if name.is_shared() { flags | flag::OWNS_NAME } else { flags };
        Self { name, priority: 0, flags, lane: 0, is_admitted: false, is_child: false, passes_closed: false }
    }

    /// Whether the operation is *bare*: it has no property but a name, which owns no memory. Neither its function nor a
    /// handle is a property.
    pub(crate) fn is_bare(&self) -> bool {
        let is_normal = self.flags & !flag::NAMED == 0 && self.lane == 0 && self.priority == 0;
        is_normal && !self.passes_closed && !self.is_admitted && !self.is_child
    }

    /// Returns the properties of an internal operation.
    pub(crate) fn internal(name: &'static str, priority: i32, flags: u16) -> Self {
        let spec = Self::new(Name::from(name));
        Self { priority, flags: spec.flags | flags | flag::INTERNAL, ..spec }
    }

    /// Lets closed variables accept the operation.
    pub(crate) fn passing_closed(self) -> Self {
        Self { passes_closed: true, ..self }
    }
}

/// The lane and the priority of an operation with a property.
pub(crate) struct Route {
    pub(crate) lane: u8,
    /// The priority that replaces the operation's own, if any.
    pub(crate) priority: Option<i32>,
}

impl Route {
    /// Returns the route of CPU operations with `property`. The lanes have these numbers because
    /// [`EngineBuilder::build`](crate::EngineBuilder::build) creates them in this order.
    #[inline]
    pub(crate) fn of(property: Property, kind: EngineKind) -> Self {
        let per_device = kind == EngineKind::PerDevice;
        let (lane, priority) = match property {
            Property::Normal => (0, None),
            Property::CopyToGpu => (1, None),
            Property::CopyFromGpu => (if per_device { 2 } else { 1 }, None),
            Property::CpuPrioritized | Property::GpuPrioritized if per_device => (3, None),
            Property::CpuPrioritized | Property::GpuPrioritized => (0, Some(i32::MAX)),
        };
        Self { lane, priority }
    }
}

/// Sorts the entries by variable and merges entries for the same variable, as
/// [`push::check_and_sort`](crate::engine::push::check_and_sort) does. Returns the remaining entries.
pub(crate) fn sort<'e>(
    entries: &'e mut [Entry],
    name: &Name,
    location: &'static Location<'static>,
) -> Result<&'e [Entry], PushError> {
    match sort_distinct(entries) {
        Ok(distinct) => Ok(&entries[..distinct]),
        Err(aliased) => {
            // SAFETY: the creator of the entry keeps a handle to the variable until the push returns.
            let cell = unsafe { aliased.0.as_ref() };
            Err(PushError::Variable(NoAccess::Aliased, cell.refused_access(name, location)))
        }
    }
}

/// A variable to whose value an operation declares two references, at least one of which is mutable.
pub(crate) struct Aliased(NonNull<VarCell>);

/// The maximum number of entries that are sorted by insertion. Setting up the general sort costs more than sorting so
/// few.
const MAX_INSERTED: usize = 16;

/// Sorts entries by variable and merges entries for the same variable. Returns the number of remaining entries, which
/// are moved to the front.
#[inline(never)]
pub(crate) fn sort_distinct(entries: &mut [Entry]) -> Result<usize, Aliased> {
    // SAFETY: the creator of the entries keeps handles to their variables until the push returns.
    let id = |entry: &Entry| unsafe { entry.cell.as_ref() }.queue().id();
    if entries.len() <= MAX_INSERTED {
        let mut equal = false;
        for end in 1..entries.len() {
            let entry = entries[end];
            let own = id(&entry);
            let mut place = end;
            while let Some(&before) = entries[..place].last() {
                let other = id(&before);
                equal |= other == own;
                if other <= own {
                    break;
                }
                entries[place] = before;
                place -= 1;
            }
            entries[place] = entry;
        }
        if !equal {
            return Ok(entries.len());
        }
    } else {
        entries.sort_unstable_by_key(id);
    }
    let (mut last, mut aliased) = (0, None);
    for at in 1..entries.len() {
        let later = entries[at];
        if later.cell != entries[last].cell {
            last += 1;
            entries[last] = later;
            continue;
        }
        let kept = &mut entries[last];
        if later.refs.min(kept.refs) != RefKind::None && later.refs.max(kept.refs) == RefKind::Exclusive {
            aliased = Some(Aliased(kept.cell));
        }
        if later.mode != kept.mode {
            kept.mode = Mode::Write;
        }
        kept.refs = kept.refs.max(later.refs);
    }
    aliased.map_or_else(|| Ok(entries.len().min(last + 1)), Err)
}

/// The name of the internal operations that clear failures.
pub(crate) const CLEAR_ERROR: &str = "clear_error";

/// The name of the internal operations that poll futures.
pub(crate) const POLL: &str = "poll";
