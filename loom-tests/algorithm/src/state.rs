//! The tracker's shared memory, and each thread's next step.

use std::hash::{Hash, Hasher};

use crate::{
    complete::{Completion, Link},
    program::{Mode, OPS, Program, Shape, THREADS, VARIABLES},
    push::Push,
    step::Step,
    unlink::{UNLINKER, Unlinking},
    weaken::Rule,
};

/// All earlier writers of the variable are done.
pub(crate) const READ_OK: u8 = 1;
/// All earlier accesses to the variable are done.
pub(crate) const WRITE_OK: u8 = 2;
/// The access's operation is done.
pub(crate) const DONE: u8 = 4;

/// An operation's access to a variable: `VARIABLES * (operation + 1) + variable`. A number below `VARIABLES` is the
/// initial access of the variable with this number.
pub(crate) type Access = u8;
/// No access.
pub(crate) const NONE: Access = u8::MAX;
/// An operation's number.
pub(crate) type OpId = u8;

/// See [`Record::before`].
const NOT_LINKED: u8 = u8::MAX;

const ACCESSES: usize = VARIABLES * (OPS + 1);

/// Returns the access of `op` to `variable`.
pub(crate) fn access_of(op: OpId, variable: u8) -> Access {
    VARIABLES as u8 * (op + 1) + variable
}

/// Returns the operation of an access, or `None` for a variable's initial access.
pub(crate) fn op_of(access: Access) -> Option<OpId> {
    (access / VARIABLES as u8).checked_sub(1)
}

/// Returns the variable of an access.
pub(crate) fn variable_of(access: Access) -> u8 {
    access % VARIABLES as u8
}

/// Returns the flags grantable to an access of mode `next` behind one of `mode` with `flags`.
pub(crate) fn grantable(mode: Mode, flags: u8, next: Mode, without: Option<Rule>) -> u8 {
    let spent = if without == Some(Rule::GrantWhenDone) { WRITE_OK } else { WRITE_OK | DONE };
    let passes = without == Some(Rule::RunsEnd) || mode.passes_to(next);
    if flags & spent == spent {
        READ_OK | WRITE_OK
    } else if mode == Mode::Write || without == Some(Rule::ReadersPassOn) || !passes {
        0
    } else {
        flags & READ_OK
    }
}

/// Returns whether an access of `mode` with `flags` is satisfied.
pub(crate) fn is_satisfied(mode: Mode, flags: u8) -> bool {
    flags & if matches!(mode, Mode::Read | Mode::Commute) { READ_OK } else { WRITE_OK } != 0
}

/// An access: its word and its deferred flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) next: Access,
    pub(crate) flags: u8,
    /// The `LINKED_…` flags.
    pub(crate) linked: u8,
    pub(crate) deferred: u8,
}

impl Word {
    /// Returns whether this is the word of a spent access.
    pub(crate) fn is_spent(&self) -> bool {
        self.next != NONE && self.flags & (WRITE_OK | DONE) == WRITE_OK | DONE
    }

    /// Returns the link from `access`, whose word this is.
    pub(crate) fn link_behind(&self, access: Access) -> Link {
        Link { from: access, next: self.next, linked: self.linked }
    }
}

impl Hash for Word {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u32(u32::from_le_bytes([self.next, self.flags, self.linked, self.deferred]));
    }
}

/// The state of an operation's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) wait: u8,
    pub(crate) registered: u8,
    pub(crate) live: u8,
    /// Whether the operation's only access holds the only share of the record.
    pub(crate) last_share: bool,
    pub(crate) retired: bool,
    /// The threads, as bits, that were pinned when the record was retired and have not unpinned since.
    pub(crate) pinned: u8,
    /// The operations, as bits, whose pushes were over when this operation's push began.
    pub(crate) after: u8,
    /// In each variable's queue, the operations, as bits, behind which this one was linked; or [`NOT_LINKED`].
    pub(crate) before: [u8; VARIABLES],
}

impl Hash for Record {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Self { wait, registered, live, last_share, retired, pinned, after, before: [x, y, z] } = *self;
        let shares = live << 2 | u8::from(last_share) << 1 | u8::from(retired);
        hasher.write_u64(u64::from_le_bytes([wait, registered, shares, pinned, after, x, y, z]));
    }
}

/// An error in an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wrong {
    /// A thread used a reclaimed record.
    UseAfterReclamation,
    /// A record was retired twice.
    RetiredTwice,
    /// An operation became ready twice.
    ReadyTwice,
    /// An operation became ready before it was in all its queues, while its push was still using it, or before the
    /// operations for which it must wait were done.
    ReadyTooEarly,
    /// A push returned before all its accesses were in their queues.
    ReturnedTooEarly,
    /// A count fell below zero.
    Miscounted,
    /// A word, a tail or a count moved backwards.
    MovedBack,
}

