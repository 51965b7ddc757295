//! `end`, `complete_access`, `advance_tail`, `propagate` and `satisfy`, with one action for each atomic access.

use crate::{
    program::{Mode, Program, Shape, VARIABLES},
    state::{Access, DONE, NONE, OpId, READ_OK, Share, State, WRITE_OK, World, access_of, is_satisfied, op_of},
    step::Step,
    weaken::Rule,
};

/// An access behind another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Link {
    pub(crate) from: Access,
    pub(crate) next: Access,
    pub(crate) linked: u8,
}

/// The steps of `advance_tail`, which moves the tail past the first access of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Advance {
    /// Loads `registered` of the next operation (edge `register`).
    LoadRegistered,
    /// Adds to the next access's deferred flags those that were grantable when it was linked.
    Defer,
    /// Moves the tail (edge `swing`).
    Pass,
}

impl Advance {
    /// Returns the next step.
    pub(crate) fn next_step(self) -> Step {
        match self {
            Self::LoadRegistered => Step::LoadNextRegistered,
            Self::Defer => Step::DeferForNext,
            Self::Pass => Step::Pass,
        }
    }

    /// Returns whether the order of the next step relative to other threads' steps is irrelevant.
    pub(crate) fn is_alone(self, link: Link, state: &State, program: &Program) -> bool {
        match self {
            Self::LoadRegistered => {
                op_of(link.next).is_some_and(|op| state.record(op).registered == program.ops[op as usize].arity())
            }
            Self::Defer | Self::Pass => false,
        }
    }

    /// Takes the next step. Returns `None` after the last one.
    pub(crate) fn step(self, link: Link, world: &mut World<'_>) -> Option<Self> {
        match self {
            Self::LoadRegistered => {
                let next = op_of(link.next).expect("an access behind another should belong to an operation");
                if world.record(next).registered == world.shape(next).arity() {
                    None
                } else if link.linked != 0 && world.has(Rule::Defer) {
                    Some(Self::Defer)
                } else {
                    Some(Self::Pass)
                }
            }
            Self::Defer => {
                world.defer(link.next, link.linked);
                Some(Self::Pass)
            }
            Self::Pass => {
                world.touch(link.from);
                world.swing(link.from, link.next);
                None
            }
        }
    }
}

/// A move from an access to its successor in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Passing {
    link: Link,
    /// The flags to set on the next access.
    add: u8,
    /// An operation with a satisfied access that has not yet been subtracted from the operation's `wait`.
    owed: Option<OpId>,
    /// Whether the first access has already been retired, which happens only without [`Rule::PassBeforeRetire`].
    is_retired: bool,
}

/// The continuation after an access is satisfied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Then {
    Stop { owed: Option<OpId> },
    GoOn(Passing),
}

/// The next step of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum At {
    /// The operation is not ready, or no thread has yet found it ready.
    Waiting,
    /// `leave_to_access`: loads `live` (edge `retire`). The operation's function runs until this step.
    LoadLive,
    /// `leave_to_access`: records that the access holds the only share of the record.
    LeaveToAccess,
    /// `complete_access`: sets `DONE` (edges `complete`, `link`). If the operation has several accesses, its function
    /// runs until the first of these steps.
    Done { variable: u8 },
    /// `advance_tail`: moves the tail (edges `register`, `swing`).
    Pass(Advance, Passing),
    /// `propagate_from_reader`: ends the share of the spent access (edge `retire`).
    RetireShare(Share, Passing),
    /// `propagate`: sets flags (edges `complete`, `link`).
    AddFlags { at: Access, add: u8, owed: Option<OpId> },
    /// `satisfy`: loads `wait` (edge `ready`).
    LoadWait { op: OpId, then: Then },
    /// `satisfy`: subtracts the access from `wait` (edge `ready`).
    Satisfy { op: OpId, then: Then },
    /// `end`: retires the record, or ends the remaining shares (edge `retire`).
    End(Share),
    /// The operation is complete.
    Over,
}

/// An operation's completion, which any thread may perform.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Completion {
    pub(crate) at: At,
    /// The variable whose access is being completed.
    variable: u8,
    /// The number of the operation's spent accesses, whose shares this thread must end.
    spent: u8,
    /// Whether the function has returned and the first access is done.
    begun: bool,
    /// A postponed move of the tail, which happens only without [`Rule::PassBeforeHandOn`].
    pass_later: Option<Passing>,
}

impl Completion {
    pub(crate) const WAITING: Self = Self { at: At::Waiting, variable: 0, spent: 0, begun: false, pass_later: None };

