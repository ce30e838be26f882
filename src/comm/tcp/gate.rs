//! Where the ranks of a job meet: rank 0 lets in whom it knows, until all are there; afterwards it
//! says that they are. Strangers cost a thread for five seconds each, and at most so many at once.

use super::super::Failed;
use super::hello::{self, Key};
use super::notes::{self, Hello, Note, Peer};
use super::{Join, LOOPBACK, failed, loopback};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Handshakes at once beyond one for each rank.
const STRANGERS: usize = 64;

/// A rank that is there. Rank 0 itself has no connection.
pub struct Arrived {
    pub hello: Hello,
    pub peer: Peer,
    pub control: Option<TcpStream>,
}

/// All ranks of the world, in order.
pub fn gather(join: &Join, key: &Key, data_port: u16) -> Result<Vec<Arrived>, Failed> {
    let listener = bind(join)?;
    let (came, arrivals) = channel();
    let (key, most) = (key.clone(), STRANGERS + join.world);
    std::thread::spawn(move || admit(&listener, &key, most, &came));
    let mut present = BTreeMap::new();
    present.insert(0, own(join, data_port));
    let twice = meet(join, &arrivals, &mut present);
    let verdict = missing(join, &present, &twice).or_else(|| odd_ones(&present));
    std::thread::spawn(move || turn_away(&arrivals));
    match verdict {
        None => Ok(present.into_values().collect()),
        Some(line) => {
            for one in present.into_values() {
                let note = Note::Verdict { line: line.clone(), speak: false };
                one.control.map(|mut control| notes::write(&mut control, &note));
            }
            Err(Failed::new(line))
        }
    }
}

fn own(join: &Join, port: u16) -> Arrived {
    let Join { rank, world, node, binary, manifest, .. } = join.clone();
    let hello = Hello { rank, world, node, port, binary, manifest };
    Arrived { hello, peer: Peer { ip: None, port }, control: None }
}

/// On the address's port, on every interface unless the address is this machine's own.
fn bind(join: &Join) -> Result<TcpListener, Failed> {
    let port = join.address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    let Some(port) = port else {
        return Err(failed(join, format!("cannot listen: {:?} is not host:port", join.address)));
    };
    let ip = if loopback(&join.address) { LOOPBACK } else { IpAddr::from([0, 0, 0, 0]) };
    let end = Instant::now() + Duration::from_secs(2);
    loop {
        match TcpListener::bind(SocketAddr::new(ip, port)) {
            Ok(listener) => return Ok(listener),
            Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(100)),
            Err(error) => {
                let remedy = "another job or program has it; set GPTRAIN_RENDEZVOUS=host:port";
                let what = format!("cannot listen on port {port}: {error} ({remedy})");
                return Err(failed(join, what));
            }
        }
    }
}

type Came = (Hello, IpAddr, TcpStream);

/// For ever: a connection that proves the job's key is handed on.
fn admit(listener: &TcpListener, key: &Key, most: usize, came: &Sender<Came>) {
    let busy = std::sync::Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else {
            // Out of file descriptors: let some strangers time out.
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        if busy.fetch_add(1, Ordering::Relaxed) >= most {
            busy.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (key, came, busy) = (key.clone(), came.clone(), busy.clone());
        std::thread::spawn(move || {
            if let Ok(body) = hello::receive(&mut stream, &key, "join")
                && let Ok(hello) = serde_json::from_slice(&body)
                && let Ok(address) = stream.peer_addr()
            {
                let _ = came.send((hello, address.ip(), stream));
            }
            busy.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// Waits for all; gives the ranks that came more than once.
fn meet(
    join: &Join,
    arrivals: &Receiver<Came>,
    present: &mut BTreeMap<usize, Arrived>,
) -> Vec<usize> {
    let (end, mut twice) = (Instant::now() + join.patience, Vec::new());
    while present.len() < join.world {
        let left = end.saturating_duration_since(Instant::now());
        let Ok((hello, ip, control)) = arrivals.recv_timeout(left) else { break };
        let (rank, world) = (hello.rank, join.world);
        if rank >= world {
            refuse(
                control,
                &format!("rank {rank} came to a world of {world}, which has no such rank"),
            );
        } else if let Entry::Vacant(place) = present.entry(rank) {
            let peer = Peer { ip: Some(ip).filter(|ip| !ip.is_loopback()), port: hello.port };
            place.insert(Arrived { hello, peer, control: Some(control) });
        } else {
            twice.push(rank);
            refuse(control, &format!("rank {rank} is already here: two processes say they are it"));
        }
    }
    twice
}

/// Late ones are told that nobody waits for them.
fn turn_away(arrivals: &Receiver<Came>) {
    for (hello, _, control) in arrivals {
        refuse(control, &format!("rank {} comes too late: the ranks have met", hello.rank));
    }
}

fn refuse(mut control: TcpStream, why: &str) {
    let _ = control.set_write_timeout(Some(Duration::from_secs(1)));
    let _ = notes::write(&mut control, &Note::Refused(why.to_string()));
}

/// "ranks 3, 5 did not come in 60 s; rank 2 came twice".
fn missing(join: &Join, present: &BTreeMap<usize, Arrived>, twice: &[usize]) -> Option<String> {
    let absent: Vec<usize> = (0..join.world).filter(|rank| !present.contains_key(rank)).collect();
    if absent.is_empty() {
        return None;
    }
    let (seconds, address) = (join.patience.as_secs_f64(), &join.address);
    let mut line = format!("{} did not come to {address} in {seconds:.0} s", ranks(&absent));
    line += &format!("; {} of {} are there", present.len(), join.world);
    if !twice.is_empty() {
        line += &format!("; {} came twice", ranks(twice));
    }
    Some(line)
}

fn ranks(list: &[usize]) -> String {
    let shown: Vec<String> = list.iter().take(8).map(usize::to_string).collect();
    let more = if list.len() > 8 { format!(" and {} more", list.len() - 8) } else { String::new() };
    format!("rank{} {}{more}", if list.len() == 1 { "" } else { "s" }, shown.join(", "))
}

/// Ranks that are not like most.
fn odd_ones(present: &BTreeMap<usize, Arrived>) -> Option<String> {
    let hellos: Vec<&Hello> = present.values().map(|one| &one.hello).collect();
    odd(&hellos, "runs another program", |hello| hello.binary)
        .or_else(|| odd(&hellos, "has another manifest", |hello| hello.manifest))
        .or_else(|| odd(&hellos, "counts another number of ranks", |hello| hello.world as u64))
}

/// Those whose value differs from most; where there is no most, from rank 0's.
fn odd(hellos: &[&Hello], what: &str, value: impl Fn(&Hello) -> u64) -> Option<String> {
    let count = |of: u64| hellos.iter().filter(|hello| value(hello) == of).count();
    let usual = hellos.iter().rev().map(|hello| value(hello)).max_by_key(|of| count(*of))?;
    let odd: Vec<&&Hello> = hellos.iter().filter(|hello| value(hello) != usual).collect();
    let first = odd.first()?;
    let list: Vec<usize> = odd.iter().map(|hello| hello.rank).collect();
    let node = match first.node.is_empty() || list.len() > 1 {
        true => String::new(),
        false => format!(" (node {})", first.node),
    };
    let (its, others) = (value(first), count(usual));
    let line = format!("{}{node} {what} than the other {others}", ranks(&list));
    Some(format!("{line}: {its:016x}, not {usual:016x}"))
}
