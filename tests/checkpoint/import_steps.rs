//! Steps that the tests of imports share. A tiny BLOOM or Llama trained six steps, and its state was cut
//! into the folder of another trainer by a script in `tests/fixtures/torch`. The folder is imported, or
//! damaged first, and the new run is compared with the one that never left.

use crate::common::binary::{Done, Lab};
use crate::common::saved::Saved;
use crate::common::unpack::unpack;
use gptrain::base::rng;
use gptrain::exchange::foreign::{Choices, Format, open};
use std::fs;
use std::path::{Path, PathBuf};

/// The sixth step, in the folder of a run.
pub const STEP: &str = "checkpoints/step-00000006";

/// Settings that Megatron's arguments do not have.
pub const LOCAL: &[&str] = &["train.threads=1", "comm.start_timeout_s=480"];

/// Run that folders were cut from. The scripts repeat its manifest as the other trainer's arguments.
pub struct Original {
    manifest: &'static str,
    /// The dataset, and the checkpoint of the sixth step: fixtures, or parts of the archive.
    archive: Option<&'static str>,
    corpus: &'static str,
    step: &'static str,
    /// Steps that follow the sixth.
    steps: usize,
}

pub static BLOOM_RUN: Original = Original {
    manifest: "
name: bloom
model: {family: bloom, layers: 2, hidden: 16, heads: 2, vocab: 256, vocab_multiple: 1, ffn_hidden: 64,
  seq_len: 16, position: alibi, embedding_layernorm: true}
precision: bf16
data: {rule: megatron-deepspeed, seed: 42, train: corpus, split: '100,0,0'}
batch: {micro: 2, global: 8, ramp_up: 4 4 16}
optimizer: {adamw: {beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, clip: 1.0}}
lr: {peak: 1e-2, min: 1e-3, warmup_samples: 16, decay: {cosine: {samples: 160}}, counted: before}
checkpoint: {interval: 100}
log: {folder: runs/whole, tensorboard: false}
train: {samples: 160, seed: 42, threads: 1}
comm: {start_timeout_s: 480}
",
    archive: None,
    corpus: "data/megatron/datasets/u8_tiny",
    step: "torch/original/step-00000006",
    steps: 16,
};

/// The same of three layers; its folders are only imported.
pub static UNEVEN_RUN: Original = Original {
    archive: Some("uneven"),
    step: "uneven/step-00000006",
    manifest: BLOOM_RUN.manifest,
    corpus: BLOOM_RUN.corpus,
    steps: 0,
};

pub static LLAMA_RUN: Original = Original {
    manifest: "
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
",
    archive: Some("llama"),
    corpus: "llama/corpus",
    step: "llama/step-00000006",
    steps: 10,
};

/// A Qwen3 of two layers.
pub static QWEN3_RUN: Original = Original {
    manifest: "
name: qwen3
model: {family: qwen3, layers: 2, hidden: 8, heads: 4, kv_heads: 2, head_dim: 4, ffn_hidden: 12, vocab: 64,
  vocab_multiple: 1, seq_len: 16, tied_head: false, position: {rope: {theta: 500}}}
precision: bf16
data: {train: corpus, seed: 42, split: '100,0,0'}
batch: {micro: 2, global: 8}
optimizer: {adamw: {beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, clip: 1.0}}
lr: {peak: 1e-2, min: 1e-3, warmup_samples: 16, decay: {cosine: {samples: 160}}, counted: before}
checkpoint: {interval: 100}
log: {folder: runs/whole, tensorboard: false}
train: {samples: 128, seed: 42, threads: 1}
comm: {start_timeout_s: 480}
",
    archive: Some("qwen3"),
    corpus: "qwen3/corpus",
    step: "qwen3/step-00000006",
    steps: 10,
};

/// A folder of another trainer.
#[derive(Clone, Copy)]
pub struct Folder {
    pub original: &'static Original,
    /// Archive that has it.
    pub archive: &'static str,
    /// Folder that is imported, and the step's folder in it.
    pub from: &'static str,
    pub step: &'static str,
    /// Settings that its files do not have.
    pub sets: &'static [&'static str],
    /// Whether the import is given the place of the dataset, or the run.
    pub data_at_import: bool,
}

