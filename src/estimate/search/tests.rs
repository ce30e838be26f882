//! A search's answer is that of judging every cut.

use super::*;
use crate::gptrain::stage_times;
use crate::hardware::{self, Hardware};
use crate::setup::Program;
use manifest::Shard;

fn manifest(sets: &[&str]) -> Manifest {
    let text = "
model: {layers: 6, hidden: 512, heads: 8, vocab: 4000, seq_len: 256}
precision: bf16
data: {train: none}
batch: {micro: 1, global: 16}
lr: {peak: 1e-3}
train: {samples: 8000}
";
    manifest::for_test(text, sets)
}

const SMALL: &str = "train.device_memory=300MiB";

/// All fields of the best cuts, whether anything fits, and that no bound is above what it bounds.
fn check(sets: &[&str], hardware: &str, devices: usize, extras: Extras) {
    let m = manifest(sets);
    let hw = hardware::find(hardware, "test").unwrap();
    let setup = Setup::new(&m, Program::Gptrain, hw);
    let planner = Planner::new(&m, &setup, None);
    let search = Search::new(planner, &setup, m.batch.ramp(), m.train.samples, extras);
    let cuts = search.cuts(devices);
    let each = cuts.par_iter().enumerate();
    let mut all: Vec<Evaluated> = each
        .filter_map(|(i, cut)| planner.evaluate(cut, i))
        .collect();
    let what = format!("{sets:?} on {devices} {hardware}, {extras:?}");
    assert!(all.len() < cuts.len() || extras == Extras::default(), "all fit: {what}");
    for Evaluated { candidate: c, number, .. } in &all {
        let bound = search
            .bound(&cuts[*number])
            .unwrap_or_else(|| panic!("{c:?} of {what}"));
        assert!(bound.seconds <= c.seconds, "{bound:?}, {c:?} of {what}");
        assert!(bound.bytes as f64 <= c.bytes, "{bound:?}, {c:?} of {what}");
    }
    all.sort_by(|a, b| a.candidate.seconds.total_cmp(&b.candidate.seconds));
    let shown = |all: &[Evaluated]| -> Vec<String> {
        all.iter()
            .map(|evaluated| format!("{} {:?}", evaluated.number, evaluated.candidate))
            .collect()
    };
    let found = search.find_fastest(devices, BEST);
    assert_eq!(shown(&found), shown(&all[..all.len().min(BEST)]), "{what}");
    assert_eq!(search.any_fits(devices), !all.is_empty(), "{what}");
}

#[test]
fn a_search_finds_what_judging_every_cut_finds() {
    let none = Extras::default();
    check(&[], "h100-80g", 4, none);
    check(&[SMALL], "h100-80g", 8, none);
    check(&[SMALL, "batch.ramp_up=8 8 800"], "a100-40g", 4, none);
    check(&[SMALL, "optimizer=adafactor"], "a100-40g", 4, none);
    check(&[SMALL, "optimizer=muon"], "a100-40g", 4, none);
    check(&[SMALL, "precision=fp8", "model.window=64"], "h100-80g", 4, none);
    let mixed = "model.pattern=[window, full]";
    check(&[SMALL, "model.window=64", mixed], "h100-80g", 4, none);
    let llama = "model={family: llama, layers: 5, hidden: 512, heads: 8, kv_heads: 4, vocab: 4000, \
                 seq_len: 256}";
    check(&[SMALL, llama, "topology.overlap_p2p=true"], "h100-80g", 4, none);
    check(&["train.device_memory=40MiB"], "h100-80g", 4, none);
}

#[test]
fn the_same_with_all_that_saves_memory() {
    let all = Extras { offload: true, adam8bit: true, powersgd: true };
    check(&["train.device_memory=120MiB"], "h100-80g", 4, all);
    check(&["train.device_memory=90MiB"], "v100-16g", 2, all);
}

/// The ranking is in the order of its title, and the simplest of all cuts that are as fast is named.
#[test]
fn the_fastest_is_first_and_the_simplest_is_named() {
    for sets in [&[][..], &[SMALL]] {
        let m = manifest(sets);
        let setup = Setup::new(&m, Program::Gptrain, hardware::find("h100-80g", "test").unwrap());
        let planner = Planner::new(&m, &setup, None);
        let extras = Extras::default();
        let search = Search::new(planner, &setup, m.batch.ramp(), m.train.samples, extras);
        let found = search.rank(8).unwrap();
        let cuts = search.cuts(8);
        assert_eq!(found.cuts, cuts.len());
        let each = cuts.par_iter().enumerate();
        let all: Vec<Evaluated> = each
            .filter_map(|(i, cut)| planner.evaluate(cut, i))
            .collect();
        let all: Vec<Planned> = all
            .into_iter()
            .map(|one| search.plan_candidate(one))
            .collect();
        let fastest = all
            .iter()
            .map(|p| p.days.seconds)
            .fold(f64::INFINITY, f64::min);
        let first = &found.best[0];
        let near = fastest * (1.0 + simplest::TIE);
        assert_eq!(first.days.seconds, fastest);
        assert!(found.best.is_sorted_by_key(|p| p.days.seconds));
        let room = 0.9 * 80.0 * crate::view::GIB;
        let equal = |p: &&Planned| p.days.seconds <= near && p.candidate.bytes <= room;
        let order = |p: &Planned| simplest::splits_key(&p.candidate.setup);
        let named = found.simplest.as_ref().unwrap_or(first);
        assert!(named.days.seconds <= near);
        let simpler = all.iter().filter(equal).find(|p| order(p) < order(named));
        assert!(simpler.is_none(), "{simpler:?} before {named:?}");
        assert!((1..=found.best.len()).contains(&found.equal));
    }
}

