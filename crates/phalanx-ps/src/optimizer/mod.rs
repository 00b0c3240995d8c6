//! How a gradient changes the values: one file for each rule, each a plain function on flat slices.
//!
//! An update is made in this order: the gradient is clipped, L2 is added to it, and the rule makes new values
//! and slots out of the old ones. The old ones are only read, so that an update that is half done is never
//! seen. What is the same for all elements is computed once for each update, in f64; the elements are f32.
//!
//! Nothing here but `on_wire` knows of shards, pushes or the wire.

pub mod adagrad;
pub mod adam;
pub mod adamw;
pub mod clip;
mod elementwise;
pub mod learning_rate;
pub mod momentum;
mod on_wire;
pub mod rmsprop;
pub mod sgd;
#[cfg(test)]
mod tests;

pub use learning_rate::{Decay, LearningRate};

use std::fmt;

/// A rule and what goes with every rule.
///
/// Settings are f64, though the values are f32: rules use `1 - beta`, and of 0.999 in f32 that is wrong from
/// the fifth digit on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimizer {
    /// What makes new values out of the gradient.
    pub rule: Rule,
    /// How far the values move.
    pub learning_rate: LearningRate,
    /// How much of each value is added to its gradient, which is the slope of `l2 / 2 * value^2`.
    pub l2: f64,
    /// The longest that a gradient may be, over all shards; `None` is any length.
    pub clip_norm: Option<f64>,
}

/// What makes new values out of old ones and the gradient; the formulas are in the rules' files.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Plain gradient descent: [`sgd`].
    Sgd,
    /// Gradient descent with momentum: [`momentum`].
    Momentum {
        /// How much of the velocity stays.
        momentum: f64,
        /// Whether to look one step ahead.
        nesterov: bool,
    },
    /// Steps that shrink with the sum of squared gradients: [`adagrad`].
    Adagrad {
        /// Where the sum starts.
        initial_accumulator: f64,
        /// Added to the root of the sum.
        epsilon: f64,
    },
    /// Steps measured by the mean squared gradient: [`rmsprop`].
    RmsProp {
        /// How much of the mean square stays.
        decay: f64,
        /// How much of the velocity stays; 0 is no velocity.
        momentum: f64,
        /// Added to the root of the mean square.
        epsilon: f64,
    },
    /// The mean gradient measured by the mean squared one: [`adam`].
    Adam {
        /// How much of the mean gradient stays.
        beta1: f64,
        /// How much of the mean square stays.
        beta2: f64,
        /// Added to the root of the mean square.
        epsilon: f64,
    },
    /// Adam, with values that shrink on their own: [`adamw`].
    AdamW {
        /// How much of the mean gradient stays.
        beta1: f64,
        /// How much of the mean square stays.
        beta2: f64,
        /// Added to the root of the mean square.
        epsilon: f64,
        /// How much of each value goes, times the learning rate.
        weight_decay: f64,
    },
}

/// Values and slots before an update; slots that the rule does not have are empty.
#[derive(Clone, Copy, Debug)]
pub struct Old<'a> {
    /// The values.
    pub values: &'a [f32],
    /// What the rule remembers of each value.
    pub slots: [&'a [f32]; 2],
}

/// Where an update puts values and slots; slots that the rule does not have are empty.
#[derive(Debug)]
pub struct New<'a> {
    /// The values.
    pub values: &'a mut [f32],
    /// What the rule remembers of each value.
    pub slots: [&'a mut [f32]; 2],
}

/// One update, ready to be applied to any block of the values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    preparation: Preparation,
    step: Step,
}

/// What is done to a gradient before the rule sees it: clipped, and then L2 added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preparation {
    scale: f32,
    l2: f32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Sgd(sgd::Step),
    Momentum(momentum::Step),
    Adagrad(adagrad::Step),
    RmsProp(rmsprop::Step),
    Adam(adam::Step),
    AdamW(adamw::Step),
}

impl Optimizer {
    /// A rule at a constant learning rate, and nothing else.
    pub fn new(rule: Rule, learning_rate: f64) -> Self {
        Self { rule, learning_rate: LearningRate::constant(learning_rate), l2: 0.0, clip_norm: None }
    }

