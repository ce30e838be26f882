//! Converts the written sections to the checked manifest: fills in defaults and checks every rule
//! between keys. A placeholder replaces a missing or wrong value, so that the checks can continue.
//! It is never returned, because the report contains the mistake.

mod data;
mod shape;
mod time;

use super::data::RunInputs;
use super::define::Written;
use super::forms::Raw;
use super::loss_scale::loss_scale;
use super::lr;
use super::optimizers;
use super::place::PlaceUrl;
use super::report::{Report, short};
use super::run::{self, EvalInputs};
use super::tree::{Location, Node};
use super::{
    Adafactor, Batch, Checkpoint, Comm, Decay, GradientHome, Log, Lr, Manifest, Model, OffloadWhat,
    Optimizer, Plan, Position, Precision, Restart, Slurm, Topology, Train,
};
use std::path::Path;

/// Settings that limit how work is split over ranks.
pub struct Split<'a> {
    pub precision: Precision,
    pub model: &'a Model,
    pub batch: &'a Batch,
    pub optimizer: &'a Optimizer,
    pub topology: &'a Topology,
}

impl Split<'_> {
    /// Whether a manifest may have these settings together.
    pub fn is_permitted(&self) -> bool {
        let root = Node::empty(Location::File);
        let mut report = Report::new("", &root);
        shape::heads(self.model, &mut report);
        time::batch(self.batch, self.topology.data, &mut report);
        time::lengths(self.batch, self.model, self.topology, &mut report);
        self.check(self.topology.chunks > 1, &mut report);
        report.is_empty()
    }

    /// Checks topology, matrices and optimizer. `chunks` is whether topology.chunks is given.
    fn check(&self, chunks: bool, report: &mut Report) {
        let Split { precision, model, batch, optimizer, topology } = *self;
        shape::topology(topology, chunks, model, batch, report);
        shape::fp8(precision, model, batch, topology, report);
        shape::blocks_of_columns(optimizer, topology, model, report);
        check_adafactor_offload(optimizer, topology, report);
        check_muon_offload(optimizer, topology, report);
    }
}

/// Checks a manifest. `folder` is the base of relative data paths; `stem` names a manifest without
/// a name.
pub fn manifest(raw: Raw, report: &mut Report, folder: &Path, stem: &str) -> Manifest {
    let name = name(raw.name, report, stem);
    let cut = raw.topology.unwrap_or_default();
    let chunks = cut.chunks.is_some();
    let mut topology = Topology::read(cut);
    // A group of one rank has nothing to share; Megatron also disables it then.
    topology.sequence_parallel &= topology.tensor > 1;
    let model = raw.model.unwrap_or_default();
    shape::check_written(&model, report);
    let model = Model::read(model, topology.tensor);
    shape::positions(&model, report);
    shape::pattern(&model, report);
    shape::heads(&model, report);
    let batch = Batch::read(raw.batch.unwrap_or_default(), report);
    time::batch(&batch, topology.data, report);
    let train = raw.train.unwrap_or_default();
    let schedule = batch.schedule(model.seq_len);
    time::lengths(&batch, &model, &topology, report);
    let samples = time::samples(&train, &schedule, report);
    let log = Log::read(raw.log.unwrap_or_default(), &name);
    let run = RunInputs { model: &model, schedule: &schedule, samples, folder: &log.folder };
    let data = data::data(raw.data.unwrap_or_default(), &run, folder, report);
    let precision = raw.precision.unwrap_or(Precision::F32);
    let loss_scale = loss_scale(raw.loss_scale, precision, report);
    let optimizer = optimizers::optimizer(raw.optimizer, report);
    let rate = raw.lr.unwrap_or_default();
    let in_tokens = rate.warmup_tokens.is_some();
    let rate = Lr::read(rate, samples, &schedule, report);
    lr::check(&rate, in_tokens, report);
    relative_step(&optimizer, &rate, report);
    mup(&model, &optimizer, report);
    let comm = Comm::read(raw.comm.unwrap_or_default());
    rendezvous(&comm, report);
    let restart = Restart::read(raw.restart.unwrap_or_default());
    let checkpoint = Checkpoint::read(raw.checkpoint.unwrap_or_default());
    check_mirror(&checkpoint, report);
    check_node_memory(&checkpoint, &topology, report);
    let divergence = run::divergence(raw.divergence);
    let slurm = Slurm::read(raw.slurm.unwrap_or_default());
    let plan = Plan::read(raw.plan.unwrap_or_default(), folder);
    let sets = !data.valid.is_empty();
    let tokenizer = data.tokenizer.is_some();
    let inputs = EvalInputs { sets, tokenizer, folder };
    let train = Train::read(train, samples, &inputs, &batch, report);
    let split = Split {
        precision,
        model: &model,
        batch: &batch,
        optimizer: &optimizer,
        topology: &topology,
    };
    split.check(chunks, report);
    Manifest {
        name,
        model,
        precision,
        loss_scale,
        data,
        batch,
        optimizer,
        lr: rate,
        topology,
        comm,
        restart,
        checkpoint,
        divergence,
        slurm,
        log,
        plan,
        train,
    }
}

