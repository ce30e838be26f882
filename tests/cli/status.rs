//! `gptrain status` of a run that goes on, that has ended, and that nobody hears of; and the page
//! that Prometheus reads.

use crate::common::binary::{Lab, free_port, until};
use gptrain::train::status::{NAME, Status};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

/// What a run says at its port, once it listens.
fn page(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

fn number(page: &str, name: &str) -> f64 {
    let row = format!("gptrain_{name}{{run=\"run\"}} ");
    let value = page.lines().find_map(|line| line.strip_prefix(&row));
    value.unwrap_or_else(|| panic!("no {row} in {page}")).parse().unwrap()
}

#[test]
fn a_run_shows_what_it_does() {
    let (lab, port) = (Lab::new(), free_port());
    let port_set = format!("log.metrics_port={port}");
    let long = ["train.steps=1000000", "log.interval=100000", "train.eval_interval=0"];
    let mut child = lab.start(&[&long[..], &[&port_set, "checkpoint.interval=50"]].concat());
    until("the page shows steps", || page(port).is_some_and(|page| number(&page, "step") > 60.0));
    let seen = page(port).unwrap();
    assert!(seen.starts_with("HTTP/1.0 200 OK\r\n"), "{seen}");
    assert!(number(&seen, "lm_loss") > 0.0 && number(&seen, "seconds_left") > 0.0, "{seen}");
    assert!((0.0..=1.0).contains(&number(&seen, "goodput_ratio")), "{seen}");
    let asked = || lab.gptrain(&["status", "runs/a"]).expect(0, &[]).out.clone();
    until("the file shows a speed", || asked().contains(" left"));
    let said = asked();
    for part in ["run (1 ranks, rank 0 on ", " of 1,000,000 (", "loss ", "tokens/s, ", " left"] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    assert!(said.contains("saved step ") && said.contains("goodput "), "{said}");
    // Another run at the same port is told so, and this one goes on.
    let other = [&long[..], &[&port_set, "log.folder=runs/b"]].concat();
    lab.run(&other).expect(2, &["log.metrics_port", "another port"]);
    child.kill().unwrap();
    child.wait().unwrap();
    // Nobody has heard of it for an hour.
    let path = lab.path("runs/a").join(NAME);
    let mut status: Status = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    status.updated -= 3600.0;
    fs::write(&path, serde_json::to_vec(&status).unwrap()).unwrap();
    let said = asked();
    assert!(said.contains("no sign of life for 1 h 00 m"), "{said}");
    assert!(said.contains(&format!("look at process {} on ", status.process)), "{said}");
}

#[test]
fn a_run_that_ended_says_how() {
    let lab = Lab::new();
    let done = lab.run(&[]);
    assert!(done.expect(0, &[]).out.contains("goodput "), "{}", done.out);
    let said = lab.gptrain(&["status", "runs/a"]);
    assert!(
        said.expect(0, &[]).out.contains("ago: complete\nstep 12 of 12 (100.0 %)"),
        "{}",
        said.out
    );
    let json = lab.gptrain(&["status", "runs/a", "--json"]);
    let status: Status = serde_json::from_str(&json.expect(0, &[]).out).unwrap();
    let rows = lab.metrics("runs/a");
    let useful: f64 = rows.iter().map(|row| row["sec"].as_f64().unwrap()).sum();
    assert!((status.useful_s - useful).abs() < 1e-6, "{} and {useful}", status.useful_s);
    assert!(status.ended && status.useful_s <= status.updated - status.began);
    // Gone on with: the time between counts as lost.
    lab.run(&["train.steps=16"]).expect(0, &[]);
    let again = Status::read(&lab.path("runs/a")).unwrap();
    assert_eq!((again.began, again.step), (status.began, 16));
    assert!(again.useful_s > status.useful_s);
    let page = lab.gptrain(&["report", "runs/a"]);
    page.expect(0, &[]);
    assert!(fs::read_to_string(lab.path("runs/a/report.html")).unwrap().contains("goodput"));
    lab.gptrain(&["status", "runs/none"]).expect(2, &["runs/none/status.json", "no such file"]);
}
