//! Serialisation of frames: a header of 40 bytes, then the data as in memory (little-endian).

use super::super::Op;
use super::super::inbox::{Frame, OpId, OpSignature};
use super::super::memory::Pool;
use base::DType;
use std::io::{self, Read, Write};
use std::net::TcpStream;

const HEADER: usize = 40;

/// Maximum data that is sent together with its header.
const SMALL: usize = 16 << 10;

/// Maximum data of a frame: twice what a group sends at once.
const LONGEST: u64 = 8 << 20;

const OPS: [Op; 5] = [Op::AllReduce, Op::AllGather, Op::ReduceScatter, Op::Send, Op::Recv];

/// Op code for the end of the stream.
const GOODBYE: u8 = 255;

/// Sends a frame.
pub fn write(to: &mut TcpStream, frame: &Frame) -> io::Result<()> {
    let Frame { id, signature, data } = frame;
    let place = |found: Option<usize>| found.expect("in its list") as u8;
    let data = data.bytes();
    let mut bytes = Vec::with_capacity(HEADER + data.len().min(SMALL));
    bytes.extend(id.group.to_le_bytes());
    bytes.extend(id.sequence.to_le_bytes());
    bytes.extend(signature.numel.to_le_bytes());
    bytes.extend((data.len() as u64).to_le_bytes());
    bytes.push(place(OPS.iter().position(|op| *op == signature.op)));
    bytes.push(place(
        DType::ALL
            .iter()
            .position(|dtype| *dtype == signature.dtype),
    ));
    bytes.push(id.message as u8);
    bytes.resize(HEADER, 0);
    // Data that fits in one packet is copied behind the header; larger data is not copied.
    let (first, rest) = data.split_at(if data.len() <= SMALL { data.len() } else { 0 });
    bytes.extend(first);
    to.write_all(&bytes)?;
    to.write_all(rest)
}

/// Announces the end of the stream.
pub fn write_goodbye(to: &mut TcpStream) -> io::Result<()> {
    let mut bytes = [0; HEADER];
    bytes[32] = GOODBYE;
    to.write_all(&bytes)
}

/// Reads the next frame; None after a goodbye.
pub fn read(from: &mut TcpStream, pool: &Pool) -> io::Result<Option<Frame>> {
    let mut header = [0; HEADER];
    from.read_exact(&mut header)?;
    let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"));
    let op = header[32];
    let dtype = header[33];
    let length = word(24);
    if op == GOODBYE {
        return Ok(None);
    }
    let damaged = || io::Error::other(format!("a damaged frame: {header:?}"));
    let op = *OPS.get(op as usize).ok_or_else(damaged)?;
    let dtype = *DType::ALL.get(dtype as usize).ok_or_else(damaged)?;
    if length > LONGEST {
        return Err(damaged());
    }
    let mut data = pool.take(length as usize);
    from.read_exact(data.bytes_mut())?;
    let id = OpId { group: word(0), message: header[34] != 0, sequence: word(8) };
    Ok(Some(Frame { id, signature: OpSignature { op, dtype, numel: word(16) }, data }))
}
