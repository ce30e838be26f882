//! Messages to the user: `tracing` events. Those of rank 0 are printed above the progress bar.
//! Those of every rank are kept in its flight recorder, which is written to disk when the ranks
//! fail.
//!
//! The thread of a rank runs inside the span `rank`, a step inside the span `step`. An event takes
//! its rank and step from these spans.

use super::console::Console;
use super::events::{self, Kind};
use super::spans::SpanRecorder;
use base::{escape_control, push_recent, redact, unix_time};
use comm::Recorder;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, EnteredSpan, Id};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// Layer of `tracing` that prints and records events; clones share its state. By default it prints to
/// standard output, and errors to standard error.
#[derive(Clone, Default)]
pub struct Messages {
    console: Console,
    /// Recorders of the ranks of this process, with the rank's number.
    recorders: Arc<Mutex<Recorders>>,
    spans: SpanRecorder,
    warnings: Warnings,
}

type Recorders = Vec<(u64, Arc<Recorder>)>;

impl Messages {
    /// Installs the layer: all events of gptrain at `level` or more severe become messages. With
    /// `traces`, spans can be recorded.
    pub fn install(&self, level: LevelFilter, traces: bool) {
        let spans = traces.then(|| {
            self.spans
                .clone()
                .with_filter(filter_fn(|meta| meta.is_span()))
        });
        let shown = filter_fn(move |meta| *meta.level() <= level && is_from_gptrain(meta.target()))
            .with_max_level_hint(level);
        let layers = tracing_subscriber::registry()
            .with(self.clone().with_filter(shown))
            .with(spans);
        tracing::subscriber::set_global_default(layers).expect("installed once, at the start");
    }

    /// Makes events of this thread messages of a rank, until the span is dropped.
    pub fn enter_rank(&self, rank: usize, recorder: &Arc<Recorder>) -> EnteredSpan {
        let mut recorders = self.recorders.lock();
        recorders.push((rank as u64, recorder.clone()));
        // Spans have the highest severity, so that no level hides them.
        tracing::error_span!("rank", rank).entered()
    }

    pub fn spans(&self) -> &SpanRecorder {
        &self.spans
    }

    /// Last printed warnings.
    pub fn warnings(&self) -> Warnings {
        self.warnings.clone()
    }

    pub fn console(&self) -> &Console {
        &self.console
    }
}

/// Warning for the user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Warning {
    pub at: f64,
    #[serde(default = "events::warning")]
    pub kind: Kind,
    pub text: String,
}

/// Last warnings of a process.
pub type Warnings = Arc<Mutex<VecDeque<Warning>>>;

/// Number of last warnings that are kept.
const WARNINGS: usize = 16;

/// Adds a warning.
fn add_warning(warnings: &Warnings, kind: Kind, text: &str) {
    let warning = Warning { at: unix_time().as_secs_f64(), kind, text: text.to_string() };
    push_recent(&mut warnings.lock(), warning, WARNINGS);
}

/// Crates whose events are messages. Events of libraries (object_store on each retry, its HTTP
/// client on headers) are not for the user.
const CRATES: [&str; 17] = [
    "gptrain",
    "base",
    "bench",
    "checkpoint",
    "commands",
    "comm",
    "data",
    "device",
    "engine",
    "estimate",
    "exchange",
    "launch",
    "manifest",
    "model",
    "plan",
    "predict",
    "train",
];

fn is_from_gptrain(target: &str) -> bool {
    CRATES.contains(&target.split("::").next().unwrap_or_default())
}

