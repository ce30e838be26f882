//! One text field out of one JSON line, without building the rest.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

/// The field wanted.
pub struct Field<'k> {
    key: &'k str,
}

impl<'k> Field<'k> {
    pub fn new(key: &'k str) -> Field<'k> {
        Field { key }
    }

    /// The field's text, or what is wrong with the line.
    pub fn text<'l>(&self, line: &'l [u8]) -> Result<Cow<'l, str>, String> {
        let mut json = serde_json::Deserializer::from_slice(line);
        let found = Object(self.key).deserialize(&mut json);
        let found = found.and_then(|found| json.end().map(|()| found));
        let found = found.map_err(|error| {
            if std::str::from_utf8(line).is_err() {
                return "the line is not UTF-8".to_string();
            }
            let (text, column) = (error.to_string(), error.column());
            // serde_json counts lines within what it was given, always 1 here.
            let text = text.split(" at line ").next().unwrap_or_default();
            format!("{text}, at column {column}")
        })?;
        found.ok_or_else(|| format!("the object has no field \"{}\" (--key names it)", self.key))
    }
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
        while let Some(key) = map.next_key_seed(Text)? {
            if key == self.0 {
                found = Some(map.next_value_seed(Text)?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// A string, borrowed from the line where it has no escapes.
struct Text;

impl<'de> DeserializeSeed<'de> for Text {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Text {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(text.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(text.to_string().into())
    }
}
