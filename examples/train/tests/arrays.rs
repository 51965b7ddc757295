//! Arrays, their memory and their resources, on every kind of engine and on the simulated GPU.

mod support;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use raddle::{Device, Engine, EngineKind};
use raddle_train::{
    Array, Error, Misfit, Mode, Runtime, Shape, Signature, Symbol, Task, Views,
    kernels::{Matrix, multiply},
    operator::{
        Convolution, FullyConnected, Operator, Pooling, PoolingKind, SoftmaxCrossEntropy, invoke, invoke_backward,
        invoke_into,
    },
    random::Random,
    simple,
};
use support::{bits, everywhere, numbers};

type Tested = Result<(), Error>;

fn test_everywhere(test: impl Fn(&Arc<Runtime>) -> Tested) {
    everywhere(|runtime| test(runtime).expect("the test should pass"));
}

fn iota(runtime: &Arc<Runtime>, shape: &[usize]) -> Result<Array, Error> {
    Array::from_vec(runtime, shape, (0..shape.iter().product()).map(|i: usize| i as f32).collect())
}

#[test]
fn elementwise_products_and_reductions() {
    test_everywhere(|runtime| {
        let (a, b) = (iota(runtime, &[2, 3])?, iota(runtime, &[3, 2])?);
        assert_eq!(a.matmul(&b)?.to_vec()?, [10.0, 13.0, 28.0, 40.0]);
        assert_eq!(a.matmul_transposed(&a, [false, true])?.to_vec()?, [5.0, 14.0, 14.0, 50.0]);
        assert_eq!(b.matmul_transposed(&b, [true, false])?.to_vec()?, [20.0, 26.0, 26.0, 35.0]);
        assert_eq!(a.matmul_transposed(&b, [true; 2])?.to_vec()?, [3.0, 9.0, 15.0, 4.0, 14.0, 24.0, 5.0, 19.0, 33.0]);
        let c = b.reshape(&[2, 3])?;
        assert_eq!(a.combine(&simple::MULTIPLY, &c)?.sum()?.to_vec()?, [5.0, 50.0]);
        assert_eq!(a.combine(&simple::SUBTRACT, &c)?.to_vec()?, [0.0; 6]);
        let (none, nothing) = (Array::full(runtime, &[2, 0], 0.0)?, Array::full(runtime, &[0, 3], 0.0)?);
        assert_eq!(none.matmul(&nothing)?.to_vec()?, [0.0; 6]);
        assert_eq!(a.max()?.to_vec()?, [2.0, 5.0]);
        assert_eq!(a.map(&simple::SCALE, -1.0)?.argmax()?.to_vec()?, [0.0, 0.0]);
        Ok(())
    });
}

#[test]
fn slices_share_the_variable() {
    test_everywhere(|runtime| {
        let array = iota(runtime, &[4, 2])?;
        let (front, back) = (array.slice(0..2)?, array.slice(2..4)?);
        assert_eq!(front.chunk().token(), back.chunk().token());
        // Each operation declares the variable once, although the operation both reads and mutates parts of the value.
        front.add_assign(&back)?;
        assert_eq!(array.to_vec()?, [4.0, 6.0, 8.0, 10.0, 4.0, 5.0, 6.0, 7.0]);
        back.copy_from(&front)?;
        back.add_assign(&back)?;
        assert_eq!(array.to_vec()?, [4.0, 6.0, 8.0, 10.0, 8.0, 12.0, 16.0, 20.0]);
        Ok(())
    });
}

#[test]
fn modes_of_writing() {
    test_everywhere(|runtime| {
        let operator: Arc<dyn Operator> = Arc::new(simple::SQUARE.with(0.0));
        let (x, y) = (iota(runtime, &[3])?, Array::full(runtime, &[3], 10.0)?);
        invoke_into(&operator, &[&x], &[(Some(&y), Mode::Add)], false)?;
        assert_eq!(y.to_vec()?, [10.0, 11.0, 14.0]);
        invoke_into(&operator, &[&x], &[(Some(&y), Mode::Write)], false)?;
        assert_eq!(y.to_vec()?, [0.0, 1.0, 4.0]);
        invoke_into(&operator, &[&y], &[(Some(&y), Mode::InPlace)], false)?;
        assert_eq!(y.to_vec()?, [0.0, 1.0, 16.0]);
        invoke_into(&operator, &[&x], &[(None, Mode::Null)], false)?;
        // The result may replace the left input, but not the right one.
        let add: Arc<dyn Operator> = Arc::new(simple::ADD.operator());
        let error = invoke_into(&add, &[&x, &y], &[(Some(&y), Mode::InPlace)], false).unwrap_err();
        assert_eq!(error.to_string(), "`add` cannot write output 0 in place of an input");
        Ok(())
    });
}

