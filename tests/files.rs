//! Traces, reports and dumps with names that try to break their formats. `.ci/run files` checks the files with
//! Perfetto's schema, a JSON parser, Graphviz and a browser.

#![cfg(not(any(raddle_loom, raddle_shuttle)))]

use raddle_testkit as common;

use std::{fs, path::PathBuf, sync::mpsc, thread, time::Duration};

use common::{HOSTILE, watched};
use raddle::{Device, Engine, EngineKind, Recorder, SimulatedGpu, Trace};

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
        let on_gpu = |op: &&raddle::TracedOp| op.runs.iter().any(|run| matches!(run.place, raddle::Place::Gpu { .. }));
        let slices = trace.ops().iter().map(|op| op.runs.len()).sum::<usize>();
        let streams =
            trace.ops().iter().filter(on_gpu).filter(|op| op.returned.is_some() && op.ended.is_some()).count();
        let arrows = trace.ops().iter().filter(|op| !op.runs.is_empty()).map(|op| op.depends_on.len()).sum::<usize>();
        self.write(&format!("{name}.expected"), |out| {
            out.extend(format!("{} {arrows}", slices + streams).into_bytes());
        });
    }
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
                .try_launch(value.write(), |stream, value| {
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
