//! An operation's failure, shared by everything that it affects.

use std::{
    cell::RefCell,
    error::Error,
    fmt::{self, Write},
    mem::ManuallyDrop,
    panic::Location,
    ptr,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use super::{
    BoxError,
    device_error::DeviceError,
    failures::{FailurePlace, Failures},
    wait::WaitError,
};
use raddle_trace::recording::Plain;

use crate::{
    system::panics::{self, Payload},
    values::Name,
};

/// Why an operation failed.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// use raddle::{WaitError, error::Cause};
///
/// let handle = engine.op("decode").submit((), |()| -> u8 { panic!("bad header") })?;
/// let Err(WaitError::Failed(error)) = handle.wait() else { panic!("the operation should fail") };
/// assert!(matches!(error.cause(), Cause::Panic(Some(message)) if message == "bad header"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Cause {
    /// The operation's function panicked. Holds the message, if the payload was a string.
    Panic(Option<String>),
    /// The operation's function, or its [`Completion`](crate::Completion), reported an error.
    Error(BoxError),
    /// The operation's [`Completion`](crate::Completion) was dropped unused.
    LostCompletion,
    /// The operation is a future whose last waker was dropped, so nothing could wake it again.
    LostFuture,
    /// The operation was cancelled before it started, through its [handle](crate::OpHandle::cancel) or
    /// [group](crate::Group::cancel), or by a shutdown with [`Shutdown::Cancel`](crate::Shutdown::Cancel). A future may
    /// also have been cancelled after its start.
    Cancelled,
    /// The operation had not started when its [deadline](crate::OpBuilder::deadline) passed; or it is a future that had
    /// not ended by then.
    DeadlinePassed,
    /// The operation's device failed before or during the operation, or the function of a device operation returned a
    /// device error.
    Device(DeviceError),
}

impl Cause {
    /// Converts a device error returned by the function of a device operation into [`Cause::Device`](Self::Device).
    /// Returns any other cause unchanged.
    pub(crate) fn of_device(self) -> Self {
        match self {
            Self::Error(error) => DeviceError::found_in(error).map_or_else(Self::Error, Self::Device),
            cause => cause,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panic(Some(message)) => write!(f, "it panicked: {message}"),
            Self::Panic(None) => f.write_str("it panicked with a payload that is not a string"),
            Self::Error(error) => write!(f, "{error}"),
            Self::LostCompletion => f.write_str("its completion was dropped unused"),
            Self::LostFuture => f.write_str("nothing can wake its future any more: the last waker was dropped"),
            Self::Cancelled => f.write_str("it was cancelled"),
            Self::DeadlinePassed => f.write_str("its deadline passed"),
            Self::Device(error) => write!(f, "{error}"),
        }
    }
}

#[derive(Debug)]
enum Failure {
    Own(OwnFailure),
    /// An operation was skipped because of another one's own failure.
    Skipped {
        name: Name,
        location: &'static Location<'static>,
        of: OpError,
    },
}

#[derive(Debug)]
struct OwnFailure {
    name: Name,
    location: &'static Location<'static>,
    /// Taken by `drop` below.
    cause: ManuallyDrop<Cause>,
    /// The payload of a panic, if it is not a string: one of the program's values, dropped with the failure. The mutex
    /// is needed since the payload need not be `Sync`.
    payload: ManuallyDrop<Mutex<Option<Payload>>>,
    sequence: u64,
    /// Whether the failure need not be reported any more: it has been returned to the program, the program has cleared
    /// or overwritten it, or its operation's result is ignored. Set under the lock of the `Failures` to which the
    /// failure was added.
    known: AtomicBool,
    /// Whether the program has cleared the failure on all variables.
    cleared: AtomicBool,
    /// The place where the failure is kept or counted until it is known.
    added: OnceLock<(Weak<Failures>, FailurePlace)>,
}

