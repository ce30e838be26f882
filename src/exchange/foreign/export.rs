//! Writes a checkpoint as Megatron-LM's folder, for any number of tensor ranks and stages, with the names
//! and parts that an import reads.

mod arguments;
mod universal;

pub use universal::UniversalExport;

use super::super::torch::{Element, Out, StorageWriter, Stored, TorchWriter};
use super::AdamState;
use super::megatron::{core_name, module_order};
use crate::source::ParamSource;
use crate::tensor_part::{TensorPart, layer_of};
use anyhow::Context;
use arguments::{arguments, refused, scheduler};
use base::output::Existing;
use base::{Bytes, DType, Problems};
use checkpoint::atomic_folder::{self, FolderKind};
use engine::{model_dtype, saved_shape};
use manifest::{DataRule, LrCounted, Manifest};
use model::{Chunk, Layout, ModelShard, Param, Weight};
use std::fs;
use std::path::Path;

/// Moments of AdamW, and Megatron's names of them.
const MOMENTS: [(AdamState, &str); 2] =
    [(AdamState::FirstMoment, "exp_avg"), (AdamState::SecondMoment, "exp_avg_sq")];
/// Storages of a parameter: the model's weight, its f32 copy, the moments.
const STORAGES: usize = 4;

/// Summary of the files that were written.
#[derive(Clone, Debug)]
pub struct Written {
    pub step: u64,
    pub files: usize,
    pub bytes: Bytes,
    /// Whether the optimizer's states are there.
    pub states: bool,
    /// Rows of zeros that pad the vocabulary.
    pub padding: usize,
    /// Sentences about what Megatron-LM does otherwise.
    pub notes: Vec<String>,
}

/// A folder of Megatron-LM that is to be written.
pub struct MegatronExport<'s> {
    source: &'s mut ParamSource,
    m: Manifest,
    tensor: usize,
    pipeline: usize,
    /// Rows of the embedding on all ranks.
    rows: usize,
    states: bool,
    /// Type of the model's weights; the masters are f32.
    element: Element,
}

/// A parameter of a stage.
struct StageParam {
    param: Param,
    /// Parameter that is read: of a stage's copy of the embedding, the embedding.
    read: Param,
    shape: Vec<usize>,
    name: String,
    /// Its part on each tensor rank.
    cuts: Vec<TensorPart>,
}

impl StageParam {
    /// Writes the part of a rank in the type of `element`, a block of rows at a time.
    fn write(
        &self,
        rank: usize,
        whole: &[f32],
        element: Element,
        mut storage: StorageWriter,
    ) -> anyhow::Result<()> {
        let width = self.shape.get(1).copied().unwrap_or(1);
        let dtype = match element {
            Element::BF16 => DType::BF16,
            Element::F16 => DType::F16,
            _ => DType::F32,
        };
        self.cuts[rank].each_block(whole, width, &mut |values| match dtype.halves(values) {
            Some(bits) => storage.write(bytemuck::cast_slice(&bits)),
            None => storage.write(bytemuck::cast_slice(values)),
        })?;
        storage.finish()
    }
}

