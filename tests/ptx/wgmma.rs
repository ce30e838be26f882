//! Products of a warpgroup (PTX manual, *Asynchronous Warpgroup Level Matrix Multiply-Accumulate*): each of
//! four warps computes 16 of 64 rows. A product is in flight from its instruction to the wait for its group;
//! until then its sums are NaN, and its operands may not change.

use crate::actions::Wgmma;
use crate::machine::{Block, Lanes};
use crate::memory::{Fault, Space, fault};
use crate::mma::{Format, place_in_a};
use crate::parse::Operand;
use crate::tensor_map::swizzled;
use std::collections::{HashMap, VecDeque};

/// Content of registers whose sums are in flight: a NaN.
const IN_FLIGHT: u64 = 0x7fff_ffff;

/// A product that has started.
struct Started {
    to: Vec<usize>,
    registers: Vec<(Operand, Lanes)>,
    /// Places in shared memory, and what was there.
    shared: Vec<(u64, u16)>,
    text: String,
}

/// Products of a warp.
#[derive(Default)]
pub struct Products {
    groups: VecDeque<Vec<Started>>,
    open: Vec<Started>,
    /// Sums in flight by their registers, and how many products add to them.
    sums: HashMap<Vec<usize>, (Vec<Lanes>, usize)>,
    /// Digest of the descriptors, in order.
    executed: u64,
}

impl Products {
    pub fn commit(&mut self) {
        self.groups.push_back(std::mem::take(&mut self.open));
    }

    pub fn are_pending(&self) -> bool {
        !self.sums.is_empty()
    }

    /// Whether two warps executed the same products.
    pub fn agrees(&self, other: &Products) -> bool {
        self.executed == other.executed
    }
}

/// Places in shared memory of an operand [rows, 16], rows being M or N (manual, *Shared Memory Matrix
/// Layout* and *Matrix Descriptor*).
fn places(
    descriptor: u64,
    rows: std::ops::Range<u64>,
    transposed: bool,
) -> Result<Vec<[u64; 16]>, Fault> {
    let field = |at: u32| (descriptor >> at & 0x3fff) << 4;
    let (start, leading, stride) = (field(0), field(16), field(32));
    let width = match descriptor >> 62 {
        1 => 128,
        2 => 64,
        3 => 32,
        _ => return fault("a descriptor without a swizzle"),
    };
    if descriptor >> 49 & 7 != 0 {
        return fault("a descriptor with an offset");
    }
    let place = |row: u64, k: u64| {
        if !transposed {
            // Eight rows are `stride` apart.
            return start + row / 8 * stride + row % 8 * width + 2 * k;
        }
        // Pieces of `width` bytes are `leading` apart, eight k `stride`.
        let piece = width / 2;
        start + row / piece * leading + k / 8 * stride + k % 8 * width + 2 * (row % piece)
    };
    let row = |row: u64| std::array::from_fn(|k| swizzled(place(row, k as u64), width));
    Ok(rows.map(row).collect())
}

