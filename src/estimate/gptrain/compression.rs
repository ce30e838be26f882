//! Benefit and cost of compressing gradients between replicas: the bandwidth below which it pays.

use super::dry_run;
use super::prices::{self, Prices};
use super::stage_times::StageTimes;
use crate::setup::Setup;
use base::Bytes;
use manifest::{Manifest, PowerSgd, Topology};

/// Sums of gradients with and without compression, on the stage that sends most of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompressionGain {
    /// Bytes that a rank sends to replicas in a step: uncompressed, and compressed.
    pub plain: f64,
    pub compressed: f64,
    /// Seconds that computing the factors adds to a step.
    pub factors: f64,
    /// Bandwidth of a rank to replicas, in Gb/s, below which compression pays.
    pub break_even: f64,
}

impl CompressionGain {
    /// None if no gradient is sent, or compression would be refused. `stages` are those of the plan.
    pub fn new(m: &Manifest, setup: &Setup, stages: &[dry_run::Stage]) -> Option<CompressionGain> {
        let t = &m.topology;
        if t.data == 1 || t.zero > 1 || t.has_two_levels() {
            return None;
        }
        let is_plain = t.compression.is_none();
        let compression = is_plain.then(PowerSgd::default);
        let topology = Topology { compression, ..t.clone() };
        let other = &dry_run::stages(&Manifest { topology, ..m.clone() })[..];
        let [plain, compressed] = if is_plain { [stages, other] } else { [other, stages] };
        let sent = |stages: &[dry_run::Stage]| {
            stages
                .iter()
                .map(|stage| stage.sends(setup.micros())[2])
                .fold(0.0, f64::max)
        };
        let part = |stages: &[dry_run::Stage], name| -> f64 {
            let parts = StageTimes::new(stages, setup)
                .parts(setup.micros())
                .into_iter();
            parts
                .filter(|(part, _)| *part == name)
                .map(|(_, seconds)| seconds)
                .sum()
        };
        let once = "once a step: optimizer";
        Some(CompressionGain {
            plain: sent(plain),
            compressed: sent(compressed),
            factors: part(compressed, once) - part(plain, once),
            break_even: CompressionGain::bandwidth(setup) * break_even(plain, compressed, setup),
        })
    }

    /// Whether compressed gradients are fewer bytes.
    pub fn saves_bytes(&self) -> bool {
        self.compressed < self.plain
    }

    /// Bandwidth of a rank to replicas on the setup's machines, in Gb/s.
    pub fn bandwidth(setup: &Setup) -> f64 {
        8.0 * prices::replica_link(setup).gb_s
    }
}

/// Bandwidth between replicas, as a multiple of the setup's, with which plain steps take as long as
/// compressed ones. Plain sums overlap with backward, so they cost less than their bytes suggest.
fn break_even(plain: &[dry_run::Stage], compressed: &[dry_run::Stage], s: &Setup) -> f64 {
    const HALVINGS: usize = 40;
    let pays = |times: f64| {
        let prices = Prices::new(s).with_sums(times);
        let [plain, ours] = [plain, compressed]
            .map(|stages| StageTimes::with_prices(stages, s, &prices).seconds(s.micros()));
        ours < plain
    };
    let mut low = -20.0;
    let mut high = 20.0; // powers of two
    for _ in 0..HALVINGS {
        let middle: f64 = (low + high) / 2.0;
        *(if pays(middle.exp2()) { &mut low } else { &mut high }) = middle;
    }
    low.exp2()
}

/// Description of the effect of compression on the plan, whose stages are given; None without compression.
pub fn describe(m: &Manifest, setup: &Setup, stages: &[dry_run::Stage]) -> Option<String> {
    m.topology.compression?;
    let gain = CompressionGain::new(m, setup, stages).filter(CompressionGain::saves_bytes)?;
    let size = |bytes: f64| Bytes(bytes as u64);
    Some(format!(
        "\nGradients between replicas, compressed: a rank sends {} instead of {} per step;\n  that \
         costs {:.1} ms and pays below {:.0} Gb/s per rank (here {:.0})",
        size(gain.compressed),
        size(gain.plain),
        1e3 * gain.factors,
        gain.break_even,
        CompressionGain::bandwidth(setup),
    ))
}
