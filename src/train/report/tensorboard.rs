//! TensorBoard event files: scalars by step, by samples as Megatron names them (`… vs samples`), and
//! losses, accuracies and the learning rate by tokens (`… vs tokens`), each kind in a folder of its
//! own. Each session of a run writes new files. They begin with a
//! START event, at which TensorBoard drops the points at its step and later of earlier files. One
//! file for all curves would lose those by samples, whose x is greater than the step.
//!
//! A file is a sequence of TFRecords (tensorflow/core/lib/io/record_writer.h): length u64, its
//! masked CRC-32C, the data, its masked CRC-32C; all little-endian. The data is an `Event` in
//! protobuf (tensorflow/core/util/event.proto): 1 wall_time double, 2 step int64, 3 file_version
//! string, 5 summary { 1 value { 1 tag string, 2 simple_value float } }, 7 session_log { 1 status }.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use base::unix_time;

use super::append::Appender;
use launch::storage::Storage;

const PREFIX: &str = "events.out.tfevents.";
const BY_SAMPLES: &str = " vs samples";
const BY_TOKENS: &str = " vs tokens";
/// Starts of the tags that are also written by tokens.
const OF_TOKENS: [&str; 3] = ["lm-loss", "learning-rate/", "eval-tasks/"];
/// `SessionLog.SessionStatus` of the start of a session.
const START: u8 = 1;

/// Steps that are written one by one, about 625 bytes each, before they are thinned out.
const DENSE: u64 = 32 << 10;

/// Whether the scalars of a step are written: every step of the first 65,536, every second one of the
/// next 65,536, every fourth one of the next 131,072: 20 MB for each doubling of a run's length.
pub fn is_written(step: u64) -> bool {
    let stride = 1 << (step / DENSE).max(1).ilog2();
    step.is_multiple_of(stride)
}

/// Place in a run.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    pub step: u64,
    pub samples: u64,
    pub tokens: u64,
}

/// Event files of one session of a run: by steps, and by samples and tokens in folders of their own.
pub struct Events {
    by_step: EventFile,
    by_samples: EventFile,
    by_tokens: EventFile,
}

impl Events {
    /// Starts new files in `folder` and its folders `by-samples` and `by-tokens`. Those of earlier
    /// sessions stay.
    pub fn open(folder: &Path, storage: &Arc<Storage>) -> Result<Events> {
        let open = |path: &Path| {
            EventFile::open(path, storage).with_context(|| {
                format!("cannot prepare the TensorBoard folder {}", folder.display())
            })
        };
        Ok(Events {
            by_step: open(folder)?,
            by_samples: open(&folder.join("by-samples"))?,
            by_tokens: open(&folder.join("by-tokens"))?,
        })
    }

    /// Adds `scalars` at a step, again by samples, and some of them by tokens.
    pub fn scalars(&mut self, at: Position, scalars: &[(&str, f64)]) -> Result<()> {
        self.by_step.add(at.step, encode_summary(scalars, ""))?;
        self.by_samples
            .add(at.samples, encode_summary(scalars, BY_SAMPLES))?;
        let is_of_tokens = |tag: &str| OF_TOKENS.iter().any(|start| tag.starts_with(start));
        let of_tokens: Vec<_> = scalars
            .iter()
            .filter(|(tag, _)| is_of_tokens(tag))
            .copied()
            .collect();
        if of_tokens.is_empty() {
            return Ok(());
        }
        self.by_tokens
            .add(at.tokens, encode_summary(&of_tokens, BY_TOKENS))
    }

    /// Appenders, which write the events.
    pub fn appenders(&mut self) -> [&mut Appender; 3] {
        [&mut self.by_step, &mut self.by_samples, &mut self.by_tokens]
            .map(|file| &mut file.appender)
    }
}

struct EventFile {
    appender: Appender,
    /// Whether the session's first event was written.
    started: bool,
}

impl EventFile {
    fn open(folder: &Path, storage: &Arc<Storage>) -> Result<EventFile> {
        fs::create_dir_all(folder)?;
        // TensorBoard reads files in the order of their names, which start with the second.
        let second = unix_time().as_secs().max(newest_time(folder)? + 1);
        let path = folder.join(format!("{PREFIX}{second}.gptrain.{}", std::process::id()));
        let mut appender = Appender::open(&path, storage)?;
        let mut version = Vec::new();
        bytes(&mut version, 3, b"brain.Event:2");
        appender.append(encode_record(&encode_event(0, version)))?;
        Ok(EventFile { appender, started: false })
    }

    /// Adds an event at `x`. Before the first one, TensorBoard is asked to forget what earlier
    /// sessions wrote at `x` and later, because the run continues from an older step.
    fn add(&mut self, x: u64, what: Vec<u8>) -> Result<()> {
        let mut text = Vec::new();
        if !std::mem::replace(&mut self.started, true) {
            let mut start = Vec::new();
            bytes(&mut start, 7, &[1 << 3 | VARINT, START]);
            text.extend(encode_record(&encode_event(x, start)));
        }
        text.extend(encode_record(&encode_event(x, what)));
        self.appender.append(text)
    }
}

/// Second in the name of the newest event file; 0 if there is none.
fn newest_time(folder: &Path) -> Result<u64> {
    let mut newest = 0;
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let second = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split('.').next());
        newest = newest.max(second.and_then(|second| second.parse().ok()).unwrap_or(0));
    }
    Ok(newest)
}

fn encode_summary(scalars: &[(&str, f64)], suffix: &str) -> Vec<u8> {
    let mut all = Vec::new();
    for (tag, scalar) in scalars {
        let mut value = Vec::new();
        bytes(&mut value, 1, format!("{tag}{suffix}").as_bytes());
        value.push(2 << 3 | FIXED32);
        value.extend((*scalar as f32).to_le_bytes());
        bytes(&mut all, 1, &value);
    }
    let mut field = Vec::new();
    bytes(&mut field, 5, &all);
    field
}

fn encode_event(step: u64, what: Vec<u8>) -> Vec<u8> {
    let seconds = unix_time().as_secs_f64();
    let mut event = vec![1 << 3 | FIXED64];
    event.extend(seconds.to_le_bytes());
    event.push(2 << 3 | VARINT);
    varint(&mut event, step);
    event.extend(what);
    event
}

// Protobuf's wire types.
const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const BYTES: u8 = 2;
const FIXED32: u8 = 5;

fn varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

fn bytes(to: &mut Vec<u8>, field: u8, value: &[u8]) {
    to.push(field << 3 | BYTES);
    varint(to, value.len() as u64);
    to.extend(value);
}

/// TFRecord with `data`.
fn encode_record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let crc = |bytes: &[u8]| mask_checksum(crc32c(bytes)).to_le_bytes();
    [&length[..], &crc(&length), data, &crc(data)].concat()
}

/// TFRecord's mask for a checksum of data that contains checksums.
fn mask_checksum(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), RFC 3720 appendix B.4.
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 * (crc & 1)))
    })
}
