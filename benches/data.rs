//! Speed of the data crate: `cargo bench --bench data [-- CORPUS.jsonl TOKENIZER | -- DOCUMENTS]`.
//!
//! Without arguments: the order of 5 billion tokens, opening a 10-million-sequence index, reading
//! samples. With a corpus: tokens per second of one core, encoding only. With a number: building
//! and caching the order of that many documents of 1,150 tokens on average (BLOOM had 304,230,423).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use gptrain::data::indexed::{Indexed, index_path, tokens_path};
use gptrain::data::mixture::{Member, Mixture, MixtureStage};
use gptrain::data::order::{Cache, Cut, Order, OrderSpec};
use gptrain::data::tokenizer::{Encoder, Tokenizer};
use gptrain::data::{Batch, Datasets, MixturePlan, Request};
use gptrain::manifest::{Data, DataRule, Dataset, Objective, Sequences};

/// Documents of a large dataset, and their mean length.
const DOCUMENTS: usize = 10_000_000;
const MEAN: u32 = 500;

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| a != "--bench")
        .collect();
    if let [corpus, tokenizer] = &arguments[..] {
        return encode(Path::new(corpus), Path::new(tokenizer));
    }
    let prefix = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("large");
    if let [documents] = &arguments[..] {
        return cached(&prefix, documents.parse().unwrap());
    }
    let lengths: Vec<u32> = (0..DOCUMENTS as u64).map(|i| length(i, MEAN)).collect();
    write(&prefix, &lengths);
    open(&prefix);
    order(&lengths);
    samples(&prefix);
    batches(&prefix);
    for path in [index_path(&prefix), tokens_path(&prefix)] {
        std::fs::remove_file(path).unwrap();
    }
}

/// Lengths from 1 to about twice the mean, by a hash.
fn length(i: u64, mean: u32) -> u32 {
    let hash = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    1 + (hash >> 32) as u32 % (2 * mean - 1)
}

/// Writes a dataset with these lengths whose tokens are all 0: the token file is a single hole.
fn write(prefix: &Path, lengths: &[u32]) {
    let file = std::fs::File::create(index_path(prefix)).unwrap();
    let mut index = std::io::BufWriter::with_capacity(1 << 20, file);
    let mut put = |bytes: &[u8]| index.write_all(bytes).unwrap();
    put(b"MMIDIDX\0\0\x01\0\0\0\0\0\0\0\x08");
    put(&(lengths.len() as u64).to_le_bytes());
    put(&(lengths.len() as u64 + 1).to_le_bytes());
    lengths.iter().for_each(|length| put(&length.to_le_bytes()));
    let mut start = 0u64;
    for length in lengths {
        put(&start.to_le_bytes());
        start += 2 * *length as u64;
    }
    (0..=lengths.len() as u64).for_each(|bound| put(&bound.to_le_bytes()));
    index.flush().unwrap();
    std::fs::File::create(tokens_path(prefix))
        .unwrap()
        .set_len(start)
        .unwrap();
}

fn open(prefix: &Path) {
    for turn in ["first", "again"] {
        let start = Instant::now();
        let dataset = Indexed::open(prefix).unwrap();
        let seconds = start.elapsed().as_secs_f64();
        println!("open {} sequences, {turn}: {seconds:.3} s", dataset.sequences());
    }
}

fn order(lengths: &[u32]) {
    let tokens: u64 = lengths.iter().map(|length| *length as u64).sum();
    let cut = Cut::default();
    for epochs in [1, 2] {
        let samples = Some(epochs * tokens / 2048 - 10);
        let spec =
            OrderSpec { rule: DataRule::MegatronCore, seq_len: 2048, samples, seed: 1234, cut };
        let start = Instant::now();
        let order = Order::build(&spec, lengths, 0..lengths.len(), "bench").unwrap();
        let seconds = start.elapsed().as_secs_f64();
        let bytes =
            4 * order.sequences.count() + 8 * order.starts.count() + 4 * order.shuffle.count();
        println!(
            "order {epochs} epoch(s) of {} documents, {tokens} tokens: {seconds:.2} s, {} MB",
            lengths.len(),
            bytes / 1_000_000
        );
    }
}

