//! Operators: operations that are created once and pushed often.
//!
//! # Lifetime
//!
//! The state that an operator's handles share outlives its runs:
//!
//! | a run | uses the state | and the state is dropped, once the last handle has been dropped, |
//! |---|---|---|
//! | of an asynchronous operator, or of one without variables | as a counted owner | with the last owner |
//! | of another operator with variables of its own | uncounted | by an operation behind all runs in the queue of one of these variables |
//! | of another operator, whose variables are all chosen at each push | uncounted | once all operations that were then pending have been counted out, since no queue has all runs |

use std::{
    any::Any,
    fmt,
    future::Future,
    marker::PhantomData,
    mem::ManuallyDrop,
    panic::Location,
    ptr::NonNull,
    sync::{Arc, OnceLock},
    time::Instant,
};

use smallvec::SmallVec;

use crate::{
    api::{
        accesses::{ScopedAccesses, sealed::List},
        chosen::Chosen,
        handle::OpHandle,
        large::{LARGE, kept_boxed_if_large},
        op_builder::{is_counted, push_counted, unless_refused},
        token::Token,
    },
    engine::{admission, core::Core, push},
    error::{
        op::Cause,
        push_error::{NoAccess, PushError},
    },
    future::{future_task, held::Share},
    group::{
        family::Plan,
        room::{self, WhenRoom},
    },
    op::{
        conflation::{Close, Closer, Conflation, Offered, RunValue},
        frame::Call,
        group_core::GroupCore,
        job::{self, HandleJob, Out, closing, without_sink},
        limits::Limits,
        no_wait::{self, NoWait},
        spec::{Entries, Entry, MOST_SHORT, RefKind, Spec},
        task::{ErasedJob, flag},
        units::Needs,
    },
    tracker::Mode,
    values::Name,
    wait,
};

pub(super) mod sealed {
    use std::{any::Any, panic::Location};

    use crate::{error::push_error::PushError, op::conflation::Close};

    /// What each push passes to the function of an operator.
    pub trait Parameters: Sized + 'static {
        /// The pointers to the chosen variables, and the argument.
        type Given: Send + 'static;
        /// What its pushes use: how the variables that are chosen at each push are used, or the values of the runs that
        /// have not started.
        type State: Send + Sync + 'static;
        /// The number of variables that are chosen at each push.
        const CHOSEN: Option<usize>;
        /// Whether runs commute on a chosen variable.
        fn commutes(_state: &Self::State) -> bool {
            false
        }
        /// Whether a push would now need no room, since it adds no operation.
        fn needs_no_room(_state: &Self::State) -> bool {
            false
        }
        /// The argument.
        type Argument: Send + 'static;
        /// What closes the argument of a run that will not start, if a push may replace the argument.
        type Closer: Close;
        fn closer(given: &Self::Given) -> Self::Closer;
        /// Called when a logged run has started: from now on, the argument is the one that its function receives.
        fn start(given: Self::Given) -> Self::Given {
            given
        }
        /// Returns the argument of a run that has [started](Self::start).
        fn argument(given: &Self::Given) -> &Self::Argument;
        /// Pushes a run on these chosen variables, each a [`Var`](crate::Var) or a [`Token`](crate::Token), whose types
        /// must be those that the operator declares.
        fn push_again(
            operator: &super::Operator<Self>,
            chosen: &[&dyn Any],
            argument: Self::Argument,
            location: &'static Location<'static>,
        ) -> Option<Result<(), PushError>>;
    }
}

/// What each push of an [`Operator`] passes to the operator's function: nothing (`()`), an argument ([`With`]), an
/// argument that a later push may replace ([`Newest`]), or chosen variables and an argument ([`On`]).
///
/// The trait is sealed: only these types implement it.
pub trait Parameters: sealed::Parameters {}

impl<P: sealed::Parameters> Parameters for P {}

impl sealed::Parameters for () {
    type Given = ();
    type State = ();
    const CHOSEN: Option<usize> = Some(0);
    type Argument = ();
    type Closer = ();

    fn closer(_: &Self::Given) {}

    fn argument((): &()) -> &() {
        &()
    }

    fn push_again(
        operator: &Operator,
        _: &[&dyn Any],
        (): (),
        location: &'static Location<'static>,
    ) -> Option<Result<(), PushError>> {
        Some(operator.push_run::<false>((), operator.inner().spec.priority, location))
    }
}

/// The [`Parameters`] of an operator whose function takes an argument of type `T`.
#[derive(Debug)]
pub struct With<T>(PhantomData<fn(T)>);

impl<T: Send + 'static> sealed::Parameters for With<T> {
    type Given = T;
    type State = ();
    const CHOSEN: Option<usize> = Some(0);
    type Argument = T;
    type Closer = ();

    fn closer(_: &Self::Given) {}

    fn argument(given: &T) -> &T {
        given
    }

    fn push_again(
        operator: &Operator<Self>,
        _: &[&dyn Any],
        argument: T,
        location: &'static Location<'static>,
    ) -> Option<Result<(), PushError>> {
        Some(operator.push_run::<false>(argument, operator.inner().spec.priority, location))
    }
}

/// The [`Parameters`] of a [conflating](crate::OpBuilder::operator_newest) operator, whose function takes an argument
/// of type `T` that a later push may replace.
#[derive(Debug)]
pub struct Newest<T>(PhantomData<fn(T)>);

