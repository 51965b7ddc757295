//! Batches and the training of the net.

mod support;

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    process::Command,
    sync::{Arc, Mutex, mpsc},
};

use raddle::{
    Device, Engine, EngineKind,
    trace::{Outcome, Recorder, TracedOp},
};
use raddle_train::{
    Array, Error, Runtime,
    data::{Images, Loader},
    report,
    training::{Options, Processes, Trainer},
};
use support::{PLACES, bits, builder, engine};

fn bytes() -> Vec<u8> {
    std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits.bin")).expect("the file should exist")
}

fn images() -> Arc<Images> {
    Arc::new(Images::parse(bytes()).expect("the file should be complete"))
}

#[test]
fn a_truncated_or_damaged_file_is_refused() {
    let problem = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = bytes();
        change(&mut bytes);
        Images::parse(bytes).expect_err("a damaged file should be refused")
    };
    assert_eq!(
        problem(&|bytes| bytes.truncate(9000)),
        "the file has 9000 bytes, but 1797 images need 116829: it was truncated or extended"
    );
    assert_eq!(problem(&|bytes| bytes.truncate(12)), "the file ends within its header, after 12 bytes");
    assert_eq!(problem(&|bytes| bytes[5000] ^= 1), "the file is damaged: its hash does not match");
    assert!(problem(&|bytes| bytes[0] = 0).starts_with("this is not a packed file of images"));
    assert!(problem(&|bytes| bytes.push(0)).contains("truncated or extended"));
    let error = Images::open(Path::new("no/such/file")).unwrap_err();
    assert!(error.to_string().starts_with("no/such/file: "), "{error}");
}

#[test]
fn images_that_do_not_exist_are_refused() {
    // A file of one image without pixels, with its hash.
    let mut bytes = b"DIGITS01\x01\0\0\0\0\x08\x0a\x10\x03".to_vec();
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
    bytes.extend(bytes.iter().fold(0xCBF2_9CE4_8422_2325, mix).to_le_bytes());
    assert_eq!(Images::parse(bytes).unwrap_err(), "the images have no pixels: they have 0 rows and 8 columns");
    let (engine, images) = (engine(PLACES[0]), images());
    let runtime = Runtime::new(&engine, Device::Cpu, 5);
    let errors = [
        images.arrays(&runtime, &[0, 1797]).unwrap_err(),
        Loader::new(&images, &runtime, vec![0, 1797], 1, 1, 1).unwrap_err(),
        report::picture(Path::new("no/such/file"), &images, &[(1797, 0, 1)]).unwrap_err(),
    ];
    errors.iter().for_each(|error| assert_eq!(error.to_string(), "there is no image 1797 among 1797"));
    // As many epochs as can be counted.
    Loader::new(&images, &runtime, (0..100).collect(), 10, usize::MAX, 1).expect("enough images");
}

#[test]
fn the_split_is_fixed() {
    let (learn, test) = images().split();
    assert_eq!((learn.len(), test.len(), &test[..3]), (1438, 359, &[4, 9, 14][..]));
}

/// Each epoch has the same images in a different order, and all batches' bits depend only on the seed.
#[test]
fn batches_depend_on_the_seed_alone() {
    let images = images();
    let batches = |engine: &Engine| {
        let runtime = Runtime::new(engine, Device::Cpu, 5);
        let mut loader = Loader::new(&images, &runtime, (0..60).collect(), 20, 2, 3).expect("enough images");
        let (mut classes, mut pixels) = (Vec::new(), Vec::new());
        while let Some(batch) = loader.next().expect("the push should succeed") {
            classes.extend(batch.classes.to_vec().expect("no operation should fail"));
            pixels.extend(bits(&batch.images.to_vec().expect("no operation should fail")));
        }
        (classes, pixels)
    };
    let (mut classes, pixels) = batches(&engine(PLACES[0]));
    assert_eq!((classes.len(), pixels.len()), (120, 120 * 64));
    assert!(pixels.iter().collect::<HashSet<_>>().len() > 1000, "the images were not distorted");
    for place in &PLACES[1..5] {
        assert_eq!(batches(&engine(*place)), (classes.clone(), pixels.clone()));
    }
    let mut second = classes.split_off(60);
    assert_ne!(classes, second);
    [&mut classes, &mut second].iter_mut().for_each(|epoch| epoch.sort_by(f32::total_cmp));
    assert_eq!(classes, second);
}