/// Builds an order into a cache, and reads it from there.
fn cached(prefix: &Path, documents: u64) {
    write(
        prefix,
        &(0..documents)
            .map(|i| length(i, 1150))
            .collect::<Vec<u32>>(),
    );
    let timed = |what: &str, start: Instant| {
        println!("{what}: {:.2} s, {}", start.elapsed().as_secs_f64(), memory());
    };
    let start = Instant::now();
    let dataset = std::sync::Arc::new(Indexed::open(prefix).unwrap());
    println!("{documents} documents, {} tokens", dataset.tokens());
    timed("open", start);
    let cache = Cache::new(prefix.with_extension("order"));
    let cut = Cut::default();
    let spec =
        OrderSpec { rule: DataRule::MegatronCore, seq_len: 2048, samples: None, seed: 1234, cut };
    let order = || {
        cache
            .order(&spec, &dataset, 0..dataset.sequences(), "bench")
            .unwrap()
    };
    for what in ["build, write, map", "map", "map again"] {
        let start = Instant::now();
        let order = order();
        timed(what, start);
        let member =
            Member { dataset: dataset.clone(), segments: vec![order], reshuffles: Vec::new() };
        let until = 100_000;
        let stage =
            MixtureStage { from: 0, until, blend: None, members: vec![0], cursors: vec![0] };
        let mixture = Mixture::new(vec![member], vec![stage], 2048);
        let (mut tokens, start) = (vec![0; 2048], Instant::now());
        for sample in 0..until {
            mixture.read(sample, &mut tokens).unwrap();
        }
        timed("  100,000 samples", start);
    }
    std::fs::remove_dir_all(&cache.folder).unwrap();
    for path in [index_path(prefix), tokens_path(prefix)] {
        std::fs::remove_file(path).unwrap();
    }
}

/// Memory of the process: its own pages, and pages of files.
fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
            / 1000
    };
    let (peak, own, files) = (field("VmHWM"), field("RssAnon"), field("RssFile"));
    format!("{own} MB of its own, {files} MB of mapped files, {peak} MB at the highest")
}

/// Reads samples of 2,048 tokens with one thread; the file is in memory after the first round.
fn samples(prefix: &Path) {
    let dataset = std::sync::Arc::new(Indexed::open(prefix).unwrap());
    let part = 0..dataset.sequences() / 10; // 1 GB of tokens
    let cut = Cut::default();
    let spec =
        OrderSpec { rule: DataRule::MegatronCore, seq_len: 2048, samples: None, seed: 1234, cut };
    let order = Order::build(&spec, dataset.lengths(), part, "bench").unwrap();
    let count = order.samples().min(100_000);
    let member = Member { dataset, segments: vec![order], reshuffles: Vec::new() };
    let stage =
        MixtureStage { from: 0, until: count, blend: None, members: vec![0], cursors: vec![0] };
    let mixture = Mixture::new(vec![member], vec![stage], 2048);
    let mut tokens = vec![0; 2048];
    for turn in ["first", "warm"] {
        let start = Instant::now();
        let mut sum = 0i64;
        for sample in 0..count {
            mixture.read(sample, &mut tokens).unwrap();
            sum += tokens[7] as i64;
        }
        let rate = count as f64 / start.elapsed().as_secs_f64();
        println!("samples of 2048 tokens, one thread, {turn}: {rate:.0} a second ({sum})");
    }
}

/// Reads batches as in training: tokens, targets, weights, positions and masks, 8 samples at a
/// time.
fn batches(prefix: &Path) {
    let part = Sequences::Range(0.0, 0.1);
    let train = vec![Dataset { prefix: prefix.into(), weight: 1.0, part }];
    let data = Data {
        seed: 1234,
        rule: DataRule::MegatronCore,
        train,
        skip: Vec::new(),
        stages: vec![],
        valid: vec![],
        cache: prefix.with_extension("order"),
        tokenizer: None,
        eod: None,
        inter_document_masking: false,
        add_extra_token_to_sequence: true,
        drop_last_partial_validation_sequence: true,
        objective: Objective::Causal,
    };
    let source = Datasets::open(&data, MixturePlan::from_data(&data, 100_000), 2048, 50257, 0)
        .unwrap()
        .train;
    let mut batch = Batch::default();
    for turn in ["first", "warm"] {
        let start = Instant::now();
        for first_sample in (0..100_000).step_by(8) {
            batch
                .fill(&source, Request { first_sample, samples: 8 })
                .unwrap();
        }
        let rate = 1e5 / start.elapsed().as_secs_f64();
        println!("batches of 8 with masks, one thread, {turn}: {rate:.0} samples a second");
    }
}

fn encode(corpus: &Path, tokenizer: &Path) {
    let text = std::fs::read_to_string(corpus).unwrap();
    let documents: Vec<String> = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["text"].to_string())
        .collect();
    let tokenizer = Tokenizer::load(tokenizer).unwrap();
    let bytes: usize = documents.iter().map(String::len).sum();
    for _ in 0..3 {
        let (mut encoder, mut ids) = (Encoder::new(&tokenizer), Vec::new());
        let start = Instant::now();
        let mut count = 0;
        for document in &documents {
            ids.clear();
            encoder.encode(document, &mut ids).unwrap();
            count += ids.len();
        }
        let rate = bytes as f64 / 1e6 / start.elapsed().as_secs_f64();
        println!("encode {bytes} bytes into {count} ids, one core: {rate:.1} MB/s");
    }
}
