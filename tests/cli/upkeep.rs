//! A run in operation: `gptrain prune`, and the user's command for events (`log.on_event`).

use crate::common::binary::Lab;
use serde_json::Value;
use std::fs;
use std::time::{Duration, Instant};

fn steps(lab: &Lab) -> Vec<String> {
    let entries = fs::read_dir(lab.path("runs/a/checkpoints")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("step-")).collect();
    names.sort();
    names
}

#[test]
fn old_checkpoints_are_removed_and_the_newest_never() {
    let lab = Lab::new();
    lab.run(&["train.steps=7", "checkpoint.interval=1"])
        .expect(0, &[]);
    let all = steps(&lab);
    assert_eq!(all.len(), 7);
    fs::create_dir(lab.path("runs/a/checkpoints/step-00000008.tmp-1")).unwrap();
    let dry = lab.gptrain(&["prune", "runs/a", "--keep-every", "3", "--dry"]);
    dry.expect(0, &[]);
    assert!(
        dry.out.contains("would remove 4 checkpoints") && dry.out.contains("3 kept"),
        "{}",
        dry.out
    );
    assert_eq!(steps(&lab).len(), 8, "with the one that is being written");
    let json = lab.gptrain(&["prune", "runs/a", "--keep-every", "3", "--keep-last", "2", "--json"]);
    let json: Value = serde_json::from_str(&json.expect(0, &[]).out).unwrap();
    assert_eq!((&json["kept"], json["removed"].as_array().unwrap().len()), (&3.into(), 4));
    assert!(json["bytes"].as_u64().unwrap() > 1000);
    let kept = ["step-00000003", "step-00000006", "step-00000007", "step-00000008.tmp-1"];
    assert_eq!(steps(&lab), kept);
    lab.gptrain(&["prune", "runs/a", "--keep-last", "1"])
        .expect(0, &[]);
    assert_eq!(steps(&lab), [kept[2], kept[3]]);
    lab.gptrain(&["prune", "runs/a"])
        .expect(2, &["--keep-every"]);
    lab.gptrain(&["prune", "runs", "--keep-last", "1"])
        .expect(2, &["holds no checkpoint of a run"]);
    lab.run(&["train.steps=9"]).expect(0, &[]);
}

/// A checkpoint that may still be copied is kept; one that was skipped is not.
#[test]
fn what_is_not_copied_yet_is_kept() {
    let lab = Lab::new();
    let also = format!("checkpoint.also=file://{}", lab.path("away").display());
    lab.run(&["train.steps=4", "checkpoint.interval=1", &also])
        .expect(0, &[]);
    fs::remove_dir_all(lab.path("away/step-00000004")).unwrap();
    if lab.path("away/step-00000003").exists() {
        fs::remove_dir_all(lab.path("away/step-00000003")).unwrap();
    }
    let copied: Vec<bool> = (1..=2)
        .map(|step| lab.path(&format!("away/step-0000000{step}")).exists())
        .collect();
    let newest = copied
        .iter()
        .rposition(|copied| *copied)
        .map_or(0, |at| at + 1);
    let done = lab.gptrain(&["prune", "runs/a", "--keep-last", "1"]);
    done.expect(0, &[]);
    assert!(
        done.out
            .contains("step-00000003 is kept: it is not copied yet"),
        "{}",
        done.out
    );
    assert_eq!(steps(&lab).len(), 4 - newest);
    // A place that cannot be listed protects everything.
    fs::remove_dir_all(lab.path("away")).unwrap();
    fs::write(lab.path("away"), "").unwrap();
    lab.gptrain(&["prune", "runs/a", "--keep-last", "1"])
        .expect(1, &["so nothing is removed"]);
    assert_eq!(steps(&lab).len(), 4 - newest);
}

/// Lines that the command has appended to `told`.
fn told(lab: &Lab) -> Vec<Value> {
    let text = fs::read_to_string(lab.path("told")).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn the_command_is_told_of_ends_failures_and_divergence() {
    let lab = Lab::new();
    let command = "log.on_event='cat >> told; echo $GPTRAIN_EVENT of $GPTRAIN_RUN >> kinds'";
    lab.run(&["train.steps=3", command]).expect(0, &[]);
    let events = told(&lab);
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!((&events[0]["kind"], &events[0]["run"]), (&"end".into(), &"run".into()));
    assert_eq!(events[0]["text"], "step 3: complete");
    assert_eq!(fs::read_to_string(lab.path("kinds")).unwrap(), "end of run\n");
    // A learning rate that is far too high, after a hundred steps.
    let sets = ["checkpoint.interval=10", "divergence={roll_back: 20}", "lr.decay=constant"];
    let sets = [&sets[..], &["lr.min=0", "train.eval_interval=0", "log.folder=runs/b"]].concat();
    let sets = [&sets[..], &["train.steps=200"]].concat();
    lab.run(&sets).expect(0, &[]);
    let from = ["run", "run.yaml", "--resume-from", "step-00000100", "--set", "lr.peak=3"];
    let sets = sets
        .iter()
        .chain([&command])
        .flat_map(|set| ["--set", *set]);
    lab.gptrain(&from.into_iter().chain(sets).collect::<Vec<_>>())
        .expect(1, &["has diverged"]);
    let events = told(&lab);
    let kinds: Vec<&str> = events[1..]
        .iter()
        .map(|event| event["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds.last(), Some(&"failure"), "{events:?}");
    assert!(kinds.contains(&"divergence"), "{events:?}");
    assert!(!kinds.contains(&"end"), "{events:?}");
}

#[test]
fn a_command_that_fails_or_hangs_is_one_warning_and_harms_nothing() {
    let lab = Lab::new();
    let losses = |name: &str, command: &str| {
        let folder = format!("log.folder=runs/{name}");
        let done = lab.run(&["train.steps=3", &folder, command]);
        done.expect(0, &[]);
        (lab.losses(&format!("runs/{name}")), done.out)
    };
    let (plain, _) = losses("plain", "log.interval=1");
    let (failed, out) = losses("failed", "log.on_event='exit 3'");
    assert_eq!(failed, plain);
    assert_eq!(
        out.matches("log.on_event: the command ended with exit status: 3")
            .count(),
        1,
        "{out}"
    );
    let began = Instant::now();
    let (hung, out) = losses("hung", "log.on_event='sleep 1000 & sleep 1000'");
    assert_eq!(hung, plain);
    assert!(out.contains("took longer than 10 s and was ended"), "{out}");
    assert!(began.elapsed() < Duration::from_secs(600));
}
