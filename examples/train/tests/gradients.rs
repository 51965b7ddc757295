//! Each operator's gradients match finite differences in each mode of writing.

mod support;

use std::sync::Arc;

use raddle_train::{
    Array, Mode, Runtime, Shape,
    operator::{
        Convolution, Dropout, FullyConnected, Operator, Pooling, PoolingKind, SoftmaxCrossEntropy, invoke,
        invoke_backward, invoke_into,
    },
    simple, volume,
};
use support::{bits, everywhere, numbers};

/// Applies an operator in training, with the same random numbers each time.
fn apply(operator: &Arc<dyn Operator>, runtime: &Arc<Runtime>, ins: &[(Shape, Vec<f32>)]) -> [Vec<Array>; 2] {
    let runtime = Runtime::new(runtime.engine(), runtime.device(), 7);
    let arrays: Vec<_> = ins.iter().map(|(shape, values)| array(&runtime, shape, values)).collect();
    let outs = invoke(operator, &arrays.iter().collect::<Vec<_>>(), true).expect("the shapes should match");
    [arrays, outs]
}

/// Computes the weighted sum of the first output's values. The engine computes the output, but not the sum.
fn weighted(operator: &Arc<dyn Operator>, runtime: &Arc<Runtime>, ins: &[(Shape, Vec<f32>)], weights: &[f32]) -> f64 {
    let [_, outs] = apply(operator, runtime, ins);
    let out = outs[0].to_vec().expect("no operation should fail");
    out.iter().zip(weights).map(|(value, weight)| f64::from(*value) * f64::from(*weight)).sum()
}

fn array(runtime: &Arc<Runtime>, shape: &[usize], values: &[f32]) -> Array {
    Array::from_vec(runtime, shape, values.to_vec()).expect("the shape should match")
}

/// Compares gradients with finite differences, `step` above and below each value, for inputs of these shapes. `fixed`
/// holds the values of the last inputs; `numbers` returns those of the others.
fn check(runtime: &Arc<Runtime>, operator: impl Operator, shapes: &[Shape], fixed: &[Vec<f32>], step: f32) {
    let operator: Arc<dyn Operator> = Arc::new(operator);
    let mut ins: Vec<_> =
        shapes.iter().zip(1..).map(|(shape, seed)| (shape.clone(), numbers(volume(shape), seed))).collect();
    let first_fixed = ins.len() - fixed.len();
    ins[first_fixed..].iter_mut().zip(fixed).for_each(|(input, values)| input.1.clone_from(values));
    let [arrays, outs] = apply(&operator, runtime, &ins);
    let arrays: Vec<_> = arrays.iter().collect();
    let weights: Vec<f32> = (0..outs[0].len()).map(|i| 0.5 + (i % 7) as f32 * 0.25).collect();
    let gradient = array(runtime, outs[0].shape(), &weights);
    let count = operator.signature().differentiable;
    let gradients: Vec<_> =
        shapes.iter().map(|shape| Array::full(runtime, shape, 1000.0).expect("enough memory")).collect();
    let run = |mode| {
        let places = gradients.iter().enumerate();
        let places = places.map(|(i, g)| if i < count { (Some(g), mode) } else { (None, Mode::Null) });
        let outs: Vec<_> = outs.iter().collect();
        invoke_backward(&operator, &gradient, &arrays, &outs, &places.collect::<Vec<_>>())
            .expect("the shapes should match");
        gradients[..count]
            .iter()
            .map(|gradient| gradient.to_vec().expect("no operation should fail"))
            .collect::<Vec<_>>()
    };
    let written = run(Mode::Write);
    let doubled = run(Mode::Add);
    check_in_place(&operator, runtime, &ins, &gradient, &written);
    for (input, gradients) in written.iter().enumerate() {
        for (i, &gradient) in gradients.iter().enumerate() {
            let mut at = |value| {
                let old = std::mem::replace(&mut ins[input].1[i], value);
                let sum = weighted(&operator, runtime, &ins, &weights);
                ins[input].1[i] = old;
                sum
            };
            let value = arrays[input].to_vec().expect("no operation should fail")[i];
            let (above, below) = (value + step, value - step);
            let expected = (at(above) - at(below)) / f64::from(above - below);
            let error = (f64::from(gradient) - expected).abs() / (1.0 + expected.abs());
            let name = operator.signature().name;
            assert!(error < 0.01, "{name}: gradient {i} of input {input} is {gradient}, not {expected}");
            let twice = doubled[input][i];
            assert!(
                (twice - 2.0 * gradient).abs() < 1e-3 * (1.0 + gradient.abs()),
                "{name}: {twice} is not twice the gradient"
            );
        }
    }
}

