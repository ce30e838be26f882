//! The data crate as training uses it: mixtures, batches, the reader thread, and clear errors.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gptrain::base::Problems;
use gptrain::data::Column::{self, Positions, Targets, Tokens, Visible, Weights};
use gptrain::data::indexed::{Indexed, TokenType, Writer};
use gptrain::data::{Batch, CutRequest, Datasets, MixturePlan, Reader, Request, Source};
use gptrain::manifest::{
    Data, DataRule, DataStage, Dataset, Eod, Objective, PrefixLm, Sequences, ValidSet,
};
use serde_json::Value;
use sha2::{Digest, Sha256};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/data/megatron")
        .join(name)
}

/// An empty folder of this test's own, under the build folder.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("data-{name}"));
    std::fs::remove_dir_all(&folder).ok();
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn dataset(name: &str, weight: f64, split: &str, which: usize) -> Dataset {
    let part = Sequences::Split { weights: split.into(), which };
    Dataset { prefix: fixture("datasets").join(name), weight, part }
}

fn data(train: Vec<Dataset>) -> Data {
    Data {
        seed: 1234,
        rule: DataRule::MegatronCore,
        train,
        skip: Vec::new(),
        stages: vec![],
        valid: vec![],
        cache: PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("order"),
        tokenizer: None,
        eod: None,
        inter_document_masking: false,
        add_extra_token_to_sequence: true,
        drop_last_partial_validation_sequence: true,
        objective: Objective::Causal,
    }
}

/// Datasets of a new run of `train_samples` samples.
pub fn open_datasets(
    data: &Data,
    seq_len: usize,
    vocab: usize,
    train_samples: u64,
    eval_samples: u64,
) -> anyhow::Result<Datasets> {
    let plan = MixturePlan::from_data(data, train_samples);
    Datasets::open(data, plan, seq_len, vocab, eval_samples)
}

fn batch(source: &Source, first_sample: u64, samples: usize) -> Batch {
    let mut batch = Batch::default();
    batch
        .fill(source, Request { first_sample, samples })
        .unwrap();
    batch
}

/// A column's values, of whatever type, as integers.
fn integers(batch: &Batch, column: Column) -> &[i32] {
    batch.column(column)
}

/// The user's mistakes in an error, as one text.
fn problems<T>(result: anyhow::Result<T>) -> String {
    result
        .err()
        .unwrap()
        .downcast::<Problems>()
        .expect("not reported as the user's")
        .to_string()
}

#[test]
fn a_weighted_mixture_is_megatrons() {
    let text = std::fs::read_to_string(fixture("expect/blended_dataset_cases.json")).unwrap();
    let cases: Value = serde_json::from_str(&text).unwrap();
    for case in cases.as_array().unwrap() {
        let names = case["datasets"]
            .as_array()
            .unwrap()
            .iter()
            .zip(case["weights"].as_array().unwrap());
        let split = case["split"].as_str().unwrap();
        let train = names
            .map(|(name, w)| dataset(name.as_str().unwrap(), w.as_f64().unwrap(), split, 0))
            .collect();
        let samples = case["num_samples_requested"][0].as_u64().unwrap();
        let seq_len = case["seq_length"].as_u64().unwrap() as usize;
        let opened = open_datasets(&data(train), seq_len, 50257, samples, 0).unwrap();
        let mut hash = Sha256::new();
        for sample in 0..samples {
            let batch = batch(&opened.train, sample, 1);
            let (tokens, targets) = (integers(&batch, Tokens), integers(&batch, Targets));
            for token in tokens.iter().chain(targets.last()) {
                hash.update((*token as i64).to_le_bytes());
            }
        }
        let hex: String = hash
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(
            hex,
            case["splits"]["train"]["tokens_i64le_sha256"]
                .as_str()
                .unwrap()
        );
    }
}

