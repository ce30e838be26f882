//! The commands of the README and of `docs/`, run as they are printed.

use crate::common::binary::{Done, Lab};
use std::env;
use std::fs;
use std::path::Path;

/// The `gptrain` commands of the first block after a heading, without their comments.
fn commands(page: &str, heading: &str) -> Vec<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
    let below = text
        .split(&format!("\n## {heading}\n"))
        .nth(1)
        .unwrap_or_else(|| panic!("{heading}"));
    let block = below
        .split("```sh\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let bare = |line: &str| line.split(" #").next().unwrap().trim().to_string();
    block
        .lines()
        .map(bare)
        .filter(|line| line.starts_with("gptrain "))
        .collect()
}

fn shell(lab: &Lab, line: &str) -> Done {
    let binary = Path::new(env!("CARGO_BIN_EXE_gptrain")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), env::var("PATH").unwrap());
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", line])
        .current_dir(lab.path(""))
        .env("PATH", path);
    Done::of(command.stdin(std::process::Stdio::null()).output().unwrap())
}

/// From a folder of text to a trained model, its curves and its words.
#[test]
fn a_first_training_works_as_the_readme_prints_it() {
    let lab = Lab::new();
    fs::create_dir(lab.path("corpus")).unwrap();
    let line =
        |n: usize| format!("The {n} cats sat on {} mats, said the {}th.\n", 7 * n % 31, n % 9);
    for document in 0..40 {
        let text: String = (document..document + 12).map(line).collect();
        fs::write(lab.path(&format!("corpus/{document}.txt")), text).unwrap();
    }
    let lines = commands("README.md", "Your own training");
    assert!(lines.len() >= 7, "{lines:?}");
    for line in &lines {
        let done = shell(&lab, line);
        assert_eq!(done.code, Some(0), "{line}\n{}\n{}", done.out, done.err);
    }
    assert!(lab.path("runs/mine/report.html").exists());
}

/// With nothing but the binary.
#[test]
fn the_example_trains_in_an_empty_folder_and_goes_on() {
    let lab = Lab::new();
    let folder = lab.path("empty");
    fs::create_dir(&folder).unwrap();
    let run = |sets: &[&str]| {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let args: Vec<&str> = ["run", "--example"].into_iter().chain(sets).collect();
        Done::of(lab.command(&args).current_dir(&folder).output().unwrap())
    };
    let small =
        ["model.layers=1", "model.hidden=16", "model.heads=1", "batch.micro=1", "batch.global=1"];
    let small = [&small[..], &["model.seq_len=16", "lr.warmup_samples=1"]].concat();
    let done = run(&[&small[..], &["train.steps=1"]].concat());
    done.well();
    let says =
        ["gptrain data build", "new run in ", "complete: runs/example", "gptrain sample runs"];
    assert!(says.iter().all(|says| done.out.contains(says)), "{}", done.out);
    let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets/austen");
    for name in ["austen.bin", "austen.idx", "tokenizer.json"] {
        let made = fs::read(folder.join("gptrain-example").join(name)).unwrap();
        assert!(made == fs::read(bundled.join(name)).unwrap(), "{name} is the quick start's");
    }
    let done = run(&[&small[..], &["train.steps=2"]].concat());
    done.well();
    assert!(done.out.contains("resuming from") && !done.out.contains("data build"), "{}", done.out);
}

#[test]
fn a_new_manifest_fits_data_tokenizer_and_wish() {
    let lab = Lab::new();
    let austen = concat!(env!("CARGO_MANIFEST_DIR"), "/datasets/austen/austen");
    for (params, says) in [
        (
            "124M",
            &[
                "vocab: 4096 # the tokenizer's",
                "seq_len: 1024",
                "# eod: {token: 0,",
                "  interval: 25 # steps",
            ][..],
        ),
        ("1e6", &["hidden: 128", "seq_len: 256", "4 times the training data", "interval: 179 #"]),
    ] {
        let args = ["manifest", "new", "--data", austen, "--params", params];
        let done = lab.gptrain(&args);
        done.well();
        assert!(says.iter().all(|says| done.out.contains(says)), "{}", done.out);
        fs::write(lab.path("new.yaml"), done.out).unwrap();
        let done = lab.gptrain(&["manifest", "check", "new.yaml"]);
        done.well();
        assert!(!done.out.contains("missing"), "{}", done.out);
    }
    let wrong = lab.gptrain(&["manifest", "new", "--data", "corpus"]);
    wrong.expect(2, &["no tokenizer.json beside it", "--tokenizer"]);
    lab.gptrain(&["manifest", "new", "--params", "9"])
        .expect(2, &["from 1M to 500B"]);
    let elsewhere = ["manifest", "new", "--output", "a/b.yaml"];
    fs::create_dir(lab.path("a")).unwrap();
    lab.gptrain(&elsewhere).well();
    lab.gptrain(&elsewhere).expect(2, &["exists"]);
}

#[test]
fn a_new_manifest_of_one_document_trains_on_all_of_it() {
    let lab = Lab::new();
    let tokenizer = concat!(env!("CARGO_MANIFEST_DIR"), "/datasets/austen/tokenizer.json");
    fs::write(lab.path("letter.txt"), "It is a truth universally acknowledged. ".repeat(40))
        .unwrap();
    let build = ["data", "build", "letter.txt", "--tokenizer", tokenizer, "--output", "letter"];
    lab.gptrain(&build).well();
    let new = ["--data", "letter", "--tokenizer", tokenizer, "--output", "letter.yaml"];
    lab.gptrain(&[&["manifest", "new"][..], &new].concat())
        .well();
    let made = fs::read_to_string(lab.path("letter.yaml")).unwrap();
    assert!(made.contains("split: 100,0,0 # too few documents"), "{made}");
    assert!(!made.contains("eval_interval"), "{made}");
    lab.gptrain(&["run", "letter.yaml", "--set", "train.steps=1"])
        .well();
}

#[test]
fn the_binary_says_what_it_is_and_completes_itself() {
    let lab = Lab::new();
    let version = lab.gptrain(&["--version"]).out;
    let says = ["gptrain 0.", "commit ", "GPU kernels: ", "features: "];
    assert!(says.iter().all(|says| version.contains(says)), "{version}");
    assert_eq!(lab.gptrain(&["-V"]).out.lines().count(), 1);
    let script = lab.gptrain(&["completions", "bash"]);
    // Values too: settings, machines, programs.
    for word in ["inspect-ckpt", "lr.peak=", "optimizer.adamw.beta2=", "h100-80g", "torchtitan"] {
        assert!(script.out.contains(word), "{word}: {}", script.out);
    }
    lab.gptrain(&["man", "man"]).well();
    let page = fs::read_to_string(lab.path("man/gptrain-data-build.1")).unwrap();
    assert!(page.contains("append") && page.contains("gptrain data build"), "{page}");
}

#[test]
fn log_lines_have_the_form_that_is_asked_for() {
    let lab = Lab::new();
    let short = lab.run(&["log.format=short"]).out;
    assert!(short.contains("step 12/12 · loss ") && !short.contains("iteration"), "{short}");
    assert!(short.contains("step 12: valid loss "), "{short}");
    let done = lab.gptrain(&["run", "run.yaml", "-q", "--set", "log.folder=runs/b"]);
    done.well();
    assert_eq!((done.out, done.err), (String::new(), String::new()));
}
