//! The shapes a program writes first.
#![forbid(unsafe_code)]

use raddle::{Cause, Engine, EngineKind, PushError, WaitError};
use std::{
    sync::Arc,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

fn kinds() -> Vec<Engine> {
    [EngineKind::Naive, EngineKind::Pooled, EngineKind::PerDevice]
        .into_iter()
        .map(|k| Engine::builder().kind(k).workers(2).build().unwrap())
        .collect()
}

#[test]
fn typed() {
    for engine in kinds() {
        let a = engine.var(vec![1.0f32; 16]);
        let b = engine.var(vec![0.0f32; 16]);
        for _ in 0..1000 {
            engine.op("b").priority(1).push((a.read(), b.write()), |(a, b)| b.copy_from_slice(a)).unwrap();
            engine
                .op("a")
                .push((b.read(), a.write()), |(b, a)| {
                    for (a, b) in a.iter_mut().zip(b) {
                        *a += b * 0.001
                    }
                })
                .unwrap();
        }
        let got = engine.get(&a).unwrap();
        assert!(got[0] > 2.0 && got[0] < 3.0, "{got:?}");
        assert_eq!(engine.version(&a), 1000);
        engine.wait_for_all().unwrap();
    }
}

#[test]
fn many_pushers() {
    for engine in kinds() {
        let vars: Vec<_> = (0..8).map(|_| engine.var(0u64)).collect();
        thread::scope(|s| {
            for t in 0..4usize {
                let (engine, vars) = (&engine, &vars);
                s.spawn(move || {
                    for i in 0..5000usize {
                        let (x, y) = ((i + t) % 8, (i * 3 + t * 5 + 1) % 8);
                        if x == y {
                            engine.op("one").push(vars[x].write(), |x| *x += 1).unwrap();
                        } else {
                            engine
                                .op("two")
                                .push((vars[x].write(), vars[y].write()), |(x, y)| {
                                    *x += 1;
                                    *y += 1;
                                })
                                .unwrap();
                        }
                    }
                });
            }
        });
        engine.wait_for_all().unwrap();
        let total: u64 = vars.iter().map(|v| engine.get(v).unwrap()).sum();
        let versions: u64 = vars.iter().map(|v| engine.version(v)).sum();
        assert_eq!(total, versions);
    }
}

#[test]
fn asynchronous_and_failing() {
    for engine in kinds() {
        let token = engine.new_var();
        engine
            .push_async(
                |_cx, done| {
                    let h = thread::spawn(move || {
                        thread::sleep(Duration::from_millis(5));
                        done.complete()
                    });
                    drop(h)
                },
                [],
                [&token],
            )
            .unwrap();
        engine.wait_for_var(&token).unwrap();
        assert_eq!(engine.version(&token), 1);
        engine.op("boom").writes([&token]).push_sync(|_| panic!("boom")).unwrap();
        let hits = Arc::new(AtomicUsize::new(0));
        let h = hits.clone();
        engine
            .push_sync(
                move |_| {
                    h.fetch_add(1, Ordering::Relaxed);
                },
                [&token],
                [],
            )
            .unwrap();
        let Err(WaitError::Failed(e)) = engine.wait_for_var(&token) else { panic!() };
        assert!(matches!(e.cause(), Cause::Panic(Some(m)) if m == "boom"));
        assert!(engine.wait_for_all().is_err());
        assert_eq!(hits.load(Ordering::Relaxed), 0);
        assert_eq!(Arc::strong_count(&hits), 1);
        engine.clear_error(&token).unwrap();
        engine.wait_for_all().unwrap();
        engine.push_async(|_, done| drop(done), [], [&token]).unwrap();
        assert!(
            matches!(engine.wait_for_var(&token), Err(WaitError::Failed(e)) if matches!(e.cause(), Cause::LostCompletion))
        );
    }
}

#[test]
fn waits_inside() {
    for engine in kinds() {
        let a = engine.var(1);
        let h = engine
            .op("outer")
            .submit((), {
                let e = engine.clone();
                move |()| {
                    let b = e.var(0);
                    e.op("inner").push(b.write(), |b| *b = 7).unwrap();
                    e.get(&b).unwrap()
                }
            })
            .unwrap();
        assert_eq!(h.wait().unwrap(), 7);
        let e = engine.clone();
        let a2 = a.clone();
        let h = engine.op("own").submit(a.write(), move |_| e.wait_for_var(&a2)).unwrap();
        assert!(matches!(h.wait().unwrap(), Err(WaitError::WouldDeadlock)));
    }
}

#[test]
fn deletion() {
    for engine in kinds() {
        let a = engine.var(String::from("x"));
        let hits = Arc::new(AtomicUsize::new(0));
        let h = hits.clone();
        engine.op("w").push(a.write(), |a| a.push('y')).unwrap();
        engine
            .delete_variable(&a, move |_| {
                h.fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
        assert_eq!(engine.op("w").push(a.write(), |a| a.push('y')), Err(PushError::DeletedVariable));
        engine.wait_for_var(&a).unwrap();
        engine.wait_for_all().unwrap();
        assert_eq!(hits.load(Ordering::Relaxed), 1);
    }
}
