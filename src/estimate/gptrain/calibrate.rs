//! Constants of gptrain's own plan, learned from what `gptrain bench` measured of a machine: the
//! shares of peak and memory bandwidth that the kernels reach, the links' latency α and bandwidth β (a
//! message of n bytes takes α + n/β), and the copies to and from the host; or its slowdown, learned from
//! the steps of a real run. What a file does not measure keeps the table's figure.

use super::local_cpu::uncertainty_on_busy;
use super::prices::Prices;
use super::{drift, dry_run, stage_times};
use crate::hardware::{HOST_SHARE, Hardware, Link, Links, Shares};
use crate::logs::Log;
use crate::measured::{GroupSpeed, LATENCY_BYTES, Measured};
use crate::parts::{Part, PartSeconds, PartTable};
use crate::setup::Setup;
use base::Problems;
use device::Work;
use manifest::Manifest;
use plan::robust::{NORMAL, median};
use std::collections::{BTreeMap, BTreeSet};

/// The plan's setup, with what was measured in place of the hardware table's constants. `name` is
/// the document's file.
pub fn learn(found: &Measured, name: &str, m: &Manifest, setup: Setup) -> Result<Setup, Problems> {
    let hw = setup.hardware;
    let same = |name: &str| name == hw.name || name == hw.measured_as();
    if let Some(other) = found.hardware.as_ref().filter(|other| !same(other)) {
        return Err(Problems::one(
            name,
            format!("was measured on {other}, and the plan is for {}", hw.name),
            format!("say --hardware {other}, or measure the other machine"),
        ));
    }
    if found.precision != m.precision {
        let its = found.precision.name();
        let ours = m.precision.name();
        return Err(Problems::one(
            name,
            format!("was measured in {its}, and the plan is in {ours}"),
            format!("gptrain bench MANIFEST --set precision={ours} --json"),
        ));
    }
    let products = found.ranks.iter().map(|rank| rank.block_tflops());
    let copies = found.ranks.iter().map(|rank| rank.device_copy_gb_s);
    let memory_share = median(copies) / hw.hbm_gb_s;
    // Ranks that share the processor at hand were measured at once, and plans divide it again.
    let sharing = if hw.is_local { found.ranks.len() as f64 } else { 1.0 };
    let product_share = median(products) / hw.peak_tflops;
    // The measured products have the plan's own sides.
    let shares =
        Shares { products: product_share, half_side: 0.0, ..hw.shares().divide_among(sharing) };
    let shares = Shares { memory: memory_share, ..shares };
    let learned = Hardware {
        product_share: product_share * sharing,
        product_half_side: 0.0,
        memory_share: memory_share * sharing,
        ops: ops(found, hw, shares),
        host_gb_s: host(found).map_or(hw.host_gb_s, |measured| measured / HOST_SHARE),
        link_gb_s: transfers(found).unwrap_or(hw.link_gb_s),
        links: Links { bus: link(found, true), network: link(found, false), ring: ring(found) },
        measured_devices: found.ranks.len(),
        uncertainty: uncertainty_on_busy(found.busy_share, 1.0),
        ..hw.clone()
    };
    let per_node = found
        .per_node()
        .unwrap_or_else(|ranks| ranks.max(setup.per_node));
    Ok(Setup { hardware: learned.leak(), per_node, ..setup })
}

/// Factor of each op over the seconds by the shares, of the median rank; the table's factors without
/// measurements.
fn ops(found: &Measured, hw: &Hardware, shares: Shares) -> BTreeMap<String, f64> {
    let plain = Hardware { ops: BTreeMap::new(), ..hw.clone() };
    let mut factors: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for op in found.ranks.iter().flat_map(|rank| &rank.ops) {
        let calls = op.calls;
        let flops = op.flops;
        let bytes = op.bytes;
        let work = Work { calls, flops, bytes, flops_by_side: 0.0 };
        let planned = plain.seconds(&op.name, &work, shares);
        let seconds = op.seconds - calls * hw.launch_us * 1e-6;
        if planned > 0.0 {
            let factor = (seconds / planned).max(LEAST_FACTOR);
            factors.entry(&op.name).or_default().push(factor);
        }
    }
    if factors.is_empty() {
        return hw.ops.clone();
    }
    factors
        .into_iter()
        .map(|(name, each)| (name.to_string(), median(each)))
        .collect()
}

/// Least factor of an op: its launches may be cheaper than the table says.
const LEAST_FACTOR: f64 = 0.05;

