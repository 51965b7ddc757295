//! Scopes: operations that borrow from the pushing function.

use std::{
    fmt,
    marker::PhantomData,
    mem,
    panic::{Location, resume_unwind},
    sync::Arc,
    time::Duration,
};

use crate::{
    api::{
        accesses::{Refs, ScopedAccesses, sealed::Kind},
        engine::Engine,
        group::Group,
        handle::OpHandle,
        large::boxed_if_large,
        op_builder::{OpBuilder, unless_refused},
        op_context::OpContext,
        scoped_var::ScopedVar,
    },
    error::{
        BoxError,
        op::Cause,
        push_error::{NoAccess, PushError},
        wait::WaitError,
    },
    group::scoped::Scoped,
    op::{
        cancellable::Handled,
        frame::Call,
        job::{self, HandleJob, without_sink},
        task::ErasedJob,
    },
    sync::{Mutex, lock},
    system::panics,
    values::Name,
};

impl Engine {
    /// Calls `f` with a scope and returns once every operation in the scope has ended. Operations in the scope may
    /// therefore borrow data that outlives this call, like threads in [`std::thread::scope`].
    ///
    /// `f` runs on the calling thread. When `f` has returned or panicked, the call waits for the scope's operations,
    /// including those that they push to the scope in turn. It then drops the values of the scope's variables. While it
    /// waits, a thread that has a worker first runs the scope's ready operations that no other worker has taken, while
    /// its stack has room. If the wait is not over then, another thread takes over the worker.
    ///
    /// Scopes may be nested: any operation that may wait can open a scope, even an operation in another scope.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = raddle::Engine::builder().build()?;
    /// let text = String::from("the warp and the weft");
    /// let mut counts = [0; 2];
    /// let [vowels, words] = &mut counts;
    /// engine.try_scope(|s| {
    ///     s.op("vowels").push((), |()| *vowels = text.chars().filter(|c| "aeiou".contains(*c)).count())?;
    ///     s.op("words").push((), |()| *words = text.split(' ').count())?;
    ///     Ok(())
    /// })?;
    /// assert_eq!(counts, [5, 5]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Operations that use the same data, at least one of them mutably, must name a common variable, which may belong
    /// to the scope or to the engine:
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().build()?;
    /// let words = ["warp", "weft", "heddle"];
    /// let mut longest = "";
    /// engine.try_scope(|s| {
    ///     let longest = s.lend(&mut longest);
    ///     for word in &words {
    ///         s.op("compare").push(longest.write(), move |longest| {
    ///             if word.len() > longest.len() {
    ///                 *longest = word;
    ///             }
    ///         })?;
    ///     }
    ///     Ok(())
    /// })?;
    /// assert_eq!(longest, "heddle");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// An operation cannot borrow data that does not outlive the scope:
    ///
    /// ```compile_fail,E0373
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().build()?;
    /// engine.try_scope(|s| {
    ///     let local = 1;
    ///     s.op("look").push((), |()| assert_eq!(local, 1))?;
    ///     Ok(())
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// `f` cannot keep the scope, its variables or the handles to its operations:
    ///
    /// ```compile_fail,E0521
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().build()?;
    /// let mut kept = None;
    /// engine.scope(|s| kept = Some(s.var(1)))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`WaitError::Failed`] with the failure of the earliest-pushed operation among the scope's operations
    /// that have failed since the last wait for the scope's [group](Scope::group). The result of `f` is then dropped.
    ///
    /// Returns [`WaitError::WouldDeadlock`] if the wait at the end of this scope is the last to begin in a cycle
    /// consisting only of such waits. The scope's operations that could start only after the call had returned are then
    /// cancelled, and the variables that they mutate fail.
    ///
    /// If the calling thread must not wait, `f` is not called, and the call returns [`WaitError::OnDevice`],
    /// [`WaitError::InDeletion`], [`WaitError::InObserver`] or [`WaitError::WouldDeadlock`]. In a forked child, it
    /// returns [`WaitError::Refused`].
    ///
    /// # Panics
    /// If `f` panics, the call waits for the scope's operations and then resumes the panic. A panic in an operation
    /// fails that operation, as usual. If dropping a variable's value panics, the call drops the other values and then
    /// resumes the first of these panics.
    pub fn scope<'env, F, R>(&self, f: F) -> Result<R, WaitError>
    where
        F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
    {
        let scope = Scope { scoped: Scoped::open(self.core())?, scope: PhantomData, env: PhantomData };
        let result = boxed_if_large!(F, f => panics::catch(|| f(&scope)));
        let mut closed = scope.scoped.close();
        let mut panicked = result.is_err();
        let (mut payload, mut emptied) = (None, Vec::new());
        loop {
            // SAFETY: (1): the scope was closed after `f` had ended, so only the scope's operations and drops of its
            // values can push to it.
            match unsafe { scope.scoped.drop_values(&mut emptied) } {
                Ok(false) => break,
                Ok(true) => {}
                Err(second) if panicked => panics::discard(second),
                Err(first) => (panicked, payload) = (true, Some(first)),
            }
            closed = closed.and(scope.scoped.close());
        }
        scope.scoped.end();
        drop(emptied);
        match (result, payload) {
            (Ok(result), None) => closed.map(|()| result),
            (Err(payload), _) | (_, Some(payload)) => resume_unwind(payload),
        }
    }

