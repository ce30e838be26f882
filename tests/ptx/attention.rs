//! Attention by mma, by wgmma and without tensor cores, forward and backward, against the definition in f64.

use crate::machine::{Launch, Order, launch, run_block};
use crate::memory::{Arguments, Fault, Global};
use crate::modules::Modules;
use crate::random::Random;
use crate::tensor_map::TensorMap;
use half::{bf16, f16};

/// Kernels of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Mma,
    MmaInF16,
    /// Without tensor cores, in bf16.
    Ordinary,
    Wgmma,
    /// Forward's warpgroups issue products in alternation.
    PingPong,
}

/// Keys that a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    Causal,
    /// The last keys up to its own.
    Window(usize),
    /// Documents of that length.
    Documents(usize),
    /// Ranges of any length, some empty.
    Ragged,
}

/// Part of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Forward,
    Keys,
    Queries,
}

pub const PARTS: [Part; 3] = [Part::Forward, Part::Keys, Part::Queries];

#[derive(Clone, Debug)]
pub struct Case {
    pub kind: Kind,
    pub d: usize,
    pub samples: usize,
    pub seq: usize,
    pub heads: usize,
    pub kv: usize,
    pub mask: Mask,
    pub alibi: bool,
    pub dropout: f64,
    pub order: Order,
}

impl Case {
    pub fn new(kind: Kind, d: usize, [samples, seq, heads, kv]: [usize; 4]) -> Case {
        let order = Order::Lowest;
        let mask = Mask::Causal;
        Case { kind, d, samples, seq, heads, kv, mask, alibi: false, dropout: 0.0, order }
    }

    pub fn mask(self, mask: Mask) -> Case {
        Case { mask, ..self }
    }

    pub fn alibi(self) -> Case {
        Case { alibi: true, ..self }
    }

    pub fn dropout(self, dropout: f64) -> Case {
        Case { dropout, ..self }
    }

    pub fn random(self, seed: u64) -> Case {
        Case { order: Order::Random(seed), ..self }
    }

    fn rows(&self) -> usize {
        self.samples * self.seq
    }

    fn serves(&self) -> usize {
        self.heads / self.kv
    }

    /// Half-open ranges of visible keys, of a query of any sample.
    fn sees(&self, query: usize) -> (usize, usize) {
        match self.mask {
            Mask::Causal => (0, query + 1),
            Mask::Window(window) => ((query + 1).saturating_sub(window), query + 1),
            Mask::Documents(length) => (query / length * length, query + 1),
            Mask::Ragged if query % 11 == 5 => (0, 0),
            Mask::Ragged => (query.saturating_sub(20), (query + 7).min(self.seq)),
        }
    }

    fn slope(&self, head: usize) -> f32 {
        2f32.powf(-8.0 * (head + 1) as f32 / self.heads as f32)
    }

    fn scale(&self) -> f32 {
        1.0 / (self.d as f32).sqrt()
    }

    fn bound(&self) -> u32 {
        (self.dropout * 2f64.powi(32)).ceil() as u32
    }

    fn narrow(&self, x: f64) -> u16 {
        match self.kind {
            Kind::MmaInF16 => f16::from_f64(x).to_bits(),
            _ => bf16::from_f64(x).to_bits(),
        }
    }

    fn widen(&self, bits: u16) -> f64 {
        match self.kind {
            Kind::MmaInF16 => f16::from_bits(bits).to_f64(),
            _ => bf16::from_bits(bits).to_f64(),
        }
    }

    /// Largest error that rounding explains, of the largest number.
    pub fn bound_of_error(&self) -> f64 {
        if self.kind == Kind::MmaInF16 { 4e-3 } else { 2e-2 }
    }
}

const KEY: u64 = 0x1234_5678_9abc_def0;
/// First sample of the batch in the run, for dropout's mask.
const FIRST_SAMPLE: i64 = 3;

