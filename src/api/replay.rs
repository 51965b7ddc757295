//! Replays: the operations of a log, pushed again in the same order.
//!
//! # Order
//!
//! Each operation from outside is an *item*, together with those from inside to which it has led, whose pushes are left
//! to its function. Of two items with conflicting accesses to a variable, the places there say which comes first:
//!
//! | the earlier access is | so the later item |
//! |---|---|
//! | the item's own | is pushed after the earlier item |
//! | one from inside, or both commute | is pushed after all that the earlier item has led to is done |
//!
//! Any order of the items that agrees with this leads to the same values. There is one unless pushes from inside came
//! between each other in a way that only a new race could repeat.
//!
//! An operation that was skipped or cancelled is replaced by one with the same accesses that fails.

use std::{
    any::Any,
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, HashMap, HashSet},
    error::Error,
    fmt,
    panic::Location,
};

use raddle_trace::recording::{IdMap, IdSet};

use crate::{
    api::{
        engine::Engine,
        operator::{Operator, Parameters},
        token::Token,
        var::Var,
    },
    error::{BoxError, push_error::PushError, wait::WaitError},
    trace::{
        AccessMode, Outcome,
        log_entries::{LogEntries, LogEntry, Root},
    },
    wait,
};

/// Pushes the operations of a [`Log`](crate::replay::Log) again, in the same order and with the same arguments.
///
/// The program creates the variables with the values that they had when the log began, and the same operators, and
/// tells the replay of the [operators](Self::operator) and of the [variables](Self::variable) that were chosen at
/// pushes. Then the variables receive the same values, to the bit, on an engine of any kind, if the operators'
/// functions depend only on their variables and arguments. See [`Log`](crate::replay::Log) for an example, and the
/// [guide](crate::guide::replay) for what cannot be replayed.
#[must_use = "a replay does nothing until `run`"]
pub struct Replay<'e> {
    engine: &'e Engine,
    entries: LogEntries,
    operators: HashMap<String, Vec<ReplayedOperator<'e>>>,
    variables: HashMap<String, Vec<Added>>,
}

/// A variable that the program has added, also as a typed handle.
type Added = (Token, Box<dyn Any>);

/// An operator of the replay.
struct ReplayedOperator<'e> {
    /// Its own variables, in the order in which it declares them.
    tokens: Vec<Token>,
    push: Box<PushAgain<'e>>,
}

/// Pushes a run with this argument on these chosen variables.
type PushAgain<'e> = dyn Fn(&[u8], &[&dyn Any], &'static Location<'static>) -> Result<(), Unpushed> + 'e;

/// Why a run was not pushed.
enum Unpushed {
    Argument(BoxError),
    Chosen,
    Push(PushError),
}

/// Why a log could not be replayed. An operation is described by its name and by where it was pushed when the log was
/// written.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReplayError {
    /// The replay knows no operator with this name, or several, or has the log from several.
    Operator(String),
    /// The replay's operator with this name has other variables than the one of the log.
    Variables(String),
    /// The replay knows no variable that corresponds to this one, or several. If it has no name, this is its number in
    /// the log.
    Variable(String),
    /// The variables chosen for this operation do not have the types that the replay's operator declares.
    Chosen(String),
    /// The argument of this operation could not be decoded.
    Argument(String, BoxError),
    /// This operation mutates a variable that logged operators use, but is not a run of one.
    Unlogged(String),
    /// This operation cannot be put in order: operations from outside came between those that it has pushed itself, or
    /// the log is damaged.
    Order(String),
    /// Two operations have the same place on this variable, so the log is damaged.
    Place(String, u64),
    /// The push of this operation was refused.
    Push(String, PushError),
    /// A wait between two pushes was refused.
    Wait(WaitError),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operator(name) => write!(f, "the replay needs one operator `{name}`, as the log has"),
            Self::Variables(name) => write!(f, "the operator `{name}` has other variables than when it was logged"),
            Self::Variable(name) => {
                write!(f, "the replay needs one variable for `{name}`; name it, and pass it to `Replay::variable`")
            }
            Self::Chosen(op) => write!(f, "the variables of {op} are not of the types that its operator declares"),
            Self::Argument(op, error) => write!(f, "the argument of {op} cannot be decoded: {error}"),
            Self::Unlogged(op) => {
                write!(f, "{op} cannot be pushed again; push it as an operator with `Operator::logged`")
            }
            Self::Order(op) => write!(
                f,
                "{op} cannot be put in order: others came between what it has pushed itself, or the log is damaged"
            ),
            Self::Place(variable, place) => {
                write!(f, "the log is damaged: two operations have the place {place} on `{variable}`")
            }
            Self::Push(op, error) => write!(f, "{op} was refused: {error}"),
            Self::Wait(error) => write!(f, "the replay could not wait for an operation: {error}"),
        }
    }
}

