//! The rules against PyTorch, whose runs lie in `reference/` with the script that made them; and what holds
//! for all rules.
//!
//! PyTorch ran in float64, and ours is f32 that starts from what a file has, so two things are compared over
//! all 300 steps. Each single step, made from the reference's state before it, agrees to 1e-6 relative, for
//! every value and every slot: it is the same rule. A run of our own, which keeps its own rounding of values
//! and slots, agrees to 1e-5 relative after every step: the rounding does not add up.
//!
//! Neither can hold where a number nearly cancels (a velocity that turns round). There the rounding of the
//! state to f32 alone is worth more than 1e-6 of what is left, and PyTorch's own float32 step is as far off
//! as ours. So the script's gradients avoid this, and it refuses to write a run where it happens.

use super::*;
use proptest::prelude::*;

const STEPS: usize = 300;
const ADAM: Rule = Rule::Adam { beta1: adam::BETA1, beta2: adam::BETA2, epsilon: adam::EPSILON };
const ADAMW: Rule =
    Rule::AdamW { beta1: 0.9, beta2: 0.999, epsilon: adam::EPSILON, weight_decay: adamw::WEIGHT_DECAY };
const ADAGRAD: Rule =
    Rule::Adagrad { initial_accumulator: adagrad::INITIAL_ACCUMULATOR, epsilon: adagrad::EPSILON };
const MOMENTUM: Rule = Rule::Momentum { momentum: momentum::MOMENTUM, nesterov: false };
const NESTEROV: Rule = Rule::Momentum { momentum: 0.9, nesterov: true };
const RMSPROP: Rule = Rule::RmsProp { decay: rmsprop::DECAY, momentum: 0.0, epsilon: rmsprop::EPSILON };
const RMSPROP_MOMENTUM: Rule = Rule::RmsProp { decay: 0.9, momentum: 0.9, epsilon: 1e-8 };
const RULES: [Rule; 8] = [Rule::Sgd, MOMENTUM, NESTEROV, ADAGRAD, RMSPROP, RMSPROP_MOMENTUM, ADAM, ADAMW];

/// Values and both slots.
#[derive(Clone, Debug, PartialEq)]
struct State([Vec<f32>; 3]);

impl State {
    fn new(optimizer: &Optimizer, values: &[f32]) -> Self {
        let slot = |index| {
            let len = if index < optimizer.slots() { values.len() } else { 0 };
            vec![optimizer.initial_slot(index); len]
        };
        Self([values.to_vec(), slot(0), slot(1)])
    }

    fn after(&self, update: &Update, gradient: &[f32], block: usize) -> Self {
        // What was there before must not matter.
        let mut new = Self(self.0.each_ref().map(|vector| vec![f32::NAN; vector.len()]));
        let [values, first, second] = &self.0;
        let [new_values, new_first, new_second] = &mut new.0;
        for start in (0..values.len()).step_by(block) {
            let range = start..values.len().min(start + block);
            let of = |slot: &[f32]| if slot.is_empty() { 0..0 } else { range.clone() };
            update.apply(
                Old { values: &values[range.clone()], slots: [&first[of(first)], &second[of(second)]] },
                &gradient[range.clone()],
                New {
                    values: &mut new_values[range.clone()],
                    slots: [&mut new_first[of(first)], &mut new_second[of(second)]],
                },
            );
        }
        new
    }

    /// The largest relative difference to a line of the reference.
    fn difference(&self, line: &[f64]) -> f64 {
        let ours: Vec<f32> = self.0.concat();
        assert_eq!(ours.len(), line.len());
        ours.iter()
            .zip(line)
            .map(|(ours, expected)| (f64::from(*ours) - expected).abs() / expected.abs().max(1e-30))
            .fold(0.0, f64::max)
    }
}

fn reference_gradient(step: usize) -> [f32; 3] {
    let of = |i: usize, scale: f32| {
        let number = ((7 * step * step + 37 * step + 29 * i) % 97) as f32 - 16.0;
        scale * (if step < 10 { number.abs() } else { number }) / 64.0
    };
    [of(0, 1.0), of(1, 0.0625), of(2, 4.0)]
}

