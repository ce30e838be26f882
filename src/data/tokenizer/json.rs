//! Tokenizer files: Hugging Face's `tokenizer.json`, and GPT-2's `vocab.json` with `merges.txt`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

use super::byte_alphabet::{ByteDecoder, spelled};
use super::end_of_document::end_of_document;
use super::merges::{Merge, Merges};
use super::pre_tokenizer::{self, PreTokenizer};
use super::{Bpe, END_OF_TEXT, Rules, Tokenizer};
use base::Problems;

/// Limit of ids: the largest vocabularies have a few hundred thousand.
const MOST_IDS: u32 = 1 << 22;

/// Parts of a tokenizer.json that determine ids.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    model: Model,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    vocab: HashMap<String, u32>,
    merges: Vec<Pair>,
    ignore_merges: bool,
    byte_fallback: bool,
    dropout: Option<f64>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
}

/// `"a b"` in old files, `["a", "b"]` in new ones.
#[derive(Deserialize)]
#[serde(untagged)]
enum Pair {
    Spaced(String),
    Two(String, String),
}

impl Pair {
    fn parts(&self) -> Option<(&str, &str)> {
        match self {
            Pair::Spaced(text) => text.split_once(' '),
            Pair::Two(left, right) => Some((left, right)),
        }
    }
}

/// Files that a tokenizer is read from: a tokenizer.json, or vocab.json and merges.txt.
pub fn files(path: &Path) -> Result<Vec<PathBuf>> {
    let path = if path.is_dir() { in_folder(path)? } else { path.to_path_buf() };
    let merges = is_vocab(&path).then(|| merges_of(&path));
    Ok(std::iter::once(path).chain(merges).collect())
}

pub fn load(path: &Path) -> Result<Tokenizer> {
    let path = files(path)?.swap_remove(0);
    let text = read(&path)?;
    let wrong =
        |what: String, remedy: &str| Problems::one(path.display().to_string(), what, remedy);
    let not_json = |error: serde_json::Error| {
        wrong(format!("is not a tokenizer: {error}"), "give a tokenizer.json or GPT-2's vocab.json")
    };
    let file = if is_vocab(&path) {
        let vocab = serde_json::from_str(&text).map_err(not_json)?;
        gpt2(vocab, &path)?
    } else {
        serde_json::from_str(&text).map_err(not_json)?
    };
    if let Some(why) = unsupported(&file) {
        #[cfg(feature = "tokenizers")]
        return super::hugging_face::load(&path, &why);
        #[cfg(not(feature = "tokenizers"))]
        {
            let place = format!("{}: {why}", path.display());
            let other = ", or give a byte-level BPE tokenizer";
            return Err(Problems::without(place, "Hugging Face's tokenizers", other).into());
        }
    }
    let mut tokenizer = build(file, &path)?;
    tokenizer.eod = end_of_document(&tokenizer, &path);
    Ok(tokenizer)
}

/// Whether a file is GPT-2's vocab.json.
fn is_vocab(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().contains("vocab"))
}

/// Path of the merges.txt that belongs to a vocab.json; `X-merges.txt` for `X-vocab.json`.
fn merges_of(vocab: &Path) -> PathBuf {
    let name = vocab.file_name().unwrap_or_default().to_string_lossy();
    vocab.with_file_name(name.replace("vocab", "merges")).with_extension("txt")
}

fn in_folder(folder: &Path) -> Result<PathBuf> {
    for name in ["tokenizer.json", "vocab.json"] {
        let path = folder.join(name);
        if path.exists() {
            return Ok(path);
        }
    }
    let what = "holds neither tokenizer.json nor vocab.json";
    Err(Problems::one(folder.display().to_string(), what, "name the tokenizer's file").into())
}

fn read(path: &Path) -> Result<String> {
    let place = || path.display().to_string();
    if !path.exists() {
        let what = "there is no such tokenizer";
        let remedy = "give the path of a tokenizer.json, or of a folder that holds one (nothing is \
                      downloaded by name)";
        return Err(Problems::one(place(), what, remedy).into());
    }
    let bytes = std::fs::read(path)
        .with_context(|| format!("cannot read the tokenizer {}", path.display()))?;
    String::from_utf8(bytes).map_err(|error| {
        let what = format!("is not UTF-8 at byte {}", error.utf8_error().valid_up_to());
        Problems::one(path.display().to_string(), what, "copy the file again").into()
    })
}

/// Joins the two files of GPT-2.
fn gpt2(vocab: HashMap<String, u32>, path: &Path) -> Result<File> {
    let text = read(&merges_of(path))?;
    let lines = text.lines().filter(|line| !line.starts_with("#version") && !line.is_empty());
    let merges = lines.map(|line| Pair::Spaced(line.into())).collect();
    let end = vocab.get(END_OF_TEXT).map(|id| Added { id: *id, content: END_OF_TEXT.into() });
    Ok(File {
        added_tokens: end.into_iter().collect(),
        normalizer: Value::Null,
        pre_tokenizer: serde_json::json!({"type": "ByteLevel", "add_prefix_space": false}),
        post_processor: Value::Null,
        model: Model { kind: Some("BPE".into()), vocab, merges, ..Model::default() },
    })
}

