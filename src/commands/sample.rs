//! `gptrain sample`: generates text from a checkpoint, and prints each token as it is sampled.

use crate::model_place::{ModelPlace, Source};
use base::{Problems, escape_control, number, rng, say};
use clap::builder::NonEmptyStringValueParser;
use data::tokenizer::Tokenizer;
use engine::Sampler;
use exchange::{hf, tokenizer};
use launch::{Device, LocalRank};
use manifest::{Manifest, Precision};
use serde::Serialize;
use serde_json::json;
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Sample {
    /// Run folder (its newest checkpoint), checkpoint, Hugging Face folder, or s3://BUCKET/PREFIX
    checkpoint: PathBuf,
    /// Text to continue
    #[arg(long, default_value = "")]
    prompt: String,
    /// Tokens to generate
    #[arg(long, default_value_t = 120, value_parser = number::whole::<usize>)]
    tokens: usize,
    /// Texts to generate
    #[arg(long, default_value_t = 1, value_parser = number::whole::<usize>)]
    samples: usize,
    /// End a text before this string; may be given several times
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    stop: Vec<String>,
    #[command(flatten)]
    sampling: Sampling,
    #[arg(long, default_value_t = 1, value_parser = number::whole::<u64>)]
    seed: u64,
    /// Tokenizer to use instead of the manifest's: tokenizer.json, a folder with it, or `bytes`
    #[arg(long)]
    tokenizer: Option<PathBuf>,
    /// Print one JSON line for each text
    #[arg(long)]
    json: bool,
}

/// Token before the text, after which a model begins a document. Other programs do not add it.
#[derive(Serialize)]
struct FirstToken {
    token: u32,
    text: String,
}

impl FirstToken {
    fn new(tokenizer: &Tokenizer, token: u32) -> FirstToken {
        let specials = tokenizer.added_tokens().iter();
        let name = specials
            .filter(|(_, id)| *id == token)
            .map(|(name, _)| name.to_string())
            .next();
        FirstToken { token, text: name.unwrap_or_else(|| tokenizer.decode(&[token])) }
    }
}

impl fmt::Display for FirstToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FirstToken { token, text } = self;
        write!(
            f,
            "the text begins after {text} (token {token}), which `generate` of transformers does \
             not add"
        )
    }
}

/// Rule for choosing a token from its logits.
#[derive(clap::Args, Clone, Copy, Debug)]
struct Sampling {
    /// Temperature: 0 always takes the likeliest token; 1 samples from the model's distribution
    #[arg(long, default_value_t = 0.8, value_parser = number::real)]
    temperature: f64,
    /// Choose among this many likeliest tokens (top-k); 0 means all
    #[arg(long, default_value_t = 40, value_parser = number::whole::<usize>)]
    top_k: usize,
    /// Choose among the fewest likeliest tokens whose probabilities add up to this (top-p); 1 means all
    #[arg(long, default_value_t = 1.0, value_parser = number::real)]
    top_p: f64,
}

impl Sample {
    /// Prints the prompt and the generated continuation.
    pub fn run(self) -> anyhow::Result<()> {
        let Sampling { top_p, temperature, .. } = self.sampling;
        if temperature < 0.0 {
            return Err(Problems::one(
                "--temperature",
                format!("{temperature} is below 0"),
                "take 0 for the likeliest token",
            )
            .into());
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(Problems::one(
                "--top-p",
                format!("{top_p} is not above 0 and at most 1"),
                "take 1 for all tokens",
            )
            .into());
        }
        let ModelPlace { source, manifest: m } = &ModelPlace::open(&self.checkpoint)?;
        let tokenizer = self.load_tokenizer(m, source)?;
        for note in tokenizer.notes() {
            base::warn!("note: {}", escape_control(note));
        }
        let imported = source
            .hugging_face()
            .map(|folder| hf::end_tokens(&folder))
            .unwrap_or_default();
        let end = m
            .data
            .eod
            .map(|eod| eod.token)
            .or(tokenizer.eod())
            .unwrap_or(0);
        let ends: Vec<u32> = std::iter::once(end).chain(imported).collect();
        let mut prompt = tokenizer.encode_prompt(&self.prompt)?;
        // A tokenizer may begin every text with a token of its own.
        let first = tokenizer
            .head()
            .is_empty()
            .then(|| FirstToken::new(&tokenizer, end));
        if let Some(first) = &first {
            prompt.insert(0, end);
            if tracing::enabled!(tracing::Level::INFO) {
                base::warn!("{first}");
            }
        }
        let context = (prompt.len() + self.tokens)
            .next_multiple_of(16)
            .min(m.model.context());
        // Inference runs in f32, which every device supports.
        let m = &Manifest { precision: Precision::F32, ..m.clone() };
        let device = Device::open(m, LocalRank::ONLY, m.train.threads)?;
        let mut sampler = Sampler::new(device.backend(), m, context)?;
        source.load(&sampler.weights, false)?;
        for number in 0..self.samples {
            let text = GrowingText::new(&tokenizer, prompt.clone());
            if !self.generate_text(number, text, &ends, first.as_ref(), &mut sampler) {
                break;
            }
        }
        Ok(())
    }

