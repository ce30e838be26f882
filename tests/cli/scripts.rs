//! `gptrain import --args` and `gptrain estimate --log`: launch scripts and logs of other trainers.

use crate::common::binary::Lab;
use gptrain::manifest;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn script(name: &str) -> String {
    let path = root().join("tests/fixtures/scripts").join(name);
    path.to_str().unwrap().to_string()
}

/// Runs a command that succeeds, and prints each of the words.
fn prints(lab: &Lab, args: &[&str], words: &[&str]) {
    let out = lab.gptrain(args).expect(0, &[]).out.clone();
    for word in words {
        assert!(out.contains(word), "{word:?} is not in:\n{out}");
    }
}

/// Lab, and the manifest that a script becomes in it, with what was printed.
fn imported(name: &str, more: &[&str]) -> (Lab, Value) {
    let lab = Lab::new();
    let script = script(name);
    let args = [&["import", "--args", &script, "-o", "made.yaml", "--json"][..], more].concat();
    let out = lab.gptrain(&args).expect(0, &[]).out.clone();
    let printed = serde_json::from_str(&out).unwrap();
    (lab, printed)
}

/// Settings of a manifest with their defaults: lines `.key: value`.
fn shown(manifest: &Path) -> Vec<String> {
    let loaded = manifest::load(manifest, &[]).unwrap();
    let mut lines = Vec::new();
    flatten("", &manifest::settings_json(&loaded.manifest), &mut lines);
    lines
}

fn flatten(key: &str, value: &Value, lines: &mut Vec<String>) {
    match value {
        Value::Object(entries) => {
            for (name, value) in entries {
                flatten(&format!("{key}.{name}"), value, lines);
            }
        }
        value => lines.push(format!("{key}: {value}")),
    }
}

/// Differences of the manifest that a script becomes from a shipped one.
fn differences(lab: &Lab, shipped: &str) -> Vec<String> {
    let shipped: PathBuf = root().join("manifests").join(shipped);
    let [ours, theirs] = [lab.path("made.yaml"), shipped].map(|path| shown(&path));
    let missing = |a: &[String], b: &[String], sign: &str| -> Vec<String> {
        a.iter()
            .filter(|line| !b.contains(line))
            .map(|line| format!("{sign}{line}"))
            .collect()
    };
    let mut found = missing(&ours, &theirs, "+");
    found.extend(missing(&theirs, &ours, "-"));
    found
}

/// The script of the manner of tr8 has the settings of the shipped manifest, but for what only its JSON says.
#[test]
fn a_slurm_script_of_megatron_deepspeed_becomes_its_manifest() {
    let (lab, printed) = imported("gpt-104b.slurm", &[]);
    let found = differences(&lab, "tr8-104b.yaml");
    let known = [".loss_scale.", ".lr.counted"];
    let others: Vec<_> = found
        .iter()
        .filter(|line| !known.iter().any(|known| line.contains(known)))
        .collect();
    assert!(others.is_empty(), "{others:#?}");
    assert!(found.contains(&"+.loss_scale.initial: 4096.0".to_string()), "{found:?}");
    assert_eq!(printed["no_setting"].as_array().unwrap().len(), 0, "{}", printed["no_setting"]);
    assert_eq!(
        printed["job"],
        "gptrain job made.yaml --constraint v100-32g --nodes 128 --cpus-per-task 10 --gres gpu:4 --time \
         20:00:00 --account abc@v100"
    );
    // The printed command works as it is.
    let job: Vec<&str> = printed["job"]
        .as_str()
        .unwrap()
        .split(' ')
        .skip(1)
        .collect();
    prints(&lab, &job, &["#SBATCH --nodes=128", "#SBATCH --ntasks-per-node=4"]);
}

