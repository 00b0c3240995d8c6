//! The values of one shard, and which pushes were applied to them.
//!
//! An update makes a new vector out of the old one and the gradient, and takes its place when it is whole.
//! So a gradient that turns out to be bad half-way has changed nothing, and a reply that is being sent is
//! not changed by the next update.

use crate::{
    optimizer::{New, Old, Optimizer},
    values::{ValuePool, Values},
};
use bytes::Bytes;
use std::collections::HashMap;

/// Elements that are read from the wire's bytes at a time: they stay in the first cache between the two steps.
const BLOCK: usize = 1024;

/// One push: a worker's life, and the number of the push in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PushId {
    pub worker: usize,
    pub incarnation: u64,
    pub sequence: u64,
}

/// A vector as it arrived: pieces that follow each other, of whole little-endian f32.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    pieces: Vec<Bytes>,
    bytes: usize,
}

/// A vector has a value that is not a number, or infinite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NotFinite {
    /// Which vector, as the beginning of a sentence.
    pub what: &'static str,
    pub element: usize,
    pub value: f32,
}

/// What the optimizer remembers of each value: as it is, and where an update makes the next.
#[derive(Debug)]
struct Slot {
    old: Vec<f32>,
    new: Vec<f32>,
}

/// The flat vector of one shard.
#[derive(Debug)]
pub(crate) struct Store {
    values: Values,
    slots: Vec<Slot>,
    version: u64,
    optimizer: Optimizer,
    // The last push of each worker that changed the values.
    applied: HashMap<usize, PushId>,
    pool: ValuePool,
}

impl Store {
    pub fn new(values: &Pieces, optimizer: Optimizer) -> Result<Self, NotFinite> {
        let pool = ValuePool::default();
        let mut vector = pool.take(values.len());
        values.for_each_block(|at, block| {
            if let Some(place) = vector.get_mut(at..at + block.len()) {
                place.copy_from_slice(block);
            }
            check("the initial values have", at, block)
        })?;
        let slot = |index| Slot {
            old: vec![optimizer.initial_slot(index); values.len()],
            new: vec![0.0; values.len()],
        };
        let slots = (0..optimizer.slots()).map(slot).collect();
        Ok(Self { values: pool.share(vector), slots, version: 0, optimizer, applied: HashMap::new(), pool })
    }

    pub fn values(&self) -> &Values {
        &self.values
    }

    /// How many pushes were applied.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Applies a push, once: a push that comes again because its reply was lost changes nothing. `norm` is the
    /// gradient's over all shards, for an optimizer that clips.
    pub fn push(&mut self, id: PushId, gradient: &Pieces, norm: Option<f64>) -> Result<(), NotFinite> {
        if self.has(id) {
            return Ok(());
        }
        let Self { values, slots, version, optimizer, pool, .. } = self;
        let update = optimizer.update(*version, norm);
        let old = values.as_slice();
        let mut new = pool.take(old.len());
        gradient.for_each_block(|at, gradient| {
            let range = at..at + gradient.len();
            check("the gradient has", at, gradient)?;
            let (mut old_slots, mut new_slots): ([&[f32]; 2], [&mut [f32]; 2]) = Default::default();
            for (slot, (old, new)) in slots.iter_mut().zip(old_slots.iter_mut().zip(&mut new_slots)) {
                *old = slot.old.get(range.clone()).unwrap_or_default();
                *new = slot.new.get_mut(range.clone()).unwrap_or_default();
            }
            let (Some(old), Some(new)) = (old.get(range.clone()), new.get_mut(range)) else { return Ok(()) };
            let made = New { values: &mut *new, slots: new_slots.each_mut().map(|slot| &mut **slot) };
            update.apply(Old { values: old, slots: old_slots }, gradient, made);
            new_slots
                .iter()
                .try_for_each(|slot| check("the update makes the optimizer remember", at, slot))?;
            check("the update makes", at, new)
        })?;
        for slot in &mut self.slots {
            std::mem::swap(&mut slot.old, &mut slot.new);
        }
        self.values = self.pool.share(new);
        self.version += 1;
        self.applied.insert(id.worker, id);
        Ok(())
    }

    fn has(&self, id: PushId) -> bool {
        self.applied
            .get(&id.worker)
            .is_some_and(|last| last.incarnation == id.incarnation && id.sequence <= last.sequence)
    }
}

impl Pieces {
    pub fn add(&mut self, piece: Bytes) {
        self.bytes += piece.len();
        self.pieces.push(piece);
    }

