//! GPT-2's two files, vocab.json and merges.txt, as the tokenizer.json that transformers makes of them.
//! The pattern that cuts text is not in the files: it follows from the tokenizer's class.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::END_OF_TEXT;
use super::files::settings;
use super::pre_tokenizer::QWEN2;
use base::Problems;

/// Settings beside the files that determine ids.
#[derive(Default)]
pub struct Settings {
    config: Map<String, Value>,
    /// Tokens that were added, by their ids, as rows of `added_tokens`.
    added: BTreeMap<u64, Value>,
}

/// Names of special tokens in tokenizer_config.json.
const SPECIALS: [&str; 8] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
    "additional_special_tokens",
];

/// Content of a tokenizer.json.
pub fn tokenizer_json(
    path: &Path,
    vocab: &Map<String, Value>,
    merges: &str,
) -> Result<Map<String, Value>, Problems> {
    let settings = Settings::read(path, vocab);
    let (normalizer, pre_tokenizer) = settings.rules(path)?;
    let lines = merges
        .lines()
        .filter(|line| !line.starts_with("#version") && !line.is_empty());
    let merges: Vec<&str> = lines.collect();
    let added: Vec<Value> = settings.added.into_values().collect();
    let Value::Object(file) = json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
            "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    }) else {
        unreachable!("an object")
    };
    Ok(file)
}

impl Settings {
    /// Reads tokenizer_config.json and added_tokens.json, if they belong to the vocabulary.
    pub fn read(path: &Path, vocab: &Map<String, Value>) -> Settings {
        let config = settings(path, "tokenizer_config.json").unwrap_or_default();
        let mut names = vec![END_OF_TEXT.to_string()];
        for value in SPECIALS.iter().filter_map(|key| config.get(*key)) {
            let list = value
                .as_array()
                .map_or(std::slice::from_ref(value), Vec::as_slice);
            let contents = list
                .iter()
                .map(|token| token["content"].as_str().or(token.as_str()));
            names.extend(contents.flatten().map(str::to_string));
        }
        let is_special = |content: &str| names.iter().any(|name| name == content);
        let row = |id: &Value, content: &str| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": is_special(content)})
        };
        let mut added = BTreeMap::new();
        for (content, id) in vocab.iter().filter(|(content, _)| is_special(content)) {
            added.insert(id.as_u64().unwrap_or(0), row(id, content));
        }
        for (content, id) in settings(path, "added_tokens.json").unwrap_or_default() {
            added.insert(id.as_u64().unwrap_or(u64::MAX), row(&id, &content));
        }
        let decoder = config
            .get("added_tokens_decoder")
            .and_then(Value::as_object);
        for (id, token) in decoder.into_iter().flatten() {
            let (Ok(id), Some(mut token)) = (id.parse::<u64>(), token.as_object().cloned()) else {
                continue;
            };
            token.remove("__type");
            token.insert("id".into(), id.into());
            added.insert(id, token.into());
        }
        Settings { config, added }
    }

    /// Bytes that distinguish tokenizers with the same two files; none with the rules of GPT-2.
    pub fn digest_bytes(&self, vocab: &Map<String, Value>) -> Vec<u8> {
        let added: Vec<&Value> = self
            .added
            .values()
            .filter(|token| {
                let content = token["content"].as_str().unwrap_or_default();
                content != END_OF_TEXT || !vocab.contains_key(content)
            })
            .collect();
        let class = self.class();
        let space = self.config.get("add_prefix_space");
        let plain = matches!(class, None | Some("GPT2Tokenizer")) && space != Some(&json!(true));
        if added.is_empty() && plain {
            Vec::new()
        } else {
            json!([class, space, added]).to_string().into()
        }
    }

    /// Class in transformers, without the ending of its faster variant.
    fn class(&self) -> Option<&str> {
        let class = self.config.get("tokenizer_class")?.as_str()?;
        Some(class.strip_suffix("Fast").unwrap_or(class))
    }

    /// Normalizer and pre-tokenizer of the class.
    fn rules(&self, path: &Path) -> Result<(Value, Value), Problems> {
        let is_set = |key: &&str| self.config.get(*key) == Some(&json!(true));
        let byte_level = |regex: bool, space: bool| {
            json!({"type": "ByteLevel", "add_prefix_space": space, "trim_offsets": true,
                "use_regex": regex})
        };
        let wrong = |what: String| {
            Err(Problems::one(
                path.display().to_string(),
                what,
                "give the tokenizer.json that transformers makes of it: \
                 AutoTokenizer.from_pretrained('FOLDER').save_pretrained('OUT')",
            ))
        };
        if let Some(key) = ["add_bos_token", "add_eos_token"]
            .iter()
            .find(|key| is_set(key))
        {
            return wrong(format!("its tokenizer_config.json sets {key}, which is not read"));
        }
        match self.class().or_else(|| class_of_model(path)) {
            None | Some("GPT2Tokenizer") => {
                Ok((Value::Null, byte_level(true, is_set(&"add_prefix_space"))))
            }
            Some("Qwen2Tokenizer") => {
                let split = json!({"type": "Split", "pattern": {"Regex": QWEN2},
                    "behavior": "Isolated", "invert": false});
                let steps = json!([split, byte_level(false, false)]);
                let cut = json!({"type": "Sequence", "pretokenizers": steps});
                Ok((json!({"type": "NFC"}), cut))
            }
            Some(class) => {
                wrong(format!("its class is {class}, whose pattern is not in the files"))
            }
        }
    }
}

/// Class that transformers takes for a model whose settings name none.
fn class_of_model(path: &Path) -> Option<&'static str> {
    match settings(path, "config.json")?.get("model_type")?.as_str()? {
        "qwen2" | "qwen3" => Some("Qwen2Tokenizer"),
        _ => None,
    }
}
