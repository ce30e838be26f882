//! Check of the machine before a run: whether it is idle (`busy`), the speed of each rank alone
//! (`products`, `copies`, `files`), of the groups of the real grid (`collectives`), and of pairs of
//! nodes (`tournament`); on request the collectives of a step for a longer time (`soak`). `outliers`
//! identifies slow ranks from the figures alone, `history` what changed since an earlier measurement;
//! `print` reports them.
//!
//! All ranks measure at once, as in training. Every measurement is the best of several, in a fixed
//! share of the time: 60 s, or 10 s for a quick check. If ranks must choose alike (rows, sizes,
//! repetitions), they choose from the same gathered figures, or rank 0 chooses.

mod bench_rank;
mod busy;
mod collectives;
mod copies;
mod files;
pub mod history;
mod ops;
mod outliers;
pub mod print;
mod products;
mod scratch;
mod soak;
mod tournament;

use anyhow::Result;
use base::Problems;
use bench_rank::BenchRank;
use comm::LauncherEnv;
use estimate::measured::{FORMAT, Measured, RankSpeeds, Slow};
use launch::LocalRanks;
use launch::messages::Messages;
use manifest::Loaded;
use scratch::Scratch;
use std::path::Path;

#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Whether to finish within 10 s.
    pub quick: bool,
    /// Overrides the default tolerance below the median (see `outliers`).
    pub tolerance: Option<f64>,
    /// Seconds for which the collectives of a step are repeated at the end.
    pub soak: Option<f64>,
}

/// Result of a process.
pub struct Outcome {
    /// Measurements, in the process of rank 0.
    pub measured: Option<Measured>,
    /// True if no process found anything slow.
    pub healthy: bool,
}

/// Measures the machine with the shapes, grid and precision of a manifest, with one rank or all
/// ranks that a launcher started.
pub fn run(loaded: &Loaded, options: &BenchOptions, messages: &Messages) -> Result<Outcome> {
    loaded.manifest.runnable()?;
    let folder = &loaded.manifest.log.folder;
    let existed = folder.exists();
    let mut ranks = LocalRanks::rendezvous(loaded, &format!("bench {options:?}"))?;
    let node = ranks.node.clone();
    let outcome = ranks.run(&loaded.manifest, messages, |rank, device| {
        let bench = BenchRank::new(rank, device, &loaded.manifest, options, &node)?;
        measure(&bench)
    });
    if !existed {
        let _ = std::fs::remove_dir(folder); // unless another process wrote to it meanwhile
    }
    outcome
}

/// Default manifest, a block of GPT-2 124M in bf16; ranks are replicas.
const DEFAULT: &str = "
name: bench
model: {layers: 12, hidden: 768, heads: 12, vocab: 50257, seq_len: 1024}
precision: bf16
data: {train: none}
batch: {micro: 4, global: 4}
lr: {peak: 6e-4}
train: {samples: 1000}
log: {folder: gptrain-bench}
";

/// Default manifest with as many replicas as ranks were started.
pub fn without_manifest(sets: &[String]) -> Result<Loaded, Problems> {
    let ranks = LauncherEnv::from_variables(&|name| std::env::var(name).ok())?
        .map_or(1, |launch| launch.world);
    let grid = [format!("topology.data={ranks}"), format!("batch.global={}", 4 * ranks)];
    let sets = [&grid[..], sets].concat();
    manifest::parse(DEFAULT, "the default of bench", Path::new("."), &sets)
}

fn measure(bench: &BenchRank) -> Result<Outcome> {
    let load = busy::find_load(bench)?;
    let scratch = Scratch::new(bench, products::bytes(bench.m))?;
    let mut ranks = measure_alone(bench, &scratch)?;
    let slow_ranks = confirm_products(bench, &scratch, &mut ranks)?;
    let factory = bench.device.group_factory(bench.rank.world(), bench.m)?;
    let groups = collectives::measure(bench, &scratch, &factory)?;
    let pairs = tournament::measure(bench, &scratch, &factory)?;
    let soaked = match bench.options.soak {
        Some(seconds) => soak::measure(bench, &scratch, &factory, seconds)?,
        None => soak::Soak::default(),
    };
    bench.done();
    let direct = factory.is_direct();
    let measured = bench.rank.is_first().then(|| {
        let mut slow: Vec<Slow> = slow_ranks
            .iter()
            .map(|rank| print::slow_rank(&ranks, *rank))
            .collect();
        slow.extend(pairs.slow(bench.hardware(direct)));
        Measured {
            format: FORMAT.into(),
            manifest: bench.m.name.clone(),
            precision: bench.m.precision,
            hardware: bench.hardware_name(),
            quick: bench.options.quick,
            seconds: bench.seconds(),
            groups: groups.rows,
            units: pairs.units_are.into(),
            pairs: pairs.rows(),
            slow,
            busy_share: load.share,
            notes: [load.notes, groups.notes, pairs.notes(), soaked.notes].concat(),
            changes: Vec::new(),
            soak: soaked.rows,
            ranks,
        }
    });
    let healthy = || {
        Ok(measured
            .as_ref()
            .is_some_and(|measured| measured.slow.is_empty()))
    };
    let healthy = bench.rank.on_first(healthy)?;
    Ok(Outcome { measured, healthy })
}

/// Speeds of each rank alone, by rank; equal on every rank.
fn measure_alone(bench: &BenchRank, scratch: &Scratch) -> Result<Vec<RankSpeeds>> {
    bench.phase("measuring matrix products");
    let (products, cube) = products::measure(bench, scratch)?;
    bench.phase("measuring copies");
    let copies = copies::measure(bench, scratch)?;
    bench.phase("measuring the ops of a step");
    let ops = ops::measure(bench, &products)?;
    bench.phase("measuring files");
    let file = bench
        .rank
        .agree(files::measure(&bench.m.log.folder, bench.options.quick))?;
    bench.rank.all_gather(&RankSpeeds {
        rank: bench.rank.number(),
        node: bench.nodes[bench.rank.number()].clone(),
        place: bench.rank.coord.name(),
        device: bench.device_name(),
        products,
        cube,
        device_copy_gb_s: copies.device,
        host_copy_gb_s: copies.host,
        upload_gb_s: copies.upload,
        download_gb_s: copies.download,
        file_write_gb_s: file.write,
        file_read_gb_s: file.read,
        file_access: file.access.into(),
        ops,
    })
}

/// Ranks with slow products. Ranks that seemed slow measure again and keep the better result.
fn confirm_products(
    bench: &BenchRank,
    scratch: &Scratch,
    ranks: &mut Vec<RankSpeeds>,
) -> Result<Vec<usize>> {
    let usual = if bench.shares_processors() { outliers::SHARED } else { outliers::PRODUCTS };
    let tolerance = bench.options.tolerance.unwrap_or(usual);
    let slow = |ranks: &[RankSpeeds]| {
        let rates: Vec<f64> = ranks.iter().map(RankSpeeds::block_tflops).collect();
        outliers::slow(&rates, tolerance)
    };
    let suspects = slow(ranks);
    if suspects.is_empty() {
        return Ok(suspects);
    }
    bench.phase("measuring slow ranks again");
    let mut mine = ranks[bench.rank.number()].clone();
    if suspects.contains(&mine.rank) {
        products::measure_again(bench, scratch, &mut mine.products)?;
    }
    *ranks = bench.rank.all_gather(&mine)?;
    Ok(slow(ranks))
}
