//! `gptrain run --trace`: writes the spans of some steps of all ranks into one file, in the Trace
//! Event Format of Perfetto and chrome://tracing.

mod chrome;

use super::watch::{Ended, Idle, RunView, StepSpec, Watcher};
use anyhow::Result;
use base::{Problems, Seconds};
use device::Backend;
use launch::rank::Rank;
use launch::spans::{RankSpans, SpanRecorder};
use std::fmt;
use std::path::PathBuf;

/// Options `--trace FILE --trace-steps A..B`.
#[derive(Clone, Debug)]
pub struct TraceOptions {
    pub file: PathBuf,
    pub steps: Steps,
}

/// Steps `first..last`, both included, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    first: u64,
    last: u64,
}

impl Steps {
    /// Parses "10..12".
    pub fn parse(text: &str) -> Result<Steps, String> {
        let ends = text
            .split_once("..")
            .map(|(first, last)| (first.parse(), last.parse()));
        match ends {
            Some((Ok(0), Ok(_))) => Err("steps count from 1".to_string()),
            Some((Ok(first), Ok(last))) if last < first => {
                Err(format!("step {last} is before step {first}"))
            }
            Some((Ok(first), Ok(last))) => Ok(Steps { first, last }),
            _ => Err("not A..B, as in 10..12 for steps 10, 11 and 12".to_string()),
        }
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.first, self.last)
    }
}

/// Trace of a run, shared by the ranks of a process. If it is dropped while it records, as when a rank
/// fails, it writes the spans so far.
pub struct Trace {
    options: TraceOptions,
    spans: SpanRecorder,
}

impl Trace {
    pub fn new(options: &TraceOptions, spans: &SpanRecorder) -> Trace {
        Trace { options: options.clone(), spans: spans.clone() }
    }

    /// Rejects steps that the run does not take: it starts after step `from` and ends with step
    /// `total`. Creates the file, a trace without spans. `host_enqueue`: the device is a GPU. A
    /// collective.
    pub fn open(&self, rank: &Rank, host_enqueue: bool, from: u64, total: u64) -> Result<()> {
        let TraceOptions { file, steps } = &self.options;
        let number = rank.number();
        rank.on_first(|| {
            let reject = |what: String, remedy: String| {
                let place = format!("--trace-steps {steps}");
                Err(Problems::one(place, what, remedy).into())
            };
            if steps.last > total {
                return reject(
                    format!("the run ends after step {total}"),
                    format!("trace steps up to {total}"),
                );
            }
            if steps.first <= from {
                return reject(
                    format!("the run resumes after step {from}"),
                    format!("trace steps from {} on", from + 1),
                );
            }
            let place = format!("--trace {}", file.display());
            if chrome::is_other(file) {
                return Err(Problems::one(
                    place,
                    "there is another file, which is not a trace",
                    "choose another name",
                )
                .into());
            }
            chrome::write(file, &[], &steps.to_string()).map_err(|error| {
                Problems::one(place, format!("{error:#}"), "name a file that can be written").into()
            })
        })?;
        let label = rank.world().name();
        let ranks = rank.grid.size();
        let spans = RankSpans { rank: number, ranks, label, host_enqueue, ..RankSpans::default() };
        self.spans.prepare(spans);
        Ok(())
    }

    /// Starts to record if the next step is the first of the trace. A collective.
    fn start_if_due(&self, rank: &Rank, step: u64, backend: &dyn Backend) {
        if step == self.options.steps.first {
            let clock = rank.clock_offset();
            self.spans.start(rank.number(), clock, backend.timeline());
        }
    }

    /// Whether the trace ends with this step.
    fn ends_with(&self, step: u64) -> bool {
        step == self.options.steps.last
    }

    /// Stops to record; rank 0 writes the spans of all ranks, if there are any. A collective.
    fn finish(&self, rank: &Rank) -> Result<()> {
        let parts = rank.gather(&self.spans.stop(rank.number()))?;
        self.write(parts.into_iter().flatten().collect());
        Ok(())
    }

    /// Writes the file; an error does not end the run.
    fn write(&self, parts: Vec<RankSpans>) {
        let TraceOptions { file, steps } = &self.options;
        let Some(first) = parts.first() else { return };
        let mut file = file.clone();
        if first.rank > 0 {
            file.as_mut_os_string()
                .push(format!(".rank-{}", first.rank));
        }
        match chrome::write(&file, &parts, &steps.to_string()) {
            Ok(()) if first.rank > 0 => {}
            Ok(()) => tracing::info!("{}", summary(&parts, &file.display().to_string())),
            Err(error) => tracing::warn!("no trace in {}: {error:#}", file.display()),
        }
    }
}

impl Watcher for Option<&Trace> {
    fn name(&self) -> &'static str {
        "trace"
    }

    fn before_step(&mut self, run: &RunView, step: u64) -> Result<()> {
        if let Some(trace) = self {
            trace.start_if_due(run.rank, step, run.be);
        }
        Ok(())
    }

    fn idle(&self, _: &RunView, spec: &StepSpec) -> Idle {
        Idle::after(self.is_some_and(|trace| trace.ends_with(spec.step)))
    }

    fn after_step(&mut self, run: &RunView, step: u64) -> Result<()> {
        let ended = self.filter(|trace| trace.ends_with(step));
        ended.map_or(Ok(()), |trace| trace.finish(run.rank))
    }

    fn complete(&mut self, run: &RunView, _: Ended) -> Result<()> {
        self.map_or(Ok(()), |trace| trace.finish(run.rank))
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.write(self.spans.stop_all());
    }
}

/// "trace: 1,200 spans of 4 ranks in FILE".
fn summary(parts: &[RankSpans], file: &str) -> String {
    let spans = parts.iter().map(|part| part.spans.len()).sum::<usize>();
    let ranks = parts.len();
    let noun = if ranks == 1 { "rank" } else { "ranks" };
    let mut line = format!("trace: {spans} spans of {ranks} {noun} in {file}");
    let error = parts.iter().map(|part| part.clock.1).max().unwrap_or(0);
    if error > 0 {
        line += &format!("; clocks agree within {}", Seconds(error as f64 * 1e-9));
    }
    if let Some(missing) = chrome::describe_missing(parts) {
        line += &format!("; {missing}");
    }
    let dropped: u64 = parts.iter().map(|part| part.dropped).sum();
    if dropped > 0 {
        line += &format!("; {dropped} later spans did not fit: trace fewer steps");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_parsed_or_rejected() {
        assert_eq!(Steps::parse("3..5"), Ok(Steps { first: 3, last: 5 }));
        assert_eq!(Steps::parse("4..4").unwrap().to_string(), "4..4");
        for bad in ["", "3", "3-5", "..5", "3..", "a..b", "5..3", "0..3", "-1..3", "3..5..7"] {
            assert!(Steps::parse(bad).is_err(), "{bad:?}");
        }
    }
}
