//! `gptrain inspect-ckpt`: what it shows of a sound checkpoint, and that it sees in an unsound one
//! what large runs have suffered from.

use crate::common::binary::Lab;
use crate::common::saved::{STATES, Saved};
use gptrain::checkpoint::Checkpoint;
use gptrain::checkpoint::inspect::{diff, inspect};
use gptrain::checkpoint::safetensors::Reader;
use gptrain::device::dynamic_map::UNSIGNED;
use std::fs;

fn lab(sets: &[&str]) -> Lab {
    let lab = Lab::new();
    lab.run(sets).expect(0, &[]);
    lab
}

/// Words of a text, one space apart.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_sound_checkpoint_is_shown_whole() {
    let lab = lab(&["precision=bf16", "checkpoint.keep_last=5"]);
    let done = lab.gptrain(&["inspect-ckpt", "runs/a/checkpoints/step-00000012", "--deep"]);
    done.expect(0, &[]);
    for word in [
        "step 12: 48 samples, 768 tokens",
        "next batch of 4, sample 48",
        "trained in bf16",
        "weight decay 0.1, 12 updates",
        "weight decay 0, 12 updates",
        "corpus",
        "block.1.attn.qkv.weight 96 × 32 yes",
        "lnf.shift",
        "sound: every digest verified",
    ] {
        assert!(one_line(&done.out).contains(word), "{word:?} is not in:\n{}", done.out);
    }
    let row = "block.1.attn.qkv.weight";
    let short = lab.gptrain(&["inspect-ckpt", "runs/a"]);
    assert!(short.expect(0, &[]).out.contains("step       12: "), "{}", short.out);
    assert!(!short.out.contains(row), "{}", short.out);
    let rows = lab.gptrain(&["inspect-ckpt", "runs/a", "--tensors"]);
    assert!(rows.expect(0, &[]).out.contains(row), "{}", rows.out);
    let json = lab.gptrain(&["inspect-ckpt", "runs/a", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json.expect(0, &[]).out).unwrap();
    assert_eq!(json["overview"]["step"], 12);
    assert_eq!(json["damage"].as_array().unwrap().len(), 0);
    let row = &json["tensors"][1];
    assert_eq!(row["name"], "embed.token");
    let master = lab.path("runs/a/checkpoints/step-00000012/master-00000.safetensors");
    let values = Reader::open(&master)
        .unwrap()
        .words::<f32>("embed.token")
        .unwrap();
    let squares: f64 = values.iter().map(|v| f64::from(*v).powi(2)).sum();
    assert!((row["master"]["l2"].as_f64().unwrap() - squares.sqrt()).abs() < 1e-9);
    let largest = values.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
    assert_eq!(row["master"]["max"].as_f64().unwrap(), f64::from(largest));
}

/// Moments and not their codes, each with what it is of.
#[test]
fn the_states_of_every_optimizer_are_shown_as_numbers() {
    let powersgd = "topology.compression={powersgd: {rank: 2, start_step: 1, min_rate: 1}}";
    let rules: [(&[&str], &[&str]); 3] = [
        (&["optimizer.adam8bit.block=16"], &["m of 8 bits", "v of 8 bits", "√v scales"]),
        (&["optimizer=adafactor"], &["v by row", "v by column"]),
        (&["topology.data=2", powersgd], &["PowerSGD error", "PowerSGD Q", " m "]),
    ];
    for (sets, words) in rules {
        let lab = lab(sets);
        let done = lab.gptrain(&["inspect-ckpt", "runs/a", "--deep"]);
        done.expect(0, &[]);
        words
            .iter()
            .for_each(|word| assert!(one_line(&done.out).contains(word), "{word:?}: {}", done.out));
        for raw in ["codes", "_", "cannot be read"] {
            let table = done.out.split("\n\n").nth(1).unwrap();
            assert!(!table.contains(raw), "{raw}: {table}");
        }
    }
    let lab = lab(rules[0].0);
    let step = lab.path("runs/a/checkpoints/step-00000012");
    let (found, checkpoint) = (inspect(&step, true).unwrap(), Checkpoint::open(&step).unwrap());
    let name = "block.1.mlp.fc2.weight";
    let row = found.tensors.iter().find(|row| row.name == name).unwrap();
    let tensor = checkpoint.index.tensor(name).unwrap();
    let whole = |state: &str| checkpoint.whole(tensor, state).unwrap();
    let codes: Vec<u8> = whole("second_codes")
        .into_iter()
        .map(|code| code as u8)
        .collect();
    let decoded = UNSIGNED.decode(&codes, &whole("second_scales"));
    let most = decoded
        .iter()
        .fold(0.0f32, |most, root| most.max(root * root));
    let stats = row.states["second_moment"].as_ref().unwrap();
    assert_eq!((stats.count, stats.max, stats.unsound.negative), (32 * 128, f64::from(most), 0));
    assert!(stats.mean > 0.0 && stats.mean < stats.max && !row.states.contains_key("second_codes"));
}

