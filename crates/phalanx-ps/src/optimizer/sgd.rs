//! Plain gradient descent, as `torch.optim.SGD`: `value -= learning_rate * g`.

use super::{New, Old, Preparation, elementwise};

/// The numbers of one update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    learning_rate: f32,
}

impl Step {
    /// An update at a learning rate.
    pub fn new(learning_rate: f64) -> Self {
        Self { learning_rate: learning_rate as f32 }
    }
}

/// Moves every value against its gradient.
pub fn apply(step: Step, preparation: Preparation, old: Old<'_>, gradient: &[f32], new: New<'_>) {
    elementwise::no_slot(old, gradient, new, |gradient, value| {
        value - step.learning_rate * preparation.gradient(gradient, value)
    });
}
