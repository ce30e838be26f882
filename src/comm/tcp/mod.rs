//! Ranks as processes, over TCP. Rank 0 listens at the rendezvous address (`rendezvous`). After all
//! ranks have joined, each keeps a control connection to rank 0 for heartbeats and failures
//! (`coordinator`, `heartbeat`). The ranks of a group connect to each other for data (`mesh`),
//! which tests can slow down (`testing`). Threads and blocking sockets, no async runtime.

mod address;
mod frames;
mod rendezvous;
mod handshake;
mod process;
mod coordinator;
mod heartbeat;
mod mesh;
mod control;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

#[cfg(test)]
mod tests;

use super::watchdog::Watchdog;
use super::{Failed, LauncherEnv, Recorder, World};
use address::Address;
use base::Deadline;
use control::{ControlMessage, JoinRequest, Peer};
use handshake::{AuthError, Key};
use mesh::Mesh;
use process::ProcessState;
use std::net::{IpAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Parameters for joining as a rank.
#[derive(Clone, Debug)]
pub struct Join {
    pub rank: usize,
    pub world: usize,
    /// Name of its node, for messages.
    pub node: String,
    /// Address at which rank 0 listens: "n01:23456".
    pub address: String,
    /// Unique name of this start of the job.
    pub job: String,
    /// Secret of this job's processes.
    pub secret: Vec<u8>,
    /// Hash of the program: see `hash_of_this_program`.
    pub binary: u64,
    /// Hash of the manifest and options: equal on all ranks.
    pub manifest: u64,
    /// Maximum time that the ranks wait for each other at the start.
    pub start_timeout: Duration,
    pub watchdog: Watchdog,
    /// Maximum bytes sent per second.
    #[cfg(any(test, feature = "testing"))]
    pub send_limit: Option<f64>,
}

impl Join {
    /// Parameters from the launcher's variables, this program, and a secret file in `folder`, which
    /// all ranks can read.
    pub fn from_launcher(
        launch: &LauncherEnv,
        folder: &Path,
        manifest: u64,
        watchdog: Watchdog,
    ) -> anyhow::Result<Join> {
        Ok(Join {
            rank: launch.rank,
            world: launch.world,
            node: launch.node.clone(),
            address: launch.address.clone(),
            job: launch.job.clone(),
            secret: secret(folder, &launch.job)?,
            binary: hash_of_this_program()?,
            manifest,
            start_timeout: Duration::from_secs(120),
            watchdog,
            #[cfg(any(test, feature = "testing"))]
            send_limit: testing::send_limit()?,
        })
    }
}

/// Joins the other ranks. A failure names the ranks that are missing, duplicated or different.
pub fn join(join: &Join) -> Result<World, Failed> {
    assert!(join.rank < join.world, "rank {} of {}", join.rank, join.world);
    let key = Key::new(&join.secret, &join.job);
    let recorder = Arc::new(Recorder::default());
    recorder.set_phase("connecting to the other ranks");
    let process = Arc::new(ProcessState::new(join, recorder));
    let Some(address) = Address::read(&join.address) else {
        return Err(failed_to_join(
            join,
            format!("cannot connect: {:?} is not host:port", join.address),
        ));
    };
    let data = listen_on(address.listening_ip())?;
    if join.rank == 0 {
        join_as_rank0(join, &address, data, &key, &process)
    } else {
        join_as_peer(join, &address, data, &key, &process)
    }
}

/// Joins as rank 0.
fn join_as_rank0(
    join: &Join,
    address: &Address,
    data: TcpListener,
    key: &Key,
    process: &Arc<ProcessState>,
) -> Result<World, Failed> {
    let arrived = rendezvous::gather_ranks(join, address, key, port(&data))?;
    let peers: Vec<Peer> = arrived.iter().map(|one| one.peer.clone()).collect();
    let coordinator = coordinator::start(process.clone(), address.loopback(), arrived, peers)?;
    Mesh::start(process.clone(), key.clone(), data, coordinator)
}

/// Joins as any other rank.
fn join_as_peer(
    join: &Join,
    address: &Address,
    data: TcpListener,
    key: &Key,
    process: &Arc<ProcessState>,
) -> Result<World, Failed> {
    let request = JoinRequest::new(join, join.rank, port(&data));
    let mut control = connect_to_rank0(join, address, key, &request)?;
    let lost = |error: std::io::Error| {
        let how = process::describe(&error);
        join.watchdog.claim(format!(
            "rank 0 at {} died: {how}; the ranks were still connecting",
            join.address
        ))
    };
    let host = control.peer_addr().map_err(lost)?.ip().to_canonical();
    let end = Deadline::after(join.start_timeout + Duration::from_secs(10));
    control
        .set_read_timeout(Some(Duration::from_secs(1)))
        .map_err(lost)?;
    // A stop of this process lets the limit of a read pass, but not that of the wait.
    while let Err(error) = control.peek(&mut [0]) {
        if !handshake::is_early(&error) || end.has_passed() {
            return Err(lost(error));
        }
    }
    match control::read(&mut control).map_err(lost)? {
        ControlMessage::Accepted(world) if world == join.world => {}
        ControlMessage::Rejected(line) => return Err(Failed::new(line)),
        ControlMessage::GroupFailed { line, print } => return Err(Failed { line, print }),
        other => return Err(failed_to_join(join, format!("rank 0 answers {other:?}"))),
    };
    control.set_read_timeout(None).map_err(lost)?;
    let client = heartbeat::start(process.clone(), control, host)?;
    Mesh::start(process.clone(), key.clone(), data, client)
}

/// Divisors of the start timeout: ranks log whom they wait for after that part of it. Of two
/// minutes: rank 0, which has the list of missing ranks, after 5 s, the others after 30 s.
const LOG_DIVISOR: u32 = 24;
const LOG_DIVISOR_OF_PEERS: u32 = 4;
/// Number of other ranks that log that rank 0 is missing.
const LOGGING_RANKS: usize = 4;

/// Retries until rank 0 answers and proves the job's key.
fn connect_to_rank0(
    join: &Join,
    address: &Address,
    key: &Key,
    request: &JoinRequest,
) -> Result<TcpStream, Failed> {
    let end = Deadline::after(join.start_timeout);
    let body = serde_json::to_vec(request).expect("plain data");
    let mut last_answer = None;
    let mut log_at = Some(Deadline::after(join.start_timeout / LOG_DIVISOR_OF_PEERS));
    loop {
        let why = match connect_authenticated(address, key, "join", &body) {
            Ok(stream) => return Ok(stream),
            // An earlier answer is more informative than the latest connection error.
            Err(error @ AuthError::Io(_)) => last_answer.take().unwrap_or(error),
            Err(answer) => answer,
        };
        if join.rank <= LOGGING_RANKS && log_at.is_some_and(|at| at.has_passed()) {
            log_at = None;
            tracing::info!("rank {} waits for rank 0 at {}: {why}", join.rank, join.address);
        }
        if end.has_passed() {
            let seconds = join.start_timeout.as_secs_f64();
            return Err(failed_to_join(
                join,
                format!(
                    "did not connect to rank 0 at {} within {seconds:.0} s: {why}",
                    join.address
                ),
            ));
        }
        last_answer = Some(why).filter(|why| !matches!(why, AuthError::Io(_)));
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn failed_to_join(join: &Join, what: String) -> Failed {
    let node = if join.node.is_empty() { String::new() } else { format!(" (node {})", join.node) };
    Failed::new(format!("rank {}{node} {what}", join.rank))
}

/// Connects to a rank. Both sides prove that they have the job's key.
fn connect_authenticated(
    address: impl ToSocketAddrs,
    key: &Key,
    purpose: &str,
    body: &[u8],
) -> Result<TcpStream, AuthError> {
    let mut stream = connect(address)?;
    handshake::authenticate(&mut stream, key, purpose, body)?;
    Ok(stream)
}

fn connect(address: impl ToSocketAddrs) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::other("the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, Duration::from_secs(2)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Listens for data connections of other ranks, on any free port.
fn listen_on(ip: IpAddr) -> Result<TcpListener, Failed> {
    TcpListener::bind((ip, 0))
        .map_err(|error| Failed::new(format!("no port to listen on at {ip}: {error}")))
}

fn port(listener: &TcpListener) -> u16 {
    listener.local_addr().expect("it is bound").port()
}

/// Hash of the running program, to detect a rank that runs another one.
pub fn hash_of_this_program() -> anyhow::Result<u64> {
    use anyhow::Context;
    let program = std::fs::read("/proc/self/exe").context("reading this program")?;
    Ok(xxhash_rust::xxh3::xxh3_64(&program))
}

/// Secret of the job, from a file that only its user can read. The first rank creates it. All ranks
/// can read `folder`.
pub fn secret(folder: &Path, job: &str) -> anyhow::Result<Vec<u8>> {
    use anyhow::Context;
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let path = secret_file(folder, job);
    let nonce = handshake::nonce().context("reading /dev/urandom")?;
    // The name is public, so it uses other random bits than the secret.
    let name = handshake::nonce().context("reading /dev/urandom")?;
    let new = path.with_extension(format!("{:016x}", u64::from_le_bytes(name[..8].try_into()?)));
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let written = options
        .open(&new)
        .and_then(|mut file| file.write_all(&nonce));
    written.with_context(|| format!("writing {}", new.display()))?;
    // Atomic, and never overwrites another rank's file.
    base::output::claim(&new, &path)?;
    std::fs::read(&path).with_context(|| format!("reading {}", path.display()))
}

/// Removes the secret after all ranks have joined.
pub fn forget_secret(folder: &Path, job: &str) {
    // Harmless if it remains, since no listener accepts it any more.
    let _ = std::fs::remove_file(secret_file(folder, job));
}

fn secret_file(folder: &Path, job: &str) -> PathBuf {
    folder.join(format!(".ranks-{:016x}", xxhash_rust::xxh3::xxh3_64(job.as_bytes())))
}
