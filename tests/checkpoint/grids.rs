//! Any grid loads what any other saved: every value is bit-identical, and the losses that follow
//! are those of one rank that never stopped.

use crate::common;
use gptrain::base::Problems;
use gptrain::checkpoint::disk::Disk;
use gptrain::checkpoint::{
    self, Checkpoint, Group, Optimizer, Progress, ReplicaDigest, Rng, WrittenPart,
};
use gptrain::checkpoint::{Snapshot, State, inspect};
use gptrain::comm::{World, threads};
use gptrain::data::{self, Batch};
use gptrain::device::cpu::Cpu;
use gptrain::engine::{Engine, Groups, MASTER, OptimizerRule, Outcome, StateSlice, optimizer_rule};
use gptrain::manifest::{self, Loaded, Manifest};
use gptrain::model::{Inputs, Layout};
use std::fmt::Debug;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Steps of a run.
pub const STEPS: usize = 5;
/// Steps before the save.
const SAVED: usize = 2;

macro_rules! grids {
    ($name:ident: [$($from:literal),*] [$($to:literal),*]) => {
        #[test]
        fn $name() {
            there_and_back(&[$($from),*], &[$($to),*]);
        }
    };
}

grids!(tensor_pipeline_and_zero_3: ["tensor=4", "pipeline=2"] ["data=8", "zero=3"]);
grids!(all_three_and_zero_2: ["tensor=2", "pipeline=2", "data=2", "zero=1"] ["data=4", "zero=2"]);
grids!(uneven_stages_and_tensor_zero_3: ["pipeline=2", "layer_split=[3, 1]"]
    ["tensor=2", "data=2", "zero=3", "sequence_parallel=true"]);
grids!(stages_without_layers_and_replicas: ["pipeline=4", "layer_split=[0, 2, 2, 0]"] ["data=2"]);
grids!(one_rank_and_pipeline_zero_1: [] ["pipeline=4", "data=2", "zero=1"]);
grids!(zero_1_by_8_and_replicas: ["data=8", "zero=1"] ["tensor=2", "data=2", "neighbours=pipeline"]);
grids!(tensor_zero_2_and_gpipe: ["tensor=2", "data=2", "zero=2"] ["pipeline=2", "schedule=gpipe"]);

grids!(pipeline_zero_2_and_zero_3: ["pipeline=2", "data=2", "zero=2"] ["data=4", "zero=3"]);
grids!(interleaved_zero_2_and_uneven_zero_2:
    ["pipeline=2", "data=2", "zero=2", "schedule=interleaved"]
    ["tensor=2", "pipeline=2", "data=2", "zero=2", "layer_split=[3, 1]"]);

grids!(breadth_first_zero_3_and_sums_of_two:
    ["pipeline=2", "data=2", "zero=3", "schedule=breadth_first", "chunks=3",
        "layer_split=[0, 1, 1, 1, 1, 0]"]
    ["tensor=2", "pipeline=2", "data=2", "zero=2", "zero_every=2", "schedule=breadth_first"]);

/// For both model families and precisions. (The vocabularies are padded to different sizes.)
fn there_and_back(from: &[&str], to: &[&str]) {
    let families: [(&[&str], f64); 4] = [
        (&["model.dropout=0.1"], 1e-6),
        (
            &["model.position=alibi", "model.embedding_layernorm=true", "model.tied_head=false"],
            1e-6,
        ),
        (&["precision=bf16", "model.dropout=0.1"], 2e-3),
        (&["optimizer.muon={clip: 0.3}"], 1e-6),
    ];
    for (family, tolerance) in families {
        let manifest = |topology: &[&str]| {
            let topology = topology.iter().map(|set| format!("topology.{set}"));
            loaded(
                &family
                    .iter()
                    .map(|set| set.to_string())
                    .chain(topology)
                    .collect::<Vec<_>>(),
            )
        };
        let one = run(&manifest(&[]), None, 0..STEPS).outcomes;
        let all = [manifest(from), manifest(to)];
        let folder = tempfile::tempdir().unwrap();
        let saved = [0, 1].map(|i| {
            let before = run(&all[i], None, 0..SAVED);
            let saved = before.save(&all[i], &folder.path().join(i.to_string()));
            sound(&saved, &all[i]);
            // The same grid: as if it had not stopped.
            let whole = run(&all[i], None, 0..STEPS).outcomes;
            let after = run(&all[i], Some(&saved), SAVED..STEPS);
            assert_eq!(after.outcomes, whole[SAVED..], "the same grid, {family:?}");
            saved
        });
        for i in [0, 1] {
            let after = run(&all[1 - i], Some(&saved[i]), SAVED..STEPS);
            close(&after.outcomes, &one[SAVED..], tolerance, &family);
            // Loaded and saved again by the other grid: not a bit has changed.
            let again = run(&all[1 - i], Some(&saved[i]), SAVED..SAVED);
            let again = again.save(&all[1 - i], &folder.path().join(format!("{i} again")));
            sound(&again, &all[1 - i]);
            let diff = inspect::diff(&saved[i], &again).unwrap();
            assert!(diff.equal(), "{family:?}: {diff:?}");
        }
    }
}