/// A batch that is still being read is not overwritten, and the loader does not wait for the batch's reader.
#[test]
fn batches_are_made_in_advance_up_to_the_bound() {
    let recorder = Recorder::new();
    let engine = Engine::builder().workers(2).recorder(&recorder).build().expect("an engine");
    let runtime = Runtime::new(&engine, Device::Cpu, 5);
    let mut loader = Loader::new(&images(), &runtime, (0..100).collect(), 10, 1, 3).expect("enough images");
    engine.wait_for_all().expect("no operation should fail");
    let made = recorder.take().ops().iter().filter(|op| op.label() == "augment").count();
    assert_eq!(made, 3, "a wrong number of batches was made before the first was requested");
    let first = loader.next().expect("the push should succeed").expect("there should be batches");
    let versions = |batch: &raddle_train::data::Batch| batch.images.chunk().token().version();
    let (go, wait) = mpsc::channel::<()>();
    let read = first.images.look("slow", [], move |values| {
        wait.recv()?;
        Ok(values.to_vec())
    });
    let mut made = Vec::new();
    for _ in 0..5 {
        made.push(loader.next().expect("the push should succeed").expect("there should be ten batches"));
    }
    made[1].images.wait_to_read().expect("no operation should fail");
    // The fourth batch was pushed and needs the first one's slot.
    assert_eq!(made[2].images.chunk().token(), first.images.chunk().token());
    assert_eq!(versions(&first), 1, "the slot was reused before its reader had finished");
    go.send(()).expect("the reader should wait");
    let read = read.expect("the push should succeed").wait().expect("no operation should fail");
    assert_ne!(first.images.to_vec().expect("no operation should fail"), read, "the slot was not reused");
    assert!(versions(&first) > 1);
}

/// The bits are the same on every kind of engine, for one, two and four workers, and on the simulated GPU.
#[test]
fn the_bits_of_the_parameters_do_not_depend_on_the_engine() {
    let images = images();
    let options = Options { epochs: 2, batch: 192, shards: 3, ..Options::default() };
    let train = |place: (EngineKind, usize, Device)| {
        let engine = engine(place);
        let mut trainer = Trainer::new(&engine, place.2, &images, options).expect("the options should be valid");
        let loss = [0, 1].map(|epoch| trainer.epoch(epoch, |_, _| {}).expect("no operation should fail").to_bits());
        (loss, trainer.bits().expect("no operation should fail"))
    };
    let expected = train(PLACES[0]);
    for place in &PLACES[1..] {
        assert!(train(*place) == expected, "{place:?}");
    }
}

/// The bits are also the same if ready operations start in a random order.
#[test]
fn the_bits_do_not_depend_on_the_order_of_ready_operations() {
    let images = images();
    let options = Options { epochs: 1, batch: 240, shards: 2, ..Options::default() };
    let train = |seed| {
        let engine = Engine::builder().workers(2).shuffle(seed).build().expect("an engine");
        let mut trainer = Trainer::new(&engine, Device::Cpu, &images, options).expect("the options should be valid");
        trainer.epoch(0, |_, _| {}).expect("no operation should fail");
        trainer.bits().expect("no operation should fail")
    };
    let expected = train(0);
    (1..5).for_each(|seed| assert!(train(seed) == expected, "{seed}"));
}

