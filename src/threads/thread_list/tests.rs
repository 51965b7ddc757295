use std::{
    cell::RefCell,
    sync::{
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
};

use super::*;

/// The time limit for events that must happen.
const AWHILE: Duration = Duration::from_secs(20);

/// The size of the stacks of the threads, in bytes.
const STACK: usize = 1 << 20;

/// How long a test waits to verify that something does not happen.
const MOMENT: Duration = Duration::from_millis(50);

#[track_caller]
fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < AWHILE, "not within the time limit: {what}");
        thread::yield_now();
    }
}

/// A value that sends a message when dropped and then blocks until the sender of its other channel is dropped.
struct Blocks(mpsc::Sender<()>, mpsc::Receiver<()>);

impl Drop for Blocks {
    fn drop(&mut self) {
        let _ = self.0.send(());
        let _ = self.1.recv();
    }
}

/// Starts a thread that ends on its own but blocks in a thread-local destructor until the returned sender is
/// dropped. The thread is already blocked when this returns.
fn spawn_blocked(threads: &Arc<ThreadList>, name: &str) -> mpsc::Sender<()> {
    thread_local!(static LOCAL: RefCell<Option<Blocks>> = const { RefCell::new(None) });
    let ((sender, inside), (release, held)) = (mpsc::channel(), mpsc::channel());
    let inner = Arc::clone(threads);
    let main = move |number| {
        LOCAL.set(Some(Blocks(sender, held)));
        inner.leave(number);
    };
    threads.spawn(Lifetime::Passing, name.to_owned(), main).expect("a thread should start");
    inside.recv_timeout(AWHILE).expect("the destructor should run");
    release
}

/// Starts a thread that ends on its own.
fn spawn_short(threads: &Arc<ThreadList>) {
    let inner = Arc::clone(threads);
    threads
        .spawn(Lifetime::Passing, "short".to_owned(), move |number| inner.leave(number))
        .expect("a thread should start");
}

/// Asserts that `join_all` does not return before `release` is dropped.
#[track_caller]
fn assert_join_all_waits_for(release: mpsc::Sender<()>, threads: &Arc<ThreadList>, what: &str) {
    let (sender, joined) = mpsc::channel();
    let inner = Arc::clone(threads);
    let other = thread::spawn(move || {
        inner.join_all();
        sender.send(()).expect("the receiver should exist");
    });
    assert!(joined.recv_timeout(MOMENT).is_err(), "{what} was not waited for");
    drop(release);
    joined.recv_timeout(AWHILE).expect("join_all should return");
    other.join().expect("the thread should not panic");
}

#[test]
fn join_all_joins_threads_that_ended_on_their_own() {
    let threads = Arc::new(ThreadList::new(STACK, ThreadHooks::default()));
    (0..100).for_each(|_| spawn_short(&threads));
    threads.join_all();
    assert_eq!(threads.count(), (100, 0));
    assert!(threads.join_until(Instant::now()).is_ok());
}

#[test]
fn join_all_waits_for_the_destructors_of_a_thread_that_ended_on_its_own() {
    let threads = Arc::new(ThreadList::new(STACK, ThreadHooks::default()));
    let release = spawn_blocked(&threads, "blocked");
    for _ in 0..8 * MANY {
        spawn_short(&threads);
        // The blocked thread does not keep the others from being joined.
        eventually("few threads are left", || threads.count().1 <= 1 + 2 * MANY);
    }
    assert_join_all_waits_for(release, &threads, "a destructor");
    assert_eq!(threads.count().1, 0);
}

#[test]
fn a_join_with_a_deadline_names_the_threads_that_have_not_ended() {
    let threads = Arc::new(ThreadList::new(STACK, ThreadHooks::default()));
    let (release, held) = mpsc::channel::<()>();
    let hold = move |_| _ = held.recv();
    threads.spawn(Lifetime::Passing, "held".to_owned(), hold).expect("a thread should start");
    threads.spawn(Lifetime::Passing, "short".to_owned(), |_| ()).expect("a thread should start");
    let join = || threads.join_until(Instant::now() + Duration::from_millis(20));
    let start = Instant::now();
    while join() != Err(vec!["held".to_owned()]) {
        assert!(start.elapsed() < AWHILE, "the short thread does not end");
    }
    assert!(threads.has_left_behind());
    drop(release);
    threads.join_all();
    assert!(!threads.has_left_behind());
    assert_eq!(join(), Ok(()));
}

#[test]
fn a_join_with_a_deadline_names_the_threads_inside_destructors() {
    let threads = Arc::new(ThreadList::new(STACK, ThreadHooks::default()));
    let names = ["first", "second", "third"];
    let releases = names.map(|name| spawn_blocked(&threads, name));
    spawn_short(&threads);
    let join = |time| {
        let left = threads.join_until(Instant::now() + time);
        left.map_err(|mut left| {
            left.sort();
            left
        })
    };
    for time in [Duration::ZERO, MOMENT] {
        let left = join(time).expect_err("three threads should not have ended");
        assert!(names.iter().all(|name| left.iter().any(|left| left == name)), "{left:?}");
    }
    // The blocked threads do not keep the others from being joined.
    let start = Instant::now();
    while join(MOMENT) != Err(names.map(str::to_owned).to_vec()) {
        assert!(start.elapsed() < AWHILE, "the short thread does not end");
    }
    drop(releases);
    assert_eq!(join(AWHILE), Ok(()));
}

