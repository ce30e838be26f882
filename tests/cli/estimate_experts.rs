//! Plans of other programs with mixtures of experts and context parallelism, which gptrain itself refuses.

use crate::common::binary::Lab;
use crate::estimate_cli::{estimate, json};
use serde_json::Value;

fn number(value: &Value, place: &str) -> f64 {
    value
        .pointer(place)
        .and_then(Value::as_f64)
        .unwrap_or_else(|| panic!("no {place}: {value}"))
}

/// Qwen3-30B-A3B as its config.json says it.
pub const QWEN: &str = r#"{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "head_dim": 128,
"decoder_sparse_step": 1, "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960,
"mlp_only_layers": [], "moe_intermediate_size": 768, "num_attention_heads": 32, "num_experts": 128,
"num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "vocab_size": 151936,
"tie_word_embeddings": false}"#;

/// A file of a mixture of experts has all its parameters and the active ones, from whatever place it is
/// read; what gptrain cannot do is refused with a remedy that works.
#[test]
fn a_mixture_of_experts_is_planned_for_another_program() {
    let lab = Lab::new();
    std::fs::create_dir(lab.path("qwen")).unwrap();
    std::fs::write(lab.path("qwen/config.json"), QWEN).unwrap();
    let file = lab.path("qwen/config.json").display().to_string();
    let folder = lab.path("qwen").display().to_string();
    let plan = json(&file);
    assert_eq!(plan["parameters"], 30_532_122_624_u64);
    assert_eq!(plan["active_parameters"], 3_353_032_704_u64);
    assert_eq!(
        (&plan["framework"], &plan["topology"]["expert"]),
        (&"megatron-bridge".into(), &8.into())
    );
    assert_eq!(json(&format!("--from {folder}"))["memory"], plan["memory"]);
    let (_, out, err) = estimate(&folder);
    for said in ["30.5 B", "a token uses 3.4 B of them", "EP 8", "gptrain itself does not train"] {
        assert!(out.contains(said), "{said}: {out}");
    }
    assert!(
        err.contains("megatron-bridge (--as)") && err.contains("20 tokens per active parameter"),
        "{err}"
    );

    let refused = |flags: &str, said: &[&str]| {
        let (code, _, err) = estimate(&format!("{file} {flags}"));
        assert!(code == 2 && said.iter().all(|part| err.contains(part)), "{flags}: {err}");
    };
    refused(
        "--as gptrain",
        &["does not train with a mixture of experts yet", "--as megatron-bridge"],
    );
    refused("--as hf-deepspeed", &["not planned for hf-deepspeed", "torchtitan"]);
    refused("--set topology.expert=3", &["EP 3 does not divide both 128 experts", "8"]);
    refused("--set topology.expert=x", &["--set topology.expert", "whole number"]);
    refused("--set topology.context=3", &["4096 tokens per sample are not divisible by 2 × CP 3"]);
    refused("--set model.layers=2", &["the shape of a mixture of experts", "model.seq_len"]);
    refused("--max-params --gpus 8", &["--max-params", "dense models"]);
    let dense = estimate("manifests/llama3-8b.yaml --as nemo --set topology.expert=2").2;
    assert!(dense.contains("the model has no experts"), "{dense}");
}

