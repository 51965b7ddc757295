//! What groups, parents with their children, and scopes take of memory, and that this grows no faster than their number
//! where they are nested.

use raddle_testkit as common;

use std::{
    sync::{Mutex, atomic::Ordering::Relaxed, mpsc},
    thread,
};

use common::{alone, hold, lock, watched};
use raddle::{Completion, Engine, EngineKind, OpContext, Var, completion, cx};

use crate::waits::BYTES;

/// The limit on the bytes that a group, a parent, a member of a group or a scope takes.
const LIMIT: isize = 600;

/// The number of measured things. What does not grow with it is less than a byte each.
const MANY: usize = 4_000;

fn naive() -> Engine {
    Engine::builder().kind(EngineKind::Naive).build().expect("an engine")
}

/// Returns the number of bytes that each of the `many` things takes that `make` has made when it returns.
fn bytes_each<T>(many: usize, make: impl FnOnce(usize) -> T) -> (isize, T) {
    let before = BYTES.load(Relaxed);
    let made = make(many);
    ((BYTES.load(Relaxed) - before) / many as isize, made)
}

#[track_caller]
fn assert_at_most(limit: isize, what: &str, each: isize) {
    println!("{what}: {each} bytes");
    assert!(each <= limit, "{what} takes {each} bytes, more than {limit}");
}

#[test]
#[cfg_attr(miri, ignore = "needs many operations")]
fn groups_their_members_and_parents_take_at_most_600_bytes() {
    let _alone = alone();
    watched(|| {
        let (engine, mut groups) = (naive(), Vec::with_capacity(2 * MANY + 1));
        groups.push(engine.group());
        let (each, ()) = bytes_each(MANY, |many| groups.extend((0..many).map(|_| engine.group())));
        assert_at_most(LIMIT, "a group", each);
        let (each, ()) = bytes_each(MANY, |many| (0..many).for_each(|at| groups.push(groups[at].group())));
        assert_at_most(LIMIT, "a nested group", each);

        let token = engine.token();
        let gate = hold(&engine, &token);
        let group = &groups[0];
        let member = |_| group.op("").reads([&token]).push((), |()| ()).expect("an open engine");
        let (each, ()) = bytes_each(MANY, |many| (0..many).for_each(member));
        assert_at_most(LIMIT, "a member of a group", each);
        let parent = |_| group.op("").reads([&token]).with_children().push((), |()| ()).expect("an open engine");
        let (each, ()) = bytes_each(MANY, |many| (0..many).for_each(parent));
        assert_at_most(LIMIT, "a parent that has not started", each);
        gate.open();
        engine.wait_for_all().expect("no operation should fail");

        let waiting = Mutex::new(Vec::<Completion>::with_capacity(4 * MANY));
        let waiting: &'static Mutex<_> = Box::leak(Box::new(waiting));
        let with_children = |children: usize| {
            let parent = move |cx: &OpContext<'_>| {
                for _ in 0..children {
                    cx.child("").push(completion(), |done| lock(waiting).push(done)).expect("a parent");
                }
            };
            let push = |_| engine.op("").with_children().push(cx(), move |cx| parent(cx)).expect("an open engine");
            bytes_each(MANY, |many| (0..many).for_each(push)).0
        };
        let (with_one, with_two) = (with_children(1), with_children(2));
        assert_eq!(lock(waiting).len(), 3 * MANY);
        assert_at_most(LIMIT, "a parent that has started", with_one - (with_two - with_one));
        assert_at_most(LIMIT, "a child", with_two - with_one);
        std::mem::take(&mut *lock(waiting)).into_iter().for_each(Completion::complete);
        engine.wait_for_all().expect("no operation should fail");
    });
}

/// Opens scopes in one another and then calls `inside`.
type Nest = fn(&Engine, depth: usize, inside: &(dyn Fn() + Sync));

fn in_functions(engine: &Engine, depth: usize, inside: &(dyn Fn() + Sync)) {
    match depth {
        0 => inside(),
        _ => engine.scope(|_| in_functions(engine, depth - 1, inside)).expect("no operation should fail"),
    }
}

