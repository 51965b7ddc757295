//! Tests of the checker, with traces that break the rule.

use std::time::Duration;

use super::*;
use crate::Engine;

/// Returns a trace of two threads that push operations on the same two variables.
fn trace() -> Trace {
    let recorder = Recorder::new();
    let engine = Engine::builder().workers(2).recorder(&recorder).build().expect("an engine");
    let (x, y) = (engine.var(0), engine.var(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..50 {
                    engine
                        .op("both")
                        .push((x.write(), y.write()), |(x, y)| *x += *y)
                        .expect("the engine should be open");
                    engine.op("read").push(x.read(), |_| {}).expect("the engine should be open");
                }
            });
        }
    });
    engine.wait_for_all().expect("nothing should fail");
    recorder.take()
}

fn indices(trace: &Trace, name: &str) -> Vec<usize> {
    (0..trace.ops.len()).filter(|&index| trace.ops[index].name.as_str() == name).collect()
}

#[test]
fn a_trace_of_an_engine_is_in_order() {
    let report = trace().check_order().expect("the trace should be in order");
    assert!(report.operations >= 200 && report.conflicts >= 200, "{report:?}");
}

#[test]
fn an_overlap_is_found() {
    let mut trace = trace();
    let both = indices(&trace, "both");
    let late = trace.ops[*both.last().expect("there should be operations")].ended;
    trace.ops[both[3]].ended = late;
    let violation = trace.check_order().expect_err("the trace should be out of order");
    assert!(matches!(violation, OrderViolation::Overlap { .. }), "{violation}");
}

#[test]
fn an_overlap_of_mutations_that_follow_a_reader_is_found() {
    let recorder = Recorder::new();
    let engine = Engine::builder().workers(1).recorder(&recorder).build().expect("an engine");
    let x = engine.var(0);
    engine.op("read").push(x.read(), |_| {}).expect("the engine should be open");
    for name in ["second", "third"] {
        engine.op(name).push(x.write(), |x| *x += 1).expect("the engine should be open");
    }
    engine.wait_for_all().expect("nothing should fail");
    let mut trace = recorder.take();
    trace.check_order().expect("the trace should be in order");
    let [second, third] = ["second", "third"].map(|name| indices(&trace, name)[0]);
    trace.ops[second].ended = trace.ops[third].ended;
    let violation = trace.check_order().expect_err("the trace should be out of order");
    assert!(matches!(violation, OrderViolation::Overlap { .. }), "{violation}");
}

/// Returns a trace of three readers waiting for an operation that mutates two variables: one that all of them read,
/// and one that only the third reads.
fn trace_of_readers() -> (Trace, [usize; 4]) {
    let recorder = Recorder::new();
    let engine = Engine::builder().workers(1).recorder(&recorder).build().expect("an engine");
    let (x, y) = (engine.var(0).named("x"), engine.var(0));
    let (go, gone) = std::sync::mpsc::channel::<()>();
    engine.op("write").push((x.write(), y.write()), move |_| _ = gone.recv()).expect("the engine should be open");
    engine.op("first").push(x.read(), |_| {}).expect("the engine should be open");
    engine.op("second").push(x.read(), |_| {}).expect("the engine should be open");
    engine.op("third").push((x.read(), y.read()), |_| {}).expect("the engine should be open");
    std::thread::sleep(Duration::from_micros(2));
    drop(go);
    engine.wait_for_all().expect("nothing should fail");
    let trace = recorder.take();
    let places = ["write", "first", "second", "third"].map(|name| indices(&trace, name)[0]);
    (trace, places)
}

#[test]
fn a_reader_that_waited_for_another_reader_is_found() {
    let (trace, [write, first, second, third]) = trace_of_readers();
    // A single worker runs the readers one after the other, but all of them were ready at the same time.
    let report = trace.check_order().expect("the trace should be in order");
    assert_eq!((report.separate_readers, report.overlapping_readers), (2, 0));
    assert!([first, second, third].iter().all(|&reader| trace.ops[reader].ready == trace.ops[write].ended));
    for late in [second, third] {
        let mut trace = trace.clone();
        trace.ops[late].ready = trace.ops[first].ended;
        let violation = trace.check_order().expect_err("a reader should be late");
        let text = violation.to_string();
        let OrderViolation::LateReader { variable, first: cause, second: found } = violation else { panic!("{text}") };
        assert_eq!((&*variable, cause.id, found.id), ("x", trace.ops[first].id, trace.ops[late].id), "{text}");
        assert!(text.contains("became ready only when `first` pushed at src/trace/tests.rs:"), "{text}");
    }
}

