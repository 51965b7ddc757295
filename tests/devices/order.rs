//! Tests of the events, waits and marks with which the engine orders a device's commands, and of their number.
//!
//! Most tests use a stalled device: nothing completes on it, so only streams and events can order the commands.

use crate::common::shapes::*;
use std::{thread, time::Duration};

use raddle::{
    EngineKind, Var,
    gpu::{DeviceVec, GpuStream, SimulatedGpu, simulated::Clock},
};

use super::{
    GPU, device, download, engine, hold_lane, issued, kernel, kernel_from, manual, ms, pinned, random, simulated,
    upload,
};
use crate::common::{AWHILE, Journal, THREADED, eventually, watched, watched_for};

/// Returns the numbers of records and waits so far.
fn edges(gpu: &SimulatedGpu) -> (u64, u64) {
    let counts = gpu.counts();
    (counts.records, counts.waits)
}

/// The maximum number of operations in flight on one stream.
const IN_FLIGHT: u64 = 128;

/// Pushes a chain of `count` kernels on one stream of a stalled device, resumes the device, waits for the chain to end,
/// and passes the device to `check`. Asserts that no event is recorded or waited for.
fn chain_on_one_stream(count: u64, check: fn(&SimulatedGpu)) {
    for kind in THREADED {
        watched(move || {
            let gpu = SimulatedGpu::default();
            let engine = engine(kind, &gpu);
            let var = device(&engine, 1);
            gpu.stall();
            (0..count).for_each(|_| kernel(&engine, "add", &var, |_| {}));
            issued(&gpu, count.min(IN_FLIGHT), 0);
            gpu.resume();
            engine.wait_for_all().unwrap();
            assert_eq!(edges(&gpu), (0, 0), "{kind}");
            assert_eq!((gpu.counts().launches, var.version()), (count, count), "{kind}");
            check(&gpu);
        });
    }
}

#[test]
fn a_chain_on_one_stream_has_no_events_and_two_marks() {
    // There is one mark behind the first operation and, once that mark has passed, one behind the rest. Longer chains
    // have more marks in between.
    chain_on_one_stream(IN_FLIGHT / 2, |gpu| assert_eq!(gpu.counts().marks, 2));
}

/// A stream receives a limited number of operations at first, and further ones as these complete.
#[test]
fn a_longer_chain_on_one_stream_has_no_events() {
    chain_on_one_stream(1000, |_| ());
}

#[test]
fn a_chain_that_runs_while_it_is_pushed_has_no_events() {
    for kind in THREADED {
        watched(move || {
            let gpu = SimulatedGpu::default();
            let engine = engine(kind, &gpu);
            let var = device(&engine, 1);
            (0..1000).for_each(|_| kernel(&engine, "add", &var, |_| {}));
            engine.wait_for_all().unwrap();
            assert_eq!(edges(&gpu), (0, 0), "{kind}");
            assert!(gpu.counts().marks <= 1000, "{kind}: {:?}", gpu.counts());
        });
    }
}

/// All operations share one stream, which orders them without events.
#[test]
fn an_engine_with_one_stream_never_records() {
    watched(|| {
        let gpu = SimulatedGpu::default();
        let engine = engine(EngineKind::Pooled, &gpu);
        let var = device(&engine, 4);
        for round in 0..20 {
            upload(&engine, &var, vec![round; 4]);
            kernel(&engine, "add", &var, |values| values[3] += 1);
            assert_eq!(download(&engine, &var, 4), [round, round, round, round + 1]);
        }
        assert_eq!(edges(&gpu), (0, 0));
    });
}

