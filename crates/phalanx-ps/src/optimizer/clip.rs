//! Clipping by the global norm: a gradient that is longer than the limit keeps its direction and gets the
//! limit's length.
//!
//! The norm is that of the whole gradient, over all shards. No ps sees all of it, so the worker, which does,
//! adds up [`squared_norm`] over the shards and sends the root along with every part; each ps then finds the
//! same [`scale`]. The formula is that of `tf.clip_by_global_norm` (PyTorch's adds 1e-6 to the norm).

// As many sums side by side as fill the vector registers.
const LANES: usize = 16;

/// The sum of the squares of one shard's gradient; the root of the shards' total is the global norm.
pub fn squared_norm(gradient: &[f32]) -> f64 {
    let (blocks, rest) = gradient.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for block in blocks {
        for (sum, value) in sums.iter_mut().zip(block) {
            *sum += f64::from(*value) * f64::from(*value);
        }
    }
    let rest: f64 = rest.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
    sums.iter().sum::<f64>() + rest
}

/// What a gradient with this global norm is multiplied with so that the norm is `limit` at most.
pub fn scale(limit: f64, norm: f64) -> f64 {
    // A norm of 0 makes this infinite, which the minimum takes care of.
    (limit / norm).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_norm_that_f32_cannot_hold_is_held() {
        assert_eq!(squared_norm(&[3e38; 16]).sqrt(), 4.0 * f64::from(3e38_f32));
    }

    #[test]
    fn a_long_gradient_gets_exactly_the_limit() {
        assert_eq!(
            [0.0, 1.0, 2.0, 8.0, f64::INFINITY].map(|norm| scale(2.0, norm)),
            [1.0, 1.0, 1.0, 0.25, 0.0]
        );
    }

    proptest! {
        #[test]
        fn shards_of_any_size_give_the_same_norm(
            gradient in prop::collection::vec(-1e3_f32..1e3, 1..200),
            shard in 1..200_usize,
        ) {
            let whole = squared_norm(&gradient);
            let shards: f64 = gradient.chunks(shard).map(squared_norm).sum();
            prop_assert!((whole - shards).abs() <= 1e-14 * whole, "{} {}", whole, shards);
        }

        #[test]
        fn a_scaled_gradient_is_no_longer_than_the_limit_and_a_short_one_is_kept(
            limit in 1e-3..1e3_f64,
            norm in 0.0..1e4_f64,
        ) {
            let scale = scale(limit, norm);
            prop_assert!(scale * norm <= limit * (1.0 + 1e-15));
            prop_assert_eq!(scale == 1.0, norm <= limit);
            prop_assert!(scale > 0.0);
        }
    }
}
