//! The threads of an engine that nobody has joined yet.
//!
//! A thread is entered before it is started and struck out when it has been joined. So whoever finds the roll empty knows
//! that no thread that was entered before runs any more, nor a destructor of its thread-locals. To join a thread takes as
//! long as functions and destructors of the program take: nobody joins with a lock held, and who has a deadline lets
//! another thread join.

use std::{
    io, mem,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    panics,
    sync::{
        Condvar, Mutex, MutexGuard, lock,
        thread::{self, JoinHandle},
        wait_until,
    },
};

/// Between two looks at threads that nobody can be found to join.
const LOOK: Duration = Duration::from_millis(1);

/// Threads that have ended by themselves and wait to be joined, about at most. Picked.
pub(crate) const MANY: usize = 16;

enum State {
    Starting,
    Started(JoinHandle<()>),
    /// Somebody joins it.
    Joining,
}

struct Entry {
    number: u64,
    name: String,
    state: State,
}

#[derive(Default)]
struct List {
    entries: Vec<Entry>,
    next: u64,
    /// Threads that end by themselves, and that nobody joins yet.
    ending: Vec<u64>,
    /// A thread joins all that are entered.
    helped: bool,
    /// A deadline has passed with threads that had not ended.
    left_behind: bool,
}

/// The threads of an engine that have not been joined.
#[derive(Default)]
pub(crate) struct Roll {
    list: Mutex<List>,
    changed: Condvar,
}

impl List {
    fn position(&self, number: u64) -> Option<usize> {
        self.entries.iter().position(|entry| entry.number == number)
    }

    /// Takes the handle of a thread that nobody joins, one that has ended if there is such.
    fn take(&mut self) -> Option<(u64, JoinHandle<()>)> {
        let ended = self.entries.iter().position(Entry::has_ended);
        let started = || self.entries.iter().position(|entry| matches!(entry.state, State::Started(_)));
        let place = ended.or_else(started)?;
        let entry = &mut self.entries[place];
        Some((entry.number, entry.take()?))
    }

    /// Strikes out those that have ended by themselves, if there are many whom nobody has come to join.
    fn take_many(&mut self) -> Vec<Entry> {
        if self.ending.len() < MANY {
            return Vec::new();
        }
        let ending = mem::take(&mut self.ending);
        let ended: Vec<_> =
            self.entries.extract_if(.., |entry| ending.contains(&entry.number) && entry.has_ended()).collect();
        self.ending = ending.into_iter().filter(|&number| self.position(number).is_some()).collect();
        ended
    }

    /// The names of threads that have not ended.
    fn names(&self) -> Vec<String> {
        self.entries.iter().filter(|entry| !entry.has_ended()).map(|entry| entry.name.clone()).collect()
    }
}

impl Entry {
    fn has_ended(&self) -> bool {
        #[cfg(not(raddle_shuttle))]
        return matches!(&self.state, State::Started(handle) if handle.is_finished());
        // shuttle's handles do not tell.
        #[cfg(raddle_shuttle)]
        false
    }

    /// Takes the handle, if nobody has and the thread is started.
    fn take(&mut self) -> Option<JoinHandle<()>> {
        match mem::replace(&mut self.state, State::Joining) {
            State::Started(handle) => Some(handle),
            other => {
                self.state = other;
                None
            }
        }
    }
}

impl Roll {
    /// Starts a thread that does `main`, which is given the thread's number here.
    pub(crate) fn spawn(&self, name: String, main: impl FnOnce(u64) + Send + 'static) -> io::Result<()> {
        let number = {
            let mut list = lock(&self.list);
            list.next += 1;
            let number = list.next;
            list.entries.push(Entry { number, name: name.clone(), state: State::Starting });
            number
        };
        let spawned = thread::Builder::new().name(name).spawn(move || main(number));
        let mut list = lock(&self.list);
        let place = list.position(number).expect("only a thread that was started is struck out");
        let result = spawned.map(|handle| list.entries[place].state = State::Started(handle));
        if result.is_err() {
            list.entries.swap_remove(place);
        }
        drop(list);
        self.changed.notify_all();
        result
    }

    /// The calling thread, `number`, ends by itself. It joins nobody: what destructors of thread-locals do may need this one's
    /// own. When many have ended so, they are let go, and not joined any more.
    pub(crate) fn leave(&self, number: u64) {
        let many = {
            let mut list = lock(&self.list);
            list.ending.push(number);
            list.take_many()
        };
        drop(many);
    }

    /// Joins a thread whose handle was taken, and strikes it out.
    fn join(&self, number: u64, handle: JoinHandle<()>) {
        let panicked = handle.join().is_err();
        let mut list = lock(&self.list);
        if let Some(place) = list.position(number) {
            list.entries.swap_remove(place);
        }
        drop(list);
        self.changed.notify_all();
        if panicked {
            panics::log!(Error, "raddle: a worker thread panicked");
        }
    }

