//! Cuts that `gptrain tune` measures: those of a search, or a product of values. Each with its plan. Both
//! are kept in a file of the table's folder: a later start would plan other cuts on a busier machine.

use crate::estimate::records::replicas_on_as_many_devices;
use crate::estimate::search::explain_none;
use crate::sweep::variants::{combine_values, parse_axes};
use anyhow::{Context, Result};
use base::input;
use base::memory::HostMemory;
use base::output::{self, Existing};
use base::{Bytes, Count, Problems};
use device::Gpu;
use estimate::gptrain::dry_run::{self, MemoryLimits};
use estimate::gptrain::stage_times;
use estimate::hardware::{self, CPU};
use estimate::request::{self, Flags};
use estimate::search::print;
use estimate::setup::{Extras, Setup};
use estimate::tuned::{CutResult, TunedRow};
use estimate::view::GIB;
use launch::series;
use manifest::{DeviceChoice, Loaded, Manifest};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use train::probe::Probe;

/// File of the planned cuts in the table's folder.
const PLAN: &str = "cuts.json";

/// Request of a table.
#[derive(Debug)]
pub struct Request<'a> {
    pub manifest: &'a Path,
    /// Settings of all cuts.
    pub sets: &'a [String],
    /// Values to combine; None for a search.
    pub over: Option<&'a str>,
    /// Number of cuts of a search.
    pub best: usize,
    /// Number of ranks; None for the manifest's.
    pub ranks: Option<usize>,
    pub hardware: Option<&'a str>,
    pub at_samples: u64,
    pub folder: Option<&'a Path>,
    /// Whether the ranks compute on this machine.
    pub is_here: bool,
}

/// Cut of a manifest.
pub struct Cut {
    /// Unique name, of its files.
    pub name: String,
    /// Effective manifest; empty if its settings are refused.
    pub effective: String,
    /// Its row before it is measured.
    pub planned: TunedRow,
    /// Ranks of a node, if they have a GPU each.
    pub per_node: Option<usize>,
}

/// All cuts.
pub struct Cuts {
    pub folder: PathBuf,
    pub base: Loaded,
    /// Machine of the plan.
    pub hardware: String,
    pub all: Vec<Cut>,
}

/// Planned cuts.
#[derive(Serialize, Deserialize)]
struct Plan {
    /// Digest of the manifest and of the request.
    input: u64,
    hardware: String,
    rows: Vec<TunedRow>,
}

/// Plan of the cuts on a machine.
struct Planner<'a> {
    asked: &'a Request<'a>,
    request: &'a request::Request,
    /// Whether the plan is for the machine that runs the cuts.
    is_sure: bool,
}

impl Cuts {
    /// Reads the planned cuts of an earlier start, or plans them and keeps them in the table's folder.
    pub fn read(asked: &Request) -> Result<Cuts> {
        let base = manifest::load(asked.manifest, asked.sets)?;
        let run = &base.manifest.log.folder;
        let folder = asked.folder.map_or_else(|| beside(run), Path::to_path_buf);
        let path = folder.join(PLAN);
        let input = series::digest(&format!("{asked:?}\n{}", base.effective));
        let kept = input::read(&path, input::SMALL).ok();
        let kept = kept.and_then(|text| serde_json::from_slice::<Plan>(&text).ok());
        let plan = match kept.filter(|plan| plan.input == input) {
            Some(plan) => plan,
            None => {
                let plan = Plan::new(asked, &base, input)?;
                std::fs::create_dir_all(&folder)
                    .with_context(|| format!("cannot make {}", folder.display()))?;
                output::write(&path, Existing::Replaced, &serde_json::to_vec_pretty(&plan)?)?;
                plan
            }
        };
        let cut = |planned| Cut::new(planned, asked, &plan.hardware);
        let all = plan.rows.iter().cloned().map(cut).collect();
        Ok(Cuts { folder, base, hardware: plan.hardware.clone(), all })
    }
}

impl Plan {
    fn new(asked: &Request, base: &Loaded, input: u64) -> Result<Plan> {
        let m = &base.manifest;
        let flags =
            Flags { program: Some("gptrain"), hardware: asked.hardware, ..Flags::default() };
        let request = request::Request::new(m.clone(), &flags)?;
        let named = asked.hardware.is_some() || m.plan.hardware.is_some();
        let on_gpus = m.train.device != DeviceChoice::Cpu && asked.is_here && Gpu::count() > 0;
        if on_gpus && !named {
            tracing::warn!(
                "the cuts are planned for a processor, and run on GPUs: name them with --hardware \
                 (`gptrain estimate --list-hardware`)"
            );
        }
        let planner = Planner { asked, request: &request, is_sure: named || !on_gpus };
        let ranks = asked.ranks.unwrap_or(m.topology.ranks());
        let sets = match asked.over {
            Some(over) => combine(over, m, ranks)?,
            None => search(&request, ranks, asked.best)?,
        };
        let rows = sets.into_iter().map(|sets| planner.plan(sets)).collect();
        Ok(Plan { input, hardware: request.setup.hardware.name.clone(), rows })
    }
}

