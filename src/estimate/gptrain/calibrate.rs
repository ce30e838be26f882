//! Constants of gptrain's own plan, learned from what `gptrain bench` measured of a machine: the
//! shares of peak and memory bandwidth that the kernels reach, the links' latency α and bandwidth β (a
//! message of n bytes takes α + n/β), and the copies to and from the host; or its slowdown, learned from
//! the steps of a real run. What a file does not measure keeps the table's figure.

#[cfg(test)]
mod tests;

use super::local_cpu::uncertainty_on_busy;
use super::prices::Prices;
use super::{drift, dry_run, stage_times};
use crate::hardware::{HOST_SHARE, Hardware, Link, Links, Shares};
use crate::logs::Log;
use crate::measured::{COPY_GROUPS, GroupSpeed, LATENCY_BYTES, Measured};
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

/// Link of a rank in a ring of replicas over nodes: the bus bandwidth of the collectives of the kind `data`,
/// with two levels of the copies, at their largest size, the median over ops; and the number of measured
/// nodes. None without measurements.
fn ring(found: &Measured) -> Option<(Link, usize)> {
    let has_copies = found.groups.iter().any(|row| row.group == COPY_GROUPS);
    let kind = if has_copies { COPY_GROUPS } else { "data" };
    let sums = |row: &&GroupSpeed| !row.in_node && row.group == kind && row.op != "send_recv";
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