    /// [`scope`](Self::scope) for a function that may fail. In the function, `?` accepts the errors of pushes and
    /// waits.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = raddle::Engine::builder().build()?;
    /// let text = String::from("the warp and the weft");
    /// let words = engine.try_scope(|s| s.op("words").submit((), |()| text.split(' ').count())?.wait())?;
    /// assert_eq!(words, 5);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`scope`](Self::scope), and otherwise the error of `f`.
    ///
    /// # Panics
    /// Panics as [`scope`](Self::scope) does.
    pub fn try_scope<'env, F, R>(&self, f: F) -> Result<R, WaitError>
    where
        F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<R, WaitError>,
    {
        self.scope(f)?
    }
}

/// A scope for operations that borrow, created by [`Engine::scope`] or [`Engine::try_scope`].
///
/// As in [`std::thread::Scope`], `'scope` is the lifetime of the scope, and `'env` is that of the data borrowed by its
/// operations. The scope's operations may push more operations to the scope through a captured reference.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = raddle::Engine::builder().build()?;
/// let mut halves = [0; 2];
/// let (left, right) = halves.split_at_mut(1);
/// engine.try_scope(|s| {
///     s.op("left").push((), move |()| {
///         left[0] = 1;
///         s.op("right").push((), move |()| right[0] = 2).expect("the scope is open");
///     })?;
///     Ok(())
/// })?;
/// assert_eq!(halves, [1, 2]);
/// # Ok(())
/// # }
/// ```
pub struct Scope<'scope, 'env: 'scope> {
    scoped: Arc<Scoped>,
    /// Makes `'scope` invariant: an operation must not borrow for less than the scope's lifetime.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("group", self.scoped.group()).finish_non_exhaustive()
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Returns a builder for an operation in this scope.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let numbers = vec![1, 2, 3];
    /// let sum = engine.try_scope(|s| s.op("sum").submit((), |()| numbers.iter().sum::<i32>())?.wait())?;
    /// assert_eq!(sum, 6);
    /// # Ok(())
    /// # }
    /// ```
    pub fn op(&'scope self, name: impl Into<Name>) -> OpBuilder<'scope, &'scope Self> {
        OpBuilder::in_group(self.scoped.core(), name.into(), self.scoped.group(), self)
    }

    /// Creates a variable that belongs to this scope. Its value may borrow and is dropped when the scope ends.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let text = String::from("warp weft warp");
    /// let repeated = engine.try_scope(|s| {
    ///     let seen = s.var(Vec::new());
    ///     for word in text.split(' ') {
    ///         s.op("see").push(seen.write(), move |seen| seen.push(word))?;
    ///     }
    ///     s.op("count").submit(seen.read(), |seen| seen.iter().filter(|word| **word == "warp").count())?.wait()
    /// })?;
    /// assert_eq!(repeated, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn var<T: Send + 'scope>(&'scope self, value: T) -> ScopedVar<'scope, T> {
        // SAFETY: (1): the value is valid for `'scope`, and the scope empties the variable when it ends.
        let (var, cell) = unsafe { ScopedVar::with_value(self.scoped.core(), value) };
        // SAFETY: (1): only the scope uses this handle.
        unsafe { self.scoped.keep(cell) };
        var
    }

    /// Lends `value` to this scope's operations as the value of a variable. The caller can use the value again once the
    /// scope has ended.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let mut image = vec![0u8; 1 << 10];
    /// engine.try_scope(|s| {
    ///     for rows in image.chunks_mut(256) {
    ///         let rows = s.lend(rows);
    ///         s.op("fill").push(rows.write(), |rows| rows.fill(100))?;
    ///         s.op("darken").push(rows.write(), |rows| rows.iter_mut().for_each(|pixel| *pixel /= 2))?;
    ///     }
    ///     Ok(())
    /// })?;
    /// assert!(image.iter().all(|&pixel| pixel == 50));
    /// # Ok(())
    /// # }
    /// ```
    pub fn lend<T: Send + ?Sized>(&'scope self, value: &'scope mut T) -> ScopedVar<'scope, T> {
        let (var, cell) = ScopedVar::lent(self.scoped.core(), value);
        // SAFETY: (1): only the scope uses this handle.
        unsafe { self.scoped.keep(cell) };
        var
    }

    /// Returns the group that contains the scope's operations. Through the group, they can be awaited, counted and
    /// cancelled together. The scope also waits for other operations pushed to the group.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let numbers = [3, 1, 2];
    /// let found = engine.try_scope(|s| {
    ///     let found = s.var(None);
    ///     for number in &numbers {
    ///         s.op("search").push(found.write(), move |found| {
    ///             if *number == 1 {
    ///                 *found = Some(*number);
    ///                 s.group().cancel_quietly(); // the rest is not needed
    ///             }
    ///         })?;
    ///     }
    ///     s.group().wait()?;
    ///     Ok(numbers.len())
    /// })?;
    /// assert_eq!(found, 3);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn group(&self) -> Group {
        Group::of(self.scoped.core(), self.scoped.group())
    }
}

