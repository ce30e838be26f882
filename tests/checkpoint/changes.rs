//! Another optimizer at a resume, by the real binary: states are converted with a message, refused, or
//! reset. Steps after that, and after saves requested by a signal, are repeated to the last bit.

use crate::common::binary::{Done, Lab, until};
use gptrain::checkpoint::Index;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;

/// With words in what it printed.
fn says(done: &Done, words: &[&str]) {
    done.expect(0, &[]);
    words
        .iter()
        .for_each(|word| assert!(done.out.contains(word), "{word:?}: {}", done.out));
}

fn ran(lab: &Lab, flags: &[&str], steps: u32, optimizer: &str) -> Done {
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
    let lines = |done: &Done, word: &str| done.out.matches(word).count();
    there.expect(0, &[]);
    let converted = "the optimizer was adamw, is adam8bit from step 6 on: its states are converted";
    assert_eq!(lines(&there, converted), 1, "{}", there.out);
    assert_eq!(lines(&there, "optimizer."), 1, "beta2 alone: {}", there.out);
    assert_eq!(lines(&there, "optimizer.adam8bit.beta2 was 0.95, is 0.99"), 1, "{}", there.out);
    let shown = lab.gptrain(&["inspect-ckpt", "runs/a/checkpoints/step-00000009", "--deep"]);
    shown.expect(0, &[]);
    for word in
        ["adam8bit, beta1 0.9, beta2 0.99, block 64", "of 8 bits", "√v scales", "sound: every"]
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
        let said = "the optimizer's states are reset at step 6 (adam8bit; it was adamw)";
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

/// A rule that cannot read the states says so, with both remedies, and changes nothing.
#[test]
fn an_optimizer_that_cannot_go_on_is_refused_and_may_begin_anew() {
    let lab = Lab::new();
    ran(&lab, &[], 6, "adamw").expect(0, &[]);
    let refused = |now: &str, before: &str, step: u32| {
        let cannot = format!("trained with the optimizer {before}: {now} cannot continue from its");
        let remedy = format!("set optimizer to {before}, or keep the weights and reset its states");
        let place = format!("step-{step:08}");
        ran(&lab, &[], 12, now).expect(2, &[&cannot, &remedy, "--reset-optimizer", &place]);
        assert_eq!(lab.losses("runs/a").len(), step as usize);
    };
    refused("adafactor", "adamw", 6);
    let reset = ran(&lab, &["--reset-optimizer"], 9, "adafactor");
    says(&reset, &["states are reset at step 6 (adafactor; it was adamw): the weights are kept"]);
    refused("adamw", "adafactor", 9);
    refused("adam8bit", "adafactor", 9);
    says(&ran(&lab, &[], 12, "adafactor"), &["resuming from", "(step 9,"]);
    assert_eq!(lab.losses("runs/a").len(), 12);
}

#[test]
fn verify_resume_repeats_what_followed_a_change() {
    for (now, flags) in [("adam8bit", &[][..]), ("adafactor", &["--reset-optimizer"])] {
        let lab = Lab::new();
        let keep = ["--set", "checkpoint.keep_last=9"];
        ran(&lab, &keep, 6, "adamw").expect(0, &[]);
        ran(&lab, &[&keep, flags].concat(), 12, now).expect(0, &[]);
        let verify = |steps: &str| ran(&lab, &["--verify-resume", steps], 12, now);
        // From the checkpoint of step 10; and from that of step 6, which is the other optimizer's.
        says(&verify("2"), &["verified: steps 11 to 12 again"]);
        let changed = ["converted", "are reset"][usize::from(!flags.is_empty())];
        says(&verify("6"), &[changed, "verified: steps 7 to 12 again, equal to the last bit"]);
        // Step 6 was the other's.
        let mixed =
            format!("steps 6 to 12 did not all use this optimizer, {now}: step 6 used adamw");
        verify("7").expect(2, &[&mixed, "verify at most the 6 steps after that"]);
    }
}

/// At each save the replicas take the mean of their errors, also at one that a signal asks for: what
/// follows is repeated from it, and from the checkpoint before it.
#[test]
fn powersgd_goes_on_from_a_save_that_a_signal_asked_for() {
    let lab = Lab::new();
    let powersgd = "topology.compression={powersgd: {rank: 2, start_step: 1, min_rate: 1}}";
    let keep = ["checkpoint.interval=40", "checkpoint.keep_last=999", "train.steps=400"];
    let sets = [&["topology.data=2", powersgd], &keep[..]].concat();
    let saved = || -> Vec<usize> {
        let entries = fs::read_dir(lab.path("runs/a/checkpoints"))
            .into_iter()
            .flatten()
            .flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        names
            .filter_map(|name| name.strip_prefix("step-")?.parse().ok())
            .collect()
    };
    let asked = || saved().into_iter().find(|step| step % 40 != 0);
    let child = lab.start(&sets);
    lab.wait_for_steps("runs/a", 47);
    kill_process(Pid::from_child(&child), Signal::USR1).unwrap();
    until("the save that was asked for is there", || asked().is_some());
    let asked = asked().unwrap();
    lab.wait_for_steps("runs/a", asked + 25);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    Done::of(child.wait_with_output().unwrap()).well();
    let stopped = saved().into_iter().max().unwrap();
    let done = lab.run(&sets);
    says(&done, &["complete"]);
    assert!(stopped == 400 || done.out.contains(&format!("(step {stopped},")), "{}", done.out);
    for from in [stopped, asked, 40].into_iter().filter(|from| *from < 400) {
        let steps = (400 - from).to_string();
        let set = sets
            .iter()
            .flat_map(|set| ["--set", set])
            .collect::<Vec<_>>();
        let verify = [&["run", "run.yaml", "--verify-resume", &steps], &set[..]].concat();
        says(&lab.gptrain(&verify), &[&format!("verified: steps {} to 400 again", from + 1)]);
    }
}

/// Muon's momentum differs from AdamW's moments: a reset initialises it, and it is saved and read.
#[test]
fn muon_goes_on_from_no_other_rule() {
    let lab = Lab::new();
    let ran = |lab: &Lab, flags: &[&str], steps: u32, optimizer: &str| {
        let sets = [format!("train.steps={steps}"), format!("optimizer={optimizer}")];
        let sets = sets.iter().flat_map(|set| ["--set", set.as_str()]);
        let more = ["--set", "lr={peak: 3e-3, decay: constant}"];
        lab.gptrain(&[&["run", "run.yaml"], flags, &more, &sets.collect::<Vec<_>>()].concat())
    };
    ran(&lab, &[], 6, "adamw").expect(0, &[]);
    ran(&lab, &[], 9, "muon").expect(
        2,
        &[
            "was trained with the optimizer adamw: muon cannot continue from its states",
            "--reset-optimizer",
        ],
    );
    ran(&lab, &["--reset-optimizer"], 9, "muon").expect(0, &[]);
    ran(&lab, &[], 10, "muon").expect(0, &[]);
    let shown = lab.gptrain(&["inspect-ckpt", "runs/a/checkpoints/step-00000010", "--deep"]);
    shown.expect(0, &[]);
    for word in ["muon, a 3.4445, b -4.775, beta1 0.9", "  momentum ", "sound: every"] {
        assert!(shown.out.contains(word), "{word:?} is not in:\n{}", shown.out);
    }
    ran(&lab, &[], 12, "adamw").expect(2, &["adamw cannot continue from its states"]);
}

/// A delayed update was saved by earlier versions as a gradient and its scalars.
#[test]
fn a_delayed_update_of_an_earlier_version_is_refused_until_states_are_reset() {
    let lab = Lab::new();
    ran(&lab, &[], 2, "adamw").expect(0, &[]);
    let path = lab.path("runs/a/checkpoints/step-00000002/index.json");
    let mut index = Index::parse(&fs::read_to_string(&path).unwrap()).unwrap();
    index.state.pending = Some(serde_json::json!({"lr": 3e-3, "scalars": [0.5, 0.0, 0.0]}));
    index.state.manifest = index.manifest.replace(
        "    what: none\n    gradients: auto\n",
        "    what: optimizer\n    gradients: auto\n    delay: 1\n    delay_after: 1\n",
    );
    assert!(index.manifest.contains("delay: 1"), "{}", index.manifest);
    fs::write(&path, index.text().unwrap()).unwrap();
    let words = ["step-00000002", "topology.offload.delay", "cannot apply", "--reset-optimizer"];
    ran(&lab, &[], 4, "adamw").expect(2, &words);
    ran(&lab, &["--reset-optimizer"], 4, "adamw").expect(0, &[]);
    ran(&lab, &[], 6, "adamw").expect(0, &[]);
}

/// Samples that are left out by hand: from the start, at a resume, on another grid.
#[test]
fn samples_that_are_left_out_are_the_same_on_every_grid_and_after_a_resume() {
    let lab = Lab::new();
    // Four samples a step; the second range begins within a step.
    let skip = "data.skip=[8..16, 21..24]";
    let sets = ["train.samples=48", "checkpoint.interval=2", "model.dropout=0.1"];
    let run = |folder: &str, more: &[&str]| {
        let folder = format!("log.folder=runs/{folder}");
        let done = lab.run(&[&sets[..], &[&folder], more].concat());
        done.expect(0, &[]);
    };
    run("whole", &[skip]);
    let consumed: Vec<u64> = lab
        .metrics("runs/whole")
        .iter()
        .map(|row| row["consumed_samples"].as_u64().unwrap())
        .collect();
    assert_eq!(consumed, [4, 8, 20, 28, 32, 36, 40, 44, 48]);
    // Trained without it, then again from step 2 with it.
    run("a", &["checkpoint.keep_last=9"]);
    let from = ["run", "run.yaml", "--resume-from", "step-00000002", "--set", "log.folder=runs/a"];
    let again = [&sets[..], &[skip]].concat();
    let again: Vec<&str> = again.iter().flat_map(|set| ["--set", set]).collect();
    let resumed = lab.gptrain(&[&from[..], &again].concat());
    says(&resumed, &["resuming from", "data.skip"]);
    assert_eq!(lab.losses("runs/a"), lab.losses("runs/whole"));
    // On two replicas the same samples.
    run("grid", &[skip, "topology.data=2", "batch.micro=2"]);
    for (one, two) in lab.losses("runs/whole").iter().zip(lab.losses("runs/grid")) {
        assert_eq!(one[0], two[0]);
        let [one, two] = [f64::from_bits(one[1]), f64::from_bits(two[1])];
        assert!((one - two).abs() <= 2e-6 * one, "{one} and {two}");
    }
    lab.run(&["data.skip=[9..3]"])
        .expect(2, &["data.skip.0 \"9..3\" is not a range of samples"]);
}

/// Another seed at a resume: a warning that says what changes, other samples and dropout from there on, and
/// the same ones at later resumes, on another grid, and in a replay.
#[test]
fn another_seed_at_a_resume_is_a_change_that_later_resumes_keep() {
    let lab = Lab::new();
    let sets = ["train.samples=48", "checkpoint.interval=2", "checkpoint.keep_last=9"];
    let run = |folder: &str, flags: &[&str], more: &[&str]| {
        let folder = format!("log.folder=runs/{folder}");
        let sets = [&sets[..], &[&folder], more].concat();
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        lab.gptrain(&[&["run", "run.yaml"], flags, &sets].concat())
    };
    let dropout = "model.dropout=0.1";
    run("plain", &[], &[dropout]).expect(0, &[]);
    let plain = lab.losses("runs/plain");
    // From step 4 on with other seeds, to the end; and stopped at step 8, then continued.
    let back = ["--resume-from", "step-00000004"];
    let seeds = ["data.seed=7", "train.seed=8"];
    for (folder, changed) in [("order", &seeds[..1]), ("dropout", &seeds[1..]), ("both", &seeds)] {
        run(folder, &[], &[dropout]).expect(0, &[]);
        let done = run(folder, &back, &[&[dropout], changed].concat());
        let order = "another order of samples from sample 16 on";
        says(&done, &["resuming from", "seed was"]);
        assert_eq!(done.out.contains(order), changed.contains(&seeds[0]), "{}", done.out);
        let drawn = done.out.contains("dropout is drawn from the new seed");
        assert_eq!(drawn, changed.contains(&seeds[1]), "{}", done.out);
        let losses = lab.losses(&format!("runs/{folder}"));
        assert_eq!(losses[..4], plain[..4]);
        assert!(losses[4..].iter().zip(&plain[4..]).all(|(a, b)| a != b), "{folder}: same losses");
    }
    let both = [&[dropout], &seeds[..]].concat();
    let whole = lab.losses("runs/both");
    let resumed = run("both", &["--resume-from", "step-00000008"], &both);
    says(&resumed, &["resuming from"]);
    assert!(!resumed.out.contains("another order of samples"), "once: {}", resumed.out);
    assert_eq!(lab.losses("runs/both"), whole);
    // The weights still begin with the first seed, and recorded steps are repeated with theirs.
    let folder = "runs/both/checkpoints/step-00000008";
    let shown = lab.gptrain(&["inspect-ckpt", folder, "--replay", "4"]);
    shown.expect(0, &[]);
    let verified = run("both", &["--verify-resume", "2"], &both);
    says(&verified, &["verified: steps"]);
    // On two replicas the same samples.
    run("grid", &[], &[dropout]).expect(0, &[]);
    run("grid", &back, &[&both[..], &["topology.data=2"]].concat()).expect(0, &[]);
    for (one, two) in lab.losses("runs/both").iter().zip(lab.losses("runs/grid")) {
        let [one, two] = [f64::from_bits(one[1]), f64::from_bits(two[1])];
        assert!((one - two).abs() <= 2e-6 * one, "{one} and {two}");
    }
    // Without dropout train.seed changes nothing, and says so.
    run("bare", &[], &[]).expect(0, &[]);
    let before = lab.losses("runs/bare");
    let done = run("bare", &back, &seeds[1..]);
    says(&done, &["train.seed changes nothing", "data.seed"]);
    assert_eq!(lab.losses("runs/bare"), before);
}
