//! A checkpoint of compressed replicas contains the mean of their errors, from which any number of
//! replicas continues.

use crate::grids::{Course, Done, STEPS, close, loaded, run, try_run};
use gptrain::checkpoint::{self, Checkpoint, inspect};
use gptrain::engine::{Engine, Extent, optimizer_rule};
use gptrain::manifest::Loaded;
use std::path::{Path, PathBuf};

/// Steps before the save.
const SAVED: usize = 3;

fn manifest(topology: &[&str]) -> Loaded {
    let compression = ["compression={powersgd: {rank: 2, start_step: 1, min_rate: 1}}"];
    let topology = topology
        .iter()
        .chain(&compression)
        .map(|set| format!("topology.{set}"));
    loaded(&topology.collect::<Vec<_>>())
}

/// All steps on every rank, saved after those of `SAVED` where `save` is set.
fn whole(m: &Loaded, save: bool) -> Done {
    run(m, None, Course { steps: 0..STEPS, save: if save { SAVED } else { usize::MAX } })
}

/// A run of four replicas continues after a save as without it, up to rounding. Resumed, it continues with
/// the same bits; on two replicas, with ZeRO 1 or in a pipeline, up to rounding.
#[test]
fn any_number_of_replicas_goes_on() {
    let four = manifest(&["data=4"]);
    let unsaved = whole(&four, false).outcomes;
    let done = whole(&four, true);
    let outcomes = &done.outcomes;
    assert_eq!(outcomes[..SAVED], unsaved[..SAVED]);
    close(outcomes, &unsaved, 1e-5, &"the mean in place of each");
    let folder = tempfile::tempdir().unwrap();
    let saved = done.save(&four, folder.path());
    assert!(inspect::inspect(&saved, true).unwrap().damage.is_empty());
    assert!(largest(&saved, "powersgd_error") > 1e-4, "something was left out");
    let same = run(&four, Some(&saved), SAVED..STEPS);
    assert_eq!(same.outcomes, outcomes[SAVED..], "the same grid");
    for grid in [&["data=2"][..], &["data=2", "zero=1"], &["data=2", "pipeline=2"], &["data=8"]] {
        let other = manifest(grid);
        let after = run(&other, Some(&saved), SAVED..STEPS);
        close(&after.outcomes, &outcomes[SAVED..], 1e-5, &grid);
        // Loaded and saved again: not a bit has changed.
        let again = run(&other, Some(&saved), SAVED..SAVED);
        let again = again.save(&other, &folder.path().join(grid.join(" ")));
        let diff = inspect::diff(&saved, &again).unwrap();
        assert!(diff.equal(), "{grid:?}: {diff:?}");
    }
}

/// The largest magnitude of a state.
fn largest(folder: &Path, state: &str) -> f32 {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let with = checkpoint
        .index
        .tensors
        .iter()
        .filter(|tensor| tensor.states.contains_key(state));
    let most = with.flat_map(|tensor| checkpoint.whole(tensor, state).unwrap());
    most.fold(0.0, |most, x| most.max(x.abs()))
}

/// Message of a resume, and the checkpoint that it writes.
fn restart(from: &Path, to: &Loaded, folder: &Path) -> (Option<String>, PathBuf) {
    let checkpoint = Checkpoint::open(from).unwrap();
    let told = std::sync::Mutex::new(None);
    let look = |rank: usize, engine: &Engine| {
        if rank == 0 {
            *told.lock().unwrap() = checkpoint::exchange_restarts(&checkpoint, engine);
        }
    };
    let (_, done) = try_run(to, Some(&checkpoint), SAVED..SAVED, &look, optimizer_rule);
    (told.into_inner().unwrap(), done.save(to, folder))
}

#[test]
fn what_another_exchange_cannot_use_begins_anew_and_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    let two = manifest(&["data=2"]);
    let saved = whole(&two, true).save(&two, &place("two"));
    assert_eq!(restart(&saved, &manifest(&["data=4", "zero=1"]), &place("four")).0, None);
    // Shares of rows have a Q each; the error is the whole matrix's.
    let (told, shared) = restart(&saved, &manifest(&["data=2", "tensor=2"]), &place("shared"));
    let told = told.unwrap();
    assert!(
        told.starts_with("powersgd_q of 8 matrices are initialised again; powersgd_q of 8"),
        "{told}"
    );
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
    let all = "powersgd_error of 16 matrices and powersgd_q of 16 matrices are initialised again";
    assert!(told.starts_with(all), "{told}");
    assert_eq!(largest(&with, "powersgd_error"), 0.0);
    assert!(largest(&with, "powersgd_q") > 1.0, "standard normals");
}
