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
