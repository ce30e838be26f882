//! Collectives over all ranks in host memory: sums of a few numbers, gather to the first rank and
//! broadcast from it. They run along the dimensions of the grid, so a rank needs connections only
//! to members of its grid groups.

use super::{ClockOffset, Group, Message};
use base::DType;
use device::Tensor;

/// A rank in these collectives.
pub struct HostCollectives {
    rank: usize,
    /// One group per grid dimension, in the numbering order of ranks.
    levels: Vec<Box<dyn Group>>,
}

/// Contribution of one rank to a gather: (rank, bytes).
type Contribution = (u64, Vec<u8>);

impl HostCollectives {
    /// `levels` are this rank's groups along the dimensions of the grid, which covers all ranks.
    pub fn new(rank: usize, levels: Vec<Box<dyn Group>>) -> HostCollectives {
        HostCollectives { rank, levels }
    }

    /// Replaces every number by its sum over all ranks. Counts are exact up to 2²⁴.
    pub fn sum(&self, numbers: &mut [f32]) {
        let x = Tensor::at(numbers.as_mut_ptr() as usize, 1, numbers.len(), DType::F32);
        self.levels.iter().for_each(|group| group.all_reduce(x));
    }

    /// Returns every rank's bytes, by rank, on the first rank; an empty list on the others.
    pub fn gather(&self, mine: &[u8]) -> Vec<Vec<u8>> {
        let mut gathered: Vec<Contribution> = vec![(self.rank as u64, mine.to_vec())];
        for group in &self.levels {
            if group.rank() > 0 {
                send(&**group, 0, &pack(&gathered));
                return Vec::new();
            }
            for from in 1..group.size() {
                gathered.extend(unpack(&receive(&**group, from)));
            }
        }
        gathered.sort_unstable_by_key(|(rank, _)| *rank);
        gathered.into_iter().map(|(_, bytes)| bytes).collect()
    }

    /// Returns the first rank's bytes on every rank.
    pub fn broadcast(&self, first: &[u8]) -> Vec<u8> {
        let mut bytes = first.to_vec();
        // Broadcasts along the grid, last dimension first. A rank receives in the first dimension
        // in which its index is not 0.
        let receiving_level = self.levels.iter().position(|group| group.rank() > 0);
        let below = receiving_level.unwrap_or(self.levels.len());
        if let Some(level) = receiving_level {
            bytes = receive(&*self.levels[level], 0);
        }
        for group in self.levels[..below].iter().rev() {
            (1..group.size()).for_each(|to| send(&**group, to, &bytes));
        }
        bytes
    }

    /// Measures the offset of this rank's clock from rank 0's. `id` is the `clock_id`: ranks with
    /// the same clock have no offset. The error is half of the shortest of several round trips.
    pub fn clock_offset(&self, id: u64, now_ns: impl Fn() -> i64) -> ClockOffset {
        const ROUND_TRIPS: usize = 16;
        let mut offset = ClockOffset::default();
        let parent = self.levels.iter().position(|group| group.rank() > 0);
        if let Some(group) = parent.map(|level| &*self.levels[level]) {
            let mut shortest = i64::MAX;
            for _ in 0..ROUND_TRIPS {
                let sent = now_ns();
                let mut reply = [0u64; 4];
                group.send(0, tensor(&mut [0]));
                group.recv(0, tensor(&mut reply));
                let round_trip = now_ns() - sent;
                let [its_id, time, ns, error_ns] = reply;
                let [time, ns, error_ns] = [time, ns, error_ns].map(|word| word as i64);
                if its_id == id {
                    offset = ClockOffset { ns, error_ns };
                } else if round_trip < shortest {
                    shortest = round_trip;
                    let middle = sent + round_trip / 2;
                    let error = round_trip / 2 + 1;
                    offset = ClockOffset { ns: time + ns - middle, error_ns: error_ns + error };
                }
            }
        }
        for group in self.levels[..parent.unwrap_or(self.levels.len())]
            .iter()
            .rev()
        {
            for child in 1..group.size() {
                for _ in 0..ROUND_TRIPS {
                    group.recv(child, tensor(&mut [0]));
                    let words = [now_ns(), offset.ns, offset.error_ns].map(|ns| ns as u64);
                    group.send(child, tensor(&mut [id, words[0], words[1], words[2]]));
                }
            }
        }
        offset
    }
}

/// Serialises each contribution as rank, length, bytes.
fn pack(all: &[Contribution]) -> Vec<u8> {
    let mut packed = Vec::new();
    for (rank, bytes) in all {
        packed.extend(rank.to_le_bytes());
        packed.extend((bytes.len() as u64).to_le_bytes());
        packed.extend(bytes);
    }
    packed
}

