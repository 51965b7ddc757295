//! `end`, `complete_access`, `propagate` and `satisfy`, with one action for each atomic access.

use crate::{
    program::{Mode, Program, Shape, VARIABLES},
    state::{Access, DONE, NONE, OpId, READ_OK, Share, State, WRITE_OK, World, access_of, is_satisfied, op_of},
    step::Step,
    weaken::Rule,
};

/// A move from an access to its successor in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Passing {
    from: Access,
    next: Access,
    linked: u8,
    /// The flags to set on the next access.
    add: u8,
    /// An operation with a satisfied access that has not yet been subtracted from the operation's `wait`.
    owed: Option<OpId>,
    /// Whether `from` has already been retired, which happens only without [`Rule::PassBeforeRetire`].
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
    /// `advance_tail`: loads `registered` of the next operation (edge `register`).
    LoadNextRegistered(Passing),
    /// `advance_tail`: adds to the next access's deferred flags those that were grantable when it was linked.
    DeferNext(Passing),
    /// `advance_tail`: moves the tail (edge `swing`).
    Pass(Passing),
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
            At::LoadNextRegistered(_) => Step::LoadNextRegistered,
            At::DeferNext(_) => Step::DeferForNext,
            At::Pass(_) => Step::Pass,
            At::RetireShare(share, _) | At::End(share) => share.next_step(),
            At::AddFlags { .. } => Step::Propagate,
            At::LoadWait { .. } => Step::LoadWait,
            At::Satisfy { .. } => Step::Satisfy,
        })
    }

    /// Returns whether the next step changes the deferred flags of `access`.
    pub(crate) fn may_defer(&self, access: Access) -> bool {
        matches!(self.at, At::DeferNext(step) if step.next == access)
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
            At::LoadNextRegistered(step) => {
                op_of(step.next).is_some_and(|op| state.record(op).registered == program.ops[op as usize].arity())
            }
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
                self.pass(
                    Passing { from: access, next: old.next, linked: old.linked, add, owed: None, is_retired: false },
                    op,
                    world,
                )
            }
            At::LoadNextRegistered(step) => {
                let next = op_of(step.next).expect("an access behind another should belong to an operation");
                if world.record(next).registered == world.shape(next).arity() {
                    self.passed(step, op, world)
                } else if step.linked != 0 && world.has(Rule::Defer) {
                    At::DeferNext(step)
                } else {
                    At::Pass(step)
                }
            }
            At::DeferNext(step) => {
                world.defer(step.next, step.linked);
                At::Pass(step)
            }
            At::Pass(step) => {
                world.touch(step.from);
                world.swing(step.from, step.next);
                self.passed(step, op, world)
            }
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

    /// Moves the tail past `step.from`.
    fn pass(&mut self, step: Passing, op: OpId, world: &mut World<'_>) -> At {
        let is_own = op_of(step.from) == Some(op);
        if is_own && !world.has(Rule::PassBeforeHandOn) && self.pass_later.is_none() {
            self.pass_later = Some(step);
            Self::walk(step)
        } else if !is_own && !world.has(Rule::PassBeforeRetire) && !step.is_retired {
            At::RetireShare(Share::LoadLast(step.from), Passing { is_retired: true, ..step })
        } else if world.has(Rule::TailPastRetired) {
            At::LoadNextRegistered(step)
        } else {
            self.passed(step, op, world)
        }
    }

    /// Continues once the tail is past `step.from`. If `step.from` is another operation's access, this thread now ends
    /// the access's share of that operation's record; the completed operation's shares end later.
    fn passed(&mut self, step: Passing, op: OpId, world: &mut World<'_>) -> At {
        let is_own = op_of(step.from) == Some(op);
        if is_own && self.pass_later.take().is_some() {
            self.completed(true, op, world)
        } else if is_own || step.is_retired {
            Self::walk(step)
        } else {
            At::RetireShare(Share::LoadLast(step.from), step)
        }
    }

    fn walk(step: Passing) -> At {
        At::AddFlags { at: step.next, add: step.add, owed: step.owed }
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
        let stop = gained == 0 || old.next == NONE;
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
            let step = Passing {
                from: at,
                next: old.next,
                linked: old.linked,
                add: gained_flags(gained),
                owed,
                is_retired: false,
            };
            Then::GoOn(step)
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
                world.touch(step.next);
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
