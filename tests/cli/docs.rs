//! The commands in `docs/`: every one is understood by the command line, and those that need neither
//! a GPU, a cluster nor minutes are run as they are printed, in their order.

use crate::common::binary::{Done, Lab};
use crate::estimate_experts::QWEN;
use gptrain::commands;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A block of shell commands: its page, and its lines without their comments.
struct Block {
    page: String,
    lines: Vec<String>,
}

impl Block {
    /// Whether this block is the one that holds a line which begins so.
    fn has(&self, page: &str, start: &str) -> bool {
        self.page == page && self.lines.iter().any(|line| line.starts_with(start))
    }
}

/// All blocks of the README and of `docs/`.
fn blocks() -> Vec<Block> {
    let mut pages: Vec<PathBuf> = fs::read_dir(root().join("docs"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
        .collect();
    pages.push(root().join("README.md"));
    pages.sort();
    let mut blocks = Vec::new();
    for path in pages {
        let page = path.file_name().unwrap().to_str().unwrap().to_string();
        let text = fs::read_to_string(&path).unwrap();
        for block in text.split("```sh\n").skip(1) {
            let block = block.split("\n```").next().unwrap().replace("\\\n", "");
            let bare = |line: &str| line.split(" #").next().unwrap().trim().to_string();
            let lines = block
                .lines()
                .filter(|line| !line.starts_with('#'))
                .map(bare)
                .collect();
            blocks.push(Block { page: page.clone(), lines });
        }
    }
    blocks
}

/// The arguments of each call of gptrain in a line of shell.
fn calls(line: &str) -> Vec<Vec<String>> {
    let ends = ["|", ";", ">", "&"];
    let mut calls = Vec::new();
    let mut rest = line;
    while let Some(at) = rest.find("gptrain ") {
        let named = rest[..at].ends_with(['/', '"']) || at == 0 || rest[..at].ends_with(' ');
        let call = &rest[at..];
        let mut words = Vec::new();
        let mut quoted: Option<String> = None;
        for word in call.split(' ').filter(|word| !word.is_empty()) {
            let quotes = word.matches('"').count();
            match (&mut quoted, quotes % 2) {
                (None, 1) => quoted = Some(word.replace('"', "")),
                (None, _) if ends.iter().any(|end| word.starts_with(end)) => break,
                (None, _) => words.push(word.replace('"', "")),
                (Some(text), n) => {
                    text.push_str(&format!(" {}", word.replace('"', "")));
                    words.extend((n == 1).then(|| text.clone()));
                    if n == 1 {
                        quoted = None;
                    }
                }
            }
        }
        if named {
            calls.push(words.iter().flat_map(|word| expanded(word)).collect());
        }
        rest = &rest[at + "gptrain ".len()..];
    }
    calls
}

/// As bash expands braces: `step-{1,2}` is two words.
fn expanded(word: &str) -> Vec<String> {
    let parts = word.split_once('{').and_then(|(before, rest)| {
        let (inside, after) = rest.split_once('}')?;
        inside.contains(',').then_some((before, inside, after))
    });
    match parts {
        Some((before, inside, after)) => inside
            .split(',')
            .map(|part| format!("{before}{part}{after}"))
            .collect(),
        None => vec![word.to_string()],
    }
}

#[test]
fn every_command_of_the_docs_is_understood() {
    let mut understood = 0;
    for block in blocks() {
        for words in block.lines.iter().flat_map(|line| calls(line)) {
            let shown = words.join(" ");
            commands::understands(&words)
                .unwrap_or_else(|why| panic!("{}: {shown}\n{why}", block.page));
            understood += 1;
        }
    }
    assert!(understood > 50, "{understood}");
    assert!(commands::understands(&["gptrain", "run", "m.yaml", "--sett", "a=1"]).is_err());
}

/// Blocks that are only understood: what they would need, or the test that does the same.
const NOT_RUN: &[(&str, &str, &str)] = &[
    ("README.md", "make run", "builds"),
    ("README.md", "gptrain data train-tokenizer", "readme::a_first_training_works"),
    ("README.md", "gptrain run manifests/quickstart-grid.yaml", "Slurm: tests/cluster"),
    ("checkpoint-errors.md", "gptrain import", "tests/checkpoint/import_*.rs"),
    ("checkpoint-errors.md", "gptrain convert", "tests/checkpoint/import_exported.rs"),
    ("checkpoints.md", "PATH=", "two minutes of a 124M model: tests/checkpoint"),
    ("cluster.md", "gptrain run manifests/quickstart-grid.yaml", "tests/model/grids.rs"),
    ("cluster.md", "srun -n 8 --kill-on-bad-exit=1 gptrain run", "Slurm: tests/cluster"),
    ("cluster.md", "gptrain bench", "a minute on an idle machine: tests/cluster/bench.rs"),
    ("cluster.md", "srun --kill-on-bad-exit=1 gptrain bench", "the same"),
    ("cluster.md", "srun -n 8 gptrain bench mine.yaml --quick --history", "the same"),
    ("cluster.md", "srun -n 8 gptrain bench mine.yaml --quick --set-env", "the same"),
    ("cluster.md", "srun --kill-on-bad-exit=0 gptrain run", "tests/cluster/restart.rs"),
    ("development.md", "GPTRAIN_ATTACK_SECONDS", "CI runs it"),
    ("development.md", "GPTRAIN_EVERY_FAULT=1", "the suite runs a part of it"),
    ("development.md", "GPTRAIN_EVERY_PTX=1", "the suite runs a part of it"),
    ("development.md", "mkdir -p fuzz", "nightly"),
    ("estimate.md", "gptrain tune", "minutes of eight ranks: tests/cli/tune.rs"),
    ("gpu.md", "make test-gpu", "a GPU"),
    ("gpu.md", "GPTRAIN_TEST_GPU=1", "a GPU"),
    ("gpu.md", "python3 -m tarfile", "a GPU"),
    ("how-many-gpus.md", "gptrain estimate --args", "tests/cli/scripts.rs"),
    (
        "how-many-gpus.md",
        "gptrain estimate 8B --tokens 1T --gpus 64 --hardware h100 --as torchtitan --calibrate",
        CSV,
    ),
    ("import.md", "gptrain inspect-ckpt", "tests/checkpoint/inspect_foreign.rs, inspect_diff.rs"),
    ("check-run.md", "gptrain check-run", "tests/checkpoint/check_run.rs"),
    ("import.md", "gptrain import", "tests/checkpoint/import_continues.rs"),
    ("import.md", "gptrain convert", "tests/checkpoint/convert.rs"),
    ("import.md", "gptrain export", "tests/checkpoint/import_exported.rs"),
    ("runs.md", "gptrain sweep", "tests/cli/sweep.rs"),
    ("trace.md", "gptrain run manifests/quickstart-grid.yaml", "tests/cluster/trace.rs"),
    ("trace.md", "gptrain run manifests/quickstart.yaml --ops", "tests/cli/ops.rs"),
];

/// Reason for a block that is not run.
const CSV: &str = "tests/cli/estimate_cli.rs";

/// Replacements: text of the docs, and the text that runs in its place.
type StandIns = &'static [(&'static str, &'static str)];

/// Blocks that are run, and their placeholders for files that only a user has.
const RUN: &[(&str, &str, StandIns)] = &[
    ("data.md", "gptrain data train-tokenizer", &[("32000", "2000")]),
    ("runs.md", "gptrain manifest check", &[]),
    ("eval.md", "gptrain eval runs/mine", &[("srun -n 8 ", "")]),
    ("eval.md", "gptrain average", &[("000{18,19,20}000", "0000000{1,2,3}")]),
    ("checkpoints.md", "gptrain import", &[("vi ", IN_PLACE_OF_AN_EDITOR)]),
    ("cluster.md", "gptrain job", &[]),
    ("tutorials.md", "gptrain data train-tokenizer", &[("32000", "2000"), ("124M", "1M"), SHORT]),
    ("tutorials.md", "gptrain import", &[("--data llama-data", "--data valid_text"), SMALL]),
    ("tutorials.md", "gptrain job", &[("sbatch ", "sh -n ")]),
    ("cluster.md", "gptrain estimate", &[]),
    ("cluster.md", "gptrain nodes", &[]),
    ("estimate.md", "gptrain estimate", &[("--calibrate bench.json", ""), TESTED_ELSEWHERE]),
    ("estimate.md", "gptrain estimate mine.yaml --hardware cluster.yaml", &[]),
    ("how-many-gpus.md", "gptrain estimate 8B --tokens 1T --days", &[]),
    ("how-many-gpus.md", "gptrain estimate 8B --tokens 1T --gpus 64 --hardware a100", &[]),
    ("how-many-gpus.md", "gptrain estimate 70B", &[]),
    ("how-many-gpus.md", "gptrain estimate 8B --sizes", &[]),
    ("how-many-gpus.md", "gptrain estimate 8B --set topology.data=64", &[]),
];

/// Half a minute of a processor, which tests/cli/estimate_cli.rs takes anyway.
const TESTED_ELSEWHERE: (&str, &str) = ("gptrain estimate --selftest", "true");

/// Two steps, in place of an hour and of a thousand.
const SHORT: (&str, &str) = ("--minutes 60", "--set train.steps=2 --set train.eval_samples=2");
const SMALL: (&str, &str) =
    ("--set batch.global=32 --set train.steps=1000", "--set batch.global=1 --set train.steps=2");

/// Edits of an import's manifest by a user: the dataset; and here, the length of the run.
const IN_PLACE_OF_AN_EDITOR: &str = "sed -i -e 's!train: corpus!train: ../../valid_text!' \
    -e 's!steps: 1000!steps: 2!' -e 's!global: 32!global: 2!' ";

/// A line as a user's shell runs it, with the program on PATH.
fn shell(lab: &Lab, line: &str) -> Done {
    let binary = Path::new(env!("CARGO_BIN_EXE_gptrain")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("bash");
    command
        .args(["-c", line])
        .current_dir(lab.path(""))
        .env("PATH", path);
    command.env("GPTRAIN_CACHE", lab.path("cache"));
    Done::of(command.stdin(Stdio::null()).output().unwrap())
}

/// Files of a reader of the docs: text, a tokenizer, datasets, a small run, Hugging Face folders.
fn furnished() -> Lab {
    let lab = Lab::new();
    fs::create_dir(lab.path("corpus")).unwrap();
    for name in ["manifests", "datasets"] {
        symlink(root().join(name), lab.path(name)).unwrap();
    }
    let scores = root().join("tests/fixtures/pytorch/scores");
    for name in ["hellaswag.jsonl", "arc.jsonl"] {
        fs::copy(scores.join(name), lab.path(name)).unwrap();
    }
    let text = root().join("datasets/austen/austen.jsonl.zst");
    fs::copy(text, lab.path("corpus/austen.jsonl.zst")).unwrap();
    let line =
        |n: usize| format!("The {n} cats sat on {} mats, said the {}th.\n", 7 * n % 31, n % 9);
    fs::write(lab.path("held-out.txt"), (0..1300).map(line).collect::<String>()).unwrap();
    let small = "model: {layers: 1, hidden: 32, heads: 4, vocab: 4096, seq_len: 512}\n\
        data: {train: valid_text, tokenizer: datasets/austen/tokenizer.json}\n\
        batch: {micro: 1, global: 16}\nlr: {peak: 1e-3}\ncheckpoint: {interval: 1}\n\
        log: {folder: runs/mine}\ntrain: {steps: 3, eval_samples: 2}\nname: mine\n";
    fs::write(lab.path("mine.yaml"), small).unwrap();
    let page = fs::read_to_string(root().join("docs/estimate.md")).unwrap();
    let cluster = page.split("```yaml\n").nth(1).unwrap();
    fs::write(lab.path("cluster.yaml"), cluster.split("```").next().unwrap()).unwrap();
    fs::write(
        lab.path("llama.yaml"),
        small
            .replace("seq_len", "family: llama, seq_len")
            .replace("runs/mine", "runs/small-llama"),
    )
    .unwrap();
    for line in [
        "gptrain data build held-out.txt --format lines -t datasets/austen/tokenizer.json -o valid_text",
        "gptrain run mine.yaml",
        "gptrain run llama.yaml",
        "gptrain export runs/mine --output gpt2-folder",
        "gptrain export runs/small-llama --output Llama-3.2-1B",
    ] {
        shell(&lab, line).well();
    }
    std::fs::create_dir(lab.path("Qwen3-30B-A3B")).unwrap();
    std::fs::write(lab.path("Qwen3-30B-A3B/config.json"), QWEN).unwrap();
    lab
}

#[test]
fn the_commands_of_the_docs_run_as_they_are_printed() {
    let lab = furnished();
    let blocks = blocks();
    for block in &blocks {
        let known = NOT_RUN
            .iter()
            .filter(|(page, start, _)| block.has(page, start))
            .count();
        let run = RUN
            .iter()
            .filter(|(page, start, _)| block.has(page, start))
            .count();
        assert!(known + run > 0, "{}: in neither list: {:?}", block.page, block.lines);
    }
    for (page, start, stand_ins) in RUN {
        let block = blocks.iter().find(|block| block.has(page, start));
        let block = block.unwrap_or_else(|| panic!("{page} has no block with {start}"));
        for line in block.lines.iter().filter(|line| !line.is_empty()) {
            let put = |line: String, (from, to): &(&str, &str)| line.replace(from, to);
            let line = stand_ins.iter().fold(line.clone(), put);
            let done = shell(&lab, &line);
            assert_eq!(done.code, Some(0), "{page}: {line}\n{}\n{}", done.out, done.err);
        }
    }
}
