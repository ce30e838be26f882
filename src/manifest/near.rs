//! "Did you mean": the key that was probably meant.

/// What a key is called elsewhere (Megatron, DeepSpeed, Hugging Face, PyTorch), and here.
const OTHER_NAMES: &[(&str, &str)] = &[
    ("num_layers", "model.layers"),
    ("n_layer", "model.layers"),
    ("n_layers", "model.layers"),
    ("hidden_size", "model.hidden"),
    ("n_embd", "model.hidden"),
    ("d_model", "model.hidden"),
    ("num_attention_heads", "model.heads"),
    ("n_head", "model.heads"),
    ("n_heads", "model.heads"),
    ("num_heads", "model.heads"),
    ("ffn_hidden_size", "model.ffn_hidden"),
    ("intermediate_size", "model.ffn_hidden"),
    ("n_inner", "model.ffn_hidden"),
    ("vocab_size", "model.vocab"),
    ("padded_vocab_size", "model.vocab_multiple"),
    ("make_vocab_size_divisible_by", "model.vocab_multiple"),
    ("seq_length", "model.seq_len"),
    ("sequence_length", "model.seq_len"),
    ("block_size", "model.seq_len"),
    ("n_positions", "model.seq_len"),
    ("max_position_embeddings", "model.seq_len"),
    ("position_embedding_type", "model.position"),
    ("embed_layernorm", "model.embedding_layernorm"),
    ("tie_word_embeddings", "model.tied_head"),
    ("activation_function", "model.gelu"),
    ("layernorm_epsilon", "model.layernorm_eps"),
    ("layer_norm_epsilon", "model.layernorm_eps"),
    ("hidden_dropout", "model.dropout.residual"),
    ("attention_dropout", "model.dropout.attention"),
    ("init_method_std", "model.init.std"),
    ("initializer_range", "model.init.std"),
    ("dtype", "precision"),
    ("initial_loss_scale", "loss_scale.initial"),
    ("initial_scale_power", "loss_scale.initial"),
    ("min_loss_scale", "loss_scale.min"),
    ("loss_scale_window", "loss_scale.window"),
    ("data_path", "data.train"),
    ("train_data_path", "data.train"),
    ("valid_data_path", "data.valid"),
    ("eod_mask_loss", "data.eod.mask_loss"),
    ("reset_position_ids", "data.eod.reset_positions"),
    ("reset_attention_mask", "data.eod.reset_attention"),
    ("micro_batch_size", "batch.micro"),
    ("train_micro_batch_size_per_gpu", "batch.micro"),
    ("global_batch_size", "batch.global"),
    ("train_batch_size", "batch.global"),
    ("batch_size", "batch.global"),
    ("rampup_batch_size", "batch.ramp_up"),
    ("learning_rate", "lr.peak"),
    ("max_lr", "lr.peak"),
    ("min_lr", "lr.min"),
    ("warmup", "lr.warmup_samples"),
    ("lr_warmup_samples", "lr.warmup_samples"),
    ("lr_decay_style", "lr.decay"),
    ("adam_beta1", "optimizer.adamw.beta1"),
    ("adam_beta2", "optimizer.adamw.beta2"),
    ("adam_eps", "optimizer.adamw.eps"),
    ("clip_grad", "optimizer.adamw.clip"),
    ("grad_clip", "optimizer.adamw.clip"),
    ("gradient_clipping", "optimizer.adamw.clip"),
    ("tp", "topology.tensor"),
    ("pp", "topology.pipeline"),
    ("dp", "topology.data"),
    ("tensor_model_parallel_size", "topology.tensor"),
    ("pipeline_model_parallel_size", "topology.pipeline"),
    ("zero_stage", "topology.zero"),
    ("checkpoint_activations", "topology.recompute"),
    ("recompute_granularity", "topology.recompute"),
    ("save_interval", "checkpoint.interval"),
    ("save_total_limit", "checkpoint.keep_last"),
    ("async_save", "checkpoint.in_flight"),
    ("log_interval", "log.interval"),
    ("output_dir", "log.folder"),
    ("train_samples", "train.samples"),
    ("train_tokens", "train.tokens"),
    ("train_iters", "train.steps"),
    ("max_steps", "train.steps"),
    ("iterations", "train.steps"),
    ("eval_iters", "train.eval_samples"),
];

/// The full path that was probably meant by `key` in `section`, which knows the keys `siblings`;
/// `all` are the paths of every key there is.
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
    let known = OTHER_NAMES.iter().find(|(other, _)| *other == plain).map(|(_, path)| *path);
    if let Some(path) = known {
        return Some(path.to_string());
    }
    let last = |path: &String| path.rsplit('.').next() == Some(&plain);
    all.iter().find(|path| last(path) && !path.contains("*")).cloned()
}

/// The word nearest to `typed`, where one is near enough to have been meant.
pub fn word<'a>(typed: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (typed.chars().count() / 3).clamp(1, 3);
    known
        .map(|word| (distance(typed, word), word))
        .filter(|(distance, word)| *distance <= allowed && *distance < word.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// `a.b`, or `b` at the top.
pub fn join(section: &str, key: &str) -> String {
    if section.is_empty() { key.to_string() } else { format!("{section}.{key}") }
}

/// Letters inserted, removed, changed or swapped with a neighbour to turn one word into the other
/// (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(64).collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let change = usize::from(a[i - 1] != b[j - 1]);
            let mut best =
                (rows[i - 1][j] + 1).min(row[j - 1] + 1).min(rows[i - 1][j - 1] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}
