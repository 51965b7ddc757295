//! The context passed to a running operation.

use std::{any::Any, fmt};

use super::{cancelled::Cancelled, engine::WeakEngine, token::Token, var::Var};
use crate::{
    context::worker_thread,
    error::push_error::PushError,
    group::family::Family,
    notify::stop_signal::Signals,
    observe::record,
    op::frame::{Call, Frame},
    trace::ObservedAccess,
    values::device::Device,
};

/// The context of a running operation: its name, device, worker and engine.
///
/// An operation's function receives the context if the operation declares [`cx()`](crate::cx) among its accesses.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::cx;
///
/// let engine = raddle::Engine::builder().workers(1).build()?;
/// let name = engine.op("spin").submit(cx(), |cx| cx.name().to_owned())?;
/// assert_eq!(name.wait()?, "spin");
/// # Ok(())
/// # }
/// ```
pub struct OpContext<'a> {
    frame: &'a Frame,
    /// What else the function receives through its accesses: a stream or a completion.
    extra: Option<&'a dyn Any>,
}

impl fmt::Debug for OpContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpContext")
            .field("name", &self.name())
            .field("device", &self.device())
            .field("worker", &self.worker())
            .finish_non_exhaustive()
    }
}

impl<'a> OpContext<'a> {
    #[inline]
    pub(crate) fn new(call: &Call<'a>) -> Self {
        Self { frame: call.frame(), extra: None }
    }

    /// Creates the context of a call whose function also receives what is in `extra`.
    pub(super) fn with<'c: 'a>(call: &Call<'c>, extra: &'a dyn Any) -> Self {
        Self { frame: call.frame(), extra: Some(extra) }
    }

    /// Returns what else the function receives.
    pub(super) fn extra<T: 'static>(&self) -> Option<&'a T> {
        self.extra?.downcast_ref()
    }

    pub(super) fn frame(&self) -> &'a Frame {
        self.frame
    }

    /// Returns the operation's name, or an empty string if it has none.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let name = engine.op("load").submit(raddle::cx(), |cx| cx.name().len())?;
    /// assert_eq!(name.wait()?, 4);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        self.frame.op().map_or("", |op| op.task().name().as_str())
    }

    /// Returns the device on which the operation runs.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let device = engine.op("where").submit(raddle::cx(), |cx| cx.device())?;
    /// assert_eq!(device.wait()?, raddle::Device::Cpu);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn device(&self) -> Device {
        self.frame.op().map_or(Device::Cpu, |op| self.frame.engine().gpus().device_of(op.task().lane))
    }

    /// Returns the worker's index in its lane, or `None` if the operation is not running on a worker but, for instance,
    /// on the pushing thread.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use raddle::EngineKind;
    /// let engine = raddle::Engine::builder().kind(EngineKind::PerDevice).workers(1).build()?;
    /// let worker = engine.op("where").submit(raddle::cx(), |cx| cx.worker())?;
    /// assert_eq!(worker.wait()?, Some(0));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn worker(&self) -> Option<usize> {
        worker_thread::worker_index()
    }

    /// Returns the operation's accesses with their [places](ObservedAccess::place) in the one order of pushes. The list
    /// is empty if the engine has no [log](crate::EngineBuilder::log).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{Engine, cx, replay::Log};
    ///
    /// let engine = Engine::builder().workers(1).log(&Log::new()).build()?;
    /// let total = engine.var(0);
    /// let add = || engine.op("add").submit((cx(), total.write()), |(cx, _)| cx.places()[0].place);
    /// assert_eq!((add()?.wait()?, add()?.wait()?), (Some(0), Some(1)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn places(&self) -> Vec<ObservedAccess> {
        self.frame.op().map_or_else(Vec::new, |op| record::places_of(self.frame.engine(), op))
    }

    /// Returns whether the operation should stop, because it was cancelled through its handle after it had started, its
    /// group was cancelled, its deadline has passed, or a shutdown is cancelling operations. A quiet cancellation
    /// counts too. A long-running function may check this periodically and return early, with or without an error.
    /// Always returns `false` in a [clean-up](crate::OpBuilder::cleanup).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::cx;
    ///
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let (sender, receiver) = std::sync::mpsc::channel();
    /// let search = engine.op("search").try_submit(cx(), move |cx| {
    ///     sender.send(())?;
    ///     while !cx.is_cancelled() {
    ///         std::hint::spin_loop(); // the next step of the search
    ///     }
    ///     Err::<(), _>("given up".into())
    /// })?;
    /// receiver.recv()?;
    /// assert!(!search.cancel(), "the search runs");
    /// assert!(search.wait().unwrap_err().to_string().ends_with("given up"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.frame.stopped_by().is_some()
    }

    /// Returns a future that resolves when the operation is cancelled, which is when
    /// [`is_cancelled`](Self::is_cancelled) becomes `true`. An operation that ends with its
    /// [completion](crate::completion()) can pass the future to the task that uses the completion. A function that
    /// blocks can have a function [called](Cancelled::call) instead.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{completion, cx};
    ///
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let (sender, receiver) = std::sync::mpsc::channel();
    /// let answer = engine.op("answer").submit((cx(), completion()), move |(cx, done)| {
    ///     sender.send((cx.cancelled(), done)).expect("the other thread receives it");
    /// })?;
    /// let (cancelled, done) = receiver.recv()?;
    /// assert!(!answer.cancel(), "the operation has started");
    /// pollster::block_on(cancelled);
    /// done.fail("given up");
    /// assert!(answer.wait().is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn cancelled(&self) -> Cancelled {
        let is_live = self.frame.engine().live().is_ok();
        Cancelled::new(if is_live { self.frame.stop_signals() } else { Signals::default() })
    }

    /// Returns a handle to the engine. The handle can push and wait but does not [keep the engine open](WeakEngine).
    ///
    /// Operations pushed through this handle are not lost: when the program drops its last handle, the drop also waits
    /// for them. A captured clone of an [`Engine`](crate::Engine) would instead keep the engine open, so the drop in
    /// `main` would not wait.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::cx;
    ///
    /// let engine = raddle::Engine::builder().workers(1).build()?;
    /// let total = engine.var(0);
    /// let inner = total.clone();
    /// engine.op("first").push((cx(), total.write()), move |(cx, total)| {
    ///     *total += 1;
    ///     cx.engine().op("next").push(inner.write(), |total| *total += 1).expect("operations may push");
    /// })?;
    /// engine.wait_for_var(&total)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn engine(&self) -> WeakEngine {
        WeakEngine::new(self.frame.engine())
    }
}

