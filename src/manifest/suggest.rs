//! "Did you mean" suggestions for misspelt keys and values.

/// Keys, and their names in other programs (Megatron, DeepSpeed, Hugging Face, PyTorch).
const OTHER_NAMES: &[(&str, &str)] = &[
    ("model.layers", "num_layers n_layer n_layers"),
    ("model.hidden", "hidden_size n_embd d_model"),
    ("model.heads", "num_attention_heads n_head n_heads num_heads"),
    ("model.kv_heads", "num_key_value_heads num_query_groups n_kv_heads"),
    ("model.head_dim", "kv_channels"),
    ("model.ffn_hidden", "ffn_hidden_size intermediate_size n_inner"),
    ("model.vocab", "vocab_size"),
    ("model.vocab_multiple", "padded_vocab_size make_vocab_size_divisible_by"),
    ("model.seq_len", "seq_length sequence_length block_size n_positions max_position_embeddings"),
    ("model.position", "position_embedding_type"),
    ("model.position.rope.theta", "rope_theta rotary_base"),
    ("model.position.rope.scaling", "rope_scaling"),
    ("model.window", "sliding_window window_size"),
    ("model.qk_norm", "qk_layernorm"),
    ("model.norm", "normalization"),
    ("model.embedding_layernorm", "embed_layernorm"),
    ("model.tied_head", "tie_word_embeddings"),
    ("model.gelu", "activation_function"),
    ("model.ffn", "activation hidden_act"),
    ("model.layernorm_eps", "layernorm_epsilon layer_norm_epsilon rms_norm_eps norm_epsilon"),
    ("model.dropout.residual", "hidden_dropout"),
    ("model.dropout.attention", "attention_dropout"),
    ("model.init.std", "init_method_std initializer_range"),
    ("precision", "dtype"),
    ("loss_scale.initial", "initial_loss_scale initial_scale_power"),
    ("loss_scale.min", "min_loss_scale"),
    ("loss_scale.window", "loss_scale_window"),
    ("data.train", "data_path train_data_path path"),
    ("data.valid", "valid_data_path"),
    ("data.eod.mask_loss", "eod_mask_loss"),
    ("data.eod.reset_positions", "reset_position_ids"),
    ("data.eod.reset_attention", "reset_attention_mask"),
    ("data.inter_document_masking", "dataloader_inter_document_masking"),
    ("batch.micro", "micro_batch_size train_micro_batch_size_per_gpu"),
    ("batch.global", "global_batch_size train_batch_size batch_size"),
    ("batch.ramp_up", "rampup_batch_size"),
    ("lr.peak", "learning_rate max_lr"),
    ("lr.min", "min_lr"),
    ("lr.warmup_samples", "warmup lr_warmup_samples"),
    ("lr.decay", "lr_decay_style"),
    ("optimizer.adamw.beta1", "adam_beta1"),
    ("optimizer.adamw.beta2", "adam_beta2"),
    ("optimizer.adamw.eps", "adam_eps"),
    ("optimizer.adamw.clip", "clip_grad grad_clip gradient_clipping"),
    ("topology.tensor", "tp tensor_model_parallel_size"),
    ("topology.pipeline", "pp pipeline_model_parallel_size"),
    ("topology.data", "dp"),
    ("topology.zero", "zero_stage"),
    ("topology.recompute", "checkpoint_activations recompute_granularity"),
    ("checkpoint.interval", "save_interval"),
    ("checkpoint.keep_last", "save_total_limit"),
    ("checkpoint.in_flight", "async_save"),
    ("log.interval", "log_interval"),
    ("log.folder", "output_dir"),
    ("train.samples", "train_samples epochs num_train_epochs"),
    ("train.tokens", "train_tokens"),
    ("train.steps", "train_iters max_steps iterations"),
    ("train.eval_samples", "eval_iters"),
];

/// Values, and their names in other programs.
const OTHER_WORDS: &[(&str, &str)] = &[
    ("cuda", "gpu nvidia"),
    ("f32", "float32 fp32 float single"),
    ("bf16", "bfloat16"),
    ("fp16", "float16 f16 half"),
    ("adamw", "adam"),
    ("rope", "rotary"),
];

/// Choice that was probably meant by `typed`.
pub fn choice<'a>(typed: &str, known: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    let plain = typed.to_lowercase();
    let elsewhere = OTHER_WORDS.iter().find(|(_, others)| others.split(' ').any(|w| w == plain));
    let is_known = |(word, _): &(&str, &str)| known.clone().find(|known| known == word);
    elsewhere.and_then(is_known).or_else(|| word(typed, known))
}

/// Full path that was probably meant by `key` in `section`, whose keys are `siblings`. `all` are
/// the paths of all keys.
pub fn key<'a>(
    section: &str,
    key: &str,
    siblings: impl Iterator<Item = &'a str>,
    all: &[String],
) -> Option<String> {
    let plain = key.trim_start_matches('-').replace('-', "_").to_lowercase();
    if let Some(sibling) = word(&plain, siblings) {
        return Some(join(section, sibling));
    }
    let known = OTHER_NAMES.iter().find(|(_, others)| others.split(' ').any(|name| name == plain));
    if let Some((path, _)) = known {
        return Some(path.to_string());
    }
    let last = |path: &String| path.rsplit('.').next() == Some(&plain);
    all.iter().find(|path| last(path) && !path.contains("*")).cloned()
}

/// Word closest to `typed`; None if none is close enough.
pub fn word<'a>(typed: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (typed.chars().count() / 3).clamp(1, 3);
    // Keys are shorter than this, and the typed text may be megabytes.
    let typed: String = typed.chars().take(64).collect();
    known
        .map(|word| (strsim::osa_distance(&typed, word), word))
        .filter(|(distance, word)| *distance <= allowed && *distance < word.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// Path of a key: `a.b`, or `b` at the top.
pub fn join(section: &str, key: &str) -> String {
    if section.is_empty() { key.to_string() } else { format!("{section}.{key}") }
}
