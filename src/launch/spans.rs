//! Collects spans in memory: a layer of `tracing` with one buffer per rank of this process.

use comm::{ClockOffset, now_ns};
use device::Timeline;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

/// Maximum spans per rank (8 MiB). Later ones are counted, not kept.
const CAPACITY: usize = 1 << 17;

/// Default track of a span.
const COMPUTE: &str = "compute";
/// Track for the GPU's execution of enqueued work.
const GPU: &str = "GPU";

/// Layer of `tracing` that records spans; clones share the buffers.
#[derive(Clone, Default)]
pub struct SpanRecorder {
    ranks: Arc<Mutex<BTreeMap<usize, Buffer>>>,
}

/// Buffer of a rank, also in the extensions of its span `rank`.
type Buffer = Arc<Mutex<RankSpans>>;

/// Recorded spans of a rank.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct RankSpans {
    pub rank: usize,
    /// Ranks of the run.
    pub ranks: usize,
    /// "rank 3 (node n1, TP1 PP1 DP0)".
    pub label: String,
    /// Whether the device is a GPU, whose work these spans only enqueue.
    pub host_enqueue: bool,
    /// Nanoseconds to add to `Span::start` for rank 0's clock, and their maximum error.
    pub clock: (i64, i64),
    pub spans: Vec<Span>,
    /// Number of spans beyond the buffer.
    pub dropped: u64,
    pub recording: bool,
    #[serde(skip)]
    pub gpu: Option<GpuSpans>,
}

/// Spans by the GPU's clock, until the GPU has reached their ends.
#[derive(Clone)]
pub struct GpuSpans {
    timeline: Arc<dyn Timeline>,
    /// Start of the timeline, in nanoseconds of this rank's clock.
    start: i64,
    /// Spans, each with the numbers of its first and last point.
    spans: Vec<(Span, [usize; 2])>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Span {
    pub name: Cow<'static, str>,
    pub track: Cow<'static, str>,
    /// Start, in nanoseconds of this rank's clock.
    pub start: i64,
    pub duration: i64,
    /// Values such as bytes, by name.
    pub args: Vec<(Cow<'static, str>, u64)>,
}

impl SpanRecorder {
    /// Sets the description of a rank, before its spans are recorded.
    pub fn prepare(&self, spans: RankSpans) {
        let buffer = self.buffer(spans.rank);
        *buffer.lock() = spans;
    }

    /// Starts to record the spans of a rank. `timeline` is its GPU's, started just now.
    pub fn start(&self, rank: usize, clock: ClockOffset, timeline: Option<Arc<dyn Timeline>>) {
        let buffer = self.buffer(rank);
        let mut spans = buffer.lock();
        spans.gpu =
            timeline.map(|timeline| GpuSpans { timeline, start: now_ns(), spans: Vec::new() });
        spans.clock = (clock.ns, clock.error_ns);
        spans.spans.reserve_exact(CAPACITY);
        spans.recording = true;
    }

    /// Stops recording a rank. Returns its spans, if it was recorded.
    pub fn stop(&self, rank: usize) -> Option<RankSpans> {
        let mut spans = std::mem::take(&mut *self.buffer(rank).lock());
        if let Some(gpu) = spans.gpu.take() {
            spans.spans.extend(gpu.with_gpu_times());
        }
        spans.recording.then_some(spans)
    }

    /// Stops recording. Returns the spans of all ranks of this process.
    pub fn stop_all(&self) -> Vec<RankSpans> {
        let ranks: Vec<usize> = self.ranks.lock().keys().copied().collect();
        // Does not wait for a GPU whose rank has failed.
        for rank in &ranks {
            self.buffer(*rank).lock().gpu = None;
        }
        ranks
            .into_iter()
            .filter_map(|rank| self.stop(rank))
            .collect()
    }

    fn buffer(&self, rank: usize) -> Buffer {
        self.ranks.lock().entry(rank).or_default().clone()
    }
}

impl RankSpans {
    /// Marks the GPU's position, unless there is no GPU or a capture is active.
    fn mark(&self) -> Option<usize> {
        self.gpu.as_ref().and_then(|gpu| gpu.timeline.mark())
    }
}

impl GpuSpans {
    /// The spans with the times at which the GPU executed them. Waits for the GPU.
    fn with_gpu_times(self) -> impl Iterator<Item = Span> {
        let points = self.timeline.read();
        let origin = self.start;
        self.spans.into_iter().map(move |(span, [from, to])| {
            let start = origin + points[from];
            let duration = points[to] - points[from];
            Span { track: Cow::Borrowed(GPU), start, duration, ..span }
        })
    }
}

/// Open span.
struct Open {
    buffer: Buffer,
    span: Span,
    /// Start on the GPU's timeline, for a span that enqueues work.
    mark: Option<usize>,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for SpanRecorder {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if span.name() == "rank" {
            let rank = fields.args.first().map_or(0, |(_, rank)| *rank as usize);
            span.extensions_mut().insert(self.buffer(rank));
            return;
        }
        let outer = span
            .scope()
            .find_map(|outer| outer.extensions().get::<Buffer>().cloned());
        let Some(buffer) = outer.filter(|buffer| buffer.lock().recording) else { return };
        let track = fields.take_track();
        let name = fields.op.map_or(Cow::Borrowed(span.name()), Cow::Owned);
        let open = Span { name, track, start: now_ns(), duration: 0, args: fields.args };
        let mark = fields.gpu.then(|| buffer.lock().mark()).flatten();
        span.extensions_mut()
            .insert(Open { buffer, span: open, mark });
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(closed) = context.span(&id) else { return };
        let Some(open) = closed.extensions_mut().remove::<Open>() else { return };
        let Open { buffer, mut span, mark } = open;
        span.duration = now_ns() - span.start;
        let mut rank_spans = buffer.lock();
        let marks = mark.zip(rank_spans.mark());
        if let (Some((from, to)), Some(gpu)) = (marks, rank_spans.gpu.as_mut()) {
            gpu.spans.push((span.clone(), [from, to]));
        }
        if rank_spans.recording && rank_spans.spans.len() < CAPACITY {
            rank_spans.spans.push(span);
        } else {
            rank_spans.dropped += u64::from(rank_spans.recording);
        }
    }
}

/// Fields of a span: its track, a name that overrides the static one, values.
#[derive(Default)]
struct Fields {
    track: Option<String>,
    op: Option<String>,
    group: Option<String>,
    queued: bool,
    /// Whether it enqueues work for the GPU.
    gpu: bool,
    args: Vec<(Cow<'static, str>, u64)>,
}

impl Fields {
    /// Takes the name of the track. A group has two tracks, because its blocking collectives overlap in
    /// time with those on the communication queue.
    fn take_track(&mut self) -> Cow<'static, str> {
        match (self.group.take(), self.track.take()) {
            (Some(group), _) if self.queued => Cow::Owned(format!("comm {group} (queue)")),
            (Some(group), _) => Cow::Owned(format!("comm {group}")),
            (None, Some(track)) => Cow::Owned(track),
            (None, None) => Cow::Borrowed(COMPUTE),
        }
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.args.push((Cow::Borrowed(field.name()), value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "track" => self.track = Some(value.to_string()),
            "op" => self.op = Some(value.to_string()),
            "group" => self.group = Some(value.to_string()),
            _ => {}
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.queued |= field.name() == "queued" && value;
        self.gpu |= field.name() == "gpu" && value;
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}
