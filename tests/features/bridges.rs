//! The bridges to the crates `tracing` and `metrics`.

#![forbid(unsafe_code)]

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, SharedString, Unit};
use raddle::{
    Engine, completion,
    trace::{MetricsObserver, TracingObserver},
};
use tracing::{Event, Subscriber, field::Visit, span};

/// A subscriber that records each event with its enclosing spans.
#[derive(Clone, Default)]
struct Log(Arc<LogState>);

#[derive(Default)]
struct LogState {
    last: AtomicU64,
    spans: Mutex<BTreeMap<u64, String>>,
    lines: Mutex<Vec<String>>,
}

thread_local!(static INSIDE: std::cell::RefCell<Vec<u64>> = const { std::cell::RefCell::new(Vec::new()) });

/// The fields of an event or span as text, without the source locations of pushes.
#[derive(Default)]
struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        if field.name() == "pushed_at" {
            assert!(format!("{value:?}").contains("bridges.rs:"), "{value:?}");
        } else {
            self.0 += &format!(" {field}={value:?}");
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "raddle" || metadata.target() == "program"
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        let mut fields = Fields::default();
        span.record(&mut fields);
        let id = self.0.last.fetch_add(1, Relaxed) + 1;
        self.0.spans.lock().unwrap().insert(id, format!("{}{}", span.metadata().name(), fields.0));
        span::Id::from_u64(id)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let spans = self.0.spans.lock().unwrap();
        let inside: Vec<_> = INSIDE.with_borrow(|inside| inside.iter().map(|id| spans[id].clone()).collect());
        self.0.lines.lock().unwrap().push(format!("{}{} in {inside:?}", event.metadata().level(), fields.0));
    }

    fn enter(&self, span: &span::Id) {
        INSIDE.with_borrow_mut(|inside| inside.push(span.into_u64()));
    }

    fn exit(&self, span: &span::Id) {
        INSIDE.with_borrow_mut(|inside| assert_eq!(inside.pop(), Some(span.into_u64())));
    }
}

