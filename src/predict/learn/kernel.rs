//! Covariance of two runs' residuals ln(measured / predicted).
//!
//! The whole run, and each part of it (products, launches, messages, …), deviates from the formulas by a
//! factor of the program, one of the machine, and one of both together. Machine means a family of alike
//! processors: within one, only the formulas tell a better machine from a worse one. The logarithms of the
//! factors are normal with mean zero and the standard deviations below. A part counts by its share of the
//! run. So runs of a cluster inform each other through common parts. With few runs of a cluster, the
//! estimate remains near that of the program elsewhere and of the machine with other programs (partial
//! pooling; Gelman and Hill 2007, chapter 12; as a Gaussian process, Rasmussen and Williams 2006, section
//! 2.7).
//! In addition, runs of similar shapes share a residual that no part explains.

/// Degrees of freedom of the residuals' distribution, Student's t.
pub const FREEDOM: f64 = 4.0;

/// Features of a run that its covariance with others uses.
#[derive(Clone, Debug, PartialEq)]
pub struct Features {
    pub program: &'static str,
    /// Family of the machine, and the cluster.
    pub machine: &'static str,
    pub site: &'static str,
    /// Whether the program's models are unfused: the correction of a machine is not shared between such runs
    /// and others.
    pub unfused: bool,
    /// Period of the run, which has a part in its scatter.
    pub period: String,
    /// Share of each part in the whole.
    pub parts: Vec<f64>,
    /// Coordinates; runs at a distance of 1 resemble each other little.
    pub coordinates: Vec<f64>,
    /// Whether the run is the user's own, as predicted runs are.
    pub own: bool,
    /// Scatter of the same run between days.
    pub scatter: f64,
    /// Additional deviation if there are no measurements of its program.
    pub unseen: UnseenDeviation,
}

/// Standard deviations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UnseenDeviation {
    pub program: f64,
    /// Deviation of its site, if the user's own runs of it are known.
    pub site: f64,
    /// Deviation of its pipeline, if there is one.
    pub pipeline: f64,
    /// Deviation on another site than those that measured it, divided by their number; and how far its sums
    /// over nodes may lengthen it if that is one, as a logarithm.
    pub elsewhere: f64,
    pub network: f64,
}

/// Shared deviation of the whole, and of a part that makes up the whole run.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    pub whole: f64,
    pub part: f64,
}

/// Standard deviations of the residuals' terms.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Terms that runs share: of a program, of a machine, and of both together.
    pub program: Shared,
    pub machine: Shared,
    pub cluster: Shared,
    /// Factor of each part's deviation.
    pub parts: &'static [f64],
    /// Terms that runs of similar shapes share, with their ranges: near, and far.
    pub near: (f64, f64),
    pub wide: (f64, f64),
    /// Share of these terms that is common to other programs, and to other machines.
    pub other_program: f64,
    pub other_machine: f64,
    /// Terms as multiples of a run's scatter: of a period, and of a single run.
    pub period: f64,
    pub single: f64,
    /// Correlation of others' measurements of a cluster with the user's own.
    pub others: f64,
    /// Number of runs of a cluster, or of other machines, that halve the deviation of an unknown program.
    pub halving: HalvingCounts,
}

/// Numbers of measurements that halve the deviation of an unknown program.
#[derive(Clone, Copy, Debug)]
pub struct HalvingCounts {
    pub runs: f64,
    pub machines: f64,
}

impl Kernel {
    pub fn covariance(&self, a: &Features, b: &Features) -> f64 {
        let program = a.program == b.program;
        let alike_kernels = a.unfused == b.unfused;
        let machine = a.machine == b.machine;
        let each = a.parts.iter().zip(&b.parts).zip(self.parts);
        let alike: f64 = each.map(|((a, b), spread)| a * b * spread * spread).sum();
        let variance = |shared: Shared| shared.whole.powi(2) + shared.part.powi(2) * alike;
        let when = |yes: bool, share: f64| if yes { share } else { 0.0 };
        let but = |same: bool, share: f64| if same { 1.0 } else { share };
        let shapes =
            but(program, self.other_program) * but(machine, self.other_machine) * self.shapes(a, b);
        let shapes = when(alike_kernels, shapes);
        let days = a.scatter * b.scatter * self.period.powi(2);
        let cluster = program && machine;
        let in_cluster = variance(self.cluster) + when(a.period == b.period, days);
        let owner_share = but(a.own == b.own, self.others);
        when(program, variance(self.program))
            + when(machine && alike_kernels, variance(self.machine))
            + owner_share * (when(cluster, in_cluster) + shapes)
    }

    fn shapes(&self, a: &Features, b: &Features) -> f64 {
        let square: f64 = a
            .coordinates
            .iter()
            .zip(&b.coordinates)
            .map(|(a, b)| (a - b).powi(2))
            .sum();
        let falling =
            |(share, reach): (f64, f64)| share.powi(2) * (-square / (2.0 * reach.powi(2))).exp();
        falling(self.near) + falling(self.wide)
    }

    /// Variance of a run's own term, for runs with this scatter.
    pub fn noise(&self, point: &Features) -> f64 {
        (self.single * point.scatter).powi(2)
    }
}

/// −ln of the probability of a run's own residual, up to a constant.
pub fn improbability(residual: f64, scale: f64) -> f64 {
    (FREEDOM + 1.0) / 2.0 * ((residual / scale).powi(2) / FREEDOM).ln_1p()
}

/// Weight of a residual, relative to an expected one.
pub fn weight(residual: f64, scale: f64) -> f64 {
    (FREEDOM + 1.0) / (FREEDOM + (residual / scale).powi(2))
}