/// Changes a weight of one rank by one bit, which does not affect the losses yet.
fn flip(engine: &Engine, name: &str) {
    let store = engine.store();
    let of = |slice: &StateSlice| slice.param.name == name && slice.state.name == MASTER;
    for slice in store.slices().into_iter().filter(of) {
        let mut bytes = vec![0; slice.bytes()];
        store.read(&slice, 0..slice.slice.size[0], &mut bytes);
        bytes[4 * 3] ^= 1;
        store.write(&slice, 0, &bytes);
    }
}

fn told(outcome: anyhow::Result<()>, parts: &[&str]) {
    let told = format!("{:#}", outcome.unwrap_err());
    assert!(parts.iter().all(|part| told.contains(part)), "{parts:?} in: {told}");
}

/// Copies that have drifted apart are named in the checkpoint that ranks write.
#[test]
fn drifted_copies_are_named() {
    let cases = [
        ("embed.token", 2, "TP0 DP0, tied"),
        ("block.0.ln1.scale", 1, "TP1 DP0"),
        ("block.3.mlp.fc2.bias", 3, "TP1 DP0"),
    ];
    let sets = ["topology.tensor=2", "topology.pipeline=2", "model.vocab=124"];
    let loaded = loaded(&sets.map(str::to_string));
    for (name, rank, saved) in cases {
        let meddle = |at: usize, engine: &Engine| {
            if at == rank {
                flip(engine, name);
            }
        };
        let (_, done) = try_run(&loaded, None, 0..0, &meddle, optimizer_rule);
        let folder = tempfile::tempdir().unwrap();
        let damage = inspect::inspect(&done.save(&loaded, folder.path()), true)
            .unwrap()
            .damage;
        let found = damage.iter().any(|found| {
            let parts = [name, "not the same on all ranks", "the master of", saved];
            parts.iter().all(|part| found.contains(part))
        });
        assert!(found && damage.len() == 1, "{damage:?}");
    }
}

/// A value that is read wrongly on one rank stops the start, and the weight and the rank are named.
#[test]
fn a_weight_that_arrives_changed_is_named_with_its_rank() {
    let sets = |topology: &[&str]| {
        loaded(
            &topology
                .iter()
                .map(|set| format!("topology.{set}"))
                .collect::<Vec<_>>(),
        )
    };
    let one = sets(&[]);
    let folder = tempfile::tempdir().unwrap();
    let saved = run(&one, None, 0..1).save(&one, folder.path());
    let checkpoint = Checkpoint::open(&saved).unwrap();
    let cases: [(&[&str], usize, &str); 4] = [
        (&[], 0, "on rank 0"),
        (&["data=4"], 2, "on rank 2"),
        (&["pipeline=2", "data=2"], 1, "on rank 1"),
        (&["tensor=2", "data=2"], 3, "on ranks 2 and 3"),
    ];
    for (topology, rank, place) in cases {
        let meddle = |at: usize, engine: &Engine| {
            if at == rank {
                flip(engine, "block.1.attn.qkv.weight");
            }
        };
        let (arrived, _) =
            try_run(&sets(topology), Some(&checkpoint), 1..1, &meddle, optimizer_rule);
        let parts = ["the model weight block.1.attn.qkv.weight (f32) is not the one", place];
        told(checkpoint::verify(&checkpoint, &arrived), &parts);
    }
}

