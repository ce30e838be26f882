//! Optimizers: the table of kinds, and the settings of each.

use super::choices::MuonScale;
use super::define::{
    OneOf, Written, checked, forms, kinds, one_of, read, sections, settings, written,
};
use super::report::Report;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

kinds! {
/// Optimizer: one of these. Default: adamw.
Optimizer() at "optimizer", OptimizerName, OptimizerForm, OptimizerSection = "Optimizer" {
} settings {
    /// Adam with decoupled weight decay.
    AdamW = "adamw", adamw: AdamW();
    /// AdamW with the moments of the blocks' matrices in 8 bits.
    Adam8bit = "adam8bit", adam8bit: Adam8bit();
    /// Adafactor: second moments of matrices by row and by column.
    Adafactor = "adafactor", adafactor: Adafactor();
    /// Muon: orthogonalised momentum for the blocks' matrices, AdamW for the rest.
    Muon = "muon", muon: Muon();
} [
    /// Another name of lr.peak.
    lr: f64, in 0.0..=1000.0;
]
}

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
    clip: f32 => Option<f32> = max_norm(raw.clip), in 0.0..=1e9, written clip.or(Some(0.0));
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
    clip: f32 => Option<f32> = max_norm(raw.clip), in 0.0..=1e9, written clip.or(Some(0.0));
    /// Columns of a row that share a scale: 16, 32 or 64. A matrix whose columns are not whole
    /// blocks keeps its moments in 32 bits. Default: 64.
    block: usize = 64, in 16..=64;
}

#[derive(Copy)]
/// Adafactor without momentum (Shazeer & Stern 2018), as PyTorch's and, where these coincide,
/// Hugging Face's. For a matrix it keeps means of the squared gradient by row and by column. Each
/// step is the gradient divided by the root of their product, times the learning rate.
Adafactor(raw) {
    /// Whether the step shrinks with the number t of updates: it is min(lr.peak, 1/√t) instead of the
    /// learning rate, whose schedule must be constant. Default: false.
    relative_step: bool = false;
    /// Whether steps are multiplied by the root mean square of each weight tensor, or by scale_eps if
    /// that is larger. Default: as relative_step.
    scale_parameter: bool = relative_step;
    /// Decay of the second moment at update t is 1 − t^beta2_decay. Default: -0.8.
    beta2_decay: f32 = -0.8, in -10.0..=0.0;
    /// Maximum root mean square of a weight tensor's step, before the learning rate (PyTorch's d).
    /// Default: 1.
    clip_threshold: f32 = 1.0, in 1e-6..=1e9;
    /// Minimum of the root of the second moment. Default: 1e-15, whose square is the paper's 1e-30.
    /// PyTorch's default is 1.2e-7, which is greater than many gradients.
    eps: f32 = 1e-15, in 1e-18..=1.0;
    /// With scale_parameter: minimum factor of a step. Default: 1e-3.
    scale_eps: f32 = 1e-3, in 0.0..=1.0;
    /// Weight decay of matrices; norms and biases have none. Default: 0, as PyTorch's.
    weight_decay: f32 = 0.0, in 0.0..=100.0;
    /// Gradients are scaled down to this global norm (--clip-grad). 0 is off. Default: 1.
    clip: f32 => Option<f32> = max_norm(raw.clip), in 0.0..=1e9, written clip.or(Some(0.0));
}

/// Muon (Jordan et al. 2024), for the matrices of the blocks: the step is the momentum with all its
/// singular values near 1, by Newton–Schulz iterations. Queries, keys, values, and the gates and values
/// of SwiGLU count as separate matrices. Embeddings, head, norms and biases use AdamW.
Muon(raw) {
    /// Decay of the momentum, a running mean of gradients. Default: 0.95.
    momentum: f32 = 0.95, in 0.0..=0.999_999;
    /// Whether the step uses Nesterov momentum: the mean, updated once more with the gradient.
    /// Default: true.
    nesterov: bool = true;
    /// Weight decay of matrices; norms and biases have none. Default: 0.1.
    weight_decay: f32 = 0.1, in 0.0..=100.0;
    /// Newton–Schulz iterations. Default: 5.
    ns_steps: usize = 5, in 1..=99;
    /// Coefficients a, b and c of an iteration, which maps X to a·X + b·(XXᵀ)X + c·(XXᵀ)²X. Default:
    /// [3.4445, -4.775, 2.0315].
    coefficients: Vec<f32> => [f32; 3] = coefficients(raw.coefficients),
        written Some(coefficients.to_vec());
    /// Minimum divisor of the first X, which is the direction divided by its norm. Default: 1e-7.
    eps: f32 = 1e-7, in 1e-30..=1.0;
    /// Factor of a matrix's step: match_rms_adamw or original. Default: match_rms_adamw, with which
    /// AdamW's learning rate and decay are suitable.
    scale: MuonScale = MuonScale::MatchRmsAdamw;
    /// AdamW for all other weights.
    adamw: raw::MuonAdamW => MuonAdamW
        = MuonAdamW::read(raw.adamw.unwrap_or_default(), weight_decay);
    /// Gradients are scaled down to this global norm (--clip-grad). 0 is off. Default: 1.
    clip: f32 => Option<f32> = max_norm(raw.clip), in 0.0..=1e9, written clip.or(Some(0.0));
}

