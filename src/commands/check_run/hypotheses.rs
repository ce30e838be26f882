//! Known errors of trainers, each as a change of the computation that predicts its numbers.

use super::change::{Change, Counted, LossMean, StateChange, TiedGradients, UpdateChange};
use super::trainer::Trainer;
use super::verdict::Cause;
use data::Indexed;
use exchange::foreign::Decayed;
use manifest::{Eod, Manifest, Position};
use std::collections::BTreeSet;

/// A known error.
pub struct Hypothesis {
    pub name: &'static str,
    /// Part of a step in which its numbers depart first.
    pub cause: Cause,
    /// Computations that have the error, each with what it changes; none if the run cannot have it.
    variants: fn(&Trainer) -> Vec<Variant>,
}

/// One form of an error.
pub struct Variant {
    pub detail: String,
    pub change: Change,
}

impl Hypothesis {
    pub fn variants(&self, trainer: &Trainer) -> Vec<Variant> {
        (self.variants)(trainer)
    }
}

/// The known errors, the cheapest and most frequent first.
#[rustfmt::skip]
pub static HYPOTHESES: [Hypothesis; 18] = {
    use Cause::{Forward, Gradient, Update};
    [
        known("attention masks of documents", Forward, masks),
        known("padding rows of the vocabulary in the softmax", Forward, padding),
        known("RoPE's pairs of columns", Forward, rope_pairs),
        known("base of RoPE", Forward, rope_base),
        known("embedding norm dropped", Forward, no_embedding_norm),
        known("copies of norms drifted between tensor ranks", Forward, own_copies),
        known("tied embedding's copies drifted", Forward, tied_copies),
        known("mean of the loss", Forward, means),
        known("formula of GELU", Forward, gelu),
        known("epsilon of norms", Forward, epsilon),
        known("seed of the data's order", Forward, seeds),
        known("rule of the data's order", Forward, rules),
        known("place in the data", Forward, places),
        known("tied embedding's gradients not summed", Gradient, tied_gradients),
        known("gradient norm that misses a share", Gradient, norm_shares),
        known("learning rate of another step", Update, rates),
        known("parameters with weight decay", Update, decays),
        known("clipping of gradients", Update, clips),
    ]
};

const fn known(
    name: &'static str,
    cause: Cause,
    variants: fn(&Trainer) -> Vec<Variant>,
) -> Hypothesis {
    Hypothesis { name, cause, variants }
}

fn variant(detail: impl Into<String>, change: Change) -> Variant {
    Variant { detail: detail.into(), change }
}

/// A variant that only changes settings.
fn set(trainer: &Trainer, detail: impl Into<String>, sets: &[&str]) -> Variant {
    variant(detail, trainer.base.clone().with_sets(sets))
}

fn masks(trainer: &Trainer) -> Vec<Variant> {
    let m = &trainer.manifest;
    let Some(token) = m.data.eod.map(|eod| eod.token).or_else(|| guess_eod(m)) else {
        return Vec::new();
    };
    let now = m.data.eod.unwrap_or(Eod {
        token,
        mask_loss: false,
        reset_positions: false,
        reset_attention: false,
    });
    let mut variants = Vec::new();
    for number in 0..8 {
        let [attention, positions, loss] = [1, 2, 4].map(|bit| number & bit != 0);
        if [attention, positions, loss] == [now.reset_attention, now.reset_positions, now.mask_loss]
        {
            continue;
        }
        let said = |what: &str, on: bool| if on { format!("{what}, ") } else { String::new() };
        let detail = match number {
            0 => "attention, positions and loss without regard to documents".to_string(),
            _ => {
                let parts = said("attention stops at documents", attention)
                    + &said("positions restart in each", positions)
                    + &said("no loss at their ends", loss);
                parts.trim_end_matches(", ").to_string()
            }
        };
        let eod = format!(
            "data.eod={{token: {token}, reset_attention: {attention}, reset_positions: {positions}, \
             mask_loss: {loss}}}"
        );
        variants.push(set(trainer, format!("{detail} (token {token})"), &[&eod]));
    }
    if !m.data.inter_document_masking {
        let detail = "attention and positions stop at the sequences of the index";
        variants.push(set(trainer, detail, &["data.inter_document_masking=true"]));
    }
    variants
}

