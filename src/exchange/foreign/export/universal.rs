//! Writes a checkpoint as DeepSpeed's universal folder: each parameter whole, in separate files, under the
//! names of Megatron-DeepSpeed's pipeline. An import reads it back.

use super::super::super::torch::{Element, Out, Stored, TorchWriter};
use super::super::deepspeed::layers::pipe_name;
use super::super::{AdamState, RunDescription};
use super::arguments::{arguments, scheduler};
use super::{MOMENTS, Written, late_rate, problem};
use crate::source::ParamSource;
use anyhow::Context;
use base::Bytes;
use base::output::Existing;
use checkpoint::atomic_folder::{self, FolderKind};
use engine::saved_shape;
use manifest::dialects::Dialect;
use manifest::{Bias, DataRule, Ffn, LengthRampUp, Manifest, NormKind, Position};
use model::{Layout, ModelShard, Param, TpSplit};
use std::fs;
use std::path::Path;

/// A universal folder that is to be written.
pub struct UniversalExport<'s>(&'s mut ParamSource);

impl<'s> UniversalExport<'s> {
    /// Plans the export of a checkpoint. Fails if Megatron-DeepSpeed's pipeline has no such model, or
    /// there are no states.
    pub fn new(source: &'s mut ParamSource) -> anyhow::Result<UniversalExport<'s>> {
        refused(source.manifest(), source.has_moments(), &source.facts().folder)?;
        Ok(UniversalExport(source))
    }

    /// Bytes of the values.
    pub fn bytes(&self) -> Bytes {
        let states = AdamState::ALL.len() as u64;
        Bytes(4 * states * model::parameters(&self.0.manifest().model))
    }

    /// Writes `to` as a universal folder, all of it or nothing.
    pub fn write(self, to: &Path, existing: Existing) -> anyhow::Result<Written> {
        let bytes = self.bytes();
        atomic_folder::write(to, FolderKind::Model, existing, |temporary| {
            self.0.show_progress("exporting", bytes.0);
            write(self.0, temporary)
        })
    }
}

/// An error if Megatron-DeepSpeed's pipeline has no such model, or there are no states.
fn refused(m: &Manifest, has_moments: bool, place: &str) -> anyhow::Result<()> {
    let model = &m.model;
    let place_known = matches!(model.position, Position::Alibi | Position::Learned);
    let cases = [
        (!place_known, "its pipeline is written with alibi or learned positions"),
        (!model.tied_head, "its pipeline's head is the embedding"),
        (model.ffn != Ffn::Gelu, "its pipeline's feed-forward layer is written with GELU"),
        (model.norm != NormKind::Layer, "its pipeline has LayerNorm"),
        (model.bias != Bias::All, "its pipeline has all biases"),
        (model.heads().kv != model.heads().query, "groups of queries are not written"),
        (model.qk_norm, "norms of queries and keys are not written"),
        (model.window.is_some(), "windows are not written"),
        (!model.pattern.is_empty(), "kinds of layers are not written"),
        (model.logit_softcap.is_some(), "it does not cap logits"),
        (model.mup.is_some(), "µP's factors are not in such a folder"),
        (!has_moments, "the checkpoint has no states of AdamW"),
    ];
    let what = cases
        .into_iter()
        .filter(|(is, _)| *is)
        .map(|(_, why)| format!("Megatron-DeepSpeed has no such run: {why}"));
    Ok(problem(place, what.collect())?)
}

fn write(source: &mut ParamSource, to: &Path) -> anyhow::Result<Written> {
    let m = source.manifest().clone();
    let step = source.facts().step;
    let name = format!("global_step{step}_universal");
    let folder = to.join(&name);
    let mut files = 0;
    let mut bytes = 0;
    let layout = Layout::new(&m.model, ModelShard::whole(&m.model));
    let create = |path: &Path| {
        fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))
    };
    for param in layout.params() {
        let theirs = pipe_name(param, m.model.layers)
            .with_context(|| format!("Megatron-DeepSpeed has no {}", param.name))?;
        let shape = saved_shape(param, m.model.vocab);
        let path = folder.join("zero").join(theirs);
        create(&path)?;
        for (state, file) in [(AdamState::Master, "fp32"), MOMENTS[0], MOMENTS[1]] {
            let values = source.read_valid(param, state)?;
            let root = whole(param, &shape);
            let mut writer = TorchWriter::create(&path.join(format!("{file}.pt")), &root)?;
            writer.storage(0, bytemuck::cast_slice(&values))?;
            bytes += writer.finish()?;
            files += 1;
        }
    }
    let facts = source.facts();
    for (path, root) in [("zero/optimizer_state.pt", optimizer(&m, facts)), (MAIN, main(&m, facts))]
    {
        bytes += TorchWriter::create(&folder.join(path), &root)?.finish()?;
        files += 1;
    }
    let latest = to.join("latest_universal");
    fs::write(&latest, &name).with_context(|| format!("cannot write {}", latest.display()))?;
    let states = true;
    let padding = 0;
    let notes = notes(&m);
    Ok(Written { step, files, bytes: Bytes(bytes), states, padding, notes })
}

