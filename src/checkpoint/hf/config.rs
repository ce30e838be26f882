//! config.json: written from a manifest's model, and read as one.

use crate::base::Problems;
use crate::manifest::{Bias, Family, Ffn, Gelu, Model, NormKind, Sizes};
use anyhow::Context;
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;

/// The model's family, or the settings that the family's config.json cannot express.
pub fn family_of(model: &Model, place: &str) -> Result<Family, Problems> {
    let family = model.family;
    if family.is_llama() {
        let what = format!("family {} cannot be written yet", family.name());
        let remedy = "this version exports families gpt2 and bloom";
        return Err(Problems::one(place, what, remedy));
    }
    let mut problems = Problems::default();
    let mut needs = |wrong: bool, what: &str| {
        if wrong {
            let name = if family == Family::Bloom { "BLOOM" } else { "GPT-2" };
            let remedy = "Hugging Face has no other family with this model's position encoding";
            problems.add(place, format!("{what}; {name} cannot say that"), remedy);
        }
    };
    let heads = model.heads();
    needs(model.norm != NormKind::Layer, "the norm is rms");
    needs(model.ffn != Ffn::Gelu, "the feed-forward layer is swiglu");
    needs(model.bias != Bias::All, "products without biases");
    needs(model.qk_norm, "queries and keys are normalised");
    needs(model.window.is_some(), "attention has a window");
    needs(heads.kv != heads.query, "query heads share keys");
    needs(heads.query_width() != model.hidden, "heads are not as wide as the stream");
    match family {
        Family::Bloom => {
            needs(!model.embedding_layernorm, "the embedding has no layernorm");
            needs(model.gelu != Gelu::Tanh, "gelu is exact");
            needs(model.ffn_hidden != 4 * model.hidden, "ffn_hidden is not 4 × hidden");
        }
        _ => needs(model.embedding_layernorm, "the embedding has a layernorm"),
    }
    if model.position.name() != family.position() {
        let position = model.position.name().name();
        let what = format!("model.position is {position} of {}", family.name());
        problems.add(place, what, "Hugging Face has no such model: train with the other family");
    }
    problems.or(family)
}

/// The text of config.json.
pub fn config(family: Family, m: &Model, dtype: &str, eod: Option<u32>) -> String {
    let mut config = match family {
        Family::Bloom => json!({
            "architectures": ["BloomForCausalLM"],
            "hidden_size": m.hidden,
            "seq_length": m.seq_len,
            "apply_residual_connection_post_layernorm": false,
            "hidden_dropout": plain(m.dropout.residual),
            "attention_dropout": plain(m.dropout.attention),
        }),
        _ => json!({
            "architectures": ["GPT2LMHeadModel"],
            "n_embd": m.hidden,
            "n_inner": m.ffn_hidden,
            "n_positions": m.seq_len,
            "activation_function": if m.gelu == Gelu::Tanh { "gelu_new" } else { "gelu" },
            "embd_pdrop": plain(m.dropout.embedding),
            "attn_pdrop": plain(m.dropout.attention),
            "resid_pdrop": plain(m.dropout.residual),
        }),
    };
    let both = json!({
        "model_type": family.name(),
        "n_layer": m.layers,
        "n_head": m.heads,
        "vocab_size": m.vocab,
        "layer_norm_epsilon": plain(m.layernorm_eps),
        "initializer_range": plain(m.init.std),
        "tie_word_embeddings": m.tied_head,
        "bos_token_id": eod,
        "eos_token_id": eod,
        "dtype": dtype,
    });
    if let (Value::Object(all), Value::Object(both)) = (&mut config, both) {
        all.extend(both);
    }
    format!("{config:#}\n")
}