thread_local! {
    /// What the drop of a failure that is running on this thread has yet to drop, if there is one.
    static LEFT: RefCell<Option<Vec<FailureRemains>>> = const { RefCell::new(None) };
}

/// The cause and the payload of a failure that was dropped.
type FailureRemains = (Cause, Option<Payload>);

impl Drop for OwnFailure {
    fn drop(&mut self) {
        // SAFETY: only this drop uses the field, once.
        let cause = unsafe { ManuallyDrop::take(&mut self.cause) };
        // SAFETY: only this drop uses the field, once.
        let payload = unsafe { ManuallyDrop::take(&mut self.payload) };
        let mut next = Some((cause, payload.into_inner().unwrap_or_else(PoisonError::into_inner)));
        // A cause or payload may hold the last clone of another failure, which may do so too, in a chain that is too
        // long for the stack. So inner drops on a thread leave theirs to the outermost one.
        let leaves = |left: &RefCell<Option<Vec<FailureRemains>>>| {
            let mut left = left.borrow_mut();
            match &mut *left {
                Some(left) => left.extend(next.take()),
                none => *none = Some(Vec::new()),
            }
        };
        // On a thread that is ending, inner drops drop theirs themselves.
        let is_listed = LEFT.try_with(leaves).is_ok();
        if next.is_none() {
            return;
        }
        while let Some((cause, payload)) = next {
            // This runs program code, and the last clone may be dropped anywhere in the engine. So panics are caught.
            if let Err(payload) = panics::catch(|| drop(cause)) {
                panics::log!(Error, "raddle: the drop of an operation's error panicked");
                panics::discard(payload);
            }
            payload.into_iter().for_each(panics::discard);
            next = LEFT.try_with(|left| left.borrow_mut().as_mut().and_then(Vec::pop)).ok().flatten();
        }
        if is_listed {
            let _ = LEFT.try_with(|left| left.take());
        }
    }
}

/// The failure of an operation. Clones are cheap: a single failure is shared by the variables that failed with it, the
/// operations skipped because of it, and every waiter.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// let frame = engine.var(0);
/// engine.op("decode").try_push(frame.write(), |_| Err("bad header".into()))?;
/// engine.op("draw").push(frame.read(), |_| unreachable!("`draw` is skipped"))?;
/// let error = engine.wait_for_var(&frame).unwrap_err().to_string();
/// assert!(error.starts_with("operation `decode` pushed at ") && error.ends_with(" failed: bad header"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct OpError(Arc<Failure>);

impl OpError {
    pub(crate) fn new(
        name: &Name,
        location: &'static Location<'static>,
        cause: Cause,
        payload: Option<Payload>,
    ) -> Self {
        static SEQUENCE: AtomicU64 = AtomicU64::new(0);
        Self(Arc::new(Failure::Own(OwnFailure {
            name: name.clone(),
            location,
            cause: ManuallyDrop::new(cause),
            payload: ManuallyDrop::new(Mutex::new(payload)),
            // Relaxed: the numbers need only be distinct and in an order consistent with what each thread observes.
            sequence: SEQUENCE.fetch_add(1, Relaxed),
            known: AtomicBool::new(false),
            cleared: AtomicBool::new(false),
            added: OnceLock::new(),
        })))
    }

    /// Creates the error of an operation that is skipped because of `of`.
    pub(crate) fn skipped(name: &Name, location: &'static Location<'static>, of: &Self) -> Self {
        Self(Arc::new(Failure::Skipped { name: name.clone(), location, of: of.failed().clone() }))
    }

    /// Returns the failure because of which the operation was skipped or, if it was not skipped, this failure.
    pub(crate) fn failed(&self) -> &Self {
        match &*self.0 {
            Failure::Own(_) => self,
            Failure::Skipped { of, .. } => of,
        }
    }

    fn own(&self) -> &OwnFailure {
        match &*self.0 {
            Failure::Own(own) => own,
            Failure::Skipped { of, .. } => of.own(),
        }
    }

