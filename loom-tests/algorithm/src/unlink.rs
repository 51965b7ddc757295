//! `unlink_behind`, with one action for each atomic access.

use crate::{
    complete::{Advance, Link},
    program::{Mode, Program, THREADS, VARIABLES},
    state::{Access, DONE, NONE, Share, State, WRITE_OK, Word, World},
    step::Step,
    weaken::Rule,
};

/// The bit of the unlinking thread among the pinned ones.
pub(crate) const UNLINKER: usize = THREADS;

/// An attempt to unlink the access behind `at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Attempt {
    at: Access,
    /// The word of `at`, as loaded.
    word: Word,
    /// The access to unlink, and the one behind it.
    behind: Link,
}

/// The next step of the unlinking thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum At {
    /// The thread is not unlinking.
    Idle,
    /// Loads the word of an access (edge `link`).
    LoadWord(Access),
    /// Loads the word of the access behind `at`, whose word was `word` (edge `complete`).
    LoadBehind { at: Access, word: Word },
    /// `advance_tail`: moves the tail past the access to unlink (edges `register`, `swing`).
    Pass(Advance, Attempt),
    /// The CAS of the word of `at` (edge `link`).
    Unlink(Attempt),
    /// Ends the share of the unlinked access (edge `retire`), and continues with `at`.
    RetireShare(Share, Access),
}

/// The thread that unlinks accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Unlinking {
    at: At,
    /// The number of times that the thread may still begin.
    left: u8,
}

impl Unlinking {
    /// Returns a thread that may begin this number of times.
    pub(crate) fn times(left: u8) -> Self {
        Self { at: At::Idle, left }
    }

    /// Returns whether the thread is unlinking, and is pinned.
    pub(crate) fn is_under_way(&self) -> bool {
        self.at != At::Idle
    }

    /// Returns whether the thread may take further steps.
    pub(crate) fn may_act(&self) -> bool {
        self.is_under_way() || self.left > 0
    }

    /// Returns the next step, if any.
    pub(crate) fn next_step(&self) -> Option<Step> {
        Some(match self.at {
            At::Idle => return None,
            At::LoadWord(_) => Step::LoadAt,
            At::LoadBehind { .. } => Step::LoadBehind,
            At::Pass(advance, _) => advance.next_step(),
            At::Unlink(_) => Step::Unlink,
            At::RetireShare(share, _) => share.next_step(),
        })
    }

    /// Returns whether the thread is at the head of the loop that walks down a queue.
    pub(crate) fn is_at_the_head_of_a_loop(&self) -> bool {
        matches!(self.at, At::LoadWord(_))
    }

    /// Returns whether the order of the next step relative to other threads' steps is irrelevant, as for a push.
    pub(crate) fn is_alone(&self, state: &State, program: &Program) -> bool {
        match self.at {
            // A spent access stays spent. If the thread unpins earlier, fewer records are protected.
            At::LoadWord(at) => state.word(at).is_spent(),
            At::LoadBehind { word, .. } => state.word(word.next).is_spent(),
            At::Pass(advance, attempt) => advance.is_alone(attempt.behind, state, program),
            // The CAS fails whenever it is executed: flags are never removed, and no other thread changes a link.
            At::Unlink(Attempt { at, word, .. }) => state.word(at).flags != word.flags,
            At::RetireShare(share, _) => share.is_alone(),
            At::Idle => false,
        }
    }

    /// Returns the accesses at which the thread may begin: those in a queue that are not spent. It would end at once at
    /// a writer, or at an access with nothing linked behind it.
    pub(crate) fn starts<'a>(&self, state: &'a State, program: &'a Program) -> impl Iterator<Item = Access> + 'a {
        let variables = if self.is_under_way() || self.left == 0 { 0 } else { VARIABLES as Access };
        (0..variables).flat_map(|variable| state.walk(variable)).filter(|&at| {
            let word = state.word(at);
            word.next != NONE && !word.is_spent() && program.mode(at) != Mode::Write
        })
    }

    /// Begins at `from`.
    pub(crate) fn begin(mut self, from: Access, world: &mut World<'_>) {
        self.left -= 1;
        // The word is loaded in the same step. If the thread pinned earlier, more records would be protected.
        self.at = At::LoadWord(from);
        world.state.unlinking = self;
        self.step(world);
    }

    /// Takes the next step.
    pub(crate) fn step(mut self, world: &mut World<'_>) {
        self.at = Self::next(self.at, world);
        world.state.unlinking = self;
        if self.at == At::Idle {
            world.state.unpin(UNLINKER);
        }
    }

    fn next(at: At, world: &mut World<'_>) -> At {
        match at {
            At::Idle => At::Idle,
            At::LoadWord(at) => {
                let word = Word { deferred: 0, ..*world.word(at) };
                if word.next == NONE || word.is_spent() && world.has(Rule::StopAtSpent) || world.mode(at) == Mode::Write
                {
                    At::Idle
                } else {
                    At::LoadBehind { at, word }
                }
            }
            At::LoadBehind { at, word } => {
                let (next, behind) = (word.next, *world.word(word.next));
                let is_done =
                    behind.flags & DONE != 0 || !world.has(Rule::UnlinkWhenDone) && world.mode(next) == Mode::Read;
                let follows_done = word.flags & DONE != 0 || !world.has(Rule::UnlinkBehindDone);
                if behind.next == NONE || !is_done || behind.flags & WRITE_OK != 0 || !follows_done {
                    return At::LoadWord(next);
                }
                world.touch(behind.next);
                let attempt = Attempt { at, word, behind: behind.link_behind(next) };
                if world.has(Rule::TailPastUnlinked) {
                    At::Pass(Advance::LoadRegistered, attempt)
                } else {
                    At::Unlink(attempt)
                }
            }
            At::Pass(advance, attempt) => match advance.step(attempt.behind, world) {
                Some(advance) => At::Pass(advance, attempt),
                None => At::Unlink(attempt),
            },
            At::Unlink(Attempt { at, word: old, behind }) => {
                let compares_flags = world.has(Rule::CompareFlags);
                let word = world.word(at);
                if word.next != old.next || word.flags != old.flags && compares_flags {
                    return At::LoadWord(at);
                }
                (word.next, word.linked) = (behind.next, behind.linked);
                At::RetireShare(Share::LoadLast(behind.from), at)
            }
            At::RetireShare(share, at) => match share.step(world) {
                Some(share) => At::RetireShare(share, at),
                None => At::LoadWord(at),
            },
        }
    }
}
