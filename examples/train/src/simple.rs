//! Simple operators: functions of one or two values, with their derivatives. Each is registered in a few lines and is
//! then an operator like any other, for arrays and graphs.
//!
//! ```
//! use raddle::{Device, Engine};
//! use raddle_train::{Array, Runtime, simple};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::builder().workers(1).build()?;
//! let runtime = Runtime::new(&engine, Device::Cpu, 0);
//! let x = Array::from_vec(&runtime, &[3], vec![-3.0, 0.25, 2.0])?;
//! let y = x.map(&simple::SMOOTH_L1, 1.0)?.combine(&simple::ADD, &x)?;
//! assert_eq!(y.to_vec()?, [-0.5, 0.28125, 3.5]);
//! # Ok(())
//! # }
//! ```

use crate::{
    Shape,
    error::{Misfit, known, settle},
    operator::{Operator, Signature},
    task::{Out, View, Views},
};

/// Stores `gradient * derivative`. The arguments are the output, the gradient, the values from which the derivative is
/// computed, and the scalar.
type Derive = fn(&mut Out<'_>, View<'_>, &[View<'_>], f32);

/// A function of one or two values, and of a scalar common to all values.
#[derive(Debug)]
pub struct Function {
    name: &'static str,
    arguments: &'static [&'static str],
    apply: fn(&mut Out<'_>, &[View<'_>], f32),
    /// One for each argument.
    derive: &'static [Derive],
    /// Whether derivatives are computed from the result instead of the arguments.
    derives_from_result: bool,
}

impl Function {
    /// Returns the operator with the given scalar.
    pub fn with(&'static self, scalar: f32) -> Simple {
        Simple { function: self, scalar }
    }

    /// Returns the operator of a function that does not use the scalar.
    pub fn operator(&'static self) -> Simple {
        self.with(0.0)
    }
}

/// A simple function as an operator.
#[derive(Clone, Copy, Debug)]
pub struct Simple {
    function: &'static Function,
    scalar: f32,
}

impl Operator for Simple {
    fn signature(&self) -> Signature {
        let Function { name, arguments, derives_from_result, .. } = *self.function;
        let (inputs, outputs): (&[_], &[_]) =
            if derives_from_result { (&[], &[0]) } else { (&[0, 1][..arguments.len()], &[]) };
        // The gradients of two arguments are both computed from that of the result, so neither may overwrite it.
        let backward: &[_] = if arguments.len() == 1 { &[(0, 0)] } else { &[] };
        Signature { in_place: [&[(0, 0)], backward], ..Signature::new(name, arguments, inputs, outputs) }
    }

    fn infer(&self, inputs: &mut [Option<Shape>]) -> Result<Vec<Shape>, Misfit> {
        let arguments = self.function.arguments;
        let shape = known(inputs, 0, arguments[0])?;
        for (input, argument) in inputs.iter_mut().zip(arguments).skip(1) {
            settle(input, argument, shape.clone())?;
        }
        Ok(vec![shape])
    }

    fn forward(&self, mut views: Views<'_>) {
        (self.function.apply)(&mut views.outs[0], &views.ins, self.scalar);
    }

    fn backward(&self, mut views: Views<'_>) {
        for (out, derive) in views.outs.iter_mut().zip(self.function.derive) {
            derive(out, views.ins[0], &views.ins[1..], self.scalar);
        }
    }
}

/// Registers a function of one value `x` and a scalar. Its derivative is a function of `x` or of the result `y`; if it
/// uses only `y`, the argument need not be kept.
macro_rules! unary {
    ($($(#[$doc:meta])* $id:ident = $name:literal, |$x:ident, $s:ident| $f:expr, from $from:ident |$v:ident, $t:ident| $derivative:expr;)+) => {
        $($(#[$doc])*
        pub static $id: Function = Function {
            name: $name,
            arguments: &["data"],
            apply: |out, ins, $s| out.map(ins[0], |$x: f32| $f),
            derive: &[|out, gradient, values, $t| {
                out.map2(gradient, values[0], |gradient, $v: f32| gradient * $derivative);
            }],
            derives_from_result: unary!(@ $from),
        };)+
        /// All functions of one value.
        pub static UNARY: &[&Function] = &[$(&$id),+];
    };
    (@ x) => { false };
    (@ y) => { true };
}

unary! {
    /// `max(x, 0)`
    RELU = "relu", |x, _s| x.max(0.0), from y |y, _s| if y > 0.0 { 1.0 } else { 0.0 };
    /// The logistic function
    SIGMOID = "sigmoid", |x, _s| 1.0 / (1.0 + (-x).exp()), from y |y, _s| y * (1.0 - y);
    /// The hyperbolic tangent
    TANH = "tanh", |x, _s| x.tanh(), from y |y, _s| 1.0 - y * y;
    /// `x * x`
    SQUARE = "square", |x, _s| x * x, from x |x, _s| 2.0 * x;
    /// `scalar * x`
    SCALE = "scale", |x, s| s * x, from y |_y, s| s;
    /// Quadratic near zero, and linear beyond `1 / scalar²`
    SMOOTH_L1 = "smooth_l1",
        |x, s| if x.abs() < 1.0 / (s * s) { 0.5 * (s * x) * (s * x) } else { x.abs() - 0.5 / (s * s) },
        from x |x, s| if x.abs() < 1.0 / (s * s) { s * s * x } else { x.signum() };
}

/// Stores `gradient * derivative`.
fn weigh(out: &mut Out<'_>, gradient: View<'_>, ins: &[View<'_>], derivative: impl Fn(f32, f32) -> f32) {
    out.fill(|i| gradient.values[i] * derivative(ins[0].values[i], ins[1].values[i]));
}

/// Registers a function of two values, with its derivatives with respect to both.
macro_rules! binary {
    ($($(#[$doc:meta])* $id:ident = $name:literal, $f:expr, $by_a:expr, $by_b:expr;)+) => {
        $($(#[$doc])*
        pub static $id: Function = Function {
            name: $name,
            arguments: &["left", "right"],
            apply: |out, ins, _| out.map2(ins[0], ins[1], $f),
            derive: &[
                |out, gradient, ins, _| weigh(out, gradient, ins, $by_a),
                |out, gradient, ins, _| weigh(out, gradient, ins, $by_b),
            ],
            derives_from_result: false,
        };)+
        /// All functions of two values.
        pub static BINARY: &[&Function] = &[$(&$id),+];
    };
}

binary! {
    /// `a + b`
    ADD = "add", |a, b| a + b, |_, _| 1.0, |_, _| 1.0;
    /// `a - b`
    SUBTRACT = "subtract", |a, b| a - b, |_, _| 1.0, |_, _| -1.0;
    /// `a * b`
    MULTIPLY = "multiply", |a, b| a * b, |_, b| b, |a, _| a;
    /// `a / b`
    DIVIDE = "divide", |a, b| a / b, |_, b| 1.0 / b, |a, b| -a / (b * b);
}