/// GB/s at which the ranks of a node copy within its memory, all at once: the median node. None if
/// the copy on the device is the same.
fn host(found: &Measured) -> Option<f64> {
    let separate = found.ranks.iter().any(|rank| rank.upload_gb_s.is_some());
    let mut nodes: BTreeMap<&str, f64> = BTreeMap::new();
    for rank in &found.ranks {
        *nodes.entry(&rank.node).or_default() += rank.host_copy_gb_s;
    }
    separate.then(|| median(nodes.into_values()))
}

/// GB/s between a device and its host, in the slower direction: the median rank.
fn transfers(found: &Measured) -> Option<f64> {
    let rate = median(
        found
            .ranks
            .iter()
            .filter_map(|rank| Some(rank.upload_gb_s?.min(rank.download_gb_s?))),
    );
    rate.is_finite().then_some(rate)
}

/// Setup of the plan with two factors of a run of `m`: measured by planned seconds of each part, if the run
/// has measured them; and its slowdown, the median over its steps of measured by then planned time. Also
/// returns a summary in one line. `setup` is that run's, `name` the log's file.
pub fn slowdown(
    log: &Log,
    name: &str,
    m: &Manifest,
    mut setup: Setup,
) -> Result<(Setup, String), Problems> {
    let stages = dry_run::stages(m);
    let turns = log.parts.as_ref().and_then(|_| shared_processors(&setup));
    let table = log.parts.as_ref().filter(|_| turns.is_none());
    let parts = table.map(|table| part_factors(table, &stages, &setup));
    if let Some(parts) = parts {
        setup.hardware = Hardware { parts, ..setup.hardware.clone() }.leak();
    }
    let mut planned: BTreeMap<usize, f64> = BTreeMap::new();
    let mut ratio = |(batch, seconds): &(usize, f64)| {
        seconds
            / *planned.entry(*batch).or_insert_with(|| {
                stage_times::seconds(&stages, &Setup { global: *batch, ..setup.clone() })
            })
    };
    let ratios: Vec<f64> = log.steps.iter().map(&mut ratio).collect();
    let slowdown = median(ratios.iter().copied());
    if !(slowdown.is_finite() && slowdown > 0.0) {
        return Err(Problems::one(
            name,
            "its steps have no times above zero",
            "give the metrics.jsonl or the log of a run of this manifest",
        ));
    }
    let scatter = NORMAL * median(ratios.iter().map(|ratio| (ratio / slowdown - 1.0).abs()));
    let name = &setup.hardware.name;
    let steps = ratios.len();
    let mut line = format!(
        "learned from {steps} steps: they took {slowdown:.2} times what is planned for {name}"
    );
    if let Some(parts) = &parts {
        let factors = Part::ALL
            .iter()
            .map(|(part, name)| (name, parts[*part as usize]));
        let learned = factors.filter(|(_, factor)| *factor != 1.0);
        let named: Vec<String> = learned
            .map(|(name, factor)| format!("{name} {factor:.2}"))
            .collect();
        line += &format!(", after each part's own factor: {}", named.join(", "));
    }
    if let Some(processors) = turns {
        line += &format!(", and no part's factor: its ranks took turns at {processors} processors");
    }
    let hw = setup.hardware;
    let slowdown = hw.slowdown * slowdown;
    let learned = Hardware {
        slowdown,
        scatter,
        uncertainty: LEARNED,
        measured_devices: setup.ranks(),
        ..hw.clone()
    };
    Ok((Setup { hardware: learned.leak(), ..setup }, line))
}

/// Number of processors, if they are fewer than the ranks that share them: an op then has a whole one, and
/// the turns of other ranks count as waits for messages. Plans divide the processors instead.
fn shared_processors(setup: &Setup) -> Option<usize> {
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    (setup.hardware.is_local && setup.ranks() > processors).then_some(processors)
}

/// Share of a step below which a part's factor is not learned.
const SMALL: f64 = 0.01;

/// Measured seconds of each part by the planned ones. 1 for a part that is small, and for messages that
/// overlap computation: their exposed time is not proportional to them. So is a pipeline's bubble.
fn part_factors(table: &PartTable, stages: &[dry_run::Stage], setup: &Setup) -> PartSeconds {
    let setup = Setup { global: table.batch, ..setup.clone() };
    let planned = drift::by_part(stages, &setup, 0);
    let step: f64 = planned.iter().sum();
    let exposed = !Prices::new(&setup).overlaps();
    Part::ALL.map(|(part, _)| {
        let (planned, (_, measured)) = (planned[part as usize], table.row(part));
        let learned = match part {
            Part::Tensor | Part::Data => exposed,
            Part::Pipeline => false,
            _ => true,
        };
        let large = planned > SMALL * step && measured > SMALL * table.total().measured;
        if learned && large { measured / planned } else { 1.0 }
    })
}