/// Four random words of Philox 4×32-10 (Salmon et al., 2011).
fn philox(key: u64, row: u64, head: u32, quad: u32) -> [u32; 4] {
    let mut x = [quad, head, row as u32, (row >> 32) as u32];
    let mut k = [key as u32, (key >> 32) as u32];
    for _ in 0..10 {
        let a = u64::from(x[0]) * 0xd251_1f53;
        let b = u64::from(x[2]) * 0xcd9e_8d57;
        x = [(b >> 32) as u32 ^ x[1] ^ k[0], b as u32, (a >> 32) as u32 ^ x[3] ^ k[1], a as u32];
        k = [k[0].wrapping_add(0x9e37_79b9), k[1].wrapping_add(0xbb67_ae85)];
    }
    x
}

/// Tensors of a case, and what the definition gives.
pub struct Tensors {
    /// [rows, kv, serves + 2, d]
    qkv: Vec<u16>,
    /// [rows, heads, d]
    dy: Vec<u16>,
    y: Vec<f64>,
    /// [rows, heads]
    lse: Vec<f64>,
    delta: Vec<f64>,
    /// Like qkv
    dqkv: Vec<f64>,
}

impl Tensors {
    pub fn new(case: &Case) -> Tensors {
        let mut random = Random((case.d * 1000 + case.seq) as u64);
        let mut draw = |count: usize| -> Vec<u16> {
            random
                .normals(count)
                .into_iter()
                .map(|x| case.narrow(x))
                .collect()
        };
        let (rows, width) = (case.rows(), case.heads * case.d);
        let qkv = draw(rows * case.kv * (case.serves() + 2) * case.d);
        let dy = draw(rows * width);
        let mut of = Tensors {
            y: vec![0.0; rows * width],
            lse: vec![0.0; rows * case.heads],
            delta: vec![0.0; rows * case.heads],
            dqkv: vec![0.0; qkv.len()],
            qkv,
            dy,
        };
        for sample in 0..case.samples {
            for head in 0..case.heads {
                of.define(case, sample, head);
            }
        }
        of
    }