    /// Joins threads as long as `goes_on`, which is asked when none is left to be joined here.
    fn join_while(&self, goes_on: impl Fn(&mut List) -> bool) {
        let mut list = lock(&self.list);
        loop {
            if let Some((number, handle)) = list.take() {
                drop(list);
                self.join(number, handle);
                list = lock(&self.list);
            } else if goes_on(&mut list) {
                list = self.wait(list, None).unwrap_or_else(|| unreachable!("there is no deadline"));
            } else {
                return;
            }
        }
    }

    fn wait<'l>(&'l self, list: MutexGuard<'l, List>, deadline: Option<Instant>) -> Option<MutexGuard<'l, List>> {
        wait_until(&self.changed, list, deadline).ok()
    }

    /// Waits until all threads have ended.
    pub(crate) fn join_all(&self) {
        self.join_while(|list| !list.entries.is_empty());
    }

    /// As [`join_all`](Self::join_all), at most until `deadline`; gives the names of those that have not ended.
    pub(crate) fn join_until(self: &Arc<Self>, deadline: Instant) -> Result<(), Vec<String>> {
        if cfg!(any(raddle_loom, raddle_shuttle)) {
            // Models have no clock.
            self.join_all();
            return Ok(());
        }
        let mut list = lock(&self.list);
        while !list.entries.is_empty() {
            let helped = list.helped || {
                drop(list);
                let helped = self.find_help();
                list = lock(&self.list);
                helped
            };
            if list.entries.is_empty() {
                // While the lock was given up.
                break;
            }
            // Whoever joins says so. A thread that was found may have found nothing to join, and be gone.
            let look = if list.helped { deadline } else { deadline.min(Instant::now() + LOOK) };
            list = match self.wait(list, Some(look)) {
                Some(list) => list,
                None => lock(&self.list),
            };
            // Without help nobody joins, so it must be enough that they have ended.
            if !helped && list.entries.iter().all(Entry::has_ended) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let names = list.names();
                list.left_behind = !names.is_empty();
                return if names.is_empty() { Ok(()) } else { Err(names) };
            }
        }
        Ok(())
    }

    /// Has a thread join the others, which may take longer than the caller has time; `false` if there is none to be had.
    fn find_help(self: &Arc<Self>) -> bool {
        if mem::replace(&mut lock(&self.list).helped, true) {
            return true;
        }
        let roll = Arc::clone(self);
        let help = move || {
            roll.join_while(|list| {
                list.helped = list.entries.iter().any(|entry| matches!(entry.state, State::Starting));
                list.helped
            });
        };
        let started = thread::Builder::new().name("raddle-shutdown".to_owned()).spawn(help).is_ok();
        if !started {
            lock(&self.list).helped = false;
        }
        started
    }

    /// Whether a deadline has passed with threads that have not been joined since.
    pub(crate) fn has_left_behind(&self) -> bool {
        let list = lock(&self.list);
        list.left_behind && !list.entries.is_empty()
    }

    /// How many threads were ever entered, and how many are.
    #[cfg(test)]
    pub(crate) fn count(&self) -> (u64, usize) {
        let list = lock(&self.list);
        (list.next, list.entries.len())
    }
}

#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_thread_that_ends_by_itself_is_joined_by_the_next_one_or_by_who_joins_all() {
        let roll = Arc::new(Roll::default());
        for round in 0..100 {
            let inner = Arc::clone(&roll);
            roll.spawn(format!("{round}"), move |number| inner.leave(number)).expect("a thread starts");
        }
        roll.join_all();
        assert_eq!(roll.count(), (100, 0));
        assert!(roll.join_until(Instant::now()).is_ok());
    }

    #[test]
    fn who_has_a_deadline_is_told_of_those_that_have_not_ended() {
        let roll = Arc::new(Roll::default());
        let (release, held) = mpsc::channel::<()>();
        let hold = move |_| _ = held.recv();
        roll.spawn("held".to_owned(), hold).expect("a thread starts");
        roll.spawn("short".to_owned(), |_| ()).expect("a thread starts");
        let look = || roll.join_until(Instant::now() + Duration::from_millis(20));
        let start = Instant::now();
        while look() != Err(vec!["held".to_owned()]) {
            assert!(start.elapsed() < Duration::from_secs(20), "the short thread does not end");
        }
        assert!(roll.has_left_behind());
        drop(release);
        roll.join_all();
        assert!(!roll.has_left_behind());
        assert_eq!(look(), Ok(()));
    }

    #[test]
    fn a_thread_that_panics_is_joined_as_well() {
        let roll = Roll::default();
        roll.spawn(String::new(), |_| std::panic::resume_unwind(Box::new(()))).expect("a thread starts");
        roll.join_all();
        assert_eq!(roll.count(), (1, 0));
    }
}
