//! Messages on the control connections between rank 0 and the others: length-limited JSON.

use super::super::report::RankReport;
use super::Join;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};

/// Maximum message. The addresses of 10,000 ranks take 0.4 MB.
const LONGEST: u32 = 16 << 20;

/// First message of a rank to rank 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JoinRequest {
    pub rank: usize,
    pub world: usize,
    pub node: String,
    /// Port at which it listens for data connections.
    pub port: u16,
    /// Hash of its program.
    pub binary: u64,
    /// Hash of its manifest and options.
    pub manifest: u64,
}

impl JoinRequest {
    /// Request of one of the ranks that `join` describes.
    pub fn new(join: &Join, rank: usize, port: u16) -> JoinRequest {
        let Join { world, node, binary, manifest, .. } = join.clone();
        JoinRequest { rank, world, node, port, binary, manifest }
    }
}

/// Address at which a rank listens for data. Without an IP it is on rank 0's node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Peer {
    pub ip: Option<IpAddr>,
    pub port: u16,
}

impl Peer {
    /// Resolves the address. `host` is the address of rank 0.
    pub fn address(&self, host: IpAddr) -> SocketAddr {
        SocketAddr::new(self.ip.unwrap_or(host), self.port)
    }
}

/// Message of a control connection.
#[derive(Debug, Serialize, Deserialize)]
pub enum ControlMessage {
    /// To a rank: all ranks have joined, and their number. A rank requests addresses of peers when
    /// it needs them, because sending all addresses to all ranks would grow quadratically.
    Accepted(usize),
    /// From a rank: requests the addresses of these ranks.
    AddressRequest(Vec<usize>),
    /// To a rank: the requested addresses, in the same order.
    Addresses(Vec<Peer>),
    /// To a rank: the reason why it cannot join.
    Rejected(String),
    /// From a rank: its state.
    Heartbeat(Box<RankReport>),
    /// To a rank: rank 0 is alive.
    Alive,
    /// From a rank: its failure.
    RankFailed(String),
    /// To a rank: the agreed failure, and whether the rank prints it.
    GroupFailed { line: String, print: bool },
    /// The sender ends successfully.
    Goodbye,
}

/// Sends a message.
pub fn write(mut to: impl Write, message: &ControlMessage) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend(body);
    to.write_all(&bytes)
}

/// Receives the next message.
pub fn read(mut from: impl Read) -> io::Result<ControlMessage> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > LONGEST {
        return Err(io::Error::other(format!("a message of {length} bytes")));
    }
    let mut body = vec![0; length as usize];
    from.read_exact(&mut body)?;
    Ok(serde_json::from_slice(&body)?)
}
