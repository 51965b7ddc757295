//! Operators: operations that are created once and pushed often.

use std::{fmt, future::Future, panic::Location, ptr::NonNull, sync::Arc, time::Instant};

use crate::{
    api::{handle::OpHandle, token::Token},
    engine::{core::Core, push},
    error::{
        op::Cause,
        push_error::{NoAccess, PushError},
    },
    group::{
        family::Plan,
        room::{self, WhenRoom},
    },
    op::{
        frame::Call,
        group_core::GroupCore,
        job::{self, HandleJob, Out, without_sink},
        limits::Limits,
        no_wait::{self, NoWait},
        spec::{Entry, MOST_SHORT, RefKind, Spec},
        task::{ErasedJob, Job, flag},
    },
    tracker::Mode,
};

/// The function of an operator.
pub(crate) type OperatorFunction = Box<dyn Fn(&Call<'_>) -> Result<(), Cause> + Send + Sync>;

struct Inner {
    core: Arc<Core>,
    spec: Spec,
    /// The entries, which have passed `push::check_and_sort`.
    entries: Box<[Entry]>,
    function: OperatorFunction,
    /// The name, if runs may be pushed by `push::push_short`: the operator is synchronous, has between one access and
    /// [`MOST_SHORT`], and has no property but the name, which owns no memory.
    bare_name: Option<&'static str>,
    /// Whether the priority is fixed, because the property determines it or because the operator is a clean-up.
    fixed_priority: bool,
    /// The group and deadline of each run. Used only with `flag::LIMITED`.
    limits: (Option<Arc<GroupCore>>, Option<Instant>),
}

// SAFETY: the `Owner`'s tokens keep alive the cells that `entries` points to, and a cell is `Sync`.
unsafe impl Send for Inner {}
// SAFETY: as for `Send`.
unsafe impl Sync for Inner {}

/// The state shared by an operator's handles. Synchronous runs over variables use the state without being counted as
/// owners: an operation behind them in the queues drops it.
struct Owner {
    /// A pointer obtained from a box. It is raw because runs also use the state, even while the `Owner` is being
    /// dropped.
    inner: NonNull<Inner>,
    /// Keeps the entries' variables alive.
    tokens: Box<[Token]>,
}

// SAFETY: an `Inner` is `Send` and `Sync`, and is dropped once.
unsafe impl Send for Owner {}
// SAFETY: as for `Send`.
unsafe impl Sync for Owner {}

impl Owner {
    fn get(&self) -> &Inner {
        // SAFETY: the `Inner` is dropped only after this `Owner`.
        unsafe { self.inner.as_ref() }
    }
}

/// The state of an operator whose last handle has been dropped.
struct OperatorRemains(NonNull<Inner>);

// SAFETY: as for `Owner`.
unsafe impl Send for OperatorRemains {}

impl Drop for OperatorRemains {
    fn drop(&mut self) {
        // SAFETY: the pointer came from a box. The drop of the `Owner` ensures that the owner no longer uses the state
        // and that all runs are complete.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Drop for Owner {
    #[track_caller]
    fn drop(&mut self) {
        if self.get().core.is_forked() {
            return;
        }
        let remains = OperatorRemains(self.inner);
        let Some(&entry) = self.get().entries.first() else {
            // Runs without variables count as owners, so no run is left.
            return drop(remains);
        };
        let spec = Spec::internal("delete_operator", i32::MAX, flag::NO_SKIP | flag::SILENT).passing_closed();
        // Every run names the variable, so all runs are complete when this operation runs.
        let entry = Entry { mode: Mode::Await, refs: RefKind::None, ..entry };
        let core = Arc::clone(&self.get().core);
        let delete = move |_: &Call<'_>| {
            no_wait::without_waits(NoWait::Deletion, || drop(remains));
            Ok(())
        };
        // The tokens are dropped after this push, on this thread rather than by the pushed operation, so that a later
        // wait for all covers the operations pushed by their drops.
        let pushed =
            core.push_sorted(&spec, spec.priority, Location::caller(), &[entry], ErasedJob::new(without_sink(delete)));
        debug_assert!(pushed.is_ok(), "internal operations are not refused: {pushed:?}");
    }
}

impl Inner {
    #[inline]
    fn call(&self, call: &Call<'_>) -> Result<(), Cause> {
        (self.function)(call)
    }
}

/// A synchronous run's reference to its operator, for an operator with variables. The run is complete before the
/// operation that drops the `Inner` runs.
struct Uncounted(NonNull<Inner>);

// SAFETY: an `Inner` is `Sync`.
unsafe impl Send for Uncounted {}

impl Uncounted {
    #[inline]
    fn get(&self) -> &Inner {
        // SAFETY: the run is not complete, so the `Inner` has not been dropped.
        unsafe { self.0.as_ref() }
    }
}

/// A run's reference to its operator.
enum OperatorRef {
    Uncounted(Uncounted),
    Counted(Arc<Owner>),
}

impl OperatorRef {
    fn get(&self) -> &Inner {
        match self {
            Self::Uncounted(run) => run.get(),
            Self::Counted(owner) => owner.get(),
        }
    }
}

/// An operation that is created once and pushed often, returned by [`OpBuilder::operator`](crate::OpBuilder::operator)
/// and its variants. Its variables are sorted and its function is stored only once, so pushing it is cheaper than
/// pushing a new operation.
///
/// An operator may be pushed again while earlier runs are pending. Its runs are ordered by their variables, like any
/// other operations. Clones are handles to the same operator. An operator keeps its variables alive. Once the last
/// handle has been dropped, the function is dropped after the last run.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = raddle::Engine::builder().workers(1).build()?;
/// let counter = engine.var(0u32);
/// let increment = engine.op("increment").operator(counter.write(), |counter| *counter += 1)?;
/// for _ in 0..10 {
///     increment.push()?;
/// }
/// assert_eq!(engine.get(&counter)?, 10);
/// # Ok(())
/// # }
/// ```
#[must_use = "an operator runs when it is pushed"]
#[derive(Clone)]
pub struct Operator(Arc<Owner>);

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operator")
            .field("name", &self.inner().spec.name)
            .field("variables", &self.inner().entries.len())
            .finish_non_exhaustive()
    }
}