/// The last token of the first sequences of the data, if it is the same of all.
fn guess_eod(m: &Manifest) -> Option<u32> {
    let prefix = m.data.train_prefixes().into_iter().next()?;
    let dataset = Indexed::open(prefix).ok()?;
    let mut tokens = BTreeSet::new();
    for (sequence, length) in dataset.lengths().iter().enumerate().take(64) {
        let mut token = [0];
        dataset
            .read(sequence, length.checked_sub(1)?, &mut token)
            .ok()?;
        tokens.insert(token[0]);
    }
    let token = tokens.pop_first().filter(|_| tokens.is_empty())?;
    u32::try_from(token).ok()
}

fn padding(trainer: &Trainer) -> Vec<Variant> {
    let change = Change { mask_padding: true, ..trainer.base.clone() };
    vec![variant("the softmax leaves them out, the import counts them", change)]
}

fn rope_pairs(trainer: &Trainer) -> Vec<Variant> {
    if !matches!(trainer.manifest.model.position, Position::Rope(_)) {
        return Vec::new();
    }
    let change = |state| Change { state, ..trainer.base.clone() };
    vec![
        variant(
            "neighbouring columns turn together, and the import expects halves of a head",
            change(StateChange::FromNeighbours),
        ),
        variant(
            "halves of a head turn together, and the import expects neighbouring columns",
            change(StateChange::FromHalves),
        ),
    ]
}

fn rope_base(trainer: &Trainer) -> Vec<Variant> {
    let Position::Rope(rope) = &trainer.manifest.model.position else { return Vec::new() };
    let mut variants = Vec::new();
    for theta in [1e4, 1e5, 5e5, 1e6] {
        if theta != rope.theta {
            let setting = format!("model.position.rope.theta={theta}");
            variants.push(set(trainer, setting.clone(), &[&setting]));
        }
    }
    variants
}

fn no_embedding_norm(trainer: &Trainer) -> Vec<Variant> {
    if !trainer.manifest.model.embedding_layernorm {
        return Vec::new();
    }
    let detail = "no norm follows the embedding";
    vec![set(trainer, detail, &["model.embedding_layernorm=false"])]
}

fn own_copies(trainer: &Trainer) -> Vec<Variant> {
    if trainer.tensor_ranks() == 1 {
        return Vec::new();
    }
    let change = Change { state: StateChange::OwnCopies, ..trainer.base.clone() };
    vec![variant("each rank computes with its own copy, the import takes their mean", change)]
}

fn tied_copies(trainer: &Trainer) -> Vec<Variant> {
    if trainer.found.grid[1] == 1 {
        return Vec::new();
    }
    tied(trainer, &[(TiedGradients::Separate, "the last stage's copy is the head")])
}

fn tied_gradients(trainer: &Trainer) -> Vec<Variant> {
    tied(
        trainer,
        &[
            (TiedGradients::Separate, "two copies, each updated by its own gradient"),
            (TiedGradients::OnlyLookup, "only the gradient of the lookup"),
            (TiedGradients::OnlyHead, "only the gradient of the logits"),
        ],
    )
}

fn tied(trainer: &Trainer, forms: &[(TiedGradients, &str)]) -> Vec<Variant> {
    if !trainer.manifest.model.tied_head {
        return Vec::new();
    }
    let base = &trainer.base;
    let mut variants = Vec::new();
    for (tied, detail) in forms {
        let update = UpdateChange { tied: *tied, ..base.update };
        variants.push(variant(*detail, base.clone().with_update(update)));
    }
    variants
}

fn means(trainer: &Trainer) -> Vec<Variant> {
    let forms = [
        (LossMean::Tokens, "over the tokens of the global batch"),
        (LossMean::MicroBatches, "per micro-batch, then over micro-batches"),
        (LossMean::Samples, "per sample, then over samples"),
    ];
    let mut variants = Vec::new();
    for (mean, detail) in forms {
        if mean != trainer.base.mean {
            variants.push(variant(detail, Change { mean, ..trainer.base.clone() }));
        }
    }
    variants
}

fn gelu(trainer: &Trainer) -> Vec<Variant> {
    let model = &trainer.manifest.model;
    if model.ffn != manifest::Ffn::Gelu {
        return Vec::new();
    }
    let [detail, setting] = match model.gelu {
        base::Gelu::Tanh => ["the exact one, by erf", "model.gelu=exact"],
        base::Gelu::Exact => ["the approximation by tanh", "model.gelu=tanh"],
    };
    vec![set(trainer, detail, &[setting])]
}