    /// Returns the completion of a newly ready operation.
    pub(crate) fn ready(shape: &Shape) -> Self {
        let variable = shape.variable(0).expect("an operation should have an access");
        let at = if shape.arity() == 1 { At::LoadLive } else { At::Done { variable } };
        Self { at, variable, ..Self::WAITING }
    }

    /// Returns whether the function has returned.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Returns whether the thread is between the first and the last step of a completion.
    pub(crate) fn is_under_way(&self) -> bool {
        self.begun && self.at != At::Over
    }

    /// Returns the next step, if any.
    pub(crate) fn next_step(&self) -> Option<Step> {
        Some(match self.at {
            At::Waiting | At::Over => return None,
            At::LoadLive => Step::LoadLive,
            At::LeaveToAccess => Step::LeaveToAccess,
            At::Done { .. } => Step::Done,
            At::Pass(advance, _) => advance.next_step(),
            At::RetireShare(share, _) | At::End(share) => share.next_step(),
            At::AddFlags { .. } => Step::Propagate,
            At::LoadWait { .. } => Step::LoadWait,
            At::Satisfy { .. } => Step::Satisfy,
        })
    }

    /// Returns whether the next step changes the deferred flags of `access`.
    pub(crate) fn may_defer(&self, access: Access) -> bool {
        matches!(self.at, At::Pass(Advance::Defer, step) if step.link.next == access)
    }

    /// Returns whether the operation is not ready yet.
    pub(crate) fn is_waiting(&self) -> bool {
        self.at == At::Waiting
    }

    /// Returns whether the operation is complete.
    pub(crate) fn is_over(&self) -> bool {
        self.at == At::Over
    }

    /// Returns whether the thread is at the head of the loop that walks down a queue.
    pub(crate) fn is_at_the_head_of_a_loop(&self) -> bool {
        matches!(self.at, At::AddFlags { .. })
    }

    /// Returns whether the order of the next step relative to other threads' steps is irrelevant: the step reads
    /// nothing that other threads may still change and changes nothing that they may still read, or taking the step
    /// early hides no error.
    pub(crate) fn is_alone(&self, state: &State, program: &Program) -> bool {
        match self.at {
            At::LoadLive | At::LeaveToAccess => true,
            At::Pass(advance, step) => advance.is_alone(step.link, state, program),
            // If other parts of `wait` remain, the next step subtracts this thread's part and observes which other
            // parts have been subtracted by then. If only this thread's part remains, the operation may run, and
            // running it early hides no error.
            At::LoadWait { .. } => true,
            At::RetireShare(share, _) | At::End(share) => share.is_alone(),
            _ => false,
        }
    }

    /// Takes the next step of the completion of `op`.
    pub(crate) fn step(mut self, op: OpId, world: &mut World<'_>) {
        self.at = self.next(op, world);
        if self.at == At::Over {
            self = Self { at: At::Over, begun: true, ..Self::WAITING };
        }
        world.state.completions[op as usize] = self;
    }

    fn next(&mut self, op: OpId, world: &mut World<'_>) -> At {
        match self.at {
            At::Waiting | At::Over => self.at,
            At::LoadLive => {
                let _ = world.record(op);
                At::LeaveToAccess
            }
            At::LeaveToAccess => {
                world.record(op).last_share = true;
                At::Done { variable: self.variable }
            }
            At::Done { variable } => {
                (self.begun, self.variable) = (true, variable);
                let access = access_of(op, variable);
                let old = world.add_flags(access, DONE);
                if old.flags & WRITE_OK == 0 || old.next == NONE {
                    return self.completed(false, op, world);
                }
                world.touch(old.next);
                let add = READ_OK | WRITE_OK;
                self.pass(Passing { link: old.link_behind(access), add, owed: None, is_retired: false }, op, world)
            }
            At::Pass(advance, step) => match advance.step(step.link, world) {
                Some(advance) => At::Pass(advance, step),
                None => self.passed(step, op, world),
            },
            At::RetireShare(share, step) => match share.step(world) {
                Some(share) => At::RetireShare(share, step),
                None if step.is_retired => self.pass(step, op, world),
                None => Self::walk(step),
            },
            At::AddFlags { at, add, owed } => self.add_flags(at, add, owed, op, world),
            At::LoadWait { op: satisfied, then } => {
                if world.record(satisfied).wait == 1 {
                    world.becomes_ready(satisfied);
                    self.then(then, op, world)
                } else {
                    At::Satisfy { op: satisfied, then }
                }
            }
            At::Satisfy { op: satisfied, then } => {
                if world.count_down(satisfied, 1) == 1 {
                    world.becomes_ready(satisfied);
                }
                self.then(then, op, world)
            }
            At::End(share) => share.step(world).map_or(At::Over, At::End),
        }
    }

