//! Data connections: one between any two ranks that share a group, and streams that ranks open
//! beside them.

use super::super::endpoint::Endpoint;
use super::super::inbox::{Frame, StreamHandler, Transport};
use super::super::{Failed, RankBusy, World};
use super::frames;
use super::handshake::{self, Handshakes, Key};
use super::process::{ControlChannel, ProcessState, describe, start_thread};
use super::{connect, connect_authenticated};
use base::Deadline;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Data connections of a rank.
pub struct Mesh {
    process: Arc<ProcessState>,
    key: Key,
    /// Address at which this rank reaches its own listener.
    own_address: SocketAddr,
    control: Arc<dyn ControlChannel>,
    connections: Mutex<HashMap<usize, Connection>>,
    changed: Condvar,
    /// Receiver of streams.
    accept_stream: OnceLock<StreamHandler>,
}

/// Body of the handshake of a stream.
const STREAM: &[u8] = b"stream";

struct Connection {
    writer: Arc<Mutex<TcpStream>>,
    /// Whether the peer has ended successfully.
    said_goodbye: bool,
}

impl Mesh {
    /// Starts to listen for data connections. Returns the world, whose groups open them.
    pub fn start(
        process: Arc<ProcessState>,
        key: Key,
        listener: TcpListener,
        control: Arc<dyn ControlChannel>,
    ) -> Result<World, Failed> {
        let connections = Mutex::default();
        let changed = Condvar::new();
        let inbox = process.inbox.clone();
        let recorder = process.recorder.clone();
        let rank = process.rank;
        let size = process.size;
        let own_address = listener.local_addr().expect("it is bound");
        let accept_stream = OnceLock::new();
        let mesh = Mesh { process, key, own_address, control, connections, changed, accept_stream };
        let mesh = Arc::new(mesh);
        let listening = mesh.clone();
        start_thread(rank, "listener", move || listening.accept_loop(&listener))?;
        let transport = Box::new(TcpTransport(mesh));
        Ok(World::new(Endpoint::new(rank, size, inbox, recorder, transport)))
    }

