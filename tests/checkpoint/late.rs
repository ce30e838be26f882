//! Updates that come late: the gradient that waits is saved, and read by any grid; a run without delay
//! makes the update before its next step.

use crate::grids::{Done, consumed, global, loaded, sample, try_run};
use gptrain::checkpoint::{self, Checkpoint, inspect};
use gptrain::device::cpu::Cpu;
use gptrain::engine::{Engine, Groups, rule};
use gptrain::manifest::Loaded;
use gptrain::model::Inputs;
use std::ops::Range;
use std::path::Path;

/// Steps of a run, and those before the save.
const STEPS: usize = 5;
const SAVED: usize = 3;

fn manifest(grid: &[&str], offload: &str) -> Loaded {
    let grid = grid.iter().map(|set| format!("topology.{set}"));
    let more = [format!("topology.offload={offload}"), "precision=bf16".to_string()];
    loaded(&grid.chain(more).collect::<Vec<_>>())
}

fn late(after: usize) -> String {
    format!("{{what: optimizer, delay: 1, delay_after: {after}}}")
}

fn run(m: &Loaded, from: Option<&Path>, steps: Range<usize>) -> Done {
    let checkpoint = from.map(|folder| Checkpoint::open(folder).unwrap());
    let (arrived, done) = try_run(m, checkpoint.as_ref(), steps, &|_, _| (), rule);
    if let Some(checkpoint) = checkpoint {
        checkpoint::verify(&checkpoint, &arrived).unwrap();
    }
    done
}

/// The loss of a step with the weights of a checkpoint, on one rank.
fn loss_with_weights(from: &Path, step: usize) -> f64 {
    let m = manifest(&[], "none");
    let cpu = Cpu::new(Some(1));
    let engine = Engine::new(&cpu, Groups::solo(), &m.manifest, true).unwrap();
    checkpoint::read_weights_into(&Checkpoint::open(from).unwrap(), &engine).unwrap();
    engine.store().cast_master_to_model();
    let (global, mut next) = (global(&m.manifest, step), consumed(&m.manifest, step));
    let mut load = |inputs: &Inputs| {
        inputs.upload(&cpu, &sample(next, global));
        next += 1;
        Ok(())
    };
    engine.step(&mut load, global, 3e-3).unwrap().loss
}

#[test]
fn the_gradient_that_waits_goes_on_on_any_grid() {
    let grids: [&[&str]; 5] = [
        &[],
        &["data=2"],
        &["data=2", "zero=1"],
        &["data=2", "zero=3"],
        &["tensor=2", "pipeline=2", "sequence_parallel=true"],
    ];
    let folder = tempfile::tempdir().unwrap();
    let place = |name: String| folder.path().join(name);
    for (i, grid) in grids.iter().enumerate() {
        let m = manifest(grid, &late(1));
        let whole = run(&m, None, 0..STEPS).outcomes;
        let saved = run(&m, None, 0..SAVED).save(&m, &place(format!("{i}")));
        let damage = inspect::inspect(&saved, true).unwrap().damage;
        assert!(damage.is_empty(), "{grid:?}: {damage:?}");
        let after = run(&m, Some(&saved), SAVED..STEPS);
        assert_eq!(after.outcomes, whole[SAVED..], "{grid:?}");
        let waits = Checkpoint::open(&saved).unwrap().index.pending;
        assert!(waits.is_some_and(|pending| pending.lr == 3e-3), "{waits:?}");
        let other = manifest(grids[(i + 1) % grids.len()], &late(1));
        let again = run(&other, Some(&saved), SAVED..SAVED);
        let again = again.save(&other, &place(format!("{i} again")));
        let diff = inspect::diff(&saved, &again).unwrap();
        assert!(diff.equal(), "{grid:?}: {diff}");
        assert_eq!(Checkpoint::open(&again).unwrap().index.pending, waits, "{grid:?}");
        let close = |a: f64, b: f64| (a - b).abs() < 4e-3 * b;
        let after = run(&other, Some(&saved), SAVED..STEPS).outcomes;
        let same = after.iter().zip(&whole[SAVED..]).all(|(a, b)| close(a.loss, b.loss));
        assert!(same, "{grid:?}: {after:?}, {:?}", &whole[SAVED..]);
    }
}

/// Before the first late update nothing waits, and nothing is made of what the state holds.
#[test]
fn nothing_waits_before_the_first_late_update() {
    let folder = tempfile::tempdir().unwrap();
    let m = manifest(&["data=2", "zero=1"], &late(4));
    let whole = run(&m, None, 0..STEPS).outcomes;
    let saved = run(&m, None, 0..SAVED).save(&m, folder.path());
    assert_eq!(Checkpoint::open(&saved).unwrap().index.pending, None);
    assert_eq!(run(&m, Some(&saved), SAVED..STEPS).outcomes, whole[SAVED..]);
}

#[test]
fn delay_is_switched_off_and_on_at_a_resume() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    let delayed = manifest(&[], &late(1));
    let saved = run(&delayed, None, 0..SAVED).save(&delayed, &place("late"));
    // The delayed run makes the update that waits during the next step.
    let next = run(&delayed, None, 0..SAVED + 1).save(&delayed, &place("next"));
    let expected = loss_with_weights(&next, SAVED);
    let late_loss = run(&delayed, Some(&saved), SAVED..SAVED + 1).outcomes[0].loss;
    assert!(late_loss != expected, "it is late");
    let host = "{what: full, gradients: host}";
    for (grid, offload) in [
        (&[][..], "none"),
        (&[], "optimizer"),
        (&[], host),
        (&["data=2", "zero=2"], host),
        (&["tensor=2", "data=2", "zero=1"], "none"),
    ] {
        let on_time = manifest(grid, offload);
        let first = run(&on_time, Some(&saved), SAVED..SAVED + 1).outcomes[0].loss;
        let exact = if grid.is_empty() { 0.0 } else { 4e-3 * expected };
        assert!((first - expected).abs() <= exact, "{grid:?} {offload}: {first}, {expected}");
    }
    let on_time = manifest(&[], "none");
    let saved = run(&on_time, None, 0..SAVED).save(&on_time, &place("on time"));
    let whole = run(&on_time, None, 0..STEPS).outcomes;
    let after = run(&manifest(&[], &late(0)), Some(&saved), SAVED..STEPS).outcomes;
    assert_eq!(after[0], whole[SAVED]);
    assert_eq!(after[1].loss, loss_with_weights(&saved, SAVED + 1), "no update of the first step");
}