/// Files of the same size under each other's names.
#[test]
fn shards_that_ranks_have_swapped_are_refused() {
    for topology in ["topology.tensor=2", "topology.data=2"] {
        let loaded = loaded(&[topology.to_string(), "topology.zero=1".to_string()]);
        let folder = tempfile::tempdir().unwrap();
        let saved = run(&loaded, None, 0..1).save(&loaded, folder.path());
        let shard = |rank| saved.join(format!("first_moment-{rank:05}.safetensors"));
        std::fs::rename(shard(0), saved.join("aside")).unwrap();
        std::fs::rename(shard(1), shard(0)).unwrap();
        std::fs::rename(saved.join("aside"), shard(1)).unwrap();
        told(Checkpoint::open(&saved).map(drop), &["first_moment-00000"]);
    }
}

/// A checkpoint in which a rank's part is missing, or there twice, is never published.
#[test]
fn a_part_that_is_missing_or_there_twice_is_refused() {
    let loaded = loaded(&["topology.tensor=2".to_string()]);
    let done = run(&loaded, None, 0..0);
    let folder = tempfile::tempdir().unwrap();
    let lost = done.save_parts(&loaded, folder.path(), |parts| drop(parts.pop()));
    told(lost.map(drop), &["step 0 was not saved", "embed.token", "values are present"]);
    let twice = done.save_parts(&loaded, folder.path(), |parts| {
        let mut again = parts[1].clone();
        again
            .shards
            .iter_mut()
            .for_each(|shard| shard.file.insert(0, '2'));
        parts.push(again);
    });
    told(twice.map(drop), &["step 0 was not saved", "overlaps another"]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
}

pub fn loaded(sets: &[String]) -> Loaded {
    parse(sets).unwrap_or_else(|found| panic!("{found}"))
}

pub fn parse(sets: &[String]) -> Result<Loaded, Problems> {
    let text = "
model: {layers: 4, hidden: 32, heads: 4, vocab: 121, vocab_multiple: 4, seq_len: 24}
data: {train: none}
batch: {micro: 1, global: 16}
lr: {peak: 3e-3, decay: constant}
optimizer: {adamw: {clip: 0.3}}
train: {samples: 800, seed: 7}
";
    manifest::parse(text, "test", Path::new("."), sets)
}

/// Samples of a step: the batch grows on the way.
pub fn global(m: &Manifest, step: usize) -> usize {
    if step < SAVED { m.batch.global / 2 } else { m.batch.global }
}

/// Samples before a step.
pub fn consumed(m: &Manifest, step: usize) -> usize {
    (0..step).map(|step| global(m, step)).sum()
}

/// Which steps a run takes, and after how many of them it is saved.
#[derive(Clone)]
pub struct Course {
    pub steps: Range<usize>,
    pub save: usize,
}

impl From<Range<usize>> for Course {
    /// Saved at the end.
    fn from(steps: Range<usize>) -> Course {
        Course { save: steps.end, steps }
    }
}

/// Results of all ranks of a grid after their steps.
pub struct Done {
    pub outcomes: Vec<Outcome>,
    /// Steps before the save.
    step: usize,
    ranks: Vec<Snapshot>,
}

/// A course's steps, from the initial values or a checkpoint, on every rank of the grid. What arrives
/// from a checkpoint is verified.
pub fn run(loaded: &Loaded, from: Option<&Path>, course: impl Into<Course>) -> Done {
    let checkpoint = from.map(|folder| Checkpoint::open(folder).unwrap());
    let (arrived, done) = try_run(loaded, checkpoint.as_ref(), course, &|_, _| (), optimizer_rule);
    if let Some(checkpoint) = checkpoint {
        checkpoint::verify(&checkpoint, &arrived).unwrap();
    }
    done
}

/// The same, nothing compared; `meddle` with the ranks' weights before the first step.
pub fn try_run(
    loaded: &Loaded,
    checkpoint: Option<&Checkpoint>,
    course: impl Into<Course>,
    meddle: &(dyn Fn(usize, &Engine) + Sync),
    rule: fn(&Manifest) -> Box<dyn OptimizerRule>,
) -> (Vec<Vec<ReplicaDigest>>, Done) {
    let (manifest, course) = (&loaded.manifest, &course.into());
    let ranks: Vec<_> = std::thread::scope(|scope| {
        let run = |world: World| {
            scope.spawn(move || rank(world, manifest, checkpoint, course, meddle, rule(manifest)))
        };
        let worlds = threads::world(manifest.topology.ranks());
        let ranks: Vec<_> = worlds.into_iter().map(run).collect();
        ranks
            .into_iter()
            .map(|rank| rank.join().expect("a rank"))
            .collect()
    });
    let outcomes = ranks[0].0.clone();
    assert!(ranks.iter().all(|(other, ..)| *other == outcomes), "ranks disagree");
    let (arrived, ranks) = ranks
        .into_iter()
        .map(|(_, arrived, snapshot)| (arrived, snapshot))
        .unzip();
    (arrived, Done { outcomes, step: course.save, ranks })
}

/// One rank: the outcomes, what it held before the steps, and the course's snapshot.
fn rank(
    world: World,
    manifest: &Manifest,
    from: Option<&Checkpoint>,
    course: &Course,
    meddle: &dyn Fn(usize, &Engine),
    rule: Box<dyn OptimizerRule>,
) -> (Vec<Outcome>, Vec<ReplicaDigest>, Snapshot) {
    let cpu = Cpu::new(Some(1));
    let groups = Groups::new(&world, &manifest.topology);
    let (dp, replicas) = (groups.grad_sum.rank(), groups.grad_sum.size());
    let engine = Engine::with_rule(&cpu, groups, manifest, true, rule).unwrap();
    engine.init();
    if let Some(checkpoint) = from {
        let progress = checkpoint::read_into(checkpoint, &engine).unwrap();
        assert_eq!(progress.step, course.steps.start as u64);
        engine.store().cast_master_to_model();
    }
    meddle(world.rank(), &engine);
    let arrived = checkpoint::replica_digests(&engine);
    let (mut outcomes, mut snapshot) = (Vec::new(), Snapshot::reserve(&engine));
    for step in course.steps.start..=course.steps.end {
        if step == course.save {
            snapshot.take(&engine);
        }
        if step == course.steps.end {
            break;
        }
        let global = global(manifest, step);
        let mut next = consumed(manifest, step) + dp;
        let mut load = |inputs: &Inputs| {
            inputs.upload(&cpu, &sample(next, global));
            next += replicas;
            Ok(())
        };
        outcomes.push(engine.step(&mut load, global / replicas, 3e-3).unwrap());
    }
    engine.store().wait_gathers();
    (outcomes, arrived, snapshot)
}

/// One sample, counting 1 / `of` in the loss.
pub fn sample(number: usize, of: usize) -> Batch {
    let seq = 24;
    let tokens = common::tokens(1, seq, 120, number as u64);
    Batch::causal(&tokens, 1, number as u64, 1.0 / (of * seq) as f32)
}

impl Done {
    pub fn save(&self, loaded: &Loaded, checkpoints: &Path) -> PathBuf {
        self.save_parts(loaded, checkpoints, |_| ()).unwrap()
    }

    /// Every rank writes its part, at the same time, and the parts travel as text.
    fn save_parts(
        &self,
        loaded: &Loaded,
        checkpoints: &Path,
        change: impl Fn(&mut Vec<WrittenPart>),
    ) -> anyhow::Result<PathBuf> {
        let (disk, state) = (Disk::default(), state(loaded, self.step));
        let bytes = engine::saved_bytes(&loaded.manifest);
        let fresh = checkpoint::temporary_folder(checkpoints, self.step as u64);
        checkpoint::begin(&disk, &fresh, self.step as u64, bytes).unwrap();
        let mut parts: Vec<WrittenPart> = std::thread::scope(|scope| {
            let (disk, fresh, state) = (&disk, &fresh, &state);
            let ranks = self.ranks.iter().enumerate();
            let write = |(rank, snapshot): (usize, &Snapshot)| {
                let part = checkpoint::write_part(disk, fresh, rank, &snapshot.shares(), state);
                serde_json::to_string(&part.unwrap()).unwrap()
            };
            let ranks: Vec<_> = ranks.map(|rank| scope.spawn(move || write(rank))).collect();
            let text = |rank: std::thread::ScopedJoinHandle<String>| rank.join().unwrap();
            ranks
                .into_iter()
                .map(|rank| serde_json::from_str(&text(rank)).unwrap())
                .collect()
        });
        change(&mut parts);
        checkpoint::publish(&disk, &fresh, parts, &state)
            .map_err(|error| checkpoint::abandon(&disk, &fresh, self.step as u64, error))
    }
}

/// It holds every value of the whole model once, in the model's order, and is found sound.
fn sound(folder: &Path, loaded: &Loaded) {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let model = &loaded.manifest.model;
    let layout = Layout::new(model, gptrain::model::ModelShard::whole(model));
    let names: Vec<_> = layout.params().map(|param| &param.name).collect();
    let saved: Vec<_> = checkpoint
        .index
        .tensors
        .iter()
        .map(|tensor| &tensor.name)
        .collect();
    assert_eq!(saved, names);
    let mut values = 0;
    for tensor in &checkpoint.index.tensors {
        for (_, state) in tensor.saved() {
            let [rows, cols] = state.extent.shape(tensor.matrix().unwrap());
            values += rows * cols;
            let mut times = vec![0; rows * cols];
            for piece in state.pieces.iter().flatten() {
                for row in piece.slice.rows() {
                    let first = row * cols + piece.slice.at[1];
                    let here = first..first + piece.slice.size[1];
                    times[here].iter_mut().for_each(|times| *times += 1);
                }
            }
            assert!(times.iter().all(|times| *times == 1), "{} in {folder:?}", tensor.name);
        }
    }
    assert_eq!(4 * values as u64, engine::saved_bytes(&loaded.manifest));
    let found = inspect::inspect(folder, true).unwrap();
    assert!(found.damage.is_empty(), "{folder:?}: {:?}", found.damage);
}

fn state(loaded: &Loaded, step: usize) -> State {
    let m = &loaded.manifest;
    let layout = Layout::new(&m.model, gptrain::model::ModelShard::whole(&m.model));
    let group = |decay: bool| Group {
        weight_decay: if decay { 0.1 } else { 0.0 },
        step: step as u64,
        tensors: layout
            .params()
            .filter(|s| s.spec.decay == decay)
            .map(|s| s.name.clone())
            .collect(),
    };
    let groups = vec![group(true), group(false)];
    let consumed_samples = consumed(m, step) as u64;
    State {
        run: "grids".into(),
        progress: Progress { step: step as u64, consumed_samples },
        consumed_tokens: 24 * consumed_samples,
        next_batch: 16,
        lr: 3e-3,
        loss_scale: None,
        skipped_updates: 0,
        pending: None,
        rng: Rng { generator: "philox4x32-10".into(), seed: 7, data_seed: 7, initial_seed: None },
        optimizer: Optimizer {
            rule: "adamw".into(),
            began: 0,
            ahead: 0,
            numbers: Default::default(),
            groups,
        },
        history: Vec::new(),
        data: Vec::new(),
        mixture: data::MixturePlan::new(&[], 1),
        spikes: None,
        imported: None,
        imported_types: Default::default(),
        manifest: loaded.effective.clone(),
    }
}

/// Losses within a relative tolerance, norms within 20 times as much; the farthest loss.
pub fn close(ours: &[Outcome], theirs: &[Outcome], tolerance: f64, what: &dyn Debug) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    let mut farthest: f64 = 0.0;
    for (a, b) in ours.iter().zip(theirs) {
        let off = |a: f64, b: f64| (a - b).abs() / b;
        let (loss, norm) = (off(a.loss, b.loss), off(a.grad_norm, b.grad_norm));
        assert!(loss <= tolerance, "{what:?}: {a:?}, not {b:?}: loss off by {loss:.1e}");
        assert!(norm <= 20.0 * tolerance, "{what:?}: {a:?}, not {b:?}: norm off by {norm:.1e}");
        farthest = farthest.max(loss);
    }
    farthest
}