#[test]
fn mistakes_of_the_command_end_with_two() {
    let lab = Lab::new();
    lab.gptrain(&["inspect-ckpt", "nowhere"])
        .expect(2, &["the folder does not exist"]);
    fs::create_dir_all(lab.path("empty/checkpoints")).unwrap();
    lab.gptrain(&["inspect-ckpt", "empty"])
        .expect(2, &["holds no checkpoint"]);
    lab.gptrain(&["inspect-ckpt"]).expect(2, &["CHECKPOINT"]);
    fs::create_dir_all(lab.path("empty/checkpoints/step-00000001")).unwrap();
    lab.gptrain(&["inspect-ckpt", "empty"])
        .expect(1, &["is not a checkpoint"]);
}

#[test]
fn the_next_step_is_replayed() {
    let lab = lab(&["model.dropout=0.1", "batch.ramp_up=2 2 24"]);
    for step in ["step-00000005", "step-00000010"] {
        let folder = format!("runs/a/checkpoints/{step}");
        let done = lab.gptrain(&["inspect-ckpt", &folder, "--replay", "1"]);
        done.expect(0, &["as recorded, to the last bit"]);
    }
    // Over a save, and to the end. What is impossible is said first.
    let again = lab.gptrain(&["inspect-ckpt", "runs/a/checkpoints/step-00000005", "--replay", "7"]);
    let same = again
        .expect(0, &[])
        .err
        .matches("as recorded, to the last bit")
        .count();
    assert_eq!(same, 7, "{}", again.err);
    let more = lab.gptrain(&["inspect-ckpt", "runs/a/checkpoints/step-00000005", "--replay", "8"]);
    more.expect(2, &["its run ends at step 12, 7 steps after step-00000005", "→ --replay 7"]);
    assert_eq!(more.out, "");
    let last = fs::read_dir(lab.path("runs/a/checkpoints")).unwrap();
    let last = last
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|n| n != "latest");
    let folder = format!("runs/a/checkpoints/{}", last.max().unwrap());
    // The run is over: there is no next step.
    lab.gptrain(&["inspect-ckpt", &folder, "--replay", "1"])
        .expect(2, &["its run ends at step 12, 0 steps after"]);
    let changed = lab.path("changed/checkpoints");
    let mut saved = Saved::read(&lab.path("runs/a/checkpoints/step-00000005"));
    saved.tensor("lnf.scale").kept[0][3] *= 1.5;
    saved.write(&changed);
    fs::copy(lab.path("runs/a/metrics.jsonl"), lab.path("changed/metrics.jsonl")).unwrap();
    lab.gptrain(&["inspect-ckpt", "changed", "--replay", "1"])
        .expect(1, &["does not repeat"]);
}