/// Default folder: the run's with `-tune`.
fn beside(run: &Path) -> PathBuf {
    let mut name = run.file_name().unwrap_or_default().to_os_string();
    name.push("-tune");
    run.with_file_name(name)
}

/// Settings of the fastest cuts over so many ranks by the plan.
fn search(request: &request::Request, ranks: usize, most: usize) -> Result<Vec<Vec<String>>> {
    let search = request.search(None, Extras::default());
    let found = search.best_cuts(ranks, most);
    if found.is_empty() {
        let what = explain_none(ranks, search.exclusion(ranks));
        let remedy = "give --gpus another number, or cuts with --over";
        return Err(Problems::one("--gpus", what, remedy).into());
    }
    let m = &request.manifest;
    Ok(found
        .iter()
        .map(|candidate| print::sets(m, &candidate.setup))
        .collect())
}

/// Settings of every combination of the values, on so many ranks.
fn combine(over: &str, m: &Manifest, ranks: usize) -> Result<Vec<Vec<String>>, Problems> {
    let parts: Vec<String> = over
        .split(';')
        .map(|part| part.trim().to_string())
        .filter(|part| !part.is_empty())
        .collect();
    let axes = parse_axes("--over", &parts)?;
    let mut topology = m.topology.clone();
    let replica = topology.tensor * topology.pipeline;
    let scaled = ranks != topology.ranks();
    if scaled && !ranks.is_multiple_of(replica) {
        let what = format!("{ranks} ranks are not whole replicas of {replica}");
        let remedy = format!("--gpus {}", ranks.next_multiple_of(replica));
        return Err(Problems::one("--gpus", what, remedy));
    }
    topology.data = ranks / replica;
    let mut all = Vec::new();
    for values in combine_values("--over", &axes)? {
        let mut sets = Vec::new();
        for (axis, value) in axes.iter().zip(values) {
            sets.push(format!("{}={value}", axis.key));
        }
        let sets_data = axes
            .iter()
            .any(|axis| ["topology", "topology.data"].contains(&axis.key));
        let kept = scaled.then_some(topology.data).filter(|_| !sets_data);
        let replicas = replicas_on_as_many_devices(&topology, 1, &sets).or(kept);
        sets.extend(replicas.map(|replicas| format!("topology.data={replicas}")));
        all.push(sets);
    }
    Ok(all)
}

impl Planner<'_> {
    /// Row of the cut with these settings.
    fn plan(&self, set: Vec<String>) -> TunedRow {
        let all = [self.asked.sets, &set[..]].concat();
        match manifest::load(self.asked.manifest, &all) {
            Ok(loaded) => {
                let row = self.plan_row(&loaded.manifest);
                let notes = [settings(&set), row.notes].concat();
                TunedRow { set, notes, ..row }
            }
            Err(error) => {
                let notes = format!("refused: {}", first_line(&format!("{error:#}")));
                TunedRow { set, result: CutResult::Refused, notes, ..TunedRow::default() }
            }
        }
    }

    /// Planned figures of a manifest.
    fn plan_row(&self, m: &Manifest) -> TunedRow {
        let hardware = self.request.setup.hardware;
        let limits = MemoryLimits::new(m, hardware);
        let ramp = m.batch.ramp();
        let global = ramp.batch_at(ramp.samples_after(ramp.steps(self.asked.at_samples)));
        let micro = m.batch.micros().at(global);
        let setup = Setup { global, micro, ..self.request.setup.for_manifest(m) };
        let stages = dry_run::stages(&dry_run::place_gradients(m, limits));
        let bytes = dry_run::peak(&stages).1;
        let t = &m.topology;
        let mut row = TunedRow {
            parameters: Some(model::parameters(&m.model)),
            data: Some(t.data),
            tensor: Some(t.tensor),
            pipeline: Some(t.pipeline),
            micro_batch: Some(m.batch.micros().at(global)),
            global_batch: Some(global),
            planned_bytes: Some(bytes.0),
            planned_sec: self.is_sure.then(|| stage_times::seconds(&stages, &setup)),
            notes: print::describe_rest(&setup),
            ..TunedRow::default()
        };
        if let Some(shortage) = self.shortage(m, &stages) {
            row.result = CutResult::OutOfMemory;
            row.device_bytes = Some(bytes.0);
            row.notes = format!("OOM: {shortage}; {}", row.notes);
        }
        row
    }

    /// Reason why the cut certainly has too little memory.
    fn shortage(&self, m: &Manifest, stages: &[dry_run::Stage]) -> Option<String> {
        let hardware = self.request.setup.hardware;
        let needed = dry_run::peak(stages).1;
        if hardware.name != CPU {
            let whole = Bytes((hardware.memory_gib * GIB) as u64);
            let is_short = self.is_sure && needed > whole;
            return is_short.then(|| format!("a rank needs {needed} of {whole}"));
        }
        let memory = HostMemory::detect().filter(|_| self.is_sure && self.asked.is_here)?;
        let on_stage = (m.topology.tensor * m.topology.data) as u64;
        let of_stages = stages.iter().map(|stage| {
            let plan = &stage.memory_plan;
            plan.total().0.saturating_add(plan.host_total().0)
        });
        let all = of_stages
            .fold(0, u64::saturating_add)
            .saturating_mul(on_stage);
        let ranks = Count(m.topology.ranks() as u64).with_noun("rank");
        (all > memory.total.0)
            .then(|| format!("{needed} on a rank, {} for {ranks} of {}", Bytes(all), memory.total))
    }
}

