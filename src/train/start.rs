//! What happens before the first step: the folder is locked, the data opened, memory reserved, and
//! the state loaded or begun. Each part is come through by all ranks, or all end.

use super::feed::{Feed, Turn};
use super::guard::{FolderLock, Signals};
use super::launch::{self, Crew, Device};
use super::rank::{Agreed, Rank};
use super::report::{Report, RunInfo};
use super::saving::{self, Saver};
use super::together;
use super::{Options, Run, attempts, replay, resume};
use crate::base::{Bytes, Count};
use crate::checkpoint::{DataId, State};
use crate::data::{Datasets, Plan};
use crate::engine::Engine;
use crate::manifest::{Loaded, Manifest};
use crate::model;
use crate::plan::ramp::Ramp;
use anyhow::Context;
use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// What the ranks of one process share.
pub struct Process<'a> {
    loaded: &'a Loaded,
    options: &'a Options,
    pub signals: Signals,
    /// Opened by the first rank that comes; none, once that has failed.
    data: Mutex<Option<Option<Arc<Datasets>>>>,
    node: String,
    kind: &'static str,
    threads: usize,
}

impl<'a> Process<'a> {
    pub fn new(
        loaded: &'a Loaded,
        options: &'a Options,
        crew: &Crew,
    ) -> anyhow::Result<Process<'a>> {
        Ok(Process {
            loaded,
            options,
            signals: Signals::listen()?,
            data: Mutex::new(None),
            node: crew.node.clone(),
            kind: crew.kind,
            threads: crew.threads,
        })
    }

    fn data(&self, mixture: Plan) -> anyhow::Result<Arc<Datasets>> {
        let m = &self.loaded.manifest;
        let mut data = self.data.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let open = || {
            let turn = Turn::alone(m);
            let eval_samples = turn.rounds(m.train.eval_samples) * turn.micro as u64;
            Datasets::resume(&m.data, mixture, m.model.seq_len, m.model.vocab, eval_samples)
        };
        match &*data {
            Some(Some(data)) => Ok(data.clone()),
            Some(None) => Err(Agreed { code: 1, error: None }.into()),
            None => {
                let opened = open().map(Arc::new);
                *data = Some(opened.as_ref().ok().cloned());
                opened
            }
        }
    }
}

/// The run's folder, held by the first rank.
pub fn lock(rank: &Rank, m: &Manifest) -> anyhow::Result<Option<FolderLock>> {
    rank.all(match rank.is_first() {
        true => FolderLock::take(&m.log.folder).map(Some),
        false => Ok(None),
    })
}

/// One rank, ready for its next step.
pub fn open<'a>(
    process: &'a Process,
    rank: &'a Rank,
    device: &'a Device,
) -> anyhow::Result<Run<'a>> {
    let (loaded, options) = (process.loaded, process.options);
    let (m, be) = (&loaded.manifest, device.backend());
    let ramp = m.batch.ramp();
    let asked = options.resume_from.as_deref();
    rank.doing("opening data");
    let found = rank.first(|| resume::find(m, asked))?;
    // What is missing is named when it is opened.
    let there = rank.first(|| Ok(resume::data_ids(m).ok()))?;
    let before = resume::mixture(found.as_ref(), m, there.as_deref().unwrap_or_default());
    let (mixture, change) = rank.all(before)?;
    change.iter().for_each(|change| rank.say(change));
    // An order that takes long to build is built by one, and found by the others.
    let built = if rank.is_first() { process.data(mixture.clone()).map(drop) } else { Ok(()) };
    rank.all(built)?;
    let data = rank.all(process.data(mixture))?;
    let ids = match there {
        Some(ids) => ids,
        None => rank.first(|| resume::data_ids(m))?,
    };
    together::same_data(rank, m, &process.node, &ids)?;
    let from = found.as_ref().map_or(0, |found| found.step);
    rank.first(|| attempts::count(&m.log.folder, from))?;
    let engine = reserve(process, rank, device)?;
    announce(process, rank, device, &engine, ramp)?;
    if let Some(steps) = options.verify_resume {
        let verified = replay::verify(steps, rank, loaded, &ids, &engine, be, &data.train);
        rank.say(rank.all(verified)?);
    }
    rank.doing("loading");
    let mut state: State = match &found {
        Some(found) => resume::resume(rank, found, asked.is_some(), loaded, &ids, &engine)?,
        None => begin(rank, loaded, ids, &engine)?,
    };
    state.mixture = data.plan.clone();
    let progress = state.progress;
    let saver = rank.all(Saver::open(m, rank, &engine, state))?;
    let snapshots: u64 = rank.gather(&saver.bytes().0)?.iter().sum();
    rank.say(format!("checkpoints: {} of host memory for snapshots", Bytes(snapshots)));
    let report = match rank.is_first() {
        true => record(loaded, ramp, progress.step).map(Some),
        false => Ok(None),
    };
    let turn = Turn::of(rank, m);
    let consumed = progress.consumed_samples;
    Ok(Run {
        manifest: m,
        rank,
        turn,
        ramp,
        engine,
        be,
        feed: Feed::training(&data.train, ramp, turn, consumed, m.train.samples)?,
        valid: data.valid.clone(),
        report: rank.all(report)?,
        progress,
        under_way: None,
        last_ended: Instant::now(),
        saver,
        signals: &process.signals,
        first_steps: Vec::new(),
    })
}

