//! `gptrain manifest new`: a first manifest for a user's dataset, tokenizer and model size. Every setting is a starting point,
//! with its reason beside it.

use crate::data::dataset::prefix;
use crate::options::Overwrite;
use anyhow::Context;
use base::{Count, Problems, output};
use data::indexed::Indexed;
use data::record::DatasetTokenizer;
use data::split::split;
use data::tokenizer::{BYTES, Tokenizer};
use estimate::shapes::published;
use estimate::words;
use manifest::{DataRule, Family, Model, Sizes};
use std::path::{Path, PathBuf};

/// Options of a new manifest.
#[derive(clap::Args, Debug, Default)]
pub struct New {
    /// PREFIX of the dataset (`gptrain data build`).
    #[arg(long, value_name = "PREFIX")]
    pub data: Option<PathBuf>,
    /// Tokenizer of the dataset [default: the recorded one, else tokenizer.json beside the dataset].
    #[arg(long)]
    pub tokenizer: Option<PathBuf>,
    /// Approximate number of parameters, as in 124M or 7B [default: a twentieth of the dataset's
    /// tokens].
    #[arg(long, value_parser = parse_size)]
    pub params: Option<u64>,
    /// Family of the model: gpt2 or llama [default: that of the published model of this size].
    #[arg(long, value_parser = parse_family)]
    pub family: Option<Family>,
    /// Write the manifest to this file instead of printing it.
    #[arg(short, long)]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub overwrite: Overwrite,
}

fn parse_size(text: &str) -> Result<u64, String> {
    words::tokens(text).map(|params| params as u64)
}

/// Parses a family for which there are recipes.
pub fn parse_family(text: &str) -> Result<Family, String> {
    let all = [Family::Gpt2, Family::Llama];
    let found = all.into_iter().find(|family| family.name() == text);
    found.ok_or_else(|| "take gpt2 or llama; other families need a manifest".into())
}

/// Smallest and largest supported size of a dense model.
const SMALLEST: u64 = 1_000_000;
const LARGEST: u64 = 500_000_000_000;
/// Largest default size, and the default size without a dataset.
const LARGEST_UNASKED: u64 = 124_000_000;
const UNKNOWN: u64 = 10_000_000;
/// Default vocabulary: GPT-2's.
const GPT2_VOCAB: usize = 50_257;
/// Per cent of the documents for training, validation and test, if there are enough documents.
const SPLIT: &str = "95,5,0";
/// Minimum seq_len.
const SHORTEST: usize = 16;
/// Size below which sequences are short.
const SMALL: u64 = 20_000_000;
/// Size from which a checkpoint has a gigabyte.
const GIGABYTE: u64 = 80_000_000;
/// Minimum number of steps between two checkpoints of a gigabyte or more.
const FEWEST_STEPS: u64 = 25;
/// Size from which a model is planned for GPUs.
const LARGE: u64 = 1_000_000_000;
const LARGE_PLAN: &str = "\nplan: # for `gptrain estimate`\n  hardware: h100-80g\n";
/// Share of the embedding in the parameters above which the vocabulary is too large.
const MOST_EMBEDDING: f64 = 0.5;
/// Tokens of the data per id of a suitable vocabulary.
const TOKENS_PER_ID: u64 = 400;
/// Epochs after which repeated data is worth much less (Muennighoff et al. 2023).
const EPOCHS: u64 = 4;
/// Tokens for each parameter (Hoffmann et al. 2022).
const TOKENS_PER_PARAMETER: u64 = 20;

/// Properties of the dataset and its tokenizer, as far as they are facts.
struct DataFacts {
    /// Tokens of the dataset, those of `SPLIT` for training and validation.
    tokens: Option<u64>,
    parts: Option<[u64; 2]>,
    /// Number of sequences, if documents are cut into several.
    cut_into: Option<usize>,
    /// End-of-document token of the tokenizer.
    vocab: Option<usize>,
    eod: Option<u32>,
    tokenizer: Option<PathBuf>,
    /// Note on the tokenizer for the user.
    note: Option<String>,
}

