//! Perfetto's binary trace format: packets in the wire format of protocol buffers.
//!
//! The field numbers come from `trace_packet.proto`, `track_descriptor.proto`, `track_event.proto` and
//! `debug_annotation.proto` in Perfetto's sources.

use std::{
    collections::HashSet,
    io::{self, Write},
    time::Duration,
};

use crate::export::{Format, MARK_PROCESS, Slice, Track};

/// A writer of packets.
#[derive(Debug, Default)]
pub struct Perfetto {
    /// The engines that have a track in the file.
    engines: HashSet<u16>,
    /// The packet that is being made.
    packet: Message,
}

/// A protocol buffer message.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

/// The number of bytes of the length of an inner message. It is written with leading zeros, so that it can be filled in
/// when the message is complete, as Perfetto does.
const LENGTH: usize = 4;

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(&mut self, field: u64, value: u64) {
        self.varint(field << 3 | VARINT);
        self.varint(value);
    }

    fn fixed(&mut self, field: u64, value: u64) {
        self.varint(field << 3 | FIXED64);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | BYTES);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u64, fill: impl FnOnce(&mut Self)) {
        self.varint(field << 3 | BYTES);
        let start = self.0.len() + LENGTH;
        self.0.resize(start, 0);
        fill(self);
        let mut length = self.0.len() - start;
        for (index, byte) in self.0[start - LENGTH..start].iter_mut().enumerate() {
            let more = if index + 1 < LENGTH { 0x80 } else { 0 };
            *byte = (length & 0x7f) as u8 | more;
            length >>= 7;
        }
        debug_assert_eq!(length, 0, "a message is too long");
    }
}

impl Perfetto {
    /// Writes a packet of the trace.
    fn packet(&mut self, out: &mut dyn Write, fill: impl FnOnce(&mut Message)) -> io::Result<()> {
        self.packet.0.clear();
        self.packet.message(1, |packet| {
            // The sequence to which all packets belong.
            packet.number(10, 1);
            fill(packet);
        });
        out.write_all(&self.packet.0)
    }

    /// Describes a process, which has a track of this number.
    fn process(&mut self, out: &mut dyn Write, track: u64, number: u32, name: &str) -> io::Result<()> {
        self.packet(out, |packet| {
            packet.message(60, |descriptor| {
                descriptor.number(1, track);
                descriptor.message(3, |process| {
                    process.number(1, u64::from(number));
                    process.bytes(6, name.as_bytes());
                });
            });
        })
    }
}

/// Returns the number of the track that contains an engine's tracks.
fn engine_track(engine: u16) -> u64 {
    1 << 32 | u64::from(engine)
}

impl Format for Perfetto {
    fn begin(&mut self, _out: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }

    fn mark(&mut self, out: &mut dyn Write, mark: &str) -> io::Result<()> {
        self.process(out, 1 << 33, MARK_PROCESS, mark)
    }

    fn track(&mut self, out: &mut dyn Write, track: &Track) -> io::Result<()> {
        if self.engines.insert(track.engine) {
            let name = if track.engine == 0 { "other threads".to_owned() } else { format!("engine {}", track.engine) };
            self.process(out, engine_track(track.engine), u32::from(track.engine) + 1, &name)?;
        }
        self.packet(out, |packet| {
            packet.message(60, |descriptor| {
                descriptor.number(1, track.id);
                descriptor.number(5, engine_track(track.engine));
                descriptor.message(4, |thread| {
                    thread.number(1, u64::from(track.engine) + 1);
                    // Rows are sorted by this number.
                    thread.number(2, u64::from(track.rank) + 1);
                    thread.bytes(5, track.name.as_bytes());
                });
            });
        })
    }

    fn slice(&mut self, out: &mut dyn Write, slice: &Slice<'_>) -> io::Result<()> {
        let nanos = |time: Duration| time.as_nanos() as u64;
        self.packet(out, |packet| {
            packet.number(8, nanos(slice.from));
            packet.message(11, |event| {
                event.number(9, 1);
                event.number(11, slice.track.id);
                event.bytes(22, slice.category.as_bytes());
                event.bytes(23, slice.name.as_bytes());
                slice.arrows_out.iter().for_each(|&arrow| event.fixed(47, arrow));
                slice.arrows_in.iter().for_each(|&arrow| event.fixed(48, arrow));
                for (name, note) in slice.notes.iter() {
                    event.message(4, |annotation| {
                        annotation.bytes(10, name.as_bytes());
                        annotation.bytes(6, note.as_bytes());
                    });
                }
            });
        })?;
        self.packet(out, |packet| {
            packet.number(8, nanos(slice.to));
            packet.message(11, |event| {
                event.number(9, 2);
                event.number(11, slice.track.id);
            });
        })
    }

    fn end(&mut self, _out: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }
}
