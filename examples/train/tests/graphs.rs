//! Graphs: shapes, gradients, memory, and the same bits as arrays on a tape.

mod support;

use std::{collections::BTreeMap, sync::Arc};

use raddle::{Device, Engine};
use raddle_train::{
    Array, Arrays, Error, Executor, Gradients, Mode, Runtime, Symbol, Tape,
    operator::{Convolution, Dropout, FullyConnected, Operator, Pooling, PoolingKind, SoftmaxCrossEntropy},
    simple, volume,
};
use support::{bits, everywhere, numbers};

/// A small net with a branch.
fn net() -> Symbol {
    let data = Symbol::variable("data");
    let conv = Symbol::apply(Convolution { filters: 3, size: 3, pad: 1 }, "conv", &[&data]);
    let active = Symbol::apply(simple::RELU.with(0.0), "relu", &[&conv]);
    let curved = Symbol::apply(simple::SMOOTH_L1.with(4.0), "smooth", &[&active]);
    let product = Symbol::apply(simple::MULTIPLY.operator(), "product", &[&active, &active]);
    let sum = Symbol::apply(simple::ADD.operator(), "sum", &[&curved, &product]);
    let pool = Symbol::apply(Pooling { size: 2, kind: PoolingKind::Max }, "pool", &[&sum]);
    let hidden = Symbol::apply(FullyConnected { outputs: 8 }, "hidden", &[&pool]);
    let hidden = Symbol::apply(simple::TANH.with(0.0), "tanh", &[&hidden]);
    let out = Symbol::apply(FullyConnected { outputs: 4 }, "out", &[&hidden]);
    let label = Symbol::variable("label");
    Symbol::apply(SoftmaxCrossEntropy { scale: 0.5 }, "loss", &[&out, &label])
}

/// Returns arrays for all arguments of a graph, and for the gradients of those with a `_` in their names.
fn arrays(net: &Symbol, runtime: &Arc<Runtime>) -> Result<(Arrays, Gradients), Error> {
    let shapes = net.infer_shapes(&[("data".into(), vec![2, 2, 4, 6])].into())?;
    let mut arguments = Arrays::new();
    let mut gradients = Gradients::new();
    for ((name, shape), seed) in shapes.into_iter().zip(1..) {
        let values = if name == "label" { vec![3.0, 1.0] } else { numbers(volume(&shape), seed) };
        let scale = if values.len() > 20 { 1.0 / values.len() as f32 } else { 1.0 };
        let values = values.into_iter().map(|value| value * if name == "label" { 1.0 } else { scale }).collect();
        arguments.insert(name.clone(), Array::from_vec(runtime, &shape, values)?);
        if name.contains('_') {
            gradients.insert(name, (Array::new(runtime, &shape)?, Mode::Write));
        }
    }
    Ok((arguments, gradients))
}

#[test]
fn a_graph_and_a_tape_compute_the_same_bits() {
    everywhere(|runtime| {
        let net = net();
        let (arguments, gradients) = arrays(&net, runtime).expect("the shapes should match");
        let executor = Executor::bind(&[&net], runtime, &arguments, &gradients).expect("the shapes should match");
        // Two steps without a wait between them: only the variables keep the operations in order.
        for _ in 0..2 {
            executor.forward().and_then(|()| executor.backward()).expect("the pushes should succeed");
        }
        let mut tape = Tape::new();
        let loss = tape.apply_all(&net, &arguments).expect("the shapes should match");
        let other: Vec<_> = gradients
            .iter()
            .map(|(name, (array, _))| (&arguments[name], Array::new(runtime, array.shape()).expect("enough memory")))
            .collect();
        let pairs: Vec<_> = other.iter().map(|(array, gradient)| (*array, gradient)).collect();
        tape.backward(&pairs).expect("the pushes should succeed");
        let values = |array: &Array| bits(&array.to_vec().expect("no operation should fail"));
        assert_eq!(values(&executor.outputs()[0]), values(&loss));
        for ((name, (gradient, _)), (_, other)) in gradients.iter().zip(&other) {
            assert_eq!(values(gradient), values(other), "the gradients of {name}");
            assert!(
                gradient.to_vec().expect("no operation should fail").iter().any(|value| value.abs() > 1e-6),
                "{name}"
            );
        }
    });
}

