//! An optimizer as a message.

use super::{Decay, LearningRate, Optimizer, Rule};
use crate::wire;

impl Optimizer {
    pub(crate) fn to_wire(self) -> wire::Optimizer {
        use wire::optimizer::Rule as Wire;
        let adam = |(beta1, beta2, epsilon), weight_decay| {
            Wire::Adam(wire::Adam { beta1, beta2, epsilon, weight_decay })
        };
        let rule = match self.rule {
            Rule::Sgd => Wire::Sgd(wire::Sgd {}),
            Rule::Momentum { momentum, nesterov } => Wire::Momentum(wire::Momentum { momentum, nesterov }),
            Rule::Adagrad { initial_accumulator, epsilon } => {
                Wire::Adagrad(wire::Adagrad { initial_accumulator, epsilon })
            }
            Rule::RmsProp { decay, momentum, epsilon } => {
                Wire::Rmsprop(wire::RmsProp { decay, momentum, epsilon })
            }
            Rule::Adam { beta1, beta2, epsilon } => adam((beta1, beta2, epsilon), None),
            Rule::AdamW { beta1, beta2, epsilon, weight_decay } => {
                adam((beta1, beta2, epsilon), Some(weight_decay))
            }
        };
        let LearningRate { base, warmup_steps, decay } = self.learning_rate;
        let decay = decay.map(|Decay { rate, steps, staircase }| wire::Decay { rate, steps, staircase });
        wire::Optimizer {
            rule: Some(rule),
            learning_rate: Some(wire::LearningRate { base, warmup_steps, decay }),
            l2: self.l2,
            clip_norm: self.clip_norm,
        }
    }

    pub(crate) fn from_wire(optimizer: Option<wire::Optimizer>) -> Result<Self, String> {
        use wire::optimizer::Rule as Wire;
        let unknown = "the optimizer is missing, or one that this ps does not know";
        let wire::Optimizer { rule, learning_rate, l2, clip_norm } = optimizer.ok_or(unknown)?;
        let rule = match rule.ok_or(unknown)? {
            Wire::Sgd(wire::Sgd {}) => Rule::Sgd,
            Wire::Momentum(wire::Momentum { momentum, nesterov }) => Rule::Momentum { momentum, nesterov },
            Wire::Adagrad(wire::Adagrad { initial_accumulator, epsilon }) => {
                Rule::Adagrad { initial_accumulator, epsilon }
            }
            Wire::Rmsprop(wire::RmsProp { decay, momentum, epsilon }) => {
                Rule::RmsProp { decay, momentum, epsilon }
            }
            Wire::Adam(wire::Adam { beta1, beta2, epsilon, weight_decay: None }) => {
                Rule::Adam { beta1, beta2, epsilon }
            }
            Wire::Adam(wire::Adam { beta1, beta2, epsilon, weight_decay: Some(weight_decay) }) => {
                Rule::AdamW { beta1, beta2, epsilon, weight_decay }
            }
        };
        let wire::LearningRate { base, warmup_steps, decay } =
            learning_rate.ok_or("the learning rate is missing")?;
        let decay = decay.map(|wire::Decay { rate, steps, staircase }| Decay { rate, steps, staircase });
        let learning_rate = LearningRate { base, warmup_steps, decay };
        let optimizer = Self { rule, learning_rate, l2, clip_norm };
        optimizer.validate()?;
        Ok(optimizer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_optimizer_survives_the_wire() {
        let (beta1, beta2, epsilon) = (0.9, 0.999, 1e-8);
        for rule in [
            Rule::Sgd,
            Rule::Momentum { momentum: 0.9, nesterov: true },
            Rule::Adagrad { initial_accumulator: 0.1, epsilon },
            Rule::RmsProp { decay: 0.9, momentum: 0.5, epsilon },
            Rule::Adam { beta1, beta2, epsilon },
            Rule::AdamW { beta1, beta2, epsilon, weight_decay: 0.01 },
        ] {
            let decay = Some(Decay { rate: 0.99, steps: 600, staircase: true });
            let learning_rate = LearningRate { base: 0.01, warmup_steps: 10, decay };
            let optimizer = Optimizer { rule, learning_rate, l2: 1e-4, clip_norm: Some(5.0) };
            assert_eq!(Optimizer::from_wire(Some(optimizer.to_wire())), Ok(optimizer));
        }
        let refusal = Optimizer::from_wire(Some(Optimizer::new(Rule::Sgd, f64::NAN).to_wire())).unwrap_err();
        assert!(refusal.contains("learning rate"), "{refusal}");
        assert!(Optimizer::from_wire(None).is_err());
    }
}
