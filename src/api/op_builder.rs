//! The builder that describes and pushes an operation.

use std::{
    any::Any,
    future::Future,
    mem::{self, ManuallyDrop, MaybeUninit},
    panic::Location,
    ptr::{self, NonNull},
    slice,
    sync::Arc,
    time::Instant,
};

use bytemuck::Pod;

use crate::{
    api::{
        accesses::{
            Accesses, LentStream, Refs, ScopedAccesses,
            sealed::{Declared, Kind, List},
            stream,
        },
        chosen::{Both, Chosen},
        completion,
        engine::Engine,
        future_context::FutureContext,
        handle::OpHandle,
        large::{boxed_if_large, handle_unboxing_if_large},
        op_context::OpContext,
        operator::{Newest, NewestValue, On, Operator, OperatorFunction, Parameters, Values, With, sealed},
        resource::Resource,
        token::Token,
        var::Var,
    },
    device::memory::{DeviceVec, PinnedVec},
    engine::{admission, core::Core, push},
    error::{
        BoxError,
        device_error::DeviceError,
        op::Cause,
        push_error::{Misfit, PushError},
    },
    future::{future_task, held::Share},
    gpu,
    group::{
        family::{Family, Plan},
        room::{self, WhenRoom},
        scoped::Scoped,
    },
    notify::stock::Need,
    op::{
        cancellable::Handled,
        frame::Call,
        group_core::GroupCore,
        job::{self, Asynchronous, HandleJob, Out, without_sink},
        limits::Limits,
        spec::{self, Entries, Entry, MOST_SHORT, Route, Spec},
        task::{ErasedJob, Job, flag},
        units::{Needs, UnitsWaiter},
    },
    tracker::{INLINE_ACCESSES, Mode},
    values::{Name, device::Device, property::Property},
};

/// Calls `f`, the function of an operation with the accesses `A`. `returns` says whether the function returns a value.
///
/// # Safety
/// 1. `captured` came from `A::capture`, the operation of `call` declares the accesses of that `A`, so it holds their
///    variables during this call, and this is called at most once in each run.
/// 2. The push refuses aliases.
#[inline(always)]
unsafe fn call_with<A: ScopedAccesses>(
    call: &Call<'_>,
    captured: &A::Captured,
    returns: bool,
    f: impl for<'a> FnOnce(Refs<'a, A>) -> Result<(), Cause>,
) -> Result<(), Cause> {
    if const { A::KIND.is(Kind::Completion) } {
        // SAFETY: (1) and (2).
        return unsafe { completion::call_async::<A>(call, captured, returns, f) };
    }
    if const { A::KIND.is(Kind::Stream) } {
        let Some(stream) = call.take_stream() else {
            return Err(Cause::Device(DeviceError::lost(-1, "the operation has no stream")));
        };
        let stream = LentStream::new(Some(NonNull::from(stream)));
        let cx = OpContext::with(call, &stream);
        // SAFETY: (1) and (2). The call has lent the stream.
        return f(unsafe { A::refs(captured, &cx) }).map_err(Cause::of_device);
    }
    let cx = OpContext::new(call);
    // SAFETY: (1) and (2).
    f(unsafe { A::refs(captured, &cx) })
}

/// Starts an operation that is a future with the accesses `A`.
///
/// # Safety
/// 1. `captured` came from `A::capture`, the operation of `call` declares the accesses of that `A`, so it holds their
///    variables while it has shares, and this is called at most once.
/// 2. The push refuses aliases.
unsafe fn start_future<A, F, Fut, R>(
    call: &Call<'_>,
    captured: &A::Captured,
    priority: i32,
    out: Option<Out<R>>,
    f: F,
) -> Result<(), Cause>
where
    A: Accesses,
    F: FnOnce(A::Guards) -> Fut,
    Fut: Future<Output = Result<R, Cause>> + Send + 'static,
    R: Send + 'static,
{
    // SAFETY: (1) and (2).
    future_task::start(call, priority, out, |share: &Share| f(unsafe { A::guards(captured, share) }))
}

/// Returns the flags of operations of this kind.
const fn flags_of(kind: Kind) -> u16 {
    match kind {
        Kind::Function => 0,
        Kind::Stream => flag::STREAM,
        Kind::Completion => flag::ASYNC,
        Kind::Mixed => {
            panic!("an operation declares at most one stream or completion, and not in a collection or `Option`")
        }
    }
}

impl Engine {
    /// Returns a builder for an operation with this name. The name appears in errors, dumps and traces and may be
    /// empty. A string literal is not copied; a `String` is moved, and one passed by reference copied.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = raddle::Engine::builder().workers(1).build()?;
    /// let total = engine.var(0);
    /// engine.op("add").push(total.write(), |total| *total += 1)?;
    /// assert_eq!(engine.get(&total)?, 1);
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn op(&self, name: impl Into<Name>) -> OpBuilder<'_> {
        OpBuilder::new(self.core(), name.into(), ())
    }
}

impl OpContext<'_> {
    /// Returns a builder for a child of this operation. This operation must have been pushed
    /// [`with_children`](OpBuilder::with_children), and is complete only when its children are.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// use raddle::cx;
    ///
    /// let numbers = engine.var(vec![3, 1, 2]);
    /// let inside = numbers.clone();
    /// engine.op("tidy").with_children().try_push((cx(), numbers.write()), move |(cx, numbers)| {
    ///     numbers.push(1);
    ///     cx.child("sort").push(inside.write(), |numbers| numbers.sort())?;
    ///     cx.child("dedup").push(inside.write(), |numbers| numbers.dedup())?;
    ///     Ok(())
    /// })?;
    /// assert_eq!(engine.get(&numbers)?, [1, 2, 3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A push through the builder is refused with [`NoAccess::NotHeld`](crate::error::NoAccess::NotHeld) if this
    /// operation does not hold one of the child's variables, or only reads one that the child mutates. It is refused
    /// with [`Misfit::NotAParent`] if this operation was pushed without `with_children`.
    pub fn child(&self, name: impl Into<Name>) -> OpBuilder<'_> {
        OpBuilder::child(self.frame().engine(), name.into(), Family::of(self.frame()))
    }
}

impl FutureContext {
    /// Returns a builder for a child of this operation. This operation must have been pushed
    /// [`with_children`](crate::OpBuilder::with_children), and is complete only when its children are. Children start
    /// once the future has ended and its guards have been dropped.
    ///
    /// A future must not await its children: inside the future, awaiting a child's handle returns
    /// [`WaitError::WouldDeadlock`](crate::WaitError::WouldDeadlock).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// use raddle::cx;
    ///
    /// let page = engine.var(String::new());
    /// let inside = page.clone();
    /// engine.op("fetch").with_children().try_push_future((cx(), page.write()), |(cx, mut page)| async move {
    ///     page.push_str("<p>warp"); // after some awaits
    ///     cx.child("close").push(inside.write(), |page| page.push_str("</p>"))?;
    ///     Ok(())
    /// })?;
    /// assert_eq!(engine.get(&page)?, "<p>warp</p>");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A push through the builder returns the errors listed under [`OpContext::child`](crate::OpContext::child), and
    /// [`PushError::ParentEnded`] once the future has ended and its guards have been dropped.
    pub fn child(&self, name: impl Into<Name>) -> OpBuilder<'_> {
        OpBuilder::child(self.engine().core(), name.into(), self.family())
    }
}

/// A builder that describes and pushes an operation, returned by [`Engine::op`], [`Group::op`](crate::Group::op),
/// [`OpContext::child`] and [`Scope::op`](crate::Scope::op). `S` is `()` or, for an operation in a scope, a reference
/// to the [`Scope`](crate::Scope); such an operation has fewer properties and push methods.
///
/// # Accesses
///
/// Variables can be declared in two ways, which may be combined: untyped through [`reads`](Self::reads),
/// [`writes`](Self::writes) and [`overwrites`](Self::overwrites), and typed in the push method, where
/// [`cx()`](crate::cx) declares the operation's [`OpContext`]. Naming a variable twice is equivalent to naming it once;
/// a variable that is both read and mutated counts as mutated. However, an operation's typed accesses must not name a
/// variable twice if one of them mutates it, since this would alias a `&mut`.
///
/// # Push methods
///
/// | the function | returns nothing | may fail | returns a value | returns a value or fails |
/// |---|---|---|---|---|
/// | is called once | [`push`](Self::push) | [`try_push`](Self::try_push) | [`submit`](Self::submit) | [`try_submit`](Self::try_submit) |
/// | is called once and returns a future | [`push_future`](Self::push_future) | [`try_push_future`](Self::try_push_future) | [`submit_future`](Self::submit_future) | [`try_submit_future`](Self::try_submit_future) |
/// | is called once per push of an [`Operator`] | [`operator`](Self::operator) | [`try_operator`](Self::try_operator) | | |
/// | is called once per push, with an argument | [`operator_with`](Self::operator_with) | [`try_operator_with`](Self::try_operator_with) | | |
/// | is called once per push, or less often, with the newest argument | [`operator_newest`](Self::operator_newest) | [`try_operator_newest`](Self::try_operator_newest) | | |
/// | is called once per push, with variables and an argument | [`operator_on`](Self::operator_on) | [`try_operator_on`](Self::try_operator_on) | | |
///
/// The function runs on a worker, and the operation ends when it returns. If the accesses include
/// [`stream()`](crate::stream), the function issues work on a device instead, and the operation ends when the device
/// has done the work. If they include [`completion()`](crate::completion), it ends when its completion is used.
///
/// A function that may fail returns `Result<_, BoxError>`, so `?` accepts any error. A function `work` with its own
/// error type is passed as `|x| Ok(work(x)?)`. Only the methods for such functions turn an `Err` into a failure of the
/// operation. [`submit`](Self::submit) treats an `Err` like any other value.
///
/// A function may outlive the pushing code, so it cannot capture a borrowed `&Var` (errors E0521 and E0597). It can
/// capture a clone of the `Var`.
///
/// The builder borrows the variables declared on it:
///
/// ```compile_fail,E0505
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// let token = engine.token();
/// let description = engine.op("late").writes([&token]);
/// drop(token);
/// description.push((), |()| {})?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "an operation does nothing until it is pushed"]
pub struct OpBuilder<'e, S = ()> {
    pub(super) core: &'e Arc<Core>,
    pub(super) owned: Owned,
    pub(super) scope: S,
    property: Property,
    device: Device,
    /// Whether nothing but accesses and a name was declared, and the name owns no memory.
    is_bare: bool,
    /// Whether the property, device or location was set. If so, a push takes additional steps.
    has_more: bool,
    /// The source location reported for the push. Used only with `has_more`.
    location: Option<&'static Location<'static>>,
    /// The operation's group. Like the next three fields, used only with `flag::LIMITED`.
    group: Option<&'e Arc<GroupCore>>,
    deadline: Option<Instant>,
    /// The family of a child.
    family: Option<&'e Family>,
    /// Whether the operation is declared as the child of an operation pushed without `with_children`.
    is_orphan: bool,
}

