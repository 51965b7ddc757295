//! Families: when children start and when their parent is complete.
use std::sync::{
    // These types are from `std`, so they add no interleavings.
    Arc,
    atomic::{AtomicUsize as Counter, Ordering::Relaxed},
};

use raddle::{
    Completion, Engine, EngineKind, completion,
    internals::{FamilyCount, Flavour},
};
use raddle_loom_tests::checker::{cell::UnsafeCell, sync::Mutex, thread};
use raddle_loom_tests::{COMPLETE, kills, model};

/// A value whose cell reports races.
struct Data(UnsafeCell<usize>);
// SAFETY: loom's cell reports a race instead of allowing it.
unsafe impl Sync for Data {}
// SAFETY: loom's cell reports a race instead of allowing it.
unsafe impl Send for Data {}

impl Data {
    fn new() -> Self {
        Self(UnsafeCell::new(0))
    }

    fn get(&self) -> usize {
        // SAFETY: the family's counts or the engine order the accesses; the models verify this.
        self.0.with(|data| unsafe { *data })
    }

    fn add(&self) {
        // SAFETY: the family's counts or the engine order the accesses; the models verify this.
        self.0.with_mut(|data| unsafe { *data += 1 });
    }
}

// ------------------------------------------------------------------------------------------------------ counts ----

/// The family of a parent whose work has two parts, each of which changes its own value.
struct TwoParts {
    count: FamilyCount,
    parts: [Data; 2],
    releases: Counter,
    ends: Counter,
}

impl TwoParts {
    fn work(&self, part: usize) {
        self.parts[part].add();
        if self.count.end_part() {
            // A child reads the effects of both parts.
            assert_eq!(self.parts.each_ref().map(Data::get), [1, 1], "a child has started during a part");
            self.releases.fetch_add(1, Relaxed);
            if self.count.leave() {
                self.ends.fetch_add(1, Relaxed);
            }
        }
    }
}

/// The parent's work consists of a function and a future: the function returns while the future ends on another thread.
#[test]
fn children_start_when_every_part_of_the_work_of_their_parent_has_ended() {
    model(COMPLETE, Flavour::Contract, || {
        let parts = [Data::new(), Data::new()];
        let family = TwoParts { count: FamilyCount::new(), parts, releases: Counter::new(0), ends: Counter::new(0) };
        let family = Arc::new(family);
        assert!(family.count.begin_part(), "the future was not admitted although the function runs");
        let other = Arc::clone(&family);
        let future = thread::spawn(move || other.work(1));
        family.work(0);
        future.join().unwrap();
        assert_eq!((family.releases.load(Relaxed), family.ends.load(Relaxed)), (1, 1));
    });
}

/// A parent whose work has ended, and children that each change a value.
struct Children {
    count: FamilyCount,
    children: [Data; 2],
    /// Stands for the variables of the family. They are used by the thread that starts the children, and then by the
    /// thread that completes the parent.
    variables: Data,
    ends: Counter,
}

impl Children {
    fn leave(&self) {
        if self.count.leave() {
            self.variables.add();
            assert_eq!(self.children.each_ref().map(Data::get), [1, 1], "the parent is complete before a child");
            self.ends.fetch_add(1, Relaxed);
        }
    }

    fn run(&self, child: usize) {
        self.children[child].add();
        self.leave();
    }
}

/// One thread starts two children, uses the family's variables in between, and runs the second child itself.
#[test]
fn a_parent_is_complete_after_its_children_and_sees_what_they_did() {
    model(COMPLETE, Flavour::Contract, || {
        let (children, variables) = ([Data::new(), Data::new()], Data::new());
        let family = Arc::new(Children { count: FamilyCount::new(), children, variables, ends: Counter::new(0) });
        family.count.enter();
        assert!(family.count.end_part(), "the only part did not end as the last one");
        let other = Arc::clone(&family);
        let child = thread::spawn(move || other.run(0));
        // The second child stands for the drop of a value, which is queued behind the children and has its own share.
        family.variables.add();
        family.count.enter();
        family.run(1);
        family.leave();
        child.join().unwrap();
        assert_eq!(family.ends.load(Relaxed), 1);
        assert_eq!(family.variables.get(), 2);
    });
}

