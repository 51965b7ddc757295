//! Trace files: the code shared by the formats.

use std::{
    collections::{HashMap, HashSet},
    io::{self, Write},
    time::Duration,
};

use crate::{
    event::{OpId, Place},
    history::{Trace, TracedOp},
};

/// A trace format.
pub trait Format {
    /// Writes the beginning of the file.
    fn begin(&mut self, out: &mut dyn Write) -> io::Result<()>;

    /// Writes a text that says who has written the file, at its beginning.
    fn mark(&mut self, out: &mut dyn Write, mark: &str) -> io::Result<()>;

    /// Describes a track, before its first slice.
    fn track(&mut self, out: &mut dyn Write, track: &Track) -> io::Result<()>;

    /// Writes a slice.
    fn slice(&mut self, out: &mut dyn Write, slice: &Slice<'_>) -> io::Result<()>;

    /// Writes the end of the file.
    fn end(&mut self, out: &mut dyn Write) -> io::Result<()>;
}

impl<F: Format + ?Sized> Format for Box<F> {
    fn begin(&mut self, out: &mut dyn Write) -> io::Result<()> {
        (**self).begin(out)
    }

    fn mark(&mut self, out: &mut dyn Write, mark: &str) -> io::Result<()> {
        (**self).mark(out, mark)
    }

    fn track(&mut self, out: &mut dyn Write, track: &Track) -> io::Result<()> {
        (**self).track(out, track)
    }

    fn slice(&mut self, out: &mut dyn Write, slice: &Slice<'_>) -> io::Result<()> {
        (**self).slice(out, slice)
    }

    fn end(&mut self, out: &mut dyn Write) -> io::Result<()> {
        (**self).end(out)
    }
}

/// The number of the process that carries a file's [mark](Format::mark). No engine has it.
pub(crate) const MARK_PROCESS: u32 = i32::MAX as u32;

/// A row of the timeline.
#[derive(Clone, Debug)]
pub struct Track {
    /// The number of the track, above zero.
    pub id: u64,
    /// The number of the engine, or 0 for threads without a worker.
    pub engine: u16,
    pub name: String,
    /// The position of the track among the tracks of its engine.
    pub rank: u32,
}

/// A rectangle of the timeline.
#[derive(Debug)]
pub struct Slice<'a> {
    pub track: &'a Track,
    pub name: &'a str,
    pub from: Duration,
    pub to: Duration,
    pub category: &'static str,
    /// Names and values shown with the slice.
    pub notes: &'a [(&'static str, String)],
    /// The numbers of the arrows leading to the slice.
    pub arrows_in: &'a [u64],
    pub arrows_out: &'a [u64],
}

/// A writer of the operations in one or more of a recorder's traces, in the order in which the traces were taken.
#[derive(Debug)]
pub struct Exporter<F> {
    format: F,
    tracks: HashMap<(bool, Place), Track>,
    /// Operations not yet written, because the next trace may show that others depend on them.
    held: Vec<TracedOp>,
    /// The arrows leading to operations not yet written, keyed by the operations at their ends and at their starts. The
    /// latter may have been written.
    arrows_in: HashMap<OpId, HashMap<OpId, u64>>,
    arrows_out: HashMap<OpId, Vec<u64>>,
    next_arrow: u64,
    /// The end of the last operation on each stream. The next operation there is drawn after it.
    streams: HashMap<Place, Duration>,
}

impl<F: Format> Exporter<F> {
    /// Writes the beginning of a file.
    ///
    /// # Errors
    /// Returns the errors of `out`.
    pub fn begin(mut format: F, out: &mut dyn Write) -> io::Result<Self> {
        format.begin(out)?;
        Ok(Self {
            format,
            tracks: HashMap::new(),
            held: Vec::new(),
            arrows_in: HashMap::new(),
            arrows_out: HashMap::new(),
            next_arrow: 1,
            streams: HashMap::new(),
        })
    }