/// The two copies and the kernel between them are on different lanes, so each step needs one event and one wait.
#[test]
fn a_chain_over_three_streams_has_an_event_and_a_wait_at_each_step() {
    watched(|| {
        let gpu = SimulatedGpu::default();
        let engine = engine(EngineKind::PerDevice, &gpu);
        let (host, back) = (pinned(&engine, 4), pinned(&engine, 4));
        let (from, to) = (device(&engine, 4), device(&engine, 4));
        engine.op("fill").push(host.write(), |host| host.fill(3)).unwrap();
        engine.wait_for_all().unwrap();
        gpu.stall();
        let gate = hold_lane(&engine, Property::CopyToGpu);
        engine.op("in").on(GPU).copy_to_device(&host, &from).unwrap();
        kernel_from(&engine, "square", Property::Normal, &from, &to, |from, to| {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from * from);
        });
        engine.op("out").on(GPU).copy_from_device(&to, &back).unwrap();
        let look = engine.op("look").submit(back.read(), |back| back.to_vec()).unwrap();
        gate.open();
        issued(&gpu, 1, 2);
        assert_eq!(edges(&gpu), (2, 2));
        gpu.resume();
        assert_eq!(look.wait().unwrap(), [9; 4]);
        assert_eq!(edges(&gpu), (2, 2), "an event was requested later");
    });
}

/// The diamond is copy in → {compute, urgent} → compute → copy out. One event orders both branches after the copy in.
/// The compute stream then waits only for the urgent stream.
#[test]
fn a_diamond_over_streams_has_the_fewest_events_and_waits() {
    watched_for(AWHILE, || {
        let gpu = SimulatedGpu::default();
        let engine = engine(EngineKind::PerDevice, &gpu);
        let (host, back) = (pinned(&engine, 1), pinned(&engine, 1));
        let [a, b, c, d] = std::array::from_fn(|_| device(&engine, 1));
        engine.op("fill").push(host.write(), |host| host[0] = 10).unwrap();
        engine.wait_for_all().unwrap();
        gpu.stall();
        let gates = [Property::CopyToGpu, Property::Normal, Property::GpuPrioritized]
            .map(|property| hold_lane(&engine, property));
        engine.op("in").on(GPU).copy_to_device(&host, &a).unwrap();
        kernel_from(&engine, "left", Property::Normal, &a, &b, |a, b| b[0] = a[0] + 1);
        kernel_from(&engine, "right", Property::GpuPrioritized, &a, &c, |a, c| c[0] = a[0] + 2);
        let join = |stream: &mut GpuStream, (b, c, d): (&DeviceVec<u64>, &DeviceVec<u64>, &mut DeviceVec<u64>)| {
            simulated(stream).launch(Duration::ZERO, (b, c, d), |(b, c, d)| d[0] = b[0] * c[0])
        };
        engine.op("join").on(GPU).launch_any((b.read(), c.read(), d.write()), join).unwrap();
        engine.op("out").on(GPU).copy_from_device(&d, &back).unwrap();
        let look = engine.op("look").submit(back.read(), |back| back[0]).unwrap();
        for gate in gates {
            gate.open();
        }
        issued(&gpu, 3, 2);
        // One event orders both `left` and `right` after `in`; the others order `join` after `right`, and `out` after
        // `join`.
        assert_eq!(edges(&gpu), (3, 4));

        // A stream does not wait twice for an event, even if its first wait was through another stream.
        kernel_from(&engine, "again", Property::Normal, &a, &b, |a, b| b[0] = a[0]);
        kernel_from(&engine, "again", Property::Normal, &c, &b, |c, b| b[0] += c[0]);
        issued(&gpu, 5, 2);
        assert_eq!(edges(&gpu), (3, 4), "the compute stream already follows both dependencies");
        let backs = [pinned(&engine, 1), pinned(&engine, 1)];
        engine.op("out a").on(GPU).copy_from_device(&a, &backs[0]).unwrap();
        engine.op("out c").on(GPU).copy_from_device(&c, &backs[1]).unwrap();
        issued(&gpu, 5, 4);
        assert_eq!(
            edges(&gpu),
            (3, 4),
            "the copy-out stream follows the compute stream, and so everything that the compute stream has waited for"
        );
        gpu.resume();
        assert_eq!(look.wait().unwrap(), 11 * 12);
        let [a, c] = backs.map(|back| engine.op("look").submit(back.read(), |back| back[0]).unwrap().wait().unwrap());
        assert_eq!((a, c), (10, 12));
        assert_eq!(download(&engine, &b, 1), [22]);
    });
}