/// Half the error of a plan with a learned slowdown, if its topology differs from the measured run's.
const LEARNED: f64 = 0.05;

/// Summary of the calibration from a document, in one line.
pub fn line(found: &Measured, setup: &Setup) -> String {
    let hw = setup.hardware;
    let mut line = format!(
        "learned: products {:.1} % of {}'s peak, memory {:.1} % of its bandwidth",
        100.0 * hw.product_share,
        hw.name,
        100.0 * hw.memory_share
    );
    if transfers(found).is_some() {
        line += &format!(", {:.3} GB/s to the host", hw.link_gb_s);
    }
    for (link, place) in [(hw.links.bus, "within a node"), (hw.links.network, "between nodes")] {
        if let Some(Link { latency_us, gb_s }) = link {
            line += &format!(", {gb_s:.3} GB/s and {latency_us:.1} µs {place}");
        }
    }
    if found.busy_share > 0.0 {
        line += &format!(
            "; measured while other programs had {:.0} % of the machine, so the bar is wider",
            100.0 * found.busy_share
        );
    }
    line
}

/// Link of the groups within a node, or across nodes: the median over groups and ops of the bus bandwidth
/// at their largest size, and of the time of the smallest messages. None without measurements.
fn link(found: &Measured, in_node: bool) -> Option<Link> {
    let rows = || found.groups.iter().filter(|row| row.in_node == in_node);
    let messages = rows().filter(|row| row.op == "send_recv" && row.bytes == LATENCY_BYTES);
    let latencies = messages.map(|row| 1e6 * row.seconds);
    let large = rows()
        .filter(|row| row.bytes > LATENCY_BYTES)
        .filter(|row| {
            found
                .groups
                .iter()
                .filter(|other| (&other.group, &other.op) == (&row.group, &row.op))
                .all(|other| other.bytes <= row.bytes)
        });
    let bandwidths = large.map(|row| row.busbw_gb_s);
    let latency_us = median(latencies);
    let gb_s = median(bandwidths);
    (latency_us.is_finite() && gb_s.is_finite()).then_some(Link { latency_us, gb_s })
}