impl<T: Send + 'static> sealed::Parameters for Newest<T> {
    type Given = NewestValue<T>;
    type State = Values<T>;
    const CHOSEN: Option<usize> = Some(0);

    fn needs_no_room(state: &Values<T>) -> bool {
        match state {
            Values::Here(values) => values.would_replace(),
            Values::Boxed(values) => values.would_replace(),
        }
    }

    type Argument = T;
    type Closer = Closer;

    fn closer(given: &NewestValue<T>) -> Closer {
        match given {
            NewestValue::Here(value) => value.closer(),
            NewestValue::Boxed(value) => value.closer(),
            NewestValue::Taken(_) => unreachable!("the run has not been pushed"),
        }
    }

    fn start(given: NewestValue<T>) -> NewestValue<T> {
        NewestValue::Taken(match given {
            NewestValue::Here(value) => Box::new(value.take()),
            NewestValue::Boxed(value) => value.take(),
            NewestValue::Taken(value) => value,
        })
    }

    fn argument(given: &NewestValue<T>) -> &T {
        match given {
            NewestValue::Taken(value) => value,
            _ => unreachable!("the run has started"),
        }
    }

    fn push_again(
        operator: &Operator<Self>,
        _: &[&dyn Any],
        argument: T,
        location: &'static Location<'static>,
    ) -> Option<Result<(), PushError>> {
        // The argument of a replayed run is that which it received, and is not replaced.
        let inner = operator.inner();
        let push = |given| operator.push_run::<false>(given, inner.spec.priority, location);
        Some(match &inner.state {
            Values::Here(values) => values.push_unlisted(argument, |value| push(NewestValue::Here(value))),
            Values::Boxed(values) => values.push_unlisted(Box::new(argument), |value| push(NewestValue::Boxed(value))),
        })
    }
}

/// The values of a conflating operator's runs, which are boxed if they are [`LARGE`].
#[derive(Debug)]
pub enum Values<T> {
    Here(Conflation<T>),
    Boxed(Conflation<Box<T>>),
}

impl<T> Values<T> {
    pub(super) fn new(most: usize) -> Self {
        if const { size_of::<T>() > LARGE } {
            Self::Boxed(Conflation::new(most))
        } else {
            Self::Here(Conflation::new(most))
        }
    }
}

/// The value of a conflating operator's run.
#[derive(Debug)]
pub enum NewestValue<T> {
    Here(RunValue<T>),
    Boxed(RunValue<Box<T>>),
    /// The value of a logged run that has started.
    Taken(Box<T>),
}

impl<T> NewestValue<T> {
    pub(super) fn take(self) -> T {
        match self {
            Self::Here(value) => value.take(),
            Self::Boxed(value) => *value.take(),
            Self::Taken(value) => *value,
        }
    }
}

/// The [`Parameters`] of an operator for which the variables `C` are chosen at each push, and whose function takes an
/// argument of type `T`.
#[derive(Debug)]
pub struct On<C, T = ()>(PhantomData<fn(C, T)>);

impl<C: Chosen, T: Send + 'static> sealed::Parameters for On<C, T> {
    type Given = (C::Captured, T);
    type State = C;
    const CHOSEN: Option<usize> = <C::Accesses<'static> as ScopedAccesses>::COUNT;
    type Argument = T;
    type Closer = ();

    fn commutes(choice: &C) -> bool {
        choice.commutes()
    }

    fn closer(_: &Self::Given) {}

    fn argument((_, argument): &Self::Given) -> &T {
        argument
    }

    fn push_again(
        operator: &Operator<Self>,
        chosen: &[&dyn Any],
        argument: T,
        location: &'static Location<'static>,
    ) -> Option<Result<(), PushError>> {
        let mut chosen = chosen.iter().copied();
        let variables = C::find(&mut || chosen.next()).filter(|_| chosen.next().is_none())?;
        Some(operator.push_run_on::<false>(variables, argument, operator.inner().spec.priority, location))
    }
}