    /// How many numbers the rule remembers of each value: 0, 1 or 2 vectors as long as the values.
    pub fn slots(&self) -> usize {
        match self.rule {
            Rule::Sgd => 0,
            Rule::Momentum { .. } | Rule::Adagrad { .. } => 1,
            Rule::RmsProp { momentum, .. } => 1 + usize::from(momentum != 0.0),
            Rule::Adam { .. } | Rule::AdamW { .. } => 2,
        }
    }

    /// What a slot is filled with before the first update.
    pub fn initial_slot(&self, index: usize) -> f32 {
        match self.rule {
            Rule::Adagrad { initial_accumulator, .. } if index == 0 => initial_accumulator as f32,
            _ => 0.0,
        }
    }

    /// Whether a gradient's norm is what clipping needs: present and sound, if there is clipping at all.
    pub fn check_norm(&self, gradient_norm: Option<f64>) -> Result<(), String> {
        match (self.clip_norm, gradient_norm) {
            (None, _) => Ok(()),
            (Some(_), None) => Err("the gradient's norm is missing, and gradients are to be clipped".into()),
            (Some(_), Some(norm)) => check("the gradient's norm", norm, Number::Length),
        }
    }

    /// The update that comes after `step` others, of a gradient with this norm over all shards.
    ///
    /// A gradient without a norm is not clipped; [`check_norm`](Self::check_norm) is for refusing it before.
    pub fn update(&self, step: u64, gradient_norm: Option<f64>) -> Update {
        let scale = match (self.clip_norm, gradient_norm) {
            (Some(limit), Some(norm)) => clip::scale(limit, norm),
            _ => 1.0,
        };
        let rate = self.learning_rate.at(step);
        let step = match self.rule {
            Rule::Sgd => Step::Sgd(sgd::Step::new(rate)),
            Rule::Momentum { momentum, nesterov } => {
                Step::Momentum(momentum::Step::new(momentum, nesterov, rate))
            }
            Rule::Adagrad { epsilon, .. } => Step::Adagrad(adagrad::Step::new(epsilon, rate)),
            Rule::RmsProp { decay, momentum, epsilon } => {
                Step::RmsProp(rmsprop::Step::new(decay, momentum, epsilon, rate))
            }
            Rule::Adam { beta1, beta2, epsilon } => {
                Step::Adam(adam::Step::new((beta1, beta2), epsilon, rate, step))
            }
            Rule::AdamW { beta1, beta2, epsilon, weight_decay } => {
                let adam = adam::Step::new((beta1, beta2), epsilon, rate, step);
                Step::AdamW(adamw::Step::new(adam, weight_decay, rate))
            }
        };
        Update { preparation: Preparation { scale: scale as f32, l2: self.l2 as f32 }, step }
    }

    /// Refuses settings that cannot work, and says which and what they may be.
    pub fn validate(&self) -> Result<(), String> {
        match self.rule {
            Rule::Sgd => {}
            Rule::Momentum { momentum, .. } => check("the momentum", momentum, Number::Share)?,
            Rule::Adagrad { initial_accumulator, epsilon } => {
                check("adagrad's initial accumulator", initial_accumulator, Number::NotNegative)?;
                check("adagrad's epsilon", epsilon, Number::Positive)?;
            }
            Rule::RmsProp { decay, momentum, epsilon } => {
                check("rmsprop's decay", decay, Number::Share)?;
                check("rmsprop's momentum", momentum, Number::Share)?;
                check("rmsprop's epsilon", epsilon, Number::Positive)?;
            }
            Rule::Adam { beta1, beta2, epsilon } | Rule::AdamW { beta1, beta2, epsilon, .. } => {
                check("adam's beta1", beta1, Number::Share)?;
                check("adam's beta2", beta2, Number::Share)?;
                check("adam's epsilon", epsilon, Number::Positive)?;
            }
        }
        if let Rule::AdamW { weight_decay, .. } = self.rule {
            check("adamw's weight decay", weight_decay, Number::NotNegative)?;
        }
        self.learning_rate.validate()?;
        check("L2", self.l2, Number::NotNegative)?;
        self.clip_norm.map_or(Ok(()), |norm| check("the norm to clip to", norm, Number::Positive))
    }
}