#[test]
fn a_diff_measures_what_moved() {
    let lab = lab(&["lr.min=1e-4"]);
    let step = |n: u32| lab.path(&format!("runs/a/checkpoints/step-{n:08}"));
    let same = lab.gptrain(&["inspect-ckpt", "runs/a", "--diff", "runs/a"]);
    same.expect(0, &[]);
    assert!(same.out.contains("28 of 28 tensors are equal"), "{}", same.out);
    let (five, ten) = ("runs/a/checkpoints/step-00000005", "runs/a/checkpoints/step-00000010");
    let done = lab.gptrain(&["inspect-ckpt", ten, "--diff", five]);
    done.expect(1, &["different"]);
    for word in ["step: 5 → 10", "consumed samples: 20 → 40", "learning rate", "optimizer groups"]
    {
        assert!(done.out.contains(word), "{word}: {}", done.out);
    }
    let other = ["lr.peak=1e-4", "lr.min=1e-5", "optimizer.adamw.weight_decay=0.2"];
    lab.run(&[&other[..], &["log.folder=runs/other"]].concat())
        .well();
    let done = lab.gptrain(&["inspect-ckpt", "runs/other", "--diff", "runs/a"]);
    let keys = ["lr.peak: 0.003 → 0.0001\n", "optimizer.adamw.weight_decay: 0.1 → 0.2\n"];
    assert!(keys.iter().all(|line| done.out.contains(line)), "{}", done.out);
    // A checkpoint of step 0 has moments of zero: no change relative to them.
    let mut zero = Saved::read(&step(5));
    let weight = zero.tensor("block.0.ln2.scale");
    weight.kept[1].iter_mut().for_each(|v| *v = 0.0);
    let zero = zero.write(&lab.path("zero"));
    let done = lab.gptrain(&["inspect-ckpt", five, "--diff", zero.to_str().unwrap()]);
    assert!(done.out.contains(" –") && !done.out.contains("inf"), "{}", done.out);
    let mut changed = Saved::read(&step(5));
    let weight = changed.tensor("block.0.ln2.scale");
    weight.kept[0].iter_mut().for_each(|v| *v *= 1.25);
    let changed = changed.write(&lab.path("changed"));
    let diff = diff(&step(5), &changed).unwrap();
    for tensor in &diff.tensors {
        let ours = tensor.name == "block.0.ln2.scale";
        assert_eq!(tensor.equal, !ours, "{}", tensor.name);
        let changes = STATES.map(|state| tensor.states[state]);
        assert!((changes[0] - if ours { 0.25 } else { 0.0 }).abs() < 1e-6, "{}", tensor.name);
        assert_eq!(changes[1..], [0.0, 0.0]);
    }
}

/// Each: a change to a sound checkpoint, written with correct digests, and what must be said of it.
#[test]
fn what_large_runs_have_suffered_from_is_seen() {
    let lab = lab(&["precision=bf16"]);
    let sound = lab.path("runs/a/checkpoints/step-00000012");
    let start = lab.path("start");
    let said = |change: &dyn Fn(&mut Saved)| {
        let mut saved = Saved::read(&sound);
        change(&mut saved);
        let folder = saved.write(&start);
        inspect(&folder, true).unwrap().damage
    };
    assert_eq!(said(&|_| ()), Vec::<String>::new());
    let seen = |change: &dyn Fn(&mut Saved), words: &[&str]| {
        let damage = said(change).join("\n");
        words
            .iter()
            .for_each(|word| assert!(damage.contains(word), "{word:?}: {damage}"));
    };
    let edit = |name: &'static str, kept: usize, value: f32| {
        move |saved: &mut Saved| saved.tensor(name).kept[kept][7] = value
    };
    seen(&edit("embed.token", 0, f32::NAN), &["master of embed.token: 1 NaN"]);
    seen(&edit("lnf.shift", 1, f32::INFINITY), &["first_moment of lnf.shift", "1 infinite"]);
    seen(&edit("lnf.shift", 2, -1.0), &["second_moment of lnf.shift: 1 values below 0"]);
    // A norm that was reset by a load, and a matrix that never moved.
    let reset = |s: &mut Saved| s.tensor("lnf.scale").set(1.0);
    seen(&reset, &["lnf.scale still has its initial values at step 12"]);
    // A live weight that is not the master's.
    let live = |s: &mut Saved| s.tensor("block.0.ln1.shift").live.as_mut().unwrap()[3] ^= 1;
    seen(&live, &["block.0.ln1.shift: the bf16 model weight at step 12 was not the master weight"]);
    // Norms in the group that decays.
    let decay = |s: &mut Saved| s.tensor("block.1.ln2.scale").decay = true;
    seen(&decay, &["block.1.ln2.scale is in the group with weight decay"]);
    let group = |s: &mut Saved| {
        let name = s.state.optimizer.groups[1].tensors.remove(0);
        s.state.optimizer.groups[0].tensors.push(name);
    };
    seen(&group, &["is a vector and decays"]);
    seen(&|s| s.state.optimizer.groups[0].step -= 1, &["has taken 11 steps, the run 12"]);
    seen(&|s| drop(s.state.optimizer.groups[0].tensors.pop()), &["is in 0 optimizer groups"]);
    seen(&|s| drop(s.tensors.pop()), &["lnf.shift is missing"]);
    seen(
        &|s| s.tensors[0].name = "extra".into(),
        &["extra is unexpected", "embed.position is missing"],
    );
}

