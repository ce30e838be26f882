//! Manifests as a user writes them.
//!
//! | module | tests |
//! |---|---|
//! | `accepted` | accepted manifests, and that the effective manifest means the same |
//! | `reference` | docs/manifest.md, made from the schema |
//! | `coming_from` | docs/coming-from.md, made from the table of other trainers' names; suggestions |
//! | `data_files` | datasets named by files of weights and patterns, and weighed by their size |
//! | `refused` | refused manifests, with the text of every message |
//! | `adafactor`, `muon` | the settings of Adafactor and of Muon |
//! | `editors` | the schema for editors, with numbers as people write them |
//! | `layers` | the settings of kinds of layers |
//! | `hostile` | damaged and malicious files |
//! | `shipped` | every manifest in `manifests/` |

mod accepted;
mod adafactor;
mod coming_from;
mod data_files;
mod editors;
mod hostile;
mod layers;
mod muon;
mod mup;
mod reference;
mod refused;
mod shipped;

use gptrain::manifest::{Loaded, parse};
use std::path::Path;

pub const GOOD: &str = "\
name: trial
model:
  layers: 6
  hidden: 256
  heads: 8
  vocab: 4096
  seq_len: 128
data:
  train: corpus/a
batch:
  micro: 8
  global: 16
lr:
  peak: 1e-3
train:
  samples: 6400
";

pub fn read(text: &str, sets: &[&str]) -> Loaded {
    let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
    match parse(text, "m.yaml", Path::new("/home/me"), &sets) {
        Ok(loaded) => loaded,
        Err(problems) => panic!("{problems}"),
    }
}

pub fn with(sets: &[&str]) -> Loaded {
    read(GOOD, sets)
}

/// Every complaint about `text`, one a line: `place: what → remedy`.
pub fn complaints(text: &str, sets: &[&str]) -> String {
    let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
    match parse(text, "m.yaml", Path::new("/home/me"), &sets) {
        Ok(_) => "accepted".to_string(),
        Err(problems) => {
            let line =
                |p: &gptrain::base::Problem| format!("{}: {} → {}", p.place, p.what, p.remedy);
            problems
                .list
                .iter()
                .map(line)
                .collect::<Vec<_>>()
                .join("\n")
        }
    }
}

/// The one complaint when GOOD has `line` instead of the line with the same key.
#[track_caller]
pub fn check(line: &str, complaint: &str) {
    let key = line.split(':').next().expect("a key");
    let old = GOOD
        .lines()
        .find(|l| l.starts_with(&format!("{key}:")))
        .expect("a line to replace");
    assert_eq!(complaints(&GOOD.replace(old, line), &[]), complaint);
}

/// The complaints when GOOD is followed by `text`, which begins on line 17.
#[track_caller]
pub fn check_added(text: &str, complaint: &str) {
    assert_eq!(complaints(&format!("{GOOD}{text}\n"), &[]), complaint);
}

#[track_caller]
pub fn check_set(set: &str, complaint: &str) {
    assert_eq!(complaints(GOOD, &[set]), complaint);
}

#[track_caller]
pub fn check_whole(text: &str, complaint: &str) {
    assert_eq!(complaints(text, &[]), complaint);
}