/// The copy in must not overwrite data that the copy out is still reading.
#[test]
fn a_copy_in_waits_on_the_device_for_the_readers_of_its_target() {
    watched(|| {
        let gpu = SimulatedGpu::default();
        let engine = engine(EngineKind::PerDevice, &gpu);
        let (var, host, back) = (device(&engine, 1), pinned(&engine, 1), pinned(&engine, 1));
        upload(&engine, &var, vec![1]);
        engine.op("fill").push(host.write(), |host| host[0] = 2).unwrap();
        engine.wait_for_all().unwrap();
        let before = edges(&gpu);
        gpu.stall();
        let gate = hold_lane(&engine, Property::CopyFromGpu);
        engine.op("out").on(GPU).copy_from_device(&var, &back).unwrap();
        engine.op("in").on(GPU).copy_to_device(&host, &var).unwrap();
        gate.open();
        issued(&gpu, 0, 3);
        assert_eq!(edges(&gpu), (before.0 + 1, before.1 + 1));
        gpu.resume();
        let look = engine.op("look").submit(back.read(), |back| back[0]).unwrap();
        assert_eq!(look.wait().unwrap(), 1);
        assert_eq!(download(&engine, &var, 1), [2]);
    });
}

/// A dependent operation pushed later requests the event. A second dependent operation uses the same event.
#[test]
fn an_event_is_recorded_once_when_a_dependent_operation_requests_it() {
    watched(|| {
        let gpu = SimulatedGpu::default();
        let engine = engine(EngineKind::PerDevice, &gpu);
        let (var, outs) = (device(&engine, 1), [device(&engine, 1), device(&engine, 1)]);
        gpu.stall();
        kernel(&engine, "write", &var, |values| values[0] = 4);
        issued(&gpu, 1, 0);
        assert_eq!(edges(&gpu), (0, 0), "an event was recorded before an operation depended on it");
        kernel_from(&engine, "urgent", Property::GpuPrioritized, &var, &outs[0], |var, out| out[0] = var[0]);
        issued(&gpu, 2, 0);
        assert_eq!(edges(&gpu), (1, 1));
        kernel_from(&engine, "on the copy stream", Property::CopyToGpu, &var, &outs[1], |var, out| out[0] = var[0]);
        issued(&gpu, 3, 0);
        assert_eq!(edges(&gpu), (1, 2), "the event was recorded again, or not waited for");
        gpu.resume();
        for out in &outs {
            assert_eq!(download(&engine, out, 1), [4]);
        }
    });
}

/// Waits until `launches` kernels have been issued and have passed on their variables, which are used by one lane only.
fn passed_on(gpu: &SimulatedGpu, launches: u64) {
    issued(gpu, launches, 0);
    // The lane does not poll its stream before it is done with the operation that it issues.
    let polls = gpu.counts().polls;
    eventually("the lane polls its stream", || gpu.counts().polls > polls);
}

/// A dependent operation that arrives late makes the lane record events in advance, at first for 64 operations.
#[test]
fn events_are_recorded_in_advance_only_for_a_while_if_no_stream_waits_for_them() {
    watched(|| {
        let gpu = SimulatedGpu::default();
        let engine = engine(EngineKind::PerDevice, &gpu);
        let (var, out) = (device(&engine, 1), device(&engine, 1));
        gpu.stall();
        kernel(&engine, "write", &var, |_| {});
        passed_on(&gpu, 1);
        kernel_from(&engine, "urgent", Property::GpuPrioritized, &var, &out, |_, _| {});
        issued(&gpu, 2, 0);
        gpu.resume();
        engine.wait_for_all().unwrap();
        // Returns how many events have been recorded after another hundred operations, on which no others depend.
        let after_more = || {
            for _ in 0..100 {
                kernel(&engine, "alone", &var, |_| {});
                engine.wait_for_all().unwrap();
            }
            gpu.counts().records
        };
        assert_eq!(gpu.counts().records, 1);
        let records = after_more();
        assert!(records > 1, "no event is recorded in advance");
        assert_eq!(after_more(), records, "events are recorded although no stream waits for them");
    });
}

