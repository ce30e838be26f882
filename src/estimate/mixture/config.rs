//! Reads the mixture of experts of a config.json of Hugging Face: the keys of transformers' classes.

use super::published::skeleton;
use super::{Attention, Grouped, Latent, Mixture, Norm};
use base::Problems;
use manifest::dialects::Dialect;
use manifest::{Model, Sizes};
use serde_json::{Map, Value};

/// Kinds of models, by `model_type`.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Mixtral,
    Qwen3,
    Olmo,
    DeepSeek,
    GptOss,
}

const KINDS: [(&str, Kind); 6] = [
    ("mixtral", Kind::Mixtral),
    ("qwen3_moe", Kind::Qwen3),
    ("olmoe", Kind::Olmo),
    ("deepseek_v2", Kind::DeepSeek),
    ("deepseek_v3", Kind::DeepSeek),
    ("gpt_oss", Kind::GptOss),
];

/// Keys by which any mixture is known.
const SIGNS: [&str; 3] = ["num_experts", "num_local_experts", "n_routed_experts"];

/// Model of a config.json: the dense one beside the mixture, and the mixture.
#[derive(Clone, Debug)]
pub struct Described {
    pub model: Model,
    pub mixture: Mixture,
}

/// Key of a setting of the manifest, "model.layers", or a key that has no setting.
fn key(name: &str) -> &str {
    if name.starts_with("model.") { Dialect::Llama.name(name) } else { name }
}

/// Keys of a config.json, with the mistakes that were found in them.
struct Keys<'a> {
    config: &'a Map<String, Value>,
    place: &'a str,
    problems: Problems,
}

impl Keys<'_> {
    fn get(&self, name: &str) -> Option<&Value> {
        self.config.get(key(name))
    }

    fn count(&self, name: &str) -> Option<usize> {
        self.get(name)?.as_u64().map(|count| count as usize)
    }

    /// A positive number, under one of the names.
    fn needed(&mut self, names: &[&str], most: usize) -> usize {
        let found = names.iter().find_map(|name| self.count(name));
        match found {
            Some(count) if (1..=most).contains(&count) => return count,
            Some(count) => self.wrong(names, format!("is {count}"), most),
            None => self.wrong(names, "is missing or not a whole number".to_string(), most),
        }
        1
    }

    fn wrong(&mut self, names: &[&str], what: String, most: usize) {
        let names: Vec<&str> = names.iter().map(|name| key(name)).collect();
        let remedy = format!("give a whole number from 1 to {most}");
        let what = format!("{} {what}", names.join(" or "));
        self.problems.add(self.place, what, remedy);
    }

    /// Fails if a key has another value than the one that the formulas are for.
    fn only(&mut self, name: &str, value: Value, meaning: &str) {
        let given = self.get(name).filter(|given| !given.is_null());
        if let Some(given) = given.filter(|given| **given != value) {
            let what = format!("{} is {given}: {meaning}", key(name));
            self.problems
                .add(self.place, what, format!("only {value} is planned"));
        }
    }
}

/// Mixture of a config.json's text. None if it describes another model. `place` names it in messages.
pub fn parse(text: &[u8], place: &str) -> Result<Option<Described>, Problems> {
    let Ok(Value::Object(config)) = base::json::from_python(text) else { return Ok(None) };
    let named = config
        .get("model_type")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let Some((_, kind)) = KINDS.iter().find(|(name, _)| *name == named) else {
        if !SIGNS.iter().any(|key| config.contains_key(*key)) {
            return Ok(None);
        }
        let known: Vec<&str> = KINDS.iter().map(|(name, _)| *name).collect();
        return Err(Problems::one(
            place,
            format!("model_type {named}: this mixture of experts is not planned"),
            format!(
                "of those {} are; none of them is trained by gptrain itself yet",
                known.join(", ")
            ),
        ));
    };
    let mut keys = Keys { config: &config, place, problems: Problems::default() };
    let described = read(&mut keys, *kind);
    keys.problems.or(Some(described))
}

