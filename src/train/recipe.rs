//! A first manifest, made from what a user has: their dataset, their tokenizer, a wanted size.
//! Everything in it is a start, with its reason beside it.

use anyhow::Context;
use base::{Count, Problems};
use data::Tokenizer;
use data::indexed::Indexed;
use data::split::split;
use manifest::{DataRule, Family, Model, Sizes};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// What a manifest is made from.
#[derive(Clone, Debug, Default)]
pub struct Recipe {
    pub name: String,
    /// PREFIX of the dataset.
    pub data: Option<PathBuf>,
    /// Unless given, tokenizer.json beside the dataset, if there is one.
    pub tokenizer: Option<PathBuf>,
    /// Wanted parameters; unless given, a twentieth of the dataset's tokens.
    pub params: Option<u64>,
}

/// Sizes of a dense model between these are drawn up.
const SMALLEST: u64 = 1_000_000;
const LARGEST: u64 = 200_000_000_000;
/// Largest size that is chosen where none is wanted, and where nothing is known of the data.
const LARGEST_UNASKED: u64 = 124_000_000;
const UNKNOWN: u64 = 10_000_000;
/// GPT-2's vocabulary, where no tokenizer says another.
const GPT2_VOCAB: usize = 50_257;
/// Per cent of the documents for training, validation and test, where that leaves enough of them.
const SPLIT: &str = "95,5,0";
/// Shortest sequences that are drawn up.
const SHORTEST: usize = 16;
/// How often data may be repeated before it teaches much less (Muennighoff et al. 2023).
const EPOCHS: u64 = 4;
/// Tokens for each parameter (Hoffmann et al. 2022).
const TOKENS_PER_PARAMETER: u64 = 20;

/// What is known of the text.
struct Known {
    /// Tokens of the dataset, those of `SPLIT` for training and validation.
    tokens: Option<u64>,
    parts: Option<[u64; 2]>,
    vocab: usize,
    eod: Option<u32>,
    tokenizer: Option<PathBuf>,
}

impl Recipe {
    /// The manifest, in YAML with comments. It passes every check of a manifest.
    pub fn write(&self) -> anyhow::Result<String> {
        let known = self.known()?;
        let wanted = self.params.unwrap_or_else(|| match known.tokens {
            Some(tokens) => (tokens / TOKENS_PER_PARAMETER).clamp(SMALLEST, LARGEST_UNASKED),
            None => UNKNOWN,
        });
        if !(SMALLEST..=LARGEST).contains(&wanted) {
            let what = format!("{} parameters", Count(wanted));
            let remedy = "from 1M to 200B are drawn up";
            return Err(Problems::one("--params", what, remedy).into());
        }
        let model = shape(wanted, known.vocab, seq_len(wanted, known.smallest_part())?);
        let text = self.yaml(&known, &model);
        manifest::parse(&text, &self.name, Path::new("."), &[])?;
        Ok(text)
    }

    fn known(&self) -> anyhow::Result<Known> {
        let dataset = self.data.as_deref().map(Indexed::open).transpose()?;
        let beside = self.data.as_ref().map(|prefix| prefix.with_file_name("tokenizer.json"));
        let beside = beside.filter(|path| path.exists());
        let tokenizer = self.tokenizer.clone().or(beside);
        let read = tokenizer.as_deref().map(Tokenizer::load).transpose()?;
        let vocab = match (&read, &dataset) {
            (Some(read), _) => read.vocab(),
            (None, None) => GPT2_VOCAB,
            (None, Some(dataset)) => {
                let what = "lies beside no tokenizer.json, which says the size of the vocabulary";
                let place = dataset.prefix().display().to_string();
                return Err(
                    Problems::one(place, what, "name it: --tokenizer tokenizer.json").into()
                );
            }
        };
        let tokens = dataset.as_ref().map(Indexed::tokens);
        let parts = dataset.as_ref().map(parts).transpose()?;
        Ok(Known { tokens, parts, vocab, eod: read.and_then(|read| read.eod()), tokenizer })
    }