    /// Returns the failed operation's name, or an empty string if it has none. If the error is that of a
    /// [skipped](Self::is_skipped) operation, the failed operation is the one because of which it was skipped.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// use raddle::WaitError;
    ///
    /// let decoded = engine.op("decode").try_submit((), |()| -> Result<u8, _> { Err("bad header".into()) })?;
    /// let Err(WaitError::Failed(error)) = decoded.wait() else { panic!("the operation should fail") };
    /// assert_eq!(error.name(), "decode");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        self.own().name.as_str()
    }

    /// Returns the source location of the failed operation's push.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// use raddle::WaitError;
    ///
    /// let decoded = engine.op("decode").try_submit((), |()| -> Result<u8, _> { Err("bad header".into()) })?;
    /// let Err(WaitError::Failed(error)) = decoded.wait() else { panic!("the operation should fail") };
    /// assert_eq!(error.location().file(), file!());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn location(&self) -> &'static Location<'static> {
        self.own().location
    }

    /// Returns why the failed operation failed.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// use raddle::{WaitError, error::Cause};
    ///
    /// let decoded = engine.op("decode").try_submit((), |()| -> Result<u8, _> { Err("bad header".into()) })?;
    /// let Err(WaitError::Failed(error)) = decoded.wait() else { panic!("the operation should fail") };
    /// assert!(matches!(error.cause(), Cause::Error(_)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn cause(&self) -> &Cause {
        &self.own().cause
    }

    /// Returns whether this is the error of an operation that was skipped because another one had failed. Handles of
    /// skipped operations, their groups, and [acquisitions](crate::Engine::acquire) return such errors. The message
    /// names both operations; the other methods are about the one that failed. The error of an operation that was
    /// itself cancelled is not such an error, nor is one with which a variable has failed.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::WaitError;
    ///
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let frame = engine.var(0);
    /// engine.op("decode").try_push(frame.write(), |_| Err("bad header".into()))?;
    /// let drawn = engine.op("draw").submit(frame.read(), |_| unreachable!("`draw` is skipped"))?;
    /// # let _: &raddle::OpHandle<()> = &drawn;
    /// let Err(WaitError::Failed(error)) = drawn.wait() else { panic!("`draw` is skipped") };
    /// assert!(error.is_skipped() && error.name() == "decode");
    /// println!("{error}"); // operation `draw` pushed at … was skipped: operation `decode` pushed at … failed: bad header
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_skipped(&self) -> bool {
        matches!(&*self.0, Failure::Skipped { .. })
    }

    /// Returns the root of this failure. If the operation's function returned another operation's failure, for instance
    /// through `?` after a wait, this is the root of that other failure. If the operation was
    /// [skipped](Self::is_skipped), it is the root of the failure because of which it was skipped. Otherwise, it is
    /// this failure itself.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{WaitError, cx};
    ///
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let sum = engine.op("sum").try_submit(cx(), |cx| {
    ///     let part = cx.engine().op("parse").try_submit((), |()| Ok("12x".parse::<i32>()?))?;
    ///     Ok(part.wait()? + 1)
    /// })?;
    /// let Err(WaitError::Failed(error)) = sum.wait() else { panic!("the operation should fail") };
    /// assert_eq!((error.name(), error.root().name()), ("sum", "parse"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn root(&self) -> &Self {
        let mut root = self.failed();
        while let Some(cause) = root.failure_of_another() {
            root = cause.failed();
        }
        root
    }

    /// Returns another operation's failure, if this operation's function returned one.
    fn failure_of_another(&self) -> Option<&Self> {
        let Cause::Error(error) = self.cause() else { return None };
        match error.downcast_ref::<WaitError>() {
            Some(WaitError::Failed(failure)) => Some(failure),
            _ => error.downcast_ref::<Self>(),
        }
    }

    /// Returns whether `other` is the same failure, not merely an equal one. Operations skipped because of a failure
    /// share it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// use raddle::WaitError;
    ///
    /// let (left, right) = (engine.var(0), engine.var(0));
    /// engine.op("both").try_push((left.write(), right.write()), |_| Err("failed".into()))?;
    /// let (Err(WaitError::Failed(a)), Err(WaitError::Failed(b))) = (engine.get(&left), engine.get(&right)) else {
    ///     panic!("both have failed")
    /// };
    /// assert!(a.ptr_eq(&b));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn ptr_eq(&self, other: &Self) -> bool {
        ptr::eq(self.own(), other.own())
    }

    /// Clears this failure on all variables that it has reached or is yet to reach, and counts it as reported. Other
    /// failures stay, also those of functions that returned this one.
    ///
    /// The call is not ordered with pushes: an operation pushed later is not skipped because of this failure, whereas
    /// one pushed earlier may be. What was skipped does not run. Handles, groups and futures still return the failure.
    /// To clear one variable in push order, use [`Engine::clear_error`](crate::Engine::clear_error); a
    /// [log](crate::replay) contains only that.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let (image, mask) = (engine.var(0), engine.var(0));
    /// engine.op("load").try_push(image.write(), |_| Err("no such file".into()))?;
    /// engine.op("cut").push((image.read(), mask.write()), |(image, mask)| *mask = *image)?; // skipped
    /// assert!(engine.get(&mask).is_err());
    ///
    /// mask.failure().expect("`load` has failed").clear_everywhere();
    /// assert_eq!((engine.get(&image)?, engine.get(&mask)?), (0, 0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn clear_everywhere(&self) {
        // Relaxed: a push orders what the caller has done before the operation's start, which therefore sees this. All
        // others may see it or not.
        self.own().cleared.store(true, Relaxed);
        self.mark_reported();
    }

    /// Whether the failure was [cleared](Self::clear_everywhere).
    pub(crate) fn is_cleared(&self) -> bool {
        // Relaxed: see `clear_everywhere`.
        self.own().cleared.load(Relaxed)
    }

    /// Returns whether the operation was cancelled.
    pub(crate) fn is_cancellation(&self) -> bool {
        matches!(self.cause(), Cause::Cancelled)
    }

    /// Returns the failure's sequence number. Later failures have higher numbers.
    pub(crate) fn sequence(&self) -> u64 {
        self.own().sequence
    }

    /// Adds the failure to `failures`, where it stays until it is known. Must be called before the failure can reach
    /// the program.
    pub(crate) fn record(&self, failures: &Arc<Failures>) {
        // A failure is added only once, although it is shared by the operations skipped because of it. They find it on
        // a variable, where it is stored only after this call, so no thread waits for another here.
        self.own().added.get_or_init(|| (Arc::downgrade(failures), failures.add(self.failed())));
    }

    /// Marks the failure as known. Returns whether it was previously unknown. Called under the lock of the `Failures`
    /// to which it was added.
    pub(crate) fn note_known(&self) -> bool {
        // Relaxed: all writers hold the lock, which orders them; for the reader without the lock, see `mark_reported`.
        !self.own().known.swap(true, Relaxed)
    }

    /// Records that the program knows of the failure or ignores it, so that it is not reported again.
    pub(crate) fn mark_reported(&self) {
        // Relaxed: suppose that this thread reads the `true` written by another thread in `note_known`, under the lock
        // of `Failures`. If this thread takes that lock later, it does so after the other thread, whose write would
        // otherwise follow this read. This thread thus finds the failure neither kept nor counted, even if the other
        // thread still holds the lock now.
        if self.own().known.load(Relaxed) {
            return;
        }
        // A summary of several failures is never added to `Failures`.
        let Some((failures, place)) = self.own().added.get() else { return };
        if let Some(failures) = failures.upgrade() {
            failures.mark_reported(self.failed(), *place);
        }
    }
}

