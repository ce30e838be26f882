//! `gptrain job`: the script's numbers are the manifest's, and its own words stay words.

use crate::common::binary::Lab;
use std::fs;
use std::process::Command;

#[test]
fn a_job_has_the_numbers_of_its_manifest() {
    let lab = Lab::new();
    let grid = ["--set", "topology={tensor: 2, pipeline: 2, data: 4}", "--set", "batch.global=16"];
    let job = |more: &[&str]| {
        let args = [&["job", "run.yaml"][..], &grid, more].concat();
        lab.gptrain(&args).expect(0, &[]).out.clone()
    };
    let cpus = job(&["--cpus-per-task", "4", "--time", "90"]);
    let lines = ["#!/bin/sh\n", "=run\n", "--ntasks=16\n", "--cpus-per-task=4\n", "--time=90\n"];
    assert!(lines.iter().all(|line| cpus.contains(line)) && !cpus.contains("gpus"), "{cpus}");
    assert!(cpus.contains("# 16 ranks = tensor 2 × pipeline 2 × data 4;"), "{cpus}");
    let run = " gptrain run run.yaml --set 'topology={tensor: 2, pipeline: 2, data: 4}' \
        --set batch.global=16 --set slurm.on_end=requeue\n";
    assert!(format!("{cpus}\n").contains(run), "{cpus}");
    let gpus = job(&["--gpus-per-node", "8", "--partition", "large", "--account", "us"]);
    let lines = [
        "--nodes=2\n",
        "--ntasks-per-node=8\n",
        "--gpus-per-node=8\n",
        "=large\n",
        "--account=us\n",
    ];
    assert!(lines.iter().all(|line| gpus.contains(line)), "{gpus}");
    let restarts = job(&["--set", "restart.max=2"]);
    assert!(restarts.contains("srun --no-kill --kill-on-bad-exit=0 gptrain run "), "{restarts}");
    let gres = job(&["--gres", "gpu:a100:8,lscratch:10", "--exclusive", "--option", "nice=100"]);
    let lines = ["--nodes=2\n", "--gres=gpu:a100:8,lscratch:10\n", "--exclusive\n", "--nice=100\n"];
    assert!(lines.iter().all(|line| gres.contains(line)) && !gres.contains("gpus-per"), "{gres}");
    let wrong = ["job", "run.yaml", "--option=--nice=100"];
    lab.gptrain(&wrong).expect(2, &["its name without dashes"]);
    let wrong = ["job", "run.yaml", "--partition", "a b"];
    lab.gptrain(&wrong).expect(2, &["one word without spaces"]);
    lab.gptrain(&["job", "none.yaml"]).expect(2, &["none.yaml"]);
}

/// The script as a shell runs it, with a stand-in of srun.
#[test]
fn a_job_runs_in_a_folder_and_of_a_manifest_with_spaces() {
    let lab = Lab::new();
    let folder = lab.path("it's a folder");
    fs::create_dir(&folder).unwrap();
    let text = fs::read_to_string(lab.path("run.yaml")).unwrap();
    fs::write(folder.join("my run.yaml"), text.replace("corpus", "../corpus")).unwrap();
    let args = ["job", "my run.yaml", "-o", "job.sh", "--set", "train.steps=2"];
    let mut made = lab.command(&args);
    assert!(made.current_dir(&folder).output().unwrap().status.success());
    fs::create_dir(lab.path("bin")).unwrap();
    let srun = lab.path("bin/srun");
    fs::write(
        &srun,
        "#!/bin/sh\necho \"$SRUN_CPUS_PER_TASK: $*\" >> calls\nshift\n\
        case $2 in run) exec \"$@\";; esac\n",
    )
    .unwrap();
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(&srun, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", lab.path("bin").display(), std::env::var("PATH").unwrap());
    let mut job = Command::new("sh");
    job.arg(folder.join("job.sh"))
        .env("PATH", path)
        .env("SLURM_CPUS_PER_TASK", "8");
    let done = job.output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let calls = fs::read_to_string(folder.join("calls")).unwrap();
    assert!(calls.contains("8: --kill-on-bad-exit=1 gptrain bench my run.yaml"), "{calls}");
    assert!(
        calls.contains("gptrain run my run.yaml --set train.steps=2 --set slurm.on_end"),
        "{calls}"
    );
    let out = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(out.contains("complete: "), "{out}");
}
