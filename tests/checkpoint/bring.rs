//! Runs of other trainers, brought with their states: a checkpoint of a tiny BLOOM that PyTorch cut
//! into Megatron-DeepSpeed's layout (`tests/fixtures/torch/bloom.py`) continues as the run that it was
//! cut from, to the last bit.

use super::bring_llama::same_states;
use crate::common::binary::{Done, Lab};
use crate::common::saved;
use crate::common::unpack::unpack;
use gptrain::manifest::dialects::{self, Meaning};
use std::fs;
use std::path::{Path, PathBuf};

/// The run that `original` is of. `bloom.py` repeats it as Megatron's arguments.
const ORIGINAL: &str = "
name: bloom
model: {family: bloom, layers: 2, hidden: 16, heads: 2, vocab: 256, vocab_multiple: 1, ffn_hidden: 64,
  seq_len: 16, position: alibi, embedding_layernorm: true}
precision: bf16
data: {rule: megatron-deepspeed, seed: 42, train: corpus, split: '100,0,0'}
batch: {micro: 2, global: 8, ramp_up: 4 4 16}
optimizer: {adamw: {beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, clip: 1.0}}
lr: {peak: 1e-2, min: 1e-3, warmup_samples: 16, decay: {cosine: {samples: 160}}, counted: before}
checkpoint: {interval: 100}
log: {folder: runs/whole, tensorboard: false}
train: {samples: 160, seed: 42, threads: 1}
comm: {start_timeout_s: 480}
";

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// A folder with the corpus, the original run after six steps, and the foreign folder, to be changed.
pub fn lab() -> Lab {
    let lab = Lab::new();
    for end in ["bin", "idx"] {
        let tiny = fixture("data/megatron/datasets").join(format!("u8_tiny.{end}"));
        fs::copy(tiny, lab.path(&format!("corpus.{end}"))).unwrap();
    }
    fs::write(lab.path("run.yaml"), ORIGINAL).unwrap();
    saved::copy(&fixture("torch/original/step-00000006"), &lab.path("runs/whole/checkpoints"));
    let step = fixture("torch/bloom/global_step6");
    saved::copy(&step, &lab.path("bloom"));
    fs::copy(fixture("torch/bloom/latest"), lab.path("bloom/latest")).unwrap();
    lab
}

fn import(lab: &Lab, more: &[&str]) -> Done {
    lab.gptrain(&[&["import", "bloom", "--output", "runs/brought"], more].concat())
}

/// Settings for the paths of the datasets here.
pub fn data(lab: &Lab) -> String {
    format!("data.train={}", lab.path("corpus").display())
}

/// Settings of a grid: tensor, pipeline, data, ZeRO.
pub fn grid([tensor, pipeline, data, zero]: [usize; 4]) -> Vec<String> {
    let names = ["tensor", "pipeline", "data", "zero"];
    let sets = names.iter().zip([tensor, pipeline, data, zero]);
    sets.map(|(name, value)| format!("topology.{name}={value}"))
        .collect()
}

/// The sixteen steps that follow the sixth: the same bits as those of the original run on the same grid.
fn continues_alike(cut: [usize; 4]) {
    let lab = lab();
    import(&lab, &[]).well();
    // The datasets are in another place here than there: the order is the same.
    let mut sets = grid(cut);
    sets.push(data(&lab));
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    lab.run(&sets).well();
    let args = |run| {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        ["run", run].into_iter().chain(sets).collect::<Vec<_>>()
    };
    let done = lab.gptrain(&args("runs/brought"));
    done.expect(0, &[]);
    assert!(!done.out.contains(" after step "), "no setting differs: {}", done.out);
    let (whole, brought) = (lab.losses("runs/whole"), lab.losses("runs/brought"));
    assert_eq!(whole.len(), 16);
    assert_eq!(brought, whole);
}

#[test]
fn on_the_grid_it_was_cut_for_it_continues_bit_for_bit() {
    continues_alike([2, 2, 2, 1]);
}

#[test]
fn on_other_grids_it_continues_bit_for_bit_too() {
    continues_alike([1, 1, 1, 0]);
    continues_alike([1, 2, 1, 0]);
}

/// `tests/fixtures/torch/universal.py` wrote it: whole parameters, as DeepSpeed's converter does.
#[test]
fn a_universal_folder_continues_bit_for_bit() {
    let lab = lab();
    unpack(&fixture("torch/universal.tar.zst"), &["universal/"], &lab.path(""));
    let args = ["import", "universal", "--output", "runs/brought", "--set", &data(&lab)];
    let done = lab.gptrain(&args);
    done.well();
    assert!(done.out.contains("universal checkpoint"), "{}", done.out);
    lab.run(&[&data(&lab)]).well();
    let grid = ["topology.tensor=1", "topology.pipeline=1"];
    let sets = grid.iter().flat_map(|set| ["--set", set]);
    lab.gptrain(
        &["run", "runs/brought"]
            .into_iter()
            .chain(sets)
            .collect::<Vec<_>>(),
    )
    .well();
    let (whole, brought) = (lab.losses("runs/whole"), lab.losses("runs/brought"));
    assert_eq!(whole.len(), 16);
    assert_eq!(brought, whole);

    // A file that is missing is named.
    let file = "zero/3.input_layernorm.bias/exp_avg_sq.pt";
    fs::remove_file(lab.path("universal/global_step6_universal").join(file)).unwrap();
    lab.gptrain(&["import", "universal", "--dry"])
        .expect(2, &[file, "is missing"]);
}

