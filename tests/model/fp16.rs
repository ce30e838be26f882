//! Training in fp16: it follows f32, steps that overflow are skipped by Megatron's rule on every
//! rank alike, and a run that is saved in the middle of that resumes with the same bits.

use crate::common;
use crate::common::binary::{Done, Lab};
use gptrain::data::Batch;
use gptrain::device::cpu::Cpu;
use gptrain::engine::{Engine, Groups, Outcome};
use gptrain::model::Inputs;
use std::fs;

/// The micro-batches of a step: twice four samples.
fn samples(cpu: &Cpu, step: usize) -> impl FnMut(&Inputs) -> anyhow::Result<()> {
    let mut next = 8 * step as u64;
    move |inputs| {
        let tokens: Vec<i32> = (next..next + 4)
            .flat_map(|sample| common::tokens(1, 24, 128, sample))
            .collect();
        inputs.upload(cpu, &Batch::causal(&tokens, 4, next, 1.0 / (8.0 * 24.0)));
        next += 4;
        Ok(())
    }
}

/// Steps of 8 samples at a learning rate of 3e-3, and what else `look` wants to know after each.
fn train(sets: &[&str], steps: usize, mut look: impl FnMut(&Engine, &Outcome)) -> Vec<Outcome> {
    let (cpu, m) = (Cpu::new(Some(1)), common::manifest(sets));
    let engine = Engine::new(&cpu, Groups::solo(), &m, true).unwrap();
    engine.init();
    let mut outcomes = Vec::new();
    for step in 0..steps {
        let mut load = samples(&cpu, step);
        let outcome = engine.step(&mut load, 2, 3e-3).unwrap();
        look(&engine, &outcome);
        outcomes.push(outcome);
    }
    outcomes
}

#[test]
fn fp16_follows_f32() {
    for family in [&[][..], &["model.position=alibi", "model.embedding_layernorm=true"]] {
        let wide = train(family, 20, |_, _| ());
        let constant = ["precision=fp16", "loss_scale=1024"];
        let dynamic = ["precision=fp16", "loss_scale={initial: 65536, window: 5}"];
        for sets in [constant, dynamic] {
            let half = train(&[family, &sets].concat(), 20, |_, _| ());
            for (step, (half, wide)) in half.iter().zip(&wide).enumerate() {
                let off = (half.loss / wide.loss - 1.0).abs();
                let norm = (half.grad_norm / wide.grad_norm - 1.0).abs();
                assert!(!half.skipped && off < 3e-3 && norm < 6e-2, "{step}: {half:?}, {wide:?}");
            }
            let doublings = if sets == dynamic { 4 } else { 0 };
            let first = if sets == dynamic { 65536.0 } else { 1024.0 };
            assert_eq!(half[19].loss_scale, first * f64::powi(2.0, doublings));
        }
        assert!(wide[19].loss < wide[0].loss - 0.3, "it learns");
    }
}

/// From 2³² on, as Megatron starts: every step is skipped, nothing moves, until the scale fits; and
/// every scale on the way is what Megatron's rule makes of the steps that overflowed.
#[test]
fn what_overflows_is_skipped_until_the_scale_fits() {
    let sets = ["precision=fp16", "loss_scale={window: 4, hysteresis: 2}"];
    let mut weights = None;
    let (mut scale, mut growth_tracker, mut hysteresis_tracker) = (4_294_967_296.0, 0, 2);
    let (mut updates, mut skipped) = (0, 0);
    let outcomes = train(&sets, 45, |engine, outcome| {
        let now = common::weights(engine);
        let before = weights.replace(now.clone());
        assert!(!outcome.stuck && outcome.loss.is_finite(), "{outcome:?}");
        assert_eq!(outcome.skipped, !outcome.grad_norm.is_finite());
        if outcome.skipped {
            assert!(before.is_none_or(|before| before == now), "a step that is skipped");
            assert!(!engine.not_finite().is_empty());
            (growth_tracker, hysteresis_tracker) = (0, hysteresis_tracker - 1);
            if hysteresis_tracker <= 0 {
                scale = f64::max(scale * 0.5, 1.0);
            }
            skipped += 1;
        } else {
            assert!(before.is_some_and(|before| before != now), "a step that updates");
            growth_tracker += 1;
            if growth_tracker == 4 {
                (growth_tracker, hysteresis_tracker) = (0, 2);
                scale *= 2.0;
            }
            updates += 1;
        }
        let state = engine.scale();
        assert_eq!((outcome.loss_scale, state.scale), (scale, scale));
        let trackers = (state.updates_in_a_row, state.overflows_left);
        assert_eq!(trackers, (growth_tracker, hysteresis_tracker));
        assert_eq!((state.updates, state.skipped), (updates, skipped));
    });
    let pattern: String = outcomes
        .iter()
        .map(|o| if o.skipped { '0' } else { '1' })
        .collect();
    assert!(pattern.starts_with("0000000000"), "2³² is far too much: {pattern}");
    assert!(pattern.contains("1111001111"), "it doubles, two overflow, it fits again: {pattern}");
    assert!(outcomes[44].loss < outcomes[0].loss - 0.2, "it learns: {outcomes:?}");
}

