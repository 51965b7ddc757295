//! The cost of single steps: pushes without runs, runs without pushes, waits, variables, and recording.
//!
//! The rows take turns, round by round, and each state of the machine is reported separately. The engines have one
//! worker, except for the naive one. For the cost of a push, the worker is blocked in an operation, so only the push is
//! timed; for the cost of a run, all operations are pushed first, and the worker itself measures the time from the
//! first operation to the last.

use std::{
    hint::black_box,
    sync::mpsc,
    time::{Duration, Instant},
};

use raddle::{Engine, OpHandle, PushError, Token, trace::Recorder};
use raddle_benches::shapes::*;
use raddle_benches::{
    machine,
    report::{Report, Table, number, spread},
    rounds::{self, Row},
    runtime::occupy,
    state::by_state,
    stats::median,
};

/// The name prefixes of steps without and with a recorder.
const OFF: &str = "recorded/off: ";
const ON: &str = "recorded/on: ";

/// The number of timings per row and round; their median is used.
const TIMINGS: usize = 5;

/// The number of simultaneously pending operations: enough to make the ends of a batch negligible.
const BATCH: u64 = 4_096;

/// Measures calls to `push`, without the runs of the pushed operations, in ns per call.
fn pushes(engine: &Engine, push: &dyn Fn(u64)) -> f64 {
    let go = occupy(engine);
    let start = Instant::now();
    (0..BATCH).for_each(push);
    let time = start.elapsed();
    drop(go);
    engine.wait_for_all().expect("wait");
    each(time, BATCH)
}

/// Measures the worker's time for operations pushed in advance by `push`, in ns per operation.
fn runs(engine: &Engine, push: &dyn Fn(u64)) -> f64 {
    let (send, receive) = mpsc::channel();
    let go = occupy(engine);
    let sender = send.clone();
    // The priorities make `first` the first and `last` the last of the ready operations.
    engine.op("first").priority(1).push_sync(move |_| _ = sender.send(Instant::now())).expect("push");
    (0..BATCH).for_each(push);
    engine.op("last").priority(-1).push_sync(move |_| _ = send.send(Instant::now())).expect("push");
    drop(go);
    let first: Instant = receive.recv().expect("the operation should run");
    let last: Instant = receive.recv().expect("the operation should run");
    engine.wait_for_all().expect("wait");
    each(last - first, BATCH)
}

/// Measures `count` calls to `step`, in ns per call.
fn calls(count: u64, step: &dyn Fn()) -> f64 {
    let start = Instant::now();
    (0..count).for_each(|_| step());
    each(start.elapsed(), count)
}

fn each(time: Duration, count: u64) -> f64 {
    time.as_nanos() as f64 / count as f64
}

/// The argument of the waiting recursion, and its number of operations.
const RECURSION: (u64, u64) = (18, 8_361);

/// Pushes an operation that computes a Fibonacci number by pushing two others and waiting for both.
fn fibonacci(engine: &Engine, n: u64) -> Result<OpHandle<u64>, PushError> {
    let inner = engine.downgrade();
    engine.op("fibonacci").try_submit((), move |()| {
        if n < 2 {
            return Ok(n);
        }
        let (a, b) = (fibonacci(&inner, n - 1)?, fibonacci(&inner, n - 2)?);
        Ok(a.wait()? + b.wait()?)
    })
}

/// A step measured without and with a recorder.
type Step<'a> = &'a dyn Fn(&Engine, &[Token]) -> f64;

/// The rows, on an engine with one worker.
struct Steps<'a> {
    rows: Vec<Row<'a>>,
    engine: &'a Engine,
}

impl<'a> Steps<'a> {
    fn row(&mut self, name: String, time: impl Fn() -> f64 + 'a) {
        if machine::wanted(&name) {
            // A batch takes less than a millisecond, so a round's timing comprises several.
            self.rows.push(Row::new(name, move || median(&std::array::from_fn::<f64, TIMINGS, _>(|_| time()))));
        }
    }

    fn push(&mut self, name: &str, push: impl Fn(u64) + 'a) {
        let engine = self.engine;
        self.row(format!("push/{name}"), move || pushes(engine, &push));
    }

    fn run(&mut self, name: &str, push: impl Fn(u64) + 'a) {
        let engine = self.engine;
        self.row(format!("run/{name}"), move || runs(engine, &push));
    }