/// `tests/fixtures/torch/fp16.py` rewrote BLOOM's files: DeepSpeed's FP16 optimizer, whose partitions have
/// no names, and a table of learned positions.
#[test]
fn the_fp16_optimizer_brings_its_loss_scale_and_its_skipped_steps() {
    let lab = lab();
    unpack(&fixture("torch/fp16.tar.zst"), &["fp16/"], &lab.path(""));
    let args = ["import", "fp16", "--output", "runs/brought", "--set", &data(&lab)];
    let done = lab.gptrain(&args);
    done.well();
    assert!(done.out.contains("2 of 6 steps were skipped: no update"), "{}", done.out);
    let step = "checkpoints/step-00000006";
    let mut brought = saved::Saved::read(&lab.path("runs/brought").join(step));
    let mut original = saved::Saved::read(&lab.path("runs/whole").join(step));
    let scale = brought.state.loss_scale.unwrap();
    assert_eq!((scale.scale, scale.updates_in_a_row, scale.overflows_left), (4096.0, 3, 1));
    assert_eq!((scale.updates, scale.skipped), (4, 2));
    assert_eq!(brought.state.skipped_updates, 2);
    assert_eq!(brought.state.optimizer.groups[0].step, 4);
    let positions = brought
        .tensors
        .iter()
        .position(|tensor| tensor.name == "embed.position");
    let positions = brought
        .tensors
        .remove(positions.expect("the table of positions"));
    for (kept, unit) in positions
        .kept
        .iter()
        .zip([1.0 / 64.0, 1.0 / 1024.0, 1.0 / 65536.0])
    {
        let counted: Vec<f32> = (0..256).map(|n| n as f32 * unit).collect();
        assert_eq!(*kept, counted);
    }
    assert_eq!(brought.tensors.len(), original.tensors.len());
    for tensor in &brought.tensors {
        assert_eq!(tensor.kept, original.tensor(&tensor.name).kept, "{}", tensor.name);
    }
    lab.gptrain(&["run", "runs/brought", "--set", "train.samples=48"])
        .well();
}

#[test]
fn every_weight_and_moment_is_the_originals() {
    let lab = lab();
    let done = import(&lab, &[]);
    done.well();
    for words in [
        "Megatron-DeepSpeed (DeepSpeed 0.7.0)",
        "step 6, 32 samples",
        "tensor 2 × pipeline 2 × data 2",
        "rows 251 to 255 of the embedding pad it",
        "wrote",
    ] {
        assert!(done.out.contains(words), "{words}: {}", done.out);
    }
    same_states(&lab);
}

/// Each row `KEY: VALUE  (NAME)` of an import is one of the table that messages and docs/coming-from.md
/// are made of.
fn agrees_with_the_table(rows: &str) {
    // One argument sets several keys.
    let also = [("data.seed", "seed"), ("model.dropout.embedding", "hidden_dropout")];
    let mut compared = 0;
    for row in rows.lines() {
        let Some((key, rest)) = row.trim().split_once(": ") else { continue };
        let Some((_, name)) = rest
            .strip_suffix(')')
            .and_then(|rest| rest.rsplit_once('('))
        else {
            continue;
        };
        let Some(found) = dialects::find(name).filter(|_| !also.contains(&(key, name))) else {
            continue;
        };
        let Meaning::Setting { key: meant, .. } = found.meaning else { panic!("{name}") };
        assert_eq!(key, meant, "{name}");
        compared += 1;
    }
    assert!(compared > 15, "{compared} of {rows}");
}