    /// Accepts connections from lower ranks until this rank has left.
    fn accept_loop(self: &Arc<Mesh>, listener: &TcpListener) {
        let mesh = self.clone();
        let world = self.process.size;
        let all = Arc::new(Handshakes::default());
        handshake::accept_all(
            listener,
            &self.key,
            "data",
            world,
            &all,
            || self.process.has_left(),
            move |body: Vec<u8>, stream: TcpStream| {
                if body == STREAM {
                    if let Some(accept) = mesh.accept_stream.get() {
                        accept(stream);
                    }
                    return;
                }
                let Ok(body) = <[u8; 16]>::try_from(body) else { return };
                let word = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().expect("8"));
                let from = word(0) as usize;
                let to = word(8) as usize;
                if to == mesh.process.rank && from < to {
                    mesh.add_connection(from, stream);
                }
            },
        );
    }

    fn connect_to(self: &Arc<Mesh>, to: usize, address: SocketAddr) -> Result<(), Failed> {
        let end = Deadline::after(self.process.watchdog.timeout);
        let body = [(self.process.rank as u64).to_le_bytes(), (to as u64).to_le_bytes()].concat();
        loop {
            match connect_authenticated(address, &self.key, "data", &body) {
                Ok(stream) => {
                    self.add_connection(to, stream);
                    return Ok(());
                }
                Err(why) if end.has_passed() => {
                    let rank = self.process.rank;
                    let line =
                        format!("rank {rank} cannot connect to rank {to} at {address}: {why}");
                    return Err(Failed::new(line));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
            if let Some(failed) = self.process.failed() {
                return Err(failed);
            }
        }
    }

    /// Adds a connection to `peer`, unless there is one.
    fn add_connection(self: &Arc<Mesh>, peer: usize, stream: TcpStream) {
        let mut connections = self.connections.lock();
        let Ok(reader) = stream.try_clone() else { return };
        if connections.contains_key(&peer) {
            return;
        }
        self.process.close_on_failure(&stream);
        connections
            .insert(peer, Connection { writer: Arc::new(Mutex::new(stream)), said_goodbye: false });
        drop(connections);
        self.changed.notify_all();
        let mesh = self.clone();
        let name = format!("from rank {peer}");
        if let Err(failed) =
            start_thread(self.process.rank, &name, move || mesh.receive_frames(peer, reader))
        {
            self.control.report_failure(failed);
        }
    }

    fn receive_frames(&self, peer: usize, mut from: TcpStream) {
        loop {
            match frames::read(&mut from, &self.process.inbox.pool) {
                Ok(Some(frame)) => self.process.inbox.put(peer, frame),
                Ok(None) => {
                    if let Some(connection) = self.connections.lock().get_mut(&peer) {
                        connection.said_goodbye = true;
                    }
                    self.changed.notify_all();
                    return self.process.inbox.leave(peer);
                }
                Err(_) if self.process.has_left() || self.process.failed().is_some() => return,
                Err(error) => {
                    self.report_lost_connection(peer, &error);
                    return;
                }
            }
        }
    }

    /// Returns the failure on which all ranks agree.
    fn report_lost_connection(&self, peer: usize, error: &std::io::Error) -> Failed {
        let rank = self.process.rank;
        let how = describe(error);
        let line = format!("rank {rank} lost its connection to rank {peer}: {how}");
        self.control.report_failure(Failed::new(line))
    }

    /// Waits until `ready` or until the process group fails; None on timeout.
    fn wait_until(
        &self,
        ready: impl Fn(&HashMap<usize, Connection>) -> bool,
    ) -> Option<Result<(), Failed>> {
        let end = Deadline::after(self.process.watchdog.timeout);
        let mut connections = self.connections.lock();
        loop {
            if let Some(failed) = self.process.failed() {
                return Some(Err(failed));
            }
            if ready(&connections) {
                return Some(Ok(()));
            }
            if end.has_passed() {
                return None;
            }
            self.changed
                .wait_for(&mut connections, Duration::from_millis(20));
        }
    }

    fn writer(&self, to: usize) -> Option<Arc<Mutex<TcpStream>>> {
        self.connections
            .lock()
            .get(&to)
            .map(|connection| connection.writer.clone())
    }
}

/// Transport of a rank over the mesh.
struct TcpTransport(Arc<Mesh>);

impl Transport for TcpTransport {
    fn connect(&self, ranks: &[usize]) -> Result<(), Failed> {
        let mesh = &self.0;
        let me = mesh.process.rank;
        let mut peers = ranks.to_vec();
        peers.retain(|peer| *peer > me && mesh.writer(*peer).is_none());
        if !peers.is_empty() {
            for (peer, address) in peers.iter().zip(mesh.control.find_addresses(&peers)?) {
                mesh.connect_to(*peer, address)?;
            }
        }
        mesh.wait_until(|connections: &HashMap<usize, Connection>| {
            ranks
                .iter()
                .all(|rank| *rank == me || connections.contains_key(rank))
        })
        .unwrap_or_else(|| {
            let late = ranks
                .iter()
                .find(|rank| **rank != me && mesh.writer(**rank).is_none())
                .copied()
                .unwrap_or(me);
            let seconds = mesh.process.watchdog.timeout.as_secs_f64();
            Err(Failed::new(format!(
                "rank {late} did not connect to rank {me} within {seconds:.0} s"
            )))
        })
    }

    fn send(&self, to: usize, frame: Frame) -> Result<(), Failed> {
        #[cfg(any(test, feature = "testing"))]
        if let Some(throttle) = &self.0.process.throttle {
            throttle.wait_for(frame.data.bytes().len());
        }
        let writer = self.0.writer(to).expect("the group is connected");
        let mut stream = writer.lock();
        let written = frames::write(&mut stream, &frame);
        self.0.process.inbox.pool.give_back(frame.data);
        written.map_err(|error| {
            self.0
                .process
                .failed()
                .unwrap_or_else(|| self.0.report_lost_connection(to, &error))
        })
    }

    fn fail(&self, failed: Failed) -> Failed {
        self.0
            .process
            .failed()
            .unwrap_or_else(|| self.0.control.report_failure(failed))
    }

    fn busy(&self) -> Vec<RankBusy> {
        self.0.control.busy()
    }

    fn open_stream(&self, to: usize) -> io::Result<TcpStream> {
        let mesh = &self.0;
        let addresses = mesh.control.find_addresses(&[to]);
        let addresses = addresses.map_err(io::Error::other)?;
        let stream = connect_authenticated(addresses[0], &mesh.key, "data", STREAM)
            .map_err(|why| io::Error::other(why.to_string()))?;
        // A rank that is stopped or cut off must not hold a thread for ever.
        let timeout = Some(mesh.process.watchdog.timeout);
        stream.set_read_timeout(timeout)?;
        stream.set_write_timeout(timeout)?;
        Ok(stream)
    }

    fn accept_streams(&self, accept: StreamHandler) {
        let _ = self.0.accept_stream.set(accept); // the first receiver remains
    }

    fn leave(&self) {
        let mesh = &self.0;
        if mesh.process.failed().is_none() {
            let writer = |connection: &Connection| connection.writer.clone();
            let writers: Vec<_> = mesh.connections.lock().values().map(writer).collect();
            for writer in writers {
                let mut stream = writer.lock();
                let _ = frames::write_goodbye(&mut stream);
            }
            // An immediate close could discard data that the others have not read yet.
            mesh.wait_until(|connections| {
                connections
                    .values()
                    .all(|connection| connection.said_goodbye)
            });
            mesh.control.leave();
        }
        mesh.process.leave();
        let _ = connect(mesh.own_address); // wakes `accept_loop`
    }
}
