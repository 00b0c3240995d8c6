//! How fast the values move, as a function of how many updates there were.

use super::{Number, check};
use std::fmt;

/// A learning rate: constant, or with a warm-up, a decay, or both.
///
/// Both count from the first update, so a decay goes on during the warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRate {
    /// The rate before warm-up and decay.
    pub base: f64,
    /// The first updates, over which the rate grows linearly: the first has `1 / warmup_steps` of it, and the
    /// last all of it. 0 is no warm-up.
    pub warmup_steps: u64,
    /// How the rate falls; `None` is not at all.
    pub decay: Option<Decay>,
}

/// Exponential decay, as `tf.train.exponential_decay`: a factor of `rate^(step / steps)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decay {
    /// The factor over `steps` updates.
    pub rate: f64,
    /// How many updates it takes to fall by `rate`.
    pub steps: u64,
    /// Whether the rate falls once every `steps` updates, and not a little with each.
    pub staircase: bool,
}

impl LearningRate {
    /// A rate that stays as it is.
    pub fn constant(base: f64) -> Self {
        Self { base, warmup_steps: 0, decay: None }
    }

    /// The rate of the update that comes after `step` others.
    pub fn at(&self, step: u64) -> f64 {
        let warmup =
            if step < self.warmup_steps { (step as f64 + 1.0) / self.warmup_steps as f64 } else { 1.0 };
        self.base * warmup * self.decay.map_or(1.0, |decay| decay.at(step))
    }

    pub(super) fn validate(&self) -> Result<(), String> {
        check("the learning rate", self.base, Number::NotNegative)?;
        self.decay.map_or(Ok(()), |decay| decay.validate())
    }
}

impl Decay {
    fn at(&self, step: u64) -> f64 {
        // `validate` refuses 0 steps; here they must only not panic.
        let steps = self.steps.max(1);
        let falls = if self.staircase { (step / steps) as f64 } else { step as f64 / steps as f64 };
        self.rate.powf(falls)
    }

    fn validate(&self) -> Result<(), String> {
        check("the decay of the learning rate", self.rate, Number::Factor)?;
        if self.steps == 0 {
            return Err("the learning rate decays every 0 steps; it must be 1 or more".into());
        }
        Ok(())
    }
}

impl fmt::Display for LearningRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "learning rate {}", super::Short(self.base))?;
        if let Some(Decay { rate, steps, staircase }) = self.decay {
            let how = if staircase { "" } else { " smoothly" };
            let steps = if steps == 1 { "step".to_owned() } else { format!("{steps} steps") };
            write!(f, " decaying{how} by {} every {steps}", super::Short(rate))?;
        }
        if self.warmup_steps > 0 {
            write!(f, ", warming up for {} steps", self.warmup_steps)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decaying(rate: f64, steps: u64, staircase: bool) -> LearningRate {
        LearningRate { base: 2.0, warmup_steps: 0, decay: Some(Decay { rate, steps, staircase }) }
    }

    #[test]
    fn a_warm_up_grows_linearly_to_the_whole_rate() {
        let rate = LearningRate { base: 8.0, warmup_steps: 4, decay: None };
        assert_eq!(
            [0, 1, 2, 3, 4, 5, u64::MAX].map(|step| rate.at(step)),
            [2.0, 4.0, 6.0, 8.0, 8.0, 8.0, 8.0]
        );
        assert_eq!(LearningRate { warmup_steps: 1, ..rate }.at(0), 8.0);
    }

    #[test]
    fn a_decay_falls_in_stairs_or_smoothly() {
        let steps = [0, 1, 2, 3, 4];
        assert_eq!(steps.map(|step| decaying(0.25, 2, true).at(step)), [2.0, 2.0, 0.5, 0.5, 0.125]);
        assert_eq!(steps.map(|step| decaying(0.25, 2, false).at(step)), [2.0, 1.0, 0.5, 0.25, 0.125]);
    }

    #[test]
    fn a_decay_goes_on_during_the_warm_up() {
        assert_eq!(LearningRate { warmup_steps: 2, ..decaying(0.5, 1, true) }.at(1), 1.0);
        assert_eq!(LearningRate { warmup_steps: 4, ..decaying(0.5, 1, true) }.at(1), 0.5);
    }

    proptest! {
        #[test]
        fn stairs_lie_on_the_smooth_curve_or_above_and_meet_it_at_every_edge(
            rate in 0.01..=1.0_f64,
            steps in 1..1000_u64,
            step in 0..10_000_u64,
        ) {
            let (stairs, smooth) = (decaying(rate, steps, true), decaying(rate, steps, false));
            let edge = step / steps * steps;
            prop_assert_eq!(stairs.at(step), stairs.at(edge));
            prop_assert_eq!(stairs.at(edge), smooth.at(edge));
            prop_assert!(stairs.at(step) >= smooth.at(step));
            prop_assert!(smooth.at(step + 1) <= smooth.at(step));
        }
    }
}