/// The fields of a builder that own memory. A type without a lifetime, so that borrows may end before their builder
/// does.
#[derive(Debug)]
pub(super) struct Owned {
    pub(super) spec: ManuallyDrop<Spec>,
    pub(super) entries: ManuallyDrop<Entries>,
    /// The units of resources that the operation uses, if any. Used only with `flag::LIMITED`. If there are any, the
    /// entries are spilled, so that the drop need not ask for them, which would cost every push.
    uses: ManuallyDrop<Option<Box<Needs>>>,
}

/// Inlined, since the builder would otherwise be kept in memory at every place that pushes if code there may panic
/// while the builder exists: such a push would take some 100 more instructions.
impl Drop for Owned {
    #[inline(always)]
    fn drop(&mut self) {
        if self.spec.name.is_shared() || self.entries.spilled() {
            self.free();
        }
    }
}

impl Owned {
    fn uses(&self) -> &[Need<UnitsWaiter>] {
        self.uses.as_ref().map_or(&[], |uses| uses)
    }

    #[cold]
    #[inline(never)]
    fn free(&mut self) {
        self.spec.name = Name::EMPTY;
        *self.entries = Entries::new();
        *self.uses = None;
    }
}

impl<'e, S> OpBuilder<'e, S> {
    #[inline]
    fn new(core: &'e Arc<Core>, name: Name, scope: S) -> Self {
        Self {
            core,
            scope,
            is_bare: !name.is_shared(),
            owned: Owned {
                spec: ManuallyDrop::new(Spec::new(name)),
                entries: ManuallyDrop::new(Entries::new()),
                uses: ManuallyDrop::new(None),
            },
            property: Property::Normal,
            device: Device::Cpu,
            has_more: false,
            location: None,
            group: None,
            deadline: None,
            family: None,
            is_orphan: false,
        }
    }

    /// Returns a builder for an operation in a group.
    pub(super) fn in_group(core: &'e Arc<Core>, name: Name, group: &'e Arc<GroupCore>, scope: S) -> Self {
        let mut builder = Self::new(core, name, scope);
        builder.is_bare = false;
        builder.owned.spec.flags |= flag::LIMITED;
        builder.group = Some(group);
        builder
    }

    /// Sets the operation's priority among ready operations. Operations with higher priorities run first. Default: 0.
    /// The priority has no effect on [clean-ups](Self::cleanup), or if the [property](Self::property) determines the
    /// priority.
    ///
    /// Priorities that the engine treats as equal form a band. Each priority from -7 to 7 has its own band. Beyond
    /// these, each range from one power of two up to, but not including, the next is one band: 8 to 15, 16 to 31, and
    /// so on. All priorities from 2²⁶ upwards share one band. Negative priorities are grouped in the same way. A free
    /// worker takes a ready operation from the highest nonempty band in its lane, but may first run up to 32 operations
    /// that it already holds. No operation starves within a band; the [guide](crate::guide::promises#turns) describes
    /// the order.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// engine.op("urgent").priority(7).push((), |()| {})?;
    /// # engine.wait_for_all()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn priority(mut self, priority: i32) -> Self {
        self.is_bare = false;
        // A clean-up operation keeps the highest priority.
        if self.owned.spec.flags & flag::KEPT == 0 {
            self.owned.spec.priority = priority;
        }
        self
    }

    /// Sets the kind of work that the operation performs, which determines its lane. Default: [`Property::Normal`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// use raddle::Property;
    ///
    /// engine.op("heartbeat").property(Property::CpuPrioritized).push((), |()| {})?;
    /// # engine.wait_for_all()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn property(mut self, property: Property) -> Self {
        self.property = property;
        self.has_more = true;
        self.is_bare = false;
        self
    }

    /// Makes the operation run even if a variable that it names has failed. Such a run does not propagate the error,
    /// and clears it only if the operation [overwrites](Self::overwrites) the variable. `MXNet` calls this `kNoSkip`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let disk = engine.token();
    /// engine.op("write").writes([&disk]).try_push((), |()| Err("the disk is full".into()))?;
    /// let report = engine.op("report").reads([&disk]).run_always().submit((), |()| "it ran")?;
    /// assert_eq!(report.wait()?, "it ran");
    /// # Ok(())
    /// # }
    /// ```
    pub fn run_always(mut self) -> Self {
        self.is_bare = false;
        self.owned.spec.flags |= flag::NO_SKIP;
        self
    }

    /// Cancels the operation if it has not started by `deadline`: when its turn comes, it fails with
    /// [`Cause::DeadlinePassed`] instead of running. An operation that is a [future](Self::submit_future) fails so even
    /// after it has started: the deadline wakes it, and its next poll drops it. Other running operations can
    /// [check for](crate::OpContext::is_cancelled) or [await](crate::OpContext::cancelled) the deadline, which does not
    /// stop them.
    ///
    /// Deadlines do not affect order: an operation with an earlier deadline does not run first. All runs of an operator
    /// share its deadline. A [clean-up](Self::cleanup) ignores the deadline.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{WaitError, error::Cause};
    /// use std::time::{Duration, Instant};
    ///
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let frame = engine.var(0);
    /// engine.op("slow").push(frame.write(), |_| std::thread::sleep(Duration::from_millis(20)))?;
    /// let due = Instant::now() + Duration::from_millis(5);
    /// let late = engine.op("show").deadline(due).submit(frame.read(), |frame| println!("{frame}"))?;
    /// let Err(WaitError::Failed(error)) = late.wait() else { panic!("the deadline has passed") };
    /// assert!(matches!(error.cause(), Cause::DeadlinePassed));
    /// # Ok(())
    /// # }
    /// ```
    pub fn deadline(mut self, deadline: Instant) -> Self {
        self.is_bare = false;
        self.owned.spec.flags |= flag::LIMITED;
        self.deadline = Some(deadline);
        self
    }

    /// Declares that the operation uses this many units of a resource: it starts when they are free, as well as its
    /// variables, and holds them until it is complete. An operation may use units of several resources, and takes all
    /// at once. Units of one resource add up; 0 units have no effect. See [`Resource`].
    ///
    /// The push is refused with [`Misfit::TooManyUnits`] if the resource has fewer units, and with
    /// [`Misfit::ForeignResource`] if it belongs to another engine. A [child](OpContext::child) is also refused if its
    /// parent does not use the units.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(4).build()?;
    /// use std::process::Command;
    ///
    /// let commands = engine.resource(2);
    /// for _ in 0..10 {
    ///     engine.op("run").uses(&commands, 1).try_push((), |()| {
    ///         raddle::blocking(|| Command::new("true").status())?; // two at a time, whatever the workers do
    ///         Ok(())
    ///     })?;
    /// }
    /// engine.wait_for_all()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn uses(mut self, resource: &'e Resource, units: usize) -> Self {
        self.is_bare = false;
        self.owned.spec.flags |= flag::LIMITED;
        if !self.owned.entries.spilled() {
            self.owned.entries.grow(2 * MOST_SHORT);
        }
        self.owned
            .uses
            .get_or_insert_default()
            .push(Need { resource: Arc::clone(&resource.shared), units: units as u64 });
        self
    }

    /// Sets the source location that errors, dumps and traces report for the push. Default: the location of the call
    /// that pushes the operation.
    ///
    /// Code that pushes on behalf of a caller should report the caller's location. A function with `#[track_caller]`
    /// does so automatically. This method is for code that cannot use the attribute, such as closures and `async`
    /// functions, and for requests that are pushed later.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// use std::panic::Location;
    ///
    /// /// Work requested by a client and pushed later.
    /// struct Request {
    ///     from: &'static Location<'static>,
    /// }
    ///
    /// #[track_caller]
    /// fn request() -> Request {
    ///     Request { from: Location::caller() }
    /// }
    ///
    /// let request = request(); // the errors name this line
    /// engine.op("serve").at(request.from).try_push((), |()| Err("no such file".into()))?;
    /// let error = engine.wait_for_all().unwrap_err();
    /// assert!(error.to_string().contains(&format!("pushed at {}", request.from)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn at(mut self, location: &'static Location<'static>) -> Self {
        self.location = Some(location);
        self.has_more = true;
        self.is_bare = false;
        self
    }

    /// Declares variables that the operation reads: [`Token`]s or [`Var`]s, by reference. Each call takes variables of
    /// one type. For several types, call this method repeatedly or pass the variables' [tokens](Var::token).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let (source, parts) = (engine.token(), vec![engine.var(1), engine.var(2)]);
    /// engine.op("scan").reads(&source).reads(&parts).push((), |()| {})?;
    /// # engine.wait_for_all()?;
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn reads<T: AsRef<Token> + 'e>(self, variables: impl IntoIterator<Item = &'e T>) -> Self {
        self.declare(variables, Mode::Read)
    }

    /// Declares variables that the operation mutates.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let disk = engine.token();
    /// engine.op("flush").writes([&disk]).push((), |()| {})?;
    /// engine.wait_for_var(&disk)?;
    /// assert_eq!(disk.version(), 1);
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn writes<T: AsRef<Token> + 'e>(self, variables: impl IntoIterator<Item = &'e T>) -> Self {
        self.declare(variables, Mode::Write)
    }

    /// Declares variables that the operation mutates regardless of their state: the operation is not skipped if they
    /// have failed, and clears their errors if it succeeds.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let disk = engine.token();
    /// engine.op("write").writes([&disk]).try_push((), |()| Err("the disk is full".into()))?;
    /// engine.op("format").overwrites([&disk]).push((), |()| {})?;
    /// engine.wait_for_var(&disk)?;
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn overwrites<T: AsRef<Token> + 'e>(self, variables: impl IntoIterator<Item = &'e T>) -> Self {
        self.declare(variables, Mode::Overwrite)
    }

    /// Declares variables that the operation mutates, in no particular order among its neighbours that declare the
    /// same; see [`Var::commute`](crate::Var::commute).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(2).build()?;
    /// let disk = engine.token();
    /// for _ in 0..4 {
    ///     engine.op("append").commutes([&disk]).push((), |()| {})?;
    /// }
    /// engine.wait_for_var(&disk)?;
    /// assert_eq!(disk.version(), 4);
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn commutes<T: AsRef<Token> + 'e>(mut self, variables: impl IntoIterator<Item = &'e T>) -> Self {
        self.is_bare = false;
        self.declare(variables, Mode::Commute)
    }

    #[inline]
    fn declare<T: AsRef<Token> + 'e>(mut self, variables: impl IntoIterator<Item = &'e T>, mode: Mode) -> Self {
        // `extend` would cost more for a few variables, since it prepares for many.
        for variable in variables {
            self.owned.entries.push(Entry { cell: variable.as_ref().ptr(), mode, refs: spec::RefKind::None });
        }
        self
    }

    pub(super) fn enqueue_in_group(
        &mut self,
        location: &'static Location<'static>,
        mut job: ErasedJob,
        plan: Option<Box<dyn Any + Send>>,
        scoped: Option<&Arc<Scoped>>,
    ) -> Result<(), PushError> {
        let group = scoped.map(|scoped| scoped.group()).or(self.group);
        let units = match admission::of_push(self.core, group, self.owned.uses()) {
            Ok(units) => units,
            Err(error) => {
                drop(job);
                return Err(error);
            }
        };
        if let Some(group) = self.group.filter(|_| !self.owned.spec.is_admitted) {
            if let Err(error) = room::admit(self.core, group) {
                drop(job);
                return Err(error);
            }
            self.owned.spec.is_admitted = true;
        }
        let mut limits = Limits::new(self.deadline, units, plan);
        match (scoped, self.group) {
            (Some(scoped), _) => {
                let mutates = self.owned.entries.iter().any(|entry| entry.mode.is_write());
                limits.join_kin(scoped.group(), Arc::<Scoped>::clone(scoped), None, mutates);
            }
            (None, Some(group)) => limits.join(group),
            (None, None) => {}
        }
        job.limit(limits);
        let pushed = self.core.push(&self.owned.spec, location, &mut self.owned.entries, job);
        room::end_push(self.core);
        pushed
    }

    /// Returns the source location reported for a push at `caller`.
    #[inline]
    pub(super) fn site(&self, caller: &'static Location<'static>) -> &'static Location<'static> {
        if self.has_more { self.location.unwrap_or(caller) } else { caller }
    }

    /// Completes the list of entries and the rest of the description.
    #[inline]
    pub(super) fn finish(&mut self, accesses: &impl ScopedAccesses, flags: u16) -> Result<(), PushError> {
        accesses.declare(&mut List(&mut self.owned.entries));
        self.owned.spec.flags |= flags;
        if self.has_more { self.route() } else { Ok(()) }
    }

    /// Derives the lane, the flags and, in some cases, the priority from the operation's property and device.
    #[cold]
    fn route(&mut self) -> Result<(), PushError> {
        let core = self.core;
        if core.is_forked() {
            return Err(PushError::Forked);
        }
        let route = Route::of(self.property, core.kind());
        self.owned.spec.lane = match self.device {
            Device::Cpu => route.lane,
            Device::Gpu(_) => {
                let lane = gpu::route(core, self.device, self.property)?;
                if self.owned.spec.flags & flag::EAGER != 0 {
                    return Err(PushError::Unfit(Misfit::EagerOnDevice));
                }
                self.owned.spec.flags |= flag::GPU_LANE;
                lane
            }
        };
        self.owned.spec.priority = route.priority.unwrap_or(self.owned.spec.priority);
        Ok(())
    }
}

