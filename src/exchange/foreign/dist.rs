//! Distributed checkpoints of Megatron-Core (`--ckpt-format torch_dist`): `iter_0000100/`.
//!
//! ```text
//! .metadata, __R_N.distcp     tensors of the whole model, in rectangles
//! common.pt                   args, iteration, the optimizer's groups; since 0.19 an object in the former
//! ```
//!
//! A block's parameter is a tensor of all layers with a leading axis, or one tensor a layer. The optimizer's
//! states are tensors of the same shapes, or flat pieces of each rank's share of them (before 0.15).

mod common;

use super::super::torch::{TorchFile, Value};
use super::arguments::Arguments;
use super::compare::{Comparison, like};
use super::dcp::metadata::{Metadata, StoredPart};
use super::detect::{Format, step_folder};
use super::megatron::files::topology;
use super::megatron::names::{Layers, add_one, dist_name};
use super::megatron::states::{groups, inner, loss_scale, rate, updates_of};
use super::topology::set_said_split;
use super::{AdamState, Choices, ForeignRun, Request, RunDescription};
use crate::tensor_part::{Fused, Pairs, ParamKey, TensorPart, gates_values, layer_of};
use anyhow::Context;
use base::{Problems, input};
use common::{common_root, open_common};
use manifest::Model;
use model::{Param, Weight};
use std::collections::BTreeMap;
use std::path::Path;

/// Before a parameter's name in those of the optimizer's states.
const STATE: &str = "optimizer.state.";
/// Parts of the checkpoint that are not the model.
const NOT_MODEL: &[&str] = &["optimizer.", "chained_", "rng_state", "rerun_state_machine"];

struct DistRun {
    found: RunDescription,
    meta: Metadata,
    /// Tensors of each parameter, by its layer.
    tensors: BTreeMap<ParamKey, Vec<DistTensor>>,
    layers: usize,
    /// Name of the f32 weights among the states; None if the model's weights are f32 themselves.
    masters: Option<&'static str>,
    fused: Fused,
    gated: bool,
    /// Whether the file has a norm's scale less one.
    less_one: bool,
    /// Rows of the embedding.
    rows: usize,
}

/// A tensor of the checkpoint that holds a parameter, or half of it.
struct DistTensor {
    name: String,
    /// Whether it has those of all layers, on a leading axis.
    all: bool,
    /// Half of SwiGLU's first matrix, if the halves are two tensors.
    half: Option<usize>,
}

pub fn open(from: &Path, choices: &Choices) -> anyhow::Result<Box<dyn ForeignRun>> {
    let dir = step_folder(from)?;
    backend(&dir)?;
    let meta = Metadata::read(&dir)?;
    let common = open_common(&dir, &meta)?;
    let root = common_root(&common)?;
    let args = Arguments::new(root.need("args")?, common.place().to_string(), "mcore");
    args.refuse(&[])?;
    let mut found = RunDescription::new(Format::MegatronDist, "Megatron-Core (torch_dist)", &dir)
        .with_args(&root, &args)?;
    let sizes =
        ["tensor_model_parallel_size", "pipeline_model_parallel_size", "data_parallel_size"];
    for (ranks, name) in found.grid.iter_mut().zip(sizes) {
        *ranks = args.optional_count(name)?.unwrap_or(1) as usize;
    }
    topology(&mut found.settings, &args, [found.grid[0], found.grid[1]])?;
    let layers = args.count("num_layers")? as usize;
    set_said_split(&mut found.settings, &args, layers, found.grid[1])?;
    found.lr = rate(&common, &groups(&root)?).unwrap_or(0.0);
    found.loss_scale = loss_scale(&common, &root)?;
    let pairs = if args.is_set("rotary_interleaved") { Pairs::Neighbours } else { Pairs::Halves };
    let mut folder = DistRun {
        found,
        meta,
        tensors: BTreeMap::new(),
        layers,
        masters: None,
        fused: Fused::Heads(pairs),
        gated: args.is_set("swiglu"),
        less_one: args.is_set("apply_layernorm_1p"),
        rows: 0,
    };
    folder.places(&args)?;
    folder.states(&common, &root, args.is_set("bf16") || args.is_set("fp16"))?;
    folder.vocabulary(&args, choices)?;
    folder.found.ignored = args.ignored();
    Ok(Box::new(folder))
}

