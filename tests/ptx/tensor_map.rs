//! Copies of boxes by Hopper's tensor memory accelerator (PTX manual, *Tensors*): a tensor map, the
//! swizzle, and elements outside, which are zeros.

use crate::actions::lanes;
use crate::machine::Block;
use crate::memory::{Arguments, Fault, NOTHING, PARAMETERS, Space, fault};
use crate::parse::Operand;

/// First word of a map in this machine; the hardware's format is not public.
const MARK: u64 = 0x7465_6e73_6f72_206d;

/// A map of a tensor of four dimensions of 16-bit numbers, the contiguous one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap {
    pub start: u64,
    pub sizes: [u64; 4],
    /// Bytes between neighbours in the other dimensions.
    pub strides: [u64; 3],
    /// Elements of a box in the first and in the third dimension; one in the others.
    pub columns: u64,
    pub rows: u64,
    /// Bytes of the swizzle's pattern.
    pub swizzle: u64,
}

impl TensorMap {
    /// As 128 bytes of a kernel's argument.
    pub fn bytes(&self) -> Vec<u8> {
        let TensorMap { start, sizes, strides, columns, rows, swizzle } = *self;
        let all = Arguments::default()
            .with(&[MARK, start])
            .with(&sizes)
            .with(&strides);
        all.with(&[columns, rows, swizzle])
            .padded::<u64>(&[], 4)
            .bytes(128, 8)
    }

    fn read(bytes: &[u8]) -> Result<TensorMap, Fault> {
        let words = bytes
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        let words: Vec<u64> = words.collect();
        if words[0] != MARK {
            return fault("no tensor map is there");
        }
        Ok(TensorMap {
            start: words[1],
            sizes: words[2..6].try_into().unwrap(),
            strides: words[6..9].try_into().unwrap(),
            columns: words[9],
            rows: words[10],
            swizzle: words[11],
        })
    }
}

/// A copy in flight.
pub struct BoxCopy {
    /// Place of each 16-byte unit.
    to: Vec<u64>,
    bytes: Vec<u8>,
    barrier: u64,
}

/// Address of a byte in a pattern of 128, 64 or 32 bytes: bits 4.. are exchanged by bits 7...
pub fn swizzled(address: u64, pattern: u64) -> u64 {
    address ^ (address >> 7 & (pattern / 16 - 1)) << 4
}

impl Block<'_> {
    pub fn load_box(
        &mut self,
        warp: usize,
        mask: u32,
        to: &Operand,
        map: &Operand,
        barrier: &Operand,
    ) -> Result<(), Fault> {
        let Operand::Memory(_, _, coordinates) = map else { return fault("no coordinates") };
        let coordinates: Vec<_> = coordinates
            .iter()
            .map(|one| self.fetch(warp, one))
            .collect();
        let (to, maps, barriers) =
            (self.address(warp, to), self.address(warp, map), self.address(warp, barrier));
        for lane in lanes(mask) {
            if maps[lane] < PARAMETERS || !maps[lane].is_multiple_of(64) {
                return fault(
                    "the tensor map is not an argument of the kernel, or not aligned to 64",
                );
            }
            let map = TensorMap::read(
                self.memory
                    .load(Space::Parameters, maps[lane], 8)
                    .and_then(|_| {
                        let at = (maps[lane] - PARAMETERS) as usize;
                        self.memory
                            .parameters
                            .get(at..at + 128)
                            .ok_or(Fault("no tensor map is there".into()))
                    })?,
            )?;
            let first: Vec<i64> = coordinates
                .iter()
                .map(|one| i64::from(one[lane] as i32))
                .collect();
            self.start_box(&map, &first, to[lane], barriers[lane])?;
        }
        Ok(())
    }

    fn start_box(
        &mut self,
        map: &TensorMap,
        first: &[i64],
        to: u64,
        barrier: u64,
    ) -> Result<(), Fault> {
        if !to.is_multiple_of(128) {
            return fault(format!("destination {to} is not a multiple of 128"));
        }
        let line = 2 * map.columns;
        let mut bytes = vec![0; (line * map.rows) as usize];
        for row in 0..map.rows {
            let at = [first[1], first[2] + row as i64, first[3]];
            let inside = at
                .iter()
                .zip(&map.sizes[1..])
                .all(|(at, size)| (0..*size as i64).contains(at));
            let (from, end) =
                (first[0].max(0), (first[0] + map.columns as i64).min(map.sizes[0] as i64));
            if !inside || from >= end {
                continue;
            }
            let far = at
                .iter()
                .zip(map.strides)
                .map(|(at, stride)| *at as u64 * stride);
            let address = map.start + far.sum::<u64>() + 2 * from as u64;
            let read = self
                .memory
                .global
                .load(address, 2 * (end - from) as usize)?;
            let place = (row * line) as usize + 2 * (from - first[0]) as usize;
            bytes[place..place + read.len()].copy_from_slice(read);
        }
        let units = (0..bytes.len() as u64).step_by(16);
        let to: Vec<u64> = units.map(|unit| swizzled(to + unit, map.swizzle)).collect();
        for place in &to {
            self.memory.store(Space::Shared, *place, &[NOTHING; 16])?;
        }
        self.boxes.push(BoxCopy { to, bytes, barrier });
        Ok(())
    }

    /// Completes a copy, and counts its bytes at its barrier.
    pub fn deliver(&mut self, at: usize) -> Result<(), Fault> {
        let BoxCopy { to, bytes, barrier } = self.boxes.remove(at);
        for (place, unit) in to.iter().zip(bytes.chunks_exact(16)) {
            self.memory.store(Space::Shared, *place, unit)?;
        }
        self.barrier(barrier)?.arrive(-(bytes.len() as i64), 0)
    }
}