impl<'e> OpBuilder<'e> {
    /// Returns a builder for a child of the operation with this family. Without a family, pushes through the builder
    /// are refused.
    pub(super) fn child(core: &'e Arc<Core>, name: Name, family: Option<&'e Family>) -> Self {
        let mut builder = Self::new(core, name, ());
        builder.is_bare = false;
        builder.owned.spec.flags |= flag::LIMITED;
        match family {
            Some(family) => {
                builder.family = Some(family);
                builder.owned.spec.is_admitted = true;
                builder.owned.spec.is_child = true;
                builder.owned.spec.priority = family.priority();
                builder.deadline = family.deadline();
                if family.is_kept() {
                    builder = builder.cleanup();
                }
            }
            None => builder.is_orphan = true,
        }
        builder
    }

    /// Marks the operation as a clean-up, for releasing a resource: it has the highest priority, runs even if a
    /// variable that it names has failed, and is never cancelled, not even by
    /// [`Shutdown::Cancel`](crate::Shutdown::Cancel). Its lane still depends on its [property](Self::property). `MXNet`
    /// calls this `kDeleteVar`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let socket = engine.token();
    /// engine.op("close").writes([&socket]).cleanup().push((), |()| println!("closed"))?;
    /// # engine.wait_for_all()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn cleanup(mut self) -> Self {
        self.is_bare = false;
        self.owned.spec.flags |= flag::NO_SKIP | flag::KEPT;
        self.owned.spec.priority = i32::MAX;
        self
    }

    /// Makes the operation start on the pushing thread if it is ready when pushed; otherwise, it starts on its lane
    /// once it is ready. [Children](OpContext::child) and operations pushed by the function of a device operation are
    /// sent to their lanes even if they are ready. Use this for work that is short or that only starts something.
    /// `MXNet` calls this `kAsync`.
    ///
    /// A device operation must start on its lane's thread, so pushing an eager one is refused with
    /// [`Misfit::EagerOnDevice`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let here = std::thread::current().id();
    /// let ran = engine.op("here").eager().submit((), |()| std::thread::current().id())?;
    /// assert_eq!(ran.wait()?, here);
    /// # Ok(())
    /// # }
    /// ```
    pub fn eager(mut self) -> Self {
        self.is_bare = false;
        self.owned.spec.flags |= flag::EAGER;
        self
    }

    /// Allows the operation to have children, which its function pushes through [`OpContext::child`]. The operation is
    /// complete, and releases its variables, when its function has returned and all its children, including their own
    /// children, are complete. No function needs to wait for them.
    ///
    /// If the operation has a [completion](crate::Completion), it must also have been used. If the operation is a
    /// future, the future must have ended and its guards must have been dropped; the future pushes children through
    /// [`FutureContext::child`](crate::FutureContext::child). Each run of an [`Operator`] may have children.
    ///
    /// Children may name variables that their parent holds: they may mutate what it mutates and read what it reads or
    /// mutates. They may also name [variables created for them](OpContext::child_var), which end with the parent.
    /// Children take the parent's place in the order, so no unrelated operation comes between them. Among themselves,
    /// they are ordered like any other operations. They start after the parent's function has returned or, if the
    /// parent is a future, after the future has ended and its guards have been dropped. A function or future must
    /// therefore not wait for its children: the wait returns
    /// [`WaitError::WouldDeadlock`](crate::WaitError::WouldDeadlock). A completion may be used before or after the
    /// children run.
    ///
    /// If the function fails, the variables that the parent mutates fail for its children too, and children that name
    /// one of them are by default skipped. If a child fails and no later child clears the failure, the parent fails
    /// with the same error; if there are several such failures, the parent fails with that of the child pushed first.
    /// If the parent succeeds, the version of each variable that it mutates increases by one, however many children
    /// mutate the variable. Children inherit their parent's priority, deadline and group, but may set their own
    /// priority or deadline; children of a [clean-up](Self::cleanup) are clean-ups. Cancelling the group cancels
    /// children that have not started. Once the parent has started, cancelling it through its handle does not cancel
    /// them.
    ///
    /// Children may be nested to any depth. A parent takes about 600 bytes of memory besides its record until it is
    /// complete.
    ///
    /// Only CPU operations can have children; others are refused with [`Misfit::Family`]. A child may be any kind of
    /// operation except an operator, and may run on a device.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::cx;
    ///
    /// let engine = raddle::Engine::builder().build()?;
    /// let (left, right) = (engine.var(1), engine.var(2));
    /// let (l, r) = (left.clone(), right.clone());
    /// engine.op("double").with_children().try_push((cx(), left.write(), right.write()), move |(cx, _, _)| {
    ///     cx.child("left").push(l.write(), |left| *left *= 2)?;
    ///     cx.child("right").push(r.write(), |right| *right *= 2)?; // in parallel
    ///     Ok(())
    /// })?;
    /// let sum = engine.op("sum").submit((left.read(), right.read()), |(left, right)| left + right)?;
    /// assert_eq!(sum.wait()?, 6); // after both
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_children(mut self) -> Self {
        self.is_bare = false;
        self.owned.spec.flags |= flag::LIMITED | flag::PARENT;
        self
    }

    // ---------------------------------------------------------------------------------------------------- limits ----

    /// Returns an error immediately if the [limit](crate::EngineBuilder::max_pending) of the engine or a group leaves
    /// no room for the operation. Otherwise, returns the builder, and a push through it is not held back. Either way,
    /// the program still owns the operation's function.
    ///
    /// Room is not reserved: if several threads find room for one operation, each may push one. Inside operations and
    /// other code called by an engine, there is always room.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{Engine, PushError};
    ///
    /// let engine = Engine::builder().workers(1).max_pending(64).build()?;
    /// let order = String::from("buy");
    /// match engine.op("order").if_room() {
    ///     Ok(op) => op.push((), move |()| println!("{order}"))?,
    ///     Err(PushError::Full) => println!("too late to {order}"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`PushError::Full`], [`PushError::ShutDown`] or [`PushError::Forked`].
    pub fn if_room(self) -> Result<Self, PushError> {
        room::check(self.core, self.group)?;
        Ok(self.admitted())
    }

    /// Returns a future that resolves to the builder when there is room for the operation. The subsequent push is not
    /// held back. This method is for tasks on an asynchronous runtime, which must not block.
    ///
    /// Outside operations, polling the future neither blocks nor runs operations. Dropping the future leaves nothing
    /// behind. Futures are notified of room in the order of their first polls, but room is not reserved for them: a
    /// pushing thread may take it first. Inside an operation or its future, there is always room.
    ///
    /// The future waits for room even if nothing is running. A task must therefore not wait for room while it holds
    /// something that all pending operations wait for, such as a guard.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = raddle::Engine::builder().workers(1).max_pending(4).build()?;
    /// let total = engine.var(0);
    /// let task = async {
    ///     for number in 0..100 {
    ///         engine.op("add").when_room().await?.push(total.write(), move |total| *total += number)?;
    ///     }
    ///     engine.get_async(&total).await
    /// };
    /// assert_eq!(tokio::runtime::Builder::new_current_thread().build()?.block_on(task)?, 4950);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The future resolves to [`PushError::ShutDown`] once a shutdown has begun, and to [`PushError::Forked`] in a
    /// forked child.
    pub fn when_room(self) -> impl Future<Output = Result<Self, PushError>> + Send + use<'e> {
        let room = WhenRoom::new(self.core, self.group);
        async move {
            room.await?;
            Ok(self.admitted())
        }
    }

    /// Lets the push proceed without checking the limits.
    fn admitted(mut self) -> Self {
        self.is_bare = false;
        self.owned.spec.is_admitted = true;
        self
    }

    /// Sets the device on which the operation runs. Default: [`Device::Cpu`].
    ///
    /// The function of a device operation is called on the thread of one of the device's lanes or, in a
    /// [`Naive`](crate::EngineKind::Naive) engine, on the pushing thread. The operation's [property](Self::property)
    /// determines the lane: in a [`PerDevice`](crate::EngineKind::PerDevice) engine, a device has one lane for copies
    /// in each direction, one for urgent work ([`GpuPrioritized`](Property::GpuPrioritized)), and one for all other
    /// work. With [`stream()`](crate::stream), the function receives the lane's stream. Other operations
    /// receive no stream and run once their dependencies are complete, as on the CPU.
    pub fn on(mut self, device: Device) -> Self {
        self.device = device;
        self.has_more = true;
        self.is_bare = false;
        self
    }

    // ------------------------------------------------------------------------------------------------ on a worker ----

    /// Pushes an operation whose function returns nothing. For a function that returns a `Result`, use
    /// [`try_push`](Self::try_push) or [`submit`](Self::submit).
    ///
    /// The function receives what `accesses` declares: references to values, the operation's context for
    /// [`cx()`](crate::cx), a stream for [`stream()`](crate::stream), and a
    /// [`Completion`](crate::Completion) for
    /// [`completion()`](crate::completion). `()` declares nothing and suits operations whose variables are all untyped.
    /// The function may outlive the pushing code, so it cannot assign to that code's local variables; to get a value
    /// back, use [`submit`](Self::submit).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let (input, output) = (engine.var(20), engine.var(0));
    /// engine.op("double").push((input.read(), output.write()), |(input, output)| *output = 2 * *input)?;
    /// assert_eq!(engine.get(&output)?, 40);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`PushError`]. On error, the operation never runs.
    #[track_caller]
    #[inline(always)]
    pub fn push<A, F>(self, accesses: A, f: F) -> Result<(), PushError>
    where
        A: Accesses,
        F: for<'a> FnOnce(Refs<'a, A>) + Send + 'static,
    {
        boxed_if_large!(F, f => self.enqueue_function(Location::caller(), &accesses, |refs| {
            f(refs);
            Ok(())
        }))
    }

    /// Pushes an operation whose function may fail. An `Err` fails every variable that the operation mutates, and later
    /// operations that name such a variable are by default skipped with the same error.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let (text, number) = (engine.var("12x"), engine.var(0));
    /// engine.op("parse").try_push((text.read(), number.write()), |(text, number)| {
    ///     *number = text.parse::<i32>()?;
    ///     Ok(())
    /// })?;
    /// assert!(engine.wait_for_var(&number).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`PushError`]. On error, the operation never runs.
    #[track_caller]
    #[inline(always)]
    pub fn try_push<A, F>(self, accesses: A, f: F) -> Result<(), PushError>
    where
        A: Accesses,
        F: for<'a> FnOnce(Refs<'a, A>) -> Result<(), BoxError> + Send + 'static,
    {
        boxed_if_large!(F, f => self.enqueue_function(Location::caller(), &accesses, |refs| {
            f(refs).map_err(Cause::Error)
        }))
    }

    /// Pushes an operation whose function returns a value, and returns a handle to the result.
    ///
    /// A `Result` is a value like any other: an `Err` does not fail the operation. If it should, use
    /// [`try_submit`](Self::try_submit).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let words = engine.var(vec!["warp", "weft"]);
    /// let count = engine.op("count").submit(words.read(), |words| words.len())?;
    /// assert_eq!(count.wait()?, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`PushError`]. On error, the operation never runs.
    #[track_caller]
    pub fn submit<A, F, R>(self, accesses: A, f: F) -> Result<OpHandle<R>, PushError>
    where
        A: Accesses,
        F: for<'a> FnOnce(Refs<'a, A>) -> R + Send + 'static,
        R: Send + 'static,
    {
        handle_unboxing_if_large!(R, self.core, kept => boxed_if_large!(F, f => {
            self.enqueue_returning(Location::caller(), &accesses, move |refs| Ok(kept(f(refs))))
        }))
    }

    /// Pushes an operation whose function returns a value or an error, and returns a handle to the result. An `Err`
    /// fails every variable that the operation mutates, and later operations that name such a variable are by default
    /// skipped with the same error. The handle also returns the error.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let text = engine.var("12");
    /// let number = engine.op("parse").try_submit(text.read(), |text| Ok(text.parse::<i32>()?))?;
    /// assert_eq!(number.wait()?, 12);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`PushError`]. On error, the operation never runs.
    #[track_caller]
    pub fn try_submit<A, F, R>(self, accesses: A, f: F) -> Result<OpHandle<R>, PushError>
    where
        A: Accesses,
        F: for<'a> FnOnce(Refs<'a, A>) -> Result<R, BoxError> + Send + 'static,
        R: Send + 'static,
    {
        handle_unboxing_if_large!(R, self.core, kept => boxed_if_large!(F, f => {
            self.enqueue_returning(Location::caller(), &accesses, move |refs| match f(refs) {
                Ok(result) => Ok(kept(result)),
                Err(error) => Err(Cause::Error(error)),
            })
        }))
    }

    // ----------------------------------------------------------------------------------------------------- copies ----

    /// Pushes an operation that copies all values of `from`, in host memory, to `to`, in the memory of the operation's
    /// device. Unless another [property](Self::property) is set, the operation has the property
    /// [`CopyToGpu`](Property::CopyToGpu). If the lengths differ, the operation fails.
    ///
    /// # Errors
    /// See [`PushError`]. On error, the operation never runs.
    #[track_caller]
    pub fn copy_to_device<T: Pod + Send + Sync>(
        self,
        from: &Var<PinnedVec<T>>,
        to: &Var<DeviceVec<T>>,
    ) -> Result<(), PushError> {
        let accesses = (from.read(), to.overwrite(), stream());
        self.enqueue_copy(Location::caller(), Property::CopyToGpu, accesses, |(from, to, stream)| {
            stream.copy_in(from, to)
        })
    }

    /// Pushes an operation that copies all values of `from`, in the memory of the operation's device, to `to`, in host
    /// memory. Unless another [property](Self::property) is set, the operation has the property
    /// [`CopyFromGpu`](Property::CopyFromGpu). If the lengths differ, the operation fails.
    ///
    /// # Errors
    /// See [`PushError`]. On error, the operation never runs.
    #[track_caller]
    pub fn copy_from_device<T: Pod + Send + Sync>(
        self,
        from: &Var<DeviceVec<T>>,
        to: &Var<PinnedVec<T>>,
    ) -> Result<(), PushError> {
        let accesses = (from.read(), to.overwrite(), stream());
        self.enqueue_copy(Location::caller(), Property::CopyFromGpu, accesses, |(from, to, stream)| {
            stream.copy_out(from, to)
        })
    }

    /// Pushes an operation that copies all values of `from`, in one device's memory, to `to`, in another's. The
    /// operation's device performs the copy. Unless another [property](Self::property) is set, the operation has the
    /// property [`CopyToGpu`](Property::CopyToGpu). If the lengths differ, the operation fails.
    ///
    /// # Errors
    /// See [`PushError`]. On error, the operation never runs.
    #[track_caller]
    pub fn copy_peer<T: Pod + Send + Sync>(
        self,
        from: &Var<DeviceVec<T>>,
        to: &Var<DeviceVec<T>>,
    ) -> Result<(), PushError> {
        let accesses = (from.read(), to.overwrite(), stream());
        self.enqueue_copy(Location::caller(), Property::CopyToGpu, accesses, |(from, to, stream)| {
            stream.copy_across(from, to)
        })
    }

    // ---------------------------------------------------------------------------------------------------- futures ----

    /// Pushes an operation that is a future. When the operation's turn comes, the function is called on a worker and
    /// receives a guard for each access, as with [`Engine::acquire`]. The returned future is polled on a worker,
    /// immediately and whenever it is woken. Between polls, it occupies no worker.
    ///
    /// The operation is complete when the future has ended and all guards have been dropped. The future may pass guards
    /// on, for instance to a thread. Only one thread polls at a time. Each poll is part of the operation: it may push
    /// even while the engine drains, and must not wait for the operation's variables. A blocking wait for the engine
    /// inside a poll behaves as it does inside a function: it runs what it depends on or hands over the worker. An
    /// `await` that has to wait ends the poll instead, which frees the worker.
    ///
    /// If the future panics, the variables that the operation mutates fail. They also fail, with [`Cause::LostFuture`],
    /// if all the future's wakers are dropped before it has ended, since nothing can wake it again. If the operation is
    /// cancelled through its handle or group after it has started, the next poll drops the future, and the operation
    /// fails.
    ///
    /// A [`Naive`](crate::EngineKind::Naive) engine polls the future inside the push and, later, inside each wake.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let (orders, total) = (engine.var(vec![3, 4]), engine.var(0));
    /// let prices = engine.var(vec![10, 20]);
    /// let inner = prices.clone();
    /// engine.op("sum").push_future((raddle::cx(), orders.read(), total.write()), |(engine, orders, mut total)| async move {
    ///     let prices = engine.acquire(inner.read()).await.expect("the prices are known");
    ///     *total = orders.iter().zip(prices.iter()).map(|(count, price)| count * price).sum();
    /// })?;
    /// assert_eq!(engine.get(&total)?, 110);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`PushError`]. On error, the operation never runs. A device operation is refused with
    /// [`Misfit::FutureOnDevice`].
    #[track_caller]
    pub fn push_future<A, F, Fut>(self, accesses: A, f: F) -> Result<(), PushError>
    where
        A: Accesses,
        F: FnOnce(A::Guards) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        boxed_if_large!(F, f => self.enqueue_future(Location::caller(), &accesses, |guards| async move {
            f(guards).await;
            Ok(())
        }))
    }

    /// Pushes an operation that is a fallible future. An `Err` fails every variable that the operation mutates, and
    /// later operations that name such a variable are by default skipped with the same error. Otherwise, this behaves
    /// like [`push_future`](Self::push_future).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let (text, number) = (engine.var("12x"), engine.var(0));
    /// engine.op("parse").try_push_future((text.read(), number.write()), |(text, mut number)| async move {
    ///     *number = text.parse()?;
    ///     Ok(())
    /// })?;
    /// assert!(engine.wait_for_var(&number).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`push_future`](Self::push_future).
    #[track_caller]
    pub fn try_push_future<A, F, Fut>(self, accesses: A, f: F) -> Result<(), PushError>
    where
        A: Accesses,
        F: FnOnce(A::Guards) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        boxed_if_large!(F, f => self.enqueue_future(Location::caller(), &accesses, |guards| async move {
            f(guards).await.map_err(Cause::Error)
        }))
    }

    /// Pushes an operation that is a future with a result, and returns a handle to that result. The handle receives the
    /// result when the operation is complete, that is, once the future has ended and its guards have been dropped.
    /// Otherwise, this behaves like [`push_future`](Self::push_future).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let words = engine.var(vec!["warp", "weft"]);
    /// let count = engine.op("count").submit_future(words.read(), |words| async move { words.len() })?;
    /// assert_eq!(pollster::block_on(count)?, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`push_future`](Self::push_future).
    #[track_caller]
    pub fn submit_future<A, F, Fut, R>(self, accesses: A, f: F) -> Result<OpHandle<R>, PushError>
    where
        A: Accesses,
        F: FnOnce(A::Guards) -> Fut + Send + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: Send + 'static,
    {
        handle_unboxing_if_large!(R, self.core, kept => boxed_if_large!(F, f => {
            self.enqueue_returning_future(Location::caller(), &accesses, move |guards| async move {
                Ok(kept(f(guards).await))
            })
        }))
    }

    /// Pushes an operation that is a fallible future with a result, and returns a handle to that result. An `Err` fails
    /// every variable that the operation mutates, and later operations that name such a variable are by default skipped
    /// with the same error. Otherwise, this behaves like [`submit_future`](Self::submit_future).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let text = engine.var("12x");
    /// let number = engine.op("parse").try_submit_future(text.read(), |text| async move { Ok(text.parse::<i32>()?) })?;
    /// assert!(number.wait().is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`push_future`](Self::push_future).
    #[track_caller]
    pub fn try_submit_future<A, F, Fut, R>(self, accesses: A, f: F) -> Result<OpHandle<R>, PushError>
    where
        A: Accesses,
        F: FnOnce(A::Guards) -> Fut + Send + 'static,
        Fut: Future<Output = Result<R, BoxError>> + Send + 'static,
        R: Send + 'static,
    {
        handle_unboxing_if_large!(R, self.core, kept => boxed_if_large!(F, f => {
            self.enqueue_returning_future(Location::caller(), &accesses, move |guards| async move {
                match f(guards).await {
                    Ok(result) => Ok(kept(result)),
                    Err(error) => Err(Cause::Error(error)),
                }
            })
        }))
    }

    // -------------------------------------------------------------------------------------------------- operators ----

    /// Creates an operator whose function returns nothing. An operator is an operation that can be pushed repeatedly.
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
    pub fn operator<A, F>(self, accesses: A, f: F) -> Result<Operator, PushError>
    where
        A: Accesses,
        F: for<'a> Fn(Refs<'a, A>) + Send + Sync + 'static,
    {
        boxed_if_large!(F, f => self.create_operator((), accesses, move |refs: Refs<'_, A>, ()| {
            f(refs);
            Ok(())
        }))
    }

    /// Creates an operator whose function may fail. In each run, an `Err` fails every variable that the operation
    /// mutates, and later operations that name such a variable are by default skipped with the same error.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let budget = engine.var(1u32);
    /// let spend = engine.op("spend").try_operator(budget.write(), |budget| {
    ///     *budget = budget.checked_sub(1).ok_or("the budget is spent")?;
    ///     Ok(())
    /// })?;
    /// spend.push()?;
    /// spend.push()?;
    /// assert!(engine.wait_for_var(&budget).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`PushError`].
    #[track_caller]
    pub fn try_operator<A, F>(self, accesses: A, f: F) -> Result<Operator, PushError>
    where
        A: Accesses,
        F: for<'a> Fn(Refs<'a, A>) -> Result<(), BoxError> + Send + Sync + 'static,
    {
        boxed_if_large!(F, f => self.create_operator((), accesses, move |refs: Refs<'_, A>, ()| f(refs)))
    }

    /// Creates an operator whose function takes an argument, which each [push](Operator::<With<T>>::push) passes. The
    /// function's second parameter needs a type, unless the pushes determine it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// struct Tick {
    ///     price: u64,
    ///     size: u64,
    /// }
    ///
    /// let volume = engine.var(0);
    /// let trade = engine.op("trade").operator_with(volume.write(), |volume, tick: Tick| {
    ///     *volume += tick.price * tick.size;
    /// })?;
    /// trade.push(Tick { price: 100, size: 3 })?;
    /// trade.push(Tick { price: 101, size: 2 })?;
    /// assert_eq!(engine.get(&volume)?, 502);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The argument is moved to the thread that runs the operation, so it must be [`Send`]:
    ///
    /// ```compile_fail,E0277
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// use std::rc::Rc;
    ///
    /// let total = engine.var(0);
    /// let add = engine.op("add").operator_with(total.write(), |total, by: Rc<i32>| *total += *by)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`PushError`].
    #[track_caller]
    pub fn operator_with<A, T, F>(self, accesses: A, f: F) -> Result<Operator<With<T>>, PushError>
    where
        A: Accesses,
        T: Send + 'static,
        F: for<'a> Fn(Refs<'a, A>, T) + Send + Sync + 'static,
    {
        boxed_if_large!(F, f => self.create_operator((), accesses, move |refs: Refs<'_, A>, argument: T| {
            f(refs, argument);
            Ok(())
        }))
    }

    /// Creates an operator whose function takes an argument and may fail. In each run, an `Err` fails every variable
    /// that the operation mutates, as with [`try_operator`](Self::try_operator).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let budget = engine.var(10u32);
    /// let spend = engine.op("spend").try_operator_with(budget.write(), |budget, amount: u32| {
    ///     *budget = budget.checked_sub(amount).ok_or("the budget is spent")?;
    ///     Ok(())
    /// })?;
    /// spend.push(8)?;
    /// spend.push(8)?;
    /// assert!(engine.wait_for_var(&budget).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`PushError`].
    #[track_caller]
    pub fn try_operator_with<A, T, F>(self, accesses: A, f: F) -> Result<Operator<With<T>>, PushError>
    where
        A: Accesses,
        T: Send + 'static,
        F: for<'a> Fn(Refs<'a, A>, T) -> Result<(), BoxError> + Send + Sync + 'static,
    {
        boxed_if_large!(F, f => {
            self.create_operator((), accesses, move |refs: Refs<'_, A>, argument: T| f(refs, argument))
        })
    }

    /// Creates a *conflating* operator, for a source that is faster than its consumer, of which only the newest values
    /// matter. A [push](Operator::<Newest<T>>::push) passes a value, as with [`operator_with`](Self::operator_with).
    /// However, if `most` runs are pending that have not started, the push only replaces the oldest of their values.
    /// What was dropped is [counted](Operator::dropped).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{Conflated::{Pushed, Replaced}, completion};
    ///
    /// let engine = raddle::Engine::builder().workers(1).build()?;
    /// let shown = engine.var(Vec::new());
    /// let show = engine.op("show").operator_newest(1, shown.write(), |shown, price: u32| shown.push(price))?;
    /// // The display is busy.
    /// let (sender, busy) = std::sync::mpsc::channel();
    /// engine.op("draw").push((shown.write(), completion()), move |(_, done)| sender.send(done).expect("a receiver"))?;
    /// assert_eq!([show.push(100)?, show.push(101)?, show.push(102)?], [Pushed, Replaced, Replaced]);
    /// busy.recv()?.complete();
    /// assert_eq!(engine.get(&shown)?, [102]);
    /// assert_eq!(show.dropped(), 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # The place of a value
    ///
    /// A run takes its value when it *starts*, from the place that it got when it was pushed. So a push that replaces
    /// has no place of its own: operations pushed between that run and this push come after the run, and see the newer
    /// value, although they were pushed before it was. If this matters, use `operator_with`. The handle, group,
    /// priority and deadline of the run stay as they are, and if the run is cancelled or skipped, so is its newest
    /// value. A push that comes after a cancellation through the handle, or after an operation behind a skipped run has
    /// started, puts its value into another run.
    ///
    /// With several runs, each receives the oldest value that is left when it starts: a push gives its value to the
    /// last run, that one's to the run before, and so on, at a cost in proportion to `most`. Runs are ordered by their
    /// variables alone. So if runs are to receive the values in the order of their pushes, let the operator mutate a
    /// variable.
    ///
    /// # Several threads
    ///
    /// Any number of threads may push; no push waits for another one. A run whose push has not returned keeps its
    /// value. So pushes that race may enter more than `most` runs, each with a value that later pushes do not replace.
    /// Pushes that come after another push has returned never place their value before that push's, so the last value
    /// pushed is also the last one received. A value is replaced whole, by a push that found a run that had not
    /// started; a push that races with a start may therefore find no run, or drop a value that the next run could have
    /// received.
    ///
    /// # Errors
    /// See [`PushError`]. If `most` is zero, returns [`PushError::Unfit`] with [`Misfit::NewestOfNone`].
    #[track_caller]
    pub fn operator_newest<A, T, F>(self, most: usize, accesses: A, f: F) -> Result<Operator<Newest<T>>, PushError>
    where
        A: Accesses,
        T: Send + 'static,
        F: for<'a> Fn(Refs<'a, A>, T) + Send + Sync + 'static,
    {
        boxed_if_large!(F, f => self.create_conflating(most, accesses, move |refs: Refs<'_, A>, value: T| {
            f(refs, value);
            Ok(())
        }))
    }

    /// Creates a conflating operator whose function may fail. In each run, an `Err` fails every variable that the
    /// operation mutates, as with [`try_operator`](Self::try_operator). Otherwise, this behaves like
    /// [`operator_newest`](Self::operator_newest).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let volume = engine.var(0u32);
    /// let set = engine.op("set").try_operator_newest(1, volume.overwrite(), |volume, text: &str| {
    ///     *volume = text.parse()?;
    ///     Ok(())
    /// })?;
    /// set.push("eleven")?;
    /// assert!(engine.wait_for_var(&volume).is_err());
    /// set.push("11")?;
    /// assert_eq!(engine.get(&volume)?, 11);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`operator_newest`](Self::operator_newest).
    #[track_caller]
    pub fn try_operator_newest<A, T, F>(self, most: usize, accesses: A, f: F) -> Result<Operator<Newest<T>>, PushError>
    where
        A: Accesses,
        T: Send + 'static,
        F: for<'a> Fn(Refs<'a, A>, T) -> Result<(), BoxError> + Send + Sync + 'static,
    {
        boxed_if_large!(F, f => self.create_conflating(most, accesses, f))
    }

    /// Creates an operator for which variables are chosen at each [push](Operator::push_on). `choice` says how it uses
    /// them (see [`chosen`](crate::chosen)), and `accesses` declares what is the same at each push. The function
    /// receives references for the choice, those for the accesses, and an argument, which is `()` if there is none.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().build()?;
    /// use raddle::chosen;
    ///
    /// #[derive(Clone, Copy)]
    /// struct Tick {
    ///     price: f64,
    ///     size: f64,
    /// }
    ///
    /// let fee = engine.var(0.5);
    /// let books: Vec<_> = (0..64).map(|_| engine.var(0.0)).collect();
    /// let tick = engine.op("tick").operator_on(chosen::write(), fee.read(), |book, fee, tick: Tick| {
    ///     *book += tick.price * tick.size - fee;
    /// })?;
    /// tick.push_on(&books[7], Tick { price: 100.0, size: 3.0 })?;
    /// tick.push_on(&books[9], Tick { price: 101.0, size: 2.0 })?; // in parallel
    /// assert_eq!(engine.get(&books[7])?, 299.5);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A push names variables of the declared types:
    ///
    /// ```compile_fail,E0308
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let name = engine.var(String::new());
    /// let add = engine.op("add").operator_on(raddle::chosen::write(), (), |total, (), by: i32| *total += by)?;
    /// add.push_on(&name, 1)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`PushError`].
    #[track_caller]
    pub fn operator_on<C, A, T, F>(self, choice: C, accesses: A, f: F) -> Result<Operator<On<C, T>>, PushError>
    where
        C: Chosen,
        A: Accesses,
        T: Send + 'static,
        F: for<'a> Fn(Refs<'a, C::Accesses<'static>>, Refs<'a, A>, T) + Send + Sync + 'static,
    {
        boxed_if_large!(F, f => self.create_operator_on(
            choice,
            accesses,
            move |chosen: Refs<'_, C::Accesses<'static>>, own: Refs<'_, A>, argument: T| {
                f(chosen, own, argument);
                Ok(())
            },
        ))
    }

    /// Creates an operator for which variables are chosen at each push, and whose function may fail. In each run, an
    /// `Err` fails every variable that the operation mutates, as with [`try_operator`](Self::try_operator). Otherwise,
    /// this behaves like [`operator_on`](Self::operator_on).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let budgets = [engine.var(10u32), engine.var(10)];
    /// let spend = engine.op("spend").try_operator_on(raddle::chosen::write(), (), |budget: &mut u32, (), amount| {
    ///     *budget = budget.checked_sub(amount).ok_or("the budget is spent")?;
    ///     Ok(())
    /// })?;
    /// spend.push_on(&budgets[0], 8)?;
    /// spend.push_on(&budgets[1], 18)?;
    /// assert_eq!(engine.get(&budgets[0])?, 2);
    /// assert!(engine.wait_for_var(&budgets[1]).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`PushError`].
    #[track_caller]
    pub fn try_operator_on<C, A, T, F>(self, choice: C, accesses: A, f: F) -> Result<Operator<On<C, T>>, PushError>
    where
        C: Chosen,
        A: Accesses,
        T: Send + 'static,
        F: for<'a> Fn(Refs<'a, C::Accesses<'static>>, Refs<'a, A>, T) -> Result<(), BoxError> + Send + Sync + 'static,
    {
        boxed_if_large!(F, f => self.create_operator_on(choice, accesses, f))
    }

    #[track_caller]
    fn create_operator<P, A, F>(self, state: P::State, accesses: A, f: F) -> Result<Operator<P>, PushError>
    where
        P: sealed::Parameters,
        A: Accesses,
        F: for<'a> Fn(Refs<'a, A>, P::Given) -> Result<(), BoxError> + Send + Sync + 'static,
    {
        let captured = accesses.capture();
        let f = move |call: &Call<'_>, given: P::Given| {
            let f = |refs: Refs<'_, A>| f(refs, given).map_err(Cause::Error);
            // SAFETY: (1) and (2): each run declares `accesses`, and calls this once. The operator's creation refuses
            // aliases.
            unsafe { call_with::<A>(call, &captured, false, f) }
        };
        self.into_operator(&accesses, state, const { flags_of(A::KIND) }, Box::new(f))
    }

    #[track_caller]
    fn create_conflating<A, T, F>(self, most: usize, accesses: A, f: F) -> Result<Operator<Newest<T>>, PushError>
    where
        A: Accesses,
        T: Send + 'static,
        F: for<'a> Fn(Refs<'a, A>, T) -> Result<(), BoxError> + Send + Sync + 'static,
    {
        if most == 0 {
            drop(f);
            return Err(PushError::Unfit(Misfit::NewestOfNone));
        }
        let f = move |refs: Refs<'_, A>, value: NewestValue<T>| f(refs, value.take());
        self.create_operator(Values::new(most), accesses, f)
    }

    #[track_caller]
    fn create_operator_on<C, A, T, F>(self, choice: C, accesses: A, f: F) -> Result<Operator<On<C, T>>, PushError>
    where
        C: Chosen,
        A: Accesses,
        T: Send + 'static,
        F: for<'a> Fn(Refs<'a, C::Accesses<'static>>, Refs<'a, A>, T) -> Result<(), BoxError> + Send + Sync + 'static,
    {
        let own = accesses.capture();
        let f = move |call: &Call<'_>, (chosen, argument): (C::Captured, T)| {
            let f = |(chosen, own): Refs<'_, Both<'_, C::Accesses<'static>, A>>| {
                f(chosen, own, argument).map_err(Cause::Error)
            };
            // SAFETY: (1) and (2): each run declares `accesses` and those that `choice` makes of its variables, and
            // calls this once with what it has captured of the latter. Its push refuses aliases.
            unsafe { call_with::<Both<'_, C::Accesses<'static>, A>>(call, &(chosen, &own), false, f) }
        };
        self.into_operator(&accesses, choice, const { flags_of(A::KIND) }, Box::new(f))
    }

    /// Pushes a copy with the property `property`, unless another is set.
    fn enqueue_copy<A, F>(
        self,
        location: &'static Location<'static>,
        property: Property,
        accesses: A,
        copy: F,
    ) -> Result<(), PushError>
    where
        A: Accesses,
        F: for<'a> FnOnce(Refs<'a, A>) -> Result<(), DeviceError> + Send + 'static,
    {
        let mut builder = if self.property == Property::Normal { self.property(property) } else { self };
        builder.owned.spec.flags |= flag::COPY;
        builder.enqueue_function(location, &accesses, |refs| copy(refs).map_err(|error| Cause::Error(error.into())))
    }

    #[track_caller]
    fn into_operator<P: Parameters>(
        mut self,
        accesses: &impl ScopedAccesses,
        state: P::State,
        flags: u16,
        function: OperatorFunction<P::Given>,
    ) -> Result<Operator<P>, PushError> {
        let core = self.core;
        if core.is_forked() {
            return Err(PushError::Forked);
        }
        if flags & flag::STREAM != 0 && self.device == Device::Cpu {
            drop(function);
            return Err(PushError::Unfit(Misfit::NotOnDevice));
        }
        let is_child = self.family.is_some() || self.is_orphan;
        let is_parent_on_device = self.owned.spec.flags & flag::PARENT != 0 && self.device != Device::Cpu;
        if is_child || is_parent_on_device {
            drop(function);
            return Err(PushError::Unfit(Misfit::Family));
        }
        let fixed_priority =
            self.owned.spec.flags & flag::KEPT != 0 || Route::of(self.property, core.kind()).priority.is_some();
        self.finish(accesses, flags)?;
        let location = self.site(Location::caller());
        let declared = Entries::clone(&self.owned.entries);
        let entries = match push::check_and_sort(core, &mut self.owned.entries, &self.owned.spec.name, location) {
            Ok(entries) => entries.into(),
            Err(error) => {
                // Dropped here rather than by `?`, for the reason given in `Core::create`.
                drop(function);
                return Err(error);
            }
        };
        // Each run of the operator is admitted separately.
        self.owned.spec.is_admitted = false;
        // Refused here rather than by each push.
        if let Err(error) = admission::of_push(core, None, self.owned.uses()) {
            drop(function);
            return Err(error);
        }
        let limits = (self.group.cloned(), self.deadline, Needs::from(self.owned.uses()));
        let spec = mem::replace(&mut *self.owned.spec, Spec::new(Name::EMPTY));
        Ok(Operator::new(Arc::clone(core), spec, (&declared, entries), state, function, fixed_priority, limits))
    }

    fn enqueue_future<A, F, Fut>(
        mut self,
        location: &'static Location<'static>,
        accesses: &A,
        f: F,
    ) -> Result<(), PushError>
    where
        A: Accesses,
        F: FnOnce(A::Guards) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), Cause>> + Send + 'static,
    {
        let (captured, priority) = self.finish_future(accesses)?;
        // SAFETY: (1) and (2): the operation declares `accesses`, and runs once.
        let start = move |call: &Call<'_>| unsafe { start_future::<A, _, _, _>(call, &captured, priority, None, f) };
        self.enqueue_finished(location, |_, _| without_sink(start))
    }

    fn enqueue_returning_future<A, F, Fut, R>(
        mut self,
        location: &'static Location<'static>,
        accesses: &A,
        f: F,
    ) -> Result<Arc<Handled<R>>, PushError>
    where
        A: Accesses,
        F: FnOnce(A::Guards) -> Fut + Send + 'static,
        Fut: Future<Output = Result<R, Cause>> + Send + 'static,
        R: Send + 'static,
    {
        let (captured, priority) = self.finish_future(accesses)?;
        let start = move |call: &Call<'_>, out: Out<R>| {
            // SAFETY: (1) and (2): the operation declares `accesses`, and runs once.
            unsafe { start_future::<A, _, _, _>(call, &captured, priority, Some(out), f) }
        };
        let mut shared = None;
        let pushed = self.enqueue_finished(location, |spec, location| with_handle(spec, location, start, &mut shared));
        shared_unless_refused(shared, pushed)
    }

    /// Calls [`finish`](Self::finish) for an operation that is a future, and returns its pointers and its priority.
    /// Returns an error if it is a device operation.
    fn finish_future<A: Accesses>(&mut self, accesses: &A) -> Result<(A::Captured, i32), PushError> {
        const { assert!(A::KIND.is(Kind::Function), "a future receives neither a stream nor a completion") }
        if self.device != Device::Cpu {
            return Err(PushError::Unfit(Misfit::FutureOnDevice));
        }
        self.finish(accesses, flag::ASYNC)?;
        Ok((accesses.capture(), self.owned.spec.priority))
    }

    #[inline(always)]
    fn enqueue_function<A, F>(self, location: &'static Location<'static>, accesses: &A, f: F) -> Result<(), PushError>
    where
        A: Accesses,
        F: for<'a> FnOnce(Refs<'a, A>) -> Result<(), Cause> + Send + 'static,
    {
        let captured = accesses.capture();
        // SAFETY: (1) and (2): the operation declares `accesses`, and runs once.
        let f = move |call: &Call<'_>| unsafe { call_with::<A>(call, &captured, false, f) };
        self.enqueue_made(location, accesses, |_, _| without_sink(f))
    }

    #[inline(always)]
    fn enqueue_returning<A, F, R>(
        self,
        location: &'static Location<'static>,
        accesses: &A,
        f: F,
    ) -> Result<Arc<Handled<R>>, PushError>
    where
        A: Accesses,
        F: for<'a> FnOnce(Refs<'a, A>) -> Result<R, Cause> + Send + 'static,
        R: Send + 'static,
    {
        let captured = accesses.capture();
        let f = move |call: &Call<'_>, mut out: Out<R>| {
            let f = |refs: Refs<'_, A>| {
                let value = f(refs)?;
                // SAFETY: (1): the operation ends when this function has returned.
                unsafe { out.set(value) };
                Ok(())
            };
            // SAFETY: (1) and (2): the operation declares `accesses`, and runs once.
            unsafe { call_with::<A>(call, &captured, true, f) }
        };
        let mut shared = None;
        let make = |spec: &Spec, location| with_handle(spec, location, f, &mut shared);
        let pushed = self.enqueue_made(location, accesses, make);
        shared_unless_refused(shared, pushed)
    }

    /// Enqueues an operation for which `make` creates the job. Inlined, so that the compiler does not build the
    /// description of a bare operation in memory: it knows the number of accesses, and that no property was set.
    #[inline(always)]
    fn enqueue_made<A: ScopedAccesses, J: Job>(
        self,
        location: &'static Location<'static>,
        accesses: &A,
        make: impl FnOnce(&Spec, &'static Location<'static>) -> J,
    ) -> Result<(), PushError> {
        if const { A::KIND.is(Kind::Completion) } {
            return self.enqueue_shortly(location, accesses, |spec, location| Asynchronous(make(spec, location)));
        }
        if const { !A::KIND.is(Kind::Function) } {
            return self.enqueue(location, accesses, const { flags_of(A::KIND) }, make);
        }
        if const { A::COMMUTES } {
            return self.enqueue_commuting(location, accesses, make);
        }
        self.enqueue_shortly(location, accesses, make)
    }

    /// [`enqueue_made`](Self::enqueue_made) for an operation that needs no stream.
    #[inline(always)]
    fn enqueue_shortly<A: ScopedAccesses, J: Job>(
        mut self,
        location: &'static Location<'static>,
        accesses: &A,
        make: impl FnOnce(&Spec, &'static Location<'static>) -> J,
    ) -> Result<(), PushError> {
        if const { A::COMMUTES } {
            self.is_bare = false;
        }
        if const { is_counted::<A>() } && self.is_bare && self.owned.entries.is_empty() {
            let job = make(&self.owned.spec, location);
            let (core, name) = self.into_bare();
            return push_counted(core, name, location, accesses, job);
        }
        accesses.declare(&mut List(&mut self.owned.entries));
        if self.is_short() {
            let job = make(&self.owned.spec, location);
            let (core, name, entries) = self.into_short();
            return push::push_short::<false, _>(core, name, location, entries, job);
        }
        self.enqueue(location, &(), const { if J::ASYNC { flag::ASYNC } else { 0 } }, make)
    }

    /// [`enqueue_shortly`](Self::enqueue_shortly) for an operation that commutes: only with one access, it goes a shorter
    /// way.
    #[inline(always)]
    fn enqueue_commuting<A: ScopedAccesses, J: Job>(
        self,
        location: &'static Location<'static>,
        accesses: &A,
        make: impl FnOnce(&Spec, &'static Location<'static>) -> J,
    ) -> Result<(), PushError> {
        let sole = if A::COUNT == Some(1) { accesses.at(0) } else { None };
        let Some(Declared(entry)) = sole.filter(|_| self.is_bare && self.owned.entries.is_empty()) else {
            return self.enqueue_shortly(location, accesses, make);
        };
        let job = make(&self.owned.spec, location);
        let (core, name) = self.into_bare();
        push::push_sole::<true, _>(core, name, location, entry, job)
    }

    /// Whether [`push_short`](push::push_short) may push the operation, whose accesses have been declared.
    #[inline(always)]
    fn is_short(&self) -> bool {
        debug_assert!(!self.is_bare || !self.has_more && self.owned.spec.is_bare());
        self.is_bare && self.owned.entries.len() <= INLINE_ACCESSES
    }

    /// Returns what [`push_short`](push::push_short) needs of the description. The rest owns no memory, so nothing is
    /// left to drop if the push panics. Otherwise, the description would have to be in memory.
    #[inline(always)]
    fn into_short(self) -> (&'e Arc<Core>, &'static str, Entries) {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is neither used nor dropped after this call.
        let entries = unsafe { ptr::read(&raw const *this.owned.entries) };
        (this.core, this.owned.spec.name.as_static().unwrap_or_default(), entries)
    }

    /// [`into_short`](Self::into_short) for a bare description without accesses.
    #[inline(always)]
    fn into_bare(self) -> (&'e Arc<Core>, &'static str) {
        debug_assert!(!self.has_more && self.owned.spec.is_bare() && self.owned.entries.is_empty());
        // There is nothing to drop, and a drop would be compiled into code for a panic in the push.
        let this = ManuallyDrop::new(self);
        (this.core, this.owned.spec.name.as_static().unwrap_or_default())
    }

    /// Enqueues an operation that no shorter way pushes. Takes the builder by value: with a reference, the caller would
    /// have to build the description in memory even if it takes such a way.
    #[inline(never)]
    fn enqueue<J: Job>(
        mut self,
        location: &'static Location<'static>,
        accesses: &impl ScopedAccesses,
        flags: u16,
        make: impl FnOnce(&Spec, &'static Location<'static>) -> J,
    ) -> Result<(), PushError> {
        let finished = if flags & flag::STREAM != 0 && self.device == Device::Cpu {
            Err(PushError::Unfit(Misfit::NotOnDevice))
        } else {
            self.finish(accesses, flags)
        };
        match finished {
            Ok(())
                if self.is_bare
                    && flags & !flag::ASYNC == 0
                    && (2..=MOST_SHORT).contains(&self.owned.entries.len()) =>
            {
                let job = make(&self.owned.spec, location);
                let name = self.owned.spec.name.as_static().unwrap_or_default();
                push::push_several(self.core, name, location, &**self.owned.entries, job)
            }
            Ok(()) => self.enqueue_finished(location, make),
            Err(error) => {
                // Dropped here, for the reason given in `Core::create`.
                drop(make);
                Err(error)
            }
        }
    }

    fn enqueue_finished<J: Job>(
        &mut self,
        location: &'static Location<'static>,
        make: impl FnOnce(&Spec, &'static Location<'static>) -> J,
    ) -> Result<(), PushError> {
        let location = self.site(location);
        let job = ErasedJob::new(make(&self.owned.spec, location));
        if self.owned.spec.flags & flag::LIMITED == 0 {
            self.core.push(&self.owned.spec, location, &mut self.owned.entries, job)
        } else {
            self.enqueue_limited(location, job)
        }
    }

    // The next two functions are compiled once, not for each function that a program pushes.

    #[cold]
    fn enqueue_limited(&mut self, location: &'static Location<'static>, job: ErasedJob) -> Result<(), PushError> {
        let flags = self.owned.spec.flags;
        let refused = if flags & flag::PARENT != 0 && flags & (flag::STREAM | flag::GPU_LANE) != 0 {
            Some(PushError::Unfit(Misfit::Family))
        } else if self.is_orphan {
            Some(PushError::Unfit(Misfit::NotAParent))
        } else {
            None
        };
        if let Some(error) = refused {
            // Dropped here, for the reason given in `Core::create`.
            drop(job);
            return Err(error);
        }
        let group = self.family.map(Family::group).or(self.group);
        let held = (&**self.owned.entries, self.owned.uses());
        let plan = || Plan::boxed(held, self.owned.spec.priority, self.deadline, group, self.family);
        let plan = (flags & flag::PARENT != 0).then(plan);
        match self.family {
            Some(family) => {
                let units =
                    family.units_for(self.owned.uses()).and_then(|uses| admission::of_push(self.core, group, &uses));
                let units = match units {
                    Ok(units) => units,
                    Err(error) => {
                        // Dropped here, for the reason given in `Core::create`.
                        drop(job);
                        return Err(error);
                    }
                };
                let limits = Limits::new(self.deadline, units, plan);
                family.push(&self.owned.spec, location, &mut self.owned.entries, job, limits)
            }
            None => self.enqueue_in_group(location, job, plan, None),
        }
    }
}

