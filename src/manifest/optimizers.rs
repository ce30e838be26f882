//! The optimizers' rows of the table of settings.

use super::choices::MuonScale;
use super::define::{checked, read, sections, settings, written};
use super::report::Report;
use super::settings::Written;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

settings! {
#[derive(Copy)]
/// Adam with decoupled weight decay (Loshchilov & Hutter 2019).
AdamW(raw) {
    /// Decay of the first moment. Default: 0.9.
    beta1: f32 = 0.9, in 0.0..=0.999_999;
    /// Decay of the second moment. Default: 0.95 (PyTorch's and Megatron's default is 0.999).
    beta2: f32 = 0.95, in 0.0..=0.999_999;
    /// Added to the root of the second moment. Default: 1e-8.
    eps: f32 = 1e-8, in 1e-20..=1.0;
    /// Weight decay of matrices; norms and biases have none. Default: 0.1.
    weight_decay: f32 = 0.1, in 0.0..=100.0;
    /// Gradients are scaled down to this global norm (--clip-grad). 0 is off. Default: 1.
    clip: f32 => Option<f32> = Some(raw.clip.unwrap_or(1.0)).filter(|norm| *norm > 0.0),
        in 0.0..=1e9, written clip.or(Some(0.0));
}

#[derive(Copy)]
/// AdamW with the moments of the blocks' matrices in 8 bits (Dettmers et al. 2022).
Adam8bit(raw) {
    /// Decay of the first moment. Default: 0.9.
    beta1: f32 = 0.9, in 0.0..=0.999_999;
    /// Decay of the second moment. Default: 0.95.
    beta2: f32 = 0.95, in 0.0..=0.999_999;
    /// Added to the root of the second moment. Default: 1e-8.
    eps: f32 = 1e-8, in 1e-20..=1.0;
    /// Weight decay of matrices; norms and biases have none. Default: 0.1.
    weight_decay: f32 = 0.1, in 0.0..=100.0;
    /// Gradients are scaled down to this global norm (--clip-grad). 0 is off. Default: 1.
    clip: f32 => Option<f32> = Some(raw.clip.unwrap_or(1.0)).filter(|norm| *norm > 0.0),
        in 0.0..=1e9, written clip.or(Some(0.0));
    /// Columns of a row that share a scale: 16, 32 or 64. A matrix whose columns are not whole
    /// blocks keeps its moments in 32 bits. Default: 64.
    block: usize = 64, in 16..=64;
}

#[derive(Copy)]
/// Adafactor without momentum (Shazeer & Stern 2018), as PyTorch's and, where these coincide,
/// Hugging Face's: of a matrix it keeps means of the squared gradient by row and by column. Each
/// step is the gradient over the root of their product, times the learning rate.
Adafactor(raw) {
    /// The step shrinks with the number t of updates: it is min(lr.peak, 1/√t) in place of the
    /// learning rate, which must be constant then. Default: false.
    relative_step: bool = false;
    /// Steps are multiplied by each weight's own root mean square, or by scale_eps where that is
    /// larger. Default: as relative_step.
    scale_parameter: bool = relative_step;
    /// Decay of the second moment at update t is 1 − t^beta2_decay. Default: -0.8.
    beta2_decay: f32 = -0.8, in -10.0..=0.0;
    /// The root mean square of a weight's step, before the learning rate, is at most this
    /// (PyTorch's d). Default: 1.
    clip_threshold: f32 = 1.0, in 1e-6..=1e9;
    /// The root of the second moment is at least this. Default: 1e-15, whose square is the
    /// paper's 1e-30. PyTorch's default is 1.2e-7, which is more than many gradients are.
    eps: f32 = 1e-15, in 1e-18..=1.0;
    /// With scale_parameter: the least that a step is multiplied by. Default: 1e-3.
    scale_eps: f32 = 1e-3, in 0.0..=1.0;
    /// Weight decay of matrices; norms and biases have none. Default: 0, as PyTorch's.
    weight_decay: f32 = 0.0, in 0.0..=100.0;
    /// Gradients are scaled down to this global norm (--clip-grad). 0 is off. Default: 1.
    clip: f32 => Option<f32> = Some(raw.clip.unwrap_or(1.0)).filter(|norm| *norm > 0.0),
        in 0.0..=1e9, written clip.or(Some(0.0));
}

/// Muon (Jordan et al. 2024), for the matrices of the blocks: the step is the momentum with all its
/// singular values near 1, by Newton–Schulz iterations. Queries, keys, values, gates and values of
/// SwiGLU count as matrices of their own. Embeddings, head, norms and biases have AdamW.
Muon(raw, report: &mut Report) {
    /// Decay of the momentum, a running mean of gradients. Default: 0.95.
    momentum: f32 = 0.95, in 0.0..=0.999_999;
    /// The step is taken of the mean as it will be with the gradient again (Nesterov).
    /// Default: true.
    nesterov: bool = true;
    /// Weight decay of matrices; norms and biases have none. Default: 0.1.
    weight_decay: f32 = 0.1, in 0.0..=100.0;
    /// Newton–Schulz iterations. Default: 5.
    ns_steps: usize = 5, in 1..=99;
    /// An iteration makes a·X + b·(XXᵀ)X + c·(XXᵀ)²X of X: a, b and c. Default: [3.4445, -4.775,
    /// 2.0315].
    coefficients: Vec<f32> => [f32; 3] = coefficients(raw.coefficients, report),
        written Some(coefficients.to_vec());
    /// The first X is the direction over its norm, or over this where that is larger.
    /// Default: 1e-7.
    eps: f32 = 1e-7, in 1e-30..=1.0;
    /// What a step of a matrix is multiplied by: match_rms_adamw or original.
    /// Default: match_rms_adamw, with AdamW's learning rate and decay.
    scale: MuonScale = MuonScale::MatchRmsAdamw;
    /// AdamW of everything else.
    adamw: raw::MuonAdamW => MuonAdamW
        = MuonAdamW::read(raw.adamw.unwrap_or_default(), weight_decay);
    /// Gradients are scaled down to this global norm (--clip-grad). 0 is off. Default: 1.
    clip: f32 => Option<f32> = Some(raw.clip.unwrap_or(1.0)).filter(|norm| *norm > 0.0),
        in 0.0..=1e9, written clip.or(Some(0.0));
}

#[derive(Copy)]
/// AdamW of what Muon is not for: embeddings, head, norms and biases.
MuonAdamW(raw, weight_decay_of_muon: f32) {
    /// Its learning rate, as a multiple of the schedule's. Default: 1.
    lr_scale: f32 = 1.0, in 0.0..=1e6;
    /// Decay of the first moment. Default: 0.9.
    beta1: f32 = 0.9, in 0.0..=0.999_999;
    /// Decay of the second moment. Default: 0.95.
    beta2: f32 = 0.95, in 0.0..=0.999_999;
    /// Added to the root of the second moment. Default: 1e-8.
    eps: f32 = 1e-8, in 1e-20..=1.0;
    /// Weight decay of embeddings and head; norms and biases have none. Default: as Muon's.
    weight_decay: f32 = weight_decay_of_muon, in 0.0..=100.0;
}
}

