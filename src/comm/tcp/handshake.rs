//! Mutual authentication of a connection. Each side proves that it has the job's key by an HMAC
//! over fresh nonces of both sides, so a recorded handshake cannot be replayed.
//!
//! ```text
//! server → client   magic 16, nonce 32
//! client → server   nonce 32, length 2, body, HMAC(key, "client" purpose nonces body) 32
//! server → client   HMAC(key, "server" purpose nonces) 32
//! ```
//! This keeps other programs and jobs out. Later data is neither encrypted nor signed.

use base::Deadline;
use hmac::{Hmac, Mac};
use parking_lot::Mutex;
use sha2::Sha256;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MAGIC: &[u8; 16] = b"gptrain ranks 1\n";

/// Maximum concurrent handshakes, in addition to one per rank.
const MAX_HANDSHAKES: usize = 64;

/// Longest accepted body.
const LONGEST: usize = 2048;

/// Time limit of a whole handshake, however slowly the peer sends.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Key shared by the ranks of one start of one job.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    pub fn new(secret: &[u8], job: &str) -> Key {
        Key(hmac_bytes(secret, &[b"job", job.as_bytes()]))
    }
}

fn hmac_bytes(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    mac(key, parts).finalize().into_bytes().into()
}

/// HMAC of all parts. Each part is preceded by its length, so different lists give different input.
fn mac(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any length is a key");
    for part in parts {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    mac
}

/// Reason for a failed authentication.
#[derive(Debug)]
pub enum AuthError {
    /// The peer is not a gptrain rank.
    UnknownProtocol(String),
    /// The peer does not have this job's key.
    WrongKey,
    Io(io::Error),
}

impl fmt::Display for AuthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AuthError::UnknownProtocol(what) => write!(f, "another program answers: {what}"),
            AuthError::WrongKey => {
                f.write_str("the peer is a rank of another job, or has another secret")
            }
            AuthError::Io(error) => write!(f, "the connection broke: {error}"),
        }
    }
}

impl From<io::Error> for AuthError {
    fn from(error: io::Error) -> AuthError {
        AuthError::Io(error)
    }
}

/// Handshakes in progress at a listener.
#[derive(Default)]
pub struct Handshakes {
    /// Oldest first, by number.
    waiting: Mutex<BTreeMap<u64, Arc<TcpStream>>>,
    begun: AtomicU64,
    unauthenticated: AtomicU64,
}

impl Handshakes {
    /// Number of connections that failed authentication.
    pub fn unauthenticated_connections(&self) -> u64 {
        self.unauthenticated.load(Ordering::Relaxed)
    }

    /// Registers a handshake. If there are too many, closes the oldest: a rank needs only
    /// milliseconds, so the oldest peer is not a rank.
    fn begin(&self, stream: &Arc<TcpStream>, most: usize) -> u64 {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let mut waiting = self.waiting.lock();
        if waiting.len() >= most
            && let Some((_, oldest)) = waiting.pop_first()
        {
            let _ = oldest.shutdown(Shutdown::Both); // its thread counts the failure
        }
        waiting.insert(number, stream.clone());
        number
    }

