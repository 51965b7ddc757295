//! What other crates leave to crossbeam's collector may run while a worker's deque grows.
mod common;
use common::*;
use raddle::EngineKind;
use std::sync::{Arc, atomic::{AtomicUsize, AtomicBool, Ordering::SeqCst}};

fn go(kind: EngineKind) {
    watched_for(std::time::Duration::from_secs(20), move || {
        let engine = engine(kind, 1);
        let ran = Arc::new(AtomicUsize::new(0));
        let pushed = Arc::new(AtomicBool::new(false));
        let (e, r, p) = (engine.clone(), Arc::clone(&ran), Arc::clone(&pushed));
        engine.op("pusher").push_sync(move |_| {
            // What another crate retires in crossbeam's own collector, say a skip list's value whose drop pushes.
            let (e2, r2, p2) = (e.clone(), Arc::clone(&r), Arc::clone(&p));
            {
                let guard = crossbeam_epoch::pin();
                guard.defer(move || {
                    let r3 = Arc::clone(&r2);
                    e2.op("from a destructor").push_sync(move |_| { r3.fetch_add(1000, SeqCst); }).unwrap();
                    p2.store(true, SeqCst);
                });
                guard.flush();
            }
            for _ in 0..600 {
                let r2 = Arc::clone(&r);
                e.op("plain").push_sync(move |_| { r2.fetch_add(1, SeqCst); }).unwrap();
                let _ = &p;
            }
        }).unwrap();
        let first = engine.wait_for_all_timeout(std::time::Duration::from_secs(5));
        assert!(first.is_ok());
        let done = engine.wait_for_all_timeout(std::time::Duration::from_secs(5));
        println!("{kind}: wait_for_all: {done:?}, destructor ran: {}, ran = {}", pushed.load(SeqCst), ran.load(SeqCst));
        assert!(done.is_ok() && ran.load(SeqCst) == 1600);
    });
}

#[test]
fn a_destructor_of_another_crate_pushes_while_the_deque_grows() { go(EngineKind::Pooled); }