/// YAML of every key with its value. It loads to the same manifest from any folder.
pub fn effective(m: &Manifest) -> String {
    serde_saphyr::to_string(&raw(m)).expect("plain structs are always written")
}

/// Manifest as written, with every key.
pub fn raw(m: &Manifest) -> Raw {
    Raw {
        name: Some(m.name.clone()),
        model: m.model.written(),
        precision: Some(m.precision),
        loss_scale: m.loss_scale.written().map(Into::into),
        data: m.data.written(),
        batch: m.batch.written(),
        optimizer: m.optimizer.written(),
        lr: m.lr.written(),
        topology: m.topology.written(),
        comm: m.comm.written(),
        restart: m.restart.written(),
        checkpoint: m.checkpoint.written(),
        divergence: m.divergence.written().map(Into::into),
        slurm: m.slurm.written(),
        log: m.log.written(),
        plan: m
            .plan
            .written()
            .filter(|_| m.plan != Plan::read(Default::default(), Path::new("/"))),
        train: m.train.written(),
    }
}

/// YAML of the `model` section, with every setting.
pub fn model_section(model: &Model) -> String {
    let yaml = serde_saphyr::to_string(&model.written()).expect("plain structs are always written");
    let lines = yaml.lines().map(|line| format!("  {line}\n"));
    format!("model:\n{}", lines.collect::<String>())
}

/// Settings of a model that do not depend on its weights; seq_len is another.
pub const FREE_MODEL_SETTINGS: [&str; 3] = ["model.dropout", "model.init", "model.vocab_multiple"];

/// JSON of a model's settings by key. Defaults that depend on other settings are written out, so
/// that equal models have equal settings.
pub fn model_settings(model: &Model) -> serde_json::Map<String, serde_json::Value> {
    let heads = model.heads();
    let full = Model {
        kv_heads: Some(heads.kv),
        head_dim: Some(heads.dim),
        positions: (model.position == Position::Learned).then(|| model.context()),
        ..model.clone()
    };
    json_object(&full.written())
}

/// JSON of a manifest's settings by key, those of the model as `model_settings` has them.
pub fn settings_json(m: &Manifest) -> serde_json::Value {
    let mut settings = json_object(&raw(m));
    settings.insert("model".into(), model_settings(&m.model).into());
    settings.into()
}

/// Converts through text, which keeps an f32 as written: 0.1, not 0.10000000149.
fn json_object(section: &impl serde::Serialize) -> serde_json::Map<String, serde_json::Value> {
    let text = serde_json::to_string(section).expect("plain structs are always written");
    serde_json::from_str(&text).expect("an object was written")
}

fn name(name: Option<String>, report: &mut Report, stem: &str) -> String {
    let name = name.unwrap_or_else(|| stem.to_string());
    if name.is_empty()
        || name.len() > 200
        || name.starts_with('.')
        || !name
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ' '))
    {
        report.add(
            "name",
            format!("name \"{}\" cannot name a folder", short(&name)),
            "use letters, digits, `-`, `_` and `.`",
        );
    }
    name
}

/// A relative step replaces a schedule.
fn relative_step(optimizer: &Optimizer, lr: &Lr, report: &mut Report) {
    let Optimizer::Adafactor(Adafactor { relative_step: true, .. }) = optimizer else { return };
    let scheduled = match (lr.decay, lr.warmup_samples) {
        (Decay::Constant, 0) => return,
        (Decay::Constant, samples) => format!("lr has a warm-up of {samples} samples"),
        (decay, _) => format!("lr.decay is {}", decay.name()),
    };
    if report.are_valid(&["optimizer", "lr", "train"]) {
        report.add_conflict(
            &["optimizer.adafactor.relative_step", "lr.decay"],
            format!(
                "optimizer.adafactor.relative_step makes a step min(lr.peak, 1/√updates), and \
                 {scheduled}"
            ),
            "set lr: {peak: 0.01, decay: constant} without a warm-up, or relative_step: \
             false",
        );
    }
}

