//! What any grid saved, any grid loads: every value to the last bit, and the losses that follow are
//! those of one rank that never stopped.

mod common;

use common::causal;
use gptrain::checkpoint::disk::Disk;
use gptrain::checkpoint::{self, Checkpoint, Group, Held, Optimizer, Part, Progress, Rng};
use gptrain::checkpoint::{Snapshot, State, inspect};
use gptrain::comm::{World, threads};
use gptrain::data::{self, Batch};
use gptrain::device::cpu::Cpu;
use gptrain::engine::{Engine, Groups, Moment, Outcome};
use gptrain::manifest::{self, Loaded, Manifest};
use gptrain::model::{Inputs, Layout};
use std::path::{Path, PathBuf};

/// Samples of each step: the batch grows on the way.
const GLOBAL: [usize; 5] = [8, 8, 16, 16, 16];
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
grids!(one_rank_and_pipeline_zero_1: [] ["pipeline=4", "data=2", "zero=1"]);
grids!(zero_1_by_8_and_replicas: ["data=8", "zero=1"] ["tensor=2", "data=2", "neighbours=pipeline"]);
grids!(tensor_zero_2_and_gpipe: ["tensor=2", "data=2", "zero=2"] ["pipeline=2", "schedule=gpipe"]);

/// For both model families and precisions. (The vocabularies are padded to different sizes.)
fn there_and_back(from: &[&str], to: &[&str]) {
    let families: [(&[&str], f64); 3] = [
        (&["model.dropout=0.1"], 1e-6),
        (&["model.position=alibi", "model.embedding_layernorm=true", "model.tied_head=false"], 1e-6),
        (&["precision=bf16", "model.dropout=0.1"], 2e-3),
    ];
    for (family, tolerance) in families {
        let manifest = |topology: &[&str]| {
            let topology = topology.iter().map(|set| format!("topology.{set}"));
            loaded(&family.iter().map(|set| set.to_string()).chain(topology).collect::<Vec<_>>())
        };
        let one = run(&manifest(&[]), None, 0..GLOBAL.len()).outcomes;
        let all = [manifest(from), manifest(to)];
        let folder = tempfile::tempdir().unwrap();
        let saved = [0, 1].map(|i| {
            let before = run(&all[i], None, 0..SAVED);
            let saved = before.save(&all[i], &folder.path().join(i.to_string()));
            sound(&saved, &all[i]);
            // The same grid: as if it had not stopped.
            let whole = run(&all[i], None, 0..GLOBAL.len()).outcomes;
            let after = run(&all[i], Some(&saved), SAVED..GLOBAL.len());
            assert_eq!(after.outcomes, whole[SAVED..], "the same grid, {family:?}");
            saved
        });
        for i in [0, 1] {
            let after = run(&all[1 - i], Some(&saved[i]), SAVED..GLOBAL.len());
            close(&after.outcomes, &one[SAVED..], tolerance, family);
            // Loaded and saved again by the other grid: not a bit has changed.
            let again = run(&all[1 - i], Some(&saved[i]), SAVED..SAVED);
            let again = again.save(&all[1 - i], &folder.path().join(format!("{i} again")));
            sound(&again, &all[1 - i]);
            let diff = inspect::diff(&saved[i], &again).unwrap();
            assert!(diff.equal(), "{family:?}: {diff}");
        }
    }
}

fn loaded(sets: &[String]) -> Loaded {
    let text = "
model: {layers: 4, hidden: 32, heads: 4, vocab: 121, vocab_multiple: 4, seq_len: 24}
data: {train: none}
batch: {micro: 1, global: 16}
lr: {peak: 3e-3, decay: constant}
optimizer: {adamw: {clip: 0.3}}
train: {samples: 800, seed: 7}
";
    manifest::parse(text, "test", Path::new("."), sets).unwrap_or_else(|found| panic!("{found}"))
}