impl Block<'_> {
    pub fn start_product(
        &mut self,
        warp: usize,
        mask: u32,
        product: &Wgmma,
        text: &str,
    ) -> Result<(), Fault> {
        let Wgmma { columns, to, a, b, adds, transposed } = product;
        if to.len() != columns / 2 || warp / 4 * 4 + 4 > self.warps.len() || mask != u32::MAX {
            return fault("no whole product");
        }
        let mut started =
            Started { to: to.clone(), registers: vec![], shared: vec![], text: text.to_string() };
        let mut rows = vec![[0f64; 16]; 16];
        let mut digest = 0;
        if let [descriptor] = &a[..] {
            let first = 16 * (warp as u64 % 4);
            let descriptor = self.same(warp, mask, descriptor)?;
            rows =
                self.read_operand(&mut started, places(descriptor, first..first + 16, false)?)?;
            digest = descriptor;
        } else {
            for (at, operand) in a.iter().enumerate() {
                let values = self.fetch(warp, operand);
                for (lane, pair) in values.iter().enumerate() {
                    let (row, k) = place_in_a(lane, at);
                    rows[row][k] = Format::Bf16.widen(*pair).into();
                    rows[row][k + 1] = Format::Bf16.widen(pair >> 16).into();
                }
                started.registers.push((operand.clone(), values));
            }
        }
        let descriptor = self.same(warp, mask, b)?;
        let of_b =
            self.read_operand(&mut started, places(descriptor, 0..*columns as u64, *transposed)?)?;
        let adds = self.same(warp, mask, adds)? & 1 == 1;
        let sums = self.sums_before(warp, to)?;
        let mut results = vec![[0; 32]; to.len()];
        for (at, result) in results.iter_mut().enumerate() {
            for lane in 0..32 {
                let (row, column) =
                    (lane / 4 + 8 * (at / 2 % 2), 8 * (at / 4) + 2 * (lane % 4) + at % 2);
                let products = rows[row].iter().zip(&of_b[column]).map(|(a, b)| a * b);
                let before = if adds { f32::from_bits(sums[at][lane] as u32) } else { 0.0 };
                let sum = products.sum::<f64>() + f64::from(before);
                result[lane] = u64::from((sum as f32).to_bits());
            }
        }
        to.iter()
            .for_each(|register| self.put(warp, mask, *register, &[IN_FLIGHT; 32]));
        let own = &mut self.products[warp];
        own.executed = (own.executed ^ digest ^ descriptor.rotate_left(17) ^ *columns as u64)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
        let entry = own.sums.entry(to.clone()).or_default();
        *entry = (results, entry.1 + 1);
        own.open.push(started);
        Ok(())
    }

    /// Numbers of an operand, which are kept to see whether they change.
    fn read_operand(
        &self,
        started: &mut Started,
        places: Vec<[u64; 16]>,
    ) -> Result<Vec<[f64; 16]>, Fault> {
        let mut numbers = vec![[0f64; 16]; places.len()];
        for (row, places) in numbers.iter_mut().zip(places) {
            for (number, place) in row.iter_mut().zip(places) {
                let bits = self.half_at(place)?;
                started.shared.push((place, bits));
                *number = Format::Bf16.widen(bits.into()).into();
            }
        }
        Ok(numbers)
    }

    fn half_at(&self, place: u64) -> Result<u16, Fault> {
        let bytes = self.memory.load(Space::Shared, place, 2)?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    /// Sums that a product adds to: those in flight in its registers, or the registers.
    fn sums_before(&self, warp: usize, to: &[usize]) -> Result<Vec<Lanes>, Fault> {
        let own = &self.products[warp];
        if let Some((sums, _)) = own.sums.get(to) {
            return Ok(sums.clone());
        }
        if own
            .sums
            .keys()
            .flatten()
            .any(|register| to.contains(register))
        {
            return fault("the sums are in flight with another shape");
        }
        Ok(to
            .iter()
            .map(|register| self.fetch(warp, &Operand::Register(*register)))
            .collect())
    }

    /// Completes all groups but the last `pending`.
    pub fn finish_products(&mut self, warp: usize, pending: usize) -> Result<(), Fault> {
        while self.products[warp].groups.len() > pending {
            for started in self.products[warp].groups.pop_front().unwrap() {
                self.finish_product(warp, started)?;
            }
        }
        Ok(())
    }

    fn finish_product(&mut self, warp: usize, started: Started) -> Result<(), Fault> {
        let Started { to, registers, shared, text } = started;
        let changed = registers
            .iter()
            .any(|(operand, values)| self.fetch(warp, operand) != *values);
        if changed {
            return fault(format!("operands in registers changed during `{text}`"));
        }
        for (place, bits) in shared {
            if self.half_at(place)? != bits {
                return fault(format!("byte {place} of shared memory changed during `{text}`"));
            }
        }
        let own = &mut self.products[warp];
        let (_, count) = own.sums.get_mut(&to).expect("its sums");
        *count -= 1;
        if *count > 0 {
            return Ok(());
        }
        let (sums, _) = own.sums.remove(&to).expect("its sums");
        for (register, values) in to.iter().zip(&sums) {
            if self.fetch(warp, &Operand::Register(*register)) != [IN_FLIGHT; 32] {
                return fault(format!("a sum was written during `{text}`"));
            }
            self.put(warp, u32::MAX, *register, values);
        }
        Ok(())
    }
}
