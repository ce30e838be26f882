//! Files beside the weights: tokenizer, generation settings. An imported folder's files are kept
//! unchanged through a run; for a model trained from scratch they are generated.

use super::TokenIds;
use anyhow::Context;
use base::input;
use data::tokenizer::{self, NamedFile, TOKENIZER, Tokenizer, own_folder};
use serde_json::{Map, Value, json};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Folder of an imported run with the files that were beside the weights.
pub const FOLDER: &str = "hf";

const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const GENERATION: &str = "generation_config.json";
const CONFIG: &str = "config.json";

/// Files that belong to a tokenizer in the same folder.
const BESIDE: [&str; 8] = [
    tokenizer::VOCAB,
    tokenizer::MERGES,
    TOKENIZER_CONFIG,
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// Copies the files beside the weights in a Hugging Face folder, including config.json.
pub fn carry(from: &Path, to: &Path) -> anyhow::Result<()> {
    let names = [TOKENIZER, GENERATION, CONFIG].iter().chain(&BESIDE);
    names
        .into_iter()
        .try_for_each(|name| copy(from, to, name).map(drop))
}

/// Whether a folder has files that were beside imported weights.
pub fn carries(folder: &Path) -> bool {
    folder.join(CONFIG).exists()
}

/// Copies the files that belong to a tokenizer.json or vocab.json. Beside a file with another name, they
/// may belong to another tokenizer.
pub fn carry_beside(tokenizer: &Path, to: &Path) -> anyhow::Result<()> {
    let Some(folder) = own_folder(tokenizer) else { return Ok(()) };
    BESIDE
        .iter()
        .try_for_each(|name| copy(folder, to, name).map(drop))
}

/// The tokenizer's file in a Hugging Face folder: tokenizer.json, or a vocab.json with its merges.txt.
pub fn tokenizer_in(folder: &Path) -> Option<PathBuf> {
    let names = [TOKENIZER, tokenizer::VOCAB, tokenizer::MERGES];
    let [json, vocab, merges] = names.map(|name| folder.join(name));
    let pair = vocab.exists() && merges.exists();
    Some(json)
        .filter(|path| path.exists())
        .or(pair.then_some(vocab))
}

/// Tokens that end a text, by the generation_config.json or config.json in a folder: a Hugging Face folder,
/// or `hf` in an imported run. Empty if they name none.
pub fn end_tokens(folder: &Path) -> Vec<u32> {
    let carried = Some(folder.to_path_buf());
    let companions = Companions { tokenizer: Vec::new(), carried, eod: None };
    let eos = companions.token_ids().eos;
    let ids = eos
        .as_array()
        .map_or(std::slice::from_ref(&eos), Vec::as_slice);
    ids.iter()
        .filter_map(|id| u32::try_from(id.as_u64()?).ok())
        .collect()
}

/// Files that are exported with a run's weights.
pub struct Companions {
    /// Tokenizer's file, or GPT-2's two files; empty without a tokenizer.
    tokenizer: Vec<NamedFile>,
    /// Folder with the files that were imported with the weights.
    carried: Option<PathBuf>,
    /// End-of-document token, if the manifest names one.
    eod: Option<u32>,
}

impl Companions {
    /// Files of weights that came with those of the folder `carried`, with their `tokenizer`
    /// (`crate::tokenizer`).
    pub fn new(
        carried: Option<PathBuf>,
        tokenizer: Option<&Path>,
        eod: Option<u32>,
    ) -> anyhow::Result<Companions> {
        let tokenizer = tokenizer
            .map(tokenizer::files)
            .transpose()?
            .unwrap_or_default();
        Ok(Companions { tokenizer, carried, eod })
    }

    /// Files of a Hugging Face folder.
    pub fn in_folder(folder: &Path) -> Companions {
        let tokenizer = tokenizer_in(folder)
            .and_then(|path| tokenizer::files(&path).ok())
            .unwrap_or_default();
        Companions { tokenizer, carried: Some(folder.to_path_buf()), eod: None }
    }

    /// Imported config.json.
    pub fn config(&self) -> Option<Map<String, Value>> {
        object(&self.carried.as_ref()?.join(CONFIG))
    }

    /// Token ids from generation_config.json, or else config.json, or else the tokenizer.
    pub fn token_ids(&self) -> TokenIds {
        let settings = self
            .carried
            .as_ref()
            .and_then(|folder| object(&folder.join(GENERATION)));
        let all: Vec<_> = settings.into_iter().chain(self.config()).collect();
        let said = |key: &str| {
            let mut ids = all.iter().filter_map(|object| object.get(key));
            ids.find(|id| !id.is_null()).cloned()
        };
        let (bos, eos) = self.tokenizer_ids();
        let id = |id: Option<u32>| id.map_or(Value::Null, Value::from);
        TokenIds {
            bos: said("bos_token_id").unwrap_or(id(bos)),
            eos: said("eos_token_id").unwrap_or(id(eos)),
        }
    }

    /// Tokens that begin and end texts. If the tokenizer has no token for the start, the
    /// end-of-document token precedes a document.
    fn tokenizer_ids(&self) -> (Option<u32>, Option<u32>) {
        let path = self.tokenizer.first().map(|file| file.path.as_path());
        let tokenizer = path.and_then(|path| Tokenizer::load(path).ok());
        let eos = self.eod.or(tokenizer.as_ref().and_then(Tokenizer::eod));
        let config = path.and_then(|path| tokenizer::settings(path, TOKENIZER_CONFIG));
        let bos = config.and_then(|config| {
            let name = &config.get("bos_token")?;
            tokenizer
                .as_ref()?
                .token(name["content"].as_str().or(name.as_str())?)
        });
        (bos.or(eos), eos)
    }

    /// Writes the files into `to`. Returns whether a tokenizer is among them. The tokenizer's file gets
    /// the name that transformers expects.
    pub fn write(&self, to: &Path, tokens: &TokenIds) -> anyhow::Result<bool> {
        for NamedFile { path, name } in &self.tokenizer {
            fs::copy(path, to.join(name)).with_context(|| cannot("copy", path))?;
        }
        match (self.tokenizer.first(), &self.carried) {
            (Some(file), _) => carry_beside(&file.path, to)?,
            (None, Some(folder)) => {
                BESIDE
                    .iter()
                    .try_for_each(|name| copy(folder, to, name).map(drop))?;
            }
            (None, None) => {}
        }
        // If the model was not imported, settings beside its tokenizer belong to another model.
        let settings = self
            .carried
            .as_ref()
            .map(|folder| copy(folder, to, GENERATION));
        if !settings.transpose()?.unwrap_or(false) && !tokens.eos.is_null() {
            let settings = json!({
                "_from_model_config": true,
                "bos_token_id": tokens.bos,
                "eos_token_id": tokens.eos,
            });
            write(&to.join(GENERATION), &settings)?;
        }
        if let [NamedFile { path, name }] = &self.tokenizer[..]
            && name == TOKENIZER
            && !to.join(TOKENIZER_CONFIG).exists()
        {
            write(&to.join(TOKENIZER_CONFIG), &self.tokenizer_config(path, tokens)?)?;
        }
        Ok(!self.tokenizer.is_empty())
    }

    /// Text of the tokenizer_config.json that transformers needs to load a tokenizer.json.
    fn tokenizer_config(&self, path: &Path, tokens: &TokenIds) -> anyhow::Result<Value> {
        let text = fs::read(path).with_context(|| cannot("read", path))?;
        let json: Value = base::json::from_python(&text)
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

/// Copies a file if it exists. Returns whether it does.
fn copy(from: &Path, to: &Path, name: &str) -> anyhow::Result<bool> {
    match fs::copy(from.join(name), to.join(name)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        done => done
            .map(|_| true)
            .with_context(|| cannot("copy", &from.join(name))),
    }
}

fn cannot(what: &str, path: &Path) -> String {
    format!("cannot {what} {}", path.display())
}

fn object(path: &Path) -> Option<Map<String, Value>> {
    base::json::from_python(&input::read(path, input::SMALL).ok()?).ok()
}

fn write(path: &Path, json: &Value) -> anyhow::Result<()> {
    fs::write(path, format!("{json:#}\n")).with_context(|| cannot("write", path))
}
