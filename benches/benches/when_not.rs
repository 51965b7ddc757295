//! From which duration of its operations a program gains from an engine, by their number of accesses.
//!
//! The rivals do not keep an order: rayon's tasks lock what they use, in ascending order, and one thread alone needs
//! neither locks nor tasks. So the table answers when one of these suffices, not which keeps the order at least cost.

use std::{sync::RwLock, time::Instant};

use raddle::{Engine, Token};
use raddle_benches::{
    kernel::{Kernel, compute, serial_ns},
    machine,
    report::{Report, Table, number, spread},
    rounds::{self, Row},
    state::by_state,
    stats::median,
};

/// The number of variables, from which each operation takes some at random.
const VARIABLES: usize = 1_024;

/// The numbers of accesses of an operation, of which one mutates.
const ACCESSES: [usize; 4] = [1, 2, 4, 8];

/// The iterations of the compute-bound kernel in an operation: some 30 ns to 30 µs.
const SIZES: [u32; 6] = [16, 64, 256, 1_024, 4_096, 16_384];

/// Calls `use_these` for each operation with the distinct variables that it uses, in ascending order.
fn each_operation(operations: usize, accesses: usize, mut use_these: impl FnMut(&[usize])) {
    let (mut state, mut chosen) = (0x9e37_79b9_7f4a_7c15_u64, Vec::with_capacity(accesses));
    for _ in 0..operations {
        chosen.clear();
        while chosen.len() < accesses {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let next = state as usize % VARIABLES;
            if !chosen.contains(&next) {
                chosen.push(next);
            }
        }
        chosen.sort_unstable();
        use_these(&chosen);
    }
}

fn in_engine(engine: &Engine, variables: &[Token], operations: usize, accesses: usize, iterations: u32) {
    each_operation(operations, accesses, |chosen| {
        let (reads, write) = (chosen[1..].iter().map(|&read| &variables[read]), &variables[chosen[0]]);
        let pushed = engine.op("").reads(reads).writes(write).push((), move |()| compute(iterations));
        pushed.expect("push");
    });
    engine.wait_for_all().expect("wait");
}

fn in_rayon(locks: &[RwLock<()>], operations: usize, accesses: usize, iterations: u32) {
    rayon::scope(|scope| {
        each_operation(operations, accesses, |chosen| {
            let chosen = chosen.to_vec();
            scope.spawn(move |_| {
                let _write = locks[chosen[0]].write().expect("no panic");
                let _reads: Vec<_> = chosen[1..].iter().map(|&read| locks[read].read().expect("no panic")).collect();
                compute(iterations);
            });
        });
    });
}

fn main() {
    let (cores, rounds) = (machine::cores(), machine::rounds());
    let engine = Engine::builder().workers(cores).pin(true).build().expect("an engine");
    let variables: Vec<Token> = (0..VARIABLES).map(|_| engine.token()).collect();
    let locks: Vec<RwLock<()>> = (0..VARIABLES).map(|_| RwLock::new(())).collect();
    let mut report = Report::new(
        "when_not",
        "From which duration an engine pays",
        &format!(
            "Medians of up to {rounds} interleaved rounds, with the quartiles in brackets. One thread pushes operations \
             that each mutate one of {VARIABLES:?} variables and read others, chosen at random."
        ),
    );
    let mut rows: Vec<Row<'_>> = vec![];
    for accesses in ACCESSES {
        for size in SIZES {
            let operations = machine::choose(4_000_000 / (size as usize + 200), 200);
            let timed = move |run: &dyn Fn()| {
                let start = Instant::now();
                run();
                start.elapsed().as_nanos() as f64 / operations as f64
            };
            let (engine, variables, locks) = (&engine, &variables, &locks);
            let name = |what: &str| format!("{accesses} accesses, {size}, {what}");
            rows.push(Row::new(name("raddle"), move || {
                timed(&|| in_engine(engine, variables, operations, accesses, size))
            }));
            rows.push(Row::new(name("rayon"), move || timed(&|| in_rayon(locks, operations, accesses, size))));
            rows.push(Row::new(name("alone"), move || {
                timed(&|| each_operation(operations, accesses, |_| compute(size)))
            }));
        }
    }
    let samples = rounds::measure(&mut rows, rounds, |_| {});
    drop(rows);
    // Another program on the machine only makes a duration longer.
    let duration = |size| (0..9).map(|_| serial_ns(Kernel::Compute, size)).fold(f64::INFINITY, f64::min);
    let durations = SIZES.map(duration);
    for (state, figures) in by_state(&samples) {
        // Of a state that occurred only for a moment, there is nothing to conclude.
        if figures.iter().any(Vec::is_empty) {
            continue;
        }
        let note = "ns per operation, from the first push to the end of the last. The duration is the kernel's own.";
        let columns = ["accesses", "duration, ns", "raddle", "rayon with locks", "one thread"];
        let mut table = Table::of_state("times", state, "Times", note, &columns);
        let note = "The durations, in ns, from which raddle takes less time than one thread, and at most a tenth more than \
                    rayon with locks; 0 if it does from the shortest one tried, and – if it does from none.";
        let columns = ["accesses", "less than one thread", "near rayon with locks"];
        let mut from = Table::of_state("from", state, "From which duration", note, &columns);
        for (accesses, figures) in ACCESSES.iter().zip(figures.chunks(3 * SIZES.len())) {
            // The last duration for which it does not hold is below the first from which it holds.
            let mut pays = [Some(0.0); 2];
            for (duration, figures) in durations.into_iter().zip(figures.chunks(3)) {
                let cells = figures.iter().map(|figures| spread(figures));
                table.row(accesses.to_string(), [number(duration)].into_iter().chain(cells));
                let [raddle, rayon, alone] = [0, 1, 2].map(|rival| median(&figures[rival]));
                for (pays, holds) in pays.iter_mut().zip([raddle < alone, raddle <= 1.1 * rayon]) {
                    *pays = if holds { pays.or(Some(duration)) } else { None };
                }
            }
            from.row(accesses.to_string(), pays.map(|pays| number(pays.unwrap_or(f64::NAN))));
        }
        report.add(&from);
        report.add(&table);
    }
    report.save();
}
