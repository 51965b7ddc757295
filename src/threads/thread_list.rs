//! An engine's threads that have not been joined.
//!
//! A thread is added to the list before it is started and removed once it has been joined. An empty list therefore
//! means that no thread added earlier is still running, not even in a thread-local destructor, unless it was detached.
//!
//! A thread marks its own entry when its main function has returned, and can be joined from then on. The join lasts
//! until the thread's destructors of thread-locals, which are program code, have run. Threads therefore hold no lock
//! while joining, and a caller with a deadline has helpers join on the caller's behalf. Helpers are threads that do
//! nothing else and are not in the list. While one helper waits for a destructor, another joins the other threads. If
//! many threads that ended on their own are still unjoined, helpers join those as well. The thread that finds the list
//! empty joins the helpers.
//!
//! If no helper can be started, a caller with a deadline joins the threads that have certainly ended. Only Linux
//! reports which threads these are. Elsewhere a thread whose main function has returned is detached and removed from
//! the list.

use std::{
    fmt, io,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    sync::{
        Condvar, Mutex, MutexGuard, lock,
        process::ProcessMark,
        thread::{self, JoinHandle},
        wait_until,
    },
    system::panics,
};

/// How long a joinable thread waits for a helper to join it before another helper is started, if there is a deadline.
/// Not tuned.
const HELPER_DELAY: Duration = Duration::from_millis(1);

/// The approximate maximum number of threads that have ended on their own and are waiting to be joined. Not tuned.
pub(crate) const MANY: usize = 16;

/// How long a thread lives.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// The thread runs workers and ends when there is no worker for it.
    Passing,
    /// The thread ends with the engine, or when its task is over.
    UntilTheEnd,
}

struct ListedThread {
    number: u64,
    name: String,
    stay: Lifetime,
    /// The thread's handle, from its start until another thread joins it.
    handle: Option<JoinHandle<()>>,
    /// Whether the thread ends on its own.
    leaves: bool,
    /// Whether the thread's main function has returned.
    returned: bool,
}

#[derive(Default)]
struct ListedThreads {
    entries: Vec<ListedThread>,
    next: u64,
    /// The number of helpers.
    helpers: usize,
    /// The handles of helpers, including some helpers that may have ended.
    helper_threads: Vec<JoinHandle<()>>,
    /// Whether a deadline passed before all threads had ended.
    left_behind: bool,
    /// The number of helpers ever requested.
    #[cfg(test)]
    asked: usize,
}

/// A program's functions for the start and end of each thread.
#[derive(Clone, Default)]
pub(crate) struct ThreadHooks {
    pub(crate) start: Vec<Arc<dyn Fn() + Send + Sync>>,
    pub(crate) end: Vec<Arc<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for ThreadHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} functions for the start, {} for the end", self.start.len(), self.end.len())
    }
}

impl ThreadHooks {
    /// Calls functions, none of which panics.
    fn call(functions: &[Arc<dyn Fn() + Send + Sync>]) {
        functions.iter().for_each(|function| function());
    }
}

/// An engine's threads that have not been joined.
pub(crate) struct ThreadList {
    /// The size of the threads' stacks, in bytes.
    stack_size: usize,
    hooks: ThreadHooks,
    list: Mutex<ListedThreads>,
    changed: Condvar,
}

impl ListedThread {
    /// Returns whether the thread can be joined. Joining it waits only for destructors of thread-locals.
    fn is_joinable(&self) -> bool {
        self.returned && self.handle.is_some()
    }

    /// Whether another thread is joining this one, or has started it and has yet to store its handle.
    fn is_being_joined(&self) -> bool {
        self.returned && self.handle.is_none()
    }
}

impl ListedThreads {
    fn position(&self, number: u64) -> Option<usize> {
        self.entries.iter().position(|entry| entry.number == number)
    }

    fn joinable(&self) -> usize {
        self.entries.iter().filter(|entry| entry.is_joinable()).count()
    }

    /// Whether there are joinable threads and no helper is about to join them.
    fn wants_help(&self) -> bool {
        self.joinable() > 0 && self.helpers <= self.entries.iter().filter(|entry| entry.is_being_joined()).count()
    }

    /// Takes the handle of a joinable thread.
    fn take(&mut self) -> Option<(u64, JoinHandle<()>)> {
        let entry = self.entries.iter_mut().find(|entry| entry.is_joinable())?;
        Some((entry.number, entry.handle.take()?))
    }

    fn remove(&mut self, number: u64) {
        if let Some(index) = self.position(number) {
            self.entries.swap_remove(index);
        }
    }

    /// Joins and removes the threads that have certainly ended. Where the operating system does not report which these
    /// are, detaches and removes the threads whose main function has returned.
    fn join_ended(&mut self) {
        self.entries.retain_mut(|entry| {
            if !entry.returned {
                return true;
            }
            match entry.handle.take().map(try_join) {
                Some(Ok(())) => false,
                Some(Err(handle)) => {
                    entry.handle = Some(handle);
                    true
                }
                None => true,
            }
        });
    }
}