fn build(file: File, path: &Path) -> Result<Tokenizer> {
    let mut problems = Problems::default();
    let place = path.display().to_string();
    let (pre_tokenizer, prefix_space) =
        known_pattern(&file.pre_tokenizer).expect("checked by the caller");
    let bytes = bytes(&file, &place, &mut problems);
    let byte_ids = byte_ids(&bytes, &place, &mut problems);
    let merges = merges(&file.model, &place, &mut problems);
    problems.or(())?;
    let special = file.added_tokens.iter().filter(|added| !added.content.is_empty());
    let special: Vec<_> = special.map(|added| (added.content.clone(), added.id)).collect();
    let whole_pieces = file.model.ignore_merges.then(|| {
        let ids = bytes.iter().zip(0..).filter(|(_, id)| special.iter().all(|(_, s)| s != id));
        ids.filter_map(|(bytes, id)| Some((bytes.clone()?, id))).collect()
    });
    let (vocab, merges) = (bytes.len(), Merges::new(&merges));
    let bpe = Bpe { bytes, byte_ids, merges, pre_tokenizer, prefix_space, whole_pieces };
    Ok(Tokenizer { vocab, special, eod: None, rules: Rules::Bpe(Box::new(bpe)) })
}

/// Features that would change ids and that gptrain's own code lacks.
fn unsupported(file: &File) -> Option<String> {
    let model = &file.model;
    if let Some(kind) = model.kind.as_ref().filter(|kind| *kind != "BPE") {
        return Some(format!("its model is {kind}, not BPE"));
    }
    let is_empty = |list: &Value| list.as_array().is_some_and(Vec::is_empty);
    if !file.normalizer.is_null() && !is_empty(&file.normalizer["normalizers"]) {
        return Some(format!("it normalises text by {}", file.normalizer["type"]));
    }
    let post = &file.post_processor;
    if !post.is_null() && post["type"] != "ByteLevel" {
        return Some(format!("it adds to texts by {}", post["type"]));
    }
    if known_pattern(&file.pre_tokenizer).is_none() {
        return Some(format!("its pre_tokenizer is {}", file.pre_tokenizer));
    }
    let affixes = [&model.continuing_subword_prefix, &model.end_of_word_suffix];
    let has_affix = affixes.into_iter().flatten().any(|affix| !affix.is_empty());
    let drops = model.dropout.is_some_and(|rate| rate > 0.0);
    (model.byte_fallback || drops || has_affix).then(|| "it is not plain BPE".to_string())
}