#[test]
fn a_batch_is_its_samples_whatever_the_batch_size() {
    let mut wishes = data(vec![dataset("u16_a", 1.0, "1,0,0", 0)]);
    let eod = Eod { token: 50256, mask_loss: true, reset_positions: true, reset_attention: true };
    wishes.eod = Some(eod);
    wishes.objective = Objective::PrefixLm(PrefixLm { loss_on_targets_only: true });
    let source = open_datasets(&wishes, 32, 50257, 300, 0).unwrap().train;
    let whole = batch(&source, 10, 8);
    assert_eq!(integers(&whole, Tokens).len(), 8 * 32);
    for i in 0..8 {
        let one = batch(&source, 10 + i as u64, 1);
        for (column, width) in
            [(Tokens, 32), (Targets, 32), (Weights, 32), (Positions, 32), (Visible, 64)]
        {
            let row = i * width..(i + 1) * width;
            assert_eq!(integers(&one, column), &integers(&whole, column)[row], "{column:?}");
        }
        assert_eq!(integers(&one, Tokens)[1..], integers(&one, Targets)[..31]);
    }
}

#[test]
fn causal_weights_sum_to_one_under_the_eod_mask() {
    let mut wishes = data(vec![dataset("u16_a", 1.0, "1,0,0", 0)]);
    let eod = Eod { token: 50256, mask_loss: true, reset_positions: false, reset_attention: false };
    wishes.eod = Some(eod);
    let source = open_datasets(&wishes, 64, 50257, 49, 0).unwrap().train;
    let mut masked = 0;
    for sample in 0..source.samples() {
        let batch = batch(&source, sample, 1);
        let sum: f32 = batch.column(Weights).iter().sum();
        assert!((sum - 1.0).abs() < 1e-5, "sample {sample}: {sum}");
        masked += batch
            .column::<f32>(Weights)
            .iter()
            .filter(|weight| **weight == 0.0)
            .count();
    }
    assert!(masked > 10, "the dataset has EODs, {masked} were masked");
}

#[test]
fn the_reader_gives_what_was_requested_in_order_and_reuses_memory() {
    let wishes = data(vec![dataset("i32_big", 1.0, "969,30,1", 0)]);
    let source = open_datasets(&wishes, 128, 250_680, 400, 0).unwrap().train;
    let requests = (0..100).map(|i| Request { first_sample: 4 * i, samples: 4 });
    let mut reader = Reader::start(source.clone(), requests, 2).unwrap();
    let mut buffers = std::collections::HashSet::new();
    for i in 0..100 {
        let read = reader.next().unwrap();
        assert_eq!(read, batch(&source, 4 * i, 4));
        buffers.insert(integers(&read, Tokens).as_ptr());
        reader.recycle(read);
    }
    assert!(buffers.len() <= 5, "{} buffers for 100 batches", buffers.len());
    let error = reader.next().unwrap_err().to_string();
    assert!(error.contains("all requests have been answered"), "{error}");
}

#[test]
fn a_reader_can_be_dropped_at_any_time() {
    let wishes = data(vec![dataset("u16_a", 1.0, "1,0,0", 0)]);
    let source = open_datasets(&wishes, 16, 50257, 100, 0).unwrap().train;
    let requests = (0..).map(|i| Request { first_sample: i % 100, samples: 1 });
    let mut reader = Reader::start(source, requests, 3).unwrap();
    reader.next().unwrap();
}

#[test]
fn a_token_beyond_the_vocabulary_is_the_users_mistake() {
    let wishes = data(vec![dataset("u16_a", 1.0, "1,0,0", 0)]);
    let source = open_datasets(&wishes, 16, 50_000, 196, 0).unwrap().train;
    let requests = (0..196).map(|first_sample| Request { first_sample, samples: 1 });
    let mut reader = Reader::start(source, requests, 2).unwrap();
    let error = problems((0..196).try_for_each(|_| reader.next().map(|_| ())));
    assert!(error.contains("the model's vocabulary has 50,000 ids"), "{error}");
}

