//! How a gradient changes the values: one file for each rule, each a plain function on flat slices.

pub mod sgd;

use crate::wire;
use std::fmt;

/// A rule and its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// Plain gradient descent.
    Sgd {
        /// What the gradient is multiplied with.
        learning_rate: f32,
    },
}

impl Optimizer {
    /// Makes `new` values out of `old` ones and their `gradient`; all three have the same length.
    pub fn apply(&self, old: &[f32], gradient: &[f32], new: &mut [f32]) {
        match *self {
            Self::Sgd { learning_rate } => sgd::apply(old, gradient, new, learning_rate),
        }
    }

    pub(crate) fn to_wire(self) -> wire::Optimizer {
        let rule = match self {
            Self::Sgd { learning_rate } => wire::optimizer::Rule::Sgd(wire::Sgd { learning_rate }),
        };
        wire::Optimizer { rule: Some(rule) }
    }

    pub(crate) fn from_wire(optimizer: Option<wire::Optimizer>) -> Result<Self, String> {
        match optimizer.and_then(|optimizer| optimizer.rule) {
            Some(wire::optimizer::Rule::Sgd(wire::Sgd { learning_rate })) if learning_rate.is_finite() => {
                Ok(Self::Sgd { learning_rate })
            }
            Some(wire::optimizer::Rule::Sgd(wire::Sgd { learning_rate })) => {
                Err(format!("the learning rate is {learning_rate}"))
            }
            None => Err("the optimizer is missing, or one that this ps does not know".into()),
        }
    }
}

impl fmt::Display for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sgd { learning_rate } => write!(f, "sgd with learning rate {learning_rate}"),
        }
    }
}