/// The first kernel has a mark behind it. A CPU operation that is pushed later waits for that mark or, if it depends on
/// a later kernel, for a new one.
#[test]
fn a_mark_is_made_for_a_late_cpu_operation_only_if_no_earlier_mark_suffices() {
    for kind in THREADED {
        watched_for(AWHILE, move || {
            let gpu = manual();
            let engine = engine(kind, &gpu);
            let [first, second, third] = std::array::from_fn(|_| device(&engine, 1));
            let look = |var: &Var<DeviceVec<u64>>| engine.op("look").submit(var.read(), |_| ()).unwrap();
            kernel(&engine, "first", &first, |_| {});
            passed_on(&gpu, 1);
            kernel(&engine, "second", &second, |_| {});
            passed_on(&gpu, 2);
            // The lane receives the CPU operation before the third kernel.
            let look_at_first = look(&first);
            kernel(&engine, "third", &third, |_| {});
            passed_on(&gpu, 3);
            assert_eq!(gpu.counts().marks, 1, "{kind}: there was a mark behind the first kernel");
            let look_at_second = look(&second);
            eventually("the second kernel has a mark behind it", || gpu.counts().marks == 2);
            gpu.advance(ms(3));
            look_at_first.wait().unwrap();
            look_at_second.wait().unwrap();
            kernel(&engine, "fourth", &first, |_| {});
            passed_on(&gpu, 4);
            assert_eq!(gpu.counts().marks, 3, "{kind}: an operation was marked twice");
            gpu.advance(ms(1));
            engine.wait_for_all().unwrap();
        });
    }
}

/// The event for a known dependent operation is recorded directly behind its dependency, before later commands of the
/// stream. The same applies to the mark for a CPU operation.
#[test]
fn a_known_dependent_operation_does_not_wait_for_later_commands() {
    watched_for(AWHILE, || {
        for _ in 0..10 {
            let gpu = SimulatedGpu::builder()
                .launch_latency(Duration::ZERO)
                .kernel_time(ms(1))
                .compute_engines(2)
                .clock(Clock::Manual)
                .build();
            let (engine, journal) = (engine(EngineKind::PerDevice, &gpu), Journal::new());
            let [first, var, out, free] = std::array::from_fn(|_| device(&engine, 1));
            let gate = hold_lane(&engine, Property::Normal);
            let urgent_gate = hold_lane(&engine, Property::GpuPrioritized);
            let (on_stream, on_cpu) = (journal.clone(), journal.clone());
            // The mark behind this operation is in flight, so a mark follows the next operation only if needed.
            kernel(&engine, "first", &first, |_| {});
            kernel(&engine, "second", &var, |_| {});
            kernel_from(&engine, "urgent", Property::GpuPrioritized, &var, &out, move |_, _| on_stream.add("urgent"));
            let look = engine.op("look").submit(var.read(), move |_| on_cpu.add("cpu")).unwrap();
            let long = engine.op("long").on(GPU).launch_any(free.write(), |stream, free| {
                simulated(stream).launch(Duration::from_secs(3600), free, |_| {})
            });
            long.unwrap();
            gate.open();
            eventually("the long kernel is issued", || gpu.counts().launches == 3);
            urgent_gate.open();
            issued(&gpu, 4, 0);
            gpu.advance(ms(3));
            look.wait().unwrap();
            engine.wait_for_var(&out).unwrap();
            let mut journal = journal.take();
            journal.sort_unstable();
            assert_eq!(journal, ["cpu", "urgent"]);
            gpu.advance(Duration::from_secs(3600));
            engine.wait_for_all().unwrap();
        }
    });
}

/// A complete operation needs no event.
#[test]
fn nothing_is_recorded_for_complete_operations() {
    watched(|| {
        let gpu = SimulatedGpu::default();
        let engine = engine(EngineKind::PerDevice, &gpu);
        let (var, out) = (device(&engine, 1), device(&engine, 1));
        kernel(&engine, "write", &var, |values| values[0] = 4);
        engine.wait_for_all().unwrap();
        kernel_from(&engine, "urgent", Property::GpuPrioritized, &var, &out, |var, out| out[0] = var[0]);
        engine.wait_for_all().unwrap();
        assert_eq!(edges(&gpu), (0, 0));
        assert_eq!(download(&engine, &out, 1), [4]);
    });
}