impl New {
    pub fn run(mut self) -> anyhow::Result<()> {
        let output = self.output.take();
        let stem = output.as_ref().and_then(|path| path.file_stem()?.to_str());
        let name = stem.unwrap_or("mine").to_string();
        self.data = self.data.map(|path| prefix(&path));
        // Paths in a manifest start at its folder; in another folder they are written as absolute paths.
        let folder = output
            .as_deref()
            .and_then(Path::parent)
            .unwrap_or(Path::new(""));
        if folder != Path::new("") {
            self.data = self.data.map(std::path::absolute).transpose()?;
            self.tokenizer = self.tokenizer.map(std::path::absolute).transpose()?;
        }
        let text = self.text(&name)?;
        match output {
            Some(path) => {
                output::write(&path, self.overwrite.existing(), text.as_bytes())?;
                base::say!("{}: gptrain run {}", path.display(), path.display());
            }
            None => base::say!("{}", text.trim_end()),
        }
        Ok(())
    }

    /// Manifest with this name, in YAML with comments. It passes every check of a manifest.
    pub fn text(&self, name: &str) -> anyhow::Result<String> {
        let facts = self.data_facts()?;
        if let Some(note) = &facts.note {
            base::warn!("note: {note}");
        }
        let wanted = self.params.unwrap_or_else(|| match facts.tokens {
            Some(tokens) => (tokens / TOKENS_PER_PARAMETER).clamp(SMALLEST, LARGEST_UNASKED),
            None => UNKNOWN,
        });
        if !(SMALLEST..=LARGEST).contains(&wanted) {
            return Err(Problems::one(
                "--params",
                format!("{} parameters", Count(wanted)),
                "from 1M to 500B are drawn up",
            )
            .into());
        }
        let model = self.model(&facts, wanted)?;
        let text = self.yaml(name, &facts, &model);
        manifest::parse(&text, name, Path::new("."), &[])?;
        Ok(text)
    }

    fn data_facts(&self) -> anyhow::Result<DataFacts> {
        let dataset = self.data.as_deref().map(Indexed::open).transpose()?;
        let named = self.tokenizer.as_deref();
        let found = dataset
            .as_ref()
            .map(|dataset| DatasetTokenizer::find(dataset, named))
            .transpose()?;
        let record = found.as_ref().and_then(|found| found.record.as_ref());
        let place = found
            .as_ref()
            .map_or(self.tokenizer.clone(), |found| found.path.clone());
        let read = place.as_deref().map(Tokenizer::load).transpose()?;
        let vocab = match (record, &read, &dataset) {
            (Some(record), ..) => Some(record.vocab),
            (None, Some(read), _) => Some(read.vocab()),
            (None, None, None) => None,
            (None, None, Some(dataset)) => {
                let place = dataset.prefix().display().to_string();
                return Err(Problems::one(
                    place,
                    "has no tokenizer.json beside it, which defines the vocabulary's size",
                    "name it: --tokenizer tokenizer.json",
                )
                .into());
            }
        };
        let tokens = dataset.as_ref().map(Indexed::tokens);
        let parts = dataset.as_ref().map(count_part_tokens).transpose()?;
        let cut_into = dataset
            .as_ref()
            .filter(|dataset| dataset.sequences() > dataset.documents())
            .map(Indexed::sequences);
        let eod = match record {
            Some(record) => record.append_eod,
            None => read.and_then(|read| read.eod()),
        };
        let tokenizer = place.filter(|path| path != Path::new(BYTES)); // `bytes` has no file
        let note = found.as_ref().and_then(|found| found.note.clone());
        Ok(DataFacts { tokens, parts, cut_into, vocab, eod, tokenizer, note })
    }

    /// Shape of the published model of that size, else one with the usual proportions.
    fn model(&self, facts: &DataFacts, wanted: u64) -> anyhow::Result<Model> {
        let smallest = facts.smallest_part();
        let asked = self.params.is_some();
        let shape = published(wanted as f64, self.family).filter(|_| asked);
        let Some(shape) = shape else {
            let seq_len = choose_seq_len(if wanted < SMALL { 256 } else { 1024 }, smallest)?;
            let family = self.family.unwrap_or(Family::Gpt2);
            let vocab = facts.vocab.unwrap_or(GPT2_VOCAB);
            let model = nearest_shape(wanted, family, vocab, seq_len, Counted::All);
            // Ignores a vocabulary that would take all parameters.
            if asked || embedding_share(&model) <= MOST_EMBEDDING {
                return Ok(model);
            }
            return Ok(nearest_shape(wanted, family, vocab, seq_len, Counted::Layers));
        };
        let sizes = Sizes {
            layers: shape.layers,
            hidden: shape.hidden,
            heads: shape.heads,
            vocab: facts.vocab.unwrap_or(shape.vocab),
            seq_len: choose_seq_len(shape.seq_len, smallest)?,
        };
        Ok(shape.model(&Model::with_defaults(shape.family, sizes, 1)))
    }

