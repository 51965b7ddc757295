//! Dumps of pending work.

use raddle_testkit as common;

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use common::{Gate, HOSTILE, KINDS, THREADED, eventually, hold, occupy, on_kinds, watched, watched_for};
use raddle::{
    Completion, Device, Engine, EngineKind, WeakEngine, completion, cx,
    gpu::SimulatedGpu,
    stream,
    trace::{Dump, ObservedOp, Observer, OpState, PendingOp, Recorder, WaitKind},
};

fn find<'d>(dump: &'d Dump, name: &str) -> &'d PendingOp {
    dump.ops().iter().find(|op| op.label() == name).unwrap_or_else(|| panic!("`{name}` is not pending: {dump}"))
}

fn index(dump: &Dump, name: &str) -> usize {
    dump.ops().iter().position(|op| op.label() == name).unwrap_or_else(|| panic!("`{name}` is not pending: {dump}"))
}

/// Waits until a dump fulfils a condition, and returns that dump.
#[track_caller]
fn dump_when(engine: &Engine, what: &str, condition: impl Fn(&Dump) -> bool) -> Dump {
    let mut dump = engine.dump();
    eventually(what, || {
        dump = engine.dump();
        condition(&dump)
    });
    dump
}

/// Returns the lines of the chain of operations in the text of a dump.
fn chain_of(text: &str) -> Vec<&str> {
    let after = text.lines().skip_while(|line| !line.contains("holds up")).skip(1);
    after.take_while(|line| !line.is_empty()).collect()
}

