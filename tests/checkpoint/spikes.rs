//! Loss spikes through the real binary: samples of noise among a pattern, and a learning rate that is
//! far too high. What is done about them is the same on every grid and after every resume.

use crate::common::binary::{Done, Lab, run_args};
use gptrain::checkpoint::{Index, name};
use gptrain::train::testing::STEP_DELAY;
use std::fs;

const RUN: [&str; 5] = [
    "data.train=[{prefix: clean, weight: 199}, {prefix: noise, weight: 1}]",
    "train.steps=300",
    "train.eval_interval=0",
    "log.interval=1000",
    "checkpoint.interval=50",
];

/// Detection by losses only: a model that has learned its pattern has almost no gradients.
const ACT: &str = "divergence={norm_rise: 1000000}";

fn run(lab: &Lab, folder: &str, sets: &[&str]) -> Done {
    let folder = format!("log.folder=runs/{folder}");
    lab.run(&[&RUN[..], sets, &[&folder]].concat())
}

/// Steps whose update was skipped.
fn skipped(lab: &Lab, folder: &str) -> Vec<u64> {
    let rows = lab.metrics(&format!("runs/{folder}"));
    let rows = rows.iter().filter(|row| row["skipped"] == true);
    rows.map(|row| row["step"].as_u64().unwrap()).collect()
}

#[test]
fn a_poisoned_step_is_skipped_on_every_grid_and_after_a_resume() {
    let lab = Lab::poisoned();
    let done = run(&lab, "one", &[ACT]);
    let said = &done.expect(0, &[]).out;
    let steps = skipped(&lab, "one");
    assert!((3..=8).contains(&steps.len()), "{steps:?}");
    for step in &steps {
        assert!(said.contains(&format!("note: step {step}: the ")), "step {step}: {said}");
    }
    assert!(said.contains("is above") && said.contains("its update is skipped"), "{said}");
    let grid = [ACT, "topology={tensor: 2, pipeline: 2, data: 2, zero: 1}"];
    run(&lab, "grid", &grid).expect(0, &[]);
    assert_eq!(skipped(&lab, "grid"), steps);
    // Again from the middle, in the same folder: with and without a look at recorded steps.
    let losses = lab.losses("runs/one");
    let from =
        ["run", "run.yaml", "--resume-from", "step-00000150", "--set", "log.folder=runs/one"];
    let sets = RUN.iter().chain(&[ACT]).flat_map(|set| ["--set", *set]);
    lab.gptrain(&from.into_iter().chain(sets).collect::<Vec<_>>())
        .expect(0, &[]);
    assert_eq!(lab.losses("runs/one"), losses);
    let verify = ["run", "run.yaml", "--verify-resume", "150", "--set", "log.folder=runs/one"];
    let sets = RUN.iter().chain(&[ACT]).flat_map(|set| ["--set", *set]);
    let done = lab.gptrain(&verify.into_iter().chain(sets).collect::<Vec<_>>());
    assert!(done.expect(0, &[]).out.contains("equal to the last bit"), "{}", done.out);
}

/// Named, where nothing else is said, and nothing else is done; or not even that.
#[test]
fn a_spike_is_only_named_unless_the_manifest_says_more() {
    let lab = Lab::poisoned();
    let warned = run(&lab, "warned", &[]);
    assert!(warned.expect(0, &[]).out.contains("is above"), "{}", warned.out);
    let off = run(&lab, "off", &["divergence=off"]);
    assert!(!off.expect(0, &[]).out.contains("is above"), "{}", off.out);
    assert_eq!(lab.losses("runs/warned"), lab.losses("runs/off"));
    assert_eq!(skipped(&lab, "warned"), [0; 0]);
}

