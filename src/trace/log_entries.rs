//! The entries of a log: how they are written as bytes, in memory and in files, and how they are read.
//!
//! # Format
//!
//! A file begins with [`MAGIC`]. Behind it are blocks, each with the number of a stream, a length, a check sum and
//! bytes. The bytes of a stream, put together, are records. A number in a record takes one byte for each 7 of its bits,
//! so most take one or two.
//!
//! | record | in | contents |
//! |---|---|---|
//! | `OPERATOR` | tables | number, name, variables in the order in which it declares them |
//! | `VARIABLE` | tables | number, name |
//! | `SITE` | a thread's | name of the first operation pushed there, file, line, column; numbered from 1 |
//! | `START` and flags | a thread's | operation, site, accesses; for a run: operator, chosen variables, argument |
//! | `INSIDE` | a thread's | operation, and the one that pushes it, or 0 if it is unknown |
//! | `FAILED` | a thread's | operation |
//!
//! Operations have the numbers that an engine gives them.
//!
//! Another kind of record, such as one for the order of operations that commute, needs a new tag and a new [`MAGIC`].
//!
//! # What is missing
//!
//! The end of a file may be missing, and a log in memory may be read while operations run. So the streams may end at
//! different times. Every mutation of a variable has an entry and takes the next place on the variable, so it shows if
//! one is missing: the entries that come behind it are left out, and those behind these.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    mem::MaybeUninit,
    panic::Location,
    path::Path,
    sync::Arc,
};

use raddle_trace::{AccessMode, OpId, Outcome, recording::IdMap};

use super::log::{LoggedPlace, StartHead};

/// The first bytes of a file, with the version of the format.
pub(super) const MAGIC: &[u8] = b"raddle log 1\n";

/// In place of the number of a stream: the block has records of the tables.
pub(super) const TABLES: u32 = u32::MAX;

/// In place of the number of a stream: the block is the last.
pub(super) const END: u32 = u32::MAX - 1;

/// The bits of an operation's number that are written by themselves, so that both parts are small.
const OP_THREAD: u64 = (1 << 12) - 1;

/// The size of what precedes the bytes of a block.
const HEAD: usize = 12;

const OPERATOR: u8 = 1;
const VARIABLE: u8 = 2;
const SITE: u8 = 3;
const INSIDE: u8 = 4;
const FAILED: u8 = 5;
/// The lowest tag of a start; the flags below are added.
const START: u8 = 16;
const CLEARS: u8 = 1;
const SKIPPED: u8 = 2;
const IS_RUN: u8 = 4;
const FLAGS: u8 = CLEARS | SKIPPED | IS_RUN;

// ---------------------------------------------------------------------------------------------------- writing ----

fn write_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn write_bytes(bytes: &mut Vec<u8>, written: &[u8]) {
    write_number(bytes, written.len() as u64);
    bytes.extend_from_slice(written);
}

/// Returns the parts of an operation's number: that of a thread, and that of a push.
fn parts_of(op: OpId) -> (u64, u64) {
    (op.0 & OP_THREAD, op.0 >> OP_THREAD.count_ones())
}

fn write_op(bytes: &mut Vec<u8>, op: OpId) {
    let (thread, push) = parts_of(op);
    write_number(bytes, thread);
    write_number(bytes, push);
}

pub(super) fn write_operator(
    bytes: &mut Vec<u8>,
    number: u32,
    name: &str,
    variables: impl ExactSizeIterator<Item = u64>,
) {
    bytes.push(OPERATOR);
    write_number(bytes, number.into());
    write_bytes(bytes, name.as_bytes());
    write_number(bytes, variables.len() as u64);
    variables.for_each(|variable| write_number(bytes, variable));
}

pub(super) fn write_variable(bytes: &mut Vec<u8>, number: u64, name: &str) {
    bytes.push(VARIABLE);
    write_number(bytes, number);
    write_bytes(bytes, name.as_bytes());
}

pub(super) fn write_site(bytes: &mut Vec<u8>, name: &str, location: &Location<'_>) {
    bytes.push(SITE);
    write_bytes(bytes, name.as_bytes());
    write_bytes(bytes, location.file().as_bytes());
    write_number(bytes, location.line().into());
    write_number(bytes, location.column().into());
}

/// The most bytes of a number.
const LONGEST: usize = 10;

/// Memory in which there is room for what is written next, so that each byte need not ask for it.
struct Spare<'b> {
    bytes: &'b mut [MaybeUninit<u8>],
    len: usize,
}