#[test]
fn a_loss_that_is_not_finite_ends_the_training_and_changes_nothing() {
    for place in PLACES {
        let recorder = Recorder::with_capacity(16 << 20);
        let engine = builder(place).recorder(&recorder).build().expect("an engine");
        let options = Options { epochs: 2, rate: 1e3, ..Options::default() };
        let mut trainer = Trainer::new(&engine, place.2, &images(), options).expect("the options should be valid");
        let error = trainer.epoch(0, |_, _| {}).unwrap_err();
        assert!(matches!(error, Error::Loss(_)), "{error}");
        // No copy starts after the failed check, so the search for the layer uses the batch of the failed step.
        let trace = recorder.take();
        let failed = trace.ops().iter().find(|op| op.label() == "check" && op.outcome == Some(Outcome::Failed));
        let failed = failed.expect("the check should fail").ended;
        let is_copy = |op: &&TracedOp| ["copy", "stage"].contains(&op.label().as_str());
        assert!(trace.ops().iter().filter(is_copy).all(|op| op.started.is_none_or(|start| Some(start) < failed)));
        let text = error.to_string();
        assert!(text.starts_with("epoch 1, step ") && text.contains("`check`"), "{text}");
        assert!(
            text.contains("the loss is NaN; computed again, the first result that is not finite is that of `"),
            "{text}"
        );
        // That step's gradients are NaN and were not applied.
        let bits = trainer.bits().expect("the errors should have been cleared");
        assert!(bits.iter().all(|bits| !f32::from_bits(*bits).is_nan()), "{text}");
    }
}

#[test]
fn invalid_options_are_refused() {
    let engine = Engine::builder().workers(1).build().expect("an engine");
    let problem = |options| Trainer::new(&engine, Device::Cpu, &images(), options).unwrap_err().to_string();
    let options = Options::default();
    assert_eq!(problem(Options { batch: 65, ..options }), "a batch of 65 cannot be split into 2 equal parts");
    let shared = "2 parts of a batch cannot be shared equally by 3 processes";
    assert_eq!(problem(Options { groups: 3, ..options }), shared);
    assert_eq!(problem(Options { epochs: 0, ..options }), "0 epochs with batches of 64 train nothing");
    let problem = problem(Options { batch: 2000, ..options });
    assert_eq!(problem, "4 batches of 2000 cannot be made from 1438 images");
}

/// Notes the priorities of exchanges, but exchanges nothing: it writes zeros.
#[derive(Debug, Default)]
struct Noted(Mutex<HashMap<String, i32>>);

impl Processes for Noted {
    fn rank(&self) -> usize {
        0
    }

    fn count(&self) -> usize {
        1
    }

    fn push(&self, key: &str, priority: i32, _: &[&Array]) -> Result<(), Error> {
        self.0.lock().expect("no panic").insert(format!("push {key}"), priority);
        Ok(())
    }

    fn pull(&self, key: &str, priority: i32, into: &Array) -> Result<(), Error> {
        self.0.lock().expect("no panic").insert(format!("pull {key}"), priority);
        into.fill(0.0)
    }
}

#[test]
fn the_first_layers_parameters_travel_first() {
    let (engine, noted) = (engine(PLACES[0]), Arc::new(Noted::default()));
    let processes: Option<Arc<dyn Processes>> = Some(Arc::<Noted>::clone(&noted));
    let options = Options { epochs: 1, batch: 480, ..Options::default() };
    let trainer = Trainer::with_processes(&engine, Device::Cpu, &images(), options, processes);
    trainer.expect("the options should be valid").epoch(0, |_, _| {}).expect("no operation should fail");
    let noted = noted.0.lock().expect("no panic");
    for call in ["push", "pull"] {
        let layers = ["conv1_weight", "conv1_bias", "conv2_weight", "full1_weight", "full2_bias"];
        let priorities = layers.map(|layer| noted[&format!("{call} {layer}")]);
        assert!(priorities.is_sorted_by(|a, b| a > b), "{priorities:?}");
        assert!(noted[&format!("{call} loss")] > priorities[0]);
    }
}