    fn yaml(&self, name: &str, facts: &DataFacts, model: &Model) -> String {
        let params = model::parameters(model);
        let large = params >= LARGE;
        let (seq_len, batch) = (model.seq_len as u64, choose_batch(params, model.seq_len));
        let enough = TOKENS_PER_PARAMETER * params;
        let available = facts.training().map(|tokens| EPOCHS * tokens);
        let tokens = available
            .map_or(enough, |most| most.min(enough))
            .max(batch * seq_len);
        let steps = (tokens.div_ceil(seq_len) / batch).max(1); // as the manifest counts them
        let why = match available {
            Some(most) if most < enough => format!("{EPOCHS} times the training data"),
            _ => format!("{TOKENS_PER_PARAMETER} a parameter (Hoffmann et al. 2022)"),
        };
        let peak = choose_peak(params);
        let tenth = (steps / 10).clamp(1, 1000);
        let save_interval = if params < GIGABYTE { tenth } else { tenth.max(FEWEST_STEPS) };
        let evaluation = if facts.holds_out() {
            format!("  eval_interval: {tenth}\n  eval_samples: {}\n", batch.max(64))
        } else {
            String::new()
        };
        format!(
            "\
# Made by `gptrain manifest new`: a start. `gptrain run` trains it, `gptrain manifest
# show` prints every setting, `gptrain estimate` says what it takes on which machine.
name: {name}

{model}
precision: {precision}

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
  interval: {save_interval} # steps; the end of a run is saved, too
  keep_last: 2

log:
  interval: 10

train:
  tokens: {tokens} # {why}: {steps} steps
{evaluation}{plan}",
            name = quoted(name),
            model = self.model_section(facts, model, params),
            data = self.data_section(facts),
            precision = if large { "bf16" } else { "f32 # on GPUs: bf16" },
            micro = batch.min(if large { 1 } else { 8 }),
            plan = if large { LARGE_PLAN } else { "" },
            step_tokens = Count(batch * seq_len),
            min = peak / 10.0,
            warmup = (steps / 50).max(1) * batch,
            steps = Count(steps),
        )
    }

    fn model_section(&self, facts: &DataFacts, model: &Model, params: u64) -> String {
        let Model { family, layers, hidden, heads, vocab, seq_len, .. } = model;
        let shape = published(self.params.unwrap_or(0) as f64, self.family);
        let like =
            shape.map_or(String::new(), |shape| format!(", {} {}", shape.series, shape.name));
        let mut whose = match (facts.tokenizer.is_some(), shape) {
            (true, _) => "the tokenizer's".to_string(),
            (false, Some(shape)) => format!("{}'s: set yours", shape.series),
            (false, None) => "GPT-2's: set yours".to_string(),
        };
        let share = embedding_share(model);
        if let Some(tokens) = facts.tokens.filter(|_| share > MOST_EMBEDDING) {
            let fitting = (tokens / TOKENS_PER_ID).clamp(512, 32_768);
            whose += &format!(
                "; for {} tokens {} ids would do: the embedding is {:.0} % of the model",
                Count(tokens),
                Count(1 << fitting.ilog2()),
                100.0 * share
            );
        }
        let kv = shape.and_then(|shape| shape.kv_heads);
        let ffn = shape.and_then(|shape| shape.ffn_hidden);
        let theta = shape.and_then(|shape| shape.theta);
        let mut more = String::new();
        more.extend(kv.map(|kv| format!("  kv_heads: {kv}\n")));
        more.extend(ffn.map(|ffn| format!("  ffn_hidden: {ffn}\n")));
        more.extend(theta.map(|theta| format!("  position: {{rope: {{theta: {theta}}}}}\n")));
        let family = match family {
            Family::Gpt2 => String::new(),
            family => format!("  family: {}\n", family.name()),
        };
        format!(
            "\
model: # {} parameters{like}
{family}  layers: {layers}
  hidden: {hidden}
  heads: {heads}
{more}  vocab: {vocab} # {whose}
  seq_len: {seq_len}
",
            Count(params)
        )
    }