/// The number a person wrote: 0.1, not 0.10000000149.
fn plain(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

/// Reads a folder's config.json: the family, and the model as in a manifest. Settings that
/// config.json does not have (padding, initial weights) are taken from `like`.
pub fn read_config(folder: &Path, like: Option<&Model>) -> anyhow::Result<(Family, Model)> {
    let path = folder.join("config.json");
    let place = path.display().to_string();
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {place}"))?;
    let Ok(Value::Object(config)) = serde_json::from_str(&text) else {
        let remedy = "give a folder that transformers' save_pretrained wrote";
        return Err(Problems::one(place, "not a JSON object", remedy).into());
    };
    let mut reader = Reader { config: &config, place, problems: Problems::default() };
    let family = match config.get("model_type").and_then(Value::as_str) {
        Some("gpt2") => Family::Gpt2,
        Some("bloom") => Family::Bloom,
        other => {
            let what = format!("model_type {}", other.unwrap_or("is missing"));
            return Err(Problems::one(reader.place, what, "gpt2 and bloom are known").into());
        }
    };
    let model = reader.model(family, like);
    Ok((family, reader.problems.or(model)?))
}

struct Reader<'a> {
    config: &'a Map<String, Value>,
    place: String,
    problems: Problems,
}

impl Reader<'_> {
    fn model(&mut self, family: Family, like: Option<&Model>) -> Model {
        let bloom = family == Family::Bloom;
        let fixed: &[(&str, bool)] = match bloom {
            true => &[("apply_residual_connection_post_layernorm", false)],
            false => &[
                ("scale_attn_weights", true),
                ("scale_attn_by_inverse_layer_idx", false),
                ("add_cross_attention", false),
            ],
        };
        for (key, needed) in fixed {
            if self.config.get(*key).and_then(Value::as_bool).is_some_and(|v| v != *needed) {
                self.wrong(key, &format!("must be {needed}: other attention than gptrain's"));
            }
        }
        let hidden = match bloom && self.config.contains_key("n_embed") {
            true => self.size("n_embed"),
            false => self.size(if bloom { "hidden_size" } else { "n_embd" }),
        };
        let vocab = self.size("vocab_size");
        let ffn = self.config.get("n_inner").and_then(Value::as_u64).map(|n| n as usize);
        let seq_len = if bloom { like.map(|m| m.seq_len) } else { None };
        let gelu = match self.config.get("activation_function").and_then(Value::as_str) {
            None | Some("gelu_new" | "gelu_pytorch_tanh") => Gelu::Tanh,
            Some("gelu") => Gelu::Exact,
            Some(_) => {
                self.wrong("activation_function", "gelu_new and gelu are known");
                Gelu::Tanh
            }
        };
        let sizes = Sizes {
            layers: self.size("n_layer"),
            hidden,
            heads: self.size("n_head"),
            vocab,
            seq_len: match (bloom, seq_len) {
                (false, _) => self.size("n_positions"),
                (true, Some(seq_len)) => seq_len,
                (true, None) => {
                    self.config.get("seq_length").and_then(Value::as_u64).unwrap_or(2048) as usize
                }
            },
        };
        let plain = Model::with_defaults(family, sizes, 1);
        let like = like.unwrap_or(&plain);
        Model {
            ffn_hidden: ffn.filter(|_| !bloom).unwrap_or(4 * hidden),
            vocab_multiple: like.vocab_multiple,
            vocab_padded: like.vocab_padded,
            tied_head: self.config.get("tie_word_embeddings").is_none_or(|v| v != false),
            gelu,
            layernorm_eps: match self.config.get("layer_norm_epsilon") {
                None => plain.layernorm_eps,
                Some(eps) => eps.as_f64().unwrap_or(1e-5) as f32,
            },
            dropout: like.dropout,
            init: like.init.clone(),
            ..plain
        }
    }

    fn size(&mut self, key: &str) -> usize {
        match self.config.get(key).and_then(Value::as_u64) {
            Some(size) if (1..1 << 31).contains(&size) => size as usize,
            _ => {
                self.wrong(key, "a whole number above 0 is needed");
                1
            }
        }
    }

    fn wrong(&mut self, key: &str, remedy: &str) {
        let value = self.config.get(key).map_or("missing".to_string(), Value::to_string);
        self.problems.add(self.place.clone(), format!("{key} is {value}"), remedy);
    }
}
