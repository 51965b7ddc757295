//! The target `concurrent_push`: one to four threads push, and a single order must explain the logs of all variables.
//! Operations use up to six variables, or up to 48 in an eighth of the programs.
//! In a fifth of the programs that neither wait nor have a limit, all mutations wait until all threads have pushed.
//! In a quarter of the programs, operations commute on some variables.
//! In a third of the programs, the engine limits pending operations. In such a program, the number of pending
//! operations must not exceed the limit by more than the documented amount, unless the program contains operations for
//! which no amount is documented.

use std::sync::Arc;

use raddle::EngineBuilder;

use super::{Bytes, check_recorded, engine_plan, observe, watched};
use crate::{
    KINDS,
    program::{Program, Shape, Source, Watch, check_some_order, run_observed},
};

pub fn concurrent_push(data: &[u8]) {
    watched("concurrent_push", data, |watchdog| {
        let mut bytes = Bytes::new(data);
        let (plan, recorder) = observe(engine_plan(&mut bytes, &KINDS), data);
        let threads = 1 + bytes.below(4);
        let [variables, accesses] = [8, 6].map(|most| 1 + bytes.below(most));
        // The input's length determines the width, so that other inputs keep their meaning.
        let width = if data.len() % 8 == 7 { 8 } else { 1 };
        let shape = Shape {
            threads,
            variables: variables * width,
            accesses: accesses * width,
            children: bytes.one_in(2),
            waits: bytes.one_in(2),
            operations: 400,
            failures: false,
        };
        // The same holds for the limit.
        let limit = (data.len() % 3 == 0).then_some(1 + data.len() / 3 % 17);
        let plan = limit.into_iter().fold(plan, EngineBuilder::max_pending);
        let backlog = limit.is_none() && !shape.waits && data.len() % 5 == 0;
        let watch = Watch { limit, backlog, ..bytes.pick(&[Watch::ORDER, Watch::EVERYTHING]) };
        // The more each thread pushes, the likelier are pushes of different threads to overlap.
        let times = bytes.pick(&[1, 4, 16, 64]);
        let mut program = Program::generate(&shape, &mut bytes);
        if limit.is_some() && !shape.children && data.len() % 2 == 0 {
            // The maximum number of pending operations is known only if no completion is used outside its operation's
            // function.
            program.complete_inside();
        }
        // As for the width.
        if data.len() % 4 == 1 {
            program.commuting();
        }
        let times = times.min(2_000 / program.operations.len().max(1)).max(1);
        let program = Arc::new(program.repeated(times));
        let description = format!("{plan:?}\n{watch:?}");
        let engine = plan.build().map_err(|error| error.to_string())?;
        let (shown, heading) = (Arc::clone(&program), description.clone());
        let history = run_observed(&program, &engine, watch, |position| {
            watchdog.explain(move || format!("{}\n{heading}\n{shown:#?}", position()));
        });
        drop(engine);
        check_some_order(&program, &history)
            .and_then(|()| check_recorded(recorder.as_ref()))
            .map_err(|error| format!("{error}\n{description}\n{program:#?}"))
    });
}
