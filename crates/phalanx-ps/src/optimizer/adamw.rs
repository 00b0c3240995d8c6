//! AdamW, as `torch.optim.AdamW`: Adam on a value that was first shrunk,
//! `value *= 1 - learning_rate * weight_decay`.
//!
//! So the decay is no part of the gradient, and Adam's measure does not undo it, as it does to L2. The slots
//! are Adam's.

use super::{New, Old, Preparation, adam, elementwise};

/// PyTorch's default weight decay.
pub const WEIGHT_DECAY: f64 = 0.01;

/// The numbers of one update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    adam: adam::Step,
    shrink: f32,
}

impl Step {
    /// An update of Adam, of values that shrink by `weight_decay` at a learning rate.
    pub fn new(adam: adam::Step, weight_decay: f64, learning_rate: f64) -> Self {
        Self { adam, shrink: (learning_rate * weight_decay) as f32 }
    }
}

/// Shrinks every value, and moves it as Adam does.
pub fn apply(step: Step, preparation: Preparation, old: Old<'_>, gradient: &[f32], new: New<'_>) {
    elementwise::two_slots(old, gradient, new, |gradient, value, slots| {
        let (towards, slots) = step.adam.moved(preparation.gradient(gradient, value), slots);
        // Both small numbers first: the value is then rounded once.
        (value - (step.shrink * value + towards), slots)
    });
}