/// An operation's function, which borrows for `'f`.
type ScopeFunction<'f> = Box<dyn for<'c> FnOnce(&Call<'c>) -> Result<(), Cause> + Send + 'f>;

/// Operations in a [scope](Engine::scope) run on the CPU, and their functions and results may borrow for `'scope`.
impl<'scope> OpBuilder<'scope, &'scope Scope<'scope, '_>> {
    /// Pushes an operation whose function returns nothing; see [`OpBuilder::push`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let total = engine.var(0); // an engine variable
    /// let steps = [1, 2, 3];
    /// engine.try_scope(|s| {
    ///     for step in steps {
    ///         s.op("add").push(total.write(), move |total| *total += step)?;
    ///     }
    ///     Ok(())
    /// })?;
    /// assert_eq!(engine.get(&total)?, 6);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`PushError`]. On error, the operation never runs. It is refused with [`NoAccess::HeldAroundScope`] if an
    /// operation around the scope holds one of the variables.
    #[track_caller]
    pub fn push<A, F>(self, accesses: A, f: F) -> Result<(), PushError>
    where
        A: ScopedAccesses<Captured: 'scope>,
        F: for<'a> FnOnce(Refs<'a, A>) + Send + 'scope,
    {
        boxed_if_large!(F, f => self.enqueue(Location::caller(), &accesses, |refs| {
            f(refs);
            Ok(())
        }))
    }

    /// Pushes an operation whose function may fail; see [`OpBuilder::try_push`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let text = String::from("12x");
    /// let parsed = engine.scope(|s| {
    ///     s.op("parse").try_push((), |()| {
    ///         text.parse::<i32>()?;
    ///         Ok(())
    ///     })
    /// });
    /// assert!(parsed.is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`push`](Self::push).
    #[track_caller]
    pub fn try_push<A, F>(self, accesses: A, f: F) -> Result<(), PushError>
    where
        A: ScopedAccesses<Captured: 'scope>,
        F: for<'a> FnOnce(Refs<'a, A>) -> Result<(), BoxError> + Send + 'scope,
    {
        boxed_if_large!(F, f => self.enqueue(Location::caller(), &accesses, f))
    }

    /// Pushes an operation whose function returns a value, which may borrow, and returns a handle to the result; see
    /// [`OpBuilder::submit`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let text = String::from("warp weft");
    /// let last = engine.try_scope(|s| s.op("last").submit((), |()| text.split(' ').next_back())?.wait())?;
    /// assert_eq!(last, Some("weft"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`push`](Self::push).
    #[track_caller]
    pub fn submit<A, F, R>(self, accesses: A, f: F) -> Result<ScopedHandle<'scope, R>, PushError>
    where
        A: ScopedAccesses<Captured: 'scope>,
        F: for<'a> FnOnce(Refs<'a, A>) -> R + Send + 'scope,
        R: Send + 'scope,
    {
        boxed_if_large!(F, f => self.enqueue_returning(Location::caller(), &accesses, |refs| Ok(f(refs))))
    }

    /// Pushes an operation whose function returns a value or an error, and returns a handle to the result; see
    /// [`OpBuilder::try_submit`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let text = String::from("12");
    /// let number = engine.try_scope(|s| s.op("parse").try_submit((), |()| Ok(text.parse::<i32>()?))?.wait())?;
    /// assert_eq!(number, 12);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`push`](Self::push).
    #[track_caller]
    pub fn try_submit<A, F, R>(self, accesses: A, f: F) -> Result<ScopedHandle<'scope, R>, PushError>
    where
        A: ScopedAccesses<Captured: 'scope>,
        F: for<'a> FnOnce(Refs<'a, A>) -> Result<R, BoxError> + Send + 'scope,
        R: Send + 'scope,
    {
        boxed_if_large!(F, f => self.enqueue_returning(Location::caller(), &accesses, f))
    }

    fn enqueue<A, F>(mut self, location: &'static Location<'static>, accesses: &A, f: F) -> Result<(), PushError>
    where
        A: ScopedAccesses<Captured: 'scope>,
        F: for<'a> FnOnce(Refs<'a, A>) -> Result<(), BoxError> + Send + 'scope,
    {
        let (location, f) = (self.site(location), self.erase(accesses, f, |()| {}));
        if self.scope.scoped.runs_in_place() {
            return self.submit_erased(location, accesses, f).map(drop);
        }
        let f = unless_refused(f, self.check(location, accesses))?;
        let scope = self.scope;
        self.enqueue_in_group(location, ErasedJob::new(without_sink(f)), None, Some(&scope.scoped))
    }

    fn enqueue_returning<A, F, R>(
        mut self,
        location: &'static Location<'static>,
        accesses: &A,
        f: F,
    ) -> Result<ScopedHandle<'scope, R>, PushError>
    where
        A: ScopedAccesses<Captured: 'scope>,
        F: for<'a> FnOnce(Refs<'a, A>) -> Result<R, BoxError> + Send + 'scope,
        R: Send + 'scope,
    {
        let result = Arc::new(Mutex::new(None));
        let for_op = Arc::clone(&result);
        let f = self.erase(accesses, f, move |value| *lock(&for_op) = Some(value));
        let handle = self.submit_erased(self.site(location), accesses, f)?;
        Ok(ScopedHandle { handle, result, scope: PhantomData })
    }

    /// Returns the operation's function, which calls `f` and passes the value to `keep`.
    fn erase<A, F, R>(&self, accesses: &A, f: F, keep: impl FnOnce(R) + Send + 'scope) -> ScopeFunction<'static>
    where
        A: ScopedAccesses<Captured: 'scope>,
        F: for<'a> FnOnce(Refs<'a, A>) -> Result<R, BoxError> + Send + 'scope,
    {
        const { assert!(A::KIND.is(Kind::Function), "an operation of a scope has neither a stream nor a completion") }
        let captured = accesses.capture();
        let f = move |call: &Call<'_>| {
            let cx = OpContext::new(call);
            // SAFETY: (1): `captured` came from `accesses`, which the operation declares, so it holds their variables
            // during this call. (2): the push refuses aliases, and the operation runs once.
            match f(unsafe { A::refs(&captured, &cx) }) {
                Ok(value) => keep(value),
                Err(error) => return Err(Cause::Error(error)),
            }
            Ok(())
        };
        // SAFETY: the types differ only in the lifetime. The function is dropped before the operation ends, and
        // `Engine::scope` returns only after that.
        unsafe { mem::transmute::<ScopeFunction<'scope>, ScopeFunction<'static>>(Box::new(f)) }
    }

    fn submit_erased(
        &mut self,
        location: &'static Location<'static>,
        accesses: &impl ScopedAccesses,
        f: ScopeFunction<'static>,
    ) -> Result<OpHandle<()>, PushError> {
        let f = unless_refused(f, self.check(location, accesses))?;
        let shared = job::shared(&self.owned.spec, location, job::returning(f));
        let (core, scope) = (self.core, self.scope);
        let job = ErasedJob::new(HandleJob::new(Arc::clone(&shared)));
        let pushed = self.enqueue_in_group(location, job, None, Some(&scope.scoped));
        let shared: Arc<Handled<()>> = unless_refused(shared, pushed)?;
        scope.scoped.add_member(&shared);
        Ok(OpHandle::new(shared, core))
    }

    /// Completes the description. Returns an error if an operation around the scope holds one of the variables.
    fn check(&mut self, location: &'static Location<'static>, accesses: &impl ScopedAccesses) -> Result<(), PushError> {
        self.finish(accesses, 0)?;
        // SAFETY: the caller has a handle to each of the variables.
        let mut cells = self.owned.entries.iter().map(|entry| unsafe { entry.cell.as_ref() });
        let Some(cell) = cells.find(|cell| self.scope.scoped.is_held_around(cell)) else { return Ok(()) };
        Err(PushError::Variable(NoAccess::HeldAroundScope, cell.refused_access(&self.owned.spec.name, location)))
    }
}