/// Fails unless `metadata.json`, if it is there, names this format.
fn backend(dir: &Path) -> anyhow::Result<()> {
    let path = dir.join("metadata.json");
    if !path.exists() {
        return Ok(());
    }
    let place = path.display().to_string();
    let bytes = input::read(&path, input::SMALL).with_context(|| format!("cannot read {place}"))?;
    let json: serde_json::Value = base::json::from_python(&bytes).unwrap_or_default();
    let backend = json["sharded_backend"].as_str().unwrap_or_default();
    if backend == "torch_dist" {
        return Ok(());
    }
    let backend: String = backend.chars().take(40).collect();
    Err(Problems::one(
        place,
        format!("sharded_backend is {backend:?}: torch_dist is read"),
        "load it there and save it once with --ckpt-format torch_dist",
    )
    .into())
}

impl DistRun {
    /// Names of the model's tensors.
    fn model_names(&self) -> impl Iterator<Item = &str> {
        let names = self.meta.tensors.keys().map(String::as_str);
        names.filter(|name| {
            !name.contains("_extra_state") && !NOT_MODEL.iter().any(|part| name.starts_with(part))
        })
    }

    /// Finds the tensors of every parameter.
    fn places(&mut self, args: &Arguments) -> anyhow::Result<()> {
        if self.layers > 1 << 12 {
            return Err(args.problem(format!("args.num_layers is {}", self.layers)));
        }
        let mut tensors: BTreeMap<_, Vec<DistTensor>> = BTreeMap::new();
        for name in self.model_names() {
            // Names of no parameter are reported by the comparison with the model.
            let Some((weight, layers, half)) = dist_name(name) else { continue };
            let mut add = |layer: Option<usize>, all: bool| {
                let stored = DistTensor { name: name.to_string(), all, half };
                tensors.entry((weight, layer)).or_default().push(stored);
            };
            match layers {
                Layers::Outside => add(None, false),
                Layers::One(layer) => add(Some(layer), false),
                Layers::All => (0..self.layers).for_each(|layer| add(Some(layer), true)),
            }
        }
        self.tensors = tensors;
        Ok(())
    }

    /// Finds the optimizer's states, or notes why they are not read.
    fn states(&mut self, common: &TorchFile, root: &Value, half: bool) -> anyhow::Result<()> {
        let has = |before: &str| {
            self.meta
                .tensors
                .keys()
                .any(|name| name.starts_with(before))
        };
        let states = |name: &str| has(&format!("{STATE}{name}."));
        // The distributed optimizer's name, and the plain one's.
        let masters = ["param", "fp32_param"]
            .into_iter()
            .find(|name| states(name));
        let state = inner(root).and_then(|inner| inner.some("state"));
        let updates = updates_of(common, &groups(root)?, state.as_ref())?;
        let why = if !has("optimizer.") && !has("chained_") {
            Some("the files have no optimizer".to_string())
        } else if !states("exp_avg") {
            let kind = root
                .some("optimizer")
                .and_then(|o| o.some("param_state_sharding_type"));
            let kind = kind
                .as_ref()
                .and_then(|kind| kind.str().ok())
                .unwrap_or("dp_reshardable");
            Some(format!(
                "they are in the buffers of the distributed optimizer ({kind}), whose order is not in the \
                 files; save once with --dist-ckpt-optim-fully-reshardable"
            ))
        } else if half && masters.is_none() {
            Some(format!("there is no {STATE}param and no {STATE}fp32_param"))
        } else if updates.is_none() {
            Some(format!("{}: the optimizer has no step", common.place()))
        } else {
            None
        };
        self.masters = masters;
        match why {
            Some(why) => self.found.restart_optimizer(why),
            None => {
                self.found.updates = updates.unwrap_or(0);
                self.found.note_updates();
            }
        }
        Ok(())
    }

    /// Name of a state of a tensor.
    fn state(&self, name: &str, state: AdamState) -> String {
        let masters = self.masters.filter(|_| self.found.without_states.is_none());
        match (state, masters) {
            (AdamState::Master, None) => name.to_string(),
            (_, masters) => format!("{STATE}{}.{name}", state.key(masters.unwrap_or_default())),
        }
    }

