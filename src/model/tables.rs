//! Inputs of attention besides weights and batch: ALiBi's slopes and RoPE's rotations, which are
//! constant, and the KV cache.

use super::{Cx, KvCache};
use base::DType;
use device::{Arena, Tensor};
use manifest::{Linear, Llama3, Position, Rope, RopeScaling, Yarn};
use std::f64::consts::{PI, TAU};

/// Tables of this rank; each exists only if the model needs it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tables {
    /// f32 [1, a]
    pub slopes: Option<Tensor>,
    /// f32 [R·T, head_dim], for the R rotary embeddings of the model's layers: cosines of a position's
    /// angles, then their sines. f32 in every precision: cosines rounded to bf16 are off by up to 2⁻⁹ of
    /// themselves.
    pub rotations: Option<Tensor>,
    pub kv_cache: Option<KvCache>,
}

impl Tables {
    pub fn plan(cx: &Cx, arena: &Arena) -> Tables {
        let heads = cx.heads();
        let mut tables = Tables::default();
        match cx.model.position {
            Position::Learned => {}
            Position::Alibi => tables.slopes = Some(arena.matrix(1, heads.query, DType::F32)),
            Position::Rope(_) => {
                let rows = cx.model.ropes().len() * cx.model.seq_len;
                tables.rotations = Some(arena.matrix(rows, heads.dim, DType::F32));
            }
        }
        tables
    }

    /// Writes the constant tables. Call it before the first forward.
    pub fn upload(&self, cx: &Cx) {
        // The planner makes thousands of engines: angles were 95 % of its time.
        if !cx.be.has_contents() {
            return;
        }
        if let Some(to) = self.slopes {
            let slopes = alibi_slopes(cx.model.heads().query);
            let first = to.cols * cx.tp.group.rank();
            cx.be
                .upload(bytemuck::cast_slice(&slopes[first..first + to.cols]), to);
        }
        if let Some(to) = self.rotations {
            let ropes = cx.model.ropes();
            let tables = ropes
                .iter()
                .flat_map(|rope| rotations(rope, to.cols, cx.model.seq_len));
            cx.be
                .upload(bytemuck::cast_slice(&tables.collect::<Vec<f32>>()), to);
        }
    }

    /// Rotations of a layer, f32 [T, head_dim].
    pub fn rotation(&self, cx: &Cx, layer: usize) -> Option<Tensor> {
        let table = self.rotations?;
        let rope = cx.model.rope_of(layer)?;
        let number = cx.model.ropes().iter().position(|other| *other == rope)?;
        Some(table.row_range(number * cx.model.seq_len, cx.model.seq_len))
    }
}

/// ALiBi's slopes, one per head: powers of 2^(−8/n) for n heads, if n is a power of two. Otherwise
/// the slopes of the next lower power, then every second slope of the next higher one (Press et al.
/// 2022).
pub fn alibi_slopes(heads: usize) -> Vec<f32> {
    let below = 1 << heads.ilog2();
    let powers = |n: usize| (1..=n).map(move |i| 2f64.powf(-8.0 * i as f64 / n as f64) as f32);
    powers(below)
        .chain(powers(2 * below).step_by(2))
        .take(heads)
        .collect()
}

/// Cosines and sines of position·frequency, [positions, dim]. The angle is rounded to f32, as in
/// transformers, where positions and frequencies are f32.
fn rotations(rope: &Rope, dim: usize, positions: usize) -> Vec<f32> {
    let (frequencies, factor) = frequencies(rope, dim);
    (0..positions)
        .flat_map(|position| {
            let angles = frequencies
                .iter()
                .map(move |f| (position as f32 * f) as f64);
            let cosines = angles.clone().map(f64::cos);
            cosines
                .chain(angles.map(f64::sin))
                .map(move |x| (x * factor) as f32)
        })
        .collect()
}

/// Rotation per position of each of the dim / 2 pairs, θ^(−2j/dim) before scaling, and the factor
/// of cosines and sines.
fn frequencies(rope: &Rope, dim: usize) -> (Vec<f32>, f64) {
    let plain = (0..dim / 2).map(|j| rope.theta.powf(-2.0 * j as f64 / dim as f64));
    match rope.scaling {
        None => (plain.map(|f| f as f32).collect(), 1.0),
        Some(RopeScaling::Linear(Linear { factor })) => {
            (plain.map(|f| (f / factor) as f32).collect(), 1.0)
        }
        Some(RopeScaling::Llama3(rule)) => (plain.map(|f| llama3(&rule, f) as f32).collect(), 1.0),
        Some(RopeScaling::Yarn(rule)) => {
            let ramp = yarn_ramp(&rule, rope.theta, dim);
            let scaled = plain
                .zip(ramp)
                .map(|(f, long)| f / rule.factor * long + f * (1.0 - long));
            let factor = rule
                .attention_factor
                .unwrap_or(0.1 * rule.factor.ln() + 1.0);
            (scaled.map(|f| f as f32).collect(), factor)
        }
    }
}

