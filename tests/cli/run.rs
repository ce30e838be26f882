//! `gptrain run` as a user runs it: training, stopping, resuming, and all possible mistakes.

use crate::common::binary::{Done, Lab, free_port, run_args};
use gptrain::train::testing::STEP_DELAY;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::process::Stdio;

#[test]
fn trains_reports_evaluates_and_saves() {
    let lab = Lab::new();
    let done = lab.run(&[]);
    done.expect(0, &[]);
    let metrics = lab.metrics("runs/a");
    assert_eq!(metrics.len(), 12);
    let loss = |i: usize| metrics[i]["lm_loss"].as_f64().unwrap();
    assert!(loss(11) < loss(0) - 0.3, "from {} to {}", loss(0), loss(11));
    assert!(done.out.contains("iteration       12/      12"), "{}", done.out);
    assert!(done.out.contains("validation loss at iteration 12"), "{}", done.out);
    assert!(done.out.contains("memory: weights "), "{}", done.out);
    assert!(lab.path("runs/a/manifest.yaml").exists());
    let page = lab.gptrain(&["report", "runs/a"]);
    page.expect(0, &[]);
    assert!(lab.path("runs/a/report.html").exists());
}

#[test]
fn two_runs_of_one_manifest_are_bit_identical_at_any_thread_count() {
    let lab = Lab::new();
    let model = ["model.dropout=0.1", "precision=bf16"];
    for (folder, threads) in [("runs/a", "1"), ("runs/b", "2"), ("runs/c", "3")] {
        let place = [format!("log.folder={folder}"), format!("train.threads={threads}")];
        let sets = [&model[..], &place.each_ref().map(String::as_str)].concat();
        lab.run(&sets).expect(0, &[]);
    }
    assert_eq!(lab.losses("runs/a").len(), 12);
    assert_eq!(lab.losses("runs/a"), lab.losses("runs/b"));
    assert_eq!(lab.losses("runs/a"), lab.losses("runs/c"));
}

#[test]
fn a_run_stopped_by_a_signal_saves_and_goes_on_as_if_it_never_stopped() {
    let lab = Lab::new();
    let long = ["train.steps=60", "model.dropout=0.1", "batch.ramp_up=2 2 40"];
    lab.run(&[&long[..], &["log.folder=runs/whole"]].concat())
        .expect(0, &[]);
    for (signal, steps) in [(Signal::TERM, 8), (Signal::INT, 20), (Signal::HUP, 35)] {
        // So slow that a late signal does not meet a complete run.
        let mut command = lab.command(&run_args(&long));
        let child = command.env(STEP_DELAY, "0.05").spawn().unwrap();
        lab.wait_for_steps("runs/a", steps);
        kill_process(Pid::from_child(&child), signal).unwrap();
        let done = Done::of(child.wait_with_output().unwrap());
        done.expect(0, &[]);
        assert!(done.out.contains("stopped and saved"), "{}", done.out);
        assert!(done.out.contains(", then saving"), "{}", done.out);
        let ctrl_c = done.out.contains(", then saving; Ctrl-C again: leave now");
        assert_eq!(ctrl_c, signal == Signal::INT, "{}", done.out);
        assert!(lab.metrics("runs/a").len() < 60, "stopped before the end");
    }
    let done = lab.run(&long);
    done.expect(0, &[]);
    assert!(done.out.contains("resuming from"), "{}", done.out);
    assert_eq!(lab.losses("runs/a"), lab.losses("runs/whole"));
}

/// The same run with less of the device's memory: refused with numbers and remedy, and that remedy.
#[test]
fn a_run_that_is_too_large_says_what_fits() {
    let lab = Lab::new();
    lab.run(&["precision=bf16"]).expect(0, &[]);
    let needed = lab.gptrain(&["estimate", "run.yaml", "--json", "--set", "precision=bf16"]);
    let needed: serde_json::Value = serde_json::from_str(&needed.out).unwrap();
    let needed = needed["memory"]["needed_bytes"].as_f64().unwrap() as u64;
    let cap = format!("train.device_memory={}B", needed * 9 / 10);
    let sets = ["precision=bf16", "log.folder=runs/b", &cap];
    let says = ["out of memory: train.device_memory is ", "; this rank needs weights "];
    let done = lab.run(&sets);
    done.expect(2, &[says[0], says[1], "--set topology.offload=optimizer"]);
    assert!(!lab.path("runs/b").exists(), "a start that is refused leaves no folder");
    let args = ["estimate", "run.yaml", "--set", "precision=bf16", "--set", &cap];
    assert_eq!(lab.gptrain(&args).code, Some(4));
    for offload in ["optimizer", "full"] {
        let (folder, offload) = (format!("runs/{offload}"), format!("topology.offload={offload}"));
        lab.run(&[&sets[..], &[&offload, &format!("log.folder={folder}")]].concat())
            .expect(0, &[]);
        assert_eq!(lab.losses(&folder), lab.losses("runs/a"));
    }
}

