//! Published configurations, and mistakes in them.

use super::super::published::{self, PUBLISHED};
use super::*;

/// Parameters of all classes of transformers on a meta device: all, and those of experts.
const COUNTED: [(&str, u64, u64); 9] = [
    ("Mixtral-8x7B", 46_702_792_704, 45_097_156_608),
    ("Mixtral-8x22B", 140_630_071_296, 135_291_469_824),
    ("Qwen3-30B-A3B", 30_532_122_624, 28_991_029_248),
    ("Qwen3-235B-A22B", 235_093_634_560, 227_096_395_776),
    ("OLMoE-1B-7B", 6_919_161_856, 6_442_450_944),
    ("DeepSeek-V2-Lite", 15_706_484_224, 14_394_851_328),
    ("DeepSeek-V3", 671_026_404_352, 653_908_770_816),
    ("gpt-oss-20b", 20_914_757_184, 19_116_933_120),
    ("gpt-oss-120b", 116_829_156_672, 114_701_598_720),
];

#[test]
fn published_mixtures_have_the_parameters_of_their_classes() {
    assert_eq!(PUBLISHED.len(), COUNTED.len());
    for (name, all, experts) in COUNTED {
        let row = published::find(name).unwrap();
        let model = row.model(4096);
        let found = (row.mixture.parameters(&model), row.mixture.all_experts(&model) as u64);
        assert_eq!(found, (all, experts), "{name}");
    }
}

/// Files as they are published, without the keys that a plan does not read.
const FILES: [(&str, &str); 5] = [
    (
        "Mixtral-8x7B",
        r#"{"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
        "max_position_embeddings": 32768, "num_local_experts": 8, "num_experts_per_tok": 2,
        "sliding_window": null, "tie_word_embeddings": false}"#,
    ),
    (
        "Qwen3-30B-A3B",
        r#"{"model_type": "qwen3_moe", "decoder_sparse_step": 1, "head_dim": 128, "hidden_size": 2048,
        "intermediate_size": 6144, "max_position_embeddings": 40960, "mlp_only_layers": [],
        "moe_intermediate_size": 768, "num_attention_heads": 32, "num_experts": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "vocab_size": 151936}"#,
    ),
    (
        "OLMoE-1B-7B",
        r#"{"model_type": "olmoe", "hidden_size": 2048, "intermediate_size": 1024, "num_hidden_layers": 16,
        "max_position_embeddings": 4096, "num_attention_heads": 16, "num_experts": 64,
        "num_experts_per_tok": 8, "num_key_value_heads": 16, "vocab_size": 50304}"#,
    ),
    (
        "DeepSeek-V3",
        r#"{"model_type": "deepseek_v3", "first_k_dense_replace": 3, "hidden_size": 7168,
        "intermediate_size": 18432, "kv_lora_rank": 512, "moe_intermediate_size": 2048,
        "moe_layer_freq": 1, "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
        "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "max_position_embeddings": 163840, "vocab_size": 129280}"#,
    ),
    (
        "gpt-oss-120b",
        r#"{"model_type": "gpt_oss", "attention_bias": true, "head_dim": 64, "hidden_size": 2880,
        "intermediate_size": 2880, "max_position_embeddings": 131072, "num_attention_heads": 64,
        "num_experts_per_tok": 4, "experts_per_token": 4, "num_hidden_layers": 36,
        "num_key_value_heads": 8, "num_local_experts": 128, "vocab_size": 201088}"#,
    ),
];

#[test]
fn files_describe_the_published_mixtures() {
    for (name, file) in FILES {
        let Described { model, mixture } = parse(file.as_bytes(), name).unwrap().unwrap();
        let row = published::find(name).unwrap();
        assert_eq!(mixture, row.mixture, "{name}");
        assert_eq!(format!("{model:?}"), format!("{:?}", row.model(row.seq_len)), "{name}");
    }
}

#[test]
fn mistakes_and_other_mixtures_are_named() {
    let said = |file: &str| parse(file.as_bytes(), "c.json").unwrap_err().to_string();
    let other = said(r#"{"model_type": "jamba", "num_experts": 16}"#);
    assert!(other.contains("model_type jamba") && other.contains("qwen3_moe"), "{other}");
    let wrong = FILES[1]
        .1
        .replace("[]", "[3]")
        .replace("\"num_experts\": 128,", "");
    let wrong = said(&wrong.replace("\"num_experts_per_tok\": 8", "\"num_experts_per_tok\": 0"));
    for part in [
        "mlp_only_layers is [3]",
        "or n_routed_experts is missing",
        "num_experts_per_tok or experts_per_token is 0",
    ] {
        assert!(wrong.contains(part), "{part}: {wrong}");
    }
    assert!(
        parse(br#"{"model_type": "llama"}"#, "c.json")
            .unwrap()
            .is_none()
    );
}
