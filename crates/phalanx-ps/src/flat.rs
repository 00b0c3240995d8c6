//! Flat vectors in parts: how a worker's gradient lies in memory, and how it is cut for each ps.

use crate::{optimizer::clip, wire::pieces};
use bytes::Bytes;
use std::{borrow::Cow, ops::Range};

/// A part of a flat vector, as it lies in memory.
#[derive(Clone, Debug)]
pub struct FlatPart {
    /// The place of its first element in the flat vector of the plan.
    pub start: usize,
    /// Little-endian f32.
    pub data: Bytes,
}

impl FlatPart {
    /// The values; copied only if they do not lie in memory as f32 must.
    pub(crate) fn floats(&self) -> Cow<'_, [f32]> {
        match bytemuck::try_cast_slice(&self.data) {
            Ok(floats) => Cow::Borrowed(floats),
            Err(_) => Cow::Owned(bytemuck::pod_collect_to_vec(&self.data)),
        }
    }
}

/// The norm of a whole gradient, whichever way it is cut.
pub(crate) fn norm(parts: &[FlatPart]) -> f64 {
    parts.iter().map(|part| clip::squared_norm(&part.floats())).sum::<f64>().sqrt()
}

/// The place of the first value that is not a number, or infinite.
pub(crate) fn first_not_finite(values: &[f32]) -> Option<usize> {
    // Looked at as a whole first, which the compiler does many elements at a time.
    let bad = values.iter().fold(false, |bad, value| bad | !value.is_finite());
    bad.then(|| values.iter().position(|value| !value.is_finite())).flatten()
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
