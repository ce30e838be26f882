//! TensorBoard event files: scalars by step, and by samples as Megatron writes them (`… vs
//! samples`).
//!
//! A file is a sequence of TFRecords (tensorflow/core/lib/io/record_writer.h): length u64, its
//! masked CRC-32C, the data, its masked CRC-32C; all little-endian. The data is an `Event` in
//! protobuf (tensorflow/core/util/event.proto): 1 wall_time double, 2 step int64, 3 file_version
//! string, 5 summary { 1 value { 1 tag string, 2 simple_value float } }.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use base::{input, unix_time};

use super::append::Appender;
use crate::storage::Storage;

const PREFIX: &str = "events.out.tfevents.";
const BY_SAMPLES: &str = " vs samples";

/// Steps that are written one by one, about 625 bytes each, before they are thinned out.
const DENSE: u64 = 32 << 10;

/// Whether the scalars of a step are written: every step of the first 65,536, every second one of the
/// next 65,536, every fourth one of the next 131,072: 20 MB for each doubling of a run's length.
pub fn is_written(step: u64) -> bool {
    let stride = 1 << (step / DENSE).max(1).ilog2();
    step.is_multiple_of(stride)
}

/// Event file of one session of a run.
pub struct Events(Appender);

impl Events {
    /// Starts a new file in `folder`, after truncating the earlier ones after `resume_step` (to
    /// nothing, at 0). TensorBoard's own method, a START event, would erase the curves by samples,
    /// whose x is always greater than the step.
    pub fn open(folder: &Path, resume_step: u64, storage: &Arc<Storage>) -> Result<Events> {
        let context = || format!("cannot prepare the TensorBoard folder {}", folder.display());
        fs::create_dir_all(folder).with_context(context)?;
        let last = cut_all(folder, resume_step).with_context(context)?;
        // TensorBoard reads files in the order of their names, which start with the second.
        let second = unix_time().as_secs().max(last + 1);
        let path = folder.join(format!("{PREFIX}{second}.gptrain.{}", std::process::id()));
        let mut events = Events(Appender::open(&path, storage).with_context(context)?);
        let mut version = Vec::new();
        bytes(&mut version, 3, b"brain.Event:2");
        events.0.append(record(&event(0, version)))?;
        Ok(events)
    }

    /// Adds `scalars` at `step`, and again at `samples` under their names by samples.
    pub fn scalars(&mut self, step: u64, samples: u64, scalars: &[(&str, f64)]) -> Result<()> {
        let mut text = record(&event(step, summary(scalars, "")));
        text.extend(record(&event(samples, summary(scalars, BY_SAMPLES))));
        self.0.append(text)
    }

    /// Appender, which writes the events.
    pub fn appender(&mut self) -> &mut Appender {
        &mut self.0
    }
}

/// Truncates every event file of the folder. Returns the second in the newest one's name, or 0.
fn cut_all(folder: &Path, resume_step: u64) -> Result<u64> {
    let mut last = 0;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        last = last.max(rest.split('.').next().and_then(|s| s.parse().ok()).unwrap_or(0));
        let bytes = input::read(&path, u64::MAX)?;
        match whole_until(&bytes, resume_step) {
            _ if resume_step == 0 => fs::remove_file(&path)?,
            keep if keep < bytes.len() => {
                OpenOptions::new().write(true).open(&path)?.set_len(keep as u64)?
            }
            _ => {}
        }
    }
    Ok(last)
}

/// Bytes to keep: up to the first record that is broken or belongs to a step after `resume_step`.
/// Events are in the order of steps, each step before its own by-samples event.
fn whole_until(bytes: &[u8], resume_step: u64) -> usize {
    let later = |event: &ReadEvent| {
        let by_samples = event.scalars.first().is_some_and(|(tag, _)| tag.ends_with(BY_SAMPLES));
        !by_samples && event.step > resume_step
    };
    read(bytes).take_while(|(_, event)| !later(event)).last().map_or(0, |(end, _)| end)
}

fn summary(scalars: &[(&str, f64)], suffix: &str) -> Vec<u8> {
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

fn event(step: u64, what: Vec<u8>) -> Vec<u8> {
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
fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let crc = |bytes: &[u8]| masked(crc32c(bytes)).to_le_bytes();
    [&length[..], &crc(&length), data, &crc(data)].concat()
}

/// TFRecord's mask for a checksum of data that contains checksums.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), RFC 3720 appendix B.4.
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let (mut table, mut i) = ([0; 256], 0);
        while i < 256 {
            let (mut crc, mut bit) = (i as u32, 0);
            while bit < 8 {
                crc = (crc >> 1) ^ (0x82f6_3b78 * (crc & 1));
                bit += 1;
            }
            table[i] = crc;
            i += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |crc, byte| (crc >> 8) ^ TABLE[(crc as u8 ^ byte) as usize])
}

/// Event, read back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReadEvent {
    pub step: u64,
    pub file_version: String,
    /// Tag and value.
    pub scalars: Vec<(String, f32)>,
}

/// Events of a file with their end offsets, up to the first that is incomplete or damaged.
pub fn read(file: &[u8]) -> impl Iterator<Item = (usize, ReadEvent)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = &file[at..];
        let length = u64::from_le_bytes(*rest.first_chunk()?);
        let end = usize::try_from(length).ok()?.checked_add(16)?;
        let data = rest.get(12..end - 4)?;
        if *rest.get(..end)? != record(data) {
            return None;
        }
        at += end;
        Some((at, read_event(data)?))
    })
}

fn read_event(data: &[u8]) -> Option<ReadEvent> {
    let mut event = ReadEvent::default();
    for field in fields(data)? {
        match field {
            (2, Value::Number(step)) => event.step = step,
            (3, Value::Bytes(text)) => event.file_version = String::from_utf8(text.into()).ok()?,
            (5, Value::Bytes(summary)) => {
                for field in fields(summary)? {
                    let (1, Value::Bytes(value)) = field else { continue };
                    event.scalars.push(read_scalar(value)?);
                }
            }
            _ => {}
        }
    }
    Some(event)
}

fn read_scalar(data: &[u8]) -> Option<(String, f32)> {
    let (mut tag, mut scalar) = (String::new(), f32::NAN);
    for field in fields(data)? {
        match field {
            (1, Value::Bytes(text)) => tag = String::from_utf8(text.into()).ok()?,
            (2, Value::Bits(bits)) => scalar = f32::from_bits(bits),
            _ => {}
        }
    }
    Some((tag, scalar))
}

enum Value<'a> {
    Number(u64),
    Bits(u32),
    Bytes(&'a [u8]),
    Double,
}

/// Fields of a protobuf message; None if it is invalid.
fn fields(mut data: &[u8]) -> Option<Vec<(u64, Value<'_>)>> {
    let mut fields = Vec::new();
    while !data.is_empty() {
        let key = read_varint(&mut data)?;
        let value = match (key & 7) as u8 {
            VARINT => Value::Number(read_varint(&mut data)?),
            FIXED64 => data.split_off(..8).map(|_| Value::Double)?,
            FIXED32 => Value::Bits(u32::from_le_bytes(*data.split_off(..4)?.first_chunk()?)),
            BYTES => {
                let length = usize::try_from(read_varint(&mut data)?).ok()?;
                Value::Bytes(data.split_off(..length)?)
            }
            _ => return None,
        };
        fields.push((key >> 3, value));
    }
    Some(fields)
}

fn read_varint(data: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *data.split_off_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}