#[test]
fn a_join_with_a_deadline_starts_a_helper_for_each_thread_inside_a_destructor() {
    let threads = Arc::new(ThreadList::new(STACK, ThreadHooks::default()));
    let releases = ["first", "second", "third"].map(|name| spawn_blocked(&threads, name));
    let inner = Arc::clone(&threads);
    let other = thread::spawn(move || inner.join_until(Instant::now() + 2 * AWHILE));
    eventually("each thread is being joined", || lock(&threads.list).entries.iter().all(ListedThread::is_being_joined));
    drop(releases);
    assert_eq!(other.join().expect("the thread should not panic"), Ok(()));
}

#[test]
fn a_join_ends_when_its_threads_are_not_to_end_any_more() {
    let threads = Arc::new(ThreadList::new(STACK, ThreadHooks::default()));
    let (release, held) = mpsc::channel::<()>();
    threads.spawn(Lifetime::Passing, "held".to_owned(), move |_| _ = held.recv()).expect("a thread should start");
    for limit in [None, Some(AWHILE)] {
        let are_to_end = AtomicBool::new(true);
        thread::scope(|scope| {
            let join_passing = || {
                let deadline = limit.map(|limit| Instant::now() + limit);
                // Relaxed: nothing else is published.
                threads.join_passing(deadline, || are_to_end.load(Relaxed))
            };
            let join = scope.spawn(join_passing);
            thread::sleep(MOMENT);
            assert!(!join.is_finished());
            // Relaxed: the list's lock is taken afterwards.
            are_to_end.store(false, Relaxed);
            threads.look_again();
            assert_eq!(join.join().expect("the thread should not panic"), Ok(()));
        });
    }
    drop(release);
    threads.join_all();
}

#[test]
fn a_join_starts_no_helper_for_a_thread_that_is_being_joined() {
    let threads = Arc::new(ThreadList::new(STACK, ThreadHooks::default()));
    let release = spawn_blocked(&threads, "blocked");
    let inner = Arc::clone(&threads);
    let other = thread::spawn(move || inner.join_all());
    eventually("the other thread joins the blocked one", || {
        lock(&threads.list).entries.iter().all(ListedThread::is_being_joined)
    });
    let left = threads.join_until(Instant::now() + MOMENT);
    assert_eq!(left, Err(vec!["blocked".to_owned()]));
    assert_eq!(lock(&threads.list).asked, 0);
    drop(release);
    other.join().expect("the thread should not panic");
}

/// A running thread whose handle has yet to be stored is not being joined.
#[test]
fn a_thread_that_a_helper_is_about_to_join_needs_no_other_helper() {
    let entry = |number, handle: Option<JoinHandle<()>>| ListedThread {
        number,
        name: String::new(),
        stay: Lifetime::Passing,
        leaves: false,
        returned: handle.is_some(),
        handle,
    };
    let entries = vec![entry(1, Some(thread::spawn(|| ()))), entry(2, None)];
    let mut list = ListedThreads { entries, ..ListedThreads::default() };
    assert!(list.wants_help());
    list.helpers = 1;
    assert!(!list.wants_help());
}

/// A helper's thread may take a while to end after the helper has found nothing more to join.
#[test]
fn join_all_waits_for_the_threads_of_helpers() {
    let threads = Arc::new(ThreadList::new(STACK, ThreadHooks::default()));
    let (release, held) = mpsc::channel::<()>();
    lock(&threads.list).helper_threads.push(thread::spawn(move || _ = held.recv()));
    assert_join_all_waits_for(release, &threads, "a helper");
}

#[test]
fn a_thread_that_panics_is_joined() {
    let threads = Arc::new(ThreadList::new(STACK, ThreadHooks::default()));
    threads
        .spawn(Lifetime::Passing, String::new(), |_| std::panic::resume_unwind(Box::new(())))
        .expect("a thread should start");
    threads.join_all();
    assert_eq!(threads.count(), (1, 0));
}

#[test]
fn a_thread_whose_panic_has_a_payload_that_panics_is_joined() {
    struct PanicsOnDrop;
    impl Drop for PanicsOnDrop {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new(()));
        }
    }
    let threads = Arc::new(ThreadList::new(STACK, ThreadHooks::default()));
    threads
        .spawn(Lifetime::Passing, String::new(), |_| std::panic::resume_unwind(Box::new(PanicsOnDrop)))
        .expect("a thread should start");
    threads.join_all();
    assert_eq!(threads.count(), (1, 0));
}
