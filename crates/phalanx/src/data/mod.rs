//! Handwritten digits to train on: the four idx files of MNIST, or digits drawn by the program.
//!
//! * [`Digits`] is a whole data set, split into training, validation and test [`Examples`].
//! * `idx` reads and distrusts the files, `gzip` lets them be compressed, `error` says what is wrong.
//! * [`fetch`] brings the files to this machine.
//! * [`Schedule`] says which examples make up which batch.
//! * `synthetic` draws digits where there are none to be had, from the shapes in `glyphs`.
//!
//! This module touches the file system and, only through [`fetch`], the network. It knows nothing of
//! tensors.

mod error;
pub mod fetch;
mod glyphs;
mod gzip;
mod idx;
mod schedule;
mod synthetic;

use std::io;
use std::path::{Path, PathBuf};

pub use error::DataError;
pub use schedule::{Place, Schedule};

const TRAIN_IMAGES: &str = "train-images-idx3-ubyte";
const TRAIN_LABELS: &str = "train-labels-idx1-ubyte";
const TEST_IMAGES: &str = "t10k-images-idx3-ubyte";
const TEST_LABELS: &str = "t10k-labels-idx1-ubyte";

/// The names of the four files of MNIST, without the `.gz` that each may have.
pub const FILES: [&str; 4] = [TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS];

/// Images of one size, each with the digit it shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Examples {
    /// `len() * rows * columns` grey values, image by image and row by row.
    pub pixels: Vec<u8>,
    /// The digit of each image, 0 to 9.
    pub labels: Vec<u8>,
    /// The height of an image.
    pub rows: usize,
    /// The width of an image.
    pub columns: usize,
}

impl Examples {
    /// How many examples there are.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Takes the first `count` examples out.
    fn take_first(&mut self, count: usize) -> Examples {
        let count = count.min(self.len());
        Examples {
            pixels: self.pixels.drain(..count * self.rows * self.columns).collect(),
            labels: self.labels.drain(..count).collect(),
            ..*self
        }
    }
}

/// A data set of digits in its three parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digits {
    /// What the model learns from.
    pub train: Examples,
    /// Taken from the training files, to measure progress while learning.
    pub validation: Examples,
    /// Kept apart, to measure the outcome.
    pub test: Examples,
}

impl Digits {
    /// Reads the four idx files of `dir`, plain or gzipped, plain ones preferred.
    ///
    /// Validation is the first 5,000 training images, or the first twelfth where there are fewer than
    /// MNIST's 60,000.
    pub fn load(dir: &Path) -> Result<Digits, DataError> {
        let mut missing = Vec::new();
        let mut find = |name| match locate(dir, name) {
            Ok(Some(path)) => Ok(path),
            Ok(None) => {
                missing.push(name);
                Ok(PathBuf::new()) // Never opened: all that is missing is reported together, below.
            }
            Err(source) => Err(DataError::Unreadable { path: dir.to_owned(), source }),
        };
        let (train_images, train_labels) = (find(TRAIN_IMAGES)?, find(TRAIN_LABELS)?);
        let (test_images, test_labels) = (find(TEST_IMAGES)?, find(TEST_LABELS)?);
        if !missing.is_empty() {
            return Err(DataError::Missing { dir: dir.to_owned(), missing });
        }
        let mut train = load_pair(&train_images, &train_labels)?;
        let test = load_pair(&test_images, &test_labels)?;
        if (train.rows, train.columns) != (test.rows, test.columns) {
            return Err(DataError::SizesDiffer {
                train: format!("{} x {}", train.rows, train.columns),
                train_path: train_images,
                test: format!("{} x {}", test.rows, test.columns),
                test_path: test_images,
            });
        }
        let validation = train.take_first((train.len() / 12).min(5_000));
        Ok(Digits { train, validation, test })
    }

    /// Draws 55,000 digits for training, 5,000 for validation and 10,000 for the test; the same for the
    /// same seed.
    pub fn synthetic(seed: u64) -> Digits {
        let mut artist = synthetic::Artist::new(seed);
        Digits { train: artist.draw(55_000), validation: artist.draw(5_000), test: artist.draw(10_000) }
    }
}

impl Digits {
    /// A number that differs, but for bad luck, whenever the training examples differ.
    pub fn checksum(&self) -> u64 {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.train.labels).update(&self.train.pixels);
        let mut first = [0; 8];
        hasher.finalize_xof().fill(&mut first);
        u64::from_le_bytes(first)
    }
}

/// Where data is looked for when nobody says: `MNIST_data` in the current folder if that exists, else
/// the user's cache.
pub fn default_dir() -> PathBuf {
    let local = PathBuf::from("MNIST_data");
    if local.is_dir() {
        return local;
    }
    dirs::cache_dir().map_or(local, |cache| cache.join("phalanx").join("mnist"))
}