#[derive(Copy)]
/// AdamW for the weights that Muon excludes: embeddings, head, norms and biases.
MuonAdamW(raw, weight_decay_of_muon: f32) {
    /// Learning rate, as a multiple of the schedule's. Default: 1.
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

/// Maximum norm of gradients; None if they are not clipped.
fn max_norm(given: Option<f32>) -> Option<f32> {
    Some(given.unwrap_or(1.0)).filter(|norm| *norm > 0.0)
}

/// Coefficients, by default those of Jordan et al. `written` reports a list that does not have three
/// numbers.
fn coefficients(given: Option<Vec<f32>>) -> [f32; 3] {
    given
        .and_then(|given| given.try_into().ok())
        .unwrap_or([3.4445, -4.775, 2.0315])
}

/// Reports mistakes that are gone once the section is read.
fn check_written(form: &Option<OptimizerForm>, report: &mut Report) {
    let Some(OptimizerForm::Settings(section)) = form else { return };
    let given = section
        .muon
        .as_ref()
        .and_then(|muon| muon.coefficients.as_ref());
    if let Some(given) = given.filter(|given| given.len() != 3) {
        report.add(
            "optimizer.muon.coefficients",
            format!("optimizer.muon.coefficients has {} numbers, not 3", given.len()),
            "give a, b and c, or remove it",
        );
    }
    if section.kinds() > 1 && report.are_valid(&["optimizer"]) {
        report.add("optimizer", "optimizer has more than one kind", "keep one");
    }
}

/// Checks the optimizer.
pub fn optimizer(form: Option<OptimizerForm>, report: &mut Report) -> Optimizer {
    check_written(&form, report);
    Optimizer::read(form, OptimizerName::AdamW)
}

/// Defines methods of `Optimizer` by a match over its kinds. A row has the constants of its update.
macro_rules! rules {
    ($($kind:ident($rule:ident) { $($constant:literal: $value:expr,)* })*) => {
        impl Optimizer {
            /// Weight decay of matrices.
            pub fn weight_decay(&self) -> f32 {
                match self {
                    $(Optimizer::$kind(rule) => rule.weight_decay,)*
                }
            }

            /// Maximum global norm of gradients, to which they are clipped.
            pub fn clip(&self) -> Option<f32> {
                match self {
                    $(Optimizer::$kind(rule) => rule.clip,)*
                }
            }

            /// Constants of the update, as stored in checkpoints.
            pub fn numbers(&self) -> BTreeMap<String, f32> {
                match self {
                    $(Optimizer::$kind($rule) => {
                        BTreeMap::from([$(($constant.to_string(), $value)),*])
                    })*
                }
            }
        }
    };
}

rules! {
    AdamW(rule) { "beta1": rule.beta1, "beta2": rule.beta2, "eps": rule.eps, }
    Adam8bit(rule) {
        "beta1": rule.beta1, "beta2": rule.beta2, "eps": rule.eps, "block": rule.block as f32,
    }
    Adafactor(rule) {
        "beta2_decay": rule.beta2_decay,
        "clip_threshold": rule.clip_threshold,
        "eps": rule.eps,
        "scale_eps": rule.scale_eps,
        "relative_step": f32::from(u8::from(rule.relative_step)),
        "scale_parameter": f32::from(u8::from(rule.scale_parameter)),
    }
    Muon(rule) {
        "momentum": rule.momentum,
        "nesterov": f32::from(u8::from(rule.nesterov)),
        "ns_steps": rule.ns_steps as f32,
        "a": rule.coefficients[0],
        "b": rule.coefficients[1],
        "c": rule.coefficients[2],
        "beta1": rule.adamw.beta1,
        "beta2": rule.adamw.beta2,
        "eps": rule.adamw.eps,
    }
}

impl Adam8bit {
    /// The same rule with 8-bit moments.
    pub fn from_adamw(rule: AdamW) -> Adam8bit {
        let AdamW { beta1, beta2, eps, weight_decay, clip } = rule;
        let Adam8bit { block, .. } = Adam8bit::read(Default::default());
        Adam8bit { beta1, beta2, eps, weight_decay, clip, block }
    }

    /// Setting of `optimizer` that selects it, in the form of `--set`: without its defaults.
    pub fn to_set(self) -> String {
        // As text, which keeps an f32 as written: 0.95, not 0.949999988.
        let settings = |rule: &Adam8bit| {
            let text =
                serde_json::to_string(&rule.written()).expect("plain structs are always written");
            let map = serde_json::from_str::<serde_json::Map<_, _>>(&text);
            map.expect("an object was written")
        };
        let defaults = settings(&Adam8bit::read(Default::default()));
        let own = settings(&self)
            .into_iter()
            .filter(|(key, value)| defaults[key] != *value);
        let keys: Vec<String> = own.map(|(key, value)| format!("{key}: {value}")).collect();
        if keys.is_empty() {
            return "optimizer=adam8bit".to_string();
        }
        format!("optimizer={{adam8bit: {{{}}}}}", keys.join(", "))
    }
}
