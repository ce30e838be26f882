//! Megatron's arguments of the model.

use super::super::super::torch::Value;
use super::super::settings::{Settings, number};
use super::Arguments;

impl Arguments<'_> {
    /// The model's settings but its vocabulary.
    pub(super) fn model(
        &self,
        settings: &mut Settings,
        notes: &mut Vec<String>,
    ) -> anyhow::Result<()> {
        let position = self.get("position_embedding_type");
        let rotary = self.is_set("use_rotary_position_embeddings");
        let (name, family) = match position.as_ref().map(position_name).transpose()? {
            _ if rotary => ("rope", "llama"),
            Some("alibi") => ("alibi", "bloom"),
            Some("rope") => ("rope", "llama"),
            None | Some("absolute" | "learned_absolute") => ("learned", "gpt2"),
            Some(other) => {
                return Err(self.unsupported(format!(
                    "args.position_embedding_type is {other}: alibi, rope and absolute are read"
                )));
            }
        };
        settings.set("model.family", family, "");
        settings.set("model.layers", self.count("num_layers")?, "num_layers");
        let hidden = self.count("hidden_size")?;
        let heads = self.count("num_attention_heads")?;
        settings.set("model.hidden", hidden, "hidden_size");
        settings.set("model.heads", heads, "num_attention_heads");
        if let Some(dim) = self.optional_count("kv_channels")?
            && dim * heads != hidden
        {
            settings.set("model.head_dim", dim, "kv_channels");
        }
        self.set_counts(settings, &[("model.ffn_hidden", "ffn_hidden_size")])?;
        let seq_len = self.count("seq_length")?;
        settings.set("model.seq_len", seq_len, "seq_length");
        let rows = self.optional_count("max_position_embeddings")?;
        if let Some(rows) = rows.filter(|rows| name == "learned" && *rows != seq_len) {
            settings.set("model.positions", rows, "max_position_embeddings");
        }
        match name {
            "rope" => self.rope(settings)?,
            name => settings.set("model.position", name, "position_embedding_type"),
        }
        self.parts(family, settings)?;
        let norm = self.is_set("embed_layernorm");
        settings.set("model.embedding_layernorm", norm, "embed_layernorm");
        let eps = ["layernorm_epsilon", "norm_epsilon"].map(|name| ("model.layernorm_eps", name));
        self.set_numbers(settings, &eps)?;
        let exact = !self.is_set("bias_gelu_fusion") && !self.is_set("openai_gelu");
        let gelu = if exact { "exact" } else { "tanh" };
        if !self.is_set("swiglu") {
            settings.set("model.gelu", gelu, "bias_gelu_fusion, openai_gelu");
        }
        self.set_numbers(settings, &[("model.init.std", "init_method_std")])?;
        self.dropout(settings, notes)?;
        if self.is_set("apply_query_key_layer_scaling") {
            notes.push(
                "apply_query_key_layer_scaling is a factor that cancels: the model is the same"
                    .into(),
            );
        }
        if self.is_set("fp32_residual_connection") {
            let what =
                "fp32_residual_connection: gptrain's residual stream has the precision of weights";
            notes.push(what.into());
        }
        Ok(())
    }

    fn dropout(&self, settings: &mut Settings, notes: &mut Vec<String>) -> anyhow::Result<()> {
        let hidden = self.float("hidden_dropout")?;
        let attention = self.float("attention_dropout")?;
        for (key, rate, from) in [
            ("model.dropout.embedding", hidden, "hidden_dropout"),
            ("model.dropout.attention", attention, "attention_dropout"),
            ("model.dropout.residual", hidden, "hidden_dropout"),
        ] {
            settings.set(key, number(rate.unwrap_or(0.0)), from);
        }
        if hidden.or(attention).is_some_and(|rate| rate > 0.0) {
            notes.push(
                "dropout draws other random numbers here than there: no state can carry them over"
                    .into(),
            );
        }
        Ok(())
    }

    fn rope(&self, settings: &mut Settings) -> anyhow::Result<()> {
        let theta = self.float("rotary_base")?.unwrap_or(10_000.0);
        settings.set("model.position.rope.theta", number(theta), "rotary_base");
        if self.is_set("use_rope_scaling") {
            let factor = number(self.float("rope_scaling_factor")?.unwrap_or(8.0));
            let scaling = format!(
                "{{llama3: {{factor: {factor}, low_freq_factor: 1, high_freq_factor: 4, \
                 original_seq_len: 8192}}}}"
            );
            settings.set("model.position.rope.scaling", scaling, "use_rope_scaling");
        }
        for (name, one) in [("rotary_percent", 1.0), ("rotary_seq_len_interpolation_factor", 1.0)] {
            if let Some(value) = self.float(name)?.filter(|value| *value != one) {
                return Err(self.unsupported(format!(
                    "args.{name} is {value}: gptrain turns all columns, unscaled"
                )));
            }
        }
        Ok(())
    }

    /// Options of Megatron-LM that Megatron-DeepSpeed's models do not have; a family's default is not
    /// written.
    fn parts(&self, family: &str, settings: &mut Settings) -> anyhow::Result<()> {
        let llama = family == "llama";
        let mut set = |key: &str, value: &str, default: bool, from: &str| {
            if !default {
                settings.set(key, value, from);
            }
        };
        let gated = self.is_set("swiglu");
        set("model.ffn", if gated { "swiglu" } else { "gelu" }, gated == llama, "swiglu");
        let norm = self
            .get("normalization")
            .map(|norm| norm.str())
            .transpose()?;
        let rms = norm.is_some_and(|norm| norm == "RMSNorm");
        set("model.norm", if rms { "rms" } else { "layer" }, rms == llama, "normalization");
        let linear = self
            .get("add_bias_linear")
            .is_none_or(|value| value.is_true());
        let bias = match (linear, self.is_set("add_qkv_bias")) {
            (true, _) => "all",
            (false, true) => "qkv",
            (false, false) => "none",
        };
        let usual = if llama { "none" } else { "all" };
        set("model.bias", bias, bias == usual, "add_bias_linear, add_qkv_bias");
        let untied = self.is_set("untie_embeddings_and_output_weights");
        let tied = if untied { "false" } else { "true" };
        set("model.tied_head", tied, untied == llama, "untie_embeddings_and_output_weights");
        let normed = self.is_set("qk_layernorm");
        set("model.qk_norm", "true", !normed, "qk_layernorm");
        if self.is_set("group_query_attention") {
            let groups = self.count("num_query_groups")?;
            settings.set("model.kv_heads", groups, "num_query_groups");
        }
        Ok(())
    }
}

/// The name of a position embedding: text, or an enum by value.
fn position_name<'t>(value: &Value<'t>) -> anyhow::Result<&'t str> {
    let Some((_, arguments)) = value.object() else { return value.str() };
    let number = arguments.and_then(|args| args.items().ok()?.first().cloned());
    Ok(match number.and_then(|number| number.int().ok()) {
        Some(1) => "rotary",
        Some(2) => "absolute",
        Some(3) => "alibi",
        _ => "unknown",
    })
}
