//! Gradient descent with momentum, as `torch.optim.SGD` with dampening 0:
//! `velocity = momentum * velocity + g; value -= learning_rate * velocity`.
//!
//! Nesterov's form looks one step ahead: `value -= learning_rate * (g + momentum * velocity)`. The learning
//! rate is outside of the velocity, so a change of the rate takes hold at once (in TensorFlow's form, it is
//! inside).
//!
//! Slot 0 is the velocity.

use super::{New, Old, Preparation, elementwise};

/// The usual momentum.
pub const MOMENTUM: f64 = 0.9;

/// The numbers of one update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    learning_rate: f32,
    momentum: f32,
    // How much of the velocity and of the gradient makes the move: the plain form and Nesterov's differ in
    // these two numbers only, so that both run the same loop.
    velocity_share: f32,
    gradient_share: f32,
}

impl Step {
    /// An update at a learning rate.
    pub fn new(momentum: f64, nesterov: bool, learning_rate: f64) -> Self {
        let momentum = momentum as f32;
        let (velocity_share, gradient_share) = if nesterov { (momentum, 1.0) } else { (1.0, 0.0) };
        Self { learning_rate: learning_rate as f32, momentum, velocity_share, gradient_share }
    }
}

/// Turns every value's velocity against its gradient, and moves the value along.
pub fn apply(step: Step, preparation: Preparation, old: Old<'_>, gradient: &[f32], new: New<'_>) {
    elementwise::one_slot(old, gradient, new, |gradient, value, velocity| {
        let gradient = preparation.gradient(gradient, value);
        let velocity = step.momentum * velocity + gradient;
        let towards = step.velocity_share * velocity + step.gradient_share * gradient;
        (value - step.learning_rate * towards, velocity)
    });
}