/// Variables for children.
impl OpContext<'_> {
    /// Creates a variable for the children of this operation. This operation must have been pushed
    /// [`with_children`](crate::OpBuilder::with_children). Only these children can name the variable, along with the
    /// children of any child that names it.
    ///
    /// The value is dropped after the last child that names the variable has completed, and before a wait for the
    /// operation returns, even if the program still has handles to the variable. If a child that mutates the variable
    /// fails, so does the operation, unless a later child successfully [overwrites](Var::overwrite) the variable. If
    /// the operation's function fails, the variable fails too.
    ///
    /// All other uses of the variable, such as waits for it, are refused with
    /// [`NoAccess::OfFamily`](crate::error::NoAccess::OfFamily).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// use raddle::cx;
    ///
    /// let (text, longest) = (engine.var("the warp and the weft".to_owned()), engine.var(String::new()));
    /// let (t, l) = (text.clone(), longest.clone());
    /// engine.op("find").with_children().try_push((cx(), text.read(), longest.write()), move |(cx, ..)| {
    ///     let words = cx.child_var(Vec::new())?; // invisible outside this operation
    ///     cx.child("split").push((t.read(), words.write()), |(text, words)| {
    ///         words.extend(text.split(' ').map(str::to_owned));
    ///     })?;
    ///     cx.child("choose").push((words.read(), l.write()), |(words, longest)| {
    ///         *longest = words.iter().rev().max_by_key(|word| word.len()).cloned().unwrap_or_default();
    ///     })?;
    ///     Ok(())
    /// })?;
    /// assert_eq!(engine.get(&longest)?, "warp");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`Misfit::NotAParent`](crate::error::Misfit::NotAParent) if this operation was pushed without
    /// `with_children`, and [`PushError::Forked`] in a forked child.
    pub fn child_var<T: Send + 'static>(&self, value: T) -> Result<Var<T>, PushError> {
        Token::of_family(Family::of(self.frame), value).map(Var::new)
    }

    /// Creates a variable without a value for this operation's children; see [`child_var`](Self::child_var).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// use raddle::cx;
    ///
    /// engine.op("convert").with_children().try_push(cx(), |cx| {
    ///     let file = cx.child_token()?;
    ///     cx.child("write").writes([&file]).push((), |()| println!("written"))?;
    ///     cx.child("check").reads([&file]).push((), |()| println!("checked"))?;
    ///     Ok(())
    /// })?;
    /// # engine.wait_for_all()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`child_var`](Self::child_var).
    pub fn child_token(&self) -> Result<Token, PushError> {
        Token::of_family(Family::of(self.frame), ())
    }
}
