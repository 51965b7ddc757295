//! Arrays on a CUDA device, and their products by cuBLAS.
//!
//! Without a GPU or cuBLAS, these tests print that they were skipped; with `RADDLE_REQUIRE_GPU` set, they fail instead.
//! The libraries built from `tests/stand_in` can take the place of both.

mod support;

use std::{env, fs, process::Command, sync::Arc, thread};

use raddle::{Device, Engine, EngineKind, gpu::CudaGpu};
use raddle_train::{Array, Error, Mode, Runtime, cuda, operator::FullyConnected, operator::invoke, simple, task::Task};
use support::numbers;

const GPU: Device = Device::Gpu(0);

/// Opens a GPU and loads cuBLAS. If either fails, returns `None` if the tests may be skipped, and otherwise panics.
fn gpu(number: usize) -> Option<CudaGpu> {
    let opened = CudaGpu::open(number).map_err(Error::Device).and_then(|gpu| cuda::load().map(|()| gpu));
    match opened {
        Ok(gpu) => Some(gpu),
        Err(error) if env::var_os("RADDLE_REQUIRE_GPU").is_none() => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("RADDLE_REQUIRE_GPU is set, but products cannot be computed: {error}"),
    }
}

fn runtime(kind: EngineKind, gpu: &CudaGpu) -> Result<Arc<Runtime>, Error> {
    let engine = Engine::builder().kind(kind).workers(2).gpu(gpu.clone()).build()?;
    Ok(Runtime::new(&engine, GPU, 7))
}

/// Calls a test with a runtime of the GPU in each kind of engine. Checks afterwards that no operation has failed and
/// that all memory of the GPU is free.
fn on_each_engine(test: impl Fn(&Arc<Runtime>) -> Result<(), Error>) {
    let Some(gpu) = gpu(0) else { return };
    for kind in [EngineKind::Naive, EngineKind::Pooled, EngineKind::PerDevice] {
        let runtime = runtime(kind, &gpu).expect("an engine");
        assert!(runtime.is_cuda());
        test(&runtime).expect("the test should pass");
        runtime.engine().wait_for_all().expect("no operation should fail");
        assert_eq!(runtime.statistics().live, 0, "{kind}");
    }
}

/// Returns an array with the values of `numbers`.
fn array(runtime: &Arc<Runtime>, shape: &[usize], seed: u64) -> Result<Array, Error> {
    Array::from_vec(runtime, shape, numbers(shape.iter().product(), seed))
}

/// Compares values with those computed on the host, where sums may have another order.
fn assert_close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let most = expected.iter().fold(1.0f32, |most, value| most.max(value.abs()));
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() < 1e-5 * most, "{what}: value {i} is {found}, not {expected}");
    }
}

#[test]
fn products_match_those_of_the_host() {
    on_each_engine(|runtime| {
        let host = runtime.host();
        for [rows, inner, columns] in
            [[1, 1, 1], [2, 3, 4], [4, 3, 2], [1, 50, 1], [7, 1, 5], [33, 17, 65], [64, 64, 64]]
        {
            for transposed in [[false, false], [true, false], [false, true], [true, true]] {
                let shape =
                    |rows, columns, is_transposed| if is_transposed { [columns, rows] } else { [rows, columns] };
                let shapes = [shape(rows, inner, transposed[0]), shape(inner, columns, transposed[1])];
                let product = |runtime: &Arc<Runtime>| {
                    let [a, b] = [array(runtime, &shapes[0], 1)?, array(runtime, &shapes[1], 2)?];
                    let product = a.matmul_transposed(&b, transposed)?;
                    assert_eq!(product.shape(), [rows, columns]);
                    product.to_vec()
                };
                let what = format!("{shapes:?}, transposed: {transposed:?}");
                assert_close(&product(runtime)?, &product(&host)?, &what);
            }
        }
        Ok(())
    });
}

/// All operations are pushed before the first result is read. Each product of the loop is dropped right after its use
/// is pushed.
#[test]
fn chains_of_products_run_in_order() {
    on_each_engine(|runtime| {
        let chain = |runtime: &Arc<Runtime>| {
            let (mut x, y) = (
                array(runtime, &[16, 16], 1)?,
                array(runtime, &[16, 16], 2)?.matmul_transposed(&array(runtime, &[16, 16], 2)?, [true, false])?,
            );
            // A rotation keeps the values small.
            let (sin, cos) = 0.7f32.sin_cos();
            let turn: Vec<f32> = (0..256)
                .map(|i| match (i / 16, i % 16) {
                    (row, column) if row == column => cos,
                    (row, column) if row ^ 1 == column => {
                        if row < column {
                            sin
                        } else {
                            -sin
                        }
                    }
                    _ => 0.0,
                })
                .collect();
            let turn = Array::from_vec(runtime, &[16, 16], turn)?;
            for _ in 0..30 {
                x = x.matmul(&turn)?;
            }
            let square = x.matmul(&x)?;
            let both = square.matmul_transposed(&y, [true, true])?;
            Ok::<_, Error>([x.to_vec()?, square.to_vec()?, both.to_vec()?])
        };
        for (found, expected) in chain(runtime)?.iter().zip(chain(&runtime.host())?) {
            assert_close(found, &expected, "a chain");
        }
        Ok(())
    });
}