/// The function of an operator.
pub(crate) type OperatorFunction<G> = Box<dyn Fn(&Call<'_>, G) -> Result<(), Cause> + Send + Sync>;

struct Inner<P: Parameters> {
    core: Arc<Core>,
    spec: Spec,
    /// The entries, which have passed `push::check_and_sort`.
    entries: Box<[Entry]>,
    state: P::State,
    function: OperatorFunction<P::Given>,
    /// The name, if runs may be pushed by `push::push_short`: the operator is synchronous, has between one access and
    /// [`MOST_SHORT`], and has no property but the name, which owns no memory. `None` if runs may be logged.
    bare_name: Option<&'static str>,
    /// [`bare_name`](Self::bare_name), also if runs may be logged.
    short_name: Option<&'static str>,
    /// Whether the priority is fixed, because the property determines it or because the operator is a clean-up.
    fixed_priority: bool,
    /// The group and deadline of each run, and the units that it uses. Used only with `flag::LIMITED`.
    limits: (Option<Arc<GroupCore>>, Option<Instant>, Needs),
    /// How runs are logged, once the program has said it, if the engine has a log.
    logged: Option<OnceLock<LoggedAs<P::Argument>>>,
}

/// How the runs of an operator are logged.
struct LoggedAs<T> {
    /// The number of the operator in the log.
    number: u32,
    encode: Encode<T>,
}

/// Appends an argument as bytes.
type Encode<T> = Box<dyn Fn(&T, &mut Vec<u8>) + Send + Sync>;

/// The numbers of a run's chosen variables in a log, in the order in which they were chosen.
type ChosenIds = SmallVec<[u64; 2]>;

impl<P: Parameters> Inner<P> {
    fn logged(&self) -> Option<&LoggedAs<P::Argument>> {
        self.logged.as_ref()?.get()
    }

    /// Calls the function and, if runs are logged, logs this one first. The operation has started.
    fn call_logged(&self, call: &Call<'_>, chosen: &[u64], given: P::Given) -> Result<(), Cause> {
        if let (Some(logged), Some(log)) = (self.logged(), self.core.log()) {
            let given = P::start(given);
            log.run(logged.number, chosen, |bytes| (logged.encode)(P::argument(&given), bytes));
            return self.call(call, given);
        }
        self.call(call, given)
    }
}

// SAFETY: the `Owner`'s tokens keep alive the cells that `entries` points to, and a cell is `Sync`. The state and the
// function are `Send` and `Sync`.
unsafe impl<P: Parameters> Send for Inner<P> {}
// SAFETY: as for `Send`.
unsafe impl<P: Parameters> Sync for Inner<P> {}

/// The state shared by an operator's handles. See the head of this module.
struct Owner<P: Parameters> {
    /// A pointer obtained from a box. It is raw because runs also use the state, even while the `Owner` is being
    /// dropped.
    inner: NonNull<Inner<P>>,
    /// Keeps the entries' variables alive.
    tokens: Box<[Token]>,
}

// SAFETY: an `Inner` is `Send` and `Sync`, and is dropped once.
unsafe impl<P: Parameters> Send for Owner<P> {}
// SAFETY: as for `Send`.
unsafe impl<P: Parameters> Sync for Owner<P> {}

impl<P: Parameters> Owner<P> {
    fn get(&self) -> &Inner<P> {
        // SAFETY: the `Inner` is dropped only after this `Owner`.
        unsafe { self.inner.as_ref() }
    }
}

/// The state of an operator whose last handle has been dropped.
struct OperatorRemains<P: Parameters>(NonNull<Inner<P>>);

// SAFETY: as for `Owner`.
unsafe impl<P: Parameters> Send for OperatorRemains<P> {}

impl<P: Parameters> Drop for OperatorRemains<P> {
    fn drop(&mut self) {
        // SAFETY: the pointer came from a box. The drop of the `Owner` ensures that the owner no longer uses the state
        // and that all runs are complete.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl<P: Parameters> Drop for Owner<P> {
    #[track_caller]
    fn drop(&mut self) {
        let inner = self.get();
        if inner.core.is_forked() {
            return;
        }
        let remains = OperatorRemains(self.inner);
        let core = Arc::clone(&inner.core);
        let flags = flag::NO_SKIP | flag::SILENT;
        // The tokens are dropped after the following push, on this thread rather than by the pushed operation, so that
        // a later wait for all covers the operations pushed by their drops.
        let (entries, flags, job) = if let Some(&entry) = inner.entries.first() {
            let delete = move |_: &Call<'_>| {
                no_wait::without_waits(NoWait::Deletion, || drop(remains));
                Ok(())
            };
            // Every run names the variable, so all runs are complete when this operation runs.
            let entry = Entry { mode: Mode::Await, refs: RefKind::None, ..entry };
            (Some(entry), flags, ErasedJob::new(without_sink(delete)))
        } else if inner.runs_own() {
            return drop(remains);
        } else {
            // Covers all runs, since their pushes have returned.
            let earlier = wait::for_earlier(&core);
            // Dropped only after the wait, since it is in use until then.
            let mut remains = ManuallyDrop::new(remains);
            let delete = async move {
                if earlier.await.is_ok() {
                    // SAFETY: the remains are dropped once.
                    no_wait::without_waits(NoWait::Deletion, || unsafe { ManuallyDrop::drop(&mut remains) });
                }
                Ok(())
            };
            let start = move |call: &Call<'_>| future_task::start(call, i32::MAX, None, |_: &Share| delete);
            (None, flags | flag::ASYNC, ErasedJob::new(without_sink(start)))
        };
        let spec = Spec::internal("delete_operator", i32::MAX, flags).passing_closed();
        let pushed = core.push_sorted(&spec, spec.priority, Location::caller(), entries.as_slice(), job);
        debug_assert!(pushed.is_ok(), "internal operations are not refused: {pushed:?}");
    }
}

impl<P: Parameters> Inner<P> {
    #[inline]
    fn call(&self, call: &Call<'_>, given: P::Given) -> Result<(), Cause> {
        (self.function)(call, given)
    }

    /// Whether runs are counted as owners.
    #[inline]
    fn runs_own(&self) -> bool {
        // An asynchronous run's function may continue after the completion has ended the operation.
        self.spec.flags & flag::ASYNC != 0 || self.entries.is_empty() && matches!(P::CHOSEN, Some(0))
    }
}

/// A run's uncounted reference to its operator, whose `Inner` is dropped after the run is complete.
struct Uncounted<P: Parameters>(NonNull<Inner<P>>);

// SAFETY: an `Inner` is `Sync`.
unsafe impl<P: Parameters> Send for Uncounted<P> {}

impl<P: Parameters> Uncounted<P> {
    #[inline]
    fn get(&self) -> &Inner<P> {
        // SAFETY: the run is not complete, so the `Inner` has not been dropped.
        unsafe { self.0.as_ref() }
    }
}

/// A run's reference to its operator.
enum OperatorRef<P: Parameters> {
    Uncounted(Uncounted<P>),
    Counted(Arc<Owner<P>>),
}

impl<P: Parameters> OperatorRef<P> {
    fn get(&self) -> &Inner<P> {
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
/// `P` is what each push passes to the function: nothing, [an argument](With), [an argument that a later push may
/// replace](Newest), or [chosen variables and an argument](On). The [guide](crate::guide::operators) explains them.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = raddle::Engine::builder().workers(1).build()?;
/// let counter = engine.var(0u32);
/// let increment = engine.op("increment").operator(counter.write(), |counter| *counter += 1)?;
/// let add = engine.op("add").operator_with(counter.write(), |counter, by: u32| *counter += by)?;
/// for _ in 0..10 {
///     increment.push()?;
/// }
/// add.push(32)?;
/// assert_eq!(engine.get(&counter)?, 42);
/// # Ok(())
/// # }
/// ```
#[must_use = "an operator runs when it is pushed"]
pub struct Operator<P: Parameters = ()>(Arc<Owner<P>>);

impl<P: Parameters> Clone for Operator<P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<P: Parameters> fmt::Debug for Operator<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operator")
            .field("name", &self.inner().spec.name)
            .field("variables", &(self.inner().entries.len() + P::CHOSEN.unwrap_or_default()))
            .finish_non_exhaustive()
    }
}

impl Operator {
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
        self.push_run::<false>((), priority, Location::caller())
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
        self.submit_run::<false>((), Location::caller())
    }
}

