//! Stores chosen algorithms on disk.
//!
//! There is a file per GPU, driver and library, with a line per product: its name, its algorithm, and a
//! digest of both and of the machine. Lines with a wrong digest are ignored. The first choice that is
//! written counts: if several ranks time the same product at once, all use the choice of the first one
//! that writes. So a run repeats its bits as long as the file is kept. Reading needs no lock, also while
//! a rank waits for another one's choice: of hundreds that time the same products in their first step,
//! one writes. The wait for the lock ends after a few seconds, because some network file systems never
//! grant one.

use crate::cuda::lt::Algorithm;
use base::output::{self, Existing};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// Choices by name of the product; None if its epilogue is computed separately.
type Known = BTreeMap<String, Option<Algorithm>>;

/// Choices of one machine.
pub struct AlgorithmCache {
    path: PathBuf,
    machine: String,
    known: RefCell<Known>,
}

/// Attempts to lock the file, which writers hold for milliseconds, and the pause between them.
const LOCK_TRIES: usize = 500;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Marks an epilogue that is computed separately.
const APART: &str = "apart";

impl fmt::Display for AlgorithmCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}

impl AlgorithmCache {
    /// Reads the choices in a folder. None if the folder is not writable.
    pub fn open(folder: &Path, machine: String) -> Option<AlgorithmCache> {
        fs::create_dir_all(folder).ok()?;
        let path = folder.join(format!("products-{:016x}.txt", xxh3_64(machine.as_bytes())));
        lock_file(&path).ok()?;
        let known = RefCell::new(read(&path, &machine));
        Some(AlgorithmCache { path, machine, known })
    }

    /// Stored choice for a product.
    pub fn find(&self, product: &str) -> Option<Option<Algorithm>> {
        self.known.borrow().get(product).copied()
    }

    /// Stores a choice, unless another process has stored a valid one meanwhile. Returns the stored
    /// choice.
    pub fn keep(
        &self,
        product: &str,
        choice: Option<Algorithm>,
        valid: impl Fn(&Option<Algorithm>) -> bool,
    ) -> Option<Algorithm> {
        let look = || {
            let known = read(&self.path, &self.machine);
            (known.get(product).copied().filter(&valid), known)
        };
        let (mut taken, mut known) = look();
        // The lock is held until the file is dropped. Without it another rank's choice may be
        // overwritten; it is then made again.
        let file = lock_file(&self.path).ok();
        for _ in 0..LOCK_TRIES {
            if taken.is_some() {
                break;
            }
            let tried = file.as_ref().map(File::try_lock);
            (taken, known) = look();
            match tried {
                Some(Err(TryLockError::WouldBlock)) => sleep(LOCK_PAUSE),
                _ => break,
            }
        }
        if taken.is_none() && known.insert(product.to_string(), choice) != Some(choice) {
            // A full disk does not stop the run: the next run chooses again.
            let _ = output::write(&self.path, Existing::Replaced, self.text(&known).as_bytes());
        }
        self.known.replace(known);
        taken.unwrap_or(choice)
    }

    fn text(&self, known: &Known) -> String {
        let mut text = format!("# algorithms of matrix products, timed on {}\n", self.machine);
        for (product, choice) in known {
            let algorithm = choice.map_or(APART.to_string(), |choice| {
                choice
                    .data
                    .iter()
                    .map(|word| format!("{word:016x}"))
                    .collect()
            });
            let choice = format!("{product}: {algorithm}");
            let digest = digest(&self.machine, &choice);
            let _ = writeln!(text, "{choice} {digest:016x}");
        }
        text
    }
}

fn digest(machine: &str, choice: &str) -> u64 {
    xxh3_64(format!("{machine}\n{choice}").as_bytes())
}

/// Reads the lines of a file that are intact and of this machine.
fn read(path: &Path, machine: &str) -> Known {
    let text = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&text)
        .lines()
        .filter_map(|line| {
            let (choice, seal) = line.rsplit_once(' ')?;
            let sound = u64::from_str_radix(seal, 16) == Ok(digest(machine, choice));
            let (product, algorithm) = choice.rsplit_once(": ").filter(|_| sound)?;
            if algorithm == APART {
                return Some((product.to_string(), None));
            }
            let words: Option<Vec<u64>> = (0..8)
                .map(|i| u64::from_str_radix(algorithm.get(16 * i..16 * i + 16)?, 16).ok())
                .collect();
            Some((product.to_string(), Some(Algorithm { data: words?.try_into().ok()? })))
        })
        .collect()
}

/// File that writers lock.
fn lock_file(path: &Path) -> io::Result<File> {
    File::create(path.with_extension("lock"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn algorithm(word: u64) -> Option<Algorithm> {
        Some(Algorithm { data: [word; 8] })
    }

    /// Another rank holds the lock all the while, and publishes its choice while this one waits.
    #[test]
    fn who_waits_for_the_lock_takes_what_is_published_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let cache = AlgorithmCache::open(folder.path(), "a machine".to_string()).unwrap();
        let lock = lock_file(&cache.path).unwrap();
        lock.lock().unwrap();
        let publish_choice = |word| {
            let known = Known::from([("product".to_string(), algorithm(word))]);
            let text = cache.text(&known);
            output::write(&cache.path, Existing::Replaced, text.as_bytes()).unwrap();
        };
        let unusable = 1;
        let theirs = 7;
        let ours = 3;
        publish_choice(unusable);
        let looks = Cell::new(0);
        let chosen = cache.keep("product", algorithm(ours), |choice: &Option<Algorithm>| {
            looks.set(looks.get() + 1);
            if looks.get() == 3 {
                publish_choice(theirs);
            }
            choice.is_some_and(|algorithm| algorithm.data[0] != unusable)
        });
        let word = |choice: Option<Algorithm>| choice.map(|algorithm| algorithm.data[0]);
        assert_eq!((word(chosen), looks.get()), (Some(theirs), 4));
        assert_eq!(cache.find("product").map(word), Some(Some(theirs)));
    }
}
