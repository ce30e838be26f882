//! Bit-exact checks of the ops, for any transport.

use crate::memory::{self, Pool};
use crate::{Collective, Group, Message, World};
use base::{DType, rng};
use device::Tensor;
use half::{bf16, f16};

/// Tensor with its own memory.
pub struct Numbers {
    words: Vec<u64>,
    numel: usize,
    dtype: DType,
}

impl Numbers {
    fn new(numel: usize, dtype: DType) -> Numbers {
        Numbers { words: vec![0; (numel * dtype.size()).div_ceil(8).max(1)], numel, dtype }
    }

    pub fn f32(values: Vec<f32>) -> Numbers {
        Numbers::from_values(DType::F32, &values)
    }

    pub fn from_values(dtype: DType, values: &[f32]) -> Numbers {
        let mut numbers = Numbers::new(values.len(), dtype);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut numbers.words);
        for (i, v) in values.iter().enumerate() {
            match dtype {
                DType::F32 => bytes[4 * i..4 * i + 4].copy_from_slice(&v.to_le_bytes()),
                _ => bytes[2 * i..2 * i + 2].copy_from_slice(&half(dtype, *v).to_le_bytes()),
            }
        }
        numbers
    }

    pub fn tensor(&self) -> Tensor {
        Tensor::at(self.words.as_ptr() as usize, 1, self.numel, self.dtype)
    }

    pub fn to_f32(&self) -> Vec<f32> {
        values(self.tensor())
    }
}

fn values(x: Tensor) -> Vec<f32> {
    let mut bytes = Pool::default().take(x.bytes());
    memory::read(x, &mut bytes);
    match x.dtype {
        DType::F32 => bytemuck::cast_slice(bytes.bytes()).to_vec(),
        DType::F16 => bytemuck::cast_slice::<u8, f16>(bytes.bytes())
            .iter()
            .map(|v| v.to_f32())
            .collect(),
        _ => bytemuck::cast_slice::<u8, bf16>(bytes.bytes())
            .iter()
            .map(|v| v.to_f32())
            .collect(),
    }
}

/// Bits of a number in one of the 16-bit types.
fn half(dtype: DType, x: f32) -> u16 {
    match dtype {
        DType::F16 => f16::from_f32(x).to_bits(),
        _ => bf16::from_f32(x).to_bits(),
    }
}

fn rounded(dtype: DType, x: f32) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(x).to_f32(),
        _ => bf16::from_f32(x).to_f32(),
    }
}

/// Contribution of a rank: values of very different magnitude, so that the order of a sum matters.
fn brought(rank: usize, dtype: DType, numel: usize) -> Vec<f32> {
    let mut x = vec![0.0; numel];
    rng::normals(rng::key(rank as u64, "brought"), 0, &mut x);
    let sizes = if dtype == DType::F16 { 4 } else { 7 }; // 65504 is the largest f16
    x.iter_mut()
        .enumerate()
        .for_each(|(i, v)| *v *= 10f32.powi((i as i32 + rank as i32) % sizes));
    if dtype != DType::F32 {
        x.iter_mut().for_each(|v| *v = rounded(dtype, *v));
    }
    x
}

/// Σ over ranks, in rank order, rounded once.
fn summed(size: usize, dtype: DType, numel: usize) -> Vec<f32> {
    let all: Vec<Vec<f32>> = (0..size).map(|rank| brought(rank, dtype, numel)).collect();
    (0..numel)
        .map(|i| match dtype {
            DType::F32 => all.iter().fold(0.0f64, |sum, x| sum + x[i] as f64) as f32,
            _ => rounded(dtype, all.iter().fold(0.0f32, |sum, x| sum + x[i])),
        })
        .collect()
}

/// Checks every op of a group of the whole world: all float dtypes, these lengths, in place and
/// not.
pub fn check_ops(world: &World, lengths: &[usize]) {
    let ranks: Vec<usize> = (0..world.size()).collect();
    let group = world.group("all", &ranks);
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for &length in lengths {
            check_reduce(&*group, dtype, length);
            check_parts(&*group, dtype, length, true);
            if world.size() > 1 {
                check_parts(&*group, dtype, length, false);
                check_ring(&*group, dtype, length);
                check_begun(&*group, dtype, length);
            }
        }
    }
}

pub fn check_reduce(group: &dyn Group, dtype: DType, length: usize) {
    let expected = summed(group.size(), dtype, length);
    let x = Numbers::from_values(dtype, &brought(group.rank(), dtype, length));
    let y = Numbers::from_values(dtype, &brought(group.rank(), dtype, length));
    let pending = group.begin(Collective::AllReduce(y.tensor()));
    group.all_reduce(x.tensor());
    group.finish(pending);
    assert_eq!(x.to_f32(), expected, "all_reduce of {length} {dtype} over {}", group.size());
    assert_eq!(y.to_f32(), expected, "the same on the queue");
}

/// Checks reduce_scatter and all_gather of n·`part` elements.
fn check_parts(group: &dyn Group, dtype: DType, part: usize, in_place: bool) {
    let size = group.size();
    let rank = group.rank();
    let expected = summed(size, dtype, part * size);
    let mine = brought(rank, dtype, part * size);
    let whole = Numbers::from_values(dtype, &mine);
    let apart = Numbers::new(part, dtype);
    let to = if in_place { whole.tensor().span(rank * part, part) } else { apart.tensor() };
    group.reduce_scatter(whole.tensor(), to);
    assert_eq!(values(to), expected[rank * part..][..part], "reduce_scatter, {part} {dtype}");
    if !in_place {
        assert_eq!(whole.to_f32(), mine, "the whole is only read");
    }
    group.all_gather(to, whole.tensor());
    assert_eq!(whole.to_f32(), expected, "all_gather, {part} {dtype}, in place: {in_place}");
    let pending = group.begin(Collective::ReduceScatter { whole: whole.tensor(), part: to });
    group.finish(pending);
    let pending = group.begin(Collective::AllGather { part: to, whole: whole.tensor() });
    group.finish(pending);
    assert_eq!(values(whole.tensor().span(rank * part, part)), values(to));
}

/// Every rank sends to the next; no send waits for its receiver.
fn check_ring(group: &dyn Group, dtype: DType, length: usize) {
    let size = group.size();
    let rank = group.rank();
    let x = Numbers::from_values(dtype, &brought(rank, dtype, length));
    let y = Numbers::new(length, dtype);
    group.send((rank + 1) % size, x.tensor());
    group.recv((rank + size - 1) % size, y.tensor());
    assert_eq!(y.to_f32(), brought((rank + size - 1) % size, dtype, length));
}

/// Every rank sends to both neighbours. All messages start before any is awaited, receives first.
fn check_begun(group: &dyn Group, dtype: DType, length: usize) {
    let size = group.size();
    let rank = group.rank();
    let next = (rank + 1) % size;
    let before = (rank + size - 1) % size;
    let x = Numbers::from_values(dtype, &brought(rank, dtype, length));
    let arrived = [before, next].map(|from| (from, Numbers::new(length, dtype)));
    let receives = arrived
        .each_ref()
        .map(|(from, y)| group.begin_message(Message::Recv { from: *from, x: y.tensor() }));
    let sends = [next, before].map(|to| group.begin_message(Message::Send { to, x: x.tensor() }));
    receives
        .into_iter()
        .chain(sends)
        .for_each(|pending| group.finish(pending));
    for (from, y) in arrived {
        assert_eq!(y.to_f32(), brought(from, dtype, length), "begun messages of {length} {dtype}");
    }
}
