//! A tiny Llama brought from another trainer's folder, with its states: it continues as the run that
//! it was cut from, to the last bit. `tests/fixtures/torch/titan.py` made torchtitan's folders with
//! torchtitan's code: two processes, FSDP2, torch.distributed.checkpoint.

use crate::common::binary::{Done, Lab};
use crate::common::saved::Saved;
use crate::common::unpack::unpack;
use gptrain::base::rng;
use std::fs;
use std::path::{Path, PathBuf};

/// The run that was cut.
pub const ORIGINAL: &str = "
name: llama
model: {family: llama, layers: 4, hidden: 8, heads: 4, kv_heads: 2, head_dim: 4, ffn_hidden: 12, vocab: 64,
  vocab_multiple: 1, seq_len: 16, position: {rope: {theta: 500}}}
precision: bf16
data: {train: corpus, seed: 42, split: '100,0,0'}
batch: {micro: 2, global: 8}
optimizer: {adamw: {beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, clip: 1.0}}
lr: {peak: 1e-2, min: 1e-3, warmup_samples: 16, decay: {cosine: {samples: 160}}, counted: before}
checkpoint: {interval: 100}
log: {folder: runs/whole, tensorboard: false}
train: {samples: 128, seed: 42, threads: 1}
comm: {start_timeout_s: 480}
";

const STEP: &str = "checkpoints/step-00000006";

/// Settings that torchtitan's files do not have.
const SETS: &[&str] = &[
    "model.heads=4",
    "model.seq_len=16",
    "model.position.rope.theta=500",
    "batch.global=8",
    "batch.micro=2",
    "lr.min=1e-3",
    "lr.warmup_samples=16",
    "lr.decay={cosine: {samples: 160}}",
    "train.samples=128",
    "train.seed=42",
    "train.threads=1",
    "data.seed=42",
    "data.split='100,0,0'",
    "comm.start_timeout_s=480",
];

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/torch")
        .join(name)
}

/// A folder with the original run after six steps, and a foreign folder.
pub fn lab(foreign: &str) -> Lab {
    let lab = Lab::new();
    unpack(&fixture("llama.tar.zst"), &["llama/"], &lab.path(""));
    let own = fixture(&format!("{foreign}.tar.zst"));
    let archive = if own.exists() { own } else { fixture("llama.tar.zst") };
    unpack(&archive, &[foreign], &lab.path(""));
    for end in ["bin", "idx"] {
        fs::copy(lab.path(&format!("llama/corpus.{end}")), lab.path(&format!("corpus.{end}")))
            .unwrap();
    }
    fs::write(lab.path("run.yaml"), ORIGINAL).unwrap();
    fs::create_dir_all(lab.path("runs/whole/checkpoints")).unwrap();
    fs::rename(lab.path("llama/step-00000006"), lab.path("runs/whole").join(STEP)).unwrap();
    lab
}

/// Setting of the dataset.
pub fn data(lab: &Lab) -> String {
    format!("data.train={}", lab.path("corpus").display())
}

pub fn import(lab: &Lab, from: &str, sets: &[&str], more: &[&str]) -> Done {
    let data = data(lab);
    let sets = [sets, &[&data]]
        .concat()
        .into_iter()
        .flat_map(|set| ["--set", set]);
    let args = ["import", from, "--output", "runs/brought"];
    lab.gptrain(
        &args
            .into_iter()
            .chain(sets)
            .chain(more.iter().copied())
            .collect::<Vec<_>>(),
    )
}

/// Every state of the run that was brought is that of the original.
pub fn same_states(lab: &Lab) {
    let read = |run| Saved::read(&lab.path(run).join(STEP));
    let (brought, original) = (read("runs/brought"), read("runs/whole"));
    assert_eq!(brought.tensors.len(), original.tensors.len());
    for (brought, original) in brought.tensors.iter().zip(&original.tensors) {
        assert_eq!((&brought.name, &brought.shape), (&original.name, &original.shape));
        assert_eq!(brought.kept, original.kept, "{}", brought.name);
    }
    assert_eq!(brought.state.progress, original.state.progress);
    assert_eq!(brought.state.optimizer.groups, original.state.optimizer.groups);
    assert_eq!(brought.state.next_batch, original.state.next_batch);
}

