//! Every kind of file, with bits flipped, cut off, grown and overwritten: what reads it says so, or
//! reads what is still sound.

use super::{Attack, Dice, furnished, sane};
use crate::common::binary::{Done, Lab, within};
use std::fs;

/// A file, what reads it, and whether any change of it must be noticed.
struct Target {
    file: &'static str,
    readers: &'static [&'static str],
    noticed: bool,
}

const STEP: &str = "runs/a/checkpoints/step-00000004";

#[rustfmt::skip]
const TARGETS: &[Target] = &[
    Target { file: "corpus.idx", noticed: false, readers: &[
        "data check corpus", "data inspect corpus", "data samples corpus --seq-len 16 --samples 20",
        "run run.yaml --set train.steps=2 --set log.folder=fresh"] },
    Target { file: "corpus.bin", noticed: false, readers: &[
        "data check corpus --vocab 64", "data inspect corpus",
        "run run.yaml --set train.steps=2 --set log.folder=fresh"] },
    Target { file: "master-00000.safetensors", noticed: true, readers: CHECKPOINT },
    Target { file: "first_moment-00000.safetensors", noticed: true, readers: MOMENTS },
    Target { file: "index.json", noticed: true, readers: CHECKPOINT },
    Target { file: "runs/a/metrics.jsonl", noticed: false, readers: &[
        "report runs/a --overwrite", "estimate run.yaml --calibrate runs/a/metrics.jsonl",
        "run run.yaml --set train.steps=6 --set checkpoint.interval=100"] },
    Target { file: "runs/a/manifest.yaml", noticed: false, readers: &[
        "export runs/a --hf out", "inspect-ckpt runs/a", "sample runs/a --tokens 4 --tokenizer tok.json",
        "report runs/a --overwrite"] },
    Target { file: "runs/a/last-checkpoint", noticed: false, readers: &[
        "run run.yaml --set train.steps=4"] },
    Target { file: "tok.json", noticed: false, readers: &[
        "data build text.txt -t tok.json -o built", "data inspect corpus -t tok.json"] },
    Target { file: "hf/config.json", noticed: false, readers: &["import --hf hf --output imported"] },
    Target { file: "hf/model.safetensors", noticed: false, readers: &[
        "import --hf hf --output imported"] },
    Target { file: "text.txt", noticed: false, readers: &[
        "data build text.txt -t tok.json -o built",
        "data train-tokenizer text.txt --vocab 270 -o learned.json"] },
    Target { file: "lines.jsonl", noticed: false, readers: &["data build lines.jsonl -t bytes -o built"] },
    Target { file: "text.gz", noticed: false, readers: &[
        "data build text.gz --format text -t bytes -o built"] },
    Target { file: "run.yaml", noticed: false, readers: &["manifest check run.yaml"] },
];

const CHECKPOINT: &[&str] =
    &["inspect-ckpt runs/a --deep", "export runs/a --hf out", "run run.yaml --set train.steps=5"];

/// An export reads weights alone.
const MOMENTS: &[&str] = &["inspect-ckpt runs/a --deep", "run run.yaml --set train.steps=5"];

/// Files that readers write: removed between two of them.
const WRITTEN: [&str; 7] =
    ["fresh", "out", "built.bin", "built.idx", "imported", "learned.json", "runs/a/report.html"];

/// A run and all that belongs to it.
pub struct Damaged {
    lab: Lab,
}

impl Damaged {
    pub fn new() -> Damaged {
        let lab = furnished(400, 50, 4);
        let text = fs::read(lab.path("text.txt")).unwrap();
        let file = fs::File::create(lab.path("text.gz")).unwrap();
        let mut gzip = flate2::write::GzEncoder::new(file, flate2::Compression::default());
        std::io::Write::write_all(&mut gzip, &text).unwrap();
        gzip.finish().unwrap();
        Damaged { lab }
    }
}

/// A command line, in bounded memory.
fn run(lab: &Lab, line: &str) -> Done {
    let args: Vec<&str> = line.split_whitespace().collect();
    Done::of(
        within(&["prlimit", "--as=4000000000"], &lab.command(&args))
            .output()
            .unwrap(),
    )
}

impl Attack for Damaged {
    fn case(&mut self, dice: &mut Dice) {
        let target = &TARGETS[dice.below(TARGETS.len() as u64) as usize];
        let in_step = target.noticed;
        let file = if in_step { format!("{STEP}/{}", target.file) } else { target.file.into() };
        let whole = fs::read(self.lab.path(&file)).unwrap();
        let damaged = damage(whole.clone(), dice);
        let kept = copies(&self.lab);
        for reader in target.readers {
            fs::write(self.lab.path(&file), &damaged).unwrap();
            let done = run(&self.lab, reader);
            let changed = damaged != whole;
            let what = format!("{reader}, with {file} of {} bytes damaged", whole.len());
            sane(&done, &what, false);
            let unnoticed = target.noticed && changed && done.code == Some(0);
            assert!(!unnoticed, "{what}: not noticed\n{}\n{}", done.out, done.err);
            restore(&self.lab, &kept);
        }
        fs::write(self.lab.path(&file), &whole).unwrap();
    }
}

/// The files that readers may change, as they were.
fn copies(lab: &Lab) -> Vec<(&'static str, Vec<u8>)> {
    let names = ["metrics.jsonl", "manifest.yaml", "last-checkpoint", "checkpoints/latest"];
    names
        .map(|name| (name, fs::read(lab.path("runs/a").join(name)).unwrap()))
        .into()
}

fn restore(lab: &Lab, kept: &[(&str, Vec<u8>)]) {
    for name in WRITTEN.map(|name| lab.path(name)) {
        let _ = fs::remove_file(&name);
        let _ = fs::remove_dir_all(&name);
    }
    for (name, bytes) in kept {
        fs::write(lab.path("runs/a").join(name), bytes).unwrap();
    }
    let checkpoints = fs::read_dir(lab.path("runs/a/checkpoints")).unwrap();
    for entry in checkpoints.map(|entry| entry.unwrap().path()) {
        if entry.is_dir() && !entry.ends_with("step-00000004") {
            fs::remove_dir_all(entry).unwrap();
        }
    }
}

/// A bit flipped, a stretch zeroed, cut, doubled or lost.
fn damage(mut bytes: Vec<u8>, dice: &mut Dice) -> Vec<u8> {
    for _ in 0..1 + dice.below(2) {
        let at = dice.below(bytes.len() as u64) as usize;
        let until = (at + dice.below(64) as usize).min(bytes.len());
        match dice.below(7) {
            0..=2 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
            3 => bytes.truncate(at),
            4 => bytes[at..until].fill(0),
            5 => drop(bytes.drain(at..until)),
            _ => {
                let some = bytes[at..until].to_vec();
                bytes.splice(at..at, some);
            }
        }
    }
    bytes
}