/// The next step is asked for before an outcome is looked at: the same outcomes, and the weights
/// that overflowed are those of the step looked at.
#[test]
fn a_step_may_be_looked_at_while_the_next_is_under_way() {
    let sets = ["precision=fp16", "loss_scale={initial: 16777216, hysteresis: 1}"];
    let mut bad = Vec::new();
    let at_once = train(&sets, 8, |engine, _| bad.push(engine.not_finite()));
    let (cpu, m) = (Cpu::new(Some(1)), common::manifest(&sets));
    let engine = Engine::new(&cpu, Groups::solo(), &m, true).unwrap();
    engine.init();
    let queue = |step| engine.queue(&mut samples(&cpu, step), 2, 3e-3).unwrap();
    queue(0);
    let mut last = None;
    for step in 0..8 {
        if step + 1 < 8 {
            queue(step + 1);
        }
        let (outcome, ended) = engine.outcome().unwrap();
        assert_eq!(format!("{outcome:?}"), format!("{:?}", at_once[step]));
        assert_eq!(engine.not_finite(), bad[step]);
        assert!(last.is_none_or(|last| last < ended));
        last = Some(ended);
    }
    assert!(at_once[0].skipped && !at_once[7].skipped);
}

/// AdamW counts updates, not steps: after skipped ones it does what it would have done at first.
#[test]
fn a_skipped_step_does_not_count_for_the_bias_correction() {
    let (mut before, mut moved) = (None, None);
    let sets = ["precision=fp16", "loss_scale={hysteresis: 1}", "optimizer.adamw.weight_decay=0"];
    let outcomes = train(&sets, 16, |engine, outcome| {
        let now = common::weights(engine);
        let before = before.replace(now.clone());
        if let (false, None, Some(before)) = (outcome.skipped, moved, before) {
            let pairs = now
                .iter()
                .zip(&before)
                .flat_map(|((_, a), (_, b))| a.iter().zip(b));
            moved = Some(pairs.fold(0.0f32, |largest, (a, b)| largest.max((a - b).abs())));
        }
    });
    assert!(outcomes[0].skipped && outcomes[5].skipped);
    // The first update is lr in size where the gradient is well above ε; a later one is not.
    let moved = moved.expect("an update");
    assert!((moved / 3e-3 - 1.0).abs() < 1e-2, "{moved}");
}

/// A scale that overflows twice or three times in the run's first steps.
const OVERFLOWS: [&str; 3] =
    ["precision=fp16", "loss_scale={initial: 3600000, hysteresis: 1, window: 4}", "train.seed=3"];

/// Everything a run's steps gave, to the last bit; NaN is `null`.
fn record(lab: &Lab, run: &str) -> Vec<String> {
    let keys = ["step", "consumed_samples", "lm_loss", "grad_norm", "lr", "loss_scale", "skipped"];
    let row = |line: &serde_json::Value| keys.map(|key| line[key].to_string()).join(" ");
    lab.metrics(run).iter().map(row).collect()
}

fn skipped(lab: &Lab, run: &str) -> usize {
    lab.metrics(run)
        .iter()
        .filter(|line| line["skipped"] == true)
        .count()
}