pub static BLOOM: Folder = Folder {
    original: &BLOOM_RUN,
    archive: "bloom",
    from: "bloom",
    step: "global_step6",
    sets: &[],
    data_at_import: true,
};

pub static MEGATRON: Folder = Folder {
    original: &LLAMA_RUN,
    archive: "llama",
    from: "megatron/core",
    step: "iter_0000006",
    sets: LOCAL,
    data_at_import: true,
};

/// Without `topology.data`: the run's batch of 8 is not divisible by the three data ranks of the files.
pub static ZERO3: Folder = Folder {
    archive: "zero3",
    from: "zero3",
    sets: &["topology.data=1", "topology.zero=0"],
    ..BLOOM
};

pub static TITAN: Folder = Folder {
    archive: "titan",
    from: "titan",
    step: "step-6",
    sets: &[
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
    ],
    ..MEGATRON
};

pub static OLMO: Folder = Folder {
    archive: "olmo",
    from: "olmo",
    step: "step6",
    sets: &[
        "lr.counted=before",
        "train.threads=1",
        "comm.start_timeout_s=480",
        "data.split='100,0,0'",
    ],
    ..MEGATRON
};

/// The Qwen3 in the folders of one program.
pub const fn qwen3(from: &'static str) -> Folder {
    Folder { original: &QWEN3_RUN, archive: "qwen3", from, ..TITAN }
}

/// A BLOOM of three layers on two stages.
pub static UNEVEN: Folder =
    Folder { original: &UNEVEN_RUN, archive: "uneven", from: "uneven/deepspeed", ..BLOOM };

/// Megatron-Core's distributed checkpoint of one form.
pub const fn dist(from: &'static str) -> Folder {
    Folder { archive: "dist", from, ..MEGATRON }
}

/// Megatron-LM's folder with a distributed optimizer of one form.
pub const fn distrib(from: &'static str) -> Folder {
    Folder { archive: "distrib", from, ..MEGATRON }
}

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// Unpacks an archive of `tests/fixtures/torch`, or copies a folder from there.
pub fn lay_out(lab: &Lab, name: &str) {
    let folder = fixture("torch").join(name);
    if folder.is_dir() {
        copy(&folder, &lab.path(name));
    } else {
        unpack(&fixture("torch").join(format!("{name}.tar.zst")), &[""], &lab.path(""));
    }
}

/// Copies a folder with all that is in it over another one.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &to);
        } else {
            fs::copy(&path, to).unwrap();
        }
    }
}

impl Folder {
    /// Laboratory with the corpus, the original run after six steps, and this folder.
    pub fn lab(&self) -> Lab {
        let lab = Lab::new();
        self.original.lay_out(&lab);
        if self.original.archive != Some(self.archive) {
            lay_out(&lab, self.archive);
        }
        lab
    }

    /// The same with some files of a variant that `bloom.py` made in place of the folder's own.
    pub fn variant(&self, name: &str) -> Lab {
        let lab = self.lab();
        copy(&fixture("torch/variants").join(name), &self.step_in(&lab));
        lab
    }

    pub fn step_in(&self, lab: &Lab) -> PathBuf {
        lab.path(self.from).join(self.step)
    }

    /// `gptrain import` to `runs/imported`.
    pub fn import(&self, lab: &Lab, more: &[&str]) -> Done {
        let data = data(lab);
        let mut args = vec!["import", self.from, "--output", "runs/imported"];
        for set in self.sets {
            args.extend(["--set", set]);
        }
        if self.data_at_import {
            args.extend(["--set", &data]);
        }
        lab.gptrain(&[&args, more].concat())
    }

    /// Manifest that an import of the folder writes.
    pub fn imported_manifest(&self) -> String {
        let lab = self.lab();
        self.import(&lab, &[]).well();
        fs::read_to_string(lab.path("runs/imported/manifest.yaml")).unwrap()
    }

