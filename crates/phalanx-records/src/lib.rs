//! Records on disk in TensorFlow's TFRecord framing, and nothing else: what a record holds is its
//! owner's business.
//!
//! A file is a sequence of records, each of them
//!
//! ```text
//! length of the data      8 bytes, little endian
//! checksum of the length  4 bytes, little endian
//! data                    `length` bytes
//! checksum of the data    4 bytes, little endian
//! ```
//!
//! where a checksum is a masked CRC-32C. [`RecordWriter`] writes such files and [`RecordReader`] reads
//! them, trusting nothing in them.
//!
//! ```
//! use phalanx_records::{RecordReader, RecordWriter};
//!
//! let mut writer = RecordWriter::new(Vec::new());
//! writer.write(b"one")?;
//! writer.write(b"two")?;
//! let file = writer.into_inner();
//! let records: Vec<Vec<u8>> = RecordReader::new(file.as_slice()).collect::<Result<_, _>>()?;
//! assert_eq!(records, [b"one", b"two"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod checksum;
mod reader;
mod writer;

pub use checksum::masked_crc32c;
pub use reader::{DEFAULT_MAX_LENGTH, Part, RecordError, RecordReader};
pub use writer::RecordWriter;

/// Bytes before the data: its length, and the checksum of that.
const HEADER: u64 = 12;
/// Bytes after the data: its checksum.
const FOOTER: u64 = 4;
