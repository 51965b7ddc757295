//! The future through which an operation learns that it was cancelled.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use crate::{
    notify::{
        oneshot::{Oneshot, Waiter},
        stop_signal::{Listening, Signals},
        wakers::Wakers,
    },
    sync::{Mutex, lock, process::ProcessMark},
};

/// A future that resolves when an operation is cancelled, returned by
/// [`OpContext::cancelled`](crate::OpContext::cancelled) and
/// [`FutureContext::cancelled`](crate::FutureContext::cancelled).
///
/// It may be sent anywhere, polled on any executor, and may outlive the operation and the engine. It does not resolve
/// because the operation has ended.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::{completion, cx};
///
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// let request = engine.group();
/// let (sender, receiver) = std::sync::mpsc::channel();
/// request.op("answer").push((cx(), completion()), move |(cx, done)| {
///     sender.send((cx.cancelled(), done)).expect("the other thread receives it");
/// })?;
/// // A task of any executor. It may also wait for something else at the same time.
/// let task = std::thread::spawn(move || {
///     let (cancelled, done) = receiver.recv().expect("the operation runs");
///     pollster::block_on(cancelled);
///     done.fail("given up");
/// });
/// request.cancel();
/// # _ = task.join();
/// assert!(request.wait().is_err());
/// # Ok(())
/// # }
/// ```
#[must_use = "futures do nothing unless awaited"]
pub struct Cancelled {
    waiter: Waiter<()>,
    /// `None` if the operation was cancelled before this was created.
    _listening: Option<Listening>,
    process: ProcessMark,
}

impl fmt::Debug for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancelled").field("is_cancelled", &self.waiter.oneshot().is_done()).finish_non_exhaustive()
    }
}

impl Cancelled {
    /// Creates a future that resolves when one of the signals is given.
    pub(super) fn new(signals: Signals) -> Self {
        let oneshot = Oneshot::new();
        let listening = Listening::begin(signals, &oneshot);
        if listening.is_none() {
            // No future waits for the oneshot yet.
            let _: Option<Wakers> = oneshot.set(Ok(())).ok().flatten();
        }
        Self { waiter: Waiter::new(oneshot), _listening: listening, process: ProcessMark::current() }
    }

    /// Calls `f` when the operation is cancelled, on the thread that cancels it, or here if it was cancelled before.
    /// `f` is not called once the returned value has been dropped, unless the call has begun. It replaces the waker of
    /// the future, so the returned value is not meant to be polled. A panic in `f` on the thread that cancels is
    /// caught and logged.
    ///
    /// This is for functions that block: `f` ends what they wait for.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::cx;
    ///
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let request = engine.group();
    /// let (begins, has_begun) = std::sync::mpsc::channel();
    /// request.op("serve").push(cx(), move |cx| {
    ///     let (sender, messages) = std::sync::mpsc::channel::<String>();
    ///     let _closes = cx.cancelled().call({
    ///         let sender = sender.clone();
    ///         move || drop(sender.send("cancelled".to_owned())) // or kill a process, or close a socket
    ///     });
    ///     begins.send(()).expect("the other thread receives it");
    ///     while messages.recv().is_ok_and(|message| message != "cancelled") {}
    /// })?;
    /// has_begun.recv()?;
    /// request.cancel();
    /// request.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "`f` is not called once this has been dropped"]
    pub fn call(mut self, f: impl FnOnce() + Send + 'static) -> Self {
        struct OnCancelled<F>(Mutex<Option<F>>);
        impl<F: FnOnce() + Send> Wake for OnCancelled<F> {
            fn wake(self: Arc<Self>) {
                let f = lock(&self.0).take();
                f.into_iter().for_each(|f| f());
            }
        }
        let waker = Waker::from(Arc::new(OnCancelled(Mutex::new(Some(f)))));
        if Pin::new(&mut self).poll(&mut Context::from_waker(&waker)).is_ready() {
            waker.wake();
        }
        self
    }
}

impl Future for Cancelled {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.process.is_foreign() {
            // Another thread of the parent process may have held the oneshot's lock at the fork.
            return Poll::Ready(());
        }
        self.waiter.poll_shared(cx.waker()).map(drop)
    }
}
