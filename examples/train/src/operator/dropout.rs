//! An operator that drops some values during training.

use crate::{Misfit, Operator, Shape, Signature, View, Views, error::known};

/// An operator that, in training, sets each value to zero with a given probability and scales up the others to preserve
/// the expected value. Outside training, it changes nothing.
///
/// The second output holds each value's factor.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    /// The probability that a value is set to zero.
    pub share: f32,
}

impl Operator for Dropout {
    fn signature(&self) -> Signature {
        Signature { in_place: [true; 2], random: [true, false], ..Signature::new("Dropout", &["data"], &[], &[1]) }
    }

    fn infer(&self, inputs: &mut [Option<Shape>]) -> Result<Vec<Shape>, Misfit> {
        let data = known(inputs, 0, "data")?;
        Ok(vec![data.clone(), data])
    }

    fn forward(&self, mut views: Views<'_>) {
        let (random, training) = (&mut views.random, views.training);
        let [out, factors] = &mut views.outs[..] else { return };
        if !training {
            out.map(views.ins[0], |value| value);
            factors.fill(|_| 1.0);
            return;
        }
        let kept = 1.0 / (1.0 - self.share);
        let mut draw = || if random.uniform() < self.share { 0.0 } else { kept };
        if factors.is_needed() {
            factors.values.iter_mut().for_each(|factor| *factor = draw());
            let factors = View { values: factors.values, shape: factors.shape };
            out.map2(views.ins[0], factors, |value, factor| value * factor);
        } else {
            out.map(views.ins[0], |value| value * draw());
        }
    }

    fn backward(&self, mut views: Views<'_>) {
        let [gradient, factors] = [views.ins[0], views.ins[1]];
        views.outs[0].map2(gradient, factors, |gradient, factor| gradient * factor);
    }
}
