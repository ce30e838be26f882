//! Extracts one text field from a JSON line, without building the rest.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use base::json::{FiniteJson, without_place};
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
/// Remedies for a byte that is not UTF-8 and is the first that is not ASCII.
const CONVERT_LATIN: &str = "convert it from its encoding: iconv -f LATIN1 -t UTF-8 FILE > NEW; or \
                             pass --skip-invalid to skip such lines";
const CONVERT_WINDOWS: &str = "convert it from its encoding: iconv -f WINDOWS-1252 -t UTF-8 FILE > \
                               NEW; or pass --skip-invalid to skip such lines";
/// Maximum number of fields listed.
pub const LISTED: usize = 12;

impl Invalid {
    pub fn damaged(what: impl Into<String>) -> Invalid {
        Invalid { what: what.into(), remedy: MEND }
    }

    /// Text in another encoding, or damaged: whether it is UTF-8 up to a byte that is not.
    pub fn encoding_error(text: &[u8], unit: &str) -> Invalid {
        let good = std::str::from_utf8(text).map_or_else(|error| error.valid_up_to(), str::len);
        let has_c1 = text[good..].iter().any(|byte| (0x80..0xa0).contains(byte));
        let remedy = match () {
            () if !text[..good].is_ascii() => MEND,
            () if has_c1 => CONVERT_WINDOWS,
            () => CONVERT_LATIN,
        };
        let byte = text.get(good).copied().unwrap_or_default();
        Invalid { what: format!("the {unit} is not UTF-8: byte {byte:#04x}"), remedy }
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

    /// Text of the field, or the problem with the line. Other fields may hold anything that Python's
    /// `json` writes.
    pub fn text<'l>(&self, line: &'l [u8]) -> Result<Cow<'l, str>, Invalid> {
        let (text, strict) = match self.find(line) {
            Ok(found) => return found.ok_or_else(|| self.missing_field_error(line)),
            Err(strict) => (FiniteJson::new(line), strict),
        };
        let error = match self.find(&text.text) {
            Ok(Some(found)) => return Ok(found.into_owned().into()),
            Ok(None) => return Err(self.missing_field_error(&text.text)),
            Err(error) if text.text != line => error,
            Err(_) => strict,
        };
        if std::str::from_utf8(line).is_err() {
            return Err(Invalid::encoding_error(line, "line"));
        }
        let column = text.column(1, error.column());
        let what = without_place(&error).replace("null,", "null or NaN,");
        Err(Invalid::damaged(format!("{what}, at column {column}")))
    }

    fn find<'l>(&self, line: &'l [u8]) -> serde_json::Result<Option<Cow<'l, str>>> {
        let mut json = serde_json::Deserializer::from_slice(line);
        let found = Object(self.key).deserialize(&mut json)?;
        json.end().map(|()| found)
    }

    fn missing_field_error(&self, line: &[u8]) -> Invalid {
        let fields: BTreeMap<String, IgnoredAny> = serde_json::from_slice(line).unwrap_or_default();
        let names: Vec<String> = fields
            .keys()
            .take(LISTED)
            .map(|name| format!("\"{name}\""))
            .collect();
        let more = if fields.len() > LISTED { ", …" } else { "" };
        let what =
            format!("the object has no field \"{}\"; it has {}{more}", self.key, names.join(", "));
        let remedy = "name the field with the text by --key, or pass --skip-invalid to skip \
                      such lines";
        Invalid { what, remedy }
    }
}

/// Whether `lines` begin with an object that ends in a later line.
pub fn spans_lines(lines: &[u8]) -> bool {
    let FiniteJson { text, .. } = FiniteJson::new(lines);
    let mut values = serde_json::Deserializer::from_slice(&text).into_iter::<IgnoredAny>();
    let is_whole = values.next().is_some_and(|value| value.is_ok());
    let first = text[..values.byte_offset()].trim_ascii();
    is_whole && first.starts_with(b"{") && first.contains(&b'\n')
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
            let below = self
                .0
                .strip_prefix(&*key)
                .and_then(|rest| rest.strip_prefix('.'));
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