    /// Writes a text that says who has written the file. Called before everything else.
    ///
    /// # Errors
    /// Returns the errors of `out`.
    pub fn mark(&mut self, out: &mut dyn Write, mark: &str) -> io::Result<()> {
        self.format.mark(out, mark)
    }

    /// Writes the operations kept from the previous trace and keeps the operations of `trace` that are over.
    ///
    /// An arrow receives its number once the operation at its start has ended and the other one is in a trace, even if
    /// that one has yet to start. So a rectangle has the starts of all arrows to operations pushed before it is
    /// written. If such an operation is skipped, its arrows have no ends, and viewers ignore them.
    pub fn add(&mut self, out: &mut dyn Write, trace: &Trace) -> io::Result<()> {
        let mut unwritten: HashSet<OpId> = self.held.iter().map(|op| op.id).collect();
        unwritten.extend(trace.ops.iter().filter(|op| op.ended.is_some()).map(|op| op.id));
        for op in &trace.ops {
            for before in op.depends_on.iter().filter(|before| unwritten.contains(before)) {
                self.arrows_in.entry(op.id).or_default().entry(*before).or_insert_with(|| {
                    let arrow = self.next_arrow;
                    self.next_arrow += 1;
                    self.arrows_out.entry(*before).or_default().push(arrow);
                    arrow
                });
            }
        }
        if trace.lost > 0 {
            // Operations whose ends were lost will not be written.
            let known: HashSet<OpId> = trace.ops.iter().chain(&self.held).map(|op| op.id).collect();
            self.arrows_in.retain(|op, _| known.contains(op));
        }
        let over = trace.ops.iter().filter(|op| op.is_over).cloned().collect();
        let before = std::mem::replace(&mut self.held, over);
        before.iter().try_for_each(|op| self.write(out, trace, op))
    }

    /// Writes the remaining operations, including the operations of `last` that are not over.
    pub fn end(mut self, out: &mut dyn Write, last: &Trace) -> io::Result<()> {
        let before = std::mem::take(&mut self.held);
        let open = last.ops.iter().filter(|op| !op.is_over);
        before.iter().chain(open).try_for_each(|op| self.write(out, last, op))?;
        self.format.end(out)?;
        out.flush()
    }

    fn write(&mut self, out: &mut dyn Write, trace: &Trace, op: &TracedOp) -> io::Result<()> {
        let arrows_in = self.arrows_in.remove(&op.id).unwrap_or_default();
        let arrows_out = self.arrows_out.remove(&op.id).unwrap_or_default();
        if op.runs.is_empty() {
            // The operation was skipped or has not yet run.
            return Ok(());
        }
        // Other arrows were expected, but lead to nothing. The list of an operation that has run is sorted.
        let is_real = |before: &OpId| op.depends_on.binary_search(before).is_ok();
        let arrows_in: Vec<u64> =
            arrows_in.into_iter().filter(|(before, _)| is_real(before)).map(|(_, arrow)| arrow).collect();
        let (label, notes) = (op.label(), notes(trace, op));
        let category = if op.internal { "engine" } else { "operation" };
        let on_gpu = op.runs.first().map(|run| run.place).filter(|place| matches!(place, Place::Gpu { .. }));
        for (index, run) in op.runs.iter().enumerate() {
            let (is_first, is_last) = (index == 0, index + 1 == op.runs.len());
            let track = self.track(out, trace, false, run.place)?;
            let name = if is_first { label.clone() } else { format!("{label} (continued)") };
            let slice = Slice {
                track: &track,
                name: &name,
                from: run.from,
                to: run.to,
                category: if on_gpu.is_some() { "issue" } else { category },
                notes: &notes,
                arrows_in: if is_first && on_gpu.is_none() { &arrows_in } else { &[] },
                arrows_out: if is_last && on_gpu.is_none() { &arrows_out } else { &[] },
            };
            self.format.slice(out, &slice)?;
        }
        let (Some(place), Some(returned), Some(ended)) = (on_gpu, op.returned, op.ended) else { return Ok(()) };
        let track = self.track(out, trace, true, place)?;
        let before = self.streams.insert(place, ended).unwrap_or_default();
        let slice = Slice {
            track: &track,
            name: &label,
            // If a rectangle began where another ends, viewers would nest it inside the other.
            from: returned.max(before + Duration::from_nanos(1)).min(ended),
            to: ended,
            category,
            notes: &notes,
            arrows_in: &arrows_in,
            arrows_out: &arrows_out,
        };
        self.format.slice(out, &slice)
    }