fn read(keys: &mut Keys, kind: Kind) -> Described {
    let sizes = Sizes {
        layers: keys.needed(&["model.layers"], 10_000),
        hidden: keys.needed(&["model.hidden"], 1 << 20),
        heads: keys.needed(&["model.heads"], 65_536),
        vocab: keys.needed(&["model.vocab"], 1 << 31),
        seq_len: keys
            .count("model.positions")
            .unwrap_or(4096)
            .clamp(1, 1 << 24),
    };
    let kv_heads = keys.count("model.kv_heads").unwrap_or(sizes.heads).max(1);
    let default = if kind == Kind::Qwen3 { 128 } else { sizes.hidden / sizes.heads };
    let head_dim = keys.count("model.head_dim").unwrap_or(default).max(1);
    if kind != Kind::DeepSeek && !sizes.heads.is_multiple_of(kv_heads) {
        let what = format!(
            "{} heads are not divisible by {kv_heads} heads of keys and values",
            sizes.heads
        );
        keys.problems
            .add(keys.place, what, format!("correct {}", key("model.kv_heads")));
    }
    let mixture = read_mixture(keys, kind);
    if mixture.chosen > mixture.experts {
        let what = format!("a token uses {} of {} experts", mixture.chosen, mixture.experts);
        keys.problems
            .add(keys.place, what, "correct num_experts_per_tok");
    }
    let tied = keys
        .get("model.tied_head")
        .and_then(Value::as_bool)
        .unwrap_or(false);
    Described { model: skeleton(sizes, kv_heads, head_dim, tied, &mixture), mixture }
}

fn read_mixture(keys: &mut Keys, kind: Kind) -> Mixture {
    let most = 1 << 20;
    let has_bias = keys
        .get("model.bias: attention")
        .and_then(Value::as_bool)
        .unwrap_or(false);
    let norm = match kind {
        Kind::Qwen3 => Norm::Head,
        Kind::Olmo => Norm::Whole,
        Kind::Mixtral | Kind::DeepSeek | Kind::GptOss => Norm::None,
    };
    let is_gpt = kind == Kind::GptOss;
    let mut mixture = Mixture {
        experts: keys.needed(&["num_local_experts", "num_experts", "n_routed_experts"], 65_536),
        chosen: keys.needed(&["num_experts_per_tok", "experts_per_token"], 65_536),
        width: 0,
        shared: 0,
        dense_layers: 0,
        dense_width: 0,
        biases: is_gpt,
        attention: Attention::Grouped(Grouped { norm, biases: has_bias || is_gpt, sinks: is_gpt }),
    };
    mixture.width = match kind {
        Kind::Qwen3 | Kind::DeepSeek => keys.needed(&["moe_intermediate_size"], most),
        Kind::Mixtral | Kind::Olmo | Kind::GptOss => keys.needed(&["model.ffn_hidden"], most),
    };
    match kind {
        Kind::Qwen3 => {
            keys.only("decoder_sparse_step", 1.into(), "some layers have no experts");
            keys.only("mlp_only_layers", Value::Array(Vec::new()), "some layers have no experts");
        }
        Kind::DeepSeek => {
            keys.only("moe_layer_freq", 1.into(), "some layers have no experts");
            keys.only("model.bias: attention", false.into(), "latent attention with biases");
            mixture.shared = keys.count("n_shared_experts").unwrap_or(0) * mixture.width;
            mixture.dense_layers = keys.count("first_k_dense_replace").unwrap_or(0);
            mixture.dense_width = keys.needed(&["model.ffn_hidden"], most);
            mixture.attention = Attention::Latent(Latent {
                query_rank: keys.count("q_lora_rank"),
                rank: keys.needed(&["kv_lora_rank"], most),
                plain: keys.needed(&["qk_nope_head_dim"], 256),
                rotary: keys.needed(&["qk_rope_head_dim"], 256),
                value: keys.needed(&["v_head_dim"], 256),
            });
        }
        Kind::Mixtral | Kind::Olmo | Kind::GptOss => {}
    }
    mixture
}

#[cfg(test)]
mod tests;
