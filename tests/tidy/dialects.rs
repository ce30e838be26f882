//! Other programs' names of settings are written in one place, the table of `manifest::dialects`.

use crate::source::files;
use gptrain::manifest::dialects::{Dialect, Meaning, ROWS};
use std::collections::BTreeSet;

/// Dialects that imports and exports read and write.
const DIALECTS: [Dialect; 7] = [
    Dialect::Megatron,
    Dialect::Schedule,
    Dialect::Llama,
    Dialect::Gpt2,
    Dialect::Bloom,
    Dialect::Torchtitan,
    Dialect::OlmoCore,
];

/// Names that are also ordinary words of gptrain's code.
const OWN_WORDS: &[&str] = &[
    "data_seed",
    "decoupled_weight_decay",
    "dump_folder",
    "learning_rate",
    "local_rank",
    "log_level",
    "loss_on_targets_only",
    "max_norm",
    "model_type",
    "n_heads",
    "save_interval",
    "train_samples",
    "zero_stage",
];

/// Names that another file needs, and the reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "foreign/topology.rs",
        "decoder_first_pipeline_num_layers",
        "the first of two for one setting",
    ),
    ("foreign/topology.rs", "decoder_last_pipeline_num_layers", "the second of two"),
    ("foreign/topology.rs", "num_layers_in_first_pipeline_stage", "the former name of the first"),
    ("foreign/topology.rs", "num_layers_in_last_pipeline_stage", "the former name of the second"),
    ("foreign/topology.rs", "account_for_embedding_in_pipeline_split", "the first of two flags"),
    ("foreign/topology.rs", "account_for_loss_in_pipeline_split", "the second of two flags"),
    ("foreign/topology.rs", "pipeline_model_parallel_layout", "one of several for one setting"),
    ("foreign/topology.rs", "pp_partition_method", "DeepSpeed's one for the same setting"),
    ("foreign/export/arguments.rs", "virtual_pipeline_model_parallel_size", "always 1 chunk"),
    ("hf/config/rope.rs", "rope_type", "a key of config.json, too"),
    ("foreign/export/arguments.rs", "bias_gelu_fusion", "one of two flags for one setting"),
    ("foreign/export/arguments.rs", "openai_gelu", "the other one"),
    ("foreign/export/arguments.rs", "padded_vocab_size", "follows from the files"),
    ("foreign/mod.rs", "padded_vocab_size", "the rows of the files, by their name"),
    ("foreign/deepspeed/universal.rs", "padded_vocab_size", "compared with the files"),
    ("foreign/export/arguments.rs", "transformer_impl", "fits the names of the written tensors"),
    ("foreign/export/universal.rs", "apply_residual_connection_post_layernorm", "always false"),
    ("hf/config/gpt.rs", "apply_residual_connection_post_layernorm", "always false"),
    ("foreign/export/universal.rs", "clip_grad", "a key of DeepSpeed's optimizer, too"),
    (
        "check_run/trainer.rs",
        "calculate_per_token_loss",
        "a rule of the loss that gptrain has no setting for",
    ),
    ("foreign/arguments.rs", "train_weighted_split_paths", "four lists that its parts name"),
    ("foreign/arguments.rs", "valid_weighted_split_paths", "the same of the validation"),
    ("script/deepspeed.rs", "curriculum_learning", "a key of DeepSpeed's JSON, too"),
    ("script/deepspeed.rs", "deepspeed_config", "names the file that is read"),
    ("script/megatron.rs", "lr_warmup_fraction", "a share, beside steps and samples"),
    ("script/megatron.rs", "pad_vocab_size_to", "one of two for one setting"),
    ("script/megatron.rs", "padded_vocab_size", "the other one"),
    ("script/mod.rs", "world_size", "the ranks that a log has printed"),
    ("foreign/megatron/buffers.rs", "ddp_bucket_size", "the order of a buffer"),
    ("mixture/config.rs", "num_experts", "a key of models that only other programs train"),
    ("mixture/config.rs", "q_lora_rank", "the same"),
    ("mixture/config.rs", "kv_lora_rank", "the same"),
    ("mixture/config.rs", "v_head_dim", "the same"),
];

#[test]
fn names_of_other_programs_are_written_in_one_table() {
    let own: BTreeSet<&str> = ROWS
        .iter()
        .filter_map(|row| match row.meaning {
            Meaning::Setting { key, .. } => Some(key),
            _ => None,
        })
        .flat_map(|key| key.split('.'))
        .chain(OWN_WORDS.iter().copied())
        .collect();
    let mut names = BTreeSet::new();
    for row in ROWS {
        for name in DIALECTS.iter().flat_map(|dialect| row.names(*dialect)) {
            let word = name.rsplit('.').next().unwrap_or(name);
            // Words without an underscore are too common to be searched for.
            if word.contains('_') && !own.contains(word) {
                names.insert(word);
            }
        }
    }
    assert!(names.len() > 150 && names.contains("num_layers"), "{names:?}");
    let mut used = BTreeSet::new();
    let mut found = Vec::new();
    for (path, text) in files("src", "rs") {
        let path = path.display().to_string();
        // Options of other programs' commands, which are not settings.
        let elsewhere = path.starts_with("src/manifest/dialects/") || path.ends_with("/tests.rs");
        if elsewhere || path == "src/commands/unknown.rs" {
            continue;
        }
        let words: BTreeSet<&str> = text
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .filter(|word| names.contains(word))
            .collect();
        for word in words {
            let exception = EXCEPTIONS
                .iter()
                .position(|(file, name, _)| path.ends_with(file) && *name == word);
            match exception {
                Some(number) => {
                    used.insert(number);
                }
                None => found.push(format!("{path}: {word}")),
            }
        }
    }
    assert!(found.is_empty(), "names of `manifest::dialects` written again:\n{}", found.join("\n"));
    assert_eq!(used.len(), EXCEPTIONS.len(), "an exception is not needed any more");
}
