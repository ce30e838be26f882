//! `gptrain wandb` and `gptrain mlflow` with stand-ins of these modules, which record their calls.

use crate::common::binary::{Done, Lab};
use gptrain::train::status::{NAME, Status};
use serde_json::{Value, json};
use std::fs;

const WANDB: &str = "
import json
def note(*call): print(json.dumps(call), file=open('calls', 'a'))
class Run:
    def __init__(self, id): self.id = id
    def log(self, row, step): note('log', step, row)
    def finish(self, exit_code): note('finish', exit_code)
def init(project, name, config, dir, id, resume):
    note('init', project, name, config['batch.global'], id, resume)
    return Run(id)
";

const MLFLOW: &str = "
import json, types
def note(*call): print(json.dumps(call), file=open('calls', 'a'))
def set_experiment(name): note('experiment', name)
def start_run(run_id, run_name):
    note('start', run_id, run_name)
    return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id or 'made'))
def log_params(params): note('params', params.get('batch.global'))
def log_metrics(row, step): note('log', step, row)
def end_run(status): note('end', status)
";

/// A run of eight steps, and the stand-ins.
fn lab() -> Lab {
    let lab = Lab::new();
    lab.run(&["train.steps=8", "train.eval_interval=4", "train.eval_samples=4"])
        .expect(0, &[]);
    fs::create_dir(lab.path("modules")).unwrap();
    fs::write(lab.path("modules/wandb.py"), WANDB).unwrap();
    fs::write(lab.path("modules/mlflow.py"), MLFLOW).unwrap();
    lab
}

/// Runs the client to its end; its code and the calls that it made.
fn calls(lab: &Lab, client: &str) -> (Option<i32>, Vec<Value>) {
    let mut command = lab.command(&[client, "runs/a", "--project", "p"]);
    let done = Done::of(
        command
            .env("PYTHONPATH", lab.path("modules"))
            .output()
            .unwrap(),
    );
    let text = fs::read_to_string(lab.path("calls")).unwrap_or_else(|_| panic!("{}", done.err));
    fs::remove_file(lab.path("calls")).unwrap();
    (
        done.code,
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect(),
    )
}

fn logged(calls: &[Value]) -> Vec<u64> {
    let steps = calls
        .iter()
        .filter(|call| call[0] == "log")
        .map(|call| call[1].as_u64().unwrap());
    steps.collect()
}

#[test]
fn every_step_is_sent_once_and_a_resumed_run_goes_on_after_the_last() {
    let lab = lab();
    let (code, sent) = calls(&lab, "wandb");
    assert_eq!(code, Some(0));
    let id = sent[0][4].as_str().unwrap().to_string();
    assert_eq!(sent[0], json!(["init", "p", "run", 4, id, "allow"]));
    assert_eq!(
        logged(&sent),
        [1, 2, 3, 4, 4, 5, 6, 7, 8, 8],
        "a step, and an evaluation at each fourth"
    );
    let losses = lab.metrics("runs/a");
    assert_eq!(sent[1][2]["lm_loss"], losses[0]["lm_loss"]);
    let valid = sent.iter().filter_map(|call| call[2].as_object());
    let valid: Vec<_> = valid
        .filter(|row| row.keys().any(|key| key.starts_with("valid/")))
        .collect();
    assert_eq!(valid.len(), 2);
    assert_eq!(sent.last().unwrap(), &json!(["finish", 0]));

    lab.run(&["train.steps=10", "train.eval_interval=0"])
        .expect(0, &[]);
    let (_, sent) = calls(&lab, "wandb");
    assert_eq!(sent[0], json!(["init", "p", "run", 4, id, "allow"]));
    assert_eq!(logged(&sent), [9, 10]);
}

#[test]
fn a_run_that_is_killed_ends_as_failed() {
    let lab = lab();
    let path = lab.path("runs/a").join(NAME);
    let mut status: Status = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    (status.ended, status.updated) = (false, status.updated - 3600.0);
    fs::write(&path, serde_json::to_vec(&status).unwrap()).unwrap();
    let (code, sent) = calls(&lab, "wandb");
    assert_eq!((code, sent.last().unwrap()), (Some(1), &json!(["finish", 1])));
}

#[test]
fn mlflow_has_the_same_script() {
    let lab = lab();
    let (code, sent) = calls(&lab, "mlflow");
    assert_eq!(code, Some(0));
    assert_eq!(
        sent[..3],
        [json!(["experiment", "p"]), json!(["start", null, "run"]), json!(["params", "4"])]
    );
    assert_eq!(logged(&sent).len(), 10);
    assert_eq!(sent.last().unwrap(), &json!(["end", "FINISHED"]));
}

/// A manifest of 2,000 datasets is longer than an argument may be. Modules of the working folder are
/// not run.
#[test]
fn a_long_manifest_is_passed_on_and_the_working_folder_runs_nothing() {
    let lab = lab();
    let rows = (0..2000).map(|i| format!("  - {{prefix: /data/{i:080}, weight: 1}}\n"));
    let manifest = lab.path("runs/a/manifest.yaml");
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, format!("{text}\nmore:\n{}", rows.collect::<String>())).unwrap();
    for name in ["json.py", "wandb.py", "uuid.py"] {
        fs::write(lab.path(name), "raise SystemExit('the working folder runs')").unwrap();
    }
    let (code, sent) = calls(&lab, "wandb");
    assert_eq!((code, logged(&sent).len()), (Some(0), 10));
}

#[test]
fn a_missing_client_or_python_comes_with_its_remedy() {
    let lab = Lab::new();
    lab.run(&["train.steps=1"]).expect(0, &[]);
    // -S: without the packages that this machine may have.
    fs::write(lab.path("bare"), "#!/bin/sh\nexec python3 -I -S \"$@\"\n").unwrap();
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(lab.path("bare"), fs::Permissions::from_mode(0o755)).unwrap();
    let wandb = || lab.gptrain(&["wandb", "runs/a", "--python", "./bare"]);
    wandb().expect(1, &["has no module wandb", "-m pip install wandb"]);
    // The folder that W&B itself makes, where this Python looks for modules.
    fs::create_dir_all(lab.path("modules/wandb/run-1")).unwrap();
    let bare = "#!/bin/sh\nPYTHONPATH=modules exec python3 -S \"$@\"\n";
    fs::write(lab.path("bare"), bare).unwrap();
    wandb().expect(1, &["has no module wandb", "-m pip install wandb"]);
    let done = lab.gptrain(&["wandb", "runs/a", "--python", "./none"]);
    done.expect(2, &["cannot start ./none", "--python"]);
    lab.gptrain(&["wandb", "runs/none"])
        .expect(2, &["runs/none/status.json"]);
}