#[test]
fn a_reader_that_something_else_held_back_is_not_late() {
    let (trace, [_, first, second, third]) = trace_of_readers();
    // The first reader also mutates another variable, which the third reads.
    let mut other = trace.clone();
    let variable = VarId(u64::MAX >> 2);
    other.ops[first].accesses.push((variable, AccessMode::Write));
    other.ops[third].accesses.push((variable, AccessMode::Read));
    other.ops[third].ready = other.ops[first].ended;
    other.check_order().expect("the third reader should have waited for the other variable");
    // The second reader was pushed when the first one ended.
    let mut pushed = trace.clone();
    pushed.ops[second].pushed = pushed.ops[first].ended.expect("the operation should have ended");
    pushed.ops[second].ready = pushed.ops[first].ended;
    pushed.ops[third].pushed = pushed.ops[second].pushed;
    pushed.check_order().expect("the second reader should have been ready when it was pushed");
    // Waits for a variable are recorded as readers, but wait for readers.
    for internal in [first, second] {
        let mut wait = trace.clone();
        wait.ops[second].ready = wait.ops[first].ended;
        wait.ops[internal].internal = true;
        wait.check_order().expect("an internal operation should not be checked");
    }
}

#[test]
fn a_reversed_pair_is_found() {
    let mut trace = trace();
    let both = indices(&trace, "both");
    let same = |index: &usize| trace.ops[*index].pushed_by == trace.ops[both[0]].pushed_by;
    let of_one: Vec<usize> = both.iter().copied().filter(same).collect();
    // Swaps the times of the first and the last operation.
    let (first, last) = (of_one[0], of_one[of_one.len() - 1]);
    let times = |op: &TracedOp| (op.started, op.ended, op.runs.clone());
    let (of_first, of_last) = (times(&trace.ops[first]), times(&trace.ops[last]));
    (trace.ops[first].started, trace.ops[first].ended, trace.ops[first].runs) = of_last;
    (trace.ops[last].started, trace.ops[last].ended, trace.ops[last].runs) = of_first;
    let violation = trace.check_order().expect_err("the trace should be out of order");
    assert!(matches!(violation, OrderViolation::Cycle(_)), "{violation}");
}

/// The second operation had started when another thread pushed the third, so the first was pushed before the third.
#[test]
fn an_operation_that_overtook_one_of_another_thread_is_found() {
    let recorder = Recorder::new();
    let engine = Engine::builder().workers(1).recorder(&recorder).build().expect("an engine");
    let x = engine.var(0);
    engine.op("first").push(x.write(), |x| *x += 1).expect("the engine should be open");
    engine.op("second").push((), |()| {}).expect("the engine should be open");
    engine.wait_for_all().expect("nothing should fail");
    let push = || engine.op("third").push(x.write(), |x| *x += 1).expect("the engine should be open");
    std::thread::scope(|scope| _ = scope.spawn(push));
    engine.wait_for_all().expect("nothing should fail");
    let mut trace = recorder.take();
    trace.check_order().expect("the trace should be in order");
    let [first, third] = ["first", "third"].map(|name| indices(&trace, name)[0]);
    let late = trace.ops[third].ended;
    (trace.ops[first].started, trace.ops[first].ended) = (late, late);
    let violation = trace.check_order().expect_err("the trace should be out of order");
    assert!(matches!(violation, OrderViolation::Cycle(_)), "{violation}");
}

#[test]
fn variables_that_disagree_about_the_order_are_found() {
    let mut trace = trace();
    let both = indices(&trace, "both");
    // Splits `b` into two operations, one for each variable.
    let (a, b) = (both[0], both[1]);
    let name = trace.ops[a].accesses[0].0;
    let mut late = trace.ops[b].clone();
    let last = trace.ops.iter().filter_map(|op| op.ended).max().expect("there should be operations");
    late.accesses.retain(|access| access.0 == name);
    trace.ops[b].accesses.retain(|access| access.0 != name);
    // On one variable, `late` comes before `a`; on the other, `b` comes after `a`. But `late` was pushed after `b`.
    late.started = trace.ops[a].pushed.checked_sub(Duration::from_nanos(2));
    late.ended = late.started;
    late.pushed_by = trace.ops[b].pushed_by;
    late.pushed = last;
    late.id = OpId(u64::MAX);
    trace.ops.push(late);
    let violation = trace.check_order().expect_err("the trace should be out of order");
    assert!(matches!(violation, OrderViolation::Cycle(_)), "{violation}");
}

#[test]
fn a_trace_with_losses_is_not_checked() {
    let mut history = raddle_trace::recording::History::default();
    history.lose(1);
    let trace = history.take(|_| true);
    assert!(matches!(trace.check_order(), Err(OrderViolation::Incomplete { lost: 1 })));
}
