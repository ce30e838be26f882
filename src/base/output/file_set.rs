//! Several files that are one output, of which readers need the last. No file system renames
//! several files at once, so these steps replace a set:
//!
//! 1. every old file is renamed to `PLACE.old.partial`, the last first: the set is not readable;
//! 2. every new file gets its name, the last one last: the new set is readable;
//! 3. the old files are removed.
//!
//! After an error in 1 or 2 the old files get their names again. After a kill the next process that
//! writes the set does the same (`repair`): without the last file, `PLACE.partial` of the first file
//! shows whether step 2 had begun.

use super::leftover::{is_locked_elsewhere, name_removed, open_partial};
use super::{Existing, OPEN, Output, exists, locked_error, partial_path};
use crate::Bytes;
use anyhow::{Context, Result};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Paths of the files, in the order in which they get their names.
pub struct FileSet(Vec<PathBuf>);

impl FileSet {
    /// Set of at least two files. A process that writes it creates the output of the first one
    /// first.
    pub fn new(places: impl Into<Vec<PathBuf>>) -> FileSet {
        let places = places.into();
        assert!(places.len() > 1, "a set has several files");
        FileSet(places)
    }

    /// File that identifies the set in messages, and whose partial file exists until step 2.
    fn first(&self) -> &Path {
        &self.0[0]
    }

    /// File that makes the set readable.
    fn last(&self) -> &Path {
        &self.0[self.0.len() - 1]
    }

    /// Puts back the files of a set that a killed process was replacing, and removes what it left.
    /// Says so in a line each. Fails if another process is writing the set.
    pub fn repair(&self) -> Result<()> {
        let _open = OPEN.lock();
        let failed = || format!("cannot repair {}", self.first().display());
        let mut locks = Vec::new();
        for path in self.0.iter().map(|place| partial_path(place)) {
            match open_partial(&path, false) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                opened => {
                    locks.push(opened.with_context(|| format!("cannot open {}", path.display()))?);
                }
            }
        }
        let was_replaced = self.0.iter().any(|place| exists(&replaced_path(place)));
        if was_replaced && exists(self.last()) {
            locks.push(open_partial(self.last(), false).with_context(failed)?);
        }
        for lock in &locks {
            if is_locked_elsewhere(lock).with_context(failed)? {
                return Err(locked_error(self.first()).into());
            }
        }
        if exists(self.last()) {
            name_removed(&self.remove(replaced_path).with_context(failed)?);
        } else if was_replaced || exists(&partial_path(self.last())) {
            let put_back = self.put_back().with_context(failed)?;
            if !put_back.is_empty() {
                let put_back = put_back.join(", ");
                crate::warn!("gptrain: put back {put_back}, which a killed command was replacing");
            }
        }
        name_removed(&self.remove(partial_path).with_context(failed)?);
        Ok(())
    }

    /// Gives all files their names, or none. `outputs` are those of some of the places, the last
    /// among them; an existing file of another place belongs to the old set and is removed. An
    /// interrupt takes effect before or after.
    pub fn finish(&self, outputs: Vec<Output>) -> Result<()> {
        outputs.iter().try_for_each(Output::sync)?;
        let mut open = OPEN.lock();
        // Files that are not in `open` are kept when their outputs are dropped.
        let mut forget = || {
            open.retain(|path| {
                outputs
                    .iter()
                    .all(|output| output.partial.as_ref() != Some(path))
            });
        };
        let finished = self
            .replace(&outputs)
            .map_err(|error| match self.put_back() {
                Ok(_) => error,
                Err(second) => {
                    forget(); // `repair` needs them
                    let first = self.first().display();
                    error.context(format!("{first} is not put back ({second}): start this again"))
                }
            });
        if finished.is_ok() {
            forget();
            if let Err(error) = self.remove(replaced_path) {
                crate::warn!("gptrain: the old {} is not removed: {error}", self.first().display());
            }
        }
        drop(open);
        outputs.into_iter().rev().for_each(drop);
        finished
    }

    /// Steps 1 and 2.
    fn replace(&self, outputs: &[Output]) -> Result<()> {
        let output = |place: &Path| outputs.iter().find(|output| output.place == place);
        for place in self.0.iter().rev().filter(|place| exists(place)) {
            if output(place).is_none_or(|output| output.is_replacing()) {
                fs::rename(place, replaced_path(place))
                    .with_context(|| format!("cannot rename {}", place.display()))?;
            }
        }
        for output in self.0.iter().filter_map(|place| output(place)) {
            let is_last = output.place == self.last();
            if is_last {
                output.sync_folder(); // the names before it are durable before it
            }
            output.rename()?;
            if is_last {
                output.sync_folder();
            }
        }
        Ok(())
    }

    /// Undoes the steps 1 and 2, from wherever they ended. Returns the names of the old files.
    fn put_back(&self) -> io::Result<Vec<String>> {
        if !exists(&partial_path(self.first())) {
            // All old files were moved away, so those in place are new. The first of them is last.
            for place in self.0.iter().rev().skip(1) {
                if exists(place) && !exists(&partial_path(place)) {
                    fs::rename(place, partial_path(place))?;
                }
            }
        }
        let mut put_back = Vec::new();
        for place in self.0.iter().filter(|place| exists(&replaced_path(place))) {
            fs::rename(replaced_path(place), place)?;
            put_back.push(place.display().to_string());
        }
        Ok(put_back)
    }

    /// Removes the files with these temporary names, those of the first place last. Returns them.
    fn remove(&self, name: impl Fn(&Path) -> PathBuf) -> io::Result<Vec<(PathBuf, Bytes)>> {
        let mut removed = Vec::new();
        for path in self.0.iter().rev().map(|place| name(place)) {
            let Ok(about) = fs::symlink_metadata(&path) else { continue };
            fs::remove_file(&path)?;
            removed.push((path, Bytes(about.len())));
        }
        removed.reverse();
        Ok(removed)
    }
}

