//! The real binary, on a small dataset in a folder of its own.
#![allow(dead_code)]

use gptrain::base::rng;
use gptrain::data::indexed::{TokenType, Writer};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// A folder with a dataset and a manifest `run.yaml` that trains in about a second.
pub struct Lab {
    folder: TempDir,
}

impl Lab {
    pub fn new() -> Lab {
        Lab::with_documents(40)
    }

    pub fn with_documents(documents: u64) -> Lab {
        let folder = tempfile::tempdir().unwrap();
        dataset(&folder.path().join("corpus"), documents, 64);
        let lab = Lab { folder };
        fs::write(lab.path("run.yaml"), MANIFEST).unwrap();
        lab
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gptrain"));
        command.args(args).current_dir(self.folder.path()).env_remove("RUST_BACKTRACE");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// `gptrain ARGS`, to its end.
    pub fn gptrain(&self, args: &[&str]) -> Done {
        Done::of(self.command(args).output().unwrap())
    }

    /// `gptrain run run.yaml --set …`, to its end, with variables of the environment.
    pub fn run_with(&self, variables: &[(&str, &Path)], sets: &[&str]) -> Done {
        self.gptrain_with(variables, &run_args(sets))
    }

    /// `gptrain ARGS`, to its end, with variables of the environment.
    pub fn gptrain_with(&self, variables: &[(&str, &Path)], args: &[&str]) -> Done {
        Done::of(self.command(args).envs(variables.iter().copied()).output().unwrap())
    }

    /// `gptrain run run.yaml --set …`, to its end.
    pub fn run(&self, sets: &[&str]) -> Done {
        self.gptrain(&run_args(sets))
    }

    /// The same, where no file may grow beyond `bytes`.
    pub fn limited(&self, bytes: u64, sets: &[&str]) -> Done {
        let gptrain = env!("CARGO_BIN_EXE_gptrain");
        let mut command = Command::new("prlimit");
        command.arg(format!("--fsize={bytes}")).arg(gptrain).args(run_args(sets));
        command.current_dir(self.folder.path()).env_remove("RUST_BACKTRACE");
        Done::of(command.stdin(Stdio::null()).output().unwrap())
    }

    /// The same, left running.
    pub fn start(&self, sets: &[&str]) -> Child {
        self.command(&run_args(sets)).spawn().unwrap()
    }

    /// The lines of a run's metrics.jsonl with a training loss.
    pub fn metrics(&self, run: &str) -> Vec<serde_json::Value> {
        let text = fs::read_to_string(self.path(run).join("metrics.jsonl")).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        lines.filter(|line: &serde_json::Value| line.get("grad_norm").is_some()).collect()
    }

    /// What a run's steps gave, to the last bit: (step, loss, gradient norm, learning rate).
    pub fn losses(&self, run: &str) -> Vec<[u64; 4]> {
        let number = |line: &serde_json::Value, key: &str| line[key].as_f64().unwrap().to_bits();
        let metrics = self.metrics(run);
        let keys = ["step", "lm_loss", "grad_norm", "lr"];
        metrics.iter().map(|line| keys.map(|key| number(line, key))).collect()
    }

    /// Waits until a run has taken `steps` steps.
    pub fn wait_for_steps(&self, run: &str, steps: usize) {
        for _ in 0..3000 {
            if self.metrics(run).len() >= steps {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("{run} did not reach step {steps} in 30 s");
    }
}

fn run_args<'a>(sets: &[&'a str]) -> Vec<&'a str> {
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    ["run", "run.yaml"].into_iter().chain(sets).collect()
}

/// How a command ended.
pub struct Done {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Done {
    pub fn of(output: Output) -> Done {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        Done { code: output.status.code(), out, err }
    }

    /// Asserts the exit code, and that stderr holds each of the words.
    pub fn expect(&self, code: i32, words: &[&str]) -> &Done {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        for word in words {
            assert!(self.err.contains(word), "{word:?} is not in:\n{}", self.err);
        }
        assert!(!self.err.contains("panicked"), "{}", self.err);
        self
    }
}

const MANIFEST: &str = "
model: {layers: 2, hidden: 32, heads: 4, vocab: 64, seq_len: 16}
data: {train: corpus, split: '80,20,0'}
batch: {micro: 2, global: 4}
lr: {peak: 3e-3, min: 3e-4, warmup_samples: 8, decay: cosine}
checkpoint: {interval: 5}
log: {folder: runs/a, interval: 1, tensorboard: false}
train: {steps: 12, seed: 3, threads: 1, eval_interval: 6, eval_samples: 3}
";

/// Documents of a repeating pattern with some noise: a model can learn it.
fn dataset(prefix: &Path, documents: u64, vocab: u64) {
    let mut writer = Writer::create(prefix, TokenType::U16).unwrap();
    for document in 0..documents {
        let noise = |i: u64| rng::below(document, i, vocab) as u32;
        let token = |i: u64| if noise(2 * i) < 8 { noise(2 * i + 1) } else { (i % 8) as u32 };
        let tokens: Vec<u32> = (0..50 + noise(1000) as u64).map(token).collect();
        writer.sequence(&tokens).unwrap();
        writer.end_document();
    }
    writer.finish().unwrap();
}