/// Fields of spans and events that are used here.
#[derive(Clone, Default)]
struct Fields {
    rank: Option<u64>,
    step: Option<u64>,
    message: String,
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "rank" => self.rank = Some(value),
            "step" => self.step = Some(value),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Messages {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().replace(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(outer) = span.extensions().get::<Fields>() {
                fields.rank = fields.rank.or(outer.rank);
                fields.step = fields.step.or(outer.step);
            }
        }
        let Fields { rank, step, message } = fields;
        let message = redact(&message);
        let level = *event.metadata().level();
        if let Some(recorder) = rank.and_then(|rank| self.recorder(rank)) {
            recorder.log(level.as_str(), step, &message);
        }
        // An event outside of all ranks concerns the whole process.
        if rank.is_none_or(|rank| rank == 0) {
            let is_divergence = event.metadata().target() == events::DIVERGENCE;
            let kind = if is_divergence { Kind::Divergence } else { Kind::Warning };
            self.print(level, kind, &message);
        }
    }
}

impl Messages {
    fn recorder(&self, rank: u64) -> Option<Arc<Recorder>> {
        let recorders = self.recorders.lock();
        recorders
            .iter()
            .find(|(number, _)| *number == rank)
            .map(|(_, recorder)| recorder.clone())
    }

    fn print(&self, level: Level, kind: Kind, message: &str) {
        let message = escape_control(message);
        if level <= Level::WARN {
            add_warning(&self.warnings, kind, &message);
        }
        match level {
            Level::ERROR => self.console.error(&format!("gptrain: {message}")),
            Level::WARN => self.console.print(&format!("note: {message}")),
            Level::INFO => self.console.print(&message),
            Level::DEBUG => self.console.print(&format!("debug: {message}")),
            Level::TRACE => self.console.print(&format!("trace: {message}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm::LogLine;
    use std::fs::{self, File};

    /// Printed text and records of the same events on two ranks, at a level.
    fn log_on_two_ranks(level: LevelFilter) -> (String, Vec<Vec<LogLine>>) {
        let folder = tempfile::tempdir().unwrap();
        let printed = folder.path().join("printed");
        let console = Console::new(Box::new(File::create(&printed).unwrap()));
        let messages = Messages { console, ..Messages::default() };
        let layers = tracing_subscriber::registry().with(messages.clone().with_filter(level));
        let recorders = [(); 2].map(|()| Arc::new(Recorder::default()));
        tracing::subscriber::with_default(layers, || {
            tracing::info!("of the process");
            for (rank, recorder) in recorders.iter().enumerate() {
                let _rank = messages.enter_rank(rank, recorder);
                tracing::debug!("opening data");
                let _step = tracing::error_span!("step", step = 7u64).entered();
                tracing::warn!("of rank {rank}");
            }
        });
        let lines = recorders.map(|recorder| recorder.report(0, "", usize::MAX).log);
        (fs::read_to_string(printed).unwrap(), lines.into())
    }

    #[test]
    fn rank_0_prints_and_every_rank_records() {
        let (printed, lines) = log_on_two_ranks(LevelFilter::INFO);
        assert_eq!(printed, "of the process\nnote: of rank 0\n");
        for (rank, lines) in lines.iter().enumerate() {
            let [line] = &lines[..] else { panic!("{lines:?}") };
            assert_eq!((line.level.as_str(), line.step), ("WARN", Some(7)));
            assert_eq!(line.text, format!("of rank {rank}"));
        }
    }

    #[test]
    fn events_of_every_crate_are_messages_and_those_of_libraries_are_not() {
        let crates = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_dir());
        for folder in crates {
            assert!(
                is_from_gptrain(&folder.file_name().unwrap().to_string_lossy()),
                "{}",
                folder.display()
            );
        }
        assert!(is_from_gptrain(module_path!()) && !is_from_gptrain("object_store::client::retry"));
    }

    #[test]
    fn a_level_hides_what_is_less_severe() {
        let (printed, lines) = log_on_two_ranks(LevelFilter::DEBUG);
        assert_eq!(printed, "of the process\ndebug: opening data\nnote: of rank 0\n");
        assert!(lines.iter().all(|lines| lines.len() == 2), "{lines:?}");
        let (printed, lines) = log_on_two_ranks(LevelFilter::ERROR);
        assert!(printed.is_empty() && lines.iter().all(Vec::is_empty), "{printed} {lines:?}");
    }
}
