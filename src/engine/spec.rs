//! What a push is given: which variables an operation names, and how it is to run.

use smallvec::SmallVec;

use crate::{
    engine::{task::flag, variable::VarCell},
    tracker::{INLINE_ACCESSES, Mode},
    values::{kind::EngineKind, name::Name, property::Property},
};

/// The references to a value that an operation's function gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refs {
    None,
    Shared,
    Exclusive,
}

/// An access in the making: a variable and what is done to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) cell: std::ptr::NonNull<VarCell>,
    pub(crate) mode: Mode,
    /// What the function gets of the variable's value.
    pub(crate) refs: Refs,
}

/// The variables an operation names, in the making.
pub(crate) type Entries = SmallVec<[Entry; INLINE_ACCESSES]>;

/// What an operation is made with, beside its variables, its function, and where it is pushed. Its flags say whether it has
/// a name, and whether that owns memory.
#[derive(Debug)]
pub(crate) struct Spec {
    pub(crate) name: Name,
    pub(crate) priority: i32,
    pub(crate) flags: u16,
    pub(crate) lane: u8,
}

impl Spec {
    /// In the first lane.
    #[inline]
    pub(crate) fn new(name: Name) -> Self {
        let flags = if name.is_empty() { 0 } else { flag::NAMED };
        let flags = if name.is_shared() { flags | flag::OWNS_NAME } else { flags };
        Self { name, priority: 0, flags, lane: 0 }
    }

    /// Of an operation of the engine's own.
    pub(crate) fn internal(name: &'static str, priority: i32, flags: u16) -> Self {
        let spec = Self::new(Name::from(name));
        Self { priority, flags: spec.flags | flags | flag::INTERNAL, ..spec }
    }
}

/// Where an operation with a property goes.
pub(crate) struct Route {
    pub(crate) lane: u8,
    /// Replaces the operation's own priority.
    pub(crate) priority: Option<i32>,
}

impl Route {
    /// Where operations with `property` go.
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
