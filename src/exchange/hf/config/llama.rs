//! config.json of Llama, Mistral, Qwen2 and Qwen3.

use super::family::{self, Hf, Window};
use super::reader::Reader;
use super::{HfConfig, rope};
use crate::shortest;
use manifest::{
    Bias, Dropout, Family, Ffn, LayerAttention, LayerKind, Model, NormKind, Position, Sizes,
};
use serde_json::{Map, Value, json};

/// Keys that do not affect the computation, or are read elsewhere.
#[rustfmt::skip]
const KNOWN: &[&str] = &[
    "_name_or_path", "architectures", "attention_bias", "attention_dropout", "auto_map",
    "bos_token_id", "dtype", "eos_token_id", "head_dim", "hidden_act", "hidden_size",
    "initializer_range", "intermediate_size", "layer_types", "max_position_embeddings",
    "max_window_layers", "mlp_bias", "model_type", "num_attention_heads", "num_hidden_layers",
    "num_key_value_heads", "pad_token_id", "partial_rotary_factor", "pretraining_tp",
    "quantization_config", "rms_norm_eps", "rope_interleaved", "rope_parameters",
    "rope_scaling", "rope_theta", "sliding_window", "tie_word_embeddings", "torch_dtype",
    "transformers_version", "use_cache", "use_sliding_window", "vocab_size",
];

pub fn read(config: &mut Reader, family: Family) -> HfConfig {
    config.fixed(&[
        ("hidden_act", json!("silu")),
        ("partial_rotary_factor", json!(1.0)),
        ("rope_interleaved", json!(false)),
        ("quantization_config", Value::Null),
    ]);
    let defaults = family::row(family);
    let positions = config
        .optional_size("max_position_embeddings")
        .unwrap_or(defaults.positions);
    let sizes = Sizes {
        layers: config.size("num_hidden_layers"),
        hidden: config.size("hidden_size"),
        heads: config.size("num_attention_heads"),
        vocab: config.size("vocab_size"),
        seq_len: positions,
    };
    let hidden = sizes.hidden;
    let heads = sizes.heads;
    let missing = |config: &Reader, key| !config.config.contains_key(key);
    let kv = match config.optional_size("num_key_value_heads") {
        None if missing(config, "num_key_value_heads") => defaults.kv_heads.unwrap_or(heads),
        given => given.unwrap_or(heads),
    };
    if !heads.is_multiple_of(kv) {
        config.wrong("num_key_value_heads", &format!("must divide num_attention_heads, {heads}"));
    }
    let dim = match config.optional_size("head_dim") {
        None if missing(config, "head_dim") => defaults.head_dim,
        given => given,
    };
    if dim.is_none() && !hidden.is_multiple_of(heads) {
        config.wrong("hidden_size", &format!("must be a multiple of num_attention_heads, {heads}"));
    }
    let eps = config.number_in("rms_norm_eps", 1e-12, 1.0).unwrap_or(1e-6);
    let dropout = config
        .number_in("attention_dropout", 0.0, 0.999)
        .unwrap_or(0.0);
    let (window, pattern) = window(config, defaults.window, sizes.layers);
    let plain = Model::with_defaults(family, sizes, 1);
    let model = Model {
        kv_heads: Some(kv).filter(|kv| *kv != heads),
        head_dim: dim.filter(|dim| dim * heads != hidden),
        ffn_hidden: config.size("intermediate_size"),
        position: Position::Rope(rope::read(config, positions)),
        window,
        pattern,
        bias: bias(config, &defaults),
        tied_head: config.flag("tie_word_embeddings").unwrap_or(false),
        layernorm_eps: eps as f32,
        dropout: Dropout { attention: dropout as f32, ..plain.dropout },
        ..plain
    };
    let unknown = config
        .config
        .keys()
        .filter(|key| !KNOWN.contains(&key.as_str()));
    HfConfig { family, model, positions, unknown: unknown.cloned().collect() }
}

fn bias(config: &mut Reader, hf: &Hf) -> Bias {
    let attention = config.flag("attention_bias").unwrap_or(false);
    let mlp = config.flag("mlp_bias").unwrap_or(false) && hf.biases.contains(&Bias::All);
    if mlp && !attention {
        config.wrong(
            "mlp_bias",
            "no model.bias is that of the feed-forward layer alone: set attention_bias to \
             true, and give the weights q, k, v and o biases of 0",
        );
        return Bias::None;
    }
    let said = match (attention, mlp) {
        (false, _) => Bias::None,
        (true, true) => Bias::All,
        (true, false) => Bias::Attention,
    };
    if hf.biases.contains(&said) { said } else { hf.biases[0] }
}