impl Spare<'_> {
    #[inline(always)]
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes[self.len].write(number as u8 | 0x80);
            self.len += 1;
            number >>= 7;
        }
        self.bytes[self.len].write(number as u8);
        self.len += 1;
    }
}

/// Appends the numbers that `write` writes, at most `count`.
#[inline(always)]
fn write_numbers(bytes: &mut Vec<u8>, count: usize, write: impl FnOnce(&mut Spare<'_>)) {
    bytes.reserve(count * LONGEST);
    let before = bytes.len();
    let mut spare = Spare { bytes: bytes.spare_capacity_mut(), len: 0 };
    write(&mut spare);
    let len = before + spare.len;
    // SAFETY: the bytes up to this length were written, and are within the capacity, since each was found there.
    unsafe { bytes.set_len(len) };
}

#[inline]
pub(super) fn write_start(
    bytes: &mut Vec<u8>,
    head: &StartHead<'_>,
    site: u64,
    accesses: impl ExactSizeIterator<Item = LoggedPlace>,
) {
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    let tag = START | flag(head.clears, CLEARS) | flag(head.is_skipped, SKIPPED);
    let (thread, push) = parts_of(head.id);
    write_numbers(bytes, 5 + 2 * accesses.len(), |spare| {
        [tag.into(), thread, push, site, accesses.len() as u64].into_iter().for_each(|number| spare.number(number));
        for access in accesses {
            spare.number(access.variable << 2 | access.mode as u64);
            spare.number(access.place);
        }
    });
}

/// Makes the record of a start that of a run.
#[inline]
pub(super) fn write_run(started: &mut Vec<u8>, operator: u32, chosen: &[u64], argument: &[u8]) {
    started[0] |= IS_RUN;
    write_numbers(started, 3 + chosen.len(), |spare| {
        spare.number(operator.into());
        spare.number(chosen.len() as u64);
        chosen.iter().for_each(|&variable| spare.number(variable));
        spare.number(argument.len() as u64);
    });
    started.extend_from_slice(argument);
}

pub(super) fn write_inside(bytes: &mut Vec<u8>, op: OpId, parent: Option<OpId>) {
    bytes.push(INSIDE);
    write_op(bytes, op);
    write_op(bytes, parent.unwrap_or(OpId(0)));
}

pub(super) fn write_failure(bytes: &mut Vec<u8>, op: OpId) {
    bytes.push(FAILED);
    write_op(bytes, op);
}

pub(super) fn write_block(file: &mut impl Write, stream: u32, bytes: &[u8]) -> io::Result<()> {
    // A block has a length of 32 bits.
    let mut parts = bytes.chunks(1 << 30);
    let mut part = parts.next().unwrap_or_default();
    loop {
        for word in [stream, part.len() as u32, check_sum(part)] {
            file.write_all(&word.to_le_bytes())?;
        }
        file.write_all(part)?;
        let Some(next) = parts.next() else { return Ok(()) };
        part = next;
    }
}

/// Returns a number that shows most damage to the bytes: Fowler, Noll and Vo's hash.
fn check_sum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, &byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

// ---------------------------------------------------------------------------------------------------- entries ----

/// The entries of a [`Log`](crate::replay::Log), read from memory or from a file.
#[derive(Clone, Debug, Default)]
pub struct LogEntries {
    entries: Vec<LogEntry>,
    pub(crate) operators: IdMap<u32, LoggedOperator>,
    pub(crate) variables: IdMap<u64, String>,
    left_out: usize,
    is_complete: bool,
}

/// An operator of a log.
#[derive(Clone, Debug)]
pub(crate) struct LoggedOperator {
    pub(crate) name: Arc<str>,
    /// Its own variables, in the order in which it declares them.
    pub(crate) variables: Vec<u64>,
}

/// What a log says about one operation.
#[derive(Clone, Debug)]
pub struct LogEntry {
    op: u64,
    root: Option<Root>,
    name: Arc<str>,
    location: Arc<str>,
    accesses: Vec<LoggedAccess>,
    /// The number of the operator, if this is a run of a logged one.
    pub(crate) operator: Option<u32>,
    pub(crate) chosen: Vec<u64>,
    argument: Vec<u8>,
    outcome: Outcome,
    clears: bool,
}

/// The operation from outside that has led to one from inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// Its place among the entries.
    At(usize),
    Unknown,
}

