//! Megatron's arguments of the model.

use super::super::super::torch::Value;
use super::super::settings::{Settings, number};
use super::Arguments;
use manifest::dialects::Dialect;

impl Arguments<'_> {
    /// The model's settings but its vocabulary.
    pub(super) fn model(
        &self,
        settings: &mut Settings,
        notes: &mut Vec<String>,
    ) -> anyhow::Result<()> {
        let position = self.name("model.position");
        let found = self.get("model.position");
        let rotary = self.is_set("use_rotary_position_embeddings");
        let (name, family) = match found.as_ref().map(position_name).transpose()? {
            _ if rotary => ("rope", "llama"),
            Some("alibi") => ("alibi", "bloom"),
            Some("rope") => ("rope", "llama"),
            None | Some("absolute" | "learned_absolute") => ("learned", "gpt2"),
            Some(other) => {
                self.refuse_option(format!(
                    "args.{position} is {other}: alibi, rope and absolute are read"
                ))?;
                ("learned", "gpt2")
            }
        };
        settings.set("model.family", family, "");
        self.set_needed(settings, &["model.layers", "model.hidden", "model.heads"])?;
        if let Some(dim) = self.optional_count("model.head_dim")?
            && dim * self.count("model.heads")? != self.count("model.hidden")?
        {
            self.set(settings, &["model.head_dim"])?;
        }
        self.set(settings, &["model.ffn_hidden"])?;
        self.set_needed(settings, &["model.seq_len"])?;
        if let Some(rows) = self.optional_count("model.positions")?
            && name == "learned"
            && rows != self.count("model.seq_len")?
        {
            self.set(settings, &["model.positions"])?;
        }
        match name {
            "rope" => self.rope(settings)?,
            name => settings.set("model.position", name, position),
        }
        self.parts(family == "llama", settings)?;
        let key = "model.embedding_layernorm";
        settings.set(key, self.is_set(key), self.name(key));
        self.set(settings, &["model.layernorm_eps"])?;
        if !self.is_set("model.ffn: swiglu") {
            let gelu = if self.is_set("model.gelu") { "tanh" } else { "exact" };
            let names = Dialect::Megatron.names("model.gelu");
            settings.set("model.gelu", gelu, &names.join(", "));
        }
        self.set(settings, &["model.init.std"])?;
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
        let hidden = "model.dropout.residual";
        let attention = "model.dropout.attention";
        let mut dropped = false;
        for (key, given_as) in
            [("model.dropout.embedding", hidden), (attention, attention), (hidden, hidden)]
        {
            let rate = self.float(given_as)?.unwrap_or(0.0);
            settings.set(key, number(rate), self.name(given_as));
            dropped |= rate > 0.0;
        }
        if dropped {
            notes.push(
                "dropout draws other random numbers here than there: no state can carry them over"
                    .into(),
            );
        }
        Ok(())
    }

    fn rope(&self, settings: &mut Settings) -> anyhow::Result<()> {
        let key = "model.position.rope.theta";
        let theta = self.float(key)?.unwrap_or(10_000.0);
        settings.set(key, number(theta), self.name(key));
        let llama3 = "model.position.rope.scaling.llama3";
        let factor = self.float("model.position.rope.scaling.llama3.factor")?;
        if self.is_set(llama3) {
            let scaling = format!(
                "{{llama3: {{factor: {}, low_freq_factor: 1, high_freq_factor: 4, \
                 original_seq_len: 8192}}}}",
                number(factor.unwrap_or(8.0))
            );
            let from = self.name(llama3);
            settings.set("model.position.rope.scaling", scaling, from);
        }
        for name in ["rotary_percent", "rotary_seq_len_interpolation_factor"] {
            if let Some(value) = self.float(name)?.filter(|value| *value != 1.0) {
                self.refuse_option(format!(
                    "args.{name} is {value}: gptrain rotates all columns, by the unscaled position"
                ))?;
            }
        }
        Ok(())
    }

    /// Options of Megatron-LM that Megatron-DeepSpeed's models do not have. The default of the family,
    /// Llama or another, is not written.
    fn parts(&self, llama: bool, settings: &mut Settings) -> anyhow::Result<()> {
        let gated = self.is_set("model.ffn: swiglu");
        if gated != llama {
            let ffn = if gated { "swiglu" } else { "gelu" };
            settings.set("model.ffn", ffn, self.name("model.ffn: swiglu"));
        }
        let norm = match self.find("model.norm") {
            Some((name, norm)) => self.converted("model.norm", name, &norm)?,
            None => "layer".to_string(),
        };
        if (norm == "rms") != llama {
            settings.set("model.norm", norm, self.name("model.norm"));
        }
        let linear = self.get("model.bias").is_none_or(|value| value.is_true());
        let qkv = self.is_set("model.bias: qkv");
        let bias = match (linear, qkv) {
            (true, _) => "all",
            (false, true) => "qkv",
            (false, false) => "none",
        };
        if bias != if llama { "none" } else { "all" } {
            let names = ["model.bias", "model.bias: qkv"].map(|key| self.name(key));
            settings.set("model.bias", bias, &names.join(", "));
        }
        let key = "model.tied_head";
        let tied = !self.is_set(key);
        if tied == llama {
            settings.set(key, tied, self.name(key));
        }
        if self.is_set("model.qk_norm") {
            self.set(settings, &["model.qk_norm"])?;
        }
        if self.is_set("group_query_attention") {
            self.set_needed(settings, &["model.kv_heads"])?;
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
