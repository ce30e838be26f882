//! Makes a tokenizer of a tokenizer.json, and writes one.

use std::path::Path;

use anyhow::Result;
use serde_json::Value;

use super::byte_alphabet::{ByteDecoder, spell, spell_bytes};
use super::byte_level::{self, ByteLevelFile};
use super::end_of_document::find_end_of_document;
use super::files::{self, TokenizerFile};
use super::merges::{Merge, Merges};
use super::pair;
use super::{Bpe, Rules, Tokenizer};
use base::Problems;

/// Limit of ids: the largest vocabularies have a few hundred thousand.
const MOST_IDS: u32 = 1 << 22;

/// Reads a tokenizer: gptrain's own encoder where it can, otherwise Hugging Face's crate.
pub fn load(path: &Path) -> Result<Tokenizer> {
    let TokenizerFile { path, mut json, merges } = files::open(path)?;
    if let Some((_, merges)) = merges {
        json = pair::tokenizer_json(&path, &json, &merges)?;
    }
    let mut tokenizer = match byte_level::read(&json) {
        Ok(parts) => build(parts, &path.display().to_string())?,
        #[cfg(feature = "tokenizers")]
        Err(why) => super::hugging_face::load(&path, &json, why)?,
        #[cfg(not(feature = "tokenizers"))]
        Err(why) => return Err(refuse_without_crate(&path, &why).into()),
    };
    if let Some(why) = tokenizer.unsupported_field()
        && why.starts_with(byte_level::MISSING_BYTES)
    {
        let note = format!(
            "{}: its {why}; they become its unknown token, or are left out of texts; a tokenizer with \
             an alphabet of all 256 bytes has neither",
            path.display()
        );
        tokenizer.notes.push(note);
    }
    if let Some(rate) = json["model"]["dropout"].as_f64()
        && rate > 0.0
    {
        tokenizer.notes.push(format!(
            "{} has model.dropout {rate}: BPE dropout is switched off, so that a text always has the \
             same ids",
            path.display()
        ));
    }
    tokenizer.eod = find_end_of_document(&tokenizer, &path);
    Ok(tokenizer)
}

/// Error for a file with a field that gptrain's own encoder lacks: `why` names it.
#[cfg(any(test, not(feature = "tokenizers")))]
fn refuse_without_crate(path: &Path, why: &str) -> Problems {
    let place = format!("{}: its {why}", path.display());
    let other = ", or give a byte-level BPE tokenizer";
    Problems::without(place, "Hugging Face's tokenizers", other)
}

/// Tokenizer of a file that gptrain's own encoder implements.
pub fn build(file: ByteLevelFile, place: &str) -> Result<Tokenizer> {
    let mut problems = Problems::default();
    let ByteLevelFile { pre_tokenizer, prefix_space, ignore_merges, .. } = file;
    let bytes = token_bytes(&file, place, &mut problems);
    let id = |byte: usize| file.vocab.get(&spell(byte as u8).to_string()).copied();
    // Bytes without a token are not in UTF-8 text.
    let byte_ids = std::array::from_fn(|byte| id(byte).unwrap_or(u32::MAX));
    let merges = read_merges(&file, place, &mut problems);
    problems.or(())?;
    let vocab = bytes.len();
    let merges = Merges::new(&merges);
    let whole_pieces = ignore_merges.then(|| {
        let decoder = ByteDecoder::new();
        file.vocab
            .iter()
            .filter_map(|(token, id)| Some((decoder.decode(token).ok()?, *id)))
            .collect()
    });
    let added = file.added;
    let added_tokens = added
        .list()
        .iter()
        .map(|token| (token.content.clone(), token.id))
        .collect();
    let bpe = Bpe { bytes, byte_ids, merges, pre_tokenizer, prefix_space, whole_pieces, added };
    let rules = Rules::Bpe(Box::new(bpe));
    Ok(Tokenizer { vocab, added_tokens, eod: None, rules, notes: Vec::new() })
}

/// Bytes of every id.
fn token_bytes(
    file: &ByteLevelFile,
    place: &str,
    problems: &mut Problems,
) -> Vec<Option<Box<[u8]>>> {
    let added = file
        .added
        .list()
        .iter()
        .map(|added| (&added.content, added.id));
    let tokens = file.vocab.iter().map(|(token, id)| (token, *id));
    let most = tokens
        .clone()
        .chain(added.clone())
        .map(|(_, id)| id)
        .max()
        .unwrap_or(0);
    if most >= MOST_IDS {
        problems.add(
            place,
            format!("id {most} is beyond any vocabulary (2^22)"),
            "the file is damaged: copy it again",
        );
        return Vec::new();
    }
    let decoder = ByteDecoder::new();
    let mut bytes: Vec<Option<Box<[u8]>>> = vec![None; most as usize + 1];
    for (token, id) in tokens {
        // A token that is not spelled in bytes can only be a special token, which is verbatim.
        let token = decoder
            .decode(token)
            .unwrap_or_else(|_| token.as_bytes().into());
        if bytes[id as usize].replace(token).is_some() {
            problems.add(place, format!("two tokens have id {id}"), "the file is damaged");
        }
    }
    for (content, id) in added {
        bytes[id as usize] = Some(content.as_bytes().into());
    }
    bytes
}

/// Merges as ids.
fn read_merges(file: &ByteLevelFile, place: &str, problems: &mut Problems) -> Vec<Merge> {
    let mut merges = Vec::with_capacity(file.merges.len());
    for (number, pair) in file.merges.iter().enumerate() {
        let merge = pair.parts().and_then(|(left, right)| {
            let id = *file.vocab.get(&format!("{left}{right}"))?;
            let left = *file.vocab.get(left)?;
            let right = *file.vocab.get(right)?;
            Some(Merge { left, right, id })
        });
        match merge {
            Some(merge) => merges.push(merge),
            None => {
                let pair = pair
                    .parts()
                    .map_or("no pair".into(), |(l, r)| format!("{l} + {r}"));
                problems.add(
                    place,
                    format!("merge {number} ({pair}) is not between tokens of the vocabulary"),
                    "the file is damaged: copy it again",
                );
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
        if id < specials { String::from_utf8_lossy(bytes).into_owned() } else { spell_bytes(bytes) }
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
    let vocab: Vec<String> = (0..tokens.len())
        .map(|id| format!("      {}: {id}", quoted(&spelling(id))))
        .collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_needs_the_crate_is_refused_with_the_remedy() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/data/tokenizers");
        let TokenizerFile { path, json, .. } =
            files::open(&Path::new(file).join("foreign.json")).unwrap();
        let why = byte_level::read(&json).err().unwrap();
        let said = refuse_without_crate(&path, &why).to_string();
        for part in [
            "foreign.json: its normalizer is {",
            "without Hugging Face's tokenizers",
            "cargo build --release",
        ] {
            assert!(said.contains(part), "{said}");
        }
    }
}