/// Joins a thread whose main function has returned, if the thread has ended. Where the operating system does not report
/// this, detaches the thread.
fn try_join(handle: JoinHandle<()>) -> Result<(), JoinHandle<()>> {
    #[cfg(all(target_os = "linux", any(target_env = "gnu", target_env = "musl"), not(raddle_shuttle)))]
    {
        use std::os::unix::thread::JoinHandleExt;

        // SAFETY: the thread was neither joined nor detached, since only its handle allows that. The null pointer means
        // that no return value is written.
        if unsafe { libc::pthread_tryjoin_np(handle.as_pthread_t(), std::ptr::null_mut()) } != 0 {
            return Err(handle);
        }
        // The handle is not dropped, since that would detach the thread.
        let _ = handle.into_pthread_t();
    }
    #[cfg(not(all(target_os = "linux", any(target_env = "gnu", target_env = "musl"), not(raddle_shuttle))))]
    drop(handle);
    Ok(())
}

/// Joins a helper, which runs no program code except the logger, whose panics are caught.
fn join_helper(helper: JoinHandle<()>) {
    if let Err(payload) = helper.join() {
        panics::discard(payload);
    }
}

/// A guard that, when dropped, marks a thread's main function as returned.
struct MainGuard {
    threads: Arc<ThreadList>,
    number: u64,
    process: ProcessMark,
}

impl Drop for MainGuard {
    fn drop(&mut self) {
        if self.process.is_foreign() {
            // In a forked child the lock may be held forever.
            return;
        }
        let mut list = lock(&self.threads.list);
        let Some(index) = list.position(self.number) else { return };
        list.entries[index].returned = true;
        let many = list.entries[index].leaves && list.joinable() >= MANY * (list.helpers + 1);
        drop(list);
        self.threads.changed.notify_all();
        if many {
            // If no helper can be started, the next thread that ends on its own tries again.
            let _ = self.threads.start_helper();
        }
    }
}

impl ThreadList {
    /// Creates a list of threads whose stacks have this size, in bytes, and on which these functions are called.
    pub(crate) fn new(stack_size: usize, hooks: ThreadHooks) -> Self {
        Self { stack_size, hooks, list: Mutex::default(), changed: Condvar::default() }
    }

