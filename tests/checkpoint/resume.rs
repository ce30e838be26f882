//! A run that was stopped, killed or asked to save gives the same losses as one that never was, to
//! the last bit, through the real binary.

use crate::common::binary::{Done, Lab, has_ended, until};
use gptrain::base::rng;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::time::{Duration, Instant};

const DROPOUT: &str = "model.dropout=0.1";

/// The run whole, and stopped after `stop` steps and gone on with: the same bits.
fn stop_and_go_on(sets: &[&str], stops: &[u32]) {
    let lab = Lab::new();
    let whole = [sets, &["log.folder=runs/whole"]].concat();
    lab.run(&whole).expect(0, &[]);
    assert!(!lab.losses("runs/whole").is_empty());
    for stop in stops {
        let folder = format!("log.folder=runs/{stop}");
        let half = format!("checkpoint.interval={stop}");
        let run = [sets, &[&folder, &half]].concat();
        lab.run(&run).expect(0, &[]);
        // What follows the first save is taken away, as if the run had ended there.
        let checkpoints = lab.path(&format!("runs/{stop}/checkpoints"));
        for entry in fs::read_dir(&checkpoints).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name() != format!("step-{stop:08}").as_str() && entry.path().is_dir() {
                fs::remove_dir_all(entry.path()).unwrap();
            }
        }
        let done = lab.run(&run);
        done.expect(0, &[]);
        assert!(done.out.contains(&format!("(step {stop},")), "{}", done.out);
        assert!(done.out.contains("latest names"), "the wrong hint is reported: {}", done.out);
        assert_eq!(lab.losses(&format!("runs/{stop}")), lab.losses("runs/whole"), "at {stop}");
    }
}

#[test]
fn f32_with_dropout_in_the_ramp_up_and_after_it() {
    let ramp = ["batch.ramp_up=2 2 16", "batch.global=8", DROPOUT, "train.steps=14"];
    stop_and_go_on(&ramp, &[1, 3, 5, 8, 13]);
}

#[test]
fn bf16_with_dropout_in_the_ramp_up_and_after_it() {
    let ramp = ["batch.ramp_up=2 2 16", "batch.global=8", DROPOUT, "train.steps=14"];
    stop_and_go_on(&[&ramp[..], &["precision=bf16"]].concat(), &[1, 4, 7, 12]);
}

#[test]
fn weights_and_states_on_the_host() {
    let sets = ["topology.offload=full", "precision=bf16", DROPOUT, "train.steps=8"];
    stop_and_go_on(&sets, &[5]);
}

#[test]
fn alibi_with_a_vocabulary_that_is_padded() {
    let bloom = ["model.position=alibi", "model.embedding_layernorm=true", DROPOUT];
    stop_and_go_on(&[&bloom[..], &["model.vocab=65", "precision=bf16"]].concat(), &[6]);
    let untied = ["model.tied_head=false", "model.vocab=65", DROPOUT];
    stop_and_go_on(&untied, &[6]);
}

/// At instants all over a run, which takes longer where the machine is busy.
#[test]
fn two_hundred_kills() {
    let lab = Lab::new();
    let run = ["train.steps=60", "checkpoint.interval=4", "checkpoint.keep_last=2", DROPOUT];
    let run = [&run[..], &["batch.ramp_up=2 2 40", "train.eval_interval=0"]].concat();
    let started = Instant::now();
    lab.run(&[&run[..], &["log.folder=runs/whole"]].concat())
        .expect(0, &[]);
    let mut longest = started.elapsed().as_micros() as u64 / 2;
    let whole = lab.losses("runs/whole");
    assert_eq!(whole.len(), 60);
    let (mut kills, mut runs) = (0, 0);
    while kills < 200 {
        let folder = format!("runs/{runs}");
        let place = format!("log.folder={folder}");
        let run = [&run[..], &[&place]].concat();
        let enough = kills + 20;
        while kills < enough {
            // So early kills look like a crash loop, which the guard would refuse.
            let _ = fs::remove_file(lab.path(&folder).join("starts.json"));
            let mut child = lab.start(&run);
            let wait = rng::below(rng::key(11, "kills"), kills, longest);
            std::thread::sleep(Duration::from_micros(wait));
            child.kill().unwrap();
            let done = Done::of(child.wait_with_output().unwrap());
            if done.code.is_some() {
                // Faster than the kill: the first run was timed on a busier machine.
                done.expect(0, &[]);
                longest = longest * 3 / 4;
                break;
            }
            assert_eq!(done.err, "", "kill {kills}");
            kills += 1;
        }
        lab.run(&run).expect(0, &[]);
        assert_eq!(lab.losses(&folder), whole, "run {runs}, after {kills} kills");
        let left = fs::read_dir(lab.path(&folder).join("checkpoints")).unwrap();
        let names: Vec<_> = left
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        assert!(names.iter().all(|name| !name.contains(".tmp-")), "{names:?}");
        runs += 1;
    }
}

