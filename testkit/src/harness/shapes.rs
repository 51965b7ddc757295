//! The shapes in which typed operations declare variables, together with the values of typed variables.

use std::{future::Future, pin::Pin};

use raddle::{Engine, OpBuilder, Operator, PushError, ReadGuard, Var, WaitError, WriteGuard, each};

use super::{
    elsewhere,
    serial::{Handle, Run},
};
use crate::shapes::*;
use crate::{Droppable, Drops, program::Access};

/// A typed variable's value.
pub trait Content: Clone + Send + Sync + 'static {
    fn new(value: u64, drop: Droppable) -> Self;
    /// Returns the value, or `None` if concurrent uses have torn it or its address is not aligned.
    fn get(&self) -> Option<u64>;
    fn set(&mut self, value: u64);
}

/// The value of a default [`Content`].
pub const DEFAULT: u64 = 0;

/// A value with a destructor.
#[derive(Clone)]
pub struct Narrow {
    copies: [u64; 4],
    drop: Droppable,
}

impl Content for Narrow {
    fn new(value: u64, drop: Droppable) -> Self {
        Self { copies: [value; 4], drop }
    }

    fn get(&self) -> Option<u64> {
        self.drop.touch();
        same(&self.copies)
    }

    fn set(&mut self, value: u64) {
        self.copies.fill(value);
    }
}

impl Default for Narrow {
    /// This value's drop is not counted, since this function has no access to the program's [`Drops`].
    fn default() -> Self {
        Self::new(DEFAULT, Drops::new().make())
    }
}

/// A value that tests the layout of a variable's cell: large, highly aligned and without a destructor.
#[derive(Clone)]
#[repr(align(128))]
pub struct Wide([u64; 20]);

impl Content for Wide {
    fn new(value: u64, _: Droppable) -> Self {
        Self([value; 20])
    }

    fn get(&self) -> Option<u64> {
        let aligned = std::ptr::from_ref(self).addr() % 128 == 0;
        same(&self.0).filter(|_| aligned)
    }

    fn set(&mut self, value: u64) {
        self.0.fill(value);
    }
}

impl Default for Wide {
    fn default() -> Self {
        Self([DEFAULT; 20])
    }
}

fn same(copies: &[u64]) -> Option<u64> {
    copies.iter().all(|copy| *copy == copies[0]).then_some(copies[0])
}

/// What an operation receives for a place, as a reference or a guard: the value, unless it was torn, and, if the access
/// is exclusive, a function that sets the value.
pub enum Ref<'a> {
    Shared(Option<u64>),
    Exclusive(Option<u64>, Box<dyn FnMut(u64) + 'a>),
}

/// References or guards in a shape, which can be listed in declaration order.
pub trait Flat<'a>: Sized {
    fn flat(self, all: &mut Vec<Ref<'a>>);

    fn list(self) -> Vec<Ref<'a>> {
        let mut all = Vec::new();
        self.flat(&mut all);
        all
    }
}

impl<T: Content> Flat<'_> for &T {
    fn flat(self, all: &mut Vec<Ref<'_>>) {
        all.push(Ref::Shared(self.get()));
    }
}

impl<'a, T: Content> Flat<'a> for &'a mut T {
    fn flat(self, all: &mut Vec<Ref<'a>>) {
        all.push(Ref::Exclusive(self.get(), Box::new(move |value| self.set(value))));
    }
}

impl<T: Content> Flat<'static> for ReadGuard<T> {
    fn flat(self, all: &mut Vec<Ref<'static>>) {
        all.push(Ref::Shared(self.get()));
    }
}

impl<T: Content> Flat<'static> for WriteGuard<T> {
    fn flat(mut self, all: &mut Vec<Ref<'static>>) {
        all.push(Ref::Exclusive(self.get(), Box::new(move |value| self.set(value))));
    }
}

impl<'a, F: Flat<'a>> Flat<'a> for Vec<F> {
    fn flat(self, all: &mut Vec<Ref<'a>>) {
        self.into_iter().for_each(|each| each.flat(all));
    }
}

impl<'a, F: Flat<'a>, const N: usize> Flat<'a> for [F; N] {
    fn flat(self, all: &mut Vec<Ref<'a>>) {
        self.into_iter().for_each(|each| each.flat(all));
    }
}

impl<'a> Flat<'a> for () {
    fn flat(self, _: &mut Vec<Ref<'a>>) {}
}

macro_rules! tuples {
    ($($name:ident)*) => {
        impl<'a, $($name: Flat<'a>),*> Flat<'a> for ($($name,)*) {
            #[allow(non_snake_case, reason = "the names are those of the types")]
            fn flat(self, all: &mut Vec<Ref<'a>>) {
                let ($($name,)*) = self;
                $($name.flat(all);)*
            }
        }
    };
}

tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E F G H I J K L);

/// A place of a shape: whether its variable is [`Wide`], and how the variable is accessed.
pub type Place = (bool, Access);

