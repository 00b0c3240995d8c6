//! Flat vectors in parts: how a worker's gradient lies in memory, and how it is cut for each ps.

use crate::{optimizer::clip, wire::pieces};
use bytes::Bytes;
use std::ops::Range;

/// A part of a flat vector, as it lies in memory.
#[derive(Clone, Debug)]
pub struct FlatPart {
    /// The place of its first element in the flat vector of the plan.
    pub start: usize,
    /// Little-endian f32.
    pub data: Bytes,
}

/// The norm of a whole gradient, whichever way it is cut.
pub(crate) fn norm(parts: &[FlatPart]) -> f64 {
    let squared = |part: &FlatPart| match bytemuck::try_cast_slice(&part.data) {
        Ok(floats) => clip::squared_norm(floats),
        // Not aligned as f32.
        Err(_) => clip::squared_norm(&bytemuck::pod_collect_to_vec::<u8, f32>(&part.data)),
    };
    parts.iter().map(squared).sum::<f64>().sqrt()
}

/// The pieces of a shard, each with its byte offset, cut out of the parts without copying them.
pub(crate) fn cut<'a>(
    parts: &'a [FlatPart],
    shard: &Range<usize>,
) -> impl Iterator<Item = (u64, Bytes)> + 'a {
    const WIDTH: usize = size_of::<f32>();
    let shard = shard.start * WIDTH..shard.end * WIDTH;
    let empty = shard.is_empty().then(|| (0, Bytes::new()));
    let overlap = move |part: &'a FlatPart| {
        let begin = part.start * WIDTH;
        let (from, to) = (begin.max(shard.start), (begin + part.data.len()).min(shard.end));
        let offset = from.saturating_sub(shard.start);
        let data = if from < to { part.data.slice(from - begin..to - begin) } else { Bytes::new() };
        pieces(data.len())
            .filter(|piece| !piece.is_empty())
            .map(move |piece| ((offset + piece.start) as u64, data.slice(piece)))
    };
    parts.iter().flat_map(overlap).chain(empty)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::PIECE_BYTES;

    #[test]
    fn parts_are_cut_at_the_shards_and_into_pieces() {
        let floats = PIECE_BYTES / 4 + 10;
        let parts = [
            FlatPart { start: 0, data: Bytes::from(vec![1; 12]) },
            FlatPart { start: 3, data: Bytes::from(vec![2; floats * 4]) },
        ];
        let lens = |shard| cut(&parts, &shard).map(|(offset, data)| (offset, data.len())).collect::<Vec<_>>();
        assert_eq!(lens(0..2), [(0, 8)]);
        assert_eq!(lens(2..5), [(0, 4), (4, 8)]);
        assert_eq!(lens(3..3 + floats), [(0, PIECE_BYTES), (PIECE_BYTES as u64, 40)]);
        assert_eq!(lens(2..2), [(0, 0)]);
    }
}