    fn yaml(&self, known: &Known, model: &Model) -> String {
        let params = model::parameters(model);
        let (seq_len, batch) = (model.seq_len as u64, batch(params, model.seq_len));
        let enough = TOKENS_PER_PARAMETER * params;
        let there = known.training().map(|tokens| EPOCHS * tokens);
        let tokens = there.map_or(enough, |there| there.min(enough)).max(batch * seq_len);
        let steps = (tokens / (batch * seq_len)).max(1);
        let why = match there {
            Some(there) if there < enough => format!("{EPOCHS} times the training data"),
            _ => format!("{TOKENS_PER_PARAMETER} a parameter (Hoffmann et al. 2022)"),
        };
        let peak = peak(params);
        let tenth = (steps / 10).clamp(1, 1000);
        let evaluation = match known.holds_out() {
            true => format!("  eval_interval: {tenth}\n  eval_samples: {}\n", batch.max(64)),
            false => String::new(),
        };
        format!(
            "\
# Made by `gptrain manifest new`: a start. `gptrain run` trains it, `gptrain manifest
# show` prints every setting, `gptrain estimate` says what it takes on which machine.
name: {name}

{model}
precision: f32 # on GPUs: bf16

{data}
batch: # samples of seq_len tokens
  micro: {micro} # at once on a device: lower it where memory is short
  global: {batch} # in a step: {step_tokens} tokens

lr:
  peak: {peak:.1e} # by size (Kaplan et al. 2020)
  min: {min:.1e}
  warmup_samples: {warmup}
  decay: cosine

checkpoint:
  interval: {tenth} # steps
  keep_last: 2

log:
  interval: 10

train:
  tokens: {tokens} # {why}: {steps} steps
{evaluation}",
            name = quoted(&self.name),
            model = model_section(known, model, params),
            data = self.data_section(known),
            micro = batch.min(8),
            step_tokens = Count(batch * seq_len),
            min = peak / 10.0,
            warmup = (steps / 50).max(1) * batch,
            steps = Count(steps),
        )
    }

    fn data_section(&self, known: &Known) -> String {
        let train = match &self.data {
            Some(prefix) => path(prefix),
            None => "mine # PREFIX of `gptrain data build … --output PREFIX`".into(),
        };
        let split = match known.holds_out() {
            true => format!("{SPLIT} # per cent of the documents: training, validation, test"),
            false => "100,0,0 # too few documents to hold some out for validation".into(),
        };
        let tokenizer = known.tokenizer.as_deref().map(|at| format!("  tokenizer: {}\n", path(at)));
        let eod = known.eod.map(|eod| {
            format!("  # eod: {{token: {eod}, reset_attention: true}} # documents do not see each other\n")
        });
        let optional = [tokenizer, eod].into_iter().flatten().collect::<String>();
        format!("data:\n  train: {train}\n  split: {split}\n{optional}")
    }
}

fn model_section(known: &Known, model: &Model, params: u64) -> String {
    let Model { layers, hidden, heads, vocab, seq_len, .. } = model;
    let whose = if known.tokenizer.is_some() { "the tokenizer's" } else { "GPT-2's: set yours" };
    format!(
        "\
model: # {} parameters
  layers: {layers}
  hidden: {hidden}
  heads: {heads}
  vocab: {vocab} # {whose}
  seq_len: {seq_len}
",
        Count(params)
    )
}

impl Known {
    /// Whether the documents of `SPLIT` for validation fill two samples of the shortest kind.
    fn holds_out(&self) -> bool {
        self.parts.is_none_or(|[_, valid]| valid >= 2 * (SHORTEST + 1) as u64)
    }

    /// Tokens that are trained on.
    fn training(&self) -> Option<u64> {
        if self.holds_out() { self.parts.map(|[train, _]| train) } else { self.tokens }
    }

    /// Tokens of the part that has least of those that are read.
    fn smallest_part(&self) -> Option<u64> {
        if self.holds_out() {
            self.parts.map(|[train, valid]| train.min(valid))
        } else {
            self.tokens
        }
    }
}

