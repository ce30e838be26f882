//! `gptrain diagnose --now`: asks the ranks of a running job for their state.

use super::{print_details, summarize};
use anyhow::bail;
use base::input::is_there;
use base::{Count, Problems, Seconds, shell_word, unix_time};
use comm::RankReport;
use launch::live::{self, Answers, LiveReport, RankPlace};
use std::path::Path;
use std::time::Duration;
use train::status::{RunState, Status};

/// Wait of a rank from which it is named, in seconds. Ranks look for a request once a second, so that
/// their reports differ by that time.
const LONG_WAIT: f64 = 3.0;

/// Ranks without an answer that are listed.
const LISTED: usize = 16;

/// Prints which ranks do not answer, which rank the longest wait is for, and the state of each; for the
/// ranks `details` also their threads, messages and operations.
pub fn diagnose(run: &Path, wait: Duration, details: &[usize]) -> anyhow::Result<()> {
    check_is_running(run)?;
    let answers = live::ask(run, wait)?;
    let answered = answers.ranks.iter().flatten().count();
    let shown = run.display();
    if answered == 0 {
        bail!("{shown}: {}", no_answer(run, &answers.places, wait));
    }
    let reports = reports(&answers);
    let ranks = Count(reports.len() as u64).with_noun("rank");
    base::say!("{ranks} of {shown}: {answered} answered");
    print_missing(&answers, &reports, wait);
    let threshold = LONG_WAIT.max(answers.spread() + 1.0);
    match comm::diagnose(&reports, threshold) {
        Some(line) => base::say!("longest wait: {line}"),
        None => base::say!("no rank that answered waits longer than {}", Seconds(threshold)),
    }
    base::say!("");
    for (report, answer) in reports.iter().zip(&answers.ranks) {
        match answer {
            Some(answer) => base::say!("{}", describe(answer)),
            None => base::say!("{}: no answer", report.name()),
        }
    }
    for rank in details {
        if let Some(answer) = answers.ranks.get(*rank).and_then(Option::as_ref) {
            print_details(&answer.report);
            base::say!("threads of process {}:", answer.process);
            for thread in &answer.threads {
                base::say!("{:>10}  {:<16}{thread}", thread.id, thread.name);
            }
        }
    }
    Ok(())
}

/// Fails for a folder without a run, or with one that has ended.
fn check_is_running(run: &Path) -> anyhow::Result<()> {
    is_there(run)?;
    let place = run.display().to_string();
    if !run.join("run.lock").exists() {
        return Err(Problems::one(
            place,
            "holds no run",
            "give the folder of a running job: log.folder of its manifest",
        )
        .into());
    }
    // Before its first step a run has no status.
    let Ok(status) = Status::read(run) else { return Ok(()) };
    match status.state(run, unix_time().as_secs_f64()) {
        RunState::Running | RunState::Silent => Ok(()),
        state => Err(Problems::one(
            &place,
            format!("the run is not running: {state}, {}", status.phase),
            format!("if it failed with several ranks: gptrain diagnose {}", shell_word(&place)),
        )
        .into()),
    }
}

/// Reports by rank, with a placeholder for each rank that did not answer.
fn reports(answers: &Answers) -> Vec<RankReport> {
    let report = |(rank, answer): (usize, &Option<LiveReport>)| match answer {
        Some(answer) => answer.report.clone(),
        None => {
            let place = answers.places.get(rank);
            RankReport {
                node: place.map_or(String::new(), |place| place.node.clone()),
                coord: place.map_or(String::new(), |place| place.coord.clone()),
                phase: "unknown, because it did not answer".into(),
                ..RankReport::unknown(rank)
            }
        }
    };
    answers.ranks.iter().enumerate().map(report).collect()
}

/// Names the ranks that did not answer, with their processes.
fn print_missing(answers: &Answers, reports: &[RankReport], wait: Duration) {
    let missing = |rank: &usize| answers.ranks[*rank].is_none();
    let missing: Vec<usize> = (0..answers.ranks.len()).filter(missing).collect();
    let within = Seconds(wait.as_secs_f64());
    for rank in missing.iter().take(LISTED) {
        let name = reports[*rank].name();
        let process = answers
            .places
            .get(*rank)
            .map_or(String::new(), |place| format!(", process {},", place.process));
        base::say!(
            "{name}{process} did not answer within {within}: its process is stopped or gone, or its machine \
             does not reach the folder"
        );
    }
    if missing.len() > LISTED {
        base::say!("{} more did not answer", missing.len() - LISTED);
    }
}

/// Message for a request that no rank answered.
fn no_answer(run: &Path, places: &[RankPlace], wait: Duration) -> String {
    let mut nodes: Vec<&str> = places.iter().map(|place| place.node.as_str()).collect();
    nodes.dedup();
    let on = match nodes.as_slice() {
        [] => String::new(),
        [node] => format!(" on {node}"),
        [first, .., last] => format!(" on {first} … {last}"),
    };
    let within = Seconds(wait.as_secs_f64());
    let run = shell_word(&run.to_string_lossy());
    format!(
        "no rank answered within {within}: the processes{on} are stopped or gone, or do not see the folder's \
         changes → look at them, or wait longer: gptrain diagnose --now --wait 120 {run}"
    )
}

/// State of a rank in one line: its phase, its operations, and its own thread if that says more.
fn describe(answer: &LiveReport) -> String {
    let report = &answer.report;
    let line = summarize(report);
    let name = format!("rank {}", report.rank);
    match answer.threads.iter().find(|thread| thread.name == name) {
        Some(thread) => format!("{line}; thread {thread}"),
        None => line,
    }
}
