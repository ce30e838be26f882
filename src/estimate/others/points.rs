//! A run as the residuals of others see it: where it stands, what it is made of, and how alike two are.

use super::cost::{Memory, Time};
use super::learn::{Acquainted, Kernel, Novelty, Point, Shared};
use crate::setup::Setup;
use manifest::Recompute;

/// Standard deviations that make the measured runs likeliest where their source, or a tenth of all
/// configurations, is left out, or known by five and twenty rows. Parts as `cost::Time` has them.
pub const TIME: Kernel = Kernel {
    program: Shared { whole: 0.0, part: 0.15 },
    machine: Shared { whole: 0.0, part: 0.1 },
    cluster: Shared { whole: 0.19, part: 0.0 },
    parts: &[0.45, 1.9, 0.15, 0.8, 0.15, 8.5, 0.1, 1.6, 8.0],
    near: (0.045, 0.53),
    wide: (0.09, 5.8),
    other_program: 1.0,
    other_machine: 0.9,
    period: 0.42,
    single: 0.56,
    others: 0.94,
    acquainted: Acquainted { runs: 2.5, machines: 5.0 },
};

/// By hand: there are 99 runs. Parts as `cost::Memory` has them.
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
    acquainted: Acquainted { runs: 3.0, machines: 6.0 },
};

/// In the fit of its constants, which have all to say of shapes that programs and machines do not.
pub const MEMORY_FIT: Kernel = Kernel {
    program: Shared { whole: 0.15, part: 0.0 },
    machine: Shared { whole: 0.1, part: 0.0 },
    cluster: Shared { whole: 0.3, part: 0.0 },
    near: (0.0, 1.0),
    wide: (0.0, 1.0),
    period: 0.0,
    ..MEMORY
};

/// Memory is printed in whole GB and differs little between days.
const MEMORY_SCATTER: f64 = 0.025;
/// Op-by-op PyTorch's of those years is known from days per billion tokens, printed with two digits.
const COARSE: f64 = 3.0;
/// How far off the time of an unmeasured program may be beside what the kernel says, and for each e-fold of
/// its stages: with each source left out, nine in ten rows and more are then within bars of 65 %, and of
/// those that remain after five of them were measured.
const TIME_NOVELTY: Novelty = Novelty { program: 0.15, site: 0.3, pipeline: 0.15 };
const MEMORY_NOVELTY: Novelty = Novelty { program: 0.1, site: 0.1, pipeline: 0.0 };

pub fn of_time(s: &Setup, time: &Time, own: bool) -> Point {
    let parts = time.shares();
    let coarse = s.trainer().eager && s.regime.is_some();
    let scatter = s.hardware.scatter * if coarse { COARSE } else { 1.0 };
    let pipeline = TIME_NOVELTY.pipeline * (s.topology.pipeline as f64).ln();
    let novelty = Novelty { pipeline, ..TIME_NOVELTY };
    Point { parts, scatter, own, novelty, ..point(s) }
}

pub fn of_memory(s: &Setup, memory: &Memory, own: bool) -> Point {
    let (stage, whole) = (&memory.stages[memory.peak()], memory.needed());
    let parts = stage.iter().map(|(_, gb)| gb / whole).collect();
    let (scatter, novelty) = (MEMORY_SCATTER, MEMORY_NOVELTY);
    Point { parts, scatter, own, novelty, ..point(s) }
}

/// What is the same of time and of memory.
fn point(s: &Setup) -> Point {
    Point {
        program: s.program.name(),
        machine: &s.hardware.name,
        period: s.regime.clone().unwrap_or_default(),
        parts: Vec::new(),
        place: place(s),
        own: false,
        scatter: 0.0,
        novelty: Novelty::default(),
    }
}

/// Where a setup stands among others.
fn place(s: &Setup) -> Vec<f64> {
    let (m, t) = (&s.model, &s.topology);
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
        step(s.odd_heads()),
        step(t.recompute == Recompute::Full),
        f64::from(t.zero),
        3.0 * s.numbers.bits().ln(),
        step(s.blocking),
    ]
}
