//! Moments in 8 bits: a checkpoint of AdamW is converted, alike on every grid, and back.

use crate::grids::{loaded, run};
use gptrain::base::DType;
use gptrain::checkpoint::{Checkpoint, Tensor, inspect};
use gptrain::device::dynamic_map::{SIGNED, UNSIGNED};
use gptrain::manifest::Loaded;
use std::path::{Path, PathBuf};

const CODED: &str = "optimizer.adam8bit={clip: 0.3}";
const WIDE: &str = "optimizer.adamw={clip: 0.3}";

/// A share of the columns is two blocks and eight, one and four under tensor: 2.
fn manifest(optimizer: &str, topology: &[&str]) -> Loaded {
    let sets = ["model.hidden=128", "model.layers=2", "model.dropout=0.1", optimizer];
    let topology = topology.iter().map(|set| format!("topology.{set}"));
    loaded(
        &sets
            .iter()
            .map(|set| set.to_string())
            .chain(topology)
            .collect::<Vec<_>>(),
    )
}

/// Read and saved again, without a step.
fn again(m: &Loaded, from: &Path, to: &Path) -> PathBuf {
    run(m, Some(from), 2..2).save(m, to)
}

fn equal(a: &Path, b: &Path) {
    let diff = inspect::diff(a, b).unwrap();
    assert!(diff.equal(), "{diff:?}");
    let found = inspect::inspect(b, true).unwrap();
    assert!(found.damage.is_empty(), "{:?}", found.damage);
}

fn numbers(checkpoint: &Checkpoint, tensor: &Tensor, state: &str) -> Vec<f32> {
    checkpoint.whole(tensor, state).unwrap()
}

/// Codes of a state, as a checkpoint has them.
fn bytes(checkpoint: &Checkpoint, tensor: &Tensor, state: &str) -> Vec<u8> {
    assert_eq!(tensor.state(state).unwrap().dtype, DType::U8);
    numbers(checkpoint, tensor, state)
        .into_iter()
        .map(|code| code as u8)
        .collect()
}

#[test]
fn a_checkpoint_of_adamw_is_converted_once_and_alike_on_every_grid() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    let wide = run(&manifest(WIDE, &[]), None, 0..2).save(&manifest(WIDE, &[]), &place("wide"));
    let coded = again(&manifest(CODED, &[]), &wide, &place("coded"));
    let other = manifest(CODED, &["tensor=2", "data=2", "zero=3"]);
    equal(&coded, &again(&other, &wide, &place("coded elsewhere")));
    let back = again(&manifest(WIDE, &[]), &coded, &place("back"));
    // Shares of 32 columns: half a block.
    let narrow = manifest(WIDE, &["tensor=4", "data=2", "zero=1"]);
    equal(&back, &again(&narrow, &coded, &place("back elsewhere")));
    // What the codes lose, as `inspect-ckpt --diff` shows it.
    for tensor in inspect::diff(&wide, &coded).unwrap().tensors {
        let lost = [tensor.states["first_moment"], tensor.states["second_moment"]];
        assert_eq!(tensor.states["master"], 0.0);
        assert_eq!(tensor.equal, lost == [0.0, 0.0], "{}: {lost:?}", tensor.name);
        assert!(lost.iter().all(|lost| *lost < 0.03), "{}: {lost:?}", tensor.name);
    }
    let [wide, coded, back] = [&wide, &coded, &back].map(|at| Checkpoint::open(at).unwrap());
    let mut matrices = 0;
    for tensor in &coded.index.tensors {
        let [before, after] = [&wide, &back].map(|c| c.index.tensor(&tensor.name).unwrap());
        let now = |state: &str| numbers(&back, after, state);
        let [m, v] = ["first_moment", "second_moment"].map(|s| numbers(&wide, before, s));
        assert_eq!(now("master"), numbers(&wide, before, "master"));
        if !tensor.states.contains_key("first_codes") {
            assert!(now("first_moment") == m && now("second_moment") == v, "{}", tensor.name);
            continue;
        }
        matrices += 1;
        let root: Vec<f32> = v.iter().map(|v| v.sqrt()).collect();
        for (map, of, name) in [(&SIGNED, &m, "first"), (&UNSIGNED, &root, "second")] {
            let (codes, scales) = map.encode(of, 64);
            assert_eq!(bytes(&coded, tensor, &format!("{name}_codes")), codes, "{}", tensor.name);
            assert_eq!(numbers(&coded, tensor, &format!("{name}_scales")), scales);
            let decoded = map.decode(&codes, &scales);
            let square = |x: &f32| if name == "second" { x * x } else { *x };
            let decoded: Vec<f32> = decoded.iter().map(square).collect();
            assert_eq!(now(&format!("{name}_moment")), decoded, "{}", tensor.name);
        }
    }
    assert_eq!(matrices, 8, "four of each block");
}

/// Blocks of another size: by way of 32 bits.
#[test]
fn another_block_is_converted_too() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    let coded = manifest(CODED, &[]);
    let smaller = manifest("optimizer.adam8bit={clip: 0.3, block: 16}", &["data=2", "zero=1"]);
    let saved = run(&coded, None, 0..2).save(&coded, &place("64"));
    let by_16 = again(&smaller, &saved, &place("16"));
    let by_32_bits = again(&manifest(WIDE, &[]), &saved, &place("wide"));
    equal(&by_16, &again(&smaller, &by_32_bits, &place("16 of wide")));
    run(&smaller, Some(&by_16), 2..3);
}