/// Those of Jordan et al.; what is no triple is reported.
fn coefficients(given: Option<Vec<f32>>, report: &mut Report) -> [f32; 3] {
    const DEFAULT: [f32; 3] = [3.4445, -4.775, 2.0315];
    let Some(given) = given else { return DEFAULT };
    given.as_slice().try_into().unwrap_or_else(|_| {
        let what = format!("optimizer.muon.coefficients has {} numbers, not 3", given.len());
        report.add("optimizer.muon.coefficients", what, "give a, b and c, or remove it");
        DEFAULT
    })
}

impl Adam8bit {
    /// The same rule with 8-bit moments.
    pub fn of(rule: AdamW) -> Adam8bit {
        let AdamW { beta1, beta2, eps, weight_decay, clip } = rule;
        Adam8bit { beta1, beta2, eps, weight_decay, clip, block: 64 }
    }

    /// Settings of `optimizer` that select it, in the form of `--set`.
    pub fn set(&self) -> String {
        let Adam8bit { beta1, beta2, eps, weight_decay, clip, block } = self;
        let usual = Adam8bit::read(Default::default());
        let clip = (clip.unwrap_or(0.0), usual.clip.unwrap_or(0.0));
        let keys = [
            (*beta1 != usual.beta1).then(|| format!("beta1: {beta1}")),
            (*beta2 != usual.beta2).then(|| format!("beta2: {beta2}")),
            (*eps != usual.eps).then(|| format!("eps: {eps:e}")),
            (*weight_decay != usual.weight_decay).then(|| format!("weight_decay: {weight_decay}")),
            (clip.0 != clip.1).then(|| format!("clip: {}", clip.0)),
            (*block != usual.block).then(|| format!("block: {block}")),
        ];
        let keys: Vec<String> = keys.into_iter().flatten().collect();
        match keys.is_empty() {
            true => "optimizer=adam8bit".to_string(),
            false => format!("optimizer={{adam8bit: {{{}}}}}", keys.join(", ")),
        }
    }
}
