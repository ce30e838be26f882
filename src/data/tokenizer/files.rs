//! Files of tokenizers, recognised by their content: Hugging Face's tokenizer.json under any name, and
//! GPT-2's vocab.json with merges.txt. Other programs' files are named, with the way to convert them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Map, Value};

use base::{Problems, input};

/// Size limit of a tokenizer's file; the largest published ones have 40 MB.
const LARGEST: u64 = 512 << 20;

/// The files that transformers gives a tokenizer.
pub const TOKENIZER: &str = "tokenizer.json";
pub const VOCAB: &str = "vocab.json";
pub const MERGES: &str = "merges.txt";

/// Remedy for a format that is not read.
const CONVERT: &str = "give a tokenizer.json; transformers makes it: python -c \"from transformers import \
                       AutoTokenizer; AutoTokenizer.from_pretrained('FOLDER').save_pretrained('OUT')\"";

/// Tokenizer whose files were found and read.
pub struct TokenizerFile {
    pub path: PathBuf,
    /// Content of the file: a tokenizer.json, or a vocabulary.
    pub json: Map<String, Value>,
    /// Second file of a vocabulary, with its content.
    pub merges: Option<(PathBuf, String)>,
}

/// File of a tokenizer, with the name that transformers expects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    pub path: PathBuf,
    pub name: String,
}

/// Files that a tokenizer is read from: a tokenizer.json, or vocab.json and merges.txt; or a file of
/// another format, which only other programs read.
pub fn files(path: &Path) -> Result<Vec<NamedFile>> {
    let named = |path: PathBuf, name: &str| NamedFile { path, name: name.into() };
    match open(path) {
        Ok(TokenizerFile { path, merges: None, .. }) => Ok(vec![named(path, TOKENIZER)]),
        Ok(TokenizerFile { path, merges: Some((merges, _)), .. }) => {
            Ok(vec![named(path, VOCAB), named(merges, MERGES)])
        }
        Err(error) => {
            if !error.is::<Problems>() {
                return Err(error);
            }
            match locate(path) {
                Ok(path) if path.is_file() => {
                    let name = path.file_name().unwrap_or_default().to_string_lossy();
                    Ok(vec![NamedFile { name: name.into_owned(), path }])
                }
                _ => Err(error),
            }
        }
    }
}

/// Path of a tokenizer's file: `path`, or one in that folder.
fn locate(path: &Path) -> Result<PathBuf> {
    if path.is_dir() { in_folder(path) } else { Ok(path.to_path_buf()) }
}

/// Finds and reads the files of a tokenizer: `path` is one of them, or their folder.
pub fn open(path: &Path) -> Result<TokenizerFile> {
    let path = locate(path)?;
    let bytes = read(&path)?;
    let place = || path.display().to_string();
    if let Some(format) = foreign_format(&bytes) {
        return Err(Problems::one(
            place(),
            format!("is {format}, which gptrain does not read"),
            CONVERT,
        )
        .into());
    }
    let json: Value = base::json::from_python(&bytes).map_err(|error| {
        Problems::one(
            place(),
            format!("is not a tokenizer: {error}"),
            format!("give a {TOKENIZER} or GPT-2's {VOCAB}"),
        )
    })?;
    let Value::Object(json) = json else { return Err(unknown_json(&place(), &json).into()) };
    if json.contains_key("model") {
        return Ok(TokenizerFile { path, json, merges: None });
    }
    if json.is_empty() || !json.values().all(Value::is_u64) {
        return Err(unknown_json(&place(), &json.into()).into());
    }
    let merges = merges_path(&path);
    if !merges.exists() {
        return Err(Problems::one(
            place(),
            format!("is a vocabulary, and its merges, {}, do not exist", merges.display()),
            format!("copy them beside it, or give a {TOKENIZER}"),
        )
        .into());
    }
    let text = String::from_utf8(read(&merges)?).map_err(|error| {
        Problems::one(
            merges.display().to_string(),
            format!("is not UTF-8 at byte {}", error.utf8_error().valid_up_to()),
            "copy the file again",
        )
    })?;
    Ok(TokenizerFile { path, json, merges: Some((merges, text)) })
}

/// Folder of a tokenizer's file, if the settings in it belong to the file. Beside a file with another
/// name, they may belong to another tokenizer.
pub fn settings_folder(path: &Path) -> Option<&Path> {
    let has_usual_name = path.ends_with(TOKENIZER) || path.ends_with(VOCAB);
    path.parent().filter(|_| has_usual_name)
}

/// Object in a settings file beside a tokenizer's file; None without it.
pub fn settings(path: &Path, name: &str) -> Option<Map<String, Value>> {
    let bytes = input::read(&settings_folder(path)?.join(name), input::SMALL).ok()?;
    base::json::from_python(&bytes).ok()
}

/// Path of the merges.txt that belongs to a vocab.json; `X-merges.txt` for `X-vocab.json`.
fn merges_path(vocab: &Path) -> PathBuf {
    let name = vocab.file_name().unwrap_or_default().to_string_lossy();
    if name.contains("vocab") {
        vocab
            .with_file_name(name.replace("vocab", "merges"))
            .with_extension("txt")
    } else {
        vocab.with_file_name(MERGES)
    }
}

