//! `gptrain status` of a run that continues, that has ended, and that has no heartbeat; and the files
//! for Prometheus.

use crate::common::binary::{Done, Lab, run_args, until};
use gptrain::base::Bytes;
use gptrain::launch::events::{self, Kind};
use gptrain::train::status::{NAME, Status};
use gptrain::train::testing::STEP_DELAY;
use std::fs;
use std::path::Path;

fn number(page: &str, name: &str) -> f64 {
    number_of(page, "run", name)
}

fn number_of(page: &str, run: &str, name: &str) -> f64 {
    let row = format!("gptrain_{name}{{run=\"{run}\"}} ");
    let value = page.lines().find_map(|line| line.strip_prefix(&row));
    value
        .unwrap_or_else(|| panic!("no {row} in {page}"))
        .parse()
        .unwrap()
}

#[test]
fn a_run_shows_what_it_does() {
    let lab = Lab::new();
    let collector = lab.path("collector");
    fs::create_dir(&collector).unwrap();
    let collected = format!("log.prometheus={}", collector.display());
    let long = ["train.steps=1000000", "log.interval=100000", "train.eval_interval=0"];
    let mut child = lab.start(&[&long[..], &[&collected, "checkpoint.interval=50"]].concat());
    let files = [collector.join("gptrain-run.prom"), lab.path("runs/a/metrics.prom")];
    let page = |file: &Path| fs::read_to_string(file).ok();
    for file in &files {
        until("it shows steps", || page(file).is_some_and(|page| number(&page, "step") > 60.0));
    }
    let seen = page(&files[0]).unwrap();
    assert!(number(&seen, "lm_loss") > 0.0 && number(&seen, "seconds_left") > 0.0, "{seen}");
    assert!((0.0..=1.0).contains(&number(&seen, "goodput_ratio")), "{seen}");
    assert!(number(&seen, "heartbeat_seconds") > 1.7e9, "{seen}");
    for (name, kind) in [("step", "counter"), ("tokens", "counter"), ("lm_loss", "gauge")] {
        assert!(seen.contains(&format!("# TYPE gptrain_{name} {kind}\n")), "{name}: {seen}");
    }
    let asked = || {
        lab.gptrain(&["status", "runs/a"])
            .expect(0, &[])
            .out
            .clone()
    };
    until("the file shows a speed", || asked().contains(" left"));
    let said = asked();
    for part in ["run (1 rank, rank 0 on ", " of 1,000,000 (", "loss ", "tokens/s, ", " left"] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    assert!(said.contains("saved step ") && said.contains("goodput "), "{said}");
    // A run that ends removes its file. One that cannot write there says so once.
    let other = lab.run(&["name=other", "train.steps=2", &collected, "log.folder=runs/b"]);
    other.expect(0, &[]);
    assert!(!collector.join("gptrain-other.prom").exists() && files[0].exists());
    assert_eq!(number_of(&page(&lab.path("runs/b/metrics.prom")).unwrap(), "other", "step"), 2.0);
    let nowhere = format!("log.prometheus={}", lab.path("nowhere").display());
    let other = lab.run(&["train.steps=2", &nowhere, "log.folder=runs/c"]);
    let says = "log.prometheus: cannot create ";
    assert_eq!(other.expect(0, &[]).out.matches(says).count(), 1, "{}", other.out);
    assert!(other.out.contains("the run continues without it"), "{}", other.out);
    child.kill().unwrap();
    child.wait().unwrap();
    // No heartbeat for three days.
    let path = lab.path("runs/a").join(NAME);
    let mut status: Status = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    status.updated -= 3.0 * 86_400.0;
    fs::write(&path, serde_json::to_vec(&status).unwrap()).unwrap();
    let said = asked();
    let gone = format!("process {} on this machine is gone", status.process);
    assert!(
        said.contains("killed after its heartbeat 3 d 0 h ago") && said.contains(&gone),
        "{said}"
    );
    // On another machine.
    status.host = "elsewhere".into();
    fs::write(&path, serde_json::to_vec(&status).unwrap()).unwrap();
    let said = asked();
    assert!(said.contains("no heartbeat for 3 d 0 h"), "{said}");
    assert!(said.contains(&format!("look at process {} on elsewhere", status.process)), "{said}");
}

