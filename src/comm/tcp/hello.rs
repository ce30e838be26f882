//! How two processes of a job come to trust a connection: each proves that it knows the job's key,
//! over numbers both have just drawn, so that nothing heard before can be said again.
//!
//! ```text
//! server → client   magic 16, nonce 32
//! client → server   nonce 32, length 2, body, HMAC(key, "client" purpose nonces body) 32
//! server → client   HMAC(key, "server" purpose nonces) 32
//! ```
//! It keeps strangers and other jobs out; what follows is neither encrypted nor signed.

use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const MAGIC: &[u8; 16] = b"gptrain ranks 1\n";

/// Longer introductions are a stranger's.
const LONGEST: usize = 2048;

/// All of a handshake, however slowly the other side talks.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the ranks of one start of one job share.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    pub fn new(secret: &[u8], job: &str) -> Key {
        Key(tag(secret, &[b"job", job.as_bytes()]))
    }
}

fn tag(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    mac(key, parts).finalize().into_bytes().into()
}

/// Each part with its length, so that no two lists of parts read alike.
fn mac(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any length is a key");
    for part in parts {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    mac
}

/// Why there is no trust.
#[derive(Debug)]
pub enum Distrust {
    /// What answers does not speak as a rank does.
    Stranger(String),
    /// It does, but does not know this job's key.
    OtherJob,
    Broken(io::Error),
}

impl fmt::Display for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distrust::Stranger(what) => write!(f, "a stranger is there: {what}"),
            Distrust::OtherJob => f.write_str("another job is there, or one with another secret"),
            Distrust::Broken(error) => write!(f, "the connection broke: {error}"),
        }
    }
}

impl From<io::Error> for Distrust {
    fn from(error: io::Error) -> Distrust {
        Distrust::Broken(error)
    }
}

/// The side that listens: what the other said of itself, once it is trusted.
pub fn receive(stream: &mut TcpStream, key: &Key, purpose: &str) -> Result<Vec<u8>, Distrust> {
    let end = Instant::now() + PATIENCE;
    let mine = nonce()?;
    let mut greeting = MAGIC.to_vec();
    greeting.extend(mine);
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&greeting)?;
    let (mut its, mut length) = ([0; 32], [0; 2]);
    read(stream, &mut its, end)?;
    read(stream, &mut length, end)?;
    let length = u16::from_le_bytes(length) as usize;
    if length > LONGEST {
        return Err(Distrust::Stranger(format!("an introduction of {length} bytes")));
    }
    let (mut body, mut proof) = (vec![0; length], [0; 32]);
    read(stream, &mut body, end)?;
    read(stream, &mut proof, end)?;
    let said = mac(&key.0, &[b"client", purpose.as_bytes(), &mine, &its, &body]);
    said.verify_slice(&proof).map_err(|_| Distrust::OtherJob)?;
    stream.write_all(&tag(&key.0, &[b"server", purpose.as_bytes(), &mine, &its]))?;
    plain(stream)?;
    Ok(body)
}

/// The side that connects, which introduces itself as `body`.
pub fn introduce(
    stream: &mut TcpStream,
    key: &Key,
    purpose: &str,
    body: &[u8],
) -> Result<(), Distrust> {
    let end = Instant::now() + PATIENCE;
    let mut greeting = [0; 48];
    read(stream, &mut greeting, end)?;
    let (magic, its) = greeting.split_at(16);
    if magic != MAGIC {
        let shown = String::from_utf8_lossy(magic).escape_debug().to_string();
        return Err(Distrust::Stranger(format!("it says \"{shown}\"")));
    }
    assert!(body.len() <= LONGEST, "an introduction of {} bytes", body.len());
    let mine = nonce()?;
    let mut said = mine.to_vec();
    said.extend((body.len() as u16).to_le_bytes());
    said.extend(body);
    said.extend(tag(&key.0, &[b"client", purpose.as_bytes(), its, &mine, body]));
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&said)?;
    let mut proof = [0; 32];
    // A listener that does not trust us hangs up.
    read(stream, &mut proof, end).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => Distrust::OtherJob,
        _ => Distrust::Broken(error),
    })?;
    let expected = mac(&key.0, &[b"server", purpose.as_bytes(), its, &mine]);
    expected.verify_slice(&proof).map_err(|_| Distrust::OtherJob)?;
    Ok(plain(stream)?)
}

fn plain(stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    stream.set_nodelay(true)
}

/// Fills `to` before `end`: a byte now and then does not prolong it.
fn read(stream: &mut TcpStream, to: &mut [u8], end: Instant) -> io::Result<()> {
    let mut filled = 0;
    while filled < to.len() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut to[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// 32 bytes that nobody can foresee.
pub fn nonce() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}
