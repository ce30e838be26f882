//! What rank 0 and the others tell each other beside the data: length-limited JSON.

use super::super::report::RankReport;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::TcpStream;

/// The table of 10,000 ranks is 1 MB.
const LONGEST: u32 = 16 << 20;

/// How a rank introduces itself to rank 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    pub rank: usize,
    pub world: usize,
    pub node: String,
    /// Where it listens for other ranks.
    pub port: u16,
    /// Hash of its program.
    pub binary: u64,
    /// Hash of what it is to do.
    pub manifest: u64,
}

/// Where a rank listens. Without an address it is on rank 0's machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Peer {
    pub ip: Option<std::net::IpAddr>,
    pub port: u16,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Note {
    /// To a rank: all are there; by rank.
    Admitted(Vec<Peer>),
    /// To a rank: it cannot take part.
    Refused(String),
    /// From a rank: what it is doing.
    Beat(Box<RankReport>),
    /// To a rank: rank 0 is there.
    Pulse,
    /// From a rank: it cannot go on.
    Failure(String),
    /// To all: why none goes on, and whether this one prints it.
    Verdict { line: String, speak: bool },
    /// This one ends, and all is well.
    Goodbye,
}

pub fn write(to: &mut TcpStream, note: &Note) -> io::Result<()> {
    let body = serde_json::to_vec(note)?;
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend(body);
    to.write_all(&bytes)
}

pub fn read(from: &mut TcpStream) -> io::Result<Note> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > LONGEST {
        return Err(io::Error::other(format!("a note of {length} bytes")));
    }
    let mut body = vec![0; length as usize];
    from.read_exact(&mut body)?;
    Ok(serde_json::from_slice(&body)?)
}
