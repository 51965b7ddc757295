//! Resources, of which operations use units.

use std::{fmt, sync::Arc};

use crate::{api::engine::Engine, engine::core::Core, op::units, values::Name};

impl Engine {
    /// Creates a resource with this number of units, such as licences, connections or megabytes of memory. An operation
    /// that [uses](crate::OpBuilder::uses) units starts when they are free. See [`Resource`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = raddle::Engine::builder().workers(8).build()?;
    /// let links = engine.resource(2).named("links");
    /// for target in 0..20 {
    ///     engine.op("link").uses(&links, 1).push((), move |()| println!("link {target}"))?; // two at a time
    /// }
    /// engine.wait_for_all()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn resource(&self, units: usize) -> Resource {
        let shared = Arc::new(units::ResourceCore::new(self.core().tag(), units as u64, false));
        if self.core().live().is_ok() {
            self.core().resources().add(&shared);
        }
        Resource { core: Arc::clone(self.core()), shared }
    }
}

/// A number of equal units that operations [use](crate::OpBuilder::uses), returned by [`Engine::resource`].
///
/// An operation is ready once its variables *and* its units are free. It then takes all units that it needs, of all
/// resources, at once, so operations that use several resources do not block each other. It holds them until it is
/// complete: until its completion was used, its future has ended and its guards have been dropped, its children are
/// complete, or a device has done its work. A failed operation gives them back as well. An operation that is skipped or
/// cancelled takes none.
///
/// # Who is next
///
/// Of the operations that wait for units, one with a higher priority goes first. Lower ones take only what it does not
/// need of each resource. Among equals, the one whose variables were free first goes first. Later ones may overtake it
/// if their units are free and its own are not, but at most 32 of them: from then on, returned units are kept for it.
/// So no operation starves among its equals. Nothing is kept for an operation while another one that holds units of one
/// of its resources waits inside its function or for its children, or is a future that has slept.
///
/// # Waits inside operations
///
/// An operation keeps its units while its function waits. If it waits for something that needs units which only waiting
/// operations hold, the wait returns [`WaitError::WouldDeadlock`](crate::WaitError::WouldDeadlock). Futures that await
/// others hold their units too, but such a cycle is not found: see the [guide](crate::guide::resources#waits).
///
/// # Children
///
/// The units of a [child](crate::OpContext::child) come out of its parent's: it may use what its parent uses, and is
/// refused with [`Misfit::UnitsNotHeld`](crate::error::Misfit::UnitsNotHeld) or
/// [`Misfit::TooManyUnits`](crate::error::Misfit::TooManyUnits) otherwise.
///
/// Clones are handles to the same resource. It exists as long as there are handles or pending operations that use it,
/// and does not keep the engine open. Any thread may push operations that use it. Whoever takes or gives back units
/// takes a lock, which resources share once an operation has used them together; operations that use none of these
/// never wait for it. See the [guide](crate::guide::resources) for the bounds of groups and engines.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::Resource;
///
/// let engine = raddle::Engine::builder().workers(4).build()?;
/// let (cores, megabytes): (Resource, Resource) = (engine.resource(4), engine.resource(1000));
/// for size in [900, 50, 300, 700] {
///     engine.op("sort").uses(&cores, 1).uses(&megabytes, size).push((), move |()| println!("{size} MB"))?;
/// }
/// engine.wait_for_all()?; // never more than 1000 MB at a time
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Resource {
    /// Keeps the engine's address, which is its tag, from being used again.
    core: Arc<Core>,
    pub(super) shared: Arc<units::ResourceCore>,
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, units) = (self.shared.name(), self.units());
        f.debug_struct("Resource").field("name", &name).field("units", &units).field("engine", &self.core).finish()
    }
}

impl Resource {
    /// Sets the resource's name, which appears in dumps and `Debug` output and is visible through all handles. A
    /// resource keeps its first name; later calls have no effect.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let licences = engine.resource(3).named("licences");
    /// assert!(format!("{licences:?}").contains("licences"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "the handle is returned"]
    pub fn named(self, name: impl Into<Name>) -> Self {
        self.shared.set_name(name.into());
        self
    }

    /// Returns the number of units, whether or not they are free.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// assert_eq!(engine.resource(3).units(), 3);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn units(&self) -> usize {
        self.shared.units() as usize
    }
}
