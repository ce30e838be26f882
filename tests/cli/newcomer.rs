//! First hour of a newcomer: typical commands and mistakes, and the messages for them.

use crate::common::binary::{Done, Lab, free_port, until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

/// A reader of standard output that leaves at once, as `head -0` does.
fn without_a_reader(lab: &Lab, args: &[&str]) -> Done {
    let mut child = lab.command(args).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    Done::of(child.wait_with_output().unwrap())
}

#[test]
fn a_reader_that_leaves_ends_no_command() {
    let lab = Lab::new();
    without_a_reader(&lab, &["run", "run.yaml"]).well();
    assert_eq!(lab.metrics("runs/a").len(), 12);
    let estimate = ["estimate", "run.yaml", "--hardware", "h100-80g"];
    let export = ["export", "runs/a", "--hf", "hf"];
    for args in [
        &["manifest", "schema"][..],
        &["estimate", "--list-hardware"],
        &estimate,
        &["report", "runs/a"],
        &["data", "check", "corpus"],
        &["inspect-ckpt", "runs/a"],
        &export,
    ] {
        without_a_reader(&lab, args).well();
    }
    let mut schema = lab.command(&["manifest", "schema"]);
    let full = fs::File::create("/dev/full").unwrap();
    Done::of(schema.stdout(full).output().unwrap())
        .expect(1, &["cannot write to standard output: No space left"]);
}

#[test]
fn paths_that_lead_nowhere_are_the_users_mistake_everywhere() {
    let lab = Lab::new();
    for args in [
        "run nowhere",
        "manifest check nowhere",
        "diagnose nowhere",
        "import --hf nowhere",
        "export nowhere --hf x",
        "report nowhere",
        "inspect-ckpt nowhere",
        "sample nowhere --prompt x",
        "data build nowhere -t bytes -o x",
        "data build run.yaml --format txt -t nowhere -o x",
        "estimate run.yaml --calibrate nowhere",
        "nodes nowhere",
        "status nowhere",
    ] {
        let done = lab.gptrain(&args.split(' ').collect::<Vec<_>>());
        done.expect(2, &["nowhere", "→"]);
        assert!(!done.err.contains("os error"), "{}", done.err);
    }
}

#[test]
fn files_that_contradict_the_manifest_are_found_before_the_run() {
    let lab = Lab::new();
    let tokenizer = concat!(env!("CARGO_MANIFEST_DIR"), "/datasets/austen/tokenizer.json");
    let named = format!("data.tokenizer={tokenizer}");
    let cases: [(&[&str], &str); 4] = [
        (&["data.tokenizer=none.json"], "none.json does not exist"),
        (&["model.vocab=32"], "holds id 63; model.vocab is 32"),
        (&[&named], "has 4,096 ids"),
        (&[&named, "model.vocab=4096", "data.eod={token: 7}"], "has 0 for it"),
    ];
    for (sets, says) in cases {
        lab.run(sets).expect(2, &[says, "→"]);
        assert!(!lab.path("runs").exists(), "a start that fails leaves no folder");
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let args: Vec<&str> = ["manifest", "check", "run.yaml"]
            .into_iter()
            .chain(sets)
            .collect();
        let done = lab.gptrain(&args);
        if says.ends_with("exist") {
            assert!(done.out.contains("missing") && done.out.contains(says), "{}", done.out);
        } else {
            done.expect(2, &[says]);
        }
    }
    lab.run(&["data.train=none", "data.valid={a: none}"])
        .expect(2, &["none.idx does not exist"]);
    let twice = lab.run(&["data.train=none", "data.valid={a: none}"]).err;
    assert_eq!(twice.matches("does not exist").count(), 1, "{twice}");
    lab.run(&[&named, "model.vocab=4096", "data.eod={token: 0}"])
        .well();
}

#[test]
fn what_is_seldom_meant_is_said() {
    let lab = Lab::new();
    let says = "longer than the run of 48: the learning rate ends at 48 % of lr.peak";
    let done = lab.run(&["lr.warmup_samples=100"]);
    done.well();
    assert!(done.out.contains(says), "{}", done.out);
    let done = lab.gptrain(&["manifest", "check", "run.yaml", "--set", "lr.warmup_samples=100"]);
    assert!(done.out.contains(says), "{}", done.out);
    for (set, meant) in [
        ("train.device=gpu", "did you mean cuda?"),
        ("precision=float32", "did you mean f32?"),
        ("precision=bfloat16", "did you mean bf16?"),
        ("data.path=corpus", "did you mean data.train?"),
    ] {
        lab.run(&[set]).expect(2, &[meant]);
    }
}

#[test]
fn a_run_says_where_it_lies_and_which_other_may_be_meant() {
    let lab = Lab::new();
    let done = lab.run(&["topology.data=2"]);
    let folder = lab.path("").canonicalize().unwrap();
    let here = folder.join("runs/a").display().to_string();
    assert!(done.out.contains(&format!("new run in {here}")), "{}", done.out);
    // By several ranks too, and once: what may be done with it.
    let next = "complete: runs/a\n\nNow:\n  gptrain report runs/a ";
    assert_eq!(done.out.matches(next).count(), 1, "{}", done.out);
    assert!(!done.out.contains("gptrain sample"), "without a tokenizer: {}", done.out);
    let on = lab.run(&["topology.data=2", "train.steps=14"]).out;
    assert!(on.ends_with("complete: runs/a\n"), "{on}");
    fs::create_dir(lab.path("else")).unwrap();
    let mut elsewhere = lab.command(&["run", "../run.yaml"]);
    let done = Done::of(elsewhere.current_dir(lab.path("else")).output().unwrap());
    done.well();
    assert!(
        done.out
            .contains(&format!("`gptrain run {here}` continues that one")),
        "{}",
        done.out
    );
}

#[test]
fn ranks_that_are_missing_are_named_while_they_are_waited_for() {
    let lab = Lab::new();
    let port = free_port();
    let sets = ["topology.data=3", "batch.global=6", "comm.start_timeout_s=6"];
    let done = Done::of(lab.rank(0, 3, port, &sets).output().unwrap());
    done.expect(3, &["ranks 1, 2 did not connect"]);
    let says = format!("waiting for ranks 1, 2 at 127.0.0.1:{port}");
    assert!(done.out.contains(&says), "{}", done.out);
    let done = Done::of(lab.rank(1, 3, port, &sets).output().unwrap());
    done.expect(3, &["did not connect to rank 0"]);
    let says = format!("rank 1 waits for rank 0 at 127.0.0.1:{port}");
    assert!(done.out.contains(&says), "{}", done.out);
}

#[test]
fn a_name_that_does_not_resolve_comes_with_its_remedy() {
    let lab = Lab::new();
    let mut rank = lab.rank(1, 2, free_port(), &["topology.data=2", "comm.start_timeout_s=1"]);
    let done = Done::of(rank.env("MASTER_ADDR", "no such host").output().unwrap());
    done.expect(
        3,
        &["did not connect to rank 0 at no such host:", "comm.rendezvous, or GPTRAIN_REND"],
    );
}

#[test]
fn a_signal_while_ranks_are_waited_for_leaves_nothing() {
    let lab = Lab::new();
    let mut child = lab
        .rank(0, 2, free_port(), &["topology.data=2"])
        .spawn()
        .unwrap();
    let folder = lab.path("runs/a");
    // Its secret, and no longer the file with an ending that becomes it.
    let secret = |entry: fs::DirEntry| entry.path().extension().is_none();
    let waits = || {
        let files: Vec<_> = fs::read_dir(&folder)
            .into_iter()
            .flatten()
            .flatten()
            .collect();
        files.len() == 1 && files.into_iter().all(secret)
    };
    until("the rank waits for the other one", waits);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
    assert!(!folder.exists(), "{:?}", fs::read_dir(&folder).map(Iterator::count));
}

#[test]
fn a_rank_with_wrong_variables_says_so_itself() {
    let lab = Lab::new();
    let port = free_port();
    let start = |rank| {
        Done::of(
            lab.rank(rank, 3, port, &["topology.data=2"])
                .output()
                .unwrap(),
        )
    };
    start(0).expect(2, &["run, rank 0: 3 ranks were started"]);
    // Rank 0 may have been started with the right ones, and waits.
    start(1).expect(2, &["run, rank 1: 3 ranks were started", "→ start 2 (srun -n 2)"]);
}

#[test]
fn the_newest_dump_of_a_run_is_diagnosed() {
    let lab = Lab::new();
    lab.run(&[]).well();
    lab.gptrain(&["diagnose", "runs/a"])
        .expect(2, &["runs/a", "holds no dump", "→"]);
    for job in ["old", "new"] {
        let dump = lab.path("runs/a/failures").join(job);
        fs::create_dir_all(&dump).unwrap();
        fs::write(dump.join("verdict.json"), format!(r#"{{"verdict": "of {job}"}}"#)).unwrap();
        let stamp = std::time::SystemTime::UNIX_EPOCH;
        let hours = std::time::Duration::from_secs(if job == "old" { 1 } else { 7200 });
        fs::File::open(&dump)
            .unwrap()
            .set_modified(stamp + hours)
            .unwrap();
    }
    let done = lab.gptrain(&["diagnose", "runs/a"]);
    done.well();
    let says = ["of new", "older dump: runs/a/failures/old"];
    assert!(says.iter().all(|says| done.out.contains(says)), "{}", done.out);
}

/// One of every kind: unknown keys, wrong types, values out of bounds, sizes that do not divide, files
/// and machines that are not there. (The vocabulary against the data's ids needs a vocabulary.)
const MISTAKES: &str = "
colour: red
model: {layers: 5, hidden: 100, heads: 12, vocab: 0, seq_len: 256, activation: tanhh, dropout: 1.5}
precision: bf17
data: {train: nowhere, split: '95,x', tokenizer: none.json, seed: -1, eod: {token: -3}}
batch: {micro: 3, global: 8, ramp_up: {start: 3, increment: 0, samples: 10}}
lr: {peak: -1, warmup_samples: 10, decay: cosinus}
topology: {tensor: 3, pipeline: 0, data: 2, zero: 7, recompute: some}
checkpoint: {interval: 0, keep_last: two}
log: {interval: -4, format: long}
train: {steps: 0, eval_interval: x, eval_samples: 0, threads: 0, device: gpu}
plan: {hardware: h10}
";

#[test]
fn all_mistakes_are_told_at_once() {
    let lab = Lab::new();
    fs::write(lab.path("many.yaml"), MISTAKES).unwrap();
    let done = lab.gptrain(&["manifest", "check", "many.yaml", "--json"]);
    done.expect(2, &["colour", "none.json does not exist", "nowhere.idx does not exist", "h10"]);
    let told: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    let told = told["mistakes"].as_array().unwrap();
    assert_eq!(told.len(), 28, "{}", done.err);
    assert!(
        told.iter()
            .all(|mistake| !mistake["remedy"].as_str().unwrap().is_empty())
    );
}

/// Rules whose inputs are sound are evaluated although others are not.
#[test]
fn sound_settings_are_checked_beside_wrong_ones() {
    let lab = Lab::new();
    let tokenizer = concat!(env!("CARGO_MANIFEST_DIR"), "/datasets/austen/tokenizer.json");
    let text = format!(
        "
model: {{layers: 2, hidden: wide, heads: 4, vocab: 61, seq_len: 16, colour: red}}
data: {{train: corpus, tokenizer: {tokenizer}, eod: {{token: 7}}}}
batch: {{micro: 1, global: 0}}
lr: {{peak: -1}}
topology: {{tensor: 3, pipeline: 2, zero: 3, recompute: some}}
train: {{steps: 0, tokens: 1e6}}
"
    );
    fs::write(lab.path("some.yaml"), text).unwrap();
    let says = [
        "model.heads 4 is not divisible by topology.tensor 3",
        "topology.zero 3 with topology.pipeline 2",
        "the run's length is given more than once",
        "has 4,096 ids",
        "which ends no document",
        "holds id 63; model.vocab is 61",
    ];
    lab.gptrain(&["manifest", "check", "some.yaml"])
        .expect(2, &says);
}

#[test]
fn a_sound_manifest_comes_with_its_size() {
    let lab = Lab::new();
    let check = |sets: &[&str]| {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let args: Vec<&str> = ["manifest", "check", "run.yaml"]
            .into_iter()
            .chain(sets)
            .collect();
        lab.gptrain(&args).expect(0, &[]).out.clone()
    };
    let plain = check(&[]);
    assert!(plain.contains(" parameters; ") && plain.contains(" KiB of memory"), "{plain}");
    assert!(!plain.contains("note "), "{plain}");
    let two = check(&["topology.data=2", "model.heads=1", "lr.peak=3"]);
    assert!(two.contains(", 1 head, ") && two.contains("of memory on the fullest rank"), "{two}");
    assert!(two.contains("note      lr.peak 3 moves every weight by about 3 a step"), "{two}");
    // The run reserves the memory that the check printed.
    let memory = plain
        .split("parameters; ")
        .nth(1)
        .unwrap()
        .split(" of memory")
        .next()
        .unwrap();
    let ran = lab.run(&[]).out;
    assert!(ran.contains(&format!("as planned: {memory}; a step took ")), "{memory}: {ran}");
    assert!(ran.contains("device: CPU ("), "{ran}");
}

/// Epochs and plan come before the first step, and machines of the manifest that are not here first.
#[test]
fn a_run_prints_its_plan_before_the_first_step() {
    let lab = Lab::new();
    let out = lab.run(&["plan.hardware=h100-80g"]).out;
    let place = |words: &str| out.find(words).unwrap_or_else(|| panic!("{words}: {out}"));
    let order = [" epochs), ", "plan.hardware is h100-80g", "plan: a step of about ", "iteration "];
    assert!(order.map(place).is_sorted(), "{out}");
    assert!(out.contains(" tokens (") && out.contains(" of memory; 1 rank on "), "{out}");
    let many = lab
        .run(&["train.steps=200k", "train.stop_at_loss=100", "log.folder=runs/many"])
        .out;
    assert!(many.contains("after 40 more of them teach nothing"), "{many}");
    let rest = lab.run(&["train.steps=14"]).out;
    assert!(rest.contains("plan: a step of about ") && rest.contains(", 2 steps in "), "{rest}");
}

/// A negative number reaches the check of its flag.
#[test]
fn a_negative_number_is_refused_by_its_range() {
    let lab = Lab::new();
    for (args, says) in [
        ("sample runs/a --temperature -1", "--temperature: -1 is below 0"),
        ("sample runs/a --top-p -0.5", "--top-p: -0.5 is not above 0"),
        ("sample runs/a --tokens -3", "a whole number from 0 up"),
        ("run run.yaml --minutes -1", "a number from 0.01 to"),
        ("estimate run.yaml --search --gpus -8", "write a number of devices"),
    ] {
        let done = lab.gptrain(&args.split(' ').collect::<Vec<_>>());
        done.expect(2, &[says]);
        assert!(!done.err.contains("unexpected argument"), "{}", done.err);
    }
}