/// Link of a rank in a ring of replicas over nodes: the bus bandwidth of the collectives of the kind `data`
/// at their largest size, the median over ops; and the number of measured nodes. None without measurements.
fn ring(found: &Measured) -> Option<(Link, usize)> {
    let sums = |row: &&GroupSpeed| !row.in_node && row.group == "data" && row.op != "send_recv";
    let most = found
        .groups
        .iter()
        .filter(sums)
        .map(|row| row.bytes)
        .max()?;
    let largest = found
        .groups
        .iter()
        .filter(sums)
        .filter(|row| row.bytes == most);
    let gb_s = median(largest.map(|row| row.busbw_gb_s));
    let latency_us = link(found, false).map_or(0.0, |link| link.latency_us);
    let nodes: BTreeSet<&str> = found.ranks.iter().map(|rank| &*rank.node).collect();
    (most > LATENCY_BYTES).then_some((Link { latency_us, gb_s }, nodes.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gptrain::stage_times::StageTimes;
    use crate::hardware;
    use crate::logs;
    use crate::measured::RankSpeeds;
    use crate::measured::{FORMAT, Product};
    use crate::setup::Program;
    use serde_json::json;

    const TEXT: &str = "
model: {layers: 4, hidden: 16, heads: 4, vocab: 60, seq_len: 8}
data: {train: none}
batch: {micro: 2, global: 32}
lr: {peak: 1e-3}
train: {samples: 800}
";

    fn planned(sets: &[&str]) -> Manifest {
        manifest::for_test(TEXT, sets)
    }

    fn product(tflops: f64, m: usize) -> Product {
        Product { name: "qkv".into(), m, n: 1000, k: 1000, tflops }
    }

    fn rank(rank: usize, node: &str, copy: f64) -> RankSpeeds {
        RankSpeeds {
            rank,
            node: node.into(),
            place: String::new(),
            device: String::new(),
            // 2 and 6 GFLOP at 0.1 and 0.3 TFLOP/s: 40 ms for 8 GFLOP.
            products: vec![product(0.1, 1000), product(0.3, 3000)],
            cube: product(9.0, 1000),
            device_copy_gb_s: copy,
            host_copy_gb_s: 1.0,
            upload_gb_s: None,
            download_gb_s: None,
            file_write_gb_s: 1.0,
            file_read_gb_s: 1.0,
            file_access: String::new(),
            ops: Vec::new(),
        }
    }

    fn row(in_node: bool, op: &str, bytes: u64, seconds: f64, busbw: f64) -> GroupSpeed {
        GroupSpeed {
            group: if in_node { "tensor" } else { "data" }.into(),
            size: 2,
            groups: 2,
            in_node,
            op: op.into(),
            bytes,
            seconds,
            algbw_gb_s: busbw,
            busbw_gb_s: busbw,
            slowest: vec![0, 1],
        }
    }

    fn measured() -> Measured {
        Measured {
            format: FORMAT.into(),
            manifest: "test".into(),
            precision: manifest::Precision::F32,
            hardware: None,
            quick: false,
            seconds: 10.0,
            ranks: vec![rank(0, "a", 8.0), rank(1, "a", 10.0), rank(2, "b", 15.0)],
            groups: vec![
                row(true, "send_recv", 1024, 7e-6, 0.1),
                row(true, "send_recv", 1 << 20, 1.0, 3.0),
                row(true, "send_recv", 1 << 22, 1.0, 4.0),
                row(true, "all_reduce", 1024, 9e-6, 0.1),
                row(true, "all_reduce", 1 << 22, 1.0, 6.0),
                row(false, "send_recv", 1024, 30e-6, 0.1),
                row(false, "all_gather", 1 << 20, 1.0, 0.5),
                GroupSpeed {
                    group: "pipeline edge".into(),
                    ..row(false, "send_recv", 1 << 20, 1.0, 0.9)
                },
                GroupSpeed { group: "world".into(), ..row(false, "all_reduce", 1 << 20, 1.0, 0.7) },
            ],
            units: "nodes".into(),
            pairs: Vec::new(),
            slow: Vec::new(),
            busy_share: 0.0,
            notes: Vec::new(),
            changes: Vec::new(),
            soak: Vec::new(),
        }
    }

    fn setup(m: &Manifest) -> Setup {
        Setup::new(m, Program::Gptrain, hardware::find("cpu", "test").unwrap())
    }

    fn near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-12, "{found}, not {expected}");
    }

    #[test]
    fn shares_and_links_are_those_of_the_document() {
        let m = planned(&["topology={tensor: 2, data: 2}"]);
        let learned = learn(&measured(), "bench.json", &m, setup(&m)).unwrap();
        let hw = learned.hardware;
        near(hw.product_share, 0.2 / 0.4); // 8 GFLOP in 40 ms, of 0.4 TFLOP/s
        near(hw.memory_share, 10.0 / 20.0); // the middle one of 8, 10, 15 GB/s
        near(hw.links.bus.unwrap().latency_us, 7.0);
        near(hw.links.bus.unwrap().gb_s, 5.0); // between 4 and 6, at the largest sizes
        let network = hw.links.network.unwrap();
        near(network.latency_us, 30.0);
        near(network.gb_s, 0.7); // between 0.5 and 0.9
        let (ring, nodes) = hw.links.ring.unwrap();
        near(ring.gb_s, 0.5); // the gather's, not the message's
        assert_eq!((ring.latency_us, nodes), (network.latency_us, 2));
        assert_eq!(learned.per_node, 2);
    }

    /// Every part of a step's time, by hand from what the engine counted.
    #[test]
    fn the_plan_follows_the_learned_figures() {
        let m = planned(&["topology={tensor: 2, data: 2}"]);
        let learned = learn(&measured(), "bench.json", &m, setup(&m)).unwrap();
        let stages = dry_run::stages(&m);
        let parts = StageTimes::new(&stages, &learned).parts(learned.micros());
        let part = |name: &str| parts.iter().find(|(part, _)| *part == name).unwrap().1;
        let work = &stages[0].work;
        let micros = 8.0;
        let gemm = work.micro.ops["gemm"];
        let products = (gemm.flops / 0.2e12).max(gemm.bytes / 10e9) + gemm.calls * 5e-6;
        near(part("matrix products"), micros * products);
        let sums = |work: &dry_run::Workload, groups: &[&str], alpha: f64, beta: f64| -> f64 {
            let of = work
                .messages
                .iter()
                .filter(|((group, _), _)| groups.contains(group));
            of.map(|(_, sent)| sent.calls * alpha + sent.bytes / beta)
                .sum()
        };
        let tensor = sums(&work.micro, &["tensor", "tp_async"], 7e-6, 5e9);
        assert!(tensor > 0.0);
        near(part("tensor parallel"), micros * tensor);
        let data = sums(&work.step, &[comm::GRAD_SUM], 30e-6, 0.5e9);
        assert!(data > 30e-6);
        near(part("once a step: sums"), data);
    }

    /// A node's ranks copy at once; transfers are in the slower direction. A CPU has none.
    #[test]
    fn host_and_transfers_are_those_of_the_document() {
        let m = planned(&[]);
        let mut gpus = measured();
        for (rank, (up, down)) in gpus
            .ranks
            .iter_mut()
            .zip([(9.0, 8.0), (7.0, 9.0), (6.0, 30.0)])
        {
            (rank.upload_gb_s, rank.download_gb_s) = (Some(up), Some(down));
            rank.host_copy_gb_s = 12.0;
        }
        let learned = learn(&gpus, "bench.json", &m, setup(&m)).unwrap().hardware;
        near(learned.link_gb_s, 7.0);
        near(learned.host_gb_s * HOST_SHARE, 18.0); // of 24 and 12
        let without = learn(&measured(), "bench.json", &m, setup(&m))
            .unwrap()
            .hardware;
        near(without.link_gb_s, 10.0);
        near(without.host_gb_s * HOST_SHARE, 20.0 * 0.7);
    }

    /// A machine half as fast as planned: twice the seconds, and bytes as before.
    #[test]
    fn the_pace_of_a_run_shows_in_its_plan() {
        let m = planned(&["topology={tensor: 2, data: 2}"]);
        let stages = dry_run::stages(&m);
        let base = setup(&m);
        let half = 2.0 * stage_times::seconds(&stages, &base);
        let line = |step: usize, sec: f64| {
            format!("{{\"step\":{step},\"global_batch\":32,\"sec\":{sec},\"lm_loss\":null}}\n")
        };
        let eval = "{\"step\":3,\"consumed_samples\":96,\"eval\":\"valid\",\"lm_loss\":3.0}\n";
        let times = [9.0, half, half * 1.01, half * 0.99, half * 7.0];
        let text: String = times
            .iter()
            .enumerate()
            .map(|(i, sec)| line(i + 1, *sec))
            .collect();
        let text = text + eval;
        assert!(!Measured::is_document(&text) && !Measured::is_document(&line(1, half)));
        let log = logs::read(&text, "metrics.jsonl", &base).unwrap();
        assert_eq!((log.steps.len(), log.outliers.len()), (3, 1), "the first step warms up");
        let (learned, said) = slowdown(&log, "metrics.jsonl", &m, base).unwrap();
        near(stage_times::seconds(&stages, &learned), half);
        assert!(said.contains("learned from 3 steps: they took 2.00 times"), "{said}");
        assert!(dry_run::error(learned.hardware, 1) <= 0.1);
    }

    /// A grid's run whose products take twice what is planned has that factor, and no other.
    #[test]
    fn parts_of_a_grid_show_in_its_plan() {
        let m = planned(&["topology={tensor: 2, pipeline: 2, data: 2}", "batch.global=64"]);
        let gpu = hardware::find("h100-80g", "test").unwrap();
        let stages = dry_run::stages(&m);
        let base = Setup::new(&m, Program::Gptrain, gpu);
        let before = drift::by_part(&stages, &base, 0);
        let mut measured = before;
        measured[Part::Products as usize] *= 2.0;
        let seconds: f64 = measured.iter().sum();
        let parts = Some(PartTable::new(5, 64, &before, &measured));
        let log =
            Log { medians: Vec::new(), steps: vec![(64, seconds)], outliers: Vec::new(), parts };
        let (learned, said) = slowdown(&log, "metrics.jsonl", &m, base).unwrap();
        near(learned.hardware.parts[Part::Products as usize], 2.0);
        near(learned.hardware.parts[Part::Attention as usize], 1.0);
        assert!(said.contains("each part's own factor: matrix products 2.00"), "{said}");
        assert!(!said.contains("tensor collectives"), "hidden beside computation: {said}");
    }

    /// A plan for as many devices as were measured has the bar of a measured machine, and one for more a
    /// wider one, up to that of a machine without measurements.
    #[test]
    fn a_bar_grows_beyond_the_measured_devices() {
        let m = planned(&[]);
        let gpu = Setup { hardware: hardware::find("h100-80g", "test").unwrap(), ..setup(&m) };
        let found = Measured { hardware: None, ..measured() };
        let learned = learn(&found, "bench.json", &m, gpu.clone())
            .unwrap()
            .hardware;
        let devices = learned.measured_devices;
        assert_eq!(devices, measured().ranks.len());
        let bars =
            [devices, 8 * devices, 64 * devices, 1 << 20].map(|n| dry_run::error(learned, n));
        near(bars[0], 0.2);
        assert!(bars.is_sorted() && bars[1] > 0.22, "{bars:?}");
        near(dry_run::error(learned, usize::MAX), dry_run::error(gpu.hardware, usize::MAX));
        near(dry_run::error(gpu.hardware, 1 << 20), 0.65);
    }

    /// Half of a machine was free, so what is measured may be half of what it can do.
    #[test]
    fn a_busy_machine_widens_the_bar() {
        let m = planned(&[]);
        let error = |busy_share: f64| {
            let found = Measured { busy_share, ..measured() };
            let learned = learn(&found, "bench.json", &m, setup(&m)).unwrap();
            let said = line(&found, &learned).contains("other programs had 50 % of the machine");
            assert_eq!(said, busy_share > 0.0);
            dry_run::error(learned.hardware, 1)
        };
        near(error(0.0), 0.2);
        near(error(0.5), 0.2 + 1.0);
        let text = json!(Measured { busy_share: 0.5, ..measured() }).to_string();
        assert_eq!(Measured::read(&text, "b.json").unwrap().busy_share, 0.5);
    }

    #[test]
    fn a_link_that_was_not_measured_stays_the_data_sheets() {
        let m = planned(&[]);
        let one = Measured { groups: Vec::new(), ..measured() };
        let learned = learn(&one, "bench.json", &m, setup(&m)).unwrap();
        assert_eq!(learned.hardware.links, Links::default());
        near(learned.hardware.link(true, 2.0).gb_s, 5.0 * 0.7);
        near(learned.hardware.link(false, 2.0).gb_s, 0.5 * 0.7);
    }

    /// One line that names the file, what is wrong, and a remedy.
    #[test]
    fn another_machine_another_precision_and_other_files_are_refused() {
        let m = planned(&[]);
        let other = Measured { hardware: Some("h100-80g".into()), ..measured() };
        let refused = |found: &Measured| {
            learn(found, "bench.json", &m, setup(&m))
                .unwrap_err()
                .to_string()
        };
        assert!(refused(&other).contains("measured on h100-80g, and the plan is for cpu"));
        let other = Measured { precision: manifest::Precision::Bf16, ..measured() };
        assert!(refused(&other).contains("measured in bf16, and the plan is in f32"));
        let good = json!(measured());
        assert_eq!(Measured::read(&good.to_string(), "b").unwrap(), measured());
        let broken = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut value = good.clone();
            change(&mut value);
            Measured::read(&value.to_string(), "b.json").unwrap_err()
        };
        let cases: [(Problems, &str); 8] = [
            (broken(&|v| v["busy_share"] = json!(1.5)), "busy_share 1.5 is not a share"),
            (Measured::read("step 1 loss 2", "b.json").unwrap_err(), "is not a document of"),
            (Measured::read("{\"a\": 1}", "b.json").unwrap_err(), "but no document of"),
            (broken(&|v| v["format"] = json!("gptrain bench 9")), "its format is"),
            (broken(&|v| v["ranks"] = json!([])), "it has no ranks"),
            (
                broken(&|v| v["ranks"][1]["device_copy_gb_s"] = json!(0)),
                "rank 1 reported invalid figures",
            ),
            (broken(&|v| v["groups"][2]["seconds"] = json!(-1)), "send_recv of group tensor"),
            (broken(&|v| drop(v["ranks"][0].as_object_mut().unwrap().remove("cube"))), "`cube`"),
        ];
        for (problems, what) in cases {
            assert_eq!(problems.list.len(), 1);
            let text = problems.to_string();
            assert!(text.contains("b.json") && text.contains(what), "{text}");
            assert!(text.contains("gptrain bench --json"), "{text}");
        }
        let cut = &good.to_string()[..200];
        assert!(
            Measured::read(cut, "b")
                .unwrap_err()
                .to_string()
                .contains("is not a document")
        );
    }
}
