//! A manifest as Megatron's arguments: those that an import reads.

use super::super::super::torch::{Element, Out};
use super::problem;
use crate::shortest;
use base::Problems;
use checkpoint::State;
use manifest::{
    Bias, Ffn, LossScale, Manifest, NormKind, Optimizer, Position, Precision, RopeScaling,
    Sequences,
};

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

/// An argument and its value.
type Named = (&'static str, Out);

/// `args`, for `[tensor, pipeline]` ranks and so many rows of the embedding.
pub fn arguments(
    m: &Manifest,
    state: &State,
    [tensor, pipeline]: [usize; 2],
    rows: usize,
) -> Vec<(String, Out)> {
    let mut args: Vec<Named> = vec![
        ("padded_vocab_size", rows.into()),
        ("tensor_model_parallel_size", tensor.into()),
        ("pipeline_model_parallel_size", pipeline.into()),
        ("virtual_pipeline_model_parallel_size", Out::None),
        ("transformer_impl", "transformer_engine".into()),
        ("use_distributed_optimizer", false.into()),
        ("ckpt_format", "torch".into()),
        ("consumed_train_samples", state.progress.consumed_samples.into()),
        ("iteration", state.progress.step.into()),
    ];
    args.extend(shape(m));
    args.extend(training(m));
    args.extend(data(m));
    args.into_iter()
        .map(|(name, value)| (name.to_string(), value))
        .collect()
}

/// Arguments of the model.
fn shape(m: &Manifest) -> Vec<Named> {
    let (model, heads) = (&m.model, m.model.heads());
    let norm = if model.norm == NormKind::Rms { "RMSNorm" } else { "LayerNorm" };
    let mut args: Vec<Named> = vec![
        ("num_layers", model.layers.into()),
        ("hidden_size", model.hidden.into()),
        ("num_attention_heads", heads.query.into()),
        ("kv_channels", heads.dim.into()),
        ("ffn_hidden_size", model.ffn_hidden.into()),
        ("group_query_attention", (heads.kv != heads.query).into()),
        ("num_query_groups", heads.kv.into()),
        ("seq_length", model.seq_len.into()),
        ("max_position_embeddings", model.context().into()),
        ("vocab_size", model.vocab.into()),
        ("make_vocab_size_divisible_by", model.vocab_multiple.into()),
        ("swiglu", (model.ffn == Ffn::Swiglu).into()),
        ("openai_gelu", false.into()),
        ("bias_gelu_fusion", (model.gelu == base::Gelu::Tanh).into()),
        ("normalization", norm.into()),
        ("norm_epsilon", shortest(model.layernorm_eps).into()),
        ("apply_layernorm_1p", false.into()),
        ("add_bias_linear", (model.bias == Bias::All).into()),
        ("add_qkv_bias", (model.bias == Bias::Qkv).into()),
        ("qk_layernorm", model.qk_norm.into()),
        ("untie_embeddings_and_output_weights", (!model.tied_head).into()),
        ("init_method_std", shortest(model.init.std).into()),
        ("hidden_dropout", shortest(model.dropout.residual).into()),
        ("attention_dropout", shortest(model.dropout.attention).into()),
    ];
    let Position::Rope(rope) = model.position else {
        args.push(("position_embedding_type", "learned_absolute".into()));
        return args;
    };
    args.push(("position_embedding_type", "rope".into()));
    args.push(("rotary_base", rope.theta.into()));
    args.push(("rotary_percent", 1.0.into()));
    args.push(("rotary_interleaved", false.into()));
    if let Some(RopeScaling::Llama3(scaling)) = rope.scaling {
        args.push(("use_rope_scaling", true.into()));
        args.push(("rope_scaling_factor", scaling.factor.into()));
    }
    args
}

/// Arguments of the batch, the optimizer, the rates and the precision.
fn training(m: &Manifest) -> Vec<Named> {
    let (style, samples) = decay(m);
    let dtype = match m.precision {
        Precision::Bf16 | Precision::Fp8 => Element::BF16,
        Precision::Fp16 => Element::F16,
        Precision::F32 | Precision::Tf32 => Element::F32,
    };
    let mut args: Vec<Named> = vec![
        ("micro_batch_size", m.batch.micro.into()),
        ("global_batch_size", m.batch.global.into()),
        ("train_samples", m.train.samples.into()),
        ("train_iters", Out::None),
        ("lr", m.lr.peak.into()),
        ("min_lr", m.lr.min.into()),
        ("lr_warmup_samples", m.lr.warmup_samples.into()),
        ("lr_decay_style", style.into()),
        ("lr_decay_samples", samples.into()),
        ("optimizer", "adam".into()),
        ("weight_decay", shortest(m.optimizer.weight_decay()).into()),
        ("clip_grad", m.optimizer.clip().map_or(0.0, shortest).into()),
        ("bf16", (dtype == Element::BF16).into()),
        ("fp16", (dtype == Element::F16).into()),
        ("params_dtype", Out::Dtype(dtype)),
        ("seed", m.train.seed.into()),
        ("save_interval", m.checkpoint.interval.into()),
    ];
    if let Optimizer::AdamW(rule) = &m.optimizer {
        args.push(("adam_beta1", shortest(rule.beta1).into()));
        args.push(("adam_beta2", shortest(rule.beta2).into()));
        args.push(("adam_eps", shortest(rule.eps).into()));
    }
    if let Some(ramp) = &m.batch.ramp_up {
        let numbers = [ramp.start as u64, ramp.increment as u64, ramp.samples];
        let text = numbers.map(|number| Out::from(number.to_string().as_str()));
        args.push(("rampup_batch_size", Out::List(text.to_vec())));
    }
    match m.loss_scale {
        Some(LossScale { constant: Some(scale), .. }) => args.push(("loss_scale", scale.into())),
        Some(LossScale { constant: None, initial, min, window, hysteresis }) => {
            args.push(("initial_loss_scale", initial.into()));
            args.push(("min_loss_scale", min.into()));
            args.push(("loss_scale_window", window.into()));
            args.push(("hysteresis", hysteresis.into()));
        }
        None => {}
    }
    args
}

/// Megatron's word for the decay, and the samples at its end.
fn decay(m: &Manifest) -> (&'static str, u64) {
    (m.lr.decay.megatron(), m.lr.decay.end().unwrap_or(m.train.samples))
}

/// Datasets with their weights, and the split.
fn data(m: &Manifest) -> Vec<Named> {
    let path = |prefix: &std::path::Path| prefix.display().to_string();
    let words: Vec<String> = match m.data.train.as_slice() {
        [one] => vec![path(&one.prefix)],
        several => several
            .iter()
            .flat_map(|set| [set.weight.to_string(), path(&set.prefix)])
            .collect(),
    };
    let words = words.iter().map(|word| Out::from(word.as_str())).collect();
    let mut args = vec![("data_path", Out::List(words))];
    if let Some(Sequences::Split { weights, .. }) = m.data.train.first().map(|set| &set.part) {
        args.push(("split", Out::from(weights.as_str())));
    }
    args
}

/// The state of `OptimizerParamScheduler`, whose steps are samples.
pub fn scheduler(m: &Manifest, state: &State) -> Out {
    let (style, samples) = decay(m);
    let decay = f64::from(m.optimizer.weight_decay());
    Out::named([
        ("max_lr", m.lr.peak.into()),
        ("min_lr", m.lr.min.into()),
        ("lr_warmup_steps", m.lr.warmup_samples.into()),
        ("num_steps", state.progress.consumed_samples.into()),
        ("lr_decay_style", style.into()),
        ("lr_decay_steps", samples.into()),
        ("start_wd", decay.into()),
        ("end_wd", decay.into()),
        ("wd_incr_style", "constant".into()),
        ("wd_incr_steps", 0u64.into()),
    ])
}
