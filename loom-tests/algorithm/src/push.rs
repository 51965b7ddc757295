//! `push`, `insert`, `help` and `register`, with one action for each atomic access.

use crate::{
    program::Program,
    state::{Access, NONE, OpId, Share, State, WRITE_OK, World, Wrong, access_of, is_satisfied, op_of, variable_of},
    step::Step,
    weaken::Rule,
};

/// The next step of a pushing thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum At {
    /// All pushes of the thread are over.
    Over,
    /// `push`: pins the thread; `insert`: loads the tail (edge `swing`).
    Pin,
    /// `insert`: loads the tail (edge `swing`).
    LoadTail,
    /// `insert`: loads the tail's word (edges `link`, `complete`).
    LoadWord { tail: Access },
    /// `swing`: defers the flags of the access behind the tail.
    DeferNext { tail: Access, next: Access, linked: u8 },
    /// `swing`: moves the tail for another thread (edge `swing`).
    SwingNext { tail: Access, next: Access },
    /// `insert`: loads `registered` of the operation at the tail (edge `register`).
    LoadTheirRegistered { tail: Access, flags: u8 },
    /// `insert`: loads `registered` of the operation whose access is inserted (edge `register`).
    RereadRegistered { tail: Access, flags: u8 },
    /// `insert`: loads the deferred flags of the tail.
    LoadDeferred { tail: Access, flags: u8 },
    /// `insert`: stores the word of the first access, which no other thread can see yet.
    StoreWord { tail: Access, flags: u8, grantable: u8 },
    /// `insert`: the linking CAS (edge `link`).
    Link { tail: Access, flags: u8, grantable: u8 },
    /// `insert`, by the pusher: sets the flags found grantable.
    Grant { tail: Access, grantable: u8 },
    /// `insert`, by a helper: defers the flags found grantable.
    Defer { tail: Access, grantable: u8 },
    /// `insert`: moves the tail (edge `swing`).
    Swing { tail: Access, grantable: u8 },
    /// `insert`: ends the share of the predecessor (edge `retire`).
    RetireShare(Share),
    /// `register`: loads `registered`.
    LoadRegistered,
    /// `register`: counts the access (edge `register`).
    Register,
    /// `help`: loads `registered` of the operation to be helped, for the next access to insert.
    HelpNext,
    /// `end_registration`: counts all accesses (edge `register`).
    EndRegistration,
    /// `adopt_deferred`: loads the deferred flags.
    LoadAdopted { index: u8 },
    /// `adopt_deferred`: sets the adopted flags.
    Adopt { index: u8, flags: u8 },
    /// `finish_push`: subtracts this thread's part from `wait` (edge `ready`).
    Decrement,
    /// `push`: unpins the thread. If the operation is ready, this thread now owns it.
    Unpin { ready: bool },
}

/// A pushing thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Push {
    pub(crate) at: At,
    /// The operation being pushed.
    own: OpId,
    /// The index of the access of `own` being inserted.
    index: u8,
    /// The operation, `own` or one being helped, whose access the thread inserts, and the index of that access.
    target: OpId,
    target_index: u8,
    /// Whether the thread inserts on behalf of another thread.
    helping: bool,
    /// The number of accesses of `own` that this thread has found satisfied, or has satisfied.
    satisfied: u8,
    /// Whether another thread has linked an access of `own`.
    helped: bool,
}

impl Push {
    /// A thread with nothing left to push.
    pub(crate) const OVER: Self = Self {
        at: At::Over,
        own: 0,
        index: 0,
        target: 0,
        target_index: 0,
        helping: false,
        satisfied: 0,
        helped: false,
    };

    /// Returns a thread about to push `op`.
    pub(crate) fn begin(op: OpId) -> Self {
        Self { at: At::Pin, own: op, target: op, ..Self::OVER }
    }

    /// Returns whether a push is under way and the thread is pinned.
    pub(crate) fn is_under_way(&self) -> bool {
        !matches!(self.at, At::Over | At::Pin)
    }