impl Output {
    /// Whether it has a partial file that will replace an existing file.
    fn is_replacing(&self) -> bool {
        self.partial.is_some() && self.existing == Existing::Replaced
    }
}

/// Path of an old file while its set is replaced.
fn replaced_path(place: &Path) -> PathBuf {
    let mut path = place.as_os_str().to_os_string();
    path.push(".old.partial");
    path.into()
}

#[cfg(test)]
mod tests {
    use super::super::tests::names;
    use super::*;
    use std::io::Write;

    /// Content of the files of a set; None if the last is missing.
    fn read(places: &[PathBuf]) -> Option<Vec<Option<String>>> {
        exists(&places[2]).then(|| {
            places
                .iter()
                .map(|place| fs::read_to_string(place).ok())
                .collect()
        })
    }

    fn outputs(places: &[PathBuf], existing: Existing, content: &str) -> Vec<Output> {
        places
            .iter()
            .map(|place| {
                let mut output = Output::create(place, existing).unwrap();
                output.write_all(content.as_bytes()).unwrap();
                output
            })
            .collect()
    }

    fn set(content: &str, kept: [bool; 3]) -> Option<Vec<Option<String>>> {
        Some(kept.map(|kept| kept.then(|| content.to_string())).to_vec())
    }

    #[test]
    fn files_get_their_names_together_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let places = ["a", "b", "c"].map(|name| folder.path().join(name));
        let set_of_3 = FileSet::new(places.clone());
        let late = outputs(&places, Existing::Refused, "late");
        fs::write(&places[2], "theirs").unwrap();
        set_of_3.finish(late).unwrap_err();
        assert_eq!(names(folder.path()), ["c"]);
        fs::remove_file(&places[2]).unwrap();
        set_of_3
            .finish(outputs(&places, Existing::Refused, "one"))
            .unwrap();
        assert_eq!(read(&places), set("one", [true; 3]));
        // A set of two replaces one of three.
        let two = [places[0].clone(), places[2].clone()];
        set_of_3
            .finish(outputs(&two, Existing::Replaced, "two"))
            .unwrap();
        assert_eq!(read(&places), set("two", [true, false, true]));
        assert_eq!(names(folder.path()), ["a", "c"]);
        for missing in &places {
            let late = outputs(&places, Existing::Replaced, "three");
            fs::remove_file(partial_path(missing)).unwrap();
            set_of_3.finish(late).unwrap_err();
            assert_eq!(read(&places), set("two", [true, false, true]));
            assert_eq!(names(folder.path()), ["a", "c"]);
        }
    }

    /// The states between any two renames, as a kill leaves them.
    #[test]
    fn a_set_that_was_being_replaced_is_put_back() {
        for (old, new) in [([true; 3], [true; 3]), ([true, false, true], [true; 3])] {
            for ended in 0..=6 {
                let folder = tempfile::tempdir().unwrap();
                let places = ["a", "b", "c"].map(|name| folder.path().join(name));
                for (place, _) in places.iter().zip(old).filter(|(_, old)| *old) {
                    fs::write(place, "old").unwrap();
                }
                for (place, _) in places.iter().zip(new).filter(|(_, new)| *new) {
                    fs::write(partial_path(place), "new").unwrap();
                }
                let away = places
                    .iter()
                    .rev()
                    .map(|place| (place.clone(), replaced_path(place)));
                let named = places
                    .iter()
                    .map(|place| (partial_path(place), place.clone()));
                let renames = away
                    .chain(named)
                    .take(ended)
                    .filter(|(from, _)| exists(from));
                renames.for_each(|(from, to)| fs::rename(from, to).unwrap());
                let whole = if ended == 6 { set("new", new) } else { set("old", old) };
                let repaired = FileSet::new(places.clone());
                repaired.repair().unwrap();
                assert_eq!(read(&places), whole, "{old:?} {new:?}, after {ended} renames");
                let left = names(folder.path());
                assert!(left.iter().all(|name| name.len() == 1), "{left:?}");
                repaired.repair().unwrap();
                assert_eq!(read(&places), whole);
            }
        }
    }

    #[test]
    fn a_new_set_that_was_half_named_is_removed_unless_another_process_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let places = ["a", "b", "c"].map(|name| folder.path().join(name));
        for path in [places[0].clone(), partial_path(&places[1]), partial_path(&places[2])] {
            fs::write(path, "new").unwrap();
        }
        let held = open_partial(&partial_path(&places[2]), false).unwrap();
        assert!(!is_locked_elsewhere(&held).unwrap());
        let refused = FileSet::new(places.clone())
            .repair()
            .unwrap_err()
            .to_string();
        assert!(refused.contains("another process is writing it"), "{refused}");
        drop(held);
        FileSet::new(places.clone()).repair().unwrap();
        assert!(names(folder.path()).is_empty());
        // A file of the user's without the others is none of a set's.
        fs::write(&places[0], "theirs").unwrap();
        FileSet::new(places).repair().unwrap();
        assert_eq!(names(folder.path()), ["a"]);
    }
}
