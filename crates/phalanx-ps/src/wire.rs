//! The messages of `proto/phalanx.proto`, and what both sides must know to speak them.

// Generated: the documentation is in the .proto file, and a message on its way is not kept.
#![allow(missing_docs, clippy::large_enum_variant)]

tonic::include_proto!("phalanx.v1");

/// Raised whenever the meaning of a message changes; both sides must have the same.
pub const PROTOCOL: u32 = 1;

/// The most bytes of a vector in one message: large enough that the cost per message vanishes, small
/// enough that nobody needs a giant buffer.
pub const PIECE_BYTES: usize = 1 << 20;

/// The most bytes in one message: a piece, or a [`Hello`] with the names of very many variables.
pub const MESSAGE_BYTES: usize = 4 << 20;

/// The path of the one method.
pub(crate) const TRAIN: &str = "/phalanx.v1.ParameterServer/Train";

/// For the reflection service.
pub(crate) const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/phalanx.bin"));

/// The byte ranges in which a vector of `bytes` bytes travels: at least one, since an empty vector is
/// sent as one empty piece.
pub(crate) fn pieces(bytes: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let count = bytes.div_ceil(PIECE_BYTES).max(1);
    (0..count).map(move |piece| piece * PIECE_BYTES..bytes.min((piece + 1) * PIECE_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_follow_each_other_without_gaps() {
        for bytes in [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES] {
            let mut next = 0;
            for piece in pieces(bytes) {
                assert_eq!(piece.start, next);
                next = piece.end;
            }
            assert_eq!(next, bytes);
        }
        assert_eq!(pieces(0).count(), 1);
    }
}