/// For each pass that may replace an array, compares the values written in place of the array with those written
/// elsewhere.
fn check_in_place(
    operator: &Arc<dyn Operator>,
    runtime: &Arc<Runtime>,
    ins: &[(Shape, Vec<f32>)],
    gradient: &Array,
    written: &[Vec<f32>],
) {
    let values = |array: &Array| bits(&array.to_vec().expect("no operation should fail"));
    let [forward, backward] = operator.signature().in_place;
    if forward {
        let runtime = Runtime::new(runtime.engine(), runtime.device(), 7);
        let [_, outs] = apply(operator, &runtime, ins);
        let arrays: Vec<_> = ins.iter().map(|(shape, values)| array(&runtime, shape, values)).collect();
        let others: Vec<_> = outs.iter().map(|out| Array::new(&runtime, out.shape()).expect("enough memory")).collect();
        let mut places: Vec<_> = others.iter().map(|out| (Some(out), Mode::Write)).collect();
        places[0] = (Some(&arrays[0]), Mode::InPlace);
        invoke_into(operator, &arrays.iter().collect::<Vec<_>>(), &places, true).expect("the shapes should match");
        assert_eq!(values(&arrays[0]), values(&outs[0]), "{operator:?} in place");
    }
    if backward {
        let [arrays, outs] = apply(operator, runtime, ins);
        let copy = gradient.copy_to(runtime).expect("enough memory");
        let mut places = vec![(None, Mode::Null); arrays.len()];
        places[0] = (Some(&copy), Mode::InPlace);
        let (ins, outs): (Vec<_>, Vec<_>) = (arrays.iter().collect(), outs.iter().collect());
        invoke_backward(operator, &copy, &ins, &outs, &places).expect("the shapes should match");
        assert_eq!(values(&copy), bits(&written[0]), "the gradient of {operator:?} in place");
    }
}

#[test]
fn gradients_of_layers() {
    everywhere(|runtime| {
        check(runtime, FullyConnected { outputs: 3 }, &[vec![4, 2, 3], vec![3, 6], vec![3]], &[], 0.02);
        let convolution = Convolution { filters: 2, size: 3, pad: 1 };
        check(runtime, convolution, &[vec![2, 2, 4, 3], vec![2, 2, 3, 3], vec![2]], &[], 0.02);
        let convolution = Convolution { filters: 2, size: 2, pad: 0 };
        check(runtime, convolution, &[vec![2, 1, 3, 4], vec![2, 1, 2, 2], vec![2]], &[], 0.02);
        for kind in [PoolingKind::Max, PoolingKind::Mean] {
            check(runtime, Pooling { size: 2, kind }, &[vec![2, 2, 4, 6]], &[], 0.02);
        }
        check(runtime, Dropout { share: 0.25 }, &[vec![4, 6]], &[], 0.02);
        let labels = vec![2.0, 0.0, 1.0];
        check(runtime, SoftmaxCrossEntropy { scale: 1.0 / 3.0 }, &[vec![3, 4], vec![3]], &[labels], 0.02);
    });
}

#[test]
fn gradients_of_simple_operators() {
    everywhere(|runtime| {
        for function in simple::UNARY {
            // With 1.6, a third of the values are in the linear part of smooth L1.
            check(runtime, function.with(1.6), &[vec![3, 4]], &[], 0.005);
        }
        for function in simple::BINARY {
            check(runtime, function.operator(), &[vec![3, 4], vec![3, 4]], &[], 0.005);
        }
    });
}

#[test]
fn dropout_keeps_the_mean() {
    everywhere(|runtime| {
        let operator: Arc<dyn Operator> = Arc::new(Dropout { share: 0.25 });
        let ones = Array::full(runtime, &[4000], 1.0).expect("enough memory");
        let outs = invoke(&operator, &[&ones], true).expect("the shapes should match");
        let factors = outs[0].to_vec().expect("no operation should fail");
        let kept = factors.iter().filter(|factor| **factor != 0.0).count();
        assert!((2900..3100).contains(&kept), "{kept} of 4000 are kept");
        assert!(factors.iter().all(|factor| *factor == 0.0 || (factor * 0.75 - 1.0).abs() < 1e-6));
        let outs = invoke(&operator, &[&ones], false).expect("the shapes should match");
        assert_eq!(outs[0].to_vec().expect("no operation should fail"), [1.0; 4000]);
    });
}