/// Killed twice without a word: the status says so at once, each start has an end, and all time in
/// steps is part of the time from starts to ends.
#[test]
fn a_killed_run_is_not_running_and_its_goodput_is_a_share() {
    let lab = Lab::new();
    let sets = ["train.steps=60", "checkpoint.interval=5", "train.eval_interval=0"];
    for killed in 1..=2 {
        let mut command = lab.command(&run_args(&sets));
        let mut child = command.env(STEP_DELAY, "0.1").spawn().unwrap();
        lab.wait_for_steps("runs/a", 25 * killed);
        child.kill().unwrap();
        child.wait().unwrap();
        let said = lab
            .gptrain(&["status", "runs/a"])
            .expect(0, &[])
            .out
            .clone();
        assert!(said.contains("killed after its heartbeat"), "{said}");
        let listed = lab.gptrain(&["status"]).expect(0, &[]).out.clone();
        assert!(listed.lines().any(|line| line.contains("runs/a  killed ")), "{listed}");
        let watched = lab.gptrain(&["status", "runs/a", "--watch"]);
        watched.expect(1, &["runs/a: the run was killed: process "]);
    }
    lab.run(&sets).expect(0, &[]);
    let status = Status::read(&lab.path("runs/a")).unwrap();
    let running = status.updated - status.began - status.away_s;
    // The steps of killed starts count, but for those after their last checkpoints.
    assert!(status.useful_s > 1.5 && status.useful_s <= running, "{status:?}");
    let events = events::read(&lab.path("runs/a")).unwrap();
    let ends = |kind: Kind| events.iter().filter(|event| event.kind == kind).count();
    assert_eq!((ends(Kind::Start), ends(Kind::End)), (3, 3), "{events:?}");
    let killed = events
        .iter()
        .filter(|event| event.text.contains(": killed while "));
    assert_eq!(killed.count(), 2, "{events:?}");
}

#[test]
fn what_a_status_holds_cannot_change_the_terminal() {
    let lab = Lab::new();
    fs::create_dir_all(lab.path("runs/a")).unwrap();
    let ugly = || "\u{1b}[2Ja\u{202e}".to_string();
    let status = Status {
        name: ugly(),
        host: ugly(),
        phase: ugly(),
        job: Some(ugly()),
        ..Status::default()
    };
    fs::write(lab.path("runs/a").join(NAME), serde_json::to_vec(&status).unwrap()).unwrap();
    let said = lab.gptrain(&["status", "runs/a"]);
    assert!(!said.expect(0, &[]).out.contains(['\u{1b}', '\u{202e}']), "{}", said.out);
    assert_eq!(said.out.matches("\\u{1b}[2Ja\\u{202e}").count(), 5, "{}", said.out);
}

#[test]
fn a_run_that_ended_says_how() {
    let lab = Lab::new();
    let done = lab.run(&[]);
    assert!(done.expect(0, &[]).out.contains("goodput "), "{}", done.out);
    let said = lab.gptrain(&["status", "runs/a"]);
    assert!(
        said.expect(0, &[])
            .out
            .contains("ago: complete\nstep 12 of 12 (100.0 %)"),
        "{}",
        said.out
    );
    let json = lab.gptrain(&["status", "runs/a", "--json"]);
    let status: Status = serde_json::from_str(&json.expect(0, &[]).out).unwrap();
    let rows = lab.metrics("runs/a");
    let useful: f64 = rows.iter().map(|row| row["sec"].as_f64().unwrap()).sum();
    assert!((status.useful_s - useful).abs() < 1e-6, "{} and {useful}", status.useful_s);
    assert!(status.ended && status.useful_s <= status.updated - status.began);
    // Started again: nothing is left to do, and nothing changes.
    let kept = || {
        ["status.json", "events.jsonl"].map(|name| fs::read(lab.path("runs/a").join(name)).unwrap())
    };
    let before = kept();
    let done = lab.run(&[]);
    let says =
        "nothing left to do: 12 of 12 steps; --set train.steps=N, with N above 12, continues\n";
    assert!(done.expect(0, &[]).out.ends_with(says), "{}", done.out);
    assert_eq!(kept(), before);
    // Gone on with, a day later: the time between is not lost.
    let day = 86_400.0;
    let earlier =
        Status { began: status.began - day, updated: status.updated - day, ..status.clone() };
    fs::write(lab.path("runs/a").join(NAME), serde_json::to_vec(&earlier).unwrap()).unwrap();
    lab.run(&["train.steps=16"]).expect(0, &[]);
    let again = Status::read(&lab.path("runs/a")).unwrap();
    assert_eq!((again.began, again.step), (earlier.began, 16));
    assert!(again.away_s >= day && again.updated - again.began - again.away_s < day, "{again:?}");
    let line = again.goodput_line();
    assert!(line.contains(" in steps, of ") && line.contains("; away for 1 d 0 h"), "{line}");
    assert!(again.useful_s > status.useful_s);
    let page = lab.gptrain(&["report", "runs/a"]);
    page.expect(0, &[]);
    assert!(
        fs::read_to_string(lab.path("runs/a/report.html"))
            .unwrap()
            .contains("goodput")
    );
    lab.gptrain(&["status", "runs/none"])
        .expect(2, &["runs/none/status.json", "no such file"]);
}

