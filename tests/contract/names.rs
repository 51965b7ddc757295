//! Names of variables, and errors naming the operation and the variable.

use raddle_testkit as common;

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Instant,
};

use common::{Droppable, Drops, KINDS, PATIENCE, on_kinds};
use raddle::{Engine, EngineKind, Name, PushError, Shutdown, Var, completion, error::NoAccess};

#[test]
fn errors_of_pushes_name_the_operation_and_the_variable() {
    on_kinds(&KINDS, 1, |engine| {
        let other = common::engine(EngineKind::Naive, 1);
        let (own, foreign) = (engine.var(1u8).named(String::from("own")), other.token().named("foreign"));

        let refused = engine.op(format!("number {}", 3)).push((own.read(), own.write()), |_| {});
        let Err(PushError::Variable(NoAccess::Aliased, access)) = &refused else { panic!("{refused:?}") };
        assert_eq!((access.operation(), access.variable()), ("number 3", "own"));
        assert!(access.location().file().ends_with("names.rs"));
        let at = format!("pushed at {}", access.location());
        assert_eq!(
            refused.unwrap_err().to_string(),
            format!(
                "operation `number 3` {at} names variable `own` twice and mutates it; declare it once, with `write`"
            )
        );

        let refused = engine.op("").reads([&foreign]).push(own.write(), |_| {}).unwrap_err();
        let shown = refused.to_string();
        assert!(shown.starts_with("the operation pushed at "), "{shown}");
        let words = "names variable `foreign`, which belongs to another engine; push on the engine that created it";
        assert!(shown.ends_with(words), "{shown}");

        let unnamed = engine.var(2u16);
        let operator = engine.op("again").operator(unnamed.write(), |_| {}).unwrap();
        engine.delete_variable(&unnamed, |_| {}).unwrap();
        let refused = operator.push().unwrap_err();
        let shown = format!("{unnamed:?}");
        let (_, id) = shown.split_once("id: ").unwrap();
        let (id, _) = id.split_once(',').unwrap();
        let words = format!("names variable {id} of type `u16`, which was deleted before; push before deleting it");
        assert!(refused.to_string().ends_with(&words), "{refused}");
    });
}

