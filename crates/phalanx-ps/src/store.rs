//! The values of one shard, and which pushes were applied to them.
//!
//! An update makes a new vector out of the old one and the gradient, and takes its place when it is whole.
//! So a gradient that turns out to be bad half-way has changed nothing, and a reply that is being sent is
//! not changed by the next update.

use crate::{
    arena::{Arena, Record},
    flat::first_not_finite,
    optimizer::{New, Old, Optimizer},
    values::Values,
};
use bytes::Bytes;
use std::sync::Arc;

/// Elements that are read from the wire's bytes at a time: they stay in the first cache between the two steps.
const BLOCK: usize = 1024;

/// One push: a worker's life, and the number of the push in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PushId {
    pub worker: usize,
    pub incarnation: u64,
    pub sequence: u64,
}

/// What a push brings.
pub(crate) struct Applying<'a> {
    pub gradient: &'a Pieces,
    /// The gradient's over all shards, for an optimizer that clips.
    pub norm: Option<f64>,
    /// To be remembered with it: the first batch that was never handed out.
    pub next_batch: u64,
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

/// Why a push was not applied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum NotApplied {
    /// It would not do any good.
    NotFinite(NotFinite),
    /// Replies that are still being sent take up all the room: it may be sent again.
    NoRoom,
}

/// The flat vector of one shard.
#[derive(Debug)]
pub(crate) struct Store {
    arena: Arc<Arena>,
    values: Values,
    record: Record,
    optimizer: Optimizer,
}

impl Store {
    /// A store of these values in a new arena.
    pub fn begin(arena: Arena, values: &Pieces, optimizer: Optimizer) -> Result<Self, NotApplied> {
        let arena = Arc::new(arena);
        let mut block = arena.take().ok_or(NotApplied::NoRoom)?;
        values.for_each_block(|at, values| {
            if let Some(place) = block.get_mut(at..at + values.len()) {
                place.copy_from_slice(values);
            }
            check("the initial values have", at, values)
        })?;
        // The set that is written first is the one that does not count.
        let mut record = arena.record();
        for slot in 0..optimizer.slots() {
            arena.slots(record.slot_set, slot).1.as_mut_slice().fill(optimizer.initial_slot(slot));
        }
        record.slot_set += 1;
        record.block = block.index();
        arena.commit(&record);
        Ok(Self { values: block.share(), arena, record, optimizer })
    }

    /// The store that an arena holds, if it holds one.
    pub fn resume(arena: Arena, optimizer: Optimizer) -> Option<Self> {
        let arena = Arc::new(arena);
        let record = arena.record();
        let values = arena.take_block(record.block)?.share();
        Some(Self { arena, values, record, optimizer })
    }

    pub fn values(&self) -> &Values {
        &self.values
    }

    /// How many pushes were applied.
    pub fn version(&self) -> u64 {
        self.record.version
    }

    /// The first batch that was never handed out, as of the last push.
    pub fn next_batch(&self) -> u64 {
        self.record.next_batch
    }

    /// Applies a push, once: a push that comes again because its reply was lost changes nothing.
    pub fn push(&mut self, id: PushId, push: &Applying<'_>) -> Result<(), NotApplied> {
        if self.has(id) {
            return Ok(());
        }
        let Self { arena, values, record, optimizer } = self;
        let update = optimizer.update(record.version, push.norm);
        let old = values.as_slice();
        let mut new = arena.take().ok_or(NotApplied::NoRoom)?;
        let mut slots =
            [0, 1].map(|slot| (slot < optimizer.slots()).then(|| arena.slots(record.slot_set, slot)));
        push.gradient.for_each_block(|at, gradient| {
            let range = at..at + gradient.len();
            check("the gradient has", at, gradient)?;
            let (mut old_slots, mut new_slots): ([&[f32]; 2], [&mut [f32]; 2]) = Default::default();
            for ((from, to), (old, new)) in
                slots.iter_mut().flatten().zip(old_slots.iter_mut().zip(&mut new_slots))
            {
                *old = from.get(range.clone()).unwrap_or_default();
                *new = to.as_mut_slice().get_mut(range.clone()).unwrap_or_default();
            }
            let (Some(old), Some(new)) = (old.get(range.clone()), new.get_mut(range)) else { return Ok(()) };
            let made = New { values: &mut *new, slots: new_slots.each_mut().map(|slot| &mut **slot) };
            update.apply(Old { values: old, slots: old_slots }, gradient, made);
            new_slots
                .iter()
                .try_for_each(|slot| check("the update makes the optimizer remember", at, slot))?;
            check("the update makes", at, new)
        })?;
        record.version += 1;
        record.block = new.index();
        record.slot_set += 1;
        record.next_batch = push.next_batch;
        if let Some(applied) = record.applied.get_mut(id.worker) {
            *applied = (id.incarnation, id.sequence);
        }
        // From here on the update counts, whatever happens to this process.
        arena.commit(record);
        self.values = new.share();
        Ok(())
    }