#[test]
fn ramp_up_takes_every_sample_once() {
    let lab = Lab::new();
    lab.run(&["batch.ramp_up=2 2 12", "batch.global=6", "train.steps=10"])
        .expect(0, &[]);
    let metrics = lab.metrics("runs/a");
    let column = |key: &str| {
        metrics
            .iter()
            .map(|m| m[key].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(column("global_batch"), [2, 2, 2, 4, 4, 6, 6, 6, 6, 6]);
    let mut consumed = 0;
    for (global, after) in column("global_batch")
        .iter()
        .zip(column("consumed_samples"))
    {
        consumed += global;
        assert_eq!(after, consumed);
    }
}

#[test]
fn prefix_lm_documents_alibi_and_recompute_train_too() {
    let lab = Lab::new();
    let bloom = ["model.position=alibi", "model.embedding_layernorm=true"];
    let masks = [
        "data.eod={token: 0, mask_loss: true, reset_positions: true, reset_attention: true}",
        "data.objective=prefix_lm",
    ];
    for (i, masks) in masks.iter().enumerate() {
        let folder = format!("log.folder=runs/{i}");
        let recompute = ["topology.recompute=full", "batch.global=32", masks, &folder];
        lab.run(&[&bloom[..], &recompute].concat()).expect(0, &[]);
        let metrics = lab.metrics(&format!("runs/{i}"));
        let loss = |i: usize| metrics[i]["lm_loss"].as_f64().unwrap();
        let (first, last) = (loss(0) + loss(1) + loss(2), loss(9) + loss(10) + loss(11));
        assert!(last < first - 0.5, "{masks}: from {first} to {last} in three steps");
    }
}

#[test]
fn a_loss_that_is_not_finite_names_step_and_tensor() {
    let lab = Lab::new();
    let done = lab.run(&["lr={peak: 1000, decay: constant}", "optimizer.adamw.weight_decay=1"]);
    done.expect(1, &["step ", "(samples ", "not finite", "weights are still those of step"]);
    assert!(done.err.contains("block.") || done.err.contains("embed."), "{}", done.err);
    // The next step was in flight at that time: neither is recorded or saved.
    let step = done
        .err
        .split("step ")
        .nth(1)
        .and_then(|text| text.split(' ').next())
        .unwrap();
    let step: usize = step.parse().unwrap();
    assert!(step > 1 && lab.metrics("runs/a").len() == step - 1, "{}", done.err);
    let saved = fs::read_dir(lab.path("runs/a/checkpoints"))
        .into_iter()
        .flatten()
        .flatten();
    let names = saved.map(|entry| entry.file_name().into_string().unwrap());
    let steps: Vec<usize> = names
        .filter_map(|name| name.strip_prefix("step-").map(|n| n.parse().unwrap()))
        .collect();
    assert!(steps.iter().all(|saved| *saved < step), "{steps:?} saved, step {step} failed");
}

#[test]
fn a_second_run_in_the_same_folder_is_refused() {
    let lab = Lab::new();
    // It saves nothing: the run after it is not asked for fewer steps than were saved.
    let mut first = lab.start(&["train.steps=20000", "checkpoint.interval=20000"]);
    lab.wait_for_steps("runs/a", 1);
    let second = lab.run(&[]);
    first.kill().unwrap();
    first.wait().unwrap();
    second.expect(2, &["runs/a", "another run is writing here", "log.folder"]);
    assert!(second.err.contains(&format!("process {}", first.id())), "{}", second.err);
    lab.run(&[]).expect(0, &[]); // the lock died with the process
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let lab = Lab::new();
    fs::write(lab.path("file"), "").unwrap();
    lab.run(&["log.folder=file/runs"])
        .expect(1, &["cannot write", "file/runs", "log.folder"]);
}

#[test]
fn a_changed_manifest_does_not_go_on_silently() {
    let lab = Lab::new();
    lab.run(&[]).expect(0, &[]);
    let done = lab.run(&["model.hidden=64", "batch.global=8"]);
    done.expect(2, &["another `model`", "another `batch`", "log.folder"]);
    lab.run(&["train.steps=14", "log.interval=2"])
        .expect(0, &[]);
    assert_eq!(lab.metrics("runs/a").len(), 14);
}

#[test]
fn weights_and_datasets_may_change_on_the_way() {
    let lab = Lab::new();
    for end in ["bin", "idx"] {
        fs::copy(lab.path("corpus").with_extension(end), lab.path("more").with_extension(end))
            .unwrap();
    }
    lab.run(&["train.steps=6"]).expect(0, &[]);
    let mixture = "data.train=[{prefix: corpus, weight: 3}, {prefix: more, weight: 1}]";
    let changed = ["--set", mixture, "--set", "checkpoint.interval=3"];
    let run = lab.gptrain(&[&["run", "run.yaml"], &changed[..]].concat());
    run.expect(0, &[]);
    assert!(
        run.out
            .contains("another mixture of datasets from sample 24 on"),
        "{}",
        run.out
    );
    let losses = lab.losses("runs/a");
    assert_eq!(losses.len(), 12);
    // The plan is in the checkpoint: a resume from the middle of the second mixture repeats it.
    let again = [&["run", "run.yaml", "--resume-from", "step-00000009"], &changed[..]].concat();
    lab.gptrain(&again).expect(0, &[]);
    assert_eq!(lab.losses("runs/a"), losses);
}

#[test]
fn mfu_is_shown_where_the_peak_is_known() {
    let lab = Lab::new();
    let done = lab.run(&["log.peak_tflops=0.1"]);
    done.expect(0, &[]);
    assert!(done.out.contains("MFU"), "{}", done.out);
}

#[test]
fn a_file_size_limit_ends_with_a_message_and_older_checkpoints_stay() {
    let lab = Lab::new();
    lab.run(&["train.steps=5"]).expect(0, &[]);
    let limited = lab.limited(40_000, &["train.steps=12"]);
    limited.expect(1, &["runs/a", "File too large"]);
    lab.gptrain(&["inspect-ckpt", "runs/a", "--deep"])
        .expect(0, &[]);
    lab.run(&[]).expect(0, &[]);
    assert_eq!(lab.metrics("runs/a").len(), 12);
}

#[test]
fn mistakes_in_the_manifest_are_all_told_at_once() {
    let lab = Lab::new();
    let done = lab.run(&["model.heads=5", "train.sed=3", "batch.global=3"]);
    done.expect(2, &["heads 5", "train.sed", "train.seed", "batch.global 3"]);
    lab.run(&["topology.tensor=3"])
        .expect(2, &["is not divisible by topology.tensor 3"]);
    lab.gptrain(&["run", "nothing.yaml"])
        .expect(2, &["nothing.yaml"]);
}

#[test]
fn data_that_cannot_serve_the_run_is_refused_before_it_starts() {
    let lab = Lab::new();
    lab.run(&["data.train=missing"]).expect(2, &["missing"]);
    lab.run(&["model.vocab=40"]).expect(2, &["corpus", "40"]);
    lab.run(&["model.seq_len=100000"]).expect(2, &["corpus"]);
    assert!(!lab.path("runs/a/checkpoints").exists());
}

#[test]
fn a_log_level_hides_messages_and_a_wrong_one_is_refused() {
    let lab = Lab::new();
    let run = |folder: &str, more: &[&str]| {
        let folder = format!("log.folder={folder}");
        let args = ["run", "run.yaml", "--set", "train.steps=2", "--set", folder.as_str()];
        lab.gptrain(&[&args[..], more].concat())
    };
    let usual = run("runs/usual", &[]);
    for message in ["device: CPU", "memory: weights ", "checkpoints: ", "saved "] {
        assert!(usual.expect(0, &[]).out.contains(message), "{message}: {}", usual.out);
    }
    let quiet = run("runs/quiet", &["--log-level", "warn"]);
    let results = [" iteration ", " validation loss", "complete: "];
    for line in quiet.expect(0, &[]).out.lines() {
        assert!(results.iter().any(|result| line.starts_with(result)), "{line}");
    }
    let chatty = run("runs/debug", &["--log-level=debug"]);
    assert!(chatty.expect(0, &[]).out.contains("debug: opening data"), "{}", chatty.out);
    let levels = "off, error, warn, info, debug, trace";
    run("runs/none", &["--log-level=loud"]).expect(2, &["'loud'", levels]);
    let mut by_variable = lab.command(&["run", "run.yaml"]);
    let done = Done::of(by_variable.env("GPTRAIN_LOG", "loud").output().unwrap());
    done.expect(2, &["'loud'", "--log-level"]);
}

#[test]
fn bf16_on_a_processor_without_its_products_is_advised_against() {
    let lab = Lab::new();
    let says = |precision: &str| {
        let (precision, folder) =
            (format!("precision={precision}"), format!("log.folder={precision}"));
        let args =
            ["run", "run.yaml", "--set", &precision, "--set", &folder, "--set", "train.steps=1"];
        let done = lab.gptrain_with(&[("GPTRAIN_CPU", Path::new("baseline"))], &args);
        done.expect(0, &[])
            .out
            .contains("but no time: f32 is as fast")
    };
    assert!(says("bf16") && says("fp16") && !says("f32"));
}

/// As many replicas as there are ranks: the same bits as with their number, which the folder keeps, so
/// that commands without ranks read it. Another number of ranks continues.
#[test]
fn replicas_follow_from_the_ranks() {
    let lab = Lab::new();
    let auto = "topology.data=auto";
    let two = ["topology.data=2", "log.folder=runs/two"];
    for done in lab.ranks(2, &two).end(0..2) {
        done.expect(0, &[]);
    }
    for done in lab.ranks(2, &[auto, "log.folder=runs/auto"]).end(0..2) {
        done.expect(0, &[]);
    }
    assert_eq!(lab.losses("runs/auto"), lab.losses("runs/two"));
    let record = fs::read_to_string(lab.path("runs/auto/manifest.yaml")).unwrap();
    assert!(record.contains("  data: 2\n") && !record.contains("data: auto"), "{record}");
    lab.gptrain(&["status", "runs/auto"]).expect(0, &[]);
    // One process without a launcher is one replica.
    lab.gptrain(&["run", "runs/auto", "--set", auto, "--set", "train.steps=14"])
        .expect(0, &[]);
    assert_eq!(lab.losses("runs/auto").len(), 14);
    let record = fs::read_to_string(lab.path("runs/auto/manifest.yaml")).unwrap();
    assert!(record.contains("  data: 1\n"), "{record}");

    let odd = [auto, "topology.tensor=2", "log.folder=runs/odd"];
    for done in lab.ranks(3, &odd).end(0..3) {
        done.expect(2, &["3 ranks are not divisible by tensor 2", "start 2 or 4 ranks"]);
    }
    let shown = lab.gptrain(&["manifest", "check", "run.yaml", "--set", auto]);
    assert!(
        shown
            .expect(0, &[])
            .out
            .contains("data auto, checked with 1"),
        "{}",
        shown.out
    );
    lab.gptrain(&["tune", "run.yaml", "--set", auto, "--best", "1"])
        .expect(2, &["does not know the number of ranks", "--set topology.data=2"]);
    let job = |more: &[&str]| {
        lab.gptrain(
            &[&["job", "run.yaml", "--set", "topology={data: auto, tensor: 2}"], more].concat(),
        )
    };
    job(&[]).expect(2, &["the number of ranks is not known", "--nodes"]);
    let filled = job(&["--nodes", "2", "--gpus-per-node", "4", "--set", "batch.global=8"]);
    let script = &filled.expect(0, &[]).out;
    for line in ["--ntasks-per-node=4\n", "tensor 2 × pipeline 1 × data 4"] {
        assert!(script.contains(line), "{line}: {script}");
    }
}

/// A pattern and weights by size: the start counts what each dataset gives, and the folder keeps it.
#[test]
fn a_start_lists_the_datasets_of_a_mixture() {
    let lab = Lab::new();
    for ending in ["bin", "idx"] {
        let [from, to] = ["corpus", "corpus2"].map(|name| lab.path(&format!("{name}.{ending}")));
        fs::copy(from, to).unwrap();
    }
    let data = "data={train: 'corpu*', split: '80,20,0', size_exponent: 0.5}";
    let done = lab.run(&[data, "train.steps=2"]);
    done.expect(0, &[]);
    for says in ["2 training datasets:", " 50.00 %, 4 samples, "] {
        assert!(done.out.contains(says), "{says}: {}", done.out);
    }
    assert_eq!(done.out.matches(" 50.00 %, 4 samples, ").count(), 2, "{}", done.out);
    let record = fs::read_to_string(lab.path("runs/a/manifest.yaml")).unwrap();
    assert_eq!(record.matches("weight: 0.5").count(), 2, "{record}");
    // A dataset that appears later is another mixture, which a start from the folder does not see.
    fs::copy(lab.path("corpus.idx"), lab.path("corpus3.idx")).unwrap();
    lab.gptrain(&["run", "runs/a", "--set", "train.steps=3"])
        .expect(0, &[]);
    assert_eq!(lab.losses("runs/a").len(), 3);
}

/// A run that has begun keeps its length. A start trains a step at least, saves, and the next continues;
/// as threads, and as processes that a launcher starts.
#[test]
fn a_start_of_a_begun_run_ends_after_its_minutes() {
    let lab = Lab::new();
    let long = ["train.steps=100000", "checkpoint.interval=1000000", "topology.data=2"];
    lab.run(&["train.steps=2", long[1], long[2]]).well();
    let sets = long.iter().flat_map(|set| ["--set", set]);
    let words: Vec<&str> = ["run", "run.yaml", "--minutes", "0.02"]
        .into_iter()
        .chain(sets)
        .collect();
    let mut before = 2;
    for _ in 0..2 {
        let done = lab.gptrain(&words);
        done.expect(0, &[]);
        for says in [
            "this start saves and ends within 1.2 s (--minutes)",
            "--minutes are over in",
            "stopped and saved: the same command continues",
        ] {
            assert!(done.out.contains(says), "{says}: {}", done.out);
        }
        let steps = lab.losses("runs/a").len();
        assert!(steps > before && steps < 100_000, "{steps} steps after {before}");
        assert!(
            lab.path(&format!("runs/a/checkpoints/step-{steps:08}"))
                .is_dir(),
            "{steps}"
        );
        before = steps;
    }
    let port = free_port();
    let ranks = [0, 1].map(|rank| {
        let mut command = lab.rank(rank, 2, port, &long);
        command.args(["--minutes", "0.02"]);
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    });
    for rank in ranks {
        Done::of(rank.wait_with_output().unwrap()).expect(0, &[]);
    }
    assert!(lab.losses("runs/a").len() > before);
}

#[test]
fn a_run_is_as_long_as_its_minutes() {
    let lab = Lab::new();
    let minutes = ["run", "run.yaml", "--minutes", "0.01"];
    let done = lab.gptrain(&minutes);
    let (_, rest) = done
        .expect(0, &[])
        .out
        .split_once("a step takes ")
        .expect("the speed");
    let (_, rest) = rest.split_once(" here: ").unwrap();
    let steps: usize = rest
        .split_once(" steps")
        .unwrap()
        .0
        .replace(',', "")
        .parse()
        .unwrap();
    assert!(steps >= 20 && steps.is_multiple_of(10), "{steps}");
    assert_eq!(lab.losses("runs/a").len(), steps);
    // The warm-up keeps its share, 8 of the 48 samples of the manifest, but has ten steps.
    let shown = lab.gptrain(&["manifest", "show", "runs/a"]).out;
    let warmup = (steps * 4 * 8 / 48).max(4 * 10);
    assert!(shown.contains(&format!("warmup_samples: {warmup}")), "{shown}");
    let again = lab.gptrain(&minutes);
    assert!(again.out.contains(&format!("has begun with {steps} steps")), "{}", again.out);
    assert!(again.expect(0, &[]).out.contains("nothing left to do"), "{}", again.out);

    let new = ["--set", "log.folder=runs/c", "--set", "train.steps=3"];
    let both = [&minutes[..], &new].concat();
    lab.gptrain(&both)
        .expect(2, &["--minutes and train.steps both set", "keep one"]);
    lab.gptrain(&["run", "run.yaml", "--minutes", "0"])
        .expect(2, &["a number from 0.01 to"]);
    let mut rank = lab.command(&minutes);
    for (name, value) in [("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")] {
        rank.env(name, value);
    }
    rank.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", "1");
    rank.args(["--set", "log.folder=runs/b"]);
    Done::of(rank.output().unwrap()).expect(2, &["times one process", "train.steps=N"]);
    assert!(!lab.path("runs/b").exists());
}
