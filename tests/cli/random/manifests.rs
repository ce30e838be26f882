//! Manifests: sensible ones are checked, planned on the dry engine and run for two steps; hostile ones
//! are refused, or what they ask for is planned.

use super::{Attack, Dice, sane};
use crate::common::binary::{Done, Lab, within};

/// A settings of a section, with values that make sense.
type Row = (&'static str, &'static [&'static str]);

#[rustfmt::skip]
const SETTINGS: &[Row] = &[
    ("model.layers", &["1", "2", "4"]),
    ("model.heads", &["2", "4"]),
    ("model.seq_len", &["8", "16", "24"]),
    ("model.family", &["gpt2", "bloom", "llama", "qwen3"]),
    ("model.tied_head", &["true", "false"]),
    ("model.dropout", &["0.0", "0.1"]),
    ("precision", &["f32", "bf16"]),
    ("batch", &["{micro: 1, global: 4}", "{micro: 2, global: 8}", "{micro: 2, global: 16}"]),
    ("batch.ramp_up", &["4 4 16", "2 2 8"]),
    ("lr", &["{peak: 1e-3, decay: constant}", "{peak: 1e-3, min: 1e-4, decay: linear}"]),
    ("optimizer", &["adamw", "adam8bit", "adafactor", "muon"]),
    ("optimizer.adamw.weight_decay", &["0.1", "0.0"]),
    ("train.z_loss", &["1e-4"]),
    ("train.eval_interval", &["0", "1", "2"]),
    ("train.audit_interval", &["1"]),
    ("checkpoint.interval", &["1", "2"]),
    ("data.objective", &["causal", "prefix_lm"]),
    ("data.rule", &["mcore", "megatron-deepspeed"]),
    ("data.eod", &["{token: 3, mask_loss: true}", "{token: 3, reset_attention: true}"]),
    ("data.inter_document_masking", &["true"]),
    ("data.add_extra_token_to_sequence", &["false"]),
    ("data.drop_last_partial_validation_sequence", &["false"]),
    ("topology", &["{data: 4, shard: 2}", "{data: 4, shard: 2, zero: 2}", "{data: 4, shard: node, zero: 3}",
        "{data: 4, shard: 2, zero: 1, states: shard}", "{data: 4, shard: 2, zero: 3, states: shard}"]),
    ("topology.tensor", &["1", "2"]),
    ("topology.pipeline", &["1", "2"]),
    ("topology.data", &["1", "2"]),
    ("topology.zero", &["0", "1", "2", "3"]),
    ("topology.sequence_parallel", &["true", "false"]),
    ("topology.recompute", &["none", "full", "selective"]),
    ("topology.schedule", &["1f1b", "gpipe"]),
    ("topology.offload", &["none", "optimizer", "full"]),
];

/// Pipelines of several chunks, with as many layers as they need.
#[rustfmt::skip]
const CHUNKED: &[&[&str]] = &[
    &["model.layers=4", "topology={pipeline: 2, schedule: interleaved}"],
    &["model.layers=4", "topology={pipeline: 2, data: 2, zero: 2, schedule: interleaved, overlap_p2p: true}"],
    &["model.layers=4", "topology={pipeline: 2, schedule: breadth_first}"],
    &["model.layers=6", "topology={pipeline: 2, data: 2, zero: 2, zero_every: 2, schedule: breadth_first}"],
    &["model.layers=6", "topology={pipeline: 2, data: 2, zero: 3, schedule: breadth_first, chunks: 3}"],
    &["model.layers=7", "topology={pipeline: 2, data: 2, zero: 3, zero_every: 100, schedule: breadth_first, \
        chunks: 3, layer_split: balanced}"],
];

/// Some of the settings, each with one of its values.
fn settings(dice: &mut Dice) -> Vec<String> {
    let mut chosen = vec!["train.steps=2".to_string(), "topology.recompute=none".into()];
    if dice.one_in(4) {
        let chunked = CHUNKED[dice.below(CHUNKED.len() as u64) as usize];
        chosen.extend(chunked.iter().map(|set| set.to_string()));
    }
    for (key, values) in SETTINGS {
        if dice.one_in(4) {
            chosen.push(format!("{key}={}", dice.pick(values)));
        }
    }
    chosen
}

fn with<'a>(command: &[&'a str], sets: &'a [String]) -> Vec<&'a str> {
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    command.iter().copied().chain(sets).collect()
}

/// Random grids, models, optimizers and masks.
pub struct Sensible {
    accepted: u64,
    refused: u64,
}

impl Sensible {
    pub fn new() -> Sensible {
        Sensible { accepted: 0, refused: 0 }
    }
}

impl Attack for Sensible {
    /// Settings that the check refuses together are drawn again.
    fn case(&mut self, dice: &mut Dice) {
        let lab = Lab::new();
        loop {
            let sets = settings(dice);
            let checked = lab.gptrain(&with(&["manifest", "check", "run.yaml"], &sets));
            sane(&checked, &format!("check {sets:?}"), false);
            if checked.code == Some(0) {
                self.accepted += 1;
                return runs(&lab, &sets);
            }
            self.refused += 1;
            let told = format!("{} of {} are refused", self.refused, self.accepted + self.refused);
            assert!(self.refused < 20 + 10 * self.accepted, "{told}: {}", checked.err);
        }
    }
}

/// Planned on the dry engine, run, looked at, resumed.
fn runs(lab: &Lab, sets: &[String]) {
    let planned = lab.gptrain(&with(&["estimate", "run.yaml", "--json"], sets));
    sane(&planned, &format!("estimate {sets:?}"), false);
    assert!(matches!(planned.code, Some(0 | 4)), "{sets:?}: {}", planned.err);
    assert!(!planned.out.contains("NaN"), "{sets:?}: {}", planned.out);
    let ran = lab.gptrain(&with(&["run", "run.yaml"], sets));
    sane(&ran, &format!("run {sets:?}"), false);
    assert_eq!(ran.code, Some(0), "{sets:?}: {}", ran.err);
    let checked = lab.gptrain(&["inspect-ckpt", "runs/a", "--deep"]);
    assert_eq!(checked.code, Some(0), "{sets:?}: {}", checked.err);
    let more = [sets, &["train.steps=3".to_string()]].concat();
    let on = lab.gptrain(&with(&["run", "run.yaml"], &more));
    assert_eq!(on.code, Some(0), "{more:?}: {}", on.err);
}

/// Invalid and extreme values.
const VALUES: [&str; 26] = [
    "-1",
    "0",
    "1",
    "1e99",
    "-1e-300",
    "nan",
    ".inf",
    "''",
    "null",
    "[]",
    "{}",
    "true",
    "2147483648",
    "18446744073709551615",
    "1e18",
    "0.5",
    "'\\u0000'",
    "[1, 2, 3]",
    "{a: b}",
    "../../../etc",
    "~",
    "[[[[[[[[[[[[]]]]]]]]]]]]",
    "9999999999999999999999",
    "*x",
    "0x10",
    "\u{1b}[31m",
];

/// Valid manifests with invalid or extreme values, or with damaged text.
pub struct Hostile {
    lab: Lab,
}

impl Hostile {
    pub fn new() -> Hostile {
        Hostile { lab: Lab::new() }
    }

    /// A command in bounded memory.
    fn bounded(&self, args: &[&str]) -> Done {
        let limit = ["prlimit", "--as=4000000000"];
        Done::of(within(&limit, &self.lab.command(args)).output().unwrap())
    }
}

impl Attack for Hostile {
    fn case(&mut self, dice: &mut Dice) {
        let shown = self.lab.gptrain(&["manifest", "show", "run.yaml"]);
        shown.well();
        let text = match dice.below(3) {
            0 => with_values(&shown.out, dice),
            1 => torn(shown.out.into_bytes(), dice),
            _ => torn(with_values(&shown.out, dice), dice),
        };
        std::fs::write(self.lab.path("hostile.yaml"), &text).unwrap();
        let what = String::from_utf8_lossy(&text).into_owned();
        let checked = self.bounded(&["manifest", "check", "hostile.yaml"]);
        sane(&checked, &what, false);
        assert!(matches!(checked.code, Some(0..=2)), "{what}\n{}", checked.err);
        if checked.code == Some(0) {
            let planned = self.bounded(&["estimate", "hostile.yaml"]);
            sane(&planned, &what, false);
            assert!(!planned.out.contains("NaN"), "{what}\n{}", planned.out);
        }
    }
}

/// Up to three keys' values are others.
fn with_values(text: &str, dice: &mut Dice) -> Vec<u8> {
    let mut lines: Vec<String> = text.lines().map(String::from).collect();
    for _ in 0..1 + dice.below(3) {
        let at = dice.below(lines.len() as u64) as usize;
        if let Some((key, _)) = lines[at].split_once(':') {
            lines[at] = format!("{key}: {}", dice.pick(&VALUES));
        }
    }
    lines.join("\n").into_bytes()
}

/// Bytes flipped, lines doubled, moved and cut.
fn torn(mut text: Vec<u8>, dice: &mut Dice) -> Vec<u8> {
    for _ in 0..1 + dice.below(4) {
        let at = dice.below(text.len() as u64) as usize;
        let until = (at + dice.below(60) as usize).min(text.len());
        match dice.below(5) {
            0 if at < text.len() => text[at] ^= 1 << dice.below(8),
            1 => text.truncate(at),
            2 => drop(text.drain(at..until)),
            3 => {
                let some = text[at..until].to_vec();
                text.splice(at..at, some);
            }
            _ => {
                let words: [&[u8]; 5] = [b"\n- ", b": ", b"\n\t", b"&x ", b"\xff\xfe"];
                let word = words[dice.below(5) as usize].to_vec();
                text.splice(at..at, word);
            }
        }
    }
    text
}