    /// Imports the folder for each grid (tensor, pipeline, data, ZeRO), which prints these words: all
    /// states are the original's, and so is every bit of the steps that follow on the grid.
    pub fn continues(&self, grids: &[[usize; 4]], words: &[&str]) {
        for grid in grids {
            let lab = self.lab();
            let done = self.import(&lab, &[]);
            done.well();
            says(&done, words);
            same_states(&lab);
            self.trains_alike(&lab, *grid);
        }
    }

    /// The steps after the sixth, on a grid: the same bits as those of the original run.
    pub fn trains_alike(&self, lab: &Lab, [tensor, pipeline, data, zero]: [usize; 4]) {
        let mut sets = vec![
            format!("topology.tensor={tensor}"),
            format!("topology.pipeline={pipeline}"),
            format!("topology.data={data}"),
            format!("topology.zero={zero}"),
        ];
        if !self.data_at_import {
            sets.push(self::data(lab));
        }
        for run in ["run.yaml", "runs/imported"] {
            let mut args = vec!["run", run];
            for set in &sets {
                args.extend(["--set", set]);
            }
            let done = lab.gptrain(&args);
            done.expect(0, &[]);
            // The dataset may be in another place: the settings and the order of samples are the same.
            let differs = run == "runs/imported" && done.out.contains(" after step ");
            assert!(!differs, "no setting differs: {}", done.out);
        }
        let whole = lab.losses("runs/whole");
        assert_eq!(whole.len(), self.original.steps);
        assert_eq!(lab.losses("runs/imported"), whole, "{sets:?}");
    }

    /// Imports the folder after each change, which is refused with these words, and leaves nothing.
    pub fn refuses(&self, cases: &[(Change, &[&str])]) -> Vec<Done> {
        let mut refusals = Vec::new();
        for (number, (change, words)) in cases.iter().enumerate() {
            println!("case {number}");
            let lab = self.lab();
            change(&self.step_in(&lab));
            refusals.push(self.refused(&lab, words));
        }
        refusals
    }

    /// An import that is refused with these words, and leaves nothing.
    pub fn refused(&self, lab: &Lab, words: &[&str]) -> Done {
        let done = self.import(lab, &[]);
        done.expect(2, words);
        let runs: Vec<_> = fs::read_dir(lab.path("runs")).unwrap().collect();
        assert_eq!(runs.len(), 1, "nothing is left beside the original run");
        done
    }

    /// Opens the folder with each of many changes to a file: some are read, others refused, never with a
    /// panic.
    pub fn survives(&self, file: &str, format: Format, cases: u64, mutate: fn(&mut [u8], u64)) {
        let lab = self.lab();
        let path = self.step_in(&lab).join(file);
        let whole = fs::read(&path).unwrap();
        let sets = self.sets.iter().map(ToString::to_string).collect();
        let choices = Choices { sets, ..Choices::default() };
        let mut opened = 0;
        let mut refused = 0;
        for case in 0..cases {
            let mut bytes = whole.clone();
            mutate(&mut bytes, rng::key(case, self.from));
            fs::write(&path, bytes).unwrap();
            match open(&self.step_in(&lab), format, &choices) {
                Ok(_) => opened += 1,
                Err(error) => {
                    let said = format!("{error:#}");
                    assert!(said.contains(self.from), "{said}");
                    refused += 1;
                }
            }
        }
        // Most bytes of torch_dist's tables are names and places.
        let least = if format == Format::MegatronDist { 0 } else { 5 };
        assert!(opened > least && refused > 5, "{opened} opened, {refused} refused");
    }
}

impl Original {
    fn lay_out(&self, lab: &Lab) {
        if let Some(archive) = self.archive {
            lay_out(lab, archive);
        }
        for end in ["bin", "idx"] {
            let corpus = place(lab, &format!("{}.{end}", self.corpus));
            fs::copy(corpus, lab.path(&format!("corpus.{end}"))).unwrap();
        }
        fs::write(lab.path("run.yaml"), self.manifest).unwrap();
        copy(&place(lab, self.step), &lab.path("runs/whole").join(STEP));
    }
}

