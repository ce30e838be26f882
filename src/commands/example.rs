//! `gptrain run --example`: a first training run that needs only the binary, which contains the text
//! of Jane Austen's novels. Makes tokenizer, dataset and manifest from it as a user would.

use anyhow::{Context, Result};
use base::Bytes;
use base::output::{self, Existing};
use data::build::{Build, Train};
use data::corpus::{self, DocumentRules, FileSelection, Input};
use data::indexed::TokenType;
use data::tokenizer::Training;
use data::{Record, Tokenizer};
use std::fs;
use std::path::{Path, PathBuf};

/// The novels, one chapter per line: 4 MB of text in 1 MB.
const TEXT: &[u8] = include_bytes!("../../datasets/austen/austen.jsonl.zst");
/// Manifest of the quick start, whose data paths differ from the example's.
const MANIFEST: &str = include_str!("../../manifests/quickstart.yaml");
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
    let inputs = corpus::find(std::slice::from_ref(&text), &FileSelection::default())?.inputs;
    let tokenizer = folder.join("tokenizer.json");
    tokenizer_of(&inputs, &tokenizer)?;
    let prefix = folder.join("austen");
    dataset_of(&inputs, &tokenizer, &prefix)?;
    output::write(&manifest, Existing::Replaced, yaml().as_bytes())?;
    base::say!("gptrain run {}\n", manifest.display());
    Ok(manifest)
}

fn tokenizer_of(inputs: &[Input], to: &Path) -> Result<()> {
    let text = inputs[0].place();
    base::say!("gptrain data train-tokenizer {text} --vocab {VOCAB} --output {}", to.display());
    let special = vec!["<|endoftext|>".to_string()];
    let training = Training { vocab: VOCAB, min_frequency: 2, special };
    let train = Train { inputs, rules: rules(), training, threads: threads() };
    let trained = train.run(|_| {}, |_| {})?;
    output::write(to, Existing::Replaced, trained.json.as_bytes())
}

fn dataset_of(inputs: &[Input], tokenizer: &Path, prefix: &Path) -> Result<()> {
    let (text, shown) = (inputs[0].place(), tokenizer.display());
    let output = prefix.display();
    base::say!("gptrain data build {text} --tokenizer {shown} --output {output} --append-eod");
    let read = Tokenizer::load(tokenizer)?;
    let build = Build {
        inputs,
        rules: rules(),
        tokenizer: &read,
        record: Some(Record::new(tokenizer, &read, prefix)?),
        output: prefix.to_path_buf(),
        existing: Existing::Replaced,
        token_type: TokenType::for_vocab(read.vocab()),
        append: read.eod(),
        parse_special: false,
        shuffle: None,
        threads: threads(),
    };
    build.run(|_, _| {}).map(drop)
}

fn rules() -> DocumentRules {
    DocumentRules { key: "text".into(), skip_invalid: false }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Text of the example's manifest: the quick start's, with paths beside its data.
fn yaml() -> String {
    MANIFEST
        .replace("../datasets/austen/", "")
        .replace("manifests/quickstart.yaml", &format!("{FOLDER}/example.yaml"))
        .replace("name: quickstart", "name: example")
}
