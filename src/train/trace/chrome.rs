//! Writes spans in the Trace Event Format: complete events ("X") with pid = rank and tid = track.
//! https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU

use base::output::{Existing, Output};
use launch::spans::RankSpans;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

/// First bytes of a trace.
const START: &str = "{\"displayTimeUnit\":\"ms\"";

/// Whether the path is an existing file that is not a trace.
pub fn is_other(file: &Path) -> bool {
    let about = std::fs::metadata(file).ok();
    if about.is_none_or(|about| !about.is_file() || about.len() == 0) {
        return false;
    }
    let mut start = vec![0; START.len()];
    let read = File::open(file).and_then(|mut file| file.read_exact(&mut start));
    read.is_err() || start != START.as_bytes()
}

/// Writes the file atomically: it is valid JSON whenever the process ends.
pub fn write(file: &Path, parts: &[RankSpans], steps: &str) -> anyhow::Result<()> {
    let mut to = BufWriter::new(Output::create(file, Existing::Replaced)?);
    events(parts, steps, &mut to)?;
    to.into_inner()
        .map_err(|error| error.into_error())?
        .finish()
}

fn events(parts: &[RankSpans], steps: &str, to: &mut impl Write) -> io::Result<()> {
    let about = json!({
        "steps": steps,
        "clock error, ns": parts.iter().map(|part| part.clock.1).max().unwrap_or(0),
        "missing": describe_missing(parts),
        "spans dropped": parts.iter().map(|part| part.dropped).sum::<u64>(),
    });
    writeln!(to, "{START},\"otherData\":{about},\"traceEvents\":[")?;
    let spans = || {
        parts
            .iter()
            .flat_map(|part| part.spans.iter().map(move |span| (part, span)))
    };
    let in_order: BTreeSet<(usize, &str)> =
        spans().map(|(_, span)| track_order(&span.track)).collect();
    let tracks: Vec<&str> = in_order.into_iter().map(|(_, track)| track).collect();
    let origin = spans()
        .map(|(part, span)| span.start + part.clock.0)
        .min()
        .unwrap_or(0);
    let microseconds = |ns: i64| ns as f64 / 1e3;
    let mut separator = "";
    let mut put = |event: Value| {
        write!(to, "{separator}{event}")?;
        separator = ",\n";
        io::Result::Ok(())
    };
    for part in parts {
        let meta = |tid: usize, name: &str, args: Value| metadata(part.rank, tid, name, args);
        put(meta(0, "process_name", json!({ "name": part.label })))?;
        put(meta(0, "process_sort_index", json!({ "sort_index": part.rank })))?;
        for (tid, track) in tracks.iter().enumerate() {
            put(meta(
                tid,
                "thread_name",
                json!({ "name": track_label(track, part.host_enqueue) }),
            ))?;
            put(meta(tid, "thread_sort_index", json!({ "sort_index": tid })))?;
        }
    }
    for (part, span) in spans() {
        let args = span
            .args
            .iter()
            .map(|(name, value)| (name.to_string(), json!(value)));
        put(json!({
            "ph": "X",
            "pid": part.rank,
            "tid": tracks.iter().position(|track| *track == span.track),
            "ts": microseconds(span.start + part.clock.0 - origin),
            "dur": microseconds(span.duration),
            "name": span.name,
            "args": args.collect::<serde_json::Map<_, _>>(),
        }))?;
    }
    writeln!(to, "\n]}}")
}

fn metadata(pid: usize, tid: usize, name: &str, args: Value) -> Value {
    json!({ "ph": "M", "pid": pid, "tid": tid, "name": name, "args": args })
}

/// Tracks from top to bottom.
fn track_order(track: &str) -> (usize, &str) {
    let first = ["compute", "GPU", "data", "comm", "save"];
    let place = first.iter().position(|start| track.starts_with(start));
    (place.unwrap_or(first.len()), track)
}

/// Adds to a track that its spans are not execution times, because the host only enqueues GPU work.
fn track_label(track: &str, host_enqueue: bool) -> String {
    let on_device = track.starts_with("compute") || track.starts_with("comm");
    if host_enqueue && on_device {
        format!("{track} (host enqueue, not GPU execution)")
    } else {
        track.to_string()
    }
}

/// "without ranks 1, 2", whose processes failed.
pub fn describe_missing(parts: &[RankSpans]) -> Option<String> {
    let ranks = parts.first().map_or(0, |part| part.ranks);
    let missing: Vec<String> = (0..ranks)
        .filter(|rank| parts.iter().all(|part| part.rank != *rank))
        .map(|rank| rank.to_string())
        .collect();
    (!missing.is_empty()).then(|| format!("without ranks {}", missing.join(", ")))
}