/// Tokens of the documents that `SPLIT` gives to training and to validation.
fn parts(dataset: &Indexed) -> anyhow::Result<[u64; 2]> {
    let [train, valid, _] = split(DataRule::MegatronCore, SPLIT, dataset.sequences())?;
    let tokens =
        |part: Range<usize>| dataset.lengths()[part].iter().map(|length| u64::from(*length)).sum();
    Ok([train, valid].map(tokens))
}

/// GPT-2's shape nearest to a number of parameters: heads of 64 columns (128 in wide models), and a
/// width of about 64 times the number of layers.
fn shape(params: u64, vocab: usize, seq_len: usize) -> Model {
    let model = |(layers, hidden): (usize, usize)| {
        let heads = hidden / if hidden < 2048 { 64 } else { 128 };
        Model::with_defaults(Family::Gpt2, Sizes { layers, hidden, heads, vocab, seq_len }, 1)
    };
    let wide = (1..=192).map(|k| 64 * k).filter(|hidden| *hidden < 2048 || hidden % 128 == 0);
    let all = wide.flat_map(|hidden| (2..=96).map(move |layers| (layers, hidden)));
    // How far it is from the wanted size and, a tenth of that, from the usual proportions.
    let far = |model: &Model| {
        let size = model::parameters(model) as f64 / params as f64;
        let proportions = model.hidden as f64 / model.layers as f64 / 64.0;
        size.ln().abs() + 0.1 * proportions.ln().abs()
    };
    let all = all.map(model).map(|model| (far(&model), model));
    all.min_by(|one, other| one.0.total_cmp(&other.0)).expect("there are some").1
}

/// As long as small and large models are usually trained; halved until the smallest part that is
/// read fills two samples.
fn seq_len(params: u64, tokens: Option<u64>) -> anyhow::Result<usize> {
    let usual = if params < 20_000_000 { 256 } else { 1024 };
    let fits = |seq_len: &usize| tokens.is_none_or(|tokens| 2 * (*seq_len as u64 + 1) <= tokens);
    let mut halves = std::iter::successors(Some(usual), |n| (*n > SHORTEST).then_some(n / 2));
    let least = 2 * (SHORTEST + 1);
    halves
        .find(fits)
        .with_context(|| format!("the dataset is too small: {least} tokens are the least"))
}

/// Samples of a step: about a thousandth of the parameters in tokens, as GPT-3's sizes have it, in
/// a multiple of 8.
fn batch(params: u64, seq_len: usize) -> u64 {
    let samples = (params / 1000).clamp(2048, 4_000_000) / seq_len as u64;
    (samples / 8).max(1) * 8
}

/// Kaplan et al. 2020, eq. D.1: the best learning rate of AdamW by parameters.
fn peak(params: u64) -> f64 {
    (0.003239 - 0.0001395 * (params as f64).ln()).max(1e-4)
}

fn path(path: &Path) -> String {
    quoted(&path.display().to_string())
}

/// Plain where YAML reads it as it stands.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let word = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/' || c == '.');
    match word && text.chars().all(plain) {
        true => text.to_string(),
        false => serde_json::Value::from(text).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_those_of_the_field() {
        let shape = |params| {
            let model = shape(params, GPT2_VOCAB, 1024);
            (model.layers, model.hidden, model.heads)
        };
        assert_eq!(shape(124_000_000), (12, 768, 12));
        for params in [1_000_000, 10_000_000, 350_000_000, 1_500_000_000, 13_000_000_000] {
            let (layers, hidden, heads) = shape(params);
            assert!(hidden % heads == 0 && layers >= 2);
            let model = super::shape(params, 1024, 1024);
            let off = model::parameters(&model) as f64 / params as f64;
            assert!((0.9..1.1).contains(&off), "{params}: {off}");
        }
    }

    #[test]
    fn a_manifest_without_anything_is_sound() {
        let text = Recipe { name: "first".into(), ..Recipe::default() }.write().unwrap();
        assert!(text.contains("vocab: 50257") && text.contains("seq_len: 256"), "{text}");
    }
}
