//! 8-bit numbers: a code per number, and a scale per block. Codes use bitsandbytes' dynamic map
//! (Dettmers et al. 2022; `create_dynamic_map` of bitsandbytes 0.50): seven decades up to 1, each
//! with twice as many numbers as the previous one, and 0.
//!
//! The nearest code is found without a search. The leading bits of a number select its bucket. No
//! bucket contains two midpoints between codes, so one comparison decides. The tables are defined
//! only here; `kernels/dynamic_map.cuh` is generated from them.

use base::div_exact;
use std::sync::LazyLock;

/// Numbers in [−1, 1]: code 127 is 0. For first moments.
pub static SIGNED: LazyLock<DynamicMap> = LazyLock::new(|| DynamicMap::new(true));
/// Numbers in [0, 1]: code 0 is exactly 0. A number above 0 has at least code 1. For square roots
/// of second moments, by which an update divides.
pub static UNSIGNED: LazyLock<DynamicMap> = LazyLock::new(|| DynamicMap::new(false));

/// Decades of a map, up to 1.
const DECADES: usize = 7;
/// Approximate binary exponent of the second bucket's end; all smaller numbers are in the first.
const LOWEST: u32 = 127 - 22;
/// Buckets of both maps, padded so that they can be copied by words.
const BUCKETS: usize = 2820;

/// Mapping from code to number, and from number to nearest code.
#[derive(Clone, Debug)]
pub struct DynamicMap {
    /// Numbers by code, ascending.
    pub values: [f32; 256],
    /// Largest f32 not above the midpoint of codes c and c + 1: a larger number has a code above c.
    /// A number on a midpoint has the lower code.
    pub midpoints: [f32; 256],
    /// Code of each bucket's lowest number. Buckets of negative numbers come last.
    first: [u8; BUCKETS],
    buckets: Buckets,
}

/// Assignment of numbers in [−1, 1] to buckets.
#[derive(Clone, Copy, Debug)]
struct Buckets {
    /// Number of ignored fraction bits.
    shift: u32,
    /// Start of the first bucket, in units of the remaining bits.
    low: u32,
    /// Number of buckets per sign.
    count: u32,
}

impl Buckets {
    /// Buckets narrower than half the distance of two codes near 1.
    fn new(signed: bool) -> Buckets {
        let bits = if signed { 6 } else { 7 };
        Buckets { shift: 23 - bits, low: LOWEST << bits, count: (22 << bits) + 1 }
    }

    #[inline(always)]
    fn index(self, x: f32) -> u32 {
        let bits = x.to_bits();
        let size = (bits & 0x7fff_ffff) >> self.shift;
        size.saturating_sub(self.low) + (bits >> 31) * self.count
    }

    /// Lowest number of a bucket.
    fn lowest(self, bucket: u32) -> f32 {
        match bucket.checked_sub(self.count) {
            None if bucket == 0 => 0.0,
            None => f32::from_bits((bucket + self.low) << self.shift),
            Some(negative) => -f32::from_bits(((negative + self.low + 1) << self.shift) - 1),
        }
    }
}

impl DynamicMap {
    fn new(signed: bool) -> DynamicMap {
        let values = values(signed);
        let mut midpoints = [f32::MAX; 256];
        for (midpoint, pair) in midpoints.iter_mut().zip(values.windows(2)) {
            let exact = (f64::from(pair[0]) + f64::from(pair[1])) / 2.0;
            let near = exact as f32;
            *midpoint = if f64::from(near) > exact { near.next_down() } else { near };
        }
        if !signed {
            midpoints[0] = 0.0;
        }
        let buckets = Buckets::new(signed);
        let mut first = [0; BUCKETS];
        let used = if signed { 2 * buckets.count } else { buckets.count };
        for (bucket, first) in (0..used).zip(&mut first) {
            let lowest = buckets.lowest(bucket);
            *first = midpoints.partition_point(|midpoint| *midpoint < lowest) as u8;
        }
        DynamicMap { values, midpoints, first, buckets }
    }

