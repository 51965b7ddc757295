//! The operations pushed by a model's threads.

use std::fmt;

use crate::state::{Access, op_of, variable_of};

/// The number of variables.
pub const VARIABLES: usize = 3;
/// The maximum number of pushing threads.
pub const THREADS: usize = 4;
/// The maximum number of operations.
pub const OPS: usize = 4;

/// How an operation uses a variable: the tracker's `Mode`, with `Write` and `Overwrite` merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Reads the variable.
    Read,
    /// Waits for all earlier accesses; only later writers and waits wait for it.
    Await,
    /// Mutates the variable.
    Write,
    /// Mutates the variable; others that commute run beside it, as far as the tracker is concerned.
    Commute,
}

use Mode::{Await, Commute, Read, Write};

impl Mode {
    /// Returns whether an access of this mode passes `READ_OK` on to the next one, unless it is a writer.
    pub(crate) fn passes_to(self, next: Self) -> bool {
        (self == Commute) == (next == Commute)
    }

    /// Returns whether an access of this mode waits for an earlier one of mode `before`, directly or through others.
    pub(crate) fn waits_for(self, before: Self) -> bool {
        match self {
            Read => matches!(before, Write | Commute),
            Commute => before != Commute,
            Await | Write => true,
        }
    }
}

/// An operation, described by its use of each variable.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape(pub [Option<Mode>; VARIABLES]);

impl Shape {
    /// Parses a shape such as `W-R`: `R`, `A`, `W` or `C` for each variable, or `-` for a variable that the operation
    /// does not use.
    ///
    /// # Panics
    /// If the text is not a valid shape.
    pub fn new(text: &str) -> Self {
        let mut modes = [None; VARIABLES];
        assert_eq!(text.len(), VARIABLES, "{text}");
        for (mode, letter) in modes.iter_mut().zip(text.chars()) {
            *mode = match letter {
                'R' => Some(Read),
                'A' => Some(Await),
                'W' => Some(Write),
                'C' => Some(Commute),
                '-' => None,
                _ => panic!("{text}"),
            };
        }
        Self(modes)
    }

    /// Returns all shapes whose accesses have one of `modes`, in a fixed order.
    pub fn all(modes: &[Mode]) -> Vec<Self> {
        let choices: Vec<_> = std::iter::once(None).chain(modes.iter().copied().map(Some)).collect();
        let mut all = vec![Self([None; VARIABLES])];
        for variable in 0..VARIABLES {
            all = all
                .iter()
                .flat_map(|shape| {
                    choices.iter().map(move |&mode| {
                        let mut shape = *shape;
                        shape.0[variable] = mode;
                        shape
                    })
                })
                .collect();
        }
        all.retain(|shape| shape.arity() > 0);
        all
    }

    /// Returns the number of accesses.
    pub fn arity(&self) -> u8 {
        self.0.iter().flatten().count() as u8
    }

    /// Returns the variable of the access at `index`.
    pub(crate) fn variable(&self, index: u8) -> Option<u8> {
        (0..VARIABLES as u8).filter(|&variable| self.0[variable as usize].is_some()).nth(index as usize)
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for mode in self.0 {
            f.write_str(match mode {
                None => "-",
                Some(Read) => "R",
                Some(Await) => "A",
                Some(Write) => "W",
                Some(Commute) => "C",
            })?;
        }
        Ok(())
    }
}

/// The operations pushed by the threads, numbered thread by thread and, within each thread, in push order.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Program {
    pub(crate) ops: Vec<Shape>,
    /// The number of each thread's first operation, followed by the total number of operations.
    pub(crate) first: Vec<u8>,
}

impl Program {
    /// Creates a program from one list of shapes for each thread.
    ///
    /// # Panics
    /// If `threads` has too many threads or operations.
    pub fn new(threads: &[Vec<Shape>]) -> Self {
        let ops: Vec<_> = threads.iter().flatten().copied().collect();
        assert!(threads.len() <= THREADS && ops.len() <= OPS);
        let mut first = vec![0];
        for thread in threads {
            first.push(first.last().copied().unwrap_or(0) + thread.len() as u8);
        }
        Self { ops, first }
    }

    /// Parses a program such as `WW- -WW, W-W`: each thread's operations, with commas between threads.
    ///
    /// # Panics
    /// If the text is not a valid program.
    pub fn parse(text: &str) -> Self {
        let threads: Vec<Vec<_>> =
            text.split(',').map(|thread| thread.split_whitespace().map(Shape::new).collect()).collect();
        Self::new(&threads)
    }

    /// Returns all programs in which each of `threads` threads pushes one of `shapes`. Of programs that differ only in
    /// thread order, only one is returned.
    pub fn one_each(threads: usize, shapes: &[Shape]) -> Vec<Self> {
        fn choose(left: usize, shapes: &[Shape], chosen: &mut Vec<Vec<Shape>>, programs: &mut Vec<Program>) {
            if left == 0 {
                programs.push(Program::new(chosen));
                return;
            }
            for (at, &shape) in shapes.iter().enumerate() {
                chosen.push(vec![shape]);
                choose(left - 1, &shapes[at..], chosen, programs);
                chosen.pop();
            }
        }
        let mut programs = Vec::new();
        choose(threads, shapes, &mut Vec::new(), &mut programs);
        programs
    }

    /// Returns the mode of an access, which is `Read` for a variable's initial access.
    pub(crate) fn mode(&self, access: Access) -> Mode {
        op_of(access).and_then(|op| self.ops[op as usize].0[variable_of(access) as usize]).unwrap_or(Read)
    }

    pub(crate) fn threads(&self) -> usize {
        self.first.len() - 1
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for thread in 0..self.threads() {
            if thread > 0 {
                f.write_str(", ")?;
            }
            for op in self.first[thread]..self.first[thread + 1] {
                write!(f, "{:?} ", self.ops[op as usize])?;
            }
        }
        Ok(())
    }
}
