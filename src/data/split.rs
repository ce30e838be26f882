//! Divides a dataset's sequences into train, valid and test by a split string such as `969,30,1`.
//!
//! Megatron-Core and Megatron-DeepSpeed round differently: the same string can move a document from
//! one part to another. Each rule is followed exactly.

use std::ops::Range;

use anyhow::Result;

use base::Problems;
use manifest::DataRule;

/// Names of the three parts, in the order of the split string.
pub const PARTS: [&str; 3] = ["train", "valid", "test"];

/// Sequences of each of the three parts among `sequences`. A part of weight 0 is empty.
pub fn split(rule: DataRule, weights: &str, sequences: usize) -> Result<[Range<usize>; 3]> {
    let bounds = match rule {
        DataRule::MegatronCore => {
            split_as_megatron_core(&parse(weights, &core_pieces(weights))?, sequences)
        }
        DataRule::MegatronDeepSpeed => {
            split_as_megatron_deepspeed(&parse(weights, &deepspeed_pieces(weights))?, sequences)
        }
    };
    Ok([bounds[0]..bounds[1], bounds[1]..bounds[2], bounds[2]..bounds[3]])
}

/// Sequences between two fractions, rounded to the nearest (Python's `round`).
pub fn range(from: f64, to: f64, sequences: usize) -> Range<usize> {
    let at = |fraction: f64| (fraction * sequences as f64).round_ties_even() as usize;
    at(from)..at(to).min(sequences)
}

/// Weights as in Megatron-Core: every run of digits and points.
fn core_pieces(weights: &str) -> Vec<&str> {
    weights
        .split(|c: char| c != '.' && !c.is_ascii_digit())
        .filter(|piece| !piece.is_empty())
        .collect()
}

/// Weights as in Megatron-DeepSpeed: split at commas, or else at slashes.
fn deepspeed_pieces(weights: &str) -> Vec<&str> {
    let cut = if weights.contains(',') { ',' } else { '/' };
    weights.split(cut).map(str::trim).collect()
}

/// Three weights that sum to a positive number, not yet normalised.
fn parse(weights: &str, pieces: &[&str]) -> Result<[f64; 3]> {
    let wrong = |what: String| {
        Problems::one(
            format!("split \"{weights}\""),
            what,
            "write up to three weights for train, valid and test, such as 969,30,1",
        )
    };
    if pieces.len() > 3 {
        return Err(wrong(format!("has {} weights, at most 3 are allowed", pieces.len())).into());
    }
    let mut numbers = [0.0; 3];
    for (number, piece) in numbers.iter_mut().zip(pieces) {
        *number = piece
            .parse()
            .ok()
            .filter(|number: &f64| number.is_finite() && *number >= 0.0)
            .ok_or_else(|| wrong(format!("\"{piece}\" is not a weight")))?;
    }
    if numbers.iter().sum::<f64>() <= 0.0 {
        return Err(wrong("the weights sum to 0".into()).into());
    }
    Ok(numbers)
}

fn split_as_megatron_core(numbers: &[f64; 3], sequences: usize) -> [usize; 4] {
    let sum: f64 = numbers.iter().sum();
    let [a, b, _] = numbers.map(|number| number / sum);
    let cumulative = [0.0, a, a + b, 1.0];
    cumulative.map(|bound| (bound * sequences as f64).round_ties_even() as usize)
}

fn split_as_megatron_deepspeed(numbers: &[f64; 3], sequences: usize) -> [usize; 4] {
    let sum: f64 = numbers.iter().sum();
    let mut bounds = [0i64; 4];
    for (i, number) in numbers.iter().enumerate() {
        bounds[i + 1] = bounds[i] + (number / sum * sequences as f64).round_ties_even() as i64;
    }
    let excess = bounds[3] - sequences as i64;
    let [_, train, valid, test] = bounds.map(|bound| (bound - excess).max(0) as usize);
    [0, train, valid, test]
}
