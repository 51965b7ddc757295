//! Reports: renders a trace as a single HTML page.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt::Write as _,
    io::{self, Write},
    time::Duration,
};

use crate::{
    chrome::Json,
    event::{AccessMode, OpId, Place, VarId},
    history::{Export, Run, Trace, TracedOp},
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
    /// The time from the end of the previous operation on the path to the push of this one. Zero if this one was pushed
    /// before that end, or is the first on the path.
    pub unpushed: Duration,
    /// How long the operation was ready and waited for a worker.
    pub queued: Duration,
    /// How long the operation ran: up to its end, or, if it pushed the next operation on the path, up to that push.
    pub ran: Duration,
}

impl Trace {
    /// Returns the critical path, a chain leading to the operation that ended last. Each operation is preceded by
    /// whichever of those that it depends on ended last, or, if all of them had ended before it was pushed, by the
    /// operation that pushed it, if there is one. The whole run can become shorter only if one of these steps does. It
    /// does not if the program then waits longer before its next push, as it does if a timer sets its pace.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::{thread, time::Duration};
    ///
    /// let recorder = raddle::trace::Recorder::new();
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

    /// Writes the trace as a single, self-contained HTML page. The page shows what bounds the running time and the
    /// latency, how long operations of each name waited and ran, also the slowest 1 % of them, a timeline, how busy
    /// each worker was, and which operations waited for which.
    ///
    /// The latency at the head of the page is the average time from push to end of the operations with one name. Of the
    /// names whose results no other name uses, or of all names if there are none, it is the one with the highest
    /// priority; of several, the one with the longest latency. The page shows the latencies of other names on request.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let recorder = raddle::trace::Recorder::new();
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
        // For each operation, the index of its name.
        let mut name_of = Vec::with_capacity(ops.len());
        for op in &ops {
            let next = names.len();
            name_of.push(*names.entry(op.label()).or_insert(next));
        }
        let mut labels = vec![""; names.len()];
        names.iter().for_each(|(name, &index)| labels[index] = name);
        let mut priorities = vec![(i32::MAX, i32::MIN); names.len()];
        for (op, &name) in ops.iter().zip(&name_of) {
            let (lowest, highest) = priorities[name];
            priorities[name] = (op.priority.min(lowest), op.priority.max(highest));
        }
        let mut places: Vec<Place> = ops.iter().flat_map(|op| &op.runs).map(|run| run.place).collect();
        places.sort_by_key(|&place| sort_key(place));
        places.dedup();
        let index: HashMap<OpId, usize> = ops.iter().enumerate().map(|(index, op)| (op.id, index)).collect();
        let critical = self.critical_path();
        let is_critical: HashSet<OpId> = critical.iter().map(|step| step.op).collect();
        let idle = idle(&self.ops);
        let idle = |op: OpId| idle.get(&op).map_or(0, Duration::as_nanos);

