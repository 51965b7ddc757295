//! `#[derive(Accesses)]`: a struct declares an operation's accesses, and the operation's function receives a struct of
//! references.

#![forbid(unsafe_code)]

use raddle::{Accesses, Engine, PushError, Read, Var, Write, access::Cx, cx, error::NoAccess};

/// The accesses of an optimiser step.
#[derive(Accesses)]
struct Step<'v> {
    weights: Write<'v, Vec<f32>>,
    gradient: Read<'v, Vec<f32>>,
}

/// Accesses of every kind, and a nested struct.
#[derive(Accesses)]
struct Mixed<'v, T: Send + Sync + 'static, const N: usize>
where
    T: Clone,
{
    parts: Vec<Read<'v, T>>,
    pair: (Read<'v, u32>, Write<'v, String>),
    array: [Write<'v, T>; N],
    step: Option<Step<'v>>,
    absent: Option<Read<'v, T>>,
    cx: Cx,
}

type Function<T> = Box<dyn Fn(&T) -> usize + Send>;

/// A struct whose bounds mention the lifetime.
#[derive(Accesses)]
struct Bounded<'v, T: Send + Sync + 'static + 'v>
where
    T: 'v,
{
    function: Write<'v, Function<T>>,
    value: Read<'v, T>,
}

/// A struct with a field whose type has its own lifetimes.
#[derive(Accesses)]
struct Calls<'v> {
    function: Write<'v, fn(&str) -> usize>,
}

fn engine() -> Engine {
    Engine::builder().workers(2).pin(false).build().expect("an engine")
}

#[test]
fn a_function_receives_a_struct_of_references() {
    let engine = engine();
    let (weights, gradient) = (engine.var(vec![1.0, 2.0]), engine.var(vec![0.5, 0.25]));
    let step = Step { weights: weights.write(), gradient: gradient.read() };
    let update = |step: StepRefs<'_>| {
        step.weights.iter_mut().zip(step.gradient).for_each(|(weight, gradient)| *weight -= gradient);
    };
    engine.op("step").push(step, update).unwrap();
    assert_eq!(engine.get(&weights).unwrap(), [0.5, 1.75]);
}

#[test]
fn structs_nest_with_every_other_access() {
    let engine = engine();
    let parts: Vec<Var<u64>> = (1..=3).map(|n| engine.var(n)).collect();
    let (count, text) = (engine.var(2), engine.var(String::new()));
    let sums = [engine.var(0u64), engine.var(0u64)];
    let (weights, gradient) = (engine.var(vec![0.0]), engine.var(vec![1.0]));
    let mixed = Mixed {
        parts: parts.iter().map(Var::read).collect(),
        pair: (count.read(), text.write()),
        array: sums.each_ref().map(Var::write),
        step: Some(Step { weights: weights.write(), gradient: gradient.read() }),
        absent: None,
        cx: cx(),
    };
    let extra = engine.var(7);
    engine
        .op("mixed")
        .push((mixed, extra.read()), |(mixed, extra)| {
            let sum: u64 = mixed.parts.iter().copied().sum();
            for total in mixed.array {
                *total = sum * u64::from(*mixed.pair.0) + extra;
            }
            mixed.pair.1.push_str(mixed.cx.name());
            let step = mixed.step.filter(|_| mixed.absent.is_none()).unwrap();
            step.weights[0] += step.gradient[0];
        })
        .unwrap();
    assert_eq!(engine.get(&sums[1]).unwrap(), 19);
    assert_eq!(engine.get(&text).unwrap(), "mixed");
    assert_eq!(engine.get(&weights).unwrap(), [1.0]);
}

#[test]
fn operators_and_results_take_structs_as_well() {
    let engine = engine();
    let (weights, gradient) = (engine.var(vec![0.0]), engine.var(vec![1.0]));
    let step = || Step { weights: weights.write(), gradient: gradient.read() };
    let operator = engine.op("step").operator(step(), |step| step.weights[0] += step.gradient[0]).unwrap();
    (0..10).for_each(|_| operator.push().unwrap());
    let last = engine.op("last").submit(step(), |step| step.weights[0]).unwrap();
    assert_eq!(last.wait().unwrap(), 10.0);
}

#[test]
fn a_variable_in_two_fields_is_refused_as_in_a_tuple() {
    let engine = engine();
    let values = engine.var(vec![1.0]);
    let aliased = Step { weights: values.write(), gradient: values.read() };
    let error = engine.op("step").push(aliased, |_| ()).unwrap_err();
    assert!(matches!(error, PushError::Variable(NoAccess::Aliased, _)), "{error}");
}

#[test]
fn bounds_and_types_may_name_lifetimes() {
    let engine = engine();
    let function = engine.var(Box::new(String::len) as Function<String>);
    let value = engine.var(String::from("four"));
    let bounded = Bounded { function: function.write(), value: value.read() };
    let length = engine.op("call").submit(bounded, |bounded| (bounded.function)(bounded.value)).unwrap();
    assert_eq!(length.wait().unwrap(), 4);
    let function = engine.var(str::len as fn(&str) -> usize);
    let calls = Calls { function: function.write() };
    let length = engine.op("call").submit(calls, |calls| (calls.function)("text")).unwrap();
    assert_eq!(length.wait().unwrap(), 4);
}

#[test]
fn acquiring_a_struct_returns_a_struct_of_guards() {
    let engine = engine();
    let (weights, gradient) = (engine.var(vec![1.0, 2.0]), engine.var(vec![0.5, 0.25]));
    let step = Step { weights: weights.write(), gradient: gradient.read() };
    let mut guards: StepGuards = pollster::block_on(engine.acquire(step)).unwrap();
    guards.weights[0] -= guards.gradient[0];
    drop(guards);
    assert_eq!(engine.get(&weights).unwrap(), [0.5, 2.0]);
}
