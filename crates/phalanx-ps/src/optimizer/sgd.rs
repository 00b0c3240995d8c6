//! Plain gradient descent: `new = old - learning_rate * gradient`.

/// Moves every value against its gradient.
pub fn apply(old: &[f32], gradient: &[f32], new: &mut [f32], learning_rate: f32) {
    for ((new, old), gradient) in new.iter_mut().zip(old).zip(gradient) {
        *new = old - learning_rate * gradient;
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn values_move_against_the_gradient() {
        let mut new = [0.0; 3];
        super::apply(&[1.0, 2.0, 3.0], &[2.0, 0.0, -4.0], &mut new, 0.5);
        assert_eq!(new, [0.0, 2.0, 5.0]);
    }
}