fn agrees(optimizer: Optimizer, reference: &str) {
    assert_eq!(optimizer.validate(), Ok(()));
    let lines: Vec<Vec<f64>> = reference
        .lines()
        .map(|line| line.split(',').map(|number| number.parse().unwrap()).collect())
        .collect();
    assert_eq!(lines.len(), STEPS + 1);
    let start: Vec<f32> = lines[0][..3].iter().map(|value| *value as f32).collect();
    let mut run = State::new(&optimizer, &start);
    assert!(run.difference(&lines[0]) < 1e-7, "another start: {run:?}");
    let (mut worst_step, mut worst_run) = (0.0_f64, 0.0_f64);
    for (step, lines) in lines.windows(2).enumerate() {
        let gradient = reference_gradient(step);
        let norm = clip::squared_norm(&gradient).sqrt();
        let update = optimizer.update(step as u64, Some(norm));

        let before: Vec<f32> = lines[0].iter().map(|number| *number as f32).collect();
        let vector = |index: usize| before.chunks(3).nth(index).unwrap_or_default().to_vec();
        let single = State([vector(0), vector(1), vector(2)]).after(&update, &gradient, 3);
        let off = single.difference(&lines[1]);
        assert!(off <= 1e-6, "step {step} is off by {off:e}: {single:?} and not {:?}", lines[1]);

        run = run.after(&update, &gradient, 3);
        let run_off = run.difference(&lines[1]);
        assert!(run_off <= 1e-5, "the run is off by {run_off:e} after step {step}: {run:?}, {:?}", lines[1]);
        (worst_step, worst_run) = (worst_step.max(off), worst_run.max(run_off));
    }
    println!("{optimizer}: single steps differ by {worst_step:.1e} at most, the run by {worst_run:.1e}");
}

fn smooth(base: f64) -> LearningRate {
    LearningRate { base, warmup_steps: 0, decay: Some(Decay { rate: 0.9, steps: 40, staircase: false }) }
}

fn stairs(base: f64) -> LearningRate {
    LearningRate { base, warmup_steps: 20, decay: Some(Decay { rate: 0.5, steps: 70, staircase: true }) }
}

#[test]
fn sgd_agrees_with_pytorch() {
    agrees(Optimizer::new(Rule::Sgd, 0.1), include_str!("reference/sgd.csv"));
}

#[test]
fn sgd_with_clipping_l2_and_a_smooth_decay_agrees_with_pytorch() {
    let optimizer = Optimizer { rule: Rule::Sgd, learning_rate: smooth(0.2), l2: 0.01, clip_norm: Some(1.5) };
    agrees(optimizer, include_str!("reference/sgd_clip_l2_smooth.csv"));
}

#[test]
fn momentum_agrees_with_pytorch() {
    agrees(Optimizer::new(MOMENTUM, 0.05), include_str!("reference/momentum.csv"));
}

#[test]
fn nesterov_with_l2_agrees_with_pytorch() {
    let optimizer = Optimizer { l2: 0.001, ..Optimizer::new(NESTEROV, 0.05) };
    agrees(optimizer, include_str!("reference/nesterov_l2.csv"));
}

#[test]
fn adagrad_with_a_smooth_decay_agrees_with_pytorch() {
    let rule = Rule::Adagrad { initial_accumulator: 0.1, epsilon: 1e-3 };
    let optimizer = Optimizer { learning_rate: smooth(0.2), ..Optimizer::new(rule, 0.0) };
    agrees(optimizer, include_str!("reference/adagrad_smooth.csv"));
}

#[test]
fn rmsprop_agrees_with_pytorch() {
    agrees(Optimizer::new(RMSPROP, 0.1), include_str!("reference/rmsprop.csv"));
}

#[test]
fn rmsprop_with_momentum_warm_up_and_stairs_agrees_with_pytorch() {
    let optimizer = Optimizer { learning_rate: stairs(0.02), ..Optimizer::new(RMSPROP_MOMENTUM, 0.0) };
    agrees(optimizer, include_str!("reference/rmsprop_momentum_stairs.csv"));
}

