//! The files beside the weights: tokenizer, generation settings. What a folder came with is carried
//! through a run unchanged; for a model that began here they are written.

use super::TokenIds;
use anyhow::Context;
use data::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Where an imported run keeps what lay beside the weights.
pub const FOLDER: &str = "hf";
/// The tokenizer's file.
pub const TOKENIZER: &str = "tokenizer.json";

const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const GENERATION: &str = "generation_config.json";
const CONFIG: &str = "config.json";

/// Files that are carried along as they are.
const CARRIED: [&str; 10] = [
    TOKENIZER,
    TOKENIZER_CONFIG,
    GENERATION,
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
];

/// Copies what lies beside the weights in a Hugging Face folder, config.json among it.
pub fn carry(from: &Path, to: &Path) -> anyhow::Result<()> {
    CARRIED.iter().chain([&CONFIG]).try_for_each(|name| copy(from, to, name).map(drop))
}

/// The files that go with a run's weights.
pub struct Companions {
    /// The tokenizer.json, if it is there.
    tokenizer: Option<PathBuf>,
    /// What the weights were imported with.
    carried: Option<PathBuf>,
    /// The end-of-document token, if the manifest names one.
    eod: Option<u32>,
}

impl Companions {
    /// `run`: the folder of the run, which may have been moved since its manifest was written.
    pub fn of(run: Option<&Path>, tokenizer: Option<&Path>, eod: Option<u32>) -> Companions {
        let carried = run.map(|run| run.join(FOLDER)).filter(|folder| folder.join(CONFIG).exists());
        let named = tokenizer.filter(|path| path.exists()).map(Path::to_path_buf);
        let named = named.map(|path| if path.is_dir() { path.join(TOKENIZER) } else { path });
        let kept = carried.as_ref().map(|folder| folder.join(TOKENIZER));
        let tokenizer = named.or(kept).filter(|path| path.exists());
        Companions { tokenizer, carried, eod }
    }

    /// Those of a Hugging Face folder.
    pub fn in_folder(folder: &Path) -> Companions {
        let tokenizer = Some(folder.join(TOKENIZER)).filter(|path| path.exists());
        Companions { tokenizer, carried: Some(folder.to_path_buf()), eod: None }
    }

    /// The config.json that the weights came with.
    pub fn config(&self) -> Option<Map<String, Value>> {
        object(&self.carried.as_ref()?.join(CONFIG))
    }

    /// What generation_config.json says of them, or else config.json, or else the tokenizer.
    pub fn token_ids(&self) -> TokenIds {
        let settings = self.beside().and_then(|folder| object(&folder.join(GENERATION)));
        let all: Vec<_> = settings.into_iter().chain(self.config()).collect();
        let said = |key: &str| {
            let mut ids = all.iter().filter_map(|object| object.get(key));
            ids.find(|id| !id.is_null()).cloned()
        };
        let (bos, eos) = self.of_tokenizer();
        let id = |id: Option<u32>| id.map_or(Value::Null, Value::from);
        TokenIds {
            bos: said("bos_token_id").unwrap_or(id(bos)),
            eos: said("eos_token_id").unwrap_or(id(eos)),
        }
    }

    /// The tokens that begin and end texts. A document begins after the end of another where the
    /// tokenizer names no token for it.
    fn of_tokenizer(&self) -> (Option<u32>, Option<u32>) {
        let tokenizer = self.tokenizer.as_ref().and_then(|path| Tokenizer::load(path).ok());
        let eos = self.eod.or(tokenizer.as_ref().and_then(Tokenizer::eod));
        let config = self.beside().and_then(|folder| object(&folder.join(TOKENIZER_CONFIG)));
        let bos = config.and_then(|config| {
            let name = &config.get("bos_token")?;
            tokenizer.as_ref()?.special(name["content"].as_str().or(name.as_str())?)
        });
        (bos.or(eos), eos)
    }

    /// The folder whose files belong together: the tokenizer's.
    fn beside(&self) -> Option<&Path> {
        let of_tokenizer = self.tokenizer.as_ref().and_then(|path| path.parent());
        of_tokenizer.or(self.carried.as_deref())
    }

    /// Writes them into `to`; whether a tokenizer is among them.
    pub fn write(&self, to: &Path, tokens: &TokenIds) -> anyhow::Result<bool> {
        let mut there = Vec::new();
        if let Some(folder) = self.beside() {
            for name in CARRIED {
                if copy(folder, to, name)? {
                    there.push(name);
                }
            }
        }
        if let Some(path) = self.tokenizer.as_ref().filter(|_| !there.contains(&TOKENIZER)) {
            let target = to.join(TOKENIZER);
            fs::copy(path, &target).with_context(|| cannot("copy", path))?;
            there.push(TOKENIZER);
        }
        if !there.contains(&GENERATION) && !tokens.eos.is_null() {
            let settings = json!({
                "_from_model_config": true,
                "bos_token_id": tokens.bos,
                "eos_token_id": tokens.eos,
            });
            write(&to.join(GENERATION), &settings)?;
        }
        if let Some(path) = self.tokenizer.as_ref().filter(|_| !there.contains(&TOKENIZER_CONFIG)) {
            write(&to.join(TOKENIZER_CONFIG), &self.tokenizer_config(path, tokens)?)?;
        }
        Ok(self.tokenizer.is_some())
    }

    /// How transformers loads a tokenizer.json.
    fn tokenizer_config(&self, path: &Path, tokens: &TokenIds) -> anyhow::Result<Value> {
        let text = fs::read_to_string(path).with_context(|| cannot("read", path))?;
        let json: Value = serde_json::from_str(&text)
            .with_context(|| format!("{} is not JSON", path.display()))?;
        let added = json["added_tokens"].as_array();
        let content = |id: &Value| {
            let found = added.into_iter().flatten().find(|token| token["id"] == *id);
            found.map(|token| token["content"].clone())
        };
        let mut config = json!({"tokenizer_class": "PreTrainedTokenizerFast"});
        let first = |ids: &Value| ids.get(0).unwrap_or(ids).clone();
        for (key, id) in [("bos_token", &tokens.bos), ("eos_token", &tokens.eos)] {
            if let Some(content) = content(&first(id)) {
                config[key] = content;
            }
        }
        Ok(config)
    }
}

/// Whether there was such a file to copy.
fn copy(from: &Path, to: &Path, name: &str) -> anyhow::Result<bool> {
    match fs::copy(from.join(name), to.join(name)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        done => done.map(|_| true).with_context(|| cannot("copy", &from.join(name))),
    }
}

fn cannot(what: &str, path: &Path) -> String {
    format!("cannot {what} {}", path.display())
}

fn object(path: &Path) -> Option<Map<String, Value>> {
    serde_json::from_str(&fs::read_to_string(path).ok()?).ok()
}

fn write(path: &Path, json: &Value) -> anyhow::Result<()> {
    fs::write(path, format!("{json:#}\n")).with_context(|| cannot("write", path))
}