/// The path of `name` in `dir`, or of its gzipped form, or neither; an error if the folder hides it.
fn locate(dir: &Path, name: &str) -> io::Result<Option<PathBuf>> {
    for path in [dir.join(name), dir.join(format!("{name}.gz"))] {
        if path.try_exists()? {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

fn load_pair(images_path: &Path, labels_path: &Path) -> Result<Examples, DataError> {
    let images = idx::read_images(images_path)?;
    let labels = idx::read_labels(labels_path)?;
    if images.count != labels.len() {
        return Err(DataError::CountsDiffer {
            images_path: images_path.to_owned(),
            images: images.count,
            labels_path: labels_path.to_owned(),
            labels: labels.len(),
        });
    }
    Ok(Examples { pixels: images.pixels, labels, rows: images.rows, columns: images.columns })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::idx::tests::{gz, idx, images, labels};
    use super::*;

    /// A folder with `train` training examples and 10 test examples.
    fn folder(train: u32) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(TRAIN_IMAGES), images(train)).unwrap();
        fs::write(dir.path().join(TRAIN_LABELS), labels(train)).unwrap();
        fs::write(dir.path().join(TEST_IMAGES), images(10)).unwrap();
        fs::write(dir.path().join(TEST_LABELS), labels(10)).unwrap();
        dir
    }

    #[track_caller]
    fn refusal(dir: &Path) -> String {
        Digits::load(dir).unwrap_err().to_string()
    }

    #[test]
    fn the_first_twelfth_of_a_small_training_set_is_validation() {
        let digits = Digits::load(folder(36).path()).unwrap();
        assert_eq!([digits.train.len(), digits.validation.len(), digits.test.len()], [33, 3, 10]);
        assert_eq!(digits.validation.pixels[..], [[0; 6], [1; 6], [2; 6]].concat());
        assert_eq!(digits.validation.labels, [0, 1, 2]);
        assert_eq!(digits.train.pixels[..6], [3; 6]);
        assert_eq!((digits.train.labels[0], digits.train.rows, digits.train.columns), (3, 2, 3));
    }

    #[test]
    fn the_first_5000_images_of_a_full_training_set_are_validation() {
        let digits = Digits::load(folder(60_000).path()).unwrap();
        assert_eq!([digits.train.len(), digits.validation.len()], [55_000, 5_000]);
    }

    #[test]
    fn a_plain_file_is_preferred_to_a_gzipped_one_and_either_will_do() {
        let dir = folder(12);
        let gzipped = |name: &str| dir.path().join(format!("{name}.gz"));
        fs::write(gzipped(TRAIN_IMAGES), b"not looked at").unwrap();
        fs::rename(dir.path().join(TEST_LABELS), gzipped(TEST_LABELS)).unwrap();
        fs::write(gzipped(TEST_LABELS), gz(&labels(10))).unwrap();
        assert_eq!(Digits::load(dir.path()).unwrap().test.len(), 10);
    }

    #[test]
    fn missing_files_are_named_with_the_folder_and_the_remedy() {
        let dir = folder(12);
        fs::remove_file(dir.path().join(TRAIN_LABELS)).unwrap();
        let message = refusal(dir.path());
        let folder = dir.path().display();
        assert!(message.starts_with(&format!("{folder} lacks {TRAIN_LABELS}: ")), "{message}");
        assert!(message.contains(&format!("`phalanx data fetch --data_dir {folder}`")), "{message}");
        assert!(FILES.iter().all(|name| message.contains(name)), "{message}");
    }

    #[test]
    fn a_missing_folder_is_told_like_missing_files() {
        let dir = tempfile::tempdir().unwrap();
        let message = refusal(&dir.path().join("nowhere"));
        assert!(message.contains("nowhere lacks") && message.contains("data fetch"), "{message}");
    }

    #[test]
    fn images_and_labels_of_different_counts_are_refused_by_name_and_count() {
        let dir = folder(12);
        fs::write(dir.path().join(TEST_LABELS), labels(9)).unwrap();
        let message = refusal(dir.path());
        assert!(message.contains(&format!("{TEST_IMAGES} holds 10 images")), "{message}");
        assert!(message.contains(&format!("{TEST_LABELS} holds 9 labels")), "{message}");
    }

    #[test]
    fn test_images_of_another_size_than_the_training_images_are_refused() {
        let dir = folder(12);
        fs::write(dir.path().join(TEST_IMAGES), idx(0x0803, &[10, 4, 5], &[0; 200])).unwrap();
        let message = refusal(dir.path());
        assert!(message.contains("2 x 3") && message.contains("4 x 5"), "{message}");
    }

    #[test]
    fn a_file_in_place_of_the_folder_is_told_as_unreadable() {
        let dir = folder(12);
        let message = refusal(&dir.path().join(TRAIN_IMAGES));
        assert!(message.starts_with("cannot read ") && message.contains(TRAIN_IMAGES), "{message}");
    }

    #[cfg(unix)]
    #[test]
    fn a_file_or_folder_without_permission_is_told_as_unreadable() {
        use std::os::unix::fs::PermissionsExt;

        let dir = folder(12);
        let file = dir.path().join(TRAIN_IMAGES);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).unwrap();
        if fs::File::open(&file).is_ok() {
            return; // The superuser is refused nothing.
        }
        let message = refusal(dir.path());
        assert!(message.starts_with("cannot read ") && message.contains(TRAIN_IMAGES), "{message}");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o000)).unwrap();
        let message = refusal(dir.path());
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(message.starts_with("cannot read "), "{message}");
    }
}
