//! Megatron's arguments as settings of a run.

use super::super::super::Choices;
use super::super::pickled_arguments;
use super::*;

const NEEDED: &str = "num_layers=2 hidden_size=8 num_attention_heads=2 seq_length=16 \
    max_position_embeddings=16 micro_batch_size=2 global_batch_size=8 lr=1 train_iters=20 seed=7";

/// Settings of arguments, without their sources, and notes.
fn settings(more: &str) -> (Settings, Vec<String>) {
    let tree = pickled_arguments(&format!("{NEEDED} {more}"));
    let args = Arguments::new(tree.root(), "x".into(), "mcore", &Choices::default());
    let read = args.settings(None).unwrap();
    assert!(args.ignored().is_empty(), "{:?}", args.ignored());
    read
}

#[test]
fn settings_of_the_run_arrive_and_known_arguments_are_not_listed() {
    let (settings, notes) = settings(
        "eval_interval=50 eval_iters=3 log_interval=5 save_interval=9 save_retain_interval=18 \
         valid_data_path=v distributed_timeout_minutes=2 accumulate_allreduce_grads_in_fp32=True \
         moe_router_topk=2 tp_comm_overlap_rs=True rl_prompts_per_eval=32 kv_lora_rank=32 \
         weight_decay_incr_style=constant train_data_path=t split=99,1,0 ddp_num_buckets=4",
    );
    for (key, value) in [
        ("train.samples", "160"),
        ("train.seed", "7"),
        ("train.eval_interval", "50"),
        ("train.eval_samples", "24"),
        ("log.interval", "5"),
        ("checkpoint.interval", "9"),
        ("checkpoint.keep_every", "18"),
        ("checkpoint.keep_last", "1"),
        ("comm.timeout_s", "120.0"),
        ("data.train", "\"t\""),
        ("data.valid.valid", "\"v\""),
    ] {
        assert_eq!(settings.get(key), Some(value), "{key}");
    }
    assert_eq!(settings.get("data.split"), None, "validation has its own datasets");
    assert!(notes.is_empty(), "{notes:?}");
}

/// A run without validation data has no evaluations.
#[test]
fn evaluations_need_data() {
    let interval = |text: &str| {
        let (settings, _) = settings(text);
        settings.get("train.eval_interval").map(str::to_string)
    };
    assert_eq!(interval("eval_interval=50 eval_iters=3 data_path=t split=100,0,0"), None);
    assert_eq!(interval("eval_interval=50 data_path=t split=90,10,0").as_deref(), Some("50"));
}

#[test]
fn options_that_change_the_training_are_noted() {
    let (_, notes) = settings(
        "weight_decay_incr_style=cosine decoupled_lr=2 calculate_per_token_loss=True fp8=hybrid",
    );
    let all = notes.join("\n");
    for word in [
        "args.weight_decay_incr_style is \"cosine\": gptrain's weight decay does not change",
        "args.decoupled_lr is 2: gptrain has one rate",
        "args.calculate_per_token_loss is true",
        "args.fp8 is \"hybrid\": the manifest has the precision around it",
    ] {
        assert!(all.contains(word), "{word}: {all}");
    }
    assert_eq!(notes.len(), 4, "{all}");
}

#[test]
fn a_flat_schedule_with_a_decay_at_the_end() {
    let wsd = "lr_decay_style=WSD lr_decay_iters=20 lr_wsd_decay_iters=5 lr_wsd_decay_style=";
    let (read, _) = settings(&format!("{wsd}linear"));
    assert_eq!(read.get("lr.decay"), Some("{wsd: {decay_samples: 40, samples: 160}}"));
    let tree = pickled_arguments(&format!("{NEEDED} {wsd}exponential"));
    let refused = |choices: &Choices| {
        let args = Arguments::new(tree.root(), "x".into(), "mcore", choices);
        args.settings(None).map(|_| args.refusals().to_string())
    };
    let error = refused(&Choices::default()).unwrap_err().to_string();
    assert!(error.contains("lr_wsd_decay_style is \"exponential\""), "{error}");
    // A dry import records it.
    assert_eq!(refused(&Choices { dry: true, ..Choices::default() }).unwrap(), error);
}
