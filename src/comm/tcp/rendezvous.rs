//! Rendezvous server on rank 0: accepts the job's ranks until all have joined. An unauthenticated
//! peer costs one thread for up to five seconds; their number is limited, and they are counted.

use super::super::Failed;
use super::address::Address;
use super::control::{self, ControlMessage, JoinRequest, Peer};
use super::handshake::{self, Handshakes, Key};
use super::process::start_thread;
use super::{Join, LOG_DIVISOR, failed_to_join};
use base::Deadline;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Rank that has joined. Rank 0 itself has no connection.
pub struct Arrived {
    pub request: JoinRequest,
    pub peer: Peer,
    pub control: Option<TcpStream>,
}

/// Gathers all ranks of the world, in order.
pub fn gather_ranks(
    join: &Join,
    address: &Address,
    key: &Key,
    data_port: u16,
) -> Result<Vec<Arrived>, Failed> {
    let listener = bind(join, address)?;
    let (joined, arrivals) = channel();
    let key = key.clone();
    let world = join.world;
    let report_joined = move |body: Vec<u8>, stream: TcpStream| {
        if let Ok(request) = serde_json::from_slice(&body)
            && let Ok(address) = stream.peer_addr()
        {
            let _ = joined.send((request, address.ip().to_canonical(), stream));
        }
    };
    let handshakes = Arc::new(Handshakes::default());
    let all = handshakes.clone();
    start_thread(0, "rendezvous", move || {
        handshake::accept_all(&listener, &key, "join", world, &all, || false, report_joined)
    })?;
    let mut present = BTreeMap::new();
    let request = JoinRequest::new(join, 0, data_port);
    let peer = Peer { ip: None, port: data_port };
    present.insert(0, Arrived { request, peer, control: None });
    let duplicates = wait_for_ranks(join, &arrivals, &mut present);
    let unauthenticated = handshakes.unauthenticated_connections();
    let missing = describe_missing(join, &present, &duplicates, unauthenticated);
    let problem = missing.or_else(|| describe_mismatch(&present));
    start_thread(0, "late", move || reject_late(&arrivals))?;
    match problem {
        None => Ok(present.into_values().collect()),
        Some(line) => {
            for one in present.into_values() {
                let message = ControlMessage::GroupFailed { line: line.clone(), print: false };
                if let Some(mut control) = one.control {
                    let _ = control::write(&mut control, &message);
                }
            }
            Err(Failed::new(line))
        }
    }
}

/// Binds to the address's port.
fn bind(join: &Join, address: &Address) -> Result<TcpListener, Failed> {
    let ip = address.listening_ip();
    let port = address.port;
    let end = Deadline::after(Duration::from_secs(2));
    loop {
        match TcpListener::bind(SocketAddr::new(ip, port)) {
            Ok(listener) => return Ok(listener),
            Err(_) if !end.has_passed() => std::thread::sleep(Duration::from_millis(100)),
            Err(error) => {
                let remedy = "another job or program has it; set GPTRAIN_RENDEZVOUS=host:port";
                return Err(failed_to_join(
                    join,
                    format!("cannot listen on port {port}: {error} ({remedy})"),
                ));
            }
        }
    }
}

type Joined = (JoinRequest, IpAddr, TcpStream);

/// Waits for all ranks. Returns the ranks that connected more than once.
fn wait_for_ranks(
    join: &Join,
    arrivals: &Receiver<Joined>,
    present: &mut BTreeMap<usize, Arrived>,
) -> Vec<usize> {
    let end = Deadline::after(join.start_timeout);
    let mut duplicates = Vec::new();
    let mut log_at = Some(Deadline::after(join.start_timeout / LOG_DIVISOR));
    while present.len() < join.world {
        let arrived = log_at.unwrap_or(end).receive(arrivals);
        let Ok((request, ip, control)) = arrived else {
            if log_at.take().is_none() {
                break;
            }
            tracing::info!(
                "waiting for {} at {}",
                ranks(&absent_ranks(join, present)),
                join.address
            );
            continue;
        };
        let rank = request.rank;
        let world = join.world;
        if rank >= world {
            reject(control, &format!("rank {rank} does not exist in a world of {world} ranks"));
        } else if let Entry::Vacant(place) = present.entry(rank) {
            let peer = Peer { ip: Some(ip).filter(|ip| !ip.is_loopback()), port: request.port };
            place.insert(Arrived { request, peer, control: Some(control) });
        } else {
            duplicates.push(rank);
            reject(
                control,
                &format!("rank {rank} has already connected: two processes have this rank"),
            );
        }
    }
    duplicates
}

