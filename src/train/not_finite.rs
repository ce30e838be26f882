//! Check of each step for a non-finite loss or gradient.

use base::DType;
use engine::{Engine, Outcome};
use launch::rank::Rank;

/// Fails with the step, tensors and ranks if the loss or a gradient is not finite (in fp16: at the
/// minimum loss scale). A collective: all ranks call it with the same, latest outcome.
pub fn check(
    rank: &Rank,
    outcome: &Outcome,
    engine: &Engine,
    step: u64,
    samples: std::ops::Range<u64>,
) -> anyhow::Result<()> {
    if outcome.is_finite() || (outcome.skipped && !outcome.stuck) {
        return Ok(());
    }
    let culprits: Vec<(usize, String)> = rank
        .gather(&engine.not_finite())?
        .into_iter()
        .enumerate()
        .flat_map(|(rank, names)| names.into_iter().map(move |name| (rank, name)))
        .collect();
    let whole = |(number, name): &(usize, String)| match rank.grid.size() {
        1 => name.clone(),
        _ => format!("{name} on rank {number} ({})", rank.grid.coord(*number).name()),
    };
    let gradients = match culprits.as_slice() {
        [] => "every gradient is finite".to_string(),
        [only] => format!("the gradient of {} is not finite", whole(only)),
        [first, .., last] => format!(
            "{} gradients are not finite, from {} to {} (backward goes from last to first)",
            culprits.len(),
            whole(first),
            whole(last)
        ),
    };
    let (scale, remedy) = match engine.store().model_dtype() {
        DType::F16 if outcome.stuck => (
            format!(", with the lowest loss scale allowed, {}", outcome.loss_scale),
            "Take precision: bf16, lower loss_scale.min, ",
        ),
        _ => (String::new(), ""),
    };
    let lower = if remedy.is_empty() { "Lower" } else { "lower" };
    if !rank.is_first() {
        return rank.agree(Ok(()));
    }
    rank.agree(Err(anyhow::anyhow!(
        "step {step} (samples {}..{}): the loss is {}, the gradient norm {}{scale}; \
         {gradients}. The weights are still those of step {}. {remedy}{lower} lr.peak or \
         lengthen lr.warmup_samples, set optimizer.adamw.clip, and look at those samples with \
         `gptrain data samples`",
        samples.start,
        samples.end,
        outcome.loss,
        outcome.grad_norm,
        step - 1
    )))
}
