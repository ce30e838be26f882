//! Old checkpoints of which only the weights are kept (`checkpoint.keep_weights_every`): by a run, by
//! `gptrain prune`, and in another place, whenever the machine dies.

use crate::common::binary::Lab;
use crate::common::saved::Saved;
use gptrain::checkpoint::disk::{Disk, Fault};
use gptrain::checkpoint::place::Place;
use gptrain::checkpoint::{Checkpoint, Index, Keep, Kept};
use gptrain::engine::MASTER;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const INTERVAL: &str = "checkpoint.interval=2";

/// Files of a checkpoint besides its index.
fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != "index.json").collect();
    names.sort();
    names
}

/// Every byte of the weights of a checkpoint, verified.
fn weights(folder: &Path) -> Vec<f32> {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let tensors = checkpoint.index.tensors.iter();
    tensors
        .flat_map(|tensor| checkpoint.whole(tensor, MASTER).unwrap())
        .collect()
}

/// A run of two ranks that keeps weights of every fourth step, and the same run with all its checkpoints.
fn two_runs() -> Lab {
    let lab = Lab::new();
    let grid = "topology={tensor: 2}";
    let also = format!("checkpoint.also=file://{}", lab.path("away").display());
    let kept =
        ["checkpoint.keep_last=2", "checkpoint.keep_weights_every=4", "checkpoint.keep_every=6"];
    lab.run(&[&[INTERVAL, grid, also.as_str(), "log.tensorboard=true"][..], &kept].concat())
        .well();
    lab.run(&[INTERVAL, grid, "log.folder=runs/whole"]).well();
    lab
}

fn step(lab: &Lab, run: &str, step: u64) -> PathBuf {
    lab.path(&format!("runs/{run}/checkpoints/step-{step:08}"))
}

#[test]
fn a_run_keeps_weights_of_old_steps_and_goes_on_from_whole_ones() {
    let lab = two_runs();
    let masters = ["master-00000.safetensors", "master-00001.safetensors"];
    assert_eq!(files(&step(&lab, "a", 4)), masters);
    assert!(
        !step(&lab, "a", 2).exists()
            && !step(&lab, "a", 8)
                .join("second_moment-00000.safetensors")
                .exists()
    );
    assert_eq!([6, 10, 12].map(|at| files(&step(&lab, "a", at)).len()), [6, 6, 6]);
    for at in [4, 8] {
        let (a, whole) = (step(&lab, "a", at), step(&lab, "whole", at));
        assert!(weights(&a) == weights(&whole), "step {at}");
        let folder = a.display().to_string();
        lab.gptrain(&["inspect-ckpt", &folder, "--deep"])
            .expect(0, &[]);
        let read = lab.gptrain(&["inspect-ckpt", &folder]);
        assert!(read.out.contains("of the weights only"), "{}", read.out);
        let [of_a, of_whole] = [&a, &whole].map(|folder| {
            lab.gptrain(&["eval", folder.to_str().unwrap(), "--json"])
                .out
        });
        let loss = |text: &str| {
            serde_json::from_str::<serde_json::Value>(text).unwrap()["loss"].to_string()
        };
        assert_eq!(loss(&of_a), loss(&of_whole));
    }
    // Its states are gone: the run says so, and names a checkpoint with which the same line works.
    let from = |name: &str| lab.gptrain(&["run", "runs/a", "--resume-from", name]);
    from("step-00000008").expect(
        2,
        &["optimizer's states were removed", "--resume-from step-00000006", "--reset-optimizer"],
    );
    from("step-00000002")
        .expect(2, &["step-00000004 (weights only), step-00000006, step-00000008 (weights only)"]);
    lab.gptrain(&["inspect-ckpt", step(&lab, "a", 4).to_str().unwrap(), "--replay", "2"])
        .expect(1, &["optimizer's states were removed"]);
    from("step-00000006").well();
    assert_eq!(weights(&step(&lab, "a", 12)), weights(&step(&lab, "whole", 12)));
    let reset = ["run", "runs/a", "--resume-from", "step-00000008", "--reset-optimizer"];
    lab.gptrain(&reset).well();
}

#[test]
fn prune_reduces_what_it_names_and_says_the_bytes() {
    let lab = Lab::new();
    lab.run(&[INTERVAL]).well();
    let prune = |more: &[&str]| {
        let args = [&["prune", "runs/a", "--keep-weights-every", "4"], more].concat();
        lab.gptrain(&args)
    };
    let states: u64 = ["first_moment", "second_moment"]
        .map(|state| step(&lab, "a", 4).join(format!("{state}-00000.safetensors")))
        .iter()
        .map(|file| file.metadata().unwrap().len())
        .sum();
    let dry = prune(&["--dry"]);
    let words = ["would remove 3 checkpoints and the optimizer's states of 2", "3 kept"];
    assert!(words.iter().all(|words| dry.out.contains(words)), "{}", dry.out);
    assert_eq!(files(&step(&lab, "a", 4)).len(), 3);
    let done: serde_json::Value = serde_json::from_str(&prune(&["--json"]).out).unwrap();
    assert_eq!(done["reduced"][0]["bytes"], states);
    assert_eq!([4, 8, 12].map(|at| files(&step(&lab, "a", at)).len()), [1, 1, 3]);
    // A second time there is nothing to do.
    let again: serde_json::Value = serde_json::from_str(&prune(&["--json"]).out).unwrap();
    assert_eq!((&again["bytes"], &again["kept"]), (&0.into(), &3.into()));
}