#[test]
fn what_is_pending_and_what_it_waits_for_is_listed() {
    on_kinds(&THREADED, 1, |engine| {
        let (sender, receiver) = mpsc::channel::<()>();
        let (started, has_started) = mpsc::channel();
        let (x, y) = (engine.var(0).named("x"), engine.var(0).named(format!("y {}", 1)));
        let hold = move || {
            started.send(()).unwrap();
            let _ = receiver.recv();
        };
        engine.op("hold").push(x.write(), move |_| hold()).unwrap();
        has_started.recv().unwrap();
        engine.op("read").priority(5).push((x.read(), y.write()), |_| {}).unwrap();
        engine.op(format!("made at run time {}", 2)).push(y.write(), |_| {}).unwrap();
        engine.op("ready").push((), |()| {}).unwrap();
        let dump = engine.dump();
        assert_eq!((dump.ops().len(), dump.unlisted()), (4, 0), "{dump}");
        let (hold, read, made) = (find(&dump, "hold"), find(&dump, "read"), find(&dump, "made at run time 2"));
        assert_eq!((hold.state, hold.waits_for.len()), (OpState::Running, 0));
        assert_eq!((read.state, &read.waits_for), (OpState::Waiting, &vec![index(&dump, "hold")]));
        assert_eq!(made.waits_for, [index(&dump, "read")]);
        assert_eq!((find(&dump, "ready").state, read.priority), (OpState::Ready, 5));
        let accesses: Vec<_> = read.accesses.iter().map(|access| (access.variable.as_str(), access.waits)).collect();
        assert_eq!(accesses, [("x", true), ("y 1", false)]);
        assert!(read.location.to_string().starts_with(file!()));
        assert_eq!((hold.lane.as_str(), hold.device), ("cpu", Device::Cpu));
        assert_eq!(dump.held_up_by(index(&dump, "hold")), 2);
        assert_eq!(dump.cycle(), None);
        assert_eq!(dump.chain(index(&dump, "made at run time 2")).unwrap().len(), 3);
        let text = dump.to_string();
        assert!(text.starts_with("4 operations are pending.\n\n`hold` pushed at "), "{text}");
        assert!(text.contains(" is running and holds up 2 others:\n"), "{text}");
        assert!(text.contains("waits for `hold`") && text.contains("mutates `y 1`"), "{text}");
        // One empty line is between the chain and the operations, since no thread waits.
        assert!(text.split("\n\n").count() == 3 && !text.contains("\n\n\n"), "{text}");
        let mut prioritized = text.lines().filter(|line| line.contains(", priority "));
        let line = prioritized.next().expect("an operation has a priority");
        assert!(line.starts_with(&format!("{:<14} `read` pushed at ", "waiting")), "{text}");
        assert!(line.ends_with(", lane cpu, priority 5") && prioritized.next().is_none(), "{text}");
        let dot = dump.to_dot();
        let arrow = format!("n{} -> n{};", index(&dump, "read"), index(&dump, "hold"));
        assert!(dot.starts_with("digraph") && dot.contains(&arrow), "{dot}");
        let json = dump.to_json();
        assert!(json.contains(r#""name":"hold","location":"#) && json.contains(r#""state":"Running""#), "{json}");
        assert_eq!(json.matches('{').count(), json.matches('}').count());
        drop(sender);
        engine.wait_for_all().unwrap();
        let dump = engine.dump();
        assert!(dump.ops().is_empty() && dump.unlisted() == 0, "{dump}");
    });
}

/// The operation is counted before an observer is called, and listed from then on.
#[test]
fn an_operation_that_is_being_pushed_is_counted_but_not_listed() {
    struct Dumping(mpsc::Sender<Dump>, Arc<OnceLock<WeakEngine>>);
    impl Observer for Dumping {
        fn pushed(&self, op: &ObservedOp<'_>) {
            if op.name == "pushed" {
                self.0.send(self.1.get().unwrap().dump()).unwrap();
            }
        }
    }
    for kind in KINDS {
        watched(move || {
            let ((sender, dumps), own) = (mpsc::channel(), Arc::new(OnceLock::new()));
            let dumping = Dumping(sender, Arc::clone(&own));
            let engine = Engine::builder().kind(kind).workers(1).observer(dumping).build().unwrap();
            own.set(engine.downgrade()).ok().unwrap();
            engine.op("pushed").push((), |()| {}).unwrap();
            let dump = dumps.recv().unwrap();
            assert_eq!((dump.ops().len(), dump.unlisted()), (0, 1), "{kind}: {dump}");
            assert_eq!(dump.to_string(), "1 operation is pending.\n\n… and 1 more\n", "{kind}");
            engine.wait_for_all().unwrap();
        });
    }
}

#[test]
fn what_waits_for_readers_does_not_hold_the_variable() {
    on_kinds(&THREADED, 1, |engine| {
        let (sender, receiver) = mpsc::channel::<()>();
        let x = engine.var(0);
        engine.op("read").push(x.read(), move |_| _ = receiver.recv()).unwrap();
        engine.op("also reads").push(x.read(), |_| {}).unwrap();
        engine.op("write").push(x.write(), |_| {}).unwrap();
        let dump = engine.dump();
        let waits = |name: &str| find(&dump, name).accesses[0].waits;
        assert_eq!(["read", "also reads", "write"].map(waits), [false, false, true], "{dump}");
        assert_eq!(find(&dump, "write").state, OpState::Waiting, "{dump}");
        drop(sender);
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_mutation_waits_for_each_of_many_readers_whether_they_wait_or_not() {
    on_kinds(&THREADED, 1, |engine| {
        let (busy, x, y) = (occupy(&engine, 1), engine.var(0), engine.var(0));
        engine.op("hold").push(y.write(), |_| {}).unwrap();
        for _ in 0..2000 {
            engine.op("read").push((x.read(), y.read()), |_| {}).unwrap();
        }
        engine.op("write held").push(x.write(), |_| {}).unwrap();
        engine.op("write awaited").push(y.write(), |_| {}).unwrap();
        let dump = engine.dump();
        busy.open();
        assert_eq!(find(&dump, "write held").waits_for.len(), 2000, "{dump}");
        assert_eq!(find(&dump, "write awaited").waits_for.len(), 1 + 2000, "{dump}");
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_wait_for_all_in_an_operation_of_another_engine_lists_what_it_waits_for() {
    on_kinds(&THREADED, 1, |engine| {
        let (other, x) = (common::engine(engine.kind(), 1), engine.token());
        let gate = hold(&engine, &x);
        let inside = engine.clone();
        let waits = other.op("waits").submit((), move |()| inside.wait_for_all()).unwrap();
        eventually("the thread waits", || !engine.dump().waits().is_empty());
        let dump = engine.dump();
        gate.open();
        assert_eq!((dump.waits()[0].kind, dump.waits()[0].waits_for.len()), (WaitKind::All, 1), "{dump}");
        waits.wait().unwrap().unwrap();
    });
}

#[test]
fn the_text_of_a_dump_has_a_hundred_operations_and_counts_the_others() {
    on_kinds(&THREADED, 1, |engine| {
        let busy = occupy(&engine, 1);
        for (pushed, more) in [(0..99, None), (99..100, Some("… and 1 more")), (100..102, Some("… and 3 more"))] {
            pushed.for_each(|number| engine.op(format!("ready {number}")).push((), |()| {}).unwrap());
            let text = engine.dump().to_string();
            assert_eq!(text.lines().filter(|line| line.contains("` pushed at ")).count(), 100, "{text}");
            assert_eq!(text.lines().find(|line| line.starts_with('…')), more, "{text}");
            assert!(!text.contains("holds up"), "{text}");
        }
        busy.open();
        engine.wait_for_all().unwrap();
    });
}

/// Returns the entries of operations in the text of a dump, and its last line.
fn entries_of(text: &str) -> (Vec<&str>, &str) {
    let last = text.split("\n\n").last().unwrap();
    (last.lines().filter(|line| line.contains("` pushed at ")).collect(), last.lines().last().unwrap())
}

/// More than half of what is pending are drops, and what runs was pushed last.
#[test]
fn the_text_of_a_dump_begins_with_what_runs_and_counts_drops_in_its_last_line() {
    on_kinds(&THREADED, 2, |engine| {
        let x = engine.var(vec![1]);
        let gate = hold(&engine, x.as_ref());
        for number in 0..150 {
            let own = engine.var(vec![number]).named("own");
            engine.op(format!("small {number}")).push((x.read(), own.write()), |_| {}).unwrap();
        }
        let y = engine.var(0);
        engine.op("big").push((x.read(), y.write()), |_| {}).unwrap();
        (0..20).for_each(|_| engine.op("behind big").push(y.write(), |_| {}).unwrap());
        let z = engine.token();
        let last = hold(&engine, &z);
        let dump = dump_when(&engine, "the last operation runs", |dump| {
            dump.ops().iter().filter(|op| op.state == OpState::Running).count() == 2
        });
        let text = dump.to_string();
        gate.open();
        last.open();
        engine.wait_for_all().unwrap();
        let (entries, end) = entries_of(&text);
        assert!(entries[..2].iter().all(|line| line.starts_with(&format!("{:<14} `hold` ", "running"))), "{text}");
        assert!(entries[2].starts_with(&format!("{:<14} `big` ", "waiting")), "{text}");
        assert!(text.contains("the engine's own: 150 × `drop` waiting\n"), "{text}");
        assert!(!text.contains("`drop` pushed at"), "{text}");
        // Of 173 operations without the drops, 100 entries are listed, one of which stands for 19 operations.
        assert_eq!((entries.len(), end), (100, "… and 55 more"), "{text}");
        let merged = entries.iter().filter(|line| line.contains(" × `")).collect::<Vec<_>>();
        assert_eq!(merged.len(), 1, "{text}");
        assert!(merged[0].starts_with(&format!("{:<14} 19 × `behind big` pushed at ", "waiting")), "{text}");
    });
}

#[test]
fn equal_entries_of_a_dump_are_merged_with_the_range_of_their_ages() {
    for kind in THREADED {
        watched(move || {
            let recorder = Recorder::new();
            let engine = Engine::builder().kind(kind).workers(1).recorder(&recorder).build().unwrap();
            let (x, y) = (engine.token().named("x"), engine.token().named("y"));
            let gates = [hold(&engine, &x), hold(&engine, &y)];
            for token in [&x, &y, &x] {
                engine.op("use").reads([token]).push((), |()| {}).unwrap();
                thread::sleep(Duration::from_millis(2));
            }
            let text = engine.dump().to_string();
            gates.iter().for_each(Gate::open);
            engine.wait_for_all().unwrap();
            let (entries, _) = entries_of(&text);
            let [_, _, one, other] = entries[..] else { panic!("{text}") };
            let (merged, single) = if one.contains(" × ") { (one, other) } else { (other, one) };
            assert!(
                merged.contains(" 2 × `use` ") && merged.contains(" to ") && merged.contains(" ago, lane"),
                "{text}"
            );
            assert!(single.contains(" `use` ") && !single.contains(" to "), "{text}");
        });
    }
}

#[test]
fn what_guards_hold_is_called_so() {
    on_kinds(&KINDS, 1, |engine| {
        let x = engine.var(0).named("x");
        let guard = common::block_on(engine.acquire(x.write())).unwrap();
        engine.op("behind").push(x.write(), |_| {}).unwrap();
        let text = engine.dump().to_string();
        let head = text.lines().nth(2).unwrap();
        assert!(head.starts_with("`acquire` pushed at ") && head.contains(" is held by guards and holds up 1 other:"));
        let (entries, _) = entries_of(&text);
        assert!(entries[0].starts_with("held by guards `acquire` pushed at "), "{text}");
        assert!(!text.contains("has not ended it yet"), "{text}");
        drop(guard);
        engine.wait_for_all().unwrap();
    });
}

#[test]
#[cfg_attr(miri, ignore = "a hundred threads take too long")]
fn the_text_of_a_dump_has_a_hundred_threads_and_counts_the_others() {
    on_kinds(&THREADED, 1, |engine| {
        let x = engine.token();
        let gate = hold(&engine, &x);
        let mut texts = Vec::new();
        thread::scope(|scope| {
            for waiting in [100, 101] {
                (texts.len() * 100..waiting).for_each(|_| _ = scope.spawn(|| engine.wait_for_all().unwrap()));
                texts.push(dump_when(&engine, "the threads wait", |dump| dump.waits().len() == waiting).to_string());
            }
            gate.open();
        });
        for (text, more) in texts.iter().zip([None, Some("… and 1 more threads")]) {
            assert_eq!(text.lines().filter(|line| line.starts_with("thread `")).count(), 100, "{text}");
            assert_eq!(text.lines().find(|line| line.starts_with('…')), more, "{text}");
        }
    });
}

#[test]
fn of_the_operations_for_which_a_thread_waits_eight_are_printed() {
    on_kinds(&THREADED, 1, |engine| {
        for (count, more) in [(8, None), (9, Some("and for 1 others"))] {
            let (x, group) = (engine.token(), engine.group());
            let gate = hold(&engine, &x);
            (0..count).for_each(|_| group.op("member").reads([&x]).push((), |()| {}).unwrap());
            let text = thread::scope(|scope| {
                scope.spawn(|| group.wait().unwrap());
                let waits = |dump: &Dump| dump.waits().iter().any(|wait| wait.waits_for.len() == count);
                let dump = dump_when(&engine, "the thread waits", waits);
                gate.open();
                dump.to_string()
            });
            // Empty lines separate the number of operations, what holds up the others, the thread, and the operations.
            let [_, _, waiting, _] = text.split("\n\n").collect::<Vec<_>>()[..] else { panic!("{text}") };
            let lines: Vec<&str> = waiting.lines().collect();
            assert!(lines[0].contains("` has been waiting for a group for "), "{text}");
            assert!(lines[1..9].iter().all(|line| line.contains("waits for `member` pushed at ")), "{text}");
            assert_eq!(lines.get(9).map(|line| line.trim_start()), more, "{text}");
        }
    });
}

/// A variable is held by many, and an operation waits for many, if the worker is busy.
#[test]
fn of_the_holders_of_a_variable_three_are_printed_and_of_what_an_operation_waits_for_eight() {
    on_kinds(&THREADED, 1, |engine| {
        for count in [3, 4, 8, 9] {
            let (busy, x) = (occupy(&engine, 1), engine.token().named("x"));
            (0..count).for_each(|_| engine.op("read").reads([&x]).push((), |()| {}).unwrap());
            engine.op("write").writes([&x]).push((), |()| {}).unwrap();
            let text = engine.dump().to_string();
            busy.open();
            engine.wait_for_all().unwrap();
            let held = if count > 3 { format!(" and {} others", count - 3) } else { String::new() };
            let held = format!("{}{held}", ", held by `read`".repeat(3));
            let mut expected = vec![format!("mutates `x`, and waits for it{held}")];
            expected.extend(vec!["waits for `read`".to_owned(); count.min(8)]);
            expected.extend((count > 8).then(|| format!("and for {} others", count - 8)));
            // Only this operation waits.
            let after = text.lines().skip_while(|line| !line.starts_with("waiting ")).skip(1);
            let printed: Vec<&str> = after.map_while(|line| line.strip_prefix("               ")).collect();
            assert_eq!(printed, expected, "{text}");
        }
    });
}

#[test]
fn the_chain_in_the_text_of_a_dump_begins_with_a_wait_of_the_program() {
    on_kinds(&THREADED, 1, |engine| {
        let [x, y, z] = [(); 3].map(|()| engine.token());
        let gate = hold(&engine, &x);
        engine.op("behind").writes([&x, &y]).push((), |()| {}).unwrap();
        engine.op("farther").writes([&y, &z]).push((), |()| {}).unwrap();
        engine.op("farthest").writes([&z]).push((), |()| {}).unwrap();
        let dump = thread::scope(|scope| {
            scope.spawn(|| engine.wait_for_var(&x).unwrap());
            let waits = |dump: &Dump| dump.waits().iter().any(|wait| !wait.waits_for.is_empty());
            let dump = dump_when(&engine, "the thread waits", waits);
            gate.open();
            dump
        });
        let wait = dump.ops().iter().find(|op| op.internal).unwrap();
        let text = dump.to_string();
        let [first, second, third] = chain_of(&text)[..] else { panic!("{text}") };
        assert_eq!(first, format!("  `{}` pushed at {}: waiting", wait.label(), wait.location), "{text}");
        assert!(second.starts_with("  waits for `behind` pushed at ") && second.ends_with(": waiting"), "{text}");
        assert!(third.starts_with("  waits for `hold` pushed at ") && third.ends_with(": running"), "{text}");
    });
}

/// Returns the values, in order, of a field whose values contain neither commas nor braces.
fn field<'j>(json: &'j str, name: &str) -> Vec<&'j str> {
    let key = format!("\"{name}\":");
    json.split(&key).skip(1).map(|rest| rest.split([',', '}']).next().unwrap()).collect()
}

#[test]
fn the_json_of_a_dump_has_the_values_of_the_fields() {
    for kind in THREADED {
        watched(move || {
            let recorder = Recorder::new();
            let engine = Engine::builder().kind(kind).workers(1).recorder(&recorder).build().unwrap();
            let x = engine.token().named("x");
            let (sender, receiver) = mpsc::channel();
            engine.op("open-ended").writes([&x]).push(completion(), move |done| sender.send(done).unwrap()).unwrap();
            let done = receiver.recv().unwrap();
            engine.op("behind").priority(3).reads([&x]).push((), |()| {}).unwrap();
            thread::scope(|scope| {
                let waiter = thread::Builder::new().name("waiter".to_owned());
                waiter.spawn_scoped(scope, || engine.wait_for_var(&x).unwrap()).unwrap();
                eventually("the thread waits", || engine.dump().waits().len() == 1);
                let dump = engine.dump();
                let json = dump.to_json();
                let of_ops = |name: &str, value: &dyn Fn(&PendingOp) -> String| {
                    assert_eq!(field(&json, name), dump.ops().iter().map(value).collect::<Vec<_>>(), "{name}: {json}");
                };
                of_ops("location", &|op| format!("\"{}\"", op.location));
                of_ops("state", &|op| format!("\"{:?}\"", op.state));
                of_ops("device", &|op| format!("\"{}\"", op.device));
                of_ops("lane", &|op| format!("\"{}\"", op.lane));
                of_ops("place", &|op| op.place.as_ref().map_or("null".to_owned(), |place| format!("\"{place}\"")));
                of_ops("age", &|op| op.age.expect("the engine has a recorder").as_nanos().to_string());
                of_ops("priority", &|op| op.priority.to_string());
                of_ops("asynchronous", &|op| op.asynchronous.to_string());
                of_ops("internal", &|op| op.internal.to_string());
                let [wait] = dump.waits() else { panic!("{dump}") };
                assert_eq!(field(&json, "thread"), ["\"waiter\""]);
                assert_eq!(field(&json, "kind"), [format!("\"{:?}\"", wait.kind)]);
                assert_eq!(field(&json, "time"), [wait.time.as_nanos().to_string()]);
                assert_eq!(field(&json, "unlisted"), [dump.unlisted().to_string()]);
                done.complete();
            });
            engine.wait_for_all().unwrap();
        });
    }
}

/// The number of operations: large enough that quadratic searches would exceed the time limit. Sanitizers slow every
/// search tenfold.
const MANY: usize = 20_000;

#[test]
fn a_dump_of_many_operations_is_fast() {
    on_kinds(&THREADED, 1, |engine| {
        let (sender, receiver) = mpsc::channel::<()>();
        let (x, y) = (engine.var(0).named("x"), engine.var(0).named("y"));
        engine.op("hold").push(x.write(), move |_| _ = receiver.recv()).unwrap();
        for _ in 0..MANY {
            engine.op("chain").push(x.write(), |x| *x += 1).unwrap();
        }
        for _ in 0..MANY {
            engine.op("read").push((x.read(), y.read()), |_| {}).unwrap();
        }
        engine.op("last").push((x.write(), y.write()), |_| {}).unwrap();
        let start = Instant::now();
        let dump = engine.dump();
        let text = dump.to_string();
        assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
        assert_eq!((dump.ops().len(), dump.unlisted()), (2 * MANY + 2, 0));
        assert!(
            text.contains("`hold` pushed at") && text.contains(&format!("holds up {} others", 2 * MANY + 1)),
            "{text}"
        );
        assert!(
            text.contains("more, the last of which") && text.contains(&format!("and {} more", 2 * MANY + 2 - 10_000)),
            "{text}"
        );
        assert_eq!(dump.chain(index(&dump, "last")).unwrap().last(), Some(&index(&dump, "hold")));
        drop(sender);
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_long_chain_is_printed_as_its_first_eleven_operations_and_its_last() {
    on_kinds(&THREADED, 1, |engine| {
        for (length, omitted) in [(11, None), (12, None), (13, Some(1)), (30, Some(18))] {
            let x = engine.token();
            let gate = hold(&engine, &x);
            (1..length).for_each(|number| engine.op(format!("step {number}")).writes([&x]).push((), |()| {}).unwrap());
            let text = engine.dump().to_string();
            // The chain begins with the operation that waits longest.
            let chain = chain_of(&text);
            let printed = chain.iter().filter(|line| line.starts_with("  waits for `")).count();
            assert_eq!(printed, length.min(12) - 1, "{text}");
            let more = omitted.map(|omitted| (11, format!("  … and {omitted} more, the last of which")));
            let gaps = chain.iter().enumerate().filter(|(_, line)| line.contains("the last of which"));
            let gaps: Vec<(usize, String)> = gaps.map(|(at, line)| (at, (*line).to_owned())).collect();
            assert_eq!(gaps, Vec::from_iter(more), "{text}");
            gate.open();
            engine.wait_for_all().unwrap();
        }
    });
}

#[test]
fn an_asynchronous_operation_runs_until_its_completion_is_used() {
    on_kinds(&KINDS, 1, |engine| {
        let (sender, receiver) = mpsc::channel();
        engine.op("ask").push(completion(), move |completion| sender.send(completion).unwrap()).unwrap();
        let completion = receiver.recv().unwrap();
        let dump = engine.dump();
        let ask = find(&dump, "ask");
        assert!(ask.asynchronous && ask.state == OpState::Running, "{dump}");
        assert!(dump.to_string().contains("its completion, its future or a guard has not ended it yet"), "{dump}");
        completion.complete();
        engine.wait_for_all().unwrap();
        assert!(engine.dump().ops().is_empty());
    });
}

#[test]
fn a_wait_inside_a_function_is_part_of_the_chain() {
    on_kinds(&THREADED, 2, |engine| {
        let (sender, receiver) = mpsc::channel::<()>();
        let (x, inner) = (engine.var(0), engine.downgrade());
        let hold = engine.op("hold").submit((), move |()| _ = receiver.recv()).unwrap();
        engine
            .op("waiter")
            .push(x.write(), move |_| {
                let mut hold = hold;
                hold.wait_timeout(Duration::from_secs(60)).unwrap();
                drop(inner);
            })
            .unwrap();
        engine.op("behind").push(x.read(), |_| {}).unwrap();
        eventually("the function waits", || find(&engine.dump(), "waiter").state == OpState::WaitingInside);
        let dump = engine.dump();
        assert_eq!(find(&dump, "waiter").waits_for, [index(&dump, "hold")]);
        let chain: Vec<_> =
            dump.chain(index(&dump, "behind")).unwrap().into_iter().map(|at| dump.ops()[at].label()).collect();
        assert_eq!(chain, ["behind", "waiter", "hold"]);
        drop(sender);
        engine.wait_for_all().unwrap();
    });
}

/// Pushes a ring of `length` operations. Each one's function waits for an operation queued behind the next one.
fn push_ring(engine: &Engine, length: usize) {
    let vars: Vec<_> = (0..length).map(|_| engine.var(0)).collect();
    let channels: Vec<_> = vars
        .iter()
        .map(|own| {
            let (sender, receiver) = mpsc::channel::<raddle::OpHandle<()>>();
            // All these waits have time limits. No search for a deadlock follows such a wait of another operation, so
            // none is refused.
            let wait = move |_: &mut i32| _ = receiver.recv().unwrap().wait_timeout(Duration::from_secs(2));
            engine.op("holder").push(own.write(), wait).unwrap();
            sender
        })
        .collect();
    for (sender, next) in channels.iter().zip(vars.iter().cycle().skip(1)) {
        sender.send(engine.op("behind").submit(next.write(), |_| {}).unwrap()).unwrap();
    }
}

/// Waits until the functions of `count` operations are waiting, and returns a dump taken then.
fn dump_of_waits(engine: &Engine, count: usize) -> Dump {
    dump_when(engine, "the functions wait", |dump| {
        dump.ops().iter().filter(|op| op.state == OpState::WaitingInside).count() == count
    })
}

#[test]
fn operations_that_wait_for_each_other_are_a_cycle() {
    watched(|| {
        let engine = Engine::builder().workers(2).build().unwrap();
        push_ring(&engine, 2);
        let dump = dump_of_waits(&engine, 2);
        let text = dump.to_string();
        assert_eq!(dump.cycle().map(|cycle| cycle.len()), Some(4), "{text}");
        assert!(text.contains("These wait for each other") && text.contains("waits for `behind"), "{text}");
        let _ = engine.wait_for_all();
    });
}

#[test]
fn the_shorter_of_two_cycles_is_shown_wherever_it_is_in_the_list() {
    for lengths in [[3, 2], [2, 3]] {
        watched(move || {
            let engine = Engine::builder().workers(5).pin(false).build().unwrap();
            lengths.iter().for_each(|&length| push_ring(&engine, length));
            let dump = dump_of_waits(&engine, 5);
            assert_eq!(dump.cycle().map(|cycle| cycle.len()), Some(4), "{dump}");
            let _ = engine.wait_for_all();
        });
    }
}

#[test]
fn an_operation_of_a_gpu_is_ending_until_the_gpu_has_completed_it() {
    watched(|| {
        let engine = Engine::builder().workers(1).gpu(SimulatedGpu::new()).build().unwrap();
        let value = engine.device_var::<u64>(Device::Gpu(0), 4).unwrap();
        engine
            .op("kernel")
            .on(Device::Gpu(0))
            .try_push((value.write(), stream()), |(value, stream)| {
                let mut stream = stream.simulated().expect("the device should be simulated");
                Ok(stream.launch(Duration::from_millis(200), value, |value| value.fill(1))?)
            })
            .unwrap();
        eventually("the kernel is issued", || find(&engine.dump(), "kernel").state == OpState::Ending);
        let dump = engine.dump();
        let kernel = find(&dump, "kernel");
        assert_eq!((kernel.device, kernel.lane.as_str()), (Device::Gpu(0), "gpu(0) compute"));
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn with_a_recorder_places_and_ages_are_known() {
    watched(|| {
        let recorder = Recorder::new();
        let engine = Engine::builder().workers(1).recorder(&recorder).build().unwrap();
        let (sender, receiver) = mpsc::channel::<()>();
        let (started, has_started) = mpsc::channel();
        let hold = move || {
            started.send(()).unwrap();
            let _ = receiver.recv();
        };
        engine.op("hold").push((), move |()| hold()).unwrap();
        has_started.recv().unwrap();
        thread::sleep(Duration::from_millis(20));
        let dump = engine.dump();
        let hold = find(&dump, "hold");
        assert_eq!(hold.place.as_deref(), Some("cpu 0"));
        assert!(hold.age.unwrap() >= Duration::from_millis(20), "{dump}");
        drop(sender);
    });
}

#[test]
fn the_place_of_an_operation_on_an_engine_without_workers_is_the_thread_that_pushes_it() {
    watched(|| {
        let engine = Engine::builder().kind(EngineKind::Naive).recorder(&Recorder::new()).build().unwrap();
        let look = engine.op("look").submit(cx(), |cx| find(&cx.engine().dump(), "look").place.clone()).unwrap();
        assert_eq!(look.wait().unwrap().as_deref(), thread::current().name());
    });
}

#[test]
fn an_engine_dumps_only_its_own_operations() {
    on_kinds(&THREADED, 1, |engine| {
        let other = Engine::builder().kind(EngineKind::PerDevice).workers(1).build().unwrap();
        let (sender, receiver) = mpsc::channel::<()>();
        engine.op("ours").push((), move |()| _ = receiver.recv()).unwrap();
        assert!(other.dump().ops().is_empty());
        assert_eq!(engine.dump().ops().len(), 1);
        drop(sender);
    });
}

#[test]
fn an_operation_dumps_its_own_engine() {
    on_kinds(&KINDS, 1, |engine| {
        let x = engine.var(0).named("x");
        let seen = engine
            .op("look")
            .submit((cx(), x.write()), |(cx, _)| {
                let dump = cx.engine().dump();
                (find(&dump, "look").state, find(&dump, "look").accesses[0].variable.clone())
            })
            .unwrap();
        assert_eq!(seen.wait().unwrap(), (OpState::Running, "x".to_owned()));
    });
}

/// A recorded operation can be found in a dump only once it has its number, however short the way of its push.
#[test]
fn every_operation_in_dumps_of_a_recorded_engine_has_an_age() {
    watched_for(Duration::from_secs(60), || {
        let engine = Engine::builder().workers(1).recorder(&Recorder::with_capacity(512)).build().unwrap();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let push = || {
                let vars: [_; 4] = std::array::from_fn(|_| engine.var(0u64));
                let [a, b, c, d] = &vars;
                let start = Instant::now();
                while start.elapsed() < Duration::from_millis(500) {
                    for name in ["", "named"] {
                        engine.op(name).push(a.write(), |_| {}).unwrap();
                        engine.op(name).push((a.write(), b.read()), |_| {}).unwrap();
                        engine.op(name).push((a.write(), b.read(), c.write()), |_| {}).unwrap();
                        engine.op(name).push((d.write(), c.read(), b.read(), a.read()), |_| {}).unwrap();
                    }
                    engine.wait_for_all().unwrap();
                }
            };
            let pushers = [scope.spawn(push), scope.spawn(push)];
            let dumper = scope.spawn(|| {
                let mut seen = 0;
                while !over.load(Relaxed) {
                    let dump = engine.dump();
                    assert!(dump.ops().iter().all(|op| op.age.is_some()), "an operation has no age: {dump}");
                    seen += dump.ops().len();
                }
                seen
            });
            for pusher in pushers {
                pusher.join().unwrap();
            }
            over.store(true, Relaxed);
            assert!(dumper.join().unwrap() > 0, "no dump had an operation");
        });
    });
}

#[test]
fn dumps_while_threads_push_are_consistent() {
    watched_for(Duration::from_secs(60), || {
        let engine = Engine::builder().workers(2).build().unwrap();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let start = Instant::now();
                    let mut round = 0;
                    while start.elapsed() < Duration::from_millis(700) {
                        let vars: Vec<_> =
                            (0..6).map(|number| engine.var(0u64).named(format!("var {number}"))).collect();
                        for number in 0..50usize {
                            let name = format!("operation {number} of {round}");
                            let (a, b) = (&vars[number % 6], &vars[(number + 1) % 6]);
                            if number % 7 == 0 {
                                engine.op(name).writes(vars.iter().map(raddle::Var::token)).push((), |()| {}).unwrap();
                            } else if number % 5 == 0 {
                                drop(engine.op(name).submit((a.read(), b.write()), |(a, b)| *b += a).unwrap());
                            } else {
                                engine.op(name).push((a.write(), b.read()), |(a, b)| *a += b).unwrap();
                            }
                        }
                        // The variables are dropped while operations on them are pending.
                        round += 1;
                    }
                });
            }
            let dumper = scope.spawn(|| {
                let (mut seen, mut dumps) = (0, 0);
                while !over.load(Relaxed) {
                    let dump = engine.dump();
                    for op in dump.ops() {
                        assert!(op.internal || op.label().starts_with("operation "), "{dump}");
                        assert!(op.accesses.iter().all(|access| access.variable.starts_with("var ")), "{dump}");
                        assert!(op.waits_for.iter().all(|&before| before < dump.ops().len()));
                    }
                    let _ = (dump.to_string(), dump.to_dot(), dump.to_json());
                    seen += dump.ops().len();
                    dumps += 1;
                }
                (seen, dumps)
            });
            thread::sleep(Duration::from_millis(800));
            over.store(true, Relaxed);
            let (seen, dumps) = dumper.join().unwrap();
            assert!(seen > 0 && dumps > 0, "{seen} operations in {dumps} dumps");
        });
        engine.wait_for_all().unwrap();
        assert!(engine.dump().ops().is_empty());
    });
}

/// Waits until the operation `waiter` waits for the operation `target`, and returns a dump that shows this.
fn waits_for(engine: &Engine, waiter: &str, target: &str) -> Dump {
    dump_when(engine, &format!("`{waiter}` waits for `{target}`"), |dump| {
        let at = |name: &str| dump.ops().iter().position(|op| op.label() == name);
        let (Some(waiter), Some(target)) = (at(waiter), at(target)) else { return false };
        dump.ops()[waiter].waits_for.contains(&target)
    })
}

#[test]
fn a_function_that_waits_for_a_group_waits_for_its_members() {
    on_kinds(&THREADED, 3, |engine| {
        let (sender, receiver) = mpsc::channel::<()>();
        let (outer, x) = (engine.group(), engine.var(0).named("x"));
        let inner = outer.group();
        inner.op("member").push((), move |()| _ = receiver.recv()).unwrap();
        engine.op("waiter").push(x.write(), move |_| outer.wait().unwrap()).unwrap();
        engine.op("behind").push(x.read(), |_| {}).unwrap();
        let dump = waits_for(&engine, "waiter", "member");
        assert_eq!(find(&dump, "waiter").state, OpState::WaitingInside);
        assert_eq!(dump.held_up_by(index(&dump, "member")), 2, "{dump}");
        let [wait] = dump.waits() else { panic!("{dump}") };
        assert_eq!((wait.kind, wait.inside.as_slice()), (WaitKind::Group, &[index(&dump, "waiter")][..]));
        let text = dump.to_string();
        assert!(text.contains("has been waiting for a group for") && text.contains("inside `waiter`"), "{text}");
        drop(sender);
        engine.wait_for_all().unwrap();
        assert!(engine.dump().waits().is_empty());
    });
}

#[test]
fn a_function_that_ends_a_scope_waits_for_its_operations() {
    on_kinds(&THREADED, 3, |engine| {
        let (sender, receiver) = mpsc::channel::<()>();
        let receiver = std::sync::Mutex::new(receiver);
        engine
            .op("opens a scope")
            .push(cx(), move |cx| {
                let inside = || _ = receiver.lock().unwrap().recv();
                cx.engine().scope(|scope| scope.op("inside").push((), |()| inside()).unwrap()).unwrap();
            })
            .unwrap();
        // The waiting function may run the operation on its own stack.
        waits_for(&engine, "opens a scope", "inside");
        dump_when(&engine, "`inside` runs", |dump| find(dump, "inside").state == OpState::Running);
        let aside = thread::scope(|scope| {
            let outside = thread::Builder::new().name("outside".to_owned());
            let (sender, receiver) = mpsc::channel::<()>();
            let engine = &engine;
            let waits = move || {
                let inside = move || _ = receiver.recv();
                engine.scope(|scope| scope.op("aside").push((), move |()| inside()).unwrap()).unwrap();
            };
            let thread = outside.spawn_scoped(scope, waits).unwrap();
            eventually("the thread waits", || engine.dump().waits().iter().any(|wait| wait.thread == "outside"));
            let dump = engine.dump();
            drop(sender);
            thread.join().unwrap();
            dump
        });
        let wait = aside.waits().iter().find(|wait| wait.thread == "outside").unwrap();
        assert_eq!((wait.kind, wait.waits_for.as_slice()), (WaitKind::Scope, &[index(&aside, "aside")][..]));
        drop(sender);
        engine.wait_for_all().unwrap();
    });
}

/// The end of the inner scope removes that scope from dumps, but not the outer one.
#[test]
fn a_function_inside_a_scope_waits_for_its_operations_after_an_inner_scope_has_ended() {
    on_kinds(&THREADED, 3, |engine| {
        let (sender, receiver) = mpsc::channel::<()>();
        let (receiver, ended, proceed) = (std::sync::Mutex::new(receiver), Gate::new(), Gate::new());
        let (ends, proceeds) = (ended.clone(), proceed.clone());
        engine
            .op("opens two scopes")
            .push(cx(), move |cx| {
                let (engine, inside) = (cx.engine(), || _ = receiver.lock().unwrap().recv());
                let scoped = engine.scope(|outer| {
                    outer.op("inside").push((), |()| inside()).unwrap();
                    engine.scope(|inner| inner.op("short").push((), |()| ()).unwrap()).unwrap();
                    ends.open();
                    proceeds.pass();
                });
                scoped.unwrap();
            })
            .unwrap();
        ended.pass();
        let dump = engine.dump();
        assert_eq!(find(&dump, "opens two scopes").waits_for, [index(&dump, "inside")], "{dump}");
        proceed.open();
        drop(sender);
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_parent_waits_for_its_children() {
    on_kinds(&THREADED, 2, |engine| {
        let (sender, receiver) = mpsc::channel::<()>();
        let (x, y) = (engine.var(0).named("x"), engine.var(0).named("y"));
        let own = x.clone();
        engine
            .op("parent")
            .with_children()
            .push((cx(), x.write()), move |(cx, _)| {
                cx.child("child").push(own.write(), move |_| _ = receiver.recv()).unwrap();
            })
            .unwrap();
        engine.op("behind").push((x.read(), y.write()), |_| {}).unwrap();
        let dump = waits_for(&engine, "parent", "child");
        assert_eq!(find(&dump, "parent").state, OpState::WaitingForChildren);
        let chain: Vec<_> =
            dump.chain(index(&dump, "behind")).unwrap().into_iter().map(|at| dump.ops()[at].label()).collect();
        assert_eq!(chain, ["behind", "parent", "child"]);
        drop(sender);
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn threads_that_wait_are_listed_with_what_they_wait_for() {
    on_kinds(&THREADED, 1, |plain| {
        let engine = Engine::builder().kind(plain.kind()).workers(1).pin(false).max_pending(3).build().unwrap();
        let (sender, receiver) = mpsc::channel::<()>();
        let (started, has_started) = mpsc::channel();
        let x = engine.var(0).named("x");
        let hold = move || {
            started.send(()).unwrap();
            let _ = receiver.recv();
        };
        engine.op("hold").push(x.write(), move |_| hold()).unwrap();
        // If `hold` had not started, the held-back push might run it.
        has_started.recv().unwrap();
        let handle = engine.op("handled").submit(x.write(), |_| {}).unwrap();
        engine.op("last").push(x.write(), |_| {}).unwrap();
        let spawn =
            |name: &str, f: Box<dyn FnOnce() + Send>| thread::Builder::new().name(name.to_owned()).spawn(f).unwrap();
        let (all, variable, full) = (engine.clone(), engine.clone(), engine.clone());
        let (read, write) = (x.clone(), x.clone());
        let threads = [
            spawn("for all", Box::new(move || all.wait_for_all().unwrap())),
            spawn("for a handle", Box::new(move || handle.wait().unwrap())),
            spawn("for a variable", Box::new(move || variable.wait_for_var(&read).unwrap())),
            spawn("for room", Box::new(move || full.op("held back").push(write.write(), |_| {}).unwrap())),
        ];
        // The thread of a held-back push wakes occasionally and is not listed while it checks for room.
        let dump = dump_when(&engine, "four threads wait", |dump| dump.waits().len() == 4);
        let wait = |name: &str| dump.waits().iter().find(|wait| wait.thread == name).unwrap();
        assert_eq!((wait("for all").kind, wait("for all").waits_for.len()), (WaitKind::All, 0));
        assert_eq!(wait("for room").kind, WaitKind::Room);
        assert_eq!(wait("for a handle").waits_for, [index(&dump, "handled")]);
        let [of_variable] = wait("for a variable").waits_for[..] else { panic!("{dump}") };
        let op = &dump.ops()[of_variable];
        assert!(op.internal && op.location.file() == file!(), "the wait is not listed as an operation: {dump}");
        let text = dump.to_string();
        assert!(text.contains("thread `for room` has been waiting for room"), "{text}");
        assert!(dump.to_dot().contains("for all\\nwaits for all operations"), "{}", dump.to_dot());
        drop(sender);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(engine.dump().waits().is_empty());
    });
}

#[test]
fn a_dump_says_who_holds_a_variable() {
    on_kinds(&THREADED, 2, |engine| {
        let (x, y) = (engine.token().named("x"), engine.token().named("y"));
        let (sender, receiver) = mpsc::channel();
        for (name, token) in [("holds x", &x), ("holds y", &y)] {
            let sender = sender.clone();
            engine.op(name).writes([token]).push(completion(), move |done| sender.send(done).unwrap()).unwrap();
        }
        let held: Vec<Completion> = receiver.iter().take(2).collect();
        engine.op("behind").reads([&x]).writes([&y]).push((), |()| {}).unwrap();
        let dump = engine.dump();
        let variable = |name: &str| dump.variables().iter().find(|variable| variable.name == name).unwrap();
        for (name, access) in [("x", "reads"), ("y", "mutates")] {
            assert_eq!(variable(name).awaited_by, [index(&dump, "behind")]);
            assert_eq!(variable(name).held_by, [index(&dump, &format!("holds {name}"))]);
            let line = format!("{access} `{name}`, and waits for it, held by `holds {name}`\n");
            assert!(dump.to_string().contains(&line), "no {line:?} in {dump}");
        }
        held.into_iter().for_each(Completion::complete);
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_dump_works_on_a_stopped_engine_and_during_a_shutdown() {
    on_kinds(&THREADED, 2, |engine| {
        engine.stop(None).unwrap();
        engine.op("left").push((), |()| {}).unwrap();
        assert_eq!(find(&engine.dump(), "left").state, OpState::Ready);
        engine.start().unwrap();
        engine.wait_for_all().unwrap();
        let (sender, receiver) = mpsc::channel::<()>();
        engine.op("slow").push((), move |()| _ = receiver.recv()).unwrap();
        let other = engine.clone();
        let ending = thread::spawn(move || other.shutdown(raddle::Shutdown::Drain, None).unwrap());
        eventually("`slow` runs", || find(&engine.dump(), "slow").state == OpState::Running);
        thread::sleep(Duration::from_millis(20));
        assert_eq!(find(&engine.dump(), "slow").state, OpState::Running);
        drop(sender);
        ending.join().unwrap();
        let dump = engine.dump();
        assert!(dump.ops().is_empty() && dump.waits().is_empty(), "{dump}");
    });
}

#[test]
fn hostile_names_do_not_break_the_formats() {
    on_kinds(&THREADED, 1, |engine| {
        let gate = occupy(&engine, 1);
        for name in HOSTILE {
            let x = engine.var(0).named(name);
            engine.op(name).push(x.write(), |_| {}).unwrap();
            engine.op(name).push(x.read(), |_| {}).unwrap();
        }
        let dump = engine.dump();
        let text = dump.to_string();
        assert!(text.chars().all(|char| char == '\n' || !char.is_control()), "{text:?}");
        assert!(text.contains(r"two\nlines\r\n and \u{0} and \u{1b}[31m red"), "{text}");
        // Quotes and characters beyond ASCII are printed as they are.
        assert!([0, 6].iter().all(|&at| text.contains(&format!("`{}`", HOSTILE[at]))), "{text}");
        let (json, dot) = (dump.to_json(), dump.to_dot());
        assert!(json.chars().all(|char| char >= ' '), "{json:?}");
        assert!(dot.chars().all(|char| char == '\n' || !char.is_control()), "{dot:?}");
        for line in dot.lines().filter(|line| line.contains("label=")) {
            let quotes = line.replace(r"\\", "").replace(r#"\""#, "");
            assert_eq!(quotes.matches('"').count(), 2, "{line}");
        }
        gate.open();
        engine.wait_for_all().unwrap();
    });
}

#[test]
#[cfg_attr(miri, ignore = "a thousand threads take too long")]
fn dumps_are_sound_while_a_thousand_threads_push_and_wait() {
    watched_for(Duration::from_secs(120), || {
        let threads = 1000;
        let engine = Engine::builder().workers(2).build().unwrap();
        let x = engine.var(0u64).named("x");
        let over = AtomicBool::new(false);
        // The threads wait until a dump has listed one of them.
        let held = hold(&engine, x.as_ref());
        thread::scope(|scope| {
            let dumper = scope.spawn(|| {
                while !over.load(Relaxed) {
                    let dump = engine.dump();
                    if !dump.waits().is_empty() {
                        held.open();
                    }
                    let places = dump.waits().iter().flat_map(|wait| wait.inside.iter().chain(&wait.waits_for));
                    assert!(places.into_iter().all(|&place| place < dump.ops().len()));
                    let _ = (dump.to_string(), dump.to_json(), dump.to_dot());
                }
            });
            let pushers: Vec<_> = (0..threads)
                .map(|number| {
                    let (engine, x) = (&engine, &x);
                    thread::Builder::new()
                        .stack_size(256 << 10)
                        .spawn_scoped(scope, move || {
                            for round in 0..10 {
                                let group = engine.group();
                                group.op(format!("{number}")).push(x.write(), |x| *x += 1).unwrap();
                                match round % 3 {
                                    0 => group.wait().unwrap(),
                                    1 => engine.wait_for_var(x).unwrap(),
                                    _ => engine.op("handled").submit(x.read(), |_| {}).unwrap().wait().unwrap(),
                                }
                            }
                        })
                        .unwrap()
                })
                .collect();
            pushers.into_iter().for_each(|pusher| pusher.join().unwrap());
            over.store(true, Relaxed);
            dumper.join().unwrap();
        });
        assert_eq!(engine.get(&x).unwrap(), 10 * threads);
    });
}

/// An operation with no property but a name takes a short way if it has one to four variables. One with a priority
/// takes the long way.
#[test]
fn operations_with_up_to_four_variables_are_listed_with_their_accesses_in_order() {
    /// Returns all orders of the numbers below `count`.
    fn orders(count: usize) -> Vec<Vec<usize>> {
        let Some(last) = count.checked_sub(1) else { return vec![vec![]] };
        let with_last = |order: &Vec<usize>, at| [&order[..at], &[last], &order[at..]].concat();
        orders(last).iter().flat_map(|order| (0..count).map(|at| with_last(order, at)).collect::<Vec<_>>()).collect()
    }
    /// All names, so that none is reported as a leak. A name that is not static would prevent a short push.
    static NAMES: std::sync::Mutex<Vec<&str>> = std::sync::Mutex::new(Vec::new());
    on_kinds(&THREADED, 1, |engine| {
        let tokens = ["a", "b", "c", "d"].map(|name| engine.token().named(name));
        let gate = hold(&engine, &tokens[0]);
        let mut pushed = Vec::new();
        for (count, is_short) in (1..=4).flat_map(|count| [(count, true), (count, false)]) {
            for order in orders(count) {
                // The first half of the variables are read, and the others are mutated.
                let (read, mutated) = order.split_at(count / 2);
                let at = |&index: &usize| &tokens[index];
                let name: &'static str = format!("{order:?}, {is_short}").leak();
                NAMES.lock().unwrap().push(name);
                let op = engine.op(name).reads(read.iter().map(at)).writes(mutated.iter().map(at));
                let op = if is_short { op } else { op.priority(1) };
                op.push((), |()| {}).unwrap();
                let accesses = (0..count).map(|index| (tokens[index].name().unwrap(), mutated.contains(&index)));
                pushed.push((name, accesses.collect::<Vec<_>>()));
            }
        }
        let dump = engine.dump();
        assert_eq!((dump.ops().len(), dump.unlisted()), (1 + pushed.len(), 0), "{dump}");
        for (name, accesses) in pushed {
            let op = find(&dump, name);
            let listed = op.accesses.iter().map(|access| (access.variable.as_str(), access.mode.is_write()));
            assert_eq!(listed.collect::<Vec<_>>(), accesses, "{name}");
        }
        gate.open();
        engine.wait_for_all().unwrap();
        // On each way, one of the 33 operations mutates its sole variable; the others mutate half of theirs or more.
        let counts = tokens.each_ref().map(raddle::Token::version);
        assert_eq!(counts.iter().sum::<u64>(), 1 + 2 * (1 + 2 + 6 * 2 + 24 * 2));
    });
}
