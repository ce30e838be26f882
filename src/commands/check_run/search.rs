//! Tries the known errors on the steps of a log that differs.

use super::hypotheses::{HYPOTHESES, Hypothesis, Variant};
use super::log::RunLog;
use super::steps::NextSteps;
use super::verdict::{Cause, Departure, Tolerance, compare};
use base::progress::{Progress, Unit};

/// Result of one form of a known error.
pub struct Tested {
    pub name: &'static str,
    pub detail: String,
    /// Lines that agree, before the first that does not.
    pub agreeing: usize,
    /// Largest difference of the compared lines, in tolerances; infinite if it cannot be computed.
    pub off: f64,
    /// Reason why it was not computed.
    pub failed: Option<String>,
    pub explains: bool,
}

/// Lines of a log that are compared.
pub struct Evidence<'a> {
    pub next: &'a NextSteps<'a>,
    pub log: &'a RunLog,
    pub tolerance: Tolerance,
    /// Number of lines.
    pub lines: usize,
}

impl Evidence<'_> {
    /// Tries the errors that depart first where the log does; if none explains it, those that depart
    /// earlier in a step, whose first effect may be below the tolerance.
    pub fn search(&self, departed: &Departure) -> Vec<Tested> {
        let norms = self.log.steps.values().any(|row| row.grad_norm.is_some());
        let fits = |hypothesis: &Hypothesis| match departed.cause {
            None => true,
            // Without norms, an error of the gradient is seen after the update.
            Some(Cause::Update) if !norms => hypothesis.cause >= Cause::Gradient,
            Some(cause) => hypothesis.cause == cause,
        };
        let (likely, others): (Vec<_>, Vec<_>) = HYPOTHESES.iter().partition(|row| fits(row));
        let earlier = |row: &&Hypothesis| departed.cause.is_none_or(|cause| row.cause < cause);
        let others: Vec<&Hypothesis> = others.into_iter().filter(earlier).collect();
        let mut tested = self.try_all(&likely);
        if !tested.iter().any(|row| row.explains) {
            tested.extend(self.try_all(&others));
        }
        tested
    }

    fn try_all(&self, hypotheses: &[&'static Hypothesis]) -> Vec<Tested> {
        let mut variants = Vec::new();
        for hypothesis in hypotheses {
            let found = hypothesis.variants(self.next.trainer);
            variants.extend(found.into_iter().map(|variant| (hypothesis.name, variant)));
        }
        let bar = Progress::new("trying errors", variants.len() as u64, Unit::Items("errors"));
        let mut tested = Vec::new();
        for (name, variant) in variants {
            tested.push(self.try_variant(name, variant));
            bar.add(1);
        }
        tested
    }

    /// Computes the steps with an error until a line differs.
    fn try_variant(&self, name: &'static str, variant: Variant) -> Tested {
        let from = self.next.trainer.found.step;
        let mut computed = Vec::new();
        let result = self.next.compute(&variant.change, &mut |step| {
            computed.push(*step);
            let rows = compare(self.log, from, &computed, self.tolerance);
            rows.iter().all(|row| row.agrees())
        });
        let Variant { detail, .. } = variant;
        let run = match result {
            Ok(run) => run,
            Err(error) => {
                let failed = Some(format!("{error:#}"));
                let off = f64::INFINITY;
                return Tested { name, detail, agreeing: 0, off, failed, explains: false };
            }
        };
        let rows = compare(self.log, from, &run.steps, self.tolerance);
        let agreeing = rows.iter().take_while(|row| row.agrees()).count();
        let off = rows.iter().map(|row| row.off()).fold(0.0, f64::max);
        let explains = agreeing == self.lines;
        Tested { name, detail, agreeing, off, failed: None, explains }
    }
}