/// The ten steps that follow: the same bits as those of the run that never left, on the same grid.
pub fn continues_alike(lab: &Lab, [tensor, pipeline, data]: [usize; 3]) {
    let sets = [
        format!("topology.tensor={tensor}"),
        format!("topology.pipeline={pipeline}"),
        format!("topology.data={data}"),
    ];
    for manifest in ["run.yaml", "runs/brought"] {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let args: Vec<&str> = ["run", manifest].into_iter().chain(sets).collect();
        lab.gptrain(&args).expect(0, &[]);
    }
    let (whole, brought) = (lab.losses("runs/whole"), lab.losses("runs/brought"));
    assert_eq!(whole.len(), 10);
    assert_eq!(brought, whole, "{tensor} × {pipeline} × {data}");
}

#[test]
fn a_folder_of_torchtitan_continues_bit_for_bit() {
    let lab = lab("titan");
    let done = import(&lab, "titan", SETS, &[]);
    done.well();
    for words in [
        "torchtitan",
        "step 6, 48 samples",
        "tensor 1 × pipeline 1 × data 2",
        "decays all parameters, 9 norms too",
        "place of torchtitan's data loader is not carried",
    ] {
        assert!(done.out.contains(words), "{words}: {}", done.out);
    }
    same_states(&lab);
    continues_alike(&lab, [1, 1, 1]);
    let lab = self::lab("titan");
    import(&lab, "titan/step-6", SETS, &[]).well();
    continues_alike(&lab, [2, 2, 1]);
}

/// The step is a tensor, and queries, keys and values have moments of their own.
#[test]
fn a_folder_of_torchtitan_of_2024_has_the_same_states() {
    let lab = lab("titan");
    import(&lab, "titan-2024", SETS, &[]).well();
    same_states(&lab);
}

/// torchtitan saves the tied head too; the optimizer has it once.
#[test]
fn a_tied_head_of_torchtitan_is_the_embedding() {
    let lab = lab("titan");
    let done = import(&lab, "titan-tied", SETS, &[]);
    done.well();
    let brought = Saved::read(&lab.path("runs/brought").join(STEP));
    let original = Saved::read(&lab.path("runs/whole").join(STEP));
    assert!(
        brought
            .tensors
            .iter()
            .all(|tensor| tensor.name != "head.weight")
    );
    assert_eq!(brought.tensors.len() + 1, original.tensors.len());
    assert_eq!(brought.tensors[0].kept, original.tensors[0].kept);
}