#[test]
fn a_live_weight_that_arrives_changed_stops_the_start() {
    let lab = lab(&["precision=bf16"]);
    let folder = lab.path("runs/a/checkpoints");
    let mut saved = Saved::read(&folder.join("step-00000012"));
    saved.tensor("block.0.mlp.fc1.bias").live.as_mut().unwrap()[5] ^= 1;
    saved.write(&folder); // put in the old one's place
    let done = lab.run(&["precision=bf16", "train.steps=14"]);
    done.expect(
        1,
        &["the model weight block.0.mlp.fc1.bias (bf16) is not the one", "step-00000010"],
    );
}

/// An optimizer that is not the one of these steps and this model stops the start too.
#[test]
fn an_optimizer_that_does_not_fit_stops_the_start() {
    let lab = lab(&[]);
    let folder = lab.path("runs/a/checkpoints");
    let step = folder.join("step-00000012");
    let stopped = |change: &dyn Fn(&mut Saved), words: &str| {
        let mut saved = Saved::read(&step);
        change(&mut saved);
        saved.write(&folder);
        lab.run(&["train.steps=14"])
            .expect(2, &[words, "cannot continue from step 12"]);
        let mut saved = Saved::read(&step);
        saved.state.optimizer = Saved::read(&folder.join("step-00000010")).state.optimizer;
        saved
            .state
            .optimizer
            .groups
            .iter_mut()
            .for_each(|group| group.step = 12);
        saved.tensor("block.1.ln2.scale").decay = false;
        saved.write(&folder);
    };
    stopped(&|s| s.state.optimizer.groups[1].step += 1, "has taken 13 steps, the run 12");
    let moved = |s: &mut Saved| {
        let name = s.state.optimizer.groups[1].tensors.remove(0);
        s.state.optimizer.groups[0].tensors.push(name);
    };
    stopped(&moved, "is a vector and decays");
    let decay = |s: &mut Saved| s.tensor("block.1.ln2.scale").decay = true;
    stopped(&decay, "block.1.ln2.scale is in the group with weight decay");
    lab.run(&["train.steps=14"]).expect(0, &[]);
}

#[test]
fn numbers_that_no_update_writes_stop_the_start() {
    let lab = lab(&[]);
    let folder = lab.path("runs/a/checkpoints");
    let step = folder.join("step-00000012");
    for (name, kept, value, words) in [
        ("lnf.scale", 0, f32::NAN, "master of lnf.scale has 1 NaN, 0 infinite"),
        ("embed.token", 1, f32::INFINITY, "first_moment of embed.token has 0 NaN, 1 infinite"),
        (
            "block.1.mlp.fc2.weight",
            2,
            -f32::NAN,
            "second_moment of block.1.mlp.fc2.weight has 1 NaN",
        ),
        ("lnf.shift", 2, -1.0, "second_moment of lnf.shift has 1 values below 0"),
    ] {
        let mut saved = Saved::read(&step);
        let sound = std::mem::replace(&mut saved.tensor(name).kept[kept][7], value);
        saved.write(&folder);
        lab.run(&["train.steps=14"])
            .expect(2, &[words, "--resume-from step-00000010"]);
        saved.tensor(name).kept[kept][7] = sound;
        saved.write(&folder);
    }
    lab.run(&["train.steps=14"]).expect(0, &[]);
}

#[test]
fn a_picture_has_a_row_for_each_kind_of_weight() {
    let lab = lab(&[]);
    lab.gptrain(&["inspect-ckpt", "runs/a", "--plot", "norms.svg"])
        .expect(0, &[]);
    let svg = fs::read_to_string(lab.path("norms.svg")).unwrap();
    assert_eq!(svg.matches("<polyline").count(), 4 + 12);
    assert!(svg.contains(">attn.qkv.weight</text>") && svg.contains("layer 1: "));
    assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
}