/// A parent whose children are pushed on another thread.
struct Pushed {
    count: FamilyCount,
    children: Mutex<Option<usize>>,
    /// The parent's effects before its work ended.
    before: Data,
    started: Counter,
}

impl Pushed {
    fn end_part(&self) {
        if self.count.end_part() {
            let children = self.children.lock().unwrap().take().expect("the children have started already");
            let _ = self.before.get();
            self.started.fetch_add(children, Relaxed);
            for _ in 0..children {
                assert!(!self.count.leave(), "the work has no share");
            }
            assert!(self.count.leave(), "a share was lost");
        }
    }

    /// Pushes a child. Returns whether the child was accepted.
    fn push(&self) -> bool {
        if !self.count.begin_part() {
            return false;
        }
        self.count.enter();
        let mut children = self.children.lock().unwrap();
        *children.as_mut().expect("a child is pushed after the others have started") += 1;
        drop(children);
        self.end_part();
        true
    }
}

/// A thread that has kept a future's context pushes a child while the future's work ends.
#[test]
fn a_child_that_is_pushed_while_the_work_of_its_parent_ends_starts_or_is_refused() {
    model(COMPLETE, Flavour::Contract, || {
        let (children, before, started) = (Mutex::new(Some(0)), Data::new(), Counter::new(0));
        let family = Arc::new(Pushed { count: FamilyCount::new(), children, before, started });
        let other = Arc::clone(&family);
        let pushes = thread::spawn(move || other.push());
        family.before.add();
        family.end_part();
        let accepted = pushes.join().unwrap();
        assert_eq!(family.started.load(Relaxed), usize::from(accepted));
    });
}

// ------------------------------------------------------------------------------------------------ whole engines ----

/// One thread uses a parent's completion while the parent's function returns on another thread, which also runs the
/// child. The operation behind the parent may run on either thread.
#[test]
fn a_child_sees_what_its_parent_did_and_the_operation_behind_the_parent_sees_everything() {
    model(Some(2), Flavour::Contract, || {
        let engine = Engine::builder().kind(EngineKind::Naive).build().unwrap();
        let (token, data) = (engine.token(), Arc::new([Data::new(), Data::new(), Data::new()]));
        let thread = Arc::new(std::sync::Mutex::new(None));
        let (t, inside, out) = (token.clone(), Arc::clone(&data), Arc::clone(&thread));
        engine
            .op("parent")
            .writes([&token])
            .with_children()
            .push((raddle::cx(), completion()), move |(cx, done): (_, Completion)| {
                let by_completion = Arc::clone(&inside);
                let finishes = thread::spawn(move || {
                    by_completion[1].add();
                    done.complete();
                });
                *out.lock().unwrap() = Some(finishes);
                inside[0].add();
                let child = move || {
                    assert_eq!(inside[0].get(), 1);
                    inside[2].add();
                };
                cx.child("child").writes([&t]).push((), move |()| child()).unwrap();
            })
            .unwrap();
        let behind = Arc::clone(&data);
        engine
            .op("behind")
            .writes([&token])
            .push((), move |()| assert_eq!(behind.each_ref().map(Data::get), [1; 3]))
            .unwrap();
        let finishes = thread.lock().unwrap().take().unwrap();
        finishes.join().unwrap();
        engine.wait_for_all().unwrap();
        assert_eq!(token.version(), 2);
        drop(token);
    });
}

kills! {
    children_start_when_every_part_of_the_work_of_their_parent_has_ended {
        "part::ENDED": "Causality violation",
        "part::LAST": "Causality violation",
        "step::EVERY_PART_COUNTS": "a child has started during a part",
    }
    a_parent_is_complete_after_its_children_and_sees_what_they_did {
        "child::ENDED": "Causality violation",
        "child::LAST": "Causality violation",
        "step::WORK_HAS_A_SHARE": "the parent is complete before a child",
    }
    a_child_that_is_pushed_while_the_work_of_its_parent_ends_starts_or_is_refused {
        "step::ADMIT_WHILE_WORKING": "a child is pushed after the others have started",
    }
}
