//! Reading records, with distrust: a length is believed only after its checksum, within a limit, and
//! memory grows only as bytes arrive.

use std::fmt;
use std::io::{self, Read};

use crate::{FOOTER, HEADER, masked_crc32c};

/// The longest record that is read unless another limit is set: 1 GiB.
pub const DEFAULT_MAX_LENGTH: u64 = 1 << 30;

/// Why a file could not be read on; offsets are those of the bytes at fault, from the reader's start.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The reader beneath failed.
    #[error("cannot read at offset {offset}: {source}")]
    Io {
        /// How far reading had come.
        offset: u64,
        /// What the reader beneath said.
        source: io::Error,
    },
    /// The file ends within a record.
    #[error("the file ends within the {part} at offset {offset}: {found} of {needed} bytes are there")]
    Truncated {
        /// Where the cut part begins.
        offset: u64,
        /// Which part of the record is cut.
        part: Part,
        /// How long that part is.
        needed: u64,
        /// How much of it there is.
        found: u64,
    },
    /// The length of a record, or the checksum of the length, is damaged.
    #[error("the length at offset {offset} is damaged: its checksum is {found:#010x}, not {stored:#010x}")]
    DamagedLength {
        /// Where the record begins.
        offset: u64,
        /// The checksum in the file.
        stored: u32,
        /// The checksum of the length in the file.
        found: u32,
    },
    /// A record is longer than the limit.
    #[error("the record at offset {offset} has {length} bytes, more than the limit of {limit}")]
    TooLong {
        /// Where the record begins.
        offset: u64,
        /// Its length.
        length: u64,
        /// The limit that was set.
        limit: u64,
    },
    /// The data of a record, or the checksum of the data, is damaged.
    #[error("the data at offset {offset} are damaged: their checksum is {found:#010x}, not {stored:#010x}")]
    DamagedData {
        /// Where the data begin.
        offset: u64,
        /// The checksum in the file.
        stored: u32,
        /// The checksum of the data in the file.
        found: u32,
    },
}

/// A part of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The length and its checksum.
    Header,
    /// The data.
    Data,
    /// The checksum of the data.
    Footer,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Part::Header => "header",
            Part::Data => "data",
            Part::Footer => "checksum",
        })
    }
}

/// Reads the records of a file, one after the other.
///
/// It ends cleanly only where a record ends; after an error there is nothing more, since the framing is
/// lost. Every record takes several small reads: give it a buffered reader.
#[derive(Debug)]
pub struct RecordReader<R> {
    inner: R,
    offset: u64,
    max_length: u64,
    finished: bool,
}

impl<R: Read> RecordReader<R> {
    /// Reads from `inner`, which stands at the beginning of a record or at the end.
    pub fn new(inner: R) -> Self {
        Self { inner, offset: 0, max_length: DEFAULT_MAX_LENGTH, finished: false }
    }

    /// Refuses records of more than `max_length` bytes.
    pub fn with_max_length(self, max_length: u64) -> Self {
        Self { max_length, ..self }
    }

    /// How many bytes have been read so far; between records, where the next one begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads the next record, or nothing at a clean end.
    fn read_record(&mut self) -> Result<Option<Vec<u8>>, RecordError> {
        let offset = self.offset;
        let mut header = Vec::new();
        if self.fill(&mut header, HEADER)? == 0 {
            return Ok(None);
        }
        let Some((length, stored)) = split_header(&header) else {
            return Err(truncated(offset, Part::Header, HEADER, &header));
        };
        let (found, stored) = (masked_crc32c(length), u32::from_le_bytes(*stored));
        if found != stored {
            return Err(RecordError::DamagedLength { offset, stored, found });
        }
        let (length, limit) = (u64::from_le_bytes(*length), self.max_length);
        if length > limit {
            return Err(RecordError::TooLong { offset, length, limit });
        }

        let offset = self.offset;
        let mut data = Vec::new();
        if self.fill(&mut data, length)? < length {
            return Err(truncated(offset, Part::Data, length, &data));
        }

        let footer_offset = self.offset;
        let mut footer = Vec::new();
        self.fill(&mut footer, FOOTER)?;
        let Some(stored) = footer.first_chunk() else {
            return Err(truncated(footer_offset, Part::Footer, FOOTER, &footer));
        };
        let (found, stored) = (masked_crc32c(&data), u32::from_le_bytes(*stored));
        if found != stored {
            return Err(RecordError::DamagedData { offset, stored, found });
        }
        Ok(Some(data))
    }

    /// Reads up to `most` bytes into `buffer`, fewer only at the end of the file, and says how many.
    fn fill(&mut self, buffer: &mut Vec<u8>, most: u64) -> Result<u64, RecordError> {
        let outcome = self.inner.by_ref().take(most).read_to_end(buffer);
        self.offset += buffer.len() as u64;
        match outcome {
            Ok(_) => Ok(buffer.len() as u64),
            Err(source) => Err(RecordError::Io { offset: self.offset, source }),
        }
    }
}