impl Error for ReplayError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            // The message includes this error, so the chain continues with its source.
            Self::Argument(_, error) => error.source(),
            Self::Push(_, error) => error.source(),
            Self::Wait(error) => error.source(),
            _ => None,
        }
    }
}

impl fmt::Debug for Replay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay").field("operators", &self.operators.len()).finish_non_exhaustive()
    }
}

impl<'e> Replay<'e> {
    /// Creates a replay of these entries on `engine`, which may have a log of its own.
    pub fn new(engine: &'e Engine, entries: LogEntries) -> Self {
        Self { engine, entries, operators: HashMap::new(), variables: HashMap::new() }
    }

    /// Adds an operator, which stands for the logged one with its name. `decode` makes the argument of the bytes that
    /// the [`logged`](Operator::logged) of the other one has written.
    pub fn operator<P: Parameters>(
        &mut self,
        operator: &'e Operator<P>,
        decode: impl Fn(&[u8]) -> Result<P::Argument, BoxError> + 'e,
    ) -> &mut Self {
        let push = move |argument: &[u8], chosen: &[&dyn Any], location| {
            let argument = decode(argument).map_err(Unpushed::Argument)?;
            P::push_again(operator, chosen, argument, location).ok_or(Unpushed::Chosen)?.map_err(Unpushed::Push)
        };
        let known = ReplayedOperator { tokens: operator.tokens().to_vec(), push: Box::new(push) };
        self.operators.entry(operator.name().as_str().to_owned()).or_default().push(known);
        self
    }

