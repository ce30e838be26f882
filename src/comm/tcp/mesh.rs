//! The data connections: one between each two ranks that have a group in common.

use super::super::inbox::{Frame, Wire};
use super::super::{Failed, World};
use super::connect;
use super::frames;
use super::hello::{self, Key};
use super::here::{Control, Here, describe};
use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Handshakes at once beyond one for each rank.
const STRANGERS: usize = 64;

pub struct Mesh {
    here: Arc<Here>,
    key: Key,
    /// Where each rank listens.
    addresses: Vec<SocketAddr>,
    control: Arc<dyn Control>,
    links: Mutex<HashMap<usize, Link>>,
    changed: Condvar,
}

struct Link {
    writer: Arc<Mutex<TcpStream>>,
    /// The other has said goodbye.
    parted: bool,
}

impl Mesh {
    pub fn world(
        here: Arc<Here>,
        key: Key,
        listener: TcpListener,
        addresses: Vec<SocketAddr>,
        control: Arc<dyn Control>,
    ) -> World {
        let (links, changed) = (Mutex::default(), Condvar::new());
        let (inbox, recorder) = (here.inbox.clone(), here.recorder.clone());
        let place = (here.rank, here.size);
        let mesh = Arc::new(Mesh { here, key, addresses, control, links, changed });
        let answering = mesh.clone();
        std::thread::spawn(move || answering.answer(&listener));
        World::new(place, inbox, recorder, Box::new(Links(mesh)))
    }

    /// Until this rank has left: lower ranks that bring a connection.
    fn answer(self: &Arc<Mesh>, listener: &TcpListener) {
        let (busy, most) = (Arc::new(AtomicUsize::new(0)), STRANGERS + self.here.size);
        for stream in listener.incoming() {
            if self.here.left() {
                return;
            }
            let Ok(mut stream) = stream else {
                std::thread::sleep(Duration::from_millis(50));
                continue;
            };
            if busy.fetch_add(1, Ordering::Relaxed) >= most {
                busy.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let (mesh, busy) = (self.clone(), busy.clone());
            std::thread::spawn(move || {
                let told = hello::receive(&mut stream, &mesh.key, "data");
                busy.fetch_sub(1, Ordering::Relaxed);
                if let Ok(body) = told
                    && let Ok(body) = <[u8; 16]>::try_from(body)
                {
                    let word =
                        |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().expect("8"));
                    let (from, to) = (word(0) as usize, word(8) as usize);
                    if to == mesh.here.rank && from < to {
                        mesh.add(from, stream);
                    }
                }
            });
        }
    }