impl Cut {
    fn new(planned: TunedRow, asked: &Request, hardware: &str) -> Cut {
        let digest = series::digest(&planned.set.join("\n")) as u32;
        let sets = [asked.sets, &planned.set[..]].concat();
        let Ok(loaded) = manifest::load(asked.manifest, &sets) else {
            let name = format!("refused-{digest:08x}");
            return Cut { name, effective: String::new(), planned, per_node: None };
        };
        let m = &loaded.manifest;
        let t = &m.topology;
        let grid = format!("tp{}-pp{}-dp{}-mb{}", t.tensor, t.pipeline, t.data, m.batch.micro);
        let row = hardware::find(hardware, "--hardware").ok();
        let on_gpus = hardware != CPU && m.train.device != DeviceChoice::Cpu;
        let per_node = row.filter(|_| on_gpus).map(|row| row.per_node);
        let name = format!("{grid}-{digest:08x}");
        Cut { name, effective: loaded.effective, planned, per_node }
    }

    /// Number of its ranks.
    pub fn ranks(&self) -> usize {
        let TunedRow { data, tensor, pipeline, .. } = self.planned;
        data.unwrap_or(1) * tensor.unwrap_or(1) * pipeline.unwrap_or(1)
    }

    /// Row with the measurements of a probe.
    pub fn measured(&self, probe: &Probe) -> TunedRow {
        let memory = probe.memory.memory;
        TunedRow {
            result: CutResult::Measured,
            nodes: Some(probe.nodes),
            global_batch: Some(probe.global_batch as usize),
            device_bytes: Some(memory.on_device()),
            host_bytes: memory.host,
            sec: Some(probe.sec),
            tflops_simple: Some(probe.tflops_simple),
            tflops: Some(probe.tflops),
            ..self.planned.clone()
        }
    }

    /// Row of a cut that failed for this reason.
    pub fn failed(&self, why: &str) -> TunedRow {
        let planned = self.planned.clone();
        if why.contains(OUT_OF_MEMORY) {
            let device_bytes = planned.planned_bytes;
            let notes = format!("OOM: {why}; {}", planned.notes);
            return TunedRow { result: CutResult::OutOfMemory, device_bytes, notes, ..planned };
        }
        TunedRow {
            result: CutResult::Failed,
            notes: format!("failed: {why}; {}", planned.notes),
            ..planned
        }
    }
}

/// Words of every error about memory: of `device::OutOfMemory`, of a start's checks, of CUDA.
const OUT_OF_MEMORY: &str = "out of memory";

/// Settings that have no column, before other notes.
fn settings(set: &[String]) -> String {
    let in_columns = |set: &&String| {
        set.split_once('=').is_some_and(|(key, _)| {
            key.starts_with("topology.") || ["batch.micro", "batch.global"].contains(&key)
        })
    };
    let others = set.iter().filter(|set| !in_columns(set));
    others.map(|set| format!("{set}, ")).collect()
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_string()
}
