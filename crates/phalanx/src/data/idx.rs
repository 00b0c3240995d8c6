//! The strict reader of idx files: unsigned bytes, in three dimensions (images) or one (labels).
//!
//! Nothing in a file is believed. Sizes from the header are only ever compared with the bytes that
//! arrive; memory grows with those bytes and never on the header's word.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::DataError;
use super::gzip;

const IMAGES_MAGIC: u32 = 0x0000_0803;
const LABELS_MAGIC: u32 = 0x0000_0801;

/// More data than this in one file is refused: a gzip file of a few megabytes can swell to any size, so
/// that the bytes do arrive is not reason enough to keep them. MNIST needs 47 MB.
const MAX_DATA: u64 = 4 << 30;

/// How far the bytes past the promised end are counted, for the error to be exact in all usual cases.
const MAX_EXCESS_COUNTED: u64 = 64 << 20;

/// The images of one idx3-ubyte file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Images {
    pub count: usize,
    pub rows: usize,
    pub columns: usize,
    /// `count * rows * columns` bytes, row by row.
    pub pixels: Vec<u8>,
}

/// Reads a file of images, plain or gzipped.
pub(super) fn read_images(path: &Path) -> Result<Images, DataError> {
    let mut file = IdxFile::open(path)?;
    let ([count, rows, columns], pixels) = file.read("images", IMAGES_MAGIC)?;
    Ok(Images { count, rows, columns, pixels })
}

/// Reads a file of labels, plain or gzipped, each of them a digit.
pub(super) fn read_labels(path: &Path) -> Result<Vec<u8>, DataError> {
    let mut file = IdxFile::open(path)?;
    let ([_count], labels) = file.read("labels", LABELS_MAGIC)?;
    match labels.iter().enumerate().find(|(_, label)| **label > 9) {
        Some((index, &value)) => Err(DataError::NotADigit { path: path.to_owned(), index, value }),
        None => Ok(labels),
    }
}

/// An open file, with the path that every error about it needs.
struct IdxFile<'a> {
    path: &'a Path,
    plain: gzip::Plain<'static>,
}

impl<'a> IdxFile<'a> {
    fn open(path: &'a Path) -> Result<Self, DataError> {
        let unreadable = |source| DataError::Unreadable { path: path.to_owned(), source };
        // Of what is not a file, a pipe for example, the end may never come.
        if !path.metadata().map_err(unreadable)?.is_file() {
            return Err(unreadable(io::Error::other("it is not a file")));
        }
        let file = File::open(path).map_err(unreadable)?;
        Ok(Self { path, plain: gzip::plain(file).map_err(unreadable)? })
    }

    /// Reads a whole file of `N` dimensions: the sizes, then exactly the data they promise.
    fn read<const N: usize>(
        &mut self,
        wanted: &'static str,
        expected: u32,
    ) -> Result<([usize; N], Vec<u8>), DataError> {
        let needed = 4 + 4 * N;
        let header = self.bytes(needed as u64)?;
        // The magic is judged first: for the wrong kind of file the length of "its" header means nothing.
        if let Some(found) = word(&header, 0)
            && found != expected
        {
            let what = describe(found);
            return Err(DataError::WrongMagic { path: self.path.to_owned(), wanted, expected, found, what });
        }
        let mut sizes = [0; N];
        for (i, size) in sizes.iter_mut().enumerate() {
            *size = word(&header, i + 1).ok_or_else(|| DataError::ShortHeader {
                path: self.path.to_owned(),
                needed,
                found: header.len(),
            })?;
        }
        let declared = self.declared_length(&sizes)?;
        let data = self.bytes(declared)?;
        let found = data.len() as u64;
        if found < declared {
            return Err(DataError::Shorter { path: self.path.to_owned(), declared, found });
        }
        // Reading on to the very end also makes the decompressor check its own checksum.
        let excess = self.count_excess()?;
        if excess > 0 {
            return Err(DataError::Longer { path: self.path.to_owned(), declared, found: found + excess });
        }
        Ok((sizes.map(|size| size as usize), data))
    }

    /// How many bytes of data the header's sizes promise, if that is a sensible number.
    fn declared_length(&self, sizes: &[u32]) -> Result<u64, DataError> {
        let dimensions = || sizes.iter().map(u32::to_string).collect::<Vec<_>>().join(" x ");
        if sizes.contains(&0) {
            return Err(DataError::ZeroDimension { path: self.path.to_owned(), dimensions: dimensions() });
        }
        let product = sizes.iter().try_fold(1_u64, |product, &size| product.checked_mul(size.into()));
        product.filter(|length| *length <= MAX_DATA).ok_or_else(|| DataError::TooLarge {
            path: self.path.to_owned(),
            dimensions: dimensions(),
            limit: MAX_DATA,
        })
    }

