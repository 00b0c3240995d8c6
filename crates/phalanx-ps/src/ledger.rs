//! Which batch of the data set was handed to whom.
//!
//! Batches are numbered through the whole run: with `n` batches in an epoch, batch `k` is batch `k % n` of
//! epoch `k / n`. Each is handed to one worker; those of a worker that left are handed to another. So the
//! cluster as a whole goes through the data once in each epoch, however fast or long-lived its workers are.

use std::collections::{BTreeSet, HashMap};

/// How many batches a worker has in hand: the one it computes, and the next to prepare meanwhile.
const IN_HAND: usize = 2;

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    next: u64,
    returned: BTreeSet<u64>,
    handed: HashMap<usize, BTreeSet<u64>>,
}

impl Ledger {
    /// A ledger in which all batches before `next` were handed out.
    pub fn from(next: u64) -> Self {
        Self { next, ..Self::default() }
    }

    /// The first batch that was never handed out.
    pub fn next(&self) -> u64 {
        self.next
    }
    /// Hands out batches until the worker has enough of them, and says which are new.
    pub fn top_up(&mut self, worker: usize) -> Vec<u64> {
        let mut new = Vec::new();
        let in_hand = self.handed.entry(worker).or_default();
        while in_hand.len() < IN_HAND {
            let batch = self.returned.pop_first().unwrap_or_else(|| {
                self.next += 1;
                self.next - 1
            });
            in_hand.insert(batch);
            new.push(batch);
        }
        new
    }

    /// The worker's gradient on this batch was applied.
    pub fn done(&mut self, worker: usize, batch: u64) {
        if let Some(in_hand) = self.handed.get_mut(&worker) {
            in_hand.remove(&batch);
        }
    }

    /// The worker is gone: others get what it had in hand.
    pub fn give_back(&mut self, worker: usize) {
        self.returned.extend(self.handed.remove(&worker).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_batch_is_handed_out_once_and_those_of_the_lost_again() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.top_up(0), [0, 1]);
        assert_eq!(ledger.top_up(1), [2, 3]);
        ledger.done(0, 0);
        assert_eq!(ledger.top_up(0), [4]);
        ledger.give_back(0);
        ledger.done(1, 2);
        assert_eq!(ledger.top_up(1), [1]);
        assert_eq!(ledger.top_up(2), [4, 5]);
    }
}
