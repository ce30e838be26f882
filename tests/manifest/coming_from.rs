//! Names of other programs: the messages that know them, and docs/coming-from.md, which is made from
//! their table: `UPDATE=1 cargo nextest run --locked --test manifest -E 'test(coming_from)'` writes it.

use crate::{GOOD, check_added, complaints};
use gptrain::manifest::dialects::{Dialect, Meaning, ROWS, Row};
use std::fmt::Write;
use std::fs;

const PAGE: &str = "docs/coming-from.md";

const ABOVE: &str = "# Coming from Megatron-LM, Hugging Face, nanoGPT, litgpt, torchtitan, OLMo-core or llm.c
Settings side by side; a test makes this page from the table that imports, exports and messages about unknown keys read.
All keys are explained in [manifest.md](manifest.md); `gptrain manifest show mine.yaml` prints them with values.

";

const BELOW: &str = "
## What is different
* **A world size is not given.** It is tensor × pipeline × data of the manifest; a launcher with another number of ranks
  is refused.
* **Settings are not options.** `--set lr.peak=3e-4` changes one for one command.
* **The tokenizer's vocabulary is padded** to a multiple of `model.vocab_multiple` × `topology.tensor`, as Megatron
  does. Hugging Face exports have the unpadded rows.
* **Dropout is 0** unless `model.dropout` is set; Megatron's default is 0.1.
* **There is no `--load`.** The same command resumes from the run's newest checkpoint, on any grid. `gptrain import`
  starts from a Hugging Face folder, or [continues](import.md) a run of another trainer.
* **Lengths are samples.** `train.steps` and `train.tokens` are converted. Warm-up and decay are samples too.
* **Megatron's datasets** (`.bin`, `.idx`) are read unchanged and in Megatron's sample order (`data.rule`).
";

#[test]
fn the_page_is_made_of_the_table() {
    let mut page = ABOVE.to_string();
    let setting = |row: &Row| match row.meaning {
        Meaning::Setting { key, value } => {
            let value = value.map_or(String::new(), |value| format!(": {value}"));
            let unit = if row.unit.is_empty() { "" } else { " = " };
            Some(format!("`{key}{value}`{unit}{}", row.unit))
        }
        _ => None,
    };
    let unneeded = |row: &Row| match row.meaning {
        Meaning::Unneeded(why) => Some(why.to_string()),
        _ => None,
    };
    let missing = |row: &Row| match row.meaning {
        Meaning::Lacking(why) | Meaning::Only { why, .. } | Meaning::Noted { why, .. } => {
            Some(why.to_string())
        }
        _ => None,
    };
    table("gptrain", &setting, &mut page);
    page += "\n## Options that need no setting\n";
    table("why", &unneeded, &mut page);
    page += "\n## Options that gptrain does not have\n";
    table("why", &missing, &mut page);
    page += BELOW;
    if std::env::var_os("UPDATE").is_some() {
        fs::write(PAGE, &page).unwrap();
    }
    let there = fs::read_to_string(PAGE).unwrap_or_default();
    assert!(there == page, "{PAGE} is not what the table says: run this test with UPDATE=1");
}

/// Writes the rows for which `first` has a text, with a column for each program.
fn table(heading: &str, first: &dyn Fn(&Row) -> Option<String>, page: &mut String) {
    let headings = Dialect::COLUMNS.map(|(name, _)| name);
    writeln!(page, "| {heading} | {} |", headings.join(" | ")).unwrap();
    writeln!(page, "|---{}|", "|---".repeat(headings.len())).unwrap();
    for row in ROWS {
        let Some(text) = first(row) else { continue };
        let cells = Dialect::COLUMNS.map(|(_, dialects)| cell(row, dialects));
        if cells.iter().any(|cell| cell != "–") {
            writeln!(page, "| {text} | {} |", cells.join(" | ")).unwrap();
        }
    }
}

/// Names of one program's dialects, each once, and their remarks.
fn cell(row: &Row, dialects: &[Dialect]) -> String {
    let mut names: Vec<String> = Vec::new();
    let mut remarks: Vec<&str> = Vec::new();
    for dialect in dialects {
        for name in row.names(*dialect) {
            let quoted = match dialect {
                Dialect::Megatron => format!("`--{}`", name.replace('_', "-")),
                _ => format!("`{name}`"),
            };
            if !names.contains(&quoted) {
                names.push(quoted);
            }
        }
        remarks.extend(Some(row.remark(*dialect)).filter(|remark| !remark.is_empty()));
    }
    let names = Some(names.join(", ")).filter(|names| !names.is_empty());
    let parts: Vec<&str> = names.as_deref().into_iter().chain(remarks).collect();
    if parts.is_empty() { "–".to_string() } else { parts.join("; ") }
}