    /// One head of one sample by the definition.
    fn define(&mut self, case: &Case, sample: usize, head: usize) {
        let Case { d, seq, heads, .. } = *case;
        let (group, serves) = (head / case.serves(), case.serves());
        // First element of a row's query, key or value, and of its output.
        let place = |position: usize, part: usize| {
            ((sample * seq + position) * case.kv + group) * (serves + 2) * d + part * d
        };
        let out = |position: usize| ((sample * seq + position) * heads + head) * d;
        let row = |tensor: &[u16], at: usize| -> Vec<f64> {
            tensor[at..at + d]
                .iter()
                .map(|bits| case.widen(*bits))
                .collect()
        };
        let rows = |part: usize| -> Vec<Vec<f64>> {
            (0..seq)
                .map(|position| row(&self.qkv, place(position, part)))
                .collect()
        };
        let [queries, keys, values] = [head % serves, serves, serves + 1].map(rows);
        let (scale, slope) = (f64::from(case.scale()), f64::from(case.slope(head)));
        let kept = 1.0 / (1.0 - case.dropout);
        for (query, own) in queries.iter().enumerate() {
            let (first, last) = case.sees(query);
            let statistic = (sample * seq + query) * heads + head;
            if first >= last {
                self.lse[statistic] = f64::NEG_INFINITY;
                continue;
            }
            let score = |key: usize| {
                let bias = if case.alibi { slope * (key as f64 - query as f64) } else { 0.0 };
                dot(own, &keys[key]) * scale + bias
            };
            let scores: Vec<f64> = (first..last).map(score).collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
            self.lse[statistic] = largest + sum.ln();
            let row_of_run = (FIRST_SAMPLE as usize * seq + sample * seq + query) as u64;
            let factor = |key: usize| match case.bound() {
                0 => 1.0,
                bound => {
                    let words = philox(KEY, row_of_run, head as u32, key as u32 / 4);
                    if words[key % 4] < bound { 0.0 } else { kept }
                }
            };
            let dy = row(&self.dy, out(query));
            // Probabilities, dropout's factors, and the gradients of the products of both.
            let terms: Vec<[f64; 3]> = (first..last)
                .zip(&scores)
                .map(|(key, score)| {
                    let factor = factor(key);
                    [(score - largest).exp() / sum, factor, dot(&dy, &values[key]) * factor]
                })
                .collect();
            let delta: f64 = terms.iter().map(|[p, _, dp]| p * dp).sum();
            self.delta[statistic] = delta;
            for (key, [p, factor, dp]) in (first..last).zip(terms) {
                add(&mut self.y[out(query)..][..d], p * factor, &values[key]);
                let ds = p * (dp - delta) * scale;
                add(&mut self.dqkv[place(query, head % serves)..][..d], ds, &keys[key]);
                add(&mut self.dqkv[place(key, serves)..][..d], ds, own);
                add(&mut self.dqkv[place(key, serves + 1)..][..d], p * factor, &dy);
            }
        }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(to: &mut [f64], factor: f64, x: &[f64]) {
    to.iter_mut().zip(x).for_each(|(to, x)| *to += factor * x);
}

/// Kernel of a part, and its launch, as `src/device/cuda/attention` has them.
struct Kernel {
    file: &'static str,
    name: String,
    tile: usize,
    threads: usize,
    shared: usize,
}

impl Kernel {
    fn of(case: &Case, part: Part) -> Kernel {
        let d = case.d;
        let which = ["", "_kv", "_q"][part as usize];
        if matches!(case.kind, Kind::Wgmma | Kind::PingPong) {
            let row = 2 * d.next_multiple_of(piece(d));
            let keys = if d <= 128 { 128 } else { 64 };
            let shared = match part {
                Part::Forward => (128 + 4 * keys) * row + 8 * 128,
                Part::Keys => 512 * row + 2 * 16 * 65,
                Part::Queries => 512 * row + 8 * 128,
            };
            let file = match part {
                Part::Forward => "attention_hopper.90a",
                _ => "attention_hopper_backward.90a",
            };
            let name = format!("attention{which}_wgmma_{d}");
            return Kernel { file, name, tile: 128, threads: 384, shared: shared + 128 + 1024 };
        }
        if case.kind == Kind::Ordinary {
            let lanes = d.div_ceil(64).next_power_of_two() * 4;
            let tiles = if part == Part::Forward { 3 } else { 4 };
            let shared = tiles * 4 * 32 * (d + 1) + 4 * (2 * 32 * 33 + 3 * 32) + 8 * 32 + 16;
            let name = format!("attention{which}_{lanes}_bf16");
            return Kernel { file: "attention.80", name, tile: 32, threads: 256, shared };
        }
        let dtype = if case.kind == Kind::Mma { "bf16" } else { "f16" };
        let d = [32, 64, 80, 96, 128, 160]
            .into_iter()
            .find(|width| d <= *width)
            .unwrap();
        let (own, streamed, kept) = match part {
            Part::Forward => {
                let own = if d <= 128 { 128 } else { 64 };
                (own, own + 2 * if d <= 80 { 64 } else { 32 }, 8 * own)
            }
            Part::Keys => {
                let own = if d <= 64 { 128 } else { 64 };
                let queries = if d == 64 || d == 160 { 16 } else { 32 };
                (own, 2 * own + 4 * queries, 2 * 16 * queries)
            }
            Part::Queries => {
                let own = if d <= 64 { 128 } else { 64 };
                (own, 2 * own + 4 * if (65..=96).contains(&d) { 64 } else { 32 }, 8 * own)
            }
        };
        let shared = streamed * 2 * (d + 8) + kept + 16;
        let name = format!("attention{which}_mma_{d}_{dtype}");
        Kernel { file: "attention_mma.80", name, tile: own, threads: 128, shared }
    }
}

/// Columns of a head that are contiguous in shared memory.
fn piece(d: usize) -> usize {
    if d.is_multiple_of(64) { 64 } else { 32 }
}

/// Tensors in the machine's memory, by address.
struct Places {
    qkv: u64,
    y: u64,
    lse: u64,
    dy: u64,
    delta: u64,
    dqkv: u64,
    ranges: u64,
    slopes: u64,
    first: u64,
}

impl Places {
    fn new(case: &Case, of: &Tensors, global: &mut Global, part: Part) -> Places {
        let nothing = |count: usize| vec![0x7fffu16; count];
        let given: Vec<f32> = of.lse.iter().map(|x| *x as f32).collect();
        let lse = if part == Part::Forward { vec![f32::NAN; given.len()] } else { given };
        let ranges: Vec<i32> = (0..case.rows())
            .flat_map(|row| {
                let (first, last) = case.sees(row % case.seq);
                [first as i32, last as i32]
            })
            .collect();
        let ranged = matches!(case.mask, Mask::Documents(_) | Mask::Ragged);
        let slopes: Vec<f32> = (0..case.heads).map(|head| case.slope(head)).collect();
        let delta: Vec<f32> = of.delta.iter().map(|x| *x as f32).collect();
        Places {
            qkv: global.add("qkv", &of.qkv),
            y: global.add("y", &nothing(of.y.len())),
            lse: global.add("lse", &lse),
            dy: global.add("dy", &of.dy),
            delta: global.add("delta", &delta),
            dqkv: global.add("dqkv", &nothing(of.qkv.len())),
            ranges: if ranged { global.add("ranges", &ranges) } else { 0 },
            slopes: if case.alibi { global.add("slopes", &slopes) } else { 0 },
            first: global.add("first sample", &[FIRST_SAMPLE]),
        }
    }

    fn arguments(&self, case: &Case) -> Vec<u8> {
        let Case { seq, heads, kv, d, .. } = *case;
        let serves = case.serves();
        let inverse = if serves == 1 { 0 } else { (1usize << 32).div_ceil(serves) };
        let window = if let Mask::Window(window) = case.mask { window } else { seq };
        let numbers = [seq, heads, kv, serves, inverse, 0, d, window].map(|number| number as u32);
        let Places { qkv, y, lse, dy, delta, dqkv, ranges, slopes, first } = *self;
        let attention = Arguments::default()
            .with(&[qkv, y, lse, dy, delta, dqkv, ranges, slopes])
            .with(&[case.rows() as u64])
            .with(&numbers)
            .with(&[case.scale()])
            .with(&[KEY, first, seq as u64, 0])
            .with(&[case.bound()])
            .with(&[(1.0 / (1.0 - case.dropout)) as f32])
            .bytes(152, 8);
        if matches!(case.kind, Kind::Mma | Kind::MmaInF16 | Kind::Ordinary) {
            return attention;
        }
        let map = |start: u64, parts: usize| {
            let piece = piece(d) as u64;
            let [d, parts, seq] = [d, parts, seq].map(|number| number as u64);
            let sizes = [d, parts, seq, case.samples as u64];
            let strides = [2 * d, 2 * d * parts, 2 * d * parts * seq];
            TensorMap { start, sizes, strides, columns: piece, rows: 64, swizzle: 2 * piece }
                .bytes()
        };
        let ping_pong = u32::from(case.kind == Kind::PingPong).to_le_bytes();
        let all =
            [map(qkv, heads + 2 * kv), map(dy, heads), attention, ping_pong.to_vec()].concat();
        Arguments::default().with(&all).bytes(448, 64)
    }
}

/// Largest errors of a part, of the largest number of their tensor: y and lse; dk and dv; or dq. NaN is
/// infinite.
pub fn errors(modules: &Modules, case: &Case, of: &Tensors, part: Part) -> Result<Vec<f64>, Fault> {
    let kernel = Kernel::of(case, part);
    let program = modules.program(kernel.file, &kernel.name)?;
    let mut global = Global::default();
    let places = Places::new(case, of, &mut global, part);
    let heads = if part == Part::Keys { case.kv } else { case.heads };
    let parameters = places.arguments(case);
    let start = Launch {
        grid: [case.seq.div_ceil(kernel.tile), heads, case.samples],
        block: [kernel.threads, 1],
        shared: kernel.shared,
        parameters: &parameters,
        order: case.order,
    };
    launch(&program, &mut global, &start)?;
    let read = |address: u64| -> Vec<f64> {
        global
            .read::<u16>(address)
            .into_iter()
            .map(|bits| case.widen(bits))
            .collect()
    };
    if part == Part::Forward {
        let lse: Vec<f64> = global
            .read::<f32>(places.lse)
            .into_iter()
            .map(f64::from)
            .collect();
        return Ok(vec![error(&read(places.y), &of.y), error(&lse, &of.lse)]);
    }
    let dqkv = read(places.dqkv);
    let (serves, d) = (case.serves(), case.d);
    let of_parts = |range: std::ops::Range<usize>| {
        let pick = |tensor: &[f64]| -> Vec<f64> {
            let groups = tensor.chunks_exact((serves + 2) * d);
            groups
                .flat_map(|group| group[range.start * d..range.end * d].to_vec())
                .collect()
        };
        error(&pick(&dqkv), &pick(&of.dqkv))
    };
    Ok(match part {
        Part::Queries => vec![of_parts(0..serves)],
        _ => vec![of_parts(serves..serves + 1), of_parts(serves + 1..serves + 2)],
    })
}

/// Largest difference, of the largest number, or of 0.01 where the definition gives zeros: the gradients of a
/// query with one key. What is infinite must be so in both.
fn error(got: &[f64], want: &[f64]) -> f64 {
    let largest = want
        .iter()
        .filter(|x| x.is_finite())
        .fold(0f64, |most, x| most.max(x.abs()));
    let differences =
        got.iter()
            .zip(want)
            .map(|(got, want)| match (got == want, (got - want).abs()) {
                (true, _) => 0.0,
                (false, difference) if difference.is_finite() => difference,
                (false, _) => f64::INFINITY,
            });
    differences.fold(0.0, f64::max) / largest.max(0.01)
}

/// Instructions that a warp of a block issues per 128 streamed positions: of the warp that issues most, with
/// nothing but the causal mask.
pub fn instructions_per_tile(
    modules: &Modules,
    kind: Kind,
    d: usize,
    part: Part,
) -> Result<u64, Fault> {
    let most = |seq: usize| {
        let case = Case::new(kind, d, [1, seq, 1, 1]);
        let kernel = Kernel::of(&case, part);
        let program = modules.program(kernel.file, &kernel.name)?;
        let zeros = |count: usize| vec![0.0; count];
        let tensors = Tensors {
            qkv: vec![0; 3 * seq * d],
            dy: vec![0; seq * d],
            y: zeros(seq * d),
            lse: vec![8.0; seq],
            delta: zeros(seq),
            dqkv: Vec::new(),
        };
        let blocks = seq.div_ceil(kernel.tile);
        // The first or the last streams all positions.
        let mut most = 0;
        for block in [0, blocks - 1] {
            let mut global = Global::default();
            let parameters = Places::new(&case, &tensors, &mut global, part).arguments(&case);
            let start = Launch {
                grid: [blocks, 1, 1],
                block: [kernel.threads, 1],
                shared: kernel.shared,
                parameters: &parameters,
                order: Order::Lowest,
            };
            let issued = run_block(&program, &mut global, &start, [block, 0, 0])?;
            most = most.max(issued.into_iter().max().unwrap());
        }
        Ok(most)
    };
    Ok((most(768)? - most(512)?) / 2)
}