/// Copies from and into slices in both directions.
#[test]
fn copies_between_devices() {
    test_everywhere(|runtime| {
        let host = Runtime::new(runtime.engine(), Device::Cpu, 0);
        let (there, here) = (Array::full(runtime, &[6], 9.0)?, iota(&host, &[6])?);
        there.slice(1..4)?.copy_from(&here.slice(2..5)?)?;
        here.slice(0..2)?.copy_from(&there.slice(2..4)?)?;
        assert_eq!(there.to_vec()?, [9.0, 2.0, 3.0, 4.0, 9.0, 9.0]);
        assert_eq!(here.to_vec()?, [3.0, 4.0, 2.0, 3.0, 4.0, 5.0]);
        Ok(())
    });
}

#[test]
fn operations_return_before_they_run() {
    let engine = Engine::builder().workers(1).build().expect("an engine");
    let runtime = Runtime::new(&engine, Device::Cpu, 0);
    let (go, wait) = mpsc::channel();
    // Until the test sends a message, the only worker runs nothing else.
    engine
        .op("occupy")
        .push((), move |()| wait.recv().expect("the test should send"))
        .expect("the push should succeed");
    let array = Array::new(&runtime, &[2]).expect("enough memory");
    let task = Task::new("fill", vec![]).out(&array, Mode::Write);
    task.push(&runtime, |mut views| views.outs[0].values.fill(2.0)).expect("the push should succeed");
    let sum = array.add_assign(&array).and_then(|()| array.sum()).expect("the push should succeed");
    drop(array);
    assert_eq!(runtime.statistics().allocated, 0, "memory was taken before an operation ran");
    go.send(()).expect("the operation should wait");
    assert_eq!(sum.to_vec().expect("no operation should fail"), [8.0]);
}

/// The memory of dropped arrays is used again, and in the end all memory is free.
#[test]
fn memory_is_freed_in_order_and_used_again() {
    test_everywhere(|runtime| {
        let mut sum = Array::full(runtime, &[1000], 0.0)?;
        for i in 0..100 {
            sum = sum.combine(&simple::ADD, &Array::full(runtime, &[1000], i as f32)?)?;
        }
        assert_eq!(sum.to_vec()?, [4950.0; 1000]);
        drop(sum);
        runtime.engine().wait_for_all()?;
        let statistics = runtime.statistics();
        assert_eq!(statistics.live, 0, "memory is still in use: {statistics:?}");
        if runtime.device() == Device::Cpu {
            assert_eq!(statistics.allocated + statistics.reused, 201, "{statistics:?}");
            // On a naive engine, where operations run when pushed, at most three pieces are in use at a time.
            let found = (statistics.allocated, statistics.peak);
            assert!(runtime.engine().kind() != EngineKind::Naive || found == (3, 3 * 4096), "{statistics:?}");
            assert_eq!(statistics.kept, 4096 * statistics.allocated as usize);
        }
        Ok(())
    });
}

#[test]
fn random_numbers_depend_on_the_seed_alone() {
    let numbers = |runtime: &Arc<Runtime>| {
        let arrays: Vec<_> = (0..8).map(|_| Array::normal(runtime, &[50], 2.0).expect("enough memory")).collect();
        arrays.iter().flat_map(|array| bits(&array.to_vec().expect("no operation should fail"))).collect::<Vec<_>>()
    };
    let engine = Engine::builder().workers(2).build().expect("an engine");
    let expected = numbers(&Runtime::new(&engine, Device::Cpu, 7));
    assert_ne!(expected, numbers(&Runtime::new(&engine, Device::Cpu, 8)));
    everywhere(|runtime| assert_eq!(numbers(runtime), expected));
}

