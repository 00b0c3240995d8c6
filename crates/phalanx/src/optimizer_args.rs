//! The flags of the optimizer.

use crate::settings::ModelKind;
use phalanx_ps::optimizer::{Decay, LearningRate, Optimizer, Rule, adagrad, adam, adamw, momentum, rmsprop};
use serde::{Deserialize, Serialize};

/// What the ps do with gradients.
#[derive(clap::Args, Clone, Debug, Serialize, Deserialize)]
#[command(rename_all = "snake_case")]
pub struct OptimizerArgs {
    /// How gradients change the parameters.
    #[arg(long, value_enum, default_value_t = RuleName::Sgd, help_heading = "Optimizer")]
    pub optimizer: RuleName,
    /// Step size [default: for sgd 0.5 with softmax, 0.2 with mlp, 0.05 with convnet; for momentum a tenth of that;
    /// for adagrad 0.01; for the others 0.001].
    #[arg(long, value_name = "RATE", allow_negative_numbers = true, help_heading = "Optimizer")]
    pub learning_rate: Option<f64>,
    /// How much of the velocity stays, for momentum and rmsprop [default: 0.9 for momentum, 0 for rmsprop].
    #[arg(long, value_name = "SHARE", help_heading = "Optimizer")]
    pub momentum: Option<f64>,
    /// Nesterov's form of momentum.
    #[arg(long, help_heading = "Optimizer")]
    pub nesterov: bool,
    /// How much of each parameter goes with each step, times the step size, for adamw.
    #[arg(long, value_name = "X", default_value_t = adamw::WEIGHT_DECAY, help_heading = "Optimizer")]
    pub weight_decay: f64,
    /// What the step size is multiplied with over --lr_decay_steps.
    #[arg(long, value_name = "FACTOR", requires = "lr_decay_steps", help_heading = "Optimizer")]
    pub lr_decay: Option<f64>,
    /// Updates over which the step size falls by --lr_decay.
    #[arg(long, value_name = "N", requires = "lr_decay", help_heading = "Optimizer")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub lr_decay_steps: Option<u64>,
    /// Let the step size fall once every --lr_decay_steps and not a little with each update.
    #[arg(long, requires = "lr_decay", help_heading = "Optimizer")]
    pub lr_staircase: bool,
    /// First updates, over which the step size grows to its full size.
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Optimizer")]
    pub warmup_steps: u64,
    /// How much of each parameter is added to its gradient.
    #[arg(long, value_name = "X", default_value_t = 0.0, help_heading = "Optimizer")]
    pub l2: f64,
    /// Shorten gradients to this norm, taken over all ps.
    #[arg(long, value_name = "NORM", help_heading = "Optimizer")]
    pub clip_norm: Option<f64>,
}

/// The rules by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "lower")]
pub enum RuleName {
    /// Plain gradient descent.
    Sgd,
    /// Gradient descent with a velocity.
    Momentum,
    /// Steps that shrink with the sum of squared gradients.
    Adagrad,
    /// Steps measured by the mean squared gradient.
    RmsProp,
    /// The mean gradient measured by the mean squared one.
    Adam,
    /// Adam, with parameters that shrink on their own.
    AdamW,
}

impl OptimizerArgs {
    /// The optimizer for a model, or what is wrong with the flags.
    pub fn optimizer(&self, model: ModelKind) -> Result<Optimizer, String> {
        let (beta1, beta2, epsilon) = (adam::BETA1, adam::BETA2, adam::EPSILON);
        let rule = match self.optimizer {
            RuleName::Sgd => Rule::Sgd,
            RuleName::Momentum => Rule::Momentum {
                momentum: self.momentum.unwrap_or(momentum::MOMENTUM),
                nesterov: self.nesterov,
            },
            RuleName::Adagrad => {
                Rule::Adagrad { initial_accumulator: adagrad::INITIAL_ACCUMULATOR, epsilon: adagrad::EPSILON }
            }
            RuleName::RmsProp => Rule::RmsProp {
                decay: rmsprop::DECAY,
                momentum: self.momentum.unwrap_or(0.0),
                epsilon: rmsprop::EPSILON,
            },
            RuleName::Adam => Rule::Adam { beta1, beta2, epsilon },
            RuleName::AdamW => Rule::AdamW { beta1, beta2, epsilon, weight_decay: self.weight_decay },
        };
        if self.momentum.is_some() && !matches!(self.optimizer, RuleName::Momentum | RuleName::RmsProp) {
            return Err("--momentum goes with --optimizer momentum or rmsprop".into());
        }
        if self.nesterov && self.optimizer != RuleName::Momentum {
            return Err("--nesterov goes with --optimizer momentum".into());
        }
        let decay = self.lr_decay.zip(self.lr_decay_steps);
        let decay = decay.map(|(rate, steps)| Decay { rate, steps, staircase: self.lr_staircase });
        let base = self.learning_rate.unwrap_or_else(|| self.default_rate(model));
        let learning_rate = LearningRate { base, warmup_steps: self.warmup_steps, decay };
        let optimizer = Optimizer { rule, learning_rate, l2: self.l2, clip_norm: self.clip_norm };
        optimizer.validate()?;
        if base == 0.0 {
            return Err("the learning rate is 0; it must be a number above 0".into());
        }
        Ok(optimizer)
    }

    fn default_rate(&self, model: ModelKind) -> f64 {
        let plain = match model {
            ModelKind::Softmax => 0.5,
            ModelKind::Mlp => 0.2,
            ModelKind::Convnet => 0.05,
        };
        match self.optimizer {
            RuleName::Sgd => plain,
            RuleName::Momentum => plain / 10.0,
            RuleName::Adagrad => 0.01,
            RuleName::RmsProp | RuleName::Adam | RuleName::AdamW => 0.001,
        }
    }
}
