//! Which examples make up which batch: a pure function of the seed and the number of the batch.

use crate::random::Random;

/// The order in which the examples are gone through, anew in each epoch.
#[derive(Debug)]
pub struct Schedule {
    examples: u32,
    batch_size: u32,
    seed: u64,
    // The orders of the last epochs asked for: near the end of an epoch, batches of two are in hand.
    orders: Vec<(u64, Vec<u32>)>,
}

/// Where a batch lies in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Passes through the data before this one.
    pub epoch: u64,
    /// Batches of this epoch before this one.
    pub batch: u64,
    /// Batches in an epoch.
    pub batches: u64,
}

impl Schedule {
    /// Batches of `batch_size` examples, of which there are `examples`; the last of an epoch may be smaller.
    pub fn new(examples: usize, batch_size: usize, seed: u64) -> anyhow::Result<Self> {
        anyhow::ensure!(examples > 0, "the data set has no training examples");
        anyhow::ensure!(batch_size > 0, "--batch_size must be at least 1");
        let too_many = |_| anyhow::anyhow!("{examples} examples are more than can be numbered");
        let examples = u32::try_from(examples).map_err(too_many)?;
        let batch_size = u32::try_from(batch_size).unwrap_or(examples).min(examples);
        Ok(Self { examples, batch_size, seed, orders: Vec::new() })
    }

    /// Batches in an epoch.
    pub fn batches(&self) -> u64 {
        self.examples.div_ceil(self.batch_size).into()
    }

    /// Where batch `number` of the run lies.
    pub fn place(&self, number: u64) -> Place {
        let batches = self.batches();
        Place { epoch: number / batches, batch: number % batches, batches }
    }

    /// The examples of batch `number` of the run.
    pub fn examples(&mut self, number: u64) -> &[u32] {
        let Place { epoch, batch, .. } = self.place(number);
        let known = self.orders.iter().position(|(of, _)| *of == epoch);
        let at = known.unwrap_or_else(|| {
            self.orders.truncate(1);
            self.orders.insert(0, (epoch, self.order(epoch)));
            0
        });
        let size = self.batch_size as usize;
        let order = self.orders.get(at).map(|(_, order)| order.as_slice()).unwrap_or_default();
        order.chunks(size).nth(batch as usize).unwrap_or_default()
    }

    fn order(&self, epoch: u64) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.examples).collect();
        let of_epoch = Random::new(epoch).bits();
        Random::new(self.seed ^ of_epoch).shuffle(&mut order);
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_epoch_has_every_example_once_and_its_own_order() {
        let mut schedule = Schedule::new(10, 4, 1).unwrap();
        assert_eq!(schedule.batches(), 3);
        let mut epoch = |epoch: u64| {
            let batches = (0..3).map(|batch| schedule.examples(epoch * 3 + batch).to_vec());
            batches.collect::<Vec<_>>().concat()
        };
        let (first, second) = (epoch(0), epoch(1));
        assert_ne!(first, second);
        for mut order in [first, second] {
            order.sort();
            assert_eq!(order, Vec::from_iter(0..10));
        }
        assert_eq!(schedule.place(5), Place { epoch: 1, batch: 2, batches: 3 });
    }

    #[test]
    fn the_order_depends_on_the_seed_alone() {
        let order = |seed, numbers: &[u64]| {
            let mut schedule = Schedule::new(100, 10, seed).unwrap();
            numbers.iter().map(|&number| schedule.examples(number).to_vec()).collect::<Vec<_>>()
        };
        let forwards = order(7, &[0, 9, 10, 19, 35]);
        let mut backwards = order(7, &[35, 19, 10, 9, 0]);
        backwards.reverse();
        assert_eq!(forwards, backwards);
        assert_ne!(forwards, order(8, &[0, 9, 10, 19, 35]));
    }

    #[test]
    fn a_batch_larger_than_the_data_is_all_of_it() {
        let mut schedule = Schedule::new(3, 100, 1).unwrap();
        assert_eq!((schedule.batches(), schedule.examples(0).len()), (1, 3));
        assert!(Schedule::new(0, 1, 1).is_err());
    }
}