    /// Nearest code of a number in the range of the map.
    #[inline(always)]
    pub fn code(&self, x: f32) -> u8 {
        let first = self.first[(self.buckets.index(x) as usize).min(BUCKETS - 1)];
        first + u8::from(x > self.midpoints[first as usize])
    }

    /// Encodes `x` with a scale per block: its largest magnitude.
    pub fn encode(&self, x: &[f32], block: usize) -> (Vec<u8>, Vec<f32>) {
        let scales: Vec<f32> = x
            .chunks(block)
            .map(|x| x.iter().fold(0.0f32, |most, x| most.max(x.abs())))
            .collect();
        let code = |x: &f32, scale: f32| self.code(x / if scale > 0.0 { scale } else { 1.0 });
        let blocks = x.chunks(block).zip(&scales);
        (
            blocks
                .flat_map(|(x, scale)| x.iter().map(|x| code(x, *scale)))
                .collect(),
            scales,
        )
    }

    /// Numbers of codes.
    pub fn decode(&self, codes: &[u8], scales: &[f32]) -> Vec<f32> {
        let block = div_exact(codes.len(), scales.len());
        let mut numbers = Vec::with_capacity(codes.len());
        for (codes, scale) in codes.chunks(block).zip(scales) {
            numbers.extend(codes.iter().map(|code| self.values[*code as usize] * scale));
        }
        numbers
    }
}

