//! RMSProp, as `torch.optim.RMSprop` (not centered):
//! `square = decay * square + (1 - decay) * g * g; move = g / (sqrt(square) + epsilon)`, then
//! `value -= learning_rate * move`; with momentum, `velocity = momentum * velocity + move` and
//! `value -= learning_rate * velocity`.
//!
//! Slot 0 is the mean square; slot 1 is the velocity, and exists only where there is momentum.

use super::{New, Old, Preparation, elementwise};

/// The usual share of the mean square that stays: PyTorch's `alpha`.
pub const DECAY: f64 = 0.99;

/// PyTorch's default; it stands outside of the root.
pub const EPSILON: f64 = 1e-8;

/// The numbers of one update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    learning_rate: f32,
    decay: f32,
    rest: f32,
    momentum: f32,
    epsilon: f32,
}

impl Step {
    /// An update at a learning rate.
    pub fn new(decay: f64, momentum: f64, epsilon: f64, learning_rate: f64) -> Self {
        Self {
            learning_rate: learning_rate as f32,
            decay: decay as f32,
            rest: (1.0 - decay) as f32,
            momentum: momentum as f32,
            epsilon: epsilon as f32,
        }
    }

    /// The mean square with this gradient in it, and the gradient over its root.
    fn scaled(self, gradient: f32, square: f32) -> (f32, f32) {
        let square = self.decay * square + self.rest * (gradient * gradient);
        (square, gradient / (square.sqrt() + self.epsilon))
    }
}

/// Moves every value against its gradient, measured by the gradient's usual size.
pub fn apply(step: Step, preparation: Preparation, old: Old<'_>, gradient: &[f32], new: New<'_>) {
    if step.momentum == 0.0 {
        elementwise::one_slot(old, gradient, new, |gradient, value, square| {
            let (square, towards) = step.scaled(preparation.gradient(gradient, value), square);
            (value - step.learning_rate * towards, square)
        });
    } else {
        elementwise::two_slots(old, gradient, new, |gradient, value, [square, velocity]| {
            let (square, towards) = step.scaled(preparation.gradient(gradient, value), square);
            let velocity = step.momentum * velocity + towards;
            (value - step.learning_rate * velocity, [square, velocity])
        });
    }
}
