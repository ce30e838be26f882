//! Typed values of a config.json. A value of a wrong type is a mistake of the user, never a default.

use super::family::Spelling;
use base::Problems;
use serde_json::{Map, Value};

/// JSON object that is read key by key; all mistakes are collected.
pub struct Reader<'a> {
    pub config: &'a Map<String, Value>,
    /// Path of the file.
    pub place: &'a str,
    /// Prefix of a key in messages: "rope_parameters." in the object of this name.
    pub within: &'static str,
    /// Other names of keys.
    pub spellings: &'static [Spelling],
    pub problems: Problems,
}

impl<'a> Reader<'a> {
    pub fn new(config: &'a Map<String, Value>, place: &'a str) -> Reader<'a> {
        Reader { config, place, within: "", spellings: &[], problems: Problems::default() }
    }

    /// Value of a key; None if it is missing or null.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.config
            .get(self.spelled(key))
            .filter(|value| !value.is_null())
    }

    /// Name that the file has for a key: another spelling, if one has a value.
    fn spelled<'k>(&self, key: &'k str) -> &'k str {
        let row = self.spellings.iter().find(|row| row.key == key);
        let other = row.and_then(|row| {
            row.others.iter().find(|name| {
                self.config
                    .get(**name)
                    .is_some_and(|value| !value.is_null())
            })
        });
        other.copied().unwrap_or(key)
    }

    /// Required whole number above 0.
    pub fn size(&mut self, key: &str) -> usize {
        if self.get(key).is_none() {
            self.wrong(key, "a whole number above 0 is needed");
        }
        self.optional_size(key).unwrap_or(1)
    }

    pub fn optional_size(&mut self, key: &str) -> Option<usize> {
        let size = self
            .get(key)?
            .as_u64()
            .filter(|size| (1..1 << 31).contains(size));
        if size.is_none() {
            self.wrong(key, "a whole number above 0 is needed");
        }
        size.map(|size| size as usize)
    }

    /// Whole number, 0 or more.
    pub fn count(&mut self, key: &str) -> Option<usize> {
        let count = self.get(key)?.as_u64().filter(|count| *count < 1 << 31);
        if count.is_none() {
            self.wrong(key, "a whole number is needed");
        }
        count.map(|count| count as usize)
    }

    pub fn number(&mut self, key: &str) -> Option<f64> {
        let number = self.get(key)?.as_f64().filter(|number| number.is_finite());
        if number.is_none() {
            self.wrong(key, "a number is needed");
        }
        number
    }

    /// Number within limits.
    pub fn number_in(&mut self, key: &str, least: f64, most: f64) -> Option<f64> {
        let number = self.number(key)?;
        let fits = (least..=most).contains(&number);
        if !fits {
            self.wrong(key, &format!("a number from {least} to {most} is needed"));
        }
        fits.then_some(number)
    }

    pub fn flag(&mut self, key: &str) -> Option<bool> {
        let flag = self.get(key)?.as_bool();
        if flag.is_none() {
            self.wrong(key, "true or false is needed");
        }
        flag
    }

    pub fn text(&mut self, key: &str) -> Option<&'a str> {
        let text = self.get(key)?.as_str();
        if text.is_none() {
            self.wrong(key, "a text is needed");
        }
        text
    }

    /// Rejects values, if present, that would mean a model that gptrain does not have.
    pub fn fixed(&mut self, table: &[(&str, Value)]) {
        for (key, needed) in table {
            let Some(value) = self.get(key) else { continue };
            let same = match (value.as_f64(), needed.as_f64()) {
                (Some(a), Some(b)) => a == b,
                _ => value == needed,
            };
            if !same {
                let remedy = match needed {
                    Value::Null => "gptrain has not that".to_string(),
                    _ => format!("must be {needed}: gptrain computes nothing else here"),
                };
                self.wrong(key, &remedy);
            }
        }
    }

    pub fn wrong(&mut self, key: &str, remedy: &str) {
        let key = self.spelled(key);
        let value = self.config.get(key).map_or("missing".to_string(), |value| {
            let text = value.to_string();
            match text.char_indices().nth(60) {
                None => text,
                Some((end, _)) => format!("{}…", &text[..end]),
            }
        });
        let key = format!("{}{key}", self.within);
        self.problems
            .add(self.place, format!("{key} is {value}"), remedy);
    }
}
