//! Control connection of every rank except 0: sends heartbeats, receives the failure.

use super::super::{Failed, RankBusy};
use super::control::{self, ControlMessage, Peer};
use super::process::{ControlChannel, ProcessState, describe, start_thread};
use base::{Deadline, Moment};
use parking_lot::Mutex;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Time that a rank waits for the agreed failure after reporting one.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(4);

/// Minimum heartbeat period, plus a period per rank: at most 20 heartbeats per second from a rank
/// and 1,000 at rank 0. The last report of a dead rank may be this old.
const MIN_PERIOD: Duration = Duration::from_millis(50);
const PERIOD_PER_RANK: Duration = Duration::from_millis(1);

/// Poll interval, while waiting for an answer, for a failure of the run.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub struct HeartbeatClient {
    process: Arc<ProcessState>,
    writer: Mutex<TcpStream>,
    /// Address of rank 0.
    host: IpAddr,
    /// Answers of rank 0 to `AddressRequest`; locked by the requesting thread.
    answers: Mutex<Receiver<Vec<Peer>>>,
    answered: Sender<Vec<Peer>>,
    /// Time of the last message from rank 0; None after its goodbye.
    last_message: Mutex<Option<Moment>>,
}

/// Starts the threads of the connection. `host` is the address of rank 0.
pub fn start(
    process: Arc<ProcessState>,
    control: TcpStream,
    host: IpAddr,
) -> Result<Arc<HeartbeatClient>, Failed> {
    let rank = process.rank;
    let reader = control.try_clone().expect("a file descriptor");
    let _ = control.set_write_timeout(Some(process.watchdog.timeout));
    let last_message = Mutex::new(Some(Moment::now()));
    let (answered, answers) = channel();
    let client = Arc::new(HeartbeatClient {
        process,
        writer: Mutex::new(control),
        host,
        answers: Mutex::new(answers),
        answered,
        last_message,
    });
    let listener = client.clone();
    let sender = client.clone();
    start_thread(rank, "of rank 0", move || listener.listen(reader))?;
    start_thread(rank, "heartbeats", move || sender.send_heartbeats())?;
    Ok(client)
}

impl HeartbeatClient {
    fn listen(&self, mut from: TcpStream) {
        loop {
            match control::read(&mut from) {
                Ok(ControlMessage::Alive) => *self.last_message.lock() = Some(Moment::now()),
                Ok(ControlMessage::Addresses(peers)) => {
                    let _ = self.answered.send(peers);
                }
                Ok(ControlMessage::GroupFailed { line, print }) => {
                    self.process.fail(Failed { line, print });
                    return;
                }
                Ok(ControlMessage::Goodbye) => {
                    *self.last_message.lock() = None;
                    return;
                }
                Ok(other) => return self.fail_without_coordinator(format!("says {other:?}")),
                Err(_) if self.process.has_left() => return,
                Err(error) => {
                    return self.fail_without_coordinator(format!("died: {}", describe(&error)));
                }
            }
        }
    }

    /// Fails with a local diagnosis, because rank 0 is gone.
    fn fail_without_coordinator(&self, what: String) {
        let phase = self.process.recorder.phase();
        let rank = self.process.report(0).name();
        let line = format!("rank 0 {what}; {rank} was in: {phase}");
        self.process.fail(self.process.watchdog.claim(line));
    }

    fn send_heartbeats(&self) {
        let watchdog = &self.process.watchdog;
        let period = watchdog
            .period()
            .min(MIN_PERIOD.max(self.process.size as u32 * PERIOD_PER_RANK));
        loop {
            // The listener detects a broken connection.
            let _ = self.send(&ControlMessage::Heartbeat(Box::new(self.process.report(8))));
            if !self.process.sleep(period) {
                return;
            }
            let silent = self
                .last_message
                .lock()
                .map_or(Duration::ZERO, |time| time.waited());
            // Waits longer than rank 0, whose diagnosis includes all ranks.
            if silent > watchdog.timeout + 2 * watchdog.period() {
                let seconds = silent.as_secs_f64();
                self.fail_without_coordinator(format!(
                    "is silent for {seconds:.0} s: stopped, or cut off"
                ));
            }
        }
    }

    fn send(&self, message: &ControlMessage) -> std::io::Result<()> {
        control::write(&*self.writer.lock(), message)
    }
}

impl ControlChannel for HeartbeatClient {
    fn report_failure(&self, failed: Failed) -> Failed {
        let _ = self.send(&ControlMessage::RankFailed(failed.line.clone()));
        self.process
            .wait_for_failure(ANSWER_TIMEOUT)
            .unwrap_or_else(|| self.process.fail(failed))
    }

    fn busy(&self) -> Vec<RankBusy> {
        Vec::new()
    }

    fn find_addresses(&self, ranks: &[usize]) -> Result<Vec<SocketAddr>, Failed> {
        let answers = self.answers.lock();
        let _ = self.send(&ControlMessage::AddressRequest(ranks.to_vec()));
        let timeout = self.process.watchdog.timeout;
        let end = Deadline::after(timeout);
        while !end.has_passed() {
            if let Ok(peers) = answers.recv_timeout(POLL_INTERVAL) {
                return Ok(peers.iter().map(|peer| peer.address(self.host)).collect());
            }
            if let Some(failed) = self.process.failed() {
                return Err(failed);
            }
        }
        let me = self.process.rank;
        let seconds = timeout.as_secs_f64();
        let line = format!(
            "rank 0 did not send rank {me} the addresses of its peers within {seconds:.0} s"
        );
        Err(Failed::new(line))
    }

    fn leave(&self) {
        let _ = self.send(&ControlMessage::Goodbye);
        while self.last_message.lock().is_some() && self.process.sleep(Duration::from_millis(5)) {}
        self.process.leave();
        let _ = self.writer.lock().shutdown(Shutdown::Both);
    }
}
