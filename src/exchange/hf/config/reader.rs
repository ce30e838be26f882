//! Typed values of a config.json. A value of a wrong type is a mistake of the user, never a default.

use base::Problems;
use manifest::dialects::{Conversion, Dialect};
use serde_json::{Map, Value};

/// JSON object that is read key by key; all mistakes are collected. Methods take a setting of gptrain's
/// (`model.layers`), or a key that has no setting.
pub struct Reader<'a> {
    pub config: &'a Map<String, Value>,
    /// Path of the file.
    pub place: &'a str,
    /// Name of the object that has the keys, for messages; empty for the file itself.
    pub within: &'static str,
    pub dialect: Dialect,
    pub problems: Problems,
}

impl<'a> Reader<'a> {
    pub fn new(
        config: &'a Map<String, Value>,
        place: &'a str,
        within: &'static str,
        dialect: Dialect,
    ) -> Reader<'a> {
        Reader { config, place, within, dialect, problems: Problems::default() }
    }

    /// Value of a key; None if it is missing or null.
    pub fn get(&self, setting: &str) -> Option<&'a Value> {
        self.config
            .get(self.name(setting))
            .filter(|value| !value.is_null())
    }

    /// Whether the file has the key, though it may be null.
    pub fn has(&self, setting: &str) -> bool {
        self.config.contains_key(self.name(setting))
    }

    /// Name that the file has for a setting: another spelling, if one has a value, wins over the first.
    pub fn name<'n>(&self, setting: &'n str) -> &'n str {
        let names = self.dialect.names(setting);
        let has_value = |name: &str| self.config.get(name).is_some_and(|value| !value.is_null());
        names
            .iter()
            .skip(1)
            .find(|name| has_value(name))
            .or(names.first())
            .copied()
            .unwrap_or(setting)
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

    /// Our word of a choice, by the table of words; None if it is missing or wrong.
    pub fn choice(&mut self, setting: &str) -> Option<&'static str> {
        let text = self.text(setting)?;
        let Some(Conversion::Choice(words)) = self.dialect.row(setting).map(|row| row.conversion)
        else {
            panic!("{setting} is not a choice");
        };
        if let Some((_, ours)) = words.iter().find(|(theirs, _)| *theirs == text) {
            return Some(ours);
        }
        let known: Vec<&str> = words.iter().map(|(theirs, _)| *theirs).collect();
        self.wrong(setting, &format!("only {} can be read", known.join(" and ")));
        None
    }

    /// Rejects values, if present, that would mean a model that gptrain does not have.
    pub fn reject_other_models(&mut self) {
        for (name, only, why) in self.dialect.fixed() {
            let Some(value) = self.get(name) else { continue };
            let needed = serde_json::from_str(only).unwrap_or(Value::from(only));
            let same = match (value.as_f64(), needed.as_f64()) {
                (Some(a), Some(b)) => a == b,
                _ => *value == needed,
            };
            if !same {
                self.wrong(name, &format!("must be {only}: {why}"));
            }
        }
    }

    pub fn wrong(&mut self, setting: &str, remedy: &str) {
        let key = self.name(setting);
        let value = self.config.get(key).map_or("missing".to_string(), |value| {
            let text = value.to_string();
            match text.char_indices().nth(60) {
                None => text,
                Some((end, _)) => format!("{}…", &text[..end]),
            }
        });
        let key =
            if self.within.is_empty() { key.into() } else { format!("{}.{key}", self.within) };
        self.problems
            .add(self.place, format!("{key} is {value}"), remedy);
    }
}
