//! AdamW with 8-bit moments: decodes, updates and encodes in one pass over memory, 512 elements at
//! a time.

use super::Cpu;
use super::math::vectorised;
use super::memory::{BLOCK, Block, load, load_bytes, store, store_bytes};
use super::optimizer::{Update, update};
use crate::dynamic_map::{DynamicMap, SIGNED, UNSIGNED};
use crate::{Coded, InPlace, op};

/// Maximum number of scales per block of elements.
const SCALES: usize = BLOCK / Coded::SMALLEST;

pub(super) fn adam8bit(cpu: &Cpu, op: &op::Adam8bit) {
    let op::Adam8bit { rule, scalars, grad, weight, .. } = *op;
    let InPlace(master) = op.master;
    let InPlace(m) = op.m;
    let InPlace(v) = op.v;
    let block = op.block();
    let Some(rule) = Update::new(&rule, scalars) else { return };
    let (signed, unsigned): (&DynamicMap, &DynamicMap) = (&SIGNED, &UNSIGNED);
    cpu.each_block(grad.numel(), |part| {
        let at = part.start;
        let len = part.len();
        let [mut g, mut w, mut m1, mut v1]: [Block; 4] = [[0.0; BLOCK]; 4];
        let g = &mut g[..len];
        let w = &mut w[..len];
        let m1 = &mut m1[..len];
        let v1 = &mut v1[..len];
        load(grad, at, g);
        load(master, at, w);
        read(signed, m, at, block, m1);
        read(unsigned, v, at, block, v1);
        square(v1);
        update(&rule, g, w, m1, v1);
        root(v1);
        store(w, master, at);
        write(signed, m, at, block, m1);
        write(unsigned, v, at, block, v1);
        if let Some(weight) = weight {
            store(w, weight.to, at);
        }
    });
}

fn read(map: &DynamicMap, from: Coded, at: usize, block: usize, to: &mut [f32]) {
    let mut codes = [0; BLOCK];
    let mut scales = [0.0; SCALES];
    let codes = &mut codes[..to.len()];
    let scales = &mut scales[..to.len() / block];
    load_bytes(from.codes, at, codes);
    load(from.scales, at / block, scales);
    decode(map, block, codes, scales, to);
}

/// Encodes and stores moments. Leaves the numbers divided by their scales.
fn write(map: &DynamicMap, to: Coded, at: usize, block: usize, from: &mut [f32]) {
    let mut codes = [0; BLOCK];
    let mut scales = [0.0; SCALES];
    let codes = &mut codes[..from.len()];
    let scales = &mut scales[..from.len() / block];
    encode(map, block, from, codes, scales);
    store_bytes(codes, to.codes, at);
    store(scales, to.scales, at / block);
}

vectorised! {
    fn square(x: &mut [f32]) {
        for x in x {
            *x *= *x;
        }
    }

    fn root(x: &mut [f32]) {
        for x in x {
            *x = x.sqrt();
        }
    }

    fn decode(map: &DynamicMap, block: usize, codes: &[u8], scales: &[f32], x: &mut [f32]) {
        let blocks = x.chunks_exact_mut(block).zip(codes.chunks_exact(block)).zip(scales);
        for ((x, codes), scale) in blocks {
            for (x, code) in x.iter_mut().zip(codes) {
                *x = map.values[*code as usize] * scale;
            }
        }
    }

    fn encode(map: &DynamicMap, block: usize, x: &mut [f32], codes: &mut [u8], scales: &mut [f32]) {
        for (x, scale) in x.chunks_exact_mut(block).zip(scales.iter_mut()) {
            let mut lanes = [0.0f32; Coded::SMALLEST];
            for x in x.chunks_exact(Coded::SMALLEST) {
                for i in 0..Coded::SMALLEST {
                    let size = x[i].abs();
                    lanes[i] = if size > lanes[i] { size } else { lanes[i] };
                }
            }
            *scale = lanes.into_iter().fold(0.0, |a: f32, b| if b > a { b } else { a });
            let by = if *scale > 0.0 { *scale } else { 1.0 };
            for x in x {
                *x /= by;
            }
        }
        for (code, x) in codes.iter_mut().zip(x) {
            *code = map.code(*x);
        }
    }
}
