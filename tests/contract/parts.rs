//! Arrays cut into parts.

use raddle_testkit as common;

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use common::{
    Drops, Gate, KINDS, THREADED, block_on, engine, failure, on_kinds,
    program::{Random, Source},
};
use raddle::{Engine, PushError, Tiles, error::NoAccess};

fn contents<T: Clone + Send + Sync + 'static>(engine: &Engine, tiles: &Tiles<T>) -> Vec<T> {
    let copy = engine.op("copy").submit(tiles.all().read(), |all| all.iter().flatten().cloned().collect());
    copy.unwrap().wait().unwrap()
}

#[test]
fn operations_on_different_parts_run_beside_each_other_and_those_on_the_same_do_not() {
    on_kinds(&THREADED, 2, |engine| {
        let field = engine.parts(vec![0; 10], 4);
        let lengths: Vec<_> = field.iter().map(|part| part.columns()).collect();
        assert_eq!(lengths, [0..4, 4..8, 8..10]);
        let gate = Arc::new(Gate::new());
        let passes = Arc::clone(&gate);
        let first = engine.op("first").push(field.part(0).unwrap().write(), move |part| {
            passes.pass();
            part.fill(1);
        });
        first.unwrap();
        let other = engine.op("second").submit(field.range(4..10).unwrap().write(), |part| part.fill(2)).unwrap();
        other.wait().unwrap(); // while the first one runs
        let across = engine.op("across").submit(field.range(3..5).unwrap().read(), <[i32]>::to_vec).unwrap();
        let whole =
            engine.op("whole").submit(field.all().write(), |all| all.iter_mut().for_each(|n| *n *= 10)).unwrap();
        let last = engine.op("last").submit(field.part(2).unwrap().read(), <[i32]>::to_vec).unwrap();
        assert!(!across.is_done() && !whole.is_done() && !last.is_done());
        gate.open();
        assert_eq!(across.wait().unwrap(), [1, 2]);
        whole.wait().unwrap();
        assert_eq!(last.wait().unwrap(), [20, 20]);
    });
}

/// A rectangle of an array with these numbers of rows and columns, which may be empty.
fn rectangle(random: &mut Random, rows: usize, columns: usize) -> [Range<usize>; 2] {
    [rows, columns].map(|length| {
        let [one, other] = [0, 0].map(|_| random.below(length + 1));
        one.min(other)..one.max(other)
    })
}