    /// Tokenizer from the command line or else the run's own. It must be the model's.
    fn load_tokenizer(&self, m: &Manifest, source: &Source) -> anyhow::Result<Tokenizer> {
        let named = m.data.tokenizer.as_deref();
        let own = source
            .checkpoint()
            .and_then(|folder| tokenizer::own(folder, named));
        let path = tokenizer::choose(self.tokenizer.as_deref(), own, m.model.vocab)?;
        if let Some(path) = path.or(named.map(Path::to_path_buf)) {
            return Tokenizer::load(&path);
        }
        // A folder without a tokenizer that can be read says why.
        if let Some(folder) = source.hugging_face() {
            return Tokenizer::load(&folder);
        }
        Err(Problems::one(
            self.checkpoint.display().to_string(),
            "the run's manifest names no tokenizer",
            "give --tokenizer tokenizer.json, or --tokenizer bytes",
        )
        .into())
    }

    /// Generates one text. Returns false when standard output is closed.
    fn generate_text(
        &self,
        number: usize,
        mut text: GrowingText,
        ends: &[u32],
        first: Option<&FirstToken>,
        sampler: &mut Sampler,
    ) -> bool {
        let several = self.samples > 1 && !self.json;
        let heading = format!("=== {} of {} ===\n", number + 1, self.samples);
        let show = |text: &mut GrowingText, whole: bool| {
            let new = if self.json { "" } else { text.next(&self.stop, whole) };
            print_now(new)
        };
        if several && !print_now(&heading) || !show(&mut text, false) {
            return false;
        }
        // The first text uses the original stream, so that a seed keeps giving the same text.
        let stream = if number == 0 { "sample".to_string() } else { format!("sample.{number}") };
        let key = rng::key(self.seed, &stream);
        let mut finish = "tokens";
        for i in 0..self.tokens {
            let known = sampler.weights.model().vocab.min(text.tokenizer.vocab());
            let quantile = rng::below(key, i as u64, 1 << 53) as f64 / (1u64 << 53) as f64;
            let token = self
                .sampling
                .pick(&sampler.logits(&text.tokens)[..known], quantile);
            if ends.contains(&token) {
                finish = "end of document";
                break;
            }
            text.push(token);
            if text.cut_before(&self.stop) {
                finish = "stop";
                break;
            }
            if !show(&mut text, false) {
                return false;
            }
        }
        if !self.json {
            return show(&mut text, true) && print_now("\n");
        }
        let (prompt, more) = text.whole.split_at(text.prompt);
        let line = json!({
            "sample": number, "prompt": prompt, "text": more, "tokens": text.generated(),
            "finish": finish, "begins_after": first,
        });
        print_now(&format!("{line}\n"))
    }
}

/// Prints at once. Returns false when standard output is closed.
fn print_now(text: &str) -> bool {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    let reads = written.is_ok();
    say::record_failed_write(written);
    reads
}

/// Text that grows token by token.
struct GrowingText<'a> {
    tokenizer: &'a Tokenizer,
    /// Tokens; the first precedes the text.
    tokens: Vec<u32>,
    /// Number of tokens of the prompt.
    given: usize,
    /// Decoded text, without a trailing incomplete character.
    whole: String,
    /// Bytes of the prompt, and bytes printed so far.
    prompt: usize,
    shown: usize,
}

