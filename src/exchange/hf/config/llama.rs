//! config.json of Llama, Mistral, Qwen2 and Qwen3.

use super::family::{self, Hf, Window};
use super::reader::Reader;
use super::{HfConfig, copy, rope};
use manifest::dialects::Dialect;
use manifest::{
    Bias, Dropout, Family, Ffn, LayerAttention, LayerKind, Model, NormKind, Position, Sizes,
};
use serde_json::{Map, Value};

/// Keys without a setting that do not affect the computation, or are read elsewhere.
#[rustfmt::skip]
const OTHERS: &[&str] = &[
    "_name_or_path", "architectures", "auto_map", "bos_token_id", "eos_token_id",
    "max_window_layers", "pad_token_id", "pretraining_tp", "rope_parameters",
    "transformers_version", "use_cache", "use_sliding_window",
];

pub fn read(config: &mut Reader, family: Family) -> HfConfig {
    config.reject_other_models();
    config.choice("model.ffn");
    let defaults = family::row(family);
    let positions = config
        .optional_size("model.positions")
        .unwrap_or(defaults.positions);
    let sizes = Sizes {
        layers: config.size("model.layers"),
        hidden: config.size("model.hidden"),
        heads: config.size("model.heads"),
        vocab: config.size("model.vocab"),
        seq_len: positions,
    };
    let hidden = sizes.hidden;
    let heads = sizes.heads;
    let kv = match config.optional_size("model.kv_heads") {
        None if !config.has("model.kv_heads") => defaults.kv_heads.unwrap_or(heads),
        given => given.unwrap_or(heads),
    };
    if !heads.is_multiple_of(kv) {
        let remedy = format!("must divide {}, {heads}", config.name("model.heads"));
        config.wrong("model.kv_heads", &remedy);
    }
    let dim = match config.optional_size("model.head_dim") {
        None if !config.has("model.head_dim") => defaults.head_dim,
        given => given,
    };
    if dim.is_none() && !hidden.is_multiple_of(heads) {
        let remedy = format!("must be a multiple of {}, {heads}", config.name("model.heads"));
        config.wrong("model.hidden", &remedy);
    }
    let eps = config
        .number_in("model.layernorm_eps", 1e-12, 1.0)
        .unwrap_or(1e-6);
    let dropout = config
        .number_in("model.dropout.attention", 0.0, 0.999)
        .unwrap_or(0.0);
    let (window, pattern) = window(config, defaults.window, sizes.layers);
    let plain = Model::with_defaults(family, sizes, 1);
    let model = Model {
        kv_heads: Some(kv).filter(|kv| *kv != heads),
        head_dim: dim.filter(|dim| dim * heads != hidden),
        ffn_hidden: config.size("model.ffn_hidden"),
        position: Position::Rope(rope::read(config, positions)),
        window,
        pattern,
        bias: bias(config, &defaults),
        tied_head: config.flag("model.tied_head").unwrap_or(false),
        layernorm_eps: eps as f32,
        dropout: Dropout { attention: dropout as f32, ..plain.dropout },
        ..plain
    };
    let unknown = config
        .config
        .keys()
        .filter(|key| !OTHERS.contains(&key.as_str()) && !config.dialect.knows(key));
    HfConfig { family, model, positions, unknown: unknown.cloned().collect() }
}

fn bias(config: &mut Reader, hf: &Hf) -> Bias {
    let attention = config.flag("model.bias: attention").unwrap_or(false);
    let mlp = config.flag("model.bias: all").unwrap_or(false) && hf.biases.contains(&Bias::All);
    if mlp && !attention {
        let remedy = format!(
            "gptrain has no biases of the feed-forward layer alone: set {} to true, and give the weights \
             q, k, v and o biases of 0",
            config.name("model.bias: attention")
        );
        config.wrong("model.bias: all", &remedy);
        return Bias::None;
    }
    let bias = match (attention, mlp) {
        (false, _) => Bias::None,
        (true, true) => Bias::All,
        (true, false) => Bias::Attention,
    };
    if hf.biases.contains(&bias) { bias } else { hf.biases[0] }
}

/// Width of the layers' window, if any has one, and the layers that have it.
fn window(config: &mut Reader, window: Window, layers: usize) -> (Option<usize>, Vec<LayerKind>) {
    match window {
        Window::Never => (None, Vec::new()),
        Window::Width => match config.optional_size("model.window") {
            None if !config.has("model.window") => (Some(4096), Vec::new()),
            window => (window, Vec::new()),
        },
        Window::Layers => {
            let used = config.flag("use_sliding_window").unwrap_or(false);
            let width = config.optional_size("model.window").filter(|_| used);
            let without = config.count("max_window_layers").unwrap_or(28);
            let listed = config.get("model.pattern").cloned();
            let windows = match &listed {
                Some(types) => kinds_of_layers(config, types, layers),
                None => (0..layers).map(|layer| layer >= without).collect(),
            };
            let any = windows.iter().any(|windowed| *windowed);
            if any && width.is_none() && listed.is_some() {
                config.wrong(
                    "model.pattern",
                    "a layer has a sliding window, whose width is not said",
                );
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
fn kinds_of_layers(config: &mut Reader, types: &Value, layers: usize) -> Vec<bool> {
    let list = types.as_array().filter(|list| list.len() == layers);
    let known = list.filter(|list| {
        list.iter()
            .all(|kind| kind == "full_attention" || kind == "sliding_attention")
    });
    if known.is_none() {
        config.wrong(
            "model.pattern",
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
    let name = |setting| Dialect::Llama.name(setting).to_string();
    let mut config = copy(
        Dialect::Llama,
        m,
        &[
            "model.hidden",
            "model.ffn_hidden",
            "model.layers",
            "model.heads",
            "model.kv_heads",
            "model.head_dim",
            "model.ffn",
            "model.layernorm_eps",
            "model.dropout.attention",
        ],
    );
    config.insert(name("model.positions"), rope::positions(&rope, m.seq_len).into());
    config.insert("use_cache".into(), true.into());
    let windowed = |layer| m.window_of(layer).is_some();
    let hf = family::row(family);
    if hf.window == Window::Never {
        config.insert("pretraining_tp".into(), 1.into());
    } else {
        config.insert(name("model.window"), m.window.into());
    }
    if hf.window == Window::Layers {
        let kind = |layer| if windowed(layer) { "sliding_attention" } else { "full_attention" };
        let kinds: Vec<&str> = (0..m.layers).map(kind).collect();
        config.insert("use_sliding_window".into(), m.window.is_some().into());
        config.insert(name("model.pattern"), kinds.into());
        if (0..m.layers).all(windowed) {
            // Older readers take this number of first layers to have no window.
            config.insert("max_window_layers".into(), 0.into());
        }
    }
    if hf.biases.contains(&Bias::Attention) {
        config.insert(name("model.bias: attention"), (m.bias != Bias::None).into());
    }
    if hf.biases.contains(&Bias::All) {
        config.insert(name("model.bias: all"), (m.bias == Bias::All).into());
    }
    rope::write(&rope, &mut config);
    config
}
