//! Reports: renders a trace as a single HTML page.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt::Write as _,
    io::{self, Write},
    time::Duration,
};

use super::{
    chrome::Json,
    event::{OpId, Place},
    history::{Run, Trace, TracedOp},
};

/// The page, without its data.
const PAGE: &str = include_str!("report.html");

/// The placeholder for the data.
const DATA: &str = "/*DATA*/";

/// The maximum number of operations that the page draws. Not tuned: a browser can redraw this many while the mouse
/// moves.
const MAX_DRAWN: usize = 50_000;

/// A step of the critical path, from [`Trace::critical_path`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CriticalStep {
    /// The operation.
    pub op: OpId,
    /// The time from the end of the previous operation on the path to the push of this one; zero if this one was pushed
    /// earlier.
    pub unpushed: Duration,
    /// How long the operation was ready and waited for a worker.
    pub queued: Duration,
    /// How long the operation ran: up to its end, or, if it pushed the next operation on the path, up to that push.
    pub ran: Duration,
}

impl Trace {
    /// Returns the critical path, a chain leading to the operation that ended last. Each operation is preceded by
    /// whichever of those it waited for ended last, or by the one that pushed it. Making the whole run faster requires
    /// shortening one of these steps.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::{thread, time::Duration};
    ///
    /// let recorder = raddle::Recorder::new();
    /// let engine = raddle::Engine::builder().workers(2).recorder(&recorder).build()?;
    /// let image = engine.var(0);
    /// engine.op("load").push(image.write(), |_| thread::sleep(Duration::from_millis(20)))?;
    /// engine.op("aside").push((), |()| thread::sleep(Duration::from_millis(5)))?;
    /// engine.op("show").push(image.read(), |_| thread::sleep(Duration::from_millis(1)))?;
    /// engine.wait_for_all()?;
    ///
    /// let trace = recorder.take();
    /// let path = trace.critical_path();
    /// let names = path.iter().map(|step| trace.ops().iter().find(|op| op.id == step.op).unwrap().label());
    /// assert_eq!(names.collect::<Vec<_>>(), ["load", "show"]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn critical_path(&self) -> Vec<CriticalStep> {
        let by_id: HashMap<OpId, &TracedOp> = self.ops.iter().map(|op| (op.id, op)).collect();
        let ended = |op: &&TracedOp| op.ended.filter(|_| op.started.is_some() && !op.internal);
        let mut path = Vec::new();
        let mut next = self.ops.iter().filter(|op| ended(op).is_some()).max_by_key(|op| op.ended);
        let mut seen = HashSet::new();
        // If an operation pushed the next one, only its time up to that push counts.
        let mut until = Duration::MAX;
        while let Some(op) = next.filter(|op| seen.insert(op.id)) {
            let before = op.depends_on.iter().filter_map(|id| by_id.get(id).copied());
            let before = before.filter(|before| ended(before).is_some()).max_by_key(|before| before.ended);
            // If an operation was pushed after everything that it depends on had ended, it waited for its push.
            let parent = op.parent.and_then(|parent| by_id.get(&parent).copied());
            let waited = before.is_some_and(|before| before.ended >= Some(op.pushed));
            let earlier = if waited { before } else { parent.or(before) };
            let from = earlier.and_then(|earlier| earlier.ended).unwrap_or(op.pushed);
            let (started, over) = (op.started.unwrap_or(op.pushed), op.ended.unwrap_or(op.pushed).min(until));
            until = if !waited && parent.is_some() { op.pushed } else { Duration::MAX };
            path.push(CriticalStep {
                op: op.id,
                unpushed: op.pushed.saturating_sub(from),
                queued: started.saturating_sub(op.ready.unwrap_or(op.pushed)),
                ran: over.saturating_sub(started),
            });
            next = earlier;
        }
        path.reverse();
        path
    }

    /// Writes the trace as a single, self-contained HTML page. The page shows what bounds the time and the latency, a
    /// timeline, how busy each worker was, how long operations of each name waited and ran, and how they depend on each
    /// other.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let recorder = raddle::Recorder::new();
    /// let engine = raddle::Engine::builder().workers(1).recorder(&recorder).build()?;
    /// engine.op("hello").push((), |()| println!("hello"))?;
    /// engine.wait_for_all()?;
    /// let mut page = Vec::new(); // or a file `report.html`
    /// recorder.take().write_report("hello", &mut page)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of `out`.
    pub fn write_report(&self, title: &str, out: &mut dyn Write) -> io::Result<()> {
        let (head, tail) = PAGE.split_once(DATA).expect("the page has a place for the data");
        // `</script` would end the script that holds the data, and `<!--` with `<script` would let that script continue
        // past its end. The data contains `<` only in strings.
        let data = self.report_data(title).replace('<', "\\u003c");
        out.write_all(head.as_bytes())?;
        out.write_all(data.as_bytes())?;
        out.write_all(tail.as_bytes())
    }

    /// Returns the data of the page, as JSON.
    fn report_data(&self, title: &str) -> String {
        let (start, end) = self.range();
        let nanos = |time: Duration| time.saturating_sub(start).as_nanos();
        let ops: Vec<&TracedOp> = self.ops.iter().filter(|op| !op.internal).collect();
        let mut names: BTreeMap<String, usize> = BTreeMap::new();
        for op in &ops {
            let next = names.len();
            names.entry(op.label()).or_insert(next);
        }
        let mut labels = vec![""; names.len()];
        names.iter().for_each(|(name, &index)| labels[index] = name);
        let mut places: Vec<Place> = ops.iter().flat_map(|op| &op.runs).map(|run| run.place).collect();
        places.sort_by_key(|&place| sort_key(place));
        places.dedup();
        let index: HashMap<OpId, usize> = ops.iter().enumerate().map(|(index, op)| (op.id, index)).collect();
        let critical = self.critical_path();
        let is_critical: HashSet<OpId> = critical.iter().map(|step| step.op).collect();

        let list = |items: &mut dyn Iterator<Item = String>| items.collect::<Vec<_>>().join(",");
        let mut data = String::from("{");
        let _ = write!(data, r#""title":{},"end":{},"lost":{},"#, Json(title), nanos(end), self.lost);
        let _ = write!(data, r#""names":[{}],"#, list(&mut labels.iter().map(|name| Json(name).to_string())));
        let tracks = &mut places.iter().map(|&place| Json(&self.place(place)).to_string());
        let _ = write!(data, r#""tracks":[{}],"#, list(tracks));
        let _ = write!(data, r#""busy":[{}],"#, list(&mut busy(&ops, &places).iter().map(u128::to_string)));
        // A row: name, pushed, ready, started, ended, whether it is critical, the operations it depends on, runs.
        let row = |op: &&TracedOp| {
            let time = |time: Option<Duration>| time.map_or("null".to_owned(), |time| nanos(time).to_string());
            let before = op.depends_on.iter().filter_map(|id| index.get(id)).map(usize::to_string);
            let runs = op.runs.iter().map(|run| {
                let track = places.binary_search_by_key(&sort_key(run.place), |&place| sort_key(place)).unwrap_or(0);
                format!("[{track},{},{}]", nanos(run.from), nanos(run.to))
            });
            format!(
                "[{},{},{},{},{},{},[{}],[{}]]",
                names[&op.label()],
                nanos(op.pushed),
                time(op.ready),
                time(op.started),
                time(op.ended),
                u8::from(is_critical.contains(&op.id)),
                before.collect::<Vec<_>>().join(","),
                runs.collect::<Vec<_>>().join(","),
            )
        };
        let _ = write!(data, r#""undrawn":{},"#, ops.len().saturating_sub(MAX_DRAWN));
        let _ = write!(data, r#""ops":[{}],"#, list(&mut ops.iter().take(MAX_DRAWN).map(row)));
        // A step: name, unpushed, queued, ran.
        let step = |step: &CriticalStep| {
            let op = ops[*index.get(&step.op)?];
            let times = [step.unpushed, step.queued, step.ran].map(|time| time.as_nanos().to_string());
            Some(format!("[{},{}]", names[&op.label()], times.join(",")))
        };
        let _ = write!(data, r#""critical":[{}]"#, list(&mut critical.iter().filter_map(step)));
        data.push('}');
        data
    }
}

/// Returns for how many nanoseconds functions ran at each of the `places`, which are sorted. A function that runs
/// inside another one adds nothing.
fn busy(ops: &[&TracedOp], places: &[Place]) -> Vec<u128> {
    let mut runs: Vec<&Run> = ops.iter().flat_map(|op| &op.runs).collect();
    runs.sort_by_key(|run| run.from);
    let mut busy = vec![(0, Duration::ZERO); places.len()];
    for run in runs {
        let place = places.binary_search_by_key(&sort_key(run.place), |&place| sort_key(place));
        if let Ok((time, until)) = place.map(|index| &mut busy[index]) {
            *time += run.to.saturating_sub(run.from.max(*until)).as_nanos();
            *until = run.to.max(*until);
        }
    }
    busy.into_iter().map(|(time, _)| time).collect()
}

/// Returns the key by which rows are sorted: engine, lane and worker; threads come last.
fn sort_key(place: Place) -> (u8, u16, u8, u16) {
    match place {
        Place::Worker { engine, lane, worker } => (0, engine, lane, worker),
        Place::Gpu { engine, lane } => (0, engine, lane, 0),
        Place::Thread(thread) => (1, 0, 0, thread),
    }
}
