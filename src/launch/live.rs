//! Live reports: ranks write their state while they run, when a file of the run's folder asks for it. It
//! needs no signal, no connection and no root, and works on any machine that reaches the folder. A rank
//! whose process is stopped does not answer, and is known by that.
//!
//! The folder `live` of a run holds `request`, with the number of the last request; `ranks.json`, with the
//! place of each rank; and `rank-00037.json`, its last answer. `request` exists from the start of a run: a
//! file server may tell its clients of a new file up to a minute late, but of a change at once.

use anyhow::{Context, Result};
use base::output::{self, Existing};
use base::{Deadline, ThreadState, input, thread_states, unix_time};
use comm::{RankReport, Recorder};
use rustix::fs::OFlags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Folder in a run's folder.
pub const FOLDER: &str = "live";

const REQUEST: &str = "request";
const RANKS: &str = "ranks.json";

/// Interval between two looks at the request.
const POLL: Duration = Duration::from_secs(1);

/// Interval in which the shares of the threads are measured.
const MEASURED: Duration = Duration::from_millis(200);

/// Interval between two looks at the answers, and between two requests while ranks do not answer, so that
/// the answers of the others show how long they wait.
const LOOK: Duration = Duration::from_millis(100);
const AGAIN: Duration = Duration::from_secs(4);

/// Operations of a rank in its answer.
const EVENTS: usize = 64;

/// Place of a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankPlace {
    pub node: String,
    /// Grid coordinates, "TP1 PP3 DP0".
    pub coord: String,
    pub process: u32,
}

/// Answer of a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LiveReport {
    /// Number of the request that it answers.
    pub request: u64,
    /// Seconds since 1970.
    pub at: f64,
    pub process: u32,
    pub report: RankReport,
    /// Threads of its process.
    pub threads: Vec<ThreadState>,
}

/// Thread that answers for the ranks of this process until it is dropped.
pub struct Responder {
    _end: Sender<()>,
}

impl Responder {
    /// Answers requests in the run's folder `run`. `ranks` are those of this process, on this node.
    pub fn start(run: &Path, node: &str, ranks: Vec<(usize, Arc<Recorder>)>) -> Result<Responder> {
        let (end, ended) = channel();
        let folder = run.join(FOLDER);
        let node = node.to_string();
        let answer = move || answer_requests(&folder, &node, &ranks, &ended);
        base::threads::spawn("live reports", answer)?;
        Ok(Responder { _end: end })
    }
}

fn answer_requests(
    folder: &Path,
    node: &str,
    ranks: &[(usize, Arc<Recorder>)],
    ended: &Receiver<()>,
) {
    let mut answered = last_request(folder);
    while ended.recv_timeout(POLL) == Err(RecvTimeoutError::Timeout) {
        let request = last_request(folder);
        if request == answered {
            continue;
        }
        let threads = thread_states(MEASURED);
        let process = std::process::id();
        for (rank, recorder) in ranks {
            let answer = LiveReport {
                request,
                at: unix_time().as_secs_f64(),
                process,
                report: recorder.report(*rank, node, EVENTS),
                threads: threads.clone(),
            };
            if let Err(error) = write_json(&folder.join(file_name(*rank)), &answer) {
                tracing::warn!("no live report of rank {rank}: {error:#}");
            }
        }
        answered = request;
    }
}

fn file_name(rank: usize) -> String {
    format!("rank-{rank:05}.json")
}

/// Number of the last request; 0 if there is none. Being written, it has none for a moment.
fn last_request(folder: &Path) -> u64 {
    let text = input::read(&folder.join(REQUEST), input::SMALL).unwrap_or_default();
    let number = std::str::from_utf8(&text)
        .ok()
        .and_then(|text| text.strip_suffix('\n')?.parse().ok());
    number.unwrap_or(0)
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let folder = path.parent().expect("a file of a folder");
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    output::write(path, Existing::Replaced, &serde_json::to_vec(value)?)
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&input::read(path, input::SMALL).ok()?).ok()
}

/// Writes the places of a run's ranks, by rank, and the file of requests. Called by rank 0.
pub fn announce(run: &Path, places: &[RankPlace]) -> Result<()> {
    let folder = run.join(FOLDER);
    write_json(&folder.join(RANKS), &places)?;
    open_request(&folder).map(drop)
}

fn open_request(folder: &Path) -> Result<fs::File> {
    let path = folder.join(REQUEST);
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(false);
    // Does not follow a link, which may lead to a valuable file, nor wait for a pipe.
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    fs::create_dir_all(folder)
        .and_then(|()| options.open(&path))
        .with_context(|| {
            let path = path.display();
            format!("cannot write {path}, by which ranks are asked: ask as the run's user or group")
        })
}

/// Answers to a request.
pub struct Answers {
    /// By rank; None for a rank that did not answer.
    pub ranks: Vec<Option<LiveReport>>,
    /// By rank; empty if the run has not announced them yet.
    pub places: Vec<RankPlace>,
}

impl Answers {
    /// Seconds between the first answer and the last.
    pub fn spread(&self) -> f64 {
        let times = || self.ranks.iter().flatten().map(|answer| answer.at);
        let last = times().fold(f64::NEG_INFINITY, f64::max);
        (last - times().fold(f64::INFINITY, f64::min)).max(0.0)
    }
}

