//! Sensor fusion that can be replayed: three sensors push measurements, in whatever order their threads run, and the
//! log of the flight gives the same estimates again, bit by bit.
//!
//! ```text
//! cargo run --release --example sensor_fusion
//! cargo run --release --example sensor_fusion -- flight.log
//! ```
//!
//! Look at `Fusion`, which is made once for the flight and once for each replay, and at `Fusion::replay`. Each
//! measurement changes the estimate by an amount that depends on the estimate, so the order of the pushes decides the
//! result, and only the log knows it. With a path, the program replays the log of an earlier flight.

use std::{error::Error, path::Path, thread};

use raddle::{
    Engine, EngineKind, Operator, PushError, Var, WaitError,
    chosen::{self, ChosenWrite, On, With},
    error::BoxError,
    replay::{Log, LogEntries, Replay},
};

const STEPS: u32 = 400;

/// A position, a speed, and how uncertain they are.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Estimate {
    position: f64,
    speed: f64,
    variance: f64,
}

/// What a sensor has measured, and how far it may be off.
#[derive(Clone, Copy)]
struct Measured {
    value: f64,
    variance: f64,
}

impl Measured {
    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.value.to_le_bytes());
        bytes.extend(self.variance.to_le_bytes());
    }

    fn decode(bytes: &[u8]) -> Result<Self, BoxError> {
        let (value, variance) = bytes.split_at_checked(8).ok_or("the argument is too short")?;
        Ok(Self { value: f64::from_le_bytes(value.try_into()?), variance: f64::from_le_bytes(variance.try_into()?) })
    }
}

struct Fusion {
    engine: Engine,
    estimate: Var<Estimate>,
    errors: [Var<f64>; 2],
    position: Operator<With<Measured>>,
    speed: Operator<With<Measured>>,
    drift: Operator<On<ChosenWrite<f64>, Measured>>,
}

impl Fusion {
    fn new(engine: Engine) -> Result<Self, PushError> {
        let estimate = engine.var(Estimate { position: 0.0, speed: 0.0, variance: 100.0 });
        let errors = ["error of the GPS", "error of the radar"].map(|name| engine.var(0.0).named(name));
        let accesses = (estimate.write(), errors[0].read());
        let position = engine.op("position").operator_with(accesses, |(estimate, error), measured: Measured| {
            let gain = estimate.variance / (estimate.variance + measured.variance);
            estimate.position += gain * (measured.value - error - estimate.position);
            estimate.variance *= 1.0 - gain;
        })?;
        let accesses = (estimate.write(), errors[1].read());
        let speed = engine.op("speed").operator_with(accesses, |(estimate, error), measured: Measured| {
            estimate.speed += (measured.value - error - estimate.speed) / (1.0 + measured.variance);
            estimate.position += estimate.speed * 0.01;
            estimate.variance += 0.05;
        })?;
        let drift =
            engine.op("drift").operator_on(chosen::write(), (), |error: &mut f64, (), measured: Measured| {
                *error += (measured.value - *error) * 0.1;
            })?;
        Ok(Self {
            position: position.logged(Measured::encode),
            speed: speed.logged(Measured::encode),
            drift: drift.logged(Measured::encode),
            estimate,
            errors,
            engine,
        })
    }

    /// Lets three sensors push at the same time.
    fn fly(&self) -> Result<(), PushError> {
        let measured = |step: u32, variance: f64| {
            let noise = f64::from(step.wrapping_mul(2_654_435_761) >> 16) / 65_536.0 - 0.5;
            Measured { value: f64::from(step) * 0.1 + noise * variance, variance }
        };
        thread::scope(|threads| {
            let gps = threads.spawn(|| (0..STEPS).try_for_each(|step| self.position.push(measured(step, 4.0))));
            let radar = threads.spawn(|| (0..STEPS).try_for_each(|step| self.speed.push(measured(step % 60, 0.5))));
            let calibration = threads.spawn(|| {
                (0..STEPS / 4)
                    .try_for_each(|step| self.drift.push_on(&self.errors[step as usize % 2], measured(step % 7, 0.2)))
            });
            [gps, radar, calibration].into_iter().try_for_each(|sensor| sensor.join().expect("sensors do not panic"))
        })
    }

    fn replay(&self, log: LogEntries) -> Result<usize, raddle::replay::ReplayError> {
        let mut replay = Replay::new(&self.engine, log);
        self.errors.iter().for_each(|error| _ = replay.variable(error));
        replay.operator(&self.position, Measured::decode).operator(&self.speed, Measured::decode);
        replay.operator(&self.drift, Measured::decode).run()
    }

    fn estimate(&self) -> Result<Estimate, WaitError> {
        self.engine.get(&self.estimate)
    }
}

/// Replays a log on three kinds of engine, and returns the estimate, in which they agree.
fn replay(path: &Path) -> Result<Estimate, Box<dyn Error>> {
    let log = LogEntries::read(path)?;
    if !log.is_complete() {
        println!("the end of the log is missing; {} measurements were left out", log.left_out());
    }
    let engines =
        [Engine::builder().kind(EngineKind::Naive), Engine::builder().workers(1), Engine::builder().workers(4)];
    let mut estimates = Vec::new();
    for engine in engines {
        let fusion = Fusion::new(engine.build()?)?;
        let pushed = fusion.replay(log.clone())?;
        estimates.push(fusion.estimate()?);
        println!("replayed {pushed} measurements: {:?}", estimates.last());
    }
    assert!(estimates.windows(2).all(|pair| pair[0] == pair[1]), "replays agree: {estimates:?}");
    Ok(estimates[0])
}

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(path) = std::env::args_os().nth(1) {
        replay(path.as_ref())?;
        return Ok(());
    }
    let path = std::env::temp_dir().join(format!("sensor_fusion-{}.log", std::process::id()));
    let fusion = Fusion::new(Engine::builder().log(&Log::file(&path)?).build()?)?;
    fusion.fly()?;
    let flown = fusion.estimate()?;
    drop(fusion); // completes the file
    println!("logged to {}: {flown:?}", path.display());
    assert_eq!(replay(&path)?, flown);
    std::fs::remove_file(path)?;
    Ok(())
}
