//! Traces, reports and dumps with names that try to break their formats. `cargo xtask ci files` checks the files with
//! Perfetto's schema, a JSON parser, Graphviz and a browser.

use raddle_testkit as common;

use std::{collections::HashMap, fs, path::PathBuf, sync::mpsc, thread, time::Duration};

use common::{HOSTILE, watched};
use raddle::{
    Device, Engine, EngineKind,
    gpu::SimulatedGpu,
    stream,
    trace::{Recorder, Trace, TracedOp},
};

/// The folder for the files: `RADDLE_FILES`, or a temporary folder that is removed when this value is dropped.
struct Folder(PathBuf, bool);

impl Folder {
    fn new() -> Self {
        let given = std::env::var_os("RADDLE_FILES");
        let temporary = || std::env::temp_dir().join(format!("raddle-files-{}", std::process::id()));
        let folder = Self(given.clone().map_or_else(temporary, PathBuf::from), given.is_none());
        fs::create_dir_all(&folder.0).unwrap();
        folder
    }

    fn write(&self, name: &str, write: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = Vec::new();
        write(&mut bytes);
        fs::write(self.0.join(name), bytes).unwrap();
    }

    fn write_trace(&self, name: &str, trace: &Trace) {
        self.write(&format!("{name}.pftrace"), |out| trace.write_perfetto(out).unwrap());
        self.write(&format!("{name}.json"), |out| trace.write_chrome(out).unwrap());
        self.write(&format!("{name}.html"), |out| trace.write_report(HOSTILE[1], out).unwrap());
        // The expected numbers of rectangles, and of arrows between operations that have run.
        let on_gpu = |op: &&TracedOp| op.runs.iter().any(|run| matches!(run.place, raddle::trace::Place::Gpu { .. }));
        let slices = trace.ops().iter().map(|op| op.runs.len()).sum::<usize>();
        let streams =
            trace.ops().iter().filter(on_gpu).filter(|op| op.returned.is_some() && op.ended.is_some()).count();
        let arrows = trace.ops().iter().filter(|op| !op.runs.is_empty()).map(|op| op.depends_on.len()).sum::<usize>();
        self.write(&format!("{name}.expected"), |out| {
            out.extend(format!("{} {arrows}", slices + streams).into_bytes());
        });
    }
}

/// The times of one name in the table of a page: waited for a worker, ran.
type Stage = (Duration, Duration);

/// Returns the name for which a chain of operations spends the most time, and that time.
fn longest(stages: HashMap<String, Stage>) -> (String, Stage) {
    stages.into_iter().max_by_key(|(_, (queued, ran))| *queued + *ran).unwrap()
}

/// Returns the average latency of the operations named `result`, and where most of it goes: for each of them, the time
/// between its push and its end is divided among the operations that led to it, each of which is the last to end among
/// those for which the following one waited.
fn latency(trace: &Trace, result: &str) -> (Duration, (String, Stage)) {
    let results: Vec<_> = trace.ops().iter().filter(|op| op.name.as_str() == result).collect();
    let mut stages: HashMap<String, Stage> = HashMap::new();
    for op in &results {
        let (from, to) = (op.pushed, op.ended.unwrap());
        let within = |start: Duration, end: Duration| end.min(to).saturating_sub(start.max(from));
        let mut next = Some(*op);
        while let Some(op) = next {
            let (ready, started, ended) = (op.ready.unwrap(), op.started.unwrap(), op.ended.unwrap());
            let stage = stages.entry(op.label()).or_default();
            *stage = (stage.0 + within(ready, started), stage.1 + within(started, ended));
            let before = trace.ops().iter().filter(|before| op.depends_on.contains(&before.id));
            next = before.max_by_key(|before| before.ended).filter(|before| before.ended > Some(from));
        }
    }
    let count = results.len() as u32;
    stages.values_mut().for_each(|stage| *stage = (stage.0 / count, stage.1 / count));
    (results.iter().map(|op| op.took().unwrap()).sum::<Duration>() / count, longest(stages))
}