impl Operator {
    /// Creates the handle. `entries` must be sorted and distinct. The caller must have handles to their variables,
    /// which must belong to `core`.
    pub(crate) fn new(
        core: Arc<Core>,
        spec: Spec,
        entries: Box<[Entry]>,
        function: OperatorFunction,
        fixed_priority: bool,
        limits: (Option<Arc<GroupCore>>, Option<Instant>),
    ) -> Self {
        let tokens = entries
            .iter()
            // SAFETY: the caller has a handle to each variable.
            .map(|entry| unsafe { Token::from_entry(entry) })
            .collect();
        let is_short = (1..=MOST_SHORT).contains(&entries.len()) && spec.is_bare();
        let bare_name = if is_short { spec.name.as_static() } else { None };
        let inner = Box::new(Inner { core, spec, entries, function, bare_name, fixed_priority, limits });
        Self(Arc::new(Owner { inner: NonNull::from(Box::leak(inner)), tokens }))
    }

    fn inner(&self) -> &Inner {
        self.0.get()
    }

    /// Pushes a run of the operator.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let counter = engine.var(0u32);
    /// let increment = engine.op("increment").operator(counter.write(), |counter| *counter += 1)?;
    /// increment.push()?;
    /// increment.push()?;
    /// assert_eq!(engine.get(&counter)?, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`PushError`].
    #[track_caller]
    pub fn push(&self) -> Result<(), PushError> {
        self.push_with_priority(self.inner().spec.priority)
    }

    /// Pushes a run of the operator with this priority instead of the operator's own. The priority has no effect on
    /// [clean-ups](crate::OpBuilder::cleanup) or on operators whose property determines the priority.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let alarm = engine.op("alarm").operator((), |()| println!("alarm"))?;
    /// alarm.push_with_priority(100)?;
    /// engine.wait_for_all()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`push`](Self::push).
    #[track_caller]
    pub fn push_with_priority(&self, priority: i32) -> Result<(), PushError> {
        self.push_run::<false>(priority, Location::caller())
    }