#[test]
fn stages_with_the_embedding_and_bf16_of_deepspeed_arrive() {
    let (lab, printed) = imported("bloom.slurm", &[]);
    let found = differences(&lab, "tr11-176b-bloom.yaml");
    let known = [".data.", ".train.eval", ".plan.hardware", ".lr.counted", ".model.vocab_multiple"];
    let others: Vec<_> = found
        .iter()
        .filter(|line| !known.iter().any(|known| line.contains(known)))
        .collect();
    assert!(others.is_empty(), "{others:#?}");
    let lacking = printed["no_setting"].to_string();
    assert!(lacking.contains("--train-weighted-split-paths-path"), "{lacking}");
}

#[test]
fn files_of_weights_that_a_script_names_are_followed() {
    let lab = Lab::new();
    let splits = lab.path("train-splits.txt").display().to_string();
    fs::write(&splits, "\"train: 0.7 0:0.95 en, 0.3 0:0.95 fr\"\n").unwrap();
    fs::write(format!("{splits}.valid"), "\"en: 1 0.95:1 en\" \"fr: 1 0.95:1 fr\"\n").unwrap();
    let work = format!("WORK={}", lab.path("").display());
    let (made, printed) = imported("bloom.slurm", &["--var", &work]);
    let lacking = printed["no_setting"].to_string();
    assert!(!lacking.contains("weighted-split"), "{lacking}");
    let m = manifest::load(&made.path("made.yaml"), &[])
        .unwrap()
        .manifest;
    let weights: Vec<f64> = m.data.train.iter().map(|set| set.weight).collect();
    assert_eq!((weights, m.data.valid.len()), (vec![0.7, 0.3], 2));
}