    /// Adds a variable, which stands for the one with its name in the log. This is necessary for variables that are
    /// chosen at pushes; operators bring their own.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{Engine, chosen, replay::{Log, Replay}};
    ///
    /// fn accounts(engine: &Engine) -> [raddle::Var<i64>; 2] {
    ///     ["left", "right"].map(|name| engine.var(0).named(name))
    /// }
    ///
    /// let log = Log::new();
    /// let engine = Engine::builder().workers(1).log(&log).build()?;
    /// let on = accounts(&engine);
    /// let add = engine.op("add").operator_on(chosen::write::<i64>(), (), |to, (), by: i64| *to += by)?;
    /// let add = add.logged(|amount: &i64, bytes| bytes.extend(amount.to_le_bytes()));
    /// add.push_on(&on[1], 7)?;
    /// engine.wait_for_all()?;
    ///
    /// let again = Engine::builder().workers(1).build()?;
    /// let on = accounts(&again);
    /// let add = again.op("add").operator_on(chosen::write::<i64>(), (), |to, (), by: i64| *to += by)?;
    /// let mut replay = Replay::new(&again, log.entries()?);
    /// on.iter().for_each(|account| _ = replay.variable(account));
    /// replay.operator(&add, |bytes| Ok(i64::from_le_bytes(bytes.try_into()?)));
    /// replay.run()?;
    /// assert_eq!(again.get(&on[1])?, 7);
    /// # Ok(())
    /// # }
    /// ```
    pub fn variable<T: 'static>(&mut self, variable: &Var<T>) -> &mut Self {
        self.add(variable.as_ref(), Box::new(variable.clone()))
    }

    /// Adds a token, as [`variable`](Self::variable) adds a variable.
    pub fn token(&mut self, token: &Token) -> &mut Self {
        self.add(token, Box::new(token.clone()))
    }

    fn add(&mut self, token: &Token, handle: Box<dyn Any>) -> &mut Self {
        let known = self.variables.entry(token.name().unwrap_or_default().to_owned()).or_default();
        if known.iter().all(|(known, _)| known != token) {
            known.push((token.clone(), handle));
        }
        self
    }

    /// Pushes the operations, and returns how many they are. It waits only where the log says that an operation from
    /// outside came behind what another operation had pushed, and between operations that commute on a variable. The
    /// failures of the operations are reported as those of any other.
    ///
    /// # Errors
    /// Returns why the log cannot be replayed. Nothing has been pushed then, except if the error is
    /// [`Argument`](ReplayError::Argument), [`Chosen`](ReplayError::Chosen), [`Push`](ReplayError::Push) or
    /// [`Wait`](ReplayError::Wait).
    #[track_caller]
    pub fn run(&mut self) -> Result<usize, ReplayError> {
        let location = Location::caller();
        let entries: Vec<&LogEntry> = self.entries.iter().collect();
        let (operators, variables) = self.find_counterparts()?;
        let plan = ReplayPlan::new(&self.entries, &entries, &variables)?;
        // The number of items pushed, and that of those that are known to be done with all to which they have led.
        let (mut pushed, mut done) = (0, 0);
        let mut pushed_as = vec![usize::MAX; entries.len()];
        for &at in &plan.order {
            let item = &plan.items[at];
            if item.after_all_of.iter().any(|&earlier| pushed_as[earlier] >= done) {
                wait::until_idle_or_failed(self.engine.core(), None).map_err(ReplayError::Wait)?;
                done = pushed;
            }
            let op = || described(entries[at]);
            let result = match entries[at].operator {
                Some(operator) => push_run(entries[at], operators[&operator], &variables, location),
                None if entries[at].is_clear() => self.clear(entries[at], &variables).map_err(Unpushed::Push),
                None => self.push_failing(entries[at], &variables).map_err(Unpushed::Push),
            };
            result.map_err(|unpushed| match unpushed {
                Unpushed::Argument(error) => ReplayError::Argument(op(), error),
                Unpushed::Chosen => ReplayError::Chosen(op()),
                Unpushed::Push(error) => ReplayError::Push(op(), error),
            })?;
            pushed_as[at] = pushed;
            pushed += 1;
        }
        Ok(pushed)
    }

    /// Clears the failure that the engine has cleared.
    #[track_caller]
    fn clear(&self, entry: &LogEntry, variables: &Counterparts<'_>) -> Result<(), PushError> {
        let mut cleared = entry.accesses().iter().filter_map(|access| variables.get(&access.variable));
        cleared.try_for_each(|found| self.engine.clear_error(&found.token))
    }

    /// Pushes an operation in place of one that was skipped or cancelled.
    #[track_caller]
    fn push_failing(&self, entry: &LogEntry, variables: &Counterparts<'_>) -> Result<(), PushError> {
        let of_mode = |mode: AccessMode| {
            let accesses = entry.accesses().iter().filter(move |access| access.mode == mode);
            accesses.filter_map(|access| Some(&variables.get(&access.variable)?.token))
        };
        let op = self.engine.op(entry.name().to_owned()).reads(of_mode(AccessMode::Read));
        let op = op.writes(of_mode(AccessMode::Write)).overwrites(of_mode(AccessMode::Overwrite));
        let op = op.commutes(of_mode(AccessMode::Commute));
        op.try_push((), |()| Err("the operation was skipped or cancelled when it was logged".into()))
    }

    /// Returns the operators of the replay whose runs are pushed, and the variables that correspond to those of the
    /// log: the operators' own, and those that the program has added.
    fn find_counterparts(&self) -> Result<(Operators<'_, 'e>, Counterparts<'_>), ReplayError> {
        let mut found = Counterparts::default();
        let runs = self.entries.iter().filter(|entry| !entry.is_from_inside()).filter_map(|entry| entry.operator);
        let (mut operators, mut names) = (IdMap::default(), HashSet::new());
        for number in runs.collect::<BTreeSet<_>>() {
            let operator = &self.entries.operators[&number];
            let known = match self.operators.get(&*operator.name).map(Vec::as_slice) {
                Some([known]) if names.insert(&operator.name) => known,
                _ => return Err(ReplayError::Operator(operator.name.to_string())),
            };
            operators.insert(number, known);
            let is_same = known.tokens.len() == operator.variables.len();
            let mut pairs = known.tokens.iter().zip(&operator.variables);
            let mut fits = |(token, variable): (&Token, &u64)| {
                let found =
                    found.entry(*variable).or_insert_with(|| Counterpart { token: token.clone(), handle: None });
                found.token == *token
            };
            if !is_same || !pairs.all(&mut fits) {
                return Err(ReplayError::Variables(operator.name.to_string()));
            }
        }
        let mut named: HashMap<&str, Vec<u64>> = HashMap::new();
        for (&variable, name) in &self.entries.variables {
            named.entry(name).or_default().push(variable);
        }
        for (name, known) in &self.variables {
            if let (Some(&[variable]), [(token, handle)]) = (named.get(&**name).map(Vec::as_slice), known.as_slice()) {
                let found = found.entry(variable).or_insert_with(|| Counterpart { token: token.clone(), handle: None });
                found.handle = Some(&**handle).filter(|_| found.token == *token);
            }
        }
        Ok((operators, found))
    }
}

