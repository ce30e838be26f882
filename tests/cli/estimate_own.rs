//! gptrain's own plan: the search against every cut asked one by one, and changes in the order that
//! helps, each against its own estimate.

use gptrain::base::Bytes;
use gptrain::estimate::change::ChangeKind;
use gptrain::estimate::gptrain::advisor::{Advisor, Change};
use gptrain::estimate::gptrain::compression::{self, CompressionGain};
use gptrain::estimate::gptrain::dry_run::{self, MemoryLimits};
use gptrain::estimate::gptrain::micro_sums;
use gptrain::estimate::gptrain::stage_times;
use gptrain::estimate::hardware::{Hardware, Link, Links};
use gptrain::estimate::request::{Flags, Request};
use gptrain::estimate::search::{self, Candidate};
use gptrain::estimate::setup::{Extras, Setup};
use gptrain::estimate::verdict::MemoryFit;
use gptrain::manifest::{self, OffloadWhat};
use gptrain::model::parameters;
use std::path::Path;

fn near(a: f64, b: f64, share: f64) {
    assert!((a / b - 1.0).abs() <= share, "{a} is not {b}");
}

const SMALL: &str = "
model: {layers: 8, hidden: 64, heads: 4, vocab: 512, seq_len: 64}
precision: bf16
data: {train: none}
batch: {micro: 1, global: 8}
lr: {peak: 1e-3}
train: {samples: 800}
";

/// The small model with settings, as gptrain would train it; None where the manifest refuses them.
fn planned(sets: &[String]) -> Option<Request> {
    let loaded = manifest::parse(SMALL, "small", std::path::Path::new("."), sets).ok()?;
    let flags = Flags { hardware: Some("a100-80g"), ..Flags::default() };
    Some(Request::new(loaded.manifest, &flags).unwrap_or_else(|problems| panic!("{problems}")))
}

/// Settings of every cut over so many devices, possible or not.
fn every_cut(devices: usize) -> Vec<Vec<String>> {
    let axis = |key: &str, values: &[&str]| -> Vec<String> {
        values
            .iter()
            .map(|value| format!("{key}={value}"))
            .collect()
    };
    let sizes: Vec<String> = (1..=devices).map(|n| n.to_string()).collect();
    let sizes: Vec<&str> = sizes.iter().map(String::as_str).collect();
    let axes = [
        axis("topology.tensor", &sizes),
        axis("topology.pipeline", &sizes),
        axis("topology.data", &sizes),
        axis("batch.micro", &["1", "2", "4", "8"]),
        axis("topology.zero", &["0", "1", "2", "3"]),
        axis("topology.recompute", &["none", "selective", "full"]),
        axis("topology.sequence_parallel", &["false", "true"]),
        axis("topology.schedule", &["1f1b", "interleaved", "interleaved topology.chunks=4"]),
        axis("topology.layer_split", &["uniform", "transformer_and_embedding", "balanced"]),
    ];
    let mut all: Vec<Vec<String>> = vec![Vec::new()];
    for axis in &axes {
        let longer = |cut: &Vec<String>, set: &String| [cut.clone(), vec![set.clone()]].concat();
        all = all
            .iter()
            .flat_map(|cut| axis.iter().map(|set| longer(cut, set)))
            .collect();
        all.retain(|cut| {
            let size = |i: usize| -> Option<usize> { cut.get(i)?.split('=').nth(1)?.parse().ok() };
            let Some(data) = size(2) else { return true };
            let (tensor, pipeline) = (size(0).unwrap(), size(1).unwrap());
            let has = |i: usize, word: &str| cut.get(i).is_some_and(|set| set.contains(word));
            tensor * pipeline * data == devices
                && (tensor > 1 || !has(6, "true"))
                && (pipeline > 1 || !has(7, "interleaved"))
                && (pipeline > 1 || cut.get(8).is_none() || has(8, "uniform"))
                && (data > 1 || !has(4, "=1") && !has(4, "=2") && !has(4, "=3"))
        });
    }
    let words = |cut: Vec<String>| cut.join(" ").split(' ').map(str::to_string).collect();
    all.into_iter().map(words).collect()
}