/// Writes what the head of a page on `trace` must say, according to the trace, if it follows `result`.
fn write_headline(folder: &Folder, name: &str, trace: &Trace, result: &str) {
    let mut path: HashMap<String, Stage> = HashMap::new();
    for step in trace.critical_path() {
        let op = trace.ops().iter().find(|op| op.id == step.op).unwrap();
        let stage = path.entry(op.label()).or_default();
        *stage = (stage.0 + step.queued, stage.1 + step.ran);
    }
    // Before the first step, nothing on the path had been pushed.
    let first = trace.critical_path()[0].op;
    let first = trace.ops().iter().find(|op| op.id == first).unwrap().pushed.saturating_sub(trace.range().0);
    let unpushed = first + trace.critical_path().iter().map(|step| step.unpushed).sum::<Duration>();
    let stage = |(name, (queued, ran)): (String, Stage)| {
        format!(r#"{{"name":"{name}","queued":{},"ran":{}}}"#, queued.as_nanos(), ran.as_nanos())
    };
    let (latency, slowest) = latency(trace, result);
    let headline = format!(
        r#"{{"unpushed":{},"path":{},"result":"{result}","latency":{},"slowest":{}}}"#,
        unpushed.as_nanos(),
        stage(longest(path)),
        latency.as_nanos(),
        stage(slowest)
    );
    folder.write(&format!("{name}.headline"), |out| out.extend(headline.into_bytes()));
}

/// Returns the trace of a program that pushes work at a fixed rate. Its most urgent results are not the ones that take
/// the longest.
fn paced() -> Trace {
    let recorder = Recorder::new();
    let engine = Engine::builder().workers(1).recorder(&recorder).build().unwrap();
    let (raw, clean, detail) = (engine.var(0), engine.var(0), engine.var(0));
    // The critical path begins later than the run.
    engine.op("prepare").push((), |()| {}).unwrap();
    thread::sleep(Duration::from_millis(20));
    for round in 0..6 {
        let op = |name, priority| engine.op(name).priority(priority);
        op("load", 1).push(raw.overwrite(), move |raw| *raw = round).unwrap();
        let clean_up = |(raw, clean): (&i32, &mut i32)| {
            thread::sleep(Duration::from_millis(4));
            *clean = *raw;
        };
        op("clean", 2).push((raw.read(), clean.overwrite()), clean_up).unwrap();
        let examine = |(clean, detail): (&i32, &mut i32)| {
            thread::sleep(Duration::from_millis(3));
            *detail = *clean;
        };
        op("examine", -1).push((clean.read(), detail.overwrite()), examine).unwrap();
        // These operations have several priorities.
        op("report", -1 - round % 2).push(detail.read(), |_| thread::sleep(Duration::from_millis(1))).unwrap();
        op("deliver", 3).push(clean.read(), |_| {}).unwrap();
        thread::sleep(Duration::from_millis(30));
    }
    engine.wait_for_all().unwrap();
    recorder.take()
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.1 {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

/// A single test writes all files, so they are complete once it has passed.
#[test]
fn files_for_external_readers() {
    watched(|| {
        let folder = Folder::new();
        folder.write_trace("empty", &Recorder::new().take());
        let recorder = Recorder::new();
        let build = || Engine::builder().workers(2).recorder(&recorder);
        let engine = build().gpu(SimulatedGpu::new()).build().unwrap();
        let long = "long ".repeat(4000);
        let value = engine.device_var::<u64>(Device::Gpu(0), 4).unwrap();
        for name in HOSTILE.into_iter().chain([long.as_str()]) {
            let x = engine.var(0).named(name.to_owned());
            for _ in 0..3 {
                engine.op(name.to_owned()).push(x.write(), |x| *x += 1).unwrap();
                engine.op(name.to_owned()).push(x.read(), |_| thread::sleep(Duration::from_micros(100))).unwrap();
            }
            engine
                .op(name.to_owned())
                .on(Device::Gpu(0))
                .try_push((value.write(), stream()), |(value, stream)| {
                    let mut stream = stream.simulated().expect("the device should be simulated");
                    Ok(stream.launch(Duration::from_millis(1), value, |value| value.fill(1))?)
                })
                .unwrap();
        }
        let inner = engine.downgrade();
        let wait = move |()| inner.op("inner").submit((), |()| {}).unwrap().wait().unwrap();
        engine.op("waits inside").submit((), wait).unwrap().wait().unwrap();
        let y = engine.var(0);
        engine.op("fails").try_push(y.write(), |_| Err("a part of this test".into())).unwrap();
        engine.op("skipped").push(y.write(), |_| {}).unwrap();
        assert!(engine.wait_for_all().is_err());
        let naive = build().kind(EngineKind::Naive).build().unwrap();
        naive.op("on another engine").push((), |()| {}).unwrap();
        let trace = recorder.take();
        assert_eq!(trace.lost(), 0);
        folder.write_trace("hostile", &trace);

        let trace = paced();
        folder.write_trace("paced", &trace);
        write_headline(&folder, "paced", &trace, "deliver");

        let (started, has_started) = mpsc::channel();
        let (sender, receiver) = mpsc::channel::<()>();
        let z = engine.var(0).named(HOSTILE[0]);
        let hold = move || {
            started.send(()).unwrap();
            let _ = receiver.recv();
        };
        engine.op(HOSTILE[1]).push(z.write(), move |_| hold()).unwrap();
        HOSTILE.into_iter().for_each(|name| engine.op(name).push(z.write(), |_| {}).unwrap());
        has_started.recv().unwrap();
        let dump = engine.dump();
        assert_eq!(dump.ops().len(), 10);
        folder.write("dump.dot", |out| out.extend(dump.to_dot().into_bytes()));
        folder.write("dump.dump-json", |out| out.extend(dump.to_json().into_bytes()));
        drop(sender);
        engine.wait_for_all().unwrap();

        let many = Recorder::with_capacity(256 << 20);
        let engine = Engine::builder().workers(2).recorder(&many).build().unwrap();
        for number in 0..60_000 {
            engine.op(format!("one of many {}", number % 20_000)).push((), |()| {}).unwrap();
        }
        engine.wait_for_all().unwrap();
        folder.write_trace("many", &many.take());
    });
}
