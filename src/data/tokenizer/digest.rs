//! Digest of a tokenizer: equal for files that give the same ids.

use std::path::Path;

use anyhow::Result;
use base::Problems;
use serde_json::Value;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::BYTES;
use super::files::{self, TokenizerFile, read};
use super::pair::Settings;

/// XXH3 of a tokenizer, in 16 hexadecimal digits. A tokenizer.json is read as JSON, so that spaces,
/// the order of keys, `truncation` and `padding` (which transformers adds when it saves) and the two
/// spellings of a merge do not count. GPT-2's vocab.json and merges.txt count byte by byte, with the
/// settings beside them that change their ids, and files that only other programs read byte by byte.
pub fn digest(path: &Path) -> Result<String> {
    if path == Path::new(BYTES) {
        return Ok(hex(xxh3_64(BYTES.as_bytes())));
    }
    let TokenizerFile { path, json, merges } = match files::open(path) {
        Err(error) if error.is::<Problems>() => return digest_bytes(path, error),
        opened => opened?,
    };
    let Some((_, merges)) = merges else {
        let mut value = Value::Object(json);
        normalise(&mut value);
        return Ok(hex(xxh3_64(value.to_string().as_bytes())));
    };
    let mut hash = Xxh3::new();
    hash.update(&read(&path)?);
    hash.update(merges.as_bytes());
    hash.update(&Settings::read(&path, &json).digest_bytes(&json));
    Ok(hex(hash.digest()))
}

/// Digest of a file of another format; the `error` of reading it if there is none.
fn digest_bytes(path: &Path, error: anyhow::Error) -> Result<String> {
    match &files::files(path)?[..] {
        [file] => Ok(hex(xxh3_64(&read(&file.path)?))),
        _ => Err(error),
    }
}

fn hex(digest: u64) -> String {
    format!("{digest:016x}")
}

/// Removes fields that do not affect ids, and writes merges as old files do: "a b".
fn normalise(file: &mut Value) {
    if let Some(object) = file.as_object_mut() {
        object.remove("truncation");
        object.remove("padding");
    }
    if let Some(merges) = file
        .pointer_mut("/model/merges")
        .and_then(Value::as_array_mut)
    {
        for merge in merges {
            let pair = merge
                .as_array()
                .map(|pair| pair.iter().filter_map(Value::as_str));
            let parts: Vec<&str> = pair.into_iter().flatten().collect();
            if let [left, right] = parts[..] {
                *merge = format!("{left} {right}").into();
            }
        }
    }
    file.sort_all_objects();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_tokenizer_saved_again_keeps_its_digest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        let digest_of = |text: &str| {
            fs::write(&path, text).unwrap();
            digest(&path).unwrap()
        };
        let one = r#"{"model": {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}}"#;
        let again = r#"{"truncation": null, "padding": {"strategy": "Fixed"},
            "model": {"merges": [["a", "b"]], "vocab": {"b": 1, "a": 0, "ab": 2}}}"#;
        assert_eq!(digest_of(one), digest_of(again));
        assert_ne!(digest_of(one), digest_of(&one.replace("\"ab\": 2", "\"ab\": 3")));
        assert_ne!(digest_of(one), digest_of(&one.replace("\"a b\"", "\"b a\"")));
        assert_eq!(digest(Path::new(BYTES)).unwrap().len(), 16);

        // GPT-2's pair of files: the merges count as well.
        let pair = |merges: &str| {
            fs::write(folder.path().join("vocab.json"), r#"{"a": 0}"#).unwrap();
            fs::write(folder.path().join("merges.txt"), merges).unwrap();
            digest(&folder.path().join("vocab.json")).unwrap()
        };
        assert_ne!(pair("a b\n"), pair("b a\n"));
    }
}