/// A handle to an operation in a scope, returned by `submit` and `try_submit` on its [builder](Scope::op). It works
/// like an [`OpHandle`], but its result may borrow, and it is not a future.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = raddle::Engine::builder().build()?;
/// let text = String::from("the warp and the weft");
/// let longest = engine.try_scope(|s| {
///     let (left, right) = text.split_at(12);
///     let longest = |text| move |()| str::split_whitespace(text).max_by_key(|word| word.len());
///     let (left, right) = (s.op("left").submit((), longest(left))?, s.op("right").submit((), longest(right))?);
///     Ok(left.wait()?.max(right.wait()?))
/// })?;
/// assert_eq!(longest, Some("weft"));
/// # Ok(())
/// # }
/// ```
#[must_use = "the operation runs anyway; use `push` if its result is not wanted"]
pub struct ScopedHandle<'scope, R> {
    handle: OpHandle<()>,
    /// The result, which is set before the operation ends.
    result: Arc<Mutex<Option<R>>>,
    scope: PhantomData<&'scope ()>,
}

impl<R> fmt::Debug for ScopedHandle<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopedHandle").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}

/// Takes the result of a completed operation.
fn take<R>(result: &Mutex<Option<R>>) -> Result<R, WaitError> {
    match lock(result).take() {
        Some(value) => Ok(value),
        None => Err(WaitError::ValueTaken),
    }
}

impl<R> ScopedHandle<'_, R> {
    /// Returns whether the operation is complete; see [`OpHandle::is_done`].
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.handle.is_done()
    }

    /// Waits for the operation and takes its result; see [`OpHandle::wait`].
    ///
    /// # Errors
    /// Returns the errors of [`OpHandle::wait`].
    pub fn wait(self) -> Result<R, WaitError> {
        self.handle.wait()?;
        take(&self.result)
    }

    /// Like [`wait`](Self::wait), but waits for at most `timeout`; see [`OpHandle::wait_timeout`].
    ///
    /// # Errors
    /// Returns the errors of [`OpHandle::wait_timeout`].
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<R, WaitError> {
        self.handle.wait_timeout(timeout)?;
        take(&self.result)
    }

    /// Cancels the operation if it has not started. Returns whether this call cancelled it; see [`OpHandle::cancel`].
    pub fn cancel(&self) -> bool {
        self.handle.cancel()
    }

    /// Cancels the operation if it has not started, without failing its variables; see [`OpHandle::cancel_quietly`].
    pub fn cancel_quietly(&self) -> bool {
        self.handle.cancel_quietly()
    }
}