/// The engine, with all memory that it will ever have.
fn reserve<'a>(process: &Process, rank: &Rank, device: &'a Device) -> anyhow::Result<Engine<'a>> {
    let (loaded, node, be) = (process.loaded, &process.node, device.backend());
    let m = &loaded.manifest;
    rank.doing("reserving memory");
    let room = together::room(rank, device, node)?;
    let groups = rank.groups(device, m);
    let groups = groups.map_err(|problems| launch::of_rank(rank, node, problems));
    let groups = rank.all(groups.map_err(anyhow::Error::from))?;
    let engine = Engine::new(be, groups, m, m.data.causal());
    let engine = rank.all(engine.map_err(|e| together::too_small(rank, loaded, node, room, e)))?;
    together::enough_memory(rank, be, node, engine.bill().total())?;
    Ok(engine)
}

/// A run that has not begun.
fn begin(rank: &Rank, loaded: &Loaded, ids: Vec<DataId>, engine: &Engine) -> anyhow::Result<State> {
    rank.doing("setting initial weights");
    engine.init();
    rank.first(|| Ok(saving::blank(loaded, ids)))
}

/// The effective manifest, and the report that is written from here on.
fn record(loaded: &Loaded, ramp: Ramp, step: u64) -> anyhow::Result<Report> {
    let m = &loaded.manifest;
    let path = m.log.folder.join("manifest.yaml");
    fs::write(&path, &loaded.effective)
        .with_context(|| format!("cannot write {}", path.display()))?;
    let (folder, every, events) = (&m.log.folder, m.log.interval, m.log.tensorboard);
    Report::open(folder, run_info(m, ramp), every, events, step)
}

fn run_info(m: &Manifest, ramp: Ramp) -> RunInfo {
    let flops = model::flops_per_token(&m.model);
    RunInfo {
        name: m.name.clone(),
        params: model::parameters(&m.model),
        total_samples: m.train.samples,
        total_steps: ramp.steps(m.train.samples),
        seq_len: m.model.seq_len,
        model_flops_per_token: flops.model,
        hardware_flops_per_token: flops.hardware(m.topology.recompute),
        peak_flops: m.log.peak_tflops.map(|peak| peak * 1e12),
    }
}

/// The run, its ranks and where they are, and the memory of the rank that takes most.
fn announce(
    process: &Process,
    rank: &Rank,
    device: &Device,
    engine: &Engine,
    ramp: Ramp,
) -> anyhow::Result<()> {
    let m = &process.loaded.manifest;
    let here = (process.node.clone(), device.gpu().map(|gpu| gpu.ordinal));
    let mine = (here, engine.bill().total().0, engine.bill().to_string());
    let all = rank.gather(&mine)?;
    if !rank.is_first() {
        return Ok(());
    }
    let tokens = m.train.samples * m.model.seq_len as u64;
    println!(
        "{}: {} parameters, {} steps, {} tokens, {}",
        m.name,
        Count(model::parameters(&m.model)),
        Count(ramp.steps(m.train.samples)),
        Count(tokens),
        engine.live_dtype(),
    );
    if rank.grid.size() > 1 {
        let places: Vec<_> = all.iter().map(|(here, ..)| here.clone()).collect();
        println!("{}", placement(process, rank, &places));
    }
    let most =
        all.iter().enumerate().max_by_key(|(rank, (_, total, _))| (*total, usize::MAX - rank));
    let Some((fullest, (.., bill))) = most else { return Ok(()) };
    match rank.grid.size() {
        1 => println!("memory: {bill}"),
        _ => println!("memory of rank {fullest}, which takes most: {bill}"),
    }
    Ok(())
}

/// Lines of a placement that are shown.
const SHOWN: usize = 16;

/// Which ranks are where:
/// `8 ranks (threads of a process, 1 thread each): tensor 2 × pipeline 2 × data 2, ZeRO 1`. By rank:
/// its node, and its GPU if it has one.
fn placement(process: &Process, rank: &Rank, places: &[(String, Option<usize>)]) -> String {
    let nodes: Vec<&str> = places.iter().map(|(node, _)| node.as_str()).collect();
    let topology = &process.loaded.manifest.topology;
    let mut text = format!(
        "{} ranks ({}, CPU threads each: {}): tensor {} × pipeline {} × data {}, ZeRO {}",
        nodes.len(),
        process.kind,
        process.threads,
        topology.tensor,
        topology.pipeline,
        topology.data,
        topology.zero
    );
    let mut ranks: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for (number, node) in nodes.iter().enumerate() {
        let first = nodes.iter().position(|other| other == node).unwrap_or(number);
        let place = rank.grid.place(number).name();
        let gpu = places[number].1.map(|gpu| format!(" GPU {gpu}")).unwrap_or_default();
        ranks.entry(first).or_default().push(format!("{number} {place}{gpu}"));
    }
    for (first, list) in ranks.iter().take(SHOWN) {
        text += &format!("\n  {}: {}", nodes[*first], list.join(" · "));
    }
    if ranks.len() > SHOWN {
        text += &format!("\n  and {} more nodes", ranks.len() - SHOWN);
    }
    let apart = (0..nodes.len()).find(|number| {
        let group = rank.grid.tensor_group(rank.grid.place(*number));
        group.iter().any(|other| nodes[*other] != nodes[*number])
    });
    if let Some(number) = apart {
        let group = rank.grid.tensor_group(rank.grid.place(number));
        text += &format!(
            "\nnote: the tensor-parallel ranks {group:?} are not on one node, which is slow: \
             start a multiple of {} ranks on each",
            topology.tensor
        );
    }
    text
}