const R: Place = (false, Access::Read);
const W: Place = (false, Access::Write);
const O: Place = (false, Access::Overwrite);
const WIDE_R: Place = (true, Access::Read);
const WIDE_W: Place = (true, Access::Write);

/// The number of shapes available to the oldest inputs.
pub const OLDEST_SHAPES: usize = 16;

/// The places of each shape, in order; [`declare!`] arranges them in tuples and lists.
pub const SHAPES: [&[Place]; OLDEST_SHAPES + 3] = [
    &[],
    &[R],
    &[W],
    &[O],
    &[R, W],
    &[W, W],
    &[R, R, W],
    &[R, R, R, W, W, O],
    &[R, R, W, W, O],
    &[R, W, W, W, R, R, O],
    &[R, W, R, W],
    &[R, W, O, R, R, W, R, R, R, R, R, R],
    &[WIDE_W],
    &[R, WIDE_W, WIDE_R, WIDE_R],
    &[WIDE_R, W, WIDE_W, O],
    &[W, R, R, R],
    &[R, R],
    &[W, W, R],
    &[R, W, O, WIDE_R],
];

/// The variables for the places of an operation's shape, in order, as indices into `handles`.
struct Places<'a> {
    handles: &'a [Handle],
    variables: &'a [usize],
}

impl<'a> Places<'a> {
    fn narrow(&self, place: usize) -> &'a Var<Narrow> {
        self.handles[self.variables[place]].narrow()
    }

    fn wide(&self, place: usize) -> &'a Var<Wide> {
        self.handles[self.variables[place]].wide()
    }
}

/// Evaluates `$then!(accesses)` with the accesses of shape `$shape`, if the shape is in [`GUARDED`]. `$others` are the
/// match arms for other shapes. `$r`, `$w` and `$o` are the names by which these arms call functions that return an
/// access to the narrow variable at a place.
macro_rules! declare_with {
    ($shape:expr, $at:ident, ($r:ident, $w:ident, $o:ident), $then:ident, $($others:tt)*) => {{
        let $r = |place: usize| $at.narrow(place).read();
        let $w = |place: usize| $at.narrow(place).write();
        let $o = |place: usize| $at.narrow(place).overwrite();
        match $shape {
            0 => $then!(()),
            2 => $then!($w(0)),
            9 => $then!((($r(0), $w(1)), [$w(2), $w(3)], vec![$r(4), $r(5)], $o(6))),
            13 => $then!(($r(0), $at.wide(1).write(), vec![$at.wide(2).read(), $at.wide(3).read()])),
            17 => $then!((each([0, 1].map($w)), each(std::iter::once($r(2))))),
            $($others)*
        }
    }};
}

/// Evaluates `$then!(accesses)` with the accesses of shape `$shape`. `$variables` lists the variable for each place of
/// the shape, in order, as an index into `$handles`.
macro_rules! declare {
    ($shape:expr, $handles:expr, $variables:expr, $then:ident) => {{
        let at = Places { handles: $handles, variables: $variables };
        declare_with!($shape, at, (r, w, o), $then,
            1 => $then!(r(0)),
            3 => $then!(o(0)),
            4 => $then!((r(0), w(1))),
            5 => $then!([w(0), w(1)]),
            6 => $then!(([r(0), r(1)], w(2))),
            7 => $then!((vec![r(0), r(1), r(2)], vec![w(3), w(4)], (o(5),))),
            8 => $then!((&[r(0), r(1)][..], &[w(2), w(3), o(4)][..])),
            10 => $then!(vec![(r(0), w(1)), (r(2), w(3))]),
            11 => $then!((r(0), w(1), o(2), r(3), r(4), w(5), r(6), r(7), r(8), r(9), r(10), r(11))),
            12 => $then!(at.wide(0).write()),
            14 => $then!(([(at.wide(0).read(), w(1))], (at.wide(2).write(), (o(3), ())))),
            15 => $then!((w(0), [[r(1)], [r(2)]], vec![vec![r(3)], vec![]])),
            16 => $then!(each((0..2).map(r))),
            _ => $then!((
                each([(r(0), w(1))]),
                each(Some(o(2))),
                each(std::iter::once(3).map(|place| at.wide(place).read()))
            )),
        )
    }};
}

/// The shapes with which guards are used. They cover tuples, arrays, vectors, [`each`] and every kind of access, but
/// are few, since each of them is compiled with every call that returns guards, which takes a long time.
pub const GUARDED: [usize; 5] = [0, 2, 9, 13, 17];

/// Like [`declare!`], but for a shape in [`GUARDED`].
macro_rules! declare_guarded {
    ($shape:expr, $handles:expr, $variables:expr, $then:ident) => {{
        let at = Places { handles: $handles, variables: $variables };
        declare_with!($shape, at, (r, w, o), $then, other => unreachable!("shape {other} is not guarded"))
    }};
}

/// A typed operation's function.
macro_rules! function {
    ($run:ident) => {
        move |refs| $run.typed(refs.list())
    };
}

