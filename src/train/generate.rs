//! Generates text from a checkpoint, and prints each token as it is sampled.

use super::launch::{Device, LocalRank};
use anyhow::Context;
use base::{Problems, rng};
use checkpoint::{self, Index};
use data::tokenizer::Tokenizer;
use engine::Sampler;
use manifest::{self, Manifest, Precision};
use std::io::Write;
use std::path::{Path, PathBuf};

pub struct Options {
    /// A run's folder or one checkpoint.
    pub checkpoint: PathBuf,
    pub prompt: String,
    pub tokens: usize,
    pub temperature: f64,
    pub top_k: usize,
    pub seed: u64,
    pub tokenizer: Option<PathBuf>,
}

/// Prints the prompt and the generated text.
pub fn generate(options: &Options) -> anyhow::Result<()> {
    let folder = checkpoint::find(&options.checkpoint)?;
    let index = Index::read(&folder)?;
    let loaded =
        manifest::parse(&index.manifest, "the checkpoint's manifest", Path::new("."), &[])?;
    let m = &loaded.manifest;
    let path = options.tokenizer.as_ref().or(m.data.tokenizer.as_ref()).ok_or_else(|| {
        let what = "the run's manifest names no tokenizer";
        Problems::one(folder.display().to_string(), what, "say --tokenizer tokenizer.json")
    })?;
    let tokenizer = Tokenizer::load(path)?;
    let start = m.data.eod.map(|eod| eod.token).or(tokenizer.eod()).unwrap_or(0);
    let mut tokens = tokenizer.encode(&options.prompt);
    if tokenizer.encode("").is_empty() {
        tokens.insert(0, start); // a document begins after the end of another
    } // else the tokenizer begins every text with a token of its own
    if let Some(token) = tokens.iter().find(|t| **t as usize >= m.model.vocab) {
        let what = format!("gives token {token}, the model's vocabulary is {}", m.model.vocab);
        return Err(Problems::one(path.display().to_string(), what, "use the run's own").into());
    }

    let context = (tokens.len() + options.tokens).next_multiple_of(16).min(m.model.seq_len);
    // Inference runs in f32, which every device supports.
    let m = &Manifest { precision: Precision::F32, ..m.clone() };
    let device = Device::open(m, LocalRank::ONLY, m.train.threads)?;
    let mut sampler = Sampler::new(device.backend(), m, context)?;
    checkpoint::load_weights(&folder, &sampler)?;
    let mut out = std::io::stdout().lock();
    let mut shown = Shown::default();
    shown.show(&tokenizer, &tokens[1..], &mut out)?;
    for i in 0..options.tokens {
        let logits = sampler.logits(&tokens);
        let token = draw(&logits, options, i as u64);
        if token == start {
            break;
        }
        tokens.push(token);
        shown.show(&tokenizer, &tokens[1..], &mut out)?;
    }
    writeln!(out)?;
    Ok(())
}

/// Bytes of the text that are printed; a character of several tokens is printed with the last one.
#[derive(Default)]
struct Shown {
    bytes: usize,
}

impl Shown {
    fn show(
        &mut self,
        tokenizer: &Tokenizer,
        tokens: &[u32],
        out: &mut impl Write,
    ) -> anyhow::Result<()> {
        let text = tokenizer.decode(tokens);
        let whole = text.trim_end_matches('\u{fffd}');
        if whole.len() > self.bytes {
            out.write_all(&whole.as_bytes()[self.bytes..]).context("cannot write the text")?;
            out.flush()?;
            self.bytes = whole.len();
        }
        Ok(())
    }
}

/// Samples a token by temperature and top-k; the `i`th random number of the seed.
fn draw(logits: &[f32], options: &Options, i: u64) -> u32 {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    if options.top_k > 0 {
        order.truncate(options.top_k);
    }
    if options.temperature <= 0.0 {
        return order[0] as u32;
    }
    let best = logits[order[0]] as f64;
    let odds = |t: usize| ((logits[t] as f64 - best) / options.temperature).exp();
    let total: f64 = order.iter().map(|t| odds(*t)).sum();
    let key = rng::key(options.seed, "sample");
    let mut left = rng::below(key, i, 1 << 53) as f64 / (1u64 << 53) as f64 * total;
    for token in &order {
        left -= odds(*token);
        if left < 0.0 {
            return *token as u32;
        }
    }
    order[0] as u32
}