#[test]
fn tracing_has_a_span_for_each_function_and_an_event_for_each_end() {
    let log = Log::default();
    tracing::subscriber::set_global_default(log.clone()).expect("no other test in this file should set one");
    let engine = Engine::builder().workers(1).observer(TracingObserver::new()).build().unwrap();
    let value = engine.var(0);
    engine
        .op("load")
        .priority(5)
        .try_push(value.write(), |value| {
            *value = 1;
            tracing::info!(target: "program", "loading");
            Err("no such file".into())
        })
        .unwrap();
    engine.op("show").push(value.read(), |_| unreachable!("the operation should be skipped")).unwrap();
    let inner = engine.downgrade();
    let outer = engine.op("outer").submit((), move |()| {
        inner.op("inner").submit((), |()| tracing::info!(target: "program", "inside")).unwrap().wait().unwrap();
        tracing::info!(target: "program", "after");
    });
    outer.unwrap().wait().unwrap();
    let asks = |done: raddle::Completion| {
        let asked = thread::spawn(move || done.complete());
        asked.join().unwrap();
        tracing::info!(target: "program", "asked");
    };
    engine.op("ask").push(completion(), asks).unwrap();
    engine.op("next").push((), |()| tracing::info!(target: "program", "apart")).unwrap();
    drop(engine);

    let lines = log.0.lines.lock().unwrap().clone();
    let has = |line: &str| assert!(lines.iter().any(|found| found == line), "no `{line}` in {lines:#?}");
    has(r#"TRACE message=pushed name="load" lane="cpu" priority=5 in []"#);
    has(r#"INFO message=loading in ["operation name=\"load\" worker=\"cpu 0\" priority=5"]"#);
    has(r#"WARN message=failed name="load" in ["operation name=\"load\" worker=\"cpu 0\" priority=5"]"#);
    has(r#"INFO message=skipped name="show" in []"#);
    has(
        r#"INFO message=inside in ["operation name=\"outer\" worker=\"cpu 0\" priority=0", "operation name=\"inner\" worker=\"cpu 0\" priority=0"]"#,
    );
    has(r#"INFO message=after in ["operation name=\"outer\" worker=\"cpu 0\" priority=0"]"#);
    has(r#"INFO message=asked in ["operation name=\"ask\" worker=\"cpu 0\" priority=0"]"#);
    has(r#"DEBUG message=succeeded name="ask" in []"#);
    has(r#"INFO message=apart in ["operation name=\"next\" worker=\"cpu 0\" priority=0"]"#);
    assert!(!lines.iter().any(|line| line.contains("wait")), "the engine's operations are logged: {lines:#?}");
}

/// A recorder that stores every metric under its key.
#[derive(Clone, Default)]
struct Metrics(Arc<Mutex<BTreeMap<String, Arc<AtomicU64>>>>, Arc<Mutex<BTreeMap<String, Arc<Values>>>>);

#[derive(Default)]
struct Values(Mutex<Vec<f64>>);

impl HistogramFn for Values {
    fn record(&self, value: f64) {
        self.0.lock().unwrap().push(value);
    }
}

fn text(key: &Key) -> String {
    let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
    format!("{} {}", key.name(), labels.join(" "))
}

impl Metrics {
    fn number(&self, key: &Key) -> Arc<AtomicU64> {
        Arc::clone(self.0.lock().unwrap().entry(text(key)).or_default())
    }
}

impl metrics::Recorder for Metrics {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.number(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.number(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::clone(self.1.lock().unwrap().entry(text(key)).or_default()))
    }
}

#[test]
fn metrics_count_and_time_operations_by_name() {
    const TIME: Duration = Duration::from_millis(20);
    let metrics = Metrics::default();
    assert!(metrics::set_global_recorder(metrics.clone()).is_ok(), "no other test in this file sets one");
    let engine = Engine::builder().workers(1).observer(MetricsObserver::new()).build().unwrap();
    let value = engine.var(0);
    engine.op("sleep").push(value.write(), |_| thread::sleep(TIME)).unwrap();
    engine.op("fail").priority(-3).try_push(value.write(), |_| Err("no".into())).unwrap();
    engine.op("skip").push(value.read(), |_| unreachable!("the operation should be skipped")).unwrap();
    let ends_elsewhere = |done: raddle::Completion| {
        thread::sleep(TIME);
        thread::spawn(move || done.complete());
    };
    engine.op("ask").push(completion(), ends_elsewhere).unwrap();
    engine.wait_for_all().unwrap_err();
    drop(engine);
    let numbers: BTreeMap<_, _> =
        metrics.0.lock().unwrap().iter().map(|(key, number)| (key.clone(), number.load(Relaxed))).collect();
    let total = |labels: &str| numbers.get(&format!("raddle_operations_total {labels}")).copied();
    assert_eq!(total("operation=sleep outcome=succeeded"), Some(1), "{numbers:#?}");
    assert_eq!(total("operation=fail outcome=failed"), Some(1), "{numbers:#?}");
    assert_eq!(total("operation=skip outcome=skipped"), Some(1), "{numbers:#?}");
    assert_eq!(total("operation=ask outcome=succeeded"), Some(1), "{numbers:#?}");
    assert_eq!(numbers.len(), 5, "{numbers:#?}");
    assert_eq!(f64::from_bits(numbers["raddle_operations_pending "]), 0.0);
    let times = metrics.1.lock().unwrap();
    let of = |name: &str| times[name].0.lock().unwrap().clone();
    for name in ["sleep", "ask"] {
        let ran = of(&format!("raddle_operation_run_seconds operation={name} worker=cpu 0"));
        assert!(matches!(ran[..], [seconds] if seconds >= TIME.as_secs_f64() && seconds < 60.0), "{name}: {ran:?}");
    }
    let waited = of("raddle_operation_wait_seconds operation=fail priority=-3");
    assert!(matches!(waited[..], [seconds] if seconds >= TIME.as_secs_f64() * 0.9 && seconds < 60.0), "{waited:?}");
    assert!(
        !times.keys().any(|key| key.starts_with("raddle_operation_run_seconds operation=skip")),
        "{:?}",
        times.keys()
    );
}
