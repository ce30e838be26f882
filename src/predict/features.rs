//! Features of a run for the residual model, and the parameters of their covariance.

use super::cost::{Memory, Time};
use super::learn::{Features, HalvingCounts, Kernel, Shared, UnseenDeviation};
use estimate::setup::Setup;
use manifest::Recompute;

/// Standard deviations that maximise the likelihood of the measured runs when their source, or a tenth of
/// all configurations, is left out, or is known by five and by twenty rows. Parts as in `cost::Time`, and the
/// optimizer where it is on the host.
pub const TIME: Kernel = Kernel {
    program: Shared { whole: 0.0, part: 0.15 },
    machine: Shared { whole: 0.0, part: 0.1 },
    cluster: Shared { whole: 0.19, part: 0.0 },
    parts: &[0.45, 1.9, 0.15, 0.8, 0.15, 8.5, 0.1, 1.6, 8.0, 4.0],
    near: (0.045, 0.53),
    wide: (0.09, 5.8),
    other_program: 1.0,
    other_machine: 0.9,
    period: 0.42,
    single: 0.56,
    others: 0.94,
    halving: HalvingCounts { runs: 2.5, machines: 5.0 },
};

/// Standard deviations chosen by hand, because there are only 99 runs. Parts as in `cost::Memory`.
pub const MEMORY: Kernel = Kernel {
    program: Shared { whole: 0.1, part: 0.1 },
    machine: Shared { whole: 0.05, part: 0.05 },
    cluster: Shared { whole: 0.1, part: 0.1 },
    parts: &[1.0; 7],
    near: (0.03, 0.7),
    wide: (0.08, 3.0),
    other_program: 0.3,
    other_machine: 0.3,
    period: 0.4,
    single: 1.0,
    others: 0.7,
    halving: HalvingCounts { runs: 3.0, machines: 6.0 },
};

/// Covariance in the fit of its constants, which explain all effects of shapes.
pub const MEMORY_FIT: Kernel = Kernel {
    program: Shared { whole: 0.15, part: 0.0 },
    machine: Shared { whole: 0.1, part: 0.0 },
    cluster: Shared { whole: 0.3, part: 0.0 },
    near: (0.0, 1.0),
    wide: (0.0, 1.0),
    period: 0.0,
    ..MEMORY
};

/// Scatter of memory, which is printed in whole GB and differs little between days.
const MEMORY_SCATTER: f64 = 0.025;
/// Scatter of op-by-op PyTorch, whose times are days per billion tokens with two digits.
const COARSE: f64 = 3.0;
/// Deviation of the time of a program without measurements, in addition to the kernel's, and its
/// growth per e-fold of stages: with each source left out, nine in ten rows and more are then within bars of
/// 65 %, and so are the other rows after five of the source.
/// `elsewhere` is for a program that one site measured: 2.4 times as long is within the bar, and sums over
/// nodes may take `SLOW_SUMS` times as long. With two sites it is half of that.
const TIME_UNSEEN: UnseenDeviation =
    UnseenDeviation { program: 0.15, site: 0.33, pipeline: 0.15, elsewhere: 0.5, network: 0.0 };
const MEMORY_UNSEEN: UnseenDeviation =
    UnseenDeviation { program: 0.1, site: 0.1, pipeline: 0.0, elsewhere: 0.14, network: 0.0 };
/// Factor of sums over nodes: rings reach from a twentieth to all of the adapters of the measured clusters.
const SLOW_SUMS: f64 = 10.0;

/// Features of a run's time.
pub fn for_time(s: &Setup, time: &Time, own: bool) -> Features {
    let mut parts = time.shares();
    // An update on the host is unlike one on the device.
    let optimizer = parts.len() - 1;
    parts.push(0.0);
    if s.offload.optimizer {
        parts.swap(optimizer, optimizer + 1);
    }
    let coarse = s.trainer().eager && s.regime.is_some();
    let scatter = s.hardware.scatter * if coarse { COARSE } else { 1.0 };
    let pipeline = TIME_UNSEEN.pipeline * (s.topology.pipeline as f64).ln();
    let spans = s.ranks() > s.link_domain();
    let sums = if spans { time.data_parallel() / time.total() } else { 0.0 };
    let network = (sums * (SLOW_SUMS - 1.0)).ln_1p();
    let unseen = UnseenDeviation { pipeline, network, ..TIME_UNSEEN };
    Features { parts, scatter, own, unseen, ..common(s) }
}

/// Features of a run's memory.
pub fn for_memory(s: &Setup, memory: &Memory, own: bool) -> Features {
    let stage = &memory.stages[memory.peak()];
    let whole = memory.needed();
    let parts = stage.iter().map(|(_, gb)| gb / whole).collect();
    let scatter = MEMORY_SCATTER;
    let unseen = MEMORY_UNSEEN;
    Features { parts, scatter, own, unseen, ..common(s) }
}

/// Features that time and memory share.
fn common(s: &Setup) -> Features {
    Features {
        program: s.program.name(),
        machine: &s.hardware.family,
        site: s.hardware.site(),
        unfused: s.trainer().unfused,
        period: s.regime.clone().unwrap_or_default(),
        parts: Vec::new(),
        coordinates: coordinates(s),
        own: false,
        scatter: 0.0,
        unseen: UnseenDeviation::default(),
    }
}

/// Coordinates of a setup.
fn coordinates(s: &Setup) -> Vec<f64> {
    let m = &s.model;
    let t = &s.topology;
    let ln = |n: usize| (n as f64).ln();
    let step = |yes: bool| f64::from(u8::from(yes));
    vec![
        ln(t.tensor),
        ln(t.pipeline),
        ln(t.data),
        ln(s.micro),
        0.5 * ln(s.global),
        0.5 * ln(m.layers),
        2.0 * ln(m.hidden),
        ln(m.heads),
        2.0 * ln(m.seq_len),
        step(s.has_odd_heads()),
        step(t.recompute == Recompute::Full),
        f64::from(t.zero),
        3.0 * s.numbers.bits().ln(),
    ]
}
