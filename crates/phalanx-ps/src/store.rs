//! The values of one shard, and which pushes were applied to them.

use crate::Optimizer;
use std::collections::HashMap;

/// One push: a worker's life, and the number of the push in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PushId {
    pub worker: usize,
    pub incarnation: u64,
    pub sequence: u64,
}

/// The flat vector of one shard.
#[derive(Debug)]
pub(crate) struct Store {
    values: Vec<f32>,
    version: u64,
    optimizer: Optimizer,
    // The last push of each worker that changed the values.
    applied: HashMap<usize, PushId>,
}

impl Store {
    pub fn new(values: Vec<f32>, optimizer: Optimizer) -> Self {
        Self { values, version: 0, optimizer, applied: HashMap::new() }
    }

    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// How many pushes were applied.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Applies a push, once: a push that comes again because its reply was lost changes nothing.
    pub fn push(&mut self, id: PushId, gradient: &[f32]) {
        if self.has(id) {
            return;
        }
        self.optimizer.apply(&mut self.values, gradient);
        self.version += 1;
        self.applied.insert(id.worker, id);
    }

    fn has(&self, id: PushId) -> bool {
        self.applied
            .get(&id.worker)
            .is_some_and(|last| last.incarnation == id.incarnation && id.sequence <= last.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(worker: usize, incarnation: u64, sequence: u64) -> PushId {
        PushId { worker, incarnation, sequence }
    }

    #[test]
    fn a_repeated_push_is_applied_once() {
        let mut store = Store::new(vec![0.0], Optimizer::Sgd { learning_rate: 1.0 });
        for push in [id(0, 7, 1), id(0, 7, 1), id(1, 9, 1), id(0, 7, 2), id(0, 7, 1), id(0, 8, 1)] {
            store.push(push, &[-1.0]);
        }
        assert_eq!(store.version(), 4);
        assert_eq!(store.values(), [4.0]);
    }
}