fn in_folder(folder: &Path) -> Result<PathBuf> {
    let find = |name: &str| Some(folder.join(name)).filter(|path| path.exists());
    if let Some(path) = [TOKENIZER, VOCAB].into_iter().find_map(find) {
        return Ok(path);
    }
    // Reading one of these names its format.
    if let Some(path) = ["tokenizer.model", "spiece.model", "vocab.txt", "tekken.json"]
        .into_iter()
        .find_map(find)
    {
        return Ok(path);
    }
    Err(Problems::one(
        folder.display().to_string(),
        format!("holds neither {TOKENIZER} nor {VOCAB}"),
        "name the tokenizer's file",
    )
    .into())
}

/// Reads a regular file: a record may name a device or a pipe, which has no end.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    if !path.exists() {
        return Err(Problems::one(
            path.display().to_string(),
            "there is no such tokenizer",
            "give the path of a tokenizer.json, or of a folder that holds one (nothing is \
             downloaded by name)",
        )
        .into());
    }
    input::read(path, LARGEST)
        .with_context(|| format!("cannot read the tokenizer {}", path.display()))
}

/// Name of another program's format.
fn foreign_format(bytes: &[u8]) -> Option<&'static str> {
    let text = str::from_utf8(bytes).unwrap_or_default();
    let mut lines = text.lines();
    let rank = |line: &str| {
        let parts = line.split_once(' ');
        parts.is_some_and(|(token, rank)| {
            token.len().is_multiple_of(4)
                && token
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '='))
                && rank.parse::<u32>().is_ok()
        })
    };
    match bytes {
        // A protobuf message whose first field is a message with a text: the first piece.
        [0x0a, _, 0x0a, ..] => Some("SentencePiece's tokenizer.model"),
        [0x1f, 0x8b, ..] => Some("a gzip file"),
        _ if text.starts_with("version https://git-lfs") => {
            Some("a pointer of Git LFS (`git lfs pull` fetches the file itself)")
        }
        _ if text.starts_with("#version") => Some("the merges.txt of a vocab.json"),
        _ if text.trim_start().starts_with(['{', '[']) && !text.starts_with("[PAD]") => None,
        _ if text.lines().any(|line| line == "[UNK]") => Some("BERT's vocab.txt (WordPiece)"),
        _ if lines.next().is_some_and(rank) && lines.next().is_some_and(rank) => {
            Some("a file of tiktoken's ranks")
        }
        _ if text.is_empty() && !bytes.is_empty() => Some("a binary file of an unknown format"),
        _ => None,
    }
}

/// Refusal of JSON that is not a tokenizer, by what it looks like.
fn unknown_json(place: &str, json: &Value) -> Problems {
    let has = |keys: &[&str]| keys.iter().any(|key| json.get(key).is_some());
    let what = match () {
        () if json["config"].get("pattern").is_some() => "is Mistral's tekken.json",
        () if has(&["model_type", "architectures"]) => "is the config.json of a model",
        () if has(&["tokenizer_class", "added_tokens_decoder", "model_max_length"]) => {
            "is a tokenizer_config.json: settings beside a tokenizer"
        }
        () if has(&["eos_token", "bos_token", "unk_token", "eos_token_id"]) => {
            "holds the names of special tokens, not a tokenizer"
        }
        () => "is JSON, but neither a tokenizer.json (it has no `model`) nor a vocabulary",
    };
    Problems::one(place, what, CONVERT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn other_programs_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |name: &str, content: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, content).unwrap();
            open(&path)
                .err()
                .unwrap()
                .downcast::<Problems>()
                .unwrap()
                .to_string()
        };
        let cases: [(&str, &[u8], &str); 9] = [
            ("a.model", b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02\n\x08\n\x01a", "SentencePiece"),
            ("cl100k.tiktoken", b"IQ== 0\nIg== 1\n", "tiktoken"),
            ("vocab.txt", b"[PAD]\n[UNK]\nthe\n##s\n", "WordPiece"),
            ("merges.txt", b"#version: 0.2\na b\n", "merges.txt of a vocab.json"),
            ("lfs.json", b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
            ("t.json", br#"{"tokenizer_class": "A", "eos_token": "b"}"#, "tokenizer_config.json"),
            ("c.json", br#"{"model_type": "gpt2", "eos_token_id": 1}"#, "config.json of a model"),
            ("tekken.json", br#"{"config": {"pattern": "a"}, "vocab": []}"#, "tekken.json"),
            ("list.json", b"[1, 2]", "is JSON, but neither"),
        ];
        for (name, content, says) in cases {
            let said = refused(name, content);
            assert!(said.contains(says) && said.contains("give a tokenizer.json"), "{said}");
        }
        let said = refused("my-vocab.json", br#"{"a": 0}"#);
        assert!(said.contains("my-merges.txt, do not exist"), "{said}");
        // A tokenizer.json may have any name.
        let path = folder.path().join("vocab.json");
        fs::write(&path, r#"{"model": {}}"#).unwrap();
        let list = |path: &Path| {
            let files = files(path).unwrap().into_iter();
            files.map(|file| (file.path, file.name)).collect::<Vec<_>>()
        };
        assert_eq!(list(&path), [(path.clone(), "tokenizer.json".into())]);
        fs::write(&path, r#"{"a": 0}"#).unwrap();
        let merges = folder.path().join("merges.txt");
        let both = [(path, "vocab.json".into()), (merges, "merges.txt".into())];
        assert_eq!(list(folder.path()), both);
        // A run keeps a file that only other programs read.
        let model = folder.path().join("a.model");
        assert_eq!(list(&model), [(model, "a.model".into())]);
    }
}
