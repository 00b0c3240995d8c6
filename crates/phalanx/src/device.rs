//! The only place that names backends.

use burn::tensor::Device;

/// The CPU, for training: tensors remember how they were made.
pub fn training() -> Device {
    Device::flex().autodiff()
}

/// The CPU, for evaluation.
pub fn inference() -> Device {
    Device::flex()
}