/// Numbers of a map, as PyTorch computes them in f32: the midpoints of equal parts of [0.1, 1],
/// times a power of ten. Decade i of the signed map has 2ⁱ, of the unsigned map 2ⁱ⁺¹.
fn values(signed: bool) -> [f32; 256] {
    let mut positive = Vec::new();
    for (decade, power) in [1e-6f32, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0]
        .into_iter()
        .enumerate()
    {
        let parts = 1usize << if signed { decade } else { decade + 1 };
        let width = (1.0 - 0.1f32) / parts as f32;
        // torch.linspace: computed from the nearer end, rounded once.
        let bound = |k: usize| {
            if k < parts.div_ceil(2) {
                width.mul_add(k as f32, 0.1)
            } else {
                (-width).mul_add((parts - k) as f32, 1.0)
            }
        };
        positive.extend((0..parts).map(|k| power * ((bound(k) + bound(k + 1)) / 2.0)));
    }
    assert_eq!(positive.len(), if signed { (1 << DECADES) - 1 } else { (2 << DECADES) - 2 });
    let negative = positive.iter().rev().map(|x| -x).filter(|_| signed);
    let all = negative
        .chain([0.0])
        .chain(positive.iter().copied())
        .chain([1.0]);
    all.collect::<Vec<_>>().try_into().expect("256 numbers")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    fn both() -> [&'static DynamicMap; 2] {
        [&SIGNED, &UNSIGNED]
    }

    /// `tests/fixtures/bitsandbytes/maps.f32`: the signed map, then the unsigned.
    #[test]
    fn the_maps_are_those_of_bitsandbytes() {
        let stored: Vec<u32> = include_bytes!("../../tests/fixtures/bitsandbytes/maps.f32")
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .map(f32::to_bits)
            .collect();
        let ours = both()
            .into_iter()
            .flat_map(|map| map.values.map(f32::to_bits));
        assert_eq!(ours.collect::<Vec<_>>(), stored);
    }

    /// Nearest of 256 numbers; the lower of two equally near ones; above 0 never 0.
    fn nearest(map: &DynamicMap, x: f32) -> u8 {
        let off = |code: &u8| (f64::from(map.values[*code as usize]) - f64::from(x)).abs();
        let code = (0..=255u8)
            .min_by(|a, b| off(a).total_cmp(&off(b)).then(a.cmp(b)))
            .unwrap();
        let unsigned = map.values[0] == 0.0;
        if unsigned { code.max(u8::from(x > 0.0)) } else { code }
    }

    #[test]
    fn codes_are_the_nearest() {
        for map in both() {
            let mut at: Vec<f32> = map
                .values
                .iter()
                .chain(&map.midpoints[..255])
                .copied()
                .collect();
            let used = (0..2 * map.buckets.count).filter(|b| (*b as usize) < BUCKETS);
            at.extend(used.map(|bucket| map.buckets.lowest(bucket)));
            let mut near: Vec<f32> = at
                .into_iter()
                .flat_map(|x| [x.next_down(), x, x.next_up()])
                .collect();
            let random = (0..20_000u32).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761)));
            near.extend(random.chain([-0.0, f32::from_bits(1), -f32::from_bits(1), 1e-30]));
            let range = map.values[0].min(-map.values[0].abs().ceil())..=1.0;
            for x in near.into_iter().filter(|x| range.contains(x)) {
                assert_eq!(map.code(x), nearest(map, x), "{x:e}");
            }
        }
        assert_eq!((SIGNED.code(0.0), SIGNED.code(-1.0), SIGNED.code(1.0)), (127, 0, 255));
    }

    #[test]
    fn what_is_decoded_is_encoded_as_it_was() {
        let codes: Vec<u8> = (0..=255).collect();
        for map in both() {
            let scales = [0.3, 1e-20, 2e10, 1.0];
            let x = map.decode(&codes, &scales);
            let exact = |i: usize| x[i] == map.values[i] * scales[i / 64];
            assert!((0..256).all(exact));
            let whole = map.encode(&map.decode(&codes, &[7.0]), 256);
            assert_eq!(whole, (codes.clone(), vec![7.0]));
        }
        assert_eq!(SIGNED.encode(&[0.0, -0.0], 2), (vec![127, 127], vec![0.0]));
        assert_eq!(UNSIGNED.encode(&[0.0, 1e-30, 1.0, 0.5], 4).0[..3], [0, 1, 255]);
    }

    /// Text of `kernels/dynamic_map.cuh`.
    fn header() -> String {
        let mut text = format!(
            "\
// Maps of 8-bit numbers. Made from src/device/dynamic_map.rs, which describes the search of a code:
//     UPDATE=1 cargo test --lib dynamic_map
#pragma once

struct DynamicMap {{
    float values[256], midpoints[256];
    uint8_t first[{BUCKETS}];
    // Buckets: ignored low bits, number before the first one, and count per sign.
    uint32_t shift, low, count;
}};
"
        );
        for (name, map) in ["SIGNED_MAP", "UNSIGNED_MAP"].into_iter().zip(both()) {
            let float = |x: &f32| format!("{x:e}f");
            let Buckets { shift, low, count } = map.buckets;
            let lists = [
                map.values.iter().map(float).collect::<Vec<_>>(),
                map.midpoints.iter().map(float).collect(),
                map.first.iter().map(u8::to_string).collect(),
            ];
            let _ = write!(text, "\n__device__ const DynamicMap {name} = {{");
            for list in lists {
                text += "{";
                let mut width = 100;
                for item in list {
                    width += item.len() + 1;
                    if width > 96 {
                        width = 4 + item.len() + 1;
                        text += "\n    ";
                    }
                    text += &item;
                    text.push(',');
                }
                text += "},\n   ";
            }
            let _ = writeln!(text, " {shift}, {low}, {count}}};");
        }
        text
    }

    #[test]
    fn the_dynamic_map_of_kernels_is_made_from_this_table() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels/dynamic_map.cuh");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(file, header()).unwrap();
        }
        let remedy = "stale: UPDATE=1 cargo test --lib dynamic_map";
        assert!(std::fs::read_to_string(file).is_ok_and(|text| text == header()), "{remedy}");
    }
}
