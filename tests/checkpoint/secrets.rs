//! Credentials of a store's URL, which libraries repeat in their errors, are in no message and in no file
//! of a run.

use crate::common::binary::{Done, Lab, run_args, until};
use gptrain::train::status::Status;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

/// All files below a folder that contain the secret.
fn holders(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(holders(&path));
        } else if String::from_utf8_lossy(&fs::read(&path).unwrap()).contains("Hush7") {
            found.push(path.display().to_string());
        }
    }
    found
}

fn keeps_it(lab: &Lab, done: &Done, what: &str) {
    let said = format!("{}{}", done.out, done.err);
    assert!(!said.contains("Hush7"), "{what}: {said}");
    assert_eq!(holders(&lab.path("runs")), [""; 0], "{what}");
}

/// A port without a listener.
fn closed() -> u16 {
    TcpListener::bind(("127.0.0.1", 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// A place, or a checkpoint, that is a signed or an open URL.
#[test]
fn a_url_that_is_refused_is_shown_without_its_credentials() {
    let lab = Lab::new();
    for url in [
        "s3://key:Hush7@bucket/a",
        "https://user:Hush7@bucket.s3.amazonaws.com/runs/a",
        "https://bucket.s3.amazonaws.com/a?X-Amz-Credential=Hush7&X-Amz-Signature=Hush7",
        "s3://bucket/runs/a?X-Amz-Signature=Hush7",
    ] {
        let also = format!("checkpoint.also={url}");
        let done = lab.run(&[&also]);
        keeps_it(&lab, done.expect(2, &["checkpoint.also", "***"]), url);
        let args = [&run_args(&[])[..], &["--resume-from", url]].concat();
        keeps_it(&lab, lab.gptrain(&args).expect(2, &["***"]), url);
        keeps_it(&lab, lab.gptrain(&["inspect-ckpt", url]).expect(2, &["***"]), url);
        keeps_it(&lab, &lab.gptrain(&["manifest", "check", "run.yaml", "--set", &also]), url);
    }
}

/// An endpoint with a user and a password, where no server listens.
#[cfg(feature = "object-store")]
#[test]
fn an_endpoint_that_fails_is_named_without_its_password() {
    let lab = Lab::new();
    let endpoints = [
        format!("http://user:Hush7@127.0.0.1:{}", closed()),
        format!("http://user:Hush7@127.0.0.1:{}/", closed()),
        "http://user:Hush7".to_string(),
        format!("http://user:Hush7/1@127.0.0.1:{}", closed()),
    ];
    let sets = ["checkpoint.also=s3://gptrain/a", "train.steps=20"];
    let command = |endpoint: &String, sets: &[&str]| {
        let mut command = lab.command(&run_args(sets));
        command
            .env("AWS_ACCESS_KEY_ID", "an-id")
            .env("AWS_SECRET_ACCESS_KEY", "Hush7-key");
        command
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ENDPOINT_URL", endpoint);
        command
    };
    for endpoint in &endpoints {
        let done = Done::of(command(endpoint, &sets).output().unwrap());
        keeps_it(&lab, done.expect(2, &["s3://gptrain/a"]), endpoint);
    }
    // A run that continues notes the failure in its status and events.
    lab.run(&["train.steps=10"]).well();
    let child = command(&endpoints[0], &sets).spawn().unwrap();
    until("the failure is noted, and the run is over", || {
        let status = Status::read(&lab.path("runs/a"));
        status.is_ok_and(|status| status.step == 20 && !status.warnings.is_empty())
    });
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let done = Done::of(child.wait_with_output().unwrap());
    assert!(
        done.expect(0, &[])
            .out
            .contains("checkpoints are not copied: s3://gptrain/a")
    );
    keeps_it(&lab, &done, "the run");
    let copied = Command::new("cp")
        .arg("-r")
        .args([lab.path("runs/a"), lab.path("runs/b")])
        .status();
    assert!(copied.unwrap().success());
    for args in [&["status", "runs/a"][..], &["report", "runs/a"], &["compare", "runs/a", "runs/b"]]
    {
        keeps_it(&lab, lab.gptrain(args).expect(0, &[]), args[0]);
    }
}