impl<T: Send + 'static> Operator<With<T>> {
    /// Pushes a run of the operator, whose function receives `argument`. If the run is skipped, cancelled or refused,
    /// the argument is dropped like what a function captures. The [guide](crate::guide::operators#what-a-push-costs)
    /// says which arguments need an allocation.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let words = engine.var(Vec::new());
    /// let add = engine.op("add").operator_with(words.write(), |words, word: String| words.push(word))?;
    /// for word in ["warp", "weft"] {
    ///     add.push(word.to_owned())?;
    /// }
    /// assert_eq!(engine.get(&words)?, ["warp", "weft"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`PushError`]. On error, the argument has been dropped; [`if_room`](Self::if_room) asks for room before the
    /// argument is given away.
    #[track_caller]
    pub fn push(&self, argument: T) -> Result<(), PushError> {
        self.push_with_priority(argument, self.inner().spec.priority)
    }

    /// Pushes a run of the operator with this priority instead of the operator's own. The priority has no effect on
    /// [clean-ups](crate::OpBuilder::cleanup) or on operators whose property determines the priority.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let alarm = engine.op("alarm").operator_with((), |(), what: &str| println!("alarm: {what}"))?;
    /// alarm.push_with_priority("fire", 100)?;
    /// engine.wait_for_all()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`push`](Self::push).
    #[track_caller]
    pub fn push_with_priority(&self, argument: T, priority: i32) -> Result<(), PushError> {
        self.push_run::<false>(argument, priority, Location::caller())
    }

    /// Pushes a run of the operator and returns a handle, through which the run can be awaited and cancelled.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let level = engine.var(5u32);
    /// let take = engine.op("take").try_operator_with(level.write(), |level, amount| {
    ///     *level = level.checked_sub(amount).ok_or("empty")?;
    ///     Ok(())
    /// })?;
    /// let (first, second) = (take.submit(3)?, take.submit(3)?);
    /// first.wait()?;
    /// assert!(second.wait().is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`push`](Self::push).
    #[track_caller]
    pub fn submit(&self, argument: T) -> Result<OpHandle<()>, PushError> {
        self.submit_run::<false>(argument, Location::caller())
    }
}

/// What a push of a [conflating](crate::OpBuilder::operator_newest) operator did with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflated {
    /// It pushed a run with this value.
    Pushed,
    /// The value takes the place of an older one, which was dropped. No run was pushed.
    Replaced,
}

impl<T: Send + 'static> Operator<Newest<T>> {
    /// Pushes a run of the operator, whose function receives `value`, or replaces the value of a run that is pending
    /// and has not started. [`operator_newest`](crate::OpBuilder::operator_newest) says when.
    ///
    /// A push that replaces is never held back by a [limit](crate::EngineBuilder::max_pending). It drops the replaced
    /// value before it returns, after the new one has taken its place.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// use raddle::Conflated;
    ///
    /// let shown = engine.var(0);
    /// let show = engine.op("show").operator_newest(1, shown.write(), |shown, percent: u8| *shown = percent)?;
    /// let pushed = (1..=100).map(|percent| show.push(percent)).collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!(engine.get(&shown)?, 100);
    /// let replaced = pushed.iter().filter(|conflated| **conflated == Conflated::Replaced);
    /// assert_eq!(show.dropped(), replaced.count() as u64);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`PushError`]. On error, the value has been dropped and has replaced none.
    #[track_caller]
    pub fn push(&self, value: T) -> Result<Conflated, PushError> {
        self.push_newest::<false>(value, Location::caller())
    }

    /// Like [`push`](Self::push), but if a run was pushed, returns its handle, through which the run can be awaited and
    /// cancelled, with whatever value it has then. Returns `None` if a value was replaced.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let goal = engine.var(0.0);
    /// let steer = engine.op("steer").operator_newest(1, goal.write(), |goal, to: f64| *goal = to)?;
    /// let first = steer.submit(0.5)?.expect("no run was pending");
    /// let second = steer.submit(0.7)?; // a handle, if the first run had started
    /// first.wait()?;
    /// if let Some(second) = second {
    ///     second.wait()?;
    /// }
    /// assert_eq!(engine.get(&goal)?, 0.7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`push`](Self::push).
    #[track_caller]
    pub fn submit(&self, value: T) -> Result<Option<OpHandle<()>>, PushError> {
        self.submit_newest::<false>(value, Location::caller())
    }

    /// Returns the number of values that were dropped because a later push replaced them, as many as pushes through all
    /// handles returned [`Replaced`](Conflated::Replaced). All pushes are included that have returned before this call.
    /// Each other value belongs to a run of its own, and is dropped like any [argument](Operator::<With<T>>::push) if
    /// that run is cancelled, skipped or refused.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        match &self.inner().state {
            Values::Here(values) => values.replaced(),
            Values::Boxed(values) => values.replaced(),
        }
    }

    fn push_newest<const ADMITTED: bool>(
        &self,
        value: T,
        location: &'static Location<'static>,
    ) -> Result<Conflated, PushError> {
        let priority = self.inner().spec.priority;
        let pushed = self.conflate(value, location, |value| self.push_run::<ADMITTED>(value, priority, location))?;
        Ok(if pushed.is_some() { Conflated::Pushed } else { Conflated::Replaced })
    }

    fn submit_newest<const ADMITTED: bool>(
        &self,
        value: T,
        location: &'static Location<'static>,
    ) -> Result<Option<OpHandle<()>>, PushError> {
        self.conflate(value, location, |value| self.submit_run::<ADMITTED>(value, location))
    }

    /// Replaces a value, or calls `push` for a run and returns what that returns.
    fn conflate<R>(
        &self,
        value: T,
        location: &'static Location<'static>,
        push: impl FnOnce(NewestValue<T>) -> Result<R, PushError>,
    ) -> Result<Option<R>, PushError> {
        match &self.inner().state {
            Values::Here(values) => self.conflate_in(values, value, location, |value| push(NewestValue::Here(value))),
            Values::Boxed(values) => {
                self.conflate_in(values, Box::new(value), location, |value| push(NewestValue::Boxed(value)))
            }
        }
    }

    /// [`conflate`](Self::conflate) for a value as it is kept.
    fn conflate_in<V, R>(
        &self,
        values: &Conflation<V>,
        value: V,
        location: &'static Location<'static>,
        push: impl FnOnce(RunValue<V>) -> Result<R, PushError>,
    ) -> Result<Option<R>, PushError> {
        if let Err(error) = push::check_accepts(&self.inner().core).and_then(|()| self.check(location)) {
            // Dropped here, for the reason given in `Core::create`.
            drop(value);
            return Err(error);
        }
        match values.offer(value) {
            Offered::Replaced(oldest) => {
                drop(oldest);
                Ok(None)
            }
            Offered::Enters(entering, value) => match push(value) {
                Ok(pushed) => {
                    entering.landed();
                    Ok(Some(pushed))
                }
                Err(error) => {
                    entering.refused();
                    Err(error)
                }
            },
        }
    }
}