    /// Decides the model's vocabulary.
    fn vocabulary(&mut self, args: &Arguments, choices: &Choices) -> anyhow::Result<()> {
        let stored = self
            .tensors
            .get(&(Weight::TokenEmbed, None))
            .and_then(|list| list.first());
        let name = stored
            .map(|stored| stored.name.clone())
            .ok_or_else(|| self.meta.problem("has no word_embeddings".into()))?;
        let shape = self.meta.tensors[&name].shape.clone();
        let [rows, _] = shape[..] else {
            return Err(self.meta.problem(format!("{name} is {shape:?}")));
        };
        self.rows = rows;
        let original = args
            .optional_count("vocab_size")?
            .map_or(rows, |size| size as usize)
            .clamp(1, rows.max(1));
        let strip =
            original < rows && (choices.mask_padding || self.untrained(original, &name, &shape)?);
        self.found.vocabulary([original, rows], args, strip)
    }

    /// Whether the rows that pad the embedding are zero in every state.
    fn untrained(&self, original: usize, name: &str, shape: &[usize]) -> anyhow::Result<bool> {
        let mut zero = true;
        for state in self.found.read_states() {
            let state = self.state(name, *state);
            self.meta
                .each_rectangle(&state, None, shape, |[row, _], [_, cols], values| {
                    let from = original
                        .saturating_sub(row)
                        .saturating_mul(cols)
                        .min(values.len());
                    zero &= values[from..].iter().all(|value| *value == 0.0);
                })?;
        }
        Ok(zero)
    }

    fn parts(&self, model: &Model, param: &Param, shape: &[usize]) -> Vec<StoredPart> {
        let layer = layer_of(param);
        let rows = if param.spec.vocab { self.rows } else { shape[0] };
        let cols = shape.get(1).copied().unwrap_or(1);
        let cut = |half: Option<usize>| match (param.spec.weight, half) {
            (Weight::QkvW | Weight::QkvB, _) => {
                TensorPart::for_fused(model.heads(), cols, [0, 1], self.fused)
            }
            (_, Some(half)) => TensorPart::from_rows(gates_values(0..rows)[half].clone(), cols),
            _ => TensorPart::for_rank(param, [rows, cols], [0, 1], self.gated),
        };
        let stored = self
            .tensors
            .get(&(param.spec.weight, layer))
            .into_iter()
            .flatten();
        stored
            .map(|stored| {
                let name = stored.name.clone();
                let layer = stored.all.then_some(layer).flatten();
                StoredPart { name, layer, cut: cut(stored.half) }
            })
            .collect()
    }
}

impl ForeignRun for DistRun {
    fn description(&self) -> &RunDescription {
        &self.found
    }

    fn check(&self, model: &Model, params: &[&Param]) -> anyhow::Result<()> {
        let mut compared = Comparison::with_args(&self.found.folder);
        for param in params {
            let shape = engine::saved_shape(param, model.vocab);
            let parts = self.parts(model, param, &shape);
            let halves = parts.len() == 2 && self.gated;
            if parts.is_empty() || parts.len() > 1 && !halves {
                compared.missing(param);
            }
            for StoredPart { name, layer, cut } in parts {
                let mut whole = like(&shape, cut.shape());
                if layer.is_some() {
                    whole.insert(0, self.layers);
                }
                // A tensor of all layers is compared once.
                for state in self
                    .found
                    .read_states()
                    .iter()
                    .filter(|_| layer.unwrap_or(0) == 0)
                {
                    self.meta
                        .compare(&self.state(&name, *state), &whole, "args", &mut compared);
                }
                compared.mark(&name);
            }
        }
        compared.others(self.model_names());
        Ok(compared.finish()?)
    }

    fn read(&mut self, request: Request) -> anyhow::Result<Vec<f32>> {
        let Request { model, param, shape, state } = request;
        if !self.found.read_states().contains(&state) {
            return Ok(vec![0.0; shape.iter().product()]);
        }
        let parts = self.parts(model, param, shape);
        let mut ours = self
            .meta
            .assemble(&parts, shape, |name| self.state(name, state))?;
        if self.less_one {
            add_one(param, state, &mut ours);
        }
        Ok(ours)
    }
}
