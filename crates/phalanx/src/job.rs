//! What a user brings: a model, a loss, data, and how to judge the result.

use burn::{
    module::Module,
    tensor::{Device, Tensor},
};
use std::collections::BTreeMap;

/// A training job. The rest of this crate turns it into a distributed program.
pub trait Job {
    /// The model whose parameters are trained.
    type Model: Module;
    /// What the loss is computed on.
    type Batch;

    /// A fresh model. Its initial values must depend on nothing but the job's own seed.
    fn model(&self, device: &Device) -> Self::Model;

    /// The number of training examples.
    fn examples(&self) -> usize;

    /// The examples with these indices, as tensors.
    fn batch(&self, examples: &[u32], device: &Device) -> Self::Batch;

    /// The loss to be made small: one number.
    fn loss(&self, model: &Self::Model, batch: Self::Batch) -> Tensor<1>;

    /// How good the model is on data that it was not trained on.
    fn evaluate(&self, model: &Self::Model, device: &Device) -> Evaluation;

    /// Settings in which all workers of a run must agree, by name.
    fn settings(&self) -> BTreeMap<String, String>;
}

/// How good a model is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// The share of test examples it gets right, from 0 to 1.
    pub accuracy: f64,
    /// The mean cross-entropy on the test examples.
    pub cross_entropy: f64,
}
