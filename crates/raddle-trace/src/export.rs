//! Trace files: the code shared by the formats.

use std::{
    collections::HashMap,
    fmt::{self, Write as _},
    io::{self, Write},
    time::Duration,
};

use crate::{
    event::{IdMap, IdSet, OpId, Place},
    history::{Export, Trace, TracedOp},
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
    pub notes: &'a Notes,
    /// The numbers of the arrows leading to the slice.
    pub arrows_in: &'a [u64],
    pub arrows_out: &'a [u64],
}

/// Names and values, in one allocation.
#[derive(Debug, Default)]
pub struct Notes {
    text: String,
    /// The names, each with where its value ends in the text.
    ends: Vec<(&'static str, usize)>,
}

impl Notes {
    /// Adds a value that `write` writes, unless that is empty.
    fn add(&mut self, name: &'static str, write: impl FnOnce(&mut String) -> fmt::Result) {
        let start = self.text.len();
        // A string takes everything.
        let _ = write(&mut self.text);
        if self.text.len() > start {
            self.ends.push((name, self.text.len()));
        }
    }

    /// Returns the names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let mut start = 0;
        self.ends.iter().map(move |&(name, end)| (name, &self.text[std::mem::replace(&mut start, end)..end]))
    }
}

/// A writer of the operations in one or more of a recorder's traces, in the order in which the traces were taken.
#[derive(Debug)]
pub struct Exporter<F> {
    format: F,
    tracks: HashMap<TrackKey, Track>,
    /// Operations not yet written, because the next trace may show that others depend on them.
    held: Vec<UnwrittenOp>,
    /// The arrows leading to operations not yet written, keyed by the operations at their ends and at their starts. The
    /// latter may have been written.
    arrows_in: IdMap<OpId, Vec<(OpId, u64)>>,
    arrows_out: IdMap<OpId, Vec<u64>>,
    next_arrow: u64,
    /// The end of the last operation on each stream. The next operation there is drawn after it.
    streams: HashMap<Place, Duration>,
}

/// Whether a track is that of a stream, the place, and, for a thread, how many threads have had its number before.
type TrackKey = (bool, Place, u32);

/// An operation that is not yet written, with what its trace says about it.
#[derive(Debug)]
struct UnwrittenOp {
    op: TracedOp,
    notes: Notes,
    /// The track of each of its runs.
    tracks: Vec<Track>,
    /// Its track among those of streams.
    stream: Option<Track>,
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
            arrows_in: IdMap::default(),
            arrows_out: IdMap::default(),
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

    /// Writes the operations kept from the previous call and keeps those that are over.
    ///
    /// An arrow receives its number once the operation at its start has ended and the other one is known, even if that
    /// one has yet to start. So a rectangle has the starts of all arrows to operations pushed before it is written. If
    /// such an operation is skipped, its arrows have no ends, and viewers ignore them.
    ///
    /// # Errors
    /// Returns the errors of `out`.
    pub fn add(&mut self, out: &mut dyn Write, export: Export) -> io::Result<()> {
        let Export { mut trace, ended, depends_on, forgotten } = export;
        let mut unwritten: IdSet<OpId> = self.held.iter().map(|held| held.op.id).collect();
        unwritten.extend(ended);
        unwritten.extend(trace.ops.iter().map(|op| op.id));
        if !unwritten.is_empty() {
            trace.ops.iter().for_each(|op| self.number_arrows(op.id, &op.depends_on, &unwritten));
            depends_on.iter().for_each(|(op, before)| self.number_arrows(*op, before, &unwritten));
        }
        for op in &forgotten {
            self.arrows_in.remove(op);
            self.arrows_out.remove(op);
        }
        let ops = std::mem::take(&mut trace.ops);
        let held = ops.into_iter().map(|op| self.held(out, &trace, op)).collect::<io::Result<_>>()?;
        let before = std::mem::replace(&mut self.held, held);
        before.iter().try_for_each(|held| self.write(out, held))
    }

    /// Gives numbers to the arrows that lead to `op` from operations that are not yet written.
    fn number_arrows(&mut self, op: OpId, depends_on: &[OpId], unwritten: &IdSet<OpId>) {
        for before in depends_on.iter().filter(|before| unwritten.contains(before)) {
            let arrows = self.arrows_in.entry(op).or_default();
            if arrows.iter().all(|(known, _)| known != before) {
                arrows.push((*before, self.next_arrow));
                self.arrows_out.entry(*before).or_default().push(self.next_arrow);
                self.next_arrow += 1;
            }
        }
    }

    /// Writes the remaining operations, and those of `open`, which are not over.
    ///
    /// # Errors
    /// Returns the errors of `out`.
    pub fn end(mut self, out: &mut dyn Write, mut open: Trace) -> io::Result<()> {
        let before = std::mem::take(&mut self.held);
        before.iter().try_for_each(|held| self.write(out, held))?;
        for op in std::mem::take(&mut open.ops) {
            let held = self.held(out, &open, op)?;
            self.write(out, &held)?;
        }
        self.format.end(out)?;
        out.flush()
    }

    fn held(&mut self, out: &mut dyn Write, trace: &Trace, op: TracedOp) -> io::Result<UnwrittenOp> {
        let on_gpu = op.gpu_lane().filter(|_| op.returned.is_some() && op.ended.is_some());
        let tracks = op.runs.iter().map(|run| self.track(out, trace, false, run.place)).collect::<io::Result<_>>()?;
        let stream = on_gpu.map(|place| self.track(out, trace, true, place)).transpose()?;
        let notes = if op.runs.is_empty() { Notes::default() } else { notes(trace, &op) };
        Ok(UnwrittenOp { op, notes, tracks, stream })
    }

