//! Plain gradient descent: `value -= learning_rate * gradient`.

/// Moves every value against its gradient.
pub fn apply(values: &mut [f32], gradient: &[f32], learning_rate: f32) {
    debug_assert_eq!(values.len(), gradient.len());
    for (value, gradient) in values.iter_mut().zip(gradient) {
        *value -= learning_rate * gradient;
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn values_move_against_the_gradient() {
        let mut values = [1.0, 2.0, 3.0];
        super::apply(&mut values, &[2.0, 0.0, -4.0], 0.5);
        assert_eq!(values, [0.0, 2.0, 5.0]);
    }
}