/// If the cause is another operation's failure, the [root](OpError::root) appears in place of the failures between,
/// which may be too many for the stack.
impl fmt::Debug for OpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let root = self.root();
        let mut fields = f.debug_struct("OpError");
        fields.field("name", &self.name()).field("location", &format_args!("{}", self.location()));
        if let Failure::Skipped { name, location, .. } = &*self.0 {
            fields.field("skipped", &name.as_str()).field("pushed_at", &format_args!("{location}"));
        }
        if self.ptr_eq(root) { fields.field("cause", self.cause()) } else { fields.field("root", root) }.finish()
    }
}

impl OpError {
    /// Returns the device loss that caused the failure, if any.
    pub(crate) fn loss(&self) -> Option<&DeviceError> {
        match self.cause() {
            Cause::Device(error) if error.is_lost() => Some(error),
            _ => None,
        }
    }
}

impl OpError {
    /// Returns the message of the cause. It is program code, whose failure must not hide which operation has failed.
    fn message(&self) -> String {
        let mut message = String::new();
        match panics::catch(|| write!(message, "{}", self.cause())) {
            Ok(Ok(())) => return message,
            Ok(Err(fmt::Error)) => {}
            Err(payload) => panics::discard(payload),
        }
        message + "(the message could not be formatted)"
    }
}

