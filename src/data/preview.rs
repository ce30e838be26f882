//! Samples of datasets without a manifest, for `gptrain data samples`.
//!
//! Unlike training it accepts what Megatron accepts: parts too short for one sample without
//! repetition, and datasets without weights.

use std::sync::Arc;

use anyhow::Result;

use super::blend::Blend;
use super::indexed::Indexed;
use super::mixture::{Member, Mixture, MixtureStage};
use super::open::{part, shares};
use super::order::{Cache, Cut, Order, OrderSpec};
use super::plan::Share;
use base::Problems;
use manifest::DataRule;

/// Parameters of a preview.
#[derive(Clone, Debug)]
pub struct Preview {
    pub rule: DataRule,
    pub seed: u64,
    pub seq_len: usize,
    pub cut: Cut,
    /// Length of the run; None means one epoch.
    pub samples: Option<u64>,
    pub datasets: Vec<Share>,
    /// Whether to use the weights; otherwise datasets are mixed by their sizes.
    pub weighted: bool,
    /// Cache of orders, if any.
    pub cache: Option<Cache>,
}

/// Opens the samples. A single dataset provides whole epochs, which may be more than requested.
pub fn open(preview: &Preview) -> Result<Mixture> {
    if let Some(problems) = super::blend::check_dataset_count("PREFIX", preview.datasets.len()) {
        return Err(problems.into());
    }
    let wanted = count_wanted(preview)?;
    let mut problems = Problems::default();
    let mut members = Vec::new();
    for (share, samples) in preview.datasets.iter().zip(wanted) {
        members.extend(problems.collect(member(preview, share, samples))?);
    }
    problems.or(())?;
    let sizes: Vec<u64> = members.iter().map(Member::samples).collect();
    let weights: Vec<f64> = if preview.weighted {
        preview.datasets.iter().map(|share| share.weight).collect()
    } else {
        sizes.iter().map(|size| *size as f64).collect()
    };
    let blend = match (preview.samples, members.len()) {
        (_, 1) => None,
        (Some(samples), _) if preview.weighted => Some(Blend::weighted(
            &super::blend::normalize(&weights),
            total(preview.rule, &weights, samples) as usize,
        )),
        (Some(samples), _) => {
            let all = sizes.iter().sum::<u64>();
            Some(Blend::weighted(&weights, samples.min(all) as usize))
        }
        (None, _) => Some(Blend::exhaustive(&sizes)),
    };
    let until = blend.as_ref().map_or(sizes[0], Blend::samples);
    let count = members.len();
    let stage = MixtureStage {
        from: 0,
        until,
        blend,
        members: (0..count).collect(),
        cursors: vec![0; count],
    };
    Ok(Mixture::new(members, vec![stage], preview.seq_len))
}

/// Megatron-Core rounds each dataset's share up, and mixes their sum.
fn total(rule: DataRule, weights: &[f64], samples: u64) -> u64 {
    let shares = super::blend::normalize(weights);
    match rule {
        DataRule::MegatronCore => shares
            .iter()
            .map(|weight| (samples as f64 * weight).ceil() as u64)
            .sum(),
        DataRule::MegatronDeepSpeed => samples,
    }
}

/// Number of samples ordered from each dataset.
fn count_wanted(preview: &Preview) -> Result<Vec<Option<u64>>> {
    let count = preview.datasets.len();
    match (preview.weighted, preview.samples) {
        (true, None) if count > 1 => Err(Problems::one(
            "--weights",
            "weights, but no number of samples to divide by them",
            "add --samples N",
        )
        .into()),
        (true, Some(samples)) => Ok(shares(preview.rule, &preview.datasets, samples)
            .into_iter()
            .map(Some)
            .collect()),
        (_, samples) if count == 1 => Ok(vec![samples]),
        _ => Ok(vec![None; count]),
    }
}

fn member(preview: &Preview, share: &Share, samples: Option<u64>) -> Result<Member> {
    let dataset = Arc::new(Indexed::open(&share.prefix)?);
    let part = part(preview.rule, share, dataset.sequences())?;
    let Preview { rule, seq_len, seed, cut, .. } = *preview;
    let spec = OrderSpec { rule, seq_len, samples, seed, cut };
    let place = format!("{}, {}", share.prefix.display(), share.describe());
    let order = match &preview.cache {
        Some(cache) => cache.order(&spec, &dataset, part, &place)?,
        None => Order::build(&spec, dataset.lengths(), part, &place)?,
    };
    Ok(Member { dataset, segments: vec![order], reshuffles: Vec::new() })
}