impl<C: Chosen, T: Send + 'static> Operator<On<C, T>> {
    /// Pushes a run of the operator on these variables, whose function receives references to their values, and
    /// `argument`. For a choice of one variable, `variables` is a reference to its handle; for a tuple or an array, it
    /// is a tuple or an array of them. The argument is treated as by [`Operator::push`](Operator::<With<T>>::push).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// use raddle::chosen;
    ///
    /// let accounts = [100, 0, 0].map(|amount| engine.var(amount));
    /// let pair = [chosen::write::<i64>(); 2];
    /// let transfer = engine.op("transfer").operator_on(pair, (), |[from, to], (), amount: i64| {
    ///     *from -= amount;
    ///     *to += amount;
    /// })?;
    /// transfer.push_on([&accounts[0], &accounts[1]], 60)?;
    /// transfer.push_on([&accounts[1], &accounts[2]], 20)?;
    /// assert_eq!(engine.get(&accounts[1])?, 40);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`PushError`]. If the function would receive two references to one variable's value, and one of them is
    /// mutable, the push is refused with [`NoAccess::Aliased`]. On error, the argument has been dropped;
    /// [`if_room`](Self::if_room) asks for room before the argument is given away.
    #[track_caller]
    pub fn push_on(&self, variables: C::Variables<'_>, argument: T) -> Result<(), PushError> {
        self.push_on_with_priority(variables, argument, self.inner().spec.priority)
    }

    /// Pushes a run of the operator with this priority instead of the operator's own. The priority has no effect on
    /// [clean-ups](crate::OpBuilder::cleanup) or on operators whose property determines the priority.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let queues = [engine.var(0), engine.var(0)];
    /// let add = engine.op("add").operator_on(raddle::chosen::write(), (), |length, (), more: i32| *length += more)?;
    /// add.push_on_with_priority(&queues[1], 3, 100)?;
    /// assert_eq!(engine.get(&queues[1])?, 3);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`push_on`](Self::push_on).
    #[track_caller]
    pub fn push_on_with_priority(
        &self,
        variables: C::Variables<'_>,
        argument: T,
        priority: i32,
    ) -> Result<(), PushError> {
        self.push_run_on::<false>(variables, argument, priority, Location::caller())
    }

    /// Pushes a run of the operator on these variables and returns a handle, through which the run can be awaited and
    /// cancelled.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let levels = [engine.var(5u32), engine.var(1)];
    /// let take = engine.op("take").try_operator_on(raddle::chosen::write(), (), |level: &mut u32, (), amount| {
    ///     *level = level.checked_sub(amount).ok_or("empty")?;
    ///     Ok(())
    /// })?;
    /// let runs = levels.each_ref().map(|level| take.submit_on(level, 3));
    /// let [enough, too_little] = runs;
    /// enough?.wait()?;
    /// assert!(too_little?.wait().is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`push_on`](Self::push_on).
    #[track_caller]
    pub fn submit_on(&self, variables: C::Variables<'_>, argument: T) -> Result<OpHandle<()>, PushError> {
        self.submit_run_on::<false>(variables, argument, Location::caller())
    }

    #[inline]
    fn push_run_on<const ADMITTED: bool>(
        &self,
        variables: C::Variables<'_>,
        argument: T,
        priority: i32,
        location: &'static Location<'static>,
    ) -> Result<(), PushError> {
        let inner = self.inner();
        let accesses = inner.state.accesses(variables);
        let given = (accesses.capture(), argument);
        let Some(name) = inner.bare_name.filter(|_| priority == 0 && !ADMITTED) else {
            return self.with_entries(&accesses, given, location, |given, entries, chosen| {
                self.enqueue_run::<ADMITTED>(given, entries, chosen, priority, location)
            });
        };
        let run = Uncounted(self.0.inner);
        kept_boxed_if_large!((C::Captured, T), given => {
            let job = without_sink(move |call: &Call<'_>| run.get().call(call, given()));
            if const { is_counted::<C::Accesses<'static>>() } && inner.entries.is_empty() {
                push_counted(&inner.core, name, location, &accesses, job)
            } else {
                push::push_short::<true, _>(&inner.core, name, location, self.all_entries(&accesses), job)
            }
        })
    }

    fn submit_run_on<const ADMITTED: bool>(
        &self,
        variables: C::Variables<'_>,
        argument: T,
        location: &'static Location<'static>,
    ) -> Result<OpHandle<()>, PushError> {
        let accesses = self.inner().state.accesses(variables);
        let given = (accesses.capture(), argument);
        self.with_entries(&accesses, given, location, |given, entries, chosen| {
            self.enqueue_handled::<ADMITTED>(given, entries, chosen, location)
        })
    }

    /// Returns the operator's own entries, and those of `accesses`.
    fn all_entries(&self, accesses: &C::Accesses<'_>) -> Entries {
        let mut entries = Entries::from_slice(&self.inner().entries);
        accesses.declare(&mut List(&mut entries));
        entries
    }

    /// Calls `push` with all entries of a run, unless they are refused.
    fn with_entries<R>(
        &self,
        accesses: &C::Accesses<'_>,
        given: <On<C, T> as sealed::Parameters>::Given,
        location: &'static Location<'static>,
        push: impl FnOnce(<On<C, T> as sealed::Parameters>::Given, &[Entry], ChosenIds) -> Result<R, PushError>,
    ) -> Result<R, PushError> {
        let inner = self.inner();
        let mut entries = self.all_entries(accesses);
        let mut chosen = ChosenIds::new();
        if inner.logged().is_some() {
            // SAFETY: the caller has handles to the chosen variables.
            chosen
                .extend(entries[inner.entries.len()..].iter().map(|entry| unsafe { entry.cell.as_ref() }.queue().id()));
        }
        match push::check_and_sort(&inner.core, &mut entries, &inner.spec.name, location) {
            Ok(entries) => push(given, entries, chosen),
            Err(error) => {
                // Dropped here, for the reason given in `Core::create`.
                drop(given);
                Err(error)
            }
        }
    }
}