impl fmt::Display for OpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut error = self;
        loop {
            let (name, location, what) = match &*error.0 {
                Failure::Own(own) => (&own.name, own.location, "failed"),
                Failure::Skipped { name, location, .. } => (name, *location, "was skipped"),
            };
            if name.is_empty() {
                write!(f, "the operation pushed at {location} {what}: ")?;
            } else {
                write!(f, "operation `{}` pushed at {location} {what}: ", Plain(name.as_str()))?;
            }
            if error.is_skipped() {
                error = error.failed();
                continue;
            }
            // Not left to the cause's message, since the chain may be too long for the stack.
            match error.failure_of_another() {
                Some(failure) => error = failure,
                None => return f.write_str(&error.message()),
            }
        }
    }
}

/// The message names the operation and includes the cause, so `source` returns the cause's source: code that prints the
/// whole chain shows each error once. [`OpError::cause`] and [`OpError::downcast_ref`] return the cause itself.
impl Error for OpError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        // The same as the cause's source, which would be found by recursion along the chain of failures.
        self.root().error().and_then(Error::source)
    }
}

impl OpError {
    /// Returns the underlying error, if any.
    fn error(&self) -> Option<&(dyn Error + 'static)> {
        match self.cause() {
            Cause::Error(error) => Some(&**error),
            Cause::Device(error) => Some(error),
            _ => None,
        }
    }

    /// Returns the error reported by the operation's function or [`Completion`](crate::Completion), or its device's
    /// [`DeviceError`], if that error is an `E`. If the reported error is another operation's failure, also searches
    /// the [root](Self::root).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::WaitError;
    /// use std::num::ParseIntError;
    ///
    /// let engine = raddle::Engine::builder().workers(1).build()?;
    /// let number = engine.op("parse").try_submit((), |()| Ok("12x".parse::<i32>()?))?;
    /// let Err(WaitError::Failed(error)) = number.wait() else { panic!("the operation should fail") };
    /// assert!(error.downcast_ref::<ParseIntError>().is_some());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn downcast_ref<'s, E: Error + 'static>(&'s self) -> Option<&'s E> {
        let found = |error: &'s OpError| error.error().and_then(<dyn Error>::downcast_ref);
        found(self).or_else(|| found(self.root()))
    }

    /// Returns whether [`downcast_ref`](Self::downcast_ref) finds an `E`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::WaitError;
    ///
    /// let engine = raddle::Engine::builder().workers(1).build()?;
    /// let read = engine.op("read").try_submit((), |()| Ok(std::fs::read("no such file")?))?;
    /// let Err(WaitError::Failed(error)) = read.wait() else { panic!("the operation should fail") };
    /// assert!(error.is::<std::io::Error>());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is<E: Error + 'static>(&self) -> bool {
        self.downcast_ref::<E>().is_some()
    }
}
