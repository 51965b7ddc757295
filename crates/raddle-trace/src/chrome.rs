//! Chrome's JSON trace format ("Trace Event Format", Google, 2016).

use std::{
    collections::HashSet,
    fmt,
    io::{self, Write},
    time::Duration,
};

use crate::export::{Format, MARK_PROCESS, Notes, Slice, Track};

/// A writer of the JSON format.
#[derive(Debug, Default)]
pub struct Chrome {
    has_events: bool,
    /// The engines already named in the file.
    engines: HashSet<u16>,
}

/// A string, displayed as JSON with its quotes.
#[derive(Debug)]
pub struct Json<'a>(pub &'a str);

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        let mut plain = 0;
        for (at, byte) in self.0.bytes().enumerate() {
            if matches!(byte, b'"' | b'\\' | 0..0x20) {
                f.write_str(&self.0[plain..at])?;
                plain = at + 1;
                match byte {
                    b'"' => f.write_str("\\\"")?,
                    b'\\' => f.write_str("\\\\")?,
                    _ => write!(f, "\\u{byte:04x}")?,
                }
            }
        }
        f.write_str(&self.0[plain..])?;
        f.write_str("\"")
    }
}

/// Names and values, displayed as the inside of a JSON object.
struct Object<'a>(&'a Notes);

impl fmt::Display for Object<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().enumerate().try_for_each(|(index, (name, note))| {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{}:{}", Json(name), Json(note))
        })
    }
}

/// A time, displayed in microseconds.
struct Micros(Duration);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        write!(f, "{}.{:03}", nanos / 1000, nanos % 1000)
    }
}

impl Chrome {
    fn event(&mut self, out: &mut dyn Write, event: fmt::Arguments<'_>) -> io::Result<()> {
        let before = if std::mem::replace(&mut self.has_events, true) { ",\n" } else { "" };
        write!(out, "{before}{event}")
    }

    fn arrow(&mut self, out: &mut dyn Write, slice: &Slice<'_>, id: u64, begins: bool) -> io::Result<()> {
        let (pid, tid) = (slice.track.engine, slice.track.id);
        let (phase, at, bound) = if begins { ("s", slice.to, "") } else { ("f", slice.from, r#","bp":"e""#) };
        // An arrow must begin inside the rectangle that it leaves, not at its end.
        let at = if begins { at.saturating_sub(Duration::from_nanos(1)).max(slice.from) } else { at };
        let at = Micros(at);
        self.event(
            out,
            format_args!(
                r#"{{"ph":"{phase}","id":{id},"pid":{pid},"tid":{tid},"ts":{at},"name":"depends on","cat":"dependency"{bound}}}"#
            ),
        )
    }
}

impl Format for Chrome {
    fn begin(&mut self, out: &mut dyn Write) -> io::Result<()> {
        // The tools accept a file without the closing bracket, which is missing if the program is killed.
        writeln!(out, "[")
    }

    fn mark(&mut self, out: &mut dyn Write, mark: &str) -> io::Result<()> {
        let mark = Json(mark);
        self.event(
            out,
            format_args!(r#"{{"ph":"M","name":"process_name","pid":{MARK_PROCESS},"args":{{"name":{mark}}}}}"#),
        )
    }

    fn track(&mut self, out: &mut dyn Write, track: &Track) -> io::Result<()> {
        let Track { id, engine, name, rank } = track;
        if self.engines.insert(*engine) {
            let name = if *engine == 0 { "other threads".to_owned() } else { format!("engine {engine}") };
            let name = Json(&name);
            self.event(
                out,
                format_args!(r#"{{"ph":"M","name":"process_name","pid":{engine},"args":{{"name":{name}}}}}"#),
            )?;
        }
        let name = Json(name);
        self.event(
            out,
            format_args!(r#"{{"ph":"M","name":"thread_name","pid":{engine},"tid":{id},"args":{{"name":{name}}}}}"#),
        )?;
        self.event(
            out,
            format_args!(
                r#"{{"ph":"M","name":"thread_sort_index","pid":{engine},"tid":{id},"args":{{"sort_index":{rank}}}}}"#
            ),
        )
    }

    fn slice(&mut self, out: &mut dyn Write, slice: &Slice<'_>) -> io::Result<()> {
        let (pid, tid, name, category) = (slice.track.engine, slice.track.id, Json(slice.name), slice.category);
        let (from, length) = (Micros(slice.from), Micros(slice.to.saturating_sub(slice.from)));
        let notes = Object(slice.notes);
        self.event(
            out,
            format_args!(
                r#"{{"ph":"X","name":{name},"cat":"{category}","pid":{pid},"tid":{tid},"ts":{from},"dur":{length},"args":{{{notes}}}}}"#
            ),
        )?;
        slice.arrows_in.iter().try_for_each(|&id| self.arrow(out, slice, id, false))?;
        slice.arrows_out.iter().try_for_each(|&id| self.arrow(out, slice, id, true))
    }

    fn end(&mut self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\n]")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Micros;

    #[test]
    fn times_are_in_microseconds_with_three_decimals() {
        for (nanos, shown) in
            [(0, "0.000"), (7, "0.007"), (1_005, "1.005"), (30_000, "30.000"), (1_234_567, "1234.567")]
        {
            assert_eq!(Micros(Duration::from_nanos(nanos)).to_string(), shown);
        }
    }
}