pub fn push(
    builder: OpBuilder<'_>,
    shape: usize,
    variables: &[usize],
    handles: &[Handle],
    run: Run,
) -> Result<(), PushError> {
    macro_rules! then {
        ($accesses:expr) => {
            builder.push_any($accesses, function!(run))
        };
    }
    declare!(shape, handles, variables, then)
}

pub type Submitted = raddle::OpHandle<(u64, Droppable)>;

pub fn submit(
    builder: OpBuilder<'_>,
    shape: usize,
    variables: &[usize],
    handles: &[Handle],
    run: Run,
) -> Result<Submitted, PushError> {
    macro_rules! then {
        ($accesses:expr) => {
            builder
                .submit($accesses, move |refs| run.typed_value(refs.list()).unwrap_or_else(|error| panic!("{error}")))
        };
    }
    declare!(shape, handles, variables, then)
}

pub fn try_submit(
    builder: OpBuilder<'_>,
    shape: usize,
    variables: &[usize],
    handles: &[Handle],
    run: Run,
) -> Result<Submitted, PushError> {
    macro_rules! then {
        ($accesses:expr) => {
            builder.submit_any($accesses, move |refs| run.typed_value(refs.list()))
        };
    }
    declare!(shape, handles, variables, then)
}

/// Uses the guards of an operation that is a future, inside that future. `$own` is the guard of a variable that every
/// such operation reads. The operation cannot complete before this guard is dropped.
macro_rules! use_guards {
    ($run:ident, $guards:ident, $own:ident, $ends:ident) => {{
        $run.yields().await;
        let result = $run.$ends($guards.list());
        drop($own);
        result
    }};
}

pub fn push_future(
    builder: OpBuilder<'_>,
    shape: usize,
    variables: &[usize],
    handles: &[Handle],
    own: &Var<()>,
    run: Run,
) -> Result<(), PushError> {
    macro_rules! then {
        ($accesses:expr) => {
            match (run.ends_well(), run.hands_over()) {
                // The guards outlive the future, and another thread uses them.
                (true, true) => builder.push_future(($accesses, own.read()), move |(guards, own)| async move {
                    elsewhere(move || {
                        // The result is `Ok`, since the operation ends well.
                        let _ = run.typed(guards.list());
                        // `run` is dropped first, as the program may end as soon as the last guard is dropped.
                        drop(run);
                        drop(own);
                    });
                }),
                (true, false) => builder.push_future(($accesses, own.read()), move |(guards, own)| async move {
                    // The result is `Ok`, since the operation ends well.
                    let _ = use_guards!(run, guards, own, typed);
                }),
                (false, _) => builder.try_push_future(($accesses, own.read()), move |(guards, own)| async move {
                    Ok(use_guards!(run, guards, own, typed)?)
                }),
            }
        };
    }
    declare_guarded!(shape, handles, variables, then)
}

pub fn submit_future(
    builder: OpBuilder<'_>,
    shape: usize,
    variables: &[usize],
    handles: &[Handle],
    own: &Var<()>,
    run: Run,
) -> Result<Submitted, PushError> {
    macro_rules! then {
        ($accesses:expr) => {
            builder.submit_future(($accesses, own.read()), move |(guards, own)| async move {
                use_guards!(run, guards, own, typed_value).unwrap_or_else(|error| panic!("{error}"))
            })
        };
    }
    declare_guarded!(shape, handles, variables, then)
}

pub fn try_submit_future(
    builder: OpBuilder<'_>,
    shape: usize,
    variables: &[usize],
    handles: &[Handle],
    own: &Var<()>,
    run: Run,
) -> Result<Submitted, PushError> {
    macro_rules! then {
        ($accesses:expr) => {
            builder.try_submit_future(($accesses, own.read()), move |(guards, own)| async move {
                Ok(use_guards!(run, guards, own, typed_value)?)
            })
        };
    }
    declare_guarded!(shape, handles, variables, then)
}

/// The listed guards of acquired variables, and the guard of one more variable. The operation that holds these
/// variables completes once all its guards are dropped.
pub type Acquired = (Vec<Ref<'static>>, ReadGuard<()>);

/// Acquires the variables for a shape's places, and `own`.
pub fn acquire(
    engine: &Engine,
    shape: usize,
    variables: &[usize],
    handles: &[Handle],
    own: &Var<()>,
) -> Pin<Box<dyn Future<Output = Result<Acquired, WaitError>>>> {
    macro_rules! then {
        ($accesses:expr) => {{
            let acquire = engine.acquire(($accesses, own.read()));
            Box::pin(async move {
                let (guards, own) = acquire.await?;
                Ok((guards.list(), own))
            })
        }};
    }
    declare_guarded!(shape, handles, variables, then)
}

pub fn operator(
    builder: OpBuilder<'_>,
    shape: usize,
    variables: &[usize],
    handles: &[Handle],
    run: Run,
) -> Result<Operator, PushError> {
    macro_rules! then {
        ($accesses:expr) => {
            builder.operator_any($accesses, function!(run))
        };
    }
    declare!(shape, handles, variables, then)
}
