//! The handle that completes an asynchronous operation.

use std::{
    cell::{Cell, OnceCell},
    ffi::c_void,
    fmt, mem,
    panic::resume_unwind,
    ptr::NonNull,
    sync::Arc,
};

use super::{
    accesses::{AccessRefs, Refs, ScopedAccesses, sealed},
    op_context::OpContext,
};
use crate::{
    engine::core::Core,
    error::{BoxError, deadlock::Pushed, op::Cause},
    notify::async_state::AsyncState,
    op::{
        frame::{self, Call, DeclaredAs, Frame},
        task::{Task, flag},
    },
    sync::{
        Mutex,
        edge::{removed, step},
        lock,
    },
    system::panics,
    tracker::{OpRef, VarQueue},
};

/// A handle that completes an asynchronous operation from any thread. If the operation's function has references to
/// values, the operation is complete only once the function has also returned.
///
/// Dropping a completion unused fails its operation with [`Cause::LostCompletion`]: a completion dropped by mistake
/// causes an error, not a hang. This also applies if a function without references to values returns an error early,
/// dropping its completion; [`Engine::wait_for_all`](crate::Engine::wait_for_all) then also reports the function's
/// error. Such a function should pass the error to [`fail`](Self::fail) instead. If a panic in the function drops the
/// completion, the operation fails with the panic. If a completion is leaked, for example by [`std::mem::forget`], its
/// operation never completes, and the operations behind it wait forever.
///
/// Everything that a thread writes before using the completion is visible to the operations that depend on the
/// completed operation.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = raddle::Engine::builder().workers(1).build()?;
/// let disk = engine.token();
/// engine.op("read").writes([&disk]).push(raddle::completion(), |done| {
///     std::thread::spawn(move || match std::fs::read("no such file") {
///         Ok(_) => done.complete(),
///         Err(error) => done.fail(error),
///     });
/// })?;
/// assert!(engine.wait_for_var(&disk).is_err());
/// # Ok(())
/// # }
/// ```
#[must_use = "a completion dropped unused fails its operation"]
pub struct Completion {
    /// The right to end the operation, and the operation's engine, until the completion is used.
    of: Option<(OpRef<Task>, Arc<Core>)>,
    /// Set if the operation's function has references to values, which must not outlive the operation.
    gate: Option<Arc<Gate>>,
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.of.as_ref().map(|(right, _)| right.task().name());
        f.debug_struct("Completion").field("name", &name).finish_non_exhaustive()
    }
}

impl Completion {
    /// Returns the operation's name and push location, and how it declares the variable whose queue is `queue`.
    pub(super) fn declared(&self, queue: NonNull<VarQueue<Task>>) -> (Option<Pushed>, DeclaredAs) {
        let Some((right, _)) = &self.of else { return (None, DeclaredAs::No) };
        let task = right.task();
        (Some((task.name().clone(), task.location())), frame::declared_by(right, queue))
    }

    /// Ends the operation successfully, unless its function fails; see [`completion()`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let disk = engine.token();
    /// engine.op("flush").writes([&disk]).push(raddle::completion(), |done| {
    ///     std::thread::spawn(move || done.complete());
    /// })?;
    /// engine.wait_for_var(&disk)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn complete(self) {
        self.end(Ok(()));
    }

    /// Ends the operation with an error. Every variable that the operation mutates fails.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let disk = engine.token();
    /// engine.op("flush").writes([&disk]).push(raddle::completion(), |done| done.fail("the disk is full"))?;
    /// let error = engine.wait_for_var(&disk).unwrap_err();
    /// assert!(error.to_string().ends_with("the disk is full"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn fail(self, error: impl Into<BoxError>) {
        self.end(Err(Cause::Error(error.into())));
    }

    fn end(mut self, result: Result<(), Cause>) {
        if let Some((right, core)) = self.of.take() {
            resolve(self.gate.take(), right, core, result);
        }
    }
}

