//! States of every shape and type: an optimizer made up for it trains, is saved, and is read by other
//! grids, bit for bit.

use crate::grids::{loaded, try_run};
use gptrain::base::DType;
use gptrain::checkpoint::{self, Checkpoint, inspect};
use gptrain::device::{Tensor, op};
use gptrain::engine::{
    Engine, Extent, MASTER, MODEL, OptimizerRule, ParamStates, StateSpec, Step, model_dtype,
};
use gptrain::manifest::{Loaded, Manifest};
use gptrain::model::{ParamSpec, TpSplit};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Plain gradient descent, which describes each matrix after every step: 8-bit codes with a scale for
/// each 64 columns, and means of squares by row and by column.
struct Descent {
    model: DType,
}

fn rule(m: &Manifest) -> Box<dyn OptimizerRule> {
    Box::new(Descent { model: model_dtype(m.precision) })
}

impl OptimizerRule for Descent {
    fn states(&self, param: &ParamSpec) -> Vec<StateSpec> {
        let mut states = vec![StateSpec::model(self.model), StateSpec::master()];
        if param.rows > 1 {
            let of = |name, extent| StateSpec { extent, ..StateSpec::moment(name) };
            states.push(StateSpec { dtype: DType::U8, ..StateSpec::moment("codes") });
            states.push(of("scales", Extent::ColBlocks(64)));
            states.push(of("row_means", Extent::Rows));
            states.push(of("col_means", Extent::Cols));
        }
        states
    }

    fn update(&self, step: &Step, params: &[ParamStates]) {
        let factor = numbers(step, step.scalars)[0];
        for p in params {
            let (master, model) = (p.get(MASTER), p.get(MODEL));
            let (grad, mut weights) = (numbers(step, p.grad), numbers(step, master));
            weights
                .iter_mut()
                .zip(grad)
                .for_each(|(w, g)| *w -= step.lr * factor * g);
            if !p.part.is_empty() {
                step.be.upload(bytemuck::cast_slice(&weights), master);
                step.be.run(op::Copy { x: master, y: model.set() });
            }
            if p.param.spec.rows > 1 {
                codes(step, p, &weights);
                means(step, p, &weights);
            }
        }
    }
}

fn numbers(step: &Step, x: Tensor) -> Vec<f32> {
    let mut bytes = vec![0; x.bytes()];
    step.be.download(x, &mut bytes);
    x.dtype.widen(&bytes)
}

fn codes(step: &Step, p: &ParamStates, weights: &[f32]) {
    if weights.is_empty() {
        return;
    }
    let largest = |block: &[f32]| block.iter().fold(0.0f32, |most, w| most.max(w.abs()));
    let scales: Vec<f32> = weights.chunks(64).map(largest).collect();
    let code = |w: &f32, scale: f32| (127.0 * w / scale.max(1e-30)).round() as i8 as u8;
    let blocks = weights.chunks(64).zip(&scales);
    let codes: Vec<u8> = blocks
        .flat_map(|(b, scale)| b.iter().map(|w| code(w, *scale)))
        .collect();
    step.be.upload(&codes, p.get("codes"));
    step.be
        .upload(bytemuck::cast_slice(&scales), p.get("scales"));
}

/// Every rank adds what its part of the matrix has.
fn means(step: &Step, p: &ParamStates, weights: &[f32]) {
    let (param, spec) = (&p.param, &p.param.spec);
    let (mut rows, mut cols) = (vec![0.0f32; param.rows], vec![0.0f32; param.cols]);
    for (i, w) in p.part.clone().zip(weights) {
        rows[i / param.cols] += w * w / spec.cols as f32;
        cols[i % param.cols] += w * w / spec.rows as f32;
    }
    for (name, values, split) in
        [("row_means", rows, TpSplit::Cols), ("col_means", cols, TpSplit::Rows)]
    {
        let at = p.get(name);
        step.be.upload(bytemuck::cast_slice(&values), at);
        step.at.groups.grad_sum.all_reduce(at);
        if spec.split == split {
            step.at.groups.tensor.all_reduce(at);
        }
    }
}

fn manifest(topology: &[&str]) -> Loaded {
    let sets = ["model.hidden=128", "model.vocab=128", "model.layers=2", "precision=bf16"];
    let topology = topology.iter().map(|set| format!("topology.{set}"));
    loaded(
        &sets
            .iter()
            .map(|set| set.to_string())
            .chain(topology)
            .collect::<Vec<_>>(),
    )
}

/// Trains on a grid, from a checkpoint or not, and saves.
fn train(m: &Loaded, from: Option<&Path>, steps: Range<usize>, to: &Path) -> PathBuf {
    let checkpoint = from.map(|folder| Checkpoint::open(folder).unwrap());
    let replicas = |_, engine: &Engine| assert_eq!(engine.check_replicas(), Ok(()));
    let (arrived, done) = try_run(m, checkpoint.as_ref(), steps, &replicas, rule);
    if let Some(checkpoint) = checkpoint {
        checkpoint::verify(&checkpoint, &arrived).unwrap();
    }
    let saved = done.save(m, to);
    for tensor in &Checkpoint::open(&saved).unwrap().index.tensors {
        assert_eq!(tensor.diverged(), Vec::<String>::new(), "{}", tensor.name);
    }
    saved
}

#[test]
fn states_of_every_extent_are_read_by_any_grid() {
    let folder = tempfile::tempdir().unwrap();
    let grids: [&[&str]; 4] = [
        &[],
        &["tensor=2", "pipeline=2"],
        &["tensor=2", "data=2", "zero=3", "offload=optimizer"],
        &["tensor=2", "data=2", "zero=3"],
    ];
    let grids = grids.map(manifest);
    let place = |name: String| folder.path().join(name);
    let saved: Vec<PathBuf> = (0..grids.len())
        .map(|i| train(&grids[i], None, 0..2, &place(format!("{i}"))))
        .collect();
    for i in 0..grids.len() {
        same_values(&saved[0], &saved[i]);
        let other = (i + 1) % grids.len();
        let again = train(&grids[other], Some(&saved[i]), 2..2, &place(format!("{i} again")));
        let diff = inspect::diff(&saved[i], &again).unwrap();
        assert!(diff.equal(), "{diff:?}");
        train(&grids[other], Some(&again), 2..3, &place(format!("{i} on")));
    }
}

/// The states are those of the whole model's matrices, but for the order of sums.
fn same_values(one: &Path, other: &Path) {
    let (one, other) = (Checkpoint::open(one).unwrap(), Checkpoint::open(other).unwrap());
    for tensor in &one.index.tensors {
        let theirs = other.index.tensor(&tensor.name).unwrap();
        assert_eq!(tensor.saved().count(), if tensor.shape.len() > 1 { 5 } else { 1 });
        for (state, _) in tensor.saved() {
            let a = one.whole(tensor, state).unwrap();
            let b = other.whole(theirs, state).unwrap();
            let most = a.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            // A code may be the next one; −1 is 255.
            let off = |x: f32, y: f32| match state {
                "codes" => (x - y).abs().min(256.0 - (x - y).abs()) / 2.0,
                _ => (x - y).abs() / (1e-2 * most.max(1e-6)),
            };
            let worst = a
                .iter()
                .zip(&b)
                .map(|(x, y)| off(*x, *y))
                .fold(0.0, f32::max);
            assert!(a.len() == b.len() && worst <= 1.0, "{state} of {}: {worst}", tensor.name);
        }
    }
}