/// One state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The number of the program.
    pub(crate) program: u16,
    pub(crate) tail: [Access; VARIABLES],
    pub(crate) words: [Word; ACCESSES],
    pub(crate) records: [Record; OPS],
    pub(crate) pushes: [Push; THREADS],
    pub(crate) completions: [Completion; OPS],
    pub(crate) unlinking: Unlinking,
    pub(crate) wrong: Option<Wrong>,
}

/// A state, together with the model's unchanging parts.
pub(crate) struct World<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) program: &'a Program,
    pub(crate) without: Option<Rule>,
    /// Whether each record stores which pushes had finished when its operation's push began.
    pub(crate) remembers_times: bool,
    /// The thread taking the step, if it may be pinned: a pusher, or [`UNLINKER`].
    pub(crate) pinned_thread: Option<usize>,
}

impl State {
    /// Returns the initial state of a program.
    pub(crate) fn new(number: u16, program: &Program, unlinking: Unlinking, without: Option<Rule>) -> Self {
        let mut words = [Word { next: NONE, flags: 0, linked: 0, deferred: 0 }; ACCESSES];
        for built_in in &mut words[..VARIABLES] {
            built_in.flags = READ_OK | WRITE_OK | DONE;
        }
        let mut records = [Record {
            wait: 0,
            registered: 0,
            live: 0,
            last_share: false,
            retired: false,
            pinned: 0,
            after: 0,
            before: [NOT_LINKED; VARIABLES],
        }; OPS];
        for (record, shape) in records.iter_mut().zip(&program.ops) {
            let several = shape.arity() > 1 && without != Some(Rule::PushCountsItself);
            record.wait = shape.arity() + u8::from(several);
            record.live = shape.arity() + 1;
        }
        let mut pushes = [Push::OVER; THREADS];
        for (push, first) in pushes.iter_mut().zip(program.first.windows(2)) {
            if first[0] < first[1] {
                *push = Push::begin(first[0]);
            }
        }
        let completions = [Completion::WAITING; OPS];
        let tail = std::array::from_fn(|variable| variable as Access);
        Self { program: number, tail, words, records, pushes, completions, unlinking, wrong: None }
    }

    pub(crate) fn word(&self, access: Access) -> &Word {
        &self.words[access as usize]
    }

    pub(crate) fn record(&self, op: OpId) -> &Record {
        &self.records[op as usize]
    }

    /// Returns whether no thread will change the deferred flags of `access` again. The tail must have reached the
    /// access: a thread that has not yet read the access's predecessor from the tail never will.
    pub(crate) fn has_settled(&self, access: Access, program: &Program) -> bool {
        let Some(op) = op_of(access) else { return true };
        // If the first of these accesses is not the only one, all have the same `linked`.
        let Some(before) = (0..ACCESSES as Access).find(|&before| self.word(before).next == access) else {
            return false;
        };
        self.word(access).deferred & self.word(before).linked == self.word(before).linked
            || !self.unlinking.may_act()
                && self.record(op).registered == program.ops[op as usize].arity()
                && self.pushes.iter().all(|push| !push.may_defer(access, before, program))
                && self.completions.iter().all(|completion| !completion.may_defer(access))
    }

    /// Returns whether an access is linked behind `access` and will stay there.
    pub(crate) fn keeps_next(&self, access: Access) -> bool {
        self.word(access).is_spent() || self.word(access).next != NONE && !self.unlinking.may_act()
    }

    /// Unpins a thread.
    pub(crate) fn unpin(&mut self, thread: usize) {
        for record in &mut self.records {
            record.pinned &= !(1 << thread);
        }
    }

    /// Returns the access `from` and those behind it.
    pub(crate) fn walk(&self, from: Access) -> impl Iterator<Item = Access> {
        let behind = |&at: &Access| Some(self.word(at).next).filter(|&next| next != NONE);
        // Without some rules, a queue may be cyclic.
        std::iter::successors(Some(from), behind).take(OPS + 1)
    }

    /// Returns each operation's predecessors as bits: those before it in a queue, those that `also` returns, and,
    /// transitively, their predecessors.
    pub(crate) fn order(&self, also: impl Fn(OpId) -> u8) -> [u8; OPS] {
        let mut before = std::array::from_fn(|op| {
            let op = op as OpId;
            (0..VARIABLES as u8).filter_map(|variable| self.before(op, variable)).fold(also(op), |all, bits| all | bits)
        });
        for between in 0..OPS {
            for op in 0..OPS {
                if before[op] & 1 << between != 0 {
                    before[op] |= before[between];
                }
            }
        }
        before
    }

