//! Rank 0's side of the control connections: hears every rank, finds the verdict, tells it.

use super::super::{End, Failed, RankReport, verdict};
use super::gate::Arrived;
use super::here::{Control, Here, describe};
use super::notes::{self, Note, Peer};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A failure that a rank reports is told after this long: its cause may be on its way, as when a
/// rank dies and others first notice that their connection to it broke.
const SECOND_THOUGHTS: Duration = Duration::from_millis(500);

pub struct Hub {
    here: Arc<Here>,
    /// To each rank but 0, which has none.
    writers: Vec<Option<Mutex<TcpStream>>>,
    state: Mutex<State>,
}

struct State {
    reports: Vec<RankReport>,
    heard: Vec<Instant>,
    /// The first failure a rank reported.
    reported: Option<(Instant, String)>,
}

/// Tells all that all are there, and listens to them from now on.
pub fn start(here: Arc<Here>, all: Vec<Arrived>, peers: &[Peer]) -> Result<Arc<Hub>, Failed> {
    let unknown = |(rank, one): (usize, &Arrived)| RankReport {
        node: one.hello.node.clone(),
        ..RankReport::unknown(rank)
    };
    let reports = all.iter().enumerate().map(unknown).collect();
    let heard = vec![Instant::now(); all.len()];
    let (mut writers, mut readers) = (Vec::new(), Vec::new());
    for (rank, one) in all.into_iter().enumerate() {
        let Some(mut control) = one.control else {
            writers.push(None);
            continue;
        };
        let prepared = control.set_write_timeout(Some(Duration::from_secs(2)));
        let clone = prepared.and_then(|()| control.try_clone());
        let clone = clone.map_err(|error| Failed::new(format!("rank {rank}: {error}")))?;
        // A rank that is gone already is noticed by its reader.
        let _ = notes::write(&mut control, &Note::Admitted(peers.to_vec()));
        readers.push((rank, clone));
        writers.push(Some(Mutex::new(control)));
    }
    let state = Mutex::new(State { reports, heard, reported: None });
    let hub = Arc::new(Hub { here, writers, state });
    for (rank, reader) in readers {
        let hub = hub.clone();
        std::thread::spawn(move || hub.listen(rank, reader));
    }
    let watcher = hub.clone();
    std::thread::spawn(move || watcher.watch());
    Ok(hub)
}

impl Hub {
    fn listen(&self, rank: usize, mut from: TcpStream) {
        loop {
            let note = notes::read(&mut from);
            let mut state = self.lock();
            state.heard[rank] = Instant::now();
            match note {
                Ok(Note::Beat(report)) if report.rank == rank => state.reports[rank] = *report,
                Ok(Note::Failure(line)) => {
                    state.reported.get_or_insert((Instant::now(), line));
                }
                Ok(Note::Goodbye) => {
                    state.reports[rank].ended = Some(End::Left);
                    return;
                }
                Ok(other) => {
                    state.reports[rank].ended = Some(End::Died(format!("it says {other:?}")));
                    return;
                }
                Err(error) => {
                    state.reports[rank].ended = Some(End::Died(describe(&error)));
                    return;
                }
            }
        }
    }

    fn watch(&self) {
        let period = self.here.watch.period().min(Duration::from_millis(100));
        let mut pulsed = Instant::now();
        while self.here.sleep(period) {
            if let Some(line) = self.find() {
                self.tell(line);
                return;
            }
            if pulsed.elapsed() >= self.here.watch.period() {
                pulsed = Instant::now();
                self.say(&Note::Pulse);
            }
        }
    }

    /// What is wrong, if anything is.
    fn find(&self) -> Option<String> {
        let timeout = self.here.watch.timeout;
        let mut state = self.lock();
        state.reports[0] =
            RankReport { ended: state.reports[0].ended.take(), ..self.here.report(8) };
        let State { reports, heard, reported } = &mut *state;
        for (report, heard) in reports.iter_mut().zip(heard).skip(1) {
            let age = heard.elapsed();
            let silent = report.ended.is_none() && age > timeout;
            report.silent = silent.then_some(age.as_secs_f64());
        }
        let due = reported.as_ref().filter(|(at, _)| at.elapsed() >= SECOND_THOUGHTS);
        let died = |r: &RankReport| matches!(r.ended, Some(End::Died(_)));
        match due {
            Some((_, line)) if !reports.iter().any(died) => Some(line.clone()),
            _ => verdict(reports, timeout.as_secs_f64()),
        }
    }

    fn tell(&self, line: String) {
        let reports = self.lock().reports.clone();
        let cannot_itself = |r: &&RankReport| r.ended.is_some() || r.silent.is_some();
        let dumped: Vec<RankReport> = reports.iter().filter(cannot_itself).cloned().collect();
        let failed = self.here.watch.claim(line.clone());
        self.here.watch.dump(&dumped);
        self.say(&Note::Verdict { line, speak: false });
        self.here.agree(failed);
    }

    /// To all; those who cannot be told are found out otherwise.
    fn say(&self, note: &Note) {
        for writer in self.writers.iter().flatten() {
            let mut writer = writer.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let _ = notes::write(&mut writer, note);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Control for Hub {
    fn failure(&self, failed: Failed) -> Failed {
        self.lock().reported.get_or_insert((Instant::now(), failed.line.clone()));
        let told = self.here.wait_agreed(SECOND_THOUGHTS + Duration::from_secs(3));
        told.unwrap_or_else(|| self.here.agree(failed))
    }

    fn leave(&self) {
        self.lock().reports[0].ended = Some(End::Left);
        let all_left = || self.lock().reports.iter().all(|report| report.ended.is_some());
        while !all_left() && self.here.sleep(Duration::from_millis(5)) {}
        self.say(&Note::Goodbye);
    }
}
