//! Divergence of an imported model's logits from those computed by another program.

use base::Problems;
use base::progress::{Progress, Unit};
use checkpoint::{self, safetensors::Reader};
use engine::Sampler;
use launch::{Device, LocalRank};
use manifest::{Manifest, Precision};
use std::fmt;
use std::path::Path;

/// Difference between the next-token probabilities of a reference and ours, computed in f32.
#[derive(Clone, Copy, Debug)]
pub struct Divergence {
    /// Kullback-Leibler divergence KL(reference ‖ ours) in nats: the mean over positions.
    pub mean: f64,
    pub most: f64,
    /// Largest difference of two logits.
    pub logits: f64,
    pub positions: usize,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Divergence { mean, most, logits, positions } = self;
        write!(
            f,
            "KL divergence from the reference's next tokens: {mean:.1e} nats in the mean of \
             {positions} positions, {most:.1e} at most; logits differ by up to {logits:.1e}"
        )
    }
}

/// Divergence of the weights in a checkpoint. `reference` is a safetensors file with `input_ids`
/// [samples, tokens] of I32 or I64 and `logits` [samples, tokens, vocabulary] of F64, F32, BF16 or
/// F16.
pub fn divergence(checkpoint: &Path, m: &Manifest, reference: &Path) -> anyhow::Result<Divergence> {
    let reader = Reader::open(reference)?;
    let [samples, tokens] = shape(&reader, m, reference)?;
    let ids = reader.numbers("input_ids")?;
    let logits = reader.numbers("logits")?;
    let vocab = m.model.vocab;
    if let Some(id) = ids.iter().find(|id| !(0.0..vocab as f64).contains(*id)) {
        return Err(wrong(
            reference,
            format!("input_ids hold {id}, the model's vocabulary is {vocab}"),
        )
        .into());
    }
    // Logits are computed in f32, which every device supports.
    let m = &Manifest { precision: Precision::F32, ..m.clone() };
    let device = Device::open(m, LocalRank::ONLY, m.train.threads)?;
    let mut sampler = Sampler::new(device.backend(), m, tokens)?;
    checkpoint::load_weights(checkpoint, &sampler.weights)?;
    let positions = samples * tokens;
    let progress = Progress::new("comparing", positions as u64, Unit::Items("tokens"));
    let mut found = Divergence { mean: 0.0, most: 0.0, logits: 0.0, positions };
    for (ids, logits) in ids.chunks(tokens).zip(logits.chunks(tokens * vocab)) {
        let ids: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
        sampler.each_logits(&ids, |position, ours| {
            let theirs = &logits[position * vocab..][..vocab];
            let ours: Vec<f64> = ours.iter().map(|x| f64::from(*x)).collect();
            let kl = kl(theirs, &ours);
            found.mean += kl / positions as f64;
            found.most = found.most.max(kl);
            let off = theirs
                .iter()
                .zip(&ours)
                .map(|(a, b)| (a - b).abs())
                .fold(0.0, f64::max);
            found.logits = found.logits.max(off);
            progress.add(1);
        });
    }
    Ok(found)
}

/// Number of samples, and tokens of each.
fn shape(reader: &Reader, m: &Manifest, reference: &Path) -> anyhow::Result<[usize; 2]> {
    let shape = |name: &str| match reader.entries.get(name) {
        Some(entry) => Ok(entry.shape.clone()),
        None => Err(wrong(reference, format!("it has no tensor {name}"))),
    };
    let ids = shape("input_ids")?;
    let logits = shape("logits")?;
    let [samples, tokens] = ids[..] else {
        return Err(wrong(reference, format!("input_ids is {ids:?}")).into());
    };
    let needed = [samples, tokens, m.model.vocab];
    if logits != needed || samples * tokens == 0 {
        return Err(wrong(
            reference,
            format!("logits is {logits:?}, of these input_ids and model {needed:?}"),
        )
        .into());
    }
    if tokens > m.model.context() {
        let key = if m.model.positions.is_some() { "positions" } else { "seq_len" };
        return Err(wrong(
            reference,
            format!("samples of {tokens} tokens, model.{key} is {}", m.model.context()),
        )
        .into());
    }
    Ok([samples, tokens])
}

fn wrong(reference: &Path, what: String) -> Problems {
    Problems::one(
        reference.display().to_string(),
        what,
        "give safetensors with input_ids [samples, tokens] and logits [samples, tokens, \
         vocabulary]",
    )
}

/// Σ p·(log p − log q) of the probabilities p of `theirs` and q of `ours`.
fn kl(theirs: &[f64], ours: &[f64]) -> f64 {
    let log_sum = |logits: &[f64]| {
        let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        most + logits.iter().map(|x| (x - most).exp()).sum::<f64>().ln()
    };
    let p = log_sum(theirs);
    let q = log_sum(ours);
    let terms = theirs
        .iter()
        .zip(ours)
        .map(|(a, b)| (a - p).exp() * ((a - p) - (b - q)));
    terms.sum()
}

#[cfg(test)]
mod tests {
    use super::kl;

    #[test]
    fn divergence_of_two_coins() {
        let fair = [0.0, 0.0];
        let skewed = [3f64.ln(), 0.0];
        assert!((kl(&fair, &skewed) - 0.5 * (4.0f64 / 3.0).ln()).abs() < 1e-15);
        assert!((kl(&skewed, &fair) - (0.75 * 1.5f64.ln() + 0.25 * 0.5f64.ln())).abs() < 1e-15);
        let shifted = kl(&skewed, &[3f64.ln() + 5.0, 5.0]);
        assert!(shifted.abs() < 1e-15, "logits are up to a constant: {shifted}");
    }
}