fn epsilon(trainer: &Trainer) -> Vec<Variant> {
    let mut variants = Vec::new();
    for eps in [1e-5f32, 1e-6, 1e-8, 1e-12] {
        if eps != trainer.manifest.model.layernorm_eps {
            let setting = format!("model.layernorm_eps={eps:e}");
            variants.push(set(trainer, setting.clone(), &[&setting]));
        }
    }
    variants
}

/// Defaults of trainers, and neighbours of the run's own seed.
fn seeds(trainer: &Trainer) -> Vec<Variant> {
    let own = trainer.manifest.data.seed;
    let mut variants = Vec::new();
    for seed in [1234, 0, 1, 42, own + 1, own.saturating_sub(1), 123, 1337] {
        let setting = format!("data.seed={seed}");
        if seed != own
            && variants
                .iter()
                .all(|known: &Variant| known.detail != setting)
        {
            variants.push(set(trainer, setting.clone(), &[&setting]));
        }
    }
    variants
}

fn rules(trainer: &Trainer) -> Vec<Variant> {
    let other = match trainer.manifest.data.rule {
        manifest::DataRule::MegatronCore => "data.rule=megatron-deepspeed",
        manifest::DataRule::MegatronDeepSpeed => "data.rule=mcore",
    };
    vec![set(trainer, other, &[other])]
}

fn places(trainer: &Trainer) -> Vec<Variant> {
    let consumed = trainer.found.samples;
    let global = trainer.manifest.batch.ramp().batch_at(consumed) as u64;
    let first = |first: u64| Change { first_sample: Some(first), ..trainer.base.clone() };
    let mut variants = vec![
        variant("the data began again at its first sample", first(0)),
        variant("a batch was skipped", first(consumed + global)),
    ];
    if consumed >= global {
        variants.push(variant("the last batch was read again", first(consumed - global)));
    }
    variants
}

fn norm_shares(trainer: &Trainer) -> Vec<Variant> {
    let [ranks, stages, _] = trainer.found.grid;
    let mut forms = Vec::new();
    if ranks > 1 {
        for rank in 0..ranks {
            let detail = format!("only tensor rank {rank}'s share counts");
            forms.push((Counted::TensorRank { rank, ranks }, detail));
        }
        let detail = "norms and biases count once for each tensor rank".to_string();
        forms.push((Counted::EveryCopy { ranks }, detail));
    }
    if stages > 1 {
        for stage in 0..stages {
            forms.push((Counted::OnlyStage(stage), format!("only pipeline stage {stage} counts")));
            if stages > 2 {
                let detail = format!("pipeline stage {stage} does not count");
                forms.push((Counted::WithoutStage(stage), detail));
            }
        }
    }
    forms.push((Counted::WithoutEmbedding, "the embedding does not count".to_string()));
    forms.push((Counted::WithoutVectors, "norms and biases do not count".to_string()));
    let base = &trainer.base;
    let mut variants = Vec::new();
    for (counted, detail) in forms {
        let update = UpdateChange { counted, ..base.update };
        variants.push(variant(detail, base.clone().with_update(update)));
    }
    variants
}

fn rates(trainer: &Trainer) -> Vec<Variant> {
    let change = |rate_delay| Change { rate_delay, ..trainer.base.clone() };
    vec![
        variant("the rate is one step late", change(1)),
        variant("the rate is one step early", change(-1)),
    ]
}

fn decays(trainer: &Trainer) -> Vec<Variant> {
    let base = &trainer.base;
    let mut variants = Vec::new();
    for (embedding, vectors, detail) in [
        (true, true, "norms and biases decay, and the embedding"),
        (true, false, "norms and biases do not decay"),
        (false, false, "neither norms, biases nor the embedding decay"),
        (false, true, "norms and biases decay, the embedding does not"),
    ] {
        let decayed = Decayed { embedding, vectors };
        if decayed != base.update.decayed {
            let update = UpdateChange { decayed, ..base.update };
            variants.push(variant(detail, base.clone().with_update(update)));
        }
    }
    variants.push(set(trainer, "nothing decays", &["optimizer.adamw.weight_decay=0"]));
    variants
}

fn clips(trainer: &Trainer) -> Vec<Variant> {
    if trainer.manifest.optimizer.clip().is_none() {
        return Vec::new();
    }
    vec![set(trainer, "gradients are not clipped", &["optimizer.adamw.clip=1e9"])]
}
