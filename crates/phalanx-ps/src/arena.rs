//! The memory of a store: blocks for the values, slots for the optimizer, and the record that says which of
//! them count, in one mapping of memory or of a file.
//!
//! What is mapped to a file outlives the process: the kernel has the pages, whatever way the process ended. An
//! update writes a block and slots that nobody reads, then the other of two records, and last of all one number,
//! the generation, that makes them count. A process that is killed between any two instructions leaves either
//! the old generation or the new one, whole.

#![allow(unsafe_code)] // A mapping is raw memory; everything that touches it is in this file.

use crate::values::Values;
use bytes::Bytes;
use memmap2::{MmapOptions, MmapRaw};
use parking_lot::Mutex;
use std::{
    fs::File,
    io,
    ops::{Deref, DerefMut},
    slice,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering, fence},
    },
};

/// Parts of the mapping begin at multiples of this.
const PAGE: usize = 4096;

/// How large everything is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Bytes kept for the owner, at the very beginning.
    pub head: usize,
    /// Elements of the shard.
    pub len: usize,
    /// Vectors of the optimizer.
    pub slots: usize,
    /// Vectors of values.
    pub blocks: usize,
    /// Workers whose pushes are remembered.
    pub workers: usize,
}

/// What counts in one generation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// Pushes applied.
    pub version: u64,
    /// The block that has the values.
    pub block: u64,
    /// Which of the two sets of slots counts.
    pub slot_set: u64,
    /// The first batch that was never handed out.
    pub next_batch: u64,
    /// The last push of each worker that was applied: incarnation and sequence.
    pub applied: Vec<(u64, u64)>,
}

/// The mapping.
#[derive(Debug)]
pub(crate) struct Arena {
    map: MmapRaw,
    layout: Layout,
    free: Mutex<Vec<usize>>,
}

/// A block that only its holder can see.
#[derive(Debug)]
pub(crate) struct Block {
    arena: Arc<Arena>,
    index: usize,
}

impl Layout {
    fn record(&self) -> usize {
        (4 + 2 * self.workers) * size_of::<u64>()
    }

    fn vector(&self) -> usize {
        // Every vector begins on a cache line of its own.
        (self.len * size_of::<f32>()).next_multiple_of(64)
    }

    fn generation_at(&self) -> usize {
        self.head.next_multiple_of(PAGE)
    }

    fn record_at(&self, generation: u64) -> usize {
        self.generation_at() + 64 + (generation % 2) as usize * self.record().next_multiple_of(64)
    }

    fn vectors_at(&self) -> usize {
        (self.record_at(1) + self.record()).next_multiple_of(PAGE)
    }

    /// Bytes of the whole mapping.
    pub fn bytes(&self) -> usize {
        self.vectors_at() + (self.blocks + 2 * self.slots) * self.vector()
    }
}

impl Arena {
    /// A mapping that ends with the process, all zero.
    pub fn in_memory(layout: Layout) -> io::Result<Self> {
        let map = MmapOptions::new().len(layout.bytes()).map_anon()?;
        Ok(Self::new(map.into(), layout))
    }

    /// A mapping of a file of exactly the right size.
    pub fn of_file(file: &File, layout: Layout) -> io::Result<Self> {
        if file.metadata()?.len() != layout.bytes() as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the file has the wrong size"));
        }
        Ok(Self::new(MmapRaw::map_raw(file)?, layout))
    }

    fn new(map: MmapRaw, layout: Layout) -> Self {
        Self { map, layout, free: Mutex::new((0..layout.blocks).rev().collect()) }
    }

    /// A block that nobody looks at, if there is one.
    pub fn take(self: &Arc<Self>) -> Option<Block> {
        let index = self.free.lock().pop()?;
        Some(Block { arena: Arc::clone(self), index })
    }

    /// The block of a record that was read, for the first one who asks.
    pub fn take_block(self: &Arc<Self>, index: u64) -> Option<Block> {
        let mut free = self.free.lock();
        let place = free.iter().position(|block| *block as u64 == index)?;
        let index = free.swap_remove(place);
        Some(Block { arena: Arc::clone(self), index })
    }

    /// The slots of both sets: those that count now, and those to be written.
    ///
    /// They belong to the one store of this arena, which may not have them twice at the same time.
    pub fn slots(&self, slot_set: u64, slot: usize) -> (&[f32], SlotMut<'_>) {
        let at = |set: u64| self.layout.blocks + (set % 2) as usize * self.layout.slots + slot;
        (self.vector(at(slot_set)), SlotMut { arena: self, index: at(slot_set + 1) })
    }

    /// The record that counts.
    pub fn record(&self) -> Record {
        let generation = self.generation().load(Ordering::Acquire);
        let words = self.words(generation);
        let word = |index: usize| words.get(index).copied().unwrap_or(0);
        let applied = (0..self.layout.workers).map(|worker| (word(4 + 2 * worker), word(5 + 2 * worker)));
        Record {
            version: word(0),
            block: word(1),
            slot_set: word(2),
            next_batch: word(3),
            applied: applied.collect(),
        }
    }

    /// Makes a record count, with everything that was written before.
    pub fn commit(&self, record: &Record) {
        let generation = self.generation();
        let next = generation.load(Ordering::Relaxed).wrapping_add(1);
        let head = [record.version, record.block, record.slot_set, record.next_batch];
        let workers = record.applied.iter().flat_map(|(incarnation, sequence)| [*incarnation, *sequence]);
        // SAFETY: the record of the other generation lies inside the mapping, is aligned to 64 bytes, and is
        // written by the one store of this arena alone.
        let words = unsafe {
            let at = self.map.as_mut_ptr().add(self.layout.record_at(next)).cast::<u64>();
            slice::from_raw_parts_mut(at, self.layout.record() / size_of::<u64>())
        };
        for (place, word) in words.iter_mut().zip(head.into_iter().chain(workers)) {
            *place = word;
        }
        // Against a killed process the order of the instructions is enough, and this keeps it.
        fence(Ordering::SeqCst);
        generation.store(next, Ordering::Release);
    }

    fn generation(&self) -> &AtomicU64 {
        // SAFETY: inside the mapping, aligned to a page, and only ever used as an atomic.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(self.layout.generation_at()).cast()) }
    }

    fn words(&self, generation: u64) -> &[u64] {
        // SAFETY: inside the mapping and aligned to 64 bytes; written only by the one store of this arena.
        unsafe {
            let at = self.map.as_ptr().add(self.layout.record_at(generation)).cast();
            slice::from_raw_parts(at, self.layout.record() / size_of::<u64>())
        }
    }

    fn at(&self, vector: usize) -> *mut f32 {
        debug_assert!(vector < self.layout.blocks + 2 * self.layout.slots);
        // SAFETY: the vectors lie inside the mapping, by the layout.
        unsafe { self.map.as_mut_ptr().add(self.layout.vectors_at() + vector * self.layout.vector()).cast() }
    }

    fn vector(&self, vector: usize) -> &[f32] {
        // SAFETY: inside the mapping and aligned to 64 bytes; any bits are an f32. Who may read and who may write
        // is the affair of `Block` and `SlotMut`.
        unsafe { slice::from_raw_parts(self.at(vector), self.layout.len) }
    }
}

