//! Vectors of values that are shared and not copied: with the network that sends them, with the tensors of
//! a model. What nobody looks at any more is used again.

use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;

/// A flat vector of values that does not change any more; cheap to clone.
#[derive(Clone, Debug)]
pub struct Values(Bytes);

/// Vectors to be filled, taken back as soon as the last [`Values`] made of them are gone.
#[derive(Clone, Debug, Default)]
pub struct ValuePool(Arc<Mutex<Vec<Vec<f32>>>>);

impl Values {
    /// Values of whole little-endian f32, aligned as f32.
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// The values.
    pub fn as_slice(&self) -> &[f32] {
        bytemuck::cast_slice(&self.0)
    }

    /// The values as they travel: little-endian f32.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }
}

impl ValuePool {
    /// A vector of `len` values, whatever they are.
    pub fn take(&self, len: usize) -> Vec<f32> {
        let mut vector = self.0.lock().pop().unwrap_or_default();
        vector.resize(len, 0.0);
        vector
    }

    /// Makes a vector unchangeable, and shared.
    pub fn share(&self, vector: Vec<f32>) -> Values {
        Values(Bytes::from_owner(Lent { vector, pool: self.clone() }))
    }
}

/// A vector that finds its way back.
struct Lent {
    vector: Vec<f32>,
    pool: ValuePool,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.vector)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.pool.0.lock().push(std::mem::take(&mut self.vector));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_is_used_again_when_nobody_looks_at_it() {
        let pool = ValuePool::default();
        let values = pool.share(vec![1.0, 2.0]);
        let (place, slice) = (values.as_slice().as_ptr(), values.as_bytes().slice(4..));
        drop(values);
        let other = pool.take(2);
        assert_ne!(other.as_ptr(), place, "a slice still looks at it");
        drop(slice);
        let again = pool.take(2);
        assert_eq!(again.as_ptr(), place);
    }
}
