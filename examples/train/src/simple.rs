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

/// A function of one value and a scalar common to all values.
#[derive(Debug)]
pub struct Unary {
    name: &'static str,
    apply: fn(&mut Out<'_>, View<'_>, f32),
    /// Stores `gradient * derivative`, computed from the input or the output.
    derive: fn(&mut Out<'_>, View<'_>, View<'_>, f32),
    derives_from_output: bool,
}

impl Unary {
    /// Returns the operator with the given scalar.
    pub fn with(&'static self, scalar: f32) -> UnaryOperator {
        UnaryOperator { function: self, scalar }
    }
}

/// Registers a function of one value `x` and a scalar. Its derivative is a function of `x` or of the result `y`; if it
/// uses only `y`, the input need not be kept.
macro_rules! unary {
    ($($(#[$doc:meta])* $id:ident = $name:literal, |$x:ident, $s:ident| $f:expr, from $from:ident |$v:ident, $t:ident| $derivative:expr;)+) => {
        $($(#[$doc])*
        pub static $id: Unary = Unary {
            name: $name,
            apply: |out, x, $s| out.map(x, |$x: f32| $f),
            derive: |out, gradient, value, $t| out.map2(gradient, value, |gradient, $v: f32| gradient * $derivative),
            derives_from_output: unary!(@ $from),
        };)+
        /// All functions of one value.
        pub static UNARY: &[&Unary] = &[$(&$id),+];
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

/// A function of one value as an operator.
#[derive(Clone, Copy, Debug)]
pub struct UnaryOperator {
    function: &'static Unary,
    scalar: f32,
}

impl Operator for UnaryOperator {
    fn signature(&self) -> Signature {
        let (inputs, outputs): (&[usize], &[usize]) =
            if self.function.derives_from_output { (&[], &[0]) } else { (&[0], &[]) };
        let signature = Signature::new(self.function.name, &["data"], inputs, outputs);
        Signature { in_place: [&[(0, 0)]; 2], ..signature }
    }

    fn infer(&self, inputs: &mut [Option<Shape>]) -> Result<Vec<Shape>, Misfit> {
        Ok(vec![known(inputs, 0, "data")?])
    }

    fn forward(&self, mut views: Views<'_>) {
        (self.function.apply)(&mut views.outs[0], views.ins[0], self.scalar);
    }

    fn backward(&self, mut views: Views<'_>) {
        (self.function.derive)(&mut views.outs[0], views.ins[0], views.ins[1], self.scalar);
    }
}

/// A function of two values.
#[derive(Debug)]
pub struct Binary {
    name: &'static str,
    apply: fn(&mut Out<'_>, View<'_>, View<'_>),
    /// Functions that store `gradient * derivative`, for the left and right value.
    derive: [fn(&mut Out<'_>, [View<'_>; 3]); 2],
}

impl Binary {
    /// Returns the operator.
    pub fn operator(&'static self) -> BinaryOperator {
        BinaryOperator { function: self }
    }
}

/// Stores `gradient * derivative`.
fn weigh(out: &mut Out<'_>, [gradient, a, b]: [View<'_>; 3], derivative: impl Fn(f32, f32) -> f32) {
    out.fill(|i| gradient.values[i] * derivative(a.values[i], b.values[i]));
}

/// Registers a function of two values, with its derivatives with respect to both.
macro_rules! binary {
    ($($(#[$doc:meta])* $id:ident = $name:literal, $f:expr, $by_a:expr, $by_b:expr;)+) => {
        $($(#[$doc])*
        pub static $id: Binary = Binary {
            name: $name,
            apply: |out, a, b| out.map2(a, b, $f),
            derive: [|out, views| weigh(out, views, $by_a), |out, views| weigh(out, views, $by_b)],
        };)+
        /// All functions of two values.
        pub static BINARY: &[&Binary] = &[$(&$id),+];
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

/// A function of two values as an operator.
#[derive(Clone, Copy, Debug)]
pub struct BinaryOperator {
    function: &'static Binary,
}

impl Operator for BinaryOperator {
    fn signature(&self) -> Signature {
        // In the backward pass, both results are computed from the gradient, so neither may overwrite it.
        let in_place: [&[_]; 2] = [&[(0, 0)], &[]];
        Signature { in_place, ..Signature::new(self.function.name, &["left", "right"], &[0, 1], &[]) }
    }

    fn infer(&self, inputs: &mut [Option<Shape>]) -> Result<Vec<Shape>, Misfit> {
        let left = known(inputs, 0, "left")?;
        settle(&mut inputs[1], "right", left.clone())?;
        Ok(vec![left])
    }

    fn forward(&self, mut views: Views<'_>) {
        (self.function.apply)(&mut views.outs[0], views.ins[0], views.ins[1]);
    }

    fn backward(&self, mut views: Views<'_>) {
        let ins = [views.ins[0], views.ins[1], views.ins[2]];
        views.outs.iter_mut().zip(self.function.derive).for_each(|(out, derive)| derive(out, ins));
    }
}
