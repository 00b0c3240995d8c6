//! The first job: digits.

pub mod models;

use crate::{
    data::{Digits, Examples},
    job::{Evaluation, Job},
    settings::{Dataset, ModelKind, Settings},
};
use burn::{
    nn::loss::CrossEntropyLossConfig,
    tensor::{Device, Int, Tensor, TensorData},
};
use models::{Classifier, Convnet, Mlp, Softmax};
use std::{collections::BTreeMap, path::Path};

/// Classifies digits.
pub struct Mnist {
    settings: Settings,
    digits: Digits,
}

/// Images and their digits.
pub struct Batch {
    images: Tensor<2>,
    labels: Tensor<1, Int>,
}

/// Examples in a batch of the evaluation.
const EVALUATION_BATCH: usize = 500;

impl Mnist {
    /// The job with these settings, on the files of `data_dir` or on drawn digits.
    pub fn new(settings: Settings, dataset: Dataset, data_dir: &Path) -> anyhow::Result<Self> {
        let digits = match dataset {
            Dataset::Mnist => Digits::load(data_dir)?,
            Dataset::Synthetic => Digits::synthetic(settings.seed),
        };
        let Examples { rows, columns, .. } = digits.train;
        let side = models::SIDE;
        anyhow::ensure!(
            rows == side && columns == side,
            "the images of {} are {rows}x{columns}; the models here take {side}x{side}",
            data_dir.display()
        );
        Ok(Self { settings, digits })
    }

    fn tensors(examples: &Examples, indices: impl Iterator<Item = usize>, device: &Device) -> Batch {
        let size = examples.rows * examples.columns;
        let (mut images, mut labels) = (Vec::new(), Vec::new());
        images.reserve(indices.size_hint().0 * size);
        for index in indices {
            let pixels = examples.pixels.get(index * size..(index + 1) * size).unwrap_or_default();
            images.extend(pixels.iter().map(|&pixel| f32::from(pixel) * (1.0 / 255.0)));
            labels.push(examples.labels.get(index).copied().map_or(0, i64::from));
        }
        let count = labels.len();
        Batch {
            images: Tensor::from_data(TensorData::new(images, [count, size]), device),
            labels: Tensor::from_data(TensorData::new(labels, [count]), device),
        }
    }
}

impl Job for Mnist {
    type Model = Classifier;
    type Batch = Batch;

    fn model(&self, device: &Device) -> Classifier {
        let Settings { model, hidden_units, activation, dropout, seed, .. } = &self.settings;
        match model {
            ModelKind::Softmax => Classifier::Softmax(Softmax::new(device)),
            ModelKind::Mlp => Classifier::Mlp(Mlp::new(*hidden_units as usize, *activation, *seed, device)),
            ModelKind::Convnet => Classifier::Convnet(Convnet::new(*dropout, *seed, device)),
        }
    }

    fn examples(&self) -> usize {
        self.digits.train.len()
    }

    fn batch(&self, examples: &[u32], device: &Device) -> Batch {
        Self::tensors(&self.digits.train, examples.iter().map(|&index| index as usize), device)
    }

    fn loss(&self, model: &Classifier, batch: Batch) -> Tensor<1> {
        let loss = CrossEntropyLossConfig::new().init(&batch.images.device());
        loss.forward(model.forward(batch.images), batch.labels)
    }

    fn evaluate(&self, model: &Classifier, device: &Device) -> Evaluation {
        let test = &self.digits.test;
        let (mut correct, mut cross_entropy) = (0usize, 0.0f64);
        for first in (0..test.len()).step_by(EVALUATION_BATCH) {
            let indices = first..test.len().min(first + EVALUATION_BATCH);
            let batch = Self::tensors(test, indices.clone(), device);
            let logits = model.forward(batch.images).into_data();
            let logits = bytemuck::cast_slice::<u8, f32>(logits.as_bytes());
            for (logits, index) in logits.chunks_exact(models::CLASSES).zip(indices) {
                let label = test.labels.get(index).copied().map_or(0, usize::from);
                correct += usize::from(largest(logits) == label);
                cross_entropy += log_sum_exp(logits) - f64::from(logits.get(label).copied().unwrap_or(0.0));
            }
        }
        let count = test.len().max(1) as f64;
        Evaluation { accuracy: correct as f64 / count, cross_entropy: cross_entropy / count }
    }

    fn settings(&self) -> BTreeMap<String, String> {
        let Settings { model, hidden_units, activation, dropout, .. } = &self.settings;
        let model = match model {
            ModelKind::Softmax => "softmax".into(),
            ModelKind::Mlp => format!("mlp with {hidden_units} hidden units, {activation:?}").to_lowercase(),
            ModelKind::Convnet => format!("convnet with dropout {dropout}"),
        };
        let data = format!("{} examples with checksum {:016x}", self.examples(), self.digits.checksum());
        [("the model".to_string(), model), ("the data".to_string(), data)].into()
    }
}

fn largest(values: &[f32]) -> usize {
    let mut best = 0;
    for (index, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = index;
        }
    }
    best
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - highest).exp()).sum();
    f64::from(highest) + sum.ln()
}