/// Width of the layers' window, if any has one, and the layers that have it.
fn window(config: &mut Reader, window: Window, layers: usize) -> (Option<usize>, Vec<LayerKind>) {
    match window {
        Window::Never => (None, Vec::new()),
        Window::Width => match config.optional_size("sliding_window") {
            None if !config.config.contains_key("sliding_window") => (Some(4096), Vec::new()),
            window => (window, Vec::new()),
        },
        Window::Layers => {
            let used = config.flag("use_sliding_window").unwrap_or(false);
            let width = config.optional_size("sliding_window").filter(|_| used);
            let without = config.count("max_window_layers").unwrap_or(28);
            let listed = config.get("layer_types").cloned();
            let windows = match &listed {
                Some(types) => layer_types(config, types, layers),
                None => (0..layers).map(|layer| layer >= without).collect(),
            };
            let any = windows.iter().any(|windowed| *windowed);
            if any && width.is_none() && listed.is_some() {
                config
                    .wrong("layer_types", "a layer has a sliding window, whose width is not said");
            }
            (
                width.filter(|_| any),
                pattern(&windows)
                    .filter(|_| width.is_some())
                    .unwrap_or_default(),
            )
        }
    }
}

/// Shortest pattern of layers with and without a window; None if all are alike.
fn pattern(windows: &[bool]) -> Option<Vec<LayerKind>> {
    let length = (1..=windows.len())
        .find(|length| (*length..windows.len()).all(|i| windows[i] == windows[i % length]))
        .filter(|length| *length > 1)?;
    Some(
        windows[..length]
            .iter()
            .map(|windowed| LayerKind {
                attention: if *windowed { LayerAttention::Window } else { LayerAttention::Full },
                rope: None,
            })
            .collect(),
    )
}

/// Whether each layer has a window; none, with a problem, if the list is invalid.
fn layer_types(config: &mut Reader, types: &Value, layers: usize) -> Vec<bool> {
    let list = types.as_array().filter(|list| list.len() == layers);
    let known = list.filter(|list| {
        list.iter()
            .all(|kind| kind == "full_attention" || kind == "sliding_attention")
    });
    if known.is_none() {
        config.wrong(
            "layer_types",
            &format!("full_attention or sliding_attention for each of {layers} layers"),
        );
    }
    known
        .into_iter()
        .flatten()
        .map(|kind| kind == "sliding_attention")
        .collect()
}

/// Settings of a model that the family's config.json cannot express.
pub fn lacks(family: Family, m: &Model) -> Vec<&'static str> {
    let hf = family::row(family);
    let qk_norm = family.defaults().qk_norm;
    let all = [
        (m.norm != NormKind::Rms, "the norm is layer"),
        (m.ffn != Ffn::Swiglu, "the feed-forward layer is gelu"),
        (!matches!(m.position, Position::Rope(_)), "positions are not rope"),
        (m.embedding_layernorm, "the embedding has a norm"),
        (m.qk_norm && !qk_norm, "queries and keys are normalised"),
        (!m.qk_norm && qk_norm, "queries and keys are not normalised"),
        (m.window.is_some() && hf.window == Window::Never, "attention has a window"),
        (!m.pattern.is_empty() && hf.window != Window::Layers, "layers differ"),
        (m.ropes().len() > 1, "layers have different positions"),
        (m.logit_softcap.is_some(), "logits are capped"),
        (!hf.biases.contains(&m.bias), "products have other biases"),
    ];
    all.into_iter()
        .filter(|(lacks, _)| *lacks)
        .map(|(_, what)| what)
        .collect()
}

/// Keys and values, without tokens and types.
pub fn write(family: Family, m: &Model) -> Map<String, Value> {
    let Position::Rope(rope) = m.position else { panic!("no {} without rope", family.name()) };
    let heads = m.heads();
    let mut config = json!({
        "hidden_size": m.hidden,
        "intermediate_size": m.ffn_hidden,
        "num_hidden_layers": m.layers,
        "num_attention_heads": heads.query,
        "num_key_value_heads": heads.kv,
        "head_dim": heads.dim,
        "hidden_act": "silu",
        "max_position_embeddings": rope::positions(&rope, m.seq_len),
        "rms_norm_eps": shortest(m.layernorm_eps),
        "attention_dropout": shortest(m.dropout.attention),
        "use_cache": true,
    });
    let windowed = |layer| m.window_of(layer).is_some();
    let kind = |layer| if windowed(layer) { "sliding_attention" } else { "full_attention" };
    let hf = family::row(family);
    let own = match hf.window {
        Window::Never => json!({"pretraining_tp": 1}),
        Window::Width => json!({"sliding_window": m.window}),
        Window::Layers => json!({
            "use_sliding_window": m.window.is_some(),
            "sliding_window": m.window,
            "layer_types": (0..m.layers).map(kind).collect::<Vec<_>>(),
        }),
    };
    let config = config.as_object_mut().expect("an object");
    config.extend(own.as_object().expect("an object").clone());
    if hf.window == Window::Layers && (0..m.layers).all(windowed) {
        // Older readers take this number of first layers to have no window.
        config.insert("max_window_layers".to_string(), json!(0));
    }
    if hf.biases.contains(&Bias::Attention) {
        config.insert("attention_bias".to_string(), json!(m.bias != Bias::None));
    }
    if hf.biases.contains(&Bias::All) {
        config.insert("mlp_bias".to_string(), json!(m.bias == Bias::All));
    }
    rope::write(&rope, config);
    std::mem::take(config)
}