#[test]
fn what_torchtitans_files_lack_is_asked_for_in_one_go() {
    let lab = lab("titan");
    let done = lab.gptrain(&["import", "titan/step-6", "--output", "runs/brought"]);
    done.expect(2, &["has no model.heads: ", "--set batch.global=512", "has no data.train"]);
    assert!(!lab.path("runs/brought").exists());
    let dry = lab.gptrain(&["import", "titan", "--dry"]);
    dry.well();
    for words in ["model.hidden: 8", "model.heads: not in the files, --set it", "lr.peak: 0.01"] {
        assert!(dry.out.contains(words), "{words}: {}", dry.out);
    }
    let json = lab.gptrain(&["import", "titan", "--dry", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!((&json["step"], &json["wanted"][0]), (&6.into(), &"model.heads".into()));
    assert!(json["samples"].is_null());
    let with = [&["model.heads=3"], &SETS[1..]].concat();
    import(&lab, "titan", &with, &[]).expect(2, &["model.heads=3", "do not divide"]);
}

#[test]
fn folders_of_torchtitan_that_are_not_whole_are_refused() {
    type Change = Box<dyn Fn(&Path)>;
    let edit = |name: &'static str, change: &'static dyn Fn(&mut Vec<u8>)| -> Change {
        Box::new(move |step| {
            let mut bytes = fs::read(step.join(name)).unwrap();
            change(&mut bytes);
            fs::write(step.join(name), bytes).unwrap();
        })
    };
    let cases: Vec<(Change, &[&str])> = vec![
        (
            Box::new(|step| fs::remove_file(step.join("__1_0.distcp")).unwrap()),
            &["__1_0.distcp is missing", "copy the folder of the step whole"],
        ),
        (edit("__0_0.distcp", &|bytes| bytes.truncate(100_000)), &["__0_0.distcp", "cut short"]),
        (edit(".metadata", &|bytes| bytes.truncate(20_000)), &[".metadata", "cut short"]),
        (
            edit(".metadata", &|bytes| replace(bytes, b"ffn_norm", b"mlp_norm")),
            &["layers.0.mlp_norm.weight"],
        ),
        (
            edit(".metadata", &|bytes| replace(bytes, b"__1_0.distcp", b"../x.distcp/")),
            &["which is not a file's name"],
        ),
        (
            edit("__0_0.distcp", &|bytes| {
                let at = first_number(bytes);
                bytes[at] ^= 1;
            }),
            &["__0_0.distcp", "the checksum of data/0"],
        ),
    ];
    for (number, (change, words)) in cases.into_iter().enumerate() {
        let lab = lab("titan");
        change(&lab.path("titan/step-6"));
        let done = import(&lab, "titan", SETS, &[]);
        done.expect(2, words);
        assert!(!lab.path("runs/brought").exists(), "{number}");
    }
}

/// Overwrites the first `from` in a file with `to`, which is as long.
pub fn replace(bytes: &mut [u8], from: &[u8], to: &[u8]) {
    let at = bytes
        .windows(from.len())
        .position(|part| part == from)
        .unwrap();
    bytes[at..at + to.len()].copy_from_slice(to);
}

/// Offset of the numbers of the first tensor in a file of archives.
pub fn first_number(bytes: &[u8]) -> usize {
    first_numbers(bytes)[0]
}

/// Offsets of the numbers of the first tensor of each archive in a file.
pub fn first_numbers(bytes: &[u8]) -> Vec<usize> {
    let headers = (0..bytes.len() - 30).filter(|at| bytes[*at..].starts_with(b"PK\x03\x04"));
    let len = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let storages = headers.filter(|at| bytes[at + 30..][..len(at + 26)].ends_with(b"/data/0"));
    storages
        .map(|at| at + 30 + len(at + 26) + len(at + 28))
        .collect()
}

/// A table of bytes that were changed is read, or refused; never with a panic.
#[test]
fn mutated_tables_of_torchtitan_are_read_or_refused() {
    let lab = lab("titan");
    let table = lab.path("titan/step-6/.metadata");
    let whole = fs::read(&table).unwrap();
    let choices = gptrain::exchange::foreign::Choices {
        sets: SETS.iter().map(ToString::to_string).collect(),
        ..Default::default()
    };
    let (mut opened, mut refused) = (0, 0);
    for case in 0..150u64 {
        let mut bytes = whole.clone();
        let key = rng::key(case, "table");
        for change in 0..1 + case % 3 {
            let at = rng::below(key, 2 * change, bytes.len() as u64) as usize;
            bytes[at] = rng::below(key, 2 * change + 1, 256) as u8;
        }
        fs::write(&table, bytes).unwrap();
        let format = gptrain::exchange::foreign::Format::PytorchDcp;
        match gptrain::exchange::foreign::open(&lab.path("titan/step-6"), format, &choices) {
            Ok(_) => opened += 1,
            Err(error) => {
                assert!(format!("{error:#}").contains("titan"), "{error:#}");
                refused += 1;
            }
        }
    }
    assert!(opened > 5 && refused > 5, "{opened} opened, {refused} refused");
}