#[test]
fn adam_with_l2_agrees_with_pytorch() {
    let optimizer = Optimizer { l2: 0.0001, ..Optimizer::new(ADAM, 0.1) };
    agrees(optimizer, include_str!("reference/adam_l2.csv"));
}

#[test]
fn adamw_with_warm_up_and_stairs_agrees_with_pytorch() {
    let rule = Rule::AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.1 };
    let optimizer = Optimizer { learning_rate: stairs(0.1), ..Optimizer::new(rule, 0.0) };
    agrees(optimizer, include_str!("reference/adamw_stairs.csv"));
}

#[test]
fn an_optimizer_reads_as_a_short_text() {
    let decay = Some(Decay { rate: 0.99, steps: 600, staircase: true });
    let mut optimizer = Optimizer::new(ADAM, 0.01);
    optimizer.learning_rate.decay = decay;
    assert_eq!(
        optimizer.to_string(),
        "adam (0.9, 0.999, 1e-8) with learning rate 0.01 decaying by 0.99 every 600 steps"
    );
    let learning_rate =
        LearningRate { warmup_steps: 100, decay: decay.map(|d| Decay { staircase: false, ..d }), base: 1.0 };
    let optimizer = Optimizer { rule: NESTEROV, learning_rate, l2: 1e-5, clip_norm: Some(5.0) };
    assert_eq!(
        optimizer.to_string(),
        "nesterov (0.9) with learning rate 1 decaying smoothly by 0.99 every 600 steps, warming up for \
         100 steps, L2 1e-5, gradients clipped to norm 5"
    );
    assert_eq!(Optimizer::new(Rule::Sgd, 0.5).to_string(), "sgd with learning rate 0.5");
    assert_eq!(ADAMW.to_string(), "adamw (0.9, 0.999, 1e-8, weight decay 0.01)");
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    let sgd = Optimizer::new(Rule::Sgd, 0.1);
    let with = |rule| Optimizer::new(rule, 0.1);
    let decaying = |rate, steps| {
        let decay = Some(Decay { rate, steps, staircase: true });
        Optimizer { learning_rate: LearningRate { decay, ..sgd.learning_rate }, ..sgd }
    };
    let adam = |beta1, beta2, epsilon| with(Rule::Adam { beta1, beta2, epsilon });
    for (optimizer, message) in [
        (Optimizer::new(Rule::Sgd, f64::NAN), "the learning rate is NaN; it must be a number from 0 on"),
        (Optimizer::new(Rule::Sgd, -0.1), "the learning rate is -0.1; it must be a number from 0 on"),
        (Optimizer::new(Rule::Sgd, 1e39), "the learning rate is 1e39; it must be a number from 0 on"),
        (decaying(0.0, 1), "the decay of the learning rate is 0; it must be above 0, and 1 at most"),
        (decaying(1.5, 1), "the decay of the learning rate is 1.5; it must be above 0, and 1 at most"),
        (decaying(0.5, 0), "the learning rate decays every 0 steps; it must be 1 or more"),
        (Optimizer { l2: f64::INFINITY, ..sgd }, "L2 is inf; it must be a number from 0 on"),
        (Optimizer { clip_norm: Some(0.0), ..sgd }, "the norm to clip to is 0; it must be a number above 0"),
        (
            with(Rule::Momentum { momentum: 1.0, nesterov: true }),
            "the momentum is 1; it must be from 0 to below 1",
        ),
        (
            with(Rule::Adagrad { initial_accumulator: -1.0, epsilon: 1e-10 }),
            "adagrad's initial accumulator is -1; it must be a number from 0 on",
        ),
        (
            with(Rule::RmsProp { decay: 0.9, momentum: -0.5, epsilon: 1e-8 }),
            "rmsprop's momentum is -0.5; it must be from 0 to below 1",
        ),
        (adam(1.0, 0.999, 1e-8), "adam's beta1 is 1; it must be from 0 to below 1"),
        (adam(0.9, f64::NAN, 1e-8), "adam's beta2 is NaN; it must be from 0 to below 1"),
        (adam(0.9, 0.999, 1e-60), "adam's epsilon is 1e-60; it must be a number above 0"),
    ] {
        assert_eq!(optimizer.validate(), Err(message.to_owned()));
    }
    for rule in RULES {
        assert_eq!(with(rule).validate(), Ok(()));
    }
}

