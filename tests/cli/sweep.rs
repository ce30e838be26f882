//! `gptrain sweep`: every combination in its own folder, also after SIGKILL, and as Slurm's jobs.

use crate::common::binary::{Lab, until};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const SETS: [&str; 4] = ["--set", "lr.peak=1e-3,2e-3", "--set", "train.seed=1,2"];

fn sweep(more: &[&str]) -> Vec<String> {
    let args = ["sweep", "run.yaml", "--output", "runs/s"]
        .into_iter()
        .chain(SETS);
    args.chain(more.iter().copied())
        .map(str::to_string)
        .collect()
}

/// Variants of `SETS`.
fn names() -> [&'static str; 4] {
    [
        "lr.peak=1e-3_train.seed=1",
        "lr.peak=1e-3_train.seed=2",
        "lr.peak=2e-3_train.seed=1",
        "lr.peak=2e-3_train.seed=2",
    ]
}

#[test]
fn every_variant_runs_once_and_all_are_compared_also_after_a_kill() {
    let lab = Lab::new();
    let args = sweep(&["--set", "train.steps=40"]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = lab.gptrain(&[&args[..], &["--dry"]].concat());
    done.expect(0, &[]);
    for name in names() {
        assert!(done.out.contains(&format!("runs/s/{name}: open")), "{}", done.out);
    }
    assert!(!lab.path("runs/s").exists());
    let mut child = lab.command(&args).spawn().unwrap();
    let second = format!("runs/s/{}", names()[1]);
    until("the second variant trains", || lab.metrics(&second).len() > 2);
    child.kill().unwrap();
    child.wait().unwrap();
    // The variant that was training has saved, and continues; the first one is not repeated.
    let done = lab.gptrain(&[&args[..], &["--parallel", "2"]].concat());
    done.expect(0, &[]);
    assert!(!done.out.contains(&format!("{}: started", names()[0])), "{}", done.out);
    for name in &names()[1..] {
        assert!(done.out.contains(&format!("{name}: complete")), "{}", done.out);
    }
    for name in names() {
        assert_eq!(lab.metrics(&format!("runs/s/{name}")).len(), 40, "{name}");
    }
    for part in ["lr.peak", "train.seed", "wrote runs/s/compare.html"] {
        assert!(done.out.contains(part), "{part}: {}", done.out);
    }
    let again = lab.gptrain(&args);
    again.expect(0, &[]);
    assert!(again.out.contains("4 variants, 4 complete"), "{}", again.out);
    assert!(!again.out.contains("started"), "{}", again.out);
}

#[test]
fn a_variant_that_fails_does_not_end_the_others() {
    let lab = Lab::new();
    let args = ["sweep", "run.yaml", "--output", "runs/s", "--set", "train.steps=4", "--set"];
    // A file is where the folder of the first variant would be.
    fs::create_dir_all(lab.path("runs/s")).unwrap();
    fs::write(lab.path("runs/s/lr.peak=1e-3"), "").unwrap();
    let done = lab.gptrain(&[&args[..], &["lr.peak=1e-3,2e-3"]].concat());
    done.expect(1, &["1 of 2 variants failed", "the same command tries them again"]);
    assert!(done.out.contains("lr.peak=2e-3: complete"), "{}", done.out);
    fs::remove_file(lab.path("runs/s/lr.peak=1e-3")).unwrap();
    let done = lab.gptrain(&[&args[..], &["lr.peak=1e-3,2e-3"]].concat());
    done.expect(0, &[]);
    assert!(!done.out.contains("lr.peak=2e-3: started"), "{}", done.out);
}

#[test]
fn mistakes_in_a_variant_are_found_before_any_runs() {
    let lab = Lab::new();
    let wrong = |set: &str, words: &[&str]| {
        lab.gptrain(&["sweep", "run.yaml", "--set", set])
            .expect(2, words);
        assert!(!lab.path("runs").exists());
    };
    wrong("lr.peak=1e-3,fast", &["--set lr.peak: lr.peak is \"fast\""]);
    wrong("lr.peek=1,2", &["did you mean lr.peak?"]);
    wrong("lr.peak=1e-3", &["no setting has several values", "--set lr.peak=1e-4,3e-4"]);
}

/// Slurm's commands, as far as a sweep calls them.
#[test]
fn jobs_are_submitted_once() {
    let lab = Lab::new();
    let bin = lab.path("bin");
    fs::create_dir(&bin).unwrap();
    let program = |name: &str, text: &str| {
        let path = bin.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    program("sbatch", "echo \"$2\" >> submitted; wc -l < submitted");
    program("squeue", "test \"$3\" -gt 1 && echo 1 RUNNING");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let args = sweep(&["--slurm", "--time", "1:00:00"]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let submit = || {
        let done = lab.gptrain_with(&[("PATH", Path::new(&path))], &args);
        done.expect(0, &[]);
        done.out
    };
    let out = submit();
    for (i, name) in names().iter().enumerate() {
        assert!(out.contains(&format!("{name}: submitted as job {}", i + 1)), "{out}");
        let script = fs::read_to_string(lab.path(&format!("runs/s/{name}.sh"))).unwrap();
        for part in ["#SBATCH --time=1:00:00", "log.folder=", "gptrain run "] {
            assert!(script.contains(part), "{part}: {script}");
        }
    }
    // Job 1 is no longer in the queue, and its run is not complete.
    let out = submit();
    assert!(out.contains(&format!("{}: submitted as job 5", names()[0])), "{out}");
    assert!(out.contains(&format!("{}: is job 2", names()[1])), "{out}");
    assert_eq!(
        fs::read_to_string(lab.path("submitted"))
            .unwrap()
            .lines()
            .count(),
        5
    );
}