/// An operation's access to a variable, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoggedAccess {
    /// The number of the variable in the log.
    pub variable: u64,
    /// How the operation uses the variable.
    pub mode: AccessMode,
    /// The number of mutations of the variable that were pushed before the operation. Mutations by operations that
    /// other operations have pushed count, too, so for the pushes from outside there may be gaps.
    pub place: u64,
}

impl LogEntry {
    /// Returns the operation's name. If the operation was not a run of a logged operator, and its name was made at run
    /// time, this may be the name of another operation pushed at the same location.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns where the operation was pushed: a file, a line and a column.
    #[must_use]
    pub fn location(&self) -> &str {
        &self.location
    }

    /// Returns the operation's accesses with their places, each variable once. The places are consistent with the one
    /// order of pushes: of two operations that conflict on a variable, the one that was pushed first has the lower
    /// place there, or both have the same, and the first one only reads.
    #[must_use]
    pub fn accesses(&self) -> &[LoggedAccess] {
        &self.accesses
    }

    /// Returns the argument of a run of a logged operator, as its [`logged`](crate::Operator::logged) has written it.
    /// It is empty for an operation that was skipped or cancelled.
    #[must_use]
    pub fn argument(&self) -> &[u8] {
        &self.argument
    }

    /// Returns whether the operation is one with which the engine has cleared the failure of a variable.
    #[must_use]
    pub fn is_clear(&self) -> bool {
        self.clears
    }

    /// Returns how the operation ended. An operation that had not ended when the log was read, or when its file ends,
    /// has the outcome [`Succeeded`](Outcome::Succeeded).
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Returns whether the operation was pushed by another operation. A replay leaves such a push to the other
    /// operation's function.
    #[must_use]
    pub fn is_from_inside(&self) -> bool {
        self.root.is_some()
    }

    /// Returns the number of the operation. Those of a thread's pushes are increasing.
    pub(crate) fn op(&self) -> u64 {
        self.op
    }

    /// Returns the operation from outside that has led to this one, if it is from inside.
    pub(crate) fn root(&self) -> Option<Root> {
        self.root
    }

    fn writes(&self) -> impl Iterator<Item = &LoggedAccess> {
        self.accesses.iter().filter(|access| access.mode.is_write())
    }
}