/// Two operations that draw numbers can run at the same time: each waits for the other.
#[test]
fn operations_draw_from_several_generators() {
    let engine = Engine::builder().workers(2).build().expect("an engine");
    let runtime = Runtime::new(&engine, Device::Cpu, 0);
    let started = Arc::new(AtomicUsize::new(0));
    let draw = |_| {
        let (array, started) = (Array::new(&runtime, &[1]).expect("enough memory"), Arc::clone(&started));
        let task = Task { random: true, ..Task::new("draw", vec![]) }.out(&array, Mode::Write);
        let work = task.push(&runtime, move |mut views| {
            started.fetch_add(1, SeqCst);
            let start = Instant::now();
            while started.load(SeqCst) < 2 && start.elapsed() < Duration::from_secs(10) {
                thread::yield_now();
            }
            views.outs[0].values.fill(started.load(SeqCst) as f32);
        });
        work.expect("the push should succeed");
        array
    };
    assert_eq!([0, 1].map(draw).map(|array| array.to_vec().expect("no operation should fail")), [[2.0]; 2]);
}

#[test]
fn wait_to_read_waits_and_returns_errors() {
    let engine = Engine::builder().workers(2).build().expect("an engine");
    let array = Array::full(&Runtime::new(&engine, Device::Cpu, 0), &[1], 0.0).expect("enough memory");
    let (go, wait) = mpsc::channel::<()>();
    let held = engine.op("held").writes([array.chunk().token()]).try_push((), move |()| Ok(wait.recv()?));
    held.expect("the push should succeed");
    let sent = Arc::new(AtomicUsize::new(0));
    let waiter = thread::spawn({
        let (array, sent) = (array.clone(), Arc::clone(&sent));
        move || (array.wait_to_read().is_ok(), sent.load(SeqCst))
    });
    thread::sleep(Duration::from_millis(50));
    sent.store(1, SeqCst);
    go.send(()).expect("the operation should wait");
    assert_eq!(waiter.join().expect("the thread should not panic"), (true, 1));
    let failed = engine.op("fail").writes([array.chunk().token()]).try_push((), |()| Err("it is broken".into()));
    failed.expect("the push should succeed");
    let error = array.wait_to_read().unwrap_err().to_string();
    assert!(error.contains("it is broken"), "{error}");
    engine.clear_errors();
}

/// Runtimes created beside each other share one pool for each device.
#[test]
fn a_device_has_one_pool() {
    let engine = support::engine(support::PLACES[6]);
    let host = Runtime::new(&engine, Device::Cpu, 0);
    let gpu = host.beside(Device::Gpu(0), 0);
    let arrays = [&host, &gpu].map(|runtime| Array::full(runtime, &[1024], 0.0).expect("enough memory"));
    engine.wait_for_all().expect("no operation should fail");
    for runtime in [&host, &gpu, &gpu.host(), &host.beside(Device::Gpu(0), 1)] {
        assert_eq!(runtime.statistics().live, 4096);
    }
    drop(arrays);
}

/// Four convolutions use four temporary spaces. The fifth needs a larger space, which replaces the first; the sixth
/// reuses the second.
#[test]
fn temporary_space_is_shared_and_grows() {
    test_everywhere(|runtime| {
        let operator: Arc<dyn Operator> = Arc::new(Convolution { filters: 1, size: 3, pad: 1 });
        let mut results = Vec::new();
        for size in [4, 5, 6, 7, 8, 4] {
            let data = Array::full(runtime, &[1, 1, size, size], 1.0)?;
            let weight = Array::full(runtime, &[1, 1, 3, 3], 1.0)?;
            let bias = Array::full(runtime, &[1], 0.5)?;
            results.push((size, invoke(&operator, &[&data, &weight, &bias], false)?.swap_remove(0)));
        }
        for (size, result) in results.drain(..) {
            let values = result.to_vec()?;
            assert_eq!((values[0], values[1], values[size + 1]), (4.5, 6.5, 9.5), "for size {size}");
        }
        // Five operations need the same temporary space, and a sixth needs more.
        let array = Array::new(runtime, &[1])?;
        for (operation, size) in [1024, 1024, 1024, 1024, 1024, 2048].into_iter().enumerate() {
            let task = Task { temporary: size, ..Task::new("use", vec![]) }.out(&array, Mode::Write);
            task.push(runtime, |mut views| views.outs[0].values.fill(views.temporary.len() as f32))?;
            assert_eq!(array.to_vec()?, [size as f32]);
            runtime.engine().wait_for_all()?;
            let (live, expected) = (runtime.statistics().live, 4096 * (4 + operation / 5));
            assert!(operation < 3 || (expected..expected + 1024).contains(&live), "{live} bytes after {operation}");
        }
        Ok(())
    });
}