/// Creates the job of an operation, and its `handle`.
#[inline(always)]
fn with_handle<F, R>(
    spec: &Spec,
    location: &'static Location<'static>,
    f: F,
    for_handle: &mut Option<Arc<Handled<R>>>,
) -> HandleJob<F, R>
where
    F: FnOnce(&Call<'_>, Out<R>) -> Result<(), Cause> + Send + 'static,
    R: Send + 'static,
{
    let shared = job::shared(spec, location, f);
    let job = HandleJob::new(Arc::clone(&shared));
    *for_handle = Some(shared);
    job
}

/// Returns the state that [`with_handle`] has made, unless the push was refused.
#[inline(always)]
fn shared_unless_refused<R>(
    shared: Option<Arc<Handled<R>>>,
    pushed: Result<(), PushError>,
) -> Result<Arc<Handled<R>>, PushError> {
    unless_refused(shared, pushed).map(|shared| shared.expect("a push makes the job before it succeeds"))
}

/// Returns `made`, which is or owns the operation's function, unless the push was refused.
#[inline(always)]
pub(super) fn unless_refused<T>(made: T, pushed: Result<(), PushError>) -> Result<T, PushError> {
    match pushed {
        Ok(()) => Ok(made),
        Err(error) => {
            // Dropped here, for the reason given in `Core::create`.
            drop(made);
            Err(error)
        }
    }
}

/// Whether [`push_counted`] may push an operation with these accesses.
pub(super) const fn is_counted<A: ScopedAccesses>() -> bool {
    matches!(A::COUNT, Some(0..=MOST_SHORT))
}

/// [`push_short`](push::push_short) for an operation whose number of accesses is determined by their type. Such a push
/// needs no list of them, which the compiler cannot always keep out of memory.
#[inline(always)]
pub(super) fn push_counted<A: ScopedAccesses, J: Job>(
    core: &Arc<Core>,
    name: &'static str,
    location: &'static Location<'static>,
    accesses: &A,
    job: J,
) -> Result<(), PushError> {
    const { assert!(INLINE_ACCESSES == 4 && MOST_SHORT == 16) }
    let at = |at| accesses.at(at).expect("there are as many accesses as `COUNT` says").0;
    // Each condition is a constant, so only one of the functions is compiled for a job.
    if const { matches!(A::COUNT, Some(0)) } {
        push::push_free(core, name, location, job)
    } else if const { matches!(A::COUNT, Some(1)) } {
        push::push_sole::<false, _>(core, name, location, at(0), job)
    } else if const { matches!(A::COUNT, Some(2)) } {
        push::push_several(core, name, location, &[at(0), at(1)], job)
    } else if const { matches!(A::COUNT, Some(3)) } {
        push::push_several(core, name, location, &[at(0), at(1), at(2)], job)
    } else if const { matches!(A::COUNT, Some(4)) } {
        push::push_several(core, name, location, &[at(0), at(1), at(2), at(3)], job)
    } else {
        let at = |at| accesses.at(at).map_or(MaybeUninit::uninit(), |declared| MaybeUninit::new(declared.0));
        // Listed, since the compiler does not always unroll a loop.
        #[rustfmt::skip]
        let entries: [MaybeUninit<Entry>; MOST_SHORT] = [
            at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7),
            at(8), at(9), at(10), at(11), at(12), at(13), at(14), at(15),
        ];
        // SAFETY: as many as `COUNT` says are initialised, since there are as many accesses.
        let entries = unsafe { slice::from_raw_parts(entries.as_ptr().cast::<Entry>(), A::COUNT.unwrap_or(0)) };
        push::push_several(core, name, location, entries, job)
    }
}
