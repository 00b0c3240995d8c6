//! The only place that names backends.

use burn::tensor::Device;

/// Sets how many threads this process computes with; to be called once, before the first tensor is made.
pub fn set_threads(threads: usize) -> anyhow::Result<()> {
    Ok(rayon::ThreadPoolBuilder::new().num_threads(threads).build_global()?)
}

/// The CPU, for training: tensors remember how they were made.
pub fn training() -> Device {
    Device::flex().autodiff()
}

/// The CPU, for evaluation.
pub fn inference() -> Device {
    Device::flex()
}