/// Compares a convolution, computed with a matrix of windows, with the definition of a convolution.
#[test]
fn a_convolution_matches_its_definition() {
    test_everywhere(|runtime| {
        let (image, kernel) = (numbers(2 * 5 * 4, 1), numbers(3 * 2 * 3 * 3, 2));
        let operator: Arc<dyn Operator> = Arc::new(Convolution { filters: 3, size: 3, pad: 1 });
        let data = Array::from_vec(runtime, &[1, 2, 5, 4], image.clone())?;
        let weight = Array::from_vec(runtime, &[3, 2, 3, 3], kernel.clone())?;
        let result = invoke(&operator, &[&data, &weight, &Array::full(runtime, &[3], 0.0)?], false)?[0].to_vec()?;
        for (i, result) in result.into_iter().enumerate() {
            let (filter, y, x) = (i / 20, i / 4 % 5, i % 4);
            let mut sum = 0.0;
            for (j, weight) in kernel[filter * 18..][..18].iter().enumerate() {
                let (channel, row, column) = (j / 9, y + j / 3 % 3, x + j % 3);
                if (1..=5).contains(&row) && (1..=4).contains(&column) {
                    sum += weight * image[channel * 20 + (row - 1) * 4 + column - 1];
                }
            }
            assert!((result - sum).abs() < 1e-4, "{result} is not {sum} at {i}");
        }
        Ok(())
    });
}

#[test]
fn errors_name_shapes_that_do_not_match() {
    let engine = Engine::builder().workers(1).build().expect("an engine");
    let runtime = Runtime::new(&engine, Device::Cpu, 0);
    let array = |shape: &[usize]| Array::full(&runtime, shape, 0.0).expect("enough memory");
    let layer: Arc<dyn Operator> = Arc::new(FullyConnected { outputs: 4 });
    let error = invoke(&layer, &[&array(&[2, 3]), &array(&[4, 5]), &array(&[4])], false).unwrap_err();
    assert_eq!(error.to_string(), "`FullyConnected`: the shape of `weight` must be [4, 3], but is [4, 5]");
    let error = array(&[2, 3]).matmul(&array(&[2, 3])).unwrap_err();
    assert_eq!(error.to_string(), "`matmul`: the shape of `right` must be [3, _] for [2, 3], but is [2, 3]");
    let error = array(&[2]).combine(&simple::ADD, &array(&[3])).unwrap_err();
    assert_eq!(error.to_string(), "`add`: the shape of `right` must be [2], but is [3]");
    let error = array(&[2]).map(&simple::ADD, 0.0).unwrap_err();
    assert_eq!(error.to_string(), "`add` takes 2 inputs, not 1");
    let error = array(&[2]).slice(1..3).unwrap_err();
    assert_eq!(error.to_string(), "`slice`: the shape of `array` must be [3 or more, ..], but is [2]");
    #[allow(clippy::reversed_empty_ranges, reason = "it is refused")]
    let error = array(&[2]).slice(2..1).unwrap_err();
    assert_eq!(error.to_string(), "`slice`: the range 2..1 ends before it starts");
    let error = array(&[2]).reshape(&[3]).unwrap_err();
    assert_eq!(error.to_string(), "`reshape`: the shape of `array` must be one that fits into [3], but is [2]");
    // Errors of the backward pass: a gradient to read or to write has the wrong shape, a gradient is written in place
    // of an array that the pass needs, or the number of arrays written or read is wrong.
    let (data, weight, bias, out) = (array(&[2, 3]), array(&[4, 3]), array(&[4]), array(&[2, 4]));
    let backward = |gradient: &Array, of_data: &Array, mode| {
        let places = [(Some(of_data), mode), (None, Mode::Null), (None, Mode::Null)];
        invoke_backward(&layer, gradient, &[&data, &weight, &bias], &[&out], &places).unwrap_err().to_string()
    };
    let error = backward(&array(&[4, 2]), &array(&[2, 3]), Mode::Write);
    assert_eq!(error, "`FullyConnected backward`: the shape of `gradient` must be [2, 4], but is [4, 2]");
    let error = backward(&out, &array(&[3, 2]), Mode::Write);
    assert_eq!(error, "`FullyConnected backward`: the shape of `output 0` must be [2, 3], but is [3, 2]");
    let error = backward(&out, &data, Mode::InPlace);
    assert_eq!(error, "`FullyConnected backward` cannot write output 0 in place of an input");
    let error = invoke_backward(&layer, &out, &[&data, &weight, &bias], &[&out], &[]).unwrap_err();
    assert_eq!(error.to_string(), "`FullyConnected backward` writes 3 arrays, not 0");
    let error = invoke_backward(&layer, &out, &[&data, &weight, &bias], &[], &[]).unwrap_err();
    assert_eq!(error.to_string(), "`FullyConnected backward` reads 1 outputs, not 0");
    assert!(Array::from_vec(&runtime, &[2], vec![1.0]).is_err());
    let error = Array::new(&runtime, &[2]).and_then(|array| array.to_vec()).unwrap_err();
    assert!(error.to_string().contains("an array without values is read"), "{error}");
    engine.clear_errors();
}