/// The readers are on three streams. The writer waits for all three, and for nothing else, since the upload is
/// complete.
#[test]
fn a_writer_waits_for_the_readers_of_all_streams() {
    watched_for(AWHILE, || {
        let gpu = SimulatedGpu::default();
        let engine = engine(EngineKind::PerDevice, &gpu);
        let var = device(&engine, 1);
        let outs: [Var<DeviceVec<u64>>; 3] = std::array::from_fn(|_| device(&engine, 1));
        upload(&engine, &var, vec![5]);
        engine.wait_for_all().unwrap();
        let before = edges(&gpu);
        gpu.stall();
        let properties = [Property::CopyToGpu, Property::CopyFromGpu, Property::GpuPrioritized];
        let gates = properties.map(|property| hold_lane(&engine, property));
        for (out, property) in outs.iter().zip(properties) {
            kernel_from(&engine, "reader", property, &var, out, |var, out| out[0] = var[0]);
        }
        kernel(&engine, "writer", &var, |values| values[0] = 6);
        for gate in gates {
            gate.open();
        }
        issued(&gpu, 4, 1);
        assert_eq!(edges(&gpu), (before.0 + 3, before.1 + 3));
        gpu.resume();
        for out in &outs {
            assert_eq!(download(&engine, out, 1), [5]);
        }
        assert_eq!(download(&engine, &var, 1), [6]);
    });
}

/// Ten pieces are copied in, processed and copied out. Each of these stages takes a millisecond per piece. On the
/// device's clock, this takes twelve milliseconds in total instead of thirty.
#[test]
fn copies_in_kernels_and_copies_out_overlap() {
    const PIECES: u64 = 10;
    watched(|| {
        let gpu = manual();
        let engine = engine(EngineKind::PerDevice, &gpu);
        let hosts: Vec<_> = (0..PIECES).map(|_| (pinned(&engine, 125), pinned(&engine, 125))).collect();
        for (piece, (host, _)) in hosts.iter().enumerate() {
            engine.op("fill").push(host.write(), move |host| host.fill(piece as u64)).unwrap();
        }
        engine.wait_for_all().unwrap();
        // While the first lane is held, all operations are pushed before any is issued, so each stage knows the next
        // one.
        let gate = hold_lane(&engine, Property::CopyToGpu);
        for (host, back) in &hosts {
            let var = device(&engine, 125);
            engine.op("in").on(GPU).copy_to_device(host, &var).unwrap();
            kernel(&engine, "compute", &var, |values| values.iter_mut().for_each(|value| *value += 100));
            engine.op("out").on(GPU).copy_from_device(&var, back).unwrap();
        }
        gate.open();
        // No operation has completed yet, so none can have waited for the host.
        issued(&gpu, PIECES, 2 * PIECES);
        gpu.advance(ms(100));
        engine.wait_for_all().unwrap();
        let usage = gpu.usage();
        for engine in [usage.copy_in, usage.copy_out, usage.compute[0]] {
            assert_eq!((engine.commands, engine.busy), (PIECES, ms(PIECES)), "{usage:?}");
        }
        assert_eq!(usage.copy_in.first_start, Some(ms(0)));
        assert_eq!(usage.copy_out.last_end, Some(ms(PIECES + 2)), "{usage:?}");
        for (piece, (_, back)) in hosts.iter().enumerate() {
            let sum = engine.op("sum").submit(back.read(), |back| back.iter().sum::<u64>()).unwrap();
            assert_eq!(sum.wait().unwrap(), 125 * (100 + piece as u64));
        }
    });
}

