//! Ranks as processes, over TCP. Rank 0 listens where all can find it (`gate`); once all are there,
//! each keeps a connection to it for heartbeats and the verdict (`hub`, `member`), and the ranks of
//! a group connect to each other for data (`mesh`). Threads and blocking sockets, no runtime.

mod frames;
mod gate;
mod hello;
mod here;
mod hub;
mod member;
mod mesh;
mod notes;

#[cfg(test)]
mod tests;

use super::watch::Watch;
use super::{Failed, Launch, Recorder, World};
use hello::{Distrust, Key};
use here::Here;
use mesh::Mesh;
use notes::{Hello, Note, Peer};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How a process becomes a rank.
#[derive(Clone, Debug)]
pub struct Join {
    pub rank: usize,
    pub world: usize,
    /// Name of its machine, for messages.
    pub node: String,
    /// Where rank 0 listens: "n01:23456".
    pub address: String,
    /// What no other job and no other start of this one is called.
    pub job: String,
    /// What only this job's processes know.
    pub secret: Vec<u8>,
    /// Hash of the program: see `hash_of_this_program`.
    pub binary: u64,
    /// Hash of what the ranks are to do.
    pub manifest: u64,
    /// How long ranks wait for each other at the start.
    pub patience: Duration,
    pub watch: Watch,
}

impl Join {
    /// What a launcher told, this program, and a secret in `folder`, which all ranks see.
    pub fn launched(
        launch: &Launch,
        folder: &Path,
        manifest: u64,
        watch: Watch,
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
            patience: Duration::from_secs(120),
            watch,
        })
    }
}

/// Meets the others. Fails with a line that names who is missing, came twice, or differs.
pub fn join(join: &Join) -> Result<World, Failed> {
    assert!(join.rank < join.world, "rank {} of {}", join.rank, join.world);
    let key = Key::new(&join.secret, &join.job);
    let recorder = Arc::new(Recorder::default());
    recorder.doing("meeting the other ranks");
    let here = Arc::new(Here::new(join, recorder));
    if join.rank == 0 { open(join, &key, &here) } else { enter(join, &key, &here) }
}

/// Rank 0.
fn open(join: &Join, key: &Key, here: &Arc<Here>) -> Result<World, Failed> {
    let data = listener(loopback(&join.address))?;
    let arrived = gate::gather(join, key, port(&data))?;
    let peers: Vec<Peer> = arrived.iter().map(|one| one.peer.clone()).collect();
    let hub = hub::start(here.clone(), arrived, &peers)?;
    let addresses = peers.iter().map(|p| (p.ip.unwrap_or(LOOPBACK), p.port).into()).collect();
    Ok(Mesh::world(here.clone(), key.clone(), data, addresses, hub))
}

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Any other rank.
fn enter(join: &Join, key: &Key, here: &Arc<Here>) -> Result<World, Failed> {
    let data = listener(loopback(&join.address))?;
    let hello = Hello {
        rank: join.rank,
        world: join.world,
        node: join.node.clone(),
        port: port(&data),
        binary: join.binary,
        manifest: join.manifest,
    };
    let mut control = knock(join, key, &hello)?;
    let lost = |error: std::io::Error| {
        let how = here::describe(&error);
        join.watch.claim(format!("rank 0 at {} died: {how}; the ranks were meeting", join.address))
    };
    let host = control.peer_addr().map_err(lost)?.ip();
    let wait = join.patience + Duration::from_secs(10);
    control.set_read_timeout(Some(wait)).map_err(lost)?;
    let peers = match notes::read(&mut control).map_err(lost)? {
        Note::Admitted(peers) if peers.len() == join.world => peers,
        Note::Refused(line) => return Err(Failed::new(line)),
        Note::Verdict { line, speak } => return Err(Failed { line, speak }),
        other => return Err(failed(join, format!("rank 0 answers {other:?}"))),
    };
    control.set_read_timeout(None).map_err(lost)?;
    let addresses = peers.iter().map(|p| (p.ip.unwrap_or(host), p.port).into()).collect();
    let member = member::start(here.clone(), control);
    Ok(Mesh::world(here.clone(), key.clone(), data, addresses, member))
}

/// Until rank 0 is there and is ours.
fn knock(join: &Join, key: &Key, hello: &Hello) -> Result<TcpStream, Failed> {
    let end = Instant::now() + join.patience;
    let body = serde_json::to_vec(hello).expect("plain data");
    loop {
        let tried = connect(&join.address).map_err(Distrust::Broken).and_then(|mut stream| {
            hello::introduce(&mut stream, key, "join", &body).map(|()| stream)
        });
        let why = match tried {
            Ok(stream) => return Ok(stream),
            Err(why) => why,
        };
        if Instant::now() > end {
            let seconds = join.patience.as_secs_f64();
            let what = format!("did not find rank 0 at {} in {seconds:.0} s: {why}", join.address);
            return Err(failed(join, what));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn failed(join: &Join, what: String) -> Failed {
    let node = if join.node.is_empty() { String::new() } else { format!(" (node {})", join.node) };
    Failed::new(format!("rank {}{node} {what}", join.rank))
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

/// Whether an address is this machine's own only.
fn loopback(address: &str) -> bool {
    ["127.", "localhost:", "[::1]:"].iter().any(|start| address.starts_with(start))
}

/// Where other ranks bring data: any free port.
fn listener(only_here: bool) -> Result<TcpListener, Failed> {
    let ip = if only_here { LOOPBACK } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
    TcpListener::bind((ip, 0))
        .map_err(|error| Failed::new(format!("no port to listen on at {ip}: {error}")))
}

fn port(listener: &TcpListener) -> u16 {
    listener.local_addr().expect("it is bound").port()
}

/// A hash of the program that runs, to find a rank that runs another.
pub fn hash_of_this_program() -> anyhow::Result<u64> {
    use anyhow::Context;
    let program = std::fs::read("/proc/self/exe").context("reading this program")?;
    Ok(xxhash_rust::xxh3::xxh3_64(&program))
}

/// The job's secret, from a file that only its user can read: the first rank to ask makes it.
/// `folder` is one that all ranks see.
pub fn secret(folder: &Path, job: &str) -> anyhow::Result<Vec<u8>> {
    use anyhow::Context;
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let path = secret_file(folder, job);
    let nonce = hello::nonce().context("reading /dev/urandom")?;
    let new = path.with_extension(format!("{:016x}", u64::from_le_bytes(nonce[..8].try_into()?)));
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let written = options.open(&new).and_then(|mut file| file.write_all(&nonce));
    written.with_context(|| format!("writing {}", new.display()))?;
    // Whole from the start, and never over another's.
    let linked = std::fs::hard_link(&new, &path);
    std::fs::remove_file(&new).with_context(|| format!("removing {}", new.display()))?;
    match linked {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("linking {}", path.display()))
        }
        _ => std::fs::read(&path).with_context(|| format!("reading {}", path.display())),
    }
}

/// Once all ranks have met, nobody else is to know the secret.
pub fn forget_secret(folder: &Path, job: &str) {
    let _ = std::fs::remove_file(secret_file(folder, job)); // or it stays: it opens nothing any more
}

fn secret_file(folder: &Path, job: &str) -> PathBuf {
    folder.join(format!(".ranks-{:016x}", xxhash_rust::xxh3::xxh3_64(job.as_bytes())))
}
