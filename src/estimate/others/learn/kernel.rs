//! How alike the residuals of two runs are: what ln(measured / predicted) of both has in common.
//!
//! The whole of a run, and each part of it (products, launches, messages, …), takes a program, a machine,
//! and a program on a machine a little more or less than the formulas say: normal numbers of mean zero,
//! whose standard deviations stand here. A part counts by its share of the run. So runs of one cluster
//! tell of each other by the parts that they have in common, and what few runs of it leave open stays
//! near what its program does elsewhere and its machine does with others (partial pooling; Gelman and
//! Hill 2007, chapter 12; as a Gaussian process, Rasmussen and Williams 2006, section 2.7).
//! Beside that, runs of like shapes share what no part tells.

/// How heavy the tails of the residuals are taken to be: Student's t with 4 degrees of freedom.
pub const FREEDOM: f64 = 4.0;

/// A run as others see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    pub program: &'static str,
    pub machine: &'static str,
    /// The weeks it ran in, whose days have their part in its scatter.
    pub period: String,
    /// Of each part, its share of the whole.
    pub parts: Vec<f64>,
    /// Coordinates in which runs one apart resemble each other little.
    pub place: Vec<f64>,
    /// Measured by whoever asks, as what is predicted then is.
    pub own: bool,
    /// How much the same run differs between days.
    pub scatter: f64,
    /// How far off it may be where nobody measured its program.
    pub novelty: Novelty,
}

/// Standard deviations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Novelty {
    pub program: f64,
    /// The same where one's own runs of it are known: a site has habits of its own.
    pub site: f64,
    /// Of its pipeline, where there is one.
    pub pipeline: f64,
}

/// What is shared of the whole, and of a part that is all of the run.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    pub whole: f64,
    pub part: f64,
}

/// Standard deviations of what the formulas leave.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// What runs share of one program, of one machine, and of both.
    pub program: Shared,
    pub machine: Shared,
    pub cluster: Shared,
    /// Of each part, by how much it differs more than others.
    pub parts: &'static [f64],
    /// What runs of like shapes share, and how like: nearby, and further off.
    pub near: (f64, f64),
    pub wide: (f64, f64),
    /// The part of it that is shared with other programs, and with other machines.
    pub other_program: f64,
    pub other_machine: f64,
    /// As multiples of a run's scatter: what runs of a period share, and what is one run's.
    pub period: f64,
    pub single: f64,
    /// What others' measurements of a cluster say of one's own.
    pub others: f64,
    /// After so many runs of a cluster, or on so many other machines, a program is half as strange.
    pub acquainted: Acquainted,
}

/// How many measurements halve a standard deviation.
#[derive(Clone, Copy, Debug)]
pub struct Acquainted {
    pub runs: f64,
    pub machines: f64,
}

impl Kernel {
    pub fn covariance(&self, a: &Point, b: &Point) -> f64 {
        let (program, machine) = (a.program == b.program, a.machine == b.machine);
        let each = a.parts.iter().zip(&b.parts).zip(self.parts);
        let alike: f64 = each.map(|((a, b), spread)| a * b * spread * spread).sum();
        let of = |shared: Shared| shared.whole.powi(2) + shared.part.powi(2) * alike;
        let when = |yes: bool, share: f64| if yes { share } else { 0.0 };
        let but = |same: bool, share: f64| if same { 1.0 } else { share };
        let shapes =
            but(program, self.other_program) * but(machine, self.other_machine) * self.shapes(a, b);
        let days = a.scatter * b.scatter * self.period.powi(2);
        let cluster = program && machine;
        let here = of(self.cluster) + when(a.period == b.period, days);
        let asked = but(a.own == b.own, self.others);
        when(program, of(self.program))
            + when(machine, of(self.machine))
            + asked * (when(cluster, here) + shapes)
    }

    fn shapes(&self, a: &Point, b: &Point) -> f64 {
        let square: f64 = a.place.iter().zip(&b.place).map(|(a, b)| (a - b).powi(2)).sum();
        let falling =
            |(share, reach): (f64, f64)| share.powi(2) * (-square / (2.0 * reach.powi(2))).exp();
        falling(self.near) + falling(self.wide)
    }

    /// What only a run itself has, of those that scatter so.
    pub fn noise(&self, point: &Point) -> f64 {
        (self.single * point.scatter).powi(2)
    }
}

/// −ln of the probability of a run's own residual, but for a constant.
pub fn improbability(residual: f64, scale: f64) -> f64 {
    (FREEDOM + 1.0) / 2.0 * ((residual / scale).powi(2) / FREEDOM).ln_1p()
}

/// How much a residual counts beside one that is as expected.
pub fn weight(residual: f64, scale: f64) -> f64 {
    (FREEDOM + 1.0) / (FREEDOM + (residual / scale).powi(2))
}
