//! Simple operators: functions of one or two values, with their derivatives. Each is defined in a few lines and is then
//! an operator like any other, for arrays and graphs.
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

use crate::error::{known, settle};
use crate::{Misfit, Operator, Shape, Signature, Views};

/// A function of two numbers.
type Binary = fn(f32, f32) -> f32;

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A function of a value and the scalar, and its derivative, which is a function of the value and the scalar or,
    /// with `of_result`, of the result and the scalar. With `of_result`, the backward pass does not read the argument.
    One { f: Binary, derivative: Binary, of_result: bool },
    /// A function of two values, and its derivatives with respect to both.
    Two { f: Binary, derivatives: [Binary; 2] },
}

/// A function of two values, or of one value and a scalar that is the same for all values of an array.
#[derive(Debug)]
pub struct Function {
    name: &'static str,
    kind: Kind,
}

impl Function {
    /// Returns a function of one value, whose derivative is computed from the value.
    const fn of_value(name: &'static str, f: Binary, derivative: Binary) -> Self {
        Self { name, kind: Kind::One { f, derivative, of_result: false } }
    }

    /// Returns a function of one value, whose derivative is computed from the result.
    const fn of_result(name: &'static str, f: Binary, derivative: Binary) -> Self {
        Self { name, kind: Kind::One { f, derivative, of_result: true } }
    }

    /// Returns a function of two values.
    const fn of_two(name: &'static str, f: Binary, derivatives: [Binary; 2]) -> Self {
        Self { name, kind: Kind::Two { f, derivatives } }
    }

    /// Returns the operator of this function with the given scalar.
    pub fn with(&'static self, scalar: f32) -> Simple {
        Simple { function: self, scalar }
    }

    /// Returns the operator of this function, which must not use the scalar.
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
        let name = self.function.name;
        match self.function.kind {
            Kind::One { of_result, .. } => {
                let (inputs, outputs): (&[_], &[_]) = if of_result { (&[], &[0]) } else { (&[0], &[]) };
                Signature { in_place: [true; 2], ..Signature::new(name, &["data"], inputs, outputs) }
            }
            // Both gradients are computed from the result's gradient, so neither may overwrite it.
            Kind::Two { .. } => {
                Signature { in_place: [true, false], ..Signature::new(name, &["left", "right"], &[0, 1], &[]) }
            }
        }
    }

    fn infer(&self, inputs: &mut [Option<Shape>]) -> Result<Vec<Shape>, Misfit> {
        let arguments = self.signature().arguments;
        let shape = known(inputs, 0, arguments[0])?;
        for (input, argument) in inputs.iter_mut().zip(arguments).skip(1) {
            settle(input, argument, shape.clone())?;
        }
        Ok(vec![shape])
    }

    fn forward(&self, mut views: Views<'_>) {
        let (out, ins) = (&mut views.outs[0], &views.ins);
        match self.function.kind {
            Kind::One { f, .. } => out.map(ins[0], |x| f(x, self.scalar)),
            Kind::Two { f, .. } => out.map2(ins[0], ins[1], f),
        }
    }

    fn backward(&self, mut views: Views<'_>) {
        let ins = &views.ins;
        match self.function.kind {
            Kind::One { derivative, .. } => {
                views.outs[0].map2(ins[0], ins[1], |gradient, value| gradient * derivative(value, self.scalar));
            }
            Kind::Two { derivatives, .. } => {
                let [gradient, a, b] = [ins[0].values, ins[1].values, ins[2].values];
                for (out, derivative) in views.outs.iter_mut().zip(derivatives) {
                    out.fill(|i| gradient[i] * derivative(a[i], b[i]));
                }
            }
        }
    }
}

/// `max(x, 0)`
pub static RELU: Function = Function::of_result("relu", |x, _| x.max(0.0), |y, _| if y > 0.0 { 1.0 } else { 0.0 });
/// The logistic function
pub static SIGMOID: Function = Function::of_result("sigmoid", |x, _| 1.0 / (1.0 + (-x).exp()), |y, _| y * (1.0 - y));
/// The hyperbolic tangent
pub static TANH: Function = Function::of_result("tanh", |x, _| x.tanh(), |y, _| 1.0 - y * y);
/// `x * x`
pub static SQUARE: Function = Function::of_value("square", |x, _| x * x, |x, _| 2.0 * x);
/// `scalar * x`
pub static SCALE: Function = Function::of_result("scale", |x, s| s * x, |_, s| s);
/// Quadratic near zero, and linear beyond `1 / scalar²`
pub static SMOOTH_L1: Function = Function::of_value(
    "smooth_l1",
    |x, s| if x.abs() < 1.0 / (s * s) { 0.5 * (s * x) * (s * x) } else { x.abs() - 0.5 / (s * s) },
    |x, s| if x.abs() < 1.0 / (s * s) { s * s * x } else { x.signum() },
);
/// `a + b`
pub static ADD: Function = Function::of_two("add", |a, b| a + b, [|_, _| 1.0, |_, _| 1.0]);
/// `a - b`
pub static SUBTRACT: Function = Function::of_two("subtract", |a, b| a - b, [|_, _| 1.0, |_, _| -1.0]);
/// `a * b`
pub static MULTIPLY: Function = Function::of_two("multiply", |a, b| a * b, [|_, b| b, |a, _| a]);
/// `a / b`
pub static DIVIDE: Function = Function::of_two("divide", |a, b| a / b, [|_, b| 1.0 / b, |a, b| -a / (b * b)]);

/// All functions of one value.
pub static UNARY: [&Function; 6] = [&RELU, &SIGMOID, &TANH, &SQUARE, &SCALE, &SMOOTH_L1];
/// All functions of two values.
pub static BINARY: [&Function; 4] = [&ADD, &SUBTRACT, &MULTIPLY, &DIVIDE];