/// The gradients of the whole graph match finite differences.
#[test]
fn gradients_of_a_graph() {
    let engine = Engine::builder().workers(2).build().expect("an engine");
    let runtime = Runtime::new(&engine, Device::Cpu, 0);
    let net = net();
    let (arguments, gradients) = arrays(&net, &runtime).expect("the shapes should match");
    let executor = Executor::bind(&[&net], &runtime, &arguments, &gradients).expect("the shapes should match");
    executor.forward().and_then(|()| executor.backward()).expect("the pushes should succeed");
    let loss = || {
        executor.forward().expect("the push should succeed");
        f64::from(executor.outputs()[0].to_vec().expect("no operation should fail")[0])
    };
    for (name, (gradient, _)) in &gradients {
        let gradient = gradient.to_vec().expect("no operation should fail");
        let array = arguments[name].reshape(&[gradient.len()]).expect("the number of values should be the same");
        let values = array.to_vec().expect("no operation should fail");
        for (i, gradient) in gradient.iter().enumerate().step_by(1 + gradient.len() / 12) {
            let at = |value| {
                array.slice(i..i + 1).and_then(|value_at| value_at.fill(value)).expect("the push should succeed");
                loss()
            };
            let expected = (at(values[i] + 0.01) - at(values[i] - 0.01)) / 0.02;
            at(values[i]);
            let error = (f64::from(*gradient) - expected).abs();
            assert!(error < 1e-4 + 0.02 * expected.abs(), "{name} {i}: {gradient} is not {expected}");
        }
    }
}

#[test]
fn values_share_memory_where_they_can() {
    let engine = Engine::builder().workers(1).build().expect("an engine");
    let runtime = Runtime::new(&engine, Device::Cpu, 0);
    let data = Symbol::variable("data");
    let net = (0..6).fold(data, |x, i| Symbol::apply(simple::TANH.with(0.0), &format!("tanh{i}"), &[&x]));
    let data = Array::full(&runtime, &[100], 0.5).expect("enough memory");
    let arguments: Arrays = [("data".into(), data)].into();
    let predict = Executor::bind(&[&net], &runtime, &arguments, &Gradients::new()).expect("the shapes should match");
    let memory = predict.memory();
    assert_eq!((memory.values, memory.buffers, memory.in_place), (6, 1, 5), "{memory}");
    let gradient = Array::new(&runtime, &[100]).expect("enough memory");
    let gradients = [("data".into(), (gradient.clone(), Mode::Add))].into();
    gradient.fill(1.0).expect("the push should succeed");
    let train = Executor::bind(&[&net], &runtime, &arguments, &gradients).expect("the shapes should match");
    let memory = train.memory();
    // Six results are needed later; the gradients need one more buffer, since each replaces the previous one.
    assert_eq!((memory.values, memory.buffers, memory.in_place), (11, 7, 4), "{memory}");
    train.forward().and_then(|()| train.backward()).expect("the pushes should succeed");
    let (mut y, mut slope) = (0.5f32, 1.0f32);
    for _ in 0..6 {
        y = y.tanh();
        slope *= 1.0 - y * y;
    }
    let value = gradient.to_vec().expect("no operation should fail")[0];
    assert!((value - 1.0 - slope).abs() < 1e-5, "{value} is not 1 + {slope}");
    predict.forward().expect("the push should succeed");
    let values = predict.outputs()[0].to_vec().expect("no operation should fail");
    assert!(values.iter().all(|value| (value - y).abs() < 1e-5));
}

/// Outside training, nothing reads a dropout's factors, and a graph of probabilities does not need the loss.
#[test]
fn outputs_that_nothing_needs_get_no_memory() {
    everywhere(|runtime| {
        let data = Symbol::variable("data");
        let net = Symbol::apply(Dropout { share: 0.5 }, "dropout", &[&data]);
        let loss = Symbol::apply(SoftmaxCrossEntropy { scale: 1.0 }, "loss", &[&net]);
        let arguments = [
            ("data".into(), Array::full(runtime, &[2, 4], 3.0).expect("enough memory")),
            ("loss_label".into(), Array::full(runtime, &[2], 3.0).expect("enough memory")),
        ];
        let executor = Executor::bind(&[&loss.output(1)], runtime, &arguments.into(), &Gradients::new());
        let executor = executor.expect("the shapes should match");
        assert_eq!(executor.memory().values, 2);
        executor.forward().expect("the push should succeed");
        assert_eq!(executor.outputs()[0].to_vec().expect("no operation should fail"), [0.25; 8]);
    });
}