#[test]
fn a_run_logs_what_it_skips_and_goes_on_with_the_same_bits() {
    let lab = Lab::new();
    let sets = [&OVERFLOWS[..], &["model.dropout=0.1", "log.tensorboard=true"]].concat();
    let done = lab.run(&[&sets[..], &["log.folder=runs/whole"]].concat());
    done.expect(0, &[]);
    let lines: Vec<&str> = done
        .out
        .lines()
        .filter(|line| line.contains("consumed samples:"))
        .collect();
    assert!(lines[0].contains("| loss scale: 1800000.0 | grad norm: "), "{}", lines[0]);
    assert!(lines[0].contains("| number of skipped iterations:   1 | "), "{}", lines[0]);
    assert!(!lines[0].contains("lm loss:"), "no step advanced: {}", lines[0]);
    assert!(lines[11].contains("| number of skipped iterations:   0 | "), "{}", lines[11]);
    assert!(lines[11].contains("| lm loss: "), "{}", lines[11]);
    assert!((2..9).contains(&skipped(&lab, "runs/whole")), "{:?}", record(&lab, "runs/whole"));
    lab.gptrain(&["report", "runs/whole"]).expect(0, &[]);
    let events = common::events::scalars(&lab.path("runs/whole/tensorboard"));
    assert!(
        events
            .iter()
            .any(|(_, tag, _)| tag == "loss-scale/loss-scale")
    );

    // Saved after each of the first steps: between two that overflow, and after.
    let every = [&sets[..], &["checkpoint.interval=1", "log.folder=runs/a"]].concat();
    lab.run(&every).expect(0, &[]);
    assert_eq!(record(&lab, "runs/a"), record(&lab, "runs/whole"), "saves change nothing");
    for step in [1, 2, 3, 4, 7] {
        let from = format!("step-{step:08}");
        let go_on = [&["run", "run.yaml", "--resume-from", &from][..], &set(&every)].concat();
        lab.gptrain(&go_on).expect(0, &[]);
        assert_eq!(record(&lab, "runs/a"), record(&lab, "runs/whole"), "from step {step}");
    }
    let verify = [&["run", "run.yaml", "--verify-resume", "11"][..], &set(&every)].concat();
    let done = lab.gptrain(&verify);
    done.expect(0, &[]);
    assert!(done.out.contains("verified: steps 2 to 12 again"), "{}", done.out);
}

fn set<'a>(sets: &[&'a str]) -> Vec<&'a str> {
    sets.iter().flat_map(|set| ["--set", *set]).collect()
}

#[test]
fn a_checkpoint_shows_its_scale_and_is_replayed_and_exported() {
    let lab = Lab::new();
    lab.run(&[&OVERFLOWS[..], &["checkpoint.interval=1"]].concat())
        .expect(0, &[]);
    let done = lab.gptrain(&["inspect-ckpt", "runs/a/checkpoints/step-00000001", "--deep"]);
    done.expect(0, &[]);
    assert!(done.out.contains("loss scale  1800000, 0 updates"), "{}", done.out);
    assert!(done.out.contains("1 steps skipped"), "{}", done.out);
    assert!(done.out.contains("trained in fp16"), "{}", done.out);
    let (first, last) = ("runs/a/checkpoints/step-00000001", "runs/a/checkpoints/step-00000011");
    for from in [first, last] {
        let again = lab.gptrain(&["inspect-ckpt", from, "--replay", "1"]);
        again.expect(0, &[]);
        assert!(again.err.contains("as recorded, to the last bit"), "{}", again.err);
    }
    lab.gptrain(&["export", last, "--hf", "hf", "--dtype", "f16"])
        .expect(0, &[]);
    let config = fs::read_to_string(lab.path("hf/config.json")).unwrap();
    assert!(config.contains("float16"), "{config}");
    let reader =
        gptrain::checkpoint::safetensors::Reader::open(&lab.path("hf/model.safetensors")).unwrap();
    assert!(reader.entries.values().all(|entry| entry.dtype == "F16"));
}

