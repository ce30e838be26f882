//! A manifest as Megatron's arguments: those that an import reads.

use super::super::super::torch::{Element, Out};
use super::super::RunDescription;
use super::problem;
use crate::shortest;
use base::Problems;
use manifest::dialects::Dialect;
use manifest::{
    Bias, Manifest, NormKind, Position, Precision, RopeScaling, Sequences, settings_json,
};
use serde_json::Value as Json;

/// An error if Megatron has no such model, or it cannot be cut so.
pub fn refused(m: &Manifest, [tensor, pipeline]: [usize; 2], place: &str) -> Result<(), Problems> {
    let model = &m.model;
    let heads = model.heads();
    let mut what: Vec<String> = Vec::new();
    let known = match model.position {
        Position::Learned => true,
        Position::Rope(rope) => match rope.scaling {
            None => true,
            Some(RopeScaling::Llama3(scaling)) => {
                (scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_seq_len)
                    == (1.0, 4.0, 8192)
            }
            Some(_) => false,
        },
        _ => false,
    };
    for (is, why) in [
        (!known, "Megatron-LM has no such position embedding"),
        (model.embedding_layernorm, "Megatron-LM has no norm after the embedding"),
        (model.logit_softcap.is_some(), "Megatron-LM does not cap logits"),
        (model.window.is_some(), "windows are not written"),
        (!model.pattern.is_empty(), "kinds of layers are not written"),
        (model.bias == Bias::Attention, "Megatron-LM has no biases of attention alone"),
        (model.mup.is_some(), "µP's factors are not in Megatron-LM's files"),
        (model.qk_norm && model.norm != NormKind::Rms, "norms of queries and keys are not RMS"),
    ] {
        if is {
            what.push(why.to_string());
        }
    }
    for (name, size) in
        [("heads of keys", heads.kv), ("columns of the feed-forward layer", model.ffn_hidden)]
    {
        if tensor == 0 || !size.is_multiple_of(tensor) {
            what.push(format!("{size} {name} are not divisible by --tensor {tensor}"));
        }
    }
    if pipeline == 0 || !model.layers.is_multiple_of(pipeline) {
        let layers = model.layers;
        what.push(format!("{layers} layers are not divisible by --pipeline {pipeline}"));
    }
    problem(place, what)
}

/// Arguments that are written, by the names that the table of `manifest::dialects` has.
struct Arguments {
    /// The manifest's settings.
    settings: Json,
    list: Vec<(String, Out)>,
}

impl Arguments {
    /// Adds an argument by its setting, or, if it has none, by its name.
    fn put(&mut self, setting: &str, value: impl Into<Out>) {
        let name = Dialect::Megatron
            .names(setting)
            .first()
            .copied()
            .unwrap_or(setting);
        self.list.push((name.to_string(), value.into()));
    }

    /// Adds the arguments of settings that the manifest has, with its values.
    fn copy(&mut self, settings: &[&str]) {
        for setting in settings {
            if let Some((name, value)) = Dialect::Megatron.written(setting, &self.settings) {
                self.list.push((name.to_string(), Out::from(&value)));
            }
        }
    }
}

/// `args`, for `[tensor, pipeline]` ranks; `rows` is the padded vocabulary.
pub fn arguments(
    m: &Manifest,
    facts: &RunDescription,
    [tensor, pipeline]: [usize; 2],
    rows: usize,
) -> Vec<(String, Out)> {
    let mut args = Arguments { settings: settings_json(m), list: Vec::new() };
    args.put("padded_vocab_size", rows);
    args.put("topology.tensor", tensor);
    args.put("topology.pipeline", pipeline);
    args.put("virtual_pipeline_model_parallel_size", Out::None);
    args.put("transformer_impl", "transformer_engine");
    args.put("topology.zero: 1", false);
    args.put("ckpt_format", "torch");
    args.put("consumed_train_samples", facts.samples);
    args.put("iteration", facts.step);
    shape(m, &mut args);
    training(m, &mut args);
    data(m, &mut args);
    args.list
}

