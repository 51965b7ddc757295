//! Checks that the tracker's algorithm is correct in every execution of a set of small programs, and that, for each
//! rule of the algorithm, some program fails without the rule.

use std::{collections::HashSet, time::Instant};

use raddle_algorithm::{Mode, Program, Rule, Shape, State, Tracker};
use stateright::{Checker, Model};

/// Explores all executions, checks the properties in each state, and returns the final states. Asserts that at least
/// `states` states exist.
fn check(name: &str, tracker: Tracker, states: usize) -> HashSet<State> {
    let start = Instant::now();
    let checker = tracker.checker().threads(2).spawn_bfs().join();
    let (found, ends) = (checker.unique_state_count(), checker.model().ends());
    println!(
        "{name}: {found} states, {} steps, up to {} in one execution, {} final states, {:.1} s",
        checker.state_count(),
        checker.max_depth(),
        ends.len(),
        start.elapsed().as_secs_f64()
    );
    checker.assert_properties();
    assert!(found >= states, "{name} has only {found} states");
    ends
}

fn parse(programs: &[&str]) -> Vec<Program> {
    programs.iter().map(|text| Program::parse(text)).collect()
}

/// Every pair of operations that read or write up to three variables.
#[test]
fn two_threads() {
    let programs = Program::one_each(2, &Shape::all(&[Mode::Read, Mode::Write]));
    assert_eq!(programs.len(), 351);
    let tracker = Tracker::new(programs).thorough();
    check("two threads", tracker, 800_000);
}

/// Two threads that push two operations each.
#[test]
fn two_threads_with_two_operations_each() {
    check("two threads, two operations each", Tracker::new(parse(&["WW- -WW, WW- -WW"])), 2_000_000);
}

/// Three threads: rings, readers beside writers, and waits.
#[test]
fn three_threads() {
    let programs = parse(&[
        "WW-, -WW, W-W",
        "RW-, -RW, W-R",
        "WWW, -WW, --W",
        "RW-, RW-, R--",
        "RR-, R--, AW-",
        "R-- R--, A--, W--",
    ]);
    let tracker = Tracker::new(programs).thorough();
    check("three threads", tracker, 1_200_000);
}

/// Operations that commute, beside readers, writers and waits.
#[test]
fn commuting() {
    let programs =
        parse(&["CC-, -CC, R--", "RC-, CR-, C--", "C-- C--, R-- C--", "CC- R--, C-- W--", "C-- A--, C-- R--"]);
    check("commuting", Tracker::new(programs).thorough(), 100_000);
    let programs =
        parse(&["C-- C-- C-- R--", "C-- C-- R-- C--", "R-- C-- C-- C--", "C-- C--, C-- A--", "-C- -C- -C-, CC-"]);
    check("commuting, unlinking", Tracker::new(programs).unlinking(1), 50_000);
}

/// A ring of three operations, and a fourth operation on the same variables as one of the three. No operation completes
/// before all pushes are over.
#[test]
fn four_threads_that_push() {
    let tracker = Tracker::new(parse(&["WW-, -WW, W-W, WW-"])).completing_last();
    check("four threads, completing last", tracker, 4_000_000);
}

/// Operations of four threads complete while others are pushed.
#[test]
fn four_threads() {
    check("four threads", Tracker::new(parse(&["WW-, -WW, -W-, R--", "RW-, WR-, R--, -R-"])), 8_000_000);
}

/// Like [`four_threads`], but with a ring of three operations.
#[test]
#[ignore = "26 million states; takes minutes"]
fn four_threads_with_a_ring() {
    check("four threads, with a ring", Tracker::new(parse(&["WW-, -WW, W-W, -W-"])), 20_000_000);
}

/// Readers are unlinked while operations are pushed and complete: before a writer, behind a wait, and behind a reader
/// that another thread is pushing.
#[test]
fn unlinking() {
    let programs =
        parse(&["R-- R-- R-- W--", "R-- R-- A-- R--", "R-- A-- R-- R--", "R-- R--, R-- W--", "-R- -R- -R-, RR-"]);
    check("unlinking", Tracker::new(programs).unlinking(2), 1_000_000);
}

/// Each atomic access that the model covers is a step of some execution.
#[test]
fn all_steps_happen() {
    let programs = parse(&["RR-, RR-", "R-- R--, R--", "W--, -WW, RW-", "R-- R-- R-- R--"]);
    let checker = Tracker::new(programs).unlinking(1).checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    assert_eq!(checker.model().missing_steps(), []);
}