    fn dial(self: &Arc<Mesh>, to: usize) -> Result<(), Failed> {
        let end = Instant::now() + self.here.watch.timeout;
        let body = [(self.here.rank as u64).to_le_bytes(), (to as u64).to_le_bytes()].concat();
        loop {
            let tried = connect(self.addresses[to]).map_err(hello::Distrust::Broken);
            let trusted = tried.and_then(|mut stream| {
                hello::introduce(&mut stream, &self.key, "data", &body).map(|()| stream)
            });
            match trusted {
                Ok(stream) => {
                    self.add(to, stream);
                    return Ok(());
                }
                Err(why) if Instant::now() > end => {
                    let (rank, address) = (self.here.rank, self.addresses[to]);
                    let line = format!("rank {rank} does not reach rank {to} at {address}: {why}");
                    return Err(Failed::new(line));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
            if let Some(agreed) = self.here.agreed() {
                return Err(agreed);
            }
        }
    }

    /// A connection to `peer`: the first one counts.
    fn add(self: &Arc<Mesh>, peer: usize, stream: TcpStream) {
        let mut links = self.lock();
        let Ok(reader) = stream.try_clone() else { return };
        if links.contains_key(&peer) {
            return;
        }
        self.here.guard(&stream);
        links.insert(peer, Link { writer: Arc::new(Mutex::new(stream)), parted: false });
        drop(links);
        self.changed.notify_all();
        let mesh = self.clone();
        std::thread::spawn(move || mesh.listen(peer, reader));
    }

    fn listen(&self, peer: usize, mut from: TcpStream) {
        loop {
            match frames::read(&mut from, &self.here.inbox.pool) {
                Ok(Some(frame)) => self.here.inbox.put(peer, frame),
                Ok(None) => {
                    if let Some(link) = self.lock().get_mut(&peer) {
                        link.parted = true;
                    }
                    self.changed.notify_all();
                    return self.here.inbox.leave(peer);
                }
                Err(_) if self.here.left() || self.here.agreed().is_some() => return,
                Err(error) => {
                    self.lost(peer, &error);
                    return;
                }
            }
        }
    }

    fn lost(&self, peer: usize, error: &std::io::Error) -> Failed {
        let (rank, how) = (self.here.rank, describe(error));
        let line = format!("rank {rank} lost its connection to rank {peer}: {how}");
        self.control.failure(Failed::new(line))
    }

    /// Waits until `ready`, or the world fails; None if neither happens in time.
    fn until(&self, ready: impl Fn(&HashMap<usize, Link>) -> bool) -> Option<Result<(), Failed>> {
        let end = Instant::now() + self.here.watch.timeout;
        let mut links = self.lock();
        loop {
            if let Some(agreed) = self.here.agreed() {
                return Some(Err(agreed));
            }
            if ready(&links) {
                return Some(Ok(()));
            }
            if Instant::now() > end {
                return None;
            }
            let woken = self.changed.wait_timeout(links, Duration::from_millis(20));
            links = woken.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<usize, Link>> {
        self.links.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn writer(&self, to: usize) -> Option<Arc<Mutex<TcpStream>>> {
        self.lock().get(&to).map(|link| link.writer.clone())
    }
}

/// The wire of a rank: its share of the mesh.
struct Links(Arc<Mesh>);

impl Wire for Links {
    fn meet(&self, ranks: &[usize]) -> Result<(), Failed> {
        let mesh = &self.0;
        let me = mesh.here.rank;
        for to in ranks.iter().copied().filter(|to| *to > me) {
            if mesh.writer(to).is_none() {
                mesh.dial(to)?;
            }
        }
        let came = |links: &HashMap<usize, Link>| {
            ranks.iter().all(|rank| *rank == me || links.contains_key(rank))
        };
        mesh.until(came).unwrap_or_else(|| {
            let late = ranks.iter().find(|rank| **rank != me && mesh.writer(**rank).is_none());
            let late = late.copied().unwrap_or(me);
            let seconds = mesh.here.watch.timeout.as_secs_f64();
            Err(Failed::new(format!("rank {late} did not connect to rank {me} in {seconds:.0} s")))
        })
    }

    fn send(&self, to: usize, frame: Frame) -> Result<(), Failed> {
        let writer = self.0.writer(to).expect("the group has met");
        let mut stream = writer.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let written = frames::write(&mut stream, &frame);
        self.0.here.inbox.pool.give(frame.data);
        written.map_err(|error| self.0.here.agreed().unwrap_or_else(|| self.0.lost(to, &error)))
    }

    fn fail(&self, failed: Failed) -> Failed {
        self.0.here.agreed().unwrap_or_else(|| self.0.control.failure(failed))
    }

    fn leave(&self) {
        let mesh = &self.0;
        if mesh.here.agreed().is_none() {
            let writers: Vec<_> = mesh.lock().values().map(|link| link.writer.clone()).collect();
            for writer in writers {
                let mut stream = writer.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                let _ = frames::write_goodbye(&mut stream);
            }
            // Closing at once could take back what the others have not read yet.
            mesh.until(|links| links.values().all(|link| link.parted));
            mesh.control.leave();
        }
        mesh.here.leave();
        let _ = connect(mesh.addresses[mesh.here.rank]); // wakes `answer`
    }
}
