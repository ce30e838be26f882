//! Names in a folder: which files are data, which describe a dataset or are hidden, and which belong to
//! a split. Those are the rules of Hugging Face's `datasets` (data_files.py), with the other files that
//! repositories of the Hub hold.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base::Count;

/// Meaning of a name in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    Data,
    /// Text about the other files.
    Card,
    /// Hidden, or settings of a program.
    NoData,
}

/// Texts about the other files, without their extension.
const CARDS: [&str; 9] = [
    "readme",
    "license",
    "licence",
    "notice",
    "citation",
    "changelog",
    "contributing",
    "code_of_conduct",
    "dataset_card",
];

/// Files that describe datasets, tokenizers and models.
const SETTINGS: [&str; 17] = [
    "config.json",
    "dataset_info.json",
    "dataset_infos.json",
    "dataset_dict.json",
    "state.json",
    "croissant.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
    "requirements.txt",
];

/// Number of names in a note.
const LISTED: usize = 6;

/// Splits by the words in names.
const SPLITS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "dev", "val"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

/// Kind of a folder within a folder.
pub fn classify_folder(path: &Path) -> Name {
    let name = lowercase_name(path);
    if name.starts_with('.') || name.starts_with("__") { Name::NoData } else { Name::Data }
}

/// Kind of a file within a folder. `asked`: the user asked for its extension.
pub fn classify_file(path: &Path, asked: bool) -> Name {
    let name = lowercase_name(path);
    match () {
        // macOS keeps the attributes of file x in ._x.
        () if name.starts_with("._") => Name::NoData,
        () if asked => Name::Data,
        () if name.starts_with('.') || SETTINGS.contains(&name.as_str()) => Name::NoData,
        () if CARDS.contains(&name.split('.').next().unwrap_or_default()) => Name::Card,
        () => Name::Data,
    }
}

fn lowercase_name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .to_lowercase()
}

/// Note on files and folders that were left out because of their names.
pub fn note(left_out: &[PathBuf]) -> Option<String> {
    let mut names: Vec<String> = left_out
        .iter()
        .map(|path| {
            let slash = if path.is_dir() { "/" } else { "" };
            format!("{}{slash}", path.display())
        })
        .collect();
    names.sort();
    let count = Count(names.len() as u64);
    let more = if names.len() > LISTED { ", …" } else { "" };
    names.truncate(LISTED);
    let names = names.join(", ");
    let what = "left out as hidden or as describing other files (name them to read them)";
    (count.0 > 0).then(|| format!("{count} {what}: {names}{more}"))
}

/// Note on files of a folder whose names say that they are for validation or a test, if others are for
/// training.
pub fn splits<'p>(folder: &Path, paths: impl Iterator<Item = &'p Path>) -> Option<String> {
    let mut files: BTreeMap<&str, Vec<&Path>> = BTreeMap::new();
    for path in paths {
        if let Some(split) = path.strip_prefix(folder).ok().and_then(split) {
            files.entry(split).or_default().push(path);
        }
    }
    let train = files.remove("train")?.len();
    let other = files.values().next()?[0].display();
    let kinds = files
        .iter()
        .map(|(split, paths)| format!("{} of {split}", paths.len()))
        .collect::<Vec<_>>()
        .join(" and ");
    Some(format!(
        "{} has splits by name: besides {train} of train, {kinds} ({other}) are read; name only the \
         files of train to leave the others out",
        folder.display()
    ))
}

/// Split that a path below a folder names: by the file, or else by the innermost folder.
fn split(path: &Path) -> Option<&'static str> {
    let parts = path
        .iter()
        .rev()
        .map(|part| part.to_string_lossy().to_lowercase());
    parts.into_iter().find_map(|part| {
        let words: Vec<&str> = part.split(|c| "-._ 0123456789".contains(c)).collect();
        SPLITS
            .iter()
            .find(|(_, keywords)| keywords.iter().any(|word| words.contains(word)))
            .map(|(split, _)| *split)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `datasets` has them: words between the separators, the file before its folders.
    #[test]
    fn splits_are_words_of_the_names() {
        for (path, wanted) in [
            ("data/train-00000-of-00002.parquet", Some("train")),
            ("en.dev.jsonl", Some("validation")),
            ("test/part.csv", Some("test")),
            ("my_eval_2/train.txt", Some("train")),
            ("Validation/a.jsonl", Some("validation")),
            ("trained/latest.txt", None),
            ("contest.csv", None),
        ] {
            assert_eq!(split(Path::new(path)), wanted, "{path}");
        }
    }
}