/// µP's factors assume that no other setting scales steps or embeddings with the width.
fn mup(model: &Model, optimizer: &Optimizer, report: &mut Report) {
    let Some(mup) = model
        .mup
        .filter(|_| report.are_valid(&["model", "optimizer"]))
    else {
        return;
    };
    if let Optimizer::Adafactor(Adafactor { scale_parameter: true, .. }) = optimizer {
        report.add_conflict(
            &["model.mup", "optimizer.adafactor.scale_parameter"],
            "model.mup with optimizer.adafactor.scale_parameter true: steps would shrink \
             with the width twice, by µP's factor and by each weight's own size, which µP \
             has made smaller at the start",
            "set optimizer.adafactor.scale_parameter to false, or remove model.mup",
        );
    }
    if model.embedding_layernorm && mup.embedding_multiplier != 1.0 {
        let paths = ["model.mup.embedding_multiplier", "model.embedding_layernorm"];
        report.add_conflict(&paths, format!(
            "model.embedding_layernorm takes away what model.mup.embedding_multiplier {} multiplies",
            mup.embedding_multiplier
        ), "remove one of them");
    }
}

/// Adafactor all-reduces its sums on the device during an update, so the update runs there.
fn check_adafactor_offload(optimizer: &Optimizer, topology: &Topology, report: &mut Report) {
    let valid = report.are_valid(&["optimizer", "topology.offload"]);
    if !matches!(optimizer, Optimizer::Adafactor(_)) || !valid {
        return;
    }
    if topology.offload.gradients == GradientHome::Host {
        report.add_conflict(
            &["topology.offload.gradients", "optimizer"],
            "topology.offload.gradients host with optimizer adafactor: the device sums up \
             the squares of every gradient, twice",
            "set topology.offload.gradients to device, or take adamw",
        );
    }
}

/// Muon multiplies whole matrices, which ranks exchange during an update.
fn check_muon_offload(optimizer: &Optimizer, topology: &Topology, report: &mut Report) {
    let offloads = topology.offload.what != OffloadWhat::None;
    let valid = report.are_valid(&["optimizer", "topology.offload"]);
    if matches!(optimizer, Optimizer::Muon(_)) && offloads && valid {
        report.add_conflict(
            &["optimizer", "topology.offload"],
            "optimizer muon with topology.offload is not in this version: its steps are \
             products of whole matrices, which a host's processor is too slow for",
            "set topology.offload: none, or take adamw",
        );
    }
}

/// Checks the location of the second copies.
fn check_mirror(checkpoint: &Checkpoint, report: &mut Report) {
    let Some(also) = &checkpoint.also else { return };
    if let Err(what) = PlaceUrl::read(also) {
        report.add("checkpoint.also", format!("{} is {what}", short(also)), PlaceUrl::REMEDY);
    }
}

/// Checks the saves into the memory of nodes.
fn check_node_memory(checkpoint: &Checkpoint, topology: &Topology, report: &mut Report) {
    if let Some(folder) = &checkpoint.memory_folder {
        let shown = short(&folder.display().to_string());
        if !folder.is_absolute() {
            report.add(
                "checkpoint.memory_folder",
                format!("checkpoint.memory_folder \"{shown}\" is not an absolute path"),
                "name a folder that every node has in memory, such as /dev/shm",
            );
        } else if checkpoint.memory_interval.is_none() {
            report.add(
                "checkpoint.memory_folder",
                format!("nothing is saved in checkpoint.memory_folder \"{shown}\""),
                "set checkpoint.memory_interval: 10, or remove it",
            );
        }
    }
    if checkpoint.memory_interval.is_some() && topology.compression.is_some() {
        report.add_conflict(
            &["checkpoint.memory_interval", "topology.compression"],
            "checkpoint.memory_interval with topology.compression: a save averages the errors of \
             compression, so losses would depend on which saves are skipped",
            "remove one of them",
        );
    }
}

fn rendezvous(comm: &Comm, report: &mut Report) {
    let Some(given) = &comm.rendezvous else { return };
    let port = given.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
    if !matches!(port, Some(Ok(1..))) {
        report.add(
            "comm.rendezvous",
            format!("comm.rendezvous \"{}\" is not host:port", short(given)),
            "as in n01:29500, or remove it",
        );
    }
}