#[test]
fn slices_are_multiplied_and_copied() {
    on_each_engine(|runtime| {
        let steps = |runtime: &Arc<Runtime>| {
            let whole = array(runtime, &[6, 4], 3)?;
            let (front, back) = (whole.slice(0..2)?, whole.slice(2..6)?);
            let product = front.matmul(&back)?;
            // Copies between overlapping ranges of the same memory.
            whole.slice(1..5)?.copy_from(&whole.slice(2..6)?)?;
            whole.slice(0..2)?.copy_from(&product)?;
            let other = Array::new(runtime, &[2, 4])?;
            other.copy_from(&whole.slice(3..5)?)?;
            let empty = whole.slice(0..0)?.matmul(&back)?;
            Ok::<_, Error>([whole.to_vec()?, whole.slice(4..6)?.to_vec()?, other.to_vec()?, empty.to_vec()?])
        };
        for (found, expected) in steps(runtime)?.iter().zip(steps(&runtime.host())?) {
            assert_close(found, &expected, "slices");
        }
        Ok(())
    });
}

/// Each thread that issues operations has its own handle: the threads of each GPU's lanes, and the threads that push to
/// a naive engine.
#[test]
fn threads_and_devices_do_not_share_handles() {
    let Some(first) = gpu(0) else { return };
    let count = CudaGpu::count().expect("the driver should be loaded").min(2);
    let gpus: Vec<_> = [first].into_iter().chain((1..count).filter_map(gpu)).collect();
    thread::scope(|scope| {
        for kind in [EngineKind::Naive, EngineKind::PerDevice] {
            let engine =
                gpus.iter().cloned().fold(Engine::builder().kind(kind).workers(1), |builder, gpu| builder.gpu(gpu));
            let engine = engine.build().expect("an engine");
            for thread in 0..4u32 {
                let runtime = Runtime::new(&engine, Device::Gpu(thread % gpus.len() as u32), 0);
                scope.spawn(move || {
                    for seed in 1..20 {
                        let product =
                            |runtime| array(runtime, &[5, 6], seed)?.matmul(&array(runtime, &[6, 3], seed)?)?.to_vec();
                        let (found, expected) = (product(&runtime), product(&runtime.host()));
                        let [found, expected] =
                            [found, expected].map(|values| values.expect("no operation should fail"));
                        assert_close(&found, &expected, "a product");
                    }
                });
            }
        }
    });
}

#[test]
fn operations_that_are_not_available_are_refused_and_lose_nothing() {
    on_each_engine(|runtime| {
        let array = array(runtime, &[2, 2], 1)?;
        let refused = |result: Result<(), Error>, name: &str| {
            let error = result.expect_err("there should be no kernel");
            assert!(matches!(error, Error::Unavailable(_)), "{error}");
            let expected =
                format!("`{name}` is not available on gpu(0), a CUDA device: copy the arrays to the host first");
            assert_eq!(error.to_string(), expected);
        };
        refused(array.combine(&simple::ADD, &array).map(drop), "add");
        refused(array.add_assign(&array), "add");
        refused(array.map(&simple::RELU, 0.0).map(drop), "relu");
        refused(array.sum().map(drop), "sum");
        refused(array.fill(1.0), "fill");
        refused(Array::normal(runtime, &[2], 1.0).map(drop), "normal");
        let layer: Arc<dyn raddle_train::operator::Operator> = Arc::new(FullyConnected { outputs: 2 });
        refused(
            invoke(&layer, &[&array, &array, &array.slice(0..1)?.reshape(&[2])?], true).map(drop),
            "FullyConnected",
        );
        refused(Task::new("own", vec![&array]).out(&array, Mode::InPlace).operator(runtime, |_| {}).map(drop), "own");
        assert_eq!(array.to_vec()?, numbers(4, 1));
        array.matmul(&array)?.wait_to_read()
    });
}

