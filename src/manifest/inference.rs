//! Manifests for inference, without the settings of training.

use super::read::finish;
use super::tree::{self, Node, Value};
use super::{Loaded, Manifest, Model, Precision, Ranks, check, overrides};
use base::Problems;
use base::number::whole;
use std::path::Path;

/// Manifest of one step, in which everything except the model has its default.
const PLAIN: &str = "
name: eval
model: {layers: 1, hidden: 16, heads: 1, vocab: 16, seq_len: 16}
data: {train: none}
batch: {micro: 1, global: 1}
lr: {peak: 1, decay: constant}
log: {folder: gptrain-eval, tensorboard: false}
train: {samples: 1}
";

/// Name in messages.
const NAME: &str = "the settings of eval";

impl Manifest {
    /// Manifest of a model on one rank.
    pub fn for_model(model: &Model) -> Manifest {
        let plain = super::parse(PLAIN, NAME, Path::new("."), &[])
            .unwrap_or_else(|problems| panic!("{problems}"))
            .manifest;
        Manifest { model: model.clone(), ..plain }
    }
}

/// Manifest with the model, data and machine of `m`, in f32 on one rank, with `sets` applied: a
/// topology, a micro-batch. The global batch follows from them.
pub fn for_inference(m: &Manifest, sets: &[String]) -> Result<Loaded, Problems> {
    let mut plain = Manifest::for_model(&m.model);
    plain.precision = Precision::F32;
    plain.data.tokenizer = m.data.tokenizer.clone();
    plain.data.eod = m.data.eod;
    plain.batch.micro = m.batch.micro;
    plain.batch.global = m.batch.micro;
    plain.comm = m.comm.clone();
    plain.train.device = m.train.device;
    let text = check::effective(&plain);
    let mut root = tree::parse(&text, NAME, None)?;
    overrides::apply(&mut root, sets)?;
    let [micro, data, pipeline] = ["batch.micro", "topology.data", "topology.pipeline"]
        .map(|path| number(root.at(path)).unwrap_or(1));
    let global = micro.saturating_mul(data).saturating_mul(pipeline);
    let follows = ["batch.global", "train.samples"].map(|key| format!("{key}={global}"));
    overrides::apply(&mut root, &follows)?;
    finish(&root, NAME, Path::new("."), Ranks::Unknown, &|_, _| Problems::default())
}

/// Parses a whole number above 0. The check of the manifest reports anything else.
fn number(node: Option<&Node>) -> Option<u64> {
    match &node?.value {
        Value::Scalar { text, .. } => whole(text).ok().filter(|n| *n > 0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::for_test;

    const RUN: &str = "
model: {layers: 4, hidden: 16, heads: 2, vocab: 60, seq_len: 8, position: alibi}
precision: fp16
data: {train: none, eod: {token: 3}, tokenizer: /t.json}
batch: {micro: 2, global: 64, ramp_up: 4 4 1000}
lr: {peak: 1e-3, warmup_samples: 100}
topology: {tensor: 2, data: 2, zero: 3}
train: {samples: 8000, device: cpu}
";

    #[test]
    fn a_run_is_read_on_one_rank_or_on_any_grid() {
        let run = for_test::<&str>(RUN, &[]);
        let alone = for_inference(&run, &[]).unwrap().manifest;
        assert_eq!((alone.topology.ranks(), alone.batch.global), (1, 2));
        assert_eq!((&alone.model, alone.precision), (&alone.model, Precision::F32));
        assert_eq!((alone.data.eod, &alone.data.tokenizer), (run.data.eod, &run.data.tokenizer));
        assert_eq!((alone.loss_scale, alone.train.device), (None, run.train.device));
        let sets = ["topology={pipeline: 2, data: 3}", "batch.micro=5"].map(String::from);
        let grid = for_inference(&run, &sets).unwrap().manifest;
        assert_eq!((grid.topology.ranks(), grid.batch.global), (6, 30));
        let wrong = for_inference(&run, &["topology.tensor=3".to_string()]).unwrap_err();
        assert!(wrong.to_string().contains("--set topology.tensor"), "{wrong}");
    }
}
