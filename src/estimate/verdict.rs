//! Whether a plan fits into memory: decided by the figure that is printed, with its error bar.

use super::words;
use base::table::Cell;
use serde_json::{Value, json};

/// Whether a plan fits into the memory of its devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemoryFit {
    /// The whole bar is within the memory.
    Fits,
    /// Share of the bar that is beyond the memory, above 0 and at most 1.
    MayNotFit(f64),
    /// The whole bar is beyond the memory.
    DoesNotFit,
}

use MemoryFit::{DoesNotFit, Fits, MayNotFit};

impl MemoryFit {
    /// Verdict for a figure and a memory in the same unit. Nine in ten measurements are at most
    /// `1 + error` times the figure, and at least the figure divided by that; an exact figure has the
    /// error 0. Shares of a bar are those of its logarithm, in which both sides are equally long.
    pub fn new(figure: f64, error: f64, memory: f64) -> MemoryFit {
        let [least, most] = words::range(figure, error);
        match () {
            _ if most <= memory => Fits,
            _ if least > memory => DoesNotFit,
            _ => MayNotFit((most / memory).ln() / (most / least).ln()),
        }
    }

    /// Verdict for two memories, of which both are needed: the worse one.
    pub fn and(self, other: MemoryFit) -> MemoryFit {
        if other.share_beyond() > self.share_beyond() { other } else { self }
    }

    /// Share of the bar that is beyond the memory: 0 if the plan fits, 1 if it does not.
    pub fn share_beyond(self) -> f64 {
        match self {
            Fits => 0.0,
            MayNotFit(share) => share,
            DoesNotFit => 1.0,
        }
    }

    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Fits => "fits",
            MayNotFit(_) => "may not fit",
            DoesNotFit => "does not fit",
        }
    }

    /// "fits", "may not fit (32 %)" or "DOES NOT FIT".
    pub fn words(self) -> String {
        match self {
            Fits => "fits".to_string(),
            MayNotFit(share) => format!("may not fit ({})", percent(share)),
            DoesNotFit => "DOES NOT FIT".to_string(),
        }
    }

    /// Answer to the title "fits": "yes", "32 % beyond" or "NO".
    pub fn answer(self) -> Cell {
        let text = match self {
            Fits => "yes".to_string(),
            MayNotFit(share) => format!("{} beyond", percent(share)),
            DoesNotFit => "NO".to_string(),
        };
        Cell::new(self == Fits, text)
    }

    /// Adds the verdict to a JSON object: `fits` (whether the whole bar is within the memory),
    /// `verdict` and `share_beyond`.
    pub fn add_to(self, object: &mut Value) {
        object["fits"] = json!(self == Fits);
        object["verdict"] = json!(self.name());
        object["share_beyond"] = json!(self.share_beyond());
    }
}

/// Largest share of a bar beyond the memory with which a plan is offered at all, from the best choice to
/// the last one: the plan fits, its figure does, or the lower end of its bar.
pub const OFFERED: [f64; 3] = [0.0, 0.5, 0.99];

/// Share in whole percent. The ends are not reached, because they are other verdicts.
pub fn percent(share: f64) -> String {
    format!("{:.0} %", (100.0 * share).clamp(1.0, 99.0))
}

#[test]
fn a_verdict_is_that_of_the_figure_with_its_bar() {
    let verdict = |figure, error| MemoryFit::new(figure, error, 64.0);
    assert_eq!([verdict(40.0, 0.5), verdict(64.0, 0.0)], [Fits, Fits]);
    assert_eq!([verdict(97.0, 0.5), verdict(64.1, 0.0)], [DoesNotFit, DoesNotFit]);
    // 64 is the middle of the bar, a quarter from its upper end, and its lower end.
    let near = |verdict: MemoryFit, share: f64| match verdict {
        MayNotFit(found) => assert!((found - share).abs() < 1e-9, "{found}"),
        other => panic!("{other:?}"),
    };
    near(verdict(64.0, 0.5), 0.5);
    near(verdict(64.0 / 1.5_f64.sqrt(), 0.5), 0.25);
    near(verdict(63.7, 0.01), 0.5 + (63.7_f64 / 64.0).ln() / (2.0 * 1.01_f64.ln()));
    assert_eq!(Fits.and(MayNotFit(0.2)).and(MayNotFit(0.1)), MayNotFit(0.2));
    assert_eq!(MayNotFit(0.2).and(DoesNotFit).and(Fits), DoesNotFit);
    assert_eq!(MayNotFit(0.001).words(), "may not fit (1 %)");
    assert_eq!(MayNotFit(0.999).words(), "may not fit (99 %)");
}
