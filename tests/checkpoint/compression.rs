//! A checkpoint of compressed replicas holds the mean of their errors, from which any number of them
//! goes on.

use crate::grids::{Done, GLOBAL, loaded, sample, try_run};
use gptrain::checkpoint::{self, Checkpoint, Snapshot, inspect};
use gptrain::comm::{World, threads};
use gptrain::device::cpu::Cpu;
use gptrain::engine::{Engine, Extent, Groups, Outcome, rule};
use gptrain::manifest::Loaded;
use gptrain::model::Inputs;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Steps before the save.
const SAVED: usize = 3;

fn manifest(topology: &[&str]) -> Loaded {
    let compression = ["compression={powersgd: {rank: 2, start_step: 1, min_rate: 1}}"];
    let topology = topology.iter().chain(&compression).map(|set| format!("topology.{set}"));
    loaded(&topology.collect::<Vec<_>>())
}

/// All steps on every rank, with a snapshot after those of `SAVED` where `save` is set; and what the
/// replicas had each left out before that.
fn whole(m: &Loaded, save: bool) -> (Vec<Outcome>, Done) {
    let rank = |world: World| {
        let (cpu, topology) = (Cpu::new(Some(1)), &m.manifest.topology);
        let groups = Groups::new(&world, topology);
        let (dp, replicas) = (groups.data.rank(), groups.data.size());
        let engine = Engine::new(&cpu, groups, &m.manifest, true).unwrap();
        engine.init();
        let (mut outcomes, mut snapshot) = (Vec::new(), Snapshot::reserve(&engine));
        for (step, global) in GLOBAL.into_iter().enumerate() {
            if save && step == SAVED {
                snapshot.take(&engine);
            }
            let mut next = GLOBAL[..step].iter().sum::<usize>() + dp;
            let mut load = |inputs: &Inputs| {
                inputs.upload(&cpu, &sample(next, global));
                next += replicas;
                Ok(())
            };
            outcomes.push(engine.step(&mut load, global / replicas, 3e-3).unwrap());
        }
        engine.store().wait_gathers();
        (outcomes, snapshot)
    };
    let ranks: Vec<_> = std::thread::scope(|scope| {
        let ranks = threads::world(m.manifest.topology.ranks()).into_iter();
        let ranks: Vec<_> = ranks.map(|world| scope.spawn(|| rank(world))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank")).collect()
    });
    let (outcomes, ranks): (Vec<_>, Vec<_>) = ranks.into_iter().unzip();
    let outcomes = outcomes.into_iter().next().unwrap();
    (outcomes.clone(), Done { outcomes, step: SAVED, ranks })
}

fn resumed(m: &Loaded, from: &Path, steps: Range<usize>) -> Done {
    let checkpoint = Checkpoint::open(from).unwrap();
    let (arrived, done) = try_run(m, Some(&checkpoint), steps, &|_, _| (), rule);
    checkpoint::verify(&checkpoint, &arrived).unwrap();
    done
}

fn close(ours: &[Outcome], theirs: &[Outcome], tolerance: f64, what: &str) {
    assert_eq!(ours.len(), theirs.len());
    for (a, b) in ours.iter().zip(theirs) {
        let off = (a.loss - b.loss).abs() / b.loss;
        assert!(off <= tolerance, "{what}: {a:?}, {b:?}: loss off by {off:.1e}");
    }
}

/// A run of four replicas that saved goes on as it does without the save, but for rounding; resumed, it
/// goes on with the same bits; on two replicas, with ZeRO 1 or in a pipeline too, but for rounding.
#[test]
fn any_number_of_replicas_goes_on() {
    let four = manifest(&["data=4"]);
    let (unsaved, _) = whole(&four, false);
    let (outcomes, done) = whole(&four, true);
    assert_eq!(outcomes[..SAVED], unsaved[..SAVED]);
    close(&outcomes, &unsaved, 1e-5, "the mean in place of each");
    let folder = tempfile::tempdir().unwrap();
    let saved = done.save(&four, folder.path());
    assert!(inspect::inspect(&saved, true).unwrap().damage.is_empty());
    assert!(largest(&saved, "powersgd_error") > 1e-4, "something was left out");
    let same = resumed(&four, &saved, SAVED..GLOBAL.len());
    assert_eq!(same.outcomes, outcomes[SAVED..], "the same grid");
    for grid in [&["data=2"][..], &["data=2", "zero=1"], &["data=2", "pipeline=2"], &["data=8"]] {
        let other = manifest(grid);
        let after = resumed(&other, &saved, SAVED..GLOBAL.len());
        close(&after.outcomes, &outcomes[SAVED..], 1e-5, &format!("{grid:?}"));
        // Loaded and saved again: not a bit has changed.
        let again = resumed(&other, &saved, SAVED..SAVED);
        let again = again.save(&other, &folder.path().join(grid.join(" ")));
        let diff = inspect::diff(&saved, &again).unwrap();
        assert!(diff.equal(), "{grid:?}: {diff}");
    }
}

/// Among shares too, and the error that is kept whole under ZeRO 1.
#[test]
fn the_same_grid_goes_on_with_the_same_bits() {
    for grid in [&["data=2", "tensor=2"][..], &["data=2", "pipeline=2", "zero=1"]] {
        let m = manifest(grid);
        let (outcomes, done) = whole(&m, true);
        let folder = tempfile::tempdir().unwrap();
        let saved = done.save(&m, folder.path());
        let after = resumed(&m, &saved, SAVED..GLOBAL.len());
        assert_eq!(after.outcomes, outcomes[SAVED..], "{grid:?}");
    }
}

/// The largest magnitude of a state.
fn largest(folder: &Path, state: &str) -> f32 {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let with = checkpoint.index.tensors.iter().filter(|tensor| tensor.states.contains_key(state));
    let most = with.flat_map(|tensor| checkpoint.whole(tensor, state).unwrap());
    most.fold(0.0, |most, x| most.max(x.abs()))
}

/// What is told at a resume, and what of a state is as it was saved.
fn restart(from: &Path, to: &Loaded, folder: &Path) -> (Option<String>, PathBuf) {
    let checkpoint = Checkpoint::open(from).unwrap();
    let told = std::sync::Mutex::new(None);
    let look = |rank: usize, engine: &Engine| {
        if rank == 0 {
            *told.lock().unwrap() = checkpoint::exchange_restarts(&checkpoint, engine);
        }
    };
    let (_, done) = try_run(to, Some(&checkpoint), SAVED..SAVED, &look, rule);
    (told.into_inner().unwrap(), done.save(to, folder))
}

#[test]
fn what_another_exchange_cannot_use_begins_anew_and_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    let two = manifest(&["data=2"]);
    let saved = whole(&two, true).1.save(&two, &place("two"));
    assert_eq!(restart(&saved, &manifest(&["data=4", "zero=1"]), &place("four")).0, None);
    // Shares of rows have a Q each; the error is the whole matrix's.
    let (told, shared) = restart(&saved, &manifest(&["data=2", "tensor=2"]), &place("shared"));
    let told = told.unwrap();
    assert!(told.starts_with("powersgd_q of 8 matrices begin anew; powersgd_q of 8"), "{told}");
    assert_eq!(largest(&saved, "powersgd_error"), largest(&shared, "powersgd_error"));
    let checkpoint = Checkpoint::open(&shared).unwrap();
    let fc1 = checkpoint.index.tensor("block.0.mlp.fc1.weight").unwrap();
    assert_eq!(fc1.states["powersgd_q"].extent, Extent::LowRank { rank: 2, shares: 2 });
    assert_eq!(fc1.shape_of(&fc1.states["powersgd_q"]).unwrap(), [64, 2]);
    // Off, and on again.
    let plain = loaded(&["topology.data=2".to_string()]);
    let (told, without) = restart(&saved, &plain, &place("plain"));
    let told = told.unwrap();
    assert!(told.contains("powersgd_q of 16 matrices in the checkpoint are not used"), "{told}");
    let (told, with) = restart(&without, &two, &place("again"));
    let told = told.unwrap();
    let all = "powersgd_error of 16 matrices and powersgd_q of 16 matrices begin anew";
    assert!(told.starts_with(all), "{told}");
    assert_eq!(largest(&with, "powersgd_error"), 0.0);
    assert!(largest(&with, "powersgd_q") > 1.0, "standard normals");
}
