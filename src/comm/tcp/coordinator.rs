//! Rank 0's side of the control connections: receives every rank's heartbeats, diagnoses hangs and
//! broadcasts the failure.

use super::super::{End, Failed, RankBusy, RankReport, diagnose};
use super::control::{self, ControlMessage, Peer};
use super::process::{ControlChannel, ProcessState, describe, start_thread};
use super::rendezvous::Arrived;
use base::Moment;
use parking_lot::Mutex;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// Delay before a rank's failure is broadcast, during which its root cause may arrive. When a rank
/// dies, the others may report their broken connections first.
const ROOT_CAUSE_DELAY: Duration = Duration::from_millis(500);

pub struct Coordinator {
    process: Arc<ProcessState>,
    /// Connection to each rank; None for rank 0. Its reader shares the stream, to save a file
    /// descriptor.
    writers: Vec<Option<Mutex<Arc<TcpStream>>>>,
    /// Address of each rank, without an IP if it is on rank 0's node, at `loopback`.
    peers: Vec<Peer>,
    loopback: IpAddr,
    state: Mutex<State>,
}

struct State {
    reports: Vec<RankReport>,
    /// Time of each rank's last message.
    last_messages: Vec<Moment>,
    /// First failure that a rank reported.
    reported: Option<(Moment, String)>,
}

/// Sends `Accepted` to all ranks and starts to receive their messages.
pub fn start(
    process: Arc<ProcessState>,
    loopback: IpAddr,
    all: Vec<Arrived>,
    peers: Vec<Peer>,
) -> Result<Arc<Coordinator>, Failed> {
    let reports = all
        .iter()
        .enumerate()
        .map(|(rank, one)| RankReport {
            node: one.request.node.clone(),
            ..RankReport::unknown(rank)
        })
        .collect();
    let last_messages = vec![Moment::now(); all.len()];
    let mut writers = Vec::new();
    let mut readers = Vec::new();
    for (rank, one) in all.into_iter().enumerate() {
        let Some(control) = one.control else {
            writers.push(None);
            continue;
        };
        let prepared = control.set_write_timeout(Some(Duration::from_secs(2)));
        prepared.map_err(|error| Failed::new(format!("rank {rank}: {error}")))?;
        let control = Arc::new(control);
        // Its reader detects a rank that is already gone.
        let _ = control::write(&*control, &ControlMessage::Accepted(peers.len()));
        readers.push((rank, control.clone()));
        writers.push(Some(Mutex::new(control)));
    }
    let state = Mutex::new(State { reports, last_messages, reported: None });
    let coordinator = Arc::new(Coordinator { process, writers, peers, loopback, state });
    for (rank, reader) in readers {
        let coordinator = coordinator.clone();
        start_thread(0, &format!("of rank {rank}"), move || coordinator.listen(rank, reader))?;
    }
    let monitor = coordinator.clone();
    start_thread(0, "monitor", move || monitor.monitor())?;
    Ok(coordinator)
}

impl Coordinator {
    fn listen(&self, rank: usize, from: Arc<TcpStream>) {
        loop {
            let message = control::read(&*from);
            if let Ok(ControlMessage::AddressRequest(ranks)) = &message {
                self.send_addresses(rank, ranks);
            }
            let mut state = self.state.lock();
            state.last_messages[rank] = Moment::now();
            let end = match message {
                Ok(ControlMessage::Heartbeat(report)) if report.rank == rank => {
                    state.reports[rank] = *report;
                    continue;
                }
                Ok(ControlMessage::AddressRequest(_)) => continue,
                Ok(ControlMessage::RankFailed(line)) => {
                    state.reported.get_or_insert((Moment::now(), line));
                    continue;
                }
                Ok(ControlMessage::Goodbye) => End::Left,
                Ok(other) => End::Died(format!("it says {other:?}")),
                Err(error) => End::Died(describe(&error)),
            };
            state.reports[rank].ended = Some(end);
            return;
        }
    }

