//! Every set of flags that the planner prints, applied to its manifest: the manifest must accept it.

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn gptrain(args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gptrain"));
    command.args(args).current_dir(env!("CARGO_MANIFEST_DIR"));
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// Sections that replace those of `PLAIN`: settings that exclude many topologies, or that only some have.
const ODD: [(&str, &str); 12] = [
    ("chunks", "topology: {tensor: 2, pipeline: 4, data: 2, schedule: interleaved, chunks: 3}"),
    ("dealt", "topology: {pipeline: 4, data: 4, layer_split: [5, 7, 7, 5]}"),
    (
        "dealt-chunks",
        "topology: {pipeline: 2, data: 2, schedule: interleaved, layer_split: [5, 7, 7, 5]}",
    ),
    (
        "fp8",
        "precision: fp8\nmodel: {layers: 24, hidden: 1024, heads: 16, ffn_hidden: 2736, vocab: 50257, \
         seq_len: 1024}",
    ),
    ("offload", "topology: {data: 8, zero: 1, offload: {what: optimizer, gradients: device}}"),
    (
        "powersgd",
        "topology: {data: 8, compression: powersgd}\nbatch: {micro: 2, global: 96, ramp_up: 16 16 1k}",
    ),
    ("muon", "optimizer: muon\ntopology: {tensor: 2, pipeline: 2}"),
    ("adafactor", "optimizer: adafactor\ntopology: {data: 4, offload: optimizer}"),
    (
        "adam8bit",
        "optimizer: {adam8bit: {block: 32}}\nmodel: {layers: 12, hidden: 960, heads: 15, vocab: 50257, \
         seq_len: 1024}",
    ),
    (
        "heads",
        "topology: {tensor: 3, pipeline: 2, data: 8}\nbatch: {micro: 1, global: 96}\nmodel: {layers: 40, hidden: 4992, heads: 39, \
         vocab: 50257, seq_len: 2048}",
    ),
    (
        "llama",
        "topology: {tensor: 2, pipeline: 2, data: 4, sequence_parallel: true}\nmodel: {family: llama, \
         layers: 22, hidden: 2048, heads: 32, kv_heads: 2, head_dim: 64, vocab: 32000, seq_len: 2048}",
    ),
    ("fp16", "precision: fp16\nloss_scale: 1024\ntopology: {data: 4}\nplan: {hardware: v100-32g}"),
];

const PLAIN: &str = "
model: {layers: 24, hidden: 1024, heads: 16, vocab: 50257, seq_len: 1024}
precision: bf16
data: {train: none}
batch: {micro: 2, global: 64}
lr: {peak: 1e-4}
train: {tokens: 1B}
plan: {hardware: h100-80g}
";

fn odd_manifest(folder: &Path, name: &str, sections: &str) -> PathBuf {
    let key = |line: &str| line.split(':').next().unwrap_or_default().to_string();
    let replaced: BTreeSet<String> = sections.lines().map(key).collect();
    let kept = PLAIN.lines().filter(|line| !replaced.contains(&key(line)));
    let text = kept.chain(sections.lines()).collect::<Vec<_>>().join("\n");
    let path = folder.join(format!("{name}.yaml"));
    std::fs::write(&path, text + "\n").unwrap();
    path
}

fn shipped() -> Vec<PathBuf> {
    let yaml = |folder: &str| -> Vec<PathBuf> {
        let files = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        files
            .filter(|path| path.extension().is_some_and(|ending| ending == "yaml"))
            .collect()
    };
    let mut all = [yaml("manifests"), yaml("manifests/sweep")].concat();
    all.sort();
    all
}

/// Words as a shell splits them.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut quoted) = (vec![String::new()], false);
    for c in line.chars() {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            c => words.last_mut().unwrap().push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Sets of flags in printed lines; a line of flags continues one above it.
fn printed(text: &str) -> Vec<Vec<String>> {
    let mut all: Vec<Vec<String>> = Vec::new();
    let mut continues = false;
    for line in text.lines() {
        let words = words(line);
        let flags = words
            .windows(2)
            .filter(|two| two[0] == "--set")
            .map(|two| two[1].clone());
        let flags: Vec<String> = flags.collect();
        let only_flags = !flags.is_empty() && words.len() == 2 * flags.len();
        match all.last_mut() {
            Some(last) if continues && only_flags => last.extend(flags),
            _ if !flags.is_empty() => all.push(flags),
            _ => {}
        }
        continues = only_flags;
    }
    all
}

/// Lists under the key `set`, and flags in sentences.
fn in_json(value: &Value, found: &mut Vec<Vec<String>>) {
    match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                match value.as_array().filter(|_| key == "set") {
                    None => in_json(value, found),
                    Some(list) => {
                        let sets = list.iter().map(|set| set.as_str().unwrap());
                        let sets = sets.map(|set| set.strip_prefix("--set ").unwrap_or(set));
                        found.push(sets.map(str::to_string).collect());
                    }
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| in_json(value, found)),
        Value::String(text) => found.extend(printed(text)),
        _ => {}
    }
}

/// Applies the flags that these commands print for a manifest. Returns their number.
fn apply_all(manifest: &Path, commands: &[&str]) -> usize {
    let path = manifest.to_str().unwrap();
    let mut found = Vec::new();
    for command in commands {
        let args: Vec<&str> = ["estimate", path]
            .into_iter()
            .chain(command.split(' '))
            .collect();
        let args: Vec<&str> = args.into_iter().filter(|word| !word.is_empty()).collect();
        let (code, out, err) = gptrain(&args);
        assert!(matches!(code, 0 | 4), "{args:?}: {code} {err}");
        match serde_json::from_str(&out) {
            Ok(json) => in_json(&json, &mut found),
            Err(_) => found.extend(printed(&out)),
        }
    }
    let found: BTreeSet<Vec<String>> = found.into_iter().filter(|sets| !sets.is_empty()).collect();
    for sets in &found {
        let flags = sets.iter().flat_map(|set| ["--set", set]);
        let args: Vec<&str> = ["manifest", "show", path]
            .into_iter()
            .chain(flags)
            .collect();
        let (code, _, err) = gptrain(&args);
        assert_eq!(code, 0, "{args:?}: {err}");
    }
    found.len()
}

/// Commands of every manifest.
const COMMANDS: [&str; 4] = [
    "",
    "--json",
    "--search --gpus 16 --json",
    "--what-if topology.schedule=1f1b,topology.layer_split=balanced",
];

#[test]
fn flags_printed_for_shipped_manifests_are_accepted() {
    let applied: usize = shipped()
        .iter()
        .map(|path| apply_all(path, &COMMANDS))
        .sum();
    assert!(applied >= 186, "{applied}");
}

#[test]
fn flags_printed_for_odd_manifests_are_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let more = [
        "--search --gpus 8 --as gptrain --with offload,adam8bit,powersgd --json",
        "--as megatron-lm --json",
        "--min-gpus",
        "--max-params --gpus 8",
        // Searches over 64 GPUs took four times as long.
        "--sizes 125M,13B --gpus 16 --json",
        "--what-if topology.pipeline=1,topology.tensor=1,topology.schedule=1f1b,topology.layer_split=uniform",
        "--what-if precision=f32,topology.schedule=1f1b,topology.layer_split=balanced --json",
    ];
    let commands = [&COMMANDS[..], &more].concat();
    let count = |(name, sections): &(&str, &str)| {
        apply_all(&odd_manifest(folder.path(), name, sections), &commands)
    };
    let applied: usize = ODD.iter().map(count).sum();
    assert!(applied >= 300, "{applied}");
}

/// A number of replicas that only keeps the number of devices is not the user's mistake.
#[test]
fn what_if_does_not_blame_a_setting_that_was_not_given() {
    let folder = tempfile::tempdir().unwrap();
    let sections = format!("{}\nbatch: {{micro: 8, global: 64}}", ODD[0].1);
    let path = odd_manifest(folder.path(), "chunks", &sections);
    let changes = "topology.pipeline=1,topology.tensor=1,topology.schedule=1f1b";
    let (code, _, err) = gptrain(&["estimate", path.to_str().unwrap(), "--what-if", changes]);
    assert_eq!(code, 2, "{err}");
    for said in
        ["--what-if:", "topology.data is 16 here", "batch.micro to 4", "or give topology.data"]
    {
        assert!(err.contains(said), "{said}: {err}");
    }
    assert!(!err.contains("--set topology.data"), "{err}");
}