#[test]
fn death_at_any_call_leaves_a_checkpoint_and_the_next_time_ends_it() {
    let what = Saved::tiny(4);
    let keep = Keep { last: Some(1), weights_every: Some(2), ..Keep::default() };
    let weights_of_4 = |folder: &Path| {
        let expected = what
            .tensors
            .iter()
            .flat_map(|tensor| tensor.kept[0].clone());
        weights(folder) == expected.collect::<Vec<f32>>()
    };
    let filled = || {
        let folder = tempfile::tempdir().unwrap();
        what.write(folder.path());
        Saved::tiny(5).write(folder.path());
        folder
    };
    let prune = |disk: &Arc<Disk>, folder: &Path| Place::on(disk.clone(), folder).prune(keep);
    let whole = Arc::new(Disk::failing(Fault::None));
    prune(&whole, filled().path()).unwrap();
    let calls = whole.calls().len();
    assert!(calls > 5, "{calls} calls");
    let (mut before, mut after) = (0, 0);
    for at in 0..calls {
        for fault in [Fault::Crash { at }, Fault::Error { at, errno: 5 }] {
            let folder = filled();
            let reduced = folder.path().join("step-00000004");
            let disk = Arc::new(Disk::failing(fault));
            assert!(prune(&disk, folder.path()).is_err(), "{fault:?}");
            if Index::read(&reduced).unwrap().weights_only {
                after += 1;
            } else {
                before += usize::from(what.is_in(&reduced));
            }
            assert!(weights_of_4(&reduced), "{fault:?}: {:?}", disk.calls().last());
            prune(&Arc::default(), folder.path()).unwrap();
            assert!(weights_of_4(&reduced) && files(&reduced) == ["master-00000.safetensors"]);
            assert!(Saved::tiny(5).is_in(&folder.path().join("step-00000005")));
        }
    }
    assert!(before > 5 && after > 1 && before + after == 2 * calls, "{before}, {after}, {calls}");
}

#[test]
fn a_damaged_index_is_left_and_the_others_are_reduced() {
    let folder = tempfile::tempdir().unwrap();
    let [damaged, sound, _] = [2, 4, 5].map(|step| Saved::tiny(step).write(folder.path()));
    let index = damaged.join("index.json");
    let text = fs::read_to_string(&index)
        .unwrap()
        .replace("\"lr\"", "\"rl\"");
    fs::write(&index, &text).unwrap();
    let place = Place::on(Disk::default(), folder.path());
    place
        .prune(Keep { last: Some(1), weights_every: Some(2), ..Keep::default() })
        .unwrap();
    assert_eq!((files(&damaged).len(), files(&sound).len()), (3, 1));
    assert_eq!(fs::read_to_string(&index).unwrap(), text);
    let error = place.reduce(2, Kept::Weights).unwrap_err();
    assert!(format!("{error:#}").contains("step-00000002: its index is damaged"), "{error:#}");
}

#[test]
fn a_step_of_both_rules_is_kept_whole_and_one_being_read_too() {
    let keep = Keep { last: Some(1), every: Some(6), weights_every: Some(3), read: Some(5) };
    let decided: Vec<Kept> = keep
        .decide(&[1, 3, 5, 6, 9, 10])
        .into_iter()
        .map(|(_, kept)| kept)
        .collect();
    let (whole, weights) = (Kept::Whole, Kept::Weights);
    assert_eq!(decided, [Kept::Nothing, weights, whole, whole, weights, whole]);
}

/// The other place follows the same rule, and has the run's logs up to its end.
#[test]
fn another_place_keeps_weights_and_has_the_logs() {
    let lab = two_runs();
    let away = lab.path("away");
    let newest = away.join("step-00000012");
    assert_eq!(files(&newest).len(), 6);
    // A copy may have been skipped because a newer checkpoint was saved meanwhile.
    for at in [4, 8] {
        let copy = away.join(format!("step-{at:08}"));
        assert!(!copy.exists() || files(&copy).len() == 2, "{:?}", files(&copy));
    }
    let run = lab.path("runs/a");
    for name in ["metrics.jsonl", "events.jsonl", "manifest.yaml"] {
        let read = |path: PathBuf| fs::read_to_string(path).unwrap();
        assert_eq!(read(away.join("logs").join(name)), read(run.join(name)), "{name}");
    }
    let boards = |folder: PathBuf| {
        let mut files: Vec<(String, Vec<u8>)> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_file())
            .map(|path| {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                (name, fs::read(path).unwrap())
            })
            .collect();
        files.sort();
        files
    };
    let copied = boards(away.join("logs/tensorboard"));
    assert!(!copied.is_empty() && copied == boards(run.join("tensorboard")));
    assert!(away.join("logs/tensorboard/by-samples").is_dir());
}