#[test]
fn every_mistake_in_the_data_is_reported_at_once() {
    let mut wishes = data(vec![
        dataset("u16_a", 0.5, "1,0,0", 1),   // this part is empty
        dataset("u8_tiny", 0.5, "1,0,0", 0), // 307 tokens
    ]);
    let short =
        ValidSet { name: "short".into(), datasets: vec![dataset("u16_b", 1.0, "969,30,1", 2)] };
    wishes.valid = vec![short];
    let text = problems(open_datasets(&wishes, 512, 50257, 10, 10));
    assert!(
        text.contains("u16_a: its valid part of the split 1,0,0 holds 0 of 61 sequences"),
        "{text}"
    );
    let tiny = "u8_tiny: its train part of the split 1,0,0 holds 9 of 9 sequences, 307 tokens; one \
                sample takes 513";
    assert!(text.contains(tiny), "{text}");
    assert!(text.contains("data.valid short"), "{text}");
    assert!(text.contains("→ give it a larger part"), "{text}");
}

#[test]
fn a_weight_must_be_above_zero() {
    let train = vec![dataset("u16_a", 0.0, "1,0,0", 0), dataset("u16_b", f64::NAN, "1,0,0", 0)];
    let error = problems(open_datasets(&data(train), 16, 50257, 10, 0));
    assert!(error.contains("u16_a: its weight is 0") && error.contains("u16_b: its weight is NaN"));
}

#[test]
fn a_missing_dataset_is_named() {
    let wishes = data(vec![dataset("nothing_here", 1.0, "1,0,0", 0)]);
    let error = problems(open_datasets(&wishes, 16, 50257, 10, 0));
    assert!(error.contains("nothing_here.idx does not exist"), "{error}");
    assert!(error.contains("holds: i32_big, i32_bloom, u16_a"), "{error}");
}

#[test]
fn each_damaged_pair_is_refused_with_its_name_and_numbers() {
    let text = std::fs::read_to_string(fixture("expect/hostile.json")).unwrap();
    let cases: Value = serde_json::from_str(&text).unwrap();
    let says = |name: &str| match name {
        "version_huge" => "version 18446744073709551615; only version 1 exists",
        "dtype_float32" => "dtype code 7 is a floating-point type",
        "doccount_2pow61" => "2,305,843,009,213,693,952 document bounds, more than 2^64 bytes",
        "truncated_header" => "cut off: 20 bytes, the header alone has 34",
        "empty_idx" => "0 bytes",
        "size_min" => "has length -2147483648",
        "ptr_max" => "starts at byte 9223372036854775",
        "doc_decreasing" => "below the one before",
        "bin_truncated_half" => "has 87",
        "all_sizes_zero" => "describes 0 tokens",
        other => panic!("no expectation for {other}"),
    };
    for case in cases.as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let opened = Indexed::open(&fixture("hostile").join(name));
        if case["wanted_of_gptrain"] == "accept" {
            opened.unwrap();
            continue;
        }
        let error = problems(opened);
        assert!(error.contains(&format!("{name}.idx")) && error.contains(says(name)), "{error}");
    }
}

#[test]
fn a_token_file_that_shrinks_while_mapped_is_an_error_not_a_crash() {
    let prefix = folder("shrinks").join("d");
    let mut writer = Writer::create(&prefix, TokenType::U16).unwrap();
    for _ in 0..64 {
        writer.sequence(&[7; 1024]).unwrap();
        writer.end_document();
    }
    writer.finish().unwrap();
    let part = Sequences::Range(0.0, 1.0);
    let wishes = data(vec![Dataset { prefix: prefix.clone(), weight: 1.0, part }]);
    let source: Arc<Source> = open_datasets(&wishes, 256, 100, 255, 0).unwrap().train;
    let requests = (0..255).map(|first_sample| Request { first_sample, samples: 1 });
    let bin = std::fs::OpenOptions::new()
        .write(true)
        .open(prefix.with_extension("bin"))
        .unwrap();
    bin.set_len(4096).unwrap();
    let mut reader = Reader::start(source, requests, 2).unwrap();
    let error = (0..255)
        .find_map(|_| reader.next().err())
        .expect("a read of what is gone");
    let error = format!("{error:#}");
    assert!(error.contains("it had 131072 bytes when opened and is 4096 bytes now"), "{error}");
}

