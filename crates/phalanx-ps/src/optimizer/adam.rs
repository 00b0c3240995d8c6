//! Adam, as `torch.optim.Adam`: with `t` the number of this update, counted from 1,
//! `m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * g * g` and
//! `value -= learning_rate / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)`.
//!
//! Slot 0 is `m`, the mean gradient; slot 1 is `v`, the mean square.

use super::{New, Old, Preparation, elementwise};

/// The usual share of the mean gradient that stays.
pub const BETA1: f64 = 0.9;

/// The usual share of the mean square that stays.
pub const BETA2: f64 = 0.999;

/// The usual epsilon (TensorFlow's is 1e-7).
pub const EPSILON: f64 = 1e-8;

/// The numbers of one update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    rest1: f32,
    beta2: f32,
    rest2: f32,
    // The learning rate and the root of the mean square, both with their bias corrected.
    rate: f32,
    root: f32,
    epsilon: f32,
}

impl Step {
    /// The update after `updates` others, at a learning rate.
    pub fn new(betas: (f64, f64), epsilon: f64, learning_rate: f64, updates: u64) -> Self {
        let (beta1, beta2) = betas;
        let number = updates as f64 + 1.0;
        Self {
            rest1: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            rest2: (1.0 - beta2) as f32,
            rate: (learning_rate / (1.0 - beta1.powf(number))) as f32,
            root: (1.0 / (1.0 - beta2.powf(number)).sqrt()) as f32,
            epsilon: epsilon as f32,
        }
    }

    /// What is to be taken from a value, and its slots afterwards.
    pub(super) fn moved(self, gradient: f32, [mean, square]: [f32; 2]) -> (f32, [f32; 2]) {
        // Written with one factor, the two shares of the mean add up to 1 whatever their rounding.
        let mean = mean + self.rest1 * (gradient - mean);
        let square = self.beta2 * square + self.rest2 * (gradient * gradient);
        (self.rate * mean / (square.sqrt() * self.root + self.epsilon), [mean, square])
    }
}

/// Moves every value against its mean gradient, measured by the root of its mean square.
pub fn apply(step: Step, preparation: Preparation, old: Old<'_>, gradient: &[f32], new: New<'_>) {
    elementwise::two_slots(old, gradient, new, |gradient, value, slots| {
        let (towards, slots) = step.moved(preparation.gradient(gradient, value), slots);
        (value - towards, slots)
    });
}