#[test]
fn factors_on_other_devices_and_of_other_shapes_are_refused() {
    on_each_engine(|runtime| {
        let (here, there) = (array(&runtime.host(), &[2, 3], 1)?, array(runtime, &[2, 3], 1)?);
        let error = there.matmul_transposed(&here, [false, true]).unwrap_err();
        assert_eq!(error.to_string(), "`matmul` runs on gpu(0), but an array is on cpu: copy it first");
        let error = here.matmul_transposed(&there, [false, true]).unwrap_err();
        assert_eq!(error.to_string(), "`matmul` runs on cpu, but an array is on gpu(0): copy it first");
        for array in [&here, &there] {
            let error = array.matmul_transposed(array, [true, true]).unwrap_err();
            let shape = "`matmul`: the shape of `right` must be [_, 2] for [2, 3], but is [2, 3]";
            assert_eq!(error.to_string(), shape);
        }
        Ok(())
    });
}

/// Runs an ignored test in its own process, which must succeed, and whose output must contain `text`.
fn child(name: &str, variable: (&str, &str), text: &str) {
    let this = env::current_exe().expect("the test binary should have a path");
    let arguments = ["--ignored", "--exact", name, "--nocapture"];
    let output =
        Command::new(this).args(arguments).env(variable.0, variable.1).output().expect("the test should start");
    let found = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    println!("{found}");
    assert!(output.status.success() && found.contains(text));
}

/// In the child, `LD_LIBRARY_PATH` names only folders without cuBLAS.
#[test]
fn a_missing_library_is_an_error() {
    if gpu(0).is_none() {
        return;
    }
    let has_cublas = |folder: &std::path::PathBuf| {
        let mut entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.any(|entry| entry.file_name().to_string_lossy().starts_with("libcublas"))
    };
    let folders = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = env::join_paths(env::split_paths(&folders).filter(|folder| !has_cublas(folder)));
    let folders = folders.expect("the folders should come from such a list");
    child("without_cublas", ("LD_LIBRARY_PATH", folders.to_str().expect("the folders should be UTF-8")), "1 passed");
}

#[test]
#[ignore = "another test runs it in its own process"]
fn without_cublas() {
    if cuda::load().is_ok() {
        println!("skipped: the loader finds cuBLAS without LD_LIBRARY_PATH");
        return;
    }
    let gpu = CudaGpu::open(0).expect("there should be a GPU");
    let runtime = runtime(EngineKind::PerDevice, &gpu).expect("an engine");
    let array = array(&runtime, &[2, 2], 1).expect("the push should succeed");
    let error = array.matmul(&array).unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert_eq!(error.to_string(), "cuBLAS was not found: install it, or add its folder to LD_LIBRARY_PATH");
    assert_eq!(array.to_vec().expect("no operation should fail"), numbers(4, 1));
    runtime.engine().wait_for_all().expect("no operation should fail");
}

/// In each child, the stand-in for cuBLAS fails one call. The next product is computed.
#[test]
fn a_call_that_fails_loses_only_its_product() {
    if gpu(0).is_none() {
        return;
    }
    if env::var_os("STAND_IN_DEVICES").is_none() {
        println!("skipped: only the stand-in for cuBLAS fails on demand");
        return;
    }
    for (fault, error) in [
        ("create", "cublasCreate of cuBLAS returned CUBLAS_STATUS_ALLOC_FAILED"),
        ("stream", "cublasSetStream of cuBLAS returned CUBLAS_STATUS_NOT_INITIALIZED"),
        ("gemm", "cublasSgemm of cuBLAS returned CUBLAS_STATUS_EXECUTION_FAILED"),
    ] {
        child("with_a_fault", ("STAND_IN_CUBLAS_FAULT", fault), error);
    }
}

#[test]
#[ignore = "another test runs it in its own process"]
fn with_a_fault() {
    let gpu = CudaGpu::open(0).expect("there should be a GPU");
    let runtime = runtime(EngineKind::PerDevice, &gpu).expect("an engine");
    let array = array(&runtime, &[2, 2], 1).expect("the push should succeed");
    let [failed, next] = [(); 2].map(|()| array.matmul(&array).expect("the push should succeed"));
    println!("{}", failed.to_vec().unwrap_err());
    let host = Array::from_vec(&runtime.host(), &[2, 2], numbers(4, 1)).expect("the push should succeed");
    let expected = host.matmul(&host).and_then(|product| product.to_vec()).expect("no operation should fail");
    assert_close(&next.to_vec().expect("only the first product should fail"), &expected, "the next product");
    assert_eq!(array.to_vec().expect("no operation should fail"), numbers(4, 1));
}