fn unpack(mut packed: &[u8]) -> Vec<Contribution> {
    let mut all = Vec::new();
    while let Some((head, rest)) = packed.split_first_chunk::<16>() {
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let (bytes, rest) = rest.split_at(word(8) as usize);
        all.push((word(0), bytes.to_vec()));
        packed = rest;
    }
    all
}

/// Sends the length, then the bytes, padded to words of 8.
fn send(group: &dyn Group, to: usize, bytes: &[u8]) {
    let mut words = vec![0u64; 1 + bytes.len().div_ceil(8)];
    words[0] = bytes.len() as u64;
    bytemuck::cast_slice_mut(&mut words[1..])[..bytes.len()].copy_from_slice(bytes);
    let (length, body) = words.split_at_mut(1);
    let messages = [length, body].map(|words| Message::Send { to, x: tensor(words) });
    group.exchange(&messages[..if bytes.is_empty() { 1 } else { 2 }]);
}

fn receive(group: &dyn Group, from: usize) -> Vec<u8> {
    let mut length = [0u64];
    group.recv(from, tensor(&mut length));
    let length = length[0] as usize;
    let mut words = vec![0u64; length.div_ceil(8)];
    if length > 0 {
        group.recv(from, tensor(&mut words));
    }
    bytemuck::cast_slice(&words)[..length].to_vec()
}

fn tensor(words: &mut [u64]) -> Tensor {
    Tensor::at(words.as_mut_ptr() as usize, 1, words.len(), DType::I64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{World, now_ns, threads};

    /// Two by three by two ranks, numbered along the first dimension first.
    fn together(world: &World) -> HostCollectives {
        let rank = world.rank();
        let a = rank % 2;
        let b = rank / 2 % 3;
        let c = rank / 6;
        let number = |a: usize, b: usize, c: usize| a + 2 * b + 6 * c;
        let levels = vec![
            world.group("a", &[number(0, b, c), number(1, b, c)]),
            world.group("b", &[number(a, 0, c), number(a, 1, c), number(a, 2, c)]),
            world.group("c", &[number(a, b, 0), number(a, b, 1)]),
        ];
        HostCollectives::new(rank, levels)
    }

    #[test]
    fn the_first_rank_gathers_and_broadcasts() {
        let rank = |world: World| {
            let all = together(&world);
            let me = world.rank();
            let mut numbers = [1.0, me as f32];
            all.sum(&mut numbers);
            assert_eq!(numbers, [12.0, 66.0]);
            for length in [0, 1, 8, 1000] {
                let mine = vec![me as u8; length + me];
                let gathered = all.gather(&mine);
                let expected: Vec<_> = (0..12).map(|r| vec![r as u8; length + r]).collect();
                assert_eq!(gathered, if me == 0 { expected } else { Vec::new() });
                let sent = vec![7; length];
                assert_eq!(all.broadcast(if me == 0 { &sent } else { b"no" }), sent);
            }
        };
        std::thread::scope(|scope| {
            threads::world(12)
                .into_iter()
                .for_each(|world| drop(scope.spawn(move || rank(world))));
        });
    }

    /// Every rank's clock is ahead by as many hours as its number, except that all but the last
    /// four ranks share one machine's clock.
    #[test]
    fn clocks_of_machines_are_aligned_and_those_of_one_machine_are_the_same() {
        const HOUR: i64 = 3_600_000_000_000;
        let rank = |world: World| {
            let all = together(&world);
            let me = world.rank() as i64;
            let machine = if me < 8 { 0 } else { me };
            let offset = all.clock_offset(machine as u64, || now_ns() + machine * HOUR);
            let wrong = (offset.ns + machine * HOUR).abs();
            assert!(wrong <= offset.error_ns && offset.error_ns < HOUR / 100, "{me}: {offset:?}");
            assert_eq!(offset.error_ns == 0, me < 8);
        };
        std::thread::scope(|scope| {
            threads::world(12)
                .into_iter()
                .for_each(|world| drop(scope.spawn(move || rank(world))));
        });
    }

    #[test]
    fn a_world_of_one_gathers_and_broadcasts() {
        let world = threads::world(1).remove(0);
        let all = HostCollectives::new(0, vec![world.group("a", &[0])]);
        assert_eq!(all.gather(b"x"), [b"x"]);
        assert_eq!(all.broadcast(b"y"), b"y");
    }
}