#[test]
fn arrays_of_other_devices_are_refused() {
    let engine = support::engine(support::PLACES[6]);
    let (host, gpu) = (Runtime::new(&engine, Device::Cpu, 0), Runtime::new(&engine, Device::Gpu(0), 0));
    let (here, there) =
        (Array::full(&host, &[2], 1.0).expect("enough memory"), Array::full(&gpu, &[2], 1.0).expect("enough memory"));
    let error = here.combine(&simple::ADD, &there).unwrap_err();
    assert!(matches!(error, Error::Use(_)), "{error}");
}

#[test]
fn shapes_that_are_too_large_are_refused() {
    let engine = support::engine(support::PLACES[6]);
    for device in [Device::Cpu, Device::Gpu(0)] {
        let runtime = Runtime::new(&engine, device, 0);
        for shape in [[usize::MAX, 2], [1 << 32, 1 << 32], [1 << 60, 1]] {
            let error = Array::new(&runtime, &shape).unwrap_err();
            assert!(error.to_string().starts_with("an array cannot have more than "), "{error}");
        }
        assert!(Array::from_vec(&runtime, &[1 << 32, 1 << 32], Vec::new()).is_err());
        let empty = Array::full(&runtime, &[usize::MAX, 0, 2], 0.0).expect("an empty array should need no memory");
        assert!(empty.reshape(&[1 << 32, 1 << 32]).is_err());
        assert_eq!(empty.to_vec().expect("no operation should fail"), []);
        let task = Task { temporary: usize::MAX, ..Task::new("use", vec![]) };
        assert!(task.push(&runtime, |_| {}).is_err());
    }
}

/// In a release build, too, the sizes of a product must not overflow.
#[test]
#[should_panic(expected = "the product has the wrong size")]
fn a_product_that_is_too_large_is_refused() {
    let (column, row) = (Matrix::new(&[], [1 << 32, 0]), Matrix::new(&[], [0, 1 << 32]));
    multiply(column, row, &mut [], false);
}