/// The best cut that the search finds is the best of all legal ones asked one by one, and it says of
/// each what its own estimate says.
#[test]
fn the_search_finds_the_best_of_all_cuts() {
    let request = planned(&[]).unwrap();
    let search = request.search(None, Extras::default());
    let found = search.all(4);
    let estimates = every_cut(4).into_iter().filter_map(|sets| planned(&sets));
    let views: Vec<_> = estimates.map(|cut| cut.view(None)).collect();
    let fit = views.iter().all(|view| view.verdict() == MemoryFit::Fits);
    assert!(views.len() > 200 && fit, "{} cuts", views.len());
    let best = views
        .iter()
        .map(|view| view.seconds)
        .fold(f64::INFINITY, f64::min);
    near(found[0].seconds, best, 1e-9);
    for candidate in found.iter().step_by(17) {
        let sets = search::print::sets(&request.manifest, &candidate.setup);
        let alone = planned(&sets).unwrap_or_else(|| panic!("refused: {sets:?}"));
        let view = alone.view(None);
        near(candidate.seconds, view.seconds, 1e-9);
        near(candidate.bytes, view.reserved, 1e-9);
    }
}

/// The bytes of the formulas, with the bandwidth from which factors cost more than they save.
#[test]
fn compressed_gradients_are_billed_and_advised() {
    let text = std::fs::read_to_string("manifests/bloom-7b1-powersgd.yaml").unwrap();
    let read = |sets: &[&str]| {
        let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
        let loaded = manifest::parse(&text, "7b", Path::new("manifests"), &sets).unwrap();
        Request::new(loaded.manifest, &Flags::default()).unwrap()
    };
    let with = read(&[]);
    let gain = |plan: &Request| {
        CompressionGain::new(&plan.manifest, &plan.setup, &dry_run::stages(&plan.manifest)).unwrap()
    };
    let e = gain(&with);
    let (ranks, h) = (16.0, 4096.0);
    let ring = 2.0 * (ranks - 1.0) / ranks;
    // Factors of rank 4 of a block's matrices [n, m]: qkv, proj, fc1, fc2.
    let factors = 4.0 * 4.0 * h * ((3.0 + 1.0) + (1.0 + 1.0) + (4.0 + 1.0) + (1.0 + 4.0));
    let vectors = 4.0 * h * (4.0 + 3.0 + 1.0 + 4.0 + 1.0);
    let saved = 30.0 * (ring / 2.0 * 4.0 * (12.0 * h * h + vectors / 4.0));
    let spent = 30.0 * ring * (factors + vectors);
    near(e.plain - e.compressed, saved - spent, 1e-4);
    // At that bandwidth both take as long.
    let network = Some(Link { latency_us: 0.0, gb_s: e.break_even / 8.0 });
    let links = Links { network, ..Links::default() };
    let hardware = Box::leak(Box::new(Hardware { links, ..with.setup.hardware.clone() }));
    let setup = Setup { hardware, ..with.setup.clone() };
    let seconds = |sets| stage_times::seconds(&dry_run::stages(&read(sets).manifest), &setup);
    let (ours, plain) = (seconds(&[]), seconds(&["topology.compression=none"]));
    assert!(e.factors > 0.0 && e.break_even > 1.0, "{e:?}");
    near(ours, plain, 1e-6);
    let stages = dry_run::stages(&with.manifest);
    let text = compression::describe(&with.manifest, &with.setup, &stages).unwrap();
    assert!(text.contains("compressed: a rank sends") && text.contains("pays below"), "{text}");
    let none = read(&["topology.compression=none"]);
    assert_eq!(compression::describe(&none.manifest, &none.setup, &stages), None);
    assert_eq!(gain(&none), e, "the same gain, from the plan without");
}