    /// The next bytes, at most `most`; fewer only at the end of the file.
    fn bytes(&mut self, most: u64) -> Result<Vec<u8>, DataError> {
        let mut bytes = Vec::new();
        match self.plain.reader.by_ref().take(most).read_to_end(&mut bytes) {
            Ok(_) => Ok(bytes),
            Err(source) => Err(self.broken(source)),
        }
    }

    fn count_excess(&mut self) -> Result<u64, DataError> {
        let mut rest = self.plain.reader.by_ref().take(MAX_EXCESS_COUNTED);
        io::copy(&mut rest, &mut io::sink()).map_err(|source| self.broken(source))
    }

    fn broken(&self, source: io::Error) -> DataError {
        let path = self.path.to_owned();
        match self.plain.gzipped {
            true => DataError::CorruptGzip { path, source },
            false => DataError::Unreadable { path, source },
        }
    }
}

/// The `i`th big-endian word of `header`, if it reaches that far.
fn word(header: &[u8], i: usize) -> Option<u32> {
    header.get(4 * i..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

/// What kind of file a magic number belongs to.
fn describe(magic: u32) -> String {
    let [zero, also_zero, kind, dimensions] = magic.to_be_bytes();
    let element = match kind {
        0x08 => "unsigned bytes",
        0x09 => "signed bytes",
        0x0b => "16-bit integers",
        0x0c => "32-bit integers",
        0x0d => "32-bit floats",
        0x0e => "64-bit floats",
        _ => return "this is not an idx file".into(),
    };
    match magic {
        LABELS_MAGIC => "these are labels, not images".into(),
        IMAGES_MAGIC => "these are images, not labels".into(),
        _ if zero != 0 || also_zero != 0 || dimensions == 0 => "this is not an idx file".into(),
        _ => format!("this is an idx file of {element} in {dimensions} dimension(s)"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write;
    use std::path::PathBuf;

    use flate2::{Compression, write::GzEncoder};
    use tempfile::TempDir;

    use super::*;

    /// An idx file of unsigned bytes, honest or not.
    pub(in crate::data) fn idx(magic: u32, sizes: &[u32], data: &[u8]) -> Vec<u8> {
        let words = [magic].into_iter().chain(sizes.iter().copied());
        words.flat_map(u32::to_be_bytes).chain(data.iter().copied()).collect()
    }

    /// A file of `count` images of 2 x 3 pixels, all of them of the image's number.
    pub(in crate::data) fn images(count: u32) -> Vec<u8> {
        let data: Vec<u8> = (0..count).flat_map(|i| [i as u8; 6]).collect();
        idx(IMAGES_MAGIC, &[count, 2, 3], &data)
    }

    /// A file of `count` labels, each the last digit of its number.
    pub(in crate::data) fn labels(count: u32) -> Vec<u8> {
        let data: Vec<u8> = (0..count).map(|i| (i % 10) as u8).collect();
        idx(LABELS_MAGIC, &[count], &data)
    }

    pub(in crate::data) fn gz(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    struct Bench {
        _dir: TempDir,
        path: PathBuf,
    }

    fn file(bytes: &[u8]) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("some-file");
        std::fs::write(&path, bytes).unwrap();
        Bench { _dir: dir, path }
    }

    /// The message about a file of images with this content, which must name the file.
    fn images_error(bytes: &[u8]) -> String {
        let bench = file(bytes);
        let message = read_images(&bench.path).unwrap_err().to_string();
        assert!(message.contains("some-file"), "{message}");
        message
    }

    fn labels_error(bytes: &[u8]) -> String {
        let bench = file(bytes);
        let message = read_labels(&bench.path).unwrap_err().to_string();
        assert!(message.contains("some-file"), "{message}");
        message
    }

    #[track_caller]
    fn says(message: &str, parts: &[&str]) {
        for part in parts {
            assert!(message.contains(part), "{part:?} is not in {message:?}");
        }
    }

    #[test]
    fn images_and_labels_read_the_same_plain_and_gzipped() {
        for bytes in [images(4), gz(&images(4))] {
            let read = read_images(&file(&bytes).path).unwrap();
            assert_eq!((read.count, read.rows, read.columns, read.pixels.len()), (4, 2, 3, 24));
            assert_eq!(read.pixels[6..12], [1; 6]);
        }
        for bytes in [labels(12), gz(&labels(12))] {
            assert_eq!(read_labels(&file(&bytes).path).unwrap(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]);
        }
    }

    #[test]
    fn the_wrong_magic_is_told_together_with_what_it_means() {
        says(&images_error(&labels(20)), &["0x00000803", "0x00000801", "these are labels, not images"]);
        says(&labels_error(&images(2)), &["0x00000801", "0x00000803", "these are images, not labels"]);
        says(&images_error(&idx(0x0d02, &[2, 2], &[0; 16])), &["32-bit floats in 2 dimension(s)"]);
        says(&images_error(b"<html>404</html>"), &["0x3c68746d", "not an idx file"]);
        says(&images_error(&idx(0x0800, &[], &[])), &["not an idx file"]);
    }

    #[test]
    fn a_file_shorter_than_its_header_says_is_refused_with_both_counts() {
        let bytes = images(4);
        says(&images_error(&bytes[..bytes.len() - 1]), &["promises 24 bytes", "only 23 follow"]);
        says(&labels_error(&idx(LABELS_MAGIC, &[7], &[1, 2])), &["promises 7 bytes", "only 2 follow"]);
        says(&images_error(&gz(&bytes[..20])), &["promises 24 bytes", "only 4 follow"]);
    }

    #[test]
    fn a_file_longer_than_its_header_says_is_refused_with_both_counts() {
        let longer = [images(4), vec![0; 5]].concat();
        says(&images_error(&longer), &["promises 24 bytes", "at least 29 follow"]);
        says(&images_error(&gz(&longer)), &["promises 24 bytes", "at least 29 follow"]);
    }

    #[test]
    fn a_file_that_ends_within_its_header_is_refused() {
        for cut in 0..16 {
            says(
                &images_error(&images(4)[..cut]),
                &[&format!("after {cut} bytes"), "16 bytes of its header"],
            );
        }
    }

    #[test]
    fn every_truncation_of_a_gzip_file_is_refused() {
        let whole = gz(&images(4));
        for cut in 2..whole.len() {
            says(&images_error(&whole[..cut]), &["gzip data is truncated or corrupt"]);
        }
    }

    #[test]
    fn a_corrupt_gzip_file_is_refused() {
        let mut bytes = gz(&images(40));
        let checksum = bytes.len() - 8;
        bytes[checksum] ^= 1;
        says(&images_error(&bytes), &["gzip data is truncated or corrupt"]);
        let trailing = [gz(&images(4)), b"rubbish".to_vec()].concat();
        says(&images_error(&trailing), &["gzip data is truncated or corrupt"]);
    }

    #[test]
    fn a_label_that_is_no_digit_is_named_by_index_and_value() {
        says(&labels_error(&idx(LABELS_MAGIC, &[3], &[9, 0, 10])), &["label 2 is 10"]);
    }

    #[test]
    fn a_zero_among_the_dimensions_is_refused() {
        says(&images_error(&idx(IMAGES_MAGIC, &[0, 28, 28], &[])), &["0 x 28 x 28"]);
        says(&images_error(&idx(IMAGES_MAGIC, &[5, 0, 28], &[])), &["5 x 0 x 28"]);
        says(&labels_error(&idx(LABELS_MAGIC, &[0], &[])), &["zero"]);
    }

    #[test]
    fn absurd_dimensions_are_refused_without_allocating_for_them() {
        let all = u32::MAX;
        says(&images_error(&idx(IMAGES_MAGIC, &[all, all, all], &[1])), &["4294967295 x 4294967295"]);
        says(&images_error(&idx(IMAGES_MAGIC, &[all, 28, 28], &[1])), &["4294967295 x 28 x 28"]);
        // Just within the limit: the gigabytes are not asked for, since they do not arrive.
        says(&images_error(&idx(IMAGES_MAGIC, &[1 << 20, 64, 64], &[1])), &["4294967296", "only 1 follow"]);
    }

    #[test]
    fn a_folder_in_place_of_a_file_is_told_as_unreadable() {
        let dir = tempfile::tempdir().unwrap();
        let error = read_images(dir.path()).unwrap_err();
        assert!(matches!(error, DataError::Unreadable { .. }), "{error}");
        says(&error.to_string(), &["cannot read", &dir.path().display().to_string()]);
    }
}