    #[inline]
    fn push_run<const ADMITTED: bool>(
        &self,
        priority: i32,
        location: &'static Location<'static>,
    ) -> Result<(), PushError> {
        let inner = self.inner();
        if let Some(name) = inner.bare_name.filter(|_| priority == 0 && !ADMITTED) {
            let run = Uncounted(self.0.inner);
            let job = without_sink(move |call: &Call<'_>| run.get().call(call));
            return push::push_short::<true, _>(&inner.core, name, location, &*inner.entries, job);
        }
        self.check(location)?;
        let priority = if inner.fixed_priority { inner.spec.priority } else { priority };
        // There are two kinds of jobs, since a job that owns nothing costs less to push and run.
        match self.own() {
            OperatorRef::Uncounted(run) => {
                self.enqueue::<ADMITTED>(priority, location, without_sink(move |call: &Call<'_>| run.get().call(call)))
            }
            OperatorRef::Counted(owner) => self.enqueue::<ADMITTED>(
                priority,
                location,
                without_sink(move |call: &Call<'_>| owner.get().call(call)),
            ),
        }
    }

    /// Returns an error immediately if the [limit](crate::EngineBuilder::max_pending) of the engine or of the
    /// operator's group leaves no room for a run. A push through the returned [`Admitted`] is not held back. See
    /// [`OpBuilder::if_room`](crate::OpBuilder::if_room).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{Engine, PushError};
    ///
    /// let engine = Engine::builder().workers(1).max_pending(64).build()?;
    /// let tick = engine.op("tick").operator((), |()| {})?;
    /// match tick.if_room() {
    ///     Ok(tick) => tick.push()?,
    ///     Err(PushError::Full) => println!("this tick is left out"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`PushError::Full`], [`PushError::ShutDown`] or [`PushError::Forked`].
    pub fn if_room(&self) -> Result<Admitted<'_>, PushError> {
        room::check(&self.inner().core, self.inner().limits.0.as_ref())?;
        Ok(Admitted(self))
    }

    /// Returns a future that resolves to an [`Admitted`] when there is room for a run. A push through the `Admitted` is
    /// not held back. See [`OpBuilder::when_room`](crate::OpBuilder::when_room).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = raddle::Engine::builder().workers(1).max_pending(4).build()?;
    /// let counter = engine.var(0);
    /// let increment = engine.op("increment").operator(counter.write(), |counter| *counter += 1)?;
    /// let task = async {
    ///     for _ in 0..100 {
    ///         increment.when_room().await?.push()?;
    ///     }
    ///     engine.get_async(&counter).await
    /// };
    /// assert_eq!(pollster::block_on(task)?, 100);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The future resolves to [`PushError::ShutDown`] once a shutdown has begun, and to [`PushError::Forked`] in a
    /// forked child.
    pub fn when_room(&self) -> impl Future<Output = Result<Admitted<'_>, PushError>> + Send + use<'_> {
        let room = WhenRoom::new(&self.inner().core, self.inner().limits.0.as_ref());
        async move {
            room.await?;
            Ok(Admitted(self))
        }
    }

    /// Pushes a run of the operator and returns a handle, through which the run can be awaited and cancelled.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let level = engine.var(1u32);
    /// let drain = engine.op("drain").try_operator(level.write(), |level| {
    ///     *level = level.checked_sub(1).ok_or("empty")?;
    ///     Ok(())
    /// })?;
    /// let (first, second) = (drain.submit()?, drain.submit()?);
    /// first.wait()?;
    /// assert!(second.wait().is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`push`](Self::push).
    #[track_caller]
    pub fn submit(&self) -> Result<OpHandle<()>, PushError> {
        self.submit_run::<false>(Location::caller())
    }

    fn submit_run<const ADMITTED: bool>(
        &self,
        location: &'static Location<'static>,
    ) -> Result<OpHandle<()>, PushError> {
        self.check(location)?;
        let own = self.own();
        let inner = self.inner();
        let f = move |call: &Call<'_>| own.get().call(call);
        let is_async = inner.spec.flags & flag::ASYNC != 0;
        let f = move |call: &Call<'_>, out: Out<()>| {
            if is_async { job::completing(f)(call, out) } else { job::returning(f)(call, out) }
        };
        let shared = job::shared(&inner.spec, location, f);
        self.enqueue::<ADMITTED>(inner.spec.priority, location, HandleJob::new(Arc::clone(&shared)))?;
        Ok(OpHandle::new(shared, &inner.core))
    }

    /// Returns an error if one of the operator's variables was deleted.
    #[inline]
    fn check(&self, location: &'static Location<'static>) -> Result<(), PushError> {
        for token in &self.0.tokens {
            let cell = token.cell();
            if cell.queue().is_closed() {
                return Err(PushError::Variable(
                    NoAccess::Deleted,
                    cell.refused_access(&self.inner().spec.name, location),
                ));
            }
            cell.queue().prefetch();
        }
        Ok(())
    }

    /// Returns a new run's reference to the operator.
    #[inline]
    fn own(&self) -> OperatorRef {
        let inner = self.inner();
        // An asynchronous run's function may continue after the completion has ended the operation.
        if inner.entries.is_empty() || inner.spec.flags & flag::ASYNC != 0 {
            OperatorRef::Counted(Arc::clone(&self.0))
        } else {
            OperatorRef::Uncounted(Uncounted(self.0.inner))
        }
    }

    #[inline]
    fn enqueue<const ADMITTED: bool>(
        &self,
        priority: i32,
        location: &'static Location<'static>,
        work: impl Job,
    ) -> Result<(), PushError> {
        let inner = self.inner();
        if inner.spec.flags & flag::LIMITED == 0 && !ADMITTED {
            inner.core.push_sorted(&inner.spec, priority, location, &inner.entries, ErasedJob::new(work))
        } else {
            self.enqueue_limited::<ADMITTED>(priority, location, ErasedJob::new(work))
        }
    }

    #[cold]
    fn enqueue_limited<const ADMITTED: bool>(
        &self,
        priority: i32,
        location: &'static Location<'static>,
        mut job: ErasedJob,
    ) -> Result<(), PushError> {
        let Inner { core, spec, entries, limits: (group, deadline), .. } = self.inner();
        if let Some(group) = group.as_ref().filter(|_| !ADMITTED) {
            if let Err(error) = room::admit(core, group) {
                drop(job);
                return Err(error);
            }
        }
        let is_admitted = ADMITTED || group.is_some() && core.bounds.are_in_use();
        let spec = &Spec { name: spec.name.clone(), is_admitted, ..*spec };
        if ADMITTED && spec.flags & flag::LIMITED == 0 {
            return core.push_sorted(spec, priority, location, entries, job);
        }
        let plan = || Plan::boxed(entries, priority, *deadline, group.as_ref(), None);
        let mut limits = Limits::new(*deadline, (spec.flags & flag::PARENT != 0).then(plan));
        if let Some(group) = group {
            limits.join(group);
        }
        job.limit(limits);
        let pushed = core.push_sorted(spec, priority, location, entries, job);
        room::end_push(core);
        pushed
    }
}

/// An operator with room for a run, returned by [`Operator::if_room`] and [`Operator::when_room`]. A push through it is
/// not held back.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = raddle::Engine::builder().workers(1).max_pending(64).build()?;
/// let tick = engine.op("tick").operator((), |()| {})?;
/// tick.if_room()?.submit()?.wait()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "an operator runs when it is pushed"]
pub struct Admitted<'o>(&'o Operator);

impl Admitted<'_> {
    /// Like [`Operator::push`], but never held back.
    ///
    /// # Errors
    /// Returns the errors of [`Operator::push`].
    #[track_caller]
    pub fn push(self) -> Result<(), PushError> {
        self.0.push_run::<true>(self.0.inner().spec.priority, Location::caller())
    }

    /// Like [`Operator::push_with_priority`], but never held back.
    ///
    /// # Errors
    /// Returns the errors of [`Operator::push`].
    #[track_caller]
    pub fn push_with_priority(self, priority: i32) -> Result<(), PushError> {
        self.0.push_run::<true>(priority, Location::caller())
    }

    /// Like [`Operator::submit`], but never held back.
    ///
    /// # Errors
    /// Returns the errors of [`Operator::push`].
    #[track_caller]
    pub fn submit(self) -> Result<OpHandle<()>, PushError> {
        self.0.submit_run::<true>(Location::caller())
    }
}