/// Path of a fixture, or of a part of an archive that was unpacked.
fn place(lab: &Lab, name: &str) -> PathBuf {
    let fixture = fixture(name);
    if fixture.exists() { fixture } else { lab.path(name) }
}

/// Setting of the dataset.
pub fn data(lab: &Lab) -> String {
    format!("data.train={}", lab.path("corpus").display())
}

/// The output of a command has each of these words.
pub fn says(done: &Done, words: &[&str]) {
    for word in words {
        assert!(done.out.contains(word), "{word:?} is not in:\n{}", done.out);
    }
}

pub fn imported(lab: &Lab) -> Saved {
    Saved::read(&lab.path("runs/imported").join(STEP))
}

pub fn original(lab: &Lab) -> Saved {
    Saved::read(&lab.path("runs/whole").join(STEP))
}

/// Every tensor and number of the imported run is the original's.
pub fn same_states(lab: &Lab) {
    let imported = imported(lab);
    let original = original(lab);
    same_tensors(&imported, &original);
    assert_eq!(imported.state.progress, original.state.progress);
    assert_eq!(imported.state.optimizer.groups, original.state.optimizer.groups);
    assert_eq!(imported.state.next_batch, original.state.next_batch);
}

pub fn same_tensors(imported: &Saved, original: &Saved) {
    assert_eq!(imported.tensors.len(), original.tensors.len());
    for (imported, original) in imported.tensors.iter().zip(&original.tensors) {
        assert_eq!((&imported.name, &imported.shape), (&original.name, &original.shape));
        assert_eq!(imported.kept, original.kept, "{}", imported.name);
    }
}

/// Change to a step's folder.
pub type Change = Box<dyn Fn(&Path)>;

/// Removes a file, or a folder.
pub fn remove(name: &'static str) -> Change {
    Box::new(move |step| {
        let path = step.join(name);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    })
}

/// Changes the bytes of a file.
pub fn edit(name: &'static str, change: impl Fn(&mut Vec<u8>) + 'static) -> Change {
    Box::new(move |step| {
        let path = step.join(name);
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(path, bytes).unwrap();
    })
}

/// Leaves the first `len` bytes of a file.
pub fn cut(name: &'static str, len: usize) -> Change {
    edit(name, move |bytes| bytes.truncate(len))
}

/// Flips a bit of the first number of each of the first `count` archives in a file.
pub fn flip(name: &'static str, count: usize) -> Change {
    edit(name, move |bytes| {
        for at in first_numbers(bytes).into_iter().take(count) {
            bytes[at] ^= 1;
        }
    })
}

/// Overwrites every `from` in a file with `to` and spaces.
pub fn replace(name: &'static str, from: &'static [u8], to: &'static [u8]) -> Change {
    edit(name, move |bytes| {
        let to = [to, &b" ".repeat(from.len() - to.len())].concat();
        let places: Vec<usize> = (0..bytes.len())
            .filter(|at| bytes[*at..].starts_with(from))
            .collect();
        assert!(!places.is_empty());
        for at in places {
            bytes[at..at + to.len()].copy_from_slice(&to);
        }
    })
}

/// Offsets of the numbers of the first tensor of each archive in a file.
fn first_numbers(bytes: &[u8]) -> Vec<usize> {
    let len = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    (0..bytes.len() - 30)
        .filter(|at| bytes[*at..].starts_with(b"PK\x03\x04"))
        .filter(|at| bytes[at + 30..][..len(at + 26)].ends_with(b"/data/0"))
        .map(|at| at + 30 + len(at + 26) + len(at + 28))
        .collect()
}

/// Sets every checksum of an archive to 0, which means that it has none.
pub fn mend(bytes: &mut [u8]) {
    for at in 0..bytes.len() - 30 {
        let place = match &bytes[at..at + 4] {
            b"PK\x01\x02" => at + 16,
            b"PK\x03\x04" => at + 14,
            _ => continue,
        };
        bytes[place..place + 4].fill(0);
    }
}