/// What all ranks of a grid have when their steps are done.
struct Done {
    outcomes: Vec<Outcome>,
    step: usize,
    ranks: Vec<(Snapshot, Vec<Held>)>,
}

/// The steps of a range, from the initial values or a checkpoint, on every rank of the grid.
fn run(loaded: &Loaded, from: Option<&PathBuf>, steps: std::ops::Range<usize>) -> Done {
    let manifest = &loaded.manifest;
    let checkpoint = from.map(|folder| Checkpoint::open(folder).unwrap());
    let checkpoint = checkpoint.as_ref();
    let ranks: Vec<_> = std::thread::scope(|scope| {
        let run = |world: World| {
            let steps = steps.clone();
            scope.spawn(move || rank(world, manifest, checkpoint, steps))
        };
        let worlds = threads::world(manifest.topology.ranks());
        let ranks: Vec<_> = worlds.into_iter().map(run).collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank")).collect()
    });
    let outcomes = ranks[0].0.clone();
    assert!(ranks.iter().all(|(other, ..)| *other == outcomes), "ranks disagree");
    let (arrived, left): (Vec<_>, Vec<_>) =
        ranks.into_iter().map(|(_, arrived, snapshot, left)| (arrived, (snapshot, left))).unzip();
    if let Some(checkpoint) = checkpoint {
        checkpoint::verify(checkpoint, &arrived).unwrap();
    }
    let held: Vec<_> = left.iter().map(|(_, held)| held.clone()).collect();
    checkpoint::equal(&held).unwrap();
    Done { outcomes, step: steps.end, ranks: left }
}

/// One rank: the outcomes, what it held before the steps, and what it has after them.
fn rank(
    world: World,
    manifest: &Manifest,
    from: Option<&Checkpoint>,
    steps: std::ops::Range<usize>,
) -> (Vec<Outcome>, Vec<Held>, Snapshot, Vec<Held>) {
    let cpu = Cpu::new(Some(1));
    let groups = Groups::new(&world, &manifest.topology);
    let (dp, replicas) = (groups.data.rank(), groups.data.size());
    let engine = Engine::new(&cpu, groups, manifest, true).unwrap();
    engine.init();
    if let Some(checkpoint) = from {
        let progress = checkpoint::read_into(checkpoint, &engine).unwrap();
        assert_eq!(progress.step, steps.start as u64);
        engine.publish();
    }
    let arrived = checkpoint::held(&engine);
    let mut outcomes = Vec::new();
    for step in steps {
        let global = GLOBAL[step];
        let mut next = GLOBAL[..step].iter().sum::<usize>() + dp;
        let mut load = |inputs: &Inputs| {
            inputs.upload(&cpu, &sample(next, global));
            next += replicas;
            Ok(())
        };
        outcomes.push(engine.step(&mut load, global / replicas, 3e-3, step as u64 + 1).unwrap());
    }
    let mut snapshot = Snapshot::reserve(&engine);
    snapshot.take(&engine);
    (outcomes, arrived, snapshot, checkpoint::held(&engine))
}

/// One sample, counting 1 / `of` in the loss.
fn sample(number: usize, of: usize) -> Batch {
    let seq = 24;
    let tokens = common::tokens(1, seq, 120, number as u64);
    causal(&tokens, 1, number as u64, 1.0 / (of * seq) as f32)
}