    fn other(&mut self, name: &str, count: u64, step: impl Fn() + 'a) {
        self.row(format!("other/{name}"), move || calls(count, &step));
    }
}

fn main() {
    let rounds = machine::rounds();
    let engine = Engine::builder().workers(1).pin(true).build().expect("an engine");
    let engine = &engine;
    let tokens: Vec<Token> = (0..64).map(|_| engine.token()).collect();
    let at = |i: u64| &tokens[i as usize % 64];
    let typed: Vec<_> = (0..64).map(|_| engine.var(0u64)).collect();
    let var = |i: u64| &typed[i as usize % 64];
    let operator = engine.op("again").writes([at(0)]).operator_sync(|_| {}).expect("operator");
    let (small, large) = ([0u8; 80], [0u8; 160]);
    let naive = Engine::builder().kind(raddle::EngineKind::Naive).build().expect("an engine");
    let token = naive.token();
    // Two engines that differ only in that the second has a recorder.
    let recorder = Recorder::new();
    let plain = Engine::builder().workers(1).pin(true).build().expect("an engine");
    let recorded = Engine::builder().workers(1).pin(true).recorder(&recorder).build().expect("an engine");
    let [outside, inside] = [&plain, &recorded].map(|engine| (0..64).map(|_| engine.token()).collect::<Vec<_>>());
    let mut steps = Steps { rows: vec![], engine };

    steps.push("no variable", |_| engine.push_sync(|_| {}, [], []).expect("push"));
    steps.push("1 write", |i| engine.push_sync(|_| {}, [], [at(i)]).expect("push"));
    steps.push("1 write, one variable", |_| engine.push_sync(|_| {}, [], [at(0)]).expect("push"));
    steps.push("1 read, one variable", |_| engine.push_sync(|_| {}, [at(0)], []).expect("push"));
    steps.push("2 reads + 1 write", |i| engine.push_sync(|_| {}, [at(i), at(i + 7)], [at(i + 13)]).expect("push"));
    steps.push("3 reads + 1 write", |i| {
        engine.push_sync(|_| {}, [at(i), at(i + 7), at(i + 9)], [at(i + 13)]).expect("push");
    });
    steps.push("7 reads + 1 write", |i| {
        engine.op("").reads((0..7).map(|k| at(i + 3 * k))).writes([at(i + 32)]).push_sync(|_| {}).expect("push");
    });
    steps.push("1 write, 80 bytes captured", |i| {
        engine.push_sync(move |_| _ = black_box(small), [], [at(i)]).expect("push");
    });
    steps.push("1 write, 160 bytes captured", |i| {
        engine.push_sync(move |_| _ = black_box(large), [], [at(i)]).expect("push");
    });
    steps.push("typed, 1 read + 1 write", |i| {
        engine.op("add").push((var(i).read(), var(i + 1).write()), |(a, b)| *b += *a).expect("push");
    });
    steps.push("typed, 1 read, with a handle", |i| {
        drop(engine.op("get").submit(var(i).read(), |a| *a).expect("push"));
    });
    steps.push("asynchronous, 1 write", |i| {
        engine.push_async(|_, done| done.complete(), [], [at(i)]).expect("push");
    });
    steps.push("operator, 1 write, one variable", |_| operator.push().expect("push"));

    steps.run("no variable", |_| engine.push_sync(|_| {}, [], []).expect("push"));
    steps.run("1 write", |i| engine.push_sync(|_| {}, [], [at(i)]).expect("push"));
    steps.run("1 write, one variable", |_| engine.push_sync(|_| {}, [], [at(0)]).expect("push"));
    steps.run("1 read, one variable", |_| engine.push_sync(|_| {}, [at(0)], []).expect("push"));
    steps.run("3 reads + 1 write", |i| {
        engine.push_sync(|_| {}, [at(i), at(i + 7), at(i + 9)], [at(i + 13)]).expect("push");
    });
    steps.run("operator, 1 write, one variable", |_| operator.push().expect("push"));

    // In every round, each step is measured without and then with a recorder.
    let recorded_steps: [(&str, Step<'_>); 6] = [
        ("push, 1 write", &|engine, tokens| {
            pushes(engine, &|i| engine.push_sync(|_| {}, [], [&tokens[i as usize % 64]]).expect("push"))
        }),
        ("push, 1 write, one variable", &|engine, tokens| {
            pushes(engine, &|_| engine.push_sync(|_| {}, [], [&tokens[0]]).expect("push"))
        }),
        ("push, 1 write, named", &|engine, tokens| {
            pushes(engine, &|i| {
                engine.op("named").writes([&tokens[i as usize % 64]]).push_sync(|_| {}).expect("push");
            })
        }),
        ("push, 1 read + 1 write", &|engine, tokens| {
            pushes(engine, &|i| {
                let (read, written) = (&tokens[(i as usize + 7) % 64], &tokens[i as usize % 64]);
                engine.push_sync(|_| {}, [read], [written]).expect("push");
            })
        }),
        ("run, 1 write", &|engine, tokens| {
            runs(engine, &|i| engine.push_sync(|_| {}, [], [&tokens[i as usize % 64]]).expect("push"))
        }),
        ("run, 1 write, one variable", &|engine, tokens| {
            runs(engine, &|_| engine.push_sync(|_| {}, [], [&tokens[0]]).expect("push"))
        }),
    ];
    for (name, step) in recorded_steps {
        let (plain, recorded, recorder, outside, inside) = (&plain, &recorded, &recorder, &outside, &inside);
        steps.row(format!("{OFF}{name}"), move || step(plain, outside));
        steps.row(format!("{ON}{name}"), move || {
            let time = step(recorded, inside);
            // The rings are emptied after each batch, since recording into a full ring costs less.
            assert_eq!(recorder.take().lost(), 0, "a ring was full");
            time
        });
    }

    steps.other("a variable made and dropped", 1_000, || drop(engine.token()));
    steps.other("wait for a variable, nothing pending", 10_000, || engine.wait_for_var(at(0)).expect("wait"));
    steps.other("wait for all, nothing pending", 10_000, || engine.wait_for_all().expect("wait"));
    steps.other("get a typed value, nothing pending", 1_000, || _ = engine.get(var(0)).expect("get"));
    steps.other("push, and wait for its handle", 100, || {
        engine.op("get").submit(var(0).read(), |a| _ = black_box(*a)).expect("push").wait().expect("wait");
    });
    steps.row("other/an operation of a recursion that waits".to_owned(), move || {
        let (n, operations) = RECURSION;
        let start = Instant::now();
        let result = fibonacci(engine, n).expect("push").wait().expect("wait");
        assert_eq!(result, 2_584, "the Fibonacci number is wrong");
        each(start.elapsed(), operations)
    });
    steps.other("push and run on `Naive`, 1 write", 1_000, || {
        naive.push_sync(|_| {}, [], [&token]).expect("push");
    });

    if rounds::is_one_round() {
        return rounds::print(&mut steps.rows);
    }
    let mut report = Report::new(
        "micro",
        "Single steps",
        &format!(
            "ns per step, on an engine with one worker: the median of up to {rounds} rounds, with the quartiles in \
             brackets. *push*: the call alone, while the worker is kept busy by something else. *run*: the worker's \
             time per operation, from taking it until its successors have been notified, when all operations are \
             pushed beforehand. *recorded*: the same steps on two engines, without (*off*) and with (*on*) a recorder."
        ),
    );
    let samples = rounds::measure(&mut steps.rows, rounds, |_| {});
    for (state, figures) in by_state(&samples) {
        let mut table = Table::of_state("micro", state, "Steps", "", &["step", "median, ns"]);
        for (row, figures) in steps.rows.iter().zip(&figures) {
            table.row(row.name.as_str(), [spread(figures)]);
        }
        report.add(&table);

        let find = |name: String| steps.rows.iter().position(|row| row.name == name).map(|at| median(&figures[at]));
        let note = "The differences and quotients of the medians above.";
        let columns = ["step", "off, ns", "on, ns", "on less off, ns", "on by off"];
        let mut table = Table::of_state("recorder", state, "What a recorder costs", note, &columns);
        for (name, _) in recorded_steps {
            if let Some((off, on)) = find(format!("{OFF}{name}")).zip(find(format!("{ON}{name}"))) {
                table.row(name, [off, on, on - off, on / off].map(number));
            }
        }
        report.add(&table);
    }
    report.save();
}