        let list = |items: &mut dyn Iterator<Item = String>| items.collect::<Vec<_>>().join(",");
        let mut data = String::from("{");
        let _ = write!(data, r#""title":{},"end":{},"lost":{},"#, Json(title), nanos(end), self.lost);
        let _ = write!(data, r#""names":[{}],"#, list(&mut labels.iter().map(|name| Json(name).to_string())));
        let tracks = &mut places.iter().map(|&place| Json(&self.place(place)).to_string());
        let _ = write!(data, r#""tracks":[{}],"#, list(tracks));
        let _ = write!(data, r#""busy":[{}],"#, list(&mut busy(&ops, &places).iter().map(u128::to_string)));
        // A name's priority, or its lowest and its highest.
        let of_name = |&(lowest, highest): &(i32, i32)| {
            if lowest == highest { lowest.to_string() } else { format!("[{lowest},{highest}]") }
        };
        let _ = write!(data, r#""priorities":[{}],"#, list(&mut priorities.iter().map(of_name)));
        let of_name = |sites: &BTreeSet<(&str, u32)>| {
            let sites = &mut sites.iter().map(|(file, line)| Json(&format!("{file}:{line}")).to_string());
            format!("[{}]", list(sites))
        };
        let _ = write!(data, r#""sites":[{}],"#, list(&mut sites(&ops, &name_of, names.len()).iter().map(of_name)));
        let drawn = ops.len().min(MAX_DRAWN);
        let Choice { result, results, tied } = choose(&ops[..drawn], &index, &name_of, &priorities);
        let result = result.map_or("null".to_owned(), |name| name.to_string());
        // The slowest of a name: how many, the sums of their latencies and of the parts of these, and the name for
        // which they waited longest.
        let of_name = |slow: &Slowest| {
            let Slowest { count, took, operations, priority, worker, itself, before } = slow;
            let [took, operations, priority, worker, itself] =
                [took, operations, priority, worker, itself].map(Duration::as_nanos);
            let before = before.map_or("null".to_owned(), |name| name.to_string());
            format!("[{count},{took},{operations},{priority},{worker},{itself},{before}]")
        };
        let slowest = slowest(&ops[..drawn], &index, &name_of, names.len());
        let _ = write!(data, r#""slowest":[{}],"#, list(&mut slowest.iter().map(of_name)));
        let _ = write!(data, r#""result":{result},"results":{results},"tied":{tied},"#);
        // A row: name, pushed, ready, started, ended, whether it is critical, for how long it waited while a worker
        // was idle, the operations it depends on, runs, and the priority if the operations of this name have several.
        let row = |(op, &name): (&&TracedOp, &usize)| {
            let time = |time: Option<Duration>| time.map_or("null".to_owned(), |time| nanos(time).to_string());
            let before = op.depends_on.iter().filter_map(|id| index.get(id)).map(usize::to_string);
            let runs = op.runs.iter().map(|run| {
                let track = places.binary_search_by_key(&sort_key(run.place), |&place| sort_key(place)).unwrap_or(0);
                format!("[{track},{},{}]", nanos(run.from), nanos(run.to))
            });
            let (lowest, highest) = priorities[name];
            format!(
                "[{name},{},{},{},{},{},{},[{}],[{}]{}]",
                nanos(op.pushed),
                time(op.ready),
                time(op.started),
                time(op.ended),
                u8::from(is_critical.contains(&op.id)),
                idle(op.id),
                before.collect::<Vec<_>>().join(","),
                runs.collect::<Vec<_>>().join(","),
                if lowest == highest { String::new() } else { format!(",{}", op.priority) },
            )
        };
        let _ = write!(data, r#""undrawn":{},"#, ops.len() - drawn);
        let _ = write!(data, r#""ops":[{}],"#, list(&mut ops.iter().zip(&name_of).take(drawn).map(row)));
        let first = critical.first().and_then(|step| index.get(&step.op)).map_or(start, |&first| ops[first].pushed);
        let _ = write!(data, r#""before":{},"#, nanos(first));
        // A step: name, unpushed, queued, ran, for how long it waited while a worker was idle.
        let step = |step: &CriticalStep| {
            let name = name_of[*index.get(&step.op)?];
            let [unpushed, queued, ran] = [step.unpushed, step.queued, step.ran].map(|time| time.as_nanos());
            Some(format!("[{name},{unpushed},{queued},{ran},{}]", idle(step.op)))
        };
        let _ = write!(data, r#""critical":[{}]"#, list(&mut critical.iter().filter_map(step)));
        data.push('}');
        data
    }
}

/// The maximum number of operations in the report of a profile, which are in memory until its end. Not tuned.
const MAX_GATHERED: usize = 200_000;

/// The operations of a profile, of which a report is written at its end.
#[derive(Debug, Default)]
pub struct Gathered {
    ops: Vec<TracedOp>,
    lost: u64,
    left_out: u64,
}

impl Gathered {
    /// Adds the operations that are over, up to a maximum number.
    pub fn add(&mut self, export: Export) {
        let room = MAX_GATHERED - self.ops.len();
        self.left_out += export.trace.ops.len().saturating_sub(room) as u64;
        self.lost += export.trace.lost;
        self.ops.extend(export.trace.ops.into_iter().take(room));
    }

    /// Writes the report on these operations and those of `open`, which are not over. Returns how many operations were
    /// left out.
    ///
    /// # Errors
    /// Returns the errors of `out`.
    pub fn write(mut self, title: &str, out: &mut dyn Write, open: &Trace) -> io::Result<u64> {
        self.ops.extend_from_slice(open.ops());
        self.ops.sort_by_key(|op| (op.pushed, op.id));
        let mut trace = open.with_ops(self.ops);
        trace.lost = self.lost;
        trace.write_report(title, out)?;
        out.flush()?;
        Ok(self.left_out)
    }
}

/// Returns the indices, below `len`, of the operations on which `op` depends.
fn dependencies(op: &TracedOp, index: &HashMap<OpId, usize>, len: usize) -> impl Iterator<Item = usize> {
    op.depends_on.iter().filter_map(|id| index.get(id).copied()).filter(move |&before| before < len)
}

/// The name whose latency is at the head of the page.
struct Choice {
    /// The name's index, or `None` if no operation has ended.
    result: Option<usize>,
    /// The number of names whose results no other name uses.
    results: usize,
    /// The number of names from which the longest latency has chosen.
    tied: usize,
}

/// Chooses the name whose latency is at the head of the page: see [`Trace::write_report`]. `index` has the index of
/// each operation, `name_of` that of each operation's name, and `priorities` the lowest and the highest priority of
/// each name.
fn choose(ops: &[&TracedOp], index: &HashMap<OpId, usize>, name_of: &[usize], priorities: &[(i32, i32)]) -> Choice {
    let mut is_used = vec![false; priorities.len()];
    // For each name, the number and the sum of its latencies.
    let mut latencies = vec![(0, Duration::ZERO); priorities.len()];
    for (op, &name) in ops.iter().zip(name_of) {
        if let (Some(_), Some(took)) = (op.started, op.took()) {
            latencies[name] = (latencies[name].0 + 1, latencies[name].1 + took);
        }
        // An operation that overwrites a variable does not use its value.
        let uses = op.accesses.iter().filter(|(_, mode)| *mode != AccessMode::Overwrite);
        let uses: HashSet<VarId> = uses.map(|&(variable, _)| variable).collect();
        for before in dependencies(op, index, ops.len()) {
            let mut mutated = ops[before].accesses.iter().filter(|(_, mode)| mode.is_write());
            if name_of[before] != name && mutated.any(|(variable, _)| uses.contains(variable)) {
                is_used[name_of[before]] = true;
            }
        }
    }
    let ended = |&name: &usize| latencies[name].0 > 0;
    let unused: Vec<usize> = (0..priorities.len()).filter(ended).filter(|&name| !is_used[name]).collect();
    let results = unused.len();
    let mut choice = if results > 0 { unused } else { (0..priorities.len()).filter(ended).collect() };
    let highest = choice.iter().map(|&name| priorities[name].1).max();
    choice.retain(|&name| Some(priorities[name].1) == highest);
    let latency = |&&name: &&usize| latencies[name].1 / latencies[name].0;
    Choice { result: choice.iter().max_by_key(latency).copied(), results, tied: choice.len() }
}

/// The slowest 1 % of the operations of a name, at least one, and the sums of where their latencies went.
#[derive(Clone, Default)]
struct Slowest {
    count: usize,
    took: Duration,
    /// Waits for other operations.
    operations: Duration,
    /// Waits for a worker while operations of higher priority that had started in the meantime ran in the lane.
    priority: Duration,
    /// Other waits for a worker.
    worker: Duration,
    itself: Duration,
    /// The name of the operations for whose ends they waited longest.
    before: Option<usize>,
}

/// Returns the slowest operations of each name.
fn slowest(ops: &[&TracedOp], index: &HashMap<OpId, usize>, name_of: &[usize], names: usize) -> Vec<Slowest> {
    // For each lane, what ran there, by its start.
    let mut lanes: BTreeMap<PlaceKey, Vec<(&Run, i32)>> = BTreeMap::new();
    ops.iter().flat_map(|op| op.runs.iter().map(|run| (run, op.priority))).for_each(|(run, priority)| {
        lanes.entry(lane_key(run.place)).or_default().push((run, priority));
    });
    lanes.values_mut().for_each(|runs| runs.sort_by_key(|(run, _)| run.from));
    let behind_priority = |op: &TracedOp, ready: Duration, started: Duration| {
        let runs = op.runs.first().and_then(|run| lanes.get(&lane_key(run.place))).map_or(&[][..], Vec::as_slice);
        let (first, last) = [ready, started].map(|time| runs.partition_point(|(run, _)| run.from < time)).into();
        let mut until = ready;
        runs[first..last].iter().filter(|(_, priority)| *priority > op.priority).fold(
            Duration::ZERO,
            |sum, (run, _)| {
                let from = run.from.max(until);
                until = until.max(run.to.min(started));
                sum + until.saturating_sub(from)
            },
        )
    };
    let mut ended = vec![Vec::new(); names];
    for (index, op) in ops.iter().enumerate() {
        if let (Some(started), Some(took)) = (op.started, op.took()) {
            ended[name_of[index]].push((took, started, *op));
        }
    }
    let of_name = |mut ended: Vec<(Duration, Duration, &TracedOp)>| {
        let count = ended.len().div_ceil(100);
        ended.sort_by_key(|&(took, ..)| std::cmp::Reverse(took));
        let (mut slow, mut waits) = (Slowest { count, ..Slowest::default() }, HashMap::new());
        for (took, started, op) in ended.into_iter().take(count) {
            let ready = op.ready.unwrap_or(op.pushed).clamp(op.pushed, started);
            let priority = behind_priority(op, ready, started);
            slow.took += took;
            slow.operations += ready - op.pushed;
            slow.priority += priority;
            slow.worker += (started - ready).saturating_sub(priority);
            slow.itself += (op.pushed + took).saturating_sub(started);
            if let Some(before) = dependencies(op, index, ops.len()).max_by_key(|&before| ops[before].ended) {
                *waits.entry(name_of[before]).or_insert(Duration::ZERO) += ready - op.pushed;
            }
        }
        slow.before = waits
            .into_iter()
            .filter(|(_, wait)| !wait.is_zero())
            .max_by_key(|&(name, wait)| (wait, name))
            .map(|(name, _)| name);
        slow
    };
    ended.into_iter().map(of_name).collect()
}

/// The key of a place without its worker.
fn lane_key(place: Place) -> PlaceKey {
    let (kind, engine, lane, _) = sort_key(place);
    (kind, engine, lane, 0)
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

/// The maximum number of source locations that the page shows for a name.
const MAX_SITES: usize = 4;

/// Returns, for each name, the source locations of its pushes.
fn sites<'o>(ops: &[&'o TracedOp], name_of: &[usize], names: usize) -> Vec<BTreeSet<(&'o str, u32)>> {
    let mut sites = vec![BTreeSet::new(); names];
    for (op, &name) in ops.iter().zip(name_of) {
        if sites[name].len() < MAX_SITES {
            sites[name].insert((op.location.file(), op.location.line()));
        }
    }
    sites
}

/// Returns, for operations that a worker or the thread of a GPU lane has started, for how long one of the lane's
/// threads was idle from the time at which the operation became ready. A thread is idle if it runs no function. Threads
/// that have run nothing are not in the trace.
fn idle(ops: &[TracedOp]) -> HashMap<OpId, Duration> {
    // For each place, the periods in which functions ran there, in order and without overlaps.
    let mut busy: BTreeMap<PlaceKey, Vec<(Duration, Duration)>> = BTreeMap::new();
    let mut runs: Vec<&Run> = ops.iter().flat_map(|op| &op.runs).collect();
    runs.sort_by_key(|run| run.from);
    for run in runs {
        let periods = busy.entry(sort_key(run.place)).or_default();
        match periods.last_mut().filter(|last| last.1 > run.from) {
            Some(last) => last.1 = last.1.max(run.to),
            None => periods.push((run.from, run.to)),
        }
    }
    let of_op = |op: &TracedOp| {
        let (ready, started) = (op.ready?, op.started?);
        let place = op.runs.first()?.place;
        if matches!(place, Place::Thread(_)) {
            return None;
        }
        let (kind, engine, lane, _) = sort_key(place);
        let idle = busy.range((kind, engine, lane, 0)..=(kind, engine, lane, u16::MAX)).map(|(_, periods)| {
            let next = periods.partition_point(|&(from, _)| from <= ready);
            let is_busy = next > 0 && periods[next - 1].1 > ready;
            let until = periods.get(next).map_or(started, |&(from, _)| from.min(started));
            if is_busy { Duration::ZERO } else { until.saturating_sub(ready) }
        });
        Some((op.id, idle.max()?))
    };
    ops.iter().filter_map(of_op).collect()
}

/// The key by which rows are sorted: engine, lane and worker; threads come last.
type PlaceKey = (u8, u16, u8, u16);

fn sort_key(place: Place) -> PlaceKey {
    match place {
        Place::Worker { engine, lane, worker } => (0, engine, lane, worker),
        Place::Gpu { engine, lane } => (0, engine, lane, 0),
        Place::Thread(thread) => (1, 0, 0, thread),
    }
}
