//! Position encodings: the table of kinds, rotary embedding, and the kinds of its scaling.

use super::define::{
    OneOf, Written, checked, forms, kinds, one_of, read, sections, settings, written,
};
use super::report::Report;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

kinds! {
#[derive(Copy)]
/// Position encoding.
Position() at "model.position", PositionName, PositionForm, PositionSettings = "PositionSettings" {
    /// A table of learned vectors (GPT-2), as many as `positions` says.
    Learned = "learned";
    /// Attention with linear biases, no table (BLOOM; Press et al. 2022).
    Alibi = "alibi";
} settings {
    /// Rotated queries and keys (Llama; Su et al. 2021).
    #[schemars(required)]
    Rope = "rope", rope: Rope();
}
}

settings! {
#[derive(Copy)]
/// Rotary embedding (Su et al. 2021): rotates pairs of columns of queries and keys by angles that grow
/// with the position.
Rope(raw) {
    /// Base of the frequencies: the angle per position falls from 1 for the first pair of columns to
    /// about 1/theta for the last (--rotary-base). Default: 10_000.
    theta: f64 = 10_000.0, in 1.0..=1e12;
    /// Scaling of the wavelengths for longer samples. Default: none.
    scaling: Scaling => Option<RopeScaling> = raw.scaling.and_then(RopeScaling::given),
        written scaling.and_then(|kind| kind.section());
}

#[derive(Copy)]
/// Position interpolation (Chen et al. 2023).
Linear(raw) {
    /// Divisor of positions.
    factor: f64, required in 1.0..=1e6;
}

#[derive(Copy)]
/// Llama 3.1's scaling: wavelengths above original_seq_len / low_freq_factor grow by the factor, those
/// below original_seq_len / high_freq_factor do not change, and those between grow by a part of it.
Llama3(raw) {
    /// Factor by which long wavelengths grow.
    factor: f64, required in 1.0..=1e6;
    /// Number of rotations in the original length below which a wavelength is long. Default: 1.
    low_freq_factor: f64 = 1.0, in 1e-3..=1e6;
    /// Number of rotations in the original length above which a wavelength is short. Default: 4.
    high_freq_factor: f64 = 4.0, in 1e-3..=1e6;
    /// Tokens per sample before the scaling.
    original_seq_len: usize, required in 1..=16_777_216;
}

#[derive(Copy)]
/// YaRN (Peng et al. 2023).
Yarn(raw) {
    /// Factor by which long wavelengths grow.
    factor: f64, required in 1.0..=1e6;
    /// Tokens per sample before the scaling.
    original_seq_len: usize, required in 1..=16_777_216;
    /// Number of rotations in the original length above which a wavelength is short. Default: 32.
    beta_fast: f64 = 32.0, in 1e-3..=1e6;
    /// Number of rotations in the original length below which a wavelength is long. Default: 1.
    beta_slow: f64 = 1.0, in 1e-3..=1e6;
    /// Factor of rotated queries and keys. Default: 0.1·ln(factor) + 1.
    attention_factor: f64, in 1e-3..=1e3;
    /// Whether the pairs between which wavelengths are mixed are whole numbers. Default: true.
    truncate: bool = true;
}
}

one_of! {
#[derive(Copy)]
/// Scaling of rotary wavelengths for longer samples: one of these.
RopeScaling() at "model.position.rope.scaling", Scaling = "Scaling" {
} settings {
    /// The same factor for all (Chen et al. 2023).
    Linear = "linear", linear: Linear();
    /// The factor for long wavelengths only (Llama 3.1).
    Llama3 = "llama3", llama3: Llama3();
    /// By the number of rotations in the original length, with sharper attention (Peng et al. 2023).
    Yarn = "yarn", yarn: Yarn();
} [
    /// Dynamic NTK: refused, because it depends on the length of the text.
    dynamic: Dynamic;
]
}

sections! {
#[derive(Copy)]
/// Dynamic NTK, which is refused.
Dynamic {
    /// Factor.
    factor: f64, in 1.0..=1e6;
}
}

/// Reports mistakes of a written scaling that are gone once it is read. `path` is the path of the scaling.
pub fn check_written(path: &str, rope: &raw::Rope, report: &mut Report) {
    let Some(scaling) = rope.scaling else { return };
    if scaling.dynamic.is_some() {
        report.add(
            &format!("{path}.dynamic"),
            "scaling dynamic (NTK) turns a token by an angle that depends on the length of \
             what is read, so what was learned at one length does not hold at another",
            "take linear, llama3 or yarn",
        );
    }
    match scaling.kinds() {
        0 if scaling.dynamic.is_none() && report.are_valid(&[path]) => {
            report.add(path, "scaling has no kind", "give linear, llama3 or yarn, or remove it");
        }
        2.. => report.add(path, "scaling has more than one kind", "keep one"),
        _ => {}
    }
    let ends = |low: &str, low_is: f64, high: &str, high_is: f64, report: &mut Report| {
        if low_is >= high_is && report.are_valid(&[path]) {
            report.add(
                &format!("{path}.{low}"),
                format!("{low} {low_is} is not below {high} {high_is}"),
                format!("lower it, or raise {high}"),
            );
        }
    };
    if let Some(raw) = scaling.llama3 {
        let Llama3 { low_freq_factor: low, high_freq_factor: high, .. } = Llama3::read(raw);
        ends("llama3.low_freq_factor", low, "llama3.high_freq_factor", high, report);
    }
    if let Some(raw) = scaling.yarn {
        let Yarn { beta_slow, beta_fast, .. } = Yarn::read(raw);
        ends("yarn.beta_slow", beta_slow, "yarn.beta_fast", beta_fast, report);
    }
}