impl LogEntries {
    /// Reads the file of a log. If the end of the file is missing or damaged, this reads what precedes the damage, and
    /// the result is not [complete](Self::is_complete).
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or is not that of a log of this version.
    pub fn read(path: impl AsRef<Path>) -> io::Result<Self> {
        let bytes = fs::read(path)?;
        let Some(mut rest) = bytes.strip_prefix(MAGIC) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is not a log of this version"));
        };
        let (mut tables, mut streams, mut is_whole) = (Vec::new(), BTreeMap::<u32, Vec<u8>>::new(), false);
        while let Some((head, behind)) = rest.split_at_checked(HEAD) {
            let word = |at: usize| head[at..at + 4].try_into().map_or(0, u32::from_le_bytes);
            let (stream, len, sum) = (word(0), word(4) as usize, word(8));
            // A block that was not written to its end has records, too.
            let (bytes, behind) = behind.split_at_checked(len).unwrap_or((behind, &[]));
            if bytes.len() == len && check_sum(bytes) != sum {
                break;
            }
            match stream {
                END => is_whole = behind.is_empty(),
                TABLES => tables.extend_from_slice(bytes),
                _ => streams.entry(stream).or_default().extend_from_slice(bytes),
            }
            rest = behind;
        }
        Ok(Self::parse(&tables, streams.values().map(Vec::as_slice), is_whole))
    }

    /// Returns the entries, in an order that is that of their starts on each thread. Those of several threads are not
    /// in the order of pushes; a [`Replay`](crate::replay::Replay) on a naive engine runs them in such an order.
    pub fn iter(&self) -> std::slice::Iter<'_, LogEntry> {
        self.entries.iter()
    }

    /// Returns whether the log was read to its end. Otherwise, the end of its file is missing or damaged.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns the number of entries that were left out because an entry on which they depend is missing. This happens
    /// only if the log is not [complete](Self::is_complete), or if operations were starting while it was read.
    #[must_use]
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Returns the name of a variable, by its number in the log, if it has one.
    #[must_use]
    pub fn variable_name(&self, variable: u64) -> Option<&str> {
        self.variables.get(&variable).map(String::as_str)
    }

    /// Reads records. `is_whole` is whether these are all bytes of the log.
    pub(super) fn parse<'b>(tables: &[u8], streams: impl Iterator<Item = &'b [u8]>, is_whole: bool) -> Self {
        let mut read = Self { is_complete: is_whole, ..Self::default() };
        read.is_complete &= read.parse_tables(tables).is_some();
        let (mut failed, mut parents) = (Vec::new(), IdMap::default());
        for bytes in streams {
            read.is_complete &= read.parse_stream(bytes, &mut failed, &mut parents).is_some();
        }
        let by_op: IdMap<u64, usize> = read.entries.iter().enumerate().map(|(at, entry)| (entry.op, at)).collect();
        for op in failed {
            // A child has no entry.
            if let Some(&at) = by_op.get(&op) {
                read.entries[at].outcome = Outcome::Failed;
            }
        }
        let is_gone = read.find_roots(&by_op, parents);
        read.leave_out(is_gone);
        read
    }

    /// Finds the roots of the entries from inside. Returns the entries whose roots are missing because the log is
    /// incomplete.
    fn find_roots(&mut self, by_op: &IdMap<u64, usize>, mut parents: IdMap<u64, u64>) -> Vec<usize> {
        let mut missing = Vec::new();
        for at in 0..self.entries.len() {
            let Some(mut root) = parents.get(&self.entries[at].op).copied() else { continue };
            let mut path = vec![self.entries[at].op];
            // A damaged log may have a cycle.
            while let Some(&parent) = parents.get(&root).filter(|_| path.len() <= parents.len()) {
                path.push(root);
                root = parent;
            }
            // So that long chains are followed once.
            path.into_iter().for_each(|op| _ = parents.insert(op, root));
            let found = by_op.get(&root).copied().filter(|_| !parents.contains_key(&root));
            if found.is_none() && root != 0 && !self.is_complete {
                missing.push(at);
            }
            self.entries[at].root = Some(found.map_or(Root::Unknown, Root::At));
        }
        missing
    }

    fn parse_tables(&mut self, bytes: &[u8]) -> Option<()> {
        let mut bytes = Bytes(bytes);
        while !bytes.0.is_empty() {
            match bytes.byte()? {
                OPERATOR => {
                    let (number, name) = (bytes.small()?, bytes.text()?.into());
                    let variables = bytes.list(Bytes::number)?;
                    self.operators.insert(number, LoggedOperator { name, variables });
                }
                VARIABLE => {
                    let (number, name) = (bytes.number()?, bytes.text()?);
                    self.variables.insert(number, name);
                }
                _ => return None,
            }
        }
        Some(())
    }

    fn parse_stream(&mut self, bytes: &[u8], failed: &mut Vec<u64>, parents: &mut IdMap<u64, u64>) -> Option<()> {
        let (mut bytes, mut sites) = (Bytes(bytes), Vec::<[Arc<str>; 2]>::new());
        while !bytes.0.is_empty() {
            match bytes.byte()? {
                SITE => {
                    let (name, file, line, column) = (bytes.text()?, bytes.text()?, bytes.number()?, bytes.number()?);
                    sites.push([name.into(), format!("{file}:{line}:{column}").into()]);
                }
                INSIDE => _ = parents.insert(bytes.op()?, bytes.op()?),
                FAILED => failed.push(bytes.op()?),
                tag if tag & !FLAGS == START => {
                    let op = bytes.op()?;
                    let site = usize::try_from(bytes.number()?).ok()?.checked_sub(1)?;
                    let [mut name, location] = sites.get(site)?.clone();
                    let mut accesses = bytes.list(Bytes::access)?;
                    accesses.sort_unstable_by_key(|access| access.variable);
                    if accesses.windows(2).any(|pair| pair[0].variable == pair[1].variable) {
                        return None;
                    }
                    let (mut operator, mut chosen, mut argument) = (None, Vec::new(), Vec::new());
                    if tag & IS_RUN != 0 {
                        let number = bytes.small()?;
                        (chosen, argument) = (bytes.list(Bytes::number)?, bytes.bytes()?.to_vec());
                        name.clone_from(&self.operators.get(&number)?.name);
                        operator = Some(number);
                    }
                    let outcome = if tag & SKIPPED == 0 { Outcome::Succeeded } else { Outcome::Skipped };
                    let (root, clears) = (None, tag & CLEARS != 0);
                    self.entries.push(LogEntry {
                        op,
                        root,
                        name,
                        location,
                        accesses,
                        operator,
                        chosen,
                        argument,
                        outcome,
                        clears,
                    });
                }
                _ => return None,
            }
        }
        Some(())
    }

    /// Leaves out the entries in `due`, and those that come behind missing ones. An entry from inside and its root stay
    /// or go together.
    fn leave_out(&mut self, mut due: Vec<usize>) {
        let entries = &self.entries;
        // Of each variable: the places of its accesses with their entries, and the place of the first missing mutation.
        let mut places: IdMap<u64, (Vec<(u64, usize)>, u64)> = IdMap::default();
        let mut inside: IdMap<usize, Vec<usize>> = IdMap::default();
        let mut is_gone = vec![false; entries.len()];
        for (at, entry) in entries.iter().enumerate() {
            for access in &entry.accesses {
                places.entry(access.variable).or_default().0.push((access.place, at));
            }
            if let Some(Root::At(root)) = entry.root {
                inside.entry(root).or_default().push(at);
            }
        }
        let mut mutations: IdMap<u64, Vec<u64>> = IdMap::default();
        for access in entries.iter().flat_map(LogEntry::writes) {
            mutations.entry(access.variable).or_default().push(access.place);
        }
        for (variable, (places, missing)) in &mut places {
            places.sort_unstable();
            let mutations = mutations.entry(*variable).or_default();
            mutations.sort_unstable();
            // A place that two mutations have is left to the replay to find.
            *missing = mutations.iter().fold(0, |next, &place| if place == next { next + 1 } else { next });
            due.extend(behind(places, *missing));
        }
        while let Some(at) = due.pop() {
            if std::mem::replace(&mut is_gone[at], true) {
                continue;
            }
            let entry = &entries[at];
            due.extend(inside.get(&at).into_iter().flatten());
            due.extend(entry.root.and_then(|root| if let Root::At(root) = root { Some(root) } else { None }));
            for access in entry.writes() {
                let Some((places, missing)) = places.get_mut(&access.variable) else { continue };
                *missing = access.place.min(*missing);
                due.extend(behind(places, *missing));
            }
        }
        self.left_out = is_gone.iter().filter(|&&is_gone| is_gone).count();
        if self.left_out == 0 {
            return;
        }
        let (mut kept, mut places) = (0, Vec::new());
        for &is_gone in &is_gone {
            places.push(kept);
            kept += usize::from(!is_gone);
        }
        let mut is_gone = is_gone.into_iter();
        self.entries.retain(|_| !is_gone.next().unwrap_or_default());
        for entry in &mut self.entries {
            if let Some(Root::At(root)) = &mut entry.root {
                *root = places[*root];
            }
        }
    }
}

