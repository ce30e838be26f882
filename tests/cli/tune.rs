//! `gptrain tune`: cuts measured one after another, in one table that survives kills, failures and
//! cuts that do not fit.

use crate::common::binary::{Done, Lab, until};
use gptrain::base::Bytes;
use gptrain::estimate::tuned::{CutResult, Tuned, TunedRow};
use gptrain::train::testing::STEP_DELAY;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// `gptrain tune run.yaml --over OVER` with two steps a cut.
fn tune<'a>(over: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let words = ["tune", "run.yaml", "--over", over, "--steps", "2"];
    words.into_iter().chain(more.iter().copied()).collect()
}

fn table(done: &Done) -> Tuned {
    done.expect(0, &[]);
    Tuned::read(&done.out, "stdout").unwrap().unwrap()
}

fn count(tuned: &Tuned, result: CutResult) -> usize {
    tuned.rows.iter().filter(|row| row.result == result).count()
}

#[test]
fn every_cut_is_a_row_measured_once_and_calibrates_a_plan() {
    let lab = Lab::new();
    // Two ranks share the batch; three cannot. The wide model takes terabytes.
    let over = "topology.data=1,2,3; model.hidden=32,1048576";
    let done = lab.gptrain(&tune(over, &["--output", "t.json"]));
    done.expect(0, &[]);
    for part in ["6 cuts, 2 to measure", "nodes", "GBS", "sec/it", "OOM", "improved", "notes"] {
        assert!(done.out.contains(part), "{part}: {}", done.out);
    }
    let text = fs::read_to_string(lab.path("t.json")).unwrap();
    let tuned = Tuned::read(&text, "t.json").unwrap().unwrap();
    let found = [CutResult::Measured, CutResult::OutOfMemory, CutResult::Refused];
    assert_eq!(found.map(|result| count(&tuned, result)), [2, 2, 2]);
    for row in &tuned.rows {
        let TunedRow { result, device_bytes, planned_bytes, notes, .. } = row;
        match result {
            CutResult::Measured => {
                assert_eq!(device_bytes, planned_bytes, "the plan is what a rank reserves");
                assert!(row.sec > Some(0.0) && row.planned_sec > Some(0.0), "{row:?}");
                assert!(row.tflops > Some(0.0) && row.host_bytes.is_some());
                assert_eq!((row.nodes, row.global_batch), (Some(1), Some(4)));
            }
            CutResult::OutOfMemory => {
                let bytes = Bytes(device_bytes.unwrap());
                assert!(bytes.0 > 1 << 40 && notes.contains(&format!("OOM: {bytes}")), "{notes}");
                assert!(notes.contains("model.hidden=1048576"), "{notes}");
            }
            other => assert!(*other == CutResult::Refused && notes.contains("batch"), "{notes}"),
        }
    }
    assert!(!lab.path("runs/a").exists(), "no cut leaves a run");
    let again = lab.gptrain(&tune(over, &["--json"]));
    assert_eq!(table(&again), tuned, "nothing was measured again");
    for (name, starts) in [
        ("t.csv", "nodes,parameters,data,tensor,pipeline,micro_batch,global_batch,device_bytes,"),
        ("t.md", "| nodes | size | DP | TP | PP | MBS | GBS | mem | planned | host | sec/it |"),
    ] {
        lab.gptrain(&tune(over, &["--output", name])).expect(0, &[]);
        let text = fs::read_to_string(lab.path(name)).unwrap();
        assert!(text.starts_with(starts), "{text}");
        let rules = usize::from(name.ends_with("md"));
        assert_eq!(text.lines().count(), 1 + rules + 6, "{text}");
    }
    fs::write(lab.path("mine.csv"), "mine").unwrap();
    lab.gptrain(&tune(over, &["--output", "mine.csv"]))
        .expect(2, &["mine.csv: exists, and is not a table"]);
    let plan = lab.gptrain(&["estimate", "run.yaml", "--calibrate", "t.json"]);
    plan.expect(0, &["learned from 2 cuts: they took ", "the plan is then within "]);
    lab.gptrain(&["estimate", "run.yaml", "--hardware", "h100", "--calibrate", "t.json"])
        .expect(2, &["--hardware cpu"]);
}

#[test]
fn the_fastest_cuts_of_the_plan_are_measured_with_the_settings_of_the_user() {
    let lab = Lab::new();
    let words = ["tune", "run.yaml", "--gpus", "2", "--best", "2", "--steps", "1", "--json"];
    let tuned = table(&lab.gptrain(&[&words[..], &["--set", "model.layers=1"]].concat()));
    assert_eq!(count(&tuned, CutResult::Measured), 2);
    assert!(tuned.manifest.contains("layers: 1"), "{}", tuned.manifest);
    for row in &tuned.rows {
        assert_eq!(row.data.unwrap() * row.tensor.unwrap() * row.pipeline.unwrap(), 2);
        assert!(row.set.iter().any(|set| set.starts_with("topology.zero=")), "{row:?}");
    }
    lab.gptrain(&["tune", "run.yaml", "--gpus", "7"])
        .expect(2, &["--gpus", "7 devices"]);
    lab.gptrain(&tune("batch.micro", &[]))
        .expect(2, &["--over batch.micro: there is no `=`"]);
    lab.gptrain(&tune("batch.micro=1,2", &["--best", "2"]))
        .expect(2, &["--best"]);
    let tasks = ["RANK=0", "WORLD_SIZE=8", "MASTER_ADDR=h", "MASTER_PORT=1"];
    let tasks: Vec<(&str, &Path)> = tasks
        .iter()
        .map(|set| set.split_once('=').unwrap())
        .map(|(name, value)| (name, Path::new(value)))
        .collect();
    lab.gptrain_with(&tasks, &tune("batch.micro=1,2", &[]))
        .expect(2, &["one of 8 tasks", "start it once"]);
}

