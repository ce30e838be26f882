//! A run's checkpoint, taken apart and written again with changes.
#![allow(dead_code)]

use gptrain::base::rng;
use gptrain::checkpoint::disk::Disk;
use gptrain::checkpoint::{Checkpoint, Optimizer, Past, Progress, Rng, Share, State, Values, save};
use gptrain::engine::Moment;
use half::bf16;
use std::fs;
use std::path::{Path, PathBuf};

/// Everything a checkpoint holds, in memory.
pub struct Saved {
    pub state: State,
    pub tensors: Vec<SavedTensor>,
}

pub struct SavedTensor {
    pub name: String,
    pub shape: Vec<usize>,
    pub decay: bool,
    pub kept: [Vec<f32>; 3],
    /// bf16 bits, where the live weights are bf16.
    pub live: Option<Vec<u16>>,
}

impl Saved {
    /// Three small tensors of a run's step, different at each step.
    pub fn tiny(step: u64) -> Saved {
        let tensor = |name: &str, shape: &[usize]| {
            let numel: usize = shape.iter().product();
            let value = |kept: u64, i: usize| {
                let key = rng::key(step * 3 + kept, name);
                rng::below(key, i as u64, 1 << 20) as f32 / 1024.0
            };
            let kept = [0, 1, 2].map(|kept| (0..numel).map(|i| value(kept, i)).collect());
            let (name, shape, decay) = (name.to_string(), shape.to_vec(), shape.len() > 1);
            SavedTensor { name, shape, decay, kept, live: None }
        };
        let progress = Progress { step, consumed_samples: 4 * step };
        let rng = Rng { generator: "philox4x32-10".into(), seed: 1, data_seed: 2 };
        let (rule, groups) = ("adamw".to_string(), Vec::new());
        let optimizer = Optimizer { rule, beta1: 0.9, beta2: 0.95, eps: 1e-8, groups };
        let state = State {
            mixture: gptrain::data::Plan { stages: Vec::new() },
            run: "a test".into(),
            progress,
            consumed_tokens: 64 * step,
            next_batch: 4,
            lr: 1e-3,
            loss_scale: None,
            rng,
            optimizer,
            history: vec![Past { step, loss: 3.25, grad_norm: 1.5 }],
            data: Vec::new(),
            imported: None,
            manifest: "none".into(),
        };
        let tensors = [("matrix", &[24, 40][..]), ("vector", &[40]), ("wide", &[3, 7000])];
        Saved { state, tensors: tensors.iter().map(|(n, shape)| tensor(n, shape)).collect() }
    }

    /// Whether a checkpoint holds exactly this.
    pub fn is_in(&self, folder: &Path) -> bool {
        let read = Saved::read(folder);
        let bits = |kept: &[Vec<f32>; 3]| -> Vec<u32> {
            kept.iter().flatten().map(|v| v.to_bits()).collect()
        };
        let pairs = || self.tensors.iter().zip(&read.tensors);
        self.state == read.state
            && self.tensors.len() == read.tensors.len()
            && pairs().all(|(a, b)| a.name == b.name && bits(&a.kept) == bits(&b.kept))
    }

    pub fn read(folder: &Path) -> Saved {
        let checkpoint = Checkpoint::open(folder).unwrap();
        let tensors = checkpoint.index.tensors.iter().map(|tensor| {
            let kept = Moment::ALL.map(|moment| checkpoint.whole(tensor, moment).unwrap());
            let bits = || kept[0].iter().map(|v| bf16::from_f32(*v).to_bits()).collect();
            SavedTensor {
                name: tensor.name.clone(),
                shape: tensor.shape.clone(),
                decay: tensor.decay,
                live: (tensor.live.dtype == "bf16").then(bits),
                kept,
            }
        });
        Saved { tensors: tensors.collect(), state: checkpoint.index.state.clone() }
    }

    pub fn tensor(&mut self, name: &str) -> &mut SavedTensor {
        let found = self.tensors.iter_mut().find(|tensor| tensor.name == name);
        found.unwrap_or_else(|| panic!("no tensor {name}"))
    }

    pub fn shares(&self) -> Vec<Share<'_>> {
        let tensors = self.tensors.iter().enumerate();
        tensors.map(|(number, tensor)| tensor.share(number, 0, tensor.rows())).collect()
    }

    /// Writes it as a checkpoint of its step in `folder`.
    pub fn write(&self, folder: &Path) -> PathBuf {
        save(&Disk::default(), folder, &self.shares(), &self.state).unwrap()
    }
}

impl SavedTensor {
    /// Makes the weight, and its live copy, one number.
    pub fn set(&mut self, value: f32) {
        self.kept[0].fill(value);
        if let Some(live) = &mut self.live {
            live.fill(bf16::from_f32(value).to_bits());
        }
    }

    pub fn rows(&self) -> usize {
        if self.shape.len() == 1 { 1 } else { self.shape[0] }
    }

    pub fn cols(&self) -> usize {
        *self.shape.last().unwrap()
    }

    /// Some rows of it, all columns.
    pub fn share(&self, number: usize, first: usize, rows: usize) -> Share<'_> {
        let range = first * self.cols()..(first + rows) * self.cols();
        Share {
            name: &self.name,
            number,
            shape: &self.shape,
            decay: self.decay,
            at: [first, 0],
            replica: Default::default(),
            size: [rows, self.cols()],
            kept: [0, 1, 2].map(|i| &self.kept[i][range.clone()]),
            live: match &self.live {
                Some(live) => Values::Bf16(&live[range]),
                None => Values::F32(&self.kept[0][range]),
            },
        }
    }
}

/// A copy of a checkpoint's folder, under the same name in a fresh folder.
pub fn copy(from: &Path, to: &Path) -> PathBuf {
    let to = to.join(from.file_name().unwrap());
    let _ = fs::remove_dir_all(&to);
    fs::create_dir_all(&to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
    to
}
