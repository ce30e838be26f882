//! `gptrain convert`: every folder that an import reads becomes each other format in one pass, with the
//! bytes of an import and an export.

use crate::common::binary::{Done, Lab};
use crate::import_steps::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Every file of a folder by its path in it.
type Files = BTreeMap<PathBuf, Vec<u8>>;

fn files(folder: &Path) -> Files {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_path_buf();
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    found
}

fn same_bytes(ours: &Files, theirs: &Files) {
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    for (name, bytes) in ours {
        assert!(*bytes == theirs[name], "{} differs", name.display());
    }
}

/// Written formats, by the options of a conversion and of an export.
const TARGETS: [&[&str]; 6] = [
    &["--to", "hf"],
    &["--to", "hf", "--dtype", "f32", "--shard-size", "4KB"],
    &["--to", "megatron"],
    &["--to", "megatron", "--tensor", "2", "--pipeline", "2"],
    &["--to", "megatron", "--pipeline", "3"],
    &["--to", "deepspeed-universal"],
];

/// Converts a folder to every format, and compares each with the export of its import, or with the refusal.
/// Returns how many formats can have it.
fn converts_as_imported(lab: &Lab, from: &str, sets: &[&str]) -> usize {
    let import = ["import", from, "--output", "runs/imported"];
    lab.gptrain(&[&import, sets].concat()).well();
    let mut written = 0;
    for (number, target) in TARGETS.iter().enumerate() {
        let exported = format!("exported-{number}");
        let converted = format!("converted-{number}");
        let export = ["export", "runs/imported", "--output", &exported];
        let export = lab.gptrain(&[&export, *target].concat());
        let convert = ["convert", from, &converted];
        let convert = lab.gptrain(&[&convert, *target, sets].concat());
        assert_eq!(convert.code, export.code, "{from} {target:?}: {}{}", export.err, convert.err);
        if export.code == Some(0) {
            same_bytes(&files(&lab.path(&converted)), &files(&lab.path(&exported)));
            written += 1;
        } else {
            assert_eq!(without_places(&convert), without_places(&export));
            assert!(!lab.path(&converted).exists());
        }
    }
    converts_to_a_run(lab, from, sets);
    written
}

/// Lines of an error without the places that they begin with.
fn without_places(done: &Done) -> Vec<&str> {
    let mut lines = Vec::new();
    for line in done.err.lines() {
        lines.push(line.split_once(": ").map_or(line, |(_, rest)| rest));
    }
    lines
}

/// `--to gptrain` makes the files of an import. A run has a random id, and digests of files that name it.
fn converts_to_a_run(lab: &Lab, from: &str, sets: &[&str]) {
    let run = lab.path("runs/imported");
    let imported = files_without_id(&run);
    fs::rename(&run, lab.path("runs/aside")).unwrap();
    let convert = ["convert", from, "runs/imported", "--to", "gptrain"];
    lab.gptrain(&[&convert, sets].concat()).well();
    same_bytes(&files_without_id(&run), &imported);
}

/// Files of a run without the random id in them, and without the digests of what names it.
fn files_without_id(run: &Path) -> Files {
    let mut files = files(run);
    let index = files.keys().find(|name| name.ends_with("index.json"));
    let index = files.remove(&index.unwrap().clone()).unwrap();
    let mut index: Value = serde_json::from_slice(&index).unwrap();
    let id = index["run"].take().as_str().unwrap().to_string();
    index.as_object_mut().unwrap().remove("digest").unwrap();
    for shard in index["shards"].as_array_mut().unwrap() {
        shard["header_digest"].take();
    }
    for bytes in files.values_mut() {
        let places: Vec<usize> = (0..bytes.len())
            .filter(|at| bytes[*at..].starts_with(id.as_bytes()))
            .collect();
        for at in places {
            bytes[at..at + id.len()].fill(b'-');
        }
    }
    files.insert("index.json".into(), index.to_string().into_bytes());
    files
}

impl Folder {
    /// Settings of an import and of a conversion.
    fn choices(&self, lab: &Lab) -> Vec<String> {
        let mut sets: Vec<String> = self.sets.iter().map(ToString::to_string).collect();
        sets.push(data(lab));
        sets.into_iter()
            .flat_map(|set| ["--set".to_string(), set])
            .collect()
    }

    fn converts(&self, formats: usize) {
        let lab = self.lab();
        let choices = self.choices(&lab);
        let choices: Vec<&str> = choices.iter().map(String::as_str).collect();
        let written = converts_as_imported(&lab, self.from, &choices);
        assert_eq!(written, formats, "formats that can have {}", self.from);
    }
}