/// Pattern that cuts text, and whether a space is put before it.
fn known_pattern(pre_tokenizer: &Value) -> Option<(PreTokenizer, bool)> {
    match pre_tokenizer["type"].as_str()? {
        "ByteLevel" => {
            let uses_regex = pre_tokenizer["use_regex"].as_bool().unwrap_or(true);
            let cut = if uses_regex { PreTokenizer::Gpt2 } else { PreTokenizer::Whole };
            Some((cut, pre_tokenizer["add_prefix_space"].as_bool().unwrap_or(true)))
        }
        "Sequence" => {
            let [split, byte_level] = &pre_tokenizer["pretokenizers"].as_array()?[..] else {
                return None;
            };
            let (PreTokenizer::Whole, false) = known_pattern(byte_level)? else { return None };
            let isolated = split["behavior"] == "Isolated" && split["invert"] != true;
            match split["pattern"]["Regex"].as_str()? {
                pre_tokenizer::BLOOM if isolated => Some((PreTokenizer::Bloom, false)),
                pre_tokenizer::GPT2 if isolated => Some((PreTokenizer::Gpt2, false)),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Bytes of every id.
fn bytes(file: &File, place: &str, problems: &mut Problems) -> Vec<Option<Box<[u8]>>> {
    let added = file.added_tokens.iter().map(|added| (&added.content, added.id));
    let tokens = file.model.vocab.iter().map(|(token, id)| (token, *id));
    let most = tokens.clone().chain(added.clone()).map(|(_, id)| id).max().unwrap_or(0);
    if most >= MOST_IDS {
        let what = format!("id {most} is beyond any vocabulary (2^22)");
        problems.add(place, what, "the file is damaged: copy it again");
        return Vec::new();
    }
    let decoder = ByteDecoder::new();
    let mut bytes: Vec<Option<Box<[u8]>>> = vec![None; most as usize + 1];
    for (token, id) in tokens {
        // A token that is not spelled in bytes can only be a special token, which is verbatim.
        let token = decoder.decode(token).unwrap_or_else(|_| token.as_bytes().into());
        if bytes[id as usize].replace(token).is_some() {
            problems.add(place, format!("two tokens have id {id}"), "the file is damaged");
        }
    }
    for (content, id) in added {
        bytes[id as usize] = Some(content.as_bytes().into());
    }
    bytes
}

/// Id of each byte that UTF-8 text can contain.
fn byte_ids(bytes: &[Option<Box<[u8]>>], place: &str, problems: &mut Problems) -> [u32; 256] {
    let mut ids = [u32::MAX; 256];
    for (bytes, id) in bytes.iter().zip(0..) {
        if let Some([byte]) = bytes.as_deref() {
            ids[*byte as usize] = id;
        }
    }
    let never = |byte: u8| matches!(byte, 0xc0 | 0xc1 | 0xf5..=0xff);
    let missing = |byte: &u8| ids[*byte as usize] == u32::MAX && !never(*byte);
    let missing: Vec<String> =
        (0..=255).filter(missing).map(|byte: u8| format!("0x{byte:02x}")).collect();
    if !missing.is_empty() && !bytes.is_empty() {
        let (count, some) = (missing.len(), missing[..missing.len().min(8)].join(" "));
        let what = format!("has no token for {count} of the bytes text is made of: {some} …");
        problems.add(place, what, "train a tokenizer whose alphabet is all 256 bytes");
    }
    ids
}

fn merges(model: &Model, place: &str, problems: &mut Problems) -> Vec<Merge> {
    let mut merges = Vec::with_capacity(model.merges.len());
    for (number, pair) in model.merges.iter().enumerate() {
        let merge = pair.parts().and_then(|(left, right)| {
            let id = *model.vocab.get(&format!("{left}{right}"))?;
            let (left, right) = (*model.vocab.get(left)?, *model.vocab.get(right)?);
            Some(Merge { left, right, id })
        });
        match merge {
            Some(merge) => merges.push(merge),
            None => {
                let pair = pair.parts().map_or("no pair".into(), |(l, r)| format!("{l} + {r}"));
                let what =
                    format!("merge {number} ({pair}) is not between tokens of the vocabulary");
                problems.add(place, what, "the file is damaged: copy it again");
                break; // one is enough
            }
        }
    }
    merges
}

/// Writes a tokenizer.json of byte-level BPE with GPT-2's pattern. `tokens` in the order of their
/// ids, the first `specials` of them special; `merges` as pairs of ids.
pub fn write(tokens: &[Box<[u8]>], specials: usize, merges: &[(u32, u32)]) -> String {
    let quoted = |text: &str| Value::from(text).to_string();
    let spelling = |id: usize| {
        let bytes = &tokens[id];
        if id < specials { String::from_utf8_lossy(bytes).into_owned() } else { spelled(bytes) }
    };
    let added: Vec<String> = (0..specials)
        .map(|id| {
            let content = quoted(&spelling(id));
            format!(
                "    {{ \"id\": {id}, \"content\": {content}, \"single_word\": false, \
                 \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true }}"
            )
        })
        .collect();
    let vocab: Vec<String> =
        (0..tokens.len()).map(|id| format!("      {}: {id}", quoted(&spelling(id)))).collect();
    let merges: Vec<String> = merges
        .iter()
        .map(|(left, right)| {
            let pair = format!("{} {}", spelling(*left as usize), spelling(*right as usize));
            format!("      {}", quoted(&pair))
        })
        .collect();
    let byte_level = "{ \"type\": \"ByteLevel\", \"add_prefix_space\": false, \
                      \"trim_offsets\": true, \"use_regex\": true }";
    format!(
        "{{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \
         \"added_tokens\": [\n{}\n  ],\n  \"normalizer\": null,\n  \
         \"pre_tokenizer\": {byte_level},\n  \"post_processor\": null,\n  \
         \"decoder\": {byte_level},\n  \"model\": {{\n    \"type\": \"BPE\",\n    \
         \"dropout\": null,\n    \"unk_token\": null,\n    \
         \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \
         \"fuse_unk\": false,\n    \"byte_fallback\": false,\n    \
         \"ignore_merges\": false,\n    \"vocab\": {{\n{}\n    }},\n    \
         \"merges\": [\n{}\n    ]\n  }}\n}}\n",
        added.join(",\n"),
        vocab.join(",\n"),
        merges.join(",\n"),
    )
}

#[cfg(all(test, not(feature = "tokenizers")))]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_needs_the_crate_is_refused_with_the_remedy() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/data/tokenizers");
        let file = Path::new(file).join("foreign.json");
        let said = Tokenizer::load(&file).unwrap_err().to_string();
        for part in ["foreign.json", "without Hugging Face's tokenizers", "cargo build --release"] {
            assert!(said.contains(part), "{said}");
        }
    }
}