/// Output of `estimate` for the small model on a GPU with this much memory.
fn changes(
    sets: &[&str],
    memory: Option<u64>,
    list: &dyn Fn(&Advisor) -> Vec<Change>,
) -> Vec<Change> {
    let capped = memory.map(|most| format!("train.device_memory={}", Bytes(most).exact()));
    let sets: Vec<String> = sets
        .iter()
        .map(|set| set.to_string())
        .chain(capped)
        .collect();
    let loaded = manifest::parse(SMALL, "small", Path::new("."), &sets).unwrap();
    let flags = Flags { hardware: Some("jean-zay-a100"), ..Flags::default() };
    let request = Request::new(loaded.manifest, &flags).unwrap();
    let Request { manifest, setup, .. } = &request;
    let limits = MemoryLimits::new(manifest, setup.hardware);
    let changes = list(&Advisor { effective: &loaded.effective, manifest, setup, limits });
    for change in &changes {
        // Each is what its own estimate says.
        let alone = manifest::parse(&loaded.effective, "changed", Path::new("."), &change.sets);
        let alone = Request::new(alone.unwrap().manifest, &flags).unwrap();
        let view = alone.view(None);
        near(view.needed, change.bytes.0 as f64, 1e-12);
        let tokens = setup.global as f64 / alone.setup.global as f64;
        near(view.seconds * tokens, change.seconds, 1e-9);
        assert!(change.bytes <= limits.device, "{change:?}");
    }
    changes
}

/// Accumulate, then recompute and shard, then the host, then 8 bits; every kind is there.
#[test]
fn what_does_not_fit_is_mended_in_the_order_that_helps() {
    let sets = ["topology.data=2", "batch.micro=4"];
    let found = changes(&sets, None, &|advisor| advisor.remedies());
    let most = found.iter().map(|change| change.bytes.0).max().unwrap();
    // Less than each of them needs: only pairs are left.
    let kinds: Vec<ChangeKind> = found.iter().map(|change| change.kind).collect();
    assert!(kinds.is_sorted(), "{kinds:?}");
    for kind in
        [ChangeKind::Accumulate, ChangeKind::Shard, ChangeKind::Offload, ChangeKind::Adam8bit]
    {
        assert!(kinds.contains(&kind), "{kind:?} in {found:#?}");
    }
    let least = |list: &[Change]| list.iter().map(|change| change.bytes.0).min().unwrap();
    let under = |most| changes(&sets, Some(most), &|advisor| advisor.remedies());
    // With less room gradients move to the host, too.
    let host = under(least(&found) - 1);
    let pairs = under(least(&host) - 1);
    assert!(!pairs.is_empty() && least(&host) < most);
    let is_topology = |change: &Change| change.what.starts_with("TP 1 ×");
    let is_pair = |change: &Change| change.what.contains(" and ");
    assert!(pairs.iter().any(is_pair), "{pairs:#?}");
    assert!(
        pairs
            .iter()
            .all(|change| is_pair(change) || is_topology(change)),
        "{pairs:#?}"
    );
    let none = changes(&sets, Some(1000), &|advisor| advisor.remedies());
    assert!(none.is_empty(), "{none:#?}");
}

/// Larger steps before compression, which says where it pays; each faster than the plan.
#[test]
fn what_is_slow_is_sped_up_in_the_order_that_helps() {
    let sets = ["topology.data=16", "batch.global=16", "model.hidden=512", "model.vocab=50000"];
    let found =
        changes(&sets, None, &|advisor| advisor.speed_ups(&dry_run::stages(advisor.manifest)));
    let kinds: Vec<ChangeKind> = found.iter().map(|change| change.kind).collect();
    assert!(kinds.is_sorted() && kinds.first() == Some(&ChangeKind::Accumulate), "{found:#?}");
    let last = found.last().unwrap();
    assert!(last.kind == ChangeKind::Compress && last.what.contains("pays below"), "{found:#?}");
    assert_eq!(last.sets, ["topology.compression=powersgd"]);
}