/// Arguments of the model.
fn shape(m: &Manifest, args: &mut Arguments) {
    let model = &m.model;
    let heads = model.heads();
    args.copy(&["model.layers", "model.hidden", "model.heads", "model.head_dim"]);
    args.copy(&["model.ffn_hidden"]);
    args.put("group_query_attention", heads.kv != heads.query);
    args.copy(&["model.kv_heads", "model.seq_len"]);
    args.put("model.positions", model.context());
    args.copy(&["model.vocab", "model.vocab_multiple", "model.ffn: swiglu"]);
    args.put("openai_gelu", false);
    args.put("bias_gelu_fusion", model.gelu == base::Gelu::Tanh);
    args.copy(&["model.norm", "model.layernorm_eps"]);
    args.put("apply_layernorm_1p", false);
    args.put("model.bias", model.bias == Bias::All);
    args.copy(&["model.bias: qkv", "model.qk_norm", "model.tied_head", "model.init.std"]);
    args.copy(&["model.dropout.residual", "model.dropout.attention"]);
    let Position::Rope(rope) = model.position else {
        args.put("model.position", "learned_absolute");
        return;
    };
    args.put("model.position", "rope");
    args.copy(&["model.position.rope.theta"]);
    args.put("rotary_percent", 1.0);
    args.put("rotary_interleaved", false);
    if rope.scaling.is_some() {
        args.put("model.position.rope.scaling.llama3", true);
        args.copy(&["model.position.rope.scaling.llama3.factor"]);
    }
}

/// Arguments of the batch, the optimizer, the rates and the precision.
fn training(m: &Manifest, args: &mut Arguments) {
    let (style, samples) = decay(m);
    let dtype = match m.precision {
        Precision::Bf16 | Precision::Fp8 => Element::BF16,
        Precision::Fp16 => Element::F16,
        Precision::F32 | Precision::Tf32 => Element::F32,
    };
    args.copy(&["batch.micro", "batch.global", "train.samples"]);
    args.put("train.steps", Out::None);
    args.copy(&["lr.peak", "lr.min", "lr.warmup_samples"]);
    args.put("lr.decay", style);
    args.put("lr.decay.cosine.samples", samples);
    args.put("optimizer", "adam");
    args.put("optimizer.adamw.weight_decay", shortest(m.optimizer.weight_decay()));
    args.put("optimizer.adamw.clip", m.optimizer.clip().map_or(0.0, shortest));
    args.put("precision: bf16", dtype == Element::BF16);
    args.put("precision: fp16", dtype == Element::F16);
    args.put("precision", Out::Dtype(dtype));
    args.copy(&["train.seed", "checkpoint.interval"]);
    args.copy(&["optimizer.adamw.beta1", "optimizer.adamw.beta2", "optimizer.adamw.eps"]);
    if let Some(ramp) = &m.batch.ramp_up {
        let numbers = [ramp.start as u64, ramp.increment as u64, ramp.samples];
        let text = numbers.map(|number| Out::from(number.to_string().as_str()));
        args.put("batch.ramp_up", Out::List(text.to_vec()));
    }
    match m.loss_scale.map(|scale| scale.constant) {
        Some(Some(constant)) => args.put("loss_scale", constant),
        Some(None) => {
            args.copy(&["loss_scale.initial", "loss_scale.min"]);
            args.copy(&["loss_scale.window", "loss_scale.hysteresis"]);
        }
        None => {}
    }
}

/// Megatron's word for the decay, and the samples at its end.
fn decay(m: &Manifest) -> (&'static str, u64) {
    (m.lr.decay.megatron(), m.lr.decay.end().unwrap_or(m.train.samples))
}

/// Datasets with their weights, and the split.
fn data(m: &Manifest, args: &mut Arguments) {
    let path = |prefix: &std::path::Path| prefix.display().to_string();
    let words: Vec<String> = match m.data.train.as_slice() {
        [one] => vec![path(&one.prefix)],
        several => several
            .iter()
            .flat_map(|set| [set.weight.to_string(), path(&set.prefix)])
            .collect(),
    };
    let words = words.iter().map(|word| Out::from(word.as_str())).collect();
    args.put("data.train", Out::List(words));
    if let Some(Sequences::Split { weights, .. }) = m.data.train.first().map(|set| &set.part) {
        args.put("data.split", weights.as_str());
    }
}

/// The state of `OptimizerParamScheduler`, whose steps are samples.
pub fn scheduler(m: &Manifest, facts: &RunDescription) -> Out {
    let (style, samples) = decay(m);
    let decay = f64::from(m.optimizer.weight_decay());
    let name = |key| Dialect::Schedule.name(key);
    Out::named([
        (name("lr.peak"), m.lr.peak.into()),
        (name("lr.min"), m.lr.min.into()),
        (name("lr.warmup_samples"), m.lr.warmup_samples.into()),
        ("num_steps", facts.samples.into()),
        (name("lr.decay"), style.into()),
        (name("lr.decay.cosine.samples"), samples.into()),
        ("start_wd", decay.into()),
        ("end_wd", decay.into()),
        ("wd_incr_style", "constant".into()),
        ("wd_incr_steps", 0u64.into()),
    ])
}