/// The same steps overflow on every grid and rank; and any grid resumes from another's checkpoint in the
/// middle of that.
#[test]
fn any_grid_skips_the_same_steps() {
    let lab = Lab::new();
    let run = |folder: &str, grid: &[&str], more: &[&str]| {
        let folder = format!("log.folder={folder}");
        let sets = [&OVERFLOWS[..], &["checkpoint.interval=2", &folder], grid].concat();
        lab.gptrain(&[&["run", "run.yaml"], more, &set(&sets)].concat())
            .expect(0, &[]);
    };
    run("runs/one", &[], &[]);
    let fate = |run: &str| -> Vec<_> {
        let metrics = lab.metrics(run);
        let row = |line: &serde_json::Value| (line["skipped"] == true, line["loss_scale"].clone());
        metrics.iter().map(row).collect()
    };
    let as_one = |folder: &str| {
        assert_eq!(fate(folder), fate("runs/one"), "{folder}");
        for (ours, one) in lab.metrics(folder).iter().zip(lab.metrics("runs/one")) {
            let loss = |line: &serde_json::Value| line["lm_loss"].as_f64().unwrap();
            assert!((loss(ours) / loss(&one) - 1.0).abs() < 2e-3, "{ours}, one rank {one}");
        }
    };
    let grids: [&[&str]; 4] = [
        &["topology.tensor=2", "topology.sequence_parallel=true"],
        &["topology.pipeline=2"],
        &["topology.data=2", "topology.zero=1"],
        &["topology.data=2", "topology.zero=3"],
    ];
    for (i, grid) in grids.iter().enumerate() {
        let folder = format!("runs/{i}");
        run(&folder, grid, &[]);
        as_one(&folder);
        run(&folder, grids[(i + 1) % grids.len()], &["--resume-from", "step-00000002"]);
        as_one(&folder);
    }
}

#[test]
fn a_run_ends_where_the_lowest_scale_overflows_too() {
    let lab = Lab::new();
    let wild = ["lr={peak: 1000, decay: constant}", "train.steps=100", "precision=fp16"];
    let scale = "loss_scale={initial: 16, min: 4, hysteresis: 2}";
    let ended = |done: Done, lowest: &str| {
        let named = ["step ", "(samples ", "not finite", "lowest loss scale allowed", lowest];
        done.expect(1, &named);
        for part in ["weights are still those of step", "precision: bf16", "lower lr.peak"] {
            assert!(done.err.contains(part), "{part}: {}", done.err);
        }
        assert!(done.err.contains("block.") || done.err.contains("embed."), "{}", done.err);
    };
    ended(lab.run(&[&wild[..], &[scale]].concat()), ", 4;");
    assert_eq!(skipped(&lab, "runs/a"), 3, "16, 16 → 8, 8 → 4; the next one ends it");
    let constant = ["loss_scale=64", "log.folder=runs/b", "topology.data=2"];
    ended(lab.run(&[&wild[..], &constant].concat()), ", 64;");
    assert_eq!(skipped(&lab, "runs/b"), 1, "the second in a row ends it");
}

#[test]
fn settings_of_the_scale_are_checked_and_shown() {
    let lab = Lab::new();
    let show =
        |sets: &[&str]| lab.gptrain(&[&["manifest", "show", "run.yaml"], &set(sets)[..]].concat());
    let done = show(&["precision=fp16"]);
    done.expect(0, &[]);
    for line in ["initial: 4294967296", "min: 1", "window: 1000", "hysteresis: 2"] {
        assert!(done.out.contains(line), "{line}: {}", done.out);
    }
    show(&["loss_scale=8"]).expect(2, &["loss_scale", "precision fp16"]);
    let low = "loss_scale={initial: 2, min: 4}";
    show(&["precision=fp16", low]).expect(2, &["loss_scale.min 4", "loss_scale.initial 2"]);
    let both = "loss_scale={constant: 2, min: 4}";
    show(&["precision=fp16", both]).expect(2, &["loss_scale", "constant"]);
    show(&["precision=fp16", "initial_loss_scale=4"]).expect(2, &["loss_scale.initial"]);
    assert!(!show(&["precision=bf16"]).out.contains("loss_scale"));
}