/// Megatron's names that letters alone led to the wrong key, or to none.
#[test]
fn names_of_megatron_are_understood_by_their_meaning() {
    for (typed, remedy) in [
        ("bf16: true", "did you mean precision: bf16?"),
        ("  save_interval: 5", "did you mean checkpoint.interval?"),
        ("weight_decay: 0.1", "did you mean optimizer.adamw.weight_decay?"),
        ("max_position_embeddings: 9", "did you mean model.positions?"),
        ("vocab_file: a", "did you mean data.tokenizer?"),
        ("merge_file: a", "did you mean data.tokenizer?"),
        ("use_distributed_optimizer: true", "did you mean topology.zero: 1?"),
        ("lr_warmup_iters: 5", "did you mean lr.warmup_samples? Its value is steps"),
        (
            "--num-layers-per-virtual-pipeline-stage: 2",
            "did you mean topology.chunks? Its value is layers",
        ),
        ("recompute_method: uniform", "remove it: `topology.recompute` applies to every layer"),
        ("wandb_project: a", "remove it: `gptrain wandb RUN`"),
        ("exit_duration_in_mins: 5", "remove it: a run saves and ends before its Slurm job"),
        ("num_experts: 8", "remove it: gptrain has no mixture of experts"),
        ("multi_latent_attention: true", "remove it: this attention is not one of gptrain's"),
    ] {
        let found = complaints(&format!("{GOOD}{typed}\n"), &[]);
        assert!(found.contains(remedy), "{typed}: {found}");
    }
}

#[test]
fn names_of_nanogpt_litgpt_torchtitan_and_hugging_face_are_understood() {
    for (typed, remedy) in [
        ("max_iters: 5", "did you mean train.steps?"),
        ("warmup_iters: 5", "did you mean lr.warmup_samples?"),
        ("lr_decay_iters: 5", "did you mean lr.decay.cosine.samples?"),
        ("out_dir: a", "did you mean log.folder?"),
        ("gradient_accumulation_steps: 5", "did you mean batch.global?"),
        ("wandb_log: true", "remove it: `gptrain wandb RUN`"),
        ("init_from: scratch", "remove it: the same command resumes"),
        ("decay_lr: true", "did you mean lr.decay?"),
        ("eval_iters: 5", "did you mean train.eval_samples?"),
        ("compile: true", "remove it: the binary contains its kernels"),
        ("eval: {max_iters: 100}", "eval.max_iters → did you mean train.eval_samples?"),
        ("optimizer: {init_args: {lr: 1e-3}}", "optimizer.init_args.lr → did you mean lr.peak?"),
        (
            "training: {local_batch_size: 8}",
            "training.local_batch_size → did you mean batch.micro?",
        ),
        ("parallelism: {tensor_parallel_degree: 8}", "did you mean topology.tensor?"),
        ("zero_optimization: {stage: 2}", "did you mean topology.zero?"),
        ("per_device_train_batch_size: 8", "did you mean batch.micro?"),
        ("max_grad_norm: 1.0", "did you mean optimizer.adamw.clip?"),
        ("warmup_ratio: 0.1", "did you mean lr.warmup_samples?"),
        ("eval_strategy: steps", "remove it: `train.eval_interval`"),
        ("report_to: none", "remove it: `gptrain wandb RUN`"),
    ] {
        let found = complaints(&format!("{GOOD}{typed}\n"), &[]);
        assert!(found.contains(remedy), "{typed}: {found}");
    }
}

/// A section that no trainer has is reported itself.
#[test]
fn an_unknown_section_of_unknown_keys_is_one_mistake() {
    let found = complaints(&format!("{GOOD}plugins: {{alpha: 1, omega: 2}}\n"), &[]);
    assert!(found.starts_with("m.yaml:17: unknown key plugins → a manifest has"), "{found}");
    check_added("mystery: 1", &found.replace("plugins", "mystery"));
}