#[test]
fn a_variable_keeps_its_first_name_and_shows_it() {
    let engine = common::engine(EngineKind::PerDevice, 1);
    let total = engine.var(0u8);
    assert_eq!((total.name(), total.token().name()), (None, None));
    let named = total.clone().named("total").named("sum");
    assert_eq!((total.name(), named.name(), total.token().name()), (Some("total"), Some("total"), Some("total")));
    assert!(format!("{total:?}").contains(r#"name: "total""#), "{total:?}");
}

/// Deletions race with pushes, so some pushes pass the first check but are refused by a queue.
#[test]
fn a_push_that_a_concurrent_deletion_refuses_names_both() {
    on_kinds(&KINDS, 1, |engine| {
        let (mut refused, mut round, start) = (0, 0, Instant::now());
        // With only one free core, no push is refused in most rounds.
        while round < 300 || refused == 0 {
            assert!(start.elapsed() < PATIENCE, "no push was refused");
            round += 1;
            let vars: Vec<_> = (0..50).map(|n| engine.var(n).named(format!("variable {n}"))).collect();
            thread::scope(|scope| {
                scope.spawn(|| {
                    for var in vars.iter().rev() {
                        engine.delete_variable(var, |_| {}).unwrap();
                    }
                });
                for _ in 0..4 {
                    let pushed = engine
                        .op(format!("round {round}"))
                        .push(vars.iter().map(|var| var.write()).collect::<Vec<_>>(), |_| {});
                    match pushed {
                        Ok(()) => {}
                        Err(PushError::Variable(NoAccess::Deleted, access)) => {
                            assert_eq!(access.operation(), format!("round {round}"));
                            assert!(access.variable().starts_with("variable "), "{access}");
                            refused += 1;
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
}

/// Races pushes of `push` with deletions of its variables until some pushes have been refused. Asserts that each
/// capture was dropped once.
fn race_with_deletions<const N: usize>(
    engine: &Engine,
    push: impl Fn(&Engine, &[Var<i32>; N], Droppable) -> Result<(), PushError> + Sync,
) {
    let drops = Drops::new();
    let (mut refused, mut round, start) = (0, 0, Instant::now());
    while round < 300 || refused == 0 {
        assert!(start.elapsed() < PATIENCE, "no push was refused");
        round += 1;
        let vars: [Var<i32>; N] = std::array::from_fn(|_| engine.var(0));
        let is_deleting = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                is_deleting.store(true, Relaxed);
                vars.iter().rev().for_each(|var| engine.delete_variable(var, |_| {}).unwrap());
            });
            while !is_deleting.load(Relaxed) {
                thread::yield_now();
            }
            for _ in 0..20 {
                match push(engine, &vars, drops.make()) {
                    Ok(()) => {}
                    Err(PushError::Variable(NoAccess::Deleted, _)) => refused += 1,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        engine.wait_for_all().unwrap();
    }
    engine.shutdown(Shutdown::Drain, Some(PATIENCE)).unwrap();
    drops.assert_all_gone();
}

/// Operations with up to four accesses and no property but a name have push paths of their own.
#[test]
fn short_pushes_refused_by_a_concurrent_deletion_drop_their_captures_once() {
    for kind in KINDS {
        race_with_deletions(&common::engine(kind, 1), |engine, [a]: &[Var<i32>; 1], capture| {
            engine.op("one").push(a.write(), move |_| drop(capture))
        });
        race_with_deletions(&common::engine(kind, 1), |engine, [a, b]: &[Var<i32>; 2], capture| {
            engine.op("two").push((b.write(), a.read()), move |_| drop(capture))
        });
        race_with_deletions(&common::engine(kind, 1), |engine, [a, b, c, d]: &[Var<i32>; 4], capture| {
            engine.op("four").push((c.read(), a.write(), d.write(), b.read()), move |_| drop(capture))
        });
    }
}

/// The other reasons for which a short push is refused.
#[test]
fn short_pushes_that_are_refused_drop_their_captures_once() {
    on_kinds(&KINDS, 1, |engine| {
        let drops = Drops::new();
        let (a, b, c) = (engine.var(0), engine.var(0), engine.var(0));
        let pushes = |is_accepted: bool| {
            let [two, three, twice] = [drops.make(), drops.make(), drops.make()];
            let pushed = engine.op("two").push((a.write(), b.read()), move |_| drop(two));
            assert_eq!(pushed.is_ok(), is_accepted, "{pushed:?}");
            let pushed = engine.op("three").push((c.write(), b.read(), a.read()), move |_| drop(three));
            assert_eq!(pushed.is_ok(), is_accepted, "{pushed:?}");
            let pushed = engine.op("twice").push((a.write(), a.read()), move |_| drop(twice));
            let is_alias = matches!(pushed, Err(PushError::Variable(NoAccess::Aliased, _)));
            assert!(is_alias, "{pushed:?}");
        };
        pushes(true);
        engine.wait_for_all().unwrap();
        engine.shutdown(Shutdown::Drain, Some(PATIENCE)).unwrap();
        pushes(false);
        drops.assert_all_gone();
    });
}

/// Returns the source location of its caller.
#[track_caller]
fn here() -> &'static std::panic::Location<'static> {
    std::panic::Location::caller()
}

/// A function that pushes a failing operation.
type Push<'p> = Box<dyn Fn() + 'p>;

#[test]
fn the_place_of_a_push_may_be_set() {
    on_kinds(&KINDS, 1, |engine| {
        let place = here();
        let failing = || engine.op("fails").at(place);
        let group = engine.group();
        let pushes: [(&str, Push<'_>); 8] = [
            ("try_push", Box::new(|| failing().try_push((), |()| Err("no".into())).unwrap())),
            (
                "try_submit",
                Box::new(|| failing().try_submit((), |()| -> Result<(), _> { Err("no".into()) }).map(drop).unwrap()),
            ),
            ("push_async", Box::new(|| failing().push(completion(), |done| done.fail("no")).unwrap())),
            ("try_push_future", Box::new(|| failing().try_push_future((), async |()| Err("no".into())).unwrap())),
            (
                "with a property",
                Box::new(|| {
                    failing().property(raddle::Property::CpuPrioritized).try_push((), |()| Err("no".into())).unwrap();
                }),
            ),
            ("in a group", Box::new(|| group.op("fails").at(place).try_push((), |()| Err("no".into())).unwrap())),
            ("with children", Box::new(|| failing().with_children().try_push((), |()| Err("no".into())).unwrap())),
            (
                "in a scope",
                Box::new(|| {
                    let scope = engine.scope(|scope| {
                        scope.op("fails").at(place).try_push((), |()| Err("no".into())).unwrap();
                    });
                    let _: Result<(), _> = scope;
                    engine.op("fails").at(place).try_push((), |()| Err("no".into())).unwrap();
                }),
            ),
        ];
        for (what, push) in &pushes {
            push();
            let error = engine.wait_for_all().unwrap_err();
            let raddle::WaitError::Failed(failure) = &error else { panic!("{what}: {error}") };
            assert_eq!(failure.location(), place, "{what}");
        }
        let other = common::engine(EngineKind::Naive, 1).token();
        let refused = engine.op("refused").at(place).reads([&other]).push((), |()| {}).unwrap_err();
        assert!(refused.to_string().contains(&place.to_string()), "{refused}");
    });
}

/// A name can neither begin a line of an error nor control a terminal.
#[test]
fn control_characters_of_names_are_escaped_in_errors() {
    const NAME: &str = "two\nlines\x1b[31m";
    let engine = Engine::builder().workers(1).build().unwrap();
    let x = engine.var(0).named(NAME);
    engine.op(NAME).try_push(x.write(), |_| Err("a part of this test".into())).unwrap();
    let failed = engine.wait_for_all().unwrap_err().to_string();
    let (weak, inner) = (engine.downgrade(), x.clone());
    let waits = move |_: &mut i32| weak.wait_for_var(&inner).unwrap_err().to_string();
    let deadlock = engine.op(NAME).submit(x.overwrite(), waits).unwrap().wait().unwrap();
    let other = Engine::builder().workers(1).build().unwrap();
    let refused = other.op(NAME).push(x.write(), |_| {}).unwrap_err().to_string();
    for text in [failed, deadlock, refused] {
        assert!(text.contains(r"two\nlines\u{1b}[31m") && !text.contains(char::is_control), "{text}");
    }
}

/// Equal texts have one name, also if threads intern them at the same time.
#[test]
fn interned_names_are_shared() {
    let names: Vec<Vec<Name>> = thread::scope(|scope| {
        let intern = || (0..200).map(|i| Name::interned(&format!("interned {i}"))).collect();
        let threads = [(); 4].map(|()| scope.spawn(intern));
        threads.map(|thread| thread.join().unwrap()).into()
    });
    for (i, name) in names[0].iter().enumerate() {
        assert_eq!(name.as_str(), format!("interned {i}"));
        assert!(names.iter().all(|others| others[i].as_str().as_ptr() == name.as_str().as_ptr()), "{name} has copies");
    }
}

/// What has gone through memory of C works as before.
#[test]
fn handles_and_completions_survive_as_words() {
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token().named("disk");
        let address = token.clone().into_raw();
        engine
            .op("write")
            .writes([&token])
            .push(completion(), |done| {
                let words = done.into_raw();
                // SAFETY: the words came from `into_raw`, and are used once.
                unsafe { raddle::Completion::from_raw(words) }.complete();
            })
            .unwrap();
        // SAFETY: the address came from `into_raw`, and is used once.
        let restored = unsafe { raddle::Token::from_raw(address) };
        engine.wait_for_var(&restored).unwrap();
        assert_eq!((restored.version(), restored.name(), &restored), (1, Some("disk"), &token));
        // The drop of the last handle deletes the variable; that of the words would not.
        drop((token, restored));
        engine.wait_for_all().unwrap();
    });
}