/// The plan is for the whole machine; the run has a limit of its own, and several remedies.
#[test]
fn a_cut_that_the_run_finds_too_large_is_out_of_memory() {
    let lab = Lab::new();
    let limit = "train.device_memory=512KiB";
    let tuned = table(&lab.gptrain(&tune("batch.micro=2,4", &["--set", limit, "--json"])));
    assert_eq!(count(&tuned, CutResult::OutOfMemory), 2, "{tuned:?}");
    for row in &tuned.rows {
        assert_eq!(row.device_bytes, row.planned_bytes);
        assert!(
            row.notes
                .contains("out of memory: train.device_memory is 512.0 KiB"),
            "{row:?}"
        );
    }
}

#[test]
fn a_table_that_was_killed_continues() {
    let lab = Lab::new();
    let words = tune("batch.micro=1,2,4", &["--folder", "t", "--json"]);
    let mut child = lab.command(&words).env(STEP_DELAY, "0.5").spawn().unwrap();
    let record = || fs::read_to_string(lab.path("t/series.jsonl")).unwrap_or_default();
    let logs = || {
        let names = fs::read_dir(lab.path("t")).into_iter().flatten().flatten();
        let names = names.map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".log")).count()
    };
    until("the second cut is measured", || record().lines().count() == 1 && logs() == 2);
    child.kill().unwrap();
    child.wait().unwrap();
    let before = record();
    let first: serde_json::Value = serde_json::from_str(before.trim()).unwrap();
    let result = lab
        .path("t")
        .join(format!("{}.json", first["task"].as_str().unwrap()));
    let measured = fs::read(&result).unwrap();
    let tuned = table(&lab.gptrain(&words));
    assert_eq!(count(&tuned, CutResult::Measured), 3);
    assert_eq!(fs::read(&result).unwrap(), measured);
    let after = record();
    assert!(after.starts_with(&before) && after.lines().count() == 3, "{after}");
}

#[test]
fn a_cut_that_fails_or_is_late_is_a_row_with_its_verdict() {
    let lab = Lab::new();
    // One of them needs a dataset that is not there.
    let over = "data.train=corpus,nothing";
    let tuned = table(&lab.gptrain(&tune(over, &["--json"])));
    let [good, bad] = &tuned.rows[..] else { panic!("{tuned:?}") };
    assert_eq!([good.result, bad.result], [CutResult::Measured, CutResult::Failed]);
    assert!(
        bad.notes.contains("failed: exit status: 2: ") && bad.notes.contains("nothing"),
        "{bad:?}"
    );
    // SIGTERM ends it after the step.
    let late = |limit| tune("batch.micro=1", &["--folder", "late", "--json", "--limit", limit]);
    let mut command = lab.command(&late("1"));
    let tuned = table(&Done::of(command.env(STEP_DELAY, "3").output().unwrap()));
    assert_eq!(count(&tuned, CutResult::Failed), 1);
    assert!(tuned.rows[0].notes.contains("time limit of 1.0"), "{:?}", tuned.rows);
    assert_eq!(table(&lab.gptrain(&late("600"))), tuned, "it is not tried again");
    let tuned = table(&lab.gptrain(&[&late("600")[..], &["--retry"]].concat()));
    assert_eq!(count(&tuned, CutResult::Measured), 1);
}

#[test]
fn in_an_allocation_each_cut_is_an_srun() {
    let lab = Lab::new();
    let programs = lab.path("bin");
    fs::create_dir(&programs).unwrap();
    let srun = programs.join("srun");
    // Keeps its options, and runs the command.
    let script = "#!/bin/sh\nwhile [ \"${1#--}\" != \"$1\" ]; do echo \"$1\" >> srun.txt; shift; done\n\
                  exec \"$@\"\n";
    fs::write(&srun, script).unwrap();
    fs::set_permissions(&srun, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let variables = [("PATH", Path::new(&path)), ("SLURM_JOB_ID", Path::new("7"))];
    let done = lab.gptrain_with(&variables, &tune("topology.data=1,2", &["--json"]));
    assert_eq!(count(&table(&done), CutResult::Measured), 2);
    let options = fs::read_to_string(lab.path("srun.txt")).unwrap();
    let tasks: Vec<&str> = options
        .lines()
        .filter(|line| line.contains("ntasks"))
        .collect();
    assert_eq!(tasks, ["--ntasks=1", "--ntasks=2"]);
    assert_eq!(options.matches("--time=11\n").count(), 2, "{options}");
}