#[test]
fn a_token_file_that_is_replaced_while_mapped_is_still_read() {
    let folder = folder("replaced");
    let prefix = folder.join("d");
    for ending in ["idx", "bin"] {
        let from = fixture("datasets/u16_b").with_extension(ending);
        std::fs::copy(from, prefix.with_extension(ending)).unwrap();
    }
    let part = Sequences::Range(0.0, 1.0);
    let wishes = data(vec![Dataset { prefix: prefix.clone(), weight: 1.0, part }]);
    let opened = open_datasets(&wishes, 32, 50257, 70, 0).unwrap();
    let before = tokens(&opened, 0..70);
    std::fs::write(folder.join("new"), [1; 100]).unwrap();
    std::fs::rename(folder.join("new"), prefix.with_extension("bin")).unwrap();
    assert_eq!(tokens(&opened, 0..70), before, "the file that was opened is read");
    let error = problems(open_datasets(&wishes, 32, 50257, 70, 0));
    assert!(error.contains("the pair does not belong together"), "{error}");
}

#[test]
fn a_dataset_without_sequences_is_refused() {
    let prefix = folder("empty").join("d");
    Writer::create(&prefix, TokenType::U16)
        .unwrap()
        .finish()
        .unwrap();
    let part = Sequences::Range(0.0, 1.0);
    let wishes = data(vec![Dataset { prefix, weight: 1.0, part }]);
    let error = problems(open_datasets(&wishes, 32, 50257, 70, 0));
    assert!(error.contains("holds 0 of 0 sequences, 0 tokens; one sample takes 33"), "{error}");
}

/// The tokens of samples `range` of a run's training data.
fn tokens(datasets: &Datasets, range: std::ops::Range<u64>) -> Vec<Vec<i32>> {
    range
        .map(|sample| integers(&batch(&datasets.train, sample, 1), Tokens).to_vec())
        .collect()
}

#[test]
fn weights_can_change_without_repeating_or_skipping_a_sample() {
    let mixed = |a: f64, b: f64| {
        data(vec![dataset("u16_a", a, "1,0,0", 0), dataset("u16_b", b, "1,0,0", 0)])
    };
    let before = mixed(0.7, 0.3);
    let first = open_datasets(&before, 32, 50257, 100, 0).unwrap();
    // The checkpoint is written at sample 40, as JSON; the weights change there.
    let plan = serde_json::to_string(&first.plan).unwrap();
    let plan: MixturePlan = serde_json::from_str(&plan).unwrap();
    assert_eq!(plan, first.plan);
    let after = mixed(0.2, 0.8);
    let plan = plan.continue_with(&after, after.seed, 100, 40);
    let second = Datasets::open(&after, plan, 32, 50257, 0).unwrap();
    assert_eq!(tokens(&first, 0..40), tokens(&second, 0..40), "the past must not change");

    // Each dataset continues with its own next sample: the order of one that is never interrupted.
    let alone = |name: &str, n: u64| {
        let mut wishes = data(vec![dataset(name, 1.0, "1,0,0", 0)]);
        wishes.seed = before.seed;
        tokens(&open_datasets(&wishes, 32, 50257, n, 0).unwrap(), 0..n)
    };
    let (a, b) = (alone("u16_a", 71), alone("u16_b", 31));
    let (mut next_a, mut next_b) = (0, 0);
    for (k, sample) in tokens(&second, 0..100).iter().enumerate() {
        if a.get(next_a) == Some(sample) {
            next_a += 1;
        } else {
            if next_b < b.len() {
                assert_eq!(Some(sample), b.get(next_b), "sample {k} is of neither dataset in turn");
            }
            next_b += 1;
        }
    }
    let cursors: Vec<u64> = second
        .train
        .cursors(100)
        .iter()
        .map(|c| c.samples)
        .collect();
    assert_eq!(cursors, [next_a as u64, next_b as u64]);
    assert_eq!(
        second
            .train
            .cursors(40)
            .iter()
            .map(|c| c.samples)
            .sum::<u64>(),
        40
    );
    // 0.7·40 + 0.2·60 and 0.3·40 + 0.8·60, within one.
    assert!(next_a.abs_diff(40) <= 1 && next_b.abs_diff(60) <= 1, "{next_a} {next_b}");
}