/// Pushes a run of a logged operator as one of `operator`.
fn push_run(
    entry: &LogEntry,
    operator: &ReplayedOperator<'_>,
    variables: &Counterparts<'_>,
    location: &'static Location<'static>,
) -> Result<(), Unpushed> {
    let chosen: Option<Vec<_>> = entry.chosen.iter().map(|variable| variables.get(variable)?.handle).collect();
    (operator.push)(entry.argument(), &chosen.ok_or(Unpushed::Chosen)?, location)
}

/// The operators of the replay, by the numbers of their counterparts in the log.
type Operators<'r, 'e> = IdMap<u32, &'r ReplayedOperator<'e>>;

/// The variables of the replay, by the numbers of their counterparts in the log.
type Counterparts<'r> = IdMap<u64, Counterpart<'r>>;

/// A variable of the replay.
struct Counterpart<'r> {
    token: Token,
    /// The typed handle, if the program has added the variable.
    handle: Option<&'r dyn Any>,
}

/// Describes an operation in errors.
fn described(entry: &LogEntry) -> String {
    format!("`{}` from {}", entry.name(), entry.location())
}

/// In which order the operations of a log are pushed again.
struct ReplayPlan {
    /// What is known of each entry from outside that is pushed; what others have here means nothing.
    items: Vec<Item>,
    /// The entries that are pushed.
    order: Vec<usize>,
    /// The lists of the items that come later than others, each with the next one's place here.
    later: Vec<(usize, Option<usize>)>,
}

/// An operation from outside.
#[derive(Clone, Default)]
struct Item {
    /// Whether it is pushed.
    is_kept: bool,
    /// Where the list of the items that come later begins.
    later: Option<usize>,
    /// The number of items that must be pushed before it.
    earlier: usize,
    /// The items that must be done with all to which they have led.
    after_all_of: Vec<usize>,
}

/// An access of a kept item or of what it has led to.
#[derive(Clone, Copy)]
struct ItemAccess {
    place: u64,
    is_write: bool,
    commutes: bool,
    is_from_inside: bool,
    item: usize,
}