impl<'s> MegatronExport<'s> {
    /// Plans the export of a checkpoint for `[tensor, pipeline]` ranks. Fails if Megatron-LM has no such
    /// model, or cannot cut it so.
    pub fn new(
        source: &'s mut ParamSource,
        [tensor, pipeline]: [usize; 2],
    ) -> anyhow::Result<MegatronExport<'s>> {
        let m = source.manifest().clone();
        refused(&m, [tensor, pipeline], &source.facts().folder)?;
        let states = source.has_moments();
        let element = match model_dtype(m.precision) {
            DType::BF16 => Element::BF16,
            DType::F16 => Element::F16,
            _ => Element::F32,
        };
        let rows = m
            .model
            .vocab
            .next_multiple_of(m.model.vocab_multiple * tensor);
        Ok(MegatronExport { source, m, tensor, pipeline, rows, states, element })
    }

    /// Values that are read: of each parameter of each stage, the weight and the moments.
    fn reads(&self) -> u64 {
        let tied = self.m.model.tied_head && self.pipeline > 1;
        let copy = if tied { self.m.model.vocab * self.m.model.hidden } else { 0 };
        let states = if self.states { AdamState::ALL.len() } else { 1 };
        states as u64 * (model::parameters(&self.m.model) + copy as u64)
    }

    /// Bytes of the values that are written, without the vocabulary's padding.
    pub fn bytes(&self) -> Bytes {
        let half = self.element != Element::F32;
        let of_a_value = match (half, self.states) {
            (false, _) => 4 * self.reads(),
            (true, false) => 2 * self.reads(),
            (true, true) => 4 * self.reads() + 2 * self.reads() / AdamState::ALL.len() as u64,
        };
        Bytes(of_a_value)
    }

    /// Writes `to` in Megatron-LM's layout, all of it or nothing.
    pub fn write(mut self, to: &Path, existing: Existing) -> anyhow::Result<Written> {
        let reads = 4 * self.reads();
        atomic_folder::write(to, FolderKind::Model, existing, |temporary| {
            self.source.show_progress("exporting", reads);
            self.write_files(temporary)
        })
    }

    fn write_files(&mut self, to: &Path) -> anyhow::Result<Written> {
        let step = self.source.facts().step;
        let folder = to.join(format!("iter_{step:07}"));
        let mut bytes = 0;
        for stage in 0..self.pipeline {
            bytes += self.write_stage(stage, &folder)?;
        }
        let path = to.join("latest_checkpointed_iteration.txt");
        fs::write(&path, step.to_string())
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Written {
            step,
            files: self.tensor * self.pipeline,
            bytes: Bytes(bytes),
            states: self.states,
            padding: self.rows - self.m.model.vocab,
            notes: self.notes(),
        })
    }

    /// Writes the files of all tensor ranks of a stage: each parameter is read once.
    fn write_stage(&mut self, stage: usize, folder: &Path) -> anyhow::Result<u64> {
        let pieces = self.pieces(stage)?;
        let mut writers = Vec::new();
        for rank in 0..self.tensor {
            let name = match self.pipeline {
                1 => format!("mp_rank_{rank:02}"),
                _ => format!("mp_rank_{rank:02}_{stage:03}"),
            };
            let path = folder.join(name);
            fs::create_dir_all(&path)
                .with_context(|| format!("cannot create {}", path.display()))?;
            let root = self.root(&pieces, rank);
            writers.push(TorchWriter::create(&path.join("model_optim_rng.pt"), &root)?);
        }
        for (number, piece) in pieces.iter().enumerate() {
            let key = STORAGES * number;
            let master = self.source.read_valid(&piece.read, AdamState::Master)?;
            for (rank, writer) in writers.iter_mut().enumerate() {
                piece.write(rank, &master, self.element, writer.begin(key)?)?;
                if self.states && self.element != Element::F32 {
                    piece.write(rank, &master, Element::F32, writer.begin(key + 1)?)?;
                }
            }
            drop(master);
            for (moment, (state, _)) in MOMENTS.iter().enumerate().filter(|_| self.states) {
                let whole = self.source.read_valid(&piece.read, *state)?;
                for (rank, writer) in writers.iter_mut().enumerate() {
                    let storage = writer.begin(key + 2 + moment)?;
                    piece.write(rank, &whole, Element::F32, storage)?;
                }
            }
        }
        writers.into_iter().map(TorchWriter::finish).sum()
    }

    /// Parameters of a stage in the order of Megatron's modules.
    fn pieces(&self, stage: usize) -> anyhow::Result<Vec<StageParam>> {
        let model = &self.m.model;
        let layers = plan::split::uniform(model.layers, self.pipeline).swap_remove(stage);
        let first_layer = layers.start;
        let first = stage == 0;
        let last = stage + 1 == self.pipeline;
        let chunk = Chunk { layers, first, last };
        let shard = ModelShard { chunks: vec![chunk], tp: 1, tp_rank: 0, dp: 1 };
        let layout = Layout::new(model, shard);
        let whole = Layout::new(model, ModelShard::whole(model));
        let is_embedding = |param: &&Param| param.spec.weight == Weight::TokenEmbed;
        let embedding = whole
            .params()
            .find(is_embedding)
            .context("a model has an embedding")?;
        let mut params: Vec<&Param> = layout.params().collect();
        // The embedding, the blocks, the final norm and the head.
        let part = |param: &Param| match (param.tied_copy, layer_of(param), param.spec.weight) {
            (true, ..) => usize::MAX,
            (_, Some(layer), _) => layer + 1,
            (_, None, Weight::TokenEmbed | Weight::PosEmbed) => 0,
            (_, None, _) => model.layers + 1,
        };
        params.sort_by_key(|param| (part(param), module_order(param.spec.weight)));
        params
            .into_iter()
            .map(|param| -> anyhow::Result<StageParam> {
                let weight = if param.tied_copy { Weight::HeadW } else { param.spec.weight };
                let local = layer_of(param).map(|layer| layer - first_layer);
                let name = core_name(weight, local)
                    .with_context(|| format!("Megatron has no {}", param.name))?;
                let read = if param.tied_copy { embedding } else { param }.clone();
                let shape = saved_shape(&read, model.vocab);
                let rows = if param.spec.vocab { self.rows } else { shape[0] };
                let whole = [rows, shape.get(1).copied().unwrap_or(1)];
                let gated = model.ffn == manifest::Ffn::Swiglu;
                let cuts = (0..self.tensor)
                    .map(|rank| TensorPart::for_rank(param, whole, [rank, self.tensor], gated))
                    .collect();
                Ok(StageParam { param: param.clone(), read, shape, name, cuts })
            })
            .collect()
    }

    /// The values of a rank's file, but for the numbers of tensors.
    fn root(&self, pieces: &[StageParam], rank: usize) -> Out {
        let facts = self.source.facts();
        let stored = |number: usize, storage: usize, element: Element| {
            let piece = &pieces[number];
            let [rows, cols] = piece.cuts[rank].shape();
            let shape = if piece.shape.len() == 1 { vec![rows] } else { vec![rows, cols] };
            Out::Tensor(Stored { key: STORAGES * number + storage, element, shape })
        };
        let model = pieces.iter().enumerate().map(|(number, piece)| {
            (Out::from(piece.name.as_str()), stored(number, 0, self.element))
        });
        let args = arguments(&self.m, facts, [self.tensor, self.pipeline], self.rows);
        let mut entries = vec![
            (Out::from("args"), Out::Namespace(args)),
            (Out::from("checkpoint_version"), Out::from(3.0)),
            (Out::from("iteration"), Out::from(facts.step)),
            (Out::from("model"), Out::Dict(model.collect())),
            (Out::from("opt_param_scheduler"), scheduler(&self.m, facts)),
        ];
        if self.states {
            entries.push((Out::from("optimizer"), self.optimizer(pieces, &stored)));
        }
        Out::Dict(entries)
    }

    /// Notes about what Megatron-LM does otherwise.
    fn notes(&self) -> Vec<String> {
        let mut notes = late_rate(&self.m, "Megatron-LM");
        if self.m.batch.length_ramp_up.is_some() {
            notes.push("Megatron-LM trains on samples of full length from the start".into());
        }
        if self.m.data.rule != DataRule::MegatronCore {
            let order = "the run's order of samples is Megatron-DeepSpeed's, not Megatron-Core's";
            notes.push(order.into());
        }
        notes
    }

    /// Megatron's optimizer: parameters that decay, then those that do not, counted through.
    fn optimizer(
        &self,
        pieces: &[StageParam],
        stored: &dyn Fn(usize, usize, Element) -> Out,
    ) -> Out {
        let m = &self.m;
        let facts = self.source.facts();
        let numbers = |decay: bool| -> Vec<usize> {
            let found = pieces.iter().enumerate();
            found
                .filter(|(_, piece)| piece.param.spec.decay == decay)
                .map(|(i, _)| i)
                .collect()
        };
        let half = self.element != Element::F32;
        let mut states = Vec::new();
        let mut groups = Vec::new();
        let mut masters = Vec::new();
        for decay in [true, false] {
            let numbers = numbers(decay);
            if numbers.is_empty() {
                continue;
            }
            let first = states.len();
            for number in &numbers {
                let moments = Out::named(
                    MOMENTS
                        .iter()
                        .enumerate()
                        .map(|(i, (_, name))| (*name, stored(*number, 2 + i, Element::F32))),
                );
                states.push((Out::from(states.len()), moments));
            }
            let weight_decay = if decay { f64::from(m.optimizer.weight_decay()) } else { 0.0 };
            groups.push(Out::named([
                ("lr", Out::from(facts.lr)),
                ("wd_mult", Out::from(if decay { 1.0 } else { 0.0 })),
                ("lr_mult", Out::from(1.0)),
                ("is_expert_parallel", Out::from(false)),
                ("is_decoupled_lr", Out::from(false)),
                ("weight_decay", Out::from(weight_decay)),
                ("step", Out::from(facts.updates)),
                ("params", Out::List((first..states.len()).map(Out::from).collect())),
            ]));
            masters.push(Out::List(
                numbers
                    .iter()
                    .map(|number| stored(*number, 1, Element::F32))
                    .collect(),
            ));
        }
        let inner = [("state", Out::Dict(states)), ("param_groups", Out::List(groups))];
        if !half {
            return Out::named(inner);
        }
        let mut outer =
            vec![("optimizer", Out::named(inner)), ("fp32_from_fp16_params", Out::List(masters))];
        if let Some(scale) = &facts.loss_scale {
            outer.push((
                "grad_scaler",
                Out::named([
                    ("scale", Out::from(scale.scale)),
                    ("growth_tracker", Out::from(scale.updates_in_a_row)),
                    ("hysteresis_tracker", Out::Int(scale.overflows_left)),
                ]),
            ));
        }
        Out::named(outer)
    }
}

/// Note if the trainer computes the learning rate otherwise than the run.
fn late_rate(m: &Manifest, trainer: &str) -> Vec<String> {
    let late = m.lr.counted == LrCounted::After;
    let note = format!(
        "{trainer} computes a step's rate from the samples before it: one step behind this run"
    );
    late.then_some(note).into_iter().collect()
}

/// An error that lists what Megatron's models or files cannot have.
fn problem(place: &str, what: Vec<String>) -> Result<(), Problems> {
    let mut problems = Problems::default();
    for what in what {
        problems.add(place, what, "write Hugging Face's format: --to hf");
    }
    problems.or(())
}