impl Done {
    /// Every rank writes its part, at the same time, and the parts travel as text.
    fn save(&self, loaded: &Loaded, checkpoints: &Path) -> PathBuf {
        let (disk, state) = (Disk::default(), state(loaded, self.step));
        let bytes = checkpoint::saved_bytes(&loaded.manifest.model);
        let fresh = checkpoint::begin(&disk, checkpoints, self.step as u64, bytes).unwrap();
        let parts: Vec<Part> = std::thread::scope(|scope| {
            let (disk, fresh, state) = (&disk, &fresh, &state);
            let ranks = self.ranks.iter().enumerate();
            let write = |(rank, (snapshot, _)): (usize, &'_ (Snapshot, _))| {
                let part = checkpoint::write_part(disk, fresh, rank, &snapshot.shares(), state);
                serde_json::to_string(&part.unwrap()).unwrap()
            };
            let ranks: Vec<_> = ranks.map(|rank| scope.spawn(move || write(rank))).collect();
            let text = |rank: std::thread::ScopedJoinHandle<String>| rank.join().unwrap();
            ranks.into_iter().map(|rank| serde_json::from_str(&text(rank)).unwrap()).collect()
        });
        checkpoint::publish(&disk, &fresh, parts, &state).unwrap()
    }
}

/// It holds every value of the whole model once, in the model's order, and is found sound.
fn sound(folder: &Path, loaded: &Loaded) {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let model = &loaded.manifest.model;
    let layout = Layout::new(model, gptrain::model::Part::whole(model));
    let names: Vec<_> = layout.slots().map(|slot| &slot.name).collect();
    let saved: Vec<_> = checkpoint.index.tensors.iter().map(|tensor| &tensor.name).collect();
    assert_eq!(saved, names);
    let values: usize = checkpoint.index.tensors.iter().map(|tensor| tensor.numel()).sum();
    assert_eq!(12 * values as u64, checkpoint::saved_bytes(model));
    for tensor in &checkpoint.index.tensors {
        for moment in Moment::ALL {
            let mut times = vec![0; tensor.numel()];
            for piece in &tensor.kept(moment).pieces {
                for row in piece.at[0]..piece.at[0] + piece.size[0] {
                    let first = row * tensor.matrix().unwrap()[1] + piece.at[1];
                    times[first..first + piece.size[1]].iter_mut().for_each(|times| *times += 1);
                }
            }
            assert!(times.iter().all(|times| *times == 1), "{} in {folder:?}", tensor.name);
        }
    }
    let found = inspect::inspect(folder, true).unwrap();
    assert!(found.damage.is_empty(), "{folder:?}: {:?}", found.damage);
}

fn state(loaded: &Loaded, step: usize) -> State {
    let m = &loaded.manifest;
    let layout = Layout::new(&m.model, gptrain::model::Part::whole(&m.model));
    let group = |decay: bool| Group {
        weight_decay: if decay { 0.1 } else { 0.0 },
        step: step as u64,
        tensors: layout.slots().filter(|s| s.spec.decay == decay).map(|s| s.name.clone()).collect(),
    };
    let groups = vec![group(true), group(false)];
    let consumed_samples = GLOBAL[..step].iter().sum::<usize>() as u64;
    State {
        run: "grids".into(),
        progress: Progress { step: step as u64, consumed_samples },
        consumed_tokens: 24 * consumed_samples,
        next_batch: 16,
        lr: 3e-3,
        loss_scale: None,
        rng: Rng { generator: "philox4x32-10".into(), seed: 7, data_seed: 7 },
        optimizer: Optimizer { rule: "adamw".into(), beta1: 0.9, beta2: 0.95, eps: 1e-8, groups },
        history: Vec::new(),
        data: Vec::new(),
        mixture: data::Plan { stages: Vec::new() },
        imported: None,
        manifest: loaded.effective.clone(),
    }
}

fn close(ours: &[Outcome], one: &[Outcome], tolerance: f64, what: &[&str]) {
    assert_eq!(ours.len(), one.len());
    for (a, b) in ours.iter().zip(one) {
        let off = |a: f64, b: f64| (a - b).abs() / b;
        let (loss, norm) = (off(a.loss, b.loss), off(a.grad_norm, b.grad_norm));
        assert!(loss <= tolerance, "{what:?}: {a:?}, one rank {b:?}: loss off by {loss:.1e}");
        assert!(norm <= 20.0 * tolerance, "{what:?}: {a:?}, one rank {b:?}: off by {norm:.1e}");
    }
}
