//! Random numbers that are a function of their seed for good.
//!
//! Steele, Lea and Flood's SplitMix64, written out here because a library's small generator may change with
//! its version, and the initial values, the order of the examples and the drawn digits of a seed with it.

/// A generator.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator with this seed; any two seeds give unrelated numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to below `end`, which is less than 2^32.
    pub fn below(&mut self, end: usize) -> usize {
        (((self.bits() >> 32) * end as u64) >> 32) as usize
    }

    /// A number from `low` to below `high`.
    pub fn between(&mut self, low: f32, high: f32) -> f32 {
        // 24 bits are what an f32 holds.
        low + (high - low) * ((self.bits() >> 40) as f32 / (1 << 24) as f32)
    }

    /// A number of the normal distribution of mean 0 and deviation 1, by Box and Muller's method.
    pub fn normal(&mut self) -> f32 {
        let (u, v) = (1.0 - self.between(0.0, 1.0), self.between(0.0, 1.0));
        (-2.0 * u.ln()).sqrt() * (std::f32::consts::TAU * v).cos()
    }

    /// Puts the items into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_a_seed_never_change() {
        let mut random = Random::new(0);
        assert_eq!([random.bits(), random.bits()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
    }

    #[test]
    fn normal_numbers_have_mean_0_and_deviation_1() {
        let mut random = Random::new(1);
        let numbers: Vec<f32> = (0..100_000).map(|_| random.normal()).collect();
        let mean =
            |of: &dyn Fn(f32) -> f32| numbers.iter().map(|&n| of(n)).sum::<f32>() / numbers.len() as f32;
        assert!(mean(&|n| n).abs() < 0.02);
        assert!((mean(&|n| n * n) - 1.0).abs() < 0.02);
    }

    #[test]
    fn a_shuffle_keeps_every_item_and_moves_most() {
        let mut items: Vec<u32> = (0..100).collect();
        Random::new(1).shuffle(&mut items);
        assert!(items.iter().enumerate().filter(|(place, item)| *place as u32 == **item).count() < 10);
        items.sort();
        assert_eq!(items, Vec::from_iter(0..100));
    }
}
