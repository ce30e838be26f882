//! Damaged files by the thousand: whatever the bytes, the answer is an error or a dataset that can
//! be read, never a panic. GPTRAIN_FUZZ_RUNS=2000000 runs as many cases instead of a few thousand.

use std::path::{Path, PathBuf};

use gptrain::base::rng;
use gptrain::data::order::{Cut, Order, OrderSpec};
use gptrain::data::{Indexed, Tokenizer};
use gptrain::manifest::DataRule;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/data")
        .join(name)
}

/// A folder of this process's and this test's own, in memory where there is such a place.
fn folder(test: &str) -> PathBuf {
    let name = format!("fuzz-{test}-{}", std::process::id());
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { memory } else { Path::new(env!("CARGO_TARGET_TMPDIR")) };
    let folder = place.join(format!("gptrain-{name}"));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn runs(few: u64) -> u64 {
    std::env::var("GPTRAIN_FUZZ_RUNS").map_or(few, |runs| runs.parse().unwrap())
}

/// Random choices of one case.
struct Dice {
    key: u64,
    rolls: u64,
}

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.rolls += 1;
        rng::below(self.key, self.rolls, n.max(1))
    }

    /// A number damaged files are likely to hold.
    fn number(&mut self) -> u64 {
        let numbers = [0u64, 1, 2, 7, 255, 1 << 31, (1 << 31) - 1, 1 << 32, 1 << 61, 1 << 63, !0];
        let number = numbers[self.below(numbers.len() as u64) as usize];
        number.wrapping_add(self.below(3)).wrapping_sub(1)
    }
}

/// Damages a file: bytes flipped, numbers overwritten, stretches cut out, doubled, or cut off.
fn damage(bytes: &mut Vec<u8>, dice: &mut Dice) {
    for _ in 0..1 + dice.below(3) {
        let at = dice.below(bytes.len() as u64) as usize;
        let until = (at + dice.below(40) as usize).min(bytes.len());
        match dice.below(7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
            1 if at < bytes.len() => bytes[at] = dice.below(256) as u8,
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..until)),
            4 => {
                let some = bytes[at..until].to_vec();
                bytes.splice(at..at, some);
            }
            _ => {
                // Numbers sit at 17, 18, 26 and from 34 on.
                let places = [9, 17, 18, 26, 34 + 4 * (at / 4)];
                let place = places[dice.below(5) as usize];
                let width = [1, 4, 8][dice.below(3) as usize];
                let number = dice.number().to_le_bytes();
                if let Some(some) = bytes.get_mut(place..place + width) {
                    some.copy_from_slice(&number[..width]);
                }
            }
        }
    }
}