    /// Returns the next step, if any.
    pub(crate) fn next_step(&self) -> Option<Step> {
        Some(match self.at {
            At::Over => return None,
            At::Pin => Step::Pin,
            At::LoadTail => Step::LoadTail,
            At::LoadWord { .. } => Step::LoadWord,
            At::DeferNext { .. } => Step::DeferForAnother,
            At::SwingNext { .. } => Step::SwingForAnother,
            At::LoadTheirRegistered { .. } => Step::LoadTheirRegistered,
            At::RereadRegistered { .. } => Step::RereadRegistered,
            At::LoadDeferred { .. } => Step::LoadDeferred,
            At::StoreWord { .. } => Step::StoreWord,
            At::Link { .. } => Step::Link,
            At::Grant { .. } => Step::Grant,
            At::Defer { .. } => Step::Defer,
            At::Swing { .. } => Step::Swing,
            At::RetireShare(share) => share.next_step(),
            At::LoadRegistered => Step::LoadRegistered,
            At::Register => Step::Register,
            At::HelpNext => Step::HelpNext,
            At::EndRegistration => Step::EndRegistration,
            At::LoadAdopted { .. } => Step::LoadAdopted,
            At::Adopt { .. } => Step::Adopt,
            At::Decrement => Step::Decrement,
            At::Unpin { .. } => Step::Unpin,
        })
    }

    /// Returns whether the thread is at the head of a loop, to which it returns for another attempt.
    pub(crate) fn is_at_the_head_of_a_loop(&self) -> bool {
        matches!(self.at, At::LoadTail | At::HelpNext | At::LoadRegistered)
    }

    /// Returns whether the order of the next step relative to other threads' steps is irrelevant: the step reads
    /// nothing that other threads may still change and changes nothing that they may still read, or taking the step
    /// early hides no error. The thread is pinned, so records that it may use now stay valid until its push is over.
    pub(crate) fn is_alone(&self, state: &State, program: &Program) -> bool {
        let is_counted = |op: OpId| state.record(op).registered == program.ops[op as usize].arity();
        // If this holds, the linking CAS fails whenever it is executed, since flags and links are never removed.
        let is_late = |tail, flags| (state.word(tail).next, state.word(tail).flags) != (NONE, flags);
        match self.at {
            // The `linked` flags do not change unless the next access does.
            At::LoadWord { tail } => state.keeps_next(tail),
            // Flags are never cleared.
            At::DeferNext { next, linked, .. } => state.word(next).deferred & linked == linked,
            // The tail never moves back.
            At::SwingNext { tail, .. } | At::Swing { tail, .. } => state.tail[variable_of(tail) as usize] != tail,
            At::LoadTheirRegistered { tail, .. } => op_of(tail).is_some_and(is_counted),
            At::RereadRegistered { .. } => is_counted(self.target),
            At::HelpNext => is_counted(self.target),
            At::LoadDeferred { tail, flags } => is_late(tail, flags) || state.has_settled(tail, program),
            At::StoreWord { .. } => true,
            At::Link { tail, flags, .. } => is_late(tail, flags),
            At::Grant { grantable, .. } => {
                let access = self.access_in(program);
                state.word(access).flags & grantable == grantable
            }
            At::Defer { grantable, .. } => {
                let access = self.access_in(program);
                state.word(access).deferred & grantable == grantable
            }
            At::RetireShare(share) => share.is_alone(),
            // If the access is not counted yet, the CAS comes next and fails if another thread has counted it by then.
            At::LoadRegistered => true,
            At::Register => state.record(self.target).registered > self.target_index,
            At::EndRegistration => is_counted(self.own),
            At::LoadAdopted { index } => program.ops[self.own as usize]
                .variable(index)
                .is_some_and(|variable| state.has_settled(access_of(self.own, variable), program)),
            // Unpinning earlier protects fewer records, lets more pushes follow this one, and lets this push's
            // operation run earlier.
            At::Unpin { .. } => true,
            _ => false,
        }
    }

    fn is_sole(&self, world: &World<'_>) -> bool {
        world.shape(self.own).arity() == 1
    }