    /// Moves the tail past `step.link.from`.
    fn pass(&mut self, step: Passing, op: OpId, world: &mut World<'_>) -> At {
        let is_own = op_of(step.link.from) == Some(op);
        if is_own && !world.has(Rule::PassBeforeHandOn) && self.pass_later.is_none() {
            self.pass_later = Some(step);
            Self::walk(step)
        } else if !is_own && !world.has(Rule::PassBeforeRetire) && !step.is_retired {
            At::RetireShare(Share::LoadLast(step.link.from), Passing { is_retired: true, ..step })
        } else if world.has(Rule::TailPastRetired) {
            At::Pass(Advance::LoadRegistered, step)
        } else {
            self.passed(step, op, world)
        }
    }

    /// Continues once the tail is past `step.link.from`. If that is another operation's access, this thread now ends
    /// its share; the completed operation's shares end later.
    fn passed(&mut self, step: Passing, op: OpId, world: &mut World<'_>) -> At {
        let is_own = op_of(step.link.from) == Some(op);
        if is_own && self.pass_later.take().is_some() {
            self.completed(true, op, world)
        } else if is_own || step.is_retired {
            Self::walk(step)
        } else {
            At::RetireShare(Share::LoadLast(step.link.from), step)
        }
    }

    fn walk(step: Passing) -> At {
        At::AddFlags { at: step.link.next, add: step.add, owed: step.owed }
    }

    fn add_flags(&mut self, at: Access, add: u8, owed: Option<OpId>, op: OpId, world: &mut World<'_>) -> At {
        let mode = world.mode(at);
        let old = world.add_flags(at, add);
        let new = add & !old.flags;
        let newly_satisfied = is_satisfied(mode, new);
        let gained = if mode == Mode::Write {
            if world.has(Rule::GrantWhenDone) { 0 } else { new }
        } else {
            let pass_on = if world.has(Rule::ReadersPassOn) { READ_OK } else { 0 };
            let done = old.flags & DONE != 0 || !world.has(Rule::GrantWhenDone);
            new & if done { READ_OK | WRITE_OK } else { pass_on }
        };
        let ends_run = || gained & WRITE_OK == 0 && !mode.passes_to(world.mode(old.next)) && world.has(Rule::RunsEnd);
        let stop = gained == 0 || old.next == NONE || ends_run();
        let this = if newly_satisfied { op_of(at) } else { None };
        let mut owed = owed;
        let mut now = None;
        if newly_satisfied || stop {
            now = owed.take();
        }
        let owed = this.or(owed);
        let then = if stop {
            Then::Stop { owed }
        } else {
            Then::GoOn(Passing { link: old.link_behind(at), add: gained_flags(gained), owed, is_retired: false })
        };
        if !world.has(Rule::PutOffSatisfy) {
            if let (Then::GoOn(step), Some(this)) = (then, this) {
                return At::LoadWait { op: this, then: Then::GoOn(Passing { owed: None, ..step }) };
            }
        }
        match now {
            Some(satisfied) => At::LoadWait { op: satisfied, then },
            None => self.then(then, op, world),
        }
    }

    fn then(&mut self, then: Then, op: OpId, world: &mut World<'_>) -> At {
        match then {
            Then::Stop { owed: Some(satisfied) } => At::LoadWait { op: satisfied, then: Then::Stop { owed: None } },
            Then::Stop { owed: None } => self.completed(true, op, world),
            Then::GoOn(step) => {
                world.touch(step.link.next);
                if step.add & WRITE_OK != 0 { self.pass(step, op, world) } else { Self::walk(step) }
            }
        }
    }

    /// Continues after an access is complete. `spent` tells whether this thread must end the access's share.
    fn completed(&mut self, spent: bool, op: OpId, world: &mut World<'_>) -> At {
        if let Some(step) = self.pass_later {
            return self.pass(step, op, world);
        }
        let shape = world.shape(op);
        if shape.arity() == 1 {
            return if spent { At::End(Share::Retire(op)) } else { At::Over };
        }
        self.spent += u8::from(spent);
        match (self.variable + 1..VARIABLES as u8).find(|&variable| shape.0[variable as usize].is_some()) {
            Some(variable) => At::Done { variable },
            None => At::End(Share::LoadLive(op, 1 + self.spent)),
        }
    }
}

fn gained_flags(gained: u8) -> u8 {
    if gained & WRITE_OK != 0 { READ_OK | WRITE_OK } else { READ_OK }
}
