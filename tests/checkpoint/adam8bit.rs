//! Moments in 8 bits: codes and scales are saved as they are and read by any grid to the last bit;
//! a checkpoint of AdamW is converted, and back; another optimizer's states begin anew where asked.

use crate::common::binary::{Done as Ended, Lab};
use crate::grids::{Done, loaded, try_run};
use gptrain::base::DType;
use gptrain::checkpoint::{self, Checkpoint, Tensor, inspect};
use gptrain::device::dynamic_map::{SIGNED, UNSIGNED};
use gptrain::engine::rule;
use gptrain::manifest::Loaded;
use std::ops::Range;
use std::path::{Path, PathBuf};

const CODED: &str = "optimizer.adam8bit={clip: 0.3}";
const WIDE: &str = "optimizer.adamw={clip: 0.3}";

/// A share of the columns is two blocks and eight, one and four under tensor: 2.
fn manifest(optimizer: &str, topology: &[&str]) -> Loaded {
    let sets = ["model.hidden=128", "model.layers=2", "model.dropout=0.1", optimizer];
    let topology = topology.iter().map(|set| format!("topology.{set}"));
    loaded(&sets.iter().map(|set| set.to_string()).chain(topology).collect::<Vec<_>>())
}

const GRIDS: [&[&str]; 6] = [
    &[],
    &["tensor=2", "pipeline=2"],
    &["data=4", "zero=1"],
    &["tensor=2", "data=2", "zero=2"],
    &["data=8", "zero=3"],
    &["pipeline=2", "data=2", "zero=0"],
];

fn train(m: &Loaded, from: Option<&Path>, steps: Range<usize>) -> Done {
    let checkpoint = from.map(|folder| Checkpoint::open(folder).unwrap());
    let (arrived, done) = try_run(m, checkpoint.as_ref(), steps, &|_, _| (), rule);
    if let Some(checkpoint) = checkpoint {
        checkpoint::verify(&checkpoint, &arrived).unwrap();
    }
    done
}

/// Read and saved again, without a step.
fn again(m: &Loaded, from: &Path, to: &Path) -> PathBuf {
    train(m, Some(from), 2..2).save(m, to)
}

fn equal(a: &Path, b: &Path) {
    let diff = inspect::diff(a, b).unwrap();
    assert!(diff.equal(), "{diff}");
    let found = inspect::inspect(b, true).unwrap();
    assert!(found.damage.is_empty(), "{:?}", found.damage);
}

#[test]
fn any_grid_reads_the_codes_of_any_other_and_its_own_goes_on_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: String| folder.path().join(name);
    let manifests = GRIDS.map(|grid| manifest(CODED, grid));
    let one = train(&manifests[0], None, 0..5).outcomes;
    let mut worst: f64 = 0.0;
    for (i, m) in manifests.iter().enumerate() {
        let whole = train(m, None, 0..5).outcomes;
        let saved = train(m, None, 0..2).save(m, &place(format!("{i}")));
        assert_eq!(train(m, Some(&saved), 2..5).outcomes, whole[2..], "{:?}", GRIDS[i]);
        for (ours, theirs) in whole.iter().zip(&one) {
            worst = worst.max((ours.loss / theirs.loss - 1.0).abs());
        }
        let other = (i + 1) % GRIDS.len();
        let moved = again(&manifests[other], &saved, &place(format!("{i} on {other}")));
        equal(&saved, &moved);
    }
    println!("losses of five steps, six grids: {worst:.1e} apart at most");
    // A gradient that differs in its last bit may take the next code.
    assert!(worst < 1e-4, "{worst:e}");
}

/// Codes are cut for the host, and updated there, to the same bits.
#[test]
fn states_on_the_host_are_the_same() {
    let folder = tempfile::tempdir().unwrap();
    for topology in [&[][..], &["tensor=2", "data=2", "zero=2"]] {
        let [device, host] = [&[][..], &["offload=optimizer"]]
            .map(|place| manifest(CODED, &[topology, place].concat()));
        let [one, other] = [&device, &host].map(|m| train(m, None, 0..3));
        assert_eq!(one.outcomes, other.outcomes, "{topology:?}");
        let place = |name: &str| folder.path().join(format!("{name} {}", topology.len()));
        equal(&one.save(&device, &place("device")), &other.save(&host, &place("host")));
    }
}

fn numbers(checkpoint: &Checkpoint, tensor: &Tensor, state: &str) -> Vec<f32> {
    checkpoint.whole(tensor, state).unwrap()
}

/// Codes of a state, as a checkpoint has them.
fn bytes(checkpoint: &Checkpoint, tensor: &Tensor, state: &str) -> Vec<u8> {
    assert_eq!(tensor.state(state).unwrap().dtype, DType::U8);
    numbers(checkpoint, tensor, state).into_iter().map(|code| code as u8).collect()
}