    /// Returns the access to insert.
    fn access(&self, world: &World<'_>) -> Access {
        self.access_in(world.program)
    }

    fn access_in(&self, program: &Program) -> Access {
        let shape = &program.ops[self.target as usize];
        access_of(self.target, shape.variable(self.target_index).expect("an access to insert"))
    }

    /// Returns whether the thread is about to change the deferred flags of `access`, whose predecessor is `before`, or
    /// to check whether it must change them.
    pub(crate) fn may_defer(&self, access: Access, before: Access, program: &Program) -> bool {
        match self.at {
            At::LoadWord { tail } => tail == before,
            At::DeferNext { next, .. } => next == access,
            At::Defer { .. } => self.access_in(program) == access,
            _ => false,
        }
    }

    /// Returns whether no other thread can see the operation yet.
    fn is_unseen(&self) -> bool {
        !self.helping && self.target_index == 0
    }

    /// Continues with this thread's own access at `index` or, after the last one, with the end of the push.
    fn go_on_with(&mut self, index: u8, world: &World<'_>) -> At {
        (self.target, self.target_index, self.index, self.helping) = (self.own, index, index, false);
        if index == world.shape(self.own).arity() {
            (self.target_index, self.index) = (0, 0);
            if world.has(Rule::RegisterWhenAllAreIn) || self.is_sole(world) {
                At::EndRegistration
            } else {
                self.adopt(world)
            }
        } else {
            At::LoadTail
        }
    }

    /// Continues after this thread or another has linked the access.
    fn inserted(&mut self, by_this: bool, world: &World<'_>) -> At {
        if self.helping {
            self.target_index = 0;
            return At::HelpNext;
        }
        self.helped |= !by_this;
        self.go_on_with(self.index + 1, world)
    }

    fn help(&mut self, other: OpId) -> At {
        (self.target, self.target_index, self.helping) = (other, 0, true);
        At::HelpNext
    }

    fn adopt(&mut self, world: &World<'_>) -> At {
        if self.helped && world.has(Rule::Adopt) { At::LoadAdopted { index: 0 } } else { self.decrement(world) }
    }

    fn decrement(&mut self, world: &World<'_>) -> At {
        self.helped = false;
        if self.satisfied == world.shape(self.own).arity() { At::Unpin { ready: true } } else { At::Decrement }
    }

    fn adopted(&mut self, index: u8, world: &World<'_>) -> At {
        if index + 1 < world.shape(self.own).arity() {
            At::LoadAdopted { index: index + 1 }
        } else {
            self.decrement(world)
        }
    }

    fn own_access(&self, index: u8, world: &World<'_>) -> Access {
        access_of(self.own, world.shape(self.own).variable(index).expect("an access of the operation"))
    }

    /// Sets flags as the pusher does, and counts the access if the flags satisfy it.
    fn grant(&mut self, access: Access, flags: u8, world: &mut World<'_>) {
        let was = world.add_flags(access, flags).flags;
        let mode = world.mode(access);
        self.satisfied += u8::from(!is_satisfied(mode, was) && is_satisfied(mode, was | flags));
    }

    /// Takes the next step of `thread`.
    pub(crate) fn step(mut self, thread: usize, world: &mut World<'_>) {
        self.at = self.next(thread, world);
        world.state.pushes[thread] = self;
        if self.at == At::Over {
            world.state.pushes[thread] = Self::OVER;
        }
    }