impl ReplayPlan {
    fn new(log: &LogEntries, entries: &[&LogEntry], variables: &Counterparts<'_>) -> Result<Self, ReplayError> {
        let items = vec![Item::default(); entries.len()];
        let mut plan = Self { items, order: Vec::new(), later: Vec::new() };
        let root_of = |at: usize| match entries[at].root() {
            None => Some(at),
            Some(Root::At(root)) => Some(root),
            Some(Root::Unknown) => None,
        };
        let name_of = |variable: u64| log.variable_name(variable).map_or_else(|| format!("#{variable}"), str::to_owned);
        let is_run = |at: usize| entries[at].operator.is_some();
        // What runs of logged operators use, directly or through what they push, and what the program has added.
        // Nothing else matters.
        let mut used: IdSet<u64> = variables.keys().copied().collect();
        for (at, entry) in entries.iter().enumerate().filter(|&(at, _)| root_of(at).is_some_and(is_run)) {
            used.extend(entry.accesses().iter().map(|access| access.variable));
            plan.items[at].is_kept = !entry.is_from_inside();
            let chosen = entry.chosen.iter().filter(|_| plan.items[at].is_kept);
            if let Some(&unknown) =
                chosen.into_iter().find(|&one| variables.get(one).is_none_or(|one| one.handle.is_none()))
            {
                return Err(ReplayError::Variable(name_of(unknown)));
            }
        }
        for (at, entry) in entries.iter().enumerate() {
            let mut relevant = entry.accesses().iter().filter(|access| used.contains(&access.variable));
            let is_changing = relevant.clone().any(|access| access.mode.is_write());
            match root_of(at) {
                _ if !is_changing => {}
                Some(root) if is_run(root) => {}
                Some(root) if root == at && (entry.outcome() == Outcome::Skipped || entry.is_clear()) => {
                    plan.items[at].is_kept = true;
                    if let Some(unknown) = relevant.find(|access| !variables.contains_key(&access.variable)) {
                        return Err(ReplayError::Variable(name_of(unknown.variable)));
                    }
                }
                Some(root) => return Err(ReplayError::Unlogged(described(entries[root]))),
                None => return Err(ReplayError::Order(described(entry))),
            }
        }
        // Two variables of the log must not become one.
        let mut tokens = HashSet::new();
        let twice =
            used.iter().find(|variable| variables.get(variable).is_some_and(|found| !tokens.insert(&found.token)));
        if let Some(&twice) = twice {
            return Err(ReplayError::Variable(name_of(twice)));
        }
        let mut accesses: IdMap<u64, Vec<ItemAccess>> = IdMap::default();
        for (at, &entry) in entries.iter().enumerate() {
            let Some(item) = root_of(at).filter(|&root| plan.items[root].is_kept) else { continue };
            for access in entry.accesses().iter().filter(|access| used.contains(&access.variable)) {
                let (place, is_write) = (access.place, access.mode.is_write());
                let (commutes, is_from_inside) = (access.mode == AccessMode::Commute, entry.is_from_inside());
                let access_of = accesses.entry(access.variable).or_default();
                access_of.push(ItemAccess { place, is_write, commutes, is_from_inside, item });
            }
        }
        for (variable, accesses) in &mut accesses {
            if let Err(place) = plan.add_accesses(accesses) {
                return Err(ReplayError::Place(name_of(*variable), place));
            }
        }
        plan.sort(entries)?;
        Ok(plan)
    }

    /// Adds the order of the accesses to a variable. Returns the place that two mutations have, if there is one.
    fn add_accesses(&mut self, accesses: &mut [ItemAccess]) -> Result<(), u64> {
        accesses.sort_by_key(|one| (one.place, one.is_write));
        let (mut mutation, mut readers): (Option<ItemAccess>, Vec<ItemAccess>) = (None, Vec::new());
        for &one in &*accesses {
            if one.is_write && mutation.is_some_and(|before| before.place == one.place) {
                return Err(one.place);
            }
            mutation.into_iter().for_each(|before| self.add_order(before, one));
            if one.is_write {
                readers.drain(..).for_each(|before| self.add_order(before, one));
                mutation = Some(one);
            } else {
                readers.push(one);
            }
        }
        Ok(())
    }

    /// Adds that one access comes before another one.
    fn add_order(&mut self, before: ItemAccess, one: ItemAccess) {
        if before.item == one.item {
            return;
        }
        let next = self.items[before.item].later.replace(self.later.len());
        self.later.push((one.item, next));
        self.items[one.item].earlier += 1;
        // Operations that commute run in the order of the log, not in that of their pushes.
        if before.is_from_inside || before.commutes && one.commutes {
            self.items[one.item].after_all_of.push(before.item);
        }
    }

    /// Puts the items in order. Among those that may be next, the one that was pushed first is.
    fn sort(&mut self, entries: &[&LogEntry]) -> Result<(), ReplayError> {
        let mut earlier: Vec<usize> = self.items.iter().map(|item| item.earlier).collect();
        let is_next = |&at: &usize| self.items[at].is_kept && earlier[at] == 0;
        let mut next: BinaryHeap<_> =
            (0..entries.len()).filter(is_next).map(|at| Reverse((entries[at].op(), at))).collect();
        while let Some(Reverse((_, at))) = next.pop() {
            self.order.push(at);
            let mut list = self.items[at].later;
            while let Some((later, rest)) = list.map(|place| self.later[place]) {
                list = rest;
                earlier[later] -= 1;
                if earlier[later] == 0 {
                    next.push(Reverse((entries[later].op(), later)));
                }
            }
        }
        let left = (0..entries.len()).find(|&at| self.items[at].is_kept && earlier[at] > 0);
        left.map_or(Ok(()), |left| Err(ReplayError::Order(described(entries[left]))))
    }
}
