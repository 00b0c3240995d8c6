//! Reading bytes that may or may not be gzipped. Knows nothing of what the bytes mean.

use std::io::{self, Cursor, Read};

use flate2::read::MultiGzDecoder;

/// The first two bytes of every gzip stream.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// A stream of plain bytes, and whether they had to be decompressed to become plain.
pub(super) struct Plain<'a> {
    /// The plain bytes.
    pub reader: Box<dyn Read + 'a>,
    /// Whether the bytes underneath are gzipped.
    pub gzipped: bool,
}

/// Decompresses `source` if its first bytes say it is gzipped, and hands it on unchanged otherwise.
///
/// The content decides, not the name: browsers and some servers decompress a `.gz` on the way and keep
/// its name. No idx file starts with gzip's two bytes, so the two cannot be confused.
pub(super) fn plain<'a, R: Read + 'a>(mut source: R) -> io::Result<Plain<'a>> {
    let mut head = Vec::with_capacity(GZIP_MAGIC.len());
    source.by_ref().take(GZIP_MAGIC.len() as u64).read_to_end(&mut head)?;
    let gzipped = head == GZIP_MAGIC;
    let whole = Cursor::new(head).chain(source);
    // The multi-member decoder, because the other one silently ignores what follows the first member.
    let reader: Box<dyn Read + 'a> =
        if gzipped { Box::new(MultiGzDecoder::new(whole)) } else { Box::new(whole) };
    Ok(Plain { reader, gzipped })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn read(bytes: &[u8]) -> (Vec<u8>, bool) {
        let mut opened = plain(bytes).unwrap();
        let mut out = Vec::new();
        opened.reader.read_to_end(&mut out).unwrap();
        (out, opened.gzipped)
    }

    #[test]
    fn plain_bytes_pass_unchanged_even_when_shorter_than_the_magic() {
        for bytes in [&b""[..], b"\x1f", b"ab", b"some longer text"] {
            assert_eq!(read(bytes), (bytes.to_vec(), false));
        }
    }

    #[test]
    fn gzipped_bytes_come_out_decompressed() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(b"digits").unwrap();
        assert_eq!(read(&encoder.finish().unwrap()), (b"digits".to_vec(), true));
    }
}