    fn next(&mut self, thread: usize, world: &mut World<'_>) -> At {
        let sole = !self.helping && self.is_sole(world);
        match self.at {
            At::Over => At::Over,
            At::Pin => {
                let mut after = 0;
                for other in 0..world.program.ops.len() as OpId {
                    if world.remembers_times && world.has_returned(other) {
                        after |= 1 << other;
                    }
                }
                world.record(self.own).after = after;
                if !world.has(Rule::RegisterWhenAllAreIn) && !sole {
                    let arity = world.shape(self.own).arity();
                    world.record(self.own).registered = arity;
                }
                self.go_on_with(0, world);
                // The tail is loaded in the same step. If the thread pinned earlier, more records would be protected,
                // and fewer pushes would precede this one.
                self.load_tail(sole, world)
            }
            At::LoadTail => self.load_tail(sole, world),
            At::LoadWord { tail } => {
                let word = *world.word(tail);
                let is_sole = op_of(tail).is_none_or(|op| world.shape(op).arity() == 1);
                if word.next != NONE {
                    if !world.has(Rule::SwingForOthers) {
                        return At::LoadTail;
                    }
                    let linked = if world.has(Rule::DeferWhatWasLinked) {
                        word.linked
                    } else {
                        world.grantable(tail, word.flags | word.deferred, word.next)
                    };
                    if linked != 0 && world.has(Rule::Defer) {
                        At::DeferNext { tail, next: word.next, linked }
                    } else {
                        At::SwingNext { tail, next: word.next }
                    }
                } else if is_sole || !world.has(Rule::Help) || (self.helping && !world.has(Rule::HelpInDepth)) {
                    self.after_help(sole, tail, word.flags, world)
                } else {
                    At::LoadTheirRegistered { tail, flags: word.flags }
                }
            }
            At::DeferNext { tail, next, linked } => {
                world.defer(next, linked);
                At::SwingNext { tail, next }
            }
            At::SwingNext { tail, next } => {
                world.swing(tail, next);
                At::LoadTail
            }
            At::LoadTheirRegistered { tail, flags } => {
                let op = op_of(tail).expect("only operations should be helped");
                if world.record(op).registered < world.shape(op).arity() {
                    self.help(op)
                } else {
                    self.after_help(sole, tail, flags, world)
                }
            }
            At::RereadRegistered { tail, flags } => {
                if world.record(self.target).registered > self.target_index {
                    self.inserted(false, world)
                } else {
                    At::LoadDeferred { tail, flags }
                }
            }
            At::LoadDeferred { tail, flags } => {
                let deferred = world.word(tail).deferred;
                let grantable = world.grantable(tail, flags | deferred, self.access(world));
                if sole || self.is_unseen() {
                    At::StoreWord { tail, flags, grantable }
                } else {
                    At::Link { tail, flags, grantable }
                }
            }
            At::StoreWord { tail, flags, grantable } => {
                let access = self.access(world);
                world.word(access).flags = grantable;
                At::Link { tail, flags, grantable }
            }
            At::Link { tail, flags, grantable } => {
                let access = self.access(world);
                let word = world.word(tail);
                if (word.next, word.flags) != (NONE, flags) {
                    return At::LoadTail;
                }
                (word.next, word.linked) = (access, grantable);
                world.note_link(tail, access);
                if self.helping {
                    if !world.has(Rule::RegisterAfterSwing) {
                        let index = self.target_index;
                        let registered = &mut world.record(self.target).registered;
                        *registered = (*registered).max(index + 1);
                    }
                    if grantable != 0 { At::Defer { tail, grantable } } else { At::Swing { tail, grantable } }
                } else if sole || self.is_unseen() {
                    self.satisfied += u8::from(is_satisfied(world.mode(access), grantable));
                    At::Swing { tail, grantable }
                } else if grantable != 0 {
                    At::Grant { tail, grantable }
                } else {
                    At::Swing { tail, grantable }
                }
            }
            At::Grant { tail, grantable } => {
                let access = self.access(world);
                self.grant(access, grantable, world);
                At::Swing { tail, grantable }
            }
            At::Defer { tail, grantable } => {
                let access = self.access(world);
                if world.has(Rule::HelpersOnlyDefer) {
                    world.defer(access, grantable);
                } else {
                    world.add_flags(access, grantable);
                }
                At::Swing { tail, grantable }
            }
            At::Swing { tail, grantable } => {
                let access = self.access(world);
                world.swing(tail, access);
                if grantable & WRITE_OK != 0 && op_of(tail).is_some() {
                    At::RetireShare(Share::LoadLast(tail))
                } else {
                    self.inserted(true, world)
                }
            }
            At::RetireShare(share) => match share.step(world) {
                Some(share) => At::RetireShare(share),
                None => self.inserted(true, world),
            },
            At::LoadRegistered => {
                if world.record(self.target).registered == self.target_index {
                    At::Register
                } else {
                    self.inserted(false, world)
                }
            }
            At::Register => {
                let index = self.target_index;
                let registered = &mut world.record(self.target).registered;
                if *registered == index {
                    *registered = index + 1;
                }
                self.inserted(false, world)
            }
            At::HelpNext => {
                let registered = world.record(self.target).registered;
                if registered < world.shape(self.target).arity() {
                    self.target_index = registered;
                    At::LoadTail
                } else {
                    self.go_on_with(self.index, world)
                }
            }
            At::EndRegistration => {
                let arity = world.shape(self.own).arity();
                world.record(self.own).registered = arity;
                if sole { At::Unpin { ready: self.satisfied == 1 } } else { self.adopt(world) }
            }
            At::LoadAdopted { index } => {
                let access = self.own_access(index, world);
                match world.word(access).deferred {
                    0 => self.adopted(index, world),
                    flags => At::Adopt { index, flags },
                }
            }
            At::Adopt { index, flags } => {
                let access = self.own_access(index, world);
                self.grant(access, flags, world);
                self.adopted(index, world)
            }
            At::Decrement => {
                let count = self.satisfied + u8::from(world.has(Rule::PushCountsItself));
                let ready = count > 0 && world.count_down(self.own, count) == count;
                At::Unpin { ready }
            }
            At::Unpin { ready } => {
                world.state.unpin(thread);
                world.returns(self.own);
                if ready {
                    world.becomes_ready(self.own);
                }
                let next = self.own + 1;
                *self = if next < world.program.first[thread + 1] { Self::begin(next) } else { Self::OVER };
                self.at
            }
        }
    }