#[test]
fn a_dry_import_says_what_becomes_which_setting_and_writes_nothing() {
    let lab = lab();
    let done = lab.gptrain(&["import", "bloom", "--output", "runs/brought", "--dry"]);
    done.well();
    for words in [
        "model.layers: 2  (num_layers)",
        "batch.ramp_up: 4 4 16  (rampup_batch_size)",
        "lr.counted: before",
        "data.rule: megatron-deepspeed",
        "ignored: ",
        "eval_interval 100",
    ] {
        assert!(done.out.contains(words), "{words}: {}", done.out);
    }
    assert!(!lab.path("runs/brought").exists());
    agrees_with_the_table(&done.out);
    let json = lab.gptrain(&["import", "bloom", "--dry", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!((&json["step"], &json["samples"]), (&6.into(), &32.into()));
    assert_eq!(json["settings"]["topology.zero"], "1");
}

#[test]
fn rows_that_pad_the_vocabulary_can_be_left_out() {
    let lab = lab();
    import(&lab, &["--mask-padding", "--set", &data(&lab)]).well();
    let brought = saved::Saved::read(&lab.path("runs/brought/checkpoints/step-00000006"));
    assert_eq!(brought.tensors[0].shape, [251, 16]);
}

#[test]
fn folders_that_are_not_whole_are_refused_in_one_line_and_leave_nothing() {
    let step = |lab: &Lab, name: &str| lab.path("bloom/global_step6").join(name);
    const OPTIM: &str = "bf16_zero_pp_rank_1_mp_rank_02_optim_states.pt";
    type Change<'a> = Box<dyn Fn(&Lab) + 'a>;
    let damage = |name: &'static str, change: &'static dyn Fn(&mut Vec<u8>)| -> Change {
        Box::new(move |lab| {
            let path = step(lab, name);
            let mut bytes = fs::read(&path).unwrap();
            change(&mut bytes);
            fs::write(path, bytes).unwrap();
        })
    };
    let remove = |name: &'static str| -> Change {
        Box::new(move |lab| fs::remove_file(step(lab, name)).unwrap())
    };
    let cases: Vec<(Change, &[&str])> = vec![
        (remove(OPTIM), &[OPTIM, "is missing"]),
        (remove("mp_rank_01_model_states.pt"), &["mp_rank_01_model_states.pt is missing"]),
        (damage(OPTIM, &|bytes| bytes.truncate(9000)), &[OPTIM, "cut short"]),
        (damage(OPTIM, &|bytes| bytes[3000] ^= 1), &[OPTIM, "the checksum of data/0"]),
        (Box::new(|lab| fs::write(lab.path("bloom/latest"), "global_step7").unwrap()), &["latest"]),
        (
            Box::new(|lab| fs::remove_dir_all(lab.path("bloom/global_step6")).unwrap()),
            &["there is no such folder"],
        ),
    ];
    for (change, words) in cases {
        let lab = lab();
        change(&lab);
        let done = import(&lab, &[]);
        done.expect(2, words);
        assert!(done.err.lines().count() <= 2, "{}", done.err);
        assert!(!lab.path("runs/brought").exists());
        let entries = fs::read_dir(lab.path("runs")).unwrap().count();
        assert_eq!(entries, 1, "nothing is left beside the run");
    }
}

/// Cut by the same script, with something changed: `bloom.py` makes them in `torch/variants`.
#[test]
fn variants_of_the_folder_are_told_or_refused() {
    let refused: [(&str, &[&str]); 3] = [
        ("short", &["partition 1 has", "elements"]),
        ("postnorm", &["apply_residual_connection_post_layernorm is set", "comes before the norm"]),
        ("steps", &["Adam's step is 5, in the first file it is 6"]),
    ];
    for (name, words) in refused {
        let lab = variant(name);
        import(&lab, &[]).expect(2, words);
        assert!(!lab.path("runs/brought").exists(), "{name}");
    }
    // One update more than steps, and norms that differ between tensor ranks.
    let lab = variant("drifted");
    let done = import(&lab, &["--set", &data(&lab)]);
    done.well();
    assert!(done.out.contains("Adam has counted 7 updates in 6 steps"), "{}", done.out);
    assert!(
        done.out.contains("copies of 1 parameters on the tensor ranks differ in the weight, at most by 5.000e-1 (3.input_layernorm.weight): their mean is taken"),
        "{}",
        done.out
    );
    let read = |lab: &Lab| saved::Saved::read(&lab.path("runs/brought/checkpoints/step-00000006"));
    let (mut brought, mut original) =
        (read(&lab), saved::Saved::read(&fixture("torch/original/step-00000006")));
    assert_eq!((brought.state.optimizer.ahead, brought.state.optimizer.groups[0].step), (1, 7));
    let norm = |saved: &mut saved::Saved| saved.tensor("block.0.ln1.scale").kept[0][0];
    let was = norm(&mut original);
    assert!((norm(&mut brought) - was - 0.25).abs() < 1e-6);
    lab.gptrain(&["run", "runs/brought"]).well();
    fs::remove_dir_all(lab.path("runs/brought")).unwrap();
    import(&lab, &["--replicated", "first"]).well();
    assert_eq!(norm(&mut read(&lab)), was);
}

/// The lab with some files of a variant in place of the whole ones.
fn variant(name: &str) -> Lab {
    let lab = lab();
    for entry in fs::read_dir(fixture("torch/variants").join(name)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(
            &path,
            lab.path("bloom/global_step6")
                .join(path.file_name().unwrap()),
        )
        .unwrap();
    }
    lab
}