/// Executions end in the same states with and without the reduction.
#[test]
fn the_reduction_hides_no_final_state() {
    let shapes: Vec<_> =
        Shape::all(&[Mode::Read, Mode::Write]).into_iter().filter(|shape| shape.0[2].is_none()).collect();
    let mut programs = Program::one_each(2, &shapes);
    programs.extend(parse(&["R-- R--, A--", "WW- -W-, RW-"]));
    let ends = check("reduced", Tracker::new(programs.clone()), 50_000);
    assert_eq!(ends, check("unreduced", Tracker::new(programs).unreduced(), 100_000));
    let programs = parse(&["R-- R-- R-- R--", "R-- R-- A--, R--"]);
    let ends = check("reduced, unlinking", Tracker::new(programs.clone()).unlinking(1), 50_000);
    assert_eq!(ends, check("unreduced, unlinking", Tracker::new(programs).unlinking(1).unreduced(), 200_000));
}

const AGREE: &str = "all queues agree on one order of the pushes";
const AT_ONCE: &str = "a push takes effect in all queues at once";
const ONCE: &str = "an operation runs once, when its turn has come";
const RETIRED: &str = "nothing is retired while a thread can reach it";
const DEADLOCK: &str = "no deadlock";
const NEED: &str = "no operation waits needlessly";
const FORWARD: &str = "shared memory only moves forward";
const LIVELOCK: &str = "no livelock";

/// Returns a program that fails without `rule`, and properties that it then violates.
fn twin(rule: Rule) -> (&'static str, &'static [&'static str]) {
    match rule {
        Rule::Help => ("WW-, WW-", &[AGREE, AT_ONCE, DEADLOCK]),
        Rule::HelpInDepth => ("WW-, -WW, W-W", &[AGREE, AT_ONCE, DEADLOCK]),
        Rule::Reread => ("WW- -W-, W--", &[AGREE, RETIRED]),
        Rule::RegisterAfterSwing => ("WW-, WW-", &[DEADLOCK, NEED]),
        Rule::RegisterWhenAllAreIn => ("WW-, WW-", &[AGREE, AT_ONCE, DEADLOCK]),
        Rule::SwingForOthers | Rule::CountWhatIsIn => ("WW-, WW-", &[LIVELOCK]),
        Rule::SwingByCas => ("R-- R--, R--", &[FORWARD]),
        Rule::Defer | Rule::Adopt | Rule::HelpersOnlyDefer => ("WW-, WW-", &[DEADLOCK, NEED]),
        Rule::DeferWhatWasLinked => ("R-- R--, R--", &[RETIRED]),
        Rule::GrantWhenDone => ("W--, W--", &[ONCE]),
        Rule::ReadersPassOn => ("R--, R--", &[NEED]),
        Rule::RunsEnd => ("C--, R--", &[ONCE]),
        Rule::PushCountsItself => ("WW-, WW-", &[ONCE]),
        Rule::TailPastRetired => ("W--, W--", &[RETIRED]),
        Rule::PassBeforeRetire | Rule::PassBeforeHandOn => ("R-- R--, R--", &[RETIRED]),
        Rule::PutOffSatisfy => ("W-- R-- R-- W--", &[RETIRED]),
        Rule::PinPushes | Rule::ReclaimAfterEpoch => ("R-- R--, R--", &[RETIRED]),
        Rule::TailPastUnlinked | Rule::StopAtSpent | Rule::CompareFlags | Rule::PinUnlinking => {
            ("R-- R-- R-- R--", &[RETIRED])
        }
        Rule::UnlinkWhenDone => ("R-- R-- R-- W--", &[ONCE]),
        Rule::UnlinkBehindDone => ("-R- -R- -R-, RR-", &[RETIRED]),
        Rule::CountShares => ("WW-, WW-", &[RETIRED]),
    }
}

/// Without a rule, a program fails in the way prevented by the rule; with all rules, it passes.
#[test]
fn each_rule_is_needed() {
    for rule in Rule::ALL {
        let (program, properties) = twin(rule);
        let tracker = || Tracker::new(parse(&[program])).unlinking(1);
        check(program, tracker(), 100);
        let without = tracker().without(rule).checker().threads(2).spawn_bfs().join();
        let discoveries = without.discoveries();
        for property in properties {
            let steps = discoveries.get(property).unwrap_or_else(|| {
                panic!("without {rule:?}, {program} still has `{property}`, but lacks {:?}", discoveries.keys())
            });
            println!("without {rule:?}, `{property}` fails after {} steps", steps.clone().into_actions().len());
        }
    }
}
