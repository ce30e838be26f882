//! Datasets written by Megatron, and what Megatron read from them (`fixtures/data/megatron`): the
//! same bytes, the same samples in the same order.

use std::path::{Path, PathBuf};

use gptrain::data::batch::Sample;
use gptrain::data::blend::{Blend, normalize};
use gptrain::data::indexed::{Indexed, TokenType};
use gptrain::data::mask::Masks;
use gptrain::data::order::{Cut, Order, OrderSpec};
use gptrain::data::random::RandomState;
use gptrain::data::{Request, split};
use gptrain::manifest::{DataRule, Eod, Objective, PrefixLm};
use serde_json::Value;
use sha2::{Digest, Sha256};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/data/megatron")
        .join(name)
}

fn expected(name: &str) -> Value {
    let text = std::fs::read_to_string(fixture("expect").join(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn open(name: &str) -> Indexed {
    Indexed::open(&fixture("datasets").join(name)).unwrap()
}

fn numbers(value: &Value) -> Vec<i64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item.as_i64().unwrap())
        .collect()
}

fn integers<T: TryInto<i64> + Copy>(values: &[T]) -> Vec<i64> {
    values
        .iter()
        .map(|value| (*value).try_into().ok().unwrap())
        .collect()
}

/// SHA-256 over values as little-endian int64.
fn sha256(values: impl IntoIterator<Item = i64>) -> String {
    let mut hash = Sha256::new();
    values
        .into_iter()
        .for_each(|value| hash.update(value.to_le_bytes()));
    hash.finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn tokens_of(order: &Order, dataset: &Indexed, k: u64) -> Vec<i64> {
    let mut tokens = Vec::new();
    let mut pieces = order.slices(k, dataset.lengths()).unwrap();
    while let Some(piece) = pieces.next().unwrap() {
        let mut some = vec![0; piece.count];
        dataset
            .read(piece.sequence, piece.offset, &mut some)
            .unwrap();
        tokens.extend(some.iter().map(|token| *token as i64));
    }
    tokens
}

#[test]
fn every_header_and_every_token_reads_as_megatron_reads_it() {
    for (name, want) in expected("indexed_datasets.json")["datasets"]
        .as_object()
        .unwrap()
    {
        let dataset = open(name);
        assert_eq!(dataset.token_type().to_string(), want["dtype"].as_str().unwrap());
        assert_eq!(dataset.tokens(), want["total_tokens"].as_u64().unwrap());
        assert_eq!(integers(dataset.lengths()), numbers(&want["sequence_lengths"]));
        let ends = (0..dataset.documents()).map(|document| dataset.document(document).end);
        let bounds: Vec<usize> = [0].into_iter().chain(ends).collect();
        assert_eq!(integers(&bounds), numbers(&want["document_indices"]));
        match dataset.modes() {
            Some(modes) => assert_eq!(integers(modes), numbers(&want["sequence_modes"])),
            None => assert!(want["sequence_modes"].is_null()),
        }
        let mut all = Vec::new();
        for (sequence, length) in dataset.lengths().iter().enumerate() {
            let mut tokens = vec![0; *length as usize];
            dataset.read(sequence, 0, &mut tokens).unwrap();
            if let Some(sequences) = want["sequences"].as_array() {
                assert_eq!(integers(&tokens), numbers(&sequences[sequence]), "{name} {sequence}");
            }
            all.extend(integers(&tokens));
        }
        assert_eq!(sha256(all), want["tokens_i64le_sha256"].as_str().unwrap(), "{name}");
    }
}

#[test]
fn the_token_type_follows_the_vocabulary() {
    for (vocab, want) in expected("indexed_datasets.json")["optimal_dtype_by_vocab"]
        .as_object()
        .unwrap()
    {
        let token_type = TokenType::for_vocab(vocab.parse().unwrap());
        assert_eq!(token_type.to_string(), want.as_str().unwrap(), "vocabulary {vocab}");
    }
}

#[test]
fn random_numbers_and_shuffles_are_numpys() {
    for case in expected("numpy_randomstate.json")["cases"]
        .as_array()
        .unwrap()
    {
        let seed = case["seed"].as_u64().unwrap() as u32;
        let mut random = RandomState::new(seed);
        let words: Vec<i64> = (0..10).map(|_| random.word() as i64).collect();
        assert_eq!(words, numbers(&case["raw_u32_first10"]));
        for shuffle in case["shuffle"].as_array().unwrap() {
            let mut random = RandomState::new(seed);
            for turn in ["first", "second"] {
                let mut items: Vec<i64> = (0..shuffle["n"].as_i64().unwrap()).collect();
                random.shuffle(&mut items);
                let want = &shuffle[format!("{turn}_sha256")];
                if !want.is_null() {
                    assert_eq!(sha256(items), want.as_str().unwrap(), "{turn} of {shuffle}");
                }
            }
        }
    }
}

#[test]
fn splits_are_megatron_cores() {
    for case in expected("splits.json").as_array().unwrap() {
        let count = case["num_elements"].as_u64().unwrap() as usize;
        let weights = case["split"].as_str().unwrap();
        let parts = split::split(DataRule::MegatronCore, weights, count).unwrap();
        for (part, want) in parts.iter().zip(case["bounds"].as_array().unwrap()) {
            if want.is_null() {
                assert!(part.is_empty(), "{case}");
            } else {
                assert_eq!(integers(&[part.start, part.end]), numbers(want), "{case}");
            }
        }
    }
}

#[test]
fn splits_are_megatron_deepspeeds() {
    for case in expected("megatron_deepspeed_cases.json")["splits"]
        .as_array()
        .unwrap()
    {
        let count = case["num_elements"].as_u64().unwrap() as usize;
        let weights = case["split"].as_str().unwrap();
        let [train, valid, test] =
            split::split(DataRule::MegatronDeepSpeed, weights, count).unwrap();
        let bounds = [train.start, valid.start, test.start, test.end];
        assert_eq!(integers(&bounds), numbers(&case["bounds"]), "{case}");
    }
}

/// Compares one order with what Megatron built; the two generations name the fields differently.
fn check_order(order: &Order, dataset: &Indexed, want: &Value, names: [&str; 3], context: &str) {
    assert_eq!(order.samples(), want["len"].as_u64().unwrap(), "{context}");
    let (sequences, starts) = (order.sequences.to_vec().unwrap(), order.starts.to_vec().unwrap());
    let shuffle = order.shuffle.to_vec().unwrap();
    let lists = [integers(&sequences), integers(starts.as_flattened()), integers(&shuffle)];
    for (list, name) in lists.into_iter().zip(names) {
        let whole = want[name]
            .as_array()
            .or_else(|| want[format!("{name}_index")].as_array());
        if let Some(whole) = whole {
            let flat: Vec<i64> = if whole.first().is_some_and(Value::is_array) {
                whole.iter().flat_map(numbers).collect()
            } else {
                whole.iter().map(|item| item.as_i64().unwrap()).collect()
            };
            assert_eq!(list, flat, "{context} {name}");
        }
        assert_eq!(sha256(list), want[format!("{name}_sha256")], "{context} {name}");
    }
    let samples: Vec<Vec<i64>> = (0..order.samples())
        .map(|k| tokens_of(order, dataset, k))
        .collect();
    for name in ["samples", "samples_head"] {
        for (sample, want) in samples
            .iter()
            .zip(want[name].as_array().into_iter().flatten())
        {
            assert_eq!(*sample, numbers(want), "{context} {name}");
        }
    }
    let all = sha256(samples.into_iter().flatten());
    assert_eq!(all, want["tokens_i64le_sha256"], "{context} tokens");
}

fn check_case(case: &Value, rule: DataRule, names: [&str; 3]) -> usize {
    let dataset = open(case["dataset"].as_str().unwrap());
    let split_weights = case["split"].as_str().unwrap();
    let parts = split::split(rule, split_weights, dataset.sequences()).unwrap();
    let mut compared = 0;
    for (i, (part, name)) in parts.into_iter().zip(split::PARTS).enumerate() {
        let want = &case["splits"][name];
        if want.is_null() {
            continue;
        }
        let spec = OrderSpec {
            rule,
            seq_len: case["seq_length"].as_u64().unwrap() as usize,
            samples: case["num_samples_requested"][i].as_u64(),
            seed: case["seed"].as_u64().unwrap(),
            cut: Cut::default(),
        };
        let context = format!("{} {name}", case["name"]);
        let order = Order::build(&spec, dataset.lengths(), part, &context).unwrap();
        check_order(&order, &dataset, want, names, &context);
        compared += 1;
    }
    compared
}

#[test]
fn samples_come_in_megatron_cores_order() {
    let names = ["document_index", "sample_index", "shuffle_index"];
    let mut compared = 0;
    for case in expected("gpt_dataset_cases.json").as_array().unwrap() {
        compared += check_case(case, DataRule::MegatronCore, names);
    }
    assert_eq!(compared, 20);
}

#[test]
fn samples_come_in_megatron_deepspeeds_order() {
    let names = ["doc_idx", "sample_idx", "shuffle_idx"];
    let mut compared = 0;
    for case in expected("megatron_deepspeed_cases.json")["cases"]
        .as_array()
        .unwrap()
    {
        compared += check_case(case, DataRule::MegatronDeepSpeed, names);
    }
    assert_eq!(compared, 4);
}

#[test]
fn blends_are_megatrons() {
    let cases = expected("blending_kernel.json");
    for case in cases["weighted"].as_array().unwrap() {
        let floats = |name: &str| -> Vec<f64> {
            case[name]
                .as_array()
                .unwrap()
                .iter()
                .map(|w| w.as_f64().unwrap())
                .collect()
        };
        assert_eq!(normalize(&floats("weights")), floats("normalized"));
        let blend = Blend::weighted(&floats("normalized"), case["size"].as_u64().unwrap() as usize);
        check_blend(&blend, case);
    }
    for case in cases["exhaustive"].as_array().unwrap() {
        let sizes: Vec<u64> = numbers(&case["sizes"])
            .iter()
            .map(|size| *size as u64)
            .collect();
        check_blend(&Blend::exhaustive(&sizes), case);
    }
}

fn check_blend(blend: &Blend, want: &Value) {
    let (datasets, samples): (Vec<_>, Vec<_>) = (0..blend.samples())
        .map(|k| blend.sample(k))
        .map(|(d, s)| (d as i64, s as i64))
        .unzip();
    for (list, name) in [(datasets, "dataset_index"), (samples, "dataset_sample_index")] {
        if want[name].is_null() {
            assert_eq!(sha256(list), want[format!("{name}_sha256")]);
        } else {
            assert_eq!(list, numbers(&want[name]));
        }
    }
}

/// One sample's masks, as Megatron-Core writes them: 1 = may not attend.
fn check_masks(case: &Value, masks: &Masks) {
    let mut tokens: Vec<i32> = numbers(&case["tokens"])
        .iter()
        .map(|token| *token as i32)
        .collect();
    let n = tokens.len();
    let (mut weights, mut positions, mut visible) = (vec![0.0; n], vec![0; n], vec![0; 2 * n]);
    let mut targets = vec![0; n];
    let prefixes = match case["prefix_indices"].get(0) {
        Some(Value::Array(prefixes)) => prefixes.clone(),
        Some(prefix) => vec![prefix.clone()],
        None => vec![],
    };
    let eod = masks.eod.map_or(-1, |eod| eod.token as i32);
    let mut starts = vec![0];
    starts.extend((0..n).filter(|t| tokens[*t] == eod).map(|t| t + 1));
    let resets = masks.eod.is_some_and(|eod| eod.reset_attention);
    let draw = |document: u64, choices: u64| {
        let start = if resets { starts[document as usize] as u64 } else { 0 };
        let chosen = prefixes[document as usize].as_u64().unwrap() - start - 1;
        assert!(chosen < choices, "Megatron chose a prefix this never would: {case}");
        chosen
    };
    masks.fill_with(
        draw,
        &mut Sample {
            tokens: &mut tokens,
            targets: &mut targets,
            weights: &mut weights,
            positions: &mut positions,
            visible: &mut visible,
        },
        &[n],
        n,
    );
    assert_eq!(integers(&positions), numbers(&case["position_ids"]), "{case}");
    for (t, row) in case["masked"].as_array().unwrap().iter().enumerate() {
        let seen = visible[2 * t] as usize..visible[2 * t + 1] as usize;
        let masked: Vec<i64> = (0..n).map(|key| !seen.contains(&key) as i64).collect();
        assert_eq!(masked, numbers(row), "query {t} of {case}");
    }
    let counted: Vec<bool> = weights.iter().map(|weight| *weight > 0.0).collect();
    let loss_mask = case["loss_mask"].as_array().unwrap();
    let wanted: Vec<bool> = loss_mask
        .iter()
        .map(|weight| weight.as_f64().unwrap() > 0.0)
        .collect();
    assert_eq!(counted, wanted, "{case}");
    let unit = match masks.objective {
        Objective::Causal => 1.0 / wanted.iter().filter(|counts| **counts).count() as f32,
        Objective::PrefixLm(PrefixLm { loss_on_targets_only: true }) => 2.0 / (n as f32 + 1.0),
        Objective::PrefixLm(PrefixLm { loss_on_targets_only: false }) => 1.0 / n as f32,
    };
    assert!(
        weights
            .iter()
            .all(|weight| *weight == 0.0 || *weight == unit),
        "{weights:?}"
    );
}

#[test]
fn masks_are_megatrons() {
    for file in ["masks_megatron_core.json", "masks_prefix_lm_mds.json"] {
        for case in expected(file)["cases"].as_array().unwrap() {
            let flag = |name: &str| case[name].as_bool().unwrap_or(false);
            let eod = Some(Eod {
                token: case["eod"].as_u64().unwrap() as u32,
                mask_loss: flag("eod_mask_loss"),
                reset_positions: flag("reset_position_ids"),
                reset_attention: flag("reset_attention_mask"),
            });
            let objective = if case["prefix_indices"].is_null() {
                Objective::Causal
            } else {
                let loss_on_targets_only = flag("loss_on_targets_only");
                Objective::PrefixLm(PrefixLm { loss_on_targets_only })
            };
            check_masks(case, &Masks { eod, by_sequence: false, objective, key: 0 });
        }
    }
}

#[test]
fn ranks_read_what_megatrons_sampler_gives_them() {
    for case in expected("samplers.json")["single"].as_array().unwrap() {
        let number = |name: &str| case[name].as_u64().unwrap();
        let (micro, ranks) = (number("micro_batch_size") as usize, number("dp") as usize);
        for (rank, want) in case["ranks"].as_array().unwrap().iter().enumerate() {
            let requests =
                Request::for_rank(number("consumed"), number("total"), micro, ranks, rank);
            let batches: Vec<Vec<i64>> = requests
                .map(|Request { first_sample, samples }| {
                    (first_sample as i64..first_sample as i64 + samples as i64).collect()
                })
                .collect();
            let want: Vec<Vec<i64>> = want.as_array().unwrap().iter().map(numbers).collect();
            assert_eq!(batches, want, "rank {rank} of {case}");
        }
    }
}