/// Settings that the search tries in addition to the manifest's give the result of an estimate with
/// them.
#[test]
fn a_search_has_the_extras_it_is_given() {
    let request = planned(&["topology.data=4".to_string()]).unwrap();
    let extras = Extras { offload: true, adam8bit: true, powersgd: true };
    let found = request.search(None, extras).all(4);
    let plain = request.search(None, Extras::default()).all(4);
    near(
        found
            .iter()
            .map(|c| c.seconds)
            .fold(f64::INFINITY, f64::min),
        found[0].seconds,
        1e-12,
    );
    assert!(found.len() > 4 * plain.len(), "{} and {}", found.len(), plain.len());
    let sets = |c: &Candidate| search::print::sets(&request.manifest, &c.setup);
    for word in ["adam8bit", "offload", "powersgd", ""] {
        let has = |c: &&Candidate| sets(c).concat().contains(word);
        let of_kind: Vec<&Candidate> = found.iter().filter(has).collect();
        assert!(!of_kind.is_empty(), "{word}");
        for candidate in of_kind.into_iter().step_by(197) {
            let sets = sets(candidate);
            let alone = planned(&sets).unwrap_or_else(|| panic!("refused: {sets:?}"));
            let view = alone.view(None);
            near(candidate.seconds, view.seconds, 1e-9);
            near(candidate.bytes, view.reserved, 1e-9);
        }
    }
}

/// Adafactor's states may wait on the host, Muon's may not: what the search offers, a manifest takes.
#[test]
fn offload_is_tried_with_the_optimizers_that_have_it() {
    for (optimizer, has) in [("adafactor", true), ("muon", false)] {
        let base = format!("optimizer={optimizer}");
        let request = planned(&[base.clone(), "topology.data=2".to_string()]).unwrap();
        let extras = Extras { offload: true, ..Extras::default() };
        let found = request.search(None, extras).all(2);
        let away = |c: &&Candidate| c.setup.topology.offload.what != OffloadWhat::None;
        assert_eq!(found.iter().any(|c| away(&c)), has, "{optimizer}");
        for candidate in found.iter().filter(away).step_by(37) {
            let sets = search::print::sets(&request.manifest, &candidate.setup);
            let sets = [&sets[..], std::slice::from_ref(&base)].concat();
            let alone = planned(&sets).unwrap_or_else(|| panic!("refused: {sets:?}"));
            near(candidate.bytes, alone.view(None).reserved, 1e-9);
        }
    }
}

/// A device that holds no cut of the model without 8-bit moments or the host's memory.
#[test]
fn where_nothing_fits_the_search_says_what_would() {
    let mut request = planned(&["model.hidden=512".to_string()]).unwrap();
    let search = request.search(None, Extras::default());
    let least = search
        .all(1)
        .iter()
        .map(|c| c.bytes)
        .fold(f64::INFINITY, f64::min);
    assert!(!search.rank(1).unwrap().only_smaller);
    let around = request.setup.hardware.context_mib * 1048576.0;
    request.manifest.train.device_memory = Some(Bytes((least - around) as u64 - 1));
    let found = request.search(None, Extras::default()).rank(1).unwrap();
    let best = &found.best[0].candidate;
    assert!(found.only_smaller && best.bytes < least);
}

/// The largest model keeps the proportions of the manifest's: SwiGLU's width, and groups of heads.
#[test]
fn the_largest_model_has_the_manifests_proportions() {
    let text = std::fs::read_to_string("manifests/llama3-8b.yaml").unwrap();
    let loaded = manifest::parse(&text, "8b", Path::new("manifests"), &[]).unwrap();
    let flags = Flags { hardware: Some("h100-80g"), ..Flags::default() };
    let request = Request::new(loaded.manifest, &flags).unwrap();
    let found = request.search(None, Extras::default()).largest(2).unwrap();
    let (model, own) = (&found.best.setup.model, &request.manifest.model);
    let ratio = |m: &manifest::Model| m.ffn_hidden as f64 / m.hidden as f64;
    near(ratio(model), ratio(own), 0.05);
    assert_eq!(model.heads / model.heads().kv, own.heads / own.heads().kv);
    assert!(parameters(model) > 4_000_000_000, "{model:?}");
    let deeper = model.layers as f64 / model.hidden as f64;
    near(deeper, own.layers as f64 / own.hidden as f64, 0.3);
}