impl<'a> GrowingText<'a> {
    fn new(tokenizer: &'a Tokenizer, tokens: Vec<u32>) -> GrowingText<'a> {
        let given = tokens.len();
        let mut text =
            GrowingText { tokenizer, tokens, given, whole: String::new(), prompt: 0, shown: 0 };
        text.decode();
        text.prompt = text.whole.len();
        text
    }

    fn push(&mut self, token: u32) {
        self.tokens.push(token);
        self.decode();
    }

    fn decode(&mut self) {
        let text = self.tokenizer.decode(&self.tokens[1..]);
        let whole = text.trim_end_matches('\u{fffd}');
        // Keeps the printed text if a later decoding would shorten it.
        if whole.len() >= self.whole.len() {
            self.whole = whole.to_string();
        }
    }

    fn generated(&self) -> usize {
        self.tokens.len() - self.given
    }

    /// Truncates the generated text before the first stop string. Returns whether there was one.
    fn cut_before(&mut self, stop: &[String]) -> bool {
        let generated = self.whole.get(self.prompt..).unwrap_or_default();
        let found = stop
            .iter()
            .filter_map(|stop| generated.find(stop.as_str()))
            .min();
        if let Some(place) = found {
            self.whole.truncate(self.prompt + place);
        }
        found.is_some()
    }

    /// Text to print now. An incomplete text omits an end that may begin a stop string.
    fn next(&mut self, stop: &[String], whole: bool) -> &str {
        let end = if whole { self.whole.len() } else { self.whole.len() - self.held_back(stop) };
        let from = self.shown;
        self.shown = from.max(end);
        self.whole.get(from..self.shown).unwrap_or_default()
    }

    /// Bytes at the end that may begin a stop string.
    fn held_back(&self, stop: &[String]) -> usize {
        let generated = self.whole.get(self.prompt..).unwrap_or_default();
        (0..generated.len())
            .find(|from| {
                let tail = generated.get(*from..);
                tail.is_some_and(|tail| stop.iter().any(|stop| stop.starts_with(tail)))
            })
            .map_or(0, |from| generated.len() - from)
    }
}

impl Sampling {
    /// Token at a quantile (0 to 1) of the distribution, with the most likely token first.
    fn pick(&self, logits: &[f32], quantile: f64) -> u32 {
        let likelier =
            |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]).then_with(|| a.cmp(b));
        let mut order: Vec<usize> = (0..logits.len()).collect();
        let most = if self.temperature <= 0.0 { 1 } else { self.top_k };
        if (1..order.len()).contains(&most) {
            order.select_nth_unstable_by(most - 1, likelier);
            order.truncate(most);
        }
        order.sort_unstable_by(likelier);
        if self.temperature <= 0.0 {
            return order[0] as u32;
        }
        let best = f64::from(logits[order[0]]);
        let odds = |token: usize| ((f64::from(logits[token]) - best) / self.temperature).exp();
        let total: f64 = order.iter().map(|token| odds(*token)).sum();
        let mut kept = 0.0;
        let enough = order.iter().position(|token| {
            kept += odds(*token);
            kept >= self.top_p * total
        });
        order.truncate(enough.map_or(order.len(), |last| last + 1));
        let mut left = quantile * kept;
        let found = order.iter().find(|token| {
            left -= odds(**token);
            left < 0.0
        });
        *found.unwrap_or(&order[0]) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_chosen_among_the_likeliest() {
        let logits = [0.0, 3f32.ln(), 2f32.ln(), f32::NEG_INFINITY, 2f32.ln()];
        let pick = |top_k, top_p, temperature| {
            let sampling = Sampling { temperature, top_k, top_p };
            let mut counts = [0; 5];
            (0..800).for_each(|i| {
                counts[sampling.pick(&logits, (f64::from(i) + 0.5) / 800.0) as usize] += 1
            });
            counts
        };
        assert_eq!(pick(0, 1.0, 1.0), [100, 300, 200, 0, 200]);
        assert_eq!(pick(2, 1.0, 1.0), [0, 480, 320, 0, 0], "of two alike the first");
        assert_eq!(pick(0, 0.6, 1.0), [0, 480, 320, 0, 0]);
        assert_eq!(pick(0, 0.3, 1.0), [0, 800, 0, 0, 0]);
        assert_eq!(pick(3, 1.0, 0.0), [0, 800, 0, 0, 0]);
    }

    #[test]
    fn a_text_ends_before_a_stop_string_and_shows_nothing_of_it() {
        let tokenizer = Tokenizer::byte_level();
        let mut text = GrowingText::new(&tokenizer, vec![256, u32::from(b'a'), u32::from(b'.')]);
        let stop = ["..b".to_string()];
        assert_eq!(text.next(&stop, false), "a.");
        let mut shown = String::new();
        for byte in *b"c...b" {
            text.push(byte.into());
            if text.cut_before(&stop) {
                break;
            }
            shown += text.next(&stop, false);
        }
        assert_eq!(shown, "c.");
        assert_eq!(text.next(&stop, true), "");
        assert_eq!(text.whole, "a.c.");
    }
}