#[test]
fn urgent_kernels_start_before_others() {
    watched(|| {
        let gpu = manual();
        let (engine, journal) = (engine(EngineKind::PerDevice, &gpu), Journal::new());
        let vars: Vec<_> = (0..6).map(|_| device(&engine, 1)).collect();
        gpu.stall();
        for (number, var) in vars.iter().enumerate() {
            let (journal, property) =
                (journal.clone(), if number == 5 { Property::GpuPrioritized } else { Property::Normal });
            let launch = engine.op("kernel").on(GPU).kind(property).launch_any(var.write(), move |stream, var| {
                simulated(stream).launch(Duration::ZERO, var, move |_| journal.add(number))
            });
            launch.unwrap();
        }
        issued(&gpu, 6, 0);
        gpu.resume();
        // The clock advances one kernel at a time, since two commands due at once may run in parallel on different
        // threads.
        for done in 1..=6 {
            gpu.advance(ms(1));
            eventually("a kernel runs", || journal.len() == done);
        }
        engine.wait_for_all().unwrap();
        assert_eq!(journal.take(), [5, 0, 1, 2, 3, 4]);
    });
}

#[test]
fn ready_operations_are_issued_by_priority() {
    for kind in THREADED {
        watched(move || {
            let gpu = random(1);
            let (engine, journal) = (engine(kind, &gpu), Journal::new());
            let gate = hold_lane(&engine, Property::Normal);
            for priority in [0, 5, -3, 7, 1] {
                let (var, journal) = (device(&engine, 1), journal.clone());
                let launch = engine.op("kernel").on(GPU).priority(priority).launch_any(var.write(), move |_, _| {
                    journal.add(priority);
                });
                launch.unwrap();
            }
            gate.open();
            engine.wait_for_all().unwrap();
            assert_eq!(journal.take(), [7, 5, 1, 0, -3], "{kind}");
        });
    }
}

/// Each lane has its own thread, so a slow function delays no other lane.
#[test]
fn lanes_of_a_device_do_not_wait_for_each_other() {
    watched(|| {
        let gpu = random(2);
        let engine = engine(EngineKind::PerDevice, &gpu);
        let properties = [Property::CopyToGpu, Property::CopyFromGpu, Property::Normal, Property::GpuPrioritized];
        let gates = properties.map(|property| hold_lane(&engine, property));
        let names = Journal::new();
        for (property, gate) in properties.into_iter().zip(gates) {
            let (names, token) = (names.clone(), engine.token());
            let note = engine.op("name").on(GPU).kind(property).writes([&token]).push_sync(move |_| {
                names.add(thread::current().name().unwrap_or_default().to_owned());
            });
            note.unwrap();
            gate.open();
            engine.wait_for_var(&token).unwrap();
        }
        let expected = ["copy-in", "copy-out", "compute", "urgent"].map(|lane| format!("raddle-gpu0-{lane}"));
        assert_eq!(names.take(), expected);
    });
}

/// Values are correct in whatever order the device executes commands, with events requested early and late.
#[test]
fn values_are_correct_in_any_order_that_the_device_picks() {
    for kind in THREADED {
        watched(move || {
            for seed in 0..30 {
                let gpu = random(seed);
                let engine = engine(kind, &gpu);
                let (host, back) = (pinned(&engine, 2), pinned(&engine, 2));
                let (a, b) = (device(&engine, 2), device(&engine, 2));
                upload(&engine, &b, vec![0, 0]);
                let mut expected = 0;
                for round in 0..20 {
                    engine.op("fill").push(host.write(), move |host| host.fill(round)).unwrap();
                    engine.op("in").on(GPU).copy_to_device(&host, &a).unwrap();
                    kernel_from(&engine, "fold", Property::Normal, &a, &b, |a, b| b[0] = b[0] * 3 + a[0]);
                    kernel_from(&engine, "fold", Property::GpuPrioritized, &a, &b, |a, b| b[0] = b[0] * 5 + a[1]);
                    engine.op("out").on(GPU).copy_from_device(&b, &back).unwrap();
                    expected = (expected * 3 + round) * 5 + round;
                    expected %= 1 << 30;
                    kernel(&engine, "small", &b, |b| b[0] %= 1 << 30);
                }
                assert_eq!(download(&engine, &b, 2), [expected, 0], "{kind}, seed {seed}");
            }
        });
    }
}