/// The recorder sees updates during the backward passes of other layers.
#[test]
fn updates_overlap_with_the_backward_pass() {
    let recorder = Recorder::with_capacity(16 << 20);
    let engine = Engine::builder().workers(2).recorder(&recorder).build().expect("an engine");
    let options = Options { epochs: 5, batch: 240, ..Options::default() };
    let mut trainer = Trainer::new(&engine, Device::Cpu, &images(), options).expect("the options should be valid");
    for epoch in 0..options.epochs {
        trainer.epoch(epoch, |_, _| {}).expect("no operation should fail");
        let trace = recorder.take();
        trace.check_order().expect("the engine should keep its rule");
        let overlap = report::overlap(&trace, |name| name.starts_with("update "));
        assert!(overlap.count > 0);
        let priority =
            |name: &str| trace.ops().iter().find(|op| op.label() == name).expect("it should have run").priority;
        assert!(
            priority("update conv1_weight") > priority("update full2_weight"),
            "the first layer does not come first"
        );
        if let (Some((update, backward)), 1..) = (overlap.example, overlap.overlapping) {
            assert!(update.starts_with("update ") && backward.ends_with(" backward"), "{update}, {backward}");
            return;
        }
    }
    panic!("no update ran during a backward pass");
}

#[test]
fn the_net_learns() {
    let engine = Engine::builder().workers(2).build().expect("an engine");
    let options = Options { epochs: 4, ..Options::default() };
    let mut trainer = Trainer::new(&engine, Device::Cpu, &images(), options).expect("the options should be valid");
    let losses: Vec<f32> =
        (0..4).map(|epoch| trainer.epoch(epoch, |_, _| {}).expect("no operation should fail")).collect();
    assert!(losses[3] < losses[0] / 3.0, "{losses:?}");
    let answers = trainer.test().expect("no operation should fail");
    assert!(report::accuracy(&answers) > 0.9, "{}", report::accuracy(&answers));
    let table = report::confusion(&answers, 10);
    assert_eq!((table.lines().count(), answers.len()), (11, 359));
    let [bound, imperative] = trainer.compare(2).expect("no operation should fail");
    assert!(bound > 0.0 && imperative > 0.0);
    let path = std::env::temp_dir().join(format!("raddle-train-{}.png", std::process::id()));
    report::picture(&path, &images(), &answers[..9]).expect("the picture should be written");
    let picture = std::fs::read(&path).expect("the picture should exist");
    std::fs::remove_file(&path).expect("the picture should exist");
    assert!(picture.starts_with(b"\x89PNG"));
}

/// The program compares the bits, writes a picture and a trace, reports the overlap, and judges the time.
#[test]
fn the_program_reports_and_judges() {
    let path = |name| std::env::temp_dir().join(format!("raddle-train-{}.{name}", std::process::id()));
    let (picture, trace) = (path("mistakes.png"), path("pftrace"));
    let run = Command::new(env!("CARGO_BIN_EXE_raddle-train"))
        .args(["--epochs", "3", "--batch", "240", "--require", "10", "--within", "0.001"])
        .args(["--picture".as_ref(), picture.as_os_str(), "--trace".as_ref(), trace.as_os_str()])
        .output()
        .expect("the program should start");
    let (text, problem) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(std::fs::read(&trace).is_ok_and(|bytes| bytes.len() > 10_000), "{text}{problem}");
    [picture, trace].iter().for_each(|path| std::fs::remove_file(path).expect("the program should have written it"));
    // Five steps of eight updates.
    assert!(text.contains(" of 40 updates of the last epoch ran during the backward pass of another layer"), "{text}");
    assert!(text.contains("memory of cpu: ") && text.contains("naive: 3 epochs in "), "{text}");
    assert_eq!(text.matches(", the same bits").count(), 6, "{text}");
    assert!(!run.status.success() && problem.contains(" s, longer than the limit of 0.001 s"), "{problem}");
}
