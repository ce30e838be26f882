//! Simulated ranks that join, send heartbeats and leave, thousands in one process.
//! `benches/scale.rs` measures the cost at rank 0.

use super::super::address::Address;
use super::super::control::{self, ControlMessage, JoinRequest};
use super::super::handshake::Key;
use super::super::{Join, connect_to_rank0};
use crate::{Failed, RankReport};
use std::io::{self, Read};
use std::net::TcpStream;

/// Joined ranks, from 1 on.
pub struct Ranks {
    all: Vec<TcpStream>,
    /// Bytes that rank 0 sent to all of them during the join.
    pub received: u64,
}

/// Joins all ranks except 0 of `join.world`, one after the other.
pub fn meet(join: &Join) -> Result<Ranks, Failed> {
    let key = Key::new(&join.secret, &join.job);
    let address = Address::read(&join.address).expect("host:port");
    let all = (1..join.world)
        .map(|rank| connect_to_rank0(join, &address, &key, &JoinRequest::new(join, rank, 1)))
        .collect::<Result<Vec<TcpStream>, Failed>>()?;
    let mut received = 0;
    for (i, stream) in all.iter().enumerate() {
        let mut counted = Counted { from: stream, bytes: 0 };
        match control::read(&mut counted) {
            Ok(ControlMessage::Accepted(world)) if world == join.world => received += counted.bytes,
            other => return Err(Failed::new(format!("rank {} is answered {other:?}", i + 1))),
        }
    }
    Ok(Ranks { all, received })
}

impl Ranks {
    /// Sends one heartbeat per rank.
    pub fn heartbeats(&self, report: impl Fn(usize) -> RankReport) -> io::Result<()> {
        self.all.iter().enumerate().try_for_each(|(i, stream)| {
            control::write(stream, &ControlMessage::Heartbeat(Box::new(report(i + 1))))
        })
    }

    /// Ends all ranks successfully.
    pub fn leave(self) -> io::Result<()> {
        for stream in &self.all {
            control::write(stream, &ControlMessage::Goodbye)?;
        }
        for mut stream in &self.all {
            while !matches!(control::read(&mut stream)?, ControlMessage::Goodbye) {}
        }
        Ok(())
    }
}

struct Counted<R> {
    from: R,
    bytes: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(to)?;
        self.bytes += read as u64;
        Ok(read)
    }
}

/// Size of a rank's heartbeat in bytes.
pub fn heartbeat_bytes(report: RankReport) -> usize {
    let mut bytes = Vec::new();
    let message = ControlMessage::Heartbeat(Box::new(report));
    control::write(&mut bytes, &message).expect("memory");
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::super::super::{join, tests::joins};
    use super::*;

    /// Bytes that rank 0 sends to each rank do not grow with the number of ranks, except for its
    /// digits.
    #[test]
    fn bytes_of_the_rendezvous_are_linear_in_the_ranks() {
        let each = [11, 101].map(|world| {
            let join_of_0 = joins(world).remove(0);
            let rank0 = join_of_0.clone();
            let first = std::thread::spawn(move || join(&rank0).map(drop));
            let ranks = meet(&join_of_0).unwrap();
            let each = ranks.received / (world as u64 - 1);
            ranks.heartbeats(RankReport::unknown).unwrap();
            ranks.leave().unwrap();
            first.join().unwrap().unwrap();
            each
        });
        assert!(each[0] < 30 && each[1] <= each[0] + 1, "{each:?}");
    }
}