#[test]
fn all_runs_of_a_folder_are_listed() {
    let lab = Lab::new();
    lab.gptrain(&["status"]).expect(2, &["runs/status.json"]);
    for (folder, steps) in [("runs/a", 4), ("runs/sweep/b", 8)] {
        let sets = [format!("log.folder={folder}"), format!("train.steps={steps}")];
        lab.run(&sets.each_ref().map(String::as_str)).expect(0, &[]);
    }
    let change = |folder: &str, change: fn(&mut Status)| {
        let path = lab.path(folder).join(NAME);
        let mut status = Status::read(&lab.path("runs/a")).unwrap();
        change(&mut status);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, serde_json::to_vec(&status).unwrap()).unwrap();
    };
    change("runs/failed", |status| status.phase = "failed: the disk is full".into());
    change("runs/stopped", |status| status.phase = "stopped on request, and saved".into());
    change("runs/silent", |status| {
        (status.ended, status.updated) = (false, status.updated - 3600.0)
    });
    change("runs/live", |status| (status.ended, status.updated) = (false, status.updated + 600.0));
    fs::create_dir_all(lab.path("runs/broken")).unwrap();
    fs::write(lab.path("runs/broken").join(NAME), "{").unwrap();
    std::os::unix::fs::symlink(lab.path("runs"), lab.path("runs/sweep/again")).unwrap();
    let said = lab.gptrain(&["status"]);
    let lines: Vec<&str> = said.expect(0, &[]).out.lines().collect();
    assert_eq!(lines.len(), 8, "{}", said.out);
    assert!(lines[0].starts_with("run ") && lines[1].starts_with("runs/live "), "{}", said.out);
    for (folder, state) in [
        ("runs/a", "complete"),
        ("runs/sweep/b", "complete"),
        ("runs/failed", "failed"),
        ("runs/stopped", "stopped"),
        ("runs/silent", "silent"),
        ("runs/live", "running"),
        ("runs/broken", "status.json is damaged"),
    ] {
        let line = lines
            .iter()
            .find(|line| line.starts_with(&format!("{folder} ")));
        assert!(line.is_some_and(|line| line.contains(state)), "{folder}: {}", said.out);
    }
    assert!(said.out.contains("8 of 8"), "{}", said.out);
    let json = lab.gptrain(&["status", "runs", "--json"]);
    let object: serde_json::Value = serde_json::from_str(&json.expect(0, &[]).out).unwrap();
    assert_eq!(object["runs"].as_array().unwrap().len(), 7);
    assert_eq!(object["runs"][0]["state"], "running");
    lab.gptrain(&["status", "--watch"])
        .expect(2, &["--watch: it follows one run"]);
    fs::create_dir(lab.path("empty")).unwrap();
    lab.gptrain(&["status", "empty"])
        .expect(2, &["empty: no folder below it"]);
}