    /// Returns the track of a place, or of a GPU lane's stream.
    fn track(&mut self, out: &mut dyn Write, trace: &Trace, is_stream: bool, place: Place) -> io::Result<Track> {
        if let Some(track) = self.tracks.get(&(is_stream, place)) {
            return Ok(track.clone());
        }
        let (engine, rank) = match place {
            Place::Worker { engine, lane, worker } => (engine, u32::from(lane) << 16 | u32::from(worker)),
            Place::Gpu { engine, lane } => (engine, u32::from(lane) << 16 | u32::from(is_stream)),
            Place::Thread(thread) => (0, u32::from(thread)),
        };
        let name = trace.place(place);
        let name = if is_stream { format!("{name}: stream") } else { name };
        let track = Track { id: self.tracks.len() as u64 + 1, engine, name, rank };
        self.format.track(out, &track)?;
        self.tracks.insert((is_stream, place), track.clone());
        Ok(track)
    }
}

/// Returns the names and values shown with an operation.
fn notes(trace: &Trace, op: &TracedOp) -> Vec<(&'static str, String)> {
    let variables = |write: bool| {
        let named = op.accesses.iter().filter(|(_, mode)| mode.is_write() == write);
        named.map(|&(variable, _)| trace.variable(variable)).collect::<Vec<_>>().join(", ")
    };
    let time = |time: Duration| format!("{time:?}");
    let notes = [
        ("pushed at", Some(op.location.to_string())),
        ("reads", Some(variables(false))),
        ("mutates", Some(variables(true))),
        ("waited for operations", op.ready.map(|ready| time(ready.saturating_sub(op.pushed)))),
        ("waited for a worker", op.queued().map(time)),
        ("priority", (op.priority != 0).then(|| op.priority.to_string())),
        ("outcome", op.outcome.map(|outcome| format!("{outcome:?}"))),
        ("from push to end", op.took().map(time)),
    ];
    let noted = |(name, note): (&'static str, Option<String>)| Some((name, note.filter(|note| !note.is_empty())?));
    notes.into_iter().filter_map(noted).collect()
}

impl Trace {
    /// Writes the trace in the format of [Perfetto](https://ui.perfetto.dev), which draws it: a row for each worker
    /// and each other thread that ran operations, a rectangle for each operation, and an arrow from each operation to
    /// those that had to follow it. Clicking an operation shows its variables, where it was pushed, and how long it
    /// waited.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let recorder = raddle::trace::Recorder::new();
    /// let engine = raddle::Engine::builder().workers(1).recorder(&recorder).build()?;
    /// engine.op("hello").push((), |()| println!("hello"))?;
    /// engine.wait_for_all()?;
    /// let mut file = Vec::new(); // or a `BufWriter` of a file `hello.pftrace`
    /// recorder.take().write_perfetto(&mut file)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of `out`.
    pub fn write_perfetto(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write_as(crate::perfetto::Perfetto::default(), out)
    }

    /// Writes the trace in Chrome's JSON format, for `chrome://tracing`, Perfetto, and many other tools. The file
    /// contains the same information as one from [`write_perfetto`](Self::write_perfetto). It is larger, but
    /// human-readable.
    ///
    /// # Errors
    /// Returns the errors of `out`.
    pub fn write_chrome(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write_as(crate::chrome::Chrome::default(), out)
    }

    fn write_as(&self, format: impl Format, out: &mut dyn Write) -> io::Result<()> {
        let mut exporter = Exporter::begin(format, out)?;
        exporter.add(out, self)?;
        exporter.end(out, self)
    }
}