/// A slot to be written.
pub(crate) struct SlotMut<'a> {
    arena: &'a Arena,
    index: usize,
}

impl SlotMut<'_> {
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        // SAFETY: as in `Arena::vector`; the set that does not count is written by the one store alone.
        unsafe { slice::from_raw_parts_mut(self.arena.at(self.index), self.arena.layout.len) }
    }
}

impl Block {
    pub fn index(&self) -> u64 {
        self.index as u64
    }

    /// Makes the block unchangeable, and shared; it is free again when the last [`Values`] are gone.
    pub fn share(self) -> Values {
        Values::new(Bytes::from_owner(Shared(self)))
    }
}

impl Deref for Block {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        self.arena.vector(self.index)
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `Arena::vector`; a block that was taken from the free ones has one holder.
        unsafe { slice::from_raw_parts_mut(self.arena.at(self.index), self.arena.layout.len) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.arena.free.lock().push(self.index);
    }
}

struct Shared(Block);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout { head: 10, len: 3, slots: 2, blocks: 2, workers: 2 };

    #[test]
    fn a_record_counts_from_its_commit_on() {
        let arena = Arena::in_memory(LAYOUT).unwrap();
        let record = |version| Record {
            version,
            block: 1,
            slot_set: version,
            next_batch: 7,
            applied: vec![(1, version), (2, version + 1)],
        };
        assert_eq!(arena.record().version, 0);
        for version in 1..5 {
            arena.commit(&record(version));
            assert_eq!(arena.record(), record(version));
        }
    }

    #[test]
    fn blocks_and_slots_do_not_overlap() {
        let arena = Arc::new(Arena::in_memory(LAYOUT).unwrap());
        let (mut first, mut second) = (arena.take().unwrap(), arena.take().unwrap());
        assert!(arena.take().is_none());
        first.fill(1.0);
        second.fill(2.0);
        for slot in 0..2 {
            for set in 0..2 {
                arena.slots(set, slot).1.as_mut_slice().fill((10 + slot * 2) as f32 + set as f32);
            }
        }
        assert_eq!((&first[..], &second[..]), (&[1.0; 3][..], &[2.0; 3][..]));
        assert_eq!((arena.slots(1, 0).0, arena.slots(0, 1).0), (&[10.0; 3][..], &[13.0; 3][..]));
        arena.commit(&Record { applied: vec![(0, 0); 2], ..Record::default() });
        assert_eq!((&first[..], &second[..]), (&[1.0; 3][..], &[2.0; 3][..]));
    }

    #[test]
    fn a_shared_block_is_free_when_nobody_looks_at_it() {
        let arena = Arc::new(Arena::in_memory(LAYOUT).unwrap());
        let (values, _other) = (arena.take().unwrap().share(), arena.take().unwrap());
        let slice = values.as_bytes().slice(4..);
        drop(values);
        assert!(arena.take().is_none());
        drop(slice);
        assert!(arena.take().is_some());
    }

    #[test]
    fn what_was_committed_to_a_file_is_there_when_it_is_mapped_again() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(LAYOUT.bytes() as u64).unwrap();
        let arena = Arc::new(Arena::of_file(&file, LAYOUT).unwrap());
        let mut block = arena.take().unwrap();
        block.copy_from_slice(&[1.0, 2.0, 3.0]);
        let record =
            Record { version: 5, block: block.index(), applied: vec![(1, 2), (3, 4)], ..Record::default() };
        arena.commit(&record);
        drop((block, arena));

        let arena = Arc::new(Arena::of_file(&file, LAYOUT).unwrap());
        assert_eq!(arena.record(), record);
        assert_eq!(&arena.take_block(record.block).unwrap()[..], [1.0, 2.0, 3.0]);
        file.set_len(100).unwrap();
        assert!(Arena::of_file(&file, LAYOUT).is_err());
    }
}