impl<'e> IntoIterator for &'e LogEntries {
    type Item = &'e LogEntry;
    type IntoIter = std::slice::Iter<'e, LogEntry>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Takes out the entries whose accesses come behind the place `missing`. The accesses are sorted by their places.
fn behind(places: &mut Vec<(u64, usize)>, missing: u64) -> impl Iterator<Item = usize> {
    let first = places.partition_point(|&(place, _)| place <= missing);
    places.drain(first..).map(|(_, at)| at)
}

/// What is left to read.
struct Bytes<'b>(&'b [u8]);

impl<'b> Bytes<'b> {
    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            number |= bits << shift;
            if byte < 0x80 {
                return (number >> shift == bits).then_some(number);
            }
        }
        None
    }

    fn small(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    fn bytes(&mut self) -> Option<&'b [u8]> {
        let len = usize::try_from(self.number()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    fn text(&mut self) -> Option<String> {
        Some(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    /// Reads a list. Each item takes at least a byte, so a damaged length asks for no more memory than there are bytes.
    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let len = usize::try_from(self.number()?).ok().filter(|&len| len <= self.0.len())?;
        (0..len).map(|_| item(self)).collect()
    }

    fn op(&mut self) -> Option<u64> {
        let (thread, push) = (self.number()?, self.number()?);
        (thread <= OP_THREAD && push >> (u64::BITS - OP_THREAD.count_ones()) == 0)
            .then_some(push << OP_THREAD.count_ones() | thread)
    }

    fn access(&mut self) -> Option<LoggedAccess> {
        let (word, place) = (self.number()?, self.number()?);
        let mode = match word & 3 {
            0 => AccessMode::Read,
            1 => AccessMode::Write,
            2 => AccessMode::Overwrite,
            _ => AccessMode::Commute,
        };
        Some(LoggedAccess { variable: word >> 2, mode, place })
    }
}