    /// Returns, as bits, the operations behind which `op` was linked in the queue of `variable`, or `None` if `op` was
    /// not linked there.
    pub(crate) fn before(&self, op: OpId, variable: u8) -> Option<u8> {
        Some(self.record(op).before[usize::from(variable)]).filter(|&bits| bits != NOT_LINKED)
    }

    /// Returns whether the function of `op` has returned.
    pub(crate) fn is_done(&self, op: OpId) -> bool {
        self.completions[op as usize].has_begun()
    }
}

impl State {
    /// Records an error unless one is already recorded.
    pub(crate) fn goes_wrong(&mut self, wrong: Wrong) {
        self.wrong = self.wrong.or(Some(wrong));
    }

    /// Returns whether any thread has operations left to push.
    pub(crate) fn is_pushing(&self) -> bool {
        self.pushes.iter().any(|push| push.next_step().is_some())
    }

    /// Returns whether any thread has a step to take.
    pub(crate) fn has_steps(&self) -> bool {
        self.is_pushing()
            || self.unlinking.is_under_way()
            || self.completions.iter().any(|completion| completion.next_step().is_some())
    }

    /// Returns whether shared memory has only moved forward since the state `before`.
    pub(crate) fn is_ahead_of(&self, before: &Self) -> bool {
        // Until an access is linked, its word is private to its pusher.
        let is_linked = |access| op_of(access).is_none_or(|op| before.before(op, variable_of(access)).is_some());
        let mut words = (0..).zip(self.words.iter().zip(&before.words));
        let mut records = self.records.iter().zip(&before.records);
        let mut tails = self.tail.iter().zip(&before.tail);
        words.all(|(access, (now, was))| {
            let is_unlinked = |next: Access| {
                let behind = before.word(next);
                (now.next, now.linked) == (behind.next, behind.linked)
            };
            (was.next == NONE || (now.next, now.linked) == (was.next, was.linked) || is_unlinked(was.next))
                && (now.flags & was.flags == was.flags || !is_linked(access))
                && now.deferred & was.deferred == was.deferred
        }) && records.all(|(now, was)| now.wait <= was.wait && now.registered >= was.registered && now.live <= was.live)
            && tails.all(|(&now, &was)| self.walk(was).any(|access| access == now))
    }
}

impl World<'_> {
    pub(crate) fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    pub(crate) fn shape(&self, op: OpId) -> &Shape {
        &self.program.ops[op as usize]
    }

    pub(crate) fn mode(&self, access: Access) -> Mode {
        self.program.mode(access)
    }

    pub(crate) fn grantable(&self, access: Access, flags: u8, next: Access) -> u8 {
        grantable(self.mode(access), flags, self.mode(next), self.without)
    }

    pub(crate) fn goes_wrong(&mut self, wrong: Wrong) {
        self.state.goes_wrong(wrong);
    }

    /// Checks that a thread may use the record of an access.
    pub(crate) fn touch(&mut self, access: Access) {
        if let Some(op) = op_of(access) {
            self.touch_op(op);
        }
    }

    /// Checks that a thread may use a record. A record is reclaimed once all threads that were pinned when it was
    /// retired have unpinned. Each of them unpins when its push returns, as every push eventually does, and no other
    /// thread can hold back the reclamation. So a thread that was not pinned at that time must not use the record.
    pub(crate) fn touch_op(&mut self, op: OpId) {
        let record = self.state.record(op);
        let is_kept = self.pinned_thread.is_some_and(|thread| record.pinned & 1 << thread != 0);
        if record.retired && !is_kept {
            self.goes_wrong(Wrong::UseAfterReclamation);
        }
    }

    pub(crate) fn word(&mut self, access: Access) -> &mut Word {
        self.touch(access);
        &mut self.state.words[access as usize]
    }

    pub(crate) fn record(&mut self, op: OpId) -> &mut Record {
        self.touch_op(op);
        &mut self.state.records[op as usize]
    }

    /// Sets flags on an access and returns the old word.
    pub(crate) fn add_flags(&mut self, access: Access, flags: u8) -> Word {
        let word = self.word(access);
        let old = *word;
        word.flags |= flags;
        old
    }

    /// Records that `access` was linked behind `before`.
    pub(crate) fn note_link(&mut self, before: Access, access: Access) {
        let variable = variable_of(access);
        let earlier = op_of(before).map_or(0, |op| self.state.before(op, variable).unwrap_or(0) | 1 << op);
        if let Some(op) = op_of(access) {
            self.state.records[op as usize].before[variable as usize] = earlier;
        }
    }

    /// Adds to the deferred flags of an access.
    pub(crate) fn defer(&mut self, access: Access, flags: u8) {
        self.word(access).deferred |= flags;
    }

    /// Moves the tail of `from`'s variable to `to` if it is at `from`.
    pub(crate) fn swing(&mut self, from: Access, to: Access) {
        let by_cas = self.has(Rule::SwingByCas);
        let tail = &mut self.state.tail[variable_of(from) as usize];
        if *tail == from || !by_cas {
            *tail = to;
        }
    }

    /// Subtracts `count` from the `wait` of `op` and returns the old value.
    pub(crate) fn count_down(&mut self, op: OpId, count: u8) -> u8 {
        let wait = &mut self.record(op).wait;
        let was = *wait;
        *wait = was.saturating_sub(count);
        if was < count {
            self.goes_wrong(Wrong::Miscounted);
        }
        was
    }

    /// Records that `op` has become ready: from now on, a thread owns it and may run it.
    pub(crate) fn becomes_ready(&mut self, op: OpId) {
        if self.state.completions[op as usize] != Completion::WAITING {
            self.goes_wrong(Wrong::ReadyTwice);
            return;
        }
        if self.shape(op).arity() > 1 && self.has_steps_for(op) {
            self.goes_wrong(Wrong::ReadyTooEarly);
        }
        for variable in 0..VARIABLES as u8 {
            let Some(mode) = self.shape(op).0[variable as usize] else { continue };
            let Some(before) = self.state.before(op, variable) else {
                self.goes_wrong(Wrong::ReadyTooEarly);
                return;
            };
            for other in 0..self.program.ops.len() as OpId {
                let excludes = mode.waits_for(self.mode(access_of(other, variable)));
                if before & 1 << other != 0 && excludes && !self.state.is_done(other) {
                    self.goes_wrong(Wrong::ReadyTooEarly);
                }
            }
        }
        self.state.completions[op as usize] = Completion::ready(self.shape(op));
        // The library leaves the old value in `wait`, which is no longer read.
        self.state.records[op as usize].wait = 0;
    }

    /// Hands a record to the epoch.
    pub(crate) fn retire(&mut self, op: OpId) {
        if self.state.record(op).retired {
            self.goes_wrong(Wrong::RetiredTwice);
        }
        let mut pinned = 0;
        if self.has(Rule::ReclaimAfterEpoch) {
            if self.state.unlinking.is_under_way() && self.has(Rule::PinUnlinking) {
                pinned |= 1 << UNLINKER;
            }
            for (thread, push) in self.state.pushes.iter().enumerate() {
                if push.is_under_way() && self.has(Rule::PinPushes) {
                    pinned |= 1 << thread;
                }
            }
        }
        let record = &mut self.state.records[op as usize];
        record.retired = true;
        // `live` is no longer read.
        record.live = 0;
        record.pinned = pinned;
    }
}

