//! How all ranks of a world agree, in host memory: sums of a few numbers, and bytes to and from the
//! first rank. Along the groups of its grid, so that no rank talks to more ranks than it has in
//! those groups.

use super::{Group, Message};
use crate::base::DType;
use crate::device::Tensor;

pub struct Together {
    rank: usize,
    /// The groups of a grid's dimensions, in the order in which ranks are numbered.
    levels: Vec<Box<dyn Group>>,
}

/// What one rank says: its number, and the bytes.
type Said = (u64, Vec<u8>);

impl Together {
    /// `levels` are this rank's groups along every dimension of the grid that all ranks fill.
    pub fn new(rank: usize, levels: Vec<Box<dyn Group>>) -> Together {
        Together { rank, levels }
    }

    /// Every number becomes its sum over all ranks; counts are exact up to 2²⁴.
    pub fn sum(&self, numbers: &mut [f32]) {
        let x = Tensor::at(numbers.as_mut_ptr() as usize, 1, numbers.len(), DType::F32);
        self.levels.iter().for_each(|group| group.all_reduce(x));
    }

    /// What every rank says, by rank, for the first rank; the others hear nothing.
    pub fn gather(&self, mine: &[u8]) -> Vec<Vec<u8>> {
        let mut heard: Vec<Said> = vec![(self.rank as u64, mine.to_vec())];
        for group in &self.levels {
            if group.rank() > 0 {
                send(&**group, 0, &pack(&heard));
                return Vec::new();
            }
            for from in 1..group.size() {
                heard.extend(unpack(&receive(&**group, from)));
            }
        }
        heard.sort_unstable_by_key(|(rank, _)| *rank);
        heard.into_iter().map(|(_, bytes)| bytes).collect()
    }

    /// What the first rank says, for all.
    pub fn broadcast(&self, first: &[u8]) -> Vec<u8> {
        let mut known = first.to_vec();
        // A rank hears of it in the first dimension, from behind, in which it is not the first.
        let mine = self.levels.iter().position(|group| group.rank() > 0);
        let below = mine.unwrap_or(self.levels.len());
        if let Some(level) = mine {
            known = receive(&*self.levels[level], 0);
        }
        for group in self.levels[..below].iter().rev() {
            (1..group.size()).for_each(|to| send(&**group, to, &known));
        }
        known
    }
}

/// Each with its rank and its length.
fn pack(all: &[Said]) -> Vec<u8> {
    let mut packed = Vec::new();
    for (rank, bytes) in all {
        packed.extend(rank.to_le_bytes());
        packed.extend((bytes.len() as u64).to_le_bytes());
        packed.extend(bytes);
    }
    packed
}

fn unpack(mut packed: &[u8]) -> Vec<Said> {
    let mut all = Vec::new();
    while let Some((head, rest)) = packed.split_first_chunk::<16>() {
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let (bytes, rest) = rest.split_at(word(8) as usize);
        all.push((word(0), bytes.to_vec()));
        packed = rest;
    }
    all
}

/// The number of bytes, then as many, in whole words.
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
    use crate::comm::{World, threads};

    /// Two by three by two ranks, numbered along the first dimension first.
    fn together(world: &World) -> Together {
        let rank = world.rank();
        let (a, b, c) = (rank % 2, rank / 2 % 3, rank / 6);
        let number = |a: usize, b: usize, c: usize| a + 2 * b + 6 * c;
        let levels = vec![
            world.group("a", &[number(0, b, c), number(1, b, c)]),
            world.group("b", &[number(a, 0, c), number(a, 1, c), number(a, 2, c)]),
            world.group("c", &[number(a, b, 0), number(a, b, 1)]),
        ];
        Together::new(rank, levels)
    }

    #[test]
    fn all_ranks_are_heard_by_the_first_and_hear_it() {
        let rank = |world: World| {
            let (all, me) = (together(&world), world.rank());
            let mut numbers = [1.0, me as f32];
            all.sum(&mut numbers);
            assert_eq!(numbers, [12.0, 66.0]);
            for length in [0, 1, 8, 1000] {
                let mine = vec![me as u8; length + me];
                let heard = all.gather(&mine);
                let expected: Vec<_> = (0..12).map(|r| vec![r as u8; length + r]).collect();
                assert_eq!(heard, if me == 0 { expected } else { Vec::new() });
                let said = vec![7; length];
                assert_eq!(all.broadcast(if me == 0 { &said } else { b"no" }), said);
            }
        };
        std::thread::scope(|scope| {
            threads::world(12).into_iter().for_each(|world| drop(scope.spawn(move || rank(world))));
        });
    }

    #[test]
    fn a_world_of_one_hears_itself() {
        let world = threads::world(1).remove(0);
        let all = Together::new(0, vec![world.group("a", &[0])]);
        assert_eq!(all.gather(b"x"), [b"x"]);
        assert_eq!(all.broadcast(b"y"), b"y");
    }
}
