//! config.json of GPT-2 and BLOOM.

use super::HfConfig;
use super::family;
use super::reader::Reader;
use crate::shortest;
use base::Problems;
use manifest::{Bias, Dropout, Family, Ffn, Gelu, Model, NormKind, Sizes};
use serde_json::{Map, Value, json};

/// Family of the model, or the settings that the family's config.json cannot express.
pub fn sayable(family: Family, model: &Model, place: &str) -> Result<Family, Problems> {
    let mut problems = Problems::default();
    let mut needs = |wrong: bool, what: &str| {
        if wrong {
            let name = if family == Family::Bloom { "BLOOM" } else { "GPT-2" };
            problems.add(
                place,
                format!("{what}; {name} cannot say that"),
                "Hugging Face has no other family with this model's position encoding",
            );
        }
    };
    let heads = model.heads();
    needs(model.norm != NormKind::Layer, "the norm is rms");
    needs(model.ffn != Ffn::Gelu, "the feed-forward layer is swiglu");
    needs(model.bias != Bias::All, "products without biases");
    needs(model.qk_norm, "queries and keys are normalised");
    needs(model.window.is_some(), "attention has a window");
    needs(!model.pattern.is_empty(), "layers differ");
    needs(model.logit_softcap.is_some(), "logits are capped");
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
    if model.position.name() != family.defaults().position.name() {
        let position = model.position.name();
        problems.add(
            place,
            format!("model.position is {position} of {}", family.name()),
            "Hugging Face has no such model: train with the other family",
        );
    }
    problems.or(family)
}

/// Keys and values, without those of all families.
pub fn write(family: Family, m: &Model) -> Map<String, Value> {
    let own = match family {
        Family::Bloom => json!({
            "hidden_size": m.hidden,
            "seq_length": m.seq_len,
            "apply_residual_connection_post_layernorm": false,
            "hidden_dropout": shortest(m.dropout.residual),
            "attention_dropout": shortest(m.dropout.attention),
        }),
        _ => json!({
            "n_embd": m.hidden,
            "n_inner": m.ffn_hidden,
            "n_positions": m.context(),
            "activation_function": if m.gelu == Gelu::Tanh { "gelu_new" } else { "gelu" },
            "embd_pdrop": shortest(m.dropout.embedding),
            "attn_pdrop": shortest(m.dropout.attention),
            "resid_pdrop": shortest(m.dropout.residual),
        }),
    };
    let both = json!({
        "n_layer": m.layers,
        "n_head": m.heads,
        "layer_norm_epsilon": shortest(m.layernorm_eps),
    });
    let objects = [own, both]
        .into_iter()
        .filter_map(|part| part.as_object().cloned());
    objects.flatten().collect()
}

pub fn read(config: &mut Reader, family: Family) -> HfConfig {
    let bloom = family == Family::Bloom;
    config.fixed(if bloom {
        &[
            ("apply_residual_connection_post_layernorm", Value::Bool(false)),
            ("quantization_config", Value::Null),
        ]
    } else {
        &[
            ("scale_attn_weights", Value::Bool(true)),
            ("scale_attn_by_inverse_layer_idx", Value::Bool(false)),
            ("add_cross_attention", Value::Bool(false)),
            ("quantization_config", Value::Null),
        ]
    });
    let hidden = config.size(if bloom { "hidden_size" } else { "n_embd" });
    let ffn = config.optional_size("n_inner").filter(|_| !bloom);
    let gelu = match config.text("activation_function") {
        None | Some("gelu_new" | "gelu_pytorch_tanh") => Gelu::Tanh,
        Some("gelu") => Gelu::Exact,
        Some(_) => {
            config.wrong("activation_function", "gelu_new and gelu are known");
            Gelu::Tanh
        }
    };
    let sizes = Sizes {
        layers: config.size("n_layer"),
        hidden,
        heads: config.size("n_head"),
        vocab: config.size("vocab_size"),
        seq_len: config
            .optional_size(if bloom { "seq_length" } else { "n_positions" })
            .unwrap_or(family::row(family).positions),
    };
    if !hidden.is_multiple_of(sizes.heads) {
        config.wrong("n_head", &format!("must divide the width, {hidden}"));
    }
    let mut rate = |key| config.number_in(key, 0.0, 0.999).unwrap_or(0.0) as f32;
    let dropout = if bloom {
        Dropout {
            embedding: 0.0,
            attention: rate("attention_dropout"),
            residual: rate("hidden_dropout"),
        }
    } else {
        Dropout {
            embedding: rate("embd_pdrop"),
            attention: rate("attn_pdrop"),
            residual: rate("resid_pdrop"),
        }
    };
    let plain = Model::with_defaults(family, sizes, 1);
    let model = Model {
        positions: (!bloom).then_some(sizes.seq_len),
        ffn_hidden: ffn.unwrap_or(4 * hidden),
        tied_head: config.flag("tie_word_embeddings").unwrap_or(true),
        gelu,
        layernorm_eps: match config.number_in("layer_norm_epsilon", 1e-12, 1.0) {
            None => plain.layernorm_eps,
            Some(eps) => eps as f32,
        },
        dropout,
        ..plain
    };
    HfConfig { family, model, positions: sizes.seq_len, unknown: Vec::new() }
}