#[test]
fn arrays_branches_and_positions_of_a_shell_script_are_followed() {
    let (lab, printed) = imported("llama.sh", &["--var", "2=corpus"]);
    let text = fs::read_to_string(lab.path("made.yaml")).unwrap();
    for line in [
        "layers: 32 # num_layers",
        "kv_heads: 8 # num_query_groups",
        "data: 32 # ranks / (tensor × pipeline)",
        "zero: 1 # use_distributed_optimizer",
        "recompute: selective # recompute_granularity",
        "warmup_samples: 25600 # lr_warmup_fraction",
        "train: \"corpus\" # data_path",
        "weight_decay: 0.01 # weight_decay, Megatron's default",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let lacking = printed["no_setting"].to_string();
    assert!(lacking.contains("--transformer-engine-version"), "{lacking}");
    assert!(
        printed["not_needed"]
            .to_string()
            .contains("--no-load-optim")
    );
    let (lab, _) = imported("llama.sh", &["--var", "1=70B", "--var", "NODES=8"]);
    let text = fs::read_to_string(lab.path("made.yaml")).unwrap();
    for line in ["layers: 80", "tensor: 8", "data: 8 #", "sequence_parallel: true", "${2}"] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn a_script_of_the_trainer_takes_its_model_from_config_json() {
    let lab = Lab::new();
    lab.gptrain(&["run", "run.yaml", "--set", "train.steps=1", "--set", "log.folder=runs/run"])
        .well();
    lab.gptrain(&["export", "runs/run", "--output", "model"])
        .well();
    let script = script("trainer.sh");
    let base = ["import", "--args", &script, "-o", "made.yaml"];
    let missing = [&base[..], &["--var", "1=elsewhere/model"]].concat();
    lab.gptrain(&missing)
        .expect(2, &["config.json of elsewhere/model, which is not here", "hf download"]);
    let args = [&base[..], &["--var", "1=model"]].concat();
    prints(&lab, &args, &["Hugging Face's Trainer, 8 ranks", "wrote made.yaml"]);
    let text = fs::read_to_string(lab.path("made.yaml")).unwrap();
    for line in [
        "global: 64 # per_device_train_batch_size × gradient_accumulation_steps × processes",
        "steps: 1000 # max_steps",
        "warmup_samples: 6400 # warmup_ratio × batch.global",
        "clip: 0.5 # max_grad_norm",
        "zero: 2 # zero_optimization.stage",
        "precision: bf16",
        "beta2: 0.95 # adam_beta2",
        "seq_len: 16 # block_size",
        "framework: hf-deepspeed",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let run = "run_clm.py --config_name model --per_device_train_batch_size 1 --max_steps 10 --block_size 16";
    for (settings, words) in [
        ("--fsdp full_shard", &["zero: 3 # fsdp"][..]),
        (
            "--fsdp 'hybrid_shard_zero2 auto_wrap'",
            &[
                "zero: 2 # fsdp",
                "shard: node # fsdp: hybrid_shard",
                "states: shard # fsdp: hybrid_shard",
            ],
        ),
        (
            "{'stage': 3, 'zero_hpz_partition_size': 4}",
            &["zero: 3", "shard: 4 # zero_optimization.zero_hpz_partition_size\n"],
        ),
        (
            "{'stage': 3, 'mics_shard_size': 2}",
            &[
                "shard: 2 # zero_optimization.mics_shard_size",
                "states: shard # zero_optimization.mics",
            ],
        ),
    ] {
        let line = if settings.starts_with('{') {
            let zero = settings.replace('\'', "\"");
            fs::write(lab.path("ds.json"), format!("{{\"zero_optimization\": {zero}}}")).unwrap();
            format!("deepspeed --num_gpus 8 {run} --deepspeed ds.json")
        } else {
            format!("torchrun --nproc_per_node=8 {run} {settings}")
        };
        prints(&lab, &["import", "--args", &line], words);
    }
    for off in ["--fsdp ''", "--fsdp no_shard"] {
        let line = format!("torchrun --nproc_per_node=8 {run} {off}");
        let out = lab
            .gptrain(&["import", "--args", &line])
            .expect(0, &[])
            .out
            .clone();
        let is_set = |key: &str| out.contains(&format!("\n  {key}: "));
        assert!(is_set("data") && !is_set("zero") && !is_set("shard"), "{off}: {out}");
    }
}

/// Each mistake is one message with its line and a remedy, and nothing is written.
#[test]
fn mistakes_name_the_line_and_the_remedy() {
    let lab = Lab::new();
    let text = fs::read_to_string(script("gpt-104b.slurm")).unwrap();
    let cases: [(&str, &str, &[&str]); 12] = [
        (
            "PP=32\n",
            "\n",
            &["x.sh:60: --pipeline", "$PP, which the script does not set", "--var PP=VALUE"],
        ),
        (
            "--hidden-size 11600",
            "--hidden-size big",
            &["x.sh:35: --hidden-size is \"big\"", "correct the script"],
        ),
        (
            "--data-path $DATA",
            "--data-path",
            &[
                "x.sh:63: --data-path has no value",
                "the path of a dataset",
                "--set data.train=VALUE",
            ],
        ),
        (
            "--hidden-size 11600",
            "--hidden-size",
            &["x.sh:35: --hidden-size has no value", "a whole number", "--set model.hidden=VALUE"],
        ),
        ("PP=32\n", "PP=31\n", &["starts 512 ranks, which tensor × pipeline 124 does not divide"]),
        (
            "VOCAB_SIZE=50257\n",
            "\n",
            &["how many tokens the vocabulary has", "--set model.vocab=50257"],
        ),
        ("--lr 6e-5", "", &["has no --lr", "--set lr.peak=VALUE"]),
        (
            "--fp16",
            "--fp16 --num-experts 8",
            &["--num-experts", "gptrain has no mixture of experts"],
        ),
        ("steps_per_print\": 2000", "x\": ", &["ds_config", "is not JSON"]),
        (
            "clear; srun",
            "clear; echo srun",
            &["no command has arguments of Megatron", "commands: clear"],
        ),
        ("pretrain_gpt.py", "pretrain_t5.py", &["trains another kind of model (t5)"]),
        ("\nset -e", "\nset -e \"", &["is not closed"]),
    ];
    for (from, to, said) in cases {
        assert!(text.contains(from), "{from}");
        fs::write(lab.path("x.sh"), text.replacen(from, to, 1)).unwrap();
        let done = lab.gptrain(&["import", "--args", "x.sh", "-o", "made.yaml"]);
        done.expect(2, said);
        assert!(!lab.path("made.yaml").exists(), "{from}");
    }
    lab.gptrain(&["import", "--args", "none.sh"])
        .expect(2, &["none.sh", "does not exist"]);
    lab.gptrain(&["import", "--args", "x.sh", "--var", "A"])
        .expect(2, &["--var", "write NAME=VALUE"]);
    lab.gptrain(&["import", "--var", "A=1"])
        .expect(2, &["--args"]);
    // A remedy that is typed.
    fs::write(lab.path("x.sh"), text.replace("PP=32\n", "\n")).unwrap();
    let args = ["import", "--args", "x.sh", "-o", "made.yaml", "--var", "PP=32"];
    prints(&lab, &args, &["wrote made.yaml"]);
    lab.gptrain(&args).expect(2, &["made.yaml"]);
    fs::write(lab.path("x.sh"), text.replace("--data-path $DATA", "--data-path")).unwrap();
    let args = ["import", "--args", "x.sh", "-o", "data.yaml", "--set", "data.train=mine"];
    prints(&lab, &args, &["wrote data.yaml"]);
    assert!(
        fs::read_to_string(lab.path("data.yaml"))
            .unwrap()
            .contains("mine")
    );
}

/// A command line instead of a script, and the plan of one.
#[test]
fn a_command_line_is_a_script() {
    let lab = Lab::new();
    let line = "WORLD_SIZE=8; python pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads=4 \
                --seq-length 128 --max-position-embeddings 128 --micro-batch-size 1 --train-iters 10 \
                --lr 1e-3 --vocab-size 1000 --data-path corpus";
    prints(
        &lab,
        &["import", "--args", line],
        &["global: 8", "samples: 80 # train_iters", "dropout:"],
    );
    let plan = ["estimate", "--args", line, "--hardware", "a100-80g"];
    prints(&lab, &plan, &["on 8 × a100-80g"]);
    let both = ["import", "--args", line, "--set", "batch.global=16"];
    prints(&lab, &both, &["global: 16"]);
}

/// Rates of a log that prints its arguments: by hand, of the last batch.
#[test]
fn a_log_has_the_rates_of_its_steps() {
    let lab = Lab::new();
    let mut log = String::from("----- arguments -----\n");
    for (name, value) in [
        ("num_layers", "70"),
        ("hidden_size", "14336"),
        ("num_attention_heads", "112"),
        ("seq_length", "2048"),
        ("max_position_embeddings", "2048"),
        ("padded_vocab_size", "250880"),
        ("micro_batch_size", "2"),
        ("global_batch_size", "2048"),
        ("train_samples", "220000000"),
        ("world_size", "384"),
        ("tensor_model_parallel_size", "4"),
        ("pipeline_model_parallel_size", "12"),
        ("pp_partition_method", "type:transformer|embedding"),
        ("position_embedding_type", "alibi"),
        ("embed_layernorm", "True"),
        ("checkpoint_activations", "True"),
        ("deepspeed", "True"),
        ("lr", "6e-05"),
        ("bf16", "True"),
    ] {
        log += &format!("  {name} {:.>30} {value}\n", "...");
    }
    log += "----- end of arguments -----\n";
    for step in 1..=9u64 {
        log += &format!(
            " iteration {step:8}/  115311 | consumed samples: {:12} | elapsed time per iteration (s): \
             104.50 | global batch size:  2048 | lm loss: 2.0E+00 | TFLOPs: 150.12 |\n",
            step * 2048
        );
    }
    fs::write(lab.path("run.log"), &log).unwrap();
    let args = ["estimate", "--log", "run.log", "--hardware", "a100-80g", "--json"];
    let out: Value = serde_json::from_str(&lab.gptrain(&args).expect(0, &[]).out).unwrap();
    let rate = &out["rates"][0];
    let close = |value: &Value, wanted: f64| {
        let value = value.as_f64().unwrap();
        assert!((value / wanted - 1.0).abs() < 2e-3, "{value}, not {wanted}");
    };
    let (l, h, s, v) = (70.0, 14336.0, 2048.0, 250_880.0);
    let tokens: f64 = 2048.0 * 2048.0;
    // Narayanan et al. 2021, equation 3, with full recomputation.
    let flops = 96.0 * tokens * l * h * h * (1.0 + s / (6.0 * h) + v / (16.0 * l * h));
    close(&rate["tflops"], flops / 104.5 / 384.0 / 1e12);
    close(&rate["tflops_simple"], 8.0 * 176.247e9 * tokens / 104.5 / 384.0 / 1e12);
    close(&rate["tflops_logged"], 150.12);
    close(&rate["tokens_per_s"], tokens / 104.5);
    let model = 72.0 * tokens * l * h * h * (1.0 + s / (6.0 * h) + v / (12.0 * l * h));
    close(&rate["mfu"], model / 104.5 / 384.0 / 312e12);
    close(&out["days_left"], (220e6 - 9.0 * 2048.0) / 2048.0 * 104.5 / 86400.0);
    assert_eq!(rate["steps"], 8, "the first is left out");
    let said = ["step 9, 18432 of 220000000 samples", "MFU: name the GPU", "left at the last"];
    prints(&lab, &["estimate", "--log", "run.log"], &said);
    // A log of DeepSpeed has neither the model nor the batch: a manifest has them.
    let deepspeed = "step: 1\nepoch=0/micro_step=8/global_step=8, RunningAvgSamplesPerSec=3.9, \
                     CurrSamplesPerSec=4.0, MemAllocated=1.1GB\n";
    fs::write(lab.path("ds.log"), deepspeed).unwrap();
    lab.gptrain(&["estimate", "--log", "ds.log"])
        .expect(2, &["has no arguments of Megatron", "--args SCRIPT"]);
    let given = ["estimate", "run.yaml", "--log", "ds.log", "--json"];
    let out: Value = serde_json::from_str(&lab.gptrain(&given).expect(0, &[]).out).unwrap();
    let batch = out["rates"][0]["batch"].as_f64().unwrap();
    close(&out["rates"][0]["seconds"], batch / 4.0);
}

/// The warm-up of the samples' length, of DeepSpeed's JSON: 36,000 steps of 2,048 samples.
#[test]
fn a_curriculum_of_the_json_becomes_stages_of_lengths() {
    let lab = Lab::new();
    let text = fs::read_to_string(script("gpt-104b.slurm")).unwrap();
    let block = r#""curriculum_learning": {"enabled": true, "curriculum_type": "seqlen", "min_difficulty": 64,
      "max_difficulty": 2048, "schedule_type": "fixed_linear",
      "schedule_config": {"total_curriculum_step": 36000, "difficulty_step": 8}},
  "steps_per_print""#;
    let text = text
        .replace("\"steps_per_print\"", block)
        .replace(" --rampup-batch-size 16 16 6_000_000", "");
    fs::write(lab.path("cl.slurm"), text).unwrap();
    let args = ["import", "--args", "cl.slurm", "-o", "made.yaml"];
    lab.gptrain(&args).expect(0, &[]);
    let made = fs::read_to_string(lab.path("made.yaml")).unwrap();
    assert!(made.contains("length_ramp_up: 64 8 73728000 # curriculum_learning"), "{made}");
    // Without its schedule, what to set is said.
    let text = fs::read_to_string(lab.path("cl.slurm")).unwrap();
    let cut = text.find("cat <<EOT").unwrap()..text.find("export LAUNCHER").unwrap();
    let json_is_gone = text
        .replace(&text[cut], "")
        .replace("--zero-stage", "--curriculum-learning --zero-stage");
    fs::write(lab.path("cl.slurm"), json_is_gone).unwrap();
    let args = ["import", "--args", "cl.slurm", "-o", "other.yaml"];
    let out = lab.gptrain(&args).expect(0, &[]).out.clone();
    assert!(out.contains("set batch.length_ramp_up"), "{out}");
}