/// Asks the ranks of a run for their state. Returns once all have answered, or after `wait`.
pub fn ask(run: &Path, wait: Duration) -> Result<Answers> {
    let folder = run.join(FOLDER);
    let first = next_request(&folder)?;
    let end = Deadline::after(wait);
    let mut again = Deadline::after(AGAIN);
    loop {
        std::thread::sleep(LOOK);
        let answers = read_answers(&folder, first)?;
        let all = !answers.places.is_empty() && answers.ranks.iter().all(Option::is_some);
        if all || end.has_passed() {
            return Ok(answers);
        }
        if again.has_passed() && end.left() > 2 * POLL {
            next_request(&folder)?;
            again = Deadline::after(AGAIN);
        }
    }
}

/// Writes a new request; its number.
fn next_request(folder: &Path) -> Result<u64> {
    let number = (unix_time().as_nanos() as u64).max(last_request(folder) + 1);
    let mut file = open_request(folder)?;
    file.set_len(0)
        .and_then(|()| file.write_all(format!("{number}\n").as_bytes()))
        .with_context(|| format!("cannot write {}", folder.join(REQUEST).display()))?;
    Ok(number)
}

/// Answers to the request `first` or a later one.
fn read_answers(folder: &Path, first: u64) -> Result<Answers> {
    let places: Vec<RankPlace> = read_json(&folder.join(RANKS)).unwrap_or_default();
    let mut found = BTreeMap::new();
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Some(rank) = name
            .strip_prefix("rank-")
            .and_then(|name| name.strip_suffix(".json")?.parse::<usize>().ok())
        else {
            continue;
        };
        // A file of an earlier start, which had more ranks, answers an earlier request.
        let answer: Option<LiveReport> = read_json(&path);
        if let Some(answer) = answer.filter(|answer| answer.request >= first) {
            found.insert(rank, answer);
        }
    }
    let answered = found.keys().last().map_or(0, |rank| rank + 1);
    let ranks = (0..places.len().max(answered)).map(|rank| found.remove(&rank));
    Ok(Answers { ranks: ranks.collect(), places })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorders(ranks: std::ops::Range<usize>) -> Vec<(usize, Arc<Recorder>)> {
        ranks
            .map(|rank| {
                let recorder = Arc::new(Recorder::default());
                recorder.set_phase(&format!("phase of {rank}"));
                (rank, recorder)
            })
            .collect()
    }

    fn places(ranks: usize) -> Vec<RankPlace> {
        let place = |rank| RankPlace {
            node: format!("n{rank}"),
            coord: format!("DP{rank}"),
            process: 40 + rank as u32,
        };
        (0..ranks).map(place).collect()
    }

    /// Two processes of two ranks. The wait is longer than any machine needs; it ends with the answers.
    #[test]
    fn all_ranks_of_all_processes_answer_with_their_phase_and_threads() {
        let run = tempfile::tempdir().unwrap();
        announce(run.path(), &places(4)).unwrap();
        let responders = [("n0", 0..2), ("n1", 2..4)]
            .map(|(node, ranks)| Responder::start(run.path(), node, recorders(ranks)).unwrap());
        let ask = || super::ask(run.path(), Duration::from_secs(3600)).unwrap();
        let answers = ask();
        assert_eq!(answers.places, places(4));
        for (rank, answer) in answers.ranks.iter().enumerate() {
            let answer = answer.as_ref().unwrap();
            assert_eq!(answer.report.phase, format!("phase of {rank}"));
            assert_eq!(answer.report.node, format!("n{}", rank / 2));
            let mut names = answer.threads.iter().map(|thread| thread.name.as_str());
            assert!(names.any(|name| name == "live reports"), "{:?}", answer.threads);
        }
        // A second request has new answers.
        let numbers = |answers: &Answers| -> Vec<u64> {
            answers.ranks.iter().flatten().map(|a| a.request).collect()
        };
        assert!(numbers(&ask())[0] > *numbers(&answers).iter().max().unwrap());
        drop(responders);
    }

    #[test]
    fn a_rank_that_does_not_answer_is_missing_and_an_earlier_answer_does_not_count() {
        let run = tempfile::tempdir().unwrap();
        announce(run.path(), &places(3)).unwrap();
        let old = LiveReport {
            request: 7,
            at: 0.0,
            process: 1,
            report: RankReport::unknown(1),
            threads: Vec::new(),
        };
        write_json(&run.path().join(FOLDER).join(file_name(1)), &old).unwrap();
        let responder = Responder::start(run.path(), "n", recorders(0..1)).unwrap();
        // Until rank 0 has answered, however busy the machine is.
        let answered = (0..).find_map(|tried| {
            let wait = Duration::from_secs(2 + tried);
            let answers = ask(run.path(), wait).unwrap();
            answers.ranks[0].is_some().then_some(answers)
        });
        let answers = answered.unwrap();
        assert!(answers.ranks[1].is_none() && answers.ranks[2].is_none());
        assert_eq!((answers.ranks.len(), answers.spread()), (3, 0.0));
        drop(responder);
    }

    #[test]
    fn a_request_that_cannot_be_written_is_an_error_with_its_path() {
        let run = tempfile::tempdir().unwrap();
        fs::write(run.path().join(FOLDER), "a file").unwrap();
        let error = ask(run.path(), Duration::ZERO).err().unwrap();
        assert!(
            format!("{error:#}").contains("live/request, by which ranks are asked"),
            "{error:#}"
        );
    }
}
