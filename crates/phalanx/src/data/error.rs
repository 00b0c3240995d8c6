//! What can be wrong with a folder of idx files, in words that name the file and the fault.

use std::io;
use std::path::PathBuf;

use super::FILES;

/// Why a data set could not be read.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// Some of the four files are not there.
    #[error(
        "{dir} lacks {missing}: MNIST is the four files {all}, each plain or with .gz added; \
         `phalanx data fetch --data_dir {dir}` brings them",
        dir = .dir.display(), missing = .missing.join(", "), all = FILES.join(", ")
    )]
    Missing {
        /// The folder that was searched.
        dir: PathBuf,
        /// The names that were not found.
        missing: Vec<&'static str>,
    },
    /// The folder or the file exists but the system refuses to read it.
    #[error("cannot read {}: {source}", .path.display())]
    Unreadable {
        /// The folder or file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The gzip stream is broken.
    #[error("{}: the gzip data is truncated or corrupt ({source})", .path.display())]
    CorruptGzip {
        /// The file.
        path: PathBuf,
        /// What the decompressor said.
        source: io::Error,
    },
    /// The file ends within its own header.
    #[error("{}: the file ends after {found} bytes, within the {needed} bytes of its header", .path.display())]
    ShortHeader {
        /// The file.
        path: PathBuf,
        /// How long the header is.
        needed: usize,
        /// How many bytes there were.
        found: usize,
    },
    /// The magic number is not the one for this kind of file.
    #[error(
        "{path}: expected idx {wanted} (magic {expected:#010x}) but found magic {found:#010x}: {what}",
        path = .path.display()
    )]
    WrongMagic {
        /// The file.
        path: PathBuf,
        /// What the file should hold, `images` or `labels`.
        wanted: &'static str,
        /// The magic of such a file.
        expected: u32,
        /// The magic that was found.
        found: u32,
        /// What the magic that was found belongs to.
        what: String,
    },
    /// One of the dimensions is zero.
    #[error("{}: the header gives {dimensions}, and a zero among them leaves nothing to learn from", .path.display())]
    ZeroDimension {
        /// The file.
        path: PathBuf,
        /// The dimensions, as `60000 x 28 x 28`.
        dimensions: String,
    },
    /// The header claims more data than any set of digits has.
    #[error("{}: the header gives {dimensions}, more than the {limit} bytes a data set may have", .path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The dimensions, as `60000 x 28 x 28`.
        dimensions: String,
        /// The most bytes of data that are accepted.
        limit: u64,
    },
    /// There is less data than the header says.
    #[error("{}: the header promises {declared} bytes of data but only {found} follow it", .path.display())]
    Shorter {
        /// The file.
        path: PathBuf,
        /// Bytes promised by the header.
        declared: u64,
        /// Bytes that were there.
        found: u64,
    },
    /// There is more data than the header says.
    #[error("{}: the header promises {declared} bytes of data but at least {found} follow it", .path.display())]
    Longer {
        /// The file.
        path: PathBuf,
        /// Bytes promised by the header.
        declared: u64,
        /// Bytes that were there, as far as they were counted.
        found: u64,
    },
    /// A label is not a digit.
    #[error("{}: label {index} is {value}, but labels are the digits 0 to 9", .path.display())]
    NotADigit {
        /// The file.
        path: PathBuf,
        /// Which label, counted from 0.
        index: usize,
        /// Its value.
        value: u8,
    },
    /// Images and labels do not pair up.
    #[error(
        "{images_path} holds {images} images but {labels_path} holds {labels} labels",
        images_path = .images_path.display(), labels_path = .labels_path.display()
    )]
    CountsDiffer {
        /// The file of images.
        images_path: PathBuf,
        /// How many images it holds.
        images: usize,
        /// The file of labels.
        labels_path: PathBuf,
        /// How many labels it holds.
        labels: usize,
    },
    /// The test images are not of the size of the training images.
    #[error(
        "the images of {train_path} are {train} pixels but those of {test_path} are {test}",
        train_path = .train_path.display(), test_path = .test_path.display()
    )]
    SizesDiffer {
        /// The file of training images.
        train_path: PathBuf,
        /// Their size, as `28 x 28`.
        train: String,
        /// The file of test images.
        test_path: PathBuf,
        /// Their size, as `28 x 28`.
        test: String,
    },
}