    /// Sends the requested addresses. Unknown ranks are omitted.
    fn send_addresses(&self, rank: usize, requested: &[usize]) {
        let peers = requested
            .iter()
            .filter_map(|rank| self.peers.get(*rank).cloned())
            .collect();
        if let Some(writer) = &self.writers[rank] {
            let _ = control::write(&**writer.lock(), &ControlMessage::Addresses(peers));
        }
    }

    fn monitor(&self) {
        let period = self
            .process
            .watchdog
            .period()
            .min(Duration::from_millis(100));
        let mut last_alive = Moment::now();
        while self.process.sleep(period) {
            if let Some(line) = self.find_failure() {
                self.broadcast_failure(line);
                return;
            }
            if last_alive.elapsed() >= self.process.watchdog.period() {
                last_alive = Moment::now();
                self.broadcast(&ControlMessage::Alive);
            }
        }
    }

    /// Failure of a rank or a hang; None if there is none.
    fn find_failure(&self) -> Option<String> {
        let timeout = self.process.watchdog.timeout;
        let mut state = self.state.lock();
        state.reports[0] =
            RankReport { ended: state.reports[0].ended.take(), ..self.process.report(8) };
        let State { reports, last_messages, reported } = &mut *state;
        for (report, last_message) in reports.iter_mut().zip(last_messages).skip(1) {
            let age = last_message.waited();
            let silent = report.ended.is_none() && age > timeout;
            report.silent = silent.then_some(age.as_secs_f64());
        }
        let due = reported
            .as_ref()
            .filter(|(at, _)| at.waited() >= ROOT_CAUSE_DELAY);
        match due {
            Some((_, line))
                if !reports
                    .iter()
                    .any(|r| matches!(r.ended, Some(End::Died(_)))) =>
            {
                Some(line.clone())
            }
            _ => diagnose(reports, timeout.as_secs_f64()),
        }
    }

    fn broadcast_failure(&self, line: String) {
        let reports = self.state.lock().reports.clone();
        let dumped: Vec<RankReport> = reports
            .iter()
            .filter(|r| r.ended.is_some() || r.silent.is_some())
            .cloned()
            .collect();
        let failed = self.process.watchdog.claim(line.clone());
        self.process.watchdog.dump(&dumped);
        self.broadcast(&ControlMessage::GroupFailed { line, print: false });
        self.process.fail(failed);
    }

    fn has_every_rank_ended(&self) -> bool {
        let state = self.state.lock();
        state.reports.iter().all(|report| report.ended.is_some())
    }

    /// Sends to all ranks. Broken connections are detected by their readers.
    fn broadcast(&self, message: &ControlMessage) {
        for writer in self.writers.iter().flatten() {
            let _ = control::write(&**writer.lock(), message);
        }
    }
}

impl ControlChannel for Coordinator {
    fn report_failure(&self, failed: Failed) -> Failed {
        self.state
            .lock()
            .reported
            .get_or_insert((Moment::now(), failed.line.clone()));
        let agreed = self
            .process
            .wait_for_failure(ROOT_CAUSE_DELAY + Duration::from_secs(3));
        agreed.unwrap_or_else(|| self.process.fail(failed))
    }

    fn busy(&self) -> Vec<RankBusy> {
        let own = self.process.report(0);
        let state = self.state.lock();
        let others = state.reports.iter().skip(1);
        std::iter::once(&own)
            .chain(others)
            .map(RankBusy::from_report)
            .collect()
    }

    fn find_addresses(&self, ranks: &[usize]) -> Result<Vec<SocketAddr>, Failed> {
        Ok(ranks
            .iter()
            .map(|rank| self.peers[*rank].address(self.loopback))
            .collect())
    }

    fn leave(&self) {
        self.state.lock().reports[0].ended = Some(End::Left);
        while !self.has_every_rank_ended() && self.process.sleep(Duration::from_millis(5)) {}
        self.broadcast(&ControlMessage::Goodbye);
    }
}
