//! Extracts one text field from a JSON line, without building the rest.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

/// Problem with a line, and the remedy.
#[derive(Debug)]
pub struct Invalid {
    pub what: String,
    pub remedy: &'static str,
}

/// Remedy for a damaged line.
const MEND: &str = "repair the file, or pass --skip-invalid to skip such lines";
/// Maximum number of fields listed.
pub const LISTED: usize = 12;

impl Invalid {
    pub fn damaged(what: impl Into<String>) -> Invalid {
        Invalid { what: what.into(), remedy: MEND }
    }
}

/// Wanted field: a name, or a dotted path of names.
pub struct Field<'k> {
    key: &'k str,
}

impl<'k> Field<'k> {
    pub fn new(key: &'k str) -> Field<'k> {
        Field { key }
    }

    /// Text of the field, or the problem with the line.
    pub fn text<'l>(&self, line: &'l [u8]) -> Result<Cow<'l, str>, Invalid> {
        let mut json = serde_json::Deserializer::from_slice(line);
        let found = Object(self.key).deserialize(&mut json);
        let found = found.and_then(|found| json.end().map(|()| found));
        let found = found.map_err(|error| {
            if std::str::from_utf8(line).is_err() {
                return Invalid::damaged("the line is not UTF-8");
            }
            let (text, column) = (error.to_string(), error.column());
            // serde_json counts lines within its input, so this is always 1.
            let text = text.split(" at line ").next().unwrap_or_default();
            Invalid::damaged(format!("{text}, at column {column}"))
        })?;
        found.ok_or_else(|| self.absent(line))
    }

    fn absent(&self, line: &[u8]) -> Invalid {
        let fields: BTreeMap<String, IgnoredAny> = serde_json::from_slice(line).unwrap_or_default();
        let names: Vec<String> =
            fields.keys().take(LISTED).map(|name| format!("\"{name}\"")).collect();
        let more = if fields.len() > LISTED { ", …" } else { "" };
        let what =
            format!("the object has no field \"{}\"; it has {}{more}", self.key, names.join(", "));
        let remedy = "name the field with the text by --key, or pass --skip-invalid to skip \
                      such lines";
        Invalid { what, remedy }
    }
}

/// Writes a line with one field, whose name is JSON already. Bytes that are not UTF-8 are left for
/// the reader of the line to report.
pub fn write_line(key: &str, text: Option<&[u8]>, line: &mut VecDeque<u8>) {
    line.push_back(b'{');
    line.extend(key.as_bytes());
    line.push_back(b':');
    match text {
        None => line.extend(b"null"),
        Some(text) => {
            line.push_back(b'"');
            for byte in text {
                match byte {
                    b'"' | b'\\' => line.extend([b'\\', *byte]),
                    0..0x20 => line.extend(format!("\\u{byte:04x}").as_bytes()),
                    _ => line.push_back(*byte),
                }
            }
            line.push_back(b'"');
        }
    }
    line.extend(b"}\n");
}

#[derive(Clone, Copy)]
struct Object<'k>(&'k str);

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = Option<Cow<'de, str>>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = Option<Cow<'de, str>>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(Text(key)) = map.next_key()? {
            let below = self.0.strip_prefix(&*key).and_then(|rest| rest.strip_prefix('.'));
            if key == self.0 {
                found = Some(map.next_value::<Text>()?.0);
            } else if let Some(path) = below {
                found = map.next_value_seed(Object(path))?.or(found);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// String, borrowed from the line if it has no escapes.
#[derive(Deserialize)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
