//! Writing records.

use std::io::{self, Write};

use crate::masked_crc32c;

/// Writes records one after the other.
///
/// Every record takes several small writes: give it a buffered writer, and [`flush`](Self::flush) it.
#[derive(Debug)]
pub struct RecordWriter<W> {
    inner: W,
}

impl<W: Write> RecordWriter<W> {
    /// Writes to `inner`, which may already hold whole records.
    pub fn new(inner: W) -> Self {
        Self { inner }
    }

    /// Appends one record; after an error the file may end within it.
    pub fn write(&mut self, data: &[u8]) -> io::Result<()> {
        let length = (data.len() as u64).to_le_bytes();
        self.inner.write_all(&length)?;
        self.inner.write_all(&masked_crc32c(&length).to_le_bytes())?;
        self.inner.write_all(data)?;
        self.inner.write_all(&masked_crc32c(data).to_le_bytes())
    }

    /// Passes on what the writer beneath has buffered.
    pub fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }

    /// The writer beneath, to sync a file for instance.
    pub fn get_ref(&self) -> &W {
        &self.inner
    }

    /// Gives the writer beneath back as it is, not flushed.
    pub fn into_inner(self) -> W {
        self.inner
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(records: &[&[u8]]) -> Vec<u8> {
        let mut writer = RecordWriter::new(Vec::new());
        for record in records {
            writer.write(record).unwrap();
        }
        writer.into_inner()
    }

    /// What TensorFlow's own writer makes of the records "foo" and "bar".
    #[test]
    fn records_are_laid_out_byte_for_byte_as_tensorflow_does() {
        let foo = b"\x03\0\0\0\0\0\0\0\xb0\x99\x49\x0efoo\x61\x8a\xbe\xfe";
        let bar = b"\x03\0\0\0\0\0\0\0\xb0\x99\x49\x0ebar\x46\x00\xe5\xc8";
        assert_eq!(written(&[b"foo"]), foo);
        assert_eq!(written(&[b"foo", b"bar"]), [&foo[..], bar].concat());
    }

    /// How every event file begins, since the first event always has 24 bytes.
    #[test]
    fn the_header_of_a_24_byte_record_is_that_of_every_event_file() {
        assert!(written(&[&[0; 24]]).starts_with(b"\x18\0\0\0\0\0\0\0\xa3\x7fK\""));
    }

    #[test]
    fn an_empty_record_has_a_frame_of_its_own() {
        assert_eq!(written(&[b""]), b"\0\0\0\0\0\0\0\0\x29\x03\x98\x07\xd8\xea\x82\xa2");
    }
}
