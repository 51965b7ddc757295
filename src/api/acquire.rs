//! Acquiring variables from asynchronous code.

use std::{
    fmt,
    future::Future,
    panic::Location,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use super::{
    accesses::{
        Accesses,
        sealed::{Kind, List},
    },
    engine::{Engine, WeakEngine},
    handle::is_done,
    var::Var,
};
use crate::{
    engine::keeps_open::KeepsOpen,
    error::wait::WaitError,
    future::{
        acquiring::{self, Acquiring, Granted},
        held::Share,
    },
    notify::{
        claim::{Cancel, Claim},
        oneshot::Waiter,
    },
    op::spec::Entries,
};

impl Engine {
    /// Acquires variables for code outside operations, such as a task on an asynchronous runtime. Returns a future that
    /// resolves to guards when the call's turn comes. The guards provide access to the values, and later conflicting
    /// operations wait until the guards are dropped.
    ///
    /// Like the push of an operation with these accesses, the call takes its place in the push order immediately,
    /// before the future is polled. The future runs on any executor and needs no worker. If the future is dropped
    /// before it resolves, the call has no effect when its turn comes: no variable fails, and no mutation is counted.
    ///
    /// [`Var::read`](crate::Var::read) yields a [`ReadGuard`](crate::ReadGuard). [`Var::write`](crate::Var::write) and
    /// [`Var::overwrite`](crate::Var::overwrite) yield a [`WriteGuard`](crate::WriteGuard). Tuples and arrays of
    /// accesses yield tuples and arrays of guards, `Vec`s and slices yield a `Vec`, and [`cx()`](crate::cx) yields a
    /// [`FutureContext`](crate::FutureContext).
    ///
    /// The future and the guards keep the engine open, as its handles do. If the last of these to be dropped is a
    /// future or a guard, the drop returns immediately, and the engine ends in the background.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let (rate, balance) = (engine.var(2), engine.var(100));
    /// let task = async {
    ///     let (rate, mut balance) = engine.acquire((rate.read(), balance.write())).await?;
    ///     *balance += *balance * *rate / 100; // other tasks may run between awaits
    ///     Ok::<_, raddle::WaitError>(())
    /// };
    /// tokio::runtime::Builder::new_current_thread().build()?.block_on(task)?;
    /// assert_eq!(engine.get(&balance)?, 102);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The future resolves to [`WaitError::Failed`] if a variable that the call does not overwrite has failed, or if
    /// the engine is shut down with [`Shutdown::Cancel`](crate::Shutdown::Cancel) before the call's turn comes. In both
    /// cases, the variables that would have been mutated also fail. It resolves to [`WaitError::WouldDeadlock`] if the
    /// calling operation holds one of the variables, and to [`WaitError::Refused`] if a push with these accesses would
    /// be refused.
    ///
    /// A task waits forever if it holds guards and awaits an acquisition that conflicts with them. Variables that are
    /// used together should be acquired in one call.
    #[track_caller]
    pub fn acquire<A: Accesses>(&self, accesses: A) -> Acquire<A::Guards> {
        const { assert!(A::KIND.is(Kind::Function), "guards come with neither a stream nor a completion") }
        let mut entries = Entries::new();
        accesses.declare(&mut List(&mut entries));
        let captured = accesses.capture();
        // SAFETY: (1): `captured` came from `accesses`, which the operation declares, and it holds their variables
        // while it has shares. (2): the push refuses aliases, and the operation calls this once.
        let make = move |share: &Share| unsafe { A::guards(&captured, share) };
        let keeps_open = KeepsOpen::new(self.core());
        let acquiring = acquiring::begin_acquire(self.core(), Location::caller(), &mut entries, make);
        Acquire { acquiring: acquiring.map(Waiter::new), keeps_open: Some(keeps_open), engine: self.downgrade() }
    }
}

/// Methods that read values in asynchronous code.
impl Engine {
    /// Returns a future that waits for every mutation of the variable pushed before this call, then resolves to a clone
    /// of the value. The value is cloned on the thread that polls the future; later mutations wait until the value has
    /// been cloned, but other readers do not. Otherwise, this call is like [`acquire`](Self::acquire) with a
    /// declaration that reads the variable.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let words = engine.var(vec!["warp"]);
    /// engine.op("add").push(words.write(), |words| words.push("weft"))?;
    /// let seen = async { engine.get_async(&words).await };
    /// assert_eq!(pollster::block_on(seen)?, ["warp", "weft"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The future resolves to the errors of [`acquire`](Self::acquire).
    #[track_caller]
    pub fn get_async<T: Clone + Send + Sync + 'static>(
        &self,
        var: &Var<T>,
    ) -> impl Future<Output = Result<T, WaitError>> + Send + use<T> {
        let acquire = self.acquire(var.read());
        async move { Ok(T::clone(&*acquire.await?)) }
    }
}

/// A future that resolves to the guards `G` for acquired variables, returned by [`Engine::acquire`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// use raddle::{Acquire, WriteGuard};
///
/// let total = engine.var(1);
/// engine.op("double").push(total.write(), |total| *total *= 2)?;
/// let acquire: Acquire<WriteGuard<i32>> = engine.acquire(total.write()); // takes its place in the order here
/// engine.op("double").push(total.write(), |total| *total *= 2)?;
/// let mut guard = pollster::block_on(acquire)?;
/// *guard += 1;
/// drop(guard);
/// assert_eq!(engine.get(&total)?, 6);
/// # Ok(())
/// # }
/// ```
#[must_use = "the future must be awaited to receive the guards"]
pub struct Acquire<G> {
    acquiring: Result<Waiter<Granted<G>, Claim>, WaitError>,
    /// Keeps the engine open until the guards take over this role. Dropped after the waiter.
    keeps_open: Option<KeepsOpen<false>>,
    engine: WeakEngine,
}

// The guards are never pinned.
impl<G> Unpin for Acquire<G> {}

impl<G> fmt::Debug for Acquire<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").finish_non_exhaustive()
    }
}

impl<G> Future for Acquire<G> {
    type Output = Result<G, WaitError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { acquiring, keeps_open, engine } = &mut *self;
        engine.core().live()?;
        let waiter = match acquiring {
            Ok(waiter) => waiter,
            Err(error) => return Poll::Ready(Err(error.clone())),
        };
        is_done(waiter);
        waiter.poll(cx.waker()).map_ok(|granted| {
            let keeps_open = keeps_open.take().unwrap_or_else(|| KeepsOpen::new(engine.core()));
            granted.take(keeps_open)
        })
    }
}

impl<G> Drop for Acquire<G> {
    fn drop(&mut self) {
        let Ok(waiter) = &self.acquiring else { return };
        if self.engine.core().is_forked() {
            // Another thread of the parent process may have held the oneshot's lock at the fork.
            return;
        }
        let acquiring: &Arc<Acquiring<G>> = waiter.oneshot();
        acquiring.beside().cancel(Cancel::Quietly);
        // If the operation has started, its unclaimed guards are dropped either here or on the thread that would have
        // passed them to this future.
        drop(acquiring.give_up(false));
    }
}