/// Frequency of Llama 3.1: divided by `factor` if few of its periods fit into the original length,
/// unchanged if many do, and interpolated in between.
fn llama3(rule: &Llama3, frequency: f64) -> f64 {
    let Llama3 { factor, low_freq_factor: low, high_freq_factor: high, original_seq_len } = *rule;
    let turns = original_seq_len as f64 * frequency / TAU;
    let short = ((turns - low) / (high - low)).clamp(0.0, 1.0);
    (1.0 - short) * frequency / factor + short * frequency
}

/// Weight of the scaled frequency in YaRN for each pair: from 0 for pairs with `beta_fast`
/// rotations in the original length to 1 for those with `beta_slow`.
fn yarn_ramp(rule: &Yarn, theta: f64, dim: usize) -> impl Iterator<Item = f64> + use<> {
    let length = rule.original_seq_len as f64;
    let pair = |turns: f64| dim as f64 * (length / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln());
    let first = pair(rule.beta_fast);
    let last = pair(rule.beta_slow);
    let (first, last) = if rule.truncate { (first.floor(), last.ceil()) } else { (first, last) };
    let first = first.max(0.0);
    let last = last.min(dim as f64 - 1.0);
    let width = if first == last { 0.001 } else { last - first };
    (0..dim / 2).map(move |j| ((j as f64 - first) / width).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(ours: &[f32], theirs: &[f32]) {
        for (a, b) in ours.iter().zip(theirs) {
            assert!((a / b - 1.0).abs() < 2e-6, "{ours:?} is not {theirs:?}");
        }
    }

    /// Every fourth value of `ROPE_INIT_FUNCTIONS` in transformers 5.23, for heads of 32.
    #[test]
    fn frequencies_are_those_of_transformers() {
        let of = |theta, scaling| frequencies(&Rope { theta, scaling }, 32);
        let fourth = |all: Vec<f32>| all.into_iter().step_by(4).collect::<Vec<f32>>();
        close(&fourth(of(10_000.0, None).0), &PLAIN);
        let linear = RopeScaling::Linear(Linear { factor: 4.0 });
        close(&fourth(of(10_000.0, Some(linear)).0), &PLAIN.map(|f| f / 4.0));
        let rule = Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_seq_len: 8192,
        };
        close(&of(500_000.0, Some(RopeScaling::Llama3(rule))).0, &LLAMA3);
        let rule = Yarn {
            factor: 4.0,
            original_seq_len: 2048,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: None,
            truncate: true,
        };
        let (yarn, factor) = of(10_000.0, Some(RopeScaling::Yarn(rule)));
        close(&yarn, &YARN);
        assert!((factor - YARN_FACTOR).abs() < 1e-12);
        let (between, factor) =
            of(10_000.0, Some(RopeScaling::Yarn(Yarn { truncate: false, ..rule })));
        close(&between, &YARN_BETWEEN);
        assert!((factor - YARN_FACTOR).abs() < 1e-12);
    }

    const PLAIN: [f32; 4] = [1.0, 0.1, 0.01, 0.001];
    const LLAMA3: [f32; 16] = [
        1.0,
        0.44036663,
        0.19392276,
        0.0853971,
        0.03760603,
        0.01656044,
        0.007292665,
        0.003211446,
        0.000524846,
        7.7846555e-5,
        3.4281024e-5,
        1.5096218e-5,
        6.6478697e-6,
        2.9274997e-6,
        1.2891732e-6,
        5.677088e-7,
    ];
    const YARN: [f32; 16] = [
        1.0,
        0.56234133,
        0.31622776,
        0.17782794,
        0.1,
        0.05020904,
        0.02484647,
        0.012066896,
        0.0057142857,
        0.0026108704,
        0.001129385,
        0.00044456986,
        0.00025,
        0.00014058533,
        7.905695e-5,
        4.4456985e-5,
    ];
    /// With `truncate: false` (transformers 5.24).
    const YARN_BETWEEN: [f32; 16] = [
        1.0,
        0.56234133,
        0.31622776,
        0.17782794,
        0.1,
        0.049453083,
        0.023870196,
        0.011207953,
        0.0050569717,
        0.0021432224,
        0.00081129046,
        0.00044456986,
        0.00025,
        0.00014058533,
        7.905695e-5,
        4.4456985e-5,
    ];
    const YARN_FACTOR: f64 = 1.138629436111989;
}