/// The setting that excludes every cut is named, and none where a cut exists.
#[test]
fn a_setting_that_excludes_every_cut_is_named() {
    let said = |sets: &[&str], devices: usize| {
        let m = manifest(sets);
        let setup = Setup::new(&m, Program::Gptrain, hardware::find("h100-80g", "test").unwrap());
        let planner = Planner::new(&m, &setup, None);
        let extras = Extras::default();
        let search = Search::new(planner, &setup, m.batch.ramp(), m.train.samples, extras);
        search.exclusion(devices)
    };
    assert_eq!(said(&[], 8), None);
    let odd = ["model.heads=3", "model.hidden=48", "model.layers=1", "batch.global=4"];
    let heads = said(&odd, 8).unwrap();
    assert!(heads.contains("model.heads 3") && heads.contains("batch.global 4"), "{heads}");
    let ramp = said(&["model.layers=1", "batch.ramp_up=1 1 800", "model.heads=4"], 8).unwrap();
    assert!(ramp.contains("batch.ramp_up 1 to 16 by 1"), "{ramp}");
}

/// Each batch of a ramp-up takes the time of a plan of such steps alone, whose events are timed afresh.
#[test]
fn batches_of_a_ramp_up_are_planned_as_runs_of_such_batches() {
    let m = manifest(&["batch.ramp_up=4 4 800"]);
    let setup = Setup::new(&m, Program::Gptrain, hardware::find("h100-80g", "test").unwrap());
    let planner = Planner::new(&m, &setup, None);
    let (ramp, extras) = (m.batch.ramp(), Extras::default());
    let search = Search::new(planner, &setup, ramp, m.train.samples, extras);
    let all = search.find_fastest(4, usize::MAX);
    let mut steps = std::collections::BTreeSet::new();
    for evaluated in all.into_iter().step_by(7) {
        let planned = search.plan_candidate(evaluated);
        for segment in &planned.days.segments {
            let alone = Setup { global: segment.global, ..planned.candidate.setup.clone() };
            let stages = dry_run::stages(&cuts::manifest(&m, &alone));
            let seconds = stage_times::seconds(&stages, &alone);
            assert_eq!(segment.seconds, seconds, "{alone:?}");
            steps.insert(segment.global);
        }
    }
    assert_eq!(steps, [4, 8, 12, 16].into(), "batches of the ramp-up");
}

/// Tensor ranks and shard groups reach as far as fast links join ranks: on an NVL72 over its nodes of 4.
#[test]
fn fast_links_bound_tensor_ranks_and_shard_groups() {
    let m = manifest(&["model.heads=16", "batch.global=2304"]);
    let on = |name: &str, joined: Option<usize>| {
        let hw = hardware::find(name, "test").unwrap();
        let hw = Hardware { link_domain: joined.unwrap_or(hw.link_domain), ..hw.clone() }.leak();
        Setup::new(&m, Program::Gptrain, hw)
    };
    let widest = |s: &Setup, devices: usize| s.grids(devices).iter().map(|grid| grid.0).max();
    let rack = on("gb200-186g", None);
    // 16 ranks are not a part of 72, but all of 64 are in one domain.
    assert_eq!([64, 72, 144, 1152].map(|n| widest(&rack, n)), [16, 8, 8, 8].map(Some));
    assert_eq!(widest(&rack, 36), Some(4));
    let node = on("gb200-186g", Some(0));
    assert_eq!([64, 72, 144].map(|n| widest(&node, n)), [4, 4, 4].map(Some));
    assert_eq!([64, 72].map(|n| widest(&on("h100-80g", None), n)), [8, 8].map(Some));

    let groups = |s: &Setup, data: usize| {
        let s = s.clone().with_topology(|t| t.data = data);
        assert_eq!(cuts::shard_groups(&s, 1), [Shard::All]);
        cuts::shard_groups(&s, 3).get(1).copied()
    };
    let of = |ranks: usize| Some(Shard::Ranks(ranks));
    assert_eq!([64, 72, 144, 160].map(|n| groups(&rack, n)), [None, None, of(72), of(4)]);
    assert_eq!([4, 64, 144].map(|n| groups(&node, n)), [None, of(4), of(4)]);

    let proposed = |s: &Setup| {
        let s = s.clone().with_topology(|t| (t.tensor, t.data) = (4, 16));
        let proposals = crate::change::propose_smaller(&s);
        proposals.iter().any(|p| p.setup.topology.tensor == 8)
    };
    assert_eq!([&rack, &node].map(proposed), [true, false]);
}

/// Another program's cuts with a pipeline have the ZeRO levels that it has there.
#[test]
fn pipelines_of_other_programs_have_their_levels() {
    let m = manifest(&[]);
    for (name, levels) in [
        ("torchtitan", &[1][..]),
        ("paxml", &[0]),
        ("nemo", &[0, 1]),
        ("deepspeed-zero3", &[]),
        ("ddp", &[]),
    ] {
        let program = Program::Other(crate::trainers::lookup(name).unwrap());
        let setup = Setup::new(&m, program, hardware::find("h100-80g", "test").unwrap());
        let cuts = other_programs::cuts(&m, &setup, m.batch.ramp(), 8);
        let piped = cuts
            .iter()
            .map(|cut| &cut.topology)
            .filter(|t| t.pipeline > 1 && t.data > 1);
        let found: std::collections::BTreeSet<u8> = piped.map(|t| t.zero).collect();
        assert!(found.iter().eq(levels), "{name}: {found:?}");
    }
}
