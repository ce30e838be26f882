//! `gptrain run --example`: a first training run that needs only the binary, which contains the text
//! of Jane Austen's novels. Makes tokenizer, dataset and manifest from it as a user would.

use crate::data::{Build, TrainTokenizer};
use anyhow::{Context, Result};
use base::Bytes;
use base::output::{self, Existing};
use std::fs;
use std::path::{Path, PathBuf};

/// The novels, one chapter per line: 4 MB of text in 1 MB.
const TEXT: &[u8] = include_bytes!("../../../datasets/austen/austen.jsonl.zst");
/// Manifest of the quick start, whose data paths differ from the example's.
const MANIFEST: &str = include_str!("../../../manifests/quickstart.yaml");
/// Folder of the example, in the working directory.
const FOLDER: &str = "gptrain-example";
const VOCAB: usize = 4096;
/// Prompt of the `gptrain sample` command that is suggested after the example.
pub const PROMPT: &str = "It is a truth universally acknowledged,";
/// Minutes that the example trains, unless a setting says otherwise.
pub const MINUTES: f64 = 0.75;

/// Path of the example's manifest. Makes the missing files of the example first, and prints each step.
pub fn prepare() -> Result<PathBuf> {
    let folder = Path::new(FOLDER);
    let manifest = folder.join("example.yaml");
    if manifest.exists() {
        return Ok(manifest);
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {FOLDER}"))?;
    let text = folder.join("austen.jsonl.zst");
    output::write(&text, Existing::Replaced, TEXT)?;
    base::say!("{}: Jane Austen's six novels, {}", text.display(), Bytes(TEXT.len() as u64));
    let text = text.display();
    type_options::<TrainTokenizer>(&format!(
        "gptrain data train-tokenizer {text} --vocab {VOCAB} --output {FOLDER}/tokenizer.json"
    ))?
    .train()?;
    type_options::<Build>(&format!(
        "gptrain data build {text} --tokenizer {FOLDER}/tokenizer.json --output {FOLDER}/austen \
         --append-eod"
    ))?
    .build()?;
    output::write(&manifest, Existing::Replaced, yaml().as_bytes())?;
    base::say!("gptrain run {}\n", manifest.display());
    Ok(manifest)
}

/// Prints a line of `gptrain data`, and parses its options as if it was typed.
fn type_options<T: clap::Args>(line: &str) -> Result<T> {
    base::say!("{line}");
    let words = line.split(' ').skip(2).chain(["--overwrite"]);
    let matches =
        T::augment_args(clap::Command::new("gptrain data")).try_get_matches_from(words)?;
    Ok(T::from_arg_matches(&matches)?)
}

/// Text of the example's manifest: the quick start's, with paths beside its data.
fn yaml() -> String {
    MANIFEST
        .replace("../datasets/austen/", "")
        .replace("manifests/quickstart.yaml", &format!("{FOLDER}/example.yaml"))
        .replace("name: quickstart", "name: example")
}