/// ZeRO 2 and 3 send in every micro-batch: the plan says how much of it is waited for, and the size of a
/// micro-batch that it names hides nearly all.
#[test]
fn sums_of_every_micro_batch_hide_in_the_size_that_is_named() {
    let model = "model={layers: 16, hidden: 4096, heads: 32, vocab: 50304, seq_len: 2048}";
    let described = |sets: &[&str]| {
        let sets = [&[model, "batch.global=512"], sets].concat();
        let planned = planned(&sets.into_iter().map(str::to_string).collect::<Vec<_>>()).unwrap();
        let stages = dry_run::stages(&planned.manifest);
        micro_sums::describe(&planned.manifest, &planned.setup, &stages)
    };
    let pipeline = ["topology={tensor: 4, pipeline: 2, data: 4, zero: 2}"];
    let line = described(&pipeline).concat();
    assert!(line.contains("ZeRO 2 sums gradients between replicas in every micro-batch"), "{line}");
    let (_, named) = line.split_once("(here 2,048, batch.micro=").unwrap();
    let micro: usize = named.trim_end_matches(')').parse().unwrap();
    assert!(micro > 1, "{line}");
    let larger = described(&[pipeline[0], &format!("batch.micro={micro}")]);
    assert!(larger.is_empty(), "{line}{larger:?}");
    let sharded = described(&["topology={data: 16, zero: 3}", "model.seq_len=512"]).concat();
    assert!(sharded.contains("ZeRO 3 sums gradients and gathers weights"), "{sharded}");
    // Once a step, or within a node.
    let none = Vec::<String>::new();
    assert_eq!(described(&["topology={tensor: 4, pipeline: 2, data: 4, zero: 1}"]), none);
    assert_eq!(described(&["topology={data: 8, zero: 2}"]), none);
    // Two windows of a block's size are all of a stage of two blocks.
    let small = described(&["topology={pipeline: 8, data: 2, zero: 2}"]).concat();
    assert!(small.contains("ZeRO 2 saves no memory here"), "{small}");
    // Breadth first, the named number of micro-batches sends half as much, and is named until it is all.
    let first =
        "topology={tensor: 4, pipeline: 2, data: 4, zero: 2, schedule: breadth_first, chunks: 4}";
    let seconds = |sets: &[&str]| {
        let sets = [&[model, "batch.global=512"], sets].concat();
        let planned = planned(&sets.into_iter().map(str::to_string).collect::<Vec<_>>()).unwrap();
        stage_times::seconds(&dry_run::stages(&planned.manifest), &planned.setup)
    };
    let named = |line: &str| {
        let (_, named) = line.split_once("with topology.zero_every=").unwrap();
        named.split_once(" half of both").unwrap().0.to_string()
    };
    let mut slower = seconds(&[first]);
    let mut line = described(&[first]).concat();
    for every in [2, 4] {
        assert_eq!(named(&line), every.to_string(), "{line}");
        let set = format!("topology.zero_every={every}");
        line = described(&[first, &set]).concat();
        assert!(line.contains(&format!("every {every} micro-batches")), "{line}");
        let faster = seconds(&[first, &set]);
        assert!(faster < slower, "{set}: {faster} s, not below {slower} s");
        slower = faster;
    }
    // Two of three chunks and half of the weights are more than the whole.
    let shards = "topology={pipeline: 2, data: 2, zero: 3, schedule: breadth_first, chunks: 4}";
    assert_eq!(described(&[shards, "topology.data=8"]), none);
    let few = described(&[shards, "topology.chunks=3", "model.layers=18"]).concat();
    assert!(few.contains("ZeRO 3 saves no memory here"), "{few}");
}