impl<P: Parameters> Operator<P> {
    /// Creates the handle. `entries` must be sorted and distinct, and `declared` must be the same before it was sorted.
    /// The caller must have handles to their variables, which must belong to `core`.
    pub(crate) fn new(
        core: Arc<Core>,
        spec: Spec,
        (declared, entries): (&[Entry], Box<[Entry]>),
        state: P::State,
        function: OperatorFunction<P::Given>,
        fixed_priority: bool,
        limits: (Option<Arc<GroupCore>>, Option<Instant>, Needs),
    ) -> Self {
        let tokens = declared
            .iter()
            // SAFETY: the caller has a handle to each variable.
            .map(|entry| unsafe { Token::from_entry(entry) })
            .collect();
        let logged = core.log().map(|_| OnceLock::new());
        let commutes = P::commutes(&state) || entries.iter().any(|entry| entry.mode == Mode::Commute);
        let is_short =
            !commutes && P::CHOSEN.is_some_and(|chosen| (1..=MOST_SHORT).contains(&(entries.len() + chosen)));
        let short_name = if is_short && spec.is_bare() { spec.name.as_static() } else { None };
        let bare_name = short_name.filter(|_| logged.is_none());
        let inner = Box::new(Inner {
            core,
            spec,
            entries,
            state,
            function,
            bare_name,
            short_name,
            fixed_priority,
            limits,
            logged,
        });
        Self(Arc::new(Owner { inner: NonNull::from(Box::leak(inner)), tokens }))
    }

    fn inner(&self) -> &Inner<P> {
        self.0.get()
    }

    /// Returns the operator's name.
    pub(super) fn name(&self) -> &Name {
        &self.inner().spec.name
    }

    /// Returns the operator's own variables, in the order in which it declares them.
    pub(super) fn tokens(&self) -> &[Token] {
        &self.0.tokens
    }