    fn load_tail(&self, sole: bool, world: &World<'_>) -> At {
        let access = self.access(world);
        let tail = world.state.tail[variable_of(access) as usize];
        if sole || tail != access {
            At::LoadWord { tail }
        } else if self.helping && !world.has(Rule::CountWhatIsIn) {
            At::HelpNext
        } else {
            At::LoadRegistered
        }
    }

    /// Continues once the operation at the tail is registered or needs no help.
    fn after_help(&mut self, sole: bool, tail: Access, flags: u8, world: &World<'_>) -> At {
        // No other thread knows an operation before its first access is linked. A pusher that counted all accesses in
        // advance cannot tell whether an access is in its queue.
        let unseen = sole || self.is_unseen();
        if !unseen && world.has(Rule::Reread) && (self.helping || world.has(Rule::RegisterWhenAllAreIn)) {
            At::RereadRegistered { tail, flags }
        } else {
            At::LoadDeferred { tail, flags }
        }
    }

    /// Returns the thread's first operation whose push is not over. Meaningless if there is none.
    pub(crate) fn own(&self) -> OpId {
        self.own
    }
}

impl World<'_> {
    /// Returns whether the push of `op` is over.
    pub(crate) fn has_returned(&self, op: OpId) -> bool {
        let thread = self.program.first.iter().rposition(|&first| first <= op).expect("a thread should push it");
        let push = &self.state.pushes[thread];
        push.at == At::Over || op < push.own()
    }

    /// Returns whether the push of `op` has steps left that use the operation, other than the decrement of `wait`.
    pub(crate) fn has_steps_for(&self, op: OpId) -> bool {
        !self.has_returned(op)
            && !self
                .state
                .pushes
                .iter()
                .any(|push| push.own == op && matches!(push.at, At::Decrement | At::Unpin { .. }))
    }

    /// Checks, when the push of `op` returns, that all the operation's queues contain it.
    fn returns(&mut self, op: OpId) {
        for variable in 0..crate::program::VARIABLES as u8 {
            if self.shape(op).0[variable as usize].is_some() && self.state.before(op, variable).is_none() {
                self.goes_wrong(Wrong::ReturnedTooEarly);
            }
        }
    }
}