#[test]
fn errors_name_what_does_not_match() {
    let engine = Engine::builder().workers(1).build().expect("an engine");
    let runtime = Runtime::new(&engine, Device::Cpu, 0);
    let net = net();
    let known = [("data".into(), vec![2, 2, 4, 6]), ("hidden_weight".into(), vec![8, 17])];
    let error = net.infer_shapes(&known.into()).unwrap_err();
    assert_eq!(error.to_string(), "`hidden (FullyConnected)`: the shape of `weight` must be [8, 18], but is [8, 17]");
    let error = net.infer_shapes(&[("data".into(), vec![2, 2, 4, 5])].into()).unwrap_err();
    assert!(error.to_string().starts_with("`pool (Pooling)`: the shape of `data` must be [_, _, a mul"), "{error}");
    let error = net.infer_shapes(&BTreeMap::new()).unwrap_err();
    assert!(error.to_string().contains("`conv (Convolution)`: the shape of `data` must be known, but is unknown"));
    let error = net.infer_shapes(&[("dat".into(), vec![1])].into()).unwrap_err();
    assert!(error.to_string().starts_with("no such argument: `dat`; known names: data, conv_weight"), "{error}");
    // Two layers with the same name would have parameters with the same names.
    let layer = |name, x: &Symbol| Symbol::apply(FullyConnected { outputs: 2 }, name, &[x]);
    let shapes = [("data".into(), vec![1, 2])];
    let twice = layer("fc", &Symbol::apply(simple::RELU.with(0.0), "relu", &[&layer("fc", &Symbol::variable("data"))]));
    let error = twice.infer_shapes(&shapes.clone().into()).unwrap_err();
    assert_eq!(error.to_string(), "the graph has two nodes called `fc_weight`");
    let data = Symbol::variable("data");
    let surplus = Symbol::apply(simple::RELU.with(0.0), "relu", &[&data, &data]);
    let error = surplus.infer_shapes(&shapes.into()).unwrap_err();
    assert_eq!(error.to_string(), "`relu (relu)` takes 1 inputs, not 2");
    let (mut arguments, gradients) = arrays(&net, &runtime).expect("the shapes should match");
    arguments.remove("conv_bias");
    let error = Executor::bind(&[&net], &runtime, &arguments, &gradients).unwrap_err();
    assert!(error.to_string().starts_with("argument without an array: `conv_bias`"), "{error}");
}

/// An output that a node does not have is an error wherever the symbol is used.
#[test]
fn outputs_that_do_not_exist_are_refused() {
    let engine = Engine::builder().workers(1).build().expect("an engine");
    let runtime = Runtime::new(&engine, Device::Cpu, 0);
    let data = Symbol::variable("data");
    let loss = Symbol::apply(SoftmaxCrossEntropy { scale: 1.0 }, "loss", &[&data]);
    let array = |shape: &[usize]| Array::full(&runtime, shape, 0.0).expect("enough memory");
    let arguments: Arrays = [("data".into(), array(&[2, 4])), ("loss_label".into(), array(&[2]))].into();
    let shapes = [("data".into(), vec![2, 4]), ("loss_label".into(), vec![2])].into();
    let check = |symbol: &Symbol, expected: &str| {
        let active = Symbol::apply(simple::RELU.with(0.0), "active", &[symbol]);
        for symbol in [symbol, &active] {
            let names = symbol.arguments();
            let mut arguments = arguments.clone();
            arguments.retain(|name, _| names.contains(name));
            let mut shapes: BTreeMap<_, _> = BTreeMap::clone(&shapes);
            shapes.retain(|name, _| names.contains(name));
            let bound = Executor::bind(&[symbol], &runtime, &arguments, &Gradients::new());
            let errors = [
                symbol.infer_shapes(&shapes).unwrap_err(),
                bound.unwrap_err(),
                Tape::new().apply_all(symbol, &arguments).unwrap_err(),
            ];
            errors.iter().for_each(|error| assert_eq!(error.to_string(), expected));
        }
    };
    check(&loss.output(2), "`loss` has 2 outputs, numbered from 0, but output 2 is used");
    check(&data.output(1), "`data` has 1 outputs, numbered from 0, but output 1 is used");
}

/// The tape follows reshaped arrays, and refuses slices, since it would lose parts of their gradients.
#[test]
fn a_tape_follows_whole_arrays() {
    let engine = Engine::builder().workers(1).build().expect("an engine");
    let runtime = Runtime::new(&engine, Device::Cpu, 0);
    let array = |shape: &[usize]| Array::full(&runtime, shape, 3.0).expect("enough memory");
    let (x, gradient) = (array(&[4]), array(&[4]));
    let square: Arc<dyn Operator> = Arc::new(simple::SQUARE.with(0.0));
    let mut tape = Tape::new();
    let y = tape.apply("first", &square, &[&x]).expect("the shapes should match")[0]
        .reshape(&[2, 2])
        .expect("it should fit");
    tape.apply("second", &square, &[&y]).expect("the shapes should match");
    tape.backward(&[(&x, &gradient)]).expect("the pushes should succeed");
    assert_eq!(gradient.to_vec().expect("no operation should fail"), [4.0 * 27.0; 4]);
    let error = tape.backward(&[(&x, &array(&[2, 2]))]).unwrap_err();
    assert_eq!(error.to_string(), "`backward`: the shape of `gradient` must be [4], but is [2, 2]");
    let part = x.slice(0..2).expect("the range should be valid");
    let error = tape.backward(&[(&part, &array(&[2]))]).unwrap_err();
    assert_eq!(error.to_string(), "`first`: an input is not an array with a gradient, but overlaps one");
    let row = y.slice(0..1).expect("the range should be valid");
    tape.apply("third", &square, &[&row]).expect("the shapes should match");
    let error = tape.backward(&[(&x, &gradient)]).unwrap_err().to_string();
    assert!(error.starts_with("`third`: an input is not"), "{error}");
}