    pub fn clear(&mut self) {
        self.pieces.clear();
        self.bytes = 0;
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn len(&self) -> usize {
        self.bytes / size_of::<f32>()
    }

    /// Calls `use_block` with each block and the place of its first element, until it fails.
    ///
    /// Bytes lie in memory at any alignment, so each block is copied to where they lie as f32.
    fn for_each_block(
        &self,
        mut use_block: impl FnMut(usize, &[f32]) -> Result<(), NotFinite>,
    ) -> Result<(), NotFinite> {
        let mut aligned = [0.0; BLOCK];
        let mut at = 0;
        for bytes in self.pieces.iter().flat_map(|piece| piece.chunks(BLOCK * size_of::<f32>())) {
            let (floats, _) = bytes.as_chunks::<4>();
            for (float, bytes) in aligned.iter_mut().zip(floats) {
                *float = f32::from_le_bytes(*bytes);
            }
            let block = aligned.get(..floats.len()).unwrap_or_default();
            use_block(at, block)?;
            at += block.len();
        }
        Ok(())
    }
}

/// Fails if some value of the block that begins at `at` is not finite.
fn check(what: &'static str, at: usize, block: &[f32]) -> Result<(), NotFinite> {
    // Looked at as a whole, which the compiler does many elements at a time.
    if block.iter().fold(false, |bad, value| bad | !value.is_finite())
        && let Some((place, &value)) = block.iter().enumerate().find(|(_, value)| !value.is_finite())
    {
        return Err(NotFinite { what, element: at + place, value });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::Rule;

    fn id(worker: usize, incarnation: u64, sequence: u64) -> PushId {
        PushId { worker, incarnation, sequence }
    }

    fn pieces(values: &[f32], piece_len: usize) -> Pieces {
        let mut pieces = Pieces::default();
        for piece in values.chunks(piece_len) {
            // At an odd address, as on the wire.
            let mut bytes = vec![0];
            bytes.extend_from_slice(bytemuck::cast_slice(piece));
            pieces.add(Bytes::from(bytes).slice(1..));
        }
        pieces
    }

    fn store(values: &[f32]) -> Store {
        Store::new(&pieces(values, 3), Optimizer::new(Rule::Sgd, 1.0)).unwrap()
    }

    #[test]
    fn a_repeated_push_is_applied_once() {
        let mut store = store(&[0.0]);
        for push in [id(0, 7, 1), id(0, 7, 1), id(1, 9, 1), id(0, 7, 2), id(0, 7, 1), id(0, 8, 1)] {
            store.push(push, &pieces(&[-1.0], 1), None).unwrap();
        }
        assert_eq!(store.version(), 4);
        assert_eq!(store.values().as_slice(), [4.0]);
    }

    #[test]
    fn pieces_and_blocks_of_any_size_make_the_same_update() {
        let values: Vec<f32> = (0..5000).map(|n| n as f32).collect();
        for piece_len in [1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 5000] {
            let mut store = store(&values);
            store.push(id(0, 1, 1), &pieces(&values, piece_len), None).unwrap();
            assert!(store.values().as_slice().iter().all(|value| *value == 0.0));
        }
    }

    #[test]
    fn a_gradient_that_is_not_finite_changes_nothing() {
        let mut store = store(&[1.0; 3000]);
        for (element, bad) in [(0, f32::NAN), (1500, f32::INFINITY), (2999, f32::NEG_INFINITY)] {
            let mut gradient = [1.0; 3000];
            gradient[element] = bad;
            let error = store.push(id(0, 1, 1), &pieces(&gradient, 1000), None).unwrap_err();
            assert_eq!(error.element, element);
            assert_eq!(store.version(), 0);
            assert!(store.values().as_slice().iter().all(|value| *value == 1.0));
        }
    }

    #[test]
    fn slots_are_kept_from_update_to_update_and_not_from_one_that_fails() {
        let momentum = Optimizer::new(Rule::Momentum { momentum: 0.5, nesterov: false }, 1.0);
        let mut store = Store::new(&pieces(&[0.0; 2], 2), momentum).unwrap();
        store.push(id(0, 1, 1), &pieces(&[-1.0, -2.0], 1), None).unwrap();
        store.push(id(0, 1, 2), &pieces(&[-1.0, f32::NAN], 1), None).unwrap_err();
        store.push(id(0, 1, 3), &pieces(&[0.0, 0.0], 2), None).unwrap();
        assert_eq!(store.values().as_slice(), [1.5, 3.0]);
    }

    #[test]
    fn an_update_that_overflows_changes_nothing() {
        let mut store = store(&[f32::MIN; 2]);
        let error = store.push(id(0, 1, 1), &pieces(&[0.0, f32::MAX], 2), None).unwrap_err();
        assert_eq!((error.what, error.element), ("the update makes", 1));
        assert_eq!(store.values().as_slice(), [f32::MIN; 2]);
    }
}
