//! Next steps that a run prints, typed back: each does as it says, after a finished, a continued, an
//! imported, an interrupted run, with `--set` and with `--minutes`.

use crate::common::binary::{Done, Lab};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const TOKENIZER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/datasets/austen/tokenizer.json");

/// A line as a user's shell runs it in the lab's folder, with the program on PATH.
fn shell(lab: &Lab, line: &str) -> Command {
    let binary = Path::new(env!("CARGO_BIN_EXE_gptrain")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("bash");
    command
        .args(["-c", line])
        .current_dir(lab.path(""))
        .env("PATH", path);
    command
        .env("GPTRAIN_CACHE", lab.path("cache"))
        .stdin(Stdio::null());
    command
}

pub fn typed(lab: &Lab, line: &str) -> Done {
    Done::of(shell(lab, line).output().unwrap())
}

pub fn well(lab: &Lab, line: &str) -> Done {
    let done = typed(lab, line);
    assert_eq!(done.code, Some(0), "{line}\n{}\n{}", done.out, done.err);
    done
}

/// Commands below "Now:", without their comments.
fn hints(done: &Done) -> Vec<String> {
    let below = done
        .out
        .split("\nNow:\n")
        .nth(1)
        .unwrap_or_else(|| panic!("{}", done.out));
    let bare = |line: &str| line.split("  #").next().unwrap().trim().to_string();
    below
        .lines()
        .filter(|line| line.starts_with("  gptrain "))
        .map(bare)
        .collect()
}

/// Types all of them. Returns the one that trains further.
fn type_all(lab: &Lab, done: &Done) -> String {
    let hints = hints(done);
    hints.iter().for_each(|line| well(lab, line).well());
    hints
        .iter()
        .find(|line| line.starts_with("gptrain run"))
        .unwrap()
        .clone()
}

/// A lab with a dataset of text in `text`, and a manifest `small.yaml` with that tokenizer.
pub fn with_text() -> Lab {
    let lab = Lab::new();
    let line =
        |n: usize| format!("The {n} cats sat on {} mats, said the {}th.\n", 7 * n % 31, n % 9);
    fs::write(lab.path("text.txt"), (0..400).map(line).collect::<String>()).unwrap();
    well(&lab, &format!("gptrain data build text.txt --format lines -t {TOKENIZER} -o text"));
    let small = format!(
        "model: {{layers: 1, hidden: 32, heads: 2, vocab: 4096, seq_len: 16}}\n\
         data: {{train: text, tokenizer: {TOKENIZER}}}\nbatch: {{micro: 2, global: 4}}\n\
         lr: {{peak: 3e-3, warmup_samples: 8}}\ncheckpoint: {{interval: 5}}\n\
         train: {{steps: 10, threads: 1, eval_interval: 5, eval_samples: 4}}\n"
    );
    fs::write(lab.path("small.yaml"), small).unwrap();
    lab
}

fn rates(lab: &Lab, run: &str) -> Vec<u64> {
    lab.losses(run).iter().map(|row| row[3]).collect()
}

fn manifest(lab: &Lab, run: &str) -> String {
    fs::read_to_string(lab.path(run).join("manifest.yaml")).unwrap()
}

#[test]
fn a_finished_run_goes_on_as_one_of_the_new_length() {
    let lab = with_text();
    let done = well(&lab, "gptrain run small.yaml --set 'name=my run'");
    let further = type_all(&lab, &done);
    assert_eq!(further, "gptrain run 'runs/my run' --set train.steps=20");
    well(&lab, "gptrain run small.yaml --set train.steps=20 --set log.folder=runs/whole");
    let (ours, whole) = (rates(&lab, "runs/my run"), rates(&lab, "runs/whole"));
    assert_eq!((ours.len(), &ours[10..]), (20, &whole[10..]), "the schedule of 20 steps");
    assert!(
        manifest(&lab, "runs/my run").contains("steps: 20"),
        "{}",
        manifest(&lab, "runs/my run")
    );
    // A start without `--set` continues what ran last.
    let done = well(&lab, "gptrain run 'runs/my run'");
    assert!(done.out.contains("nothing left to do: 20 of 20 steps"), "{}", done.out);
    let status = well(&lab, "gptrain status 'runs/my run'").out;
    assert!(status.contains("step 20 of 20 (100.0 %)"), "{status}");
}

#[test]
fn settings_of_a_start_are_those_of_the_next() {
    let lab = with_text();
    well(&lab, "gptrain run small.yaml");
    let done = well(&lab, "gptrain run runs/small --set lr.peak=1e-3 --set train.steps=16");
    assert!(
        done.out
            .contains("lr.peak was 0.003, is 0.001 after step 10"),
        "{}",
        done.out
    );
    let before = (manifest(&lab, "runs/small"), rates(&lab, "runs/small"));
    let refused = typed(&lab, "gptrain run runs/small --set train.steps=12");
    refused.expect(2, &["runs/small: 16 steps are done, 12 asked for", "→ to train further"]);
    assert_eq!(
        (manifest(&lab, "runs/small"), rates(&lab, "runs/small")),
        before,
        "nothing changed"
    );
    typed(&lab, "gptrain run small.yaml").expect(2, &["16 steps are done, 10 asked for"]);
    // Both remedies.
    let back = refused
        .err
        .split("--resume-from ")
        .nth(1)
        .unwrap()
        .split_whitespace()
        .next()
        .unwrap();
    well(&lab, "gptrain run runs/small --set train.steps=20");
    let line = format!("gptrain run runs/small --set train.steps=12 --resume-from {back}");
    well(&lab, &line);
    assert_eq!(rates(&lab, "runs/small").len(), 12);
    let compared = well(&lab, "gptrain compare runs/small runs/small --json").out;
    assert!(compared.contains("\"rows\""), "{compared}");
}

#[test]
fn a_comparison_shows_the_settings_of_every_start() {
    let lab = with_text();
    well(&lab, "gptrain run small.yaml");
    well(&lab, "gptrain run small.yaml --set log.folder=runs/other");
    well(&lab, "gptrain run runs/small --set lr.peak=1e-3 --set train.steps=12");
    let compared = well(&lab, "gptrain compare runs/small runs/other").out;
    assert!(compared.contains("0.003, 0.001 after step 10"), "{compared}");
    well(&lab, "gptrain report runs/small");
    let page = fs::read_to_string(lab.path("runs/small/report.html")).unwrap();
    assert!(page.contains("lr.peak was 0.003, is 0.001 after step 10"));
    let version = well(&lab, "gptrain --version").out;
    let commit = version
        .lines()
        .next()
        .unwrap()
        .split_once(", commit ")
        .unwrap()
        .1;
    assert!(page.contains(&format!(", commit {commit}: gptrain run runs/small --set")), "{commit}");
}

#[test]
fn a_decay_that_has_ended_is_said_and_every_choice_learns() {
    let lab = with_text();
    let ends = "--set 'lr.decay={cosine: {samples: 40}}'";
    well(&lab, &format!("gptrain run small.yaml {ends}"));
    let done =
        well(&lab, "cp -r runs/small runs/flat && gptrain run runs/flat --set train.steps=20");
    let says = "lr.decay ends at sample 40: the last 10 steps have a learning rate of 0 (lr.min)";
    assert!(done.out.contains(says), "{}", done.out);
    let rate = |run: &str, step: usize| f64::from_bits(rates(&lab, run)[step - 1]);
    assert_eq!(rate("runs/flat", 15), 0.0);
    let choices: Vec<String> = done
        .out
        .lines()
        .filter(|line| line.starts_with("    → ") && line.contains("lr.decay="))
        .map(|line| line[line.find("--set").unwrap()..].to_string())
        .collect();
    assert_eq!(choices.len(), 4, "{}", done.out);
    for (number, choice) in choices.iter().enumerate() {
        let run = format!("runs/choice{number}");
        let line =
            format!("cp -r runs/small {run} && gptrain run {run} --set train.steps=20 {choice}");
        let done = well(&lab, &line);
        assert!(!done.out.contains(says), "{choice}: {}", done.out);
        assert!(rate(&run, 15) > 1e-4, "{choice}");
    }
}

#[test]
fn an_interrupted_run_goes_on_by_its_command_and_by_its_folder() {
    let lab = with_text();
    let run = "exec gptrain run small.yaml --set train.steps=4000 --set log.folder=runs/a";
    for line in [run, run, "exec gptrain run runs/a"] {
        let steps = lab.metrics("runs/a").len();
        let mut command = shell(&lab, line);
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        lab.wait_for_steps("runs/a", steps + 2);
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let done = Done::of(child.wait_with_output().unwrap());
        done.well();
        assert!(
            done.out
                .contains("stopped and saved: the same command continues"),
            "{}",
            done.out
        );
        assert!(lab.metrics("runs/a").len() > steps);
    }
    assert!(manifest(&lab, "runs/a").contains("steps: 4000"));
    let status = well(&lab, "gptrain status runs/a").out;
    assert!(status.contains(" of 4,000 ("), "{status}");
}

/// As an operator has it: the data moves while the run is stopped, and the run's folder too.
#[test]
fn moved_data_is_named_by_its_key_and_goes_on_by_one_flag() {
    let lab = with_text();
    fs::create_dir(lab.path("old")).unwrap();
    well(&lab, "mv text.* old/; gptrain run small.yaml --set data.train=old/text");
    well(&lab, "mv old new; mv runs/small elsewhere");
    let refused = typed(&lab, "gptrain run elsewhere --set train.steps=12");
    refused.expect(2, &["data.train: ", "old/text is not a dataset", "--set data.train=PREFIX"]);
    assert!(!refused.err.contains("data.valid"), "{}", refused.err);
    // From another folder: a path starts where the user is.
    let line =
        "mkdir w; cd w; gptrain run ../elsewhere --set train.steps=12 --set data.train=../new/text";
    let done = well(&lab, line);
    assert!(!done.out.contains("another mixture"), "{}", done.out);
    let whole = "gptrain run small.yaml --set train.steps=12 --set data.train=new/text";
    well(&lab, &format!("{whole} --set log.folder=runs/whole"));
    assert_eq!(rates(&lab, "elsewhere")[10..], rates(&lab, "runs/whole")[10..]);
    let text = manifest(&lab, "elsewhere");
    let new = lab
        .path("new/text")
        .canonicalize()
        .unwrap_or(lab.path("new/text"));
    assert!(text.contains("new/text") && !text.contains("old/text"), "{text} {}", new.display());
    well(&lab, "gptrain run elsewhere --set train.steps=14");
}

/// Earlier versions wrote out every value, the end of the decay and the validation set too.
#[test]
fn a_folder_of_an_earlier_version_goes_on_and_says_what_it_holds_fixed() {
    let lab = with_text();
    fs::create_dir(lab.path("old")).unwrap();
    well(&lab, "mv text.* old/; gptrain run small.yaml --set data.train=old/text");
    well(&lab, "gptrain manifest show runs/small > all && cp all runs/small/manifest.yaml");
    let text = manifest(&lab, "runs/small");
    assert!(
        text.contains("cosine:\n      samples: 40") && text.contains("valid:\n    valid:"),
        "{text}"
    );
    let done = well(&lab, "gptrain run runs/small");
    assert!(done.out.contains("nothing left to do"), "{}", done.out);
    let done = well(&lab, "cp -r runs/small flat; gptrain run flat --set train.steps=14");
    assert!(
        done.out
            .contains("lr.decay ends at sample 40: the last 4 steps"),
        "{}",
        done.out
    );
    well(&lab, "mv old new");
    let line = "gptrain run runs/small --set train.steps=14 --set lr.decay=cosine --set data.train=new/text";
    let refused = typed(&lab, line);
    let says =
        "moved data: --set data.valid.valid=PREFIX, or --set data.valid=null for the validation";
    refused.expect(2, &["data.valid.valid: ", "old/text is not a dataset", says]);
    well(&lab, &format!("{line} --set data.valid=null"));
    well(&lab, "gptrain run runs/small --set train.steps=16");
    assert_eq!(rates(&lab, "runs/small").len(), 16);
}

#[test]
fn an_import_keeps_the_data_that_it_was_given() {
    let lab = with_text();
    well(&lab, "gptrain run small.yaml && gptrain export runs/small --output folder");
    let done = well(&lab, "gptrain import --hf folder --output runs/mine --set model.seq_len=16");
    assert!(done.out.contains("then `gptrain run runs/mine`"), "{}", done.out);
    let sets = "--set data.train=text --set batch.global=4 --set train.steps=3";
    let done = well(&lab, &format!("gptrain run runs/mine {sets}"));
    let text = manifest(&lab, "runs/mine");
    assert!(text.contains("# Continued pretraining of"), "comments stay: {text}");
    let further = type_all(&lab, &done);
    assert_eq!(further, "gptrain run runs/mine --set train.steps=6");
    assert_eq!(rates(&lab, "runs/mine").len(), 6);
    well(&lab, "gptrain import --hf folder --output runs/two --set data.train=text");
    well(
        &lab,
        "gptrain run runs/two --set batch.global=4 --set train.steps=2 --set model.seq_len=16",
    );
}

#[test]
fn a_mean_of_checkpoints_is_trained_further_by_a_schedule_of_its_length() {
    let lab = with_text();
    well(&lab, "gptrain run small.yaml");
    let done = well(&lab, "gptrain average runs/small/checkpoints/* --output runs/mean");
    assert!(
        done.out
            .contains("next: `gptrain run runs/mean` continues from it"),
        "{}",
        done.out
    );
    let done = well(&lab, "gptrain run runs/mean --set train.steps=20");
    assert!(!done.out.contains("lr.decay ends"), "{}", done.out);
    well(&lab, "gptrain run small.yaml --set train.steps=20 --set log.folder=runs/whole");
    assert_eq!(rates(&lab, "runs/mean"), rates(&lab, "runs/whole")[10..]);
}

/// FLOP/s of a machine on which the small model takes so many steps in a minute.
fn machine(steps: f64) -> String {
    // 6 for each weight of a matrix product, and attention: tests/model has the formula.
    let (layers, hidden, vocab, seq_len, batch) = (1.0, 32.0, 4096.0, 16.0, 4.0);
    let weights = layers * 12.0 * hidden * hidden + hidden * vocab;
    let flops = seq_len * batch * (6.0 * weights + 12.0 * layers * seq_len * hidden);
    format!("{}", flops * steps / 60.0)
}

#[test]
fn a_slow_machine_trains_a_smaller_model_with_a_whole_warm_up() {
    let lab = with_text();
    let text = fs::read_to_string(lab.path("small.yaml")).unwrap();
    let wide = text
        .replace("hidden: 32, heads: 2", "hidden: 128, heads: 4")
        .replace("layers: 1", "layers: 4")
        .replace("warmup_samples: 8", "warmup_samples: 40")
        .replace("steps: 10,", "steps: 1000,");
    fs::write(lab.path("wide.yaml"), wide).unwrap();
    let run = |flops: &str, folder: &str, minutes: &str| {
        let line = format!("gptrain run wide.yaml --minutes {minutes} --set log.folder={folder}");
        let done = Done::of(
            shell(&lab, &line)
                .env("GPTRAIN_TEST_MACHINE_FLOPS", flops)
                .output()
                .unwrap(),
        );
        assert_eq!(done.code, Some(0), "{}\n{}", done.out, done.err);
        done
    };
    let begins = |folder: &str| manifest(&lab, folder);
    // Enough steps: the model of the file.
    let done = run(&machine(1200.0), "runs/fast", "1");
    assert!(
        !done.out.contains("reduced") && begins("runs/fast").contains("hidden: 128"),
        "{}",
        done.out
    );
    // The same time on a machine that would take 44 steps.
    let done = run(&machine(400.0), "runs/slow", "1");
    for says in
        ["the model is reduced", "model.hidden=64", "--set train.steps=N, without --minutes"]
    {
        assert!(done.out.contains(says), "{says}: {}", done.out);
    }
    let steps = lab.metrics("runs/slow").len();
    assert!(steps >= 100, "{steps}: {}", done.out);
    let rates: Vec<f64> = rates(&lab, "runs/slow")
        .into_iter()
        .map(f64::from_bits)
        .collect();
    let peak = rates.iter().position(|rate| *rate == 3e-3).unwrap();
    assert!(peak >= 9, "the warm-up takes {} steps", peak + 1);
    // Its command, its folder and its hints continue the reduced run.
    let further = type_all(&lab, &done);
    let again = run(&machine(5000.0), "runs/slow", "1");
    assert!(again.out.contains("model.hidden=64"), "{}", again.out);
    assert!(again.out.contains("nothing left to do"), "{}", again.out);
    assert_eq!(further, format!("gptrain run runs/slow --set train.steps={}", 2 * steps));
    typed(&lab, "gptrain run wide.yaml --set log.folder=runs/slow")
        .expect(2, &["another `model`", "continue it as it was: gptrain run runs/slow"]);
    // Too little even for the smallest.
    let done = run(&machine(1.0), "runs/slowest", "1");
    assert!(done.out.contains("20 steps are too few to learn words"), "{}", done.out);
    assert_eq!(lab.metrics("runs/slowest").len(), 20);
}

/// nanoGPT's user: one file of text, five commands, a longer second run, a folder for transformers.
#[test]
fn a_text_file_becomes_a_model_that_is_trained_longer() {
    let lab = Lab::new();
    let line =
        |n: usize| format!("The {n} cats sat on {} mats, said the {}th.\n", 7 * n % 31, n % 9);
    fs::write(lab.path("input.txt"), (0..900).map(line).collect::<String>()).unwrap();
    let small = "--set model.layers=1 --set model.hidden=32 --set model.heads=2 --set batch.global=4 \
                 --set batch.micro=2 --set train.threads=1 --set model.seq_len=32";
    for line in [
        "gptrain data train-tokenizer input.txt --vocab 400 --output tokenizer.json",
        "gptrain data build input.txt --tokenizer tokenizer.json --output mine --append-eod",
        "gptrain manifest new --data mine --tokenizer tokenizer.json --params 1M --output mine.yaml",
    ] {
        well(&lab, line);
    }
    let first = well(&lab, &format!("gptrain run mine.yaml {small} --set train.steps=20"));
    let further = type_all(&lab, &first);
    assert_eq!(further, "gptrain run runs/mine --set train.steps=40");
    let rates: Vec<f64> = rates(&lab, "runs/mine")
        .into_iter()
        .map(f64::from_bits)
        .collect();
    let peak = rates.iter().copied().fold(0.0, f64::max);
    assert!(rates.len() == 40 && rates[24] > 0.4 * peak, "{rates:?}");
    assert!(lab.path("mine-hf/config.json").exists());
    well(&lab, "gptrain export runs/mine --output mine-hf --overwrite");
}

#[test]
fn a_run_above_the_loss_of_guessing_is_said_to_have_diverged() {
    let lab = Lab::new();
    let done =
        lab.run(&["lr={peak: 5, decay: constant}", "train.steps=30", "optimizer.adamw.clip=0"]);
    done.expect(0, &["diverged: the loss is ", "above ln(vocabulary) = 4.16", "→"]);
    assert!(!done.out.contains("Now:"), "{}", done.out);
    let done = lab.run(&["log.folder=runs/b", "train.steps=1"]);
    assert!(!done.err.contains("diverged"), "{}", done.err);
}