impl<R: Read> Iterator for RecordReader<R> {
    type Item = Result<Vec<u8>, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.finished {
            return None;
        }
        let record = self.read_record().transpose();
        self.finished = !matches!(record, Some(Ok(_)));
        record
    }
}

impl<R: Read> std::iter::FusedIterator for RecordReader<R> {}

/// The length and its checksum, if both are all there.
fn split_header(header: &[u8]) -> Option<(&[u8; 8], &[u8; 4])> {
    let (length, rest) = header.split_first_chunk()?;
    Some((length, rest.first_chunk()?))
}

fn truncated(offset: u64, part: Part, needed: u64, found: &[u8]) -> RecordError {
    RecordError::Truncated { offset, part, needed, found: found.len() as u64 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::RecordWriter;

    fn file(records: &[Vec<u8>]) -> Vec<u8> {
        let mut writer = RecordWriter::new(Vec::new());
        for record in records {
            writer.write(record).unwrap();
        }
        writer.into_inner()
    }

    fn read(bytes: &[u8]) -> Result<Vec<Vec<u8>>, RecordError> {
        RecordReader::new(bytes).collect()
    }

    fn small_file() -> Vec<u8> {
        file(&[b"foo".to_vec(), Vec::new(), b"a longer one".to_vec()])
    }

    /// A header whose checksum is right, whatever the length.
    fn header(length: u64) -> Vec<u8> {
        let length = length.to_le_bytes();
        [&length[..], &masked_crc32c(&length).to_le_bytes()].concat()
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(records: Vec<Vec<u8>>) {
            prop_assert_eq!(read(&file(&records)).unwrap(), records);
        }

        #[test]
        fn arbitrary_bytes_never_pass_as_records_nor_cause_a_panic(bytes: Vec<u8>) {
            prop_assert_eq!(read(&bytes).is_ok(), bytes.is_empty());
        }
    }

    #[test]
    fn a_file_cut_anywhere_ends_cleanly_only_between_records() {
        let whole = small_file();
        let boundaries = [0, 19, 35, whole.len()];
        for cut in 0..=whole.len() {
            match read(&whole[..cut]) {
                Ok(records) => assert_eq!(boundaries.get(records.len()), Some(&cut)),
                Err(RecordError::Truncated { offset, needed, found, .. }) => {
                    assert!(!boundaries.contains(&cut));
                    assert_eq!(offset + found, cut as u64);
                    assert!(found < needed);
                }
                Err(other) => panic!("cut at {cut}: {other}"),
            }
        }
    }

    #[test]
    fn every_flipped_bit_is_detected_at_its_record() {
        let whole = small_file();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let intact = [19, 35].iter().filter(|end| bit / 8 >= **end).count();
            let mut reader = RecordReader::new(bytes.as_slice());
            assert_eq!(reader.by_ref().take_while(Result::is_ok).count(), intact, "bit {bit}");
            assert!(reader.next().is_none(), "bit {bit}");
            read(&bytes).unwrap_err();
        }
    }

    #[test]
    fn errors_name_the_offset_of_the_damage() {
        let mut bytes = small_file();
        bytes[47] ^= 1;
        let message = read(&bytes).unwrap_err().to_string();
        assert!(message.starts_with("the data at offset 47 are damaged"), "{message}");
        bytes[19] ^= 1;
        let message = read(&bytes).unwrap_err().to_string();
        assert!(message.starts_with("the length at offset 19 is damaged"), "{message}");
        let message = read(&small_file()[..49]).unwrap_err().to_string();
        assert_eq!(message, "the file ends within the data at offset 47: 2 of 12 bytes are there");
    }

    #[test]
    fn a_huge_length_is_refused_by_the_limit() {
        let error = read(&header(u64::MAX)).unwrap_err();
        assert!(matches!(error, RecordError::TooLong { length: u64::MAX, .. }), "{error}");
        let bytes = small_file();
        let intact = |limit| RecordReader::new(bytes.as_slice()).with_max_length(limit).flatten().count();
        assert_eq!([intact(12), intact(11)], [3, 2]);
    }

    #[test]
    fn a_huge_length_within_the_limit_takes_no_memory_that_the_data_do_not() {
        let bytes = [header(u64::MAX), b"short".to_vec()].concat();
        let error =
            RecordReader::new(bytes.as_slice()).with_max_length(u64::MAX).next().unwrap().unwrap_err();
        assert!(matches!(error, RecordError::Truncated { needed: u64::MAX, found: 5, .. }), "{error}");
    }

    #[test]
    fn a_failing_reader_is_told_apart_from_an_end() {
        struct Failing;
        impl Read for Failing {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::ConnectionReset.into())
            }
        }
        let bytes = small_file();
        let mut reader = RecordReader::new(bytes[..25].chain(Failing));
        assert_eq!(reader.next().unwrap().unwrap(), b"foo");
        assert_eq!(reader.offset(), 19);
        let error = reader.next().unwrap().unwrap_err();
        assert!(matches!(error, RecordError::Io { offset: 25, .. }), "{error}");
        assert!(reader.next().is_none());
    }
}