    fn end(&self, number: u64, failed: bool) {
        self.waiting.lock().remove(&number);
        if failed {
            self.unauthenticated.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Accepts connections until `stop`, which is checked for each. Passes every authenticated
/// connection to `accepted` with the peer's body, on its own thread.
pub fn accept_all(
    listener: &TcpListener,
    key: &Key,
    purpose: &'static str,
    world: usize,
    handshakes: &Arc<Handshakes>,
    stop: impl Fn() -> bool,
    accepted: impl Fn(Vec<u8>, TcpStream) + Clone + Send + 'static,
) {
    for stream in listener.incoming() {
        if stop() {
            return;
        }
        let Ok(stream) = stream.map(Arc::new) else {
            // Out of file descriptors: wait until some handshakes time out.
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        let number = handshakes.begin(&stream, MAX_HANDSHAKES + world);
        let key = key.clone();
        let accepted = accepted.clone();
        let all = handshakes.clone();
        if base::threads::spawn("handshake", move || {
            let body = accept(&stream, &key, purpose);
            all.end(number, body.is_err());
            if let (Ok(body), Some(stream)) = (body, Arc::into_inner(stream)) {
                accepted(body, stream);
            }
        })
        .is_err()
        {
            handshakes.end(number, false); // the peer retries
        }
    }
}

/// Listening side: authenticates the peer and returns its body.
pub fn accept(mut stream: &TcpStream, key: &Key, purpose: &str) -> Result<Vec<u8>, AuthError> {
    let end = Deadline::after(TIMEOUT);
    let own_nonce = nonce()?;
    let mut greeting = MAGIC.to_vec();
    greeting.extend(own_nonce);
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(&greeting)?;
    let mut their_nonce = [0; 32];
    let mut length = [0; 2];
    read_before(stream, &mut their_nonce, end)?;
    read_before(stream, &mut length, end)?;
    let length = u16::from_le_bytes(length) as usize;
    if length > LONGEST {
        return Err(AuthError::UnknownProtocol(format!("a handshake of {length} bytes")));
    }
    let mut body = vec![0; length];
    let mut proof = [0; 32];
    read_before(stream, &mut body, end)?;
    read_before(stream, &mut proof, end)?;
    let expected = mac(&key.0, &[b"client", purpose.as_bytes(), &own_nonce, &their_nonce, &body]);
    expected
        .verify_slice(&proof)
        .map_err(|_| AuthError::WrongKey)?;
    stream.write_all(&hmac_bytes(
        &key.0,
        &[b"server", purpose.as_bytes(), &own_nonce, &their_nonce],
    ))?;
    clear_timeouts(stream)?;
    Ok(body)
}

/// Connecting side: authenticates and sends `body`.
pub fn authenticate(
    stream: &mut TcpStream,
    key: &Key,
    purpose: &str,
    body: &[u8],
) -> Result<(), AuthError> {
    let end = Deadline::after(TIMEOUT);
    let mut greeting = [0; 48];
    read_before(stream, &mut greeting, end)?;
    let (magic, their_nonce) = greeting.split_at(16);
    if magic != MAGIC {
        let shown = String::from_utf8_lossy(magic).escape_debug().to_string();
        return Err(AuthError::UnknownProtocol(format!("it sends \"{shown}\"")));
    }
    assert!(body.len() <= LONGEST, "a handshake of {} bytes", body.len());
    let own_nonce = nonce()?;
    let mut reply = own_nonce.to_vec();
    reply.extend((body.len() as u16).to_le_bytes());
    reply.extend(body);
    reply.extend(hmac_bytes(
        &key.0,
        &[b"client", purpose.as_bytes(), their_nonce, &own_nonce, body],
    ));
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(&reply)?;
    let mut proof = [0; 32];
    // A listener that rejects the proof closes the connection.
    read_before(stream, &mut proof, end).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => AuthError::WrongKey,
        _ => AuthError::Io(error),
    })?;
    let expected = mac(&key.0, &[b"server", purpose.as_bytes(), their_nonce, &own_nonce]);
    expected
        .verify_slice(&proof)
        .map_err(|_| AuthError::WrongKey)?;
    Ok(clear_timeouts(stream)?)
}

fn clear_timeouts(stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    stream.set_nodelay(true)
}

/// Fills `to` before `end`. A slow sender does not extend the limit.
fn read_before(mut stream: &TcpStream, to: &mut [u8], end: Deadline) -> io::Result<()> {
    let mut filled = 0;
    while filled < to.len() {
        let left = end.left();
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut to[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            // A stop of this process ends a read early, or lets its limit pass.
            Err(error) if is_early(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether a read ended before its deadline, by a signal or by its own limit.
pub fn is_early(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

/// Returns 32 random bytes.
pub fn nonce() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}