/// The file of the arguments.
const MAIN: &str = "mp_rank_00_model_states.pt";

/// A state of a parameter, and how tensor ranks cut it.
fn whole(param: &Param, shape: &[usize]) -> Out {
    let stored = Stored { key: 0, element: Element::F32, shape: shape.to_vec() };
    let mut entries = vec![("param", Out::Tensor(stored))];
    match param.spec.split {
        TpSplit::Cols if shape.len() > 1 => entries.push(("cat_dim", 1usize.into())),
        TpSplit::Rows | TpSplit::Cols => entries.push(("cat_dim", 0usize.into())),
        TpSplit::Whole => {}
    }
    if param.spec.vocab {
        entries.push(("vocab_tensor", true.into()));
    }
    Out::named(entries)
}

/// The optimizer's groups: of what decays, and of the rest.
fn optimizer(m: &Manifest, facts: &RunDescription) -> Out {
    let groups = [f64::from(m.optimizer.weight_decay()), 0.0].map(|decay| {
        Out::named([
            ("lr", Out::from(facts.lr)),
            ("weight_decay", Out::from(decay)),
            ("step", Out::from(facts.updates)),
        ])
    });
    let clip = m.optimizer.clip().map_or(0.0, f64::from);
    Out::named([("param_groups", Out::List(groups.to_vec())), ("clip_grad", Out::from(clip))])
}

/// Arguments, step and schedule.
fn main(m: &Manifest, facts: &RunDescription) -> Out {
    let mut args = arguments(m, facts, [1, 1], m.model.vocab);
    let alibi = matches!(m.model.position, Position::Alibi);
    let position = if alibi { "alibi" } else { "absolute" };
    let name = |key| Dialect::Megatron.name(key);
    args.retain(|(argument, _)| argument != name("model.position"));
    for (name, value) in [
        (name("model.position"), Out::from(position)),
        (name("model.embedding_layernorm"), Out::from(m.model.embedding_layernorm)),
        ("apply_residual_connection_post_layernorm", Out::from(false)),
        ("deepspeed", Out::from(true)),
    ] {
        args.push((name.to_string(), value));
    }
    let info = [("universal_checkpoint_version", Out::from(0.2))];
    Out::named([
        ("args", Out::Namespace(args)),
        ("checkpoint_version", Out::from(3.0)),
        ("iteration", Out::from(facts.step)),
        ("tokens", Out::from(facts.tokens)),
        ("lr_scheduler", scheduler(m, facts)),
        ("universal_checkpoint_info", Out::named(info)),
    ])
}

/// Sentences about what Megatron-DeepSpeed does otherwise.
fn notes(m: &Manifest) -> Vec<String> {
    let mut notes = late_rate(m, "Megatron-DeepSpeed");
    if m.data.rule != DataRule::MegatronDeepSpeed {
        notes.push("the run's order of samples is not Megatron-DeepSpeed's".into());
    }
    if m.loss_scale.is_some() {
        notes.push("the loss scale is not in such a folder: it begins with its first value".into());
    }
    if let Some(LengthRampUp { start, increment, samples }) = m.batch.length_ramp_up {
        let steps = m.batch.ramp().steps(samples);
        let most = m.model.seq_len;
        let block = Dialect::HuggingFace.name("batch.length_ramp_up");
        notes.push(format!(
            "the warm-up of the samples' length is DeepSpeed's configuration, not part of such a folder: \
             \"{block}\": {{\"enabled\": true, \"curriculum_type\": \"seqlen\", \
             \"min_difficulty\": {start}, \"max_difficulty\": {most}, \"schedule_type\": \"fixed_linear\", \
             \"schedule_config\": {{\"total_curriculum_step\": {steps}, \"difficulty_step\": {increment}}}}}"
        ));
    }
    notes
}
