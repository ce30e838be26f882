//! Output on a terminal, that of `script` (util-linux): bars of commands that may take long, and lines
//! and tables as wide as the terminal.

use crate::common::binary::{Done, Lab};
use std::path::Path;
use std::process::Command;

/// Text that a command writes on a terminal of so many columns. None without `script`.
fn on_terminal(lab: &Lab, columns: usize, args: &[&str]) -> Option<String> {
    let quoted = |word: &str| format!("'{word}'");
    let line: Vec<String> = [env!("CARGO_BIN_EXE_gptrain")]
        .iter()
        .chain(args)
        .map(|w| quoted(w))
        .collect();
    let mut command = Command::new("script");
    command
        .args(["-qec", &format!("stty cols {columns}; {}", line.join(" ")), "/dev/null"])
        .current_dir(lab.path("."));
    command
        .env("TERM", "xterm")
        .env("NO_COLOR", "1")
        .env("GPTRAIN_CACHE", lab.path("cache"));
    match command.output() {
        Err(_) => {
            eprintln!("skipped: there is no script(1)");
            None
        }
        Ok(output) => {
            let done = Done::of(output);
            assert_eq!(done.code, Some(0), "{args:?}: {}{}", done.out, done.err);
            Some(done.out)
        }
    }
}

#[test]
fn loading_replaying_and_comparing_have_a_bar() {
    let lab = Lab::new();
    lab.run(&["train.steps=6"]).well();
    let hf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/checkpoint/hf/llama");
    let (hf, reference) = (hf.to_str().unwrap(), hf.join("logits.safetensors"));
    let import =
        ["import", "--hf", hf, "--output", "new", "--reference", reference.to_str().unwrap()];
    let cases: [(&[&str], &str); 5] = [
        (&["eval", "runs/a", "--data", "corpus", "--limit", "2"], "loading"),
        (&["eval", hf, "--data", "corpus", "--seq-len", "8", "--limit", "2"], "loading"),
        (&["inspect-ckpt", "runs/a/checkpoints/step-00000005", "--replay", "1"], "replaying"),
        (&import, "comparing"),
        (&["convert", hf, "converted", "--to", "hf"], "exporting"),
    ];
    for (args, doing) in cases {
        let Some(text) = on_terminal(&lab, 80, args) else { return };
        assert!(text.contains(doing), "{args:?} shows no {doing}:\n{text}");
    }
}

/// The same words as in a pipe, in lines that end between words.
#[test]
fn lines_and_tables_fit_a_terminal_of_60_columns() {
    let lab = Lab::new();
    let bloom = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/tr11-176b-bloom.yaml");
    let widest = |text: &str| text.lines().map(|line| line.chars().count()).max();
    for program in ["gptrain", "megatron-deepspeed"] {
        let bloom = bloom.to_str().unwrap();
        let args = ["estimate", bloom, "--hardware", "h100-80g", "--as", program];
        let piped = lab.gptrain(&args).out;
        assert!(widest(&piped) > Some(60), "{piped}");
        let Some(shown) = on_terminal(&lab, 60, &args) else { return };
        assert!(widest(&shown) <= Some(60), "{shown}");
        let words = |text: &str| {
            text.split_whitespace()
                .map(str::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(words(&shown), words(&piped), "{shown}");
    }
    for args in [["run", "--help"], ["help", "estimate"]] {
        let Some(shown) = on_terminal(&lab, 60, &args) else { return };
        assert!(widest(&shown) <= Some(60) && shown.contains("Options:"), "{shown}");
    }
}
