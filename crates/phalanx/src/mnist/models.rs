//! The three classifiers of 28x28 images.

use crate::random::Random;
use burn::{
    module::{Module, Param},
    nn::{
        Dropout, DropoutConfig, Linear, LinearConfig, PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
        pool::{MaxPool2d, MaxPool2dConfig},
    },
    tensor::{Device, Tensor, TensorData, activation},
};
use serde::{Deserialize, Serialize};

/// Width and height of an image.
pub const SIDE: usize = 28;
/// Digits.
pub const CLASSES: usize = 10;
const PIXELS: usize = SIDE * SIDE;

/// A model that turns images, one row each, into logits.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // There is one in a process.
pub enum Classifier {
    /// One linear layer.
    Softmax(Softmax),
    /// One hidden layer.
    Mlp(Mlp),
    /// Two convolutions and two linear layers.
    Convnet(Convnet),
}

/// One linear layer.
#[derive(Module, Debug)]
pub struct Softmax {
    output: Linear,
}

/// One hidden layer.
#[derive(Module, Debug)]
pub struct Mlp {
    hidden: Linear,
    output: Linear,
    #[module(skip)]
    activation: Activation,
}

/// Two 5x5 convolutions with pooling, a hidden layer with dropout, and a linear layer.
#[derive(Module, Debug)]
pub struct Convnet {
    conv1: Conv2d,
    conv2: Conv2d,
    hidden: Linear,
    output: Linear,
    pool: MaxPool2d,
    dropout: Dropout,
}

/// What follows the hidden layer of the MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// max(x, 0)
    Relu,
    /// 1 / (1 + exp(-x))
    Sigmoid,
}

impl Classifier {
    /// Logits of `[batch, pixels]` images with values from 0 to 1.
    pub fn forward(&self, images: Tensor<2>) -> Tensor<2> {
        match self {
            Self::Softmax(model) => model.output.forward(images),
            Self::Mlp(model) => model.forward(images),
            Self::Convnet(model) => model.forward(images),
        }
    }
}

impl Softmax {
    /// Weights and biases 0: the loss is convex, so any start will do.
    pub fn new(device: &Device) -> Self {
        let mut output = LinearConfig::new(PIXELS, CLASSES).init(device);
        output.weight = constant([PIXELS, CLASSES], 0.0, device);
        output.bias = Some(constant([CLASSES], 0.0, device));
        Self { output }
    }
}

impl Mlp {
    /// Weights truncated normal with deviation 1/sqrt(inputs), biases 0.
    pub fn new(hidden_units: usize, activation: Activation, seed: u64, device: &Device) -> Self {
        let mut random = Random::new(seed);
        let mut layer = |inputs: usize, outputs: usize| {
            let deviation = 1.0 / (inputs as f32).sqrt();
            linear(&mut random, [inputs, outputs], deviation, 0.0, device)
        };
        Self { hidden: layer(PIXELS, hidden_units), output: layer(hidden_units, CLASSES), activation }
    }

    fn forward(&self, images: Tensor<2>) -> Tensor<2> {
        let hidden = self.hidden.forward(images);
        let hidden = match self.activation {
            Activation::Relu => activation::relu(hidden),
            Activation::Sigmoid => activation::sigmoid(hidden),
        };
        self.output.forward(hidden)
    }
}

impl Convnet {
    /// Weights truncated normal with deviation 0.1, biases 0.1.
    pub fn new(dropout: f64, seed: u64, device: &Device) -> Self {
        const HIDDEN: usize = 1024;
        let mut random = Random::new(seed);
        let random = &mut random;
        let pooled = SIDE / 4;
        Self {
            conv1: convolution(random, [1, 32], device),
            conv2: convolution(random, [32, 64], device),
            hidden: linear(random, [pooled * pooled * 64, HIDDEN], 0.1, 0.1, device),
            output: linear(random, [HIDDEN, CLASSES], 0.1, 0.1, device),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            dropout: DropoutConfig::new(dropout).init(),
        }
    }

    fn forward(&self, images: Tensor<2>) -> Tensor<2> {
        let batch = images.dims()[0];
        let images = images.reshape([batch, 1, SIDE, SIDE]);
        let features = self.pool.forward(activation::relu(self.conv1.forward(images)));
        let features = self.pool.forward(activation::relu(self.conv2.forward(features)));
        let hidden = activation::relu(self.hidden.forward(features.flatten(1, 3)));
        self.output.forward(self.dropout.forward(hidden))
    }
}

fn linear(random: &mut Random, shape: [usize; 2], deviation: f32, bias: f32, device: &Device) -> Linear {
    let mut layer = LinearConfig::new(shape[0], shape[1]).init(device);
    layer.weight = truncated_normal(random, shape, deviation, device);
    layer.bias = Some(constant([shape[1]], bias, device));
    layer
}

fn convolution(random: &mut Random, channels: [usize; 2], device: &Device) -> Conv2d {
    const KERNEL: [usize; 2] = [5, 5];
    let mut layer = Conv2dConfig::new(channels, KERNEL).with_padding(PaddingConfig2d::Same).init(device);
    let shape = [channels[1], channels[0], KERNEL[0], KERNEL[1]];
    layer.weight = truncated_normal(random, shape, 0.1, device);
    layer.bias = Some(constant([channels[1]], 0.1, device));
    layer
}

// Drawn here and not by Burn, whose generator is shared by all threads of a process: the values are a
// function of the seed alone.
fn truncated_normal<const D: usize>(
    random: &mut Random,
    shape: [usize; D],
    deviation: f32,
    device: &Device,
) -> Param<Tensor<D>> {
    let draw = |_| loop {
        let normal = random.normal();
        // What lies beyond two deviations is drawn again.
        if normal.abs() <= 2.0 {
            break normal * deviation;
        }
    };
    let values: Vec<f32> = (0..shape.iter().product()).map(draw).collect();
    Param::from_tensor(Tensor::from_data(TensorData::new(values, shape), device))
}

fn constant<const D: usize>(shape: [usize; D], value: f32, device: &Device) -> Param<Tensor<D>> {
    let values = vec![value; shape.iter().product()];
    Param::from_tensor(Tensor::from_data(TensorData::new(values, shape), device))
}
