//! What compressing the gradients that replicas sum up saves and costs: the bandwidth below which it
//! pays.

use super::dry_run;
use crate::setup::Setup;
use base::Bytes;
use manifest::{Manifest, Topology};
use plan::grid::Coord;

/// Sums of gradients with and without compression, on the stage that sends most of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exchange {
    /// Bytes that a rank sends to replicas in a step: as they are, and compressed.
    pub plain: f64,
    pub compressed: f64,
    /// Seconds of a step: all of them, and those of the plain sums.
    pub step: f64,
    pub sums: f64,
    /// What computing the factors adds to a step, in seconds.
    pub factors: f64,
}

impl Exchange {
    /// None where no gradient is sent, or compression would be refused.
    pub fn of(m: &Manifest, setup: &Setup) -> Option<Exchange> {
        let t = &m.topology;
        if t.data == 1 || t.zero > 1 {
            return None;
        }
        let settings = t.compression.unwrap_or_default();
        let [plain, compressed] = [None, Some(settings)].map(|compression| {
            let topology = Topology { compression, ..t.clone() };
            dry_run::stages(&Manifest { topology, ..m.clone() })
        });
        let sent = |stages: &[dry_run::Stage]| {
            stages.iter().map(|stage| stage.sends(setup.micros())[2]).fold(0.0, f64::max)
        };
        let part = |stages: &[dry_run::Stage], name| -> f64 {
            let parts = dry_run::parts(stages, setup).into_iter();
            parts.filter(|(part, _)| *part == name).map(|(_, seconds)| seconds).sum()
        };
        let once = "once a step: optimizer";
        Some(Exchange {
            plain: sent(&plain),
            compressed: sent(&compressed),
            step: dry_run::seconds(&plain, setup),
            sums: part(&plain, dry_run::SUMS),
            factors: part(&compressed, once) - part(&plain, once),
        })
    }

    /// Gb/s that a rank sends at, below which the factors cost less than they save.
    pub fn break_even(&self) -> f64 {
        8.0 * (self.plain - self.compressed) / self.factors / 1e9
    }

    /// Whether compressed gradients are fewer bytes.
    pub fn saves(&self) -> bool {
        self.compressed < self.plain
    }

    /// Gb/s that a rank sends to replicas at on the setup's machines.
    pub fn here(setup: &Setup) -> f64 {
        let first = Coord { tensor: 0, pipeline: 0, data: 0 };
        8.0 * dry_run::link(setup, &setup.topology.grid().data_group(first)).gb_s
    }
}

/// What compression does to the plan, in words; empty where there is none.
pub fn told(m: &Manifest, setup: &Setup) -> String {
    let compressed = m.topology.compression.is_some();
    let Some(e) = Exchange::of(m, setup).filter(|e| compressed && e.saves()) else {
        return String::new();
    };
    let size = |bytes: f64| Bytes(bytes as u64);
    format!(
        "\nGradients between replicas, compressed: a rank sends {} in place of {} a step;\n  that \
         costs {:.1} ms and pays below {:.0} Gb/s a rank (here {:.0})\n",
        size(e.compressed),
        size(e.plain),
        1e3 * e.factors,
        e.break_even(),
        Exchange::here(setup),
    )
}