    /// Starts a thread that runs `main` with the thread's number in the list.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        stay: Lifetime,
        name: String,
        main: impl FnOnce(u64) + Send + 'static,
    ) -> io::Result<()> {
        let number = {
            let mut list = lock(&self.list);
            list.next += 1;
            let number = list.next;
            list.entries.push(ListedThread {
                number,
                name: name.clone(),
                stay,
                handle: None,
                leaves: false,
                returned: false,
            });
            number
        };
        let threads = Arc::clone(self);
        let run = move || {
            let main_guard = MainGuard { threads, number, process: ProcessMark::current() };
            let hooks = &main_guard.threads.hooks;
            ThreadHooks::call(&hooks.start);
            main(number);
            if !main_guard.process.is_foreign() {
                ThreadHooks::call(&hooks.end);
            }
        };
        let spawned = thread::Builder::new().name(name).stack_size(self.stack_size).spawn(run);
        let mut list = lock(&self.list);
        let index = list.position(number).expect("only threads that were started are removed");
        let result = spawned.map(|handle| list.entries[index].handle = Some(handle));
        if result.is_err() {
            list.entries.swap_remove(index);
        }
        drop(list);
        self.changed.notify_all();
        result
    }

    /// Marks the calling thread, `number`, as ending on its own. A long time may pass before another thread joins it.
    ///
    /// The calling thread joins no others itself, since their destructors may wait for its own.
    pub(crate) fn leave(&self, number: u64) {
        let mut list = lock(&self.list);
        if let Some(index) = list.position(number) {
            list.entries[index].leaves = true;
        }
    }

    /// Joins the joinable threads, including those that become joinable in the meantime.
    fn join_some<'l>(&'l self, mut list: MutexGuard<'l, ListedThreads>) -> MutexGuard<'l, ListedThreads> {
        while let Some((number, handle)) = list.take() {
            drop(list);
            let payload = handle.join().err();
            list = lock(&self.list);
            list.remove(number);
            self.changed.notify_all();
            if let Some(payload) = payload {
                drop(list);
                panics::discard(payload);
                panics::log!(Error, "raddle: a thread of an engine panicked");
                list = lock(&self.list);
            }
        }
        list
    }

    /// Waits until all threads have ended and been joined.
    pub(crate) fn join_all(&self) {
        self.join_where(|_| true);
    }

    /// Joins the [passing](Lifetime::Passing) threads while `are_to_end` returns `true`, until `deadline` at the
    /// latest. Returns the names of those not joined by then. Code that changes the result of `are_to_end` must call
    /// [`look_again`](Self::look_again) afterwards.
    pub(crate) fn join_passing(
        self: &Arc<Self>,
        deadline: Option<Instant>,
        are_to_end: impl Fn() -> bool,
    ) -> Result<(), Vec<String>> {
        let is_passing = |entry: &ListedThread| entry.stay == Lifetime::Passing && are_to_end();
        match deadline {
            Some(deadline) => self.join_where_until(deadline, is_passing),
            None => {
                self.join_where(is_passing);
                Ok(())
            }
        }
    }

    /// Wakes the threads that are joining others, so that they recheck which ones they must wait for.
    pub(crate) fn look_again(&self) {
        // A joining thread holds the lock from its check until it sleeps.
        drop(lock(&self.list));
        self.changed.notify_all();
    }

    /// Waits until the `wanted` threads have ended and been joined.
    fn join_where(&self, wanted: impl Fn(&ListedThread) -> bool) {
        let mut list = self.join_some(lock(&self.list));
        while list.entries.iter().any(&wanted) {
            let woken = wait_until(&self.changed, list, None);
            list = self.join_some(woken.unwrap_or_else(|_| unreachable!("there is no deadline")));
        }
        Self::join_helpers(list);
    }

    /// If no thread is left, joins the helpers, which have nothing more to join and end immediately. Once all threads
    /// have been joined, therefore, no helper runs this crate's code, which may be in a library about to be unloaded.
    fn join_helpers(mut list: MutexGuard<'_, ListedThreads>) {
        if list.entries.is_empty() {
            let helpers = std::mem::take(&mut list.helper_threads);
            drop(list);
            for helper in helpers {
                join_helper(helper);
            }
        }
    }

    /// Joins all threads until `deadline` at the latest. Returns the names of those not joined by then.
    pub(crate) fn join_until(self: &Arc<Self>, deadline: Instant) -> Result<(), Vec<String>> {
        let result = self.join_where_until(deadline, |_| true);
        if result.is_err() {
            lock(&self.list).left_behind = true;
        }
        result
    }

    fn join_where_until(
        self: &Arc<Self>,
        deadline: Instant,
        wanted: impl Fn(&ListedThread) -> bool,
    ) -> Result<(), Vec<String>> {
        if cfg!(any(raddle_loom, raddle_shuttle)) {
            // Models have no clock.
            self.join_where(wanted);
            return Ok(());
        }
        let mut list = lock(&self.list);
        // Whether no thread seems to be joining the joinable threads. Each join notifies this thread.
        let mut stalled = true;
        while list.entries.iter().any(&wanted) {
            if stalled && list.wants_help() {
                drop(list);
                let helped = self.start_helper();
                list = lock(&self.list);
                if !helped {
                    list.join_ended();
                    self.changed.notify_all();
                }
                if !list.entries.iter().any(&wanted) {
                    // The last wanted thread was removed while the lock was released.
                    break;
                }
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(list
                    .entries
                    .iter()
                    .filter(|entry| wanted(entry))
                    .map(|entry| entry.name.clone())
                    .collect());
            }
            let wake_at = if list.joinable() > 0 { deadline.min(now + HELPER_DELAY) } else { deadline };
            list = wait_until(&self.changed, list, Some(wake_at)).unwrap_or_else(|_| lock(&self.list));
            stalled = list.helpers == 0 || Instant::now() >= wake_at;
        }
        Self::join_helpers(list);
        Ok(())
    }

    /// Starts a helper that joins the joinable threads. Returns `false` if no thread can be started.
    fn start_helper(self: &Arc<Self>) -> bool {
        {
            let mut list = lock(&self.list);
            list.helpers += 1;
            #[cfg(test)]
            {
                list.asked += 1;
            }
        }
        #[cfg(not(any(raddle_loom, raddle_shuttle)))]
        {
            let mut list = lock(&self.list);
            let helpers = std::mem::take(&mut list.helper_threads);
            let (finished, others): (Vec<_>, Vec<_>) = helpers.into_iter().partition(JoinHandle::is_finished);
            list.helper_threads = others;
            drop(list);
            finished.into_iter().for_each(join_helper);
        }
        let threads = Arc::clone(self);
        // Under the lock, finding nothing to join and ceasing to be a helper is a single step.
        let help = move || threads.join_some(lock(&threads.list)).helpers -= 1;
        let started = thread::Builder::new().name("raddle-join".to_owned()).spawn(help);
        let mut list = lock(&self.list);
        match started {
            Ok(helper) => {
                list.helper_threads.push(helper);
                true
            }
            Err(_) => {
                list.helpers -= 1;
                false
            }
        }
    }

    /// Whether threads are still unjoined after a join that reached its deadline.
    pub(crate) fn has_left_behind(&self) -> bool {
        let list = lock(&self.list);
        list.left_behind && !list.entries.is_empty()
    }

    /// Returns how many threads were ever added and how many are in the list.
    #[cfg(test)]
    pub(crate) fn count(&self) -> (u64, usize) {
        let list = lock(&self.list);
        (list.next, list.entries.len())
    }
}

#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
mod tests;