impl Update {
    /// Makes `new` values and slots out of the `old` ones and the `gradient`.
    ///
    /// All slices that the rule uses have the same length. No element depends on another, so block by block
    /// gives the same bits as all at once.
    pub fn apply(&self, old: Old<'_>, gradient: &[f32], new: New<'_>) {
        debug_assert_eq!([old.values.len(), new.values.len()], [gradient.len(); 2]);
        let preparation = self.preparation;
        match self.step {
            Step::Sgd(step) => sgd::apply(step, preparation, old, gradient, new),
            Step::Momentum(step) => momentum::apply(step, preparation, old, gradient, new),
            Step::Adagrad(step) => adagrad::apply(step, preparation, old, gradient, new),
            Step::RmsProp(step) => rmsprop::apply(step, preparation, old, gradient, new),
            Step::Adam(step) => adam::apply(step, preparation, old, gradient, new),
            Step::AdamW(step) => adamw::apply(step, preparation, old, gradient, new),
        }
    }
}

impl Preparation {
    // Without clipping and L2 this multiplies by 1 and adds 0, which costs nothing next to the memory.
    fn gradient(self, gradient: f32, value: f32) -> f32 {
        self.scale * gradient + self.l2 * value
    }
}

impl fmt::Display for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {}", self.rule, self.learning_rate)?;
        if self.l2 != 0.0 {
            write!(f, ", L2 {}", Short(self.l2))?;
        }
        if let Some(norm) = self.clip_norm {
            write!(f, ", gradients clipped to norm {}", Short(norm))?;
        }
        Ok(())
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Sgd => write!(f, "sgd"),
            Self::Momentum { momentum, nesterov: false } => write!(f, "momentum ({})", Short(momentum)),
            Self::Momentum { momentum, nesterov: true } => write!(f, "nesterov ({})", Short(momentum)),
            Self::Adagrad { initial_accumulator, epsilon } => {
                write!(f, "adagrad ({}, {})", Short(initial_accumulator), Short(epsilon))
            }
            Self::RmsProp { decay, momentum, epsilon } => {
                write!(f, "rmsprop ({}, {}, {})", Short(decay), Short(momentum), Short(epsilon))
            }
            Self::Adam { beta1, beta2, epsilon } => {
                write!(f, "adam ({}, {}, {})", Short(beta1), Short(beta2), Short(epsilon))
            }
            Self::AdamW { beta1, beta2, epsilon, weight_decay } => {
                let [beta1, beta2, epsilon, weight_decay] = [beta1, beta2, epsilon, weight_decay].map(Short);
                write!(f, "adamw ({beta1}, {beta2}, {epsilon}, weight decay {weight_decay})")
            }
        }
    }
}

/// A setting as a person writes it: 0.001, but 1e-8.
struct Short(f64);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number) = *self;
        if number == 0.0 || (1e-4..1e6).contains(&number.abs()) {
            write!(f, "{number}")
        } else {
            write!(f, "{number:e}")
        }
    }
}

/// The ranges of settings.
#[derive(Clone, Copy, Debug)]
enum Number {
    /// 0 or more.
    NotNegative,
    /// More than 0.
    Positive,
    /// 0 or more, and less than 1.
    Share,
    /// More than 0, and 1 at most.
    Factor,
    /// 0 or more, and too long for f32 as it may be.
    Length,
}

fn check(setting: &str, number: f64, range: Number) -> Result<(), String> {
    // As the elements will see it: 1e-50 is 0 to them, 1e50 is infinite, and 0.99999999 is 1.
    let seen = number as f32;
    let (fits, allowed) = match range {
        Number::NotNegative => (number >= 0.0 && seen.is_finite(), "a number from 0 on"),
        Number::Positive => (seen > 0.0 && seen.is_finite(), "a number above 0"),
        Number::Share => (number >= 0.0 && seen < 1.0, "from 0 to below 1"),
        Number::Factor => (number > 0.0 && number <= 1.0, "above 0, and 1 at most"),
        Number::Length => (number >= 0.0 && number.is_finite(), "a number from 0 on"),
    };
    if fits { Ok(()) } else { Err(format!("{setting} is {}; it must be {allowed}", Short(number))) }
}