#[test]
fn a_signal_asks_for_a_save_and_training_goes_on() {
    let lab = Lab::new();
    let run = ["train.steps=1000000", "checkpoint.interval=1000000", DROPOUT];
    let child = lab.start(&run);
    lab.wait_for_steps("runs/a", 5);
    kill_process(Pid::from_child(&child), Signal::USR1).unwrap();
    let checkpoints = lab.path("runs/a/checkpoints");
    let saved = || {
        let entries = fs::read_dir(&checkpoints).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        names
            .filter(|name| name.starts_with("step-") && !name.contains("tmp"))
            .collect::<Vec<_>>()
    };
    until("a checkpoint is saved", || !saved().is_empty());
    let step: usize = saved()[0].strip_prefix("step-").unwrap().parse().unwrap();
    lab.wait_for_steps("runs/a", step + 1);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    Done::of(child.wait_with_output().unwrap()).expect(0, &[]);
    assert_eq!(saved().len(), 2, "the one asked for, and the one at the end");
}

/// A second signal leaves at once, wherever the save that the first asked for has got to.
#[test]
fn two_signals_leave_a_run_that_goes_on() {
    let lab = Lab::new();
    let run = ["train.steps=60", "checkpoint.interval=4", DROPOUT];
    lab.run(&[&run[..], &["log.folder=runs/whole"]].concat())
        .expect(0, &[]);
    for wait in [0, 1, 2, 4, 8, 16] {
        let child = lab.start(&run);
        let steps = lab.metrics("runs/a").len();
        // A run that is faster than this loop has ended: its later starts do nothing.
        until("a step is taken, or the run has ended", || {
            lab.metrics("runs/a").len() > steps || has_ended(&child)
        });
        for _ in 0..2 {
            kill_process(Pid::from_child(&child), Signal::TERM).ok();
            std::thread::sleep(Duration::from_millis(wait));
        }
        let done = Done::of(child.wait_with_output().unwrap());
        assert!([Some(0), Some(143)].contains(&done.code), "{:?}: {}", done.code, done.err);
    }
    lab.run(&run).expect(0, &[]);
    assert_eq!(lab.losses("runs/a"), lab.losses("runs/whole"));
}

#[test]
fn synchronous_and_several_in_flight_save_the_same_files() {
    let lab = Lab::new();
    let files = |in_flight: usize| {
        let folder = format!("runs/{in_flight}");
        let sets = [format!("log.folder={folder}"), format!("checkpoint.in_flight={in_flight}")];
        let sets = sets.each_ref().map(String::as_str);
        lab.run(&[&sets[..], &["checkpoint.interval=1"]].concat())
            .expect(0, &[]);
        let step = lab.path(&folder).join("checkpoints/step-00000012");
        ["master", "first_moment", "second_moment"].map(|kept| {
            let reader = gptrain::checkpoint::safetensors::Reader::open(
                &step.join(format!("{kept}-00000.safetensors")),
            );
            let reader = reader.unwrap();
            let names: Vec<String> = reader.entries.keys().cloned().collect();
            names
                .iter()
                .map(|name| reader.words::<u32>(name))
                .collect::<Vec<_>>()
                .into_iter()
                .map(Result::unwrap)
                .collect::<Vec<_>>()
        })
    };
    let synchronous = files(0);
    assert!(synchronous == files(1) && synchronous == files(3));
}

#[test]
fn keep_last_and_keep_every() {
    let lab = Lab::new();
    let keep = ["checkpoint.interval=1", "checkpoint.keep_last=2", "checkpoint.keep_every=5"];
    lab.run(&keep).expect(0, &[]);
    let entries = fs::read_dir(lab.path("runs/a/checkpoints")).unwrap();
    let mut names: Vec<_> = entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["latest", "step-00000005", "step-00000010", "step-00000011", "step-00000012"]
    );
    let latest = fs::read_to_string(lab.path("runs/a/checkpoints/latest")).unwrap();
    assert_eq!(latest, "step-00000012\n");
}

#[test]
fn verify_resume_repeats_recorded_steps_or_says_which_it_cannot() {
    let lab = Lab::new();
    lab.run(&["model.dropout=0.1"]).expect(0, &[]);
    let verify = ["run", "run.yaml", "--set", DROPOUT, "--verify-resume", "2"];
    let done = lab.gptrain(&verify);
    done.expect(0, &[]);
    // Checkpoints are at 5, 10 and 12; the newest with two steps after it is 10.
    assert!(done.out.contains("verified: steps 11 to 12 again, equal"), "{}", done.out);
    assert_eq!(lab.losses("runs/a").len(), 12);
    lab.gptrain(&[&verify[..5], &["99"]].concat())
        .expect(2, &["99 recorded steps"]);
    // Another seed of dropout is another run: here, a record that was changed.
    let path = lab.path("runs/a/metrics.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let line = text
        .lines()
        .find(|line| line.contains("\"step\":12,"))
        .unwrap();
    let loss = serde_json::from_str::<serde_json::Value>(line).unwrap()["lm_loss"].to_string();
    fs::write(&path, text.replace(&loss, "2.5")).unwrap();
    lab.gptrain(&verify)
        .expect(1, &["does not repeat the run", "step 12 gave loss 2.5"]);
}