#[test]
fn stages_of_a_manifest_are_changes_at_a_resume() {
    let mixture =
        |a: f64, b: f64| vec![dataset("u16_a", a, "1,0,0", 0), dataset("u16_b", b, "1,0,0", 0)];
    let mut other = mixture(1.0, 2.0);
    other.push(dataset("i32_bloom", 1.0, "1,0,0", 0));
    let mut staged = data(mixture(0.7, 0.3));
    staged.stages = vec![
        DataStage { from: 40, train: mixture(0.2, 0.8) },
        DataStage { from: 75, train: other.clone() },
    ];
    let whole = open_datasets(&staged, 32, 250_680, 100, 0).unwrap();
    // The same by hand: the run stops at 40 and at 75 and continues with another manifest.
    let by_hand = MixturePlan::from_data(&data(mixture(0.7, 0.3)), 100)
        .continue_with(&data(mixture(0.2, 0.8)), staged.seed, 100, 40)
        .continue_with(&data(other.clone()), staged.seed, 100, 75);
    assert_eq!(whole.plan, by_hand);
    let cursors: Vec<u64> = whole.train.cursors(100).iter().map(|c| c.samples).collect();
    assert_eq!(cursors.iter().sum::<u64>(), 100);
    assert!(cursors.iter().all(|samples| *samples > 5), "{cursors:?}");
    // A resume at any sample, on a boundary or between two, is the same run.
    for consumed in [0, 1, 39, 40, 41, 74, 75, 76, 99, 100] {
        let again = whole
            .plan
            .clone()
            .continue_with(&staged, staged.seed, 100, consumed);
        assert_eq!(again, whole.plan, "from {consumed}");
    }
    // A shorter run does not reach the last stage; the samples read so far are unchanged.
    let shorter = whole
        .plan
        .clone()
        .continue_with(&staged, staged.seed, 70, 60);
    assert_eq!(
        shorter
            .stages
            .iter()
            .map(|stage| stage.from)
            .collect::<Vec<_>>(),
        [0, 40, 60]
    );
    let short = Datasets::open(&staged, shorter, 32, 250_680, 0).unwrap();
    assert_eq!(tokens(&short, 0..60), tokens(&whole, 0..60));
    // A stage that is moved into the past begins now.
    staged.stages[0].from = 20;
    let late = whole
        .plan
        .clone()
        .continue_with(&staged, staged.seed, 100, 30);
    assert_eq!(
        late.stages
            .iter()
            .map(|stage| stage.from)
            .collect::<Vec<_>>(),
        [0, 30, 75]
    );
}

/// Samples of a warm-up of the length are the first columns of the whole ones, targets included, as
/// Megatron-DeepSpeed cuts its batches; their weights again sum to 1.
#[test]
fn a_cut_sample_is_the_beginning_of_the_whole_one() {
    let mut wishes =
        data(vec![dataset("u16_a", 0.6, "1,0,0", 0), dataset("u16_b", 0.4, "1,0,0", 0)]);
    for extra_token in [true, false] {
        wishes.add_extra_token_to_sequence = extra_token;
        let source = open_datasets(&wishes, 32, 50257, 100, 0).unwrap().train;
        let whole = batch(&source, 8, 4);
        for tokens in [1, 7, 24, 32] {
            let mut cut = Batch::default();
            let request = Request { first_sample: 8, samples: 4 };
            cut.fill(&source, CutRequest { request, tokens: Some(tokens) })
                .unwrap();
            assert_eq!((cut.seq_len(), cut.first_sample()), (tokens, 8));
            for (column, width) in [(Tokens, 1), (Targets, 1), (Positions, 1), (Visible, 2)] {
                let whole = integers(&whole, column).chunks(32 * width);
                let begins = whole.map(|sample| &sample[..tokens * width]);
                assert_eq!(integers(&cut, column), begins.collect::<Vec<_>>().concat());
            }
            let weights = cut.column::<f32>(Weights).chunks(tokens);
            let mut sums = weights.map(|sample| sample.iter().sum::<f32>());
            assert!(sums.all(|sum| (sum - 1.0).abs() < 1e-6), "{extra_token}, {tokens}");
        }
    }
}