    fn write(&mut self, out: &mut dyn Write, held: &UnwrittenOp) -> io::Result<()> {
        let UnwrittenOp { op, notes, tracks, stream } = held;
        let arrows_in = self.arrows_in.remove(&op.id).unwrap_or_default();
        let arrows_out = self.arrows_out.remove(&op.id).unwrap_or_default();
        // Other arrows were expected, but lead to nothing. The list of an operation that has run is sorted.
        let is_real = |before: &OpId| op.depends_on.binary_search(before).is_ok();
        let arrows_in: Vec<u64> =
            arrows_in.into_iter().filter(|(before, _)| is_real(before)).map(|(_, arrow)| arrow).collect();
        let label = op.label();
        let category = if op.internal { "engine" } else { "operation" };
        let on_gpu = op.gpu_lane();
        // An operation that was skipped or has not yet run has no runs.
        for (index, (run, track)) in op.runs.iter().zip(tracks).enumerate() {
            let (is_first, is_last) = (index == 0, index + 1 == op.runs.len());
            let name = if is_first { label.clone() } else { format!("{label} (continued)") };
            let slice = Slice {
                track,
                name: &name,
                from: run.from,
                to: run.to,
                category: if on_gpu.is_some() { "issue" } else { category },
                notes,
                arrows_in: if is_first && on_gpu.is_none() { &arrows_in } else { &[] },
                arrows_out: if is_last && on_gpu.is_none() { &arrows_out } else { &[] },
            };
            self.format.slice(out, &slice)?;
        }
        let (Some(track), Some(place)) = (stream, on_gpu) else { return Ok(()) };
        let (Some(returned), Some(ended)) = (op.returned, op.ended) else { return Ok(()) };
        let before = self.streams.insert(place, ended).unwrap_or_default();
        let slice = Slice {
            track,
            name: &label,
            // If a rectangle began where another ends, viewers would nest it inside the other.
            from: returned.max(before + Duration::from_nanos(1)).min(ended),
            to: ended,
            category,
            notes,
            arrows_in: &arrows_in,
            arrows_out: &arrows_out,
        };
        self.format.slice(out, &slice)
    }

    /// Returns the track of a place, or of a GPU lane's stream.
    fn track(&mut self, out: &mut dyn Write, trace: &Trace, is_stream: bool, place: Place) -> io::Result<Track> {
        let before = match place {
            Place::Thread(thread) => trace.threads.get(usize::from(thread)).map_or(0, |thread| thread.before),
            Place::Worker { .. } | Place::Gpu { .. } => 0,
        };
        if let Some(track) = self.tracks.get(&(is_stream, place, before)) {
            return Ok(track.clone());
        }
        let (engine, rank) = match place {
            Place::Worker { engine, lane, worker } => (engine, u32::from(lane) << 16 | u32::from(worker)),
            Place::Gpu { engine, lane } => (engine, u32::from(lane) << 16 | u32::from(is_stream)),
            Place::Thread(thread) => (0, before << 16 | u32::from(thread)),
        };
        let name = trace.place(place);
        let name = if is_stream { format!("{name}: stream") } else { name };
        let track = Track { id: self.tracks.len() as u64 + 1, engine, name, rank };
        self.format.track(out, &track)?;
        self.tracks.insert((is_stream, place, before), track.clone());
        Ok(track)
    }
}

/// Returns the names and values shown with an operation.
fn notes(trace: &Trace, op: &TracedOp) -> Notes {
    let mut notes = Notes { text: String::with_capacity(256), ends: Vec::with_capacity(8) };
    let variables = |text: &mut String, write: bool| {
        let named = op.accesses.iter().filter(|(_, mode)| mode.is_write() == write);
        named.enumerate().try_for_each(|(index, &(variable, _))| {
            text.push_str(if index == 0 { "" } else { ", " });
            match trace.names.get(&variable) {
                Some(name) => text.write_str(name.as_str()),
                None => write!(text, "{variable}"),
            }
        })
    };
    let optional = |text: &mut String, time: Option<Duration>| time.map_or(Ok(()), |time| write!(text, "{time:?}"));
    notes.add("pushed at", |text| write!(text, "{}", op.location));
    notes.add("reads", |text| variables(text, false));
    notes.add("mutates", |text| variables(text, true));
    notes.add("waited for operations", |text| optional(text, op.ready.map(|ready| ready.saturating_sub(op.pushed))));
    notes.add("waited for a worker", |text| optional(text, op.queued()));
    if op.priority != 0 {
        notes.add("priority", |text| write!(text, "{}", op.priority));
    }
    notes.add("outcome", |text| op.outcome.map_or(Ok(()), |outcome| write!(text, "{outcome:?}")));
    notes.add("from push to end", |text| optional(text, op.took()));
    notes
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
        let (over, open): (Vec<_>, Vec<_>) = self.ops.iter().cloned().partition(|op| op.is_over);
        let depends_on = open.iter().map(|op| (op.id, op.depends_on.clone())).collect();
        let ended = open.iter().filter(|op| op.ended.is_some()).map(|op| op.id).collect();
        exporter.add(out, Export { trace: self.with_ops(over), ended, depends_on, forgotten: Vec::new() })?;
        exporter.end(out, self.with_ops(open))
    }
}