/// The run rolls back to before the spike, leaves out the samples around it, and continues.
#[test]
fn a_run_goes_back_and_leaves_the_samples_out() {
    let lab = Lab::poisoned();
    let act = "divergence={norm_rise: 1000000, skips: 0, roll_back: 6, roll_backs: 100}";
    let sets = [act, "checkpoint.interval=5"];
    let done = run(&lab, "a", &sets);
    let said = &done.expect(0, &[]).out;
    assert!(said.contains("Went back to step") && said.contains("are left out"), "{said}");
    let rows = lab.metrics("runs/a");
    let steps = rows.iter().map(|row| row["step"].as_u64().unwrap());
    assert!(steps.eq(1..=rows.len() as u64), "a step is missing or twice");
    let last = rows.len() as u64;
    let folder = |step| lab.path(&format!("runs/a/checkpoints/{}", name(step)));
    let index = Index::read(&folder(last)).unwrap();
    let backs = &index.spikes.as_ref().unwrap().roll_backs;
    assert!((3..=8).contains(&backs.len()), "{backs:?}");
    for back in backs {
        // Consecutive steps jump over the samples that were left out.
        let consumed = |step: u64| {
            rows[step as usize - 1]["consumed_samples"]
                .as_u64()
                .unwrap()
        };
        assert!(back.to + 6 <= back.at && back.samples[0] == consumed(back.to), "{back:?}");
        assert_eq!(consumed(back.to + 1), back.samples[1] + 4, "{back:?}");
    }
    assert_eq!(index.progress.consumed_samples, 1200, "what was left out counts as consumed");
    // From a checkpoint between two of them, the rest comes out the same.
    let (losses, middle) = (lab.losses("runs/a"), backs[1].to / 5 * 5 - 5);
    let from = ["run", "run.yaml", "--resume-from", &name(middle), "--set", "log.folder=runs/a"];
    let sets = RUN.iter().chain(&sets).flat_map(|set| ["--set", *set]);
    lab.gptrain(&from.into_iter().chain(sets).collect::<Vec<_>>())
        .expect(0, &[]);
    assert_eq!(lab.losses("runs/a"), losses);
    // A host that waits for each step learns of a spike before it has queued the next step.
    let waits = ["checkpoint.interval=5", act, "train.audit_interval=1"];
    run(&lab, "waits", &waits).expect(0, &[]);
    assert_eq!(lab.losses("runs/waits"), losses);
    // With checkpoints in memory, of which those after the spike are removed, and killed after going back.
    fs::create_dir(lab.path("memory")).unwrap();
    let memory = format!("checkpoint.memory_folder={}", lab.path("memory").display());
    let in_memory = ["log.folder=runs/b", "checkpoint.memory_interval=1", &memory];
    let sets = [&RUN[..], &[act, "checkpoint.interval=5"], &in_memory].concat();
    let mut killed = lab
        .command(&run_args(&sets))
        .env(STEP_DELAY, "0.01")
        .spawn()
        .unwrap();
    lab.wait_for_steps("runs/b", backs[0].at as usize + 3);
    killed.kill().unwrap();
    killed.wait().unwrap();
    lab.run(&sets).expect(0, &[]);
    assert_eq!(lab.losses("runs/b"), losses);
}

/// Nothing helps against a learning rate that is far too high: the run stops and says what it tried.
#[test]
fn a_run_that_diverges_stops_with_a_report() {
    let lab = Lab::new();
    let sets =
        ["checkpoint.interval=10", "divergence={roll_back: 20}", "lr.decay=constant", "lr.min=0"];
    let sets = [&sets[..], &["train.eval_interval=0", "log.folder=runs/a"]].concat();
    let sets = [&sets[..], &["train.steps=200"]].concat();
    lab.run(&sets).expect(0, &[]);
    let from = ["run", "run.yaml", "--resume-from", "step-00000100", "--set", "lr.peak=3"];
    let sets = sets.iter().flat_map(|set| ["--set", *set]);
    let done = lab.gptrain(&from.into_iter().chain(sets).collect::<Vec<_>>());
    done.expect(
        1,
        &["has diverged", "spikes in a row", "it already rolled back from step", "lr.peak"],
    );
    assert!(done.out.contains("Went back to step 80"), "{}", done.out);
}

/// Noise as a stage: trained on, as its losses are another level, and named.
#[test]
fn a_data_stage_that_begins_far_above_is_named() {
    let lab = Lab::poisoned();
    let stage = |prefix: &str| format!("data.stages=[{{from_tokens: 12800, train: {prefix}}}]");
    let plain = ["data.train=clean", "train.steps=210"];
    let done = run(&lab, "noise", &[&plain[..], &[ACT, &stage("noise")]].concat());
    let says = "of a new data stage is above ";
    let said = done
        .expect(0, &[])
        .out
        .lines()
        .filter(|line| line.contains(says))
        .count();
    assert_eq!(said, 1, "{}", done.out);
    let events = std::fs::read_to_string(lab.path("runs/noise/events.jsonl")).unwrap();
    assert!(events.contains(says), "{events}");
    let more = run(&lab, "clean", &[&plain[..], &[ACT, &stage("clean")]].concat());
    assert!(!more.expect(0, &[]).out.contains(says), "{}", more.out);
}
