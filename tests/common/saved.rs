//! A run's checkpoint, taken apart and written again with changes.
#![allow(dead_code)]

use gptrain::checkpoint::disk::Disk;
use gptrain::checkpoint::{Checkpoint, Share, State, Values, save};
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
        self.tensors.iter().map(|tensor| tensor.share(0, tensor.rows())).collect()
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
    pub fn share(&self, first: usize, rows: usize) -> Share<'_> {
        let range = first * self.cols()..(first + rows) * self.cols();
        Share {
            name: &self.name,
            shape: &self.shape,
            decay: self.decay,
            at: [first, 0],
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
