//! TensorBoard's reader of event files, for scalars.

use std::fs;
use std::path::{Path, PathBuf};

/// Event of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Event {
    pub step: u64,
    pub file_version: String,
    /// Whether it starts a session.
    pub start: bool,
    /// Tag and value.
    pub scalars: Vec<(String, f32)>,
}

/// Points of all curves in a folder, as TensorBoard shows them: files in the order of their names,
/// each up to a broken record; the start of a session drops earlier points at its step and later.
pub fn scalars(folder: &Path) -> Vec<(u64, String, f32)> {
    let mut points: Vec<(u64, String, f32)> = Vec::new();
    for path in files(folder) {
        for event in read(&fs::read(&path).unwrap()) {
            if event.start {
                points.retain(|(step, ..)| *step < event.step);
            }
            let scalars = event.scalars.into_iter();
            points.extend(scalars.map(|(tag, value)| (event.step, tag, value)));
        }
    }
    points
}

/// Event files of a folder, by name.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = all.filter(|path| path.is_file()).collect();
    files.sort();
    files
}

/// Events of a file up to the first that is incomplete; checksums are not compared.
pub fn read(mut file: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(length) = file
        .first_chunk()
        .map(|bytes| u64::from_le_bytes(*bytes) as usize)
    {
        let Some(data) = file
            .get(12..12 + length)
            .filter(|_| file.len() >= length + 16)
        else {
            break;
        };
        events.push(event(data));
        file = &file[length + 16..];
    }
    events
}

fn event(data: &[u8]) -> Event {
    let mut event = Event::default();
    for (number, value) in fields(data) {
        match (number, value) {
            (2, Value::Number(step)) => event.step = step,
            (3, Value::Bytes(text)) => event.file_version = String::from_utf8(text).unwrap(),
            (5, Value::Bytes(summary)) => {
                for (_, value) in fields(&summary) {
                    let Value::Bytes(value) = value else { panic!("a summary's value") };
                    event.scalars.push(scalar(&value));
                }
            }
            (7, Value::Bytes(log)) => event.start = log == [8, 1],
            _ => (),
        }
    }
    event
}

fn scalar(data: &[u8]) -> (String, f32) {
    match &fields(data)[..] {
        [(1, Value::Bytes(tag)), (2, Value::Bits(bits))] => {
            (String::from_utf8(tag.clone()).unwrap(), f32::from_bits(*bits))
        }
        other => panic!("not a scalar: {other:?}"),
    }
}

#[derive(Debug)]
enum Value {
    Number(u64),
    Bits(u32),
    Double,
    Bytes(Vec<u8>),
}

/// Fields of a protobuf message.
fn fields(mut data: &[u8]) -> Vec<(u64, Value)> {
    let mut fields = Vec::new();
    while !data.is_empty() {
        let key = varint(&mut data);
        let value = match key & 7 {
            0 => Value::Number(varint(&mut data)),
            1 => data.split_off(..8).map(|_| Value::Double).unwrap(),
            2 => {
                let length = varint(&mut data) as usize;
                Value::Bytes(data.split_off(..length).unwrap().into())
            }
            5 => Value::Bits(u32::from_le_bytes(data.split_off(..4).unwrap().try_into().unwrap())),
            other => panic!("wire type {other}"),
        };
        fields.push((key >> 3, value));
    }
    fields
}

fn varint(data: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *data.split_off_first().unwrap();
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}