impl Completion {
    /// Converts the completion into three words, which own it until [`from_raw`](Self::from_raw) restores it: for
    /// memory of C. If they are lost, the operation never completes.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// use raddle::{Completion, completion};
    ///
    /// extern "C" fn finished(words: *mut std::ffi::c_void) {
    ///     // SAFETY: the pointer came from a box, and the words from `into_raw`. Each is used once.
    ///     let words = unsafe { *Box::from_raw(words.cast()) };
    ///     // SAFETY: as above.
    ///     unsafe { Completion::from_raw(words) }.complete();
    /// }
    ///
    /// engine.op("receive").push(completion(), |done| {
    ///     let words = Box::into_raw(Box::new(done.into_raw()));
    ///     finished(words.cast()); // as a library of C would, on a thread of its own
    /// })?;
    /// engine.wait_for_all()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "the operation never completes if the words are lost"]
    pub fn into_raw(self) -> [*mut c_void; 3] {
        // SAFETY: a completion consists of three pointers. `of` is `Some` until the completion is used, so its two are
        // initialised, and `gate` is null if there is none.
        unsafe { mem::transmute(self) }
    }

    /// Restores a completion from its words.
    ///
    /// # Safety
    /// 1. The words came from [`into_raw`](Self::into_raw), and this is called once with them.
    pub unsafe fn from_raw(words: [*mut c_void; 3]) -> Self {
        // SAFETY: (1): these are the bytes of a completion.
        unsafe { mem::transmute(words) }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        let Some((right, core)) = self.of.take() else { return };
        if removed(step::DROP_COMPLETES) {
            return;
        }
        if let Some(gate) = self.gate.take() {
            // The right is not put back into the frame; otherwise, a wait inside the function could complete the
            // operation while the function still has its references. With a gate, a panic in the function replaces this
            // cause.
            resolve(Some(gate), right, core, Err(Cause::LostCompletion));
        } else if let Some(right) = frame::leave_lost(right) {
            // If a panic in the operation's own function drops the completion, the panic is the failure.
            resolve(None, right, core, Err(Cause::LostCompletion));
        }
    }
}

/// Ends an operation whose completion was used: now or, if its function still has references to values, when the
/// function returns.
fn resolve(gate: Option<Arc<Gate>>, right: OpRef<Task>, core: Arc<Core>, result: Result<(), Cause>) {
    if core.is_forked() {
        // Another thread of the parent process may have held the gate's lock at the fork.
        return mem::forget((gate, right, core, result));
    }
    let used = Used { right, core, result };
    let passed = match gate {
        Some(gate) => gate.pass(used),
        None => Some(used),
    };
    if let Some(Used { right, core, result }) = passed {
        core.resolve(right, result);
    }
}

/// A used completion: the right to end the operation, and the result.
struct Used {
    right: OpRef<Task>,
    core: Arc<Core>,
    result: Result<(), Cause>,
}

/// A gate that keeps an operation from ending while its function, which has references to values, is running.
#[derive(Default)]
struct Gate(Mutex<Phase>);

#[derive(Default)]
enum Phase {
    /// The function is running, and the completion has not been used.
    #[default]
    Running,
    /// The function is running, and the completion has been used.
    Used(Used),
    /// The function has returned.
    Returned,
}

impl Gate {
    /// Returns `used` if the operation may end now; otherwise, keeps it until the function has returned.
    fn pass(&self, used: Used) -> Option<Used> {
        let mut phase = lock(&self.0);
        match *phase {
            Phase::Returned => Some(used),
            _ => {
                *phase = Phase::Used(used);
                None
            }
        }
    }

    /// Marks the function as returned. Returns the used completion, if there is one.
    fn open(&self) -> Option<Used> {
        match mem::replace(&mut *lock(&self.0), Phase::Returned) {
            Phase::Used(used) => Some(used),
            _ => None,
        }
    }
}

/// The end of an operation whose function is being called.
pub(super) struct Later {
    /// The right to end the operation, until a completion takes it.
    right: Cell<Option<OpRef<Task>>>,
    /// Whether the operation must not end before its function has returned.
    is_gated: bool,
    gate: OnceCell<Arc<Gate>>,
}

impl OpContext<'_> {
    /// Returns the end of the operation, which is asynchronous.
    pub(super) fn later(&self) -> &Later {
        let Some(later) = self.extra() else { unreachable!("asynchronous operations are called with it") };
        later
    }
}

impl Later {
    /// Returns the completion for the operation that runs in `frame`, of which there is one.
    pub(super) fn completion(&self, frame: &Frame) -> Completion {
        let Some(right) = self.right.take() else { unreachable!("an operation has one completion") };
        let gate = self.is_gated.then(|| Arc::clone(self.gate.get_or_init(Arc::default)));
        Completion { of: Some((right, Arc::clone(frame.engine()))), gate }
    }
}

