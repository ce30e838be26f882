//! Writes a dataset with its documents in a random order. Megatron's split uses the last documents
//! for validation; without a shuffle those come from the last files.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::indexed::{Indexed, Writer};
use base::output::{self, Leftover, TemporaryFolder};
use base::progress::{Progress, Unit};
use base::rng;

/// Temporary folder for the unshuffled dataset, `PREFIX.unshuffled/`; removed on drop. Only the
/// process that has locked the dataset uses it.
pub struct UnshuffledFolder(TemporaryFolder);

impl UnshuffledFolder {
    pub fn create(prefix: &Path) -> Result<UnshuffledFolder> {
        Ok(UnshuffledFolder(TemporaryFolder::create(&unshuffled_path(prefix), 0o777)?))
    }

    /// Removes the folder of a killed process, and says so.
    pub fn remove_leftover(prefix: &Path) -> Result<()> {
        let folder = unshuffled_path(prefix);
        let parent = folder
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        let found = output::temporary_folders(parent.unwrap_or(Path::new(".")), |name: &str| {
            folder.file_name().is_some_and(|own| own == name)
        });
        found.abandoned.into_iter().try_for_each(Leftover::remove)
    }

    /// Prefix of the dataset in it.
    pub fn prefix(&self) -> PathBuf {
        self.0.path().join("dataset")
    }
}

fn unshuffled_path(prefix: &Path) -> PathBuf {
    let mut folder = prefix.as_os_str().to_os_string();
    folder.push(".unshuffled");
    folder.into()
}

impl Drop for UnshuffledFolder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(self.0.path()).ok(); // a later build removes it
    }
}

/// Writes the documents of `from` in the order of a Fisher–Yates shuffle.
pub fn shuffle(from: &Indexed, writer: &mut Writer, seed: u64) -> Result<()> {
    let mut tokens = Vec::new();
    let mut ids = Vec::new();
    let progress = Progress::new("shuffling", from.tokens(), Unit::Items("tokens"));
    for document in permute(from.documents(), seed) {
        for sequence in from.document(document) {
            tokens.resize(from.lengths()[sequence] as usize, 0);
            from.read(sequence, 0, &mut tokens)?;
            ids.clear();
            ids.extend(tokens.iter().map(|token| *token as u32));
            writer.sequence(&ids)?;
            progress.add(ids.len() as u64);
        }
        writer.end_document();
    }
    Ok(())
}

/// Permutation of the numbers below `count`.
fn permute(count: usize, seed: u64) -> Vec<usize> {
    let key = rng::key(seed, "document order");
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        order.swap(last, rng::below(key, last as u64, last as u64 + 1) as usize);
    }
    order
}