#[test]
fn clipping_needs_a_norm_that_is_a_number() {
    let optimizer = Optimizer { clip_norm: Some(1.0), ..Optimizer::new(Rule::Sgd, 1.0) };
    assert!(optimizer.check_norm(None).unwrap_err().contains("missing"));
    assert!(optimizer.check_norm(Some(f64::NAN)).unwrap_err().contains("NaN"));
    assert!(optimizer.check_norm(Some(-1.0)).is_err());
    assert_eq!(optimizer.check_norm(Some(0.0)), Ok(()));
    assert_eq!(optimizer.check_norm(Some(1e300)), Ok(()));
    assert_eq!(Optimizer { clip_norm: None, ..optimizer }.check_norm(None), Ok(()));
}

#[test]
fn a_gradient_of_zero_from_the_start_changes_no_value() {
    for rule in RULES.into_iter().filter(|rule| *rule != ADAMW) {
        let optimizer = Optimizer { clip_norm: Some(1.0), ..Optimizer::new(rule, 0.1) };
        let mut state = State::new(&optimizer, &[1.0, -2.0, 0.0]);
        for step in 0..3 {
            state = state.after(&optimizer.update(step, Some(0.0)), &[0.0; 3], 3);
        }
        assert_eq!(state.0[0], [1.0, -2.0, 0.0], "{optimizer}");
    }
}

#[test]
fn an_update_far_in_the_future_is_sound() {
    for rule in RULES {
        let optimizer = Optimizer::new(rule, 0.1);
        let state = State::new(&optimizer, &[1.0]).after(&optimizer.update(u64::MAX, None), &[1.0], 1);
        assert!(state.0.concat().iter().all(|number| number.is_finite()), "{optimizer}");
    }
}

proptest! {
    #[test]
    fn block_by_block_gives_the_same_bits_as_all_at_once(
        elements in prop::collection::vec((-10.0_f32..10.0, -1.0_f32..1.0), 1..300),
        rule in prop::sample::select(&RULES),
        block in 1..100_usize,
        l2 in prop_oneof![Just(0.0), 0.0..0.1],
        clip_norm in prop::option::of(0.1..10.0),
    ) {
        let (values, gradient): (Vec<f32>, Vec<f32>) = elements.into_iter().unzip();
        let norm = clip::squared_norm(&gradient).sqrt();
        let optimizer = Optimizer { l2, clip_norm, ..Optimizer::new(rule, 0.01) };
        let mut whole = State::new(&optimizer, &values);
        let mut blocks = whole.clone();
        for step in 0..3 {
            let update = optimizer.update(step, Some(norm));
            whole = whole.after(&update, &gradient, values.len());
            blocks = blocks.after(&update, &gradient, block);
        }
        prop_assert!(whole.0.concat().iter().all(|number| number.is_finite()));
        let bits = |state: &State| state.0.concat().iter().map(|number| number.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(bits(&whole), bits(&blocks));
    }

    #[test]
    fn clipping_moves_sgd_by_the_limit_at_most(
        gradient in prop::collection::vec(-100.0_f32..100.0, 1..50),
        limit in 0.01..100.0_f64,
    ) {
        let optimizer = Optimizer { clip_norm: Some(limit), ..Optimizer::new(Rule::Sgd, 1.0) };
        let norm = clip::squared_norm(&gradient).sqrt();
        let start = State::new(&optimizer, &vec![0.0; gradient.len()]);
        let State([moved, ..]) = start.after(&optimizer.update(0, Some(norm)), &gradient, gradient.len());
        let length = clip::squared_norm(&moved).sqrt();
        prop_assert!((length - norm.min(limit)).abs() <= 1e-6 * length, "{} {} {}", length, norm, limit);
    }
}