    fn data_section(&self, facts: &DataFacts) -> String {
        let train = match &self.data {
            Some(prefix) => quote_path(prefix),
            None => "mine # PREFIX of `gptrain data build … --output PREFIX`".into(),
        };
        let split = match facts.cut_into {
            _ if !facts.holds_out() => {
                "100,0,0 # too few documents for validation: data build --min-sequences 20 cuts them"
                    .into()
            }
            Some(sequences) => format!(
                "{SPLIT} # per cent of the {sequences} sequences into which the text is cut: \
                 training, validation, test"
            ),
            None => format!("{SPLIT} # per cent of the documents: training, validation, test"),
        };
        let guess = facts
            .note
            .as_ref()
            .map_or("", |_| " # a guess: the dataset does not say");
        let tokenizer = facts
            .tokenizer
            .as_deref()
            .map(|file| format!("  tokenizer: {}{guess}\n", quote_path(file)));
        let eod = facts.eod.map(|eod| {
            format!("  # eod: {{token: {eod}, reset_attention: true}} # documents do not see each other\n")
        });
        let optional = [tokenizer, eod].into_iter().flatten().collect::<String>();
        format!("data:\n  train: {train}\n  split: {split}\n{optional}")
    }
}

impl DataFacts {
    /// Whether the validation documents of `SPLIT` fill two samples of the minimum length.
    fn holds_out(&self) -> bool {
        self.parts
            .is_none_or(|[_, valid]| valid >= 2 * (SHORTEST + 1) as u64)
    }

    /// Tokens that are trained on.
    fn training(&self) -> Option<u64> {
        if self.holds_out() { self.parts.map(|[train, _]| train) } else { self.tokens }
    }

    /// Tokens of the smallest part that is read.
    fn smallest_part(&self) -> Option<u64> {
        if self.holds_out() {
            self.parts.map(|[train, valid]| train.min(valid))
        } else {
            self.tokens
        }
    }
}

/// Tokens of the documents that `SPLIT` gives to training and to validation.
fn count_part_tokens(dataset: &Indexed) -> anyhow::Result<[u64; 2]> {
    let [train, valid, _] = split(DataRule::MegatronCore, SPLIT, dataset.sequences())?;
    Ok([train, valid].map(|part| {
        dataset.lengths()[part]
            .iter()
            .map(|length| u64::from(*length))
            .sum()
    }))
}

/// Parameters that a wanted number counts.
#[derive(Clone, Copy, PartialEq)]
enum Counted {
    All,
    /// Parameters without the embedding.
    Layers,
}

/// Shape nearest to a number of parameters: heads of 64 columns (32 in narrow models, 128 in wide
/// ones), and a width of about 64 times the number of layers.
fn nearest_shape(
    params: u64,
    family: Family,
    vocab: usize,
    seq_len: usize,
    counted: Counted,
) -> Model {
    let mut nearest: Option<(f64, Model)> = None;
    for hidden in (64usize..=192 * 64).step_by(64) {
        let head = match hidden {
            ..=256 => 32,
            257..2048 => 64,
            _ => 128,
        };
        // Eight ranks divide the heads of a model that may need them.
        if hidden >= 1024 && !hidden.is_multiple_of(8 * head) {
            continue;
        }
        for layers in 2..=96 {
            let sizes = Sizes { layers, hidden, heads: hidden / head, vocab, seq_len };
            let model = Model::with_defaults(family, sizes, 1);
            let embedding = if counted == Counted::Layers { count_embedding(&model) } else { 0.0 };
            let size = (model::parameters(&model) as f64 - embedding) / params as f64;
            let proportions = hidden as f64 / layers as f64 / 64.0;
            // From the wanted size and, a tenth of that, from the usual proportions.
            let distance = size.ln().abs() + 0.1 * proportions.ln().abs();
            if nearest.as_ref().is_none_or(|(least, _)| distance < *least) {
                nearest = Some((distance, model));
            }
        }
    }
    nearest.expect("there are some").1
}

/// Parameters of the embedding, and of an untied output head.
fn count_embedding(model: &Model) -> f64 {
    let tables = if model.tied_head { 1 } else { 2 };
    (tables * model.vocab * model.hidden) as f64
}

fn embedding_share(model: &Model) -> f64 {
    count_embedding(model) / model::parameters(model) as f64
}