/// More expert ranks have fewer experts each: less memory, and rows that travel. Each flag that a plan or
/// a search prints is taken back.
#[test]
fn experts_are_dealt_among_ranks() {
    let lab = Lab::new();
    std::fs::write(lab.path("config.json"), QWEN).unwrap();
    let file = lab.path("config.json").display().to_string();
    let of = |expert: usize| {
        json(&format!("{file} --set topology.data=32 --set topology.expert={expert}"))
    };
    let plans = [1, 2, 4, 8, 16, 32].map(of);
    let memory = plans
        .each_ref()
        .map(|plan| number(plan, "/memory/needed_bytes"));
    assert!(memory.windows(2).all(|pair| pair[1] < pair[0]), "{memory:?}");
    let sent = plans
        .each_ref()
        .map(|plan| number(plan, "/time/parts/expert exchange"));
    assert!(sent[0] == 0.0 && sent.windows(2).all(|pair| pair[1] > pair[0]), "{sent:?}");
    // 32 ranks in 4 nodes: what leaves a node takes longer than all that remains.
    assert!(sent[5] > 3.0 * sent[3], "{sent:?}");

    let found = json(&format!("{file} --gpus 32"));
    let best = &found["best"];
    let mut line = file.clone();
    for set in best["set"].as_array().unwrap() {
        line += &format!(" {}", set.as_str().unwrap());
    }
    let alone = json(&line);
    assert_eq!(alone["topology"]["expert"], best["expert"]);
    assert!((number(&alone, "/time/seconds") / number(best, "/sec_per_iter") - 1.0).abs() < 1e-9);
    let two = json(&format!("{file} --what-if topology.expert=4"));
    assert_eq!(two["changed"]["topology.expert"], serde_json::json!(["8", "4"]));
}

/// A context degree takes its ranks from the replicas, divides what a sample needs, and sends keys and
/// values.
#[test]
fn a_sample_is_cut_among_context_ranks() {
    let plan = "manifests/llama3-8b.yaml --as megatron-bridge --set model.seq_len=32768 \
                --set topology.data=8";
    let v = json(&format!("{plan} --what-if topology.context=2"));
    assert_eq!(number(&v, "/now/devices"), number(&v, "/what_if/devices"));
    assert_eq!(v["changed"]["topology.context"], serde_json::json!(["1", "2"]));
    assert_eq!(v["what_if"]["topology"]["data"], 4);
    // The correction by measured runs is a factor of all terms of a plan.
    let saved = |side: &str| {
        let term = |name: &str| number(&v, &format!("/{side}/memory/stages/0/bytes/{name}"));
        term("saved") / term("fixed")
    };
    assert!((saved("now") / saved("what_if") - 2.0).abs() < 1e-9, "{v}");
    assert!(number(&v, "/what_if/time/parts/context exchange") > 0.0);
    assert_eq!(number(&v, "/now/time/parts/context exchange"), 0.0);
    assert!(number(&v, "/what_if/time/error") > number(&v, "/now/time/error"), "{v}");
    let (code, _, err) = estimate("manifests/llama3-8b.yaml --set topology.context=2");
    assert!(code == 2 && err.contains("does not train with context parallelism yet"), "{err}");
    let (_, out, _) = estimate(&format!("{plan} --set topology.context=2"));
    assert!(
        out.contains("× CP 2") && out.contains("gptrain itself does not train with it yet"),
        "{out}"
    );
}

/// Nothing is learned from the published runs of both kinds, so all are predictions. None is refused, and
/// nine in ten are within their bars.
#[test]
fn published_runs_of_both_kinds_are_within_their_bars() {
    for (table, column, rows, most) in
        [("experts_open", "ep", 32, 0.25), ("public_open", "cp", 69, 0.12)]
    {
        let path = format!("src/predict/data/{table}.csv");
        let text = std::fs::read_to_string(&path).unwrap();
        let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let names = lines.next().unwrap();
        let at = names.iter().position(|name| *name == column).unwrap();
        let is_cut = |fields: &Vec<&str>| fields[at].parse().is_ok_and(|ranks: usize| ranks > 1);
        let cut: Vec<&str> = lines.filter(is_cut).map(|fields| fields[0]).collect();
        assert_eq!(cut.len(), rows, "{table}");
        let scored = json(&format!("--score {path}"));
        let scored = scored["rows"].as_array().unwrap().iter();
        let scored = scored.filter(|row| cut.contains(&row["id"].as_str().unwrap()));
        let (mut within, mut sum) = (0, 0.0);
        for row in scored {
            let ratio = number(row, "/sec_per_iter") / number(row, "/measured_sec_per_iter");
            within += usize::from(ratio.ln().abs() <= number(row, "/time_bar").ln_1p());
            sum += (ratio - 1.0).abs();
        }
        let mean = sum / rows as f64;
        assert!(10 * within >= 9 * rows && mean < most, "{table}: {within} of {rows}, {mean}");
    }
}