/// Another seed at sample 40, and a third at 70: the past is unchanged, every sample is read as often as
/// without, and in another order.
#[test]
fn another_seed_shuffles_what_was_not_read_yet() {
    let mut before =
        data(vec![dataset("u16_a", 0.6, "1,0,0", 0), dataset("u16_b", 0.4, "1,0,0", 0)]);
    let held = dataset("i32_bloom", 1.0, "1,0,0", 0);
    before.valid = vec![ValidSet { name: "held".into(), datasets: vec![held] }];
    let first = open_datasets(&before, 32, 250_680, 100, 20).unwrap();
    let [mut second, mut third] = [before.clone(), before.clone()];
    (second.seed, third.seed) = (before.seed + 1, before.seed + 2);
    let plan = first
        .plan
        .clone()
        .continue_with(&second, before.seed, 100, 40);
    let plan = plan.continue_with(&third, second.seed, 100, 70);
    let open = |data: &Data, plan| Datasets::open(data, plan, 32, 250_680, 20).unwrap();
    let now = open(&third, plan.clone());
    assert_eq!(tokens(&now, 0..40), tokens(&first, 0..40), "the past must not change");
    let once = open(
        &second,
        first
            .plan
            .clone()
            .continue_with(&second, before.seed, 100, 40),
    );
    assert_eq!(tokens(&now, 40..70), tokens(&once, 40..70), "nor that of the second seed");
    for (later, earlier) in [(&now, &once), (&once, &first)] {
        let [a, b] = [later, earlier].map(|datasets| tokens(datasets, 70..100));
        assert_ne!(a, b, "the seed decides");
    }
    // A whole order of one dataset is a permutation of that without the change.
    let alone = |seed: Option<u64>| {
        let mut alone = data(vec![dataset("u16_a", 1.0, "1,0,0", 0)]);
        let plan = MixturePlan::new(&alone.train, 60);
        let first_seed = alone.seed;
        alone.seed = seed.unwrap_or(first_seed);
        let plan = plan.continue_with(&alone, first_seed, 60, 25);
        let opened = open(&alone, plan);
        let all = tokens(&opened, 0..opened.train.samples());
        let read = all[..25].to_vec();
        (read, all)
    };
    let ((read, mut plain), (read_again, mut changed)) = (alone(None), alone(Some(7)));
    assert_eq!(read, read_again);
    assert_ne!(plain, changed);
    plain.sort();
    changed.sort();
    assert_eq!(plain, changed, "a sample is read twice or left out");
    // The same plan at every later resume; validation sets keep their order.
    let plan: MixturePlan = serde_json::from_value(serde_json::to_value(&plan).unwrap()).unwrap();
    assert_eq!(plan.clone().continue_with(&third, third.seed, 100, 90), now.plan);
    let held = |datasets: &Datasets| integers(&batch(&datasets.valid[0].1, 0, 20), Tokens).to_vec();
    assert_eq!(held(&now), held(&first));
}