/// Usual seq_len, halved until the smallest part that is read fills two samples.
fn choose_seq_len(usual: usize, tokens: Option<u64>) -> anyhow::Result<usize> {
    let mut halves = std::iter::successors(Some(usual), |n| (*n > SHORTEST).then_some(n / 2));
    let least = 2 * (SHORTEST + 1);
    halves
        .find(|seq_len| tokens.is_none_or(|tokens| 2 * (*seq_len as u64 + 1) <= tokens))
        .with_context(|| format!("the dataset is too small: {least} tokens are the least"))
}

/// Samples per step: about a thousandth of the parameters in tokens, as for GPT-3's sizes. A multiple
/// of 8; from 64 a power of two, which is divisible by many numbers of devices.
fn choose_batch(params: u64, seq_len: usize) -> u64 {
    let samples = (params / 1000).clamp(2048, 4_000_000) / seq_len as u64;
    match samples {
        64.. => 1 << (samples as f64).log2().round() as u32,
        _ => (samples / 8).max(1) * 8,
    }
}

/// Best learning rate of AdamW for a number of parameters (Kaplan et al. 2020, eq. D.1).
fn choose_peak(params: u64) -> f64 {
    (0.003239 - 0.0001395 * (params as f64).ln()).max(1e-4)
}

fn quote_path(path: &Path) -> String {
    quoted(&path.display().to_string())
}

/// Text as a YAML scalar, quoted if necessary.
fn quoted(text: &str) -> String {
    let word = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/' || c == '.');
    if word
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c))
    {
        text.to_string()
    } else {
        serde_json::Value::from(text).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_those_of_the_field() {
        let shape = |params| {
            let model = nearest_shape(params, Family::Gpt2, GPT2_VOCAB, 1024, Counted::All);
            (model.layers, model.hidden, model.heads)
        };
        assert_eq!(shape(124_000_000), (12, 768, 12));
        for params in [1_000_000, 10_000_000, 350_000_000, 1_500_000_000, 13_000_000_000] {
            let (layers, hidden, heads) = shape(params);
            assert!(hidden % heads == 0 && layers >= 2);
            let model = nearest_shape(params, Family::Gpt2, 1024, 1024, Counted::All);
            let off = model::parameters(&model) as f64 / params as f64;
            assert!((0.9..1.1).contains(&off), "{params}: {off}");
        }
    }

    /// A vocabulary made for gigabytes takes all parameters of a small model.
    #[test]
    fn a_small_corpus_has_layers_beside_its_embedding() {
        let new = New::default();
        let facts = DataFacts {
            tokens: Some(1_800_000),
            parts: Some([1_700_000, 100_000]),
            cut_into: None,
            vocab: Some(32_000),
            eod: None,
            tokenizer: Some("tokenizer.json".into()),
            note: None,
        };
        let model = new.model(&facts, 1_000_000).unwrap();
        assert!(model.heads >= 4 && model.hidden >= 128, "{model:?}");
        let text = new.yaml("first", &facts, &model);
        let why = "for 1,800,000 tokens 4,096 ids would do: the embedding is";
        assert!(text.contains(why), "{text}");
        let fitting = DataFacts { vocab: Some(4096), ..facts };
        let model = new.model(&fitting, 1_000_000).unwrap();
        assert!(!new.yaml("first", &fitting, &model).contains("would do"));
    }

    #[test]
    fn a_size_with_a_published_model_has_its_shape() {
        let text = |params, family| {
            let params = Some(params);
            New { params, family, ..New::default() }.text("x").unwrap()
        };
        let seven = text(7_000_000_000, None);
        let lines = [
            "family: llama",
            "layers: 32",
            "hidden: 4096",
            "heads: 32",
            "ffn_hidden: 11008",
            "seq_len: 4096",
            "precision: bf16",
            "hardware: h100-80g",
            "Llama 2 7B",
        ];
        for line in lines {
            assert!(seven.contains(line), "{line}: {seven}");
        }
        let gpt = text(13_000_000_000, Some(Family::Gpt2));
        assert!(gpt.contains("seq_len: 2048") && !gpt.contains("family"), "{gpt}");
        let small = text(124_000_000, None);
        assert!(small.contains("hidden: 768") && small.contains("precision: f32"), "{small}");
    }

    #[test]
    fn a_manifest_without_anything_is_sound() {
        let text = New::default().text("first").unwrap();
        assert!(text.contains("vocab: 50257") && text.contains("seq_len: 256"), "{text}");
    }
}