#[test]
fn megatron_deepspeeds_folders_are_converted() {
    BLOOM.converts(3);
    UNEVEN.converts(3);
    ZERO3.converts(3);
    Folder { archive: "universal", from: "universal", ..BLOOM }.converts(3);
    Folder { archive: "fp16", from: "fp16", ..BLOOM }.converts(1);
}

#[test]
fn megatrons_folders_are_converted() {
    MEGATRON.converts(4);
    Folder { from: "megatron/chunks", ..MEGATRON }.converts(4);
    distrib("distrib/several").converts(4);
    Folder { archive: "uneven", from: "uneven/megatron", ..MEGATRON }.converts(4);
}

#[test]
fn distributed_checkpoints_are_converted() {
    dist("dist/reshardable").converts(4);
    dist("dist/space").converts(4);
    Folder { archive: "uneven", from: "uneven/dist", ..MEGATRON }.converts(4);
    TITAN.converts(4);
    Folder { from: "titan-tied", ..TITAN }.converts(4);
    OLMO.converts(4);
}

/// Also with the types that each tensor has there, and with the files beside the weights.
#[test]
fn hugging_face_folders_are_converted() {
    for name in ["bloom", "gpt2", "llama", "qwen3-mixed"] {
        let lab = Lab::new();
        let from = fixture("checkpoint/hf").join(name);
        let from = from.to_str().unwrap();
        let data = data(&lab);
        let written = converts_as_imported(&lab, from, &["--set", &data]);
        assert!(written >= 2, "{name}: {written}");
    }
}

/// The bytes of an import and an export of it, too: a run's folder, and a checkpoint.
#[test]
fn gptrains_own_checkpoints_are_converted_as_they_are_exported() {
    let lab = BLOOM.lab();
    let export = ["export", "runs/whole", "--output", "exported", "--to", "deepspeed-universal"];
    lab.gptrain(&export).well();
    for (number, from) in ["runs/whole".to_string(), format!("runs/whole/{STEP}")]
        .iter()
        .enumerate()
    {
        let to = format!("converted-{number}");
        let done = lab.gptrain(&["convert", from, &to, "--to", "deepspeed-universal"]);
        done.well();
        says(&done, &["parameters", "to write", "wrote", "step 6, weights and AdamW's states"]);
        same_bytes(&files(&lab.path(&to)), &files(&lab.path("exported")));
    }
}

#[test]
fn conversions_that_cannot_be_are_refused_with_a_remedy() {
    let lab = TITAN.lab();
    let convert = |more: &[&str]| lab.gptrain(&[&["convert"], more].concat());
    // The printed settings are enough.
    let done = convert(&["titan", "out", "--to", "hf"]);
    done.expect(2, &["has no model.heads", "--set model.heads=16"]);
    assert!(!done.err.contains("lr.") && !done.err.contains("data.train"), "{}", done.err);
    let universal = convert(&["titan", "out", "--to", "deepspeed-universal"]);
    universal.expect(2, &["--set model.heads=16", "--set lr.decay=cosine"]);
    assert!(!lab.path("out").exists());
    let remedies: Vec<&str> = done
        .err
        .lines()
        .filter_map(|line| line.split_once("--set ").map(|(_, set)| set))
        .collect();
    let heads =
        |set: &str| if set == "model.heads=16" { "model.heads=4".into() } else { set.to_string() };
    let sets: Vec<String> = remedies
        .iter()
        .flat_map(|set| ["--set".to_string(), heads(set)])
        .collect();
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    convert(&[&["titan", "out", "--to", "hf"], &sets[..]].concat()).well();
    // What OUT is, and what IN is.
    convert(&["titan", "out", "--to", "hf"]).expect(2, &["--set"]);
    let own = "runs/whole";
    for (more, words) in [
        (&[own, "new", "--to", "gptrain"][..], &["is a checkpoint of gptrain already"][..]),
        (&[own, "new", "--to", "hf", "--tensor", "2"], &["--tensor", "--to megatron"]),
        (&[own, "new", "--to", "megatron", "--dtype", "f32"], &["--dtype", "--to hf"]),
        (&[own, "new", "--to", "hf", "--set", "model.heads=4"], &["--set", "leave it out"]),
        (&[own, "new", "--to", "hf", "--mask-padding"], &["--mask-padding", "gptrain"]),
        (&[own, "out", "--to", "hf"], &["already contains a model"]),
        (&["nowhere", "new", "--to", "hf"], &["nowhere"]),
        (&["titan", "new"], &["--to"]),
    ] {
        convert(more).expect(2, words);
        assert!(!lab.path("new").exists(), "{more:?}");
    }
}