#[test]
fn a_run_is_followed_to_its_end() {
    let lab = Lab::new();
    let long = ["train.steps=1000000", "log.interval=100000", "train.eval_interval=0"];
    let child = lab.start(&long);
    until("it has a status", || {
        Status::read(&lab.path("runs/a")).is_ok_and(|status| status.step > 0)
    });
    let watch = |more: &[&str]| {
        lab.command(&[&["status", "runs/a", "--watch"], more].concat())
            .spawn()
            .unwrap()
    };
    let (lines, objects) = (watch(&[]), watch(&["--json"]));
    let first = Status::read(&lab.path("runs/a")).unwrap().step;
    until("steps pass", || Status::read(&lab.path("runs/a")).unwrap().step > first);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    child.wait_with_output().unwrap();
    let end = |child: std::process::Child| Done::of(child.wait_with_output().unwrap());
    let (lines, objects) = (end(lines), end(objects));
    let last = lines.expect(0, &[]).out.lines().last().unwrap();
    assert!(
        last.starts_with("step ") && last.ends_with(" stopped on request, and saved"),
        "{last}"
    );
    let steps = objects.expect(0, &[]).out.lines().map(|line| {
        let status: Status = serde_json::from_str(line).unwrap();
        status.step
    });
    let steps: Vec<u64> = steps.collect();
    assert!(steps.is_sorted() && !steps.is_empty(), "{steps:?}");
    assert!(!lines.out.contains('\u{1b}'), "{}", lines.out);
    // One that failed is an error of the command.
    let path = lab.path("runs/a").join(NAME);
    let failed =
        Status { phase: "failed: no space".into(), ..Status::read(&lab.path("runs/a")).unwrap() };
    fs::write(path, serde_json::to_vec(&failed).unwrap()).unwrap();
    end(watch(&[])).expect(1, &["runs/a: the run failed: no space"]);
}

/// Memory in every place that shows it: the allocator's figure, and the system's within 1 %.
#[test]
fn memory_is_the_allocators_and_the_systems() {
    let lab = Lab::new();
    let long = ["train.steps=1000000", "log.interval=10", "train.eval_interval=0"];
    let grid = ["topology.pipeline=2", "checkpoint.interval=1000000", "log.tensorboard=true"];
    let child = lab.start(&[&long[..], &grid].concat());
    let read = || {
        let rows = lab.metrics("runs/a");
        rows.iter()
            .rev()
            .find(|row| row.get("host_rss").is_some())
            .cloned()
    };
    let resident = || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let kib = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
        1024.0 * kib.unwrap()
    };
    until("the record has the memory of the process, within 1 %", || {
        let Some(row) = read().filter(|row| row["step"].as_u64() > Some(40)) else { return false };
        (row["host_rss"].as_f64().unwrap() / resident() - 1.0).abs() < 0.01
    });
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let done = Done::of(child.wait_with_output().unwrap());
    done.expect(0, &[]);
    let row = read().unwrap();
    let bytes = |key: &str| row[key].as_u64().unwrap_or_else(|| panic!("{key}: {row}"));
    // All that is reserved holds tensors, and it is what the start printed of the fullest rank.
    let planned = format!("total {}", Bytes(bytes("device_in_use")));
    assert!(done.out.contains(&planned), "{planned}: {}", done.out);
    assert_eq!(bytes("device_reserved"), bytes("device_in_use"));
    assert!(bytes("host_rss") > bytes("device_reserved") && row.get("device_process").is_none());
    let full = bytes("fullest_rank");
    assert_eq!(bytes("fullest_stage"), full, "a stage of this grid is a rank");
    assert!(
        done.out
            .contains(&format!("memory of rank {full}, which takes most"))
    );
    let megabytes = bytes("device_reserved") as f64 / 1048576.0;
    for field in [format!("| device reserved (MB): {megabytes:.1} |"), "| host RSS (MB): ".into()] {
        assert!(done.out.contains(&field), "{field}: {}", done.out);
    }
    assert_eq!(lab.metrics("runs/a")[1].get("host_rss"), None, "only at log lines");
    let status = lab.gptrain(&["status", "runs/a"]);
    for part in ["device memory ", "host memory ", &format!("fullest rank {full}")] {
        assert!(status.out.contains(part), "{part}: {}", status.out);
    }
    let page = fs::read_to_string(lab.path("runs/a/metrics.prom")).unwrap();
    assert_eq!(number(&page, "device_reserved_bytes"), bytes("device_reserved") as f64);
    assert!(!page.contains("device_process"), "{page}");
}
