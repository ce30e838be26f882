//! config.json of GPT-2 and BLOOM.

use super::family;
use super::reader::Reader;
use super::{HfConfig, copy};
use base::Problems;
use manifest::{Bias, Dropout, Family, Ffn, Gelu, Model, NormKind, Sizes};
use serde_json::{Map, Value};

/// Family of the model, or the settings that the family's config.json cannot express.
pub fn check_expressible(family: Family, model: &Model, place: &str) -> Result<Family, Problems> {
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

/// Keys and values that not all families have.
pub fn write(family: Family, m: &Model) -> Map<String, Value> {
    let dialect = family::dialect(family);
    let mut config = copy(
        dialect,
        m,
        &[
            "model.layers",
            "model.hidden",
            "model.heads",
            "model.layernorm_eps",
            "model.dropout.residual",
            "model.dropout.attention",
        ],
    );
    if family == Family::Bloom {
        config.append(&mut copy(dialect, m, &["model.seq_len"]));
        config.insert("apply_residual_connection_post_layernorm".into(), false.into());
    } else {
        let more = ["model.positions", "model.ffn_hidden", "model.gelu", "model.dropout.embedding"];
        config.append(&mut copy(dialect, m, &more));
    }
    config
}

pub fn read(config: &mut Reader, family: Family) -> HfConfig {
    let bloom = family == Family::Bloom;
    config.reject_other_models();
    let hidden = config.size("model.hidden");
    let gelu = config.choice("model.gelu").and_then(Gelu::by_name);
    let length = if bloom { "model.seq_len" } else { "model.positions" };
    let sizes = Sizes {
        layers: config.size("model.layers"),
        hidden,
        heads: config.size("model.heads"),
        vocab: config.size("model.vocab"),
        seq_len: config
            .optional_size(length)
            .unwrap_or(family::row(family).positions),
    };
    if !hidden.is_multiple_of(sizes.heads) {
        config.wrong("model.heads", &format!("must divide the width, {hidden}"));
    }
    let mut rate = |key| config.number_in(key, 0.0, 0.999).unwrap_or(0.0) as f32;
    let dropout = Dropout {
        embedding: rate("model.dropout.embedding"),
        attention: rate("model.dropout.attention"),
        residual: rate("model.dropout.residual"),
    };
    let plain = Model::with_defaults(family, sizes, 1);
    let model = Model {
        positions: (!bloom).then_some(sizes.seq_len),
        ffn_hidden: config
            .optional_size("model.ffn_hidden")
            .unwrap_or(4 * hidden),
        tied_head: config.flag("model.tied_head").unwrap_or(true),
        gelu: gelu.unwrap_or(Gelu::Tanh),
        layernorm_eps: match config.number_in("model.layernorm_eps", 1e-12, 1.0) {
            None => plain.layernorm_eps,
            Some(eps) => eps as f32,
        },
        dropout,
        ..plain
    };
    HfConfig { family, model, positions: sizes.seq_len, unknown: Vec::new() }
}
