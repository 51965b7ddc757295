//! The last counted handle ends with a thread of the engine itself, while somebody ends the engine's threads.
mod common;
use common::*;
use raddle::{Engine, EngineKind, Shutdown};
use std::{cell::RefCell, sync::mpsc, time::Duration};

thread_local!(static KEPT: RefCell<Option<Engine>> = const { RefCell::new(None) });

#[test]
fn a_handle_in_a_workers_thread_local_ends_while_another_thread_shuts_down() {
    watched_for(Duration::from_secs(20), || {
        let engine = engine(EngineKind::Pooled, 1);
        let (sender, receiver) = mpsc::channel();
        let own = engine.clone();
        engine.push_sync(move |cx| { KEPT.with_borrow_mut(|kept| *kept = Some(own)); sender.send(cx.engine()).unwrap(); }, [], []).unwrap();
        let uncounted = receiver.recv().unwrap();
        engine.wait_for_all().unwrap();
        drop(engine);
        uncounted.shutdown(Shutdown::Drain, None).unwrap();
    });
}