/// What an operation does with the elements that it reads and one that it mutates.
fn mix(read: u64, written: u64) -> u64 {
    (read ^ written.rotate_left(7)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[test]
fn random_programs_give_the_elements_of_a_serial_run() {
    on_kinds(&KINDS, 2, |engine| {
        for seed in 1..if cfg!(miri) { 3 } else { 40 } {
            let mut random = Random::new(seed);
            let (rows, columns) = (1 + random.below(12), 1 + random.below(12));
            let tile = [0, 0].map(|_| 1 + random.below(5));
            let start: Vec<u64> = (0..(rows * columns) as u64).collect();
            let arrays = [0, 1].map(|_| engine.tiles(start.clone(), columns, tile).unwrap());
            let mut expected = [start.clone(), start];
            for _ in 0..60 {
                let (from, to) = (random.below(2), random.below(2));
                let [read, written] = [0, 0].map(|_| rectangle(&mut random, rows, columns));
                let [reads, writes] = [(&read, from), (&written, to)]
                    .map(|(at, array)| arrays[array].region(at[0].clone(), at[1].clone()).unwrap());
                let pushed = engine.op("mix").push((reads.read(), writes.write()), |(from, mut to)| {
                    let sum = from.iter().flatten().fold(0, |sum, n| mix(*n, sum));
                    to.iter_mut().flatten().for_each(|n| *n = mix(sum, *n));
                });
                let touches = |token| writes.tokens().any(|other| other == token);
                if reads.tokens().any(touches) {
                    assert!(matches!(pushed, Err(PushError::Variable(NoAccess::Aliased, _))));
                    continue;
                }
                pushed.unwrap();
                let at = |[rows, range]: &[Range<usize>; 2]| -> Vec<usize> {
                    rows.clone().flat_map(|row| range.clone().map(move |column| row * columns + column)).collect()
                };
                let sum = at(&read).into_iter().fold(0, |sum, at| mix(expected[from][at], sum));
                at(&written).into_iter().for_each(|at| expected[to][at] = mix(sum, expected[to][at]));
            }
            assert_eq!(arrays.map(|array| contents(&engine, &array)), expected, "seed {seed}");
        }
    });
}

#[test]
fn a_part_fails_with_what_touches_it() {
    on_kinds(&KINDS, 1, |engine| {
        let field = engine.parts(vec![0; 8], 2).named("field");
        engine.op("fails").try_push(field.part(1).unwrap().write(), |_| Err("no".into())).unwrap();
        let read = |range| engine.op("read").submit(field.range(range).unwrap().read(), <[i32]>::len).unwrap().wait();
        assert!([2..3, 0..8].into_iter().all(|range| failure(read(range)).root().name() == "fails"));
        assert_eq!((read(0..2).unwrap(), read(4..8).unwrap()), (2, 4));
        engine.op("mends").push(field.range(3..5).unwrap().overwrite(), |part| part.fill(1)).unwrap();
        assert_eq!(read(0..8).unwrap(), 8);
        let versions = field.all().tokens().map(|token| token.version());
        assert_eq!(versions.collect::<Vec<_>>(), [0, 1, 1, 0]);
    });
}

#[test]
fn elements_are_dropped_once_after_the_last_use() {
    for kind in KINDS {
        let (engine, drops) = (engine(kind, 2), Drops::new());
        let field = engine.parts((0..10).map(|_| drops.make()).collect(), 3).named("field");
        let tiles = engine.tiles((0..10).map(|_| drops.make()).collect(), 5, [1, 2]).unwrap();
        // A deleted part keeps its elements, as part of the memory.
        engine.delete_variable(field.part(1).unwrap().tokens().next().unwrap(), |_| ()).unwrap();
        let touch = engine.op("touch").push(field.all().read(), |_| ());
        assert!(touch.unwrap_err().to_string().contains(" names variable `field[1]`, which was deleted"));
        engine.op("touch").push(field.range(6..10).unwrap().write(), |part| part[0].touch()).unwrap();
        engine
            .op("replace")
            .push(tiles.tile(1, 1).unwrap().write(), |mut tile| tile[[0, 1]] = tile[[0, 0]].clone())
            .unwrap();
        let operator =
            engine.op("again").operator(tiles.all().read(), |all| all.iter().flatten().for_each(|d| d.touch()));
        let operator = operator.unwrap();
        drop((field, tiles));
        operator.push().unwrap();
        engine.wait_for_all().unwrap();
        assert!(drops.dropped() <= 11, "the operator needs the tiles");
        drop(operator);
        drop(engine);
        drops.assert_all_gone();
    }
}

#[test]
fn what_an_array_does_not_have_is_an_error() {
    let engine = engine(raddle::EngineKind::Naive, 1);
    let field = engine.parts(vec![0; 5], 0);
    assert_eq!((field.iter().len(), field.len()), (5, 5), "a length of 0 is treated as 1");
    assert!(field.part(5).is_err() && field.part(usize::MAX).is_err());
    assert!(field.range(0..6).is_err() && field.range(usize::MAX..usize::MAX).is_err());
    #[allow(clippy::reversed_empty_ranges, reason = "it is refused")]
    let reversed = field.range(3..2).unwrap_err();
    assert_eq!(reversed.to_string(), "elements 3..2 were asked for, which end before they begin");
    let tiles = engine.tiles(vec![0; 6], 3, [5, usize::MAX]).unwrap();
    assert_eq!((tiles.iter().len(), tiles.rows(), tiles.columns()), (1, 2, 3));
    let error = tiles.tile(1, 0).unwrap_err();
    assert_eq!(error.to_string(), "tile row 1 was asked for, but there are tile rows 0..1");
    let (grown, all) = (tiles.region(1..2, 1..2).unwrap().grown([usize::MAX, 1]), field.range(2..4).unwrap().grown(1));
    assert_eq!((grown.rows(), grown.columns(), all.columns(), tiles.grid()), (0..2, 0..3, 1..5, [1, 1]));
    assert!(tiles.tile(0, 1).is_err() && tiles.region(0..2, 0..4).is_err() && tiles.region(0..3, 0..3).is_err());
    assert!(engine.tiles(vec![0; 6], 0, [1, 1]).is_err() && engine.tiles(vec![0; 6], 4, [1, 1]).is_err());
}

#[test]
fn empty_arrays_and_parts_name_nothing() {
    on_kinds(&KINDS, 1, |engine| {
        let (empty, tiles) = (engine.parts(Vec::<String>::new(), 3), engine.tiles(vec![0; 0], 0, [2, 2]).unwrap());
        assert!(empty.is_empty() && empty.part(0).is_err() && tiles.iter().len() == 0);
        let lengths = engine.op("").submit((empty.all().write(), tiles.all().read()), |(a, b)| (a.len(), b.rows()));
        assert_eq!(lengths.unwrap().wait().unwrap(), (0, 0));
        // Its memory is gone when the operation runs.
        let field = engine.tiles(vec![0; 6], 3, [1, 1]).unwrap();
        for token in field.all().tokens() {
            engine.delete_variable(token, |_| ()).unwrap();
        }
        engine.wait_for_all().unwrap();
        let (none, thin) = (field.region(1..1, 0..3).unwrap(), field.region(0..2, 3..3).unwrap());
        let sizes = engine.op("").submit((none.write(), thin.write()), |(mut none, mut thin)| {
            assert!(thin.row_mut(1).is_empty() && thin.iter_mut().flatten().next().is_none());
            (none.rows(), none.columns(), thin.rows(), none.iter_mut().len())
        });
        assert_eq!(sizes.unwrap().wait().unwrap(), (0, 3, 2, 0));
        let units = engine.parts(vec![(); 100], 30);
        engine.op("").push(units.range(10..90).unwrap().write(), |part| assert_eq!(part.len(), 80)).unwrap();
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn parts_are_acquired_and_used_by_futures_scopes_and_children() {
    on_kinds(&THREADED, 2, |engine| {
        let (field, tiles) = (engine.parts(vec![0; 6], 2), engine.tiles(vec![0; 6], 3, [1, 2]).unwrap());
        let (mut part, mut tile) =
            block_on(engine.acquire((field.range(1..3).unwrap().write(), tiles.all().write()))).unwrap();
        part.get_mut()[1] = 7;
        tile.get_mut()[[1, 2]] = 8;
        let sum = engine.op("").submit_future(field.all().read(), async |all| all.get().iter().sum::<i32>()).unwrap();
        assert!(!sum.is_done());
        assert_eq!((part.get()[1], tile.get().row(1)), (7, &[0, 0, 8][..]));
        std::thread::spawn(move || drop((part, tile))).join().unwrap();
        assert_eq!(sum.wait().unwrap(), 7);
        let mut total = 0;
        let scope = engine
            .scope(|scope| scope.op("").push(tiles.all().read(), |all| total = all.iter().flatten().sum::<i32>()));
        scope.unwrap().unwrap();
        assert_eq!(total, 8);
        let inner = field.clone();
        let parent = engine.op("").with_children().push((raddle::cx(), field.all().write()), move |(cx, _)| {
            cx.child("").push(inner.part(1).unwrap().write(), |part| part.fill(3)).unwrap();
        });
        parent.unwrap();
        let elements = engine.op("").submit(field.all().read(), <[i32]>::to_vec).unwrap().wait().unwrap();
        assert_eq!(elements, [0, 0, 3, 3, 0, 0]);
    });
}

#[test]
fn a_tile_has_no_other_rows_and_columns() {
    let engine = engine(raddle::EngineKind::Naive, 1);
    let tiles = engine.tiles((0..9).collect(), 3, [2, 2]).unwrap();
    let checks = engine.op("").submit(tiles.region(1..3, 1..2).unwrap().write(), |mut tile| {
        let mut outside =
            |f: &mut dyn FnMut(&mut raddle::TileMut<'_, i32>)| catch_unwind(AssertUnwindSafe(|| f(&mut tile))).is_err();
        [
            outside(&mut |tile| _ = tile.row_mut(2)),
            outside(&mut |tile| tile[[0, 1]] = 0),
            outside(&mut |tile| _ = tile.view()[[2, 0]]),
            outside(&mut |tile| tile[[1, 0]] += 0),
        ]
    });
    assert_eq!(checks.unwrap().wait().unwrap(), [true, true, true, false]);
}