#[test]
fn a_checkpoint_of_adamw_is_converted_once_and_alike_on_every_grid() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    let wide = train(&manifest(WIDE, &[]), None, 0..2).save(&manifest(WIDE, &[]), &place("wide"));
    let coded = again(&manifest(CODED, &[]), &wide, &place("coded"));
    let other = manifest(CODED, &["tensor=2", "data=2", "zero=3"]);
    equal(&coded, &again(&other, &wide, &place("coded elsewhere")));
    let back = again(&manifest(WIDE, &[]), &coded, &place("back"));
    // Shares of 32 columns: half a block.
    let narrow = manifest(WIDE, &["tensor=4", "data=2", "zero=1"]);
    equal(&back, &again(&narrow, &coded, &place("back elsewhere")));
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
    let saved = train(&coded, None, 0..2).save(&coded, &place("64"));
    let by_16 = again(&smaller, &saved, &place("16"));
    let by_32_bits = again(&manifest(WIDE, &[]), &saved, &place("wide"));
    equal(&by_16, &again(&smaller, &by_32_bits, &place("16 of wide")));
    train(&smaller, Some(&by_16), 2..3);
}

fn ran(lab: &Lab, flags: &[&str], steps: u32, optimizer: &str) -> Ended {
    let sets = [format!("train.steps={steps}"), format!("optimizer={optimizer}")];
    let sets = sets.iter().flat_map(|set| ["--set", set.as_str()]);
    let more = ["--set", "model.hidden=64", "--set", "lr={peak: 3e-3, decay: constant}"];
    lab.gptrain(&[&["run", "run.yaml"], flags, &more, &sets.collect::<Vec<_>>()].concat())
}

#[test]
fn a_change_of_the_optimizer_is_said_in_one_line() {
    let lab = Lab::new();
    ran(&lab, &[], 6, "adamw").expect(0, &[]);
    let there = ran(&lab, &[], 9, "{adam8bit: {beta2: 0.99}}");
    let lines = |done: &Ended, word: &str| done.out.matches(word).count();
    there.expect(0, &[]);
    let converted = "the optimizer was adamw, is adam8bit from step 6 on: its states are converted";
    assert_eq!(lines(&there, converted), 1, "{}", there.out);
    assert_eq!(lines(&there, "optimizer."), 1, "beta2 alone: {}", there.out);
    assert_eq!(lines(&there, "optimizer.adam8bit.beta2 was 0.95, is 0.99"), 1, "{}", there.out);
    let shown = lab.gptrain(&["inspect-ckpt", "runs/a/checkpoints/step-00000009", "--deep"]);
    shown.expect(0, &[]);
    for word in
        ["adam8bit, beta1 0.9, beta2 0.99, block 64", "m codes", "√v scales", "sound: every"]
    {
        assert!(shown.out.contains(word), "{word:?} is not in:\n{}", shown.out);
    }
    let on = ran(&lab, &[], 10, "{adam8bit: {beta2: 0.99}}");
    on.expect(0, &[]);
    assert_eq!(lines(&on, "converted"), 0, "once: {}", on.out);
    let back = ran(&lab, &[], 12, "adamw");
    back.expect(0, &[]);
    assert_eq!(lines(&back, "is adamw from step 10 on"), 1, "{}", back.out);
}

/// In fp16 too, where updates and skipped steps add up to the steps since.
#[test]
fn states_begin_anew_where_asked() {
    for precision in ["f32", "fp16"] {
        let lab = Lab::new();
        let set = format!("precision={precision}");
        let flags = ["--set", set.as_str()];
        let scale = ["--set", "loss_scale=1024"];
        let flags = if precision == "fp16" { [&flags[..], &scale].concat() } else { flags.into() };
        ran(&lab, &flags, 6, "adamw").expect(0, &[]);
        let again = ran(&lab, &[&["--reset-optimizer"], &flags[..]].concat(), 9, "adam8bit");
        again.expect(0, &[]);
        let said = "the optimizer's states begin anew at step 6 (adam8bit; it was adamw)";
        assert_eq!(again.out.matches(said).count(), 1, "{}", again.out);
        let shown = lab.gptrain(&["inspect-ckpt", "runs/a/checkpoints/step-00000009", "--deep"]);
        shown.expect(0, &[]);
        for word in ["states from step 6 on", "decay 0.1, 3 updates", "sound: every"] {
            assert!(shown.out.contains(word), "{word:?} is not in:\n{}", shown.out);
        }
        // Updates are counted on: a run that was not stopped has the same bits.
        let whole = lab.losses("runs/a");
        std::fs::remove_dir_all(lab.path("runs/a/checkpoints/step-00000009")).unwrap();
        let asked = [&["--reset-optimizer", "--set", "checkpoint.interval=2"], &flags[..]].concat();
        ran(&lab, &asked, 8, "adam8bit").expect(0, &[]);
        ran(&lab, &flags, 9, "adam8bit").expect(0, &[]);
        let losses = lab.losses("runs/a");
        assert_eq!(losses[losses.len() - 3..], whole[whole.len() - 3..], "{precision}");
    }
}