fn in_operations(engine: &Engine, depth: usize, inside: &(dyn Fn() + Sync)) {
    if depth == 0 {
        return inside();
    }
    let nest = |()| in_operations(engine, depth - 1, inside);
    engine.try_scope(|s| Ok(s.op("").push((), nest)?)).expect("no operation should fail");
}

fn with_variables(engine: &Engine, depth: usize, inside: &(dyn Fn() + Sync)) {
    if depth == 0 {
        return inside();
    }
    let nest = |value: &mut usize| {
        with_variables(engine, depth - 1, inside);
        *value += 1;
    };
    engine.try_scope(|s| Ok(s.op("").push(s.var(0).write(), nest)?)).expect("no operation should fail");
}

/// Runs `f` on a thread with a large stack.
fn on_a_large_stack(f: impl FnOnce() + Send + 'static) {
    let _alone = alone();
    watched(|| thread::Builder::new().stack_size(1 << 30).spawn(f).expect("a thread").join().expect("no panic"));
}

#[test]
#[cfg_attr(miri, ignore = "needs many operations")]
fn the_memory_of_nested_scopes_grows_with_their_number() {
    // An operation in a scope, with its function and its handle, takes up to 408 bytes, and a variable up to 392, if the
    // pool keeps no records of other tests.
    let cases: [(&str, Nest, isize); 3] = [
        ("a scope", in_functions, LIMIT),
        ("a scope in an operation", in_operations, LIMIT + 408),
        ("a scope with a variable in an operation", with_variables, LIMIT + 800),
    ];
    on_a_large_stack(move || {
        for (what, nest, limit) in cases {
            // A naive engine runs every operation on this thread. A thread that sleeps in a wait has a list of what it
            // is inside of, so each such thread makes the memory grow with the depth once more.
            let (engine, deepest, before) = (naive(), Mutex::new(0), BYTES.load(Relaxed));
            nest(&engine, MANY, &|| *lock(&deepest) = BYTES.load(Relaxed));
            let each = (*lock(&deepest) - before) / MANY as isize;
            assert_at_most(limit, what, each);
        }
    });
}

fn push_nested(cx: &OpContext<'_>, var: &Var<usize>, depth: usize, sender: mpsc::Sender<Completion>) {
    if depth == 0 {
        let pushed =
            cx.child("").push((var.write(), completion()), move |(_, done)| sender.send(done).expect("a test"));
        return pushed.expect("a parent");
    }
    let inside = var.clone();
    let child = cx.child("").with_children();
    let pushed = child.push((raddle::cx(), var.write()), move |(cx, _)| push_nested(cx, &inside, depth - 1, sender));
    pushed.expect("a parent");
}

#[test]
#[cfg_attr(miri, ignore = "needs many operations")]
fn the_memory_of_nested_children_grows_with_their_number_and_they_end_on_a_small_stack() {
    let _alone = alone();
    watched(|| {
        for kind in [EngineKind::Naive, EngineKind::PerDevice] {
            let engine = common::engine(kind, 1);
            let (sender, receiver) = mpsc::channel();
            let var = engine.var(0);
            let (each, done) = bytes_each(MANY, |many| {
                let inside = var.clone();
                let root = engine.op("").with_children();
                let pushed = root.push((cx(), var.write()), move |(cx, _)| push_nested(cx, &inside, many, sender));
                pushed.expect("an open engine");
                receiver.recv().expect("the innermost child should start")
            });
            // The limits of a child and the family's variable take up to 600 bytes.
            assert_at_most(2 * LIMIT, "a parent that is the only child of another", each);
            let small = thread::Builder::new().stack_size(192 << 10);
            small.spawn(move || done.complete()).expect("a thread").join().expect("no panic");
            engine.wait_for_all().expect("no operation should fail");
        }
    });
}

#[test]
#[cfg_attr(miri, ignore = "needs many groups")]
fn nested_groups_are_dropped_on_a_small_stack() {
    let _alone = alone();
    watched(|| {
        let engine = naive();
        let mut group = engine.group();
        (0..50_000).for_each(|_| group = group.group());
        assert!(!group.is_cancelled());
        let run = move || {
            group.op("").push((), |()| ()).expect("an open engine");
            group.wait().expect("no operation should fail");
            drop(group);
        };
        thread::Builder::new().stack_size(192 << 10).spawn(run).expect("a thread").join().expect("no panic");
    });
}