/// Rejects ranks that connect after all have joined.
fn reject_late(arrivals: &Receiver<Joined>) {
    for (request, _, control) in arrivals {
        reject(
            control,
            &format!("rank {} connected too late: all ranks had already joined", request.rank),
        );
    }
}

fn reject(mut control: TcpStream, why: &str) {
    let _ = control.set_write_timeout(Some(Duration::from_secs(1)));
    let _ = control::write(&mut control, &ControlMessage::Rejected(why.to_string()));
}

fn absent_ranks(join: &Join, present: &BTreeMap<usize, Arrived>) -> Vec<usize> {
    (0..join.world)
        .filter(|rank| !present.contains_key(rank))
        .collect()
}

/// For example "ranks 3, 5 did not connect to the rendezvous at n01:29500 within 60 s; 2 of 4 ranks
/// did; rank 2 connected twice; 12 connections failed the authentication".
fn describe_missing(
    join: &Join,
    present: &BTreeMap<usize, Arrived>,
    duplicates: &[usize],
    unauthenticated: u64,
) -> Option<String> {
    let absent = absent_ranks(join, present);
    if absent.is_empty() {
        return None;
    }
    let seconds = join.start_timeout.as_secs_f64();
    let address = &join.address;
    let mut line = format!(
        "{} did not connect to the rendezvous at {address} within {seconds:.0} s",
        ranks(&absent)
    );
    line += &format!("; {} of {} ranks did", present.len(), join.world);
    if !duplicates.is_empty() {
        line += &format!("; {} connected twice", ranks(duplicates));
    }
    if unauthenticated > 0 {
        let noun = if unauthenticated == 1 { "connection" } else { "connections" };
        line += &format!("; {unauthenticated} {noun} failed the authentication");
    }
    Some(line)
}

fn ranks(list: &[usize]) -> String {
    let shown: Vec<String> = list.iter().take(8).map(usize::to_string).collect();
    let more = if list.len() > 8 { format!(" and {} more", list.len() - 8) } else { String::new() };
    format!("rank{} {}{more}", if list.len() == 1 { "" } else { "s" }, shown.join(", "))
}

/// Describes the ranks that differ from the majority.
fn describe_mismatch(present: &BTreeMap<usize, Arrived>) -> Option<String> {
    let requests: Vec<&JoinRequest> = present.values().map(|one| &one.request).collect();
    outliers(&requests, "runs another program", |request| request.binary)
        .or_else(|| outliers(&requests, "has another manifest", |request| request.manifest))
        .or_else(|| {
            outliers(&requests, "has another number of ranks", |request| request.world as u64)
        })
}

/// Describes the ranks whose value differs from the majority's; without a majority, from rank 0's.
fn outliers(
    requests: &[&JoinRequest],
    what: &str,
    value: impl Fn(&JoinRequest) -> u64,
) -> Option<String> {
    let values: Vec<u64> = requests.iter().map(|request| value(request)).collect();
    let majority = base::majority(&values)?;
    let others = values.iter().filter(|value| **value == majority).count();
    let outliers: Vec<&&JoinRequest> = requests
        .iter()
        .filter(|request| value(request) != majority)
        .collect();
    let first = outliers.first()?;
    let list: Vec<usize> = outliers.iter().map(|request| request.rank).collect();
    let node = if first.node.is_empty() || list.len() > 1 {
        String::new()
    } else {
        format!(" (node {})", first.node)
    };
    let its = value(first);
    let line = format!("{}{node} {what} than the other {others}", ranks(&list));
    Some(format!("{line}: {its:016x}, not {majority:016x}"))
}