#[test]
fn no_index_makes_the_reader_panic() {
    let folder = folder("index");
    let names = ["u8_tiny", "u16_sentences", "u16_multimodal", "i32_bloom"];
    let seeds = names.map(|name| {
        let file = |ending| fixture(&format!("megatron/datasets/{name}.{ending}"));
        (std::fs::read(file("idx")).unwrap(), std::fs::read(file("bin")).unwrap())
    });
    let prefix = folder.join("fuzz");
    let (mut opened, runs) = (0, runs(4000));
    for run in 0..runs {
        let mut dice = Dice { key: rng::key(run, "index"), rolls: 0 };
        let (mut index, mut tokens) = seeds[dice.below(4) as usize].clone();
        damage(&mut index, &mut dice);
        if dice.below(4) == 0 {
            damage(&mut tokens, &mut dice);
        }
        std::fs::write(folder.join("fuzz.idx"), &index).unwrap();
        std::fs::write(folder.join("fuzz.bin"), &tokens).unwrap();
        if let Ok(dataset) = Indexed::open(&prefix) {
            opened += 1;
            read_all(&dataset);
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
    assert!(opened > runs / 100 && opened < runs / 2, "{opened} of {runs} could be opened");
}

/// Reads every sequence and every sample of a dataset that could be opened.
fn read_all(dataset: &Indexed) {
    let mut tokens = vec![0; 4096];
    for (sequence, length) in dataset.lengths().iter().enumerate() {
        let length = (*length as usize).min(tokens.len());
        dataset.read(sequence, 0, &mut tokens[..length]).ok();
    }
    let documents: usize = (0..dataset.documents())
        .map(|document| dataset.document(document).len())
        .sum();
    assert_eq!(documents, dataset.sequences());
    let (samples, cut) = (Some(20), Cut::default());
    let spec = OrderSpec { rule: DataRule::MegatronCore, seq_len: 16, samples, seed: 1, cut };
    let part = 0..dataset.sequences();
    if let Ok(order) = Order::build(&spec, dataset.lengths(), part, "fuzz") {
        for k in 0..order.samples().min(20) {
            let mut pieces = order.slices(k, dataset.lengths()).unwrap();
            let next = || pieces.next().unwrap().map(|piece| piece.count);
            assert_eq!(std::iter::from_fn(next).sum::<usize>(), 17);
        }
    }
}

#[test]
fn no_tokenizer_file_makes_the_loader_panic() {
    let folder = folder("tokenizer");
    let path = folder.join("tokenizer.json");
    // A small vocabulary, so that damage often hits what matters.
    let good = std::fs::read_to_string(fixture("tokenizers/gpt2.json")).unwrap();
    let mut file: serde_json::Value = serde_json::from_str(&good).unwrap();
    file["model"]["merges"].as_array_mut().unwrap().truncate(30);
    let vocab = file["model"]["vocab"].as_object_mut().unwrap();
    vocab.retain(|_, id| id.as_u64().unwrap() < 290);
    let good = file.to_string();
    let (mut loaded, runs) = (0, runs(2000));
    for run in 0..runs {
        let mut dice = Dice { key: rng::key(run, "tokenizer"), rolls: 0 };
        let mut bytes = good.clone().into_bytes();
        for _ in 0..1 + dice.below(2) {
            tweak(&mut bytes, &mut dice);
        }
        std::fs::write(&path, &bytes).unwrap();
        if let Ok(tokenizer) = Tokenizer::load(&path) {
            loaded += 1;
            let text = "It's a <|endoftext|> naïve 日本 test   \n 123";
            let ids = tokenizer.encode(text);
            tokenizer.decode(&ids);
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
    assert!(loaded > runs / 100, "{loaded} of {runs} could be loaded");
}

/// Damages JSON: digits and letters changed, words swapped for others, stretches cut.
fn tweak(bytes: &mut Vec<u8>, dice: &mut Dice) {
    if bytes.is_empty() {
        return;
    }
    let at = dice.below(bytes.len() as u64) as usize;
    let until = (at + dice.below(12) as usize).min(bytes.len());
    match dice.below(6) {
        0 => bytes[at] = dice.below(256) as u8,
        1 => drop(bytes.drain(at..until)),
        2 => bytes.truncate(at),
        3 => {
            let digits = (at..bytes.len()).find(|i| bytes[*i].is_ascii_digit());
            if let Some(digit) = digits {
                bytes.splice(digit..=digit, dice.number().to_string().into_bytes());
            }
        }
        4 => {
            let words =
                ["null", "[]", "{}", "-1", "\"\"", "1e99", "true", "\"BPE\"", "\"Sequence\""];
            let word = words[dice.below(words.len() as u64) as usize];
            let colon = (at..bytes.len()).find(|i| bytes[*i] == b':').unwrap_or(at);
            let end = (colon..bytes.len())
                .find(|i| b",}".contains(&bytes[*i]))
                .unwrap_or(colon);
            bytes.splice(colon.min(end)..end, format!(":{word}").into_bytes());
        }
        _ => {
            let letter = (at..bytes.len()).find(|i| bytes[*i].is_ascii_alphabetic());
            if let Some(letter) = letter {
                bytes[letter] = b'a' + dice.below(26) as u8;
            }
        }
    }
}