    /// Makes the engine's [log](crate::EngineBuilder::log) keep the argument of each run, as the bytes that `encode`
    /// appends, so that a [`Replay`](crate::replay::Replay) can push the run again. The replay finds the operator by
    /// its name, so no two logged operators of an engine should have the same. For an operator without an argument,
    /// `encode` appends nothing. On an engine without a log, and in a second call, this does nothing.
    ///
    /// `encode` is called on the thread that runs the operation, just before its function, so it should be quick and
    /// must not wait. If it panics, the operation fails, and cannot be replayed. Runs that are skipped or cancelled are
    /// logged without their arguments.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{Engine, replay::Log};
    ///
    /// let log = Log::new();
    /// let engine = Engine::builder().workers(1).log(&log).build()?;
    /// let words = engine.var(Vec::new());
    /// let add = engine.op("add").operator_with(words.write(), |words, word: String| words.push(word))?;
    /// let add = add.logged(|word, bytes| bytes.extend_from_slice(word.as_bytes()));
    /// add.push("warp".to_owned())?;
    /// engine.wait_for_all()?;
    /// assert_eq!(log.entries()?.iter().next().map(|entry| entry.argument()), Some(&b"warp"[..]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn logged(self, encode: impl Fn(&P::Argument, &mut Vec<u8>) + Send + Sync + 'static) -> Self {
        if let (Some(logged), Some(log)) = (&self.inner().logged, self.inner().core.log()) {
            logged.get_or_init(|| {
                let variables = self.tokens().iter().map(|token| token.cell().queue().id());
                LoggedAs { number: log.add_operator(self.name(), variables), encode: Box::new(encode) }
            });
        }
        self
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
    pub fn if_room(&self) -> Result<Admitted<'_, P>, PushError> {
        if !self.needs_no_room() {
            room::check(&self.inner().core, self.inner().limits.0.as_ref())?;
        }
        Ok(Admitted(self))
    }

    /// Returns a future that resolves to an [`Admitted`] when there is room for a run. A push through the `Admitted` is
    /// not held back. See [`OpBuilder::when_room`](crate::OpBuilder::when_room).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = raddle::Engine::builder().workers(1).max_pending(4).build()?;
    /// let counter = engine.var(0);
    /// let add = engine.op("add").operator_with(counter.write(), |counter, by: i32| *counter += by)?;
    /// let task = async {
    ///     for by in 0..100 {
    ///         add.when_room().await?.push(by)?;
    ///     }
    ///     engine.get_async(&counter).await
    /// };
    /// assert_eq!(pollster::block_on(task)?, 4950);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The future resolves to [`PushError::ShutDown`] once a shutdown has begun, and to [`PushError::Forked`] in a
    /// forked child.
    pub fn when_room(&self) -> impl Future<Output = Result<Admitted<'_, P>, PushError>> + Send + use<'_, P> {
        let room = WhenRoom::new(&self.inner().core, self.inner().limits.0.as_ref());
        async move {
            if !self.needs_no_room() {
                room.await?;
            }
            Ok(Admitted(self))
        }
    }

    /// Whether a push would now succeed without room.
    fn needs_no_room(&self) -> bool {
        // In a forked child, no lock is taken.
        push::check_accepts(&self.inner().core).is_ok() && P::needs_no_room(&self.inner().state)
    }

    /// Pushes a run of an operator that has all its variables.
    #[inline]
    fn push_run<const ADMITTED: bool>(
        &self,
        given: P::Given,
        priority: i32,
        location: &'static Location<'static>,
    ) -> Result<(), PushError> {
        let inner = self.inner();
        let Some(name) = inner.bare_name.filter(|_| priority == 0 && !ADMITTED) else {
            return match self.check(location) {
                Ok(()) => self.enqueue_run::<ADMITTED>(given, &inner.entries, ChosenIds::new(), priority, location),
                Err(error) => {
                    // Dropped here, for the reason given in `Core::create`.
                    drop(given);
                    Err(error)
                }
            };
        };
        let (run, closer) = (Uncounted(self.0.inner), P::closer(&given));
        kept_boxed_if_large!(P::Given, given => {
            let job = closing(closer, move |call: &Call<'_>| run.get().call(call, given()));
            push::push_short::<true, _>(&inner.core, name, location, &*inner.entries, job)
        })
    }

    /// [`push_run`](Self::push_run) for a run with a handle.
    fn submit_run<const ADMITTED: bool>(
        &self,
        given: P::Given,
        location: &'static Location<'static>,
    ) -> Result<OpHandle<()>, PushError> {
        match self.check(location) {
            Ok(()) => self.enqueue_handled::<ADMITTED>(given, &self.inner().entries, ChosenIds::new(), location),
            Err(error) => {
                // Dropped here, for the reason given in `Core::create`.
                drop(given);
                Err(error)
            }
        }
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

    /// Enqueues a run with these entries, which have been checked and sorted. `chosen` has the chosen variables if runs
    /// are logged.
    #[inline]
    fn enqueue_run<const ADMITTED: bool>(
        &self,
        given: P::Given,
        entries: &[Entry],
        chosen: ChosenIds,
        priority: i32,
        location: &'static Location<'static>,
    ) -> Result<(), PushError> {
        let inner = self.inner();
        let priority = if inner.fixed_priority { inner.spec.priority } else { priority };
        let closer = P::closer(&given);
        // There are several kinds of jobs, since a job that owns nothing costs less to push and run.
        kept_boxed_if_large!(P::Given, given => match self.own() {
            own if inner.logged().is_some() => {
                let job = closing(closer, move |call: &Call<'_>| own.get().call_logged(call, &chosen, given()));
                if let Some(name) = inner.short_name.filter(|_| priority == 0 && !ADMITTED) {
                    return push::push_short::<true, _>(&inner.core, name, location, entries, job);
                }
                self.enqueue::<ADMITTED>(entries, priority, location, ErasedJob::new(job))
            }
            OperatorRef::Uncounted(run) => {
                let job = closing(closer, move |call: &Call<'_>| run.get().call(call, given()));
                self.enqueue::<ADMITTED>(entries, priority, location, ErasedJob::new(job))
            }
            OperatorRef::Counted(owner) => {
                let job = closing(closer, move |call: &Call<'_>| owner.get().call(call, given()));
                self.enqueue::<ADMITTED>(entries, priority, location, ErasedJob::new(job))
            }
        })
    }

    /// [`enqueue_run`](Self::enqueue_run) for a run with a handle.
    fn enqueue_handled<const ADMITTED: bool>(
        &self,
        given: P::Given,
        entries: &[Entry],
        chosen: ChosenIds,
        location: &'static Location<'static>,
    ) -> Result<OpHandle<()>, PushError> {
        let (own, closer) = (self.own(), P::closer(&given));
        let inner = self.inner();
        let is_async = inner.spec.flags & flag::ASYNC != 0;
        kept_boxed_if_large!(P::Given, given => {
            let f = move |call: &Call<'_>| own.get().call_logged(call, &chosen, given());
            let f = move |call: &Call<'_>, out: Out<()>| {
                if is_async { job::completing(f)(call, out) } else { job::returning(f)(call, out) }
            };
            let shared = job::shared(&inner.spec, location, f);
            closer.closer().cloned().into_iter().for_each(|closer| shared.beside().set_closer(closer));
            let job = ErasedJob::new(HandleJob::new(Arc::clone(&shared)));
            let pushed = self.enqueue::<ADMITTED>(entries, inner.spec.priority, location, job);
            unless_refused(shared, pushed).map(|shared| OpHandle::new(shared, &inner.core))
        })
    }

    /// Returns a new run's reference to the operator.
    #[inline]
    fn own(&self) -> OperatorRef<P> {
        if self.inner().runs_own() {
            OperatorRef::Counted(Arc::clone(&self.0))
        } else {
            OperatorRef::Uncounted(Uncounted(self.0.inner))
        }
    }

    #[inline]
    fn enqueue<const ADMITTED: bool>(
        &self,
        entries: &[Entry],
        priority: i32,
        location: &'static Location<'static>,
        job: ErasedJob,
    ) -> Result<(), PushError> {
        let inner = self.inner();
        if inner.spec.flags & flag::LIMITED == 0 && !ADMITTED {
            inner.core.push_sorted(&inner.spec, priority, location, entries, job)
        } else {
            self.enqueue_limited::<ADMITTED>(entries, priority, location, job)
        }
    }

    #[cold]
    fn enqueue_limited<const ADMITTED: bool>(
        &self,
        entries: &[Entry],
        priority: i32,
        location: &'static Location<'static>,
        mut job: ErasedJob,
    ) -> Result<(), PushError> {
        let Inner { core, spec, limits: (group, deadline, uses), .. } = self.inner();
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
        let plan = || Plan::boxed((entries, uses), priority, *deadline, group.as_ref(), None);
        let units = match admission::of_push(core, group.as_ref(), uses) {
            Ok(units) => units,
            Err(error) => {
                drop(job);
                return Err(error);
            }
        };
        let mut limits = Limits::new(*deadline, units, (spec.flags & flag::PARENT != 0).then(plan));
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
pub struct Admitted<'o, P: Parameters = ()>(&'o Operator<P>);

impl Admitted<'_> {
    /// Like [`Operator::push`], but never held back.
    ///
    /// # Errors
    /// Returns the errors of [`Operator::push`].
    #[track_caller]
    pub fn push(self) -> Result<(), PushError> {
        let priority = self.0.inner().spec.priority;
        self.push_with_priority(priority)
    }

    /// Like [`Operator::push_with_priority`], but never held back.
    ///
    /// # Errors
    /// Returns the errors of [`Operator::push`].
    #[track_caller]
    pub fn push_with_priority(self, priority: i32) -> Result<(), PushError> {
        self.0.push_run::<true>((), priority, Location::caller())
    }

    /// Like [`Operator::submit`], but never held back.
    ///
    /// # Errors
    /// Returns the errors of [`Operator::push`].
    #[track_caller]
    pub fn submit(self) -> Result<OpHandle<()>, PushError> {
        self.0.submit_run::<true>((), Location::caller())
    }
}

impl<T: Send + 'static> Admitted<'_, With<T>> {
    /// Like [`Operator::push`], but never held back.
    ///
    /// # Errors
    /// Returns the errors of [`Operator::push`].
    #[track_caller]
    pub fn push(self, argument: T) -> Result<(), PushError> {
        let priority = self.0.inner().spec.priority;
        self.push_with_priority(argument, priority)
    }

    /// Like [`Operator::push_with_priority`], but never held back.
    ///
    /// # Errors
    /// Returns the errors of [`Operator::push`].
    #[track_caller]
    pub fn push_with_priority(self, argument: T, priority: i32) -> Result<(), PushError> {
        self.0.push_run::<true>(argument, priority, Location::caller())
    }

    /// Like [`Operator::submit`], but never held back.
    ///
    /// # Errors
    /// Returns the errors of [`Operator::push`].
    #[track_caller]
    pub fn submit(self, argument: T) -> Result<OpHandle<()>, PushError> {
        self.0.submit_run::<true>(argument, Location::caller())
    }
}

impl<T: Send + 'static> Admitted<'_, Newest<T>> {
    /// Like [`Operator::push`](Operator::<Newest<T>>::push), but never held back.
    ///
    /// # Errors
    /// Returns the errors of [`Operator::push`](Operator::<Newest<T>>::push).
    #[track_caller]
    pub fn push(self, value: T) -> Result<Conflated, PushError> {
        self.0.push_newest::<true>(value, Location::caller())
    }

    /// Like [`Operator::submit`](Operator::<Newest<T>>::submit), but never held back.
    ///
    /// # Errors
    /// Returns the errors of [`Operator::push`](Operator::<Newest<T>>::push).
    #[track_caller]
    pub fn submit(self, value: T) -> Result<Option<OpHandle<()>>, PushError> {
        self.0.submit_newest::<true>(value, Location::caller())
    }
}

impl<C: Chosen, T: Send + 'static> Admitted<'_, On<C, T>> {
    /// Like [`Operator::push_on`], but never held back.
    ///
    /// # Errors
    /// Returns the errors of [`Operator::push_on`].
    #[track_caller]
    pub fn push_on(self, variables: C::Variables<'_>, argument: T) -> Result<(), PushError> {
        let priority = self.0.inner().spec.priority;
        self.push_on_with_priority(variables, argument, priority)
    }

    /// Like [`Operator::push_on_with_priority`], but never held back.
    ///
    /// # Errors
    /// Returns the errors of [`Operator::push_on`].
    #[track_caller]
    pub fn push_on_with_priority(
        self,
        variables: C::Variables<'_>,
        argument: T,
        priority: i32,
    ) -> Result<(), PushError> {
        self.0.push_run_on::<true>(variables, argument, priority, Location::caller())
    }

    /// Like [`Operator::submit_on`], but never held back.
    ///
    /// # Errors
    /// Returns the errors of [`Operator::push_on`].
    #[track_caller]
    pub fn submit_on(self, variables: C::Variables<'_>, argument: T) -> Result<OpHandle<()>, PushError> {
        self.0.submit_run_on::<true>(variables, argument, Location::caller())
    }
}
