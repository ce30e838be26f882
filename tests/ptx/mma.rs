//! Tensor cores of Ampere: `ldmatrix`, `mma.sync` and `cp.async` (PTX manual, *Matrix Fragments for
//! mma.m16n8k16* and *Asynchronous copy*).

use crate::actions::lanes;
use crate::machine::{Block, Lanes};
use crate::memory::{Fault, NOTHING, Space, fault};
use crate::parse::Operand;
use half::{bf16, f16};
use std::collections::VecDeque;

/// 16-bit operands of a product.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Bf16,
    F16,
}

impl Format {
    pub fn of(name: &str) -> Option<Format> {
        match name {
            "bf16" => Some(Format::Bf16),
            "f16" => Some(Format::F16),
            _ => None,
        }
    }

    /// The number with these bits.
    pub fn widen(self, bits: u64) -> f32 {
        match self {
            Format::Bf16 => bf16::from_bits(bits as u16).to_f32(),
            Format::F16 => f16::from_bits(bits as u16).to_f32(),
        }
    }
}

/// Row and column of the first of two numbers in register `at` of A's fragment [16, 16].
pub fn place_in_a(lane: usize, at: usize) -> (usize, usize) {
    (lane / 4 + 8 * (at % 2), 2 * (lane % 4) + 8 * (at / 2))
}

/// One copy by `cp.async`.
struct Copy {
    to: u64,
    from: u64,
    bytes: usize,
    there: usize,
}

/// Copies of a warp, in groups; the open group last.
#[derive(Default)]
pub struct CopyGroups {
    groups: VecDeque<Vec<Copy>>,
    open: Vec<Copy>,
}

impl CopyGroups {
    pub fn commit(&mut self) {
        self.groups.push_back(std::mem::take(&mut self.open));
    }

    pub fn are_pending(&self) -> bool {
        !self.open.is_empty() || self.groups.iter().any(|group| !group.is_empty())
    }
}

impl Block<'_> {
    /// Lane 8 · i + r gives the address of row r of matrix i, of 8 × 8 numbers of 16 bits.
    pub fn load_matrices(
        &mut self,
        warp: usize,
        mask: u32,
        to: &[Operand],
        address: &Operand,
        transposed: bool,
    ) -> Result<(), Fault> {
        if mask != u32::MAX {
            return fault("some lanes are missing");
        }
        let addresses = self.address(warp, address);
        let mut rows = [[0u16; 8]; 32];
        for (row, address) in rows.iter_mut().zip(addresses) {
            let bytes = self.memory.load(Space::Shared, address, 16)?;
            let numbers = bytes
                .chunks_exact(2)
                .map(|two| u16::from_le_bytes([two[0], two[1]]));
            row.iter_mut()
                .zip(numbers)
                .for_each(|(to, number)| *to = number);
        }
        let matrices: Vec<Lanes> = (0..to.len())
            .map(|matrix| {
                let at = |row: usize, column: usize| {
                    if transposed {
                        u64::from(rows[8 * matrix + column][row])
                    } else {
                        u64::from(rows[8 * matrix + row][column])
                    }
                };
                std::array::from_fn(|lane| {
                    let (row, column) = (lane / 4, 2 * (lane % 4));
                    at(row, column) | at(row, column + 1) << 16
                })
            })
            .collect();
        self.put_all(warp, mask, to, &matrices);
        Ok(())
    }

    /// `mma.m16n8k16`: A [16, 16] · B [16, 8] + C [16, 8].
    pub fn multiply(
        &mut self,
        warp: usize,
        format: Format,
        to: &[Operand],
        from: &[Vec<Operand>; 3],
    ) {
        let read = |operands: &[Operand]| -> Vec<Lanes> {
            operands.iter().map(|one| self.fetch(warp, one)).collect()
        };
        let [a, b, c] = [0, 1, 2].map(|at| read(&from[at]));
        let (mut rows, mut columns) = ([[0f64; 16]; 16], [[0f64; 16]; 8]);
        let half = |value: u64, second: usize| f64::from(format.widen(value >> (16 * second)));
        for lane in 0..32 {
            for second in 0..2 {
                for (at, values) in a.iter().enumerate() {
                    let (row, k) = place_in_a(lane, at);
                    rows[row][k + second] = half(values[lane], second);
                }
                for (at, values) in b.iter().enumerate() {
                    let k = 2 * (lane % 4) + 8 * at + second;
                    columns[lane / 4][k] = half(values[lane], second);
                }
            }
        }
        let mut results = vec![[0; 32]; 4];
        for (at, result) in results.iter_mut().enumerate() {
            for lane in 0..32 {
                let (row, column) = (lane / 4 + 8 * (at / 2), 2 * (lane % 4) + at % 2);
                let products = rows[row].iter().zip(&columns[column]).map(|(a, b)| a * b);
                let sum = products.sum::<f64>() + f64::from(f32::from_bits(c[at][lane] as u32));
                result[lane] = u64::from((sum as f32).to_bits());
            }
        }
        self.put_all(warp, u32::MAX, to, &results);
    }

    /// Begins copies. Until they are waited for, nothing is at their destination.
    pub fn copy(
        &mut self,
        warp: usize,
        mask: u32,
        (to, from): (&Operand, &Operand),
        bytes: usize,
        there: Option<&Operand>,
    ) -> Result<(), Fault> {
        let (to, from) = (self.address(warp, to), self.address(warp, from));
        let there = there.map_or([bytes as u64; 32], |there| self.fetch(warp, there));
        for lane in lanes(mask) {
            let copy = Copy { to: to[lane], from: from[lane], bytes, there: there[lane] as usize };
            if copy.there > 0 {
                self.memory.load(Space::Global, copy.from, bytes)?;
            }
            self.memory
                .store(Space::Shared, copy.to, &vec![NOTHING; bytes])?;
            self.copies[warp].open.push(copy);
        }
        Ok(())
    }

    /// Completes all groups but the last `pending`.
    pub fn finish_copies(&mut self, warp: usize, pending: usize) -> Result<(), Fault> {
        while self.copies[warp].groups.len() > pending {
            for copy in self.copies[warp].groups.pop_front().unwrap() {
                let mut bytes = vec![0; copy.bytes];
                if copy.there > 0 {
                    let from = self.memory.load(Space::Global, copy.from, copy.bytes)?;
                    bytes[..copy.there].copy_from_slice(&from[..copy.there]);
                }
                self.memory.store(Space::Shared, copy.to, &bytes)?;
            }
        }
        Ok(())
    }
}