/// The steps that end shares of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Share {
    /// `Access::share`: loads whether this spent access holds the only share of the record.
    LoadLast(Access),
    /// `end_shares`: loads `live`, to end this number of shares.
    LoadLive(OpId, u8),
    /// `end_shares`: subtracts this number of shares from `live`.
    Release(OpId, u8),
    /// The last share of the record has ended.
    Retire(OpId),
}

impl Share {
    /// Returns the next step.
    pub(crate) fn next_step(self) -> Step {
        match self {
            Self::LoadLast(_) => Step::LoadLastShare,
            Self::LoadLive(..) => Step::LoadShares,
            Self::Release(..) => Step::EndShares,
            Self::Retire(_) => Step::Retire,
        }
    }

    /// Returns whether the order of the next step relative to other threads' steps is irrelevant.
    pub(crate) fn is_alone(self) -> bool {
        match self {
            // `last_share` was stored before the access was done.
            Self::LoadLast(_) => true,
            // If other shares remain and end before the next step, that step observes their end.
            Self::LoadLive(..) => true,
            Self::Release(..) => false,
            // Retiring immediately is the worst case: a thread that pins later is not protected from the reclamation.
            Self::Retire(_) => true,
        }
    }

    /// Takes the next step. Returns `None` after the last one.
    pub(crate) fn step(self, world: &mut World<'_>) -> Option<Self> {
        match self {
            Self::LoadLast(access) => {
                world.touch(access);
                let op = op_of(access)?;
                Some(if world.state.record(op).last_share { Self::Retire(op) } else { Self::LoadLive(op, 1) })
            }
            Self::LoadLive(op, shares) => {
                let live = world.record(op).live;
                Some(if live == shares || !world.has(Rule::CountShares) {
                    Self::Retire(op)
                } else {
                    Self::Release(op, shares)
                })
            }
            Self::Release(op, shares) => {
                let live = &mut world.record(op).live;
                let was = *live;
                *live = was.saturating_sub(shares);
                if was < shares {
                    world.goes_wrong(Wrong::Miscounted);
                }
                (was == shares).then_some(Self::Retire(op))
            }
            Self::Retire(op) => {
                world.retire(op);
                None
            }
        }
    }
}
