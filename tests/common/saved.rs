//! A run's checkpoint, taken apart and written again with changes.

use gptrain::base::DType;
use gptrain::base::rng;
use gptrain::checkpoint::disk::Disk;
use gptrain::checkpoint::{Checkpoint, Optimizer, PastStep, Progress, Rng, Share, State, save};
use gptrain::engine::{MASTER, MODEL, StateSpec, TensorSlice};
use half::bf16;
use std::fs;
use std::path::{Path, PathBuf};

/// The states that AdamW saves.
pub const STATES: [&str; 3] = [MASTER, "first_moment", "second_moment"];

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
        let generator = "philox4x32-10".into();
        let rng = Rng { generator, seed: 1, data_seed: 2, initial_seed: None };
        let (rule, groups) = ("adamw".to_string(), Vec::new());
        let optimizer = Optimizer { rule, began: 0, ahead: 0, numbers: Default::default(), groups };
        let state = State {
            mixture: gptrain::data::MixturePlan::new(&[], 1),
            run: "a test".into(),
            progress,
            consumed_tokens: 64 * step,
            next_batch: 4,
            lr: 1e-3,
            loss_scale: None,
            skipped_updates: 0,
            pending: None,
            rng,
            optimizer,
            history: vec![PastStep { step, loss: 3.25, grad_norm: 1.5 }],
            data: Vec::new(),
            spikes: None,
            imported: None,
            imported_types: Default::default(),
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
            let kept = STATES.map(|state| checkpoint.whole(tensor, state).unwrap());
            let bits = || {
                kept[0]
                    .iter()
                    .map(|v| bf16::from_f32(*v).to_bits())
                    .collect()
            };
            SavedTensor {
                name: tensor.name.clone(),
                shape: tensor.shape.clone(),
                decay: tensor.decay,
                live: (tensor.states[MODEL].dtype == DType::BF16).then(bits),
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
        tensors
            .flat_map(|(number, tensor)| tensor.shares(number, 0, tensor.rows()))
            .collect()
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
    pub fn shares(&self, number: usize, first: usize, rows: usize) -> Vec<Share<'_>> {
        let range = first * self.cols()..(first + rows) * self.cols();
        let kept = self.kept.each_ref().map(|values| &values[range.clone()]);
        let slice = TensorSlice { at: [first, 0], size: [rows, self.cols()] };
        self.shares_of(number, slice, kept, self.live.as_ref().map(|live| &live[range]))
    }

    /// A rectangle of it, as AdamW's states.
    pub fn shares_of<'a>(
        &'a self,
        number: usize,
        slice: TensorSlice,
        kept: [&'a [f32]; 3],
        live: Option<&'a [u16]>,
    ) -> Vec<Share<'a>> {
        let share = |state, bytes| Share {
            name: &self.name,
            number,
            shape: &self.shape,
            decay: self.decay,
            state,
            slice,
            replica: Default::default(),
            bytes,
        };
        let model = match live {
            Some(live) => share(StateSpec::model(DType::BF16), bytemuck::cast_slice(live)),
            None => share(StateSpec::model(DType::F32), bytemuck::cast_slice(kept[0])),
        };
        let saved = STATES
            .into_iter()
            .zip(kept)
            .map(|(state, values)| share(StateSpec::moment(state), bytemuck::cast_slice(values)));
        [model].into_iter().chain(saved).collect()
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