    fn has(&self, id: PushId) -> bool {
        let last = self.record.applied.get(id.worker);
        last.is_some_and(|(incarnation, sequence)| *incarnation == id.incarnation && id.sequence <= *sequence)
    }
}

impl From<NotFinite> for NotApplied {
    fn from(bad: NotFinite) -> Self {
        Self::NotFinite(bad)
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
    match first_not_finite(block).and_then(|place| Some((place, *block.get(place)?))) {
        Some((place, value)) => Err(NotFinite { what, element: at + place, value }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{arena::Layout, optimizer::Rule};

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

    fn arena(len: usize, optimizer: Optimizer) -> Arena {
        let layout = Layout { head: 0, len, slots: optimizer.slots(), blocks: 3, workers: 2 };
        Arena::in_memory(layout).unwrap()
    }

    fn store(values: &[f32]) -> Store {
        let sgd = Optimizer::new(Rule::Sgd, 1.0);
        Store::begin(arena(values.len(), sgd), &pieces(values, 3), sgd).unwrap()
    }

    fn push(store: &mut Store, id: PushId, gradient: &Pieces) -> Result<(), NotFinite> {
        match store.push(id, &Applying { gradient, norm: None, next_batch: 0 }) {
            Ok(()) => Ok(()),
            Err(NotApplied::NotFinite(bad)) => Err(bad),
            Err(NotApplied::NoRoom) => panic!("no room"),
        }
    }

    #[test]
    fn a_repeated_push_is_applied_once() {
        let mut store = store(&[0.0]);
        for id in [id(0, 7, 1), id(0, 7, 1), id(1, 9, 1), id(0, 7, 2), id(0, 7, 1), id(0, 8, 1)] {
            push(&mut store, id, &pieces(&[-1.0], 1)).unwrap();
        }
        assert_eq!(store.version(), 4);
        assert_eq!(store.values().as_slice(), [4.0]);
    }

    #[test]
    fn pieces_and_blocks_of_any_size_make_the_same_update() {
        let values: Vec<f32> = (0..5000).map(|n| n as f32).collect();
        for piece_len in [1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 5000] {
            let mut store = store(&values);
            push(&mut store, id(0, 1, 1), &pieces(&values, piece_len)).unwrap();
            assert!(store.values().as_slice().iter().all(|value| *value == 0.0));
        }
    }

    #[test]
    fn a_gradient_that_is_not_finite_changes_nothing() {
        let mut store = store(&[1.0; 3000]);
        for (element, bad) in [(0, f32::NAN), (1500, f32::INFINITY), (2999, f32::NEG_INFINITY)] {
            let mut gradient = [1.0; 3000];
            gradient[element] = bad;
            let error = push(&mut store, id(0, 1, 1), &pieces(&gradient, 1000)).unwrap_err();
            assert_eq!(error.element, element);
            assert_eq!(store.version(), 0);
            assert!(store.values().as_slice().iter().all(|value| *value == 1.0));
        }
    }

    #[test]
    fn slots_are_kept_from_update_to_update_and_not_from_one_that_fails() {
        let momentum = Optimizer::new(Rule::Momentum { momentum: 0.5, nesterov: false }, 1.0);
        let mut store = Store::begin(arena(2, momentum), &pieces(&[0.0; 2], 2), momentum).unwrap();
        push(&mut store, id(0, 1, 1), &pieces(&[-1.0, -2.0], 1)).unwrap();
        push(&mut store, id(0, 1, 2), &pieces(&[-1.0, f32::NAN], 1)).unwrap_err();
        push(&mut store, id(0, 1, 3), &pieces(&[0.0, 0.0], 2)).unwrap();
        assert_eq!(store.values().as_slice(), [1.5, 3.0]);
    }

    #[test]
    fn an_update_that_overflows_changes_nothing() {
        let mut store = store(&[f32::MIN; 2]);
        let error = push(&mut store, id(0, 1, 1), &pieces(&[0.0, f32::MAX], 2)).unwrap_err();
        assert_eq!((error.what, error.element), ("the update makes", 1));
        assert_eq!(store.values().as_slice(), [f32::MIN; 2]);
    }

    #[test]
    fn a_push_waits_for_room_rather_than_for_memory() {
        let mut store = store(&[0.0]);
        let gradient = pieces(&[-1.0], 1);
        let mut sent = vec![store.values().clone()];
        for sequence in 1..=2 {
            push(&mut store, id(0, 1, sequence), &gradient).unwrap();
            sent.push(store.values().clone());
        }
        let third = Applying { gradient: &gradient, norm: None, next_batch: 0 };
        assert_eq!(store.push(id(0, 1, 3), &third), Err(NotApplied::NoRoom));
        sent.remove(0);
        assert_eq!(store.push(id(0, 1, 3), &third), Ok(()));
        assert_eq!(store.values().as_slice(), [3.0]);
    }
}