/// Calls `f`, the function of an asynchronous operation with the accesses `A`. If it takes no completion, the operation
/// ends when it has returned. If it `returns` a value, or has references to values, the operation does not end before.
///
/// # Safety
/// 1. `captured` came from `A::capture`, the operation of `call` declares the accesses of that `A`, and this is called
///    at most once in each run.
/// 2. No variable is named twice where one of the references is exclusive.
pub(crate) unsafe fn call_async<A: ScopedAccesses>(
    call: &Call<'_>,
    captured: &A::Captured,
    returns: bool,
    f: impl for<'a> FnOnce(Refs<'a, A>) -> Result<(), Cause>,
) -> Result<(), Cause> {
    let Some(right) = call.take_right() else { return Ok(()) };
    let later = Later { right: Cell::new(Some(right)), is_gated: A::REFERS || returns, gate: OnceCell::new() };
    let cx = OpContext::with(call, &later);
    // SAFETY: (1) and (2). The operation holds its variables until its end, and the gate keeps a completion from ending
    // it until `f` has returned.
    let result = panics::catch(|| f(unsafe { A::refs(captured, &cx) }));
    if call.core().is_forked() {
        // The parent process completes the operation, and another of its threads may have held the gate's lock at the
        // fork.
        mem::forget((later, result));
        return Ok(());
    }
    let Later { right, gate, .. } = later;
    let ended = match (right.into_inner(), gate.into_inner()) {
        (Some(right), _) => Some((right, Ok(()))),
        (None, gate) => gate.and_then(|gate| gate.open()).map(|Used { right, result, .. }| (right, result)),
    };
    let Some((right, used)) = ended else {
        return result.unwrap_or_else(|payload| resume_unwind(payload));
    };
    if let Ok(Ok(())) = result {
        if right.task().has(flag::PARENT) {
            call.core().resolve(right, used);
            return Ok(());
        }
        // The operation ends outside its frame, like one that is not asynchronous.
        let _ = right.task().async_state().filter(|_| used.is_ok()).map(AsyncState::resolve);
        call.return_right(right);
        return used;
    }
    // The operation fails with its function's failure. A failure reported through the completion is recorded too.
    if let Some(cause) = used.err().filter(|cause| !matches!(cause, Cause::LostCompletion)) {
        call.core().record_failure(&right.task().failed_by(cause));
    }
    call.return_right(right);
    result.unwrap_or_else(|payload| resume_unwind(payload))
}

/// A declaration, returned by [`completion`], that an operation ends when its [`Completion`] is used.
#[derive(Clone, Copy, Debug)]
#[must_use = "a declaration does nothing unless it is passed to an operation"]
pub struct Completes(());

/// Declares that an operation is asynchronous: its function, which only starts it, receives an owned [`Completion`] at
/// the position of this declaration among the accesses. The operation is complete when the completion is used, on any
/// thread. Until then, it holds its variables.
///
/// If the function receives references to values or returns a value to a handle, the operation also waits for the
/// function to return. If the function panics or fails, the operation fails with that, once its completion has been
/// used or dropped. If the completion was used before, and the function has neither references nor a value to return,
/// the operation has already ended, and [`Engine::wait_for_all`](crate::Engine::wait_for_all) reports the failure.
///
/// An operation declares at most one completion, and not a [`stream()`](crate::stream) besides. Futures, scopes and
/// [`acquire`](crate::Engine::acquire) do not accept this declaration; such a program does not compile.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::completion;
///
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// let (disk, requests) = (engine.token(), engine.var(0));
/// engine.op("read").writes([&disk]).push((requests.write(), completion()), |(requests, done)| {
///     *requests += 1;
///     std::thread::spawn(move || done.complete());
/// })?;
/// engine.wait_for_var(&disk)?;
/// # Ok(())
/// # }
/// ```
pub fn completion() -> Completes {
    Completes(())
}

impl sealed::Sealed for Completes {}
impl<'a> AccessRefs<'a, &'a Self> for Completes {
    type Refs = Completion;
}
impl ScopedAccesses for Completes {
    type Guards = ();
    type Captured = ();
    const REFERS: bool = false;
    const KIND: sealed::Kind = sealed::Kind::Completion;
    const COUNT: Option<usize> = Some(0);

    fn declare(&self, _: &mut sealed::List<'_>) {}

    fn capture(&self) {}

    unsafe fn refs<'a>((): &(), cx: &'a OpContext<'a>) -> Completion
    where
        Self: 'a,
    {
        cx.later().completion(cx.frame())
    }

    unsafe fn guards((): &(), _: &sealed::Share) {}
}