#[test]
fn a_plan_that_did_not_change_is_the_same_plan() {
    let wishes = data(vec![dataset("u16_a", 1.0, "1,0,0", 0)]);
    let plan = MixturePlan::new(&wishes.train, 100);
    assert_eq!(plan.clone().continue_with(&wishes, wishes.seed, 100, 60), plan);
    // A longer run keeps its order, and continues after it.
    let longer = plan.clone().continue_with(&wishes, wishes.seed, 250, 60);
    assert_eq!(longer.stages.len(), 2);
    let short = open_datasets(&wishes, 32, 50257, 98, 0).unwrap();
    let plan = MixturePlan::new(&wishes.train, 98).continue_with(&wishes, wishes.seed, 250, 60);
    let long = Datasets::open(&wishes, plan, 32, 50257, 0).unwrap();
    assert_eq!(tokens(&short, 0..98), tokens(&long, 0..98));
    assert_eq!(tokens(&long, 98..250).len(), 152);
    // Every sample of the first epoch is read once before any is read again.
    let mut seen = tokens(&long, 0..98);
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 98);
    // Changes before the first step leave no trace.
    let other = data(vec![dataset("u16_b", 1.0, "1,0,0", 0)]);
    assert_eq!(
        MixturePlan::new(&wishes.train, 100).continue_with(&other, other.seed, 100, 0),
        MixturePlan::new(&other.train, 100)
    );
}

/// `good.idx` and `good.bin` of the fixtures, changed; what opening them says.
fn damaged(name: &str, change: impl FnOnce(&mut Vec<u8>, &mut Vec<u8>)) -> String {
    let read = |ending: &str| std::fs::read(fixture(&format!("hostile/good.{ending}"))).unwrap();
    let (mut index, mut tokens) = (read("idx"), read("bin"));
    change(&mut index, &mut tokens);
    let prefix = folder("damaged").join(name);
    std::fs::write(prefix.with_extension("idx"), index).unwrap();
    std::fs::write(prefix.with_extension("bin"), tokens).unwrap();
    problems(Indexed::open(&prefix))
}

#[test]
fn damage_that_megatron_does_not_notice_is_noticed() {
    // 8 sequences (lengths from byte 34, offsets from 66) and 8 documents (bounds from 130).
    let put = |at: usize, value: i64, width: usize| {
        move |index: &mut Vec<u8>, _: &mut Vec<u8>| {
            index[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        }
    };
    let sequences = Indexed::open(&fixture("hostile/good")).unwrap().sequences();
    assert_eq!(sequences, 8);
    let error = damaged("misaligned", put(66 + 8, 21, 8));
    assert!(error.contains("sequence 1 starts at byte 21; the sequences before it end"), "{error}");
    let error = damaged("overlap", put(66 + 16, 0, 8));
    assert!(error.contains("sequence 2 starts at byte 0"), "{error}");
    let error = damaged("negative", put(34, -3, 4));
    assert!(error.contains("sequence 0 has length -3"), "{error}");
    let error = damaged("huge", put(34, i32::MAX as i64, 4));
    assert!(error.contains("the sequences before it end at byte 4294967294"), "{error}");
    let error = damaged("first", put(130, 1, 8));
    assert!(error.contains("the first document starts at sequence 1, not 0"), "{error}");
    let error = damaged("last", put(130 + 64, 7, 8));
    assert!(error.contains("document") && error.contains("7"), "{error}");
    let error = damaged("unknown", put(17, 9, 1));
    assert!(error.contains("dtype code 9 is unknown"), "{error}");
    let error = damaged("trailing", |index, _| index.extend_from_slice(b"garbage"));
    assert!(error.contains("7 bytes follow the arrays"), "{error}");
    let error = damaged("longer", |_, tokens| tokens.push(0));
    assert!(error.contains("the pair does not belong together"), "{error}");
    let error = damaged("fairseq", |index, _| index[..9].copy_from_slice(b"TNTIDX\0\0\0"));
    assert!(error.contains("an old fairseq index (TNTIDX)"), "{error}");
    let error = damaged("text", |index, _| *index = b"hello, world".repeat(9));
    assert!(error.contains("not a Megatron index: it starts with \"hello, wo\""), "{error}");
}
