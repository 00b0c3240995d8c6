//! Adagrad, as `torch.optim.Adagrad` (whose own `lr_decay` is 0 here, the schedule is ours):
//! `sum += g * g; value -= learning_rate * g / (sqrt(sum) + epsilon)`.
//!
//! Slot 0 is the sum of squares, which starts at the initial accumulator.

use super::{New, Old, Preparation, elementwise};

/// Where the sum of squares starts: TensorFlow's default (PyTorch's is 0), which keeps the first steps small
/// where the first gradients happen to be.
pub const INITIAL_ACCUMULATOR: f64 = 0.1;

/// What keeps the division sound when a sum is 0: PyTorch's default.
pub const EPSILON: f64 = 1e-10;

/// The numbers of one update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    learning_rate: f32,
    epsilon: f32,
}

impl Step {
    /// An update at a learning rate.
    pub fn new(epsilon: f64, learning_rate: f64) -> Self {
        Self { learning_rate: learning_rate as f32, epsilon: epsilon as f32 }
    }
}

/// Moves every value against its gradient, the less the more it has seen.
pub fn apply(step: Step, preparation: Preparation, old: Old<'_>, gradient: &[f32], new: New<'_>) {
    elementwise::one_slot(old, gradient, new, |gradient, value, sum| {
        let gradient = preparation.gradient(gradient, value);
        let sum = sum + gradient * gradient;
        (value - step.learning_rate * gradient / (sum.sqrt() + step.epsilon), sum)
    });
}
