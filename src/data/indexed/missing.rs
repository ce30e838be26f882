//! Errors for a dataset that does not exist, and for a file of tokens without an index.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::{index_path, tokens_path};
use base::Problems;

/// Problem of a missing dataset; lists the datasets next to it or in it.
pub fn missing_dataset(prefix: &Path, path: &Path) -> Problems {
    let folder = match prefix.parent() {
        _ if prefix.is_dir() => prefix,
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<String> = files
        .map(|file| file.path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "idx"))
        .filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
        .collect();
    found.sort();
    found.truncate(8);
    let remedy = if found.is_empty() {
        "give the PREFIX of a PREFIX.bin and PREFIX.idx".to_string()
    } else {
        format!("{} holds: {}", folder.display(), found.join(", "))
    };
    let place = prefix.display().to_string();
    if let Some((file, writer)) = find_lone_tokens(prefix) {
        return Problems::one(
            place,
            format!("is not a dataset: {} has no .idx; it holds {writer}", file.display()),
            "a pair of .bin and .idx is needed; `gptrain data build TEXT --tokenizer \
             tokenizer.json --output PREFIX` makes one",
        );
    }
    Problems::one(place, format!("is not a dataset: {} does not exist", path.display()), remedy)
}

/// File of tokens without an index, as other trainers use, and a description of it.
fn find_lone_tokens(prefix: &Path) -> Option<(PathBuf, &'static str)> {
    let mut file = tokens_path(prefix);
    if prefix.is_file() {
        file = prefix.into();
    }
    let mut start = [0; 4];
    base::input::open(&file).ok()?.read_exact(&mut start).ok()?;
    let writer = match i32::from_le_bytes(start) {
        20_240_520 | 20_240_801 => "tokens of llm.c behind a header of 1,024 bytes",
        _ => "tokens alone, as nanoGPT writes them, or it was copied without its .idx",
    };
    (!index_path(prefix).exists()).then_some((file, writer))
}