/// Operators on arrays without values, and operators with windows larger than the images.
#[test]
fn operators_of_extreme_sizes() {
    test_everywhere(|runtime| {
        let check = |operator: Arc<dyn Operator>, shapes: &[&[usize]], expected: Result<&[usize], &str>| {
            let ins: Vec<_> =
                shapes.iter().map(|shape| Array::full(runtime, shape, 1.0)).collect::<Result<_, Error>>()?;
            let ins: Vec<_> = ins.iter().collect();
            let outs = match (invoke(&operator, &ins, true), expected) {
                (Ok(outs), Ok(expected)) if outs[0].shape() == expected => outs,
                (Err(error), Err(expected)) if error.to_string().contains(expected) => return Ok(()),
                (found, expected) => panic!("{operator:?}: {found:?}, not {expected:?}"),
            };
            let gradient = Array::full(runtime, outs[0].shape(), 1.0)?;
            let gradients: Vec<_> =
                shapes.iter().map(|shape| Array::full(runtime, shape, 7.0)).collect::<Result<_, Error>>()?;
            let differentiable = operator.signature().differentiable;
            let places = gradients.iter().enumerate();
            let places =
                places.map(|(i, g)| if i < differentiable { (Some(g), Mode::Write) } else { (None, Mode::Null) });
            invoke_backward(&operator, &gradient, &ins, &outs.iter().collect::<Vec<_>>(), &places.collect::<Vec<_>>())?;
            for array in outs.iter().chain(&gradients) {
                assert!(array.to_vec()?.iter().all(|value| value.is_finite()), "{operator:?}");
            }
            Ok::<_, Error>(())
        };
        let convolution = |filters, size, pad| Arc::new(Convolution { filters, size, pad });
        check(convolution(1, 5, 2), &[&[1, 1, 1, 1], &[1, 1, 5, 5], &[1]], Ok(&[1, 1, 1, 1]))?;
        check(convolution(1, 1, 3), &[&[1, 1, 1, 1], &[1, 1, 1, 1], &[1]], Ok(&[1, 1, 7, 7]))?;
        check(convolution(2, 3, 1), &[&[0, 1, 4, 4], &[2, 1, 3, 3], &[2]], Ok(&[0, 2, 4, 4]))?;
        check(convolution(2, 3, 1), &[&[1, 0, 4, 4], &[2, 0, 3, 3], &[2]], Ok(&[1, 2, 4, 4]))?;
        check(convolution(0, 3, 1), &[&[1, 1, 4, 4], &[0, 1, 3, 3], &[0]], Ok(&[1, 0, 4, 4]))?;
        check(convolution(1, 0, 0), &[&[1, 1, 2, 2], &[1, 1, 0, 0], &[1]], Ok(&[1, 1, 3, 3]))?;
        let images: [&[usize]; 3] = [&[1, 1, 4, 4], &[1, 1, 9, 9], &[1]];
        check(convolution(1, 9, 2), &images, Err("must be [_, _, 5 or more, 5 or more]"))?;
        check(convolution(1, 9, usize::MAX), &images, Err("an array cannot have more than"))?;
        check(convolution(1, usize::MAX, 1), &images, Err("or more]"))?;
        check(convolution(1, 3, 1), &[&[4, 4], &[1, 1, 3, 3], &[1]], Err("[examples, channels, rows, columns]"))?;
        let layer = |outputs| Arc::new(FullyConnected { outputs });
        check(layer(2), &[&[0, 3], &[2, 3], &[2]], Ok(&[0, 2]))?;
        check(layer(2), &[&[3, 0], &[2, 0], &[2]], Ok(&[3, 2]))?;
        check(layer(0), &[&[2, 3], &[0, 3], &[0]], Ok(&[2, 0]))?;
        let pooling = |size| Arc::new(Pooling { size, kind: PoolingKind::Max });
        check(pooling(2), &[&[0, 1, 4, 4]], Ok(&[0, 1, 2, 2]))?;
        check(pooling(0), &[&[1, 1, 4, 4]], Err("[_, _, a multiple of 0, a multiple of 0]"))?;
        let loss = || Arc::new(SoftmaxCrossEntropy { scale: 1.0 });
        check(loss(), &[&[0, 3], &[0]], Ok(&[1]))?;
        check(loss(), &[&[2, 3], &[2]], Ok(&[1]))
    });
}

#[test]
fn the_loss_of_an_unknown_class_is_not_a_number() {
    test_everywhere(|runtime| {
        let loss: Arc<dyn Operator> = Arc::new(SoftmaxCrossEntropy { scale: 1.0 });
        let (data, label) = (Array::full(runtime, &[1, 3], 0.0)?, Array::full(runtime, &[1], 3.0)?);
        assert!(invoke(&loss, &[&data, &label], true)?[0].to_vec()?[0].is_nan());
        Ok(())
    });
}

/// An operator that has neither inputs nor outputs.
#[derive(Debug)]
struct Nothing;

impl Operator for Nothing {
    fn signature(&self) -> Signature {
        Signature::new("nothing", &[], &[], &[])
    }

    fn infer(&self, _: &mut [Option<Shape>]) -> Result<Vec<Shape>, Misfit> {
        Ok(Vec::new())
    }

    fn forward(&self, _: Views<'_>) {}

    fn backward(&self, _: Views<'_>) {}
}

#[test]
fn an_operator_without_inputs_or_outputs_is_refused() {
    let error = invoke(&(Arc::new(Nothing) as Arc<dyn Operator>), &[], true).unwrap_err();
    assert_eq!(error.to_string(), "`nothing` has no inputs or no outputs");
    let error = Symbol::apply(Nothing, "symbol", &[]).infer_shapes(&BTreeMap::new()).unwrap_err();
    assert_eq!(error.to_string(), "`symbol (nothing)` has no inputs or no outputs");
}

#[test]
fn random_numbers_below_any_bound() {
    let mut random = Random::new(1);
    assert_eq!([0, 1].map(|bound| random.below(bound)), [0, 0]);
    (0..100).for_each(|_| assert!(random.below(usize::MAX) < usize::MAX));
}
