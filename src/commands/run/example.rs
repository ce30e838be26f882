//! `gptrain run --example`: a first training run that needs only the binary, which contains the text
//! of Jane Austen's novels. Makes tokenizer, dataset and manifest from it as a user would.

use crate::data::make::{self, BuildOptions, TextInput};
use anyhow::{Context, Result};
use base::Bytes;
use base::output::{self, Existing};
use data::corpus::{DocumentRules, FileSelection};
use data::tokenizer::Training;
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
    let tokenizer = folder.join("tokenizer.json");
    make_tokenizer(&text, &tokenizer)?;
    make_dataset(&text, &tokenizer, &folder.join("austen"))?;
    output::write(&manifest, Existing::Replaced, yaml().as_bytes())?;
    base::say!("gptrain run {}\n", manifest.display());
    Ok(manifest)
}

fn make_tokenizer(text: &Path, output: &Path) -> Result<()> {
    let shown = text.display();
    let to = output.display();
    base::say!("gptrain data train-tokenizer {shown} --vocab {VOCAB} --output {to}");
    let special = vec!["<|endoftext|>".to_string()];
    let training = Training { vocab: VOCAB, min_frequency: 2, special };
    make::train_tokenizer(input(text), training, output, Existing::Replaced).map(drop)
}

fn make_dataset(text: &Path, tokenizer: &Path, output: &Path) -> Result<()> {
    let shown = text.display();
    let from = tokenizer.display();
    let to = output.display();
    base::say!("gptrain data build {shown} --tokenizer {from} --output {to} --append-eod");
    let options = BuildOptions {
        output: output.to_path_buf(),
        existing: Existing::Replaced,
        tokenizer: tokenizer.to_path_buf(),
        append_eod: true,
        eod: None,
        parse_special: false,
        shuffle: None,
        min_sequences: None,
        token_type: None,
    };
    make::build(input(text), &options).map(drop)
}

fn input(text: &Path) -> TextInput {
    TextInput {
        paths: vec![text.to_path_buf()],
        files_from: None,
        wanted: FileSelection::default(),
        rules: DocumentRules { key: "text".into(), skip_invalid: false },
        threads: std::thread::available_parallelism().map_or(1, usize::from),
    }
}

/// Text of the example's manifest: the quick start's, with paths beside its data.
fn yaml() -> String {
    MANIFEST
        .replace("../datasets/austen/", "")
        .replace("manifests/quickstart.yaml", &format!("{FOLDER}/example.yaml"))
        .replace("name: quickstart", "name: example")
}
